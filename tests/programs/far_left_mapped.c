/* Memory whose pages are moved elsewhere while the mapping stays (MREMAP_DONTUNMAP), as collectors of garbage do, round after round: the old place is all
 * zeros and may be written, the new one has what was there. Another thread keeps memory in short supply. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define PAGE 4096L

static long bytes;
static volatile int is_over;

static uint64_t word(uint64_t round, long at) { return (round << 40) + (uint64_t)at * 2654435761u + 1; }

static void *presses(void *unused) {
    (void)unused;
    char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint64_t round = 1; own != MAP_FAILED && !is_over; round++)
        for (long at = 0; at < bytes && !is_over; at += PAGE) {
            uint64_t *place = (uint64_t *)(own + at);
            if (round > 1 && *place != word(round - 1, at)) {
                printf("wrong beside, at %ld in round %lu\n", at, (unsigned long)round);
                exit(1);
            }
            *place = word(round, at);
        }
    return NULL;
}

/* Looks at all pages but each seventh, which stays far; writes what is wrong. */
static int has(const char *memory, uint64_t round, const char *what) {
    for (long at = 0; at < bytes; at += PAGE) {
        uint64_t wanted = round == 0 ? 0 : word(round, at);
        if (at / PAGE % 7 != 3 && *(const uint64_t *)(memory + at) != wanted) {
            printf("%s is wrong at %ld: %lx and not %lx\n", what, at, (unsigned long)*(const uint64_t *)(memory + at), (unsigned long)wanted);
            return 0;
        }
    }
    return 1;
}

int main(int count, char **words) {
    bytes = (count > 1 ? atol(words[1]) : 60) << 20;
    uint64_t rounds = count > 2 ? (uint64_t)atol(words[2]) : 2;
    pthread_t other;
    if (pthread_create(&other, NULL, presses, NULL) != 0) return 2;
    for (uint64_t round = 1; round <= rounds; round++) {
        char *old = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (old == MAP_FAILED) return 2;
        for (long at = 0; at < bytes; at += PAGE) *(uint64_t *)(old + at) = word(round, at);
        char *moved = mremap(old, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        if (moved == MAP_FAILED) {
            perror("mremap");
            return 3;
        }
        if (!has(old, 0, "the old place") || !has(moved, round, "the new place")) return 1;
        /* Half of the old place is written again; the rest has to stay zeros, and the new one what it is. */
        for (long at = 0; at < bytes; at += 2 * PAGE) *(uint64_t *)(old + at) = 7;
        if (!has(moved, round, "the new place, later")) return 1;
        for (long at = PAGE; at < bytes; at += 2 * PAGE)
            if (*(uint64_t *)(old + at) != 0) {
                printf("the old place is not zeros at %ld\n", at);
                return 1;
            }
        if (munmap(round % 2 ? moved : old, bytes) != 0 || munmap(round % 2 ? old : moved, bytes) != 0) return 2;
    }
    is_over = 1;
    pthread_join(other, NULL);
    puts("right");
    return 0;
}
