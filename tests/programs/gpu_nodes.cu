// Nodes of graphs by one structure for all kinds, events that graphs record for others and wait for, and both under the driver's names.
#include <dlfcn.h>

#include <cuda.h>

#include "gpu_check.h"

__global__ void add(int * numbers, int addend) {
    numbers[threadIdx.x] += addend;
}

// Long enough that a wait can be too short.
__global__ void add_slowly(int * numbers, int addend, int rounds) {
    for (int round = 0; round < rounds; round++) {
        numbers[threadIdx.x] += addend;
    }
}

static const int COUNT = 32;
static const size_t BYTES = COUNT * sizeof(int);

static int * numbers_of(int value) {
    int * numbers;
    std::vector<int> all(COUNT, value);
    GOOD(cudaMalloc(&numbers, BYTES));
    GOOD(cudaMemcpy(numbers, all.data(), BYTES, cudaMemcpyHostToDevice));
    return numbers;
}

static int first_of(const int * numbers) {
    int seen = -1;
    GOOD(cudaMemcpy(&seen, numbers, sizeof seen, cudaMemcpyDeviceToHost));
    return seen;
}

static cudaGraphNodeParams of_kernel(void ** arguments) {
    cudaGraphNodeParams given = { cudaGraphNodeTypeKernel };
    given.kernel.func = (void *) add;
    given.kernel.gridDim = dim3(1);
    given.kernel.blockDim = dim3(COUNT);
    given.kernel.kernelParams = arguments;
    return given;
}

static cudaGraphNodeParams of_fill(int * to, int value) {
    cudaGraphNodeParams given = { cudaGraphNodeTypeMemset };
    given.memset.dst = to;
    given.memset.value = value;
    given.memset.elementSize = 4;
    given.memset.width = COUNT;
    given.memset.height = 1;
    return given;
}

static cudaGraphNodeParams of_copy(void * to, void * from) {
    cudaGraphNodeParams given = { cudaGraphNodeTypeMemcpy };
    given.memcpy.copyParams.srcPtr = make_cudaPitchedPtr(from, BYTES, BYTES, 1);
    given.memcpy.copyParams.dstPtr = make_cudaPitchedPtr(to, BYTES, BYTES, 1);
    given.memcpy.copyParams.extent = make_cudaExtent(BYTES, 1, 1);
    given.memcpy.copyParams.kind = cudaMemcpyDefault;
    return given;
}

static void run(cudaGraphExec_t exec, cudaStream_t stream) {
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaStreamSynchronize(stream));
}

// fill, kernel, copy out, one behind the other, and a graph of its own.
static void generic() {
    int *numbers = numbers_of(0), ten = 10, twenty = 20;
    std::vector<int> here(COUNT), there(COUNT);
    void *by_ten[] = { &numbers, &ten }, *by_twenty[] = { &numbers, &twenty };
    cudaGraph_t graph, parent;
    cudaGraphNode_t fill, kernel, copy, empty, child;
    cudaGraphExec_t exec, of_parent;
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaGraphCreate(&graph, 0));
    auto given = of_fill(numbers, 1);
    GOOD(cudaGraphAddNode(&fill, graph, nullptr, nullptr, 0, &given));
    given = of_kernel(by_ten);
    GOOD(cudaGraphAddNode(&kernel, graph, &fill, nullptr, 1, &given));
    given = { cudaGraphNodeTypeEmpty };
    GOOD(cudaGraphAddNode(&empty, graph, &kernel, nullptr, 1, &given));
    given = of_copy(here.data(), numbers);
    GOOD(cudaGraphAddNode(&copy, graph, &empty, nullptr, 1, &given));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    run(exec, stream);
    check_numbers(here, 11);
    // In the instance alone.
    given = of_kernel(by_twenty);
    GOOD(cudaGraphExecNodeSetParams(exec, kernel, &given));
    given = of_copy(there.data(), numbers);
    GOOD(cudaGraphExecNodeSetParams(exec, copy, &given));
    run(exec, stream);
    check_numbers(there, 21);
    check_numbers(here, 11);
    // In the graph; the kinds of nodes stay.
    given = of_fill(numbers, 5);
    GOOD(cudaGraphNodeSetParams(fill, &given));
    REFUSED(cudaGraphNodeSetParams(kernel, &given), cudaErrorInvalidValue);
    REFUSED(cudaGraphExecNodeSetParams(exec, kernel, &given), cudaErrorInvalidValue);
    GOOD(cudaGraphInstantiate(&of_parent, graph, 0));
    run(of_parent, stream);
    check_numbers(here, 15);
    GOOD(cudaGraphCreate(&parent, 0));
    given = { cudaGraphNodeTypeGraph };
    given.graph.graph = graph;
    GOOD(cudaGraphAddNode(&child, parent, nullptr, nullptr, 0, &given));
    GOOD(cudaGraphInstantiate(&of_parent, parent, 0));
    here.assign(COUNT, 0);
    run(of_parent, stream);
    check_numbers(here, 15);
    given = of_fill(numbers, 6);
    GOOD(cudaGraphNodeSetParams(fill, &given));
    GOOD(cudaGraphExecChildGraphNodeSetParams(of_parent, child, graph));
    run(of_parent, stream);
    check_numbers(here, 16);
    // What there is none of.
    cudaGraphNode_t none;
    for (auto kind : { cudaGraphNodeTypeMemAlloc, cudaGraphNodeTypeMemFree, cudaGraphNodeTypeConditional,
             cudaGraphNodeTypeExtSemaphoreSignal }) {
        given = { kind };
        REFUSED(cudaGraphAddNode(&none, graph, nullptr, nullptr, 0, &given), cudaErrorNotSupported);
    }
    given = { cudaGraphNodeTypeGraph };
    given.graph.graph = graph;
    given.graph.ownership = cudaGraphChildGraphOwnershipMove;
    REFUSED(cudaGraphAddNode(&none, parent, nullptr, nullptr, 0, &given), cudaErrorNotSupported);
    given = { (cudaGraphNodeType) 99 };
    REFUSED(cudaGraphAddNode(&none, graph, nullptr, nullptr, 0, &given), cudaErrorInvalidValue);
    given = { cudaGraphNodeTypeEmpty };
    given.reserved2 = 1;
    REFUSED(cudaGraphAddNode(&none, graph, nullptr, nullptr, 0, &given), cudaErrorInvalidValue);
    REFUSED(cudaGraphAddNode(&none, graph, nullptr, nullptr, 0, nullptr), cudaErrorInvalidValue);
}

struct two_streams {
    cudaStream_t first, second;
    cudaEvent_t event, other;

    two_streams() {
        GOOD(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
        GOOD(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
        GOOD(cudaEventCreate(&event));
        GOOD(cudaEventCreate(&other));
    }
};

// A graph that waits for an event of work outside, works, and records one, by nodes.
static void events() {
    two_streams of;
    int *numbers = numbers_of(0), one = 1;
    void * arguments[] = { &numbers, &one };
    cudaGraph_t graph;
    cudaGraphNode_t wait, kernel, record;
    cudaGraphExec_t exec;
    GOOD(cudaGraphCreate(&graph, 0));
    GOOD(cudaGraphAddEventWaitNode(&wait, graph, nullptr, 0, of.other));
    auto given = of_kernel(arguments);
    GOOD(cudaGraphAddNode(&kernel, graph, &wait, nullptr, 1, &given));
    GOOD(cudaGraphAddEventRecordNode(&record, graph, &kernel, 1, of.other));
    cudaEvent_t found;
    cudaGraphNodeType kind;
    GOOD(cudaGraphNodeGetType(wait, &kind));
    EXPECT(kind == cudaGraphNodeTypeWaitEvent);
    GOOD(cudaGraphEventWaitNodeGetEvent(wait, &found));
    EXPECT(found == of.other);
    REFUSED(cudaGraphEventRecordNodeGetEvent(wait, &found), cudaErrorInvalidValue);
    REFUSED(cudaGraphEventRecordNodeSetEvent(kernel, of.event), cudaErrorInvalidValue);
    GOOD(cudaGraphEventRecordNodeSetEvent(record, of.event));
    GOOD(cudaGraphEventRecordNodeGetEvent(record, &found));
    EXPECT(found == of.event);
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 1; round <= 5; round++) {
        // The graph waits for the slow kernel, and the second stream, and the program, for the graph.
        add_slowly<<<1, COUNT, 0, of.second>>>(numbers, 10, 2000);
        GOOD(cudaEventRecord(of.other, of.second));
        GOOD(cudaGraphLaunch(exec, of.first));
        GOOD(cudaStreamWaitEvent(of.second, of.event, 0));
        add<<<1, COUNT, 0, of.second>>>(numbers, 100);
        GOOD(cudaEventSynchronize(of.event));
        EXPECT(cudaEventQuery(of.event) == cudaSuccess);
        GOOD(cudaStreamSynchronize(of.second));
        EXPECT(first_of(numbers) == round * 20101);
    }
    // The instance records another event from now on.
    cudaEvent_t third;
    GOOD(cudaEventCreate(&third));
    GOOD(cudaGraphExecEventRecordNodeSetEvent(exec, record, third));
    GOOD(cudaGraphExecEventWaitNodeSetEvent(exec, wait, of.event));
    GOOD(cudaEventRecord(of.event, of.first));
    GOOD(cudaGraphLaunch(exec, of.first));
    GOOD(cudaEventSynchronize(third));
    float milliseconds = -1;
    GOOD(cudaEventElapsedTime(&milliseconds, of.event, third));
    EXPECT(milliseconds >= 0);
    // By the structure for all kinds.
    cudaGraph_t plain;
    cudaGraphNode_t node;
    GOOD(cudaGraphCreate(&plain, 0));
    given = { cudaGraphNodeTypeEventRecord };
    given.eventRecord.event = of.event;
    GOOD(cudaGraphAddNode(&node, plain, nullptr, nullptr, 0, &given));
    given.eventRecord.event = third;
    GOOD(cudaGraphNodeSetParams(node, &given));
    GOOD(cudaGraphEventRecordNodeGetEvent(node, &found));
    EXPECT(found == third);
    given = { cudaGraphNodeTypeWaitEvent };
    given.eventWait.event = of.event;
    GOOD(cudaGraphAddNode(&node, plain, nullptr, nullptr, 0, &given));
    GOOD(cudaGraphInstantiate(&exec, plain, 0));
    run(exec, of.first);
    REFUSED(cudaGraphAddEventRecordNode(&node, plain, nullptr, 0, nullptr), cudaErrorInvalidResourceHandle);
}

// The same out of a capture.
static void external() {
    two_streams of;
    int * numbers = numbers_of(0);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    GOOD(cudaStreamBeginCapture(of.first, cudaStreamCaptureModeGlobal));
    GOOD(cudaStreamWaitEvent(of.first, of.other, cudaEventWaitExternal));
    add<<<1, COUNT, 0, of.first>>>(numbers, 1);
    GOOD(cudaEventRecordWithFlags(of.event, of.first, cudaEventRecordExternal));
    add_slowly<<<1, COUNT, 0, of.first>>>(numbers, 1000, 5);
    GOOD(cudaStreamEndCapture(of.first, &graph));
    size_t count = 0;
    cudaGraphNode_t nodes[8];
    cudaGraphNodeType kind;
    GOOD(cudaGraphGetNodes(graph, nullptr, &count));
    EXPECT(count == 4);
    GOOD(cudaGraphGetNodes(graph, nodes, &count));
    const cudaGraphNodeType kinds[] = { cudaGraphNodeTypeWaitEvent, cudaGraphNodeTypeKernel, cudaGraphNodeTypeEventRecord,
        cudaGraphNodeTypeKernel };
    for (size_t at = 0; at < count; at++) {
        GOOD(cudaGraphNodeGetType(nodes[at], &kind));
        EXPECT(kind == kinds[at]);
    }
    cudaEvent_t found;
    GOOD(cudaGraphEventRecordNodeGetEvent(nodes[2], &found));
    EXPECT(found == of.event);
    // The capture left the event as it was: it is none of a capture, and done.
    GOOD(cudaEventQuery(of.event));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 1; round <= 5; round++) {
        add_slowly<<<1, COUNT, 0, of.second>>>(numbers, 10, 2000);
        GOOD(cudaEventRecord(of.other, of.second));
        GOOD(cudaGraphLaunch(exec, of.first));
        GOOD(cudaEventSynchronize(of.event));
        GOOD(cudaStreamSynchronize(of.first));
        EXPECT(first_of(numbers) == round * 25001);
    }
    // Outside of a capture there are no such records and waits.
    REFUSED(cudaEventRecordWithFlags(of.event, of.first, cudaEventRecordExternal), cudaErrorInvalidValue);
    REFUSED(cudaStreamWaitEvent(of.first, of.event, cudaEventWaitExternal), cudaErrorInvalidValue);
    REFUSED(cudaEventRecordWithFlags(of.event, of.first, 8), cudaErrorInvalidValue);
}

template <typename Function> static Function * of_driver(const char * name) {
    void * driver = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(driver != nullptr);
    void * found = dlsym(driver, name);
    EXPECT(found != nullptr);
    return (Function *) found;
}

static void driver() {
    int *numbers = numbers_of(0), three = 3;
    std::vector<int> here(COUNT);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaFunction_t function;
    CUgraphNode kernel, copy, record;
    cudaEvent_t event;
    void * arguments[] = { &numbers, &three };
    const auto add_node = of_driver<CUresult(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t,
        CUgraphNodeParams *)>("cuGraphAddNode_v2");
    const auto set = of_driver<CUresult(CUgraphNode, CUgraphNodeParams *)>("cuGraphNodeSetParams");
    const auto set_instance = of_driver<CUresult(CUgraphExec, CUgraphNode, CUgraphNodeParams *)>("cuGraphExecNodeSetParams");
    GOOD(cudaEventCreate(&event));
    GOOD(cudaGetFuncBySymbol(&function, (const void *) add));
    GOOD(cudaGraphCreate(&graph, 0));
    CUgraphNodeParams given = { CU_GRAPH_NODE_TYPE_KERNEL };
    given.kernel.kern = (CUkernel) function;
    given.kernel.gridDimX = given.kernel.gridDimY = given.kernel.gridDimZ = 1;
    given.kernel.blockDimX = COUNT;
    given.kernel.blockDimY = given.kernel.blockDimZ = 1;
    given.kernel.kernelParams = arguments;
    EXPECT(add_node(&kernel, graph, nullptr, nullptr, 0, &given) == CUDA_SUCCESS);
    CUgraphNodeParams out = { CU_GRAPH_NODE_TYPE_MEMCPY };
    out.memcpy.copyParams.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    out.memcpy.copyParams.srcDevice = (CUdeviceptr) numbers;
    out.memcpy.copyParams.srcPitch = out.memcpy.copyParams.dstPitch = BYTES;
    out.memcpy.copyParams.srcHeight = out.memcpy.copyParams.dstHeight = 1;
    out.memcpy.copyParams.dstMemoryType = CU_MEMORYTYPE_HOST;
    out.memcpy.copyParams.dstHost = here.data();
    out.memcpy.copyParams.WidthInBytes = BYTES;
    out.memcpy.copyParams.Height = out.memcpy.copyParams.Depth = 1;
    EXPECT(add_node(&copy, graph, &kernel, nullptr, 1, &out) == CUDA_SUCCESS);
    CUgraphNodeParams recorded = { CU_GRAPH_NODE_TYPE_EVENT_RECORD };
    recorded.eventRecord.event = event;
    EXPECT(add_node(&record, graph, &copy, nullptr, 1, &recorded) == CUDA_SUCCESS);
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    run(exec, cudaStreamPerThread);
    GOOD(cudaEventQuery(event));
    check_numbers(here, 3);
    three = 4;
    EXPECT(set_instance(exec, kernel, &given) == CUDA_SUCCESS);
    run(exec, cudaStreamPerThread);
    check_numbers(here, 7);
    EXPECT(set(kernel, &given) == CUDA_SUCCESS);
    out.memcpy.copyParams.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    EXPECT(set(copy, &out) == CUDA_ERROR_NOT_SUPPORTED);
    EXPECT(cudaGetLastError() == cudaSuccess);
}

// The driver's own functions for each kind of node, as compilers of whole models use them.
static void kinds() {
    int *numbers, three = 3, five = 5;
    std::vector<int> here(COUNT), there(COUNT);
    GOOD(cudaMalloc(&numbers, BYTES));
    cudaFunction_t function;
    CUgraph graph;
    CUgraphNode fill, kernel, copy;
    CUgraphExec exec;
    GOOD(cudaGetFuncBySymbol(&function, (const void *) add));
    void *by_three[] = { &numbers, &three }, *by_five[] = { &numbers, &five };
    GOOD(cudaGraphCreate(&graph, 0));
    CUDA_MEMSET_NODE_PARAMS filled = {};
    filled.dst = (CUdeviceptr) numbers;
    filled.value = 1;
    filled.elementSize = 4;
    filled.width = COUNT;
    filled.height = 1;
    const auto add_fill = of_driver<CUresult(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMSET_NODE_PARAMS *,
        CUcontext)>("cuGraphAddMemsetNode");
    EXPECT(add_fill(&fill, graph, nullptr, 0, &filled, nullptr) == CUDA_SUCCESS);
    CUDA_KERNEL_NODE_PARAMS launched = {};
    launched.func = (CUfunction) function;
    launched.gridDimX = launched.gridDimY = launched.gridDimZ = 1;
    launched.blockDimX = COUNT;
    launched.blockDimY = launched.blockDimZ = 1;
    launched.kernelParams = by_three;
    const auto add_kernel = of_driver<CUresult(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *)>(
        "cuGraphAddKernelNode_v2");
    EXPECT(add_kernel(&kernel, graph, &fill, 1, &launched) == CUDA_SUCCESS);
    CUDA_MEMCPY3D copied = {};
    copied.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copied.srcDevice = (CUdeviceptr) numbers;
    copied.dstMemoryType = CU_MEMORYTYPE_HOST;
    copied.dstHost = here.data();
    copied.srcPitch = copied.dstPitch = copied.WidthInBytes = BYTES;
    copied.srcHeight = copied.dstHeight = copied.Height = copied.Depth = 1;
    const auto add_copy = of_driver<CUresult(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMCPY3D *, CUcontext)>(
        "cuGraphAddMemcpyNode");
    EXPECT(add_copy(&copy, graph, nullptr, 0, &copied, nullptr) == CUDA_SUCCESS);
    const auto add_edges = of_driver<CUresult(CUgraph, const CUgraphNode *, const CUgraphNode *, const CUgraphEdgeData *, size_t)>(
        "cuGraphAddDependencies_v2");
    EXPECT(add_edges(graph, &kernel, &copy, nullptr, 1) == CUDA_SUCCESS);
    size_t count = 3;
    CUgraphNode roots[3] = {};
    EXPECT(of_driver<CUresult(CUgraph, CUgraphNode *, size_t *)>("cuGraphGetRootNodes")(graph, roots, &count) == CUDA_SUCCESS);
    EXPECT(count == 1 && roots[0] == fill);
    // What was given is found again.
    CUDA_MEMSET_NODE_PARAMS filled_again;
    CUDA_KERNEL_NODE_PARAMS launched_again;
    CUDA_MEMCPY3D copied_again;
    EXPECT(of_driver<CUresult(CUgraphNode, CUDA_MEMSET_NODE_PARAMS *)>("cuGraphMemsetNodeGetParams")(fill, &filled_again) == CUDA_SUCCESS);
    EXPECT(filled_again.dst == filled.dst && filled_again.value == 1 && filled_again.width == COUNT);
    EXPECT(of_driver<CUresult(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *)>("cuGraphKernelNodeGetParams_v2")(kernel, &launched_again) == CUDA_SUCCESS);
    EXPECT(launched_again.blockDimX == COUNT && *(int *) launched_again.kernelParams[1] == 3 && launched_again.func == launched.func);
    EXPECT(of_driver<CUresult(CUgraphNode, CUDA_MEMCPY3D *)>("cuGraphMemcpyNodeGetParams")(copy, &copied_again) == CUDA_SUCCESS);
    EXPECT(copied_again.WidthInBytes == BYTES && copied_again.dstMemoryType == CU_MEMORYTYPE_UNIFIED);
    EXPECT(copied_again.dstDevice == (CUdeviceptr) here.data() && copied_again.srcDevice == copied.srcDevice);
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    run(exec, cudaStreamPerThread);
    check_numbers(here, 4);
    // In the instance alone, and in the graph.
    launched.kernelParams = by_five;
    copied.dstHost = there.data();
    filled.value = 2;
    EXPECT(of_driver<CUresult(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *)>("cuGraphExecKernelNodeSetParams_v2")(exec, kernel, &launched) == CUDA_SUCCESS);
    EXPECT(of_driver<CUresult(CUgraphExec, CUgraphNode, const CUDA_MEMCPY3D *, CUcontext)>("cuGraphExecMemcpyNodeSetParams")(exec, copy, &copied, nullptr) == CUDA_SUCCESS);
    EXPECT(of_driver<CUresult(CUgraphExec, CUgraphNode, const CUDA_MEMSET_NODE_PARAMS *, CUcontext)>("cuGraphExecMemsetNodeSetParams")(exec, fill, &filled, nullptr) == CUDA_SUCCESS);
    run(exec, cudaStreamPerThread);
    check_numbers(there, 7);
    check_numbers(here, 4);
    EXPECT(of_driver<CUresult(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *)>("cuGraphKernelNodeSetParams_v2")(kernel, &launched) == CUDA_SUCCESS);
    EXPECT(of_driver<CUresult(CUgraphNode, const CUDA_MEMSET_NODE_PARAMS *)>("cuGraphMemsetNodeSetParams")(fill, &filled) == CUDA_SUCCESS);
    EXPECT(of_driver<CUresult(CUgraphNode, const CUDA_MEMCPY3D *)>("cuGraphMemcpyNodeSetParams")(copy, &copied_again) == CUDA_SUCCESS);
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    run(exec, cudaStreamPerThread);
    check_numbers(here, 7);
    EXPECT(add_fill(&fill, graph, nullptr, 0, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(cudaGetLastError() == cudaSuccess);
}

static bool is_on(cudaGraphExec_t exec, cudaGraphNode_t node) {
    unsigned told = 7;
    GOOD(cudaGraphNodeGetEnabled(exec, node, &told));
    EXPECT(told < 2);
    return told;
}

// Nodes of an instance that are switched off do nothing until they are switched on again; what they are given meanwhile holds from then on.
static void switched() {
    int *numbers = numbers_of(0), ten = 10, twenty = 20;
    std::vector<int> here(COUNT), there(COUNT);
    void *by_ten[] = { &numbers, &ten }, *by_twenty[] = { &numbers, &twenty };
    cudaGraph_t graph, other;
    cudaGraphNode_t fill, kernel, copy;
    cudaGraphExec_t exec;
    auto filled = of_fill(numbers, 1), launched = of_kernel(by_ten), copied = of_copy(here.data(), numbers);
    GOOD(cudaGraphCreate(&graph, 0));
    GOOD(cudaGraphAddNode(&fill, graph, nullptr, nullptr, 0, &filled));
    GOOD(cudaGraphAddNode(&kernel, graph, &fill, nullptr, 1, &launched));
    GOOD(cudaGraphAddNode(&copy, graph, &kernel, nullptr, 1, &copied));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    const auto gives = [&](int right) {
        run(exec, cudaStreamPerThread);
        check_numbers(here, right);
    };
    gives(11);
    EXPECT(is_on(exec, kernel) && is_on(exec, copy));
    GOOD(cudaGraphNodeSetEnabled(exec, kernel, 0));
    EXPECT(!is_on(exec, kernel) && is_on(exec, copy));
    gives(1);
    launched = of_kernel(by_twenty);
    GOOD(cudaGraphExecNodeSetParams(exec, kernel, &launched));
    gives(1);
    GOOD(cudaGraphNodeSetEnabled(exec, kernel, 5));
    gives(21);
    GOOD(cudaGraphNodeSetEnabled(exec, fill, 0));
    gives(41);
    GOOD(cudaGraphNodeSetEnabled(exec, copy, 0));
    run(exec, cudaStreamPerThread);
    check_numbers(here, 41);
    EXPECT(first_of(numbers) == 61);
    // An update of the whole leaves that as it is, and the graph knows nothing of it.
    GOOD(cudaGraphExecUpdate(exec, graph, nullptr));
    EXPECT(!is_on(exec, copy) && !is_on(exec, fill) && is_on(exec, kernel));
    GOOD(cudaGraphNodeSetEnabled(exec, copy, 1));
    gives(71);
    // All of them, and again.
    for (auto one : { fill, kernel, copy }) {
        GOOD(cudaGraphNodeSetEnabled(exec, one, 0));
    }
    gives(71);
    EXPECT(first_of(numbers) == 71);
    cudaGraphExec_t again;
    GOOD(cudaGraphInstantiate(&again, graph, 0));
    run(again, cudaStreamPerThread);
    check_numbers(here, 11);
    // What launches of the instance do now is what a graph takes that it is captured into.
    GOOD(cudaGraphNodeSetEnabled(exec, kernel, 1));
    cudaStream_t stream, beside;
    cudaEvent_t fork, join;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaStreamCreate(&beside));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaStreamEndCapture(stream, &other));
    GOOD(cudaGraphInstantiate(&again, other, 0));
    run(again, stream);
    EXPECT(first_of(numbers) == 21);
    // Captured into streams that part and meet, in order without what is off.
    GOOD(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    GOOD(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaMemsetAsync(numbers, 0, BYTES, stream));
    GOOD(cudaEventRecord(fork, stream));
    GOOD(cudaStreamWaitEvent(beside, fork, 0));
    add_slowly<<<1, COUNT, 0, beside>>>(numbers, 1, 2000);
    add<<<1, COUNT, 0, beside>>>(numbers, 30);
    GOOD(cudaEventRecord(join, beside));
    GOOD(cudaStreamWaitEvent(stream, join, 0));
    GOOD(cudaMemcpyAsync(there.data(), numbers, BYTES, cudaMemcpyDeviceToHost, stream));
    GOOD(cudaStreamEndCapture(stream, &other));
    GOOD(cudaGraphInstantiate(&again, other, 0));
    size_t count = 4;
    cudaGraphNode_t nodes[4];
    GOOD(cudaGraphGetNodes(other, nodes, &count));
    EXPECT(count == 4);
    const auto of_driver_set = of_driver<CUresult(CUgraphExec, CUgraphNode, unsigned)>("cuGraphNodeSetEnabled");
    const auto of_driver_get = of_driver<CUresult(CUgraphExec, CUgraphNode, unsigned *)>("cuGraphNodeGetEnabled");
    for (int bits = 0; bits < 4; bits++) {
        unsigned told = 7;
        EXPECT(of_driver_set(again, nodes[1], bits & 1) == CUDA_SUCCESS && of_driver_set(again, nodes[2], bits >> 1) == CUDA_SUCCESS);
        EXPECT(of_driver_get(again, nodes[2], &told) == CUDA_SUCCESS && told == bits >> 1);
        GOOD(cudaMemset(numbers, 0x11, BYTES));
        GOOD(cudaDeviceSynchronize());
        run(again, stream);
        check_numbers(there, 2000 * (bits & 1) + 30 * (bits >> 1));
    }
    REFUSED(cudaGraphNodeSetEnabled(again, kernel, 0), cudaErrorInvalidValue);
}

// fill, two kernels behind it; behind a node that is taken out again, so that they have other numbers (`is_moved`).
struct three {
    cudaGraph_t graph;
    cudaGraphNode_t fill, first, second;

    three(int * numbers, int by_first, int by_second, bool is_moved) {
        void *of_first[] = { &numbers, &by_first }, *of_second[] = { &numbers, &by_second };
        auto filled = of_fill(numbers, 1);
        cudaGraphNodeParams nothing = { cudaGraphNodeTypeEmpty };
        cudaGraphNode_t gone;
        GOOD(cudaGraphCreate(&graph, 0));
        if (is_moved) {
            GOOD(cudaGraphAddNode(&gone, graph, nullptr, nullptr, 0, &nothing));
            GOOD(cudaGraphDestroyNode(gone));
        }
        GOOD(cudaGraphAddNode(&fill, graph, nullptr, nullptr, 0, &filled));
        auto launched = of_kernel(of_first);
        GOOD(cudaGraphAddNode(&first, graph, &fill, nullptr, 1, &launched));
        launched = of_kernel(of_second);
        GOOD(cudaGraphAddNode(&second, graph, &first, nullptr, 1, &launched));
    }
};

// The nodes of an instance are those of the graph that it was instantiated from, as that was then. What is off stays off in an update with as many nodes of the same
// kinds, whatever their numbers, and is on again after any other.
static void carried() {
    int *numbers = numbers_of(0), thousand = 1000;
    void * by_thousand[] = { &numbers, &thousand };
    three own(numbers, 10, 100, false), moved(numbers, 20, 200, true);
    cudaGraphExec_t exec;
    const auto gives = [&](int right) {
        run(exec, cudaStreamPerThread);
        EXPECT(first_of(numbers) == right);
    };
    GOOD(cudaGraphInstantiate(&exec, own.graph, 0));
    GOOD(cudaGraphNodeSetEnabled(exec, own.first, 0));
    gives(101);
    GOOD(cudaGraphExecUpdate(exec, moved.graph, nullptr));
    gives(201);
    unsigned told;
    EXPECT(!is_on(exec, own.first) && is_on(exec, own.second));
    REFUSED(cudaGraphNodeSetEnabled(exec, moved.first, 1), cudaErrorInvalidValue);
    REFUSED(cudaGraphNodeGetEnabled(exec, moved.first, &told), cudaErrorInvalidValue);
    GOOD(cudaGraphNodeSetEnabled(exec, own.first, 1));
    gives(221);
    auto launched = of_kernel(by_thousand);
    GOOD(cudaGraphExecNodeSetParams(exec, own.first, &launched));
    gives(1201);
    REFUSED(cudaGraphExecNodeSetParams(exec, moved.first, &launched), cudaErrorInvalidValue);
    // What the graph was given later is in no instance of before.
    cudaGraphNode_t later;
    GOOD(cudaGraphAddNode(&later, own.graph, &own.second, nullptr, 1, &launched));
    REFUSED(cudaGraphNodeSetEnabled(exec, later, 0), cudaErrorInvalidValue);
    REFUSED(cudaGraphNodeGetEnabled(exec, later, &told), cudaErrorInvalidValue);
    REFUSED(cudaGraphExecNodeSetParams(exec, later, &launched), cudaErrorInvalidValue);
    // Another graph altogether: all of it is done.
    GOOD(cudaGraphNodeSetEnabled(exec, own.first, 0));
    GOOD(cudaGraphExecUpdate(exec, own.graph, nullptr));
    gives(1111);
    EXPECT(is_on(exec, own.first) && is_on(exec, later));
}

// Nodes whose memory or event has gone are switched off one after the other, and no call says that the others are of no use meanwhile.
static void outlived() {
    const size_t large = 32 << 20;
    int *numbers = numbers_of(0), one = 1, ten = 10;
    void *arguments[] = { &numbers, &one }, *by_ten[] = { &numbers, &ten };
    std::vector<int> here(COUNT);
    char * gone[2];
    cudaGraph_t graph;
    cudaGraphNode_t fills[2], kernel, copy, record;
    cudaGraphExec_t exec;
    cudaEvent_t event;
    GOOD(cudaGraphCreate(&graph, 0));
    for (int at = 0; at < 2; at++) {
        GOOD(cudaMalloc(&gone[at], large));
        auto filled = of_fill((int *) gone[at], 1);
        GOOD(cudaGraphAddNode(&fills[at], graph, nullptr, nullptr, 0, &filled));
    }
    auto launched = of_kernel(arguments);
    GOOD(cudaGraphAddNode(&kernel, graph, nullptr, nullptr, 0, &launched));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    run(exec, cudaStreamPerThread);
    for (int at = 0; at < 2; at++) {
        GOOD(cudaFree(gone[at]));
    }
    for (int at = 0; at < 2; at++) {
        GOOD(cudaGraphNodeSetEnabled(exec, fills[at], 0));
        GOOD(cudaDeviceSynchronize());
    }
    run(exec, cudaStreamPerThread);
    EXPECT(first_of(numbers) == 2);
    // What the node at the other end has of an instance goes on when an event has gone: kernels are switched and changed in it. It takes no list that names the
    // event: what is said to be off is off, and what is not stays on.
    GOOD(cudaEventCreate(&event));
    auto copied = of_copy(here.data(), numbers);
    GOOD(cudaGraphAddNode(&copy, graph, &kernel, nullptr, 1, &copied));
    GOOD(cudaGraphAddEventRecordNode(&record, graph, &kernel, 1, event));
    for (auto fill : fills) {
        GOOD(cudaGraphDestroyNode(fill));
    }
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    run(exec, cudaStreamPerThread);
    GOOD(cudaEventDestroy(event));
    GOOD(cudaGraphNodeSetEnabled(exec, kernel, 0));
    run(exec, cudaStreamPerThread);
    check_numbers(here, 3);
    launched = of_kernel(by_ten);
    GOOD(cudaGraphExecNodeSetParams(exec, kernel, &launched));
    GOOD(cudaGraphNodeSetEnabled(exec, kernel, 1));
    REFUSED(cudaGraphNodeSetEnabled(exec, copy, 0), cudaErrorInvalidResourceHandle);
    EXPECT(is_on(exec, copy));
    GOOD(cudaDeviceSynchronize());
    run(exec, cudaStreamPerThread);
    check_numbers(here, 13);
}

// A node that did nothing is given commands, and the one behind it others.
static void filled() {
    int *numbers = numbers_of(0), five = 5, ten = 10, twenty = 20;
    void *by_five[] = { &numbers, &five }, *by_ten[] = { &numbers, &ten }, *by_twenty[] = { &numbers, &twenty };
    cudaGraph_t graph, empty, full;
    cudaGraphNode_t child, kernel, in_child;
    cudaGraphExec_t exec;
    GOOD(cudaGraphCreate(&graph, 0));
    GOOD(cudaGraphCreate(&empty, 0));
    GOOD(cudaGraphCreate(&full, 0));
    auto launched = of_kernel(by_five);
    GOOD(cudaGraphAddNode(&in_child, full, nullptr, nullptr, 0, &launched));
    GOOD(cudaGraphAddChildGraphNode(&child, graph, nullptr, 0, empty));
    launched = of_kernel(by_ten);
    GOOD(cudaGraphAddNode(&kernel, graph, &child, nullptr, 1, &launched));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    GOOD(cudaGraphExecChildGraphNodeSetParams(exec, child, full));
    launched = of_kernel(by_twenty);
    GOOD(cudaGraphExecNodeSetParams(exec, kernel, &launched));
    run(exec, cudaStreamPerThread);
    EXPECT(first_of(numbers) == 25);
}

int main(int count, char ** words) {
    const part parts[] = { { "generic", generic }, { "events", events }, { "external", external }, { "driver", driver },
        { "kinds", kinds }, { "switched", switched }, { "carried", carried }, { "outlived", outlived }, { "filled", filled } };
    return run_parts(parts, count, words);
}
