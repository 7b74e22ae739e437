/* Advice that a program gives itself part by part (process_madvise): `far_advised KIND` does it on memory of which most is far, and checks every byte. `lengths` asks
   for what no call does, lengths beyond all numbers, and is to be refused. */
#define _GNU_SOURCE
#include "far_check.h"
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define MIB (1L << 20)
#define BYTES (32 * MIB)
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

static char *memory;

static char *filled(long bytes, uint64_t seed) {
    char *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(place != MAP_FAILED);
    fill(place, bytes, seed);
    return place;
}

static void press(void) {
    char *other = filled(160 * MIB, 9);
    check(other, 160 * MIB, 9);
    must(munmap(other, 160 * MIB) == 0);
}

static void check_zeros(const char *from, long bytes) {
    for (long at = 0; at < bytes; at++) must(from[at] == 0);
}

/* In two parts, of which the second lies before the first. */
static void advise(int advice) {
    int own = syscall(SYS_pidfd_open, getpid(), 0);
    must(own >= 0);
    struct iovec parts[2] = {{memory + BYTES / 2, BYTES / 2}, {memory, BYTES / 2}};
    long done = process_madvise(own, parts, 2, advice, 0);
    if (done < 0 && (errno == EINVAL || errno == EPERM)) {
        puts("skipped: this kernel takes no such advice");
        _exit(0);
    }
    must(done == BYTES);
    /* What it cannot read is an error, and not the end. */
    must(process_madvise(own, NULL, 1, advice, 0) == -1 && errno == EFAULT);
    must(process_madvise(own, parts, 1 << 20, advice, 0) == -1 && errno == EINVAL);
    must(process_madvise(-1, parts, 0, advice, 0) == -1);
    must(close(own) == 0);
}

static void in_child(void (*look)(void)) {
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        look();
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    check(memory, BYTES, 1);
}

static void is_wiped(void) {
    check_zeros(memory, BYTES);
    fill(memory, BYTES, 3);
    press();
    check(memory, BYTES, 3);
}

static void is_hidden(void) {
    char *place = mmap(memory, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    must(place == memory);
    is_wiped();
}

static void guards(void) {
    advise(GUARD_INSTALL);
    press();
    for (long at = 0; at < BYTES; at += 4096) {
        char byte;
        struct iovec here = {&byte, 1}, there = {memory + at, 1};
        must(process_vm_readv(getpid(), &here, 1, &there, 1, 0) == -1 && errno == EFAULT);
    }
    advise(GUARD_REMOVE);
    check_zeros(memory, BYTES);
}

static void rest(void) {
    advise(MADV_PAGEOUT);
    advise(MADV_COLD);
    check(memory, BYTES, 1);
    advise(MADV_DONTNEED);
    check_zeros(memory, BYTES);
    for (uint64_t round = 4; round < 12; round++) {
        fill(memory, BYTES, round);
        press();
        advise(MADV_FREE);
        fill(memory, BYTES, round + 20);
        press();
        check(memory, BYTES, round + 20);
    }
}

static void lengths(void) {
    for (unsigned long less = 0; less < 3 * 4096; less += 4095) {
        unsigned long bytes = -1UL - less;
        must(munmap(memory, bytes) == -1 && errno == EINVAL);
        must(mmap(memory, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED);
        must(mremap(memory, bytes, 4096, 0) == MAP_FAILED);
        must(mremap(memory, 4096, bytes, MREMAP_MAYMOVE) == MAP_FAILED);
        must(mprotect(memory, bytes, PROT_READ) == -1 && madvise(memory, bytes, MADV_DONTNEED) == -1);
        must(brk((void *)bytes) == -1 && errno == ENOMEM);
    }
}

int main(int count, char **words) {
    must(count == 2);
    memory = filled(BYTES, 1);
    press();
    if (strcmp(words[1], "wiped") == 0) {
        advise(MADV_WIPEONFORK);
        press();
        in_child(is_wiped);
    } else if (strcmp(words[1], "hidden") == 0) {
        advise(MADV_DONTFORK);
        press();
        in_child(is_hidden);
    } else if (strcmp(words[1], "guards") == 0) {
        guards();
    } else if (strcmp(words[1], "rest") == 0) {
        rest();
    } else {
        lengths();
        press();
        check(memory, BYTES, 1);
    }
    puts("right");
    return 0;
}
