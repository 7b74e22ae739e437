"""The command line of a llama-server: where it listens, what is changed, and what of it makes keys and values what they are."""

from __future__ import annotations

import itertools
import pathlib
import shutil
from typing import Mapping, NamedTuple, Sequence

from .digest import file_digest

# Words that leave the keys and values of a prompt as they are, and how many words follow each. Everything else separates
# servers: also what is not known.
HARMLESS = {
    word: count
    for count, words in (
        (0, "--slots --no-slots --metrics --props --cont-batching -cb --no-cont-batching -nocb --jinja --no-jinja --no-webui"
            " --no-ui --webui --ui --warmup --no-warmup --cache-prompt --no-cache-prompt --cache-idle-slots"
            " --no-cache-idle-slots --kv-unified -kvu --no-kv-unified -no-kvu --reuse-port --mmap --no-mmap --mlock --offline"
            " --log-disable --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps -v --verbose --log-verbose"
            " --perf --no-perf --no-context-shift --no-mmproj"),
        (1, "-m --model -t --threads -tb --threads-batch --threads-http -np --parallel -c --ctx-size -n --predict --n-predict"
            " -a --alias --api-key --api-key-file -to --timeout -sps --slot-prompt-similarity -cram --cache-ram -lm --load-mode"
            " --prio --prio-batch --poll --poll-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --log-file -lv --verbosity"
            " --log-verbosity --log-colors --path --media-path --chat-template --chat-template-file --chat-template-kwargs"
            " --reasoning-format --reasoning-budget --temp --temperature --top-k --top-p --min-p -s --seed --samplers"
            " --repeat-penalty --repeat-last-n --presence-penalty --frequency-penalty --sleep-idle-seconds"),
    )
    for word in words.split()
}
HARMLESS_VARIABLES = {
    "LLAMA_ARG_" + name
    for name in "MODEL THREADS THREADS_BATCH THREADS_HTTP N_PARALLEL CTX_SIZE N_PREDICT ALIAS TIMEOUT CACHE_RAM HOST PORT"
    " ENDPOINT_SLOTS ENDPOINT_METRICS ENDPOINT_PROPS JINJA UI WEBUI CACHE_PROMPT CACHE_IDLE_SLOTS KV_UNIFIED MMAP MLOCK".split()
}
# Where clients reach the server; they reach this program there instead.
HOST, PORT = ("--host", "LLAMA_ARG_HOST"), ("--port", "LLAMA_ARG_PORT")
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080
CACHE_RAM = ("-cram", "--cache-ram")
# What cannot be had together with this program, and what to do.
REFUSED = {
    "--ssl-key-file": "end TLS in a program before this one",
    "--ssl-cert-file": "end TLS in a program before this one",
    "--api-prefix": "add the prefix in a program before this one",
    "--slot-save-path": "leave it out: slots are saved to a folder of this program's own",
    "--models-dir": "start one of these programs for each model",
    "--models-preset": "start one of these programs for each model",
}
# What makes keys and values depend on more than the tokens before them, or change while the server runs.
UNSHARED = {
    "--context-shift": "--context-shift moves keys of tokens that have seen others",
    "--cache-reuse": "--cache-reuse moves keys of tokens that have seen others",
    "--lora": "LoRA adapters can be changed while the server runs",
    "--lora-scaled": "LoRA adapters can be changed while the server runs",
    "--mmproj": "prompts with media are not shared",
}
UNSHARED_VARIABLES = {"LLAMA_ARG_CONTEXT_SHIFT": "--context-shift", "LLAMA_ARG_CACHE_REUSE": "--cache-reuse"}


class CommandError(ValueError):
    """A command that cannot be started; the text ends in what to do."""


class Command(NamedTuple):
    """A command line, taken apart."""

    # The command without where it listens.
    words: list[str]
    host: str
    port: int
    # What of it makes keys and values what they are.
    facts: list[str]
    # Why nothing can be shared, or nothing.
    unshared: str | None
    authorization: str | None
    has_cache_ram: bool

    def started(self, socket: pathlib.Path, folder: pathlib.Path) -> list[str]:
        """The command that is started: at a socket that only this user reaches."""
        added = ["--host", str(socket), "--slot-save-path", f"{folder}/"]
        # The pool holds the same bytes, once for all servers.
        return [*self.words, *added, *([] if self.has_cache_ram else ["--cache-ram", "0"])]


def take_apart(words: Sequence[str], environment: Mapping[str, str]) -> Command:
    """Reads a command line and the variables that llama-server takes for options."""
    rest = list(words)
    host = take_value(rest, HOST[0]) or environment.get(HOST[1]) or DEFAULT_HOST
    port = take_value(rest, PORT[0]) or environment.get(PORT[1]) or str(DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise CommandError(f"{port!r} is no port (hint: --port 8080)")
    if host.endswith(".sock") or "," in host:
        raise CommandError(f"clients cannot be served at {host} (hint: --host 0.0.0.0 is every address)")
    options = [spelled(word) for word in rest]
    for word, hint in REFUSED.items():
        variable = "LLAMA_ARG_" + word.removeprefix("--").replace("-", "_").upper()
        for name, is_there in ((word, word in options), (variable, bool(environment.get(variable)))):
            if is_there:
                raise CommandError(f"{name} cannot be had together with this program (hint: {hint})")
    return Command(
        rest, host, int(port), facts(options[1:], environment), unshared(options, environment), authorization(options, environment),
        any(word in options for word in CACHE_RAM) or "LLAMA_ARG_CACHE_RAM" in environment,
    )


def spelled(word: str) -> str:
    """An option as llama-server reads it, which takes `--cache_reuse` for `--cache-reuse`."""
    return word.replace("_", "-") if word.startswith("--") else word


def program_digest(words: Sequence[str]) -> str:
    """The digest of the program that is started, for one that does not say which build it is."""
    path = shutil.which(words[0])
    return file_digest(pathlib.Path(path)) if path else "unknown"


def take_value(words: list[str], name: str) -> str | None:
    """Takes an option and its value out of a command; the last one counts."""
    found = None
    while name in words[1:]:
        at = words.index(name, 1)
        if at + 1 == len(words):
            raise CommandError(f"{name} has no value (hint: {name} VALUE)")
        found = words[at + 1]
        del words[at:at + 2]
    return found


def facts(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The words and variables that may change keys and values; a file counts by its content."""
    found, at = [], 0
    while at < len(words):
        if words[at] in HARMLESS:
            at += 1 + HARMLESS[words[at]]
            continue
        found.append(content(words[at]))
        at += 1
    for name in sorted(environment):
        # What an option is called in the environment.
        if name.startswith("LLAMA_ARG_") and name not in HARMLESS_VARIABLES:
            found.append(f"{name}={environment[name]}")
    return found


def content(word: str) -> str:
    """A word with the digests of the files that it names: one, several with commas between them, and each with how much of it counts
    (`vector.gguf:0.5`)."""
    if pathlib.Path(word).is_file():
        return f"file {file_digest(pathlib.Path(word))}"
    if "," in word:
        return ",".join(map(content, word.split(",")))
    name, colon, scale = word.rpartition(":")
    return f"{content(name)}{colon}{scale}" if name and pathlib.Path(name).is_file() else word


def unshared(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Why nothing can be shared, if an option says so."""
    for name, why in UNSHARED.items():
        # Of an option that is there more than once the last one counts; any of them is taken at its word here.
        if any(word == name and after != "0" for word, after in itertools.zip_longest(words, words[1:])):
            return why
    for variable, name in UNSHARED_VARIABLES.items():
        if environment.get(variable, "0").lower() not in ("0", "false", "off", "disabled"):
            return UNSHARED[name]
    return None


def authorization(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """What this program shows the server when it asks for itself."""
    rest = list(words)
    keys = take_value(rest, "--api-key") or environment.get("LLAMA_API_KEY")
    if not keys and (path := take_value(rest, "--api-key-file")):
        lines = pathlib.Path(path).read_text().split("\n") if pathlib.Path(path).is_file() else []
        keys = next((line for line in lines if line.strip()), None)
    return f"Bearer {keys.split(',')[0].strip()}" if keys else None
