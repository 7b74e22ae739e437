/* The first thread ends, another one goes on with memory that leaves and comes back: the program ends with that one. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WORDS (20L << 20)

static void *work(void *unused) {
    (void)unused;
    /* The first one is gone by then. */
    usleep(300000);
    uint64_t *words = malloc(WORDS * sizeof *words);
    if (words == NULL) abort();
    for (uint64_t round = 1; round <= 3; round++) {
        for (long at = 0; at < WORDS; at++) words[at] = (uint64_t)at * 0x9E3779B97F4A7C15u + round;
        for (long at = 0; at < WORDS; at++)
            if (words[at] != (uint64_t)at * 0x9E3779B97F4A7C15u + round) {
                fprintf(stderr, "WRONG at %ld\n", at);
                _exit(1);
            }
    }
    puts("right");
    fflush(stdout);
    return NULL;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) != 0 || pthread_detach(thread) != 0) return 1;
    pthread_exit(NULL);
}
