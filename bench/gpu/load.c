// What it takes to copy a mapped file to a GPU that is elsewhere. `hinterland bench gpu-load` compiles it, runs it with `hinterland run --gpu`, and asks it once:
// `load FILE PIECE` copies the file in pieces of so many bytes, and looks at words of what arrived. The answer: milliseconds from the mapping until the last byte is there,
// bytes of commands, copies that the GPU's node read by itself, and their bytes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TO_DEVICE 1
#define FROM_DEVICE 2
#define WORDS_CHECKED 64

static int (*allocate)(void **, size_t);
static int (*copy_async)(void *, const void *, size_t, int, void *);
static int (*copy)(void *, const void *, size_t, int);
static void (*count)(uint64_t *);
static void (*count_pooled)(uint64_t *);

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void fail(const char *what, long long number) {
    printf("error %s (%lld)\n", what, number);
    fflush(stdout);
    exit(1);
}

#define MUST(call)                     \
    do {                               \
        long long must_code = (call);  \
        if (must_code) {               \
            fail(#call, must_code);    \
        }                              \
    } while (0)

static void *find(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found) {
        void *core = dlopen("libhinterland_cuda.so", RTLD_NOW | RTLD_NOLOAD);
        found = core ? dlsym(core, name) : NULL;
    }
    if (!found) {
        fail(name, 0);
    }
    return found;
}

// The bytes of every object of a bench follow from their place.
static uint64_t word_at(uint64_t at) {
    return at * UINT64_C(0x9E3779B97F4A7C15) ^ at >> 7;
}

static void load(const char *path, size_t piece) {
    uint64_t before[5], after[5], pooled_before[2], pooled[2], seed = 12345, word;
    unsigned char *device;
    struct stat about;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &about) != 0) {
        fail("the file cannot be opened", file);
    }
    const size_t bytes = (size_t)about.st_size;
    MUST(allocate((void **)&device, bytes));
    count(before);
    count_pooled(pooled_before);
    const double begin = now_ms();
    const unsigned char *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) {
        fail("the file cannot be mapped", 0);
    }
    for (size_t at = 0; at < bytes; at += piece) {
        MUST(copy_async(device + at, map + at, bytes - at < piece ? bytes - at : piece, TO_DEVICE, NULL));
    }
    // Behind all copies: a program may not wait for copies to a device, but what comes back has to.
    MUST(copy(&word, device + bytes - 8, 8, FROM_DEVICE));
    const double took = now_ms() - begin;
    count(after);
    count_pooled(pooled);
    for (int number = 0; number < WORDS_CHECKED; number++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        const uint64_t at = number ? (seed >> 20) % (bytes / 8) * 8 : bytes - 8;
        if (number) {
            MUST(copy(&word, device + at, 8, FROM_DEVICE));
        }
        if (word != word_at(at)) {
            fail("a word that arrived is wrong, at", (long long)at);
        }
    }
    printf("%f %llu %llu %llu\n", took, (unsigned long long)(after[2] - before[2]), (unsigned long long)(pooled[0] - pooled_before[0]),
           (unsigned long long)(pooled[1] - pooled_before[1]));
    fflush(stdout);
}

int main(void) {
    char line[4096], path[4096];
    size_t piece;
    *(void **)&allocate = find("cudaMalloc");
    *(void **)&copy_async = find("cudaMemcpyAsync");
    *(void **)&copy = find("cudaMemcpy");
    *(void **)&count = find("hl_gpu_counters");
    *(void **)&count_pooled = find("hl_gpu_pooled");
    void *warm;
    MUST(allocate(&warm, 512));
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "load %4095s %zu", path, &piece) == 2 && piece) {
            load(path, piece);
        } else {
            fail("no question", 0);
        }
    }
    return 0;
}
