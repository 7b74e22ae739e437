// What a program may get wrong in the functions that programs use most, and the error that CUDA's documentation gives it. All that differs is told.
#include "gpu_check.h"

__global__ void add_one(int * numbers) {
    numbers[threadIdx.x] += 1;
}

__device__ int variable[4];

static int differences = 0;

// Calls it, and looks at what it returns and at what is kept of it.
#define TELLS(error, call)                                                                                                       \
    do {                                                                                                                         \
        cudaGetLastError();                                                                                                      \
        cudaError_t told = (call), kept = cudaGetLastError();                                                                    \
        if (told != (error) || kept != (error)) {                                                                                \
            fprintf(stderr, "line %d: %s is %d and leaves %d, not %d\n", __LINE__, #call, (int) told, (int) kept, (int) (error)); \
            differences++;                                                                                                       \
        }                                                                                                                        \
    } while (0)
// A launch, which returns nothing itself.
#define LAUNCH_TELLS(error, launch) TELLS(error, ([&] { launch; return cudaPeekAtLastError(); }()))

static void end() {
    EXPECT(differences == 0);
    GOOD(cudaDeviceSynchronize());
}

static void * nowhere() {
    static int here[4];
    return here;
}

static void devices() {
    int number = 0;
    size_t bytes = 0;
    cudaDeviceProp properties;
    char bus[32];
    TELLS(cudaErrorInvalidDevice, cudaSetDevice(99));
    TELLS(cudaErrorInvalidDevice, cudaSetDevice(-1));
    TELLS(cudaErrorInvalidValue, cudaGetDevice(nullptr));
    TELLS(cudaErrorInvalidValue, cudaGetDeviceCount(nullptr));
    TELLS(cudaErrorInvalidDevice, cudaGetDeviceProperties(&properties, 99));
    TELLS(cudaErrorInvalidValue, cudaGetDeviceProperties(nullptr, 0));
    TELLS(cudaErrorInvalidDevice, cudaDeviceGetAttribute(&number, cudaDevAttrWarpSize, 99));
    TELLS(cudaErrorInvalidValue, cudaDeviceGetAttribute(&number, (cudaDeviceAttr) 99999, 0));
    TELLS(cudaErrorInvalidValue, cudaDeviceGetAttribute(nullptr, cudaDevAttrWarpSize, 0));
    TELLS(cudaErrorInvalidDevice, cudaDeviceCanAccessPeer(&number, 0, 99));
    TELLS(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(99, 0));
    TELLS(cudaErrorInvalidValue, cudaDeviceEnablePeerAccess(1, 7));
    TELLS(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
    TELLS(cudaErrorInvalidValue, cudaDeviceGetPCIBusId(bus, 0, 0));
    TELLS(cudaErrorInvalidDevice, cudaDeviceGetPCIBusId(bus, sizeof bus, 99));
    TELLS(cudaErrorInvalidValue, cudaDeviceGetByPCIBusId(&number, nullptr));
    TELLS(cudaErrorInvalidValue, cudaMemGetInfo(nullptr, &bytes));
    TELLS(cudaErrorInvalidValue, cudaDriverGetVersion(nullptr));
    TELLS(cudaErrorInvalidValue, cudaRuntimeGetVersion(nullptr));
    TELLS(cudaErrorInvalidValue, cudaSetDeviceFlags(1 << 20));
    TELLS(cudaErrorUnsupportedLimit, cudaDeviceSetLimit(cudaLimitDevRuntimeSyncDepth, 1));
    TELLS(cudaErrorUnsupportedLimit, cudaDeviceGetLimit(&bytes, cudaLimitDevRuntimeSyncDepth));
    TELLS(cudaErrorInvalidValue, cudaDeviceGetLimit(nullptr, cudaLimitStackSize));
    // More than the device begins with.
    TELLS(cudaErrorUnsupportedLimit, cudaDeviceSetLimit(cudaLimitMallocHeapSize, (size_t) 1 << 30));
    GOOD(cudaDeviceGetAttribute(&number, cudaDevAttrIpcEventSupport, 0));
    EXPECT(number == 0);
    end();
}

static void memory() {
    char *place = nullptr, *other = nullptr;
    size_t pitch = 0;
    unsigned flags = 0;
    GOOD(cudaMalloc(&place, 4096));
    TELLS(cudaErrorInvalidValue, cudaMalloc((void **) nullptr, 16));
    TELLS(cudaSuccess, cudaMalloc(&other, 0));
    TELLS(cudaErrorMemoryAllocation, cudaMalloc(&other, (size_t) 1 << 46));
    TELLS(cudaErrorMemoryAllocation, cudaMalloc(&other, (size_t) -1));
    TELLS(cudaErrorInvalidValue, cudaMallocPitch((void **) nullptr, &pitch, 16, 16));
    TELLS(cudaErrorInvalidValue, cudaMallocPitch((void **) &other, nullptr, 16, 16));
    TELLS(cudaErrorInvalidValue, cudaMallocAsync((void **) nullptr, 16, 0));
    TELLS(cudaErrorInvalidValue, cudaMallocFromPoolAsync((void **) &other, 16, nullptr, 0));
    TELLS(cudaSuccess, cudaFree(nullptr));
    TELLS(cudaErrorInvalidValue, cudaFree(place + 4));
    TELLS(cudaErrorInvalidValue, cudaFree(nowhere()));
    TELLS(cudaErrorInvalidValue, cudaFreeAsync(nowhere(), 0));
    TELLS(cudaErrorInvalidValue, cudaMallocHost((void **) nullptr, 16));
    TELLS(cudaErrorMemoryAllocation, cudaMallocHost((void **) &other, (size_t) 1 << 60));
    TELLS(cudaErrorInvalidValue, cudaHostAlloc((void **) &other, 16, 1 << 20));
    TELLS(cudaSuccess, cudaFreeHost(nullptr));
    TELLS(cudaErrorInvalidValue, cudaFreeHost(nowhere()));
    TELLS(cudaErrorInvalidValue, cudaHostRegister(nullptr, 16, 0));
    TELLS(cudaErrorInvalidValue, cudaHostRegister(nowhere(), 0, 0));
    TELLS(cudaErrorInvalidValue, cudaHostRegister(nowhere(), 16, 1 << 20));
    TELLS(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(nowhere()));
    GOOD(cudaHostRegister(nowhere(), 16, 0));
    TELLS(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(nowhere(), 16, 0));
    TELLS(cudaErrorInvalidValue, cudaFreeHost(nowhere()));
    GOOD(cudaHostUnregister(nowhere()));
    TELLS(cudaErrorInvalidValue, cudaHostGetFlags(&flags, nowhere()));
    TELLS(cudaErrorInvalidValue, cudaPointerGetAttributes(nullptr, place));
    GOOD(cudaFree(place));
    TELLS(cudaErrorInvalidValue, cudaFree(place));
    end();
}

static void copies() {
    char * place = nullptr;
    static char here[4096];
    size_t bytes = 0;
    void * address = nullptr;
    GOOD(cudaMalloc(&place, 4096));
    const auto in = cudaMemcpyHostToDevice;
    TELLS(cudaErrorInvalidValue, cudaMemcpy(place, nullptr, 16, in));
    TELLS(cudaErrorInvalidValue, cudaMemcpy(nullptr, here, 16, in));
    TELLS(cudaSuccess, cudaMemcpy(nullptr, nullptr, 0, in));
    TELLS(cudaErrorInvalidMemcpyDirection, cudaMemcpy(place, here, 16, (cudaMemcpyKind) 9));
    TELLS(cudaErrorInvalidValue, cudaMemcpy(place + 4090, here, 16, in));
    TELLS(cudaErrorInvalidValue, cudaMemcpy(here, place + 4090, 16, cudaMemcpyDeviceToHost));
    TELLS(cudaErrorInvalidValue, cudaMemcpyAsync(place + 4090, here, 16, in, nullptr));
    TELLS(cudaErrorInvalidValue, cudaMemcpyAsync(place, nullptr, 16, in, nullptr));
    TELLS(cudaErrorInvalidPitchValue, cudaMemcpy2D(place, 8, here, 16, 16, 2, in));
    TELLS(cudaErrorInvalidPitchValue, cudaMemcpy2DAsync(place, 16, here, 8, 16, 2, in, nullptr));
    TELLS(cudaErrorInvalidMemcpyDirection, cudaMemcpy2D(place, 16, here, 16, 16, 2, (cudaMemcpyKind) 9));
    TELLS(cudaErrorInvalidValue, cudaMemcpy3D(nullptr));
    TELLS(cudaErrorInvalidDevice, cudaMemcpyPeer(place, 99, place, 0, 16));
    TELLS(cudaErrorInvalidValue, cudaMemset(nullptr, 0, 16));
    TELLS(cudaErrorInvalidValue, cudaMemset(place + 4090, 0, 16));
    TELLS(cudaErrorInvalidValue, cudaMemset(here, 0, 16));
    TELLS(cudaErrorInvalidValue, cudaMemsetAsync(place + 4090, 0, 16, nullptr));
    TELLS(cudaErrorInvalidValue, cudaMemset2D(place, 8, 0, 16, 2));
    TELLS(cudaErrorInvalidSymbol, cudaMemcpyToSymbol((const void *) here, here, 4, 0, in));
    TELLS(cudaErrorInvalidValue, cudaMemcpyToSymbol(variable, here, 32, 0, in));
    TELLS(cudaErrorInvalidValue, cudaMemcpyToSymbol(variable, here, 4, 14, in));
    TELLS(cudaErrorInvalidMemcpyDirection, cudaMemcpyToSymbol(variable, here, 4, 0, cudaMemcpyDeviceToHost));
    TELLS(cudaErrorInvalidMemcpyDirection, cudaMemcpyFromSymbol(here, variable, 4, 0, in));
    TELLS(cudaErrorInvalidSymbol, cudaGetSymbolAddress(&address, (const void *) here));
    TELLS(cudaErrorInvalidSymbol, cudaGetSymbolSize(&bytes, (const void *) here));
    end();
}

static void streams() {
    cudaStream_t stream, other;
    cudaEvent_t event;
    unsigned flags = 0;
    int priority = 0;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaEventCreate(&event));
    TELLS(cudaErrorInvalidValue, cudaStreamCreate(nullptr));
    TELLS(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&other, 99));
    TELLS(cudaErrorInvalidValue, cudaStreamCreateWithPriority(nullptr, 0, 0));
    TELLS(cudaErrorInvalidResourceHandle, cudaStreamDestroy(nullptr));
    TELLS(cudaErrorInvalidResourceHandle, cudaStreamDestroy(cudaStreamLegacy));
    TELLS(cudaErrorInvalidResourceHandle, cudaStreamDestroy(cudaStreamPerThread));
    TELLS(cudaErrorInvalidResourceHandle, cudaStreamWaitEvent(stream, nullptr, 0));
    TELLS(cudaErrorInvalidValue, cudaStreamWaitEvent(stream, event, 99));
    TELLS(cudaErrorInvalidValue, cudaStreamGetFlags(stream, nullptr));
    TELLS(cudaErrorInvalidValue, cudaStreamGetPriority(stream, nullptr));
    TELLS(cudaErrorInvalidValue, cudaStreamAddCallback(stream, nullptr, nullptr, 0));
    TELLS(cudaErrorInvalidValue, cudaStreamAddCallback(stream, [](cudaStream_t, cudaError_t, void *) {}, nullptr, 1));
    TELLS(cudaErrorInvalidValue, cudaLaunchHostFunc(stream, nullptr, nullptr));
    TELLS(cudaErrorInvalidValue, cudaStreamGetFlags(stream, nullptr));
    TELLS(cudaSuccess, cudaStreamGetFlags(nullptr, &flags));
    TELLS(cudaSuccess, cudaStreamGetPriority(nullptr, &priority));
    GOOD(cudaStreamSynchronize(stream));
    end();
}

static void events() {
    cudaEvent_t timed, untimed, never;
    float milliseconds = 0;
    GOOD(cudaEventCreate(&timed));
    GOOD(cudaEventCreate(&never));
    GOOD(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    GOOD(cudaEventRecord(timed, 0));
    GOOD(cudaEventRecord(untimed, 0));
    GOOD(cudaDeviceSynchronize());
    TELLS(cudaErrorInvalidValue, cudaEventCreate(nullptr));
    TELLS(cudaErrorInvalidValue, cudaEventCreateWithFlags(&never, 99));
    TELLS(cudaErrorInvalidResourceHandle, cudaEventDestroy(nullptr));
    TELLS(cudaErrorInvalidResourceHandle, cudaEventRecord(nullptr, 0));
    TELLS(cudaErrorInvalidResourceHandle, cudaEventQuery(nullptr));
    TELLS(cudaErrorInvalidResourceHandle, cudaEventSynchronize(nullptr));
    TELLS(cudaErrorInvalidValue, cudaEventRecordWithFlags(timed, 0, 99));
    TELLS(cudaErrorInvalidValue, cudaEventElapsedTime(nullptr, timed, timed));
    TELLS(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, nullptr, timed));
    TELLS(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, timed, never));
    TELLS(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, timed, untimed));
    TELLS(cudaSuccess, cudaEventQuery(never));
    TELLS(cudaSuccess, cudaEventSynchronize(never));
    end();
}

static void launches() {
    int * numbers;
    GOOD(cudaMalloc(&numbers, 4096));
    int groups = 0;
    cudaFuncAttributes about;
    void * arguments[] = { &numbers };
    const void *known = (const void *) add_one, *unknown = nowhere();
    LAUNCH_TELLS(cudaErrorInvalidConfiguration, (add_one<<<0, 1>>>(numbers)));
    LAUNCH_TELLS(cudaErrorInvalidConfiguration, (add_one<<<1, 0>>>(numbers)));
    LAUNCH_TELLS(cudaErrorInvalidConfiguration, (add_one<<<1, 1025>>>(numbers)));
    LAUNCH_TELLS(cudaErrorInvalidConfiguration, (add_one<<<1, dim3(1, 1, 65)>>>(numbers)));
    LAUNCH_TELLS(cudaErrorInvalidConfiguration, (add_one<<<dim3(1, 65536), 1>>>(numbers)));
    LAUNCH_TELLS(cudaErrorInvalidConfiguration, (add_one<<<dim3(1, 1, 65536), 1>>>(numbers)));
    LAUNCH_TELLS(cudaErrorInvalidValue, (add_one<<<1, 1, 1 << 20>>>(numbers)));
    TELLS(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(unknown, dim3(1), dim3(1), arguments, 0, 0));
    TELLS(cudaErrorInvalidDeviceFunction, cudaLaunchKernel((const void *) nullptr, dim3(1), dim3(1), arguments, 0, 0));
    TELLS(cudaErrorInvalidConfiguration, cudaLaunchKernel(known, dim3(0), dim3(1), arguments, 0, 0));
    TELLS(cudaErrorInvalidValue, cudaLaunchKernelExC(nullptr, known, arguments));
    TELLS(cudaErrorInvalidDeviceFunction, cudaFuncGetAttributes(&about, unknown));
    TELLS(cudaErrorInvalidValue, cudaFuncGetAttributes(nullptr, known));
    TELLS(cudaErrorInvalidDeviceFunction, cudaFuncSetAttribute(unknown, cudaFuncAttributeMaxDynamicSharedMemorySize, 1));
    TELLS(cudaErrorInvalidValue, cudaFuncSetAttribute(known, (cudaFuncAttribute) 77, 1));
    TELLS(cudaErrorInvalidDeviceFunction, cudaFuncSetCacheConfig(unknown, cudaFuncCachePreferL1));
    TELLS(cudaErrorInvalidDeviceFunction, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&groups, unknown, 32, 0));
    TELLS(cudaErrorInvalidValue, cudaOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, known, 32, 0));
    TELLS(cudaErrorInvalidValue, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&groups, known, 0, 0));
    end();
}

static void captures() {
    cudaStream_t stream, apart;
    cudaGraph_t graph;
    cudaStreamCaptureStatus status;
    char * place = nullptr;
    int * numbers;
    GOOD(cudaMalloc(&numbers, 4096));
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
    const auto relaxed = cudaStreamCaptureModeRelaxed;
    TELLS(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(nullptr, relaxed));
    TELLS(cudaErrorInvalidValue, cudaStreamBeginCapture(stream, (cudaStreamCaptureMode) 9));
    TELLS(cudaErrorIllegalState, cudaStreamEndCapture(stream, &graph));
    TELLS(cudaErrorInvalidValue, cudaStreamIsCapturing(stream, nullptr));
    TELLS(cudaErrorInvalidValue, cudaThreadExchangeStreamCaptureMode(nullptr));
    TELLS(cudaErrorIllegalState, cudaStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0, 0));
    GOOD(cudaStreamBeginCapture(stream, relaxed));
    TELLS(cudaErrorIllegalState, cudaStreamBeginCapture(stream, relaxed));
    // The default stream would wait for it, and the question ends nothing.
    TELLS(cudaErrorStreamCaptureImplicit, cudaStreamIsCapturing(cudaStreamLegacy, &status));
    TELLS(cudaErrorStreamCaptureImplicit, cudaStreamGetCaptureInfo(cudaStreamLegacy, &status));
    TELLS(cudaErrorInvalidValue, cudaStreamEndCapture(stream, nullptr));
    GOOD(cudaStreamIsCapturing(stream, &status));
    EXPECT(status == cudaStreamCaptureStatusActive);
    TELLS(cudaSuccess, cudaStreamEndCapture(stream, &graph));
    GOOD(cudaStreamBeginCapture(apart, relaxed));
    TELLS(cudaSuccess, cudaStreamIsCapturing(cudaStreamLegacy, &status));
    EXPECT(status == cudaStreamCaptureStatusNone);
    TELLS(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(apart));
    TELLS(cudaErrorStreamCaptureInvalidated, cudaMemsetAsync(numbers, 0, 4, apart));
    TELLS(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(apart, &graph));
    GOOD(cudaStreamBeginCapture(apart, relaxed));
    TELLS(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(apart));
    TELLS(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(apart, &graph));
    GOOD(cudaStreamBeginCapture(apart, cudaStreamCaptureModeGlobal));
    TELLS(cudaErrorStreamCaptureUnsupported, cudaMalloc(&place, 16));
    TELLS(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(apart, &graph));
    end();
}

static void graphs() {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node, host;
    size_t count = 0;
    unsigned is_on = 0;
    cudaKernelNodeParams kernel = {};
    cudaMemsetParams fill = {};
    cudaHostNodeParams function = { [](void *) {}, nullptr };
    int * numbers;
    GOOD(cudaMalloc(&numbers, 4096));
    fill.dst = numbers;
    fill.elementSize = 4;
    fill.width = fill.height = 1;
    GOOD(cudaGraphCreate(&graph, 0));
    GOOD(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &fill));
    GOOD(cudaGraphAddHostNode(&host, graph, nullptr, 0, &function));
    TELLS(cudaErrorInvalidValue, cudaGraphCreate(nullptr, 0));
    TELLS(cudaErrorInvalidValue, cudaGraphCreate(&graph, 1));
    TELLS(cudaErrorInvalidValue, cudaGraphDestroy(nullptr));
    TELLS(cudaErrorInvalidValue, cudaGraphExecDestroy(nullptr));
    TELLS(cudaErrorInvalidValue, cudaGraphLaunch(nullptr, 0));
    TELLS(cudaErrorInvalidValue, cudaGraphInstantiate(nullptr, graph, 0));
    TELLS(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, nullptr, 0));
    TELLS(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, graph, 1 << 20));
    TELLS(cudaErrorInvalidValue, cudaGraphGetNodes(nullptr, nullptr, &count));
    TELLS(cudaErrorInvalidValue, cudaGraphAddEmptyNode(nullptr, graph, nullptr, 0));
    TELLS(cudaErrorInvalidValue, cudaGraphAddEmptyNode(&node, nullptr, nullptr, 0));
    TELLS(cudaErrorInvalidValue, cudaGraphAddKernelNode(&node, graph, nullptr, 0, nullptr));
    TELLS(cudaErrorInvalidValue, cudaGraphAddMemsetNode(&node, graph, nullptr, 0, nullptr));
    TELLS(cudaErrorInvalidValue, cudaGraphAddDependencies(graph, &node, &node, nullptr, 1));
    TELLS(cudaErrorInvalidValue, cudaGraphRemoveDependencies(graph, &node, &host, nullptr, 1));
    TELLS(cudaErrorInvalidValue, cudaGraphKernelNodeGetParams(node, &kernel));
    TELLS(cudaErrorInvalidValue, cudaGraphDestroyNode(nullptr));
    TELLS(cudaErrorInvalidValue, cudaGraphClone(nullptr, graph));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    TELLS(cudaErrorInvalidValue, cudaGraphExecUpdate(exec, nullptr, nullptr));
    TELLS(cudaErrorInvalidValue, cudaGraphExecUpdate(nullptr, graph, nullptr));
    TELLS(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(nullptr, node, 0));
    TELLS(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(exec, nullptr, 0));
    TELLS(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(exec, host, 0));
    TELLS(cudaErrorInvalidValue, cudaGraphNodeGetEnabled(exec, host, &is_on));
    TELLS(cudaErrorInvalidValue, cudaGraphNodeGetEnabled(exec, node, nullptr));
    TELLS(cudaErrorInvalidValue, cudaMemPoolDestroy(nullptr));
    end();
}

// What is of this process alone.
static void processes() {
    cudaIpcMemHandle_t memory = {};
    cudaIpcEventHandle_t event = {};
    cudaEvent_t made;
    void * place;
    GOOD(cudaMalloc(&place, 4096));
    GOOD(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    TELLS(cudaErrorNotSupported, cudaIpcGetMemHandle(&memory, place));
    TELLS(cudaErrorNotSupported, cudaIpcOpenMemHandle(&place, memory, cudaIpcMemLazyEnablePeerAccess));
    TELLS(cudaErrorNotSupported, cudaIpcCloseMemHandle(place));
    TELLS(cudaErrorNotSupported, cudaIpcGetEventHandle(&event, made));
    TELLS(cudaErrorNotSupported, cudaIpcOpenEventHandle(&made, event));
    end();
}

int main(int count, char ** words) {
    const part parts[] = {
        { "devices", devices }, { "memory", memory }, { "copies", copies }, { "streams", streams }, { "events", events },
        { "launches", launches }, { "captures", captures }, { "graphs", graphs }, { "processes", processes },
    };
    return run_parts(parts, count, words);
}
