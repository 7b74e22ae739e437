/* A program that knows nothing of the pool and maps one of its files in every way that programs do.
 *
 * behaviours CASE FILE OBJECT BYTES: FILE stands for an object whose byte at an offset is what byte_of() says; the file
 * itself, which only the kernel's own mapping shows, has 0xEE in every byte. Exit status 0 if all is as it should be.
 * BEHAVIOURS_HUGE says that the memory has huge pages: then parts of a page that were unmapped can be read as long as
 * another part is in use, parts of a page cannot be replaced or protected, and private writing is not for such memory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define PAGE 4096ul
#define WINDOW 0x110000000000ul
#define WINDOW_END (WINDOW + (1ul << 46))

static const char *path;
static int huge;
static uint64_t object;
static size_t size;

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "line %d: %s (errno %s)\n", __LINE__, #condition, strerror(errno)); \
            _exit(1);                                                                           \
        }                                                                                       \
    } while (0)

static unsigned char byte_of(size_t offset)
{
    return ((offset >> 12) * 131 + (offset & 4095) * 7 + object * 13) % 255 + 1;
}

static unsigned char *map_at(void *address, size_t bytes, int protection, int flags, off_t offset)
{
    int file = open(path, O_RDONLY);
    CHECK(file >= 0);
    unsigned char *memory = mmap(address, bytes, protection, flags, file, offset);
    close(file);
    return memory;
}

static unsigned char *map(int protection, int flags)
{
    unsigned char *memory = map_at(NULL, size, protection, flags, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static int right(const volatile unsigned char *memory, size_t bytes, size_t offset)
{
    for (size_t at = 0; at < bytes; at += 1021)
        if (memory[at] != byte_of(offset + at)) {
            fprintf(stderr, "byte %zu is %d\n", offset + at, memory[at]);
            return 0;
        }
    return 1;
}

static sigjmp_buf back;
static void on_signal(int number) { siglongjmp(back, number); }

/* The signal that reading a byte ends in, or 0. */
static int signal_of(const volatile unsigned char *byte)
{
    signal(SIGBUS, on_signal);
    signal(SIGSEGV, on_signal);
    int number = sigsetjmp(back, 1);
    if (number == 0)
        (void)*byte;
    signal(SIGBUS, SIG_DFL);
    signal(SIGSEGV, SIG_DFL);
    return number;
}

/* Whether an unmapped page is gone, as far as its pages allow. */
static int is_gone(const volatile unsigned char *byte) { return huge || signal_of(byte) == SIGSEGV; }

static int ends_well(pid_t child)
{
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    return status == 0;
}

static int entries(const char *folder)
{
    int count = 0;
    DIR *list = opendir(folder);
    CHECK(list != NULL);
    while (readdir(list) != NULL)
        count++;
    closedir(list);
    return count;
}

static void plain(void)
{
    errno = 77;
    unsigned char *memory = map(PROT_READ, MAP_SHARED);
    CHECK(errno == 77);
    CHECK((uintptr_t)memory >= WINDOW && (uintptr_t)memory < WINDOW_END);
    CHECK(right(memory, size, 0));
    unsigned char *again = map(PROT_READ, MAP_PRIVATE);
    CHECK(again != memory && right(again, size, 0));
    CHECK(munmap(memory, size) == 0 && munmap(again, size) == 0);
    CHECK(signal_of(memory) == SIGSEGV);
    unsigned char *part = map_at(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, 5 * PAGE);
    CHECK(part == memory + 5 * PAGE && right(part, 3 * PAGE, 5 * PAGE));
    int place = open(path, O_PATH);
    CHECK(place >= 0 && mmap(NULL, size, PROT_READ, MAP_SHARED, place, 0) == MAP_FAILED && errno == EBADF);
    CHECK(close(place) == 0);
}

static void writes(void)
{
    unsigned char *mine = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
    unsigned char *shared = map(PROT_READ, MAP_SHARED);
    for (size_t at = 0; at < size; at += 7 * PAGE)
        mine[at] = 0;
    for (size_t at = 0; at < size; at += PAGE) {
        CHECK(mine[at] == (at % (7 * PAGE) ? byte_of(at) : 0));
        CHECK(mine[at + 1] == byte_of(at + 1) && shared[at] == byte_of(at));
    }
    int pipes[2];
    CHECK(pipe(pipes) == 0 && write(pipes[1], "xyz", 3) == 3);
    CHECK(read(pipes[0], mine + 100 * PAGE, 3) == 3 && memcmp(mine + 100 * PAGE, "xyz", 3) == 0);
    CHECK(mprotect(shared, PAGE, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
    CHECK(map_at(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, 0) == MAP_FAILED && errno == EACCES);
    if (huge)
        return;
    unsigned char *later = map(PROT_READ, MAP_PRIVATE);
    CHECK(mprotect(later + PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    later[PAGE] = 9;
    CHECK(later[PAGE] == 9 && later[PAGE + 1] == byte_of(PAGE + 1) && later[0] == byte_of(0));
}

static void hidden(void)
{
    unsigned char *memory = map(PROT_NONE, MAP_SHARED);
    CHECK(signal_of(memory) == SIGSEGV);
    CHECK(mprotect(memory, size, PROT_READ) == 0 && right(memory, size, 0));
    if (huge)
        return;
    CHECK(mprotect(memory + PAGE, PAGE, PROT_NONE) == 0);
    CHECK(signal_of(memory + PAGE) == SIGSEGV && memory[0] == byte_of(0) && memory[2 * PAGE] == byte_of(2 * PAGE));
}

static void behind_the_end(void)
{
    size_t whole = (size + PAGE - 1) / PAGE * PAGE;
    unsigned char *memory = map_at(NULL, whole + 3 * PAGE, PROT_READ, MAP_SHARED, 0);
    CHECK(memory != MAP_FAILED && right(memory, size, 0));
    for (size_t at = size; at < whole; at++)
        CHECK(memory[at] == 0);
    if (!huge)
        CHECK(signal_of(memory + whole) == SIGBUS);
    CHECK(munmap(memory, whole + 3 * PAGE) == 0);
    if (huge)
        return;
    memory = map_at(NULL, PAGE, PROT_READ, MAP_SHARED, whole);
    CHECK(memory != MAP_FAILED && signal_of(memory) == SIGBUS);
}

static void fixed(void)
{
    unsigned char *room = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(room, 3, 64 * PAGE);
    unsigned char *memory = map_at(room + 8 * PAGE, 32 * PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, 4 * PAGE);
    CHECK(memory == room + 8 * PAGE && right(memory, 32 * PAGE, 4 * PAGE));
    CHECK(room[8 * PAGE - 1] == 3 && room[40 * PAGE] == 3);
    unsigned char *over = mmap(memory + 8 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(over == memory + 8 * PAGE && over[0] == 0);
    over[0] = 4;
    CHECK(right(memory, 8 * PAGE, 4 * PAGE) && right(memory + 16 * PAGE, 16 * PAGE, 20 * PAGE));
    /* The pool's own memory twice over the same place. */
    CHECK(map_at(memory, 4 * PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, 60 * PAGE) == memory);
    CHECK(right(memory, 4 * PAGE, 60 * PAGE) && right(memory + 4 * PAGE, 4 * PAGE, 8 * PAGE));
    /* One call that unmaps foreign memory, pool memory and foreign memory. */
    CHECK(munmap(room, 64 * PAGE) == 0);
    CHECK(signal_of(room) == SIGSEGV && signal_of(memory) == SIGSEGV && signal_of(room + 63 * PAGE) == SIGSEGV);
    CHECK(mmap((void *)123, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, open(path, O_RDONLY), 0) == MAP_FAILED);
    CHECK(map_at(NULL, 0, PROT_READ, MAP_SHARED, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(map_at(NULL, PAGE, PROT_READ, MAP_SHARED, 5) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, 12345, 0) == MAP_FAILED && errno == EBADF);
}

static void unmaps(void)
{
    unsigned char *memory = map(PROT_READ, MAP_SHARED);
    CHECK(munmap(memory, 4 * PAGE) == 0 && munmap(memory + 8 * PAGE, 1) == 0);
    CHECK(munmap(memory + 8 * PAGE, PAGE) == 0 && munmap(memory + 1, PAGE) == -1 && errno == EINVAL);
    CHECK(is_gone(memory) && is_gone(memory + 8 * PAGE));
    CHECK(right(memory + 4 * PAGE, 4 * PAGE, 4 * PAGE));
    CHECK(right(memory + 9 * PAGE, size - 9 * PAGE, 9 * PAGE));
    if (huge) {
        CHECK(munmap(memory, size) == 0 && signal_of(memory) == SIGSEGV && signal_of(memory + size - 1) == SIGSEGV);
        return;
    }
    /* What was given back can be used for something else, which stays the program's. */
    unsigned char *own = mmap(memory, 4 * PAGE, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(own == memory);
    own[0] = 1;
    CHECK(munmap(memory, size) == 0 && signal_of(memory + size - 1) == SIGSEGV && signal_of(own) == SIGSEGV);
}

static void remaps(void)
{
    unsigned char *memory = map(PROT_READ, MAP_SHARED);
    CHECK(mremap(memory, size, size + 100 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
    CHECK(mremap(memory, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory + (1ul << 29)) == MAP_FAILED);
    CHECK(right(memory, size, 0));
    CHECK(mremap(memory, size, 16 * PAGE, MREMAP_MAYMOVE) == memory);
    CHECK(right(memory, 16 * PAGE, 0) && is_gone(memory + 16 * PAGE));
    if (huge)
        return;
    unsigned char *own = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    own[0] = 8;
    CHECK(mremap(own, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory + 4 * PAGE) == memory + 4 * PAGE);
    CHECK(memory[4 * PAGE] == 8 && right(memory, 4 * PAGE, 0) && right(memory + 8 * PAGE, 8 * PAGE, 8 * PAGE));
}

static void advice(void)
{
    unsigned char *memory = map(PROT_READ, MAP_SHARED | MAP_POPULATE);
    int harmless[] = { MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_HUGEPAGE,
                       MADV_NOHUGEPAGE, MADV_DONTFORK, MADV_DOFORK, MADV_COLD, MADV_PAGEOUT, MADV_DONTDUMP };
    for (size_t index = 0; index < sizeof harmless / sizeof *harmless; index++) {
        CHECK(madvise(memory, size / 2 / PAGE * PAGE, harmless[index]) == 0);
        CHECK(right(memory, size, 0));
    }
    CHECK(madvise(memory, PAGE, MADV_REMOVE) == -1 && errno == EACCES);
    CHECK(madvise(memory, PAGE, MADV_FREE) == -1 && errno == EINVAL);
    CHECK(madvise(memory, PAGE, MADV_COLLAPSE) == -1 && errno == EINVAL);
    errno = 5;
    CHECK(posix_madvise(memory, size, POSIX_MADV_WILLNEED) == 0 && posix_madvise(memory, PAGE, POSIX_MADV_DONTNEED) == 0);
    CHECK(posix_madvise(memory + 1, PAGE, POSIX_MADV_RANDOM) == EINVAL && errno == 5);
    CHECK(mlock(memory, 8 * PAGE) == 0 && munlock(memory, 8 * PAGE) == 0);
    CHECK(right(memory, size, 0));
    pid_t child = fork();
    if (child == 0)
        _exit(!right(memory, size, 0));
    CHECK(ends_well(child));
}

static void calls(void)
{
    unsigned char *memory = map(PROT_READ, MAP_SHARED);
    int pipes[2];
    unsigned char copy[8192];
    CHECK(pipe(pipes) == 0);
    for (size_t at = 0; at + 8192 <= size; at += 5 * 8192) {
        CHECK(write(pipes[1], memory + at, 8192) == 8192 && read(pipes[0], copy, 8192) == 8192);
        CHECK(right(copy, 8192, at));
    }
    CHECK(msync(memory, size, MS_SYNC) == 0);
    unsigned char state[64];
    CHECK(mincore(memory, 64 * PAGE, state) == 0);
}

static void forks(void)
{
    unsigned char *memory = map(PROT_READ, MAP_SHARED);
    unsigned char *mine = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
    mine[PAGE] = 0;
    for (int round = 0; round < 5; round++) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(mine[PAGE] == 0 && mine[PAGE + 1] == byte_of(PAGE + 1));
            mine[2 * PAGE] = 0;
            pid_t grandchild = fork();
            if (grandchild == 0)
                _exit(!(right(memory, size, 0) && mine[2 * PAGE] == 0 && mine[PAGE] == 0));
            CHECK(ends_well(grandchild));
            unsigned char *own = map(PROT_READ, MAP_SHARED);
            CHECK(right(own, size, 0) && munmap(own, size) == 0 && munmap(memory, size) == 0);
            _exit(0);
        }
        CHECK(ends_well(child));
        CHECK(mine[2 * PAGE] == byte_of(2 * PAGE));
    }
    CHECK(system("true") == 0);
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "exit 0", (char *)NULL);
        _exit(1);
    }
    CHECK(ends_well(child));
    char *arguments[] = { "sh", "-c", "exit 0", NULL };
    CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, NULL) == 0 && ends_well(child));
    CHECK(right(memory, size, 0));
}

static volatile int stop;

static void *churn(void *argument)
{
    size_t seed = (size_t)argument;
    while (!stop) {
        seed = seed * 6364136223846793005ul + 1442695040888963407ul;
        size_t offset = seed % (size / PAGE - 8) * PAGE;
        size_t bytes = (seed >> 40) % 8 * PAGE + PAGE;
        unsigned char *memory = map_at(NULL, bytes, PROT_READ, seed & 1 ? MAP_SHARED : MAP_PRIVATE, offset);
        CHECK(memory != MAP_FAILED && right(memory, bytes, offset));
        void *own = malloc(300000);
        memset(own, 1, 300000);
        CHECK(munmap(memory, bytes) == 0);
        free(own);
    }
    return NULL;
}

static void threads(void)
{
    unsigned char *memory = map(PROT_READ, MAP_SHARED);
    pthread_t all[6];
    for (size_t index = 0; index < 6; index++)
        CHECK(pthread_create(&all[index], NULL, churn, (void *)(index + 1)) == 0);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            void *own = malloc(500000);
            memset(own, 1, 500000);
            free(own);
            _exit(!right(memory, size, 0));
        }
        CHECK(ends_well(child));
    }
    stop = 1;
    for (size_t index = 0; index < 6; index++)
        pthread_join(all[index], NULL);
    CHECK(right(memory, size, 0));
}

static void first_use_from_many(void)
{
    pthread_t all[8];
    for (size_t index = 0; index < 8; index++)
        CHECK(pthread_create(&all[index], NULL, churn, (void *)(index + 1)) == 0);
    usleep(200000);
    stop = 1;
    for (size_t index = 0; index < 8; index++)
        pthread_join(all[index], NULL);
}

static void untouched(void)
{
    int before = entries("/proc/self/fd");
    unsigned char *own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED && madvise(own, size, MADV_HUGEPAGE) == 0 && mprotect(own, size, PROT_READ) == 0);
    own = mremap(own, size, 2 * size, MREMAP_MAYMOVE);
    CHECK(own != MAP_FAILED && munmap(own, 2 * size) == 0);
    int other = memfd_create("other", 0);
    CHECK(write(other, "E", 1) == 1);
    unsigned char *file = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, other, 0);
    CHECK(file != MAP_FAILED && file[0] == 'E');
    close(other);
    CHECK(entries("/proc/self/fd") == before && entries("/proc/self/task") == 3);
}

static void closes_everything(void)
{
    unsigned char *memory = map(PROT_READ, MAP_SHARED);
    CHECK(memory[0] == byte_of(0));
    CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    for (int count = 0; count < 8; count++)
        CHECK(open("/dev/null", O_RDWR) >= 0);
    alarm(20);
    CHECK(right(memory, size, 0));
    unsigned char *again = map(PROT_READ, MAP_SHARED);
    CHECK(right(again, size, 0));
}

static void kernel_only(void)
{
    unsigned char *memory = map(PROT_READ, MAP_SHARED);
    for (size_t at = 0; at < size; at += PAGE)
        CHECK(memory[at] == 0xEE);
    CHECK((uintptr_t)memory < WINDOW || (uintptr_t)memory >= WINDOW_END);
    CHECK(munmap(memory, size) == 0);
}

/* The object or the file, whichever can be had; never a mixture. */
static void either(void)
{
    unsigned char *memory = map(PROT_READ, MAP_SHARED);
    /* One byte does not tell: that of some objects is the file's too. */
    size_t pages = 0, of_file = 0, of_object = 0;
    for (size_t at = 0; at < size; at += PAGE) {
        pages++;
        of_file += memory[at] == 0xEE;
        of_object += memory[at] == byte_of(at);
    }
    CHECK(of_file == pages || of_object == pages);
    CHECK(munmap(memory, size) == 0);
}

static void symmetric_off(void)
{
    unsigned char *memory = map(PROT_READ, MAP_SHARED);
    CHECK(right(memory, size, 0) && ((uintptr_t)memory < WINDOW || (uintptr_t)memory >= WINDOW_END));
}

static void loaded_later(void)
{
    char *library = getenv("BEHAVIOURS_LIBRARY");
    void *handle = dlopen(library, RTLD_NOW);
    CHECK(handle != NULL);
    void *(*use)(const char *, size_t) = (void *(*)(const char *, size_t))dlsym(handle, "map_in_library");
    CHECK(use != NULL);
    CHECK(right(use(path, size), size, 0));
    CHECK(dlclose(handle) == 0);
}

/* What a library that is loaded later calls. */
void *map_in_library(const char *file, size_t bytes)
{
    int descriptor = open(file, O_RDONLY);
    void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    return memory;
}

static unsigned char *early;
static size_t early_bytes;

/* Runs before main, as constructors of C++ objects do. */
__attribute__((constructor)) static void at_start(void)
{
    char *file = getenv("BEHAVIOURS_EARLY");
    struct stat status;
    if (file != NULL && stat(file, &status) == 0) {
        early_bytes = status.st_size;
        early = map_in_library(file, early_bytes);
    }
}

static void before_main(void) { CHECK(early != NULL && right(early, early_bytes, 0)); }

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        { "plain", plain }, { "writes", writes }, { "hidden", hidden }, { "behind_the_end", behind_the_end },
        { "fixed", fixed }, { "unmaps", unmaps }, { "remaps", remaps }, { "advice", advice }, { "calls", calls },
        { "forks", forks }, { "threads", threads }, { "first_use_from_many", first_use_from_many },
        { "untouched", untouched }, { "closes_everything", closes_everything }, { "kernel_only", kernel_only },
        { "either", either }, { "symmetric_off", symmetric_off }, { "loaded_later", loaded_later }, { "before_main", before_main },
    };
    if (count != 5)
        return 2;
    path = words[2];
    huge = getenv("BEHAVIOURS_HUGE") != NULL;
    object = strtoull(words[3], NULL, 10);
    size = strtoull(words[4], NULL, 10);
    for (size_t index = 0; index < sizeof cases / sizeof *cases; index++)
        if (strcmp(words[1], cases[index].name) == 0) {
            cases[index].run();
            return 0;
        }
    return 2;
}
