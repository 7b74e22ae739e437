// A program for CUDA that checks two devices: memory, kernels, copies between them, streams and events of both, and a thread on each. Each word
// of the command line is one part.
#include <thread>

#include "gpu_check.h"

__device__ int counter = 5;

__global__ void add(int * to, const int * from, int count, int addend) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        to[at] = from[at] + addend;
    }
}

__global__ void count_up(int by) {
    atomicAdd(&counter, by);
}

static const int COUNT = 50000;
static const size_t BYTES = COUNT * sizeof(int);

static int * filled(int device, int value) {
    int * memory;
    std::vector<int> numbers(COUNT, value);
    GOOD(cudaSetDevice(device));
    GOOD(cudaMalloc(&memory, BYTES));
    GOOD(cudaMemcpy(memory, numbers.data(), BYTES, cudaMemcpyHostToDevice));
    return memory;
}

static void check(const int * memory, int right) {
    std::vector<int> numbers(COUNT);
    GOOD(cudaMemcpy(numbers.data(), memory, BYTES, cudaMemcpyDeviceToHost));
    check_numbers(numbers, right);
}

static void own() {
    int count = 0, device = -1;
    GOOD(cudaGetDeviceCount(&count));
    EXPECT(count == 2);
    cudaDeviceProp properties[2];
    for (int number = 0; number < 2; number++) {
        GOOD(cudaGetDeviceProperties(&properties[number], number));
        GOOD(cudaSetDevice(number));
        GOOD(cudaGetDevice(&device));
        EXPECT(device == number);
    }
    EXPECT(properties[0].pciDeviceID != properties[1].pciDeviceID);
    REFUSED(cudaSetDevice(2), cudaErrorInvalidDevice);
    int *first = filled(0, 1), *second = filled(1, 2);
    cudaPointerAttributes attributes;
    GOOD(cudaPointerGetAttributes(&attributes, second));
    EXPECT(attributes.device == 1 && attributes.type == cudaMemoryTypeDevice);
    GOOD(cudaPointerGetAttributes(&attributes, first + 7));
    EXPECT(attributes.device == 0);
    // Memory of one device does not count as the other's.
    size_t free = 0, less = 0, total = 0;
    void * big = nullptr;
    GOOD(cudaSetDevice(0));
    GOOD(cudaMemGetInfo(&free, &total));
    GOOD(cudaSetDevice(1));
    GOOD(cudaMalloc(&big, 64 << 20));
    GOOD(cudaSetDevice(0));
    GOOD(cudaMemGetInfo(&less, &total));
    EXPECT(less == free);
    GOOD(cudaFree(big));
    // Each has its own variables and runs its own kernels.
    for (int number = 0; number < 2; number++) {
        GOOD(cudaSetDevice(number));
        count_up<<<1, 10>>>(number + 1);
        GOOD(cudaGetLastError());
    }
    for (int number = 0; number < 2; number++) {
        int value = 0;
        GOOD(cudaSetDevice(number));
        GOOD(cudaMemcpyFromSymbol(&value, counter, sizeof(value)));
        EXPECT(value == 5 + 10 * (number + 1));
    }
    GOOD(cudaSetDevice(0));
    GOOD(cudaFree(first));
    GOOD(cudaFree(second));
}

static void peers() {
    int can = 0;
    GOOD(cudaDeviceCanAccessPeer(&can, 0, 1));
    EXPECT(can == 1);
    GOOD(cudaDeviceCanAccessPeer(&can, 1, 1));
    EXPECT(can == 0);
    int *first = filled(0, 10), *second = filled(1, 20);
    GOOD(cudaMemcpyPeer(second, 1, first, 0, BYTES));
    check(second, 10);
    GOOD(cudaSetDevice(0));
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    add<<<(COUNT + 255) / 256, 256, 0, stream>>>(first, first, COUNT, 1);
    GOOD(cudaMemcpyPeerAsync(second, 1, first, 0, BYTES, stream));
    GOOD(cudaStreamSynchronize(stream));
    check(second, 11);
    // A copy by addresses alone, in a stream of the other device.
    cudaStream_t other;
    GOOD(cudaSetDevice(1));
    GOOD(cudaStreamCreate(&other));
    add<<<(COUNT + 255) / 256, 256, 0, other>>>(second, second, COUNT, 5);
    GOOD(cudaMemcpyAsync(first, second, BYTES, cudaMemcpyDeviceToDevice, other));
    GOOD(cudaStreamSynchronize(other));
    check(first, 16);
    // A copy between devices is behind the work of both.
    add<<<(COUNT + 255) / 256, 256, 0, other>>>(second, second, COUNT, 7);
    GOOD(cudaSetDevice(0));
    GOOD(cudaMemcpyPeer(first, 0, second, 1, BYTES));
    check(first, 23);
    // Kernels reach the other's memory where that is allowed.
    REFUSED(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
    GOOD(cudaDeviceEnablePeerAccess(1, 0));
    REFUSED(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    REFUSED(cudaDeviceEnablePeerAccess(0, 0), cudaErrorInvalidDevice);
    add<<<(COUNT + 255) / 256, 256>>>(first, second, COUNT, 100);
    check(first, 123);
    GOOD(cudaDeviceDisablePeerAccess(1));
    // What is of another device is refused where CUDA refuses it.
    add<<<1, 1, 0, other>>>(first, first, 1, 1);
    EXPECT(cudaGetLastError() == cudaErrorInvalidResourceHandle);
    cudaEvent_t event;
    GOOD(cudaEventCreate(&event));
    REFUSED(cudaEventRecord(event, other), cudaErrorInvalidResourceHandle);
    GOOD(cudaEventDestroy(event));
    GOOD(cudaStreamDestroy(stream));
    GOOD(cudaStreamDestroy(other));
    GOOD(cudaFree(first));
    GOOD(cudaFree(second));
}

static void events() {
    int *first = filled(0, 0), *second = filled(1, 0);
    cudaStream_t streams[2];
    cudaEvent_t done[2];
    for (int number = 0; number < 2; number++) {
        GOOD(cudaSetDevice(number));
        GOOD(cudaStreamCreateWithFlags(&streams[number], cudaStreamNonBlocking));
        GOOD(cudaEventCreateWithFlags(&done[number], cudaEventDisableTiming));
    }
    // The numbers go to and fro, one more each time.
    for (int round = 0; round < 30; round++) {
        GOOD(cudaSetDevice(0));
        add<<<(COUNT + 255) / 256, 256, 0, streams[0]>>>(first, first, COUNT, 1);
        GOOD(cudaMemcpyPeerAsync(second, 1, first, 0, BYTES, streams[0]));
        GOOD(cudaEventRecord(done[0], streams[0]));
        GOOD(cudaSetDevice(1));
        GOOD(cudaStreamWaitEvent(streams[1], done[0], 0));
        add<<<(COUNT + 255) / 256, 256, 0, streams[1]>>>(second, second, COUNT, 1);
        GOOD(cudaMemcpyPeerAsync(first, 0, second, 1, BYTES, streams[1]));
        GOOD(cudaEventRecord(done[1], streams[1]));
        GOOD(cudaStreamWaitEvent(streams[0], done[1], 0));
    }
    GOOD(cudaEventSynchronize(done[1]));
    check(first, 60);
    check(second, 60);
    GOOD(cudaFree(first));
    GOOD(cudaFree(second));
}

static void one_device(int device) {
    GOOD(cudaSetDevice(device));
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    int * memory = filled(device, device);
    for (int round = 0; round < 40; round++) {
        add<<<(COUNT + 255) / 256, 256, 0, stream>>>(memory, memory, COUNT, device + 1);
        int current = -1;
        GOOD(cudaGetDevice(&current));
        EXPECT(current == device);
        if (round % 8 == 0) {
            GOOD(cudaStreamSynchronize(stream));
            check(memory, device + (device + 1) * (round + 1));
        }
    }
    GOOD(cudaDeviceSynchronize());
    check(memory, device + (device + 1) * 40);
    GOOD(cudaFree(memory));
    GOOD(cudaStreamDestroy(stream));
}

static void threads() {
    std::thread first(one_device, 0), second(one_device, 1);
    first.join();
    second.join();
}

// Memory that is freed and given again while work of the other device is still under way that used it.
static void frees() {
    const size_t large = 4 << 20;
    GOOD(cudaSetDevice(1));
    int * second;
    GOOD(cudaMalloc(&second, large));
    cudaStream_t stream;
    GOOD(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t bytes : { large, (size_t) 4096 }) {
        for (int round = 0; round < 20; round++) {
            GOOD(cudaSetDevice(0));
            char * first;
            GOOD(cudaMalloc(&first, bytes));
            GOOD(cudaMemset(first, round, bytes));
            GOOD(cudaDeviceSynchronize());
            GOOD(cudaSetDevice(1));
            GOOD(cudaMemcpyAsync(second, first, bytes, cudaMemcpyDeviceToDevice, stream));
            GOOD(cudaFree(first));
            GOOD(cudaSetDevice(0));
            char * next;
            GOOD(cudaMalloc(&next, bytes));
            GOOD(cudaMemset(next, 99, bytes));
            GOOD(cudaSetDevice(1));
            std::vector<char> seen(bytes);
            GOOD(cudaMemcpyAsync(seen.data(), second, bytes, cudaMemcpyDeviceToHost, stream));
            GOOD(cudaStreamSynchronize(stream));
            for (char byte : seen) {
                EXPECT(byte == round);
            }
            GOOD(cudaFree(next));
        }
    }
    GOOD(cudaFree(second));
}

int main(int count, char ** words) {
    const part parts[] = {
        { "own", own }, { "peers", peers }, { "events", events }, { "threads", threads }, { "frees", frees },
    };
    return run_parts(parts, count, words);
}
