// Objects of the program that graphs keep: each ends once, when neither the program nor a graph nor an instance has it, and no work that it was for is left.
#include <atomic>
#include <chrono>
#include <thread>

#include <cuda.h>

#include "gpu_check.h"

__global__ void add_slowly(int * numbers, int addend, int rounds) {
    for (int round = 0; round < rounds; round++) {
        numbers[threadIdx.x] += addend;
    }
}

static const int COUNT = 32;
static const size_t BYTES = COUNT * sizeof(int);
// Long enough for any machine: it ends the test and not the wait.
static const int SECONDS = 60;
static const unsigned NO_SYNC = cudaUserObjectNoDestructorSync;

struct counted {
    std::atomic<int> ends { 0 };
    std::atomic<bool> saw_the_end { false };
    const int * here = nullptr;
    int right = 0;
    cudaError_t told = cudaSuccess;
    std::thread::id thread;

    static void end(void * data) {
        counted & of = *(counted *) data;
        if (of.here) {
            of.saw_the_end = *of.here == of.right;
        }
        of.told = cudaLaunchHostFunc(nullptr, [](void *) {}, nullptr);
        of.thread = std::this_thread::get_id();
        of.ends++;
    }

    void expect_end() const {
        for (int tries = 0; tries < SECONDS * 1000 && ends == 0; tries++) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        EXPECT(ends == 1);
    }

    // Whatever was to come has come by then: objects end one after the other.
    void expect_none() const {
        counted last;
        cudaUserObject_t object;
        GOOD(cudaUserObjectCreate(&object, &last, counted::end, 1, NO_SYNC));
        GOOD(cudaUserObjectRelease(object, 1));
        last.expect_end();
        EXPECT(ends == 0);
    }
};

static cudaStream_t new_stream() {
    cudaStream_t stream;
    GOOD(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

// References of the program alone.
static void counts() {
    counted data;
    cudaUserObject_t object;
    cudaStream_t stream = new_stream();
    REFUSED(cudaUserObjectCreate(&object, &data, counted::end, 1, 0), cudaErrorInvalidValue);
    REFUSED(cudaUserObjectCreate(&object, &data, counted::end, 0, NO_SYNC), cudaErrorInvalidValue);
    REFUSED(cudaUserObjectCreate(&object, &data, nullptr, 1, NO_SYNC), cudaErrorInvalidValue);
    REFUSED(cudaUserObjectCreate(nullptr, &data, counted::end, 1, NO_SYNC), cudaErrorInvalidValue);
    GOOD(cudaUserObjectCreate(&object, &data, counted::end, 2, NO_SYNC));
    GOOD(cudaUserObjectRetain(object, 3));
    REFUSED(cudaUserObjectRelease(object, 6), cudaErrorInvalidValue);
    REFUSED(cudaUserObjectRelease(object, 0), cudaErrorInvalidValue);
    GOOD(cudaUserObjectRelease(object, 4));
    data.expect_none();
    GOOD(cudaUserObjectRelease(object, 1));
    data.expect_end();
    EXPECT(data.thread != std::this_thread::get_id() && data.told == cudaErrorNotPermitted);
    REFUSED(cudaUserObjectRelease(object, 1), cudaErrorInvalidValue);
    REFUSED(cudaUserObjectRetain(object, 1), cudaErrorInvalidValue);
}

// A graph, its copy, the graph that has it as a node, and an instance, which goes last.
static void graphs() {
    counted data;
    cudaUserObject_t object;
    cudaGraph_t graph, clone, parent, empty;
    cudaGraphNode_t node;
    cudaGraphExec_t exec;
    cudaStream_t stream = new_stream();
    GOOD(cudaUserObjectCreate(&object, &data, counted::end, 2, NO_SYNC));
    GOOD(cudaGraphCreate(&graph, 0));
    REFUSED(cudaGraphRetainUserObject(graph, object, 3, cudaGraphUserObjectMove), cudaErrorInvalidValue);
    REFUSED(cudaGraphRetainUserObject(graph, object, 1, 2), cudaErrorInvalidValue);
    GOOD(cudaGraphRetainUserObject(graph, object, 2, cudaGraphUserObjectMove));
    REFUSED(cudaUserObjectRelease(object, 1), cudaErrorInvalidValue);
    GOOD(cudaGraphRetainUserObject(graph, object, 1, 0));
    REFUSED(cudaGraphReleaseUserObject(graph, object, 4), cudaErrorInvalidValue);
    GOOD(cudaGraphReleaseUserObject(graph, object, 2));
    GOOD(cudaGraphClone(&clone, graph));
    GOOD(cudaGraphReleaseUserObject(graph, object, 1));
    REFUSED(cudaGraphReleaseUserObject(graph, object, 1), cudaErrorInvalidValue);
    GOOD(cudaGraphCreate(&parent, 0));
    GOOD(cudaGraphCreate(&empty, 0));
    GOOD(cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, clone));
    GOOD(cudaGraphDestroy(clone));
    GOOD(cudaGraphInstantiate(&exec, parent, 0));
    GOOD(cudaGraphDestroy(parent));
    GOOD(cudaGraphLaunch(exec, stream));
    data.expect_none();
    // What the instance does then does not need it.
    GOOD(cudaGraphExecUpdate(exec, empty, nullptr));
    data.expect_end();
    GOOD(cudaGraphExecDestroy(exec));
    GOOD(cudaGraphDestroy(graph));
    // With a node that is taken out of a graph which stays.
    counted late;
    GOOD(cudaUserObjectCreate(&object, &late, counted::end, 1, NO_SYNC));
    GOOD(cudaGraphCreate(&graph, 0));
    GOOD(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    GOOD(cudaGraphAddChildGraphNode(&node, empty, nullptr, 0, graph));
    GOOD(cudaGraphDestroy(graph));
    late.expect_none();
    GOOD(cudaGraphDestroyNode(node));
    late.expect_end();
}

// As allocators and libraries do it: given to the graph of a capture, and gone when the instance and its work are.
static void captured() {
    counted data;
    int *numbers, *here, rounds = 20000;
    cudaUserObject_t object;
    cudaStream_t stream = new_stream();
    GOOD(cudaMalloc(&numbers, BYTES));
    GOOD(cudaMallocHost(&here, BYTES));
    GOOD(cudaMemset(numbers, 0, BYTES));
    GOOD(cudaDeviceSynchronize());
    *here = -1;
    data.here = here;
    data.right = 2 * rounds;
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    cudaStreamCaptureStatus status;
    cudaGraph_t graph, ended;
    GOOD(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr));
    GOOD(cudaUserObjectCreate(&object, &data, counted::end, 1, NO_SYNC));
    GOOD(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    add_slowly<<<1, COUNT, 0, stream>>>(numbers, 1, rounds);
    GOOD(cudaMemcpyAsync(here, numbers, BYTES, cudaMemcpyDeviceToHost, stream));
    GOOD(cudaStreamEndCapture(stream, &ended));
    EXPECT(ended == graph);
    cudaGraphExec_t exec;
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    GOOD(cudaGraphDestroy(graph));
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaGraphExecDestroy(exec));
    data.expect_end();
    EXPECT(data.saw_the_end);
    // A capture that fails lets go of it.
    counted other;
    GOOD(cudaUserObjectCreate(&object, &other, counted::end, 1, NO_SYNC));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr));
    GOOD(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    REFUSED(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    REFUSED(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    other.expect_end();
}

struct gate {
    std::atomic<bool> has_begun { false }, is_open { false }, was_open { false };

    static void wait(void * data) {
        gate & of = *(gate *) data;
        of.has_begun = true;
        for (int tries = 0; tries < SECONDS * 1000 && !of.is_open; tries++) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        of.was_open = of.is_open.load();
    }
};

// Functions of streams do not wait for the end of an object, which may wait for one of them.
static void functions() {
    gate slow;
    cudaUserObject_t object;
    cudaStream_t stream = new_stream();
    GOOD(cudaUserObjectCreate(&object, &slow, gate::wait, 1, NO_SYNC));
    GOOD(cudaUserObjectRelease(object, 1));
    while (!slow.has_begun) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    GOOD(cudaLaunchHostFunc(stream, [](void * data) { ((gate *) data)->is_open = true; }, &slow));
    GOOD(cudaStreamSynchronize(stream));
    counted last;
    last.expect_none();
    EXPECT(slow.was_open);
}

int main(int count, char ** words) {
    const part parts[] = {
        { "counts", counts }, { "graphs", graphs }, { "captured", captured }, { "functions", functions },
    };
    return run_parts(parts, count, words);
}
