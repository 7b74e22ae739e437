// A variable in unified memory: refused by the launch of a kernel of its module, and the program lives to say so.
#include "gpu_check.h"

__managed__ int together = 3;

__global__ void add_one() {
    together += 1;
}

int main() {
    together = 5;
    add_one<<<1, 1>>>();
    EXPECT(cudaGetLastError() == cudaErrorNotSupported);
    GOOD(cudaDeviceSynchronize());
    EXPECT(together == 5);
    return 0;
}
