/* Copies all fragments of a batch of blocks in one launch, in either direction.
 *
 * Each warp takes tiles of 4 KiB in turn: it finds the piece that a tile belongs to, and copies it in words as wide as both
 * addresses allow. The tests compile this same file for the processor: no barrier, no shared memory, no warp operation. */

typedef unsigned long long u64;
typedef unsigned char byte;

/* Fragments of equal length at equal distances on one side, and the same bytes without gaps on the other. */
struct Piece {
    u64 linear;     /* address of the bytes without gaps */
    u64 start;      /* address of the first fragment */
    long long stride; /* from the start of a fragment to the start of the next one, in bytes */
    u64 bytes;      /* of a fragment; not 0 */
    u64 count;      /* fragments; not 0 */
    u64 first_tile; /* tiles of all pieces before this one */
};
static_assert(sizeof(Piece) == 48, "the host makes it of six words");

/* Bytes that a warp has under way at once: 32 threads, 8 words of 16 bytes each. */
static const u64 TILE_BYTES = 4096;
static const unsigned WARP = 32;
static const unsigned WORDS_AHEAD = 8;

struct __align__(16) Quad {
    unsigned x, y, z, w;
};

/* Loads past all caches of the GPU: memory of the host is written by processors that those caches know nothing of, and a
 * line that an earlier launch left there would be bytes of an older block. */
#ifdef __CUDA_ARCH__
static __device__ __forceinline__ Quad fresh(const Quad *from) {
    Quad word;
    asm volatile("ld.global.cv.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(from));
    return word;
}
static __device__ __forceinline__ unsigned fresh(const unsigned *from) {
    unsigned word;
    asm volatile("ld.global.cv.u32 %0, [%1];" : "=r"(word) : "l"(from));
    return word;
}
static __device__ __forceinline__ byte fresh(const byte *from) {
    unsigned word;
    asm volatile("ld.global.cv.u8 %0, [%1];" : "=r"(word) : "l"(from));
    return (byte)word;
}
#else
template <typename Word> static Word fresh(const Word *from) {
    return *from;
}
#endif

/* Copies words, all threads of a warp together: up to 8 loads of a thread are under way before its first store. */
template <typename Word>
static __device__ __forceinline__ void copy_words(byte *to, const byte *from, u64 words, unsigned lane) {
    const Word *source = (const Word *)from;
    Word *target = (Word *)to;
    for (u64 first = lane; first < words; first += WARP * WORDS_AHEAD) {
        Word held[WORDS_AHEAD];
#pragma unroll
        for (unsigned ahead = 0; ahead < WORDS_AHEAD; ahead++) {
            if (first + ahead * WARP < words) {
                held[ahead] = fresh(source + first + ahead * WARP);
            }
        }
#pragma unroll
        for (unsigned ahead = 0; ahead < WORDS_AHEAD; ahead++) {
            if (first + ahead * WARP < words) {
                target[first + ahead * WARP] = held[ahead];
            }
        }
    }
}

/* Copies a tile: bytes up to where words begin, words, and the bytes that are left. */
static __device__ __forceinline__ void copy_tile(byte *to, const byte *from, u64 bytes, unsigned lane) {
    u64 apart = (u64)to ^ (u64)from;
    u64 width = apart % 16 == 0 ? 16 : apart % 4 == 0 ? 4 : 1;
    u64 head = (width - (u64)to % width) % width;
    head = head < bytes ? head : bytes;
    u64 words = (bytes - head) / width;
    u64 tail = head + words * width;
    copy_words<byte>(to, from, head, lane);
    if (width == 16) {
        copy_words<Quad>(to + head, from + head, words, lane);
    } else if (width == 4) {
        copy_words<unsigned>(to + head, from + head, words, lane);
    } else {
        copy_words<byte>(to + head, from + head, words, lane);
    }
    copy_words<byte>(to + tail, from + tail, bytes - tail, lane);
}

/* `is_scatter`: from the bytes without gaps to the fragments; else the other way. */
extern "C" __global__ void __launch_bounds__(256)
hinterland_copy(const Piece *pieces, u64 piece_count, u64 tile_count, u64 is_scatter) {
    unsigned lane = threadIdx.x % WARP;
    u64 warps_per_group = blockDim.x / WARP;
    u64 warps = gridDim.x * warps_per_group;
    for (u64 tile = blockIdx.x * warps_per_group + threadIdx.x / WARP; tile < tile_count; tile += warps) {
        /* The last piece that begins at this tile or before. */
        u64 low = 0, high = piece_count;
        while (high - low > 1) {
            u64 middle = low + (high - low) / 2;
            if (pieces[middle].first_tile <= tile) {
                low = middle;
            } else {
                high = middle;
            }
        }
        const Piece *piece = pieces + low;
        u64 bytes = piece->bytes;
        u64 tiles_each = (bytes + TILE_BYTES - 1) / TILE_BYTES;
        u64 within = tile - piece->first_tile;
        u64 fragment = within / tiles_each;
        u64 at = within % tiles_each * TILE_BYTES;
        u64 length = bytes - at < TILE_BYTES ? bytes - at : TILE_BYTES;
        byte *linear = (byte *)(piece->linear + fragment * bytes + at);
        byte *place = (byte *)(piece->start + (u64)((long long)fragment * piece->stride) + at);
        if (is_scatter) {
            copy_tile(place, linear, length, lane);
        } else {
            copy_tile(linear, place, length, lane);
        }
    }
}
