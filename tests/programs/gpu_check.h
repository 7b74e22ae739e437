// What programs for CUDA use that check every result: a wrong one ends the program with a line on standard error.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

static void fail(const char * what, int line, long long detail = 0) {
    fprintf(stderr, "line %d: %s (%lld)\n", line, what, detail);
    exit(1);
}

#define EXPECT(condition)                        \
    do {                                         \
        if (!(condition)) fail(#condition, __LINE__); \
    } while (0)
#define GOOD(call)                                            \
    do {                                                      \
        cudaError_t code = (call);                            \
        if (code != cudaSuccess) {                            \
            fprintf(stderr, "%s\n", cudaGetErrorString(code)); \
            fail(#call, __LINE__, code);                      \
        }                                                     \
    } while (0)
#define REFUSED(call, error)                                  \
    do {                                                      \
        cudaError_t code = (call);                            \
        if (code != (error)) fail(#call " is not " #error, __LINE__, code); \
        EXPECT(cudaGetLastError() == (error));                \
    } while (0)

static void check_numbers(const std::vector<int> & numbers, int right) {
    for (int number : numbers) {
        EXPECT(number == right);
    }
}

// A part of a program: a word of the command line, and what it runs.
struct part {
    const char * name;
    void (*run)();
};

// Runs the parts that the command line names, and says each when it is done.
template <size_t parts_count> int run_parts(const part (&parts)[parts_count], int count, char ** words) {
    for (int at = 1; at < count; at++) {
        bool found = false;
        for (const auto & one : parts) {
            if (strcmp(one.name, words[at]) == 0) {
                one.run();
                printf("%s\n", one.name);
                found = true;
            }
        }
        if (!found) {
            fprintf(stderr, "there is no part %s\n", words[at]);
            return 2;
        }
    }
    return 0;
}
