/* Stands in for libcuda.so.1, libnvrtc.so, and libcublas.so and libcublasLt.so for a few functions, in tests: the driver's functions over plain memory.
 *
 * Copies and launches happen later, on a thread for each stream, as on a GPU, so that what is done too early or freed too soon
 * shows. The kernel is the one of crates/gpu/src/copy.cu, compiled for the processor. Where a driver would forgive (it waits
 * when memory is freed, say) this does not. STAND_IN_LACKS, or a call, names what it refuses: driver-version,
 * gpu, registration, compiler, memory, copies, records of events, instances of graphs
 * but one, switches of their nodes, or work: then launches end, and nobody can learn when. */

#include "streams.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <sys/mman.h>
#include <vector>

/* --- the kernel, for the processor --- */

struct Index {
    unsigned x, y, z;
};
static thread_local Index blockIdx, threadIdx, blockDim, gridDim;
#define __device__
#define __global__
#define __forceinline__ inline
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(threads)
#include KERNEL

asm(".pushsection .rodata\n"
    ".global stand_in_source\n"
    "stand_in_source: .incbin \"" KERNEL "\"\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" const char stand_in_source[];

/* --- what there is --- */

namespace {

enum Code { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, NO_CONTEXT = 201, NO_IMAGE = 200, TWICE = 712, NEVER = 713,
            NOT_READY = 600, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700 };
const char IMAGE[] = "program of the stand-in";
const int CAPABILITY[] = {9, 0};
const int MULTIPROCESSORS = 4;

struct Range {
    size_t bytes;
    void *host; /* of registered memory, else null */
};

/* Addresses of the GPU have this bit, so that neither side can use one of the other by mistake. */
const uint64_t OF_GPU = uint64_t(1) << 60;

uint64_t of_gpu(const void *host) {
    return reinterpret_cast<uintptr_t>(host) | OF_GPU;
}

template <typename Byte = void> Byte *on_host(uint64_t address) {
    return reinterpret_cast<Byte *>(address & ~OF_GPU);
}

struct World {
    Gate gate;
    Stream default_stream{gate};
    std::mutex lock;
    std::map<uint64_t, Range> ranges; /* by the GPU's address */
    std::atomic<unsigned long> launches{0}, copies{0}, waiting{0};
};

World &world() {
    static World *made = new World; /* its threads go on to the end of the process */
    return *made;
}

thread_local std::vector<size_t> contexts;
const size_t PRIMARY = 0x1000;

std::string &lacking() {
    static const char *named = std::getenv("STAND_IN_LACKS");
    static std::string *what = new std::string(named ? named : "");
    return *what;
}

bool lacks(const char *what) {
    return lacking() == what;
}

bool entered() {
    return !contexts.empty() && contexts.back() != 0;
}

Stream &stream_of(size_t handle) {
    return handle < 3 ? world().default_stream : *reinterpret_cast<Stream *>(handle);
}

bool reaches(uint64_t address) { /* its first byte */
    std::lock_guard<std::mutex> held(world().lock);
    auto after = world().ranges.upper_bound(address);
    if (after == world().ranges.begin()) {
        return false;
    }
    --after;
    return address - after->first < after->second.bytes;
}

/* What a GPU reports later as an illegal address ends the process here. */
void must_reach(uint64_t address) {
    if (!reaches(address)) {
        std::fprintf(stderr, "stand-in: the GPU reaches nothing at %#lx\n", address);
        std::abort();
    }
}

void run_kernel(unsigned groups, unsigned threads, uint64_t table, u64 count, u64 tiles, u64 is_scatter) {
    must_reach(table);
    std::vector<Piece> pieces(on_host<Piece>(table), on_host<Piece>(table) + count);
    for (Piece &piece : pieces) {
        must_reach(piece.linear);
        must_reach(piece.start);
        piece.linear &= ~OF_GPU;
        piece.start &= ~OF_GPU;
    }
    gridDim = {groups, 1, 1};
    blockDim = {threads, 1, 1};
    for (unsigned group = 0; group < groups; group++) {
        world().gate.pass();
        blockIdx = {group, 0, 0};
        for (unsigned thread = 0; thread < threads; thread++) {
            threadIdx = {thread, 0, 0};
            hinterland_copy(pieces.data(), count, tiles, is_scatter);
        }
    }
}

} // namespace

#define FACE extern "C" __attribute__((visibility("default")))

/* --- what tests ask of it --- */

FACE int hinterland_stand_in() { return 1; }
/* Nothing goes on until it is opened, or steps are allowed: a copy, a group of a launch, or an event is one. */
FACE void stand_in_close() { world().gate.close(); }
FACE void stand_in_open() { world().gate.open(); }
FACE void stand_in_allow(unsigned long steps) { world().gate.allow(steps); }
FACE void stand_in_lack(const char *what) { lacking() = what; }
FACE unsigned long stand_in_launches() { return world().launches; }
FACE unsigned long stand_in_copies() { return world().copies; }
/* Threads that wait for an event. */
FACE unsigned long stand_in_waiting() { return world().waiting; }
FACE void *stand_in_host(uint64_t address) { return on_host(address); }
FACE unsigned long stand_in_ranges() {
    std::lock_guard<std::mutex> held(world().lock);
    return world().ranges.size();
}

/* --- the driver: GPUs and contexts --- */

FACE int cuInit(unsigned) { return lacks("gpu") ? NO_DEVICE : OK; }
FACE int cuDriverGetVersion(int *version) { return *version = lacks("driver-version") ? 10020 : 13000, OK; }
FACE int cuGetErrorName(int code, const char **text) { return *text = code == NO_MEMORY ? "OUT_OF_MEMORY" : "FAILED", OK; }
FACE int cuGetErrorString(int, const char **text) { return *text = "the stand-in refuses", OK; }
/* How many there are: STAND_IN_GPUS, or one. All have one memory, and contexts are not told apart. */
static int gpus() {
    const char *named = std::getenv("STAND_IN_GPUS");
    return named ? std::atoi(named) : 1;
}
FACE int cuDeviceGetCount(int *count) { return *count = gpus(), OK; }
FACE int cuDeviceGet(int *device, int number) { return *device = number, number >= 0 && number < gpus() ? OK : INVALID; }
FACE int cuDeviceCanAccessPeer(int *can, int one, int other) { return *can = one != other, OK; }
FACE int cuDeviceGetName(char *name, int bytes, int) { return std::snprintf(name, bytes, "stand-in"), OK; }
FACE int cuDeviceGetAttribute(int *value, int attribute, int) {
    const std::map<int, int> known = {{16, MULTIPROCESSORS}, {19, 1}, {75, CAPABILITY[0]}, {76, CAPABILITY[1]}, {113, 1}};
    auto found = known.find(attribute);
    return *value = found == known.end() ? 0 : found->second, OK;
}
FACE int cuCtxGetCurrent(size_t *context) { return *context = contexts.empty() ? 0 : contexts.back(), OK; }
FACE int cuCtxPushCurrent_v2(size_t context) { return contexts.push_back(context), OK; }
FACE int cuCtxPopCurrent_v2(size_t *context) {
    if (contexts.empty()) {
        return NO_CONTEXT;
    }
    *context = contexts.back();
    contexts.pop_back();
    return OK;
}
FACE int cuCtxGetDevice(int *device) { return *device = 0, entered() ? OK : NO_CONTEXT; }
FACE int cuDevicePrimaryCtxRetain(size_t *context, int) { return *context = PRIMARY, OK; }
FACE int cuDevicePrimaryCtxRelease_v2(int) { return OK; }

/* --- the driver: memory --- */

const size_t DIRTY_MAX = 16 << 20;
/* Memory has something in it, as far as that, when it is made. Memory that is freed is gone at once: whoever still uses it dies. */
FACE int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    if (!entered()) {
        return NO_CONTEXT;
    }
    void *start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        return NO_MEMORY;
    }
    std::memset(start, 0xaa, std::min(bytes, DIRTY_MAX));
    std::lock_guard<std::mutex> held(world().lock);
    world().ranges[*address = of_gpu(start)] = {bytes, nullptr};
    return OK;
}
FACE int cuMemFree_v2(uint64_t address) {
    std::lock_guard<std::mutex> held(world().lock);
    auto found = world().ranges.find(address);
    if (found == world().ranges.end() || found->second.host) {
        return INVALID;
    }
    munmap(on_host(address), found->second.bytes);
    world().ranges.erase(found);
    return OK;
}
FACE int cuMemHostRegister_v2(void *host, size_t bytes, unsigned) {
    if (!entered()) {
        return NO_CONTEXT;
    }
    if (lacks("registration")) {
        return NO_MEMORY;
    }
    std::lock_guard<std::mutex> held(world().lock);
    return world().ranges.insert({of_gpu(host), {bytes, host}}).second ? OK : TWICE;
}
FACE int cuMemHostGetDevicePointer_v2(uint64_t *address, void *host, unsigned) {
    std::lock_guard<std::mutex> held(world().lock);
    return *address = of_gpu(host), world().ranges.count(*address) ? OK : NEVER;
}
FACE int cuMemHostUnregister(void *host) {
    std::lock_guard<std::mutex> held(world().lock);
    return world().ranges.erase(of_gpu(host)) ? OK : NEVER;
}
FACE int cuPointerGetAttribute(void *value, int, uint64_t address) {
    return *static_cast<unsigned *>(value) = 2, reaches(address) ? OK : INVALID;
}
FACE int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    return reaches(to) && entered() ? (std::memcpy(on_host(to), from, bytes), OK) : INVALID;
}
FACE int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    return reaches(from) && entered() ? (std::memcpy(to, on_host(from), bytes), OK) : INVALID;
}
FACE int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, size_t stream) {
    if (lacks("copies")) {
        return NO_MEMORY;
    }
    world().copies++;
    stream_of(stream).put([=] { must_reach(to), std::memcpy(on_host(to), from, bytes); });
    return entered() ? OK : NO_CONTEXT;
}
FACE int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, size_t stream) {
    if (lacks("copies")) {
        return NO_MEMORY;
    }
    world().copies++;
    stream_of(stream).put([=] { must_reach(from), std::memcpy(to, on_host(from), bytes); });
    return entered() ? OK : NO_CONTEXT;
}

/* --- the driver: streams, events, kernels --- */

const size_t COPY = 1, ADD = 2, AWAIT = 3; /* the kernels that copy, and those that add and wait, of lend.h */

FACE int cuStreamCreate(size_t *stream, unsigned) {
    return *stream = reinterpret_cast<size_t>(new Stream(world().gate)), entered() ? OK : NO_CONTEXT;
}
FACE int cuStreamSynchronize(size_t stream) { return stream_of(stream).wait(), entered() ? OK : NO_CONTEXT; }
FACE int cuStreamDestroy_v2(size_t) { return OK; }
FACE int cuEventCreate(size_t *event, unsigned) {
    return *event = reinterpret_cast<size_t>(new Event), entered() ? OK : NO_CONTEXT;
}
FACE int cuEventRecord(size_t event, size_t stream) {
    if (lacks("records")) {
        return NO_MEMORY;
    }
    return reinterpret_cast<Event *>(event)->record(stream_of(stream)), entered() ? OK : NO_CONTEXT;
}
FACE int cuEventQuery(size_t event) {
    return lacks("work") ? ILLEGAL_ADDRESS : reinterpret_cast<Event *>(event)->is_done() ? OK : NOT_READY;
}
FACE int cuEventSynchronize(size_t event) {
    if (lacks("work")) {
        return ILLEGAL_ADDRESS;
    }
    world().waiting++;
    reinterpret_cast<Event *>(event)->wait();
    world().waiting--;
    return entered() ? OK : NO_CONTEXT;
}
FACE int cuEventDestroy_v2(size_t) { return OK; } /* a step may still name it */
FACE int cuModuleLoadData(size_t *module, const void *image) {
    const char ptx[] = {'.', 'v', 'e', 'r'};
    bool is_known = std::memcmp(image, IMAGE, sizeof IMAGE) == 0 || std::memcmp(image, ptx, sizeof ptx) == 0;
    return *module = 1, is_known ? OK : NO_IMAGE;
}
FACE int cuModuleGetFunction(size_t *function, size_t, const char *name) {
    *function = std::strcmp(name, "add") == 0 ? ADD : std::strcmp(name, "await") == 0 ? AWAIT : COPY;
    return *function != COPY || std::strcmp(name, "hinterland_copy") == 0 ? OK : NOT_FOUND;
}
FACE int cuModuleUnload(size_t) { return OK; }
FACE int cuLaunchKernel(size_t, unsigned groups, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned,
                        size_t stream, void **arguments, void **) {
    if (!entered()) {
        return NO_CONTEXT;
    }
    world().launches++;
    u64 words[4];
    for (int index = 0; index < 4; index++) {
        words[index] = *static_cast<u64 *>(arguments[index]);
    }
    stream_of(stream).put([=] {
        run_kernel(groups, threads, words[0], words[1], words[2], words[3]);
    });
    return OK;
}

#include "lend.h"
#include "blas.h"

/* --- the compiler: it takes the source that is compiled in here, and no other --- */

FACE int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0, OK; }
FACE int nvrtcGetNumSupportedArchs(int *count) { return *count = 2, OK; }
FACE int nvrtcGetSupportedArchs(int *known) { return known[0] = 80, known[1] = lacks("compiler") ? 89 : 90, OK; }
FACE int nvrtcCreateProgram(void **program, const char *source, const char *, int, const char *const *, const char *const *) {
    *program = reinterpret_cast<void *>(std::strcmp(source, stand_in_source) == 0 ? 1 : 2);
    return OK;
}
FACE int nvrtcCompileProgram(void *program, int, const char *const *) {
    return program == reinterpret_cast<void *>(1) && !lacks("compiler") ? OK : 6;
}
FACE int nvrtcGetProgramLogSize(void *, size_t *bytes) { return *bytes = 6, OK; }
FACE int nvrtcGetProgramLog(void *, char *log) { return std::strcpy(log, "wrong"), OK; }
FACE int nvrtcGetCUBINSize(void *, size_t *bytes) { return *bytes = sizeof IMAGE, OK; }
FACE int nvrtcGetCUBIN(void *, char *image) { return std::memcpy(image, IMAGE, sizeof IMAGE), OK; }
FACE int nvrtcGetPTXSize(void *, size_t *bytes) { return *bytes = sizeof IMAGE, OK; }
FACE int nvrtcGetPTX(void *, char *image) { return std::memcpy(image, IMAGE, sizeof IMAGE), OK; }
FACE int nvrtcDestroyProgram(void **) { return OK; }
