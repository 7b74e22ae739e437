/* Programs that have a large file in common, as others have libraries, and a little memory of their own: together they have the file once. */
#include "far_check.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MIB (1L << 20)
#define WORKERS 6
#define COMMON_BYTES (40 * MIB)
#define OWN_BYTES (8 * MIB)
#define ROUNDS 2000
#define PAGE 4096

static void work(const char *path) {
    int file = open(path, O_RDONLY);
    must(file >= 0);
    const char *common = mmap(NULL, COMMON_BYTES, PROT_READ, MAP_SHARED, file, 0);
    must(common != MAP_FAILED);
    char *own = malloc(OWN_BYTES);
    must(own != NULL);
    long sum = 0;
    for (long round = 0; round < ROUNDS; round++) {
        for (long at = 0; at < COMMON_BYTES; at += PAGE) sum += common[at];
        for (long at = 0; at < OWN_BYTES; at += PAGE) {
            long *word = (long *)(own + at);
            must(round == 0 || *word == round - 1);
            *word = round;
        }
    }
    must(sum == ROUNDS * (COMMON_BYTES / PAGE));
}

int main(int count, char **words) {
    must(count == 2 || count == 3);
    if (count == 3) {
        work(words[1]);
        return 0;
    }
    for (int worker = 0; worker < WORKERS; worker++) {
        pid_t child = fork();
        must(child >= 0);
        /* A program of its own: nothing of it is its parent's. */
        if (child == 0) execl("/proc/self/exe", words[0], words[1], "work", (char *)NULL);
        must(child > 0);
    }
    for (int worker = 0; worker < WORKERS; worker++) {
        int status;
        must(wait(&status) > 0 && status == 0);
    }
    puts("right");
    return 0;
}
