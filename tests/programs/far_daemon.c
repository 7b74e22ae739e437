/* A program that goes on in the background (`daemon(3)`): its first process ends at once, and the other one looks at all of its memory, small pieces of the heap among it, and writes
   "right" to a file. `far_daemon FILE ends` ends then, `far_daemon FILE stays` does not, and with "late" it asks for memory only in the background. */
#define _GNU_SOURCE
#include "far_check.h"
#include <fcntl.h>
#include <stdlib.h>

#define MIB (1L << 20)
#define BYTES (96 * MIB)
#define PIECE 1000
#define PIECES 20000

static char *memory, *pieces[PIECES];

static void ask(void) {
    must((memory = malloc(BYTES)) != NULL);
    fill(memory, BYTES, 3);
    for (int number = 0; number < PIECES; number++) {
        must((pieces[number] = malloc(PIECE)) != NULL);
        fill(pieces[number], PIECE, number);
    }
}

int main(int count, char **words) {
    must(count == 3);
    int is_late = strcmp(words[2], "late") == 0;
    if (!is_late) ask();
    must(daemon(0, 0) == 0);
    if (is_late) ask();
    for (int number = 0; number < PIECES; number++) {
        check(pieces[number], PIECE, number);
        free(pieces[number]);
    }
    check(memory, BYTES, 3);
    int file = open(words[1], O_WRONLY | O_CREAT, 0600);
    must(write(file, "right", 5) == 5);
    while (strcmp(words[2], "stays") == 0) pause();
    return 0;
}
