/* Fills memory, says so, waits for a byte, and writes all of it to its stdout, until that fails. */
#include "far_check.h"

#include <sys/mman.h>

#define BYTES (200L << 20)

int main(void) {
    char byte, *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    fill(memory, BYTES, 7);
    must(write(1, "ready\n", 6) == 6 && read(0, &byte, 1) == 1);
    for (long done = 0; done < BYTES;) {
        long count = write(1, memory + done, BYTES - done);
        must(count > 0);
        done += count;
    }
    return 0;
}
