/* A random program: reads, writes, forks, remaps, unmaps and system calls on its memory, against a model of what it wrote. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define AREAS 6
#define AREA_PAGES 4096
#define PAGE 4096L

static unsigned char *area[AREAS];
static long pages[AREAS];
static uint32_t version[AREAS][AREA_PAGES * 2];
static uint64_t state;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static uint64_t word(int which, long page, long index) {
    uint32_t seen = version[which][page];
    if (seen == 0) return 0;
    uint64_t mixed = (seen * 0x9E3779B97F4A7C15u) ^ ((uint64_t)index << 32);
    return seen % 3 == 0 ? seen : mixed * 0xD6E8FEB86659FD93u;
}

static void fail(const char *what, int which, long page) {
    fprintf(stderr, "WRONG %s: area %d page %ld version %u\n", what, which, page, version[which][page]);
    abort();
}

/* A call that fails only with us, or on a machine without room: the program says which. */
static void must(int succeeded, const char *call, int which) {
    if (succeeded) return;
    fprintf(stderr, "FAILED %s: area %d at %p, %ld pages: %s\n", call, which, (void *)area[which], pages[which], strerror(errno));
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && fgets(line, sizeof line, maps)) fputs(line, stderr);
    abort();
}

static void write_page(int which, long page) {
    version[which][page] = (uint32_t)next() | 1;
    uint64_t *place = (uint64_t *)(area[which] + page * PAGE);
    for (long index = 0; index < 512; index++) place[index] = word(which, page, index);
}

static void check_page(int which, long page) {
    uint64_t *place = (uint64_t *)(area[which] + page * PAGE);
    for (long index = 0; index < 512; index++)
        if (place[index] != word(which, page, index)) fail("read", which, page);
}

static void through_pipe(int which, long page, int pipes[2]) {
    uint64_t copy[512];
    if (write(pipes[1], area[which] + page * PAGE, PAGE) != PAGE || read(pipes[0], copy, PAGE) != PAGE) fail("pipe", which, page);
    for (long index = 0; index < 512; index++)
        if (copy[index] != word(which, page, index)) fail("write(2)", which, page);
    long other = (long)(next() % (uint64_t)pages[which]);
    version[which][other] = (uint32_t)next() | 1;
    for (long index = 0; index < 512; index++) copy[index] = word(which, other, index);
    if (write(pipes[1], copy, PAGE) != PAGE || read(pipes[0], area[which] + other * PAGE, PAGE) != PAGE) fail("pipe", which, other);
    check_page(which, other);
}

static void map(int which) {
    pages[which] = 512 + (long)(next() % (AREA_PAGES - 512));
    area[which] = mmap(NULL, pages[which] * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(area[which] != MAP_FAILED, "mmap", which);
    memset(version[which], 0, sizeof version[which]);
}

static void forked(int steps) {
    pid_t child = fork();
    if (child == 0) {
        for (int step = 0; step < steps; step++) {
            int which = (int)(next() % AREAS);
            long page = (long)(next() % (uint64_t)pages[which]);
            check_page(which, page);
            if (step % 3 == 0) write_page(which, page);
        }
        _exit(0);
    }
    for (int step = 0; step < steps; step++) {
        int which = (int)(next() % AREAS);
        write_page(which, (long)(next() % (uint64_t)pages[which]));
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "WRONG child %d status %x\n", child, status);
        abort();
    }
}

static void change(int which) {
    long from = (long)(next() % (uint64_t)pages[which]);
    long count = 1 + (long)(next() % (uint64_t)(pages[which] - from));
    switch (next() % 5) {
    case 0:
        if (count > 300) count = 300;
        must(madvise(area[which] + from * PAGE, count * PAGE, MADV_DONTNEED) == 0, "madvise", which);
        memset(&version[which][from], 0, count * sizeof version[which][0]);
        break;
    case 1: {
        long more = pages[which] + (long)(next() % 300);
        if (more > AREA_PAGES) more = AREA_PAGES;
        if (more > pages[which]) memset(&version[which][pages[which]], 0, (more - pages[which]) * sizeof version[which][0]);
        void *moved = mremap(area[which], pages[which] * PAGE, more * PAGE, MREMAP_MAYMOVE);
        must(moved != MAP_FAILED, "mremap to another size", which);
        area[which] = moved;
        pages[which] = more;
        break;
    }
    case 2: {
        void *target = mmap(NULL, pages[which] * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void *moved = mremap(area[which], pages[which] * PAGE, pages[which] * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
        must(moved != MAP_FAILED, "mremap to another place", which);
        area[which] = moved;
        break;
    }
    case 3:
        must(mprotect(area[which] + from * PAGE, count * PAGE, PROT_READ) == 0, "mprotect", which);
        for (long page = from; page < from + count; page += 37) check_page(which, page);
        must(mprotect(area[which] + from * PAGE, count * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect back", which);
        break;
    default:
        munmap(area[which], pages[which] * PAGE);
        map(which);
    }
}

#define OWN_PAGES 2048

static volatile int over;

static uint64_t own_word(uint64_t round, long page, long index) {
    return (round << 32 | (uint64_t)(page * 512 + index)) * 0xD6E8FEB86659FD93u;
}

static void check_own(const uint64_t *own, uint64_t round, long page) {
    for (long index = 0; index < 512; index++) {
        if (own[page * 512 + index] == (round == 0 ? 0 : own_word(round, page, index))) continue;
        fprintf(stderr, "WRONG thread: page %ld has %lx at word %ld in round %lu\n", page, own[page * 512 + index], index, round);
        abort();
    }
}

/* A thread that writes every word of its own pages again and again, and finds all of them as it left them. */
static void *write_own(void *memory) {
    uint64_t *own = memory, round = 0;
    while (!over) {
        for (long page = 0; page < OWN_PAGES; page++) {
            check_own(own, round, page);
            for (long index = 0; index < 512; index++) own[page * 512 + index] = own_word(round + 1, page, index);
        }
        round++;
    }
    for (long page = 0; page < OWN_PAGES; page++) check_own(own, round, page);
    return NULL;
}

int main(int count, char **words) {
    long steps = count > 1 ? atol(words[1]) : 10000;
    state = count > 2 ? strtoull(words[2], NULL, 10) : 88172645463325252u;
    int pipes[2];
    must(pipe(pipes) == 0, "pipe", 0);
    for (int which = 0; which < AREAS; which++) map(which);
    void *own = calloc(OWN_PAGES, PAGE);
    pthread_t thread;
    must(own && pthread_create(&thread, NULL, write_own, own) == 0, "pthread_create", 0);
    for (long step = 0; step < steps; step++) {
        int which = (int)(next() % AREAS);
        long page = (long)(next() % (uint64_t)pages[which]);
        uint64_t choice = next() % 1000;
        if (choice < 450) write_page(which, page);
        else if (choice < 950) check_page(which, page);
        else if (choice < 990) through_pipe(which, page, pipes);
        else if (choice < 998) change(which);
        else forked(60);
    }
    over = 1;
    pthread_join(thread, NULL);
    for (int which = 0; which < AREAS; which++)
        for (long page = 0; page < pages[which]; page++) check_page(which, page);
    puts("right");
    return 0;
}
