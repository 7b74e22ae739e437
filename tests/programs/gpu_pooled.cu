// A program that copies a mapped file to a GPU in many ways, and checks that what arrived is what the program itself sees. The tests run it
// with a file of the pool, whose bytes the GPU's node may read by itself.
//
//   gpu_pooled MAPPED SOURCE PART...
//
// SOURCE has the bytes that MAPPED is to have. Standard output gets a line for each part: its name, bytes of commands, copies by name, bytes of these.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include <cuda_runtime.h>

#define EXPECT(condition)                                              \
    do {                                                               \
        if (!(condition)) {                                            \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);    \
            exit(1);                                                   \
        }                                                              \
    } while (0)
#define GOOD(call)                                                                             \
    do {                                                                                       \
        cudaError_t code = (call);                                                             \
        if (code != cudaSuccess) {                                                             \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(code));   \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

static std::vector<unsigned char> truth;
static int mapped_file;
static size_t bytes;
static unsigned char * device;

// Adds up every 64th word, times its place, so that bytes at a wrong place are found.
__global__ void add_up(const uint32_t * words, int count, unsigned long long * sum) {
    const int at = (blockIdx.x * blockDim.x + threadIdx.x) * 64;
    if (at < count) {
        atomicAdd(sum, (unsigned long long) words[at] * (at + 1));
    }
}

static unsigned long long sum_on_device() {
    const int words = (int) (bytes / 4);
    unsigned long long * place, sum = 0;
    GOOD(cudaMalloc(&place, 8));
    GOOD(cudaMemset(place, 0, 8));
    add_up<<<(words / 64 + 256) / 256, 256>>>((const uint32_t *) device, words, place);
    GOOD(cudaGetLastError());
    GOOD(cudaMemcpy(&sum, place, 8, cudaMemcpyDeviceToHost));
    GOOD(cudaFree(place));
    return sum;
}

static unsigned long long sum_of(const unsigned char * from) {
    const int words = (int) (bytes / 4);
    unsigned long long sum = 0;
    for (int at = 0; at < words; at += 64) {
        uint32_t word;
        memcpy(&word, from + 4 * (size_t) at, 4);
        sum += (unsigned long long) word * (at + 1);
    }
    return sum;
}

static void expect_device(const unsigned char * from, size_t at, size_t length) {
    std::vector<unsigned char> back(length);
    GOOD(cudaMemcpy(back.data(), device + at, length, cudaMemcpyDeviceToHost));
    for (size_t byte = 0; byte < length; byte++) {
        if (back[byte] != from[byte]) {
            fprintf(stderr, "byte %zu of the device is %d, not %d\n", at + byte, back[byte], from[byte]);
            exit(1);
        }
    }
}

static unsigned char * map(int protection, int flags) {
    void * place = mmap(nullptr, bytes, protection, flags, mapped_file, 0);
    EXPECT(place != MAP_FAILED);
    return (unsigned char *) place;
}

static void wait_for_a_line(const char * word) {
    char line[64];
    printf("%s\n", word);
    fflush(stdout);
    EXPECT(fgets(line, sizeof line, stdin));
}

static void clear() {
    GOOD(cudaMemset(device, 0x5a, bytes));
}

static void copy_whole(int protection, int flags) {
    unsigned char * place = map(protection, flags);
    GOOD(cudaMemcpy(device, place, bytes, cudaMemcpyHostToDevice));
    // Gone before the node may have read a byte.
    EXPECT(munmap(place, bytes) == 0);
    EXPECT(sum_on_device() == sum_of(truth.data()));
    expect_device(truth.data(), 0, bytes);
}

// What was written to a private mapping is what arrives, whatever the file says.
static void dirty() {
    unsigned char * place = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
    std::vector<unsigned char> wanted = truth;
    const size_t places[] = { 0, 4095, bytes / 2 + 77, bytes - 1 };
    for (size_t at : places) {
        place[at] ^= 0xff;
        wanted[at] ^= 0xff;
        GOOD(cudaMemcpy(device, place, bytes, cudaMemcpyHostToDevice));
        expect_device(wanted.data(), 0, bytes);
    }
    EXPECT(mprotect(place, bytes, PROT_READ) == 0);
    clear();
    GOOD(cudaMemcpy(device, place, bytes, cudaMemcpyHostToDevice));
    EXPECT(sum_on_device() == sum_of(wanted.data()));
    expect_device(wanted.data(), 0, bytes);
    EXPECT(munmap(place, bytes) == 0);
}

// Something else takes the place of a part of the mapping, without any library seeing it.
static void covered() {
    unsigned char * place = map(PROT_READ, MAP_PRIVATE);
    GOOD(cudaMemcpy(device, place, bytes, cudaMemcpyHostToDevice));
    const size_t at = 2 << 20, length = 2 << 20;
    void * over = (void *) syscall(SYS_mmap, place + at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    EXPECT(over == place + at);
    memset(over, 0x33, length);
    std::vector<unsigned char> wanted = truth;
    memset(wanted.data() + at, 0x33, length);
    GOOD(cudaMemcpy(device, place, bytes, cudaMemcpyHostToDevice));
    expect_device(wanted.data(), 0, bytes);
    // And the file again, from elsewhere in it.
    over = (void *) syscall(SYS_mmap, place + at, length, PROT_READ, MAP_SHARED | MAP_FIXED, mapped_file, 0);
    EXPECT(over == place + at);
    memcpy(wanted.data() + at, truth.data(), length);
    clear();
    GOOD(cudaMemcpy(device, place, bytes, cudaMemcpyHostToDevice));
    expect_device(wanted.data(), 0, bytes);
}

static void pieces() {
    unsigned char * place = map(PROT_READ, MAP_SHARED);
    cudaStream_t stream;
    GOOD(cudaStreamCreate(&stream));
    unsigned seed = 7;
    for (int turn = 0; turn < 40; turn++) {
        seed = seed * 1664525u + 1013904223u;
        const size_t length = 65536 + (seed >> 8) % (bytes / 2 - 65536);
        seed = seed * 1664525u + 1013904223u;
        const size_t from = (seed >> 8) % (bytes - length), to = (seed >> 4) % (bytes - length);
        // In the order of the stream: fill, copy, and a fill over a part of the copy.
        GOOD(cudaMemsetAsync(device + to, 0x77, length, stream));
        GOOD(cudaMemcpyAsync(device + to, place + from, length, cudaMemcpyHostToDevice, stream));
        GOOD(cudaMemsetAsync(device + to + 1000, 0x11, 100, stream));
        GOOD(cudaStreamSynchronize(stream));
        std::vector<unsigned char> wanted(truth.begin() + from, truth.begin() + from + length);
        memset(wanted.data() + 1000, 0x11, 100);
        expect_device(wanted.data(), to, length);
    }
    GOOD(cudaStreamDestroy(stream));
    EXPECT(munmap(place, bytes) == 0);
}

// Two mappings side by side, the second not from where the first ends.
static void joined() {
    const size_t half = bytes / 2 & ~(size_t) 0x1fffff;
    unsigned char * place = (unsigned char *) mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(place != MAP_FAILED);
    EXPECT(mmap(place, half, PROT_READ, MAP_SHARED | MAP_FIXED, mapped_file, half) != MAP_FAILED);
    EXPECT(mmap(place + half, half, PROT_READ, MAP_PRIVATE | MAP_FIXED, mapped_file, 0) != MAP_FAILED);
    std::vector<unsigned char> wanted(truth.begin() + half, truth.begin() + 2 * half);
    wanted.insert(wanted.end(), truth.begin(), truth.begin() + half);
    GOOD(cudaMemcpy(device, place + 12345, 2 * half - 12345, cudaMemcpyHostToDevice));
    expect_device(wanted.data() + 12345, 0, 2 * half - 12345);
}

static void from_a_buffer() {
    std::vector<unsigned char> buffer(bytes);
    EXPECT(pread(mapped_file, buffer.data(), bytes, 0) == (ssize_t) bytes);
    GOOD(cudaMemcpy(device, buffer.data(), bytes, cudaMemcpyHostToDevice));
    expect_device(truth.data(), 0, bytes);
}

// The test does something to the pool between the mapping and the copy.
static void meanwhile() {
    unsigned char * place = map(PROT_READ, MAP_SHARED);
    wait_for_a_line("mapped");
    GOOD(cudaMemcpy(device, place, bytes, cudaMemcpyHostToDevice));
    expect_device(truth.data(), 0, bytes);
}

// The test takes the pool away between two copies: the second one fails, and nothing comes back for bytes.
static void lost() {
    unsigned char * place = map(PROT_READ, MAP_SHARED);
    GOOD(cudaMemcpy(device, place, 1 << 20, cudaMemcpyHostToDevice));
    expect_device(truth.data(), 0, 1 << 20);
    wait_for_a_line("copied");
    std::vector<unsigned char> back(bytes, 0x44);
    cudaError_t code = cudaMemcpy(device, place, bytes, cudaMemcpyHostToDevice);
    if (code == cudaSuccess) {
        code = cudaMemcpy(back.data(), device, bytes, cudaMemcpyDeviceToHost);
    }
    EXPECT(code == cudaErrorDevicesUnavailable);
    for (unsigned char byte : back) {
        EXPECT(byte == 0x44);
    }
    EXPECT(cudaDeviceSynchronize() == cudaErrorDevicesUnavailable);
    printf("refused\n");
    fflush(stdout);
    _exit(0);
}

static void report(const char * part) {
    static uint64_t before[3];
    uint64_t counters[5] = { 0 }, pooled[2] = { 0 };
    void (*read_counters)(uint64_t *), (*read_pooled)(uint64_t *);
    *(void **) &read_counters = dlsym(RTLD_DEFAULT, "hl_gpu_counters");
    *(void **) &read_pooled = dlsym(RTLD_DEFAULT, "hl_gpu_pooled");
    if (!read_counters) {
        void * core = dlopen("libhinterland_cuda.so", RTLD_NOW | RTLD_NOLOAD);
        EXPECT(core);
        *(void **) &read_counters = dlsym(core, "hl_gpu_counters");
        *(void **) &read_pooled = dlsym(core, "hl_gpu_pooled");
    }
    EXPECT(read_counters && read_pooled);
    read_counters(counters);
    read_pooled(pooled);
    const uint64_t now[3] = { counters[2], pooled[0], pooled[1] };
    printf("%s", part);
    for (int number = 0; number < 3; number++) {
        printf(" %llu", (unsigned long long) (now[number] - before[number]));
        before[number] = now[number];
    }
    printf("\n");
    fflush(stdout);
}

static std::vector<unsigned char> contents(const char * path) {
    FILE * file = fopen(path, "rb");
    EXPECT(file);
    struct stat about;
    EXPECT(fstat(fileno(file), &about) == 0);
    std::vector<unsigned char> all((size_t) about.st_size);
    EXPECT(fread(all.data(), 1, all.size(), file) == all.size());
    fclose(file);
    return all;
}

int main(int count, char ** words) {
    EXPECT(count > 3);
    truth = contents(words[2]);
    bytes = truth.size();
    mapped_file = open(words[1], O_RDONLY);
    EXPECT(mapped_file >= 0);
    GOOD(cudaMalloc(&device, bytes));
    // Code goes over before anything is counted.
    sum_on_device();
    report("start");
    for (int word = 3; word < count; word++) {
        const std::string part = words[word];
        clear();
        if (part == "shared") copy_whole(PROT_READ, MAP_SHARED);
        else if (part == "private") copy_whole(PROT_READ, MAP_PRIVATE);
        else if (part == "writable") copy_whole(PROT_READ | PROT_WRITE, MAP_PRIVATE);
        else if (part == "populated") copy_whole(PROT_READ, MAP_PRIVATE | MAP_POPULATE);
        else if (part == "dirty") dirty();
        else if (part == "covered") covered();
        else if (part == "pieces") pieces();
        else if (part == "joined") joined();
        else if (part == "buffer") from_a_buffer();
        else if (part == "meanwhile") meanwhile();
        else if (part == "lost") lost();
        else EXPECT(!"a part that there is");
        report(words[word]);
    }
    return 0;
}
