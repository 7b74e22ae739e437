#!/usr/bin/env python3
"""Generates text with an unmodified llama.cpp and says what it cost, as one JSON object on standard output.

The weights stay mapped: repacking, which copies them into private memory, is off. One thread and greedy choice
make the text the same on every run. With --hold the program stays after the text, answers each line on standard
input with a fresh measure of its memory, and leaves when the input ends. With --say each piece of text goes to
standard error as it comes.
"""

import argparse
import json
import os
import resource
import sys
import time

import xllamacpp as llama


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="path of a GGUF file")
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--tokens", type=int, default=48, help="how many to generate (48)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hold", action="store_true", help="stay and answer lines on standard input")
    parser.add_argument("--say", action="store_true", help="write each piece of text to standard error as it comes")
    return parser.parse_args()


def model_parameters(path, threads):
    """Parameters that keep the weights in the mapping and everything else small."""
    parameters = llama.CommonParams()
    parameters.model.path = path
    parameters.load_mode = llama.llama_load_mode.LLAMA_LOAD_MODE_MMAP
    parameters.no_extra_bufts = True
    parameters.fit_params = False
    parameters.warmup = False
    parameters.n_ctx = 512
    parameters.n_parallel = 1
    parameters.n_threads_http = 1
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    parameters.cache_ram_mib = 0
    parameters.ui = False
    parameters.verbosity = 0
    return parameters


class Stream:
    """Collects the text as it arrives and keeps the time of the first and the last piece."""

    def __init__(self, say):
        self.say = say
        self.started = time.monotonic()
        self.first = None
        self.last = None
        self.pieces = []
        self.failure = None

    def __call__(self, chunk):
        now = time.monotonic()
        event = chunk if isinstance(chunk, dict) else json.loads(chunk)
        if "error" in event:
            self.failure = event["error"]
            return True
        text = "".join(choice.get("text") or "" for choice in event.get("choices", []))
        if text:
            self.first = self.first or now
            self.last = now
            self.pieces.append(text)
            if self.say:
                print(text, end="", file=sys.stderr, flush=True)
        return False

    def tokens_per_second(self):
        """Over the tokens after the first, as llama.cpp itself counts."""
        if len(self.pieces) < 2 or self.last == self.first:
            return None
        return (len(self.pieces) - 1) / (self.last - self.first)


def file_mappings():
    """The file mappings of this process: address -> what /proc/self/smaps says of it."""
    found = {}
    current = None
    with open("/proc/self/smaps", encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            if not words[0].endswith(":"):
                current = {"file": f"{words[3]}/{words[4]}"} if words[4] != "0" else None
                if current is not None:
                    found[words[0].split("-")[0]] = current
            elif current is not None and words[-1] == "kB":
                current[words[0][:-1]] = int(words[1]) * 1024
    return found


def memory(known):
    """What the mappings made since `known` hold, by file, and what the whole process holds."""
    files = {}
    for address, mapping in file_mappings().items():
        if address in known:
            continue
        entry = files.setdefault(mapping["file"], {"rss_bytes": 0, "pss_bytes": 0, "page_bytes": 0})
        huge = mapping.get("Shared_Hugetlb", 0) + mapping.get("Private_Hugetlb", 0)
        entry["rss_bytes"] += mapping.get("Rss", 0) + huge
        entry["pss_bytes"] += mapping.get("Pss", 0)
        entry["page_bytes"] = max(entry["page_bytes"], mapping.get("KernelPageSize", 0))
    with open("/proc/self/status", encoding="utf-8") as lines:
        status = dict(line.rstrip().split(":", 1) for line in lines)
    anonymous = int(status["RssAnon"].split()[0]) * 1024
    return {"mapped_files": files, "anonymous_bytes": anonymous}


def main():
    arguments = parse_arguments()
    if not os.path.exists(arguments.model):
        sys.exit(f"generate.py: there is no {arguments.model}")
    known = set(file_mappings())
    started = time.monotonic()
    server = llama.Server(model_parameters(arguments.model, arguments.threads))
    load_seconds = time.monotonic() - started

    stream = Stream(arguments.say)
    request = {
        "prompt": arguments.prompt,
        "n_predict": arguments.tokens,
        "temperature": 0,
        "cache_prompt": False,
        "stream": True,
    }
    server.handle_completions(request, stream)
    if stream.failure or stream.first is None:
        sys.exit(f"generate.py: llama.cpp gave no text: {stream.failure}")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    outcome = {
        "model": arguments.model,
        "text": "".join(stream.pieces),
        "tokens": len(stream.pieces),
        "load_seconds": load_seconds,
        "first_token_seconds": stream.first - stream.started,
        "tokens_per_second": stream.tokens_per_second(),
        "faults": {"minor": usage.ru_minflt, "major": usage.ru_majflt},
        "system_seconds": usage.ru_stime,
        "memory": memory(known),
    }
    print(json.dumps(outcome), flush=True)
    if arguments.hold:
        for _ in sys.stdin:
            print(json.dumps(memory(known)), flush=True)


if __name__ == "__main__":
    main()
