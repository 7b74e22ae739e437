// A program for CUDA that checks kinds of memory: volumes, pools, occupancy, and what is refused. Each word of the command line is one part.
#include "gpu_check.h"

__global__ void add(int * to, const int * from, int count, int addend) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        to[at] = from[at] + addend;
    }
}

static unsigned char value_at(size_t x, size_t y, size_t z) {
    return (unsigned char) (x * 7 + y * 13 + z * 31);
}

static void volumes() {
    const size_t width = 50, height = 11, depth = 6;
    std::vector<unsigned char> from(width * height * depth), seen(from.size(), 0);
    for (size_t z = 0; z < depth; z++) {
        for (size_t y = 0; y < height; y++) {
            for (size_t x = 0; x < width; x++) {
                from[(z * height + y) * width + x] = value_at(x, y, z);
            }
        }
    }
    cudaPitchedPtr volume, other;
    GOOD(cudaMalloc3D(&volume, make_cudaExtent(width, height, depth)));
    GOOD(cudaMalloc3D(&other, make_cudaExtent(width + 20, height + 3, depth)));
    EXPECT(volume.pitch >= width && volume.xsize == width && volume.ysize == height);
    cudaMemcpy3DParms in = {};
    in.srcPtr = make_cudaPitchedPtr(from.data(), width, width, height);
    in.dstPtr = volume;
    in.extent = make_cudaExtent(width, height, depth);
    in.kind = cudaMemcpyHostToDevice;
    GOOD(cudaMemcpy3D(&in));
    GOOD(cudaMemset3D(other, 9, make_cudaExtent(width + 20, height + 3, depth)));
    // A part of one volume to a place in the other, in a stream.
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    cudaMemcpy3DParms within = {};
    within.srcPtr = volume;
    within.srcPos = make_cudaPos(10, 2, 1);
    within.dstPtr = other;
    within.dstPos = make_cudaPos(3, 1, 0);
    within.extent = make_cudaExtent(30, 8, 4);
    within.kind = cudaMemcpyDeviceToDevice;
    GOOD(cudaMemcpy3DAsync(&within, stream));
    std::vector<unsigned char> all((width + 20) * (height + 3) * depth);
    cudaMemcpy3DParms out = {};
    out.srcPtr = other;
    out.dstPtr = make_cudaPitchedPtr(all.data(), width + 20, width + 20, height + 3);
    out.extent = make_cudaExtent(width + 20, height + 3, depth);
    out.kind = cudaMemcpyDeviceToHost;
    GOOD(cudaMemcpy3DAsync(&out, stream));
    GOOD(cudaStreamSynchronize(stream));
    for (size_t z = 0; z < depth; z++) {
        for (size_t y = 0; y < height + 3; y++) {
            for (size_t x = 0; x < width + 20; x++) {
                const bool inside = x >= 3 && x < 33 && y >= 1 && y < 9 && z < 4;
                const unsigned char right = inside ? value_at(x - 3 + 10, y - 1 + 2, z + 1) : 9;
                EXPECT(all[(z * (height + 3) + y) * (width + 20) + x] == right);
            }
        }
    }
    in.srcPtr = volume;
    in.dstPtr = make_cudaPitchedPtr(seen.data(), width, width, height);
    in.kind = cudaMemcpyDeviceToHost;
    GOOD(cudaMemcpy3D(&in));
    EXPECT(seen == from);
    // Beyond the memory: refused, and nothing is written.
    within.dstPos = make_cudaPos(0, 0, 5);
    REFUSED(cudaMemcpy3D(&within), cudaErrorInvalidValue);
    GOOD(cudaFree(volume.ptr));
    GOOD(cudaFree(other.ptr));
}

static void rows() {
    const size_t width = 300, height = 40;
    std::vector<unsigned char> from(512 * height, 1), seen(400 * height, 2);
    unsigned char * memory;
    size_t pitch = 0;
    GOOD(cudaMallocPitch(&memory, &pitch, width, height));
    for (size_t at = 0; at < from.size(); at++) {
        from[at] = (unsigned char) (at * 3);
    }
    GOOD(cudaMemset2D(memory, pitch, 77, width, height));
    GOOD(cudaMemcpy2D(memory + 5, pitch, from.data() + 512 + 7, 512, 100, 20, cudaMemcpyHostToDevice));
    GOOD(cudaMemcpy2D(seen.data(), 400, memory, pitch, width, height, cudaMemcpyDeviceToHost));
    for (size_t y = 0; y < height; y++) {
        for (size_t x = 0; x < 400; x++) {
            const bool inside = y < 20 && x >= 5 && x < 105;
            EXPECT(seen[y * 400 + x] == (x >= width ? 2 : inside ? from[(y + 1) * 512 + 7 + x - 5] : 77));
        }
    }
    GOOD(cudaFree(memory));
}

static void pools() {
    int device = 0, there = 0;
    GOOD(cudaDeviceGetAttribute(&there, cudaDevAttrMemoryPoolsSupported, device));
    EXPECT(there == 1);
    cudaMemPool_t pool, current, own;
    GOOD(cudaDeviceGetDefaultMemPool(&pool, device));
    GOOD(cudaDeviceGetMemPool(&current, device));
    EXPECT(pool == current);
    unsigned long long threshold = ~0ull, read = 0;
    GOOD(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    GOOD(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &read));
    EXPECT(read == threshold);
    int reuse = 0;
    GOOD(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &reuse));
    reuse = 5;
    GOOD(cudaMemPoolGetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &reuse));
    EXPECT(reuse == 0);
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    const int count = 10000;
    int *a, *b;
    std::vector<int> numbers(count, 4);
    GOOD(cudaMallocAsync((void **) &a, count * sizeof(int), stream));
    GOOD(cudaMallocAsync((void **) &b, count * sizeof(int), stream));
    GOOD(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &read));
    EXPECT(read >= 2 * count * sizeof(int));
    GOOD(cudaMemcpyAsync(a, numbers.data(), count * sizeof(int), cudaMemcpyHostToDevice, stream));
    add<<<(count + 255) / 256, 256, 0, stream>>>(b, a, count, 3);
    GOOD(cudaFreeAsync(a, stream));
    // Given again while the kernel may still read it.
    for (int round = 0; round < 50; round++) {
        int * again;
        GOOD(cudaMallocAsync((void **) &again, count * sizeof(int), stream));
        GOOD(cudaMemsetAsync(again, 0, count * sizeof(int), stream));
        GOOD(cudaFreeAsync(again, stream));
    }
    GOOD(cudaMemcpyAsync(numbers.data(), b, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
    GOOD(cudaFreeAsync(b, stream));
    GOOD(cudaStreamSynchronize(stream));
    check_numbers(numbers, 7);
    GOOD(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &read));
    EXPECT(read == 0);
    GOOD(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &read));
    EXPECT(read >= 2 * count * sizeof(int));
    // A pool of one's own.
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    GOOD(cudaMemPoolCreate(&own, &properties));
    GOOD(cudaDeviceSetMemPool(device, own));
    GOOD(cudaMallocAsync((void **) &a, 100, stream));
    GOOD(cudaMallocFromPoolAsync((void **) &b, 100, pool, stream));
    GOOD(cudaMemPoolGetAttribute(own, cudaMemPoolAttrUsedMemCurrent, &read));
    EXPECT(read == 100);
    GOOD(cudaFree(a));
    GOOD(cudaFree(b));
    GOOD(cudaMemPoolTrimTo(own, 0));
    cudaMemAccessFlags flags;
    GOOD(cudaMemPoolGetAccess(&flags, own, &properties.location));
    EXPECT(flags == cudaMemAccessFlagsProtReadWrite);
    GOOD(cudaMemPoolDestroy(own));
    REFUSED(cudaMemPoolDestroy(pool), cudaErrorInvalidValue);
    GOOD(cudaDeviceGetMemPool(&current, device));
    EXPECT(current == pool);
    // Memory of a graph is the same at each launch.
    GOOD(cudaMalloc((void **) &b, sizeof(int)));
    GOOD(cudaMemset(b, 0, sizeof(int)));
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GOOD(cudaMallocAsync((void **) &a, sizeof(int), stream));
    GOOD(cudaMemsetAsync(a, 0, sizeof(int), stream));
    add<<<1, 1, 0, stream>>>(a, b, 1, 5);
    add<<<1, 1, 0, stream>>>(b, a, 1, 0);
    GOOD(cudaFreeAsync(a, stream));
    cudaGraph_t graph;
    GOOD(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec;
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 3; round++) {
        GOOD(cudaGraphLaunch(exec, stream));
    }
    int sum = 0;
    GOOD(cudaMemcpy(&sum, b, sizeof(int), cudaMemcpyDeviceToHost));
    EXPECT(sum == 15);
}

static void occupancy() {
    int groups = 0, grid = 0, block = 0;
    size_t shared = 0;
    GOOD(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&groups, add, 256, 0));
    EXPECT(groups == 8);
    GOOD(cudaOccupancyMaxPotentialBlockSize(&grid, &block, add, 0, 0));
    EXPECT(block > 0 && block <= 1024 && grid > 0);
    GOOD(cudaOccupancyAvailableDynamicSMemPerBlock(&shared, add, 2, 256));
    EXPECT(shared > 48 << 10 && shared <= 227 << 10);
    GOOD(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    cudaFuncAttributes attributes;
    GOOD(cudaFuncGetAttributes(&attributes, add));
    EXPECT(attributes.maxDynamicSharedSizeBytes == 100 << 10);
    GOOD(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&groups, add, 256, 100 << 10));
    EXPECT(groups == 2);
}

// What is not there says so by the documented error.
static void refused() {
    void * memory;
    GOOD(cudaMalloc(&memory, 4096));
    cudaIpcMemHandle_t handle;
    REFUSED(cudaIpcGetMemHandle(&handle, memory), cudaErrorNotSupported);
    REFUSED(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorNotSupported);
    REFUSED(cudaMallocManaged(&memory, 4096), cudaErrorNotSupported);
}

// Many copies by one call: in, within and out, behind the work before them.
static void batch() {
    const size_t MANY = 40, BYTES = 4096;
    char *far, *there, *here;
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    GOOD(cudaMalloc(&far, MANY * BYTES));
    GOOD(cudaMalloc(&there, MANY * BYTES));
    GOOD(cudaMallocHost(&here, MANY * BYTES));
    std::vector<char> bytes(MANY * BYTES);
    for (size_t at = 0; at < bytes.size(); at++) {
        bytes[at] = (char) (at / BYTES + at % 7);
    }
    cudaMemcpyAttributes attributes[2] = {};
    attributes[0].srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes[1].srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
    const auto copy = [&](void * to, const void * from, size_t bytes_each, size_t kinds) {
        std::vector<void *> places;
        std::vector<const void *> sources;
        std::vector<size_t> sizes(MANY, bytes_each);
        size_t starts[] = { 0, MANY / 2 };
        for (size_t at = 0; at < MANY; at++) {
            places.push_back((char *) to + (MANY - 1 - at) * BYTES);
            sources.push_back((const char *) from + at * BYTES);
        }
        return cudaMemcpyBatchAsync(places.data(), sources.data(), sizes.data(), MANY, attributes, starts, kinds, stream);
    };
    GOOD(cudaMemsetAsync(far, 1, MANY * BYTES, stream));
    GOOD(copy(far, bytes.data(), BYTES, 2));
    // What was read during the call may be gone.
    std::vector<char> right = bytes;
    std::fill(bytes.begin() + MANY / 2 * BYTES, bytes.end(), 0x55);
    GOOD(cudaStreamSynchronize(stream));
    GOOD(copy(there, far, BYTES, 1));
    GOOD(cudaMemcpyAsync(here, there, MANY * BYTES, cudaMemcpyDeviceToHost, stream));
    GOOD(cudaStreamSynchronize(stream));
    EXPECT(memcmp(here, right.data(), MANY * BYTES) == 0);
    memset(here, 0, MANY * BYTES);
    GOOD(copy(here, there, BYTES - 1, 1));
    GOOD(cudaStreamSynchronize(stream));
    for (size_t at = 0; at < MANY * BYTES; at++) {
        const size_t from = (MANY - 1 - at / BYTES) * BYTES + at % BYTES;
        EXPECT(here[at] == (at % BYTES == BYTES - 1 ? 0 : right[from]));
    }
    // What each launch of a graph would read is gone by then; what a device has is not.
    cudaGraph_t graph;
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    REFUSED(copy(far, bytes.data(), BYTES, 2), cudaErrorNotSupported);
    GOOD(copy(there, far, BYTES, 2));
    GOOD(cudaStreamEndCapture(stream, &graph));
    // None of those that were refused is in it.
    size_t nodes = 0;
    GOOD(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT(nodes == MANY);
    REFUSED(copy(far, bytes.data(), BYTES, 0), cudaErrorInvalidValue);
    attributes[0].srcAccessOrder = cudaMemcpySrcAccessOrderInvalid;
    REFUSED(copy(far, bytes.data(), BYTES, 1), cudaErrorInvalidValue);
    attributes[0].srcAccessOrder = cudaMemcpySrcAccessOrderAny;
    GOOD(copy(far, bytes.data(), BYTES, 1));
    GOOD(cudaStreamSynchronize(stream));
    stream = nullptr;
    REFUSED(copy(far, bytes.data(), BYTES, 1), cudaErrorInvalidValue);
}

int main(int count, char ** words) {
    const part parts[] = {
        { "volumes", volumes }, { "rows", rows }, { "pools", pools }, { "occupancy", occupancy }, { "refused", refused },
        { "batch", batch },
    };
    return run_parts(parts, count, words);
}
