// What a reset of a device leaves of what the program made there: nothing. Old names are errors, what is called next begins anew, and another device
// does not notice.
#include <thread>

#include "gpu_check.h"

__device__ int counter = 5;

__global__ void add(int * numbers, int addend) {
    numbers[threadIdx.x] += addend;
}

__global__ void count_up(int by) {
    counter += by;
}

static const int COUNT = 64;
static const size_t BYTES = COUNT * sizeof(int);

static int * numbers_of_zero() {
    int * numbers;
    GOOD(cudaMalloc(&numbers, BYTES));
    GOOD(cudaMemset(numbers, 0, BYTES));
    return numbers;
}

static void expect_numbers(const int * numbers, int right) {
    std::vector<int> seen(COUNT);
    GOOD(cudaMemcpy(seen.data(), numbers, BYTES, cudaMemcpyDeviceToHost));
    check_numbers(seen, right);
}

static size_t left() {
    size_t free = 0, total = 0;
    GOOD(cudaMemGetInfo(&free, &total));
    return free;
}

static void memory() {
    GOOD(cudaDeviceReset());
    const size_t before = left();
    int here[COUNT] = { 0 };
    int * small = numbers_of_zero();
    void *large, *pinned, *pooled;
    GOOD(cudaMalloc(&large, 100 << 20));
    GOOD(cudaMallocAsync(&pooled, 3 << 20, nullptr));
    GOOD(cudaMallocHost(&pinned, 4096));
    GOOD(cudaHostRegister(here, sizeof here, cudaHostRegisterDefault));
    EXPECT(left() <= before - (103 << 20));
    add<<<1, COUNT>>>(small, 1);
    GOOD(cudaMemcpyAsync(pinned, small, BYTES, cudaMemcpyDeviceToHost, nullptr));
    GOOD(cudaDeviceReset());
    EXPECT(left() == before);
    REFUSED(cudaMemcpy(here, small, BYTES, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    REFUSED(cudaMemset(large, 0, 8), cudaErrorInvalidValue);
    REFUSED(cudaFree(small), cudaErrorInvalidValue);
    REFUSED(cudaFree(large), cudaErrorInvalidValue);
    REFUSED(cudaFree(pooled), cudaErrorInvalidValue);
    REFUSED(cudaFreeHost(pinned), cudaErrorInvalidValue);
    REFUSED(cudaHostUnregister(here), cudaErrorHostMemoryNotRegistered);
    cudaPointerAttributes attributes;
    GOOD(cudaPointerGetAttributes(&attributes, large));
    EXPECT(attributes.type == cudaMemoryTypeUnregistered);
    // As often as one likes, and nothing adds up.
    for (int round = 0; round < 20; round++) {
        GOOD(cudaMalloc(&large, 300 << 20));
        add<<<1, COUNT>>>((int *) large, round);
        GOOD(cudaDeviceReset());
    }
    EXPECT(left() == before);
    small = numbers_of_zero();
    add<<<1, COUNT>>>(small, 4);
    expect_numbers(small, 4);
}

static void handles() {
    int * numbers = numbers_of_zero();
    cudaStream_t stream, captured;
    cudaEvent_t event;
    cudaGraph_t graph, other;
    cudaGraphExec_t instance;
    cudaGraphNode_t node;
    cudaMemPool_t pool;
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    GOOD(cudaMemPoolCreate(&pool, &properties));
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaStreamCreate(&captured));
    GOOD(cudaEventCreate(&event));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    add<<<1, COUNT, 0, stream>>>(numbers, 1);
    GOOD(cudaStreamEndCapture(stream, &graph));
    GOOD(cudaGraphInstantiate(&instance, graph, 0));
    GOOD(cudaGraphLaunch(instance, stream));
    GOOD(cudaEventRecord(event, stream));
    GOOD(cudaGraphCreate(&other, 0));
    GOOD(cudaGraphAddEmptyNode(&node, other, nullptr, 0));
    add<<<1, COUNT, 0, cudaStreamPerThread>>>(numbers, 1);
    // Something that is being captured goes as well.
    GOOD(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed));
    add<<<1, COUNT, 0, captured>>>(numbers, 1);
    GOOD(cudaDeviceReset());
    const cudaError_t gone = cudaErrorInvalidResourceHandle;
    REFUSED(cudaStreamSynchronize(stream), gone);
    REFUSED(cudaStreamEndCapture(captured, &graph), gone);
    REFUSED(cudaStreamDestroy(stream), gone);
    REFUSED(cudaEventQuery(event), gone);
    REFUSED(cudaEventRecord(event, nullptr), gone);
    REFUSED(cudaEventDestroy(event), gone);
    REFUSED(cudaGraphLaunch(instance, nullptr), gone);
    REFUSED(cudaGraphExecDestroy(instance), gone);
    REFUSED(cudaGraphDestroy(other), gone);
    REFUSED(cudaGraphDestroyNode(node), gone);
    REFUSED(cudaMallocFromPoolAsync((void **) &numbers, 512, pool, nullptr), cudaErrorInvalidValue);
    GOOD(cudaDeviceSynchronize());
    // New ones are new.
    cudaStream_t fresh;
    GOOD(cudaStreamCreate(&fresh));
    EXPECT(fresh != stream && fresh != captured);
    numbers = numbers_of_zero();
    GOOD(cudaStreamBeginCapture(fresh, cudaStreamCaptureModeRelaxed));
    add<<<1, COUNT, 0, fresh>>>(numbers, 7);
    GOOD(cudaStreamEndCapture(fresh, &graph));
    GOOD(cudaGraphInstantiate(&instance, graph, 0));
    GOOD(cudaGraphLaunch(instance, fresh));
    GOOD(cudaStreamSynchronize(fresh));
    add<<<1, COUNT, 0, cudaStreamPerThread>>>(numbers, 2);
    GOOD(cudaStreamSynchronize(cudaStreamPerThread));
    expect_numbers(numbers, 9);
}

static int counted() {
    int seen = -1;
    GOOD(cudaMemcpyFromSymbol(&seen, counter, sizeof seen));
    return seen;
}

// Variables have their first values again, wherever they lie by then.
static void code() {
    for (int round = 0; round < 3; round++) {
        void * place;
        GOOD(cudaGetSymbolAddress(&place, counter));
        count_up<<<1, 1>>>(10);
        EXPECT(counted() == 15);
        GOOD(cudaDeviceReset());
    }
    EXPECT(counted() == 5);
    cudaFuncAttributes attributes;
    GOOD(cudaFuncGetAttributes(&attributes, count_up));
    // A thread that launched it before, on a stream of its own.
    std::thread([] {
        count_up<<<1, 1, 0, cudaStreamPerThread>>>(1);
        GOOD(cudaStreamSynchronize(cudaStreamPerThread));
        GOOD(cudaDeviceReset());
        count_up<<<1, 1, 0, cudaStreamPerThread>>>(1);
        GOOD(cudaGetLastError());
        GOOD(cudaStreamSynchronize(cudaStreamPerThread));
    }).join();
    EXPECT(counted() == 6);
}

static void others() {
    GOOD(cudaSetDevice(1));
    int * numbers = numbers_of_zero();
    cudaStream_t stream;
    cudaEvent_t event;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaEventCreate(&event));
    count_up<<<1, 1, 0, stream>>>(3);
    GOOD(cudaDeviceEnablePeerAccess(0, 0));
    GOOD(cudaSetDevice(0));
    void * own;
    GOOD(cudaMalloc(&own, 1 << 20));
    GOOD(cudaDeviceEnablePeerAccess(1, 0));
    GOOD(cudaDeviceReset());
    REFUSED(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
    GOOD(cudaSetDevice(1));
    REFUSED(cudaDeviceDisablePeerAccess(0), cudaErrorPeerAccessNotEnabled);
    add<<<1, COUNT, 0, stream>>>(numbers, 2);
    GOOD(cudaEventRecord(event, stream));
    GOOD(cudaEventSynchronize(event));
    expect_numbers(numbers, 2);
    EXPECT(counted() == 8);
    REFUSED(cudaFree(own), cudaErrorInvalidValue);
    GOOD(cudaDeviceReset());
    EXPECT(counted() == 5);
    GOOD(cudaSetDevice(0));
}

int main(int count, char ** words) {
    const part parts[] = {
        { "memory", memory }, { "handles", handles }, { "code", code }, { "others", others },
    };
    return run_parts(parts, count, words);
}
