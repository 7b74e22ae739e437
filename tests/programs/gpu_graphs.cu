// A program for CUDA that checks graphs: copies from and to the program's memory in them, nodes one by one, and nodes of what was captured. Each word of the command line is one part.
#include "gpu_check.h"

__global__ void add(int * to, const int * from, int count, int addend) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        to[at] = from[at] + addend;
    }
}

// Each replay reads what the program's memory has then, and writes what it computes of it.
static void replays() {
    const int count = 5000, bytes = count * sizeof(int);
    int *from, *device, *other;
    std::vector<int> to(count), rows_to(64 * 10, -1);
    GOOD(cudaMallocHost(&from, bytes));
    GOOD(cudaMalloc(&device, bytes));
    GOOD(cudaMalloc(&other, bytes));
    std::vector<int> rows(64 * 10);
    cudaStream_t stream, branch;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaStreamCreate(&branch));
    cudaEvent_t fork, join;
    GOOD(cudaEventCreate(&fork));
    GOOD(cudaEventCreate(&join));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaEventRecord(fork, stream));
    GOOD(cudaStreamWaitEvent(branch, fork, 0));
    GOOD(cudaMemcpyAsync(device, from, bytes, cudaMemcpyHostToDevice, stream));
    add<<<(count + 255) / 256, 256, 0, stream>>>(device, device, count, 1);
    GOOD(cudaMemcpyAsync(to.data(), device, bytes, cudaMemcpyDeviceToHost, stream));
    // Rows of 10 out of 64 in memory that is not pinned, in a branch.
    GOOD(cudaMemcpy2DAsync(other, 40, rows.data(), 256, 40, 10, cudaMemcpyHostToDevice, branch));
    add<<<1, 100, 0, branch>>>(other, other, 100, 2);
    GOOD(cudaMemcpy2DAsync(rows_to.data(), 256, other, 40, 40, 10, cudaMemcpyDeviceToHost, branch));
    GOOD(cudaEventRecord(join, branch));
    GOOD(cudaStreamWaitEvent(stream, join, 0));
    add<<<(count + 255) / 256, 256, 0, stream>>>(device, device, count, 1000);
    cudaGraph_t graph;
    GOOD(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec;
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 20; round++) {
        for (int at = 0; at < count; at++) {
            from[at] = round * 10000 + at;
        }
        for (int at = 0; at < 640; at++) {
            rows[at] = round * 100 + at;
        }
        GOOD(cudaGraphLaunch(exec, stream));
        GOOD(cudaStreamSynchronize(stream));
        for (int at = 0; at < count; at++) {
            EXPECT(to[at] == round * 10000 + at + 1);
        }
        for (int at = 0; at < 640; at++) {
            EXPECT(rows_to[at] == (at % 64 < 10 ? round * 100 + at + 2 : -1));
        }
    }
    int last = 0;
    GOOD(cudaMemcpy(&last, device, sizeof(last), cudaMemcpyDeviceToHost));
    EXPECT(last == 19 * 10000 + 1001);
    // Launches without a wait between them: what a graph has put into the program's memory is there for the next one.
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    GOOD(cudaMemcpyAsync(device, from, bytes, cudaMemcpyHostToDevice, stream));
    add<<<(count + 255) / 256, 256, 0, stream>>>(device, device, count, 1);
    cudaGraph_t first;
    GOOD(cudaStreamEndCapture(stream, &first));
    cudaGraphExec_t in, out;
    GOOD(cudaGraphInstantiate(&in, first, 0));
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    GOOD(cudaMemcpyAsync(from, device, bytes, cudaMemcpyDeviceToHost, stream));
    cudaGraph_t second;
    GOOD(cudaStreamEndCapture(stream, &second));
    GOOD(cudaGraphInstantiate(&out, second, 0));
    memset(from, 0, bytes);
    for (int round = 0; round < 10; round++) {
        GOOD(cudaGraphLaunch(in, stream));
        GOOD(cudaGraphLaunch(out, stream));
    }
    GOOD(cudaStreamSynchronize(stream));
    for (int at = 0; at < count; at++) {
        EXPECT(from[at] == 10);
    }
    // An instance that is updated takes the copies of its new graph.
    std::vector<int> else_from(count, 70);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    GOOD(cudaMemcpyAsync(device, else_from.data(), bytes, cudaMemcpyHostToDevice, stream));
    add<<<(count + 255) / 256, 256, 0, stream>>>(device, device, count, 1);
    cudaGraph_t third;
    GOOD(cudaStreamEndCapture(stream, &third));
    cudaGraphExecUpdateResultInfo info;
    GOOD(cudaGraphExecUpdate(in, third, &info));
    GOOD(cudaGraphLaunch(in, stream));
    GOOD(cudaGraphLaunch(out, stream));
    GOOD(cudaStreamSynchronize(stream));
    EXPECT(from[0] == 71 && from[count - 1] == 71);
    for (cudaGraph_t one : { graph, first, second, third }) {
        GOOD(cudaGraphDestroy(one));
    }
    for (cudaGraphExec_t one : { exec, in, out }) {
        GOOD(cudaGraphExecDestroy(one));
    }
    GOOD(cudaFreeHost(from));
}

// A graph that brings bytes out and back in: at each launch the copy in takes what the copy out has brought.
static void round_trip() {
    int *host, *device, *other;
    GOOD(cudaMallocHost(&host, 4096));
    GOOD(cudaMalloc(&device, 4096));
    GOOD(cudaMalloc(&other, 4096));
    GOOD(cudaMemset(device, 0, 4096));
    memset(host, 0x55, 4096);
    cudaStream_t stream, second;
    cudaEvent_t fork, join;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaStreamCreate(&second));
    GOOD(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    GOOD(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add<<<4, 256, 0, stream>>>(device, device, 1024, 1);
    GOOD(cudaMemcpyAsync(host, device, 4096, cudaMemcpyDeviceToHost, stream));
    // In another stream, and in part.
    GOOD(cudaEventRecord(fork, stream));
    GOOD(cudaStreamWaitEvent(second, fork, 0));
    GOOD(cudaMemcpyAsync(other, host + 4, 2048, cudaMemcpyHostToDevice, second));
    add<<<2, 256, 0, second>>>(other, other, 512, 10);
    GOOD(cudaMemcpyAsync(host, other, 2048, cudaMemcpyDeviceToHost, second));
    GOOD(cudaEventRecord(join, second));
    GOOD(cudaMemsetAsync(device, 0, 4096, stream));
    GOOD(cudaStreamWaitEvent(stream, join, 0));
    GOOD(cudaMemcpyAsync(device, host, 2048, cudaMemcpyHostToDevice, stream));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    GOOD(cudaStreamEndCapture(stream, &graph));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<int> back(1024);
    for (int round = 1; round <= 4; round++) {
        // Two without a wait between, in streams that wait for each other.
        GOOD(cudaGraphLaunch(exec, stream));
        GOOD(cudaGraphLaunch(exec, second));
        GOOD(cudaDeviceSynchronize());
        GOOD(cudaMemcpy(back.data(), device, 4096, cudaMemcpyDeviceToHost));
        for (int at = 0; at < 1024; at++) {
            // Each launch moves all four places to the front.
            const int launches = at >= 512 ? 0 : (515 - at) / 4;
            EXPECT(back[at] == 11 * (launches < 2 * round ? launches : 2 * round));
        }
        EXPECT(host[0] == 22 * round && host[1023] == 1);
    }
    GOOD(cudaGraphExecDestroy(exec));
    // Out of a graph the same is right: the copy in waits for the copy out.
    std::vector<int> numbers(1024, 0);
    GOOD(cudaMemcpy(device, numbers.data(), 4096, cudaMemcpyHostToDevice));
    for (int round = 0; round < 50; round++) {
        GOOD(cudaMemcpyAsync(host, device, 4096, cudaMemcpyDeviceToHost, stream));
        GOOD(cudaMemcpyAsync(device, host, 4096, cudaMemcpyHostToDevice, stream));
        add<<<4, 256, 0, stream>>>(device, device, 1024, 1);
    }
    GOOD(cudaMemcpy(numbers.data(), device, 4096, cudaMemcpyDeviceToHost));
    check_numbers(numbers, 50);
}

// More bytes than a message holds.
static void large() {
    const int count = 3 << 20;
    std::vector<int> from(count), to(count);
    int * device;
    GOOD(cudaMalloc(&device, count * sizeof(int)));
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaMemcpyAsync(device, from.data(), count * sizeof(int), cudaMemcpyHostToDevice, stream));
    GOOD(cudaMemcpyAsync(to.data(), device, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
    cudaGraph_t graph;
    GOOD(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec;
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 1; round < 4; round++) {
        for (int at = 0; at < count; at++) {
            from[at] = at * round;
        }
        GOOD(cudaGraphLaunch(exec, stream));
        GOOD(cudaStreamSynchronize(stream));
        EXPECT(to == from);
    }
}

static int first_of(const int * memory) {
    int number = -1;
    GOOD(cudaMemcpy(&number, memory, sizeof(number), cudaMemcpyDeviceToHost));
    return number;
}

static cudaKernelNodeParams launch_of(void ** arguments) {
    cudaKernelNodeParams parameters = {};
    parameters.func = (void *) add;
    parameters.gridDim = dim3(4);
    parameters.blockDim = dim3(256);
    parameters.kernelParams = arguments;
    return parameters;
}

// A graph node by node: a diamond with a copy in, a fill, kernels and a copy out.
static void nodes() {
    const int count = 1000, bytes = count * sizeof(int);
    std::vector<int> from(count, 1), to(count, 0), second(count, 0);
    int *a, *b;
    GOOD(cudaMalloc(&a, bytes));
    GOOD(cudaMalloc(&b, bytes));
    cudaGraph_t graph;
    GOOD(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t in, fill, left, right, out, nothing;
    GOOD(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, a, from.data(), bytes, cudaMemcpyHostToDevice));
    cudaMemsetParams set = {};
    set.dst = b;
    set.elementSize = 4;
    set.value = 100;
    set.width = count;
    set.height = 1;
    GOOD(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &set));
    int one = 1, ten = 10, n = count;
    void * left_arguments[] = { &a, &a, &n, &one };
    cudaKernelNodeParams parameters = launch_of(left_arguments);
    GOOD(cudaGraphAddKernelNode(&left, graph, &in, 1, &parameters));
    void * right_arguments[] = { &b, &a, &n, &ten };
    parameters = launch_of(right_arguments);
    GOOD(cudaGraphAddKernelNode(&right, graph, nullptr, 0, &parameters));
    // The dependencies of this one come later.
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(b, bytes, bytes, 1);
    copy.dstPtr = make_cudaPitchedPtr(to.data(), bytes, bytes, 1);
    copy.extent = make_cudaExtent(bytes, 1, 1);
    copy.kind = cudaMemcpyDeviceToHost;
    GOOD(cudaGraphAddMemcpyNode(&out, graph, nullptr, 0, &copy));
    GOOD(cudaGraphAddEmptyNode(&nothing, graph, nullptr, 0));
    cudaGraphNode_t before[] = { left, fill, right, nothing }, after[] = { right, right, nothing, out };
    GOOD(cudaGraphAddDependencies(graph, before, after, nullptr, 4));
    size_t found = 0;
    GOOD(cudaGraphGetNodes(graph, nullptr, &found));
    EXPECT(found == 6);
    cudaGraphNode_t all[10];
    found = 10;
    GOOD(cudaGraphGetNodes(graph, all, &found));
    EXPECT(found == 6 && all[0] == in && all[5] == nothing && all[6] == nullptr);
    GOOD(cudaGraphGetRootNodes(graph, nullptr, &found));
    EXPECT(found == 2);
    GOOD(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &found));
    EXPECT(found == 5);
    GOOD(cudaGraphNodeGetDependencies(right, nullptr, nullptr, &found));
    EXPECT(found == 2);
    cudaGraphNodeType type;
    GOOD(cudaGraphNodeGetType(right, &type));
    EXPECT(type == cudaGraphNodeTypeKernel);
    cudaGraphExec_t exec;
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaStreamSynchronize(stream));
    check_numbers(to, 12);
    from.assign(count, 5);
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaStreamSynchronize(stream));
    check_numbers(to, 16);
    // Another addend in the instance alone, then in the graph, which makes another instance.
    int hundred = 100;
    void * other_arguments[] = { &b, &a, &n, &hundred };
    parameters = launch_of(other_arguments);
    GOOD(cudaGraphExecKernelNodeSetParams(exec, right, &parameters));
    GOOD(cudaGraphExecMemcpyNodeSetParams1D(exec, out, second.data(), b, bytes, cudaMemcpyDeviceToHost));
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaStreamSynchronize(stream));
    check_numbers(second, 106);
    check_numbers(to, 16);
    cudaKernelNodeParams asked = {};
    GOOD(cudaGraphKernelNodeGetParams(right, &asked));
    EXPECT(asked.func == (void *) add && asked.gridDim.x == 4 && *(int *) asked.kernelParams[3] == 10);
    int thousand = 1000;
    void * changed[] = { asked.kernelParams[0], asked.kernelParams[1], asked.kernelParams[2], &thousand };
    asked.kernelParams = changed;
    // A copy of the graph keeps what was.
    cudaGraph_t clone;
    GOOD(cudaGraphClone(&clone, graph));
    GOOD(cudaGraphKernelNodeSetParams(right, &asked));
    cudaGraphExec_t exec_of_graph, exec_of_clone;
    GOOD(cudaGraphInstantiate(&exec_of_graph, graph, 0));
    GOOD(cudaGraphInstantiate(&exec_of_clone, clone, 0));
    GOOD(cudaGraphLaunch(exec_of_graph, stream));
    GOOD(cudaStreamSynchronize(stream));
    check_numbers(to, 1006);
    GOOD(cudaGraphLaunch(exec_of_clone, stream));
    GOOD(cudaStreamSynchronize(stream));
    check_numbers(to, 16);
    cudaGraphNode_t in_clone;
    GOOD(cudaGraphNodeFindInClone(&in_clone, fill, clone));
    GOOD(cudaGraphMemsetNodeGetParams(in_clone, &set));
    EXPECT(set.value == 100 && set.dst == b);
    // Without the copy out nothing comes.
    GOOD(cudaGraphDestroyNode(out));
    GOOD(cudaGraphGetNodes(graph, nullptr, &found));
    EXPECT(found == 5);
    REFUSED(cudaGraphDestroyNode(out), cudaErrorInvalidResourceHandle);
    // A circle is no graph.
    GOOD(cudaGraphAddDependencies(graph, &nothing, &left, nullptr, 1));
    cudaGraphExec_t none;
    REFUSED(cudaGraphInstantiate(&none, graph, 0), cudaErrorInvalidValue);
    GOOD(cudaGraphRemoveDependencies(graph, &nothing, &left, nullptr, 1));
    GOOD(cudaGraphInstantiate(&none, graph, 0));
    // A graph as a node of another.
    cudaGraph_t parent;
    GOOD(cudaGraphCreate(&parent, 0));
    cudaGraphNode_t child, behind;
    GOOD(cudaGraphAddChildGraphNode(&child, parent, nullptr, 0, clone));
    parameters = launch_of(left_arguments);
    GOOD(cudaGraphAddKernelNode(&behind, parent, &child, 1, &parameters));
    cudaGraphExec_t of_parent;
    GOOD(cudaGraphInstantiate(&of_parent, parent, 0));
    from.assign(count, 20);
    GOOD(cudaGraphLaunch(of_parent, stream));
    GOOD(cudaStreamSynchronize(stream));
    check_numbers(to, 31);
    EXPECT(first_of(a) == 22);
    for (cudaGraph_t one : { graph, clone, parent }) {
        GOOD(cudaGraphDestroy(one));
    }
}

// Nodes of what was captured, and captures into graphs that are there.
static void captured() {
    const int count = 1000, bytes = count * sizeof(int);
    int *a, *b;
    GOOD(cudaMalloc(&a, bytes));
    GOOD(cudaMalloc(&b, bytes));
    GOOD(cudaMemset(a, 0, bytes));
    cudaStream_t stream, branch;
    cudaEvent_t fork, join;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaStreamCreate(&branch));
    GOOD(cudaEventCreate(&fork));
    GOOD(cudaEventCreate(&join));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add<<<4, 256, 0, stream>>>(a, a, count, 1);
    GOOD(cudaEventRecord(fork, stream));
    GOOD(cudaStreamWaitEvent(branch, fork, 0));
    add<<<4, 256, 0, branch>>>(b, a, count, 2);
    cudaStreamCaptureStatus status;
    unsigned long long id = 0;
    cudaGraph_t going;
    const cudaGraphNode_t * behind;
    size_t found = 0;
    GOOD(cudaStreamGetCaptureInfo(branch, &status, &id, &going, &behind, nullptr, &found));
    EXPECT(status == cudaStreamCaptureStatusActive && id != 0 && going != nullptr && found == 1);
    // A node by hand in the middle, behind the branch, which the branch goes on behind.
    cudaGraphNode_t by_hand;
    int seven = 7, n = count;
    void * arguments[] = { &b, &b, &n, &seven };
    cudaKernelNodeParams parameters = launch_of(arguments);
    GOOD(cudaGraphAddKernelNode(&by_hand, going, behind, found, &parameters));
    GOOD(cudaStreamUpdateCaptureDependencies(branch, &by_hand, nullptr, 1, cudaStreamSetCaptureDependencies));
    GOOD(cudaEventRecord(join, branch));
    add<<<4, 256, 0, stream>>>(a, a, count, 10);
    GOOD(cudaStreamWaitEvent(stream, join, 0));
    add<<<4, 256, 0, stream>>>(a, b, count, 100);
    cudaGraph_t graph;
    GOOD(cudaStreamEndCapture(stream, &graph));
    EXPECT(graph == going);
    cudaGraphNode_t all[8];
    found = 8;
    GOOD(cudaGraphGetNodes(graph, all, &found));
    EXPECT(found == 5);
    cudaGraphExec_t exec;
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    GOOD(cudaGraphLaunch(exec, stream));
    EXPECT(first_of(b) == 10 && first_of(a) == 110);
    // The first kernel of a graph that was captured adds another number.
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add<<<4, 256, 0, stream>>>(a, b, count, 1);
    add<<<4, 256, 0, stream>>>(b, a, count, 1);
    cudaGraph_t plain;
    GOOD(cudaStreamEndCapture(stream, &plain));
    cudaGraphExec_t second;
    GOOD(cudaGraphInstantiate(&second, plain, 0));
    found = 8;
    GOOD(cudaGraphGetNodes(plain, all, &found));
    EXPECT(found == 2);
    cudaKernelNodeParams asked = {};
    GOOD(cudaGraphKernelNodeGetParams(all[0], &asked));
    EXPECT(asked.func == (void *) add && asked.blockDim.x == 256 && *(int *) asked.kernelParams[3] == 1);
    int fifty = 50;
    void * changed[] = { asked.kernelParams[0], asked.kernelParams[1], asked.kernelParams[2], &fifty };
    asked.kernelParams = changed;
    GOOD(cudaGraphExecKernelNodeSetParams(second, all[0], &asked));
    GOOD(cudaMemset(b, 0, bytes));
    GOOD(cudaGraphLaunch(second, stream));
    EXPECT(first_of(a) == 50 && first_of(b) == 51);
    GOOD(cudaGraphExecKernelNodeSetParams(second, all[1], &asked));
    GOOD(cudaMemset(b, 0, bytes));
    GOOD(cudaGraphLaunch(second, stream));
    EXPECT(first_of(a) == 50 && first_of(b) == 0);
    // Into a graph that is there, behind its last node.
    GOOD(cudaStreamBeginCaptureToGraph(stream, plain, &all[1], nullptr, 1, cudaStreamCaptureModeGlobal));
    add<<<4, 256, 0, stream>>>(b, b, count, 1000);
    cudaGraph_t same;
    GOOD(cudaStreamEndCapture(stream, &same));
    EXPECT(same == plain);
    GOOD(cudaGraphGetNodes(plain, nullptr, &found));
    EXPECT(found == 3);
    cudaGraphExec_t third;
    GOOD(cudaGraphInstantiate(&third, plain, 0));
    GOOD(cudaMemset(b, 0, bytes));
    GOOD(cudaGraphLaunch(third, stream));
    EXPECT(first_of(a) == 1 && first_of(b) == 1002);
    GOOD(cudaGraphExecDestroy(exec));
    GOOD(cudaGraphDestroy(graph));
    GOOD(cudaGraphDestroy(plain));
    GOOD(cudaGraphLaunch(third, stream));
    GOOD(cudaStreamSynchronize(stream));
}

int main(int count, char ** words) {
    const part parts[] = { { "replays", replays }, { "round_trip", round_trip }, { "large", large },
                           { "nodes", nodes }, { "captured", captured } };
    return run_parts(parts, count, words);
}
