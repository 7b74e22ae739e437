// Kernels in which each thread computes alone: branches, loops, divisions, functions of the library.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

extern "C" __global__ void saxpy(float a, const float *x, float *y, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void collatz(const uint32_t *start, uint32_t *steps, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    uint32_t value = start[i], taken = 0;
    while (value != 1) {
        if (value > 100000000u) {
            taken = 0xffffffffu;
            break;
        }
        value = value % 2 ? 3 * value + 1 : value / 2;
        if (++taken > 300) break;
    }
    steps[i] = taken;
}

extern "C" __global__ void cases(const int *kind, int64_t *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    int64_t value = i;
    switch (kind[i]) {
    case 0: value += 11; break;
    case 1: value *= 3; break;
    case 2: value = -value; break;
    case 3: value <<= 40; break;
    case 4: value ^= 0x123456789abcdefLL; break;
    case 5: value = __clz(i + 1); break;
    case 6: value = __brev(i); break;
    case 7: value -= 1000000007LL * i; break;
    case 8: value = __popcll((unsigned long long)i * 0x9e3779b97f4a7c15ull); break;
    case 9: value = __ffs(i); break;
    default: value = kind[i];
    }
    out[i] = value;
}

extern "C" __global__ void divide(const int64_t *a, const int64_t *b, int64_t *quotient, int64_t *remainder, uint64_t *high,
                                  int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    quotient[i] = a[i] / b[i];
    remainder[i] = (int64_t)((uint64_t)a[i] % (uint64_t)b[i]);
    high[i] = __umul64hi((uint64_t)a[i], (uint64_t)b[i]);
}

extern "C" __global__ void wide(const uint64_t *a, const uint64_t *b, uint64_t *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned __int128 product = (unsigned __int128)a[i] * b[i] + a[i];
    unsigned __int128 quotient = product / (b[i] | 1);
    out[3 * i] = (uint64_t)product;
    out[3 * i + 1] = (uint64_t)(product >> 64);
    out[3 * i + 2] = (uint64_t)quotient;
}

extern "C" __global__ void library(const float *x, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float value = x[i];
    float *to = out + 8 * i;
    to[0] = sinf(value * 1000.0f);
    to[1] = expf(value);
    to[2] = logf(fabsf(value) + 0.5f);
    to[3] = powf(fabsf(value), 1.7f);
    to[4] = tanhf(value);
    to[5] = rsqrtf(fabsf(value) + 1.0f);
    to[6] = roundf(value * 10.0f);
    to[7] = erff(value);
}

extern "C" __global__ void doubles(const double *x, double *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    double value = x[i];
    double *to = out + 6 * i;
    to[0] = value / 3.0 + sqrt(fabs(value));
    to[1] = sin(value * 100.0);
    to[2] = exp(value);
    to[3] = __dadd_ru(value, 1e-20);
    to[4] = floor(value * 7.5);
    to[5] = (double)(long long)(value * 1e9);
}

extern "C" __global__ void halves(const __half2 *a, const __half2 *b, __half2 *out, const __nv_bfloat162 *c, __nv_bfloat162 *bf,
                                  float *single, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    __half2 sum = __hadd2(a[i], b[i]);
    __half2 fused = __hfma2(a[i], b[i], sum);
    out[3 * i] = sum;
    out[3 * i + 1] = fused;
    out[3 * i + 2] = __hmax2(__hmul2(sum, fused), __hneg2(a[i]));
    bf[i] = __hadd2(__hmul2(c[i], c[i]), c[i]);
    single[i] = __half2float(__low2half(fused)) + __bfloat162float(__high2bfloat16(c[i]));
}
