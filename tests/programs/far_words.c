/* Words that threads wait on, far when the kernel is to read or write them: each call does what it does without far memory, and an error is one. Prints "right". */
#define _GNU_SOURCE
#include "far_check.h"
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define MIB (1L << 20)
#define BYTES (64 * MIB)
#define REST (160 * MIB)

static char *mapped(long bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    return memory;
}

static long ask(void *word, int what, long value, const void *more, void *other, long third) {
    return syscall(SYS_futex, word, what | FUTEX_PRIVATE_FLAG, value, more, other, third);
}

int main(void) {
    char *memory = mapped(BYTES), *rest = mapped(REST);
    for (long at = 0; at < BYTES; at += 4096) *(uint64_t *)(memory + at + 8) = at;
    fill(rest, REST, 3);
    const struct timespec now = {0, 0};
    for (long at = 0; at < BYTES; at += MIB) {
        int *word = (int *)(memory + at), *other = (int *)(memory + at + MIB / 2), *lock = (int *)(memory + at + MIB / 4);
        must(ask(word, FUTEX_WAIT, 0, &now, NULL, 0) == -1 && errno == ETIMEDOUT);
        must(ask(word, FUTEX_WAKE_OP, 1, (void *)1, other, FUTEX_OP(FUTEX_OP_ADD, 7, FUTEX_OP_CMP_EQ, 5)) == 0);
        must(*other == 7);
        must(ask(lock, FUTEX_LOCK_PI, 0, NULL, NULL, 0) == 0 && *lock == syscall(SYS_gettid));
        must(ask(lock, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0) == 0 && *lock == 0);
    }
    must(mprotect(memory, 4096, PROT_READ) == 0);
    errno = 0;
    must(ask(memory + 4096, FUTEX_WAKE_OP, 1, (void *)1, memory, FUTEX_OP(FUTEX_OP_SET, 1, FUTEX_OP_CMP_EQ, 0)) == -1 && errno == EFAULT);
    must(ask((void *)8, FUTEX_LOCK_PI, 0, NULL, NULL, 0) == -1 && errno == EFAULT);
    must(mprotect(memory, 4096, PROT_READ | PROT_WRITE) == 0);
    for (long at = 0; at < BYTES; at += 4096) must(*(uint64_t *)(memory + at + 8) == (uint64_t)at);
    check(rest, REST, 3);
    /* What is no word of memory goes to the kernel as it is, and a child comes back as well. */
    must(syscall(SYS_close, -1) == -1 && errno == EBADF);
    must(syscall(SYS_mmap, 0L, 4096L, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L) > 0);
    long child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) _exit(9);
    int status;
    must(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 9);
    puts("right");
    return 0;
}
