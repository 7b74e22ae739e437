/* Memory that only the kernel copes with, and of which it tells nobody or for which it does not wait: `far_apart NAME` has some, presses everything out that can be,
   checks every byte, and prints "right". */
#define _GNU_SOURCE
#include "far_check.h"
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define MIB (1L << 20)
#define BYTES (40 * MIB)
#define RESERVED (2048 * MIB)
#define PIECE (64L << 10)
#define SECONDS_MAX 20

static char *map(char *at, long bytes, int protection) {
    int where = at ? MAP_FIXED : 0;
    char *memory = mmap(at, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | where, -1, 0);
    must(memory != MAP_FAILED);
    return memory;
}

static void check_zeros(const char *memory, long bytes) {
    for (long at = 0; at < bytes; at += 8) must(*(const uint64_t *)(memory + at) == 0);
}

/* Pushes everything else out. */
static void press(void) {
    static char *other;
    if (!other) other = map(NULL, 3 * BYTES, PROT_READ | PROT_WRITE);
    for (int round = 0; round < 3; round++) fill(other, 3 * BYTES, round);
}

/* Memory in parts of which none is large enough to be far. */
static void in_pieces(char *at, long bytes) {
    for (long done = 0; done < bytes; done += PIECE) map(at + done, PIECE, PROT_READ | PROT_WRITE);
    check_zeros(at, bytes);
    fill(at, bytes, 3);
    press();
    check(at, bytes, 3);
}

/* Does something in a child. */
static void in_child(void (*work)(char *), char *memory) {
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        work(memory);
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
}

/* What was advised of a reservation is so of what is written there later. */
static char *reserved(int advice) {
    char *memory = map(NULL, RESERVED, PROT_NONE);
    must(madvise(memory, RESERVED, advice) == 0 && mprotect(memory, BYTES, PROT_READ | PROT_WRITE) == 0);
    fill(memory, BYTES, 1);
    press();
    check(memory, BYTES, 1);
    return memory;
}

static void is_wiped(char *memory) { check_zeros(memory, BYTES); }

static void wiped(void) {
    char *memory = reserved(MADV_WIPEONFORK);
    in_child(is_wiped, memory);
    check(memory, BYTES, 1);
}

static void is_free(char *memory) { in_pieces(memory, 16 * MIB); }

static void kept(void) {
    char *memory = reserved(MADV_DONTFORK);
    for (int round = 0; round < 3; round++) {
        fill(memory, 16 * MIB, 1);
        in_child(is_free, memory);
    }
    check(memory, BYTES, 1);
}

/* A segment of shared memory comes and goes in the middle of memory that is far. */
static void replaced(void) {
    long from = 4 * MIB, bytes = 16 * MIB;
    char *memory = map(NULL, BYTES, PROT_READ | PROT_WRITE);
    fill(memory, BYTES, 1);
    press();
    check(memory + from, bytes, 1 + from);
    must(shmat(-1, memory + from, SHM_REMAP) == (void *)-1 && errno == EINVAL);
    check(memory + from, bytes, 1 + from);
    int segment = shmget(IPC_PRIVATE, bytes, 0600 | IPC_CREAT);
    must(segment >= 0);
    char *there = shmat(segment, memory + from, SHM_REMAP);
    must(shmctl(segment, IPC_RMID, NULL) == 0 && there == memory + from);
    check_zeros(there, bytes);
    fill(there, bytes, 2);
    press();
    check(there, bytes, 2);
    must(shmdt(there) == 0);
    in_pieces(there, bytes);
    check(memory, from, 1);
    check(memory + from + bytes, BYTES - from - bytes, 1 + from + bytes);
}

static volatile int stage;

static void *hold(void *mutex) {
    must(pthread_mutex_lock(mutex) == 0);
    stage = 1;
    while (stage == 1) usleep(1000);
    return NULL;
}

/* A thread ends and has a lock in memory that is far. */
static void robust(void) {
    pthread_mutexattr_t attributes;
    must(pthread_mutexattr_init(&attributes) == 0 && pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
    char *memory = map(NULL, BYTES, PROT_READ | PROT_WRITE);
    fill(memory, BYTES, 1);
    /* Over two pages. */
    pthread_mutex_t *mutex = (pthread_mutex_t *)(memory + BYTES / 2 - 16);
    must(pthread_mutex_init(mutex, &attributes) == 0);
    pthread_t thread;
    must(pthread_create(&thread, NULL, hold, mutex) == 0);
    while (stage == 0) usleep(1000);
    press();
    stage = 2;
    must(pthread_join(thread, NULL) == 0);
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += SECONDS_MAX;
    must(pthread_mutex_timedlock(mutex, &end) == EOWNERDEAD);
    check(memory, BYTES / 2 - 16, 1);
}

/* The kernel looks at a lock in memory that is far, of which the holder gets the priority of who waits. */
static void inherits(void) {
    pthread_mutexattr_t attributes;
    must(pthread_mutexattr_init(&attributes) == 0 && pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
    char *memory = map(NULL, BYTES, PROT_READ | PROT_WRITE);
    fill(memory, BYTES, 1);
    pthread_mutex_t *mutex = (pthread_mutex_t *)(memory + BYTES / 2);
    must(pthread_mutex_init(mutex, &attributes) == 0);
    pthread_t thread;
    must(pthread_create(&thread, NULL, hold, mutex) == 0);
    while (stage == 0) usleep(1000);
    press();
    must(syscall(SYS_futex, mutex, FUTEX_TRYLOCK_PI_PRIVATE, 0, NULL, NULL, 0) == -1 && errno == EAGAIN);
    stage = 2;
    must(pthread_join(thread, NULL) == 0);
    check(memory, BYTES / 2, 1);
}

/* Mutexes on pages of their own, in a process that has as many mappings as it may have. */
static void many(void) {
    enum { MUTEXES = 300, ROOM = 100 };
    const long page = 4096, apart = 4 * page, pages = 80000;
    pthread_mutexattr_t attributes;
    must(pthread_mutexattr_init(&attributes) == 0 && pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
    char *memory = map(NULL, BYTES, PROT_READ | PROT_WRITE);
    fill(memory, BYTES, 1);
    press();
    char *parts = mmap(NULL, pages * page, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(parts != MAP_FAILED);
    long made = 0;
    while (made < pages && mprotect(parts + made * page, page, PROT_READ) == 0) made += 2;
    if (made >= pages) return;
    for (long part = made - ROOM; part < made; part += 2) must(mprotect(parts + part * page, page, PROT_NONE) == 0);
    for (long number = 0; number < MUTEXES; number++) {
        pthread_mutex_t *mutex = (pthread_mutex_t *)(memory + number * apart);
        must(pthread_mutex_init(mutex, &attributes) == 0);
        must(pthread_mutex_lock(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
        check(memory + number * apart + page, apart - page, 1 + number * apart + page);
    }
    check(memory + MUTEXES * apart, BYTES - MUTEXES * apart, 1 + MUTEXES * apart);
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(void);
    } KINDS[] = {{"wiped", wiped}, {"kept", kept}, {"replaced", replaced}, {"robust", robust}, {"inherits", inherits}, {"many", many}};
    for (size_t at = 0; count > 1 && at < sizeof KINDS / sizeof *KINDS; at++)
        if (!strcmp(words[1], KINDS[at].name)) {
            KINDS[at].run();
            puts("right");
            return 0;
        }
    return 2;
}
