/* Guards (MADV_GUARD_INSTALL) within memory that leaves and comes back: what they were put on is gone, and whoever touches one is told. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
#define MIB (1L << 20)
#define PAGE 4096L

static char *filled(long bytes, char with) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) _exit(2);
    memset(memory, with, bytes);
    return memory;
}

static int wrong(const char *what) {
    printf("wrong: %s\n", what);
    return 1;
}

static int is_all(const char *memory, long bytes, char with) {
    for (long at = 0; at < bytes; at++)
        if (memory[at] != with) return 0;
    return 1;
}

int main(void) {
    char *memory = filled(64 * MIB, 7);
    filled(160 * MIB, 8);
    if (madvise(memory + 32 * MIB, MIB, GUARD_INSTALL) != 0) {
        puts(errno == EINVAL ? "skipped" : "wrong: no guard");
        return 0;
    }
    if (madvise(memory + 32 * MIB, MIB, GUARD_REMOVE) != 0) return wrong("no guard to be removed");
    if (!is_all(memory + 32 * MIB, MIB, 0)) return wrong("what the guards were put on came back");
    char *guard = memory + 16 * MIB + PAGE;
    if (madvise(guard, PAGE, GUARD_INSTALL) != 0) return wrong("no guard");
    /* Everything around it leaves and comes back. */
    filled(160 * MIB, 9);
    if (!is_all(memory, guard - memory, 7) || !is_all(guard + PAGE, 15 * MIB, 7)) return wrong("a byte beside the guard");
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        *(volatile char *)guard;
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != 11) return wrong("the guard let a touch pass");
    puts("right");
    return 0;
}
