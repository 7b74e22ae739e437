// What kernels of graphs are launched with besides their parameters, what graphs have of memory, and what can be asked of a kernel's parameters.
#include <dlfcn.h>

#include <cuda.h>

#include "gpu_check.h"

__global__ void add(int * numbers, int addend) {
    numbers[threadIdx.x] += addend;
}

struct pair {
    char letter;
    double number;
};

__global__ void mixed(char letter, long long number, pair both, short last) {}

static const int COUNT = 32;
static const size_t BYTES = COUNT * sizeof(int);

static cudaLaunchAttributeValue got(cudaGraphNode_t node, cudaLaunchAttributeID number) {
    cudaLaunchAttributeValue value;
    memset(&value, 0xee, sizeof value);
    GOOD(cudaGraphKernelNodeGetAttribute(node, number, &value));
    return value;
}

static cudaLaunchAttributeValue of_cluster(int groups) {
    cudaLaunchAttributeValue value = {};
    value.clusterDim.x = groups;
    value.clusterDim.y = value.clusterDim.z = 1;
    return value;
}

static void attributes() {
    const auto CLUSTER = cudaLaunchAttributeClusterDimension;
    const auto COOPERATIVE = cudaLaunchAttributeCooperative;
    const auto PRIORITY = cudaLaunchAttributePriority;
    int *numbers, one = 1;
    GOOD(cudaMalloc(&numbers, BYTES));
    GOOD(cudaMemset(numbers, 0, BYTES));
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    // Of a launch that was captured.
    cudaLaunchAttribute given = { CLUSTER };
    given.val = of_cluster(2);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(4);
    config.blockDim = dim3(COUNT);
    config.stream = stream;
    config.attrs = &given;
    config.numAttrs = 1;
    void * arguments[] = { &numbers, &one };
    cudaGraph_t graph;
    cudaGraphNode_t node, other, empty;
    size_t count = 1;
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaLaunchKernelExC(&config, (const void *) add, arguments));
    GOOD(cudaStreamEndCapture(stream, &graph));
    GOOD(cudaGraphGetNodes(graph, &node, &count));
    EXPECT(got(node, CLUSTER).clusterDim.x == 2 && got(node, CLUSTER).clusterDim.z == 1);
    EXPECT(got(node, COOPERATIVE).cooperative == 0 && got(node, PRIORITY).priority == 0);
    // Of one that is added, as it is set, and only as it can be.
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *) add;
    kernel.gridDim = dim3(6);
    kernel.blockDim = dim3(COUNT);
    kernel.kernelParams = arguments;
    GOOD(cudaGraphAddKernelNode(&other, graph, &node, 1, &kernel));
    EXPECT(got(other, CLUSTER).clusterDim.x == 0);
    auto value = of_cluster(4);
    REFUSED(cudaGraphKernelNodeSetAttribute(other, CLUSTER, &value), cudaErrorInvalidValue);
    EXPECT(got(other, CLUSTER).clusterDim.x == 0);
    value = of_cluster(3);
    GOOD(cudaGraphKernelNodeSetAttribute(other, CLUSTER, &value));
    value = {};
    value.cooperative = 1;
    GOOD(cudaGraphKernelNodeSetAttribute(other, COOPERATIVE, &value));
    value.priority = -2;
    GOOD(cudaGraphKernelNodeSetAttribute(other, PRIORITY, &value));
    EXPECT(got(other, CLUSTER).clusterDim.x == 3 && got(other, COOPERATIVE).cooperative == 1 && got(other, PRIORITY).priority == -2);
    value.cooperative = 0;
    GOOD(cudaGraphKernelNodeSetAttribute(other, COOPERATIVE, &value));
    EXPECT(got(other, CLUSTER).clusterDim.x == 3 && got(other, COOPERATIVE).cooperative == 0);
    // They stay with other parameters, and go over to another node as a whole.
    kernel.gridDim = dim3(3);
    GOOD(cudaGraphKernelNodeSetParams(other, &kernel));
    EXPECT(got(other, CLUSTER).clusterDim.x == 3 && got(other, PRIORITY).priority == -2);
    kernel.gridDim = dim3(4);
    REFUSED(cudaGraphKernelNodeSetParams(other, &kernel), cudaErrorInvalidValue);
    REFUSED(cudaGraphKernelNodeCopyAttributes(node, other), cudaErrorInvalidValue);
    GOOD(cudaGraphKernelNodeCopyAttributes(node, node));
    kernel.gridDim = dim3(6);
    GOOD(cudaGraphKernelNodeSetParams(other, &kernel));
    GOOD(cudaGraphKernelNodeCopyAttributes(other, node));
    EXPECT(got(other, CLUSTER).clusterDim.x == 2 && got(other, PRIORITY).priority == 0);
    cudaGraphExec_t exec;
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaStreamSynchronize(stream));
    // What is no kernel has none, and not all numbers are attributes.
    GOOD(cudaGraphAddEmptyNode(&empty, graph, nullptr, 0));
    REFUSED(cudaGraphKernelNodeGetAttribute(empty, PRIORITY, &value), cudaErrorInvalidValue);
    REFUSED(cudaGraphKernelNodeSetAttribute(empty, PRIORITY, &value), cudaErrorInvalidValue);
    REFUSED(cudaGraphKernelNodeGetAttribute(node, (cudaLaunchAttributeID) 77, &value), cudaErrorInvalidValue);
    REFUSED(cudaGraphKernelNodeSetAttribute(node, PRIORITY, nullptr), cudaErrorInvalidValue);
}

static unsigned long long memory_of(cudaGraphMemAttributeType number) {
    unsigned long long bytes = ~0ull;
    GOOD(cudaDeviceGetGraphMemAttribute(0, number, &bytes));
    return bytes;
}

static void memory() {
    const size_t MUCH = 3 << 20;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    GOOD(cudaStreamCreate(&stream));
    EXPECT(memory_of(cudaGraphMemAttrUsedMemCurrent) == 0 && memory_of(cudaGraphMemAttrReservedMemHigh) == 0);
    int *numbers, *pooled;
    GOOD(cudaMallocAsync(&pooled, BYTES, stream));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    GOOD(cudaMallocAsync(&numbers, MUCH, stream));
    GOOD(cudaMemsetAsync(numbers, 0, MUCH, stream));
    // A graph frees only what a graph allocates.
    REFUSED(cudaFreeAsync(pooled, stream), cudaErrorInvalidValue);
    GOOD(cudaFreeAsync(numbers, stream));
    GOOD(cudaStreamEndCapture(stream, &graph));
    GOOD(cudaFreeAsync(pooled, stream));
    GOOD(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaStreamSynchronize(stream));
    EXPECT(memory_of(cudaGraphMemAttrUsedMemCurrent) == MUCH && memory_of(cudaGraphMemAttrReservedMemCurrent) == MUCH);
    GOOD(cudaGraphDestroy(graph));
    GOOD(cudaGraphExecDestroy(exec));
    GOOD(cudaDeviceGraphMemTrim(0));
    EXPECT(memory_of(cudaGraphMemAttrUsedMemCurrent) == 0 && memory_of(cudaGraphMemAttrUsedMemHigh) == MUCH);
    unsigned long long zero = 0, one = 1;
    REFUSED(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &one), cudaErrorInvalidValue);
    REFUSED(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &zero), cudaErrorInvalidValue);
    GOOD(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &zero));
    EXPECT(memory_of(cudaGraphMemAttrUsedMemHigh) == 0);
    REFUSED(cudaDeviceGetGraphMemAttribute(0, (cudaGraphMemAttributeType) 4, &one), cudaErrorInvalidValue);
    REFUSED(cudaDeviceGraphMemTrim(99), cudaErrorInvalidDevice);
    // Kernels launch no graphs here.
    GOOD(cudaGraphCreate(&graph, 0));
    REFUSED(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagDeviceLaunch), cudaErrorNotSupported);
    REFUSED(cudaGraphInstantiate(&exec, graph, 1 << 20), cudaErrorInvalidValue);
}

static void parameters() {
    const size_t right[][2] = { { 0, 1 }, { 8, 8 }, { 16, 16 }, { 32, 2 } };
    cudaFunction_t function;
    GOOD(cudaGetFuncBySymbol(&function, (const void *) mixed));
    const auto ask = (CUresult (*)(CUfunction, size_t, size_t *, size_t *)) dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuFuncGetParamInfo");
    EXPECT(ask != nullptr);
    for (size_t at = 0; at < 4; at++) {
        size_t offset = 99, bytes = 99;
        EXPECT(ask((CUfunction) function, at, &offset, &bytes) == CUDA_SUCCESS);
        EXPECT(offset == right[at][0] && bytes == right[at][1]);
        EXPECT(ask((CUfunction) function, at, &offset, nullptr) == CUDA_SUCCESS);
    }
    size_t offset = 99;
    EXPECT(ask((CUfunction) function, 4, &offset, nullptr) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(cudaGetLastError() == cudaSuccess);
}

int main(int count, char ** words) {
    const part parts[] = { { "attributes", attributes }, { "memory", memory }, { "parameters", parameters } };
    return run_parts(parts, count, words);
}
