/* A mapping that was protected and read in part before it was ever written is one mapping again, and can be moved as one. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>

#define MEBIBYTE (1L << 20)

int main(void) {
    /* More than the budget, so that memory is under service. */
    volatile char *large = mmap(NULL, 100 * MEBIBYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (large == MAP_FAILED) return 2;
    for (long at = 0; at < 100 * MEBIBYTE; at += 4096) large[at] = 1;
    /* With nothing beside it: neighbours would share what they are made of. */
    char *room = mmap(NULL, 16 * MEBIBYTE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED || munmap(room, 16 * MEBIBYTE)) return 2;
    char *area = mmap(room + 4 * MEBIBYTE, 4 * MEBIBYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (area == MAP_FAILED) return 2;
    volatile char *part = area + 72 * 4096;
    if (mprotect((void *)part, MEBIBYTE, PROT_READ) || part[0] != 0 || part[MEBIBYTE - 1] != 0) return 2;
    if (mprotect((void *)part, MEBIBYTE, PROT_READ | PROT_WRITE)) return 2;
    void *moved = mremap(area, 4 * MEBIBYTE, 6 * MEBIBYTE, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) {
        perror("mremap");
        return 1;
    }
    puts("right");
    return 0;
}
