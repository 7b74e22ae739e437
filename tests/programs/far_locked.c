/* Memory that a program locks stays, and the rest is far all the same, without a wait for what cannot leave.

   half  it locks half of the budget, and single pages of what is far otherwise
   more  it locks more than the budget, and lets it go again: then it leaves

   Prints "right". */
#include "far_check.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MIB (1L << 20)
#define PAGE 4096L

static char *mapped(long bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    return memory;
}

static long resident_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0;
    must(file && fscanf(file, "%*d %ld", &pages) == 1 && fclose(file) == 0);
    return pages * PAGE;
}

static int half(void) {
    char *locked = mapped(30 * MIB), *rest = mapped(100 * MIB);
    fill(locked, 30 * MIB, 1);
    must(mlock(locked, 30 * MIB) == 0);
    fill(rest, 100 * MIB, 2);
    for (long at = 0; at < 32 * MIB; at += 37 * PAGE) must(mlock(rest + at, PAGE) == 0);
    for (int round = 2; round < 5; round++) {
        check(rest, 100 * MIB, round);
        fill(rest, 100 * MIB, round + 1);
    }
    // A child has all of it, and nothing locked.
    int status = 0;
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        check(rest, 100 * MIB, 5);
        check(locked, 30 * MIB, 1);
        fill(locked, 30 * MIB, 6);
        check(rest, 100 * MIB, 5);
        check(locked, 30 * MIB, 6);
        _exit(0);
    }
    must(waitpid(child, &status, 0) == child && status == 0);
    check(locked, 30 * MIB, 1);
    check(rest, 100 * MIB, 5);
    return 0;
}

static int more(void) {
    char *locked = mapped(100 * MIB), *rest = mapped(60 * MIB);
    must(mlock(locked, 100 * MIB) == 0);
    fill(locked, 100 * MIB, 1);
    for (int round = 0; round < 3; round++) {
        fill(rest, 60 * MIB, round);
        check(rest, 60 * MIB, round);
    }
    must(resident_bytes() >= 100 * MIB);
    must(munlock(locked, 100 * MIB) == 0);
    for (int tries = 0; resident_bytes() > 64 * MIB; tries++) {
        must(tries < 3000);
        usleep(10000);
    }
    check(locked, 100 * MIB, 1);
    check(rest, 60 * MIB, 2);
    return 0;
}

int main(int count, char **words) {
    must(count == 2);
    if ((strcmp(words[1], "half") ? more : half)() == 0) puts("right");
    return 0;
}
