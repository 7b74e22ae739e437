// A program for CUDA that checks every result: the tests run it on a GPU elsewhere, unmodified. Each word of the command line is one
// part of it; the exit status is 0 when all results are right.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "gpu_check.h"

__constant__ float factor = 2.0f;
__device__ int counter = 5;

__global__ void scale_add(float * to, const float * from, int count, float addend) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        to[at] = from[at] * factor + addend;
    }
}

__global__ void add_one(int * numbers, int count) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        numbers[at] += 1;
    }
}

__global__ void count_up() {
    atomicAdd(&counter, 1);
}

__global__ void sum_blocks(const int * numbers, int * sums, int count) {
    extern __shared__ int part[];
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = at < count ? numbers[at] : 0;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            part[threadIdx.x] += part[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = part[0];
    }
}

struct mixed {
    char letter;
    double number;
    short small[3];
};

__global__ void take_mixed(mixed value, long long * to, char letter) {
    to[0] = (long long) value.number;
    to[1] = value.letter;
    to[2] = value.small[2];
    to[3] = letter;
}

__global__ void write_nowhere(int * place) {
    *place = 1;
}

__global__ void say(int number) {
    printf("thread %d says %d\n", (int) threadIdx.x, number);
}

__global__ void say_letter(char letter) {
    printf("a letter of zero: [%c]\n", letter);
}

static void basic() {
    const int count = 100003;
    std::vector<float> from(count), to(count);
    for (int at = 0; at < count; at++) {
        from[at] = (float) at;
    }
    float *a, *b;
    GOOD(cudaMalloc(&a, count * sizeof(float)));
    GOOD(cudaMalloc(&b, count * sizeof(float)));
    GOOD(cudaMemcpy(a, from.data(), count * sizeof(float), cudaMemcpyHostToDevice));
    scale_add<<<(count + 255) / 256, 256>>>(b, a, count, 0.5f);
    GOOD(cudaGetLastError());
    GOOD(cudaMemcpy(to.data(), b, count * sizeof(float), cudaMemcpyDeviceToHost));
    for (int at = 0; at < count; at++) {
        EXPECT(to[at] == from[at] * 2.0f + 0.5f);
    }
    long long *four, seen[4];
    GOOD(cudaMalloc(&four, sizeof(seen)));
    take_mixed<<<1, 1>>>(mixed{ 'x', 1234.0, { 1, 2, -3 } }, four, 'y');
    GOOD(cudaMemcpy(seen, four, sizeof(seen), cudaMemcpyDeviceToHost));
    EXPECT(seen[0] == 1234 && seen[1] == 'x' && seen[2] == -3 && seen[3] == 'y');
    std::vector<int> numbers(1000, 3);
    int *c, *sums;
    GOOD(cudaMalloc(&c, numbers.size() * sizeof(int)));
    GOOD(cudaMalloc(&sums, 8 * sizeof(int)));
    GOOD(cudaMemcpy(c, numbers.data(), numbers.size() * sizeof(int), cudaMemcpyHostToDevice));
    sum_blocks<<<8, 128, 128 * sizeof(int)>>>(c, sums, (int) numbers.size());
    int results[8], total = 0;
    GOOD(cudaMemcpy(results, sums, sizeof(results), cudaMemcpyDeviceToHost));
    for (int result : results) {
        total += result;
    }
    EXPECT(total == 3000);
    for (void * memory : { (void *) a, (void *) b, (void *) four, (void *) c, (void *) sums }) {
        GOOD(cudaFree(memory));
    }
}

static void streams() {
    const int count = 1 << 16, rounds = 20;
    std::vector<int> numbers(count, 0), seen(count);
    cudaStream_t first, second;
    cudaEvent_t done, start, end;
    GOOD(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    GOOD(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    GOOD(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    GOOD(cudaEventCreate(&start));
    GOOD(cudaEventCreate(&end));
    int *memory, *pinned;
    GOOD(cudaMalloc(&memory, count * sizeof(int)));
    GOOD(cudaMallocHost(&pinned, count * sizeof(int)));
    GOOD(cudaMemcpyAsync(memory, numbers.data(), count * sizeof(int), cudaMemcpyHostToDevice, first));
    // The source may change at once.
    numbers.assign(count, 77);
    GOOD(cudaEventRecord(start, first));
    for (int round = 0; round < rounds; round++) {
        cudaStream_t one = round % 2 ? second : first, other = round % 2 ? first : second;
        add_one<<<count / 256, 256, 0, one>>>(memory, count);
        GOOD(cudaEventRecord(done, one));
        GOOD(cudaStreamWaitEvent(other, done, 0));
    }
    GOOD(cudaEventRecord(end, first));
    GOOD(cudaMemcpyAsync(pinned, memory, count * sizeof(int), cudaMemcpyDeviceToHost, first));
    GOOD(cudaStreamSynchronize(first));
    for (int at = 0; at < count; at++) {
        EXPECT(pinned[at] == rounds);
    }
    float milliseconds = -1;
    GOOD(cudaEventSynchronize(end));
    GOOD(cudaEventQuery(end));
    GOOD(cudaEventElapsedTime(&milliseconds, start, end));
    EXPECT(milliseconds >= 0 && milliseconds < 600000);
    while (cudaStreamQuery(second) == cudaErrorNotReady) {
        usleep(100);
    }
    (void) cudaGetLastError();
    // A copy in one stream, waited for by the host, comes before a kernel in another one.
    cudaStream_t third;
    GOOD(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking));
    for (int round = 0; round < 50; round++) {
        numbers.assign(count, round);
        GOOD(cudaMemcpyAsync(memory, numbers.data(), count * sizeof(int), cudaMemcpyHostToDevice, cudaStreamPerThread));
        GOOD(cudaStreamSynchronize(cudaStreamPerThread));
        add_one<<<count / 256, 256, 0, third>>>(memory, count);
        GOOD(cudaMemcpyAsync(seen.data(), memory, count * sizeof(int), cudaMemcpyDeviceToHost, third));
        GOOD(cudaStreamSynchronize(third));
        check_numbers(seen, round + 1);
    }
    for (cudaStream_t stream : { first, second, third }) {
        GOOD(cudaStreamDestroy(stream));
    }
    GOOD(cudaEventDestroy(done));
    GOOD(cudaFreeHost(pinned));
    GOOD(cudaFree(memory));
}

static cudaGraph_t capture(cudaStream_t stream, int * memory, int count, int kernels) {
    cudaGraph_t graph;
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int kernel = 0; kernel < kernels; kernel++) {
        add_one<<<(count + 255) / 256, 256, 0, stream>>>(memory, count);
    }
    GOOD(cudaStreamEndCapture(stream, &graph));
    return graph;
}

static void graphs() {
    const int count = 1000;
    int *memory, *other;
    cudaStream_t stream;
    cudaGraphExec_t exec;
    std::vector<int> seen(count);
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaMalloc(&memory, count * sizeof(int)));
    GOOD(cudaMalloc(&other, count * sizeof(int)));
    GOOD(cudaMemset(memory, 0, count * sizeof(int)));
    GOOD(cudaMemset(other, 0, count * sizeof(int)));
    cudaGraph_t graph = capture(stream, memory, count, 10);
    size_t nodes = 0;
    GOOD(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT(nodes == 10);
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaGraphLaunch(exec, stream));
    // The same shape on other memory, then another shape: the instance follows.
    cudaGraph_t second = capture(stream, other, count, 10);
    cudaGraphExecUpdateResultInfo info;
    GOOD(cudaGraphExecUpdate(exec, second, &info));
    EXPECT(info.result == cudaGraphExecUpdateSuccess);
    GOOD(cudaGraphLaunch(exec, stream));
    cudaGraph_t third = capture(stream, other, count, 3);
    GOOD(cudaGraphExecUpdate(exec, third, &info));
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaMemcpyAsync(seen.data(), memory, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
    check_numbers(seen, 20);
    GOOD(cudaMemcpyAsync(seen.data(), other, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
    check_numbers(seen, 13);
    for (cudaGraph_t one : { graph, second, third }) {
        GOOD(cudaGraphDestroy(one));
    }
    GOOD(cudaGraphExecDestroy(exec));
    // A capture over two streams, joined by events.
    cudaStream_t branch;
    cudaEvent_t fork, join;
    GOOD(cudaStreamCreate(&branch));
    GOOD(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    GOOD(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaEventRecord(fork, stream));
    GOOD(cudaStreamWaitEvent(branch, fork, 0));
    add_one<<<4, 256, 0, stream>>>(memory, count);
    add_one<<<4, 256, 0, branch>>>(other, count);
    GOOD(cudaEventRecord(join, branch));
    GOOD(cudaStreamWaitEvent(stream, join, 0));
    cudaStreamCaptureStatus status;
    GOOD(cudaStreamIsCapturing(branch, &status));
    EXPECT(status == cudaStreamCaptureStatusActive);
    GOOD(cudaStreamEndCapture(stream, &graph));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaStreamSynchronize(stream));
    GOOD(cudaMemcpy(seen.data(), other, count * sizeof(int), cudaMemcpyDeviceToHost));
    check_numbers(seen, 14);
    // What no capture can hold ends it.
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    REFUSED(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    REFUSED(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    GOOD(cudaFree(memory));
    GOOD(cudaFree(other));
}

static void symbols() {
    float new_factor = 10.0f, *memory, seen[4], from[4] = { 1, 2, 3, 4 };
    int number = 0;
    GOOD(cudaMemcpyFromSymbol(&number, counter, sizeof(number)));
    EXPECT(number == 5);
    count_up<<<3, 7>>>();
    GOOD(cudaMemcpyFromSymbol(&number, counter, sizeof(number)));
    EXPECT(number == 26);
    GOOD(cudaMemcpyToSymbol(factor, &new_factor, sizeof(new_factor)));
    GOOD(cudaMalloc(&memory, sizeof(from)));
    GOOD(cudaMemcpy(memory, from, sizeof(from), cudaMemcpyHostToDevice));
    scale_add<<<1, 4>>>(memory, memory, 4, 0);
    GOOD(cudaMemcpy(seen, memory, sizeof(seen), cudaMemcpyDeviceToHost));
    EXPECT(seen[0] == 10 && seen[3] == 40);
    void * address = nullptr;
    size_t bytes = 0;
    GOOD(cudaGetSymbolAddress(&address, counter));
    GOOD(cudaGetSymbolSize(&bytes, counter));
    EXPECT(address != nullptr && bytes == 4);
    REFUSED(cudaMemcpyToSymbol(factor, &new_factor, 8), cudaErrorInvalidValue);
    GOOD(cudaFree(memory));
}

static void rows() {
    const size_t width = 100, height = 37;
    std::vector<unsigned char> from(width * height), seen(width * height, 0);
    for (size_t at = 0; at < from.size(); at++) {
        from[at] = (unsigned char) (at * 7);
    }
    unsigned char *memory, *other;
    size_t pitch = 0;
    GOOD(cudaMallocPitch(&memory, &pitch, width, height));
    EXPECT(pitch >= width);
    GOOD(cudaMalloc(&other, 256 * height));
    GOOD(cudaMemcpy2D(memory, pitch, from.data(), width, width, height, cudaMemcpyHostToDevice));
    GOOD(cudaMemcpy2DAsync(other, 256, memory, pitch, width, height, cudaMemcpyDeviceToDevice, 0));
    GOOD(cudaMemset2D(other, 256, 9, 10, 2));
    GOOD(cudaMemcpy2D(seen.data(), width, other, 256, width, height, cudaMemcpyDeviceToHost));
    for (size_t at = 0; at < from.size(); at++) {
        EXPECT(seen[at] == (at % width < 10 && at / width < 2 ? 9 : from[at]));
    }
    REFUSED(cudaMemcpy2D(memory, 50, from.data(), width, width, height, cudaMemcpyHostToDevice), cudaErrorInvalidPitchValue);
    GOOD(cudaFree(memory));
    GOOD(cudaFree(other));
}

static void memory() {
    size_t free = 0, total = 0, less = 0;
    GOOD(cudaMemGetInfo(&free, &total));
    EXPECT(free > 0 && free <= total);
    void * big = nullptr;
    REFUSED(cudaMalloc(&big, (size_t) 1 << 46), cudaErrorMemoryAllocation);
    GOOD(cudaMalloc(&big, 64 << 20));
    GOOD(cudaMemGetInfo(&less, &total));
    EXPECT(less <= free - (64 << 20));
    GOOD(cudaMemset(big, 1, 64 << 20));
    REFUSED(cudaMemset(big, 1, (64 << 20) + 1), cudaErrorInvalidValue);
    char byte = 0;
    REFUSED(cudaMemcpy(&byte, (char *) big + (64 << 20), 1, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    GOOD(cudaMemcpy(&byte, (char *) big + (64 << 20) - 1, 1, cudaMemcpyDeviceToHost));
    EXPECT(byte == 1);
    cudaPointerAttributes attributes;
    GOOD(cudaPointerGetAttributes(&attributes, (char *) big + 5));
    EXPECT(attributes.type == cudaMemoryTypeDevice && attributes.device == 0);
    GOOD(cudaPointerGetAttributes(&attributes, &byte));
    EXPECT(attributes.type == cudaMemoryTypeUnregistered);
    GOOD(cudaFree(big));
    REFUSED(cudaFree(big), cudaErrorInvalidValue);
    GOOD(cudaFree(nullptr));
    REFUSED(cudaMemset(big, 1, 1), cudaErrorInvalidValue);
    REFUSED(cudaMallocManaged(&big, 4096), cudaErrorNotSupported);
    std::vector<void *> pieces;
    for (int round = 0; round < 2000; round++) {
        void * piece = nullptr;
        GOOD(cudaMalloc(&piece, 1 + round * 37 % 5000));
        pieces.push_back(piece);
        if (round % 3 == 0) {
            GOOD(cudaFree(pieces[pieces.size() / 2]));
            pieces.erase(pieces.begin() + pieces.size() / 2);
        }
    }
    for (void * piece : pieces) {
        GOOD(cudaFree(piece));
    }
    size_t after = 0;
    GOOD(cudaMemGetInfo(&after, &total));
    EXPECT(after + (32 << 20) >= free);
}

static void errors() {
    int * memory;
    GOOD(cudaMalloc(&memory, 4096));
    add_one<<<1, 2048>>>(memory, 1);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    add_one<<<0, 1>>>(memory, 1);
    EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
    REFUSED(cudaStreamSynchronize((cudaStream_t) 0x1234), cudaErrorInvalidResourceHandle);
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaStreamDestroy(stream));
    REFUSED(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
    REFUSED(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
    REFUSED(cudaSetDevice(99), cudaErrorInvalidDevice);
    REFUSED(cudaSetDevice(-1), cudaErrorInvalidDevice);
    REFUSED(cudaMemcpy(memory, nullptr, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    REFUSED(cudaLaunchKernel((const void *) 0x10, dim3(1), dim3(1), nullptr, 0, nullptr), cudaErrorInvalidDeviceFunction);
    EXPECT(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    EXPECT(cudaPeekAtLastError() == cudaSuccess);
    cudaFuncAttributes attributes;
    GOOD(cudaFuncGetAttributes(&attributes, (const void *) sum_blocks));
    EXPECT(attributes.maxThreadsPerBlock > 0);
    int groups = 0;
    GOOD(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&groups, sum_blocks, 128, 512));
    EXPECT(groups > 0);
    cudaDeviceProp properties;
    GOOD(cudaGetDeviceProperties(&properties, 0));
    EXPECT(properties.warpSize == 32 && properties.multiProcessorCount > 0 && properties.managedMemory == 0);
    int warp = 0;
    GOOD(cudaDeviceGetAttribute(&warp, cudaDevAttrWarpSize, 0));
    EXPECT(warp == 32);
}

// What a kernel prints is on standard output when the host has waited.
static void print() {
    printf("before\n");
    say<<<1, 2>>>(7);
    say_letter<<<1, 1>>>(0);
    GOOD(cudaDeviceSynchronize());
}

// A kernel that writes where nothing is: the error comes at the next point where the host waits, and stays.
static void fault() {
    write_nowhere<<<1, 1>>>((int *) 0x10);
    const cudaError_t code = cudaDeviceSynchronize();
    EXPECT(code == cudaErrorIllegalAddress);
    EXPECT(cudaGetLastError() == cudaErrorIllegalAddress);
    void * memory;
    EXPECT(cudaMalloc(&memory, 16) == cudaErrorIllegalAddress);
}

static void * one_thread(void * number) {
    const int count = 4096, mine = (int) (long) number;
    std::vector<int> numbers(count), seen(count);
    int * memory;
    cudaStream_t stream;
    GOOD(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    GOOD(cudaMalloc(&memory, count * sizeof(int)));
    for (int round = 0; round < 30; round++) {
        numbers.assign(count, mine * 1000 + round);
        GOOD(cudaMemcpyAsync(memory, numbers.data(), count * sizeof(int), cudaMemcpyHostToDevice, stream));
        add_one<<<count / 256, 256, 0, stream>>>(memory, count);
        GOOD(cudaMemcpyAsync(seen.data(), memory, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
        GOOD(cudaStreamSynchronize(stream));
        check_numbers(seen, mine * 1000 + round + 1);
    }
    GOOD(cudaFree(memory));
    GOOD(cudaStreamDestroy(stream));
    return nullptr;
}

static void threads() {
    pthread_t all[6];
    for (long number = 0; number < 6; number++) {
        pthread_create(&all[number], nullptr, one_thread, (void *) number);
    }
    for (pthread_t thread : all) {
        pthread_join(thread, nullptr);
    }
}

// Copies for ever, and says when the first one is done: for tests that end the node or this program meanwhile. Exits with 7 once calls fail.
static void forever() {
    const size_t bytes = 1 << 20;
    std::vector<char> numbers(bytes, 1);
    char * memory;
    GOOD(cudaMalloc(&memory, bytes));
    for (long round = 0;; round++) {
        cudaError_t code = cudaMemcpy(memory, numbers.data(), bytes, cudaMemcpyHostToDevice);
        if (code == cudaSuccess) {
            code = cudaMemcpy(numbers.data(), memory, bytes, cudaMemcpyDeviceToHost);
        }
        if (code != cudaSuccess) {
            printf("%s\n", cudaGetErrorName(code));
            exit(7);
        }
        if (round == 0) {
            printf("going\n");
            fflush(stdout);
        }
    }
}

int main(int count, char ** words) {
    const part parts[] = {
        { "basic", basic }, { "streams", streams }, { "graphs", graphs }, { "symbols", symbols },
        { "rows", rows }, { "memory", memory }, { "errors", errors }, { "threads", threads },
        { "print", print }, { "forever", forever }, { "fault", fault },
    };
    return run_parts(parts, count, words);
}
