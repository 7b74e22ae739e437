// Copies bytes to a GPU and back for ever, looks at each of them, and says so: a line a round, or the name of the error that ended it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES (256 << 10)

int cudaMalloc(void **, size_t);
int cudaMemcpy(void *, const void *, size_t, int);
const char *cudaGetErrorName(int);

static unsigned char bytes[BYTES], back[BYTES];

int main(void) {
    void *memory;
    int code = cudaMalloc(&memory, BYTES);
    for (unsigned round = 0; code == 0; round++) {
        for (size_t i = 0; i < BYTES; i++) {
            bytes[i] = (unsigned char)(i * 7 + round);
        }
        memset(back, 0, BYTES);
        code = cudaMemcpy(memory, bytes, BYTES, 1);
        if (code == 0) {
            code = cudaMemcpy(back, memory, BYTES, 2);
        }
        if (code == 0 && memcmp(bytes, back, BYTES)) {
            puts("wrong bytes");
            exit(3);
        }
        if (code == 0) {
            printf("%u\n", round);
            fflush(stdout);
        }
    }
    puts(cudaGetErrorName(code));
    // Whatever is called then fails as well, and at once.
    exit(cudaMalloc(&memory, BYTES) == code ? 7 : 4);
}
