/* A signal comes while a thread gives memory back to the kernel for good, as a robust mutex is made in it, and its handler

   asks    asks for memory
   forks   forks, and both go on

   Prints "right". */
#include "far_check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

#define MIB (1L << 20)
#define MUTEXES 2000
#define APART 16384
#define FORKS_MAX 200

static volatile sig_atomic_t handled, is_child;
static int forks;

static char *mapped(long bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    return memory;
}

/* Asks for the next signal. Each handler asks at its end, so that the thread goes on however long handlers take. */
static void after(int microseconds) {
    struct itimerval timer = {{0, 0}, {0, microseconds}};
    must(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void handle(int signal) {
    (void)signal;
    int before = errno;
    handled++;
    if (forks) {
        pid_t child = fork();
        must(child >= 0);
        if (child == 0) {
            is_child = 1;
        } else {
            int status;
            must(waitpid(child, &status, 0) == child && status == 0);
        }
    } else {
        char *memory = mapped(MIB);
        *memory = 1;
        must(munmap(memory, MIB) == 0);
    }
    if (!is_child && (!forks || handled < FORKS_MAX)) after(forks ? 10000 : 300);
    errno = before;
}

int main(int count, char **words) {
    must(count == 2);
    forks = strcmp(words[1], "forks") == 0;
    char *memory = mapped(64 * MIB), *mutexes = mapped(MUTEXES * (long)APART);
    fill(memory, 64 * MIB, 3);
    fill(mutexes, MUTEXES * (long)APART, 4);
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    must(sigaction(SIGALRM, &action, NULL) == 0);
    pthread_mutexattr_t robust;
    must(pthread_mutexattr_init(&robust) == 0 && pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST) == 0);
    after(forks ? 10000 : 300);
    for (int number = 0; number < MUTEXES || handled < 20; number++) {
        must(pthread_mutex_init((pthread_mutex_t *)(mutexes + number % MUTEXES * (long)APART), &robust) == 0);
        if (is_child) _exit(0);
    }
    after(0);
    check(memory, 64 * MIB, 3);
    puts("right");
    return 0;
}
