// Kernels with the matrix instructions of tensor cores, written out as inference engines do.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <stdint.h>

__device__ unsigned shared_address(const void *pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

// One warp: c[16][8] = a[16][16] * b[16][8], rows one after the other.
extern "C" __global__ void halves(const __half *a, const __half *b, float *c, __half *small) {
    __shared__ __align__(16) __half left[16][16], right[16][8];
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) left[i / 16][i % 16] = a[i];
    for (int i = lane; i < 128; i += 32) right[i / 8][i % 8] = b[i];
    __syncwarp();
    unsigned x[4], y[2];
    unsigned from = shared_address(&left[lane % 16][lane / 16 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from));
    from = shared_address(&right[lane % 16][0]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(from));
    float d[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
    unsigned e[2] = {0x3c003c00u, 0x3c003c00u};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
                 : "+r"(e[0]), "+r"(e[1])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    for (int i = 0; i < 2; i++) *(unsigned *)&small[(lane / 4 + i * 8) * 8 + lane % 4 * 2] = e[i];
}

// c[16][8] = a[16][32] * b[32][8] of bytes; b is stored by columns.
extern "C" __global__ void bytes(const int8_t *a, const int8_t *b, int *c) {
    int lane = threadIdx.x, row = lane / 4, column = lane % 4 * 4;
    unsigned x[4], y[2];
    for (int i = 0; i < 4; i++) x[i] = *(const unsigned *)&a[(row + i % 2 * 8) * 32 + column + i / 2 * 16];
    for (int i = 0; i < 2; i++) y[i] = *(const unsigned *)&b[row * 32 + column + i * 16];
    int d[4] = {100, 100, 100, 100};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    for (int i = 0; i < 4; i++) c[(row + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

// c[16][8] = a[16][8] * b[8][8] of singles with short mantissas, and c = c + a[16][16] * b[16][8] of brain numbers.
extern "C" __global__ void others(const float *a, const float *b, const __nv_bfloat16 *p, const __nv_bfloat16 *q, float *c) {
    int lane = threadIdx.x, row = lane / 4, column = lane % 4;
    float d[4] = {0, 0, 0, 0};
    unsigned x[4], y[2];
    for (int i = 0; i < 4; i++) x[i] = __float_as_uint(a[(row + i % 2 * 8) * 8 + column + i / 2 * 4]);
    for (int i = 0; i < 2; i++) y[i] = __float_as_uint(b[(column + i * 4) * 8 + row]);
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    for (int i = 0; i < 4; i++) x[i] = *(const unsigned *)&p[(row + i % 2 * 8) * 16 + column * 2 + i / 2 * 8];
    for (int i = 0; i < 2; i++) y[i] = *(const unsigned *)&q[row * 16 + column * 2 + i * 8];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    for (int i = 0; i < 4; i++) c[(row + i / 2 * 8) * 8 + column * 2 + i % 2] = d[i];
}

// A matrix is turned in registers, and another on its way to memory.
extern "C" __global__ void turned(const uint16_t *x, uint16_t *out, uint16_t *stored) {
    __shared__ __align__(16) uint16_t room[8][8];
    int lane = threadIdx.x;
    unsigned value = *(const unsigned *)&x[lane * 2], result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(value));
    *(unsigned *)&out[lane * 2] = result;
    unsigned to = shared_address(&room[lane % 8][0]);
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(to), "r"(value) : "memory");
    __syncwarp();
    *(unsigned *)&stored[lane * 2] = *(unsigned *)&room[lane / 4][lane % 4 * 2];
}

// The same with the fragments of the library: c = 2 * (a * b + 1), a by rows and b by columns.
extern "C" __global__ void fragments(const __half *a, const __half *b, float *c, __half *small) {
    using namespace nvcuda;
    __shared__ __align__(32) __half left[16 * 24];
    for (int i = threadIdx.x; i < 256; i += 32) left[i / 16 * 24 + i % 16] = a[i];
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> y;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 1.0f);
    wmma::load_matrix_sync(x, left, 24);
    wmma::load_matrix_sync(y, b, 16);
    wmma::mma_sync(sum, x, y, sum);
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] *= 2.0f;
    wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
    wmma::fragment<wmma::matrix_a, 8, 32, 16, __half, wmma::row_major> p;
    wmma::fragment<wmma::matrix_b, 8, 32, 16, __half, wmma::row_major> q;
    wmma::fragment<wmma::accumulator, 8, 32, 16, __half> r;
    wmma::fill_fragment(r, __float2half(0.0f));
    wmma::load_matrix_sync(p, a, 16);
    wmma::load_matrix_sync(q, b, 0);
    wmma::mma_sync(r, p, q, r);
    wmma::store_matrix_sync(small, r, 8, wmma::mem_col_major);
}
