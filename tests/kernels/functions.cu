// Kernels that call: functions with structures, through tables, with memory of their own; variables of all kinds.
#include <assert.h>
#include <stdint.h>
#include <stdio.h>

struct Box {
    float low[3];
    float high[3];
    int id;
};

__constant__ float weights[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__device__ int visits = 5;
__device__ const char *names[2] = {"zero", "one"};

__device__ __noinline__ float volume(Box box) {
    float product = 1.0f;
    for (int axis = 0; axis < 3; axis++) product *= box.high[axis] - box.low[axis];
    return product + box.id;
}

__device__ __noinline__ Box grown(const Box &box, float by) {
    Box result = box;
    for (int axis = 0; axis < 3; axis++) {
        result.low[axis] -= by;
        result.high[axis] += by * weights[axis];
    }
    result.id++;
    return result;
}

extern "C" __global__ void boxes(const Box *boxes, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    Box box = boxes[i];
    for (int turn = 0; turn < i % 4; turn++) box = grown(box, 0.25f);
    out[i] = volume(box);
}

typedef int (*Step)(int);
__device__ __noinline__ int add_three(int value) { return value + 3; }
__device__ __noinline__ int twice(int value) { return value * 2; }
__device__ __noinline__ int negated(int value) { return value % 5 == 0 ? -value : value; }
__device__ Step steps[3] = {add_three, twice, negated};

extern "C" __global__ void table(const int *order, int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    int value = i;
    for (int turn = 0; turn < 3; turn++) value = steps[(order[i] + turn) % 3](value);
    out[i] = value;
}

extern "C" __global__ void visitors(int *order, uint8_t *letters, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    order[i] = atomicAdd(&visits, 1);
    letters[i] = names[i & 1][i % 3];
}

// A small array that is indexed by data lies in the thread's own memory.
extern "C" __global__ void sorted(const int *x, int *out) {
    int own[9];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int at = 0; at < 9; at++) own[at] = x[9 * i + at];
    for (int end = 8; end > 0; end--)
        for (int at = 0; at < end; at++)
            if (own[at] > own[at + 1]) {
                int kept = own[at];
                own[at] = own[at + 1];
                own[at + 1] = kept;
            }
    out[10 * i + 9] = own[own[0] & 7];
    for (int at = 0; at < 9; at++) out[10 * i + at] = own[at];
}

struct Large {
    int values[40];
};

extern "C" __global__ void structures(const __grid_constant__ Large large, int index, int *out) {
    const int *from = &large.values[0];
    out[threadIdx.x] = from[(index + threadIdx.x) % 40];
}

__device__ int depth(int value) { return value <= 0 ? 0 : 1 + depth(value / 2); }

extern "C" __global__ void recursive(int *out) { out[threadIdx.x] = depth(threadIdx.x); }

extern "C" __global__ void talking(const float *x) {
    int i = threadIdx.x;
    if (i < 3) printf("%d of %u: %5.2f|%-8s|%08.3f|%x %lld %c %g%%\n", -i, blockDim.x, x[i], names[i & 1], x[i], 255 + i, -5000000000LL, 'a' + i, 1e10 * x[i]);
    if (i == 3) printf("nothing else %p %e\n", (void *)0x1234, 12345.678);
}

extern "C" __global__ void asserting(const int *x) { assert(x[threadIdx.x] < 5); }
