// Kernels in which the threads of a block work together: shuffles, shared memory, atomics, barriers.
#include <cooperative_groups.h>
#include <stdint.h>

__device__ float warp_sum(float value) {
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

// The sum of all threads of a block, for every thread.
__device__ float block_sum(float value) {
    __shared__ float partial[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
    value = warp_sum(value);
    __syncthreads();
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = lane < warps ? partial[lane] : 0.0f;
    return warp_sum(value);
}

extern "C" __global__ void reduce(const float *x, float *out, int count) {
    float value = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) value += x[i];
    value = block_sum(value);
    if (threadIdx.x == 0) out[blockIdx.x] = value;
}

extern "C" __global__ void histogram(const uint8_t *data, uint32_t *counts, int count) {
    __shared__ uint32_t local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) atomicAdd(&local[data[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (local[i]) atomicAdd(&counts[i], local[i]);
}

extern "C" __global__ void softmax(const float *x, float *y, int columns) {
    extern __shared__ float row[];
    const float *from = x + (size_t)blockIdx.x * columns;
    float *to = y + (size_t)blockIdx.x * columns;
    __shared__ float most;
    float best = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) best = fmaxf(best, from[i]);
    row[threadIdx.x] = best;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < blockDim.x; i++) best = fmaxf(best, row[i]);
        most = best;
    }
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        float value = expf(from[i] - most);
        to[i] = value;
        sum += value;
    }
    sum = block_sum(sum);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) to[i] /= sum;
}

extern "C" __global__ void rmsnorm(const float *x, const float *weight, float *y, int columns, float epsilon) {
    const float *from = x + (size_t)blockIdx.x * columns;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += from[i] * from[i];
    float scale = rsqrtf(block_sum(sum) / columns + epsilon);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) y[(size_t)blockIdx.x * columns + i] = from[i] * scale * weight[i];
}

extern "C" __global__ void matmul(const float *a, const float *b, float *c, int m, int n, int k) {
    __shared__ float left[16][17], right[16][17];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int tile = 0; tile < k; tile += 16) {
        left[threadIdx.y][threadIdx.x] = row < m && tile + threadIdx.x < k ? a[row * k + tile + threadIdx.x] : 0.0f;
        right[threadIdx.y][threadIdx.x] = tile + threadIdx.y < k && column < n ? b[(tile + threadIdx.y) * n + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++) sum = fmaf(left[threadIdx.y][i], right[i][threadIdx.x], sum);
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

// Even values keep their order, packed together; the rest is dropped.
extern "C" __global__ void compact(const int *x, int *out, int *total, int count) {
    __shared__ int base;
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    bool keep = i < count && x[i] % 2 == 0;
    if (threadIdx.x == 0) base = 0;
    __syncthreads();
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
        if (threadIdx.x / 32 == warp) {
            unsigned mask = __ballot_sync(0xffffffffu, keep);
            int before = __popc(mask & ((1u << lane) - 1));
            if (keep) out[blockIdx.x * blockDim.x + base + before] = x[i];
            __syncwarp();
            if (lane == 0) base += __popc(mask);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) total[blockIdx.x] = base;
}

extern "C" __global__ void reductions(const int *x, int *out) {
    int value = x[blockIdx.x * blockDim.x + threadIdx.x];
    int positive = __syncthreads_count(value > 0);
    int all = __syncthreads_and(value > -1000), any = __syncthreads_or(value == 77);
    unsigned same = __match_any_sync(0xffffffffu, value & 3);
    int sum = __reduce_add_sync(0xffffffffu, value), least = __reduce_min_sync(0xffffffffu, value);
    int *to = out + 6 * (blockIdx.x * blockDim.x + threadIdx.x);
    to[0] = positive;
    to[1] = all * 2 + any;
    to[2] = same;
    to[3] = sum;
    to[4] = least;
    to[5] = __shfl_down_sync(0xffffffffu, value, 3, 8);
}

// Threads take a lock one after the other, also those of one warp.
extern "C" __global__ void locked(int *lock, int *counter) {
    for (bool done = false; !done;) {
        if (atomicCAS(lock, 0, 1) == 0) {
            __threadfence();
            *(volatile int *)counter = *(volatile int *)counter + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

extern "C" __global__ void floats(float *sum, double *wide, float *most) {
    atomicAdd(sum, 1.0f + threadIdx.x);
    atomicAdd(wide, 0.5 * threadIdx.x);
    // The greatest of positive numbers is that of their bits.
    atomicMax((int *)most, __float_as_int((float)(threadIdx.x * 37 % 101)));
}

// All blocks wait for each other, twice: each sees what all have written.
extern "C" __global__ void together(int *partial, int *out) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    for (int turn = 0; turn < 2; turn++) {
        if (threadIdx.x == 0) partial[turn * gridDim.x + blockIdx.x] = (turn + 1) * (blockIdx.x + 1);
        grid.sync();
    }
    int sum = 0;
    for (int i = 0; i < 2 * gridDim.x; i++) sum += partial[i];
    out[grid.thread_rank()] = sum;
}
