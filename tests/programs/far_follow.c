// A thread that faults all the time looks on which processors it may run, as do its children: as many as at the beginning, always.
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
}

int main(int count, char **words) {
    size_t bytes = (size_t)(count > 1 ? atoi(words[1]) : 96) << 20;
    long touches = count > 2 ? atol(words[2]) : 40000;
    int before = processors();
    unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    for (size_t at = 0; at < bytes; at += 4096) memory[at] = (unsigned char)(at >> 12) | 1;
    uint64_t state = 88172645463325252u;
    long looks = 0, fewer = 0, forks = 0, fewer_forks = 0;
    for (long touch = 0; touch < touches; touch++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        size_t at = state % (bytes >> 12) << 12;
        if (memory[at] != ((unsigned char)(at >> 12) | 1)) {
            printf("wrong byte at %zu\n", at);
            return 3;
        }
        looks++;
        fewer += processors() != before;
        if (touch % 2000 == 1999) {
            pid_t child = fork();
            if (child == 0) _exit(processors() == before ? 0 : 1);
            int status = 0;
            waitpid(child, &status, 0);
            forks++;
            fewer_forks += status != 0;
        }
    }
    printf("%ld looks, %ld with fewer; %ld children, %ld with fewer\n", looks, fewer, forks, fewer_forks);
    return 0;
}
