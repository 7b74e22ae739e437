/* What a GPU node needs of cuBLAS and cuBLASLt, for numbers of single precision: products, one function of vectors, and what describes a product of
 * cuBLASLt. Work is put on streams, as that of kernels is. */
#ifndef BLAS_H
#define BLAS_H

#include <array>

struct BlasHandle {
    size_t stream = 0;
    int pointers = 0;
    uint64_t workspace = 0;
};

enum Refusal { REFUSED = 7, NOT_THERE = 15 };

static float scalar(int pointers, const void *value) {
    return pointers ? *on_host<float>(reinterpret_cast<uintptr_t>(value)) : *static_cast<const float *>(value);
}

/* d = alpha * a * b + beta * c, each transposed or not, by columns. */
struct FloatProduct {
    bool turn_a, turn_b;
    int64_t m, n, k;
    float alpha, beta;
    uint64_t a, b, c, d;
    int64_t a_lead, b_lead, c_lead, d_lead;

    void run() const {
        must_reach(a), must_reach(b), must_reach(d);
        const float *left = on_host<float>(a), *right = on_host<float>(b), *before = on_host<float>(c);
        float *to = on_host<float>(d);
        for (int64_t column = 0; column < n; column++) {
            for (int64_t row = 0; row < m; row++) {
                float sum = 0;
                for (int64_t at = 0; at < k; at++) {
                    sum += (turn_a ? left[row * a_lead + at] : left[at * a_lead + row]) *
                           (turn_b ? right[at * b_lead + column] : right[column * b_lead + at]);
                }
                float old = beta == 0 ? 0 : beta * before[column * c_lead + row];
                to[column * d_lead + row] = alpha * sum + old;
            }
        }
    }
};

FACE int cublasCreate_v2(BlasHandle **handle) { return *handle = new BlasHandle, 0; }
FACE int cublasDestroy_v2(BlasHandle *handle) { return delete handle, 0; }
FACE int cublasGetVersion_v2(BlasHandle *, int *version) { return *version = 130002, 0; }
/* A handle that is told a stream, be it the same one, works in memory of its own again. */
FACE int cublasSetStream_v2(BlasHandle *handle, size_t stream) { return handle->stream = stream, handle->workspace = 0, 0; }
FACE int cublasSetMathMode(BlasHandle *, int) { return 0; }
FACE int cublasSetWorkspace_v2(BlasHandle *handle, uint64_t workspace, size_t) { return handle->workspace = workspace, 0; }
FACE int cublasSetPointerMode_v2(BlasHandle *handle, int mode) { return handle->pointers = mode, 0; }
FACE int cublasSetAtomicsMode(BlasHandle *, int) { return 0; }
FACE int cublasGemmStridedBatchedEx_64(BlasHandle *handle, int turn_a, int turn_b, int64_t m, int64_t n, int64_t k, const void *alpha,
                                       uint64_t a, int a_type, int64_t a_lead, int64_t a_stride, uint64_t b, int b_type, int64_t b_lead,
                                       int64_t b_stride, const void *beta, uint64_t c, int c_type, int64_t c_lead, int64_t c_stride,
                                       int64_t count, int, int) {
    if (a_type || b_type || c_type) {
        return NOT_THERE;
    }
    float one = scalar(handle->pointers, alpha), other = scalar(handle->pointers, beta);
    if (handle->workspace) {
        /* It counts the products that work there. */
        stream_of(handle->stream).put([place = handle->workspace] { must_reach(place), *on_host<float>(place) += 1; });
    }
    for (int64_t index = 0; index < count; index++) {
        uint64_t at = c + 4 * index * c_stride;
        FloatProduct product = {turn_a != 0, turn_b != 0, m, n, k, one, other, a + 4 * index * a_stride, b + 4 * index * b_stride, at, at,
                                a_lead, b_lead, c_lead, c_lead};
        stream_of(handle->stream).put([product] { product.run(); });
    }
    return 0;
}
FACE int cublasGemmBatchedEx_64(BlasHandle *) { return NOT_THERE; }
FACE int cublasSaxpy_v2(BlasHandle *handle, int n, const void *alpha, uint64_t x, int x_step, uint64_t y, int y_step) {
    float factor = scalar(handle->pointers, alpha);
    stream_of(handle->stream).put([=] {
        must_reach(x), must_reach(y);
        for (int index = 0; index < n; index++) {
            on_host<float>(y)[index * y_step] += factor * on_host<float>(x)[index * x_step];
        }
    });
    return 0;
}
/* Results go to memory of the device: the node says so before it calls. */
FACE int cublasSdot_v2(BlasHandle *handle, int n, uint64_t x, int x_step, uint64_t y, int y_step, uint64_t result) {
    if (!handle->pointers) {
        return REFUSED;
    }
    stream_of(handle->stream).put([=] {
        must_reach(x), must_reach(y), must_reach(result);
        float sum = 0;
        for (int index = 0; index < n; index++) {
            sum += on_host<float>(y)[index * y_step] * on_host<float>(x)[index * x_step];
        }
        *on_host<float>(result) = sum;
    });
    return 0;
}

/* --- cuBLASLt: a description is its attributes --- */

struct Described {
    std::map<int, std::vector<unsigned char>> attributes;

    int64_t number(int which) const {
        auto found = attributes.find(which);
        int64_t value = 0;
        if (found != attributes.end()) {
            std::memcpy(&value, found->second.data(), found->second.size() < 8 ? found->second.size() : 8);
        }
        return value;
    }

    void put(int which, const void *value, size_t bytes) {
        auto start = static_cast<const unsigned char *>(value);
        attributes[which] = std::vector<unsigned char>(start, start + bytes);
    }
};

const unsigned long ALGORITHM = 0x616c676f;

FACE int cublasLtCreate(size_t *handle) { return *handle = 1, 0; }
FACE int cublasLtMatmulDescCreate(Described **made, int compute, int scale) {
    *made = new Described;
    return (*made)->put(0, &compute, 4), (*made)->put(1, &scale, 4), 0;
}
FACE int cublasLtMatrixLayoutCreate(Described **made, int type, uint64_t rows, uint64_t columns, int64_t lead) {
    *made = new Described;
    (*made)->put(0, &type, 4), (*made)->put(2, &rows, 8), (*made)->put(3, &columns, 8), (*made)->put(4, &lead, 8);
    return 0;
}
FACE int cublasLtMatmulPreferenceCreate(Described **made) { return *made = new Described, 0; }
FACE int cublasLtMatmulDescSetAttribute(Described *to, int which, const void *value, size_t bytes) { return to->put(which, value, bytes), 0; }
FACE int cublasLtMatrixLayoutSetAttribute(Described *to, int which, const void *value, size_t bytes) { return to->put(which, value, bytes), 0; }
FACE int cublasLtMatmulPreferenceSetAttribute(Described *to, int which, const void *value, size_t bytes) { return to->put(which, value, bytes), 0; }
FACE int cublasLtMatmulDescDestroy(Described *made) { return delete made, 0; }
FACE int cublasLtMatrixLayoutDestroy(Described *made) { return delete made, 0; }
FACE int cublasLtMatmulPreferenceDestroy(Described *made) { return delete made, 0; }
FACE int cublasLtMatmulAlgoGetHeuristic(size_t, Described *, Described *a, Described *, Described *, Described *, Described *wish, int,
                                        unsigned long *result, int *count) {
    /* It counts on alignments that it was told, and refuses to guess. */
    if (wish->number(5) == 0 || wish->number(8) == 0) {
        return REFUSED;
    }
    result[0] = ALGORITHM;
    return *count = a->number(0) == 0, 0;
}
FACE int cublasLtMatmul(size_t, Described *product, const void *alpha, uint64_t a, Described *a_layout, uint64_t b, Described *b_layout,
                        const void *beta, uint64_t c, Described *c_layout, uint64_t d, Described *d_layout, const unsigned long *algorithm,
                        uint64_t, size_t, size_t stream) {
    if (algorithm[0] != ALGORITHM) {
        return REFUSED;
    }
    bool turn_a = product->number(3) != 0, turn_b = product->number(4) != 0;
    int pointers = static_cast<int>(product->number(2));
    FloatProduct work = {turn_a, turn_b, d_layout->number(2), d_layout->number(3), a_layout->number(turn_a ? 2 : 3),
                         scalar(pointers, alpha), scalar(pointers, beta), a, b, c, d,
                         a_layout->number(4), b_layout->number(4), c_layout->number(4), d_layout->number(4)};
    stream_of(stream).put([work] { work.run(); });
    return 0;
}

#endif
