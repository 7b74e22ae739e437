#!/usr/bin/env python3
"""One vLLM engine in this process, which answers lines of JSON: `engine.py SETTINGS`.

SETTINGS is JSON: `model`, `transfer` (a kv-transfer-config, or nothing), `engine` (more arguments of vllm.LLM). The first
line that it prints says ready. Then each line is a request and each answer a line:

  {"prompts": [[TOKEN...]...], "max_tokens": N} -> {"milliseconds", "cached": [...], "tokens": [[...]...]}; with
                                                   "chances": true also the logarithms of the tokens' probabilities
  {"reset": "cache" or "connector"}             -> {"reset": whether it could}
  {"call": NAME, "arguments": [...]}            -> {"answer": what the connector's worker side answers}
"""

import ctypes
import json
import os
import signal
import sys
import time

# Set before vLLM is imported. One thread: two engines share a small machine, and waiting threads spin.
DEFAULTS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def number_format():
    """The numbers of weights and caches: 16 bits where the processor computes with them, which without AVX-512 takes six times as long as with 32."""
    try:
        with open("/proc/cpuinfo", encoding="ascii") as processor:
            flags = next((line.split() for line in processor if line.startswith("flags")), None)
    except OSError:
        return "bfloat16"
    return "bfloat16" if flags is None or "avx512f" in flags else "float32"


def main():
    # It ends with whoever started it, however that ends.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    dtype = number_format()
    if dtype == "float32":
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    # What libraries print is not to be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    from vllm import LLM, SamplingParams, TokensPrompt
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    arguments = {"load_format": "dummy", "dtype": dtype, "max_model_len": 6144, "max_num_seqs": 4}
    arguments |= {"enforce_eager": True, "skip_tokenizer_init": True, "disable_log_stats": True}
    arguments |= settings.get("engine") or {}
    if "kv_events_config" in arguments:
        from vllm.config import KVEventsConfig

        arguments["kv_events_config"] = KVEventsConfig(**arguments["kv_events_config"])
    llm = LLM(model=settings["model"], kv_transfer_config=settings.get("transfer"), **arguments)

    def generate(request):
        chances = 0 if request.get("chances") else None
        sampling = SamplingParams(
            max_tokens=request["max_tokens"], temperature=0, ignore_eos=True, detokenize=False, logprobs=chances
        )
        prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in request["prompts"]]
        begin = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        took = (time.perf_counter() - begin) * 1e3
        cached = [output.num_cached_tokens for output in outputs]
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        answer = {"milliseconds": took, "cached": cached, "tokens": tokens}
        if chances is not None:
            answer["chances"] = [
                [step[token].logprob for token, step in zip(output.outputs[0].token_ids, output.outputs[0].logprobs)]
                for output in outputs
            ]
        return answer

    def answer(request):
        if "prompts" in request:
            return generate(request)
        if "reset" in request:
            return {"reset": llm.reset_prefix_cache(reset_connector=request["reset"] == "connector")}
        return {"answer": getattr(get_kv_transfer_group(), request["call"])(*request["arguments"])}

    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
