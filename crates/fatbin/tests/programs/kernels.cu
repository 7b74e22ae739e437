// Kernels with parameters of many shapes, and variables, for whoever reads what the compiler makes of them.
#include <cstdint>
#include <cuda_fp16.h>

struct Pair { char letter; double number; };
struct alignas(16) Wide { float values[4]; char tail; };
struct Big { int64_t values[600]; };
struct Odd { char letters[3]; };
struct Empty {};

__device__ int counter;
__device__ float table[1000];
__device__ int filled[5] = {1, 2, 3};
__constant__ double weights[16];
__managed__ int managed;
static __device__ short hidden[3];

extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void nothing() {}

extern "C" __global__ void mixed(char c, Pair p, short s, Wide w, bool b, double d, Odd o, __half h, float3 f,
                                 float4 g, int *out) {
    *out = c + p.letter + (int)p.number + s + (int)w.values[2] + w.tail + b + (int)d + o.letters[1] +
           (int)__half2float(h) + (int)f.y + (int)g.w;
}

extern "C" __global__ void big(Big v, int *out) { *out = (int)v.values[threadIdx.x]; }

extern "C" __global__ void __launch_bounds__(128, 2) bounded(float *out) {
    __shared__ float s[256];
    s[threadIdx.x] = out[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[255 - threadIdx.x];
}

extern "C" __global__ void dynamic(float *out) {
    extern __shared__ float values[];
    values[threadIdx.x] = out[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = values[5];
}

extern "C" __global__ void local(int *out, int k) {
    int a[100];
    for (int i = 0; i < 100; i++) a[i] = out[i] * k;
    for (int i = 0; i < 100; i++) out[a[i] % 100] = a[(i * k) % 100];
}

template <typename T, int N> __global__ void templated(T *out, const T value, uint8_t odd[N]) {
    out[threadIdx.x] = value + odd[N - 1] + hidden[0] + managed + filled[threadIdx.x];
}
template __global__ void templated<float, 3>(float *, const float, uint8_t *);

__global__ void uses() {
    counter += (int)(table[3] * weights[2]) + hidden[1];
    hidden[2] = 4;
    managed = 3;
}

extern "C" __global__ void empties(Empty e, int *p, Empty f, char q) { *p = q; }

extern "C" __global__ void restricted(const __grid_constant__ Wide w, const float *__restrict__ p, float *q) {
    *q = w.values[1] + *p;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(2, 1, 1) clustered(int *p) { *p = 1; }
#endif
