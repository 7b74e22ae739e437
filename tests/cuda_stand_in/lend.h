/* What a GPU node needs of the driver besides: memory in a window of addresses, captures, graphs, launches with attributes.
 *
 * A capture takes whatever its thread puts on any stream, in that order, and a launch of it does it in that order. */
#ifndef LEND_H
#define LEND_H

struct Shape {
    unsigned grid[3], block[3], shared;
    size_t stream;
    const void *attributes;
    unsigned attribute_count;
};

struct Rows {
    size_t from_x, from_y;
    unsigned from_kind, from_padding;
    uint64_t from_host, from_device, from_array, from_pitch;
    size_t to_x, to_y;
    unsigned to_kind, to_padding;
    uint64_t to_host, to_device, to_array, to_pitch;
    size_t width, rows;
};

/* A node is its step, counted from 1. Steps that are off are those of an instance. */
struct Graph {
    std::vector<std::function<void()>> steps;
    std::set<size_t> off;
};

struct KernelNode {
    size_t function;
    unsigned grid[3], block[3], shared, padding;
    void **parameters, **extra;
    size_t kernel, context;
};

const size_t LEND_PIECE = 2 << 20;
const unsigned HOST_KIND = 1;

FACE int cuCtxSetCurrent(size_t context) { return contexts.clear(), contexts.push_back(context), OK; }
FACE int cuDeviceGetPCIBusId(char *name, int bytes, int) { return std::snprintf(name, bytes, "0000:00:00.0"), OK; }
FACE int cuDeviceGetUuid(unsigned char *uuid, int) { return std::memset(uuid, 7, 16), OK; }
FACE int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = 64 << 20, OK; }

FACE int cuMemGetAllocationGranularity(size_t *bytes, const void *, int) { return *bytes = LEND_PIECE, OK; }
FACE int cuMemAddressReserve(uint64_t *start, size_t bytes, size_t, uint64_t, uint64_t) {
    void *place = mmap(nullptr, bytes + LEND_PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t first = (reinterpret_cast<uintptr_t>(place) + LEND_PIECE - 1) / LEND_PIECE * LEND_PIECE;
    return *start = first | OF_GPU, place == MAP_FAILED ? NO_MEMORY : OK;
}
/* Where memory lacks there are two pieces of it. */
FACE int cuMemCreate(uint64_t *memory, size_t bytes, const void *, uint64_t) {
    std::lock_guard<std::mutex> held(world().lock);
    return lacks("memory") && world().ranges.size() >= 2 ? NO_MEMORY : (*memory = bytes, OK);
}
FACE int cuMemRelease(uint64_t) { return OK; }
FACE int cuMemMap(uint64_t address, size_t bytes, size_t, uint64_t, uint64_t) {
    void *made = mmap(on_host(address), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    std::lock_guard<std::mutex> held(world().lock);
    bool is_new = world().ranges.insert({address, {bytes, nullptr}}).second;
    return made == MAP_FAILED ? NO_MEMORY : is_new ? OK : TWICE;
}
FACE int cuMemSetAccess(uint64_t, size_t, const void *, size_t) { return OK; }
/* Memory that is unmapped is gone at once: whoever still uses it dies. */
FACE int cuMemUnmap(uint64_t address, size_t bytes) {
    mmap(on_host(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    std::lock_guard<std::mutex> held(world().lock);
    return world().ranges.erase(address) ? OK : INVALID;
}
FACE int cuMemHostAlloc(void **start, size_t bytes, unsigned) { return *start = std::malloc(bytes), *start ? OK : NO_MEMORY; }

FACE int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, size_t stream) {
    stream_of(stream).put([=] { must_reach(to), must_reach(from), std::memmove(on_host(to), on_host(from), bytes); });
    return OK;
}
FACE int cuMemcpy2DAsync_v2(const Rows *given, size_t stream) {
    Rows rows = *given;
    stream_of(stream).put([rows] {
        for (size_t row = 0; row < rows.rows; row++) {
            uint64_t from = rows.from_kind == HOST_KIND ? rows.from_host : rows.from_device;
            uint64_t to = rows.to_kind == HOST_KIND ? rows.to_host : rows.to_device;
            std::memmove(on_host(to + row * rows.to_pitch), on_host(from + row * rows.from_pitch), rows.width);
        }
    });
    return OK;
}
template <typename Element> int fill(uint64_t to, size_t pitch, Element value, size_t count, size_t rows, size_t stream) {
    stream_of(stream).put([=] {
        for (size_t row = 0; row < rows; row++) {
            must_reach(to + row * pitch);
            for (size_t index = 0; index < count; index++) {
                on_host<Element>(to + row * pitch)[index] = value;
            }
        }
    });
    return OK;
}
FACE int cuMemsetD2D8Async(uint64_t to, size_t pitch, unsigned char value, size_t count, size_t rows, size_t stream) {
    return fill(to, pitch, value, count, rows, stream);
}
FACE int cuMemsetD2D16Async(uint64_t to, size_t pitch, unsigned short value, size_t count, size_t rows, size_t stream) {
    return fill(to, pitch, value, count, rows, stream);
}
FACE int cuMemsetD2D32Async(uint64_t to, size_t pitch, unsigned value, size_t count, size_t rows, size_t stream) {
    return fill(to, pitch, value, count, rows, stream);
}

FACE int cuStreamCreateWithPriority(size_t *stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
FACE int cuStreamWaitEvent(size_t stream, size_t event, unsigned) {
    stream_of(stream).put(reinterpret_cast<Event *>(event)->waiter());
    return OK;
}
/* A record for others, which stands in graphs only: that it was asked for is all that is known of it here. */
FACE int cuEventRecordWithFlags(size_t, size_t, unsigned flags) {
    return flags == 1 && Stream::captured() ? OK : INVALID;
}
FACE int cuEventElapsedTime(float *milliseconds, size_t, size_t) { return *milliseconds = 1.5, OK; }

FACE int cuStreamBeginCapture_v2(size_t, int) {
    return Stream::captured() ? INVALID : (Stream::captured() = new std::vector<std::function<void()>>, OK);
}
FACE int cuStreamEndCapture(size_t, size_t *graph) {
    if (!Stream::captured()) {
        return INVALID;
    }
    *graph = reinterpret_cast<size_t>(new Graph{*Stream::captured(), {}});
    delete Stream::captured();
    return Stream::captured() = nullptr, OK;
}
/* Where instances lack there is one of them. */
FACE int cuGraphInstantiateWithFlags(size_t *instance, size_t graph, uint64_t) {
    static std::atomic<int> made{0};
    int most = lacks("instances") || lacks("second-switch") ? 1 : lacks("switches") ? 16 : INT_MAX;
    if (made++ >= most) {
        return NO_MEMORY;
    }
    return *instance = reinterpret_cast<size_t>(new Graph(*reinterpret_cast<Graph *>(graph))), OK;
}
/* The last work that was put on any stream stands for the last of each. */
FACE int cuStreamGetCaptureInfo_v2(size_t, int *state, uint64_t *, size_t *, const size_t **nodes, size_t *count) {
    static thread_local size_t last;
    last = Stream::captured() ? Stream::captured()->size() : 0;
    return *state = last > 0, *nodes = &last, *count = last > 0, OK;
}
FACE int cuGraphNodeSetEnabled(size_t instance, size_t node, unsigned on) {
    Graph &own = *reinterpret_cast<Graph *>(instance);
    if (lacks("switches") || (lacks("second-switch") && node == 2) || node == 0 || node > own.steps.size()) {
        return INVALID;
    }
    return on ? own.off.erase(node) : own.off.insert(node).second, OK;
}
/* An instance is changed if it has as many steps, and refused otherwise; all of them are on then, or stay as they are. */
FACE int cuGraphExecUpdate_v2(size_t instance, size_t graph, void *) {
    Graph &own = *reinterpret_cast<Graph *>(instance), &other = *reinterpret_cast<Graph *>(graph);
    std::set<size_t> off = lacks("second-switch") ? own.off : other.off;
    return own.steps.size() == other.steps.size() ? (own = other, own.off = off, OK) : 910;
}
FACE int cuGraphLaunch(size_t instance, size_t stream) {
    Graph graph = *reinterpret_cast<Graph *>(instance);
    stream_of(stream).put([graph] {
        for (size_t step = 0; step < graph.steps.size(); step++) {
            if (!graph.off.count(step + 1)) {
                graph.steps[step]();
            }
        }
    });
    return OK;
}
FACE int cuGraphDestroy(size_t graph) { return delete reinterpret_cast<Graph *>(graph), OK; }
FACE int cuGraphExecDestroy(size_t instance) { return delete reinterpret_cast<Graph *>(instance), OK; }

/* The map says what it was made of: rank, address, the last size, stride, tile and step, and the other numbers. */
FACE int cuTensorMapEncodeTiled(uint64_t *map, unsigned element, unsigned rank, uint64_t address, const uint64_t *sizes,
                                const uint64_t *strides, const unsigned *tile, const unsigned *steps, unsigned interleave,
                                unsigned swizzle, unsigned promotion, unsigned fill) {
    const uint64_t of[16] = {element, rank, address, sizes[rank - 1], rank > 1 ? strides[rank - 2] : 0, tile[rank - 1],
                             steps[rank - 1], interleave, swizzle, promotion, fill};
    return element > 15 ? INVALID : (std::memcpy(map, of, sizeof of), OK);
}

FACE int cuModuleGetGlobal_v2(uint64_t *, size_t *, size_t, const char *) { return NOT_FOUND; }
FACE int cuFuncGetAttribute(int *value, int attribute, size_t) { return *value = attribute == 0 ? 1024 : 0, OK; }
FACE int cuFuncSetAttribute(size_t, int, int) { return OK; }
/* The kernel that adds takes an address, a count, and what to add. The one that waits takes as many, and returns when the word at the
 * address is the last of them. The one that copies takes four words. */
FACE int cuFuncGetParamInfo(size_t function, size_t index, size_t *offset, size_t *bytes) {
    const size_t offsets[] = {0, 8, 12}, sizes[] = {8, 4, 4};
    if (function == COPY) {
        return index < 4 ? (*offset = 8 * index, *bytes = 8, OK) : INVALID;
    }
    return index < 3 ? (*offset = offsets[index], *bytes = sizes[index], OK) : INVALID;
}
FACE int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *groups, size_t, int, size_t, unsigned) { return *groups = 2, OK; }
FACE int cuOccupancyMaxActiveClusters(int *count, size_t, const Shape *) { return *count = 3, OK; }
/* What a launch of a kernel does; nothing if there is no such kernel, or it has too few parameters. */
static std::function<void()> launched(size_t function, void **extra) {
    struct {
        uint64_t address;
        unsigned count, value;
    } given;
    if (function == COPY && extra) {
        if (*static_cast<size_t *>(extra[3]) < 32) {
            std::abort(); /* a driver reads what it takes, whatever lies there */
        }
        return [] {};
    }
    if ((function != ADD && function != AWAIT) || !extra || *static_cast<size_t *>(extra[3]) < sizeof given) {
        return nullptr;
    }
    std::memcpy(&given, extra[1], sizeof given);
    if (function == AWAIT) {
        return [given] {
            must_reach(given.address);
            while (*static_cast<volatile unsigned *>(on_host<unsigned>(given.address)) != given.value) {
                std::this_thread::yield();
            }
        };
    }
    return [given] {
        must_reach(given.address);
        for (unsigned index = 0; index < given.count; index++) {
            on_host<unsigned>(given.address)[index] += given.value;
        }
    };
}
FACE int cuLaunchKernelEx(const Shape *shape, size_t function, void **, void **extra) {
    std::function<void()> step = launched(function, extra);
    if (!step) {
        return INVALID;
    }
    world().launches++;
    return stream_of(shape->stream).put(step), OK;
}
FACE int cuGraphExecKernelNodeSetParams_v2(size_t instance, size_t node, const KernelNode *given) {
    Graph &own = *reinterpret_cast<Graph *>(instance);
    std::function<void()> step = launched(given->function, given->extra);
    return step && node > 0 && node <= own.steps.size() ? (own.steps[node - 1] = step, OK) : INVALID;
}

#endif
