// A program for CUDA that checks graphs: copies from and to the program's memory in them. Each word of the command line is one part.
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

// A graph that brings bytes out and back in would have to read them between the two: refused where it is captured.
static void round_trip() {
    int *host, *device;
    GOOD(cudaMallocHost(&host, 4096));
    GOOD(cudaMalloc(&device, 4096));
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaMemcpyAsync(host, device, 4096, cudaMemcpyDeviceToHost, stream));
    REFUSED(cudaMemcpyAsync(device, host + 4, 16, cudaMemcpyHostToDevice, stream), cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph;
    REFUSED(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
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

int main(int count, char ** words) {
    const part parts[] = { { "replays", replays }, { "round_trip", round_trip }, { "large", large } };
    return run_parts(parts, count, words);
}
