// What a program may get wrong, and where CUDA tells it: by the call itself, so that the program can look at it and take another way.
// The next wait then knows nothing of it.
#include <unistd.h>

#include "gpu_check.h"

__global__ void add_one(int * numbers) {
    numbers[threadIdx.x] += 1;
}

__global__ void __launch_bounds__(64) add_few(int * numbers) {
    numbers[threadIdx.x] += 1;
}

__global__ void through_shared(int * numbers) {
    extern __shared__ int part[];
    part[threadIdx.x] = numbers[threadIdx.x];
    __syncthreads();
    numbers[threadIdx.x] = part[threadIdx.x] + 1;
}

__global__ void __cluster_dims__(2, 1, 1) add_in_pairs(int * numbers) {
    if (blockIdx.x == 1) {
        numbers[threadIdx.x] += 1;
    }
}

// Which block of its cluster each block is.
__global__ void tell_rank(int * numbers) {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    numbers[blockIdx.x] = rank + 7;
}

const int THREADS = 32;

static int * numbers_of_zero() {
    int * numbers;
    GOOD(cudaMalloc(&numbers, THREADS * sizeof(int)));
    GOOD(cudaMemset(numbers, 0, THREADS * sizeof(int)));
    return numbers;
}

static void expect_numbers(const int * numbers, int right) {
    std::vector<int> seen(THREADS);
    GOOD(cudaMemcpy(seen.data(), numbers, THREADS * sizeof(int), cudaMemcpyDeviceToHost));
    check_numbers(seen, right);
}

// A launch was refused: the call says so, once, and nothing else does.
#define REFUSED_LAUNCH(launch, error)              \
    do {                                           \
        launch;                                    \
        EXPECT(cudaGetLastError() == (error));     \
        GOOD(cudaDeviceSynchronize());             \
        EXPECT(cudaGetLastError() == cudaSuccess); \
    } while (0)

static void launches() {
    int * numbers = numbers_of_zero();
    const int ordinary = 48 << 10, more = 100 << 10;
    REFUSED_LAUNCH((through_shared<<<1, THREADS, ordinary + 4>>>(numbers)), cudaErrorInvalidValue);
    through_shared<<<1, THREADS, ordinary>>>(numbers);
    GOOD(cudaGetLastError());
    const cudaFuncAttribute shared = cudaFuncAttributeMaxDynamicSharedMemorySize;
    REFUSED(cudaFuncSetAttribute(through_shared, shared, 1 << 20), cudaErrorInvalidValue);
    REFUSED(cudaFuncSetAttribute(through_shared, shared, -1), cudaErrorInvalidValue);
    REFUSED(cudaFuncSetAttribute(through_shared, (cudaFuncAttribute) 77, 1), cudaErrorInvalidValue);
    GOOD(cudaFuncSetAttribute(through_shared, shared, more));
    through_shared<<<1, THREADS, more>>>(numbers);
    GOOD(cudaGetLastError());
    REFUSED_LAUNCH((through_shared<<<1, THREADS, more + 4>>>(numbers)), cudaErrorInvalidValue);
    REFUSED_LAUNCH((add_few<<<1, 128>>>(numbers)), cudaErrorInvalidValue);
    REFUSED_LAUNCH((add_in_pairs<<<3, THREADS>>>(numbers)), cudaErrorInvalidConfiguration);
    add_in_pairs<<<2, THREADS>>>(numbers);
    GOOD(cudaGetLastError());
    int groups = 0, multiprocessors = 0;
    GOOD(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&groups, add_one, THREADS, 0));
    GOOD(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    void * each[] = { &numbers };
    const dim3 all(groups * multiprocessors + 1);
    REFUSED_LAUNCH((void) cudaLaunchCooperativeKernel((const void *) add_one, all, dim3(THREADS), each, 0, nullptr),
        cudaErrorCooperativeLaunchTooLarge);
    GOOD(cudaLaunchCooperativeKernel((const void *) add_one, dim3(1), dim3(THREADS), each, 0, nullptr));
    expect_numbers(numbers, 4);
}

static void until_done(cudaStream_t stream) {
    cudaError_t code = cudaErrorNotReady;
    for (int tries = 0; tries < 20000 && code == cudaErrorNotReady; tries++) {
        code = cudaStreamQuery(stream);
        usleep(500);
    }
    EXPECT(code == cudaSuccess);
    cudaGetLastError();
}

// Each of several streams is seen to be done, in whatever order they are asked.
static void queries() {
    int * numbers = numbers_of_zero();
    cudaStream_t streams[3];
    for (auto & stream : streams) {
        GOOD(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    for (auto stream : streams) {
        add_one<<<1, THREADS, 0, stream>>>(numbers);
        GOOD(cudaStreamSynchronize(stream));
        add_one<<<1, THREADS, 0, stream>>>(numbers);
    }
    for (int at = 2; at >= 0; at--) {
        until_done(streams[at]);
    }
    add_one<<<1, THREADS, 0, streams[0]>>>(numbers);
    until_done(nullptr);
    until_done(streams[0]);
}

// A capture whose streams do not come together again is none.
static void captures() {
    int * numbers = numbers_of_zero();
    cudaStream_t origin, other;
    cudaEvent_t fork, join;
    GOOD(cudaStreamCreate(&origin));
    GOOD(cudaStreamCreate(&other));
    GOOD(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    GOOD(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    for (int is_joined = 0; is_joined < 2; is_joined++) {
        cudaGraph_t graph = nullptr;
        GOOD(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal));
        add_one<<<1, THREADS, 0, origin>>>(numbers);
        GOOD(cudaEventRecord(fork, origin));
        GOOD(cudaStreamWaitEvent(other, fork, 0));
        add_one<<<1, THREADS, 0, other>>>(numbers);
        if (!is_joined) {
            REFUSED(cudaStreamEndCapture(origin, &graph), cudaErrorStreamCaptureUnjoined);
            EXPECT(graph == nullptr);
            GOOD(cudaStreamSynchronize(other));
            continue;
        }
        GOOD(cudaEventRecord(join, other));
        GOOD(cudaStreamWaitEvent(origin, join, 0));
        GOOD(cudaStreamEndCapture(origin, &graph));
        cudaGraphExec_t instance;
        GOOD(cudaGraphInstantiate(&instance, graph, 0));
        GOOD(cudaGraphLaunch(instance, origin));
        GOOD(cudaStreamSynchronize(origin));
    }
    expect_numbers(numbers, 2);
    // Memory of the host that nothing uses goes while something is captured, and the capture goes on.
    cudaGraph_t graph;
    void * here;
    GOOD(cudaMallocHost(&here, 4096));
    GOOD(cudaStreamBeginCapture(origin, cudaStreamCaptureModeRelaxed));
    GOOD(cudaFreeHost(here));
    GOOD(cudaStreamEndCapture(origin, &graph));
    GOOD(cudaStreamBeginCapture(origin, cudaStreamCaptureModeRelaxed));
    GOOD(cudaEventRecord(fork, origin));
    REFUSED(cudaEventQuery(fork), cudaErrorCapturedEvent);
    REFUSED(cudaStreamEndCapture(origin, &graph), cudaErrorStreamCaptureInvalidated);
    REFUSED(cudaEventSynchronize(fork), cudaErrorCapturedEvent);
    GOOD(cudaEventRecord(join, other));
    GOOD(cudaStreamBeginCapture(origin, cudaStreamCaptureModeRelaxed));
    REFUSED(cudaStreamWaitEvent(origin, join, 0), cudaErrorStreamCaptureIsolation);
    REFUSED(cudaStreamEndCapture(origin, &graph), cudaErrorStreamCaptureInvalidated);
}

// The device in software has clusters of one block. A kernel that would see that is not run in larger ones.
static void clusters() {
    int * numbers = numbers_of_zero();
    void * each[] = { &numbers };
    cudaLaunchAttribute cluster = { cudaLaunchAttributeClusterDimension };
    cluster.val.clusterDim.x = cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(THREADS);
    config.blockDim = dim3(1);
    config.attrs = &cluster;
    config.numAttrs = 1;
    GOOD(cudaLaunchKernelExC(&config, (const void *) tell_rank, each));
    GOOD(cudaDeviceSynchronize());
    expect_numbers(numbers, 7);
    cluster.val.clusterDim.x = 2;
    GOOD(cudaMemset(numbers, 0, THREADS * sizeof(int)));
    GOOD(cudaLaunchKernelExC(&config, (const void *) tell_rank, each));
    REFUSED(cudaDeviceSynchronize(), cudaErrorNotSupported);
    expect_numbers(numbers, 0);
}

static void settings() {
    int * numbers = numbers_of_zero();
    int here[THREADS] = { 0 };
    REFUSED(cudaMemcpy(numbers, here, sizeof here, (cudaMemcpyKind) 9), cudaErrorInvalidMemcpyDirection);
    REFUSED(cudaMemcpyAsync(numbers, here, sizeof here, (cudaMemcpyKind) -1, nullptr), cudaErrorInvalidMemcpyDirection);
    REFUSED(cudaMemcpyPeerAsync(numbers, 99, numbers + 1, 0, 4, nullptr), cudaErrorInvalidDevice);
    size_t bytes = 0;
    GOOD(cudaDeviceGetLimit(&bytes, cudaLimitStackSize));
    EXPECT(bytes >= 1024);
    GOOD(cudaDeviceSetLimit(cudaLimitStackSize, bytes));
    REFUSED(cudaDeviceSetLimit(cudaLimitStackSize, bytes << 10), cudaErrorUnsupportedLimit);
    REFUSED(cudaDeviceGetLimit(&bytes, (cudaLimit) 99), cudaErrorInvalidValue);
    cudaStream_t stream;
    int priority = 0, least = 0, greatest = 0;
    GOOD(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    GOOD(cudaStreamCreateWithPriority(&stream, cudaStreamDefault, greatest - 90));
    GOOD(cudaStreamGetPriority(stream, &priority));
    EXPECT(priority == greatest);
    GOOD(cudaStreamCreateWithPriority(&stream, cudaStreamDefault, least + 90));
    GOOD(cudaStreamGetPriority(stream, &priority));
    EXPECT(priority == least);
    EXPECT(strcmp(cudaGetErrorName(cudaErrorECCUncorrectable), "cudaErrorECCUncorrectable") == 0);
    cudaFunction_t function;
    GOOD(cudaGetFuncBySymbol(&function, (const void *) add_one));
    REFUSED(cudaGetFuncBySymbol(&function, (const void *) 0x10), cudaErrorInvalidDeviceFunction);
}

int main(int count, char ** words) {
    const part parts[] = {
        { "launches", launches }, { "queries", queries }, { "captures", captures }, { "settings", settings },
        { "clusters", clusters },
    };
    return run_parts(parts, count, words);
}
