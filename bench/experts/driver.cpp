// Decodes a given text with llama.cpp one token at a time and says what that cost: `hinterland bench experts` asks line by
// line. The text is not the model's own: a model with random weights repeats itself within a few tokens, and would then
// use ever the same experts. The weights stay in the mapping: they are neither read into memory nor repacked.
//
//   driver MODEL TEXT
//   threads COUNT     -> 0; so many compute, from the next `load` on; 1 without this
//   load              -> seconds
//   trace FILE        -> 0; which experts every token uses is written there from here on: position, layer, experts
//   prefill COUNT     -> seconds; the next COUNT tokens in one batch
//   decode COUNT      -> seconds, major faults, minor faults, bytes read from disk, user seconds, system seconds
//   memory            -> bytes of anonymous memory
#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <vector>

static FILE * trace_file = nullptr;
static int position = 0;

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static bool note_experts(ggml_tensor * tensor, bool ask, void *) {
    const char * prefix = "ffn_moe_topk-";
    const bool wanted = trace_file && strncmp(tensor->name, prefix, strlen(prefix)) == 0;
    if (ask || !wanted) {
        return ask ? wanted : true;
    }
    std::vector<int32_t> chosen(tensor->ne[0]);
    for (int64_t token = 0; token < tensor->ne[1]; token++) {
        ggml_backend_tensor_get(tensor, chosen.data(), token * tensor->nb[1], chosen.size() * sizeof(int32_t));
        fprintf(trace_file, "%d %s", position + (int) token, tensor->name + strlen(prefix));
        for (int32_t expert : chosen) {
            fprintf(trace_file, " %d", expert);
        }
        fputc('\n', trace_file);
    }
    return true;
}

static double field(const char * path, const char * key) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        if (line.rfind(key, 0) == 0) {
            return std::stod(line.substr(strlen(key)));
        }
    }
    return 0;
}

struct state {
    llama_model * model = nullptr;
    llama_context * context = nullptr;
    std::vector<llama_token> tokens;
    bool traces = false;
    int threads = 1;
};

static const char * load(state & all, const char * path, const std::string & text) {
    llama_model_params model_params = llama_model_default_params();
    model_params.use_extra_bufts = false;
    model_params.progress_callback = [](float, void *) { return true; };
    model_params.load_mode = llama_load_mode_from_str("mmap");
    all.model = llama_model_load_from_file(path, model_params);
    if (!all.model) {
        return "the model cannot be loaded";
    }
    const llama_vocab * vocab = llama_model_get_vocab(all.model);
    all.tokens.resize(text.size());
    const int count = llama_tokenize(vocab, text.c_str(), text.size(), all.tokens.data(), all.tokens.size(), true, true);
    if (count <= 0) {
        return "the text has no tokens";
    }
    all.tokens.resize(count);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 2048;
    params.n_batch = 512;
    params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = all.threads;
    if (all.traces) {
        params.cb_eval = note_experts;
    }
    all.context = llama_init_from_model(all.model, params);
    return all.context ? nullptr : "there is no memory for a context";
}

static const char * advance(state & all, int count, int batch) {
    if (!all.context || position + count > (int) all.tokens.size() || position + count > 2048) {
        return "there is no text left";
    }
    for (int done = 0; done < count; done += batch) {
        if (llama_decode(all.context, llama_batch_get_one(all.tokens.data() + position, batch))) {
            return "decoding failed";
        }
        position += batch;
    }
    return nullptr;
}

static const char * decode(state & all, int count) {
    rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    const double read_before = field("/proc/self/io", "read_bytes:");
    const double begin = now();
    if (const char * failure = advance(all, count, 1)) {
        return failure;
    }
    const double took = now() - begin;
    getrusage(RUSAGE_SELF, &after);
    auto seconds = [](timeval a, timeval b) { return (a.tv_sec - b.tv_sec) + (a.tv_usec - b.tv_usec) / 1e6; };
    printf("%f %ld %ld %.0f %f %f\n", took, after.ru_majflt - before.ru_majflt, after.ru_minflt - before.ru_minflt,
           field("/proc/self/io", "read_bytes:") - read_before, seconds(after.ru_utime, before.ru_utime),
           seconds(after.ru_stime, before.ru_stime));
    return nullptr;
}

int main(int argc, char ** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: driver MODEL TEXT\n");
        return 2;
    }
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
    }, nullptr);
    llama_backend_init();
    std::ifstream file(argv[2]);
    std::stringstream text;
    text << file.rdbuf();
    state all;
    char line[4096], word[64], path[4096];
    while (fgets(line, sizeof line, stdin)) {
        int count = 0;
        const char * failure = nullptr;
        if (sscanf(line, "%63s %d", word, &count) < 1) {
            continue;
        }
        const double begin = now();
        const std::string command = word;
        if (command == "load") {
            failure = load(all, argv[1], text.str());
            if (!failure) printf("%f\n", now() - begin);
        } else if (command == "trace") {
            sscanf(line, "%*s %4095s", path);
            trace_file = fopen(path, "w");
            all.traces = true;
            if (trace_file) printf("0\n");
            else failure = "the trace cannot be written";
        } else if (command == "threads") {
            all.threads = count;
            if (count > 0) printf("0\n");
            else failure = "there has to be a thread";
        } else if (command == "prefill") {
            failure = advance(all, count, count);
            if (!failure) printf("%f\n", now() - begin);
        } else if (command == "decode") {
            failure = decode(all, count);
        } else if (command == "memory") {
            printf("%.0f\n", field("/proc/self/status", "RssAnon:") * 1024);
        } else {
            failure = "that is no command";
        }
        if (failure) printf("error %s\n", failure);
        if (trace_file) fflush(trace_file);
        fflush(stdout);
    }
    return 0;
}
