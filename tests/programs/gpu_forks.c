// A program with a session that forks: a child may not use it, does not disturb it, and does not keep it alive.
//
// `gpu_forks children`: a child calls CUDA and ends as programs do; then another one does, from a second thread. The parent's work goes on.
// `gpu_forks orphans`: prints the numbers of two children that go on, one of which has become another program, and waits to be killed.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (1 << 20)
#define TO_DEVICE 1
#define FROM_DEVICE 2
#define INITIALIZATION_ERROR 3
#define PER_THREAD ((void *)2)

int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaMemset(void *, int, size_t);
int cudaGetDeviceCount(int *);
int cudaGetLastError(void);
int cudaStreamSynchronize(void *);
int cudaDeviceSynchronize(void);
int cudaStreamCreate(void **);
int cudaStreamDestroy(void *);

static void *memory, *stream;
static unsigned char bytes[BYTES], back[BYTES];

#define MUST_BE(call, code)                                              \
    do {                                                                 \
        int found = (call);                                              \
        if (found != (code)) {                                           \
            fprintf(stderr, "%s: %d and not %d\n", #call, found, code);  \
            _exit(2);                                                    \
        }                                                                \
    } while (0)

static void work(int number) {
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] = (unsigned char)(i * 31 + number);
    }
    MUST_BE(cudaMemcpyAsync(memory, bytes, BYTES, TO_DEVICE, PER_THREAD), 0);
    MUST_BE(cudaStreamSynchronize(PER_THREAD), 0);
    memset(back, 0, BYTES);
    MUST_BE(cudaMemcpy(back, memory, BYTES, FROM_DEVICE), 0);
    MUST_BE(memcmp(bytes, back, BYTES), 0);
}

// Everything that a child may think of, and then a usual end, with all destructors.
static void be_child(void) {
    int count;
    void *other;
    MUST_BE(cudaGetDeviceCount(&count), INITIALIZATION_ERROR);
    MUST_BE(cudaMalloc(&other, BYTES), INITIALIZATION_ERROR);
    MUST_BE(cudaGetLastError(), INITIALIZATION_ERROR);
    MUST_BE(cudaMemcpy(back, memory, BYTES, FROM_DEVICE), INITIALIZATION_ERROR);
    MUST_BE(cudaMemset(memory, 9, BYTES), INITIALIZATION_ERROR);
    MUST_BE(cudaStreamSynchronize(stream), INITIALIZATION_ERROR);
    MUST_BE(cudaDeviceSynchronize(), INITIALIZATION_ERROR);
    MUST_BE(cudaStreamDestroy(stream), INITIALIZATION_ERROR);
    MUST_BE(cudaFree(memory), INITIALIZATION_ERROR);
    pid_t grandchild = fork();
    if (grandchild == 0) {
        MUST_BE(cudaMalloc(&other, BYTES), INITIALIZATION_ERROR);
        exit(0);
    }
    int status;
    waitpid(grandchild, &status, 0);
    exit(status != 0);
}

static void *fork_and_wait(void *unused) {
    // A stream of this thread's own, which a child's end must not give back.
    work(3);
    pid_t child = fork();
    if (child == 0) {
        be_child();
    }
    int status;
    waitpid(child, &status, 0);
    MUST_BE(status, 0);
    return unused;
}

int main(int count, char **words) {
    MUST_BE(cudaMalloc(&memory, BYTES), 0);
    MUST_BE(cudaStreamCreate(&stream), 0);
    work(1);
    if (count > 1 && strcmp(words[1], "orphans") == 0) {
        pid_t waiting = fork();
        if (waiting == 0) {
            pause();
            _exit(0);
        }
        pid_t other = fork();
        if (other == 0) {
            execlp("sleep", "sleep", "600", (char *)0);
            _exit(1);
        }
        printf("%d %d\n", waiting, other);
        fflush(stdout);
        pause();
    }
    fork_and_wait(0);
    work(4);
    pthread_t thread;
    pthread_create(&thread, 0, fork_and_wait, 0);
    pthread_join(thread, 0);
    work(5);
    MUST_BE(cudaStreamDestroy(stream), 0);
    MUST_BE(cudaFree(memory), 0);
    puts("right");
    return 0;
}
