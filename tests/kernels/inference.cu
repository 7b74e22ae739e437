// Kernels as inference engines have them: quantised products, rotary positions, rows by number, matrix instructions.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// 32 weights of 4 bits with one scale, and 32 activations of 8 bits with one scale.
struct Weights {
    __half scale;
    uint8_t nibbles[16];
};
struct Activations {
    __half scale;
    int8_t values[32];
};

__device__ int load(const void *bytes, int index) {
    const uint16_t *halves = (const uint16_t *)bytes;
    return halves[2 * index] | halves[2 * index + 1] << 16;
}

extern "C" __global__ void quantised(const Weights *w, const Activations *x, float *y, int blocks) {
    float sum = 0.0f;
    const Weights *row = w + (size_t)blockIdx.x * blocks;
    for (int b = threadIdx.x; b < blocks; b += 32) {
        int dot = 0, all = 0;
        for (int i = 0; i < 4; i++) {
            int packed = load(row[b].nibbles, i), low = load(x[b].values, i), high = load(x[b].values, i + 4);
            dot = __dp4a(packed & 0x0f0f0f0f, low, dot);
            dot = __dp4a((packed >> 4) & 0x0f0f0f0f, high, dot);
            all = __dp4a(0x01010101, low, __dp4a(0x01010101, high, all));
        }
        sum += __half2float(row[b].scale) * __half2float(x[b].scale) * (dot - 8 * all);
    }
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

extern "C" __global__ void rope(float *x, const int *positions, int width, float base) {
    int pair = threadIdx.x, row = blockIdx.x;
    if (2 * pair >= width) return;
    float angle = positions[row] * powf(base, -2.0f * pair / width);
    float *at = x + (size_t)row * width + 2 * pair;
    float a = at[0], b = at[1], sine, cosine;
    sincosf(angle, &sine, &cosine);
    at[0] = a * cosine - b * sine;
    at[1] = a * sine + b * cosine;
}

extern "C" __global__ void rows(const __half *x, const int64_t *numbers, float *y, int width) {
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        y[(size_t)blockIdx.x * width + i] = __half2float(x[numbers[blockIdx.x] * width + i]);
}

extern "C" __global__ void silu(const __nv_bfloat16 *gate, const __nv_bfloat16 *up, __nv_bfloat16 *y, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float value = __bfloat162float(gate[i]);
    y[i] = __float2bfloat16(value / (1.0f + expf(-value)) * __bfloat162float(up[i]));
}
