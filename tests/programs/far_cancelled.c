/* Threads that are cancelled while they ask for memory and give it back, which are no points of cancellation: each ends at one of its own, and no lock stays
   taken. With "anywhere" they may be cancelled at every instruction, as those that only compute and map are: each ends, wherever it is. Prints "right". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (1L << 20)
#define THREADS 60

static volatile int is_asking, has_ended_there;

static void note_end(void *unused) {
    (void)unused;
    has_ended_there |= is_asking;
}

static void *ask(void *unused) {
    pthread_cleanup_push(note_end, NULL);
    for (;;) {
        is_asking = 1;
        char *memory = malloc(48 * MIB);
        if (!memory) exit(2);
        memory[0] = 1;
        free(memory);
        memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || munmap(memory, MIB) != 0) exit(2);
        is_asking = 0;
        pthread_testcancel();
    }
    pthread_cleanup_pop(0);
    return unused;
}

static void *map(void *unused) {
    if (pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) != 0) exit(2);
    for (;;) {
        char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) exit(2);
        memory[0] = 1;
        if (mprotect(memory, MIB, PROT_READ) != 0 || madvise(memory, MIB, MADV_DONTNEED) != 0 || munmap(memory, MIB) != 0) exit(2);
    }
    return unused;
}

int main(int count, char **words) {
    (void)words;
    void *(*run)(void *) = count > 1 ? map : ask;
    /* More than the budget, so that what is asked for is served at once. */
    char *memory = malloc(128 * MIB);
    if (!memory) return 2;
    for (long at = 0; at < 128 * MIB; at += 4096) memory[at] = 1;
    for (int round = 0; round < THREADS; round++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, NULL) != 0) return 2;
        usleep(1000 + round * 101);
        if (pthread_cancel(thread) != 0 || pthread_join(thread, NULL) != 0) return 2;
    }
    puts(has_ended_there ? "a thread ended where it asked for memory" : "right");
    return has_ended_there;
}
