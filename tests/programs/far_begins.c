/* When far memory begins in a process, and that it begins whole: one thing each, named by the first word. Says "right" if all was as it should be. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KIB = 1 << 10, MIB = 1 << 20, PAGE = 4096, THREADS = 8 };

#define must(what) do { if (!(what)) { dprintf(2, "WRONG in line %d: %s (%s)\n", __LINE__, #what, strerror(errno)); _exit(1); } } while (0)

#ifdef DATA
static volatile char data[2 * MIB];
#endif

/* Whether this process has a reclaim thread. Allocates nothing itself. No thread may end meanwhile: the kernel's list then ends early. */
static int has_begun(void) {
    int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY), found = 0;
    must(folder >= 0);
    char entries[4096] __attribute__((aligned(8)));
    for (long count; (count = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0;)
        for (long at = 0; at < count; at += *(unsigned short *)(entries + at + 16)) {
            char path[300], name[32] = {0};
            snprintf(path, sizeof path, "/proc/self/task/%s/comm", entries + at + 19);
            int file = open(path, O_RDONLY);
            if (file < 0) continue;
            if (read(file, name, sizeof name - 1) > 0) found += strcmp(name, "hinterland-far\n") == 0;
            close(file);
        }
    close(folder);
    return found;
}

static char *mapped(size_t bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    return memory;
}

static void fill(char *memory, size_t bytes, uint64_t seed) {
    for (size_t at = 0; at + 8 <= bytes; at += 512) *(uint64_t *)(memory + at) = at * 0x9E3779B97F4A7C15u + seed;
}

static void check(const char *memory, size_t bytes, uint64_t seed) {
    for (size_t at = 0; at + 8 <= bytes; at += 512) must(*(const uint64_t *)(memory + at) == at * 0x9E3779B97F4A7C15u + seed);
}

static void ends_well(pid_t child) {
    int status = 0;
    must(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* More than the budget comes by, so that what is told of leaves. */
static void press(void) {
    char *memory = mapped(150 * MIB);
    fill(memory, 150 * MIB, 99);
    check(memory, 150 * MIB, 99);
    munmap(memory, 150 * MIB);
}

static void is_small(void) {
    char *kept = malloc(100 * KIB), *map = mapped(200 * KIB);
    fill(kept, 100 * KIB, 1);
    fill(map, 200 * KIB, 2);
    must(!has_begun());
    for (int round = 0; round < 5; round++) {
        pid_t child = fork();
        if (child == 0) {
            check(kept, 100 * KIB, 1);
            must(!has_begun());
            _exit(0);
        }
        ends_well(child);
    }
    must(!has_begun());
}

static void at_once(void) {
    must(!has_begun());
    mapped(256 * KIB);
    must(has_begun() == 1);
}

static void shared(void) {
    must(!has_begun());
    must(mmap(NULL, 256 * KIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    must(has_begun() == 1);
}

static void in_parts(void) {
    for (int part = 0; part < 4; part++) mapped(128 * KIB);
    must(!has_begun());
    for (int part = 0; part < 8; part++) mapped(128 * KIB);
    must(has_begun() == 1);
}

/* All of the heap leaves and comes back, what was there before, too; what is given back is zeros when it comes again. */
static void heap(void) {
    enum { PIECES = 15000, BYTES = 10000 };
    static char *pieces[PIECES];
    for (int at = 0; at < PIECES; at++) {
        must((pieces[at] = malloc(BYTES)) != NULL);
        fill(pieces[at], BYTES, (uint64_t)at);
        if (at == 20) must(!has_begun());
        if (at == 300) must(has_begun() == 1);
    }
    /* Which of those from before have left by now is not said. */
    int left = 0;
    for (int at = 0; at < 20; at++) {
        unsigned char is_here = 1;
        must(mincore((void *)((uintptr_t)pieces[at] & ~4095ul), 1, &is_here) == 0);
        left += !(is_here & 1);
    }
    must(left > 0);
    for (int at = 0; at < PIECES; at++) check(pieces[at], BYTES, (uint64_t)at);
    pid_t child = fork();
    if (child == 0) {
        for (int at = 0; at < PIECES; at++) check(pieces[at], BYTES, (uint64_t)at);
        must(has_begun() == 1);
        _exit(0);
    }
    ends_well(child);
    for (int at = 0; at < PIECES; at++) free(pieces[at]);
    char *end = sbrk(0);
    for (int round = 0; round < 20; round++) {
        must(sbrk(64 * KIB) == end);
        for (int at = 0; at < 64 * KIB; at++) must(end[at] == 0);
        memset(end, 7, 64 * KIB);
        must(sbrk(-64 * KIB) == end + 64 * KIB && sbrk(0) == end);
    }
}

/* A child of vfork has the memory of its parent: what it asks for is there, and leaves the rest of the heap in place. */
static void vforks(void) {
    static char *volatile kept, *volatile more;
    for (int round = 0; round < 2; round++) {
        kept = malloc(3000);
        fill(kept, 3000, 5);
        pid_t child = vfork();
        if (child == 0) {
            more = malloc(round ? 6 * MIB : 400 * KIB);
            if (more) memset(more, 3, 400 * KIB);
            char *map = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (map != MAP_FAILED) map[5] = 1;
            _exit(map == MAP_FAILED);
        }
        ends_well(child);
        must(has_begun() == round);
        press();
        must(has_begun() == 1);
        check(kept, 3000, 5);
        must(more[0] == 3 && more[400 * KIB - 1] == 3);
        free(more);
    }
}

static void reserves(void) {
    enum { BYTES = 128 * MIB };
    char *memory = mmap(NULL, 2048L * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(memory != MAP_FAILED && !has_begun());
    must(mprotect(memory + 64 * MIB, BYTES, PROT_READ | PROT_WRITE) == 0);
    must(has_begun() == 1);
    fill(memory + 64 * MIB, BYTES, 3);
    check(memory + 64 * MIB, BYTES, 3);
}

static pthread_barrier_t barrier;

static void *asks(void *seed) {
    enum { BYTES = 2 * MIB };
    pthread_barrier_wait(&barrier);
    char *memory = (uintptr_t)seed % 2 ? malloc(BYTES) : mapped(BYTES);
    fill(memory, BYTES, (uintptr_t)seed);
    must(has_begun() == 1);
    check(memory, BYTES, (uintptr_t)seed);
    pthread_barrier_wait(&barrier);
    return NULL;
}

/* Several threads ask first, all at once: in a new process each time. */
static void threads(void) {
    for (int round = 0; round < 60; round++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t handles[THREADS];
            pthread_barrier_init(&barrier, NULL, THREADS);
            for (uintptr_t at = 0; at < THREADS; at++) must(pthread_create(&handles[at], NULL, asks, (void *)at) == 0);
            for (int at = 0; at < THREADS; at++) must(pthread_join(handles[at], NULL) == 0);
            must(has_begun() == 1);
            _exit(0);
        }
        ends_well(child);
        must(!has_begun());
    }
}

/* Whether this process has a descriptor of this kind. */
static int has_descriptor(const char *kind) {
    for (int number = 3; number < 64; number++) {
        char path[64], target[64] = {0};
        snprintf(path, sizeof path, "/proc/self/fd/%d", number);
        if (readlink(path, target, sizeof target - 1) > 0 && strstr(target, kind)) return 1;
    }
    return 0;
}

static void *forks_meanwhile(void *unused) {
    pthread_barrier_wait(&barrier);
    for (int round = 0; round < 12; round++) {
        pid_t child = fork();
        if (child == 0) {
            /* What its parent was about to make is no matter of the child's. */
            must(!has_descriptor("userfaultfd") && !has_descriptor("socket"));
            if (round < 10) _exit(0);
            char *memory = mapped(MIB);
            fill(memory, MIB, 4);
            check(memory, MIB, 4);
            must(has_begun() == 1);
            _exit(0);
        }
        ends_well(child);
    }
    return unused;
}

/* A thread that forks, and the time that the caller gives it. */
static pthread_t forking_thread(int spins) {
    pthread_t handle;
    pthread_barrier_init(&barrier, NULL, 2);
    must(pthread_create(&handle, NULL, forks_meanwhile, NULL) == 0);
    pthread_barrier_wait(&barrier);
    for (int spin = 0; spin < spins; spin++) __asm__ volatile("");
    return handle;
}

/* One thread forks while another one asks first. */
static void forks(void) {
    for (int round = 0; round < 60; round++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t handle = forking_thread(round * 2000);
            char *memory = mapped(MIB);
            fill(memory, MIB, 6);
            must(pthread_join(handle, NULL) == 0 && has_begun() == 1);
            check(memory, MIB, 6);
            _exit(0);
        }
        ends_well(child);
    }
}

/* The same while the one who asks holds the locks of malloc, for which the other one's fork waits. */
static void forks_in_malloc(void) {
    for (int round = 0; round < 100; round++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t handle = forking_thread(round % 20 * 5000);
            for (int at = 0; at < 64; at++) {
                char *piece = malloc(30000);
                must(piece != NULL);
                fill(piece, 30000, 1);
            }
            must(pthread_join(handle, NULL) == 0 && has_begun() == 1);
            _exit(0);
        }
        ends_well(child);
    }
}

static volatile sig_atomic_t handled;

static void handler(int number) {
    (void)number;
    char *memory = mmap(NULL, 256 * KIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) _exit(2);
    memory[7] = 1;
    must(has_begun() == 1);
    if (munmap(memory, 256 * KIB)) _exit(2);
    handled++;
}

/* A handler asks, whatever it interrupts: beginning itself, malloc, fork. */
static void handlers(void) {
    for (int round = 0; round < 60; round++) {
        pid_t child = fork();
        if (child == 0) {
            struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
            must(sigaction(SIGALRM, &action, NULL) == 0);
            struct itimerval timer = {{0, 400}, {0, 1 + round * 7}};
            must(setitimer(ITIMER_REAL, &timer, NULL) == 0);
            if (round % 2) mapped(MIB);
            char *pieces[40];
            for (int at = 0; at < 40; at++) {
                must((pieces[at] = malloc(50000)) != NULL);
                fill(pieces[at], 50000, (uint64_t)at);
                if (at % 10 == 0) {
                    pid_t grandchild = fork();
                    if (grandchild == 0) _exit(0);
                    int status = 1;
                    while (waitpid(grandchild, &status, 0) < 0) must(errno == EINTR);
                    must(status == 0);
                }
            }
            while (!handled) {
            }
            struct itimerval none = {{0, 0}, {0, 0}};
            setitimer(ITIMER_REAL, &none, NULL);
            for (int at = 0; at < 40; at++) check(pieces[at], 50000, (uint64_t)at);
            must(has_begun() == 1);
            _exit(0);
        }
        ends_well(child);
    }
}

static void *on_little_stack(void *unused) {
    char *memory = mapped(MIB);
    fill(memory, MIB, 8);
    check(memory, MIB, 8);
    return (void *)(intptr_t)open("/dev/zero", O_RDONLY);
}

/* A thread with the least stack that there is asks first. It has the descriptors that all have afterwards. */
static void little_stack(void) {
    pthread_attr_t attributes;
    pthread_t handle;
    pthread_attr_init(&attributes);
    must(pthread_attr_setstacksize(&attributes, 16 * KIB) == 0);
    void *opened;
    char byte = 1;
    must(pthread_create(&handle, &attributes, on_little_stack, NULL) == 0 && pthread_join(handle, &opened) == 0);
    must(has_begun() == 1 && read((int)(intptr_t)opened, &byte, 1) == 1 && byte == 0);
}

static void filter(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static int set_limit(int what, rlim_t bytes) {
    struct rlimit limit = {bytes, bytes};
    return setrlimit(what, &limit);
}

/* The process gives something up, and asks for memory behind that. */
static void gives_up(const char *what) {
    char none[24] = {0};
    uint32_t header[2] = {0x20080522, 0};
    extern int capset(void *, void *), pivot_root(const char *, const char *);
    must(!has_begun());
    if (!strcmp(what, "setuid")) must(setuid(65534) == 0);
    else if (!strcmp(what, "seteuid")) must(seteuid(65534) == 0);
    else if (!strcmp(what, "setreuid")) must(setreuid(65534, 65534) == 0);
    else if (!strcmp(what, "setresuid")) must(setresuid(65534, 65534, 65534) == 0);
    else if (!strcmp(what, "setfsuid")) setfsuid(65534);
    else if (!strcmp(what, "chroot")) must(chroot("/proc/self") == 0);
    else if (!strcmp(what, "unshare")) must(unshare(CLONE_NEWNS) == 0 && mount("none", "/tmp", "tmpfs", 0, "") == 0);
    else if (!strcmp(what, "capset")) must(capset(header, none) == 0);
    else if (!strcmp(what, "seccomp")) filter();
    else if (!strcmp(what, "no_new_privs")) must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    else if (!strcmp(what, "mlockall")) must(mlockall(MCL_FUTURE) == 0);
    else if (!strcmp(what, "nofile")) must(set_limit(RLIMIT_NOFILE, 8) == 0);
    else if (!strcmp(what, "fsize")) must(set_limit(RLIMIT_FSIZE, 0) == 0);
    else if (!strcmp(what, "as")) must(set_limit(RLIMIT_AS, 512L * MIB) == 0);
    else must(!"known");
    char *memory = mapped(MIB);
    fill(memory, MIB, 6);
    /* What a thread is called is not for everybody to read: the supervisor says in the end what was here. */
    if (strcmp(what, "chroot")) must(has_begun() == 1);
    if (!strcmp(what, "mlockall")) must(munlockall() == 0);
    if (strcmp(what, "as")) press();
    check(memory, MIB, 6);
}

/* A user namespace is for a process with one thread: it gets it, and memory beside the budget. */
static void user_namespace(void) {
    must(unshare(CLONE_NEWUSER) == 0);
    char *memory = mapped(MIB);
    fill(memory, MIB, 6);
    must(!has_begun());
    check(memory, MIB, 6);
}

/* No descriptor is left when it asks; later there are some. */
static void no_descriptors(void) {
    int last = -1;
    must(set_limit(RLIMIT_NOFILE, 100) == 0 && !has_begun());
    for (int fresh; (fresh = dup(1)) >= 0;) last = fresh;
    must(errno == EMFILE);
    char *before = mapped(MIB);
    fill(before, MIB, 1);
    for (int number = last - 30; number <= last; number++) close(number);
    must(!has_begun());
    char *behind = mapped(MIB);
    fill(behind, MIB, 2);
    must(has_begun() == 1);
    press();
    check(before, MIB, 1);
    check(behind, MIB, 2);
}

/* Says that it is there, waits to be told to go on, and asks. */
static void late(void) {
    char byte;
    printf("ready %d\n", getpid());
    fflush(stdout);
    must(read(0, &byte, 1) == 1 && !has_begun());
    memset(mapped(MIB), 1, MIB);
}

int main(int count, char **words) {
    static const struct { const char *name; void (*run)(void); } KINDS[] = {
        {"small", is_small}, {"at_once", at_once}, {"shared", shared}, {"in_parts", in_parts}, {"heap", heap}, {"vforks", vforks},
        {"reserves", reserves}, {"threads", threads}, {"forks", forks}, {"forks_in_malloc", forks_in_malloc}, {"handlers", handlers}, {"little_stack", little_stack}, {"no_descriptors", no_descriptors}, {"late", late}, {"user_namespace", user_namespace},
    };
    int known = 0;
#ifdef DATA
    must(has_begun() == 1);
    data[count] = 1;
#endif
    for (size_t at = 0; count > 1 && at < sizeof KINDS / sizeof *KINDS; at++)
        if (!strcmp(words[1], KINDS[at].name)) {
            KINDS[at].run();
            known = 1;
        }
    if (count > 2 && !strcmp(words[1], "gives_up")) {
        gives_up(words[2]);
        known = 1;
    }
    must(known || count == 1);
    puts("right");
    return 0;
}
