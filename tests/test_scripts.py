"""The scripts at the top of the tree: what they say of words that make no sense, and their help, wherever they are called from."""

import contextlib
import os
import pathlib
import pty
import subprocess

import pytest

TREE = pathlib.Path(__file__).resolve().parent.parent


def script(name, *words):
    """Runs a script as somebody does who stands in the folder above."""
    command = [f"{TREE.name}/{name}", *words]
    return subprocess.run(command, cwd=TREE.parent, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", ["check", "demo", "install"])
def test_help_is_found_from_another_folder(name):
    told = script(name, "--help")
    assert told.returncode == 0 and f"usage: ./{name}" in told.stdout and told.stderr == "", told


@pytest.mark.parametrize("words", [["--fast"], ["--prepare", "--fast"], ["--prepare", "model.gguf"]], ids=" ".join)
def test_the_demo_refuses_what_it_does_not_know_before_it_does_anything(words):
    told = script("demo", *words)
    assert told.returncode == 2 and told.stdout == "", told
    assert told.stderr.startswith(f"error: {words[-1]} is no option") and "usage: ./demo" in told.stderr, told.stderr


# In the place of cargo: it says what it is asked for, and builds nothing, which ends the script.
CARGO = """#!/bin/sh
if [ "$1" != build ]; then exit 0; fi
echo "asked: $*" >&2
exit 7
"""


@pytest.mark.parametrize("name", ["demo", "install"])
@pytest.mark.parametrize("on_terminal", [True, False], ids=["terminal", "pipe"])
def test_a_build_of_minutes_shows_its_progress_on_a_terminal(folder, name, on_terminal):
    if name == "demo" and not (TREE / ".cache/models/smollm2-135m.gguf").exists():
        pytest.skip("no model (hint: ./demo --prepare)")
    (folder / "cargo").write_text(CARGO, encoding="utf-8")
    (folder / "cargo").chmod(0o755)
    words = [TREE / name, *(["--prefix", folder / "prefix"] if name == "install" else [])]
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    with os.fdopen(ours, "rb", buffering=0) as reader:
        process = subprocess.Popen(words, stderr=theirs, stdout=subprocess.DEVNULL, env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        os.close(theirs)
        said = b""
        # A terminal whose other end is closed is an error, and no end.
        with contextlib.suppress(OSError):
            while piece := reader.read(4096):
                said += piece
        assert process.wait(60) == 7, said
    assert b"several minutes the first time" in said and (b"--quiet" in said) != on_terminal, said
