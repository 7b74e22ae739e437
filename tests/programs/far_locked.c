/* Memory that a program locks stays, and the rest is far all the same, without a wait for what cannot leave.

   half  it locks half of the budget, and single pages of what is far otherwise
   child  a child of it does, which keeps to the budget as well
   more  it locks more than the budget, and lets it go again: then it leaves
   pinned  it has the kernel pin half of the budget, and pages between others

   Prints "right". */
#include "far_check.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
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

static int child(void) {
    int status = 0;
    char *own = mapped(4 * MIB);
    fill(own, 4 * MIB, 0);
    pid_t child = fork();
    must(child >= 0);
    if (child > 0) {
        must(waitpid(child, &status, 0) == child && status == 0);
        return 0;
    }
    char *locked = mapped(30 * MIB), *rest = mapped(100 * MIB);
    fill(locked, 30 * MIB, 1);
    must(mlock(locked, 30 * MIB) == 0);
    for (int round = 2; round < 6; round++) {
        fill(rest, 100 * MIB, round);
        check(rest, 100 * MIB, round);
        must(resident_bytes() <= 66 * MIB);
    }
    check(locked, 30 * MIB, 1);
    _exit(0);
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

/* Where nobody may have such a queue, nothing is pinned. */
static int pinned(void) {
    struct io_uring_params parameters = {0};
    struct iovec parts[512];
    char *held = mapped(28 * MIB), *rest = mapped(100 * MIB);
    parts[0] = (struct iovec){held, 28 * MIB};
    for (int part = 1; part < 512; part++) parts[part] = (struct iovec){rest + part * 9 * PAGE, PAGE};
    fill(held, 28 * MIB, 1);
    fill(rest, 20 * MIB, 2);
    long queue = syscall(SYS_io_uring_setup, 1, &parameters);
    must(queue < 0 || syscall(SYS_io_uring_register, queue, IORING_REGISTER_BUFFERS, parts, 512) == 0);
    for (int round = 2; round < 6; round++) {
        fill(rest, 100 * MIB, round);
        check(rest, 100 * MIB, round);
    }
    check(held, 28 * MIB, 1);
    return 0;
}

int main(int count, char **words) {
    must(count == 2);
    int (*kind)(void) = !strcmp(words[1], "half") ? half : !strcmp(words[1], "child") ? child : !strcmp(words[1], "more") ? more : pinned;
    if (kind() == 0) puts("right");
    return 0;
}
