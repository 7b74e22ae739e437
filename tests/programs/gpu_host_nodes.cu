// Functions of the program in graphs: captured and by nodes, behind the work before them and before the work behind them, at every launch.
#include <atomic>
#include <chrono>
#include <thread>

#include <unistd.h>

#include <cuda.h>

#include "gpu_check.h"

__global__ void add(int * numbers, int addend) {
    numbers[threadIdx.x] += addend;
}

// Long enough that a function can be called too early.
__global__ void add_slowly(int * numbers, int addend, int rounds) {
    for (int round = 0; round < rounds; round++) {
        numbers[threadIdx.x] += addend;
    }
}

static const int COUNT = 32;
static const size_t BYTES = COUNT * sizeof(int);
// Long enough for any machine: it ends the test and not the wait.
static const int SECONDS = 60;

struct things {
    cudaStream_t stream, other;
    cudaEvent_t fork, join;
    int *numbers, *here;

    things() {
        GOOD(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        GOOD(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        GOOD(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
        GOOD(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
        GOOD(cudaMalloc(&numbers, BYTES));
        GOOD(cudaMallocHost(&here, BYTES));
        clear();
        memset(here, 0, BYTES);
    }

    void clear() const {
        GOOD(cudaMemset(numbers, 0, BYTES));
        // The streams do not wait for the default stream.
        GOOD(cudaDeviceSynchronize());
    }

    int first() const {
        int seen = -1;
        GOOD(cudaMemcpy(&seen, numbers, sizeof seen, cudaMemcpyDeviceToHost));
        return seen;
    }

    cudaGraphExec_t end() const {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        GOOD(cudaStreamEndCapture(stream, &graph));
        GOOD(cudaGraphInstantiate(&exec, graph, 0));
        GOOD(cudaGraphDestroy(graph));
        return exec;
    }

    void run(cudaGraphExec_t exec) const {
        GOOD(cudaGraphLaunch(exec, stream));
        GOOD(cudaStreamSynchronize(stream));
    }
};

// What a function does: looks at all numbers, changes them, and counts.
struct looks {
    int * here;
    int seen = -1, calls = 0;
    pid_t process = 0;
    bool is_even = true;

    explicit looks(int * numbers) : here(numbers) {}

    static void call(void * data) {
        looks & of = *(looks *) data;
        of.seen = of.here[0];
        for (int at = 0; at < COUNT; at++) {
            of.is_even = of.is_even && of.here[at] == of.seen;
            of.here[at] *= 10;
        }
        of.calls++;
        of.process = getpid();
    }
};

// Work, bytes that come, a function that changes them, the bytes back, and work: with the memory of the moment at each launch.
static void captured() {
    things of;
    looks data(of.here);
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    add_slowly<<<1, COUNT, 0, of.stream>>>(of.numbers, 1, 2000);
    GOOD(cudaMemcpyAsync(of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost, of.stream));
    GOOD(cudaLaunchHostFunc(of.stream, looks::call, &data));
    GOOD(cudaMemcpyAsync(of.numbers, of.here, BYTES, cudaMemcpyHostToDevice, of.stream));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 5);
    cudaGraphExec_t exec = of.end();
    EXPECT(data.calls == 0);
    int right = 0;
    for (int round = 1; round <= 4; round++) {
        of.run(exec);
        EXPECT(data.calls == round && data.process == getpid() && data.is_even);
        EXPECT(data.seen == right + 2000);
        right = (right + 2000) * 10 + 5;
        EXPECT(of.first() == right);
    }
    // One behind the other without a wait between.
    for (int round = 0; round < 3; round++) {
        GOOD(cudaGraphLaunch(exec, of.stream));
        right = (right + 2000) * 10 + 5;
    }
    GOOD(cudaDeviceSynchronize());
    EXPECT(data.calls == 7 && of.first() == right);
    GOOD(cudaGraphExecDestroy(exec));
}

static std::vector<int> order;

static void note(void * data) {
    order.push_back((int) (size_t) data);
}

// Functions at both ends, several in turn, in a graph that does nothing else, and in streams that part and meet.
static void places() {
    things of;
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaLaunchHostFunc(of.stream, note, (void *) 1));
    GOOD(cudaLaunchHostFunc(of.stream, note, (void *) 2));
    cudaGraphExec_t exec = of.end();
    of.run(exec);
    EXPECT((order == std::vector<int> { 1, 2 }));
    order.clear();
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaLaunchHostFunc(of.stream, note, (void *) 1));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 1);
    GOOD(cudaEventRecord(of.fork, of.stream));
    GOOD(cudaStreamWaitEvent(of.other, of.fork, 0));
    add<<<1, COUNT, 0, of.other>>>(of.numbers, 10);
    GOOD(cudaLaunchHostFunc(of.other, note, (void *) 2));
    add_slowly<<<1, COUNT, 0, of.other>>>(of.numbers, 1, 100);
    GOOD(cudaMemcpyAsync(of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost, of.other));
    GOOD(cudaEventRecord(of.join, of.other));
    GOOD(cudaStreamWaitEvent(of.stream, of.join, 0));
    looks data(of.here);
    GOOD(cudaLaunchHostFunc(of.stream, looks::call, &data));
    GOOD(cudaLaunchHostFunc(of.stream, note, (void *) 3));
    cudaGraph_t graph;
    GOOD(cudaStreamEndCapture(of.stream, &graph));
    size_t count = 0;
    GOOD(cudaGraphGetNodes(graph, nullptr, &count));
    EXPECT(count == 8);
    cudaGraphNode_t nodes[8];
    int hosts = 0;
    GOOD(cudaGraphGetNodes(graph, nodes, &count));
    for (auto node : nodes) {
        cudaGraphNodeType kind;
        cudaHostNodeParams given = {};
        GOOD(cudaGraphNodeGetType(node, &kind));
        if (kind == cudaGraphNodeTypeHost) {
            hosts++;
            GOOD(cudaGraphHostNodeGetParams(node, &given));
            EXPECT(given.fn == note || (given.fn == looks::call && given.userData == &data));
        } else {
            REFUSED(cudaGraphHostNodeGetParams(node, &given), cudaErrorInvalidValue);
        }
    }
    EXPECT(hosts == 4);
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 1; round <= 3; round++) {
        of.run(exec);
        EXPECT(order == (std::vector<int> { 1, 2, 3 }) && data.seen == 111 * round && data.calls == round);
        order.clear();
    }
}

// By nodes, which are changed in the graph and in an instance.
static void made() {
    things of;
    looks data(of.here), late(of.here), other(of.here);
    int one = 1;
    void * arguments[] = { &of.numbers, &one };
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *) add;
    kernel.gridDim = dim3(1);
    kernel.blockDim = dim3(COUNT);
    kernel.kernelParams = arguments;
    cudaGraph_t graph, clone, parent, child_of;
    cudaGraphNode_t first, out, host, in, plain, child, found;
    cudaGraphExec_t exec, of_clone, of_parent;
    GOOD(cudaGraphCreate(&graph, 0));
    GOOD(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &kernel));
    GOOD(cudaGraphAddMemcpyNode1D(&out, graph, &first, 1, of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost));
    cudaHostNodeParams given = { looks::call, &data };
    GOOD(cudaGraphAddHostNode(&host, graph, &out, 1, &given));
    GOOD(cudaGraphAddMemcpyNode1D(&in, graph, &host, 1, of.numbers, of.here, BYTES, cudaMemcpyHostToDevice));
    GOOD(cudaGraphAddKernelNode(&plain, graph, &in, 1, &kernel));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    of.run(exec);
    EXPECT(data.seen == 1 && of.first() == 11);
    // In the instance alone.
    given.userData = &late;
    GOOD(cudaGraphExecHostNodeSetParams(exec, host, &given));
    of.run(exec);
    EXPECT(late.seen == 12 && data.calls == 1 && of.first() == 121);
    GOOD(cudaGraphHostNodeGetParams(host, &given));
    EXPECT(given.fn == looks::call && given.userData == &data);
    // In the graph, of which there is a copy, and another graph has a child that is launched.
    GOOD(cudaGraphClone(&clone, graph));
    GOOD(cudaGraphNodeFindInClone(&found, host, clone));
    given.userData = &other;
    GOOD(cudaGraphHostNodeSetParams(found, &given));
    GOOD(cudaGraphInstantiate(&of_clone, clone, 0));
    of.clear();
    of.run(of_clone);
    EXPECT(other.seen == 1 && data.calls == 1 && of.first() == 11);
    GOOD(cudaGraphCreate(&parent, 0));
    GOOD(cudaGraphAddChildGraphNode(&child, parent, nullptr, 0, clone));
    GOOD(cudaGraphAddChildGraphNode(&found, parent, &child, 1, graph));
    GOOD(cudaGraphInstantiate(&of_parent, parent, 0));
    of.run(of_parent);
    EXPECT(other.seen == 12 && data.seen == 122 && of.first() == 1221);
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeRelaxed));
    GOOD(cudaMemsetAsync(of.numbers, 0, BYTES, of.stream));
    GOOD(cudaGraphLaunch(of_parent, of.stream));
    GOOD(cudaGraphLaunch(exec, of.stream));
    GOOD(cudaStreamEndCapture(of.stream, &child_of));
    // An instance with functions becomes one with fewer, one without any, and one with more.
    GOOD(cudaGraphExecUpdate(of_parent, child_of, nullptr));
    of.run(of_parent);
    EXPECT(other.seen == 1 && data.seen == 12 && late.seen == 122 && of.first() == 1221);
    const int calls = data.calls + late.calls + other.calls;
    GOOD(cudaGraphExecUpdate(of_parent, graph, nullptr));
    of.run(of_parent);
    EXPECT(data.seen == 1222 && data.calls + late.calls + other.calls == calls + 1);
    GOOD(cudaGraphDestroyNode(host));
    GOOD(cudaGraphDestroyNode(in));
    GOOD(cudaGraphAddDependencies(graph, &out, &plain, nullptr, 1));
    GOOD(cudaGraphExecUpdate(of_parent, graph, nullptr));
    of.run(of_parent);
    EXPECT(of.here[0] == 12222 && data.calls + late.calls + other.calls == calls + 1);
    GOOD(cudaGraphExecUpdate(of_parent, child_of, nullptr));
    of.run(of_parent);
    EXPECT(of.first() == 1221 && data.calls + late.calls + other.calls == calls + 4);
    for (auto one_of : { exec, of_clone, of_parent }) {
        GOOD(cudaGraphExecDestroy(one_of));
    }
}

struct gate {
    std::atomic<bool> is_called { false }, is_open { false };
    bool was_open = false;

    static void wait(void * data) {
        gate & of = *(gate *) data;
        of.is_called = true;
        for (int tries = 0; tries < SECONDS * 1000 && !of.is_open; tries++) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        of.was_open = of.is_open;
    }
};

// A launch does not wait for the function that nothing of the graph is behind; work that is put behind it does, and the stream is not done before.
static void waits() {
    things of;
    gate last, between;
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 1);
    GOOD(cudaLaunchHostFunc(of.stream, gate::wait, &last));
    cudaGraphExec_t exec = of.end();
    GOOD(cudaGraphLaunch(exec, of.stream));
    EXPECT(cudaStreamQuery(of.stream) == cudaErrorNotReady);
    // Which is no error that is kept.
    EXPECT(cudaPeekAtLastError() == cudaSuccess);
    last.is_open = true;
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 1);
    EXPECT(last.was_open);
    GOOD(cudaStreamSynchronize(of.stream));
    EXPECT(of.first() == 2);
    // Nor where the streams have parted and met before it.
    gate met;
    of.clear();
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaEventRecord(of.fork, of.stream));
    GOOD(cudaStreamWaitEvent(of.other, of.fork, 0));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 1);
    add<<<1, COUNT, 0, of.other>>>(of.numbers, 1);
    GOOD(cudaEventRecord(of.join, of.other));
    GOOD(cudaStreamWaitEvent(of.stream, of.join, 0));
    GOOD(cudaLaunchHostFunc(of.stream, gate::wait, &met));
    exec = of.end();
    GOOD(cudaGraphLaunch(exec, of.stream));
    EXPECT(cudaStreamQuery(of.stream) == cudaErrorNotReady);
    met.is_open = true;
    GOOD(cudaStreamSynchronize(of.stream));
    EXPECT(met.was_open && of.first() == 2);
    // Records for others behind a function are records of this launch.
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaLaunchHostFunc(of.stream, gate::wait, &between));
    add_slowly<<<1, COUNT, 0, of.stream>>>(of.numbers, 1, 2000);
    GOOD(cudaMemcpyAsync(of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost, of.stream));
    GOOD(cudaEventRecordWithFlags(of.join, of.stream, cudaEventRecordExternal));
    exec = of.end();
    std::thread opens([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        between.is_open = true;
    });
    GOOD(cudaGraphLaunch(exec, of.stream));
    GOOD(cudaEventSynchronize(of.join));
    opens.join();
    EXPECT(between.was_open);
    GOOD(cudaStreamSynchronize(of.stream));
    EXPECT(of.here[0] == 2002);
}

// A launch is behind the one before it, in whatever stream that was, also when one of the two calls no functions.
static void streams() {
    things of;
    looks data(of.here);
    int one = 1, right = 0;
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, one);
    GOOD(cudaMemcpyAsync(of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost, of.stream));
    GOOD(cudaLaunchHostFunc(of.stream, looks::call, &data));
    GOOD(cudaMemcpyAsync(of.numbers, of.here, BYTES, cudaMemcpyHostToDevice, of.stream));
    add_slowly<<<1, COUNT, 0, of.stream>>>(of.numbers, one, 2000);
    cudaGraphExec_t exec = of.end();
    cudaGraph_t plain;
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 5);
    GOOD(cudaStreamEndCapture(of.stream, &plain));
    for (int round = 1; round <= 3; round++) {
        GOOD(cudaGraphLaunch(exec, of.stream));
        GOOD(cudaGraphLaunch(exec, of.other));
        GOOD(cudaStreamSynchronize(of.other));
        for (int launch = 0; launch < 2; launch++) {
            right = (right + 1) * 10 + 2000;
        }
        EXPECT(data.calls == 2 * round && data.is_even && of.first() == right);
    }
    GOOD(cudaGraphLaunch(exec, of.stream));
    GOOD(cudaGraphExecUpdate(exec, plain, nullptr));
    GOOD(cudaGraphLaunch(exec, of.other));
    GOOD(cudaStreamSynchronize(of.other));
    EXPECT(of.first() == (right + 1) * 10 + 2005);
    // The stream of the launch before may have gone.
    cudaStream_t gone;
    GOOD(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
    of.clear();
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaLaunchHostFunc(of.stream, looks::call, &data));
    add_slowly<<<1, COUNT, 0, of.stream>>>(of.numbers, one, 2000);
    exec = of.end();
    GOOD(cudaGraphLaunch(exec, gone));
    GOOD(cudaStreamDestroy(gone));
    of.run(exec);
    EXPECT(of.first() == 4000);
}

// Between a function and the commands behind it the stream is not done for another thread either, whose work comes behind the launch.
static void threads() {
    things of;
    std::atomic<int> begun { 0 };
    const int rounds = 100;
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaLaunchHostFunc(of.stream, [](void * data) { ++*(std::atomic<int> *) data; }, &begun));
    add_slowly<<<1, COUNT, 0, of.stream>>>(of.numbers, 1, 100);
    GOOD(cudaMemcpyAsync(of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost, of.stream));
    cudaGraphExec_t exec = of.end();
    for (int round = 1; round <= rounds; round++) {
        std::thread waits([&] {
            while (begun < round) {
            }
            if (round % 2) {
                GOOD(cudaStreamSynchronize(of.stream));
            } else {
                while (cudaStreamQuery(of.stream) == cudaErrorNotReady) {
                }
            }
            EXPECT(of.here[0] == 100 * round);
        });
        GOOD(cudaGraphLaunch(exec, of.stream));
        waits.join();
    }
    // Two launches into streams that wait for each other.
    cudaStream_t blocking;
    cudaGraphExec_t second;
    GOOD(cudaStreamCreate(&blocking));
    of.clear();
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaLaunchHostFunc(of.stream, [](void * data) { ++*(std::atomic<int> *) data; }, &begun));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 1);
    GOOD(cudaLaunchHostFunc(of.stream, [](void * data) { ++*(std::atomic<int> *) data; }, &begun));
    second = of.end();
    const auto launches = [&](cudaGraphExec_t one, cudaStream_t stream) {
        for (int round = 0; round < rounds; round++) {
            GOOD(cudaGraphLaunch(one, stream));
        }
        GOOD(cudaStreamSynchronize(stream));
    };
    std::thread other([&] { launches(second, blocking); });
    launches(exec, nullptr);
    other.join();
    GOOD(cudaDeviceSynchronize());
    EXPECT(of.first() == 101 * rounds && begun == 4 * rounds);
}

static cudaError_t told[6];
static cudaGraphExec_t own;
static cudaGraph_t of_own;

static void calls_cuda(void * data) {
    things & of = *(things *) data;
    told[0] = cudaMemsetAsync(of.numbers, 1, BYTES, of.stream);
    told[1] = cudaLaunchHostFunc(of.stream, note, nullptr);
    told[2] = cudaStreamSynchronize(of.stream);
    // The launch that the function is of is not over.
    told[3] = cudaGraphExecDestroy(own);
    told[4] = cudaGraphExecUpdate(own, of_own, nullptr);
    told[5] = cudaGraphLaunch(own, of.stream);
}

static void refused() {
    things of;
    cudaGraph_t graph;
    cudaGraphNode_t node;
    cudaHostNodeParams none = {};
    GOOD(cudaGraphCreate(&graph, 0));
    REFUSED(cudaGraphAddHostNode(&node, graph, nullptr, 0, &none), cudaErrorInvalidValue);
    REFUSED(cudaGraphAddHostNode(&node, graph, nullptr, 0, nullptr), cudaErrorInvalidValue);
    cudaGraphNodeParams given = { cudaGraphNodeTypeHost };
    REFUSED(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &given), cudaErrorInvalidValue);
    given.host.fn = note;
    given.host.userData = (void *) 9;
    GOOD(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &given));
    GOOD(cudaGraphHostNodeGetParams(node, &none));
    EXPECT(none.fn == note && none.userData == (void *) 9);
    // Functions of this kind cannot be captured, and those in graphs may not call CUDA, as none may.
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    const auto callback = [](cudaStream_t, cudaError_t, void *) {};
    REFUSED(cudaStreamAddCallback(of.stream, callback, nullptr, 0), cudaErrorStreamCaptureUnsupported);
    REFUSED(cudaStreamEndCapture(of.stream, &graph), cudaErrorStreamCaptureInvalidated);
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaLaunchHostFunc(of.stream, calls_cuda, &of));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 1);
    GOOD(cudaStreamEndCapture(of.stream, &of_own));
    GOOD(cudaGraphInstantiate(&own, of_own, 0));
    of.run(own);
    for (auto code : told) {
        EXPECT(code == cudaErrorNotPermitted);
    }
    EXPECT(of.first() == 1);
    GOOD(cudaGraphExecDestroy(own));
}

// A copy to a device reads what an earlier one brings, which was said of the instance alone.
static void landed() {
    things of;
    int * elsewhere;
    cudaGraph_t graph;
    cudaGraphNode_t out, in;
    cudaGraphExec_t exec;
    GOOD(cudaMallocHost(&elsewhere, BYTES));
    GOOD(cudaGraphCreate(&graph, 0));
    GOOD(cudaGraphAddMemcpyNode1D(&out, graph, nullptr, 0, of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost));
    GOOD(cudaGraphAddMemcpyNode1D(&in, graph, &out, 1, of.numbers, elsewhere, BYTES, cudaMemcpyHostToDevice));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    memset(elsewhere, 0, BYTES);
    of.run(exec);
    EXPECT(of.first() == 0);
    GOOD(cudaGraphExecMemcpyNodeSetParams1D(exec, in, of.numbers, of.here, BYTES, cudaMemcpyHostToDevice));
    GOOD(cudaMemset(of.numbers, 1, BYTES));
    GOOD(cudaDeviceSynchronize());
    of.run(exec);
    EXPECT(of.here[0] == 0x1010101 && of.first() == 0x1010101);
    // The same of a graph that was captured into two streams.
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaEventRecord(of.fork, of.stream));
    GOOD(cudaStreamWaitEvent(of.other, of.fork, 0));
    add_slowly<<<1, COUNT, 0, of.other>>>(of.numbers, 1, 2000);
    GOOD(cudaMemcpyAsync(of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost, of.other));
    GOOD(cudaEventRecord(of.join, of.other));
    GOOD(cudaStreamWaitEvent(of.stream, of.join, 0));
    GOOD(cudaMemcpyAsync(of.numbers, elsewhere, BYTES, cudaMemcpyHostToDevice, of.stream));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 5);
    GOOD(cudaStreamEndCapture(of.stream, &graph));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    size_t count = 4;
    cudaGraphNode_t nodes[4];
    GOOD(cudaGraphGetNodes(graph, nodes, &count));
    EXPECT(count == 4);
    of.clear();
    of.run(exec);
    EXPECT(of.here[0] == 2000 && of.first() == 5);
    GOOD(cudaGraphExecMemcpyNodeSetParams1D(exec, nodes[2], of.numbers, of.here, BYTES, cudaMemcpyHostToDevice));
    for (int round = 1; round <= 3; round++) {
        of.run(exec);
        EXPECT(of.first() == 5 + 2005 * round);
    }
}

// A function may wait for what another thread does with the instance that calls it: this launch goes on with what the instance was, and the next one is as it is then.
static void changed() {
    things of;
    gate opens, ends;
    cudaGraph_t split, plain;
    cudaGraphExec_t exec;
    const auto captured = [&](gate & waits) {
        GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
        add<<<1, COUNT, 0, of.stream>>>(of.numbers, 1);
        GOOD(cudaLaunchHostFunc(of.stream, gate::wait, &waits));
        add_slowly<<<1, COUNT, 0, of.stream>>>(of.numbers, 10, 200);
        cudaGraph_t graph;
        GOOD(cudaStreamEndCapture(of.stream, &graph));
        return graph;
    };
    split = captured(opens);
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 3);
    GOOD(cudaStreamEndCapture(of.stream, &plain));
    GOOD(cudaGraphInstantiate(&exec, split, 0));
    const auto in_launch = [](gate & of, const auto & work) {
        return std::thread([&of, work] {
            while (!of.is_called) {
            }
            work();
            of.is_open = true;
        });
    };
    std::thread updates = in_launch(opens, [&] { GOOD(cudaGraphExecUpdate(exec, plain, nullptr)); });
    GOOD(cudaGraphLaunch(exec, of.stream));
    updates.join();
    EXPECT(opens.was_open);
    GOOD(cudaGraphLaunch(exec, of.other));
    GOOD(cudaStreamSynchronize(of.other));
    EXPECT(of.first() == 2004);
    cudaGraph_t last = captured(ends);
    GOOD(cudaGraphExecUpdate(exec, last, nullptr));
    std::thread destroys = in_launch(ends, [&] { GOOD(cudaGraphExecDestroy(exec)); });
    GOOD(cudaGraphLaunch(exec, of.stream));
    destroys.join();
    EXPECT(ends.was_open);
    GOOD(cudaStreamSynchronize(of.stream));
    EXPECT(of.first() == 4005);
    REFUSED(cudaGraphLaunch(exec, of.stream), cudaErrorInvalidResourceHandle);
}

// A launch that has begun goes on to its end, whatever another thread captures meanwhile that the stream would have to wait for.
static void begun() {
    things of;
    gate opens;
    cudaStream_t blocking;
    cudaGraph_t plain;
    GOOD(cudaStreamCreate(&blocking));
    GOOD(cudaStreamBeginCapture(of.stream, cudaStreamCaptureModeGlobal));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 1);
    GOOD(cudaLaunchHostFunc(of.stream, gate::wait, &opens));
    add<<<1, COUNT, 0, of.stream>>>(of.numbers, 20);
    GOOD(cudaMemcpyAsync(of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost, of.stream));
    GOOD(cudaLaunchHostFunc(of.stream, note, nullptr));
    cudaGraphExec_t exec = of.end();
    std::atomic<bool> is_launched { false };
    std::thread captures([&] {
        while (!opens.is_called) {
        }
        GOOD(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
        opens.is_open = true;
        while (!is_launched) {
        }
        GOOD(cudaStreamEndCapture(blocking, &plain));
    });
    cudaError_t launched = cudaGraphLaunch(exec, nullptr);
    is_launched = true;
    captures.join();
    GOOD(launched);
    EXPECT(opens.was_open);
    GOOD(cudaStreamSynchronize(nullptr));
    EXPECT(of.here[0] == 21 && of.first() == 21);
}

int main(int count, char ** words) {
    const part parts[] = {
        { "captured", captured }, { "places", places }, { "made", made }, { "waits", waits },
        { "streams", streams }, { "threads", threads }, { "refused", refused },
        { "landed", landed }, { "changed", changed }, { "begun", begun },
    };
    return run_parts(parts, count, words);
}
