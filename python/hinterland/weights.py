"""What tells one set of weights from another under the same name: keys and values of one are wrong for every other."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re

# Files of a model that decide what it computes.
ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json")
COMMIT = re.compile(r"[0-9a-f]{40}")


def state(model: str, revision: str | None = None, cache: str | None = None) -> str | None:
    """A text that changes with the weights of a model: of a folder or a file those of its files, of a name of the Hugging Face Hub the
    commit that `revision` stands for in the cache of this host (`cache`, or the usual one). None where nothing tells."""
    path = pathlib.Path(model)
    if path.is_dir():
        # Written anew in place, they are other weights: so sizes and times count, too.
        files = sorted(each for each in path.iterdir() if each.suffix in ENDINGS)
        return digest(repr([(each.name, *size_and_time(each)) for each in files]))
    if path.is_file():
        return " ".join(map(str, size_and_time(path)))
    return commit(model, revision or "main", cache)


def size_and_time(path: pathlib.Path) -> tuple[int, int]:
    """Those of a file; of a link that leads nowhere as if it were empty."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def commit(model: str, revision: str, cache: str | None) -> str | None:
    """The commit of a model of the Hub, which what is loaded from there was looked up by, or None."""
    if COMMIT.fullmatch(revision):
        return revision
    folder = pathlib.Path(cache) if cache else hub_cache()
    try:
        found = (folder / f"models--{model.replace('/', '--')}" / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        return None
    return found if COMMIT.fullmatch(found) else None


def hub_cache() -> pathlib.Path:
    """Where libraries of the Hub keep what they have downloaded, by the variables that they look at."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return pathlib.Path(os.path.expanduser(os.path.expandvars(os.environ[name])))
    above = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(above, "huggingface")
    return pathlib.Path(os.path.expanduser(os.path.expandvars(home))) / "hub"


def digest(text: str) -> str:
    """Sixteen hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
