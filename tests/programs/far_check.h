/* What programs that check their memory have in common: a condition that must hold, and bytes that tell which place and seed they are of. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define must(condition)                                                                                        \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "FAILED line %d: %s: %s\n", __LINE__, #condition, strerror(errno));                \
            _exit(1);                                                                                          \
        }                                                                                                      \
    } while (0)

static void fill(char *memory, long bytes, uint64_t seed) {
    for (long at = 0; at < bytes; at += 8) *(uint64_t *)(memory + at) = (at + seed) * 0x9E3779B97F4A7C15u | 1;
}

static void check(const char *memory, long bytes, uint64_t seed) {
    for (long at = 0; at < bytes; at += 8) must(*(const uint64_t *)(memory + at) == ((at + seed) * 0x9E3779B97F4A7C15u | 1));
}
