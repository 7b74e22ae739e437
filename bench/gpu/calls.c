// What calls of CUDA cost in a program whose GPU is elsewhere. `hinterland bench gpu-calls` compiles it, names the core of its
// libraries, and asks it line by line: launches in bursts, launches without a pause, and the calls of a token of llama.cpp.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOGITS_BYTES 128000
#define UPLOADS 6
#define PARAMETERS 8
#define SAMPLES_MAX 100000
#define TO_DEVICE 1
#define FROM_DEVICE 2
#define NON_BLOCKING 1
#define RELAXED 2
#define PER_THREAD ((void *)2)

// As the compiler writes them: a container with one entry of PTX, and what the program registers of it.
static const char TEXT[] __attribute__((aligned(8))) =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry step(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d,\n"
    " .param .u64 e, .param .u64 f, .param .u64 g, .param .u64 h)\n{\n ret;\n}\n";

struct image {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
    uint16_t kind, entry_version;
    uint32_t entry_header_bytes;
    uint64_t payload_bytes;
    uint32_t compressed_bytes, unused[2], capability, name[2];
    uint64_t flags, unused_too, image_bytes;
    char text[(sizeof TEXT + 7) / 8 * 8];
};

struct wrapper {
    uint32_t magic, version;
    const void *image;
    void *none;
};

struct extent {
    unsigned x, y, z;
};

static void **(*register_binary)(const void *);
static void (*register_function)(void **, const void *, char *, const char *, int, void *, void *, void *, void *, int *);
static int (*allocate)(void **, size_t);
static int (*allocate_host)(void **, size_t);
static int (*copy)(void *, const void *, size_t, int, void *);
static int (*make_stream)(void **, unsigned);
static int (*synchronize)(void *);
static int (*launch)(const void *, struct extent, struct extent, void **, size_t, void *);
static int (*get_device)(int *);
static int (*begin_capture)(void *, int);
static int (*end_capture)(void *, void **);
static int (*instantiate)(void **, void *, unsigned long long);
static int (*launch_graph)(void *, void *);
static void (*count)(uint64_t *);

// Of the six copies of a token: what the model is told.
static const size_t UPLOAD_BYTES[UPLOADS] = {1024, 4, 8, 8, 512, 4};
static char stub;
static void *stream, *graph, *device_memory;
static unsigned char *uploads, *logits;
static uint64_t token;
static int is_asked;
static double samples[SAMPLES_MAX];

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

// Whoever asks is told why there is no answer, each time; it ends when nobody asks any more.
static void die(const char *what, const char *more, int code) {
    char line[256];
    while (is_asked || fgets(line, sizeof line, stdin)) {
        is_asked = 0;
        printf("error %s%s: %d\n", what, more, code);
        fflush(stdout);
    }
    exit(1);
}

#define MUST(call)                      \
    do {                                \
        int must_code = (call);         \
        if (must_code) {                \
            die(#call, "", must_code);  \
        }                               \
    } while (0)

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(size_t number) {
    qsort(samples, number, sizeof *samples, compare);
    return samples[number / 2];
}

static void find(const char *core) {
    void *library = dlopen(core, RTLD_NOW);
    if (!library) {
        die(dlerror(), "", 0);
    }
    const struct {
        const char *name;
        void *place;
    } names[] = {
        {"hl___cudaRegisterFatBinary", &register_binary},
        {"hl___cudaRegisterFunction", &register_function},
        {"hl_cudaMalloc", &allocate},
        {"hl_cudaMallocHost", &allocate_host},
        {"hl_cudaMemcpyAsync", &copy},
        {"hl_cudaStreamCreateWithFlags", &make_stream},
        {"hl_cudaStreamSynchronize", &synchronize},
        {"hl_cudaLaunchKernel", &launch},
        {"hl_cudaGetDevice", &get_device},
        {"hl_cudaStreamBeginCapture", &begin_capture},
        {"hl_cudaStreamEndCapture", &end_capture},
        {"hl_cudaGraphInstantiate", &instantiate},
        {"hl_cudaGraphLaunch", &launch_graph},
        {"hl_gpu_counters", &count},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(library, names[i].name);
        if (!found) {
            die("the core has no ", names[i].name, 0);
        }
        memcpy(names[i].place, &found, sizeof found);
    }
}

// A launch of 8 parameters of 8 bytes.
static int step(void) {
    uint64_t values[PARAMETERS] = {1, 2, 3, 4, 5, 6, 7, 8};
    void *arguments[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++) {
        arguments[i] = &values[i];
    }
    return launch(&stub, (struct extent){32, 1, 1}, (struct extent){256, 1, 1}, arguments, 0, stream);
}

static void prepare(void) {
    static struct image image = {
        .magic = 0xba55ed50, .version = 1, .header_bytes = 16, .bytes = sizeof image - 16,
        .kind = 1, .entry_version = 1, .entry_header_bytes = 64, .payload_bytes = sizeof image.text, .capability = 90,
    };
    static struct wrapper wrapper = {0x466243b1, 1, &image, 0};
    memcpy(image.text, TEXT, sizeof TEXT);
    void **handle = register_binary(&wrapper);
    register_function(handle, &stub, "step", "step", -1, 0, 0, 0, 0, 0);
    MUST(make_stream(&stream, NON_BLOCKING));
    MUST(allocate(&device_memory, LOGITS_BYTES));
    void *host;
    MUST(allocate_host(&host, LOGITS_BYTES));
    logits = host;
    uploads = calloc(1, 4096);
    MUST(step());
    MUST(synchronize(stream));
    void *recorded;
    MUST(begin_capture(stream, RELAXED));
    MUST(step());
    MUST(end_capture(stream, &recorded));
    MUST(instantiate(&graph, recorded, 0));
    MUST(launch_graph(graph, stream));
    MUST(synchronize(stream));
}

// `launch BURSTS EACH`: nanoseconds of a launch, the median of all bursts, and bytes of a launch in the ring.
static void bursts(size_t number, size_t each) {
    uint64_t before[5], after[5], bytes = 0;
    for (size_t burst = 0; burst < number; burst++) {
        count(before);
        double begin = now_ns();
        for (size_t i = 0; i < each; i++) {
            MUST(step());
        }
        samples[burst] = (now_ns() - begin) / each;
        count(after);
        bytes = (after[2] - before[2]) / each;
        MUST(synchronize(stream));
    }
    printf("%f %lu\n", median(number), (unsigned long)bytes);
}

// `rate EACH`: launches a second, the end of the last one included.
static void rate(size_t each) {
    double begin = now_ns();
    for (size_t i = 0; i < each; i++) {
        MUST(step());
    }
    MUST(synchronize(stream));
    printf("%f\n", each * 1e9 / (now_ns() - begin));
}

// The 29 calls of a token: 14 of synchronising, 7 for the device, 6 copies out, a graph, and the logits back.
static void one_token(void) {
    int device;
    size_t offset = 0;
    token++;
    memcpy(uploads, &token, sizeof token);
    for (int i = 0; i < UPLOADS; i++) {
        MUST(synchronize(stream));
        MUST(get_device(&device));
        MUST(copy((char *)device_memory + offset, uploads + offset, UPLOAD_BYTES[i], TO_DEVICE, PER_THREAD));
        MUST(synchronize(PER_THREAD));
        offset += UPLOAD_BYTES[i];
    }
    MUST(get_device(&device));
    MUST(launch_graph(graph, stream));
    MUST(copy(logits, device_memory, LOGITS_BYTES, FROM_DEVICE, stream));
    MUST(synchronize(stream));
    MUST(synchronize(stream));
    if (memcmp(logits, &token, sizeof token)) {
        die("the bytes that came back are not those of this token", "", 0);
    }
}

// `token COUNT`: microseconds of a token, the median of all; waits and bytes to the node, of one on average.
static void tokens(size_t number) {
    uint64_t before[5], after[5];
    count(before);
    for (size_t i = 0; i < number; i++) {
        double begin = now_ns();
        one_token();
        samples[i] = (now_ns() - begin) / 1e3;
    }
    count(after);
    printf("%f %f %f\n", median(number), (double)(after[0] - before[0]) / number, (double)(after[2] - before[2]) / number);
}

int main(int words, char **word) {
    if (words != 2) {
        fprintf(stderr, "usage: %s PATH-OF-LIBHINTERLAND_CUDA (hint: `hinterland bench gpu-calls` does this)\n", word[0]);
        return 2;
    }
    find(word[1]);
    prepare();
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        size_t a = 0, b = 0;
        is_asked = 1;
        if (sscanf(line, "launch %zu %zu", &a, &b) == 2 && a && a <= SAMPLES_MAX && b) {
            bursts(a, b);
        } else if (sscanf(line, "rate %zu", &a) == 1 && a) {
            rate(a);
        } else if (sscanf(line, "token %zu", &a) == 1 && a && a <= SAMPLES_MAX) {
            tokens(a);
        } else {
            printf("error no question: %s", line);
        }
        fflush(stdout);
        is_asked = 0;
    }
    return 0;
}
