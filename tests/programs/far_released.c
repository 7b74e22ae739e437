/* Memory that is taken out of far memory (MADV_WIPEONFORK) while threads wait for room in it: what they wrote stays. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096L
#define PAGES 4096L
#define WRITERS 4
#define CROWD_BYTES (256L << 20)

static char *part;
static char *crowd;
static atomic_long written;
static atomic_int over;

static void *write_part(void *word) {
    long first = (long)word;
    for (long page = first; page < PAGES; page += WRITERS) {
        *(uint64_t *)(part + page * PAGE) = page + 7;
        atomic_fetch_add(&written, 1);
    }
    return NULL;
}

static void press(void) {
    for (long at = 0; at < CROWD_BYTES; at += PAGE) crowd[at]++;
}

static void *press_on(void *unused) {
    (void)unused;
    while (!over) press();
    return NULL;
}

static void *room(long bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(2);
    return memory;
}

int main(int count, char **words) {
    long rounds = count > 1 ? atol(words[1]) : 10;
    crowd = room(CROWD_BYTES);
    press();
    for (long round = 0; round < rounds; round++) {
        pthread_t writers[WRITERS], crowding;
        part = room(PAGES * PAGE);
        written = 0;
        over = 0;
        pthread_create(&crowding, NULL, press_on, NULL);
        for (long first = 0; first < WRITERS; first++) pthread_create(&writers[first], NULL, write_part, (void *)first);
        while (written < PAGES * (1 + round % 7) / 8) usleep(100);
        if (madvise(part, PAGES * PAGE, MADV_WIPEONFORK) != 0) return 2;
        for (long first = 0; first < WRITERS; first++) pthread_join(writers[first], NULL);
        over = 1;
        pthread_join(crowding, NULL);
        press();
        for (long page = 0; page < PAGES; page++) {
            uint64_t found = *(uint64_t *)(part + page * PAGE);
            if (found != (uint64_t)page + 7) {
                printf("wrong: page %ld has %lu in round %ld\n", page, (unsigned long)found, round);
                return 1;
            }
        }
        munmap(part, PAGES * PAGE);
    }
    puts("right");
    return 0;
}
