/* Memory that programs ask for in ways of their own and that is far all the same: `far_asked NAME` has more than the budget of it, checks every byte, and
   prints "right". */
#define _GNU_SOURCE
#include "far_check.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define KIB (1L << 10)
#define MIB (1L << 20)
#define BYTES (160 * MIB)
#define PARTS_MAX 8192

static char *map(long bytes, int protection, int flags) {
    char *memory = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    must(memory != MAP_FAILED);
    return memory;
}

static char *parts[PARTS_MAX];
static long part_bytes, part_count;

/* So much memory in parts of this size. */
static void ask(long bytes, long each, int flags) {
    part_bytes = each;
    part_count = bytes / each;
    must(part_count <= PARTS_MAX);
    for (long part = 0; part < part_count; part++) {
        parts[part] = map(each, PROT_READ | PROT_WRITE, flags);
        fill(parts[part], each, part);
    }
}

static void check_parts(void) {
    for (long part = 0; part < part_count; part++)
        if (parts[part]) check(parts[part], part_bytes, part);
}

/* A child does this, and leaves the parts of its parent as they are. */
static void in_child(void (*run)(void)) {
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        run();
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    check_parts();
}

static void in_parts(void) {
    ask(BYTES, 32 * KIB, 0);
    check_parts();
    for (long part = 0; part < part_count; part += 2) {
        must(munmap(parts[part], part_bytes) == 0);
        parts[part] = NULL;
    }
    check_parts();
    in_child(check_parts);
}

/* Addresses below 4 GiB, as Chez Scheme asks for. */
static void low(void) {
    ask(BYTES, 2 * MIB, MAP_32BIT);
    check_parts();
}

/* As V8 has its heap: each part is reserved, hidden from children, cut to its place and only then written. */
static void hide(void) {
    part_bytes = 256 * KIB;
    part_count = BYTES / part_bytes;
    for (long part = 0; part < part_count; part++) {
        char *place = map(2 * part_bytes, PROT_NONE, MAP_NORESERVE);
        must(madvise(place, 2 * part_bytes, MADV_DONTFORK) == 0 && munmap(place + part_bytes, part_bytes) == 0);
        must(mprotect(place, part_bytes, PROT_READ | PROT_WRITE) == 0);
        parts[part] = place;
        fill(place, part_bytes, part);
    }
}

/* In a child, what it maps where it has nothing is its own: in parts too small to be told of, and in large ones. */
static void use_place(void) {
    for (long part = 0; part < part_count; part++) {
        long each = part % 2 ? part_bytes : 8 * KIB;
        for (long at = 0; at < part_bytes; at += each) {
            char *own = mmap(parts[part] + at, each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            must(own == parts[part] + at);
            for (long word = 0; word < each; word += 8) must(*(uint64_t *)(own + word) == 0);
        }
        fill(parts[part], part_bytes, part + 7);
    }
    for (long part = 0; part < part_count; part++) check(parts[part], part_bytes, part + 7);
}

static void hidden(void) {
    hide();
    check_parts();
    for (int round = 0; round < 2; round++) in_child(use_place);
    for (long part = 0; part < part_count; part++) must(madvise(parts[part], part_bytes, MADV_DOFORK) == 0);
    in_child(check_parts);
}

/* The same without children, whose own memory of this kind may be beside the budget. */
static void hidden_alone(void) {
    hide();
    check_parts();
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(void);
    } KINDS[] = {{"in_parts", in_parts}, {"low", low}, {"hidden", hidden}, {"hidden_alone", hidden_alone}};
    for (size_t at = 0; count > 1 && at < sizeof KINDS / sizeof *KINDS; at++)
        if (!strcmp(words[1], KINDS[at].name)) {
            KINDS[at].run();
            puts("right");
            return 0;
        }
    return 2;
}
