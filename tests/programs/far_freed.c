/* Memory that is given to the kernel for free (MADV_FREE) and written again, round after round, as allocators do.
   usage: far_freed [MIB [hole]]. With a hole a page in its middle is not mapped, of which the kernel says so and frees the rest. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096L

int main(int count, char **words) {
    long bytes = (count > 1 ? atol(words[1]) : 200) << 20;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    long hole = count > 2 ? bytes / 2 : -1;
    if (hole >= 0 && munmap(memory + hole, PAGE) != 0) return 2;
    for (uint64_t round = 1; round <= 3; round++) {
        for (long at = 0; at < bytes; at += PAGE)
            if (at != hole) *(uint64_t *)(memory + at) = round * at + 1;
        for (long at = 0; at < bytes; at += PAGE)
            if (at != hole && *(uint64_t *)(memory + at) != round * at + 1) {
                printf("wrong at %ld in round %lu\n", at, (unsigned long)round);
                return 1;
            }
        errno = 0;
        if (round < 3 && madvise(memory, bytes, MADV_FREE) != (hole < 0 ? 0 : -1)) return 2;
        if (errno != (hole < 0 || round == 3 ? 0 : ENOMEM)) return 2;
    }
    puts("right");
    return 0;
}
