/* A counter in pool memory that several processes add to, under a lock.
 *
 * cc -Iinclude examples/c/shared_counter.c -Ltarget/debug -lhinterland -o shared_counter
 * usage: shared_counter new               allocates a counter and prints its address
 *        shared_counter add ADDRESS TIMES adds one, TIMES times
 *        shared_counter show ADDRESS      prints the counter and frees it
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hinterland.h"

/* Longer than any of the others holds the lock. */
#define WAIT_MS 10000

static void check(int status, const char *what) {
    if (status != 0) {
        fprintf(stderr, "%s: %s\n", what, hl_last_error());
        exit(1);
    }
}

static void add(hl_pool *pool, hl_address address, long times) {
    for (long time = 0; time < times; time++) {
        uint64_t value;
        check(hl_wlock(pool, address, WAIT_MS), "wlock");
        check(hl_read(pool, address, &value, sizeof value), "read");
        value += 1;
        check(hl_write(pool, address, &value, sizeof value), "write");
        check(hl_unlock(pool, address), "unlock");
    }
}

int main(int count, char **words) {
    hl_pool *pool;
    check(hl_open(NULL, &pool), "open");
    if (count == 2 && strcmp(words[1], "new") == 0) {
        const uint64_t zero = 0;
        hl_address address;
        /* Others use it after this process has ended. */
        check(hl_alloc_kept(pool, sizeof zero, &address), "alloc");
        check(hl_write(pool, address, &zero, sizeof zero), "write");
        printf("%#" PRIx64 "\n", address);
    } else if (count == 4 && strcmp(words[1], "add") == 0) {
        add(pool, strtoull(words[2], NULL, 0), atol(words[3]));
    } else if (count == 3 && strcmp(words[1], "show") == 0) {
        const hl_address address = strtoull(words[2], NULL, 0);
        uint64_t value;
        check(hl_rlock(pool, address, WAIT_MS), "rlock");
        check(hl_read(pool, address, &value, sizeof value), "read");
        check(hl_unlock(pool, address), "unlock");
        check(hl_free(pool, address), "free");
        printf("%" PRIu64 "\n", value);
    } else {
        fprintf(stderr, "usage: shared_counter new | add ADDRESS TIMES | show ADDRESS\n");
        return 2;
    }
    check(hl_close(pool), "close");
    return 0;
}
