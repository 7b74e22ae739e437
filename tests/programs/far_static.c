/* A program whose memory is arrays that it was loaded with, as those of Fortran and of many benchmarks are: fills them, forks, and checks every byte. */
#include "far_check.h"
#include <sys/mman.h>
#include <sys/wait.h>

#define MIB (1L << 20)
#define BYTES (200 * MIB)

static char array[BYTES];
/* What the file has stays the kernel's, also where it shares a page with what it has not. */
static char given[8192] = "given";
static char small[64 << 10];

int main(void) {
    must(strcmp(given, "given") == 0);
    memset(small, 7, sizeof small);
    for (uint64_t round = 1; round < 4; round++) {
        fill(array, BYTES, round);
        check(array, BYTES, round);
    }
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        check(array, BYTES, 3);
        fill(array, BYTES / 2, 4);
        check(array, BYTES / 2, 4);
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    check(array, BYTES, 3);
    must(madvise(array + 2 * MIB - (uintptr_t)array % 4096, 16 * MIB, MADV_DONTNEED) == 0);
    for (long at = 3 * MIB; at < 17 * MIB; at++) must(array[at] == 0);
    for (size_t at = 0; at < sizeof small; at++) must(small[at] == 7);
    must(strcmp(given, "given") == 0);
    puts("right");
    return 0;
}
