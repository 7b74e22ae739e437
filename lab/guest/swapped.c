/* swapped MIB ROUNDS: more memory than there is. Fills it, looks at every byte, changes every third page, and looks again.
 * A third of the pages is zeros, a third compresses, a third does not. Says SIGBUS and ends with 7 if memory is lost. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 512 };

static uint64_t word(uint64_t page, uint64_t index, uint64_t round)
{
    uint64_t seed = (page + 1) * 0x9E3779B97F4A7C15u + round * 0xD1B54A32D192ED03u;
    switch (page % 3) {
    case 0:
        return round && page % 2 ? seed : 0;
    case 1:
        return seed + index / 16;
    default:
        seed += index * 0xBF58476D1CE4E5B9u;
        seed = (seed ^ seed >> 30) * 0x94D049BB133111EBu;
        return seed ^ seed >> 31;
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void lost(int number)
{
    static const char words[] = "SIGBUS: memory is lost\n";
    (void)number;
    if (write(1, words, sizeof words - 1) < 0) _exit(8);
    _exit(7);
}

int main(int count, char **words)
{
    if (count < 3) return 2;
    uint64_t pages = strtoull(words[1], NULL, 10) * 256, rounds = strtoull(words[2], NULL, 10), wrong = 0;
    signal(SIGBUS, lost);
    uint64_t *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *written = calloc(pages, sizeof *written);
    if (memory == MAP_FAILED || written == NULL) return 3;
    madvise(memory, pages * 4096, MADV_NOHUGEPAGE);
    double begun = now();
    for (uint64_t page = 0; page < pages; page++)
        for (uint64_t index = 0; index < WORDS; index++) memory[page * WORDS + index] = word(page, index, 0);
    double filled = now();
    printf("filled\n");
    fflush(stdout);
    for (uint64_t round = 1; round <= rounds; round++)
        for (uint64_t page = 0; page < pages; page++) {
            for (uint64_t index = 0; index < WORDS; index++)
                wrong += memory[page * WORDS + index] != word(page, index, written[page]);
            if (wrong) {
                printf("page %llu has %llu wrong words\n", (unsigned long long)page, (unsigned long long)wrong);
                return 1;
            }
            if ((page + round) % 3 == 0) {
                written[page] = round;
                for (uint64_t index = 0; index < WORDS; index++) memory[page * WORDS + index] = word(page, index, round);
            }
        }
    double mib = (double)pages / 256;
    printf("swapped: fill %.1f MiB/s, rounds %.1f MiB/s, 0 wrong\n", mib / (filled - begun),
           mib * (double)rounds / (now() - filled));
    return 0;
}
