"""What a large file holds, as a short text that is remembered: a model is read once, and not at each start."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import re
import tempfile

# A model in several files: the name of each says which of how many it is.
SPLIT = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


def model_digest(path: pathlib.Path) -> str:
    """The digest of a model, all of its files. OSError if one cannot be read."""
    match = SPLIT.search(path.name)
    if match is None:
        return file_digest(path)
    stem, count = path.name[:match.start()], int(match[1])
    parts = [path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    return hashlib.sha256(" ".join(file_digest(part) for part in parts).encode()).hexdigest()


def file_digest(path: pathlib.Path) -> str:
    """SHA-256 of a file's content. It is remembered for as long as place, size and times of the file are the same."""
    path = path.resolve()
    status = path.stat()
    # The change time, which no program can set back.
    seen = f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    memory = cache_folder() / "digests.json"
    known = read(memory)
    if known.get(str(path), ["", ""])[0] == seen:
        return known[str(path)][1]
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    with contextlib.suppress(OSError):
        remember(memory, str(path), [seen, found])
    return found


def cache_folder() -> pathlib.Path:
    """Where programs of this user keep what can be made again."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(home) / "hinterland"


def read(memory: pathlib.Path) -> dict[str, list[str]]:
    """What was remembered; nothing of a file that is spoilt."""
    try:
        known = json.loads(memory.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) and all(is_entry(entry) for entry in known.values()) else {}


def is_entry(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(word, str) for word in entry)


def remember(memory: pathlib.Path, path: str, entry: list[str]) -> None:
    """Adds an entry. Two programs at once may lose one of two entries, and never spoil the file."""
    memory.parent.mkdir(parents=True, exist_ok=True)
    known = {name: old for name, old in read(memory).items() if os.path.exists(name)}
    with tempfile.NamedTemporaryFile("w", dir=memory.parent, delete=False) as file:
        json.dump({**known, path: entry}, file)
    os.replace(file.name, memory)
