/* What programs do to their memory by name: `far_calls NAME [FILE]` does one thing on far memory, checks every byte, and prints "right". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#define MIB (1L << 20)
#define PAGE 4096L
#define BYTES (160 * MIB)
#define must(condition)                                                                                        \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "FAILED line %d: %s: %s\n", __LINE__, #condition, strerror(errno));               \
            _exit(1);                                                                                          \
        }                                                                                                      \
    } while (0)

static const char *path;

static uint64_t word(uint64_t seed, long index) {
    uint64_t mixed = (uint64_t)(index + 1) * 0x9E3779B97F4A7C15u ^ seed * 0xD6E8FEB86659FD93u;
    return mixed ^ mixed >> 29;
}

static void fill(char *memory, long bytes, uint64_t seed) {
    uint64_t *words = (uint64_t *)memory;
    for (long index = 0; index < bytes / 8; index++) words[index] = word(seed, index);
}

/* Looks at a part of what `fill` wrote. */
static void check(const char *memory, long from, long to, uint64_t seed) {
    const uint64_t *words = (const uint64_t *)memory;
    for (long index = from / 8; index < to / 8; index++)
        if (words[index] != word(seed, index)) {
            fprintf(stderr, "WRONG at %ld: %lx, not %lx\n", index * 8, words[index], word(seed, index));
            _exit(1);
        }
}

static void check_zeros(const char *memory, long from, long to) {
    for (long at = from; at < to; at++)
        if (memory[at] != 0) {
            fprintf(stderr, "WRONG at %ld: no zero\n", at);
            _exit(1);
        }
}

static char *room(long bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    return memory;
}

/* Memory of which most is far. */
static char *filled(uint64_t seed) {
    char *memory = room(BYTES);
    fill(memory, BYTES, seed);
    return memory;
}

/* Pushes everything else out. */
static void press(void) {
    char *other = filled(99);
    check(other, 0, BYTES, 99);
    must(munmap(other, BYTES) == 0);
}

static void advice(void) {
    char *memory = filled(1);
    must(madvise(memory, 16 * MIB, MADV_HUGEPAGE) == 0);
    check(memory, 0, 16 * MIB, 1);
    if (madvise(memory, 4 * MIB, MADV_COLLAPSE) != 0) must(errno == EINVAL || errno == EAGAIN || errno == EBUSY || errno == ENOMEM);
    check(memory, 0, 16 * MIB, 1);
    must(madvise(memory + 16 * MIB, 8 * MIB, MADV_POPULATE_READ) == 0);
    must(madvise(memory + 24 * MIB, 8 * MIB, MADV_POPULATE_WRITE) == 0);
    must(madvise(memory + 32 * MIB, 8 * MIB, MADV_WILLNEED) == 0);
    must(madvise(memory + 32 * MIB, 8 * MIB, MADV_COLD) == 0);
    must(madvise(memory + 40 * MIB, 8 * MIB, MADV_PAGEOUT) == 0);
    must(madvise(memory, BYTES, MADV_SEQUENTIAL) == 0 && madvise(memory, BYTES, MADV_RANDOM) == 0);
    press();
    check(memory, 0, 48 * MIB, 1);
    must(madvise(memory + 48 * MIB, 8 * MIB, MADV_DONTNEED) == 0);
    check_zeros(memory, 48 * MIB, 56 * MIB);
    /* Each page is as before or zeros, until it is written. */
    must(madvise(memory + 56 * MIB, 8 * MIB, MADV_FREE) == 0);
    press();
    for (long at = 56 * MIB; at < 64 * MIB; at += PAGE) {
        uint64_t first = *(uint64_t *)(memory + at);
        must(first == 0 || first == word(1, at / 8));
        if (first == 0) check_zeros(memory, at, at + PAGE);
        else check(memory, at, at + PAGE, 1);
        *(uint64_t *)(memory + at) = 5;
    }
    press();
    for (long at = 56 * MIB; at < 64 * MIB; at += PAGE) must(*(uint64_t *)(memory + at) == 5);
    check(memory, 64 * MIB, BYTES, 1);
}

static void forks(void) {
    char *memory = filled(1), *kept = room(8 * MIB), *wiped = room(8 * MIB);
    fill(kept, 8 * MIB, 2);
    fill(wiped, 8 * MIB, 3);
    must(madvise(kept, 8 * MIB, MADV_DONTFORK) == 0 && madvise(wiped, 8 * MIB, MADV_WIPEONFORK) == 0);
    press();
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        unsigned char there;
        must(mincore(kept, PAGE, &there) == -1 && errno == ENOMEM);
        check_zeros(wiped, 0, 8 * MIB);
        memset(wiped, 1, 8 * MIB);
        press();
        for (long at = 0; at < 8 * MIB; at++) must(wiped[at] == 1);
        check(memory, 0, BYTES, 1);
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    check(kept, 0, 8 * MIB, 2);
    check(wiped, 0, 8 * MIB, 3);
    must(madvise(kept, 8 * MIB, MADV_DOFORK) == 0 && madvise(wiped, 8 * MIB, MADV_KEEPONFORK) == 0);
    child = fork();
    must(child >= 0);
    if (child == 0) {
        check(kept, 0, 8 * MIB, 2);
        check(wiped, 0, 8 * MIB, 3);
        _exit(0);
    }
    must(waitpid(child, &status, 0) == child && status == 0);
}

static void fixed(void) {
    char *memory = filled(1);
    for (long at = 32 * MIB; at < 96 * MIB; at += 8 * MIB) {
        char *asked = memory + at + 5 * PAGE;
        must(mmap(asked, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == asked);
        check_zeros(asked, 0, 2 * MIB);
        fill(asked, 2 * MIB, 4);
        char *small = memory + at + 4 * MIB;
        must(mmap(small, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == small);
        check_zeros(small, 0, PAGE);
        memset(small, 7, PAGE);
        must(mmap(memory, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);
    }
    press();
    for (long at = 32 * MIB; at < 96 * MIB; at += 8 * MIB) {
        check(memory, at, at + 5 * PAGE, 1);
        check(memory + at + 5 * PAGE, 0, 2 * MIB, 4);
        check(memory, at + 5 * PAGE + 2 * MIB, at + 4 * MIB, 1);
        for (long byte = 0; byte < PAGE; byte++) must(memory[at + 4 * MIB + byte] == 7);
        check(memory, at + 4 * MIB + PAGE, at + 8 * MIB, 1);
    }
}

static void locks(void) {
    char *memory = filled(1);
    must(mlock(memory, 16 * MIB) == 0);
    must(mlock2(memory + 32 * MIB, 4 * MIB, MLOCK_ONFAULT) == 0);
    press();
    /* What is locked is not taken out. */
    unsigned char there[16 * MIB / PAGE];
    must(mincore(memory, 16 * MIB, there) == 0);
    for (long page = 0; page < 16 * MIB / PAGE; page++) must(there[page] & 1);
    check(memory, 0, BYTES, 1);
    must(munlock(memory, 16 * MIB) == 0 && munlock(memory + 32 * MIB, 4 * MIB) == 0);
    press();
    check(memory, 0, BYTES, 1);
}

static void lock_all(void) {
    char *memory = filled(1);
    must(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    check(memory, 0, BYTES, 1);
    char *more = room(32 * MIB);
    check_zeros(more, 0, 32 * MIB);
    fill(more, 32 * MIB, 2);
    must(munlockall() == 0);
    press();
    check(memory, 0, BYTES, 1);
    check(more, 0, 32 * MIB, 2);
}

static void direct(void) {
    char *memory = filled(1), *back = filled(2);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    must(file >= 0);
    for (long at = 0; at < 64 * MIB; at += 4 * MIB) must(pwrite(file, memory + at, 4 * MIB, at) == 4 * MIB);
    for (long at = 0; at < 64 * MIB; at += 4 * MIB) must(pread(file, back + at, 4 * MIB, at) == 4 * MIB);
    press();
    check(back, 0, 64 * MIB, 1);
    check(back, 64 * MIB, BYTES, 2);
    must(unlink(path) == 0);
}

static void uring(void) {
    struct io_uring_params set = {0};
    int ring = syscall(SYS_io_uring_setup, 8, &set);
    if (ring < 0) {
        puts("skipped: no io_uring here");
        exit(0);
    }
    char *memory = filled(1);
    struct iovec buffer = {memory + 8 * MIB, 8 * MIB};
    must(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1) == 0);
    check(memory, 8 * MIB, 16 * MIB, 1);
    char *submit = mmap(NULL, set.sq_off.array + set.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(NULL, set.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    char *complete = mmap(NULL, set.cq_off.cqes + set.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_CQ_RING);
    must(submit != MAP_FAILED && entries != MAP_FAILED && complete != MAP_FAILED);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    char *source = filled(3);
    must(file >= 0 && pwrite(file, source, 8 * MIB, 0) == 8 * MIB);
    press();
    for (int round = 0; round < 2; round++) {
        unsigned *tail = (unsigned *)(submit + set.sq_off.tail), mask = *(unsigned *)(submit + set.sq_off.ring_mask);
        unsigned slot = *tail & mask;
        memset(&entries[slot], 0, sizeof *entries);
        entries[slot].opcode = round == 0 ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED;
        entries[slot].fd = file;
        entries[slot].addr = (uint64_t)(memory + 8 * MIB);
        entries[slot].len = 8 * MIB;
        entries[slot].off = round == 0 ? 0 : 8 * MIB;
        ((unsigned *)(submit + set.sq_off.array))[slot] = slot;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        must(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
        unsigned *head = (unsigned *)(complete + set.cq_off.head);
        struct io_uring_cqe *done = (struct io_uring_cqe *)(complete + set.cq_off.cqes) + (*head & *(unsigned *)(complete + set.cq_off.ring_mask));
        must(done->res == 8 * MIB);
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        /* What the device wrote into pinned pages is what the program reads, whatever was pushed out. */
        press();
        check(memory + 8 * MIB, 0, 8 * MIB, 3);
    }
    must(pread(file, source, 8 * MIB, 8 * MIB) == 8 * MIB);
    check(source, 0, 8 * MIB, 3);
    close(ring);
    press();
    check(memory + 8 * MIB, 0, 8 * MIB, 3);
    check(memory, 0, 8 * MIB, 1);
    must(unlink(path) == 0);
}

static void splices(void) {
    char *memory = filled(1), *back = room(4 * MIB);
    int ends[2];
    must(pipe(ends) == 0);
    for (long at = 0; at < 32 * MIB; at += 64 << 10) {
        struct iovec part = {memory + at, 64 << 10};
        must(vmsplice(ends[1], &part, 1, 0) == 64 << 10);
        if (at % (16 * MIB) == 0) press();
        must(read(ends[0], back, 64 << 10) == 64 << 10);
        must(memcmp(back, memory + at, 64 << 10) == 0);
    }
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(file >= 0);
    for (long at = 0; at < 4 * MIB; at += 64 << 10) {
        struct iovec part = {memory + at, 64 << 10};
        must(vmsplice(ends[1], &part, 1, 0) == 64 << 10);
        must(splice(ends[0], NULL, file, NULL, 64 << 10, 0) == 64 << 10);
    }
    must(pread(file, back, 4 * MIB, 0) == 4 * MIB);
    check(back, 0, 4 * MIB, 1);
    check(memory, 0, BYTES, 1);
    must(unlink(path) == 0);
}

static char *far_page;
static sigjmp_buf after;

static void on_fault(int signal, siginfo_t *information, void *context) {
    (void)signal, (void)context;
    char local[8192];
    memset(local, 3, sizeof local);
    must((char *)information->si_addr == far_page && local[17] == 3);
    siglongjmp(after, 1);
}

static void signals(void) {
    char *memory = filled(1);
    /* A stack for handlers that is far memory itself, and pushed out between two signals. */
    stack_t stack = {.ss_sp = memory + 32 * MIB, .ss_size = MIB};
    must(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    must(sigaction(SIGSEGV, &action, NULL) == 0);
    far_page = memory + 64 * MIB;
    for (int round = 0; round < 2; round++) {
        press();
        must(mprotect(far_page, PAGE, PROT_NONE) == 0);
        if (sigsetjmp(after, 1) == 0) {
            *(volatile char *)far_page;
            must(!"the page was protected");
        }
        must(mprotect(far_page, PAGE, PROT_READ | PROT_WRITE) == 0);
        check(memory, 64 * MIB, 65 * MIB, 1);
    }
    check(memory, 0, 32 * MIB, 1);
    check(memory, 33 * MIB, BYTES, 1);
}

/* The kernel does not wait for far pages of `/proc/self/mem`: an error, and never other bytes. */
static void process_memory(void) {
    char *memory = filled(1), *back = room(4 * MIB);
    int file = open("/proc/self/mem", O_RDWR);
    must(file >= 0);
    for (long at = 0; at < 64 * MIB; at += 4 * MIB) {
        long bytes = pread(file, back, 4 * MIB, (off_t)(memory + at));
        must(bytes >= 0 || errno == EIO);
        must(bytes <= 0 || memcmp(back, memory + at, bytes) == 0);
        /* What is here is read. */
        check(memory, at, at + PAGE, 1);
        must(pread(file, back, 8, (off_t)(memory + at)) == 8 && *(uint64_t *)back == word(1, at / 8));
    }
    fill(back, 4 * MIB, 2);
    long written = pwrite(file, back, 4 * MIB, (off_t)(memory + 64 * MIB));
    must(written >= 0 || errno == EIO);
    if (written < 0) written = 0;
    press();
    check(memory + 64 * MIB, 0, written, 2);
    check(memory, 64 * MIB + written, 68 * MIB, 1);
    check(memory, 0, 64 * MIB, 1);
    struct iovec here = {back, 4 * MIB}, there = {memory + 96 * MIB, 4 * MIB};
    must(process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 4 * MIB);
    must(memcmp(back, memory + 96 * MIB, 4 * MIB) == 0);
}

static void limits(void) {
    char *memory = filled(1);
    struct rlimit limit = {1024 * MIB, 1024 * MIB};
    must(setrlimit(RLIMIT_AS, &limit) == 0);
    must(malloc(2048 * MIB) == NULL && errno == ENOMEM);
    must(mmap(NULL, 2048 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    press();
    check(memory, 0, BYTES, 1);
    struct rlimit files = {3, 3};
    must(setrlimit(RLIMIT_NOFILE, &files) == 0);
    press();
    check(memory, 0, BYTES, 1);
}

static void *churn(void *argument) {
    uint64_t seed = (uint64_t)argument;
    char *kept[64] = {0};
    long bytes[64] = {0};
    for (uint64_t step = 0; step < 400; step++) {
        uint64_t random = word(seed, (long)step);
        int slot = random % 64;
        if (kept[slot] != NULL) {
            check(kept[slot], 0, bytes[slot], seed + slot);
            free(kept[slot]);
        }
        bytes[slot] = 64 + (long)(random >> 8) % (step % 50 == 0 ? 3 * MIB : 256 << 10) / 8 * 8;
        must((kept[slot] = malloc(bytes[slot])) != NULL);
        fill(kept[slot], bytes[slot], seed + slot);
    }
    for (int slot = 0; slot < 64; slot++) {
        if (kept[slot] != NULL) check(kept[slot], 0, bytes[slot], seed + slot);
        free(kept[slot]);
    }
    return NULL;
}

static void arenas(void) {
    pthread_t threads[8];
    char *memory = filled(1);
    for (uint64_t index = 0; index < 8; index++) must(pthread_create(&threads[index], NULL, churn, (void *)(index * 1000 + 7)) == 0);
    for (int index = 0; index < 8; index++) must(pthread_join(threads[index], NULL) == 0);
    check(memory, 0, BYTES, 1);
}

static void reserves(void) {
    long bytes = 4L << 40;
    char *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(memory != MAP_FAILED);
    for (int part = 0; part < 8; part++) {
        char *used = memory + part * (bytes / 8) + 3 * PAGE;
        must(mprotect(used, 24 * MIB, PROT_READ | PROT_WRITE) == 0);
        fill(used, 24 * MIB, part);
    }
    for (int part = 0; part < 8; part++) check(memory + part * (bytes / 8) + 3 * PAGE, 0, 24 * MIB, part);
    must(munmap(memory, bytes / 2) == 0);
    for (int part = 4; part < 8; part++) check(memory + part * (bytes / 8) + 3 * PAGE, 0, 24 * MIB, part);
}

static int faults;

static void *serve(void *argument) {
    char *page = argument;
    struct uffd_msg message;
    while (read(faults, &message, sizeof message) == sizeof message) {
        fill(page, PAGE, 77);
        struct uffdio_copy copy = {.dst = message.arg.pagefault.address & ~(PAGE - 1), .src = (uint64_t)page, .len = PAGE};
        must(ioctl(faults, UFFDIO_COPY, &copy) == 0 || errno == EEXIST);
    }
    return NULL;
}

/* A program that serves faults of its own memory. */
static void own_faults(void) {
    char *memory = filled(1), *page = room(PAGE), *served = room(32 * MIB);
    must((faults = syscall(SYS_userfaultfd, O_CLOEXEC)) >= 0);
    struct uffdio_api api = {.api = UFFD_API};
    must(ioctl(faults, UFFDIO_API, &api) == 0);
    struct uffdio_register range = {.range = {(uint64_t)served, 32 * MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    must(ioctl(faults, UFFDIO_REGISTER, &range) == 0);
    pthread_t thread;
    must(pthread_create(&thread, NULL, serve, page) == 0);
    for (long at = 0; at < 32 * MIB; at += 64 * PAGE) check(served + at, 0, PAGE, 77);
    press();
    for (long at = 0; at < 32 * MIB; at += 64 * PAGE) check(served + at, 0, PAGE, 77);
    check(memory, 0, BYTES, 1);
}

/* Used before the program decides to serve it: what it holds stays. */
static void own_faults_late(void) {
    char *memory = filled(1), *page = room(PAGE);
    press();
    must((faults = syscall(SYS_userfaultfd, O_CLOEXEC)) >= 0);
    struct uffdio_api api = {.api = UFFD_API};
    must(ioctl(faults, UFFDIO_API, &api) == 0);
    must(madvise(memory + 32 * MIB, 8 * MIB, MADV_DONTNEED) == 0);
    struct uffdio_register range = {.range = {(uint64_t)(memory + 16 * MIB), 32 * MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    must(ioctl(faults, UFFDIO_REGISTER, &range) == 0);
    pthread_t thread;
    must(pthread_create(&thread, NULL, serve, page) == 0);
    check(memory, 16 * MIB, 32 * MIB, 1);
    for (long at = 32 * MIB; at < 40 * MIB; at += PAGE) check(memory + at, 0, PAGE, 77);
    check(memory, 0, 16 * MIB, 1);
    press();
    check(memory, 40 * MIB, BYTES, 1);
}

static void tiny(void) {
    char *memory = room(512 * MIB);
    for (long at = 0; at < 512 * MIB; at += PAGE) *(uint64_t *)(memory + at) = word(5, at);
    for (int round = 0; round < 400; round++) {
        long at = (long)(word(6, round) % (512 * MIB / PAGE)) * PAGE;
        must(*(uint64_t *)(memory + at) == word(5, at));
    }
}

static void aborts(void) {
    char *memory = filled(1);
    check(memory, 0, MIB, 1);
    abort();
}

/* Waits for another process to look at its memory: says where it is, and what is there. */
static void waits(void) {
    char *memory = filled(1);
    printf("%lu %lu\n", (unsigned long)memory + 8 * MIB, (unsigned long)word(1, MIB));
    fflush(stdout);
    char byte;
    must(read(0, &byte, 1) >= 0);
    check(memory, 0, BYTES, 1);
}

/* As daemons do: closes all that it did not open, and has files of its own under those numbers. Nothing of the library goes into them. */
static void closes(void) {
    char *memory = filled(1), byte;
    struct rlimit limit;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int end = limit.rlim_cur < 4096 ? (int)limit.rlim_cur : 4096, ends[2], status;
    for (int number = 3; number < end; number++) close(number);
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && ends[0] == 3 && ends[1] == 4);
    for (int number = 5; number < end - 32; number++) must(dup2(ends[0], number) == number);
    press();
    check(memory, 0, BYTES, 1);
    char *later = filled(2);
    press();
    check(later, 0, BYTES, 2);
    must(recv(ends[1], &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    for (int number = 5; number < end; number++) close(number);
    press();
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        for (int number = 5; number < end; number++) close(number);
        press();
        check(memory, 0, BYTES, 1);
        _exit(0);
    }
    must(waitpid(child, &status, 0) == child && status == 0);
    must(recv(ends[1], &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    check(later, 0, BYTES, 2);
}

/* A child that has memory, and stops. */
static pid_t stopped_child(int is_quiet) {
    int status;
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        char *memory = room(64 * MIB);
        fill(memory, 64 * MIB, 3);
        if (is_quiet) {
            int nothing = open("/dev/null", O_RDWR);
            for (int number = 0; number < 3; number++) must(dup2(nothing, number) == number);
        }
        raise(SIGSTOP);
        check(memory, 0, 64 * MIB, 3);
        press();
        check(memory, 0, 64 * MIB, 3);
        _exit(0);
    }
    must(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    return child;
}

/* Who is stopped keeps nobody else waiting, and its memory is as it was when it goes on. */
static void stops(void) {
    int status;
    pid_t child = stopped_child(0);
    char *memory = filled(1);
    press();
    check(memory, 0, BYTES, 1);
    must(kill(child, SIGCONT) == 0);
    must(waitpid(child, &status, 0) == child && status == 0);
    check(memory, 0, BYTES, 1);
}

/* A process that stays stopped when the program has ended: says which. */
static void stays_stopped(void) {
    printf("%d\n", stopped_child(1));
    char *memory = filled(1);
    press();
    check(memory, 0, BYTES, 1);
}

/* Round after round, a process is killed while its memory leaves, and a child of it goes on. */
static void orphans(void) {
    for (uint64_t round = 1; round <= 12; round++) {
        int said[2], go[2], status;
        char byte;
        must(pipe(said) == 0 && pipe(go) == 0);
        pid_t parent = fork();
        must(parent >= 0);
        if (parent == 0) {
            char *memory = room(24 * MIB);
            fill(memory, 24 * MIB, round);
            pid_t child = fork();
            must(child >= 0);
            if (child == 0) {
                must(read(go[0], &byte, 1) == 1);
                press();
                check(memory, 0, 24 * MIB, round);
                must(write(said[1], "c", 1) == 1);
                _exit(0);
            }
            for (int turn = 0;; turn++) {
                press();
                if (turn == 0) must(write(said[1], "p", 1) == 1);
            }
        }
        close(said[1]);
        must(read(said[0], &byte, 1) == 1 && byte == 'p');
        must(kill(parent, SIGKILL) == 0 && waitpid(parent, &status, 0) == parent);
        must(write(go[1], "x", 1) == 1);
        must(read(said[0], &byte, 1) == 1 && byte == 'c');
        close(said[0]), close(go[0]), close(go[1]);
    }
}

/* A program that begins as the first process of a PID namespace. */
static void namespaces(void) {
    char *memory = filled(1), *words[] = {"far_calls", "forks", NULL};
    int status;
    pid_t child;
    must(unshare(CLONE_NEWPID) == 0);
    must(posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ) == 0);
    must(waitpid(child, &status, 0) == child && status == 0);
    check(memory, 0, BYTES, 1);
}

static void *crowd(void *argument) {
    char *memory = argument;
    for (uint64_t turn = 1; turn <= 6; turn++) {
        int status;
        pid_t child = fork();
        must(child >= 0);
        if (child == 0) {
            uint64_t seed = (uint64_t)getpid();
            check(memory, 0, 8 * MIB, 1);
            char *own = room(24 * MIB);
            fill(own, 24 * MIB, seed);
            fill(memory, 4 * MIB, seed);
            check(own, 0, 24 * MIB, seed);
            check(memory, 0, 4 * MIB, seed);
            check(memory, 4 * MIB, 8 * MIB, 1);
            _exit(0);
        }
        must(waitpid(child, &status, 0) == child && status == 0);
    }
    return NULL;
}

/* Threads that fork at the same time: no child is taken for another one. */
static void crowds(void) {
    char *memory = room(8 * MIB);
    pthread_t threads[6];
    fill(memory, 8 * MIB, 1);
    press();
    for (int index = 0; index < 6; index++) must(pthread_create(&threads[index], NULL, crowd, memory) == 0);
    for (int index = 0; index < 6; index++) must(pthread_join(threads[index], NULL) == 0);
    check(memory, 0, 8 * MIB, 1);
}

static const struct {
    const char *name;
    void (*run)(void);
} kinds[] = {
    {"advice", advice}, {"forks", forks}, {"fixed", fixed}, {"locks", locks}, {"lock_all", lock_all}, {"direct", direct},
    {"uring", uring}, {"splices", splices}, {"signals", signals}, {"process_memory", process_memory}, {"limits", limits},
    {"arenas", arenas}, {"reserves", reserves}, {"own_faults", own_faults}, {"own_faults_late", own_faults_late},
    {"closes", closes}, {"stops", stops}, {"stays_stopped", stays_stopped}, {"orphans", orphans}, {"namespaces", namespaces}, {"crowds", crowds},
    {"tiny", tiny}, {"aborts", aborts}, {"waits", waits},
};

int main(int count, char **arguments) {
    must(count >= 2);
    path = count > 2 ? arguments[2] : "far_calls.file";
    for (size_t index = 0; index < sizeof kinds / sizeof *kinds; index++)
        if (strcmp(kinds[index].name, arguments[1]) == 0) {
            kinds[index].run();
            puts("right");
            return 0;
        }
    fprintf(stderr, "no kind %s\n", arguments[1]);
    return 2;
}
