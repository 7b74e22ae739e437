"""The C examples, as `./check c` built them: they do what their first comment says."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

TREE = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """The folder with the built examples; they are built here when `./check c` has not."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TREE / "target")) / "debug"
    if not (target / "libhinterland.so").exists():
        pytest.fail("no libhinterland.so (hint: cargo build -p hinterland-c)")
    folder = tmp_path_factory.mktemp("c")
    for source in (TREE / "examples/c").glob("*.c"):
        subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", f"-I{TREE / 'include'}", source, "-o", folder / source.stem,
                        f"-L{target}", "-lhinterland", f"-Wl,-rpath,{target.resolve()}"], check=True)
    return folder


def run(node, program, *words, check=True):
    """Runs an example that talks to a node."""
    environment = {**os.environ, "HINTERLAND_SOCKET": str(node.socket)}
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=60, check=check,
                          env=environment)


@pytest.mark.parametrize("rack", ["a", "b"])
def test_an_object_is_put_mapped_and_removed(two_racks, make_file, examples, rack):
    a, _ = two_racks
    source = make_file("source", 5_000_000)
    output = run(a, examples / "map_object", source, "from/c", rack).stdout
    data = source.read_bytes()
    assert f"sum {sum(data)}" in output and " ".join(f"{byte:02x}" for byte in data[:8]) in output
    assert a.json("ls") == []


def test_a_counter_counts_every_addition_of_every_process(node, examples):
    program = examples / "shared_counter"
    address = run(node, program, "new").stdout.strip()
    environment = {**os.environ, "HINTERLAND_SOCKET": str(node.socket)}
    adders = [subprocess.Popen([program, "add", address, "200"], env=environment) for _ in range(4)]
    assert [adder.wait(timeout=60) for adder in adders] == [0] * 4
    assert run(node, program, "show", address).stdout.strip() == "800"


def test_blocks_that_one_process_puts_another_finds_and_loads(node, examples):
    program = examples / "kv_blocks"
    total = run(node, program, "put", 40).stdout.strip()
    assert run(node, program, "get", 64).stdout.split() == ["40", total, total]
    assert run(node, program, "remove", 10).stdout.strip() == "10"
    assert run(node, program, "get", 64).stdout.split() == ["0", "0", "0"]
    outcome = run(node, program, "load", 10, check=False)
    assert outcome.returncode == 2 and "usage: kv_blocks put|get|remove" in outcome.stderr


def test_an_error_has_a_sentence_and_a_hint(node, examples, folder):
    outcome = run(node, examples / "map_object", folder / "none", "x", check=False)
    assert outcome.returncode == 1 and "none" in outcome.stderr


OPEN = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
pool, kv = ctypes.c_void_p(), ctypes.c_void_p()
assert library.hl_open(None, ctypes.byref(pool)) == 0
print("open", flush=True)
sys.stdin.readline()
print(library.hl_kv_open(pool, b"slow", ctypes.byref(kv)))
"""


def test_who_waits_while_the_memory_of_kv_blocks_is_made_is_told(node):
    # A node that is stopped is as silent as one that makes many GiB.
    library = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TREE / "target")) / "debug/libhinterland.so"
    opening = subprocess.Popen([sys.executable, "-c", OPEN, library], env={**os.environ, "HINTERLAND_SOCKET": str(node.socket)},
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert opening.stdout.readline() == "open\n"
    node.process.send_signal(signal.SIGSTOP)
    try:
        opening.stdin.write("\n")
        opening.stdin.flush()
        assert "waiting for the node: it makes its memory for KV blocks" in opening.stderr.readline()
    finally:
        node.process.send_signal(signal.SIGCONT)
    assert opening.communicate(timeout=60) == ("0\n", "")
