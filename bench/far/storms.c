/* Programs that call for memory a lot and fit into theirs, and a process that starts programs and measures each.
 *
 * usage: storms serve            answers each line, words of a command with tabs between, with wall and processor milliseconds and
 *                                instructions in user mode (-1 where the machine does not count them)
 *        storms mallocs|maps|threads COUNT
 *        storms scan|random MIB   fills so much memory, reads it in order or at random places, and prints the sum
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { WORDS_MAX = 64, LINE_MAX_BYTES = 4096, HELD = 2048, THREADS = 4, PAGE = 4096 };

static uint64_t state = 88172645463325252u;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Allocations of 16 B to 16 KiB, one of a hundred of 64 KiB to 1 MiB; all are written to, and none lives long. */
static int mallocs(long count) {
    static char *held[HELD];
    for (long index = 0; index < count; index++) {
        uint64_t number = next();
        char **place = &held[number % HELD];
        free(*place);
        size_t bytes = number % 100 ? 16u << (number >> 20) % 11 : 65536u << (number >> 20) % 5;
        *place = malloc(bytes);
        if (!*place) return 1;
        (*place)[0] = (*place)[bytes - 1] = (char)number;
    }
    return 0;
}

/* Mappings of 64 KiB to 4 MiB, all pages written once, unmapped again. */
static int maps(long count) {
    for (long index = 0; index < count; index++) {
        size_t bytes = 65536u << next() % 7;
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return 1;
        for (size_t at = 0; at < bytes; at += PAGE) memory[at] = 1;
        if (munmap(memory, bytes)) return 1;
    }
    return 0;
}

static void *thread(void *unused) {
    char *memory = malloc(100000);
    if (memory) memory[0] = memory[99999] = 1;
    free(memory);
    return unused;
}

/* Threads, a few at once, that allocate a little and end. */
static int threads(long count) {
    for (long index = 0; index < count; index += THREADS) {
        pthread_t handles[THREADS];
        for (int at = 0; at < THREADS; at++)
            if (pthread_create(&handles[at], NULL, thread, NULL)) return 1;
        for (int at = 0; at < THREADS; at++) pthread_join(handles[at], NULL);
    }
    return 0;
}

/* Reads all pages twice in order, or an eighth as many at random places. */
static int touches(long mebibytes, int is_random) {
    size_t pages = (size_t)mebibytes << 8;
    uint64_t *memory = malloc(pages * PAGE), sum = 0;
    if (!memory) return 1;
    for (size_t at = 0; at < pages * PAGE / sizeof *memory; at++) memory[at] = at;
    for (size_t index = 0; index < (is_random ? pages / 8 : 2 * pages); index++) {
        size_t page = is_random ? next() % pages : index % pages;
        for (size_t at = 0; at < PAGE / sizeof *memory; at += 8) sum += memory[page * (PAGE / sizeof *memory) + at];
    }
    printf("%llu\n", (unsigned long long)sum);
    free(memory);
    return 0;
}

/* Counts instructions of this process and of all that it starts, in user mode. */
static int counter(void) {
    struct perf_event_attr wanted = {.type = PERF_TYPE_HARDWARE,
                                     .size = sizeof wanted,
                                     .config = PERF_COUNT_HW_INSTRUCTIONS,
                                     .disabled = 1,
                                     .inherit = 1,
                                     .exclude_kernel = 1,
                                     .exclude_hv = 1};
    return (int)syscall(SYS_perf_event_open, &wanted, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

static double milliseconds(struct timeval time) { return time.tv_sec * 1e3 + time.tv_usec / 1e3; }

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

/* Runs one program; its output goes nowhere. */
static void run(char **words, int counts) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    if (counts >= 0) {
        ioctl(counts, PERF_EVENT_IOC_RESET, 0);
        ioctl(counts, PERF_EVENT_IOC_ENABLE, 0);
    }
    double begun = now();
    pid_t process;
    int status = 0;
    struct rusage used;
    int error = posix_spawnp(&process, words[0], &actions, NULL, words, environ);
    if (!error)
        while (wait4(process, &status, 0, &used) < 0 && errno == EINTR) {
        }
    double took = now() - begun;
    uint64_t instructions = 0;
    int counted = 0;
    if (counts >= 0) {
        ioctl(counts, PERF_EVENT_IOC_DISABLE, 0);
        counted = read(counts, &instructions, sizeof instructions) == sizeof instructions;
    }
    posix_spawn_file_actions_destroy(&actions);
    if (error)
        printf("error %s cannot be started: %s\n", words[0], strerror(error));
    else if (status)
        printf("error %s ended with status %d\n", words[0], status);
    else
        printf("%.4f %.4f %.0f\n", took, milliseconds(used.ru_utime) + milliseconds(used.ru_stime),
               counted ? (double)instructions : -1.0);
}

/* Words are separated by tabs, so that a word may hold spaces. */
static int serve(void) {
    char line[LINE_MAX_BYTES];
    int counts = counter();
    while (fgets(line, sizeof line, stdin)) {
        char *words[WORDS_MAX + 1] = {0}, *rest = line;
        line[strcspn(line, "\n")] = 0;
        for (int at = 0; at < WORDS_MAX && (words[at] = strsep(&rest, "\t")); at++) {
        }
        if (words[0] && *words[0])
            run(words, counts);
        else
            puts("error of an empty line");
        fflush(stdout);
    }
    return 0;
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    long times = count > 2 ? atol(words[2]) : 0;
    if (!strcmp(what, "serve")) return serve();
    if (!strcmp(what, "mallocs")) return mallocs(times);
    if (!strcmp(what, "maps")) return maps(times);
    if (!strcmp(what, "threads")) return threads(times);
    if (!strcmp(what, "scan") || !strcmp(what, "random")) return touches(times, *what == 'r');
    fprintf(stderr, "usage: storms serve | mallocs COUNT | maps COUNT | threads COUNT | scan MIB | random MIB\n");
    return 2;
}
