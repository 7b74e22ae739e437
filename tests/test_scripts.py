"""The scripts at the top of the tree: what they say of words that make no sense, and their help, wherever they are called from."""

import pathlib
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
