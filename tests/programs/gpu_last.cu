// Destructors that run last, when a thread has taken leave of all that libraries kept for it, and still call CUDA.
#include <thread>

#include "gpu_check.h"

__global__ void set(int * place, int value) {
    *place = value;
}

struct last {
    const char * name;
    int * place = nullptr;

    ~last() {
        if (!place) {
            return;
        }
        int seen = 0;
        set<<<1, 1>>>(place, 7);
        GOOD(cudaGetLastError());
        GOOD(cudaMemcpy(&seen, place, sizeof seen, cudaMemcpyDeviceToHost));
        set<<<1, 1, 0, cudaStreamPerThread>>>(place, 8);
        GOOD(cudaGetLastError());
        GOOD(cudaStreamSynchronize(cudaStreamPerThread));
        GOOD(cudaFree(place));
        printf("%s %d\n", name, seen);
        fflush(stdout);
    }
};

static last of_program { "program" };
thread_local last of_thread { "thread" };

static void allocate(last & one, bool uses) {
    GOOD(cudaMalloc(&one.place, sizeof(int)));
    if (uses) {
        set<<<1, 1>>>(one.place, 1);
        set<<<1, 1, 0, cudaStreamPerThread>>>(one.place, 2);
        GOOD(cudaDeviceSynchronize());
    }
}

int main() {
    allocate(of_program, true);
    std::thread([] { allocate(of_thread, true); }).join();
    std::thread([] { allocate(of_thread, false); }).join();
    allocate(of_thread, true);
    printf("main\n");
    fflush(stdout);
    return 0;
}
