/* A child that is made past the C library (the system call clone, or _Fork) and outlives its parent: `far_cloned FILE` ends at once; the child looks at its memory
   when the run has waited for it as long as it does, and writes to the file whether a byte is wrong. With
   `waits` it is waited for, and has memory to spare for nobody. */
#define _GNU_SOURCE
#include "far_check.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define BYTES (160L << 20)

int main(int count, char **words) {
    must(count == 3);
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    fill(memory, BYTES, 1);
    long child = strcmp(words[2], "clone") == 0 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : _Fork();
    must(child >= 0);
    if (strcmp(words[2], "waits") == 0) {
        int status = 0;
        if (child != 0) return waitpid(child, &status, 0) == child && status == 0 ? puts("right") < 0 : 1;
        check(memory, BYTES, 1);
        for (uint64_t round = 2; round < 4; round++) {
            fill(memory, BYTES, round);
            check(memory, BYTES, round);
        }
        return 0;
    }
    if (child != 0) return 0;
    int file = open(words[1], O_WRONLY | O_CREAT | O_TRUNC, 0666);
    must(file >= 0 && setsid() >= 0);
    /* Whoever waits for the end of what the run says does not wait for this one. */
    close(0), close(1), close(2);
    sleep(8);
    const char *found = "right";
    for (long at = 0; at < BYTES; at += 8)
        if (*(uint64_t *)(memory + at) != ((at + 1) * 0x9E3779B97F4A7C15u | 1)) found = "wrong";
    must(write(file, found, 5) == 5);
    return 0;
}
