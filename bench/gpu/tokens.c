// Runs a model with llama.cpp on its GPU and says for each token what that cost: the program that counts calls, and measures time.
//
//   tokens BACKENDS MODEL PREFILL DECODE
//
// BACKENDS is the folder with the libraries of llama.cpp's back ends. The prompt is PREFILL tokens of fixed numbers; then DECODE tokens are taken, each the
// most likely one. TOKENS_RPC=HOST:PORT has it run on a server of llama.cpp's RPC back end. Standard output has a line for each: its number, the token, microseconds, and, if the GPU is elsewhere, what
// went over since the token before: waits for an answer, commands, bytes, messages, bytes of code.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ggml-backend.h"
#include "llama.h"

enum { COUNTERS = 5 };

static void (*read_counters)(uint64_t *);

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double) time.tv_sec * 1e6 + (double) time.tv_nsec / 1e3;
}

static void be_quiet(enum ggml_log_level level, const char * text, void * unused) {
    (void) unused;
    if (level == GGML_LOG_LEVEL_ERROR || getenv("TOKENS_VERBOSE")) {
        fputs(text, stderr);
    }
}

// Adds the device of llama.cpp's own RPC back end, if one is asked for.
static void add_rpc_server(const char * address) {
    ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
    ggml_backend_reg_t (*add)(const char *) = NULL;
    if (rpc) {
        *(void **) &add = ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server");
    }
    if (!add) {
        fprintf(stderr, "tokens: these libraries have no RPC back end\n");
        exit(1);
    }
    ggml_backend_register(add(address));
}

static llama_token best(const float * scores, int words) {
    llama_token found = 0;
    for (llama_token word = 1; word < words; word++) {
        if (scores[word] > scores[found]) {
            found = word;
        }
    }
    return found;
}

static void fail(const char * what) {
    fprintf(stderr, "tokens: %s\n", what);
    exit(1);
}

static void report(int number, llama_token token, double start, uint64_t * before) {
    uint64_t after[COUNTERS] = { 0 };
    const double took = now() - start;
    if (read_counters) {
        read_counters(after);
    }
    printf("%d %d %.1f", number, token, took);
    for (int counter = 0; counter < COUNTERS; counter++) {
        printf(" %llu", (unsigned long long) (after[counter] - before[counter]));
        before[counter] = after[counter];
    }
    printf("\n");
    fflush(stdout);
}

int main(int count, char ** words) {
    if (count != 5) {
        fail("usage: tokens BACKENDS MODEL PREFILL DECODE");
    }
    const int prefill = atoi(words[3]);
    const int decode = atoi(words[4]);
    llama_log_set(be_quiet, NULL);
    ggml_backend_load_all_from_path(words[1]);
    if (getenv("TOKENS_RPC")) {
        add_rpc_server(getenv("TOKENS_RPC"));
    }
    llama_backend_init();
    double start = now();
    struct llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 999;
    struct llama_model * model = llama_model_load_from_file(words[2], model_params);
    if (!model) {
        fail("the model cannot be loaded");
    }
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t) (prefill + decode + 8);
    params.n_batch = (uint32_t) (prefill > 512 ? prefill : 512);
    params.n_threads = 1;
    params.n_threads_batch = 1;
    struct llama_context * context = llama_init_from_model(model, params);
    if (!context) {
        fail("there is no context");
    }
    // From the whole of the process, wherever the library of that name was loaded.
    *(void **) &read_counters = dlsym(RTLD_DEFAULT, "hl_gpu_counters");
    if (!read_counters) {
        void * core = dlopen("libhinterland_cuda.so", RTLD_NOW | RTLD_NOLOAD);
        *(void **) &read_counters = core ? dlsym(core, "hl_gpu_counters") : NULL;
    }
    uint64_t before[COUNTERS] = { 0 };
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    report(-2, 0, start, before);
    llama_token * prompt = malloc((size_t) prefill * sizeof(llama_token));
    for (int number = 0; prompt && number < prefill; number++) {
        prompt[number] = (llama_token) ((unsigned) number * 2654435761u % (unsigned) vocabulary);
    }
    start = now();
    if (!prompt || llama_decode(context, llama_batch_get_one(prompt, prefill)) != 0) {
        fail("the prompt cannot be decoded");
    }
    llama_token token = best(llama_get_logits_ith(context, -1), vocabulary);
    report(-1, token, start, before);
    for (int number = 0; number < decode; number++) {
        start = now();
        llama_token next = token;
        if (llama_decode(context, llama_batch_get_one(&next, 1)) != 0) {
            fail("a token cannot be decoded");
        }
        token = best(llama_get_logits_ith(context, -1), vocabulary);
        report(number, token, start, before);
    }
    free(prompt);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
