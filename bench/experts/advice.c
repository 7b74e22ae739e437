// Preloaded into llama.cpp it changes how the kernel reads a mapped model from disk: nothing is read ahead at loading, and
// the mapping is advised as ADVICE says, `normal` or `random`. llama.cpp itself asks for all of the file at once.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MODEL_BYTES_MIN (64ul << 20)

typedef void *(*map_call)(void *, size_t, int, int, int, off_t);

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    static map_call real;
    if (!real) real = (map_call)dlsym(RTLD_NEXT, "mmap");
    int is_model = file >= 0 && bytes > MODEL_BYTES_MIN && (flags & MAP_SHARED);
    void *start = real(address, bytes, protection, is_model ? flags & ~MAP_POPULATE : flags, file, offset);
    if (is_model && start != MAP_FAILED) {
        const char *advice = getenv("ADVICE");
        madvise(start, bytes, advice && !strcmp(advice, "random") ? MADV_RANDOM : MADV_NORMAL);
    }
    return start;
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    return mmap(address, bytes, protection, flags, file, offset);
}

int posix_fadvise(int file, off_t offset, off_t bytes, int advice) { return 0; }
int posix_fadvise64(int file, off_t offset, off_t bytes, int advice) { return 0; }
int posix_madvise(void *start, size_t bytes, int advice) { return 0; }
