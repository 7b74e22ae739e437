/* Memory that may not be written, or not be touched at all, for most of the time: it leaves and comes back as other memory does, and no write passes the protection.

   closed   most of the memory may only be read, and a part of it may not be touched
   unread   who reads what may not be touched is told by SIGSEGV, each time
   sealed   most of the memory may only be read, and nobody may ever change that again (mseal, Linux 6.10)
   barrier  as a collector of garbage has it: threads and children that write there are told by SIGSEGV, each time

   Prints "right". */
#include "far_check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define MIB (1L << 20)
#define PAGE 4096L
#define HEAP (128 * MIB)
#define PAGES (HEAP / PAGE)
#define WRITERS 3
#define ROUNDS 2
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static char *heap;

static char *mapped(long bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    return memory;
}

static uint64_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static int closed(void) {
    const long part = 32 * MIB;
    heap = mapped(6 * part);
    fill(heap, 6 * part, 5);
    must(mprotect(heap, 5 * part, PROT_READ) == 0);
    must(mprotect(heap + part, part, PROT_NONE) == 0);
    for (int round = 0; round < 3; round++) {
        check(heap, part, 5);
        fill(heap + 5 * part, part, round);
        check(heap + 2 * part, 3 * part, 5 + 2 * part);
        check(heap + 5 * part, part, round);
    }
    must(mprotect(heap, 5 * part, PROT_READ | PROT_WRITE) == 0);
    check(heap, 5 * part, 5);
    fill(heap, 6 * part, 6);
    check(heap, 6 * part, 6);
    puts("right");
    return 0;
}

static int sealed(void) {
    const long part = 32 * MIB;
    heap = mapped(6 * part);
    fill(heap, 6 * part, 5);
    must(mprotect(heap, 2 * part, PROT_READ) == 0);
    must(syscall(SYS_mseal, heap, 2 * part, 0) == 0);
    must(mprotect(heap, part, PROT_READ | PROT_WRITE) == -1 && errno == EPERM);
    for (int round = 0; round < 6; round++) {
        check(heap, 2 * part, 5);
        fill(heap + 2 * part, 4 * part, round);
        check(heap + 2 * part, 4 * part, round);
    }
    puts("right");
    return 0;
}

static __thread sigjmp_buf told;
static atomic_int is_over;

static void tell(int signal) {
    (void)signal;
    siglongjmp(told, 1);
}

static int can_write(volatile char *place) {
    if (sigsetjmp(told, 0)) return 0;
    *place = 0;
    return 1;
}

static int can_read(volatile char *place) {
    if (sigsetjmp(told, 0)) return 0;
    (void)*place;
    return 1;
}

static void *write_in_vain(void *number) {
    uint64_t state = 77 + (long)number;
    while (!is_over) {
        char *place = heap + draw(&state) % PAGES * PAGE;
        if (can_write(place)) {
            printf("wrong: %p could be written\n", place);
            exit(1);
        }
    }
    return NULL;
}

static void *fork_children(void *unused) {
    uint64_t state = 7;
    while (!is_over) {
        pid_t child = fork();
        must(child >= 0);
        if (child == 0) {
            for (int step = 0; step < 2000; step++)
                if (can_write(heap + draw(&state) % PAGES * PAGE)) _exit(5);
            _exit(0);
        }
        int status;
        must(waitpid(child, &status, 0) == child);
        if (status != 0) {
            printf("wrong: a child could write, or ended with %x\n", status);
            exit(1);
        }
        draw(&state);
    }
    return unused;
}

/* Even while it is closed for good, odd while it may be touched or is about to be. */
static volatile long turn = 1;

static void *read_in_vain(void *unused) {
    uint64_t state = 5;
    while (!is_over) {
        char *place = heap + draw(&state) % (32 * MIB);
        long before = turn;
        if (before % 2 == 0 && can_read(place) && turn == before) {
            printf("wrong: %p could be read\n", place);
            exit(1);
        }
    }
    return unused;
}

static int unread(void) {
    const long part = 32 * MIB;
    heap = mapped(5 * part);
    fill(heap, part, 5);
    struct sigaction action = {.sa_handler = tell, .sa_flags = SA_NODEFER};
    must(sigaction(SIGSEGV, &action, NULL) == 0);
    pthread_t reader;
    must(pthread_create(&reader, NULL, read_in_vain, NULL) == 0);
    for (int round = 0; round < 6; round++) {
        must(mprotect(heap, part, PROT_NONE) == 0);
        turn++;
        fill(heap + part, 4 * part, round);
        check(heap + part, 4 * part, round);
        turn++;
        must(mprotect(heap, part, PROT_READ | PROT_WRITE) == 0);
        check(heap, part, 5);
    }
    is_over = 1;
    must(pthread_join(reader, NULL) == 0);
    puts("right");
    return 0;
}

static int barrier(void) {
    heap = mapped(HEAP);
    fill(heap, HEAP, 5);
    must(mprotect(heap, HEAP, PROT_READ) == 0);
    struct sigaction action = {.sa_handler = tell, .sa_flags = SA_NODEFER};
    must(sigaction(SIGSEGV, &action, NULL) == 0);
    pthread_t threads[WRITERS + 1];
    for (long number = 0; number < WRITERS; number++) must(pthread_create(&threads[number], NULL, write_in_vain, (void *)number) == 0);
    must(pthread_create(&threads[WRITERS], NULL, fork_children, NULL) == 0);
    uint64_t state = 9;
    for (int round = 0; round < ROUNDS; round++) {
        for (long at = 0; at < HEAP; at += MIB) {
            check(heap + at, MIB, 5 + at);
            /* Whoever moves pages out meanwhile must not give back what was there before. */
            for (int step = 0; step < 60; step++) {
                char *slice = heap + draw(&state) % (HEAP / MIB) * MIB;
                must(mprotect(slice, MIB, PROT_NONE) == 0);
                must(!can_read(slice + draw(&state) % MIB));
                must(mprotect(slice, MIB, PROT_READ) == 0);
            }
        }
    }
    is_over = 1;
    for (int number = 0; number <= WRITERS; number++) must(pthread_join(threads[number], NULL) == 0);
    check(heap, HEAP, 5);
    puts("right");
    return 0;
}

int main(int count, char **words) {
    must(count == 2);
    if (strcmp(words[1], "unread") == 0) return unread();
    if (strcmp(words[1], "sealed") == 0) return sealed();
    return strcmp(words[1], "closed") == 0 ? closed() : barrier();
}
