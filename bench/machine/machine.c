// What this machine does without a pool: memory, sockets, faults. `hinterland bench` compiles it and asks it line by line
// for figures; the same program, under `hinterland run`, maps objects of a pool, so that ours and limit run the same code.
#define _GNU_SOURCE
#include <cpuid.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define LINE 64
#define PIECE (1ul << 20)
#define DEPTH 128
#define STREAMS_MAX 8

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void answer(const char *format, double a, double b, double c, double d) {
    printf(format, a, b, c, d);
    putchar('\n');
    fflush(stdout);
}

static void refuse(const char *what) {
    printf("error %s: %s\n", what, strerror(errno));
    fflush(stdout);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_size);
    return values[count / 2];
}

static uint64_t state = 88172645463325252ull;
static uint64_t random_below(uint64_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % limit;
}

static void pin(int last) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &all)) {
            if (last) CPU_ZERO(&one);
            CPU_SET(core, &one);
            if (!last) break;
        }
    sched_setaffinity(0, sizeof one, &one);
}

// Memory of reserved huge pages, else of transparent ones, every page touched.
static char *memory(size_t bytes) {
    char *start = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (start == MAP_FAILED) {
        start = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED) return NULL;
        madvise(start, bytes, MADV_HUGEPAGE);
    }
    for (size_t at = 0; at < bytes; at += 8) *(uint64_t *)(start + at) = at * 0x9E3779B97F4A7C15ull;
    return start;
}

// --- a mapping -----------------------------------------------------------------------------------------------------

static char *mapped;
static size_t mapped_bytes;
static char path[4096];

static int map_path(void) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    struct stat status;
    fstat(file, &status);
    mapped_bytes = status.st_size;
    mapped = mmap(0, mapped_bytes, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) mapped = NULL;
    return mapped ? 0 : -1;
}

static void unmap_path(void) {
    if (mapped) munmap(mapped, mapped_bytes);
    mapped = NULL;
}

static void forget_pages(void) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
}

// Reads 8 bytes of every line of the first `bytes` bytes, `passes` times.
__attribute__((noinline)) static uint64_t sum_lines(const char *start, size_t bytes, int passes) {
    uint64_t sum = 0;
    for (int pass = 0; pass < passes; pass++)
        for (size_t at = 0; at < bytes; at += LINE) sum += *(const volatile uint64_t *)(start + at);
    return sum;
}

static void scan(size_t bytes, int passes) {
    if (bytes == 0) bytes = mapped_bytes;
    double begin = now_ns();
    uint64_t sum = sum_lines(mapped, bytes, passes);
    double took = now_ns() - begin;
    printf("%f %llu\n", bytes * (double)passes / took, (unsigned long long)(sum & 0xffffffffu));
    fflush(stdout);
}

// Touches one byte at every multiple of `stride`; the median in nanoseconds, the mean, and the count.
static void touch(size_t stride, size_t limit) {
    size_t count = mapped_bytes / stride;
    if (limit && limit < count) count = limit;
    double *times = malloc(count * sizeof *times), total = 0;
    volatile char sink;
    for (size_t index = 0; index < count; index++) {
        double begin = now_ns();
        sink = mapped[index * stride];
        times[index] = now_ns() - begin;
        total += times[index];
    }
    (void)sink;
    answer("%f %f %.0f", median(times, count), total / count, count, 0);
    free(times);
}

// A file of 4 KiB pages, all of them there, mapped again and again side by side until it makes up `bytes`: a fault costs the same, and
// the machine need not hold as much. Stores to it fault once a page: the kernel maps neighbours only for loads.
static int paged_file = -1;
static int map_paged(size_t bytes, size_t file_bytes) {
    if (paged_file < 0) {
        paged_file = memfd_create("paged", MFD_CLOEXEC);
        if (ftruncate(paged_file, file_bytes) || fallocate(paged_file, 0, 0, file_bytes)) return -1;
    }
    char *whole = mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) return -1;
    for (size_t at = 0; at < bytes; at += file_bytes) {
        size_t part = bytes - at < file_bytes ? bytes - at : file_bytes;
        if (mmap(whole + at, part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, paged_file, 0) == MAP_FAILED) {
            munmap(whole, bytes);
            return -1;
        }
    }
    mapped = whole;
    mapped_bytes = bytes;
    return 0;
}

// Touches, or stores, one byte at every multiple of `stride` and looks at no clock.
static void pass(size_t stride, int stores) {
    volatile char sink;
    for (size_t at = 0; at < mapped_bytes; at += stride) {
        if (stores) *(volatile char *)(mapped + at) = 1;
        else sink = mapped[at];
    }
    (void)sink;
    answer("%.0f", mapped_bytes / stride, 0, 0, 0);
}

static void usage(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    answer("%.0f %.0f %f %f", used.ru_minflt, used.ru_majflt, used.ru_utime.tv_sec * 1e6 + used.ru_utime.tv_usec,
           used.ru_stime.tv_sec * 1e6 + used.ru_stime.tv_usec);
}

// --- ping-pong over shared lines -----------------------------------------------------------------------------------

struct slot {
    _Atomic uint64_t number;
    char body[LINE - 8];
} __attribute__((aligned(LINE)));

// How lines reach the other side: by the caches, or by hand as between hosts whose caches do not see each other.
static int by_hand, has_clwb, has_clflushopt;

static void find_instructions(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) b = 0;
    has_clflushopt = b >> 23 & 1;
    has_clwb = b >> 24 & 1;
}

static void drop_line(const void *line) {
    if (has_clflushopt) __asm__ volatile("clflushopt (%0)" ::"r"(line) : "memory");
    else __asm__ volatile("clflush (%0)" ::"r"(line) : "memory");
}

static void send_line(struct slot *to, const char *body, uint64_t number) {
    memcpy(to->body, body, LINE - 8);
    atomic_store_explicit(&to->number, number, memory_order_release);
    if (!by_hand) return;
    if (has_clwb) __asm__ volatile("clwb (%0)" ::"r"(to) : "memory");
    else drop_line(to);
}

static void take_line(struct slot *from, char *body, uint64_t number) {
    while (atomic_load_explicit(&from->number, memory_order_acquire) != number) {
        if (by_hand) {
            __asm__ volatile("mfence" ::: "memory");
            drop_line(from);
            __asm__ volatile("mfence" ::: "memory");
        } else {
            __builtin_ia32_pause();
        }
    }
    memcpy(body, from->body, LINE - 8);
}

// `count` round trips of one line each way with up to `depth` out at once; nanoseconds a round trip.
static void pingpong(uint64_t count, uint64_t depth, int hand) {
    find_instructions();
    by_hand = hand;
    size_t bytes = 2 * DEPTH * sizeof(struct slot);
    struct slot *there = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct slot *back = there + DEPTH;
    _Atomic uint64_t *ready = (void *)there[DEPTH - 1].body;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(1);
        char body[LINE - 8];
        atomic_store(ready, 1);
        for (uint64_t number = 1; number <= count; number++) {
            take_line(&there[(number - 1) % depth], body, number);
            send_line(&back[(number - 1) % depth], body, number);
        }
        _exit(0);
    }
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    pin(0);
    while (!atomic_load(ready)) __builtin_ia32_pause();
    char body[LINE - 8] = {7};
    uint64_t sent = 0, got = 0;
    double begin = now_ns();
    while (got < count) {
        while (sent < count && sent - got < depth) {
            send_line(&there[sent % depth], body, sent + 1);
            sent++;
        }
        take_line(&back[got % depth], body, got + 1);
        got++;
    }
    double took = now_ns() - begin;
    sched_setaffinity(0, sizeof before, &before);
    waitpid(child, NULL, 0);
    munmap(there, bytes);
    answer("%f", took / count, 0, 0, 0);
}

// --- bare sockets --------------------------------------------------------------------------------------------------

struct request {
    uint64_t offset, bytes, is_write, polls;
    char rest[LINE - 32];
};

static char *local;
static size_t local_bytes;
static struct sockaddr_in listener_address;

static int receive(int socket, char *into, size_t bytes, int polls) {
    while (bytes) {
        ssize_t got = recv(socket, into, bytes, polls ? MSG_DONTWAIT : 0);
        if (got > 0) {
            into += got;
            bytes -= got;
        } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
            return -1;
        } else if (polls) {
            __builtin_ia32_pause();
        }
    }
    return 0;
}

static int send_all(int socket, const char *from, size_t bytes) {
    while (bytes) {
        ssize_t sent = send(socket, from, bytes < PIECE ? bytes : PIECE, MSG_NOSIGNAL);
        if (sent <= 0) return -1;
        from += sent;
        bytes -= sent;
    }
    return 0;
}

static char *far_memory;
static void *serve_stream(void *argument) {
    int socket = (int)(intptr_t)argument, polls = 0;
    struct request request;
    while (receive(socket, (void *)&request, sizeof request, polls) == 0) {
        polls = request.polls;
        char *at = far_memory + request.offset;
        int failed = request.is_write
            ? receive(socket, at, request.bytes, polls) || send_all(socket, (void *)&request, LINE)
            : send_all(socket, at, request.bytes);
        if (failed) break;
    }
    close(socket);
    return NULL;
}

// A socket that listens on the loopback, or at `host` in the network namespace that the file `space` shows.
static int listener_at(const char *space, const char *host) {
    int own = -1, there = -1;
    listener_address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (*space) {
        if (inet_pton(AF_INET, host, &listener_address.sin_addr) != 1) return errno = EINVAL, -1;
        own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        there = open(space, O_RDONLY | O_CLOEXEC);
        if (own < 0 || there < 0 || setns(there, CLONE_NEWNET)) return -1;
        close(there);
    }
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    // A socket stays in the namespace that it was made in.
    if (*space && setns(own, CLONE_NEWNET)) return -1;
    close(own);
    socklen_t size = sizeof listener_address;
    if (bind(listener, (void *)&listener_address, size) || listen(listener, 64)) return -1;
    getsockname(listener, (void *)&listener_address, &size);
    return listener;
}

// Starts the far end: a process with `bytes` bytes of memory that it sends and receives. Returns its number.
static pid_t serve(size_t bytes, const char *space, const char *host) {
    int listener = listener_at(space, host);
    if (listener < 0) return -1;
    pid_t parent = getpid(), child = fork();
    if (child < 0) return -1;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(0);
        if (!(far_memory = memory(bytes))) _exit(1);
        for (;;) {
            int stream = accept(listener, NULL, NULL), on = 1;
            if (stream < 0) _exit(0);
            setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            pthread_t thread;
            pthread_create(&thread, NULL, serve_stream, (void *)(intptr_t)stream);
            pthread_detach(thread);
        }
    }
    close(listener);
    local_bytes = bytes;
    local = memory(bytes);
    return local ? child : -1;
}

static int dial(void) {
    int stream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (connect(stream, (void *)&listener_address, sizeof listener_address)) return -1;
    setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return stream;
}

static int transfer(int stream, size_t at, size_t far_at, size_t bytes, int is_write, int polls) {
    struct request request = {.offset = far_at, .bytes = bytes, .is_write = is_write, .polls = polls};
    if (send_all(stream, (void *)&request, sizeof request)) return -1;
    if (!is_write) return receive(stream, local + at, bytes, polls);
    char done[LINE];
    return send_all(stream, local + at, bytes) || receive(stream, done, LINE, polls);
}

// Median microseconds of a transfer at random offsets.
static void latency(size_t bytes, size_t count, int is_write, int polls) {
    static int stream = -1;
    if (stream < 0 && (stream = dial()) < 0) return refuse("connect");
    double *times = malloc(count * sizeof *times);
    for (size_t index = 0; index < count; index++) {
        size_t at = random_below((local_bytes - bytes) / LINE) * LINE;
        size_t far_at = random_below((local_bytes - bytes) / LINE) * LINE;
        double begin = now_ns();
        if (transfer(stream, at, far_at, bytes, is_write, polls)) return refuse("transfer");
        times[index] = (now_ns() - begin) / 1e3;
    }
    // A request that tells the far end to sleep between requests again.
    transfer(stream, 0, 0, LINE, 0, 0);
    answer("%f", median(times, count), 0, 0, 0);
    free(times);
}

// Three checksums at once over thirds of a piece, as fast as the processor makes them; elsewhere a plain sum.
#ifdef __x86_64__
__attribute__((target("sse4.2")))
#endif
static uint64_t checksum(const char *start, size_t bytes) {
    uint64_t a = 0, b = 0, c = 0;
    size_t third = bytes / 24 * 8;
    const uint64_t *x = (void *)start, *y = (void *)(start + third), *z = (void *)(start + 2 * third);
    for (size_t index = 0; index < third / 8; index++) {
#ifdef __x86_64__
        a = __builtin_ia32_crc32di(a, x[index]);
        b = __builtin_ia32_crc32di(b, y[index]);
        c = __builtin_ia32_crc32di(c, z[index]);
#else
        a += x[index], b += y[index], c += z[index];
#endif
    }
    return a + b + c;
}

struct share {
    int stream, is_write, uses;
    size_t at, bytes;
};

static void *transfer_share(void *argument) {
    struct share *share = argument;
    static _Atomic uint64_t used;
    for (size_t done = 0; done < share->bytes;) {
        size_t at = (share->at + done) % local_bytes, bytes = share->bytes - done;
        if (bytes > local_bytes - at) bytes = local_bytes - at;
        if (share->uses && bytes > PIECE / 4) bytes = PIECE / 4;
        if (transfer(share->stream, at, at, bytes, share->is_write, 0)) return argument;
        if (share->uses) used += checksum(local + at, bytes) + sum_lines(local + at, bytes, 1);
        done += bytes;
    }
    return NULL;
}

// Bytes a nanosecond of `bytes` bytes over `streams` streams, each with a thread at either end. With `uses`, every piece
// of 256 KiB is checksummed and read once where it has been received: what must be done with bytes that nobody trusts.
// Streams go round the memory, each from a place of its own: two at the same bytes would find them in the cache.
static void stream(int streams, size_t bytes, int is_write, int uses) {
    struct share shares[STREAMS_MAX];
    pthread_t threads[STREAMS_MAX];
    if (streams > STREAMS_MAX) streams = STREAMS_MAX;
    for (int index = 0; index < streams; index++) {
        size_t part = bytes / streams;
        shares[index] = (struct share){dial(), is_write, uses, local_bytes / streams * index, part};
        if (shares[index].stream < 0) return refuse("connect");
    }
    double begin = now_ns();
    for (int index = 0; index < streams; index++) pthread_create(&threads[index], NULL, transfer_share, &shares[index]);
    void *failed = NULL, *result;
    for (int index = 0; index < streams; index++) {
        pthread_join(threads[index], &result);
        if (result) failed = result;
    }
    double took = now_ns() - begin;
    for (int index = 0; index < streams; index++) close(shares[index].stream);
    if (failed) return refuse("transfer");
    answer("%f", bytes / took, 0, 0, 0);
}

int main(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char line[8192], word[64];
    unsigned long a, b, c, d;
    while (fgets(line, sizeof line, stdin)) {
        a = b = c = d = 0;
        if (sscanf(line, "%63s %lu %lu %lu %lu", word, &a, &b, &c, &d) < 1) continue;
        if (!strcmp(word, "map")) {
            sscanf(line, "%*s %4095s", path);
            if (map_path()) refuse(path);
            else answer("%.0f", mapped_bytes, 0, 0, 0);
        } else if (!strcmp(word, "remap")) {
            unmap_path();
            if (map_path()) refuse(path);
            else answer("%.0f", mapped_bytes, 0, 0, 0);
        } else if (!strcmp(word, "anonymous")) {
            mapped_bytes = a;
            if (!(mapped = memory(a))) refuse("memory");
            else answer("%.0f", a, 0, 0, 0);
        } else if (!strcmp(word, "unmap")) {
            unmap_path();
            answer("0", 0, 0, 0, 0);
        } else if (!strcmp(word, "cold")) {
            unmap_path();
            forget_pages();
            if (map_path()) refuse(path);
            else answer("%.0f", mapped_bytes, 0, 0, 0);
        } else if (!strcmp(word, "random")) {
            answer("%.0f", madvise(mapped, mapped_bytes, MADV_RANDOM), 0, 0, 0);
        } else if (!strcmp(word, "drop")) {
            if (madvise(mapped, mapped_bytes, MADV_DONTNEED)) refuse("madvise");
            else answer("0", 0, 0, 0, 0);
        } else if (!strcmp(word, "scan")) {
            scan(a, b ? b : 1);
        } else if (!strcmp(word, "touch")) {
            touch(a, b);
        } else if (!strcmp(word, "paged")) {
            unmap_path();
            if (map_paged(a, b ? b : a)) refuse("memory");
            else answer("0", 0, 0, 0, 0);
        } else if (!strcmp(word, "pass")) {
            pass(a, b);
        } else if (!strcmp(word, "usage")) {
            usage();
        } else if (!strcmp(word, "pingpong")) {
            pingpong(a, b, c);
        } else if (!strcmp(word, "serve")) {
            char space[4096] = "", host[64] = "";
            sscanf(line, "%*s %*s %4095s %63s", space, host);
            pid_t far = serve(a, space, host);
            if (far < 0) refuse("serve");
            else answer("%.0f", far, 0, 0, 0);
        } else if (!strcmp(word, "latency")) {
            latency(a, b, c, d);
        } else if (!strcmp(word, "stream")) {
            stream(a, b, c, d);
        } else {
            errno = EINVAL;
            refuse(word);
        }
    }
    return 0;
}
