/* Puts a file into the pool, maps it, prints how it begins, and removes it.
 *
 * cc -Iinclude examples/c/map_object.c -Ltarget/debug -lhinterland -o map_object
 * usage: map_object FILE NAME [RACK]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "hinterland.h"

static void check(int status, const char *what) {
    if (status != 0) {
        fprintf(stderr, "%s: %s\n", what, hl_last_error());
        exit(1);
    }
}

static int say_progress(void *context, uint64_t done, uint64_t total) {
    (void)context;
    fprintf(stderr, "put %" PRIu64 " of %" PRIu64 " bytes\n", done, total);
    return 0;
}

int main(int count, char **words) {
    if (count < 3 || count > 4) {
        fprintf(stderr, "usage: map_object FILE NAME [RACK]\n");
        return 2;
    }
    hl_pool *pool;
    check(hl_open(NULL, &pool), "open");

    hl_put_options options = {0};
    options.rack = count == 4 ? words[3] : NULL;
    options.progress = say_progress;
    check(hl_put_file(pool, words[2], words[1], &options), "put");

    hl_object object;
    check(hl_stat(pool, words[2], &object), "stat");
    printf("%s: %" PRIu64 " bytes at %#" PRIx64 ", %" PRIu32 " of %" PRIu32 " homes up\n", words[2], object.bytes,
           object.address, object.homes_up, object.homes);

    const void *memory;
    uint64_t bytes;
    check(hl_map(pool, words[2], &memory, &bytes), "map");
    check(hl_advise(pool, memory, 0, bytes, HL_ADVICE_SEQUENTIAL), "advise");
    uint64_t sum = 0;
    for (uint64_t index = 0; index < bytes; index++) sum += ((const unsigned char *)memory)[index];
    printf("sum %" PRIu64 ", begins", sum);
    for (uint64_t index = 0; index < 8 && index < bytes; index++) printf(" %02x", ((const unsigned char *)memory)[index]);
    printf("\n");

    check(hl_unmap(pool, memory), "unmap");
    check(hl_remove(pool, words[2]), "remove");
    check(hl_close(pool), "close");
    return 0;
}
