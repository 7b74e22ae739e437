// What CUDA forbids while a stream is being captured, by the mode of the capture and of the calling thread: the call is refused, and the capture ends with
// an error. What is allowed leaves the capture as it is.
#include <functional>
#include <thread>

#include "gpu_check.h"

__global__ void add(int * numbers, int addend) {
    numbers[threadIdx.x] += addend;
}

static const int COUNT = 64;
static const size_t BYTES = COUNT * sizeof(int);
static const cudaStreamCaptureMode GLOBAL = cudaStreamCaptureModeGlobal;
static const cudaStreamCaptureMode LOCAL = cudaStreamCaptureModeThreadLocal;
static const cudaStreamCaptureMode RELAXED = cudaStreamCaptureModeRelaxed;
static const cudaError_t UNSUPPORTED = cudaErrorStreamCaptureUnsupported;
static const cudaError_t IMPLICIT = cudaErrorStreamCaptureImplicit;

// What the parts work with: streams that wait for the default stream, and that do not, an event of work that is done, and memory.
struct things {
    cudaStream_t stream, apart, other;
    cudaEvent_t event;
    int * numbers;
    int here[COUNT];

    things() {
        GOOD(cudaStreamCreate(&stream));
        GOOD(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
        GOOD(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        GOOD(cudaEventCreate(&event));
        GOOD(cudaEventRecord(event, other));
        GOOD(cudaMalloc(&numbers, BYTES));
        GOOD(cudaMemset(numbers, 0, BYTES));
        GOOD(cudaDeviceSynchronize());
    }
};

// Captures a kernel, makes a call in the middle, of this thread or of another, that returns `code`, and ends the capture, which fails if the call did.
static void within(cudaStream_t stream, int * numbers, cudaStreamCaptureMode mode, cudaError_t code,
    const std::function<cudaError_t()> & call, bool is_elsewhere = false) {
    cudaGraph_t graph = nullptr;
    cudaStreamCaptureStatus status;
    GOOD(cudaStreamBeginCapture(stream, mode));
    add<<<1, COUNT, 0, stream>>>(numbers, 1);
    cudaError_t seen, last;
    const auto make = [&] {
        seen = call();
        last = cudaGetLastError();
    };
    if (is_elsewhere) {
        std::thread(make).join();
    } else {
        make();
    }
    if (seen != code) {
        fail("a call in a capture", mode, seen);
    }
    EXPECT(last == code);
    GOOD(cudaStreamIsCapturing(stream, &status));
    if (code == cudaSuccess) {
        EXPECT(status == cudaStreamCaptureStatusActive);
        GOOD(cudaStreamEndCapture(stream, &graph));
        GOOD(cudaGraphDestroy(graph));
        return;
    }
    EXPECT(status == cudaStreamCaptureStatusInvalidated);
    add<<<1, COUNT, 0, stream>>>(numbers, 1);
    EXPECT(cudaGetLastError() == cudaErrorStreamCaptureInvalidated);
    REFUSED(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT(graph == nullptr);
    GOOD(cudaStreamIsCapturing(stream, &status));
    EXPECT(status == cudaStreamCaptureStatusNone);
    GOOD(cudaStreamSynchronize(stream));
}

// What waits for the captured stream is refused in every mode.
static void waits() {
    things of;
    for (auto mode : { GLOBAL, LOCAL, RELAXED }) {
        within(of.apart, of.numbers, mode, UNSUPPORTED, [&] { return cudaStreamSynchronize(of.apart); });
        within(of.apart, of.numbers, mode, UNSUPPORTED, [&] { return cudaStreamQuery(of.apart); });
        within(of.apart, of.numbers, mode, UNSUPPORTED, [&] { return cudaDeviceSynchronize(); });
    }
    within(of.apart, of.numbers, RELAXED, cudaErrorCapturedEvent, [&] {
        GOOD(cudaEventRecord(of.event, of.apart));
        return cudaEventSynchronize(of.event);
    });
}

// What a capture does not see is refused to the thread that captures.
static void unseen() {
    things of;
    void *memory, *pinned;
    GOOD(cudaMalloc(&memory, 512));
    GOOD(cudaMallocHost(&pinned, 4096));
    const auto in = cudaMemcpyHostToDevice;
    for (auto mode : { GLOBAL, LOCAL }) {
        for (auto stream : { of.stream, of.apart }) {
            const std::function<cudaError_t()> calls[] = {
                [&] { return cudaStreamSynchronize(of.other); },
                [&] { return cudaStreamQuery(of.other); },
                [&] { return cudaEventSynchronize(of.event); },
                [&] { return cudaEventQuery(of.event); },
                [&] { return cudaMemcpy(of.numbers, of.here, BYTES, in); },
                [&] { return cudaMemcpy2D(of.numbers, 8, of.here, 8, 8, 2, in); },
                [&] { return cudaMemset(of.numbers, 0, BYTES); },
                [&] { return cudaMemset2D(of.numbers, 8, 0, 8, 2); },
                [&] { void * more; return cudaMalloc(&more, 512); },
                [&] { void * more; return cudaMallocHost(&more, 512); },
                [&] { return cudaFree(memory); },
                [&] { return cudaFreeHost(pinned); },
                [&] { return cudaHostRegister(of.here, BYTES, 0); },
            };
            for (const auto & call : calls) {
                within(stream, of.numbers, mode, UNSUPPORTED, call);
            }
        }
        // What is put into streams, and what only asks.
        within(of.apart, of.numbers, mode, cudaSuccess, [&] { return cudaMemsetAsync(of.numbers, 0, BYTES, of.other); });
        within(of.apart, of.numbers, mode, cudaSuccess, [&] { int device; return cudaGetDevice(&device); });
        within(of.apart, of.numbers, mode, cudaSuccess, [&] { return cudaEventRecord(of.event, of.other); });
        within(of.apart, of.numbers, mode, cudaSuccess, [&] { void * more; return cudaMallocAsync(&more, 512, of.apart); });
    }
    GOOD(cudaFree(memory));
    GOOD(cudaFreeHost(pinned));
}

static void relaxed() {
    things of;
    void * more;
    within(of.apart, of.numbers, RELAXED, cudaSuccess, [&] { return cudaMalloc(&more, 512); });
    within(of.apart, of.numbers, RELAXED, cudaSuccess, [&] { return cudaFree(more); });
    within(of.apart, of.numbers, RELAXED, cudaSuccess, [&] { return cudaEventQuery(of.event); });
    within(of.apart, of.numbers, RELAXED, cudaSuccess, [&] { return cudaStreamSynchronize(of.other); });
    within(of.apart, of.numbers, RELAXED, cudaSuccess,
        [&] { return cudaMemcpy(of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost); });
}

// The default stream would wait for a stream that is being captured, unless that is apart from it.
static void default_stream() {
    things of;
    const std::function<cudaError_t()> calls[] = {
        [&] { add<<<1, COUNT>>>(of.numbers, 1); return cudaPeekAtLastError(); },
        [&] { return cudaMemcpy(of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost); },
        [&] { return cudaMemcpyAsync(of.here, of.numbers, BYTES, cudaMemcpyDeviceToHost, nullptr); },
        [&] { return cudaMemset(of.numbers, 0, BYTES); },
        [&] { return cudaEventRecord(of.event, nullptr); },
        [&] { return cudaStreamSynchronize(nullptr); },
        [&] { return cudaStreamQuery(nullptr); },
        [&] { return cudaLaunchHostFunc(nullptr, [](void *) {}, nullptr); },
    };
    for (const auto & call : calls) {
        within(of.stream, of.numbers, RELAXED, IMPLICIT, call);
        within(of.apart, of.numbers, RELAXED, cudaSuccess, call);
    }
    within(of.stream, of.numbers, GLOBAL, IMPLICIT, calls[0]);
    within(of.apart, of.numbers, GLOBAL, cudaSuccess, calls[0]);
    GOOD(cudaDeviceSynchronize());
}

static cudaError_t elsewhere(const std::function<cudaError_t()> & call) {
    cudaError_t code = cudaSuccess;
    std::thread([&] { code = call(); }).join();
    return code;
}

// Other threads are forbidden what a capture in the strictest mode does not see, unless they say that they may; and a capture ends where it began.
static void threads() {
    things of;
    const auto allocates = [] { void * more; return cudaMalloc(&more, 512); };
    const auto allocates_as = [&](cudaStreamCaptureMode mode) {
        GOOD(cudaThreadExchangeStreamCaptureMode(&mode));
        return allocates();
    };
    const auto here = [&](cudaStreamCaptureMode mode, cudaError_t code, const std::function<cudaError_t()> & call) {
        within(of.apart, of.numbers, mode, code, call, true);
    };
    here(GLOBAL, UNSUPPORTED, allocates);
    here(GLOBAL, cudaSuccess, [&] { return allocates_as(LOCAL); });
    here(GLOBAL, cudaSuccess, [&] { return allocates_as(RELAXED); });
    here(LOCAL, cudaSuccess, allocates);
    here(RELAXED, cudaSuccess, allocates);
    here(LOCAL, UNSUPPORTED, [&] { return cudaDeviceSynchronize(); });
    cudaGraph_t graph = nullptr;
    for (auto mode : { GLOBAL, LOCAL, RELAXED }) {
        GOOD(cudaStreamBeginCapture(of.apart, mode));
        const cudaError_t code = elsewhere([&] { return cudaStreamEndCapture(of.apart, &graph); });
        EXPECT(code == (mode == RELAXED ? cudaSuccess : cudaErrorStreamCaptureWrongThread));
        if (mode != RELAXED) {
            GOOD(cudaStreamEndCapture(of.apart, &graph));
        }
    }
}

static void exchanges() {
    things of;
    cudaStreamCaptureMode mode = RELAXED;
    GOOD(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == GLOBAL);
    // A thread that may do anything, in a capture of its own.
    within(of.apart, of.numbers, GLOBAL, cudaSuccess, [] { void * more; return cudaMalloc(&more, 512); });
    GOOD(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == RELAXED);
    within(of.apart, of.numbers, GLOBAL, UNSUPPORTED, [] { void * more; return cudaMalloc(&more, 512); });
    mode = (cudaStreamCaptureMode) 7;
    REFUSED(cudaThreadExchangeStreamCaptureMode(&mode), cudaErrorInvalidValue);
    REFUSED(cudaThreadExchangeStreamCaptureMode(nullptr), cudaErrorInvalidValue);
    REFUSED(cudaStreamBeginCapture(of.apart, mode), cudaErrorInvalidValue);
    REFUSED(cudaStreamBeginCapture(nullptr, RELAXED), UNSUPPORTED);
}

int main(int count, char ** words) {
    const part parts[] = {
        { "waits", waits }, { "unseen", unseen }, { "relaxed", relaxed }, { "default_stream", default_stream },
        { "threads", threads }, { "exchanges", exchanges },
    };
    return run_parts(parts, count, words);
}
