/* Forks while another thread waits for memory that is far: a child reads what was there, also where that thread was just then. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 512L
#define PAGES 32768L

static uint64_t *memory;
static atomic_long place;
static atomic_int over;

static void *go_round(void *unused) {
    (void)unused;
    while (!over) {
        long page = (place + 1) % PAGES;
        place = page;
        if (memory[page * WORDS] != (uint64_t)page + 1) {
            fprintf(stderr, "WRONG thread: page %ld\n", page);
            abort();
        }
    }
    return NULL;
}

int main(int count, char **words) {
    long forks = count > 1 ? atol(words[1]) : 200;
    memory = mmap(NULL, PAGES * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    for (long page = 0; page < PAGES; page++) memory[page * WORDS] = page + 1;
    pthread_t thread;
    pthread_create(&thread, NULL, go_round, NULL);
    for (long number = 0; number < forks; number++) {
        pid_t child = fork();
        if (child == 0) {
            long around = place + PAGES - 8;
            for (long page = around; page < around + 64; page++)
                if (memory[page % PAGES * WORDS] != (uint64_t)(page % PAGES) + 1) _exit(1);
            _exit(0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child) return 2;
        if (status != 0) {
            printf("wrong: child %ld ended with %x\n", number, status);
            return 1;
        }
    }
    over = 1;
    pthread_join(thread, NULL);
    puts("right");
    return 0;
}
