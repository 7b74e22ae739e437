/* Blocks of a paged KV cache: one process puts them, another finds the prefix and loads it, once at once and once through a
 * queue whose descriptor it polls.
 *
 * cc -Iinclude examples/c/kv_blocks.c -Ltarget/debug -lhinterland -o kv_blocks
 * usage: kv_blocks put COUNT    puts blocks 0 to COUNT - 1
 *        kv_blocks get COUNT    loads those of blocks 0 to COUNT - 1 that are there, and prints a sum
 *        kv_blocks remove COUNT
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hinterland.h"

/* A cache of 8 layers, each with room for 64 blocks of 4096 bytes. */
#define LAYERS 8
#define BLOCKS 64
#define BLOCK_BYTES 4096

static unsigned char cache[LAYERS][BLOCKS][BLOCK_BYTES];

static void check(int status, const char *what) {
    if (status != 0) {
        fprintf(stderr, "%s: %s\n", what, hl_last_error());
        exit(1);
    }
}

/* Keys, and where each block lies in the cache: one run over all layers. */
static void name(hl_block *blocks, hl_run *runs, unsigned long *keys, size_t count) {
    for (size_t index = 0; index < count; index++) {
        keys[index] = index;
        runs[index] = (hl_run){cache[0][index], BLOCK_BYTES, sizeof cache[0], LAYERS};
        blocks[index] = (hl_block){&keys[index], sizeof keys[index], &runs[index], 1};
    }
}

static unsigned long sum(size_t count) {
    unsigned long total = 0;
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t block = 0; block < count; block++)
            for (size_t byte = 0; byte < BLOCK_BYTES; byte++) total += cache[layer][block][byte] * (layer + 1);
    return total;
}

/* Has a queue load blocks and waits for it as an event loop would. */
static void load(hl_kv *kv, const hl_block *blocks, size_t count) {
    hl_kv_queue *queue;
    struct pollfd waiting = {.events = POLLIN};
    hl_completion completion;
    uint8_t there[BLOCKS];
    uint64_t batch;
    size_t drained;
    check(hl_kv_queue_open(kv, 1, 0, &queue), "queue");
    check(hl_kv_queue_fd(queue, &waiting.fd), "descriptor");
    check(hl_kv_submit(queue, HL_KV_GET, blocks, count, there, &batch), "submit");
    while (poll(&waiting, 1, -1) < 0 && errno == EINTR) {
    }
    check(hl_kv_drain(queue, &completion, 1, &drained), "drain");
    if (drained != 1 || completion.batch != batch || completion.status != 0) exit(1);
    for (size_t index = 0; index < count; index++)
        if (!there[index]) fprintf(stderr, "block %zu was evicted meanwhile\n", index);
    check(hl_kv_queue_close(queue), "close queue");
}

int main(int count_words, char **words) {
    const size_t count = count_words == 3 ? strtoul(words[2], NULL, 0) : 0;
    const int known = count > 0 && (!strcmp(words[1], "put") || !strcmp(words[1], "get") || !strcmp(words[1], "remove"));
    if (!known || count > BLOCKS) {
        fprintf(stderr, "usage: kv_blocks put|get|remove COUNT (1 to %d)\n", BLOCKS);
        return 2;
    }
    static hl_block blocks[BLOCKS];
    static hl_run runs[BLOCKS];
    static unsigned long keys[BLOCKS];
    hl_pool *pool;
    hl_kv *kv;
    check(hl_open(NULL, &pool), "open");
    check(hl_kv_open(pool, "kv_blocks example, 8 layers x 4096 bytes", &kv), "open namespace");
    name(blocks, runs, keys, count);
    if (strcmp(words[1], "put") == 0) {
        for (size_t layer = 0; layer < LAYERS; layer++)
            for (size_t block = 0; block < count; block++) memset(cache[layer][block], (int)(layer + block), BLOCK_BYTES);
        uint8_t stored[BLOCKS];
        check(hl_kv_put(kv, blocks, count, stored), "put");
        printf("%lu\n", sum(count));
    } else if (strcmp(words[1], "get") == 0) {
        size_t prefix;
        uint8_t found[BLOCKS];
        check(hl_kv_match_prefix(kv, blocks, count, &prefix), "match");
        check(hl_kv_get(kv, blocks, prefix, found), "get");
        const unsigned long at_once = sum(prefix);
        memset(cache, 0, sizeof cache);
        load(kv, blocks, prefix);
        printf("%zu %lu %lu\n", prefix, at_once, sum(prefix));
    } else if (strcmp(words[1], "remove") == 0) {
        uint64_t removed;
        check(hl_kv_remove(kv, blocks, count, &removed), "remove");
        printf("%llu\n", (unsigned long long)removed);
    }
    check(hl_kv_close(kv), "close namespace");
    check(hl_close(pool), "close");
    return 0;
}
