/* Processes with several threads each, all of which fill memory of their own at the same time, and find it as they left it. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES 4
#define THREADS 3
#define WORDS ((32L << 20) / 8)

static int rounds;
static uint64_t process;

static uint64_t word(uint64_t seed, long index) {
    return (seed << 32 ^ (uint64_t)index) * 0xD6E8FEB86659FD93u;
}

static void *fill(void *argument) {
    uint64_t seed = process * THREADS + (uint64_t)(intptr_t)argument + 1;
    uint64_t *place = mmap(NULL, WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) abort();
    for (int round = 0; round < rounds; round++) {
        uint64_t now = seed + (uint64_t)round * 1000;
        for (long index = 0; index < WORDS; index++) place[index] = word(now, index);
        for (long index = 0; index < WORDS; index++)
            if (place[index] != word(now, index)) abort();
    }
    return NULL;
}

int main(int count, char **words) {
    rounds = count > 1 ? atoi(words[1]) : 2;
    for (process = 0; process < PROCESSES; process++) {
        if (fork() != 0) continue;
        pthread_t threads[THREADS];
        for (intptr_t index = 0; index < THREADS; index++)
            if (pthread_create(&threads[index], NULL, fill, (void *)index) != 0) abort();
        for (int index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
        _exit(0);
    }
    int status, is_right = 1;
    for (int child = 0; child < PROCESSES; child++) is_right &= wait(&status) > 0 && status == 0;
    puts(is_right ? "right" : "wrong");
    return 0;
}
