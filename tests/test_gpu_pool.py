"""Copies to a GPU elsewhere of what is mapped from the pool: the GPU's node reads the bytes by itself, and every byte is the one that the program sees."""

import json
import os
import shutil
import subprocess
import time

import pytest

from test_gpu import LLAMA, NVCC, TREE, GpuNode, needs_llama

MEBIBYTE = 1 << 20
BYTES = 5 * MEBIBYTE + 12345
SECONDS = 240


@pytest.fixture(scope="session")
def pooled(tmp_path_factory):
    """The program, compiled by nvcc and linked to the vendor's libraries."""
    if not NVCC.exists():
        pytest.skip("nvcc is not installed (hint: tests/cuda-toolchain .cache/cuda)")
    path = tmp_path_factory.mktemp("gpu") / "pooled"
    words = ["-gencode", "arch=compute_90,code=compute_90", "-cudart", "shared", "-o", path, TREE / "tests/programs/gpu_pooled.cu"]
    subprocess.run([NVCC.read_text().strip(), *words], check=True, capture_output=True)
    return path


class Ground:
    """A client's node `a`, a home `b` for the weights, and a GPU node that reads through a node of its own, `g`, or through `b`."""

    def __init__(self, a, b, gpu):
        self.a, self.b, self.gpu = a, b, gpu

    def words(self, *words, options=()):
        """Words of a command that runs a program at `a` with the GPU."""
        return self.a.command("--quiet", "run", "--gpu", self.gpu.unix, *options, "--", *words)

    def run(self, *words, options=(), **environment):
        """Runs a program, and returns what it said for each part: bytes of commands, copies by name, and their bytes."""
        outcome = subprocess.run(self.words(*words, options=options), env={**os.environ, **environment}, capture_output=True, text=True,
                                 timeout=SECONDS, check=False)
        assert outcome.returncode == 0, outcome.stderr + (self.gpu.path.parent / "gpu.log").read_text()
        lines = [line.split() for line in outcome.stdout.splitlines()]
        return {line[0]: tuple(map(int, line[1:])) for line in lines}, outcome.stderr

    def start(self, *words, **environment):
        """Starts a program that waits for lines."""
        return subprocess.Popen(self.words(*words), env={**os.environ, **environment}, text=True, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def received(node):
    """Bytes that the node's fills received from others."""
    return node.json("status")["counters"]["network_received_bytes"]


@pytest.fixture
def ground(binary, folder, start_node):
    """Starts the racks, and a GPU node beside the home (`own`), beside a rack without the bytes (`other`), or without a pool (`none`)."""
    nodes = []

    def start(kind="own"):
        b = start_node("b", options=["--capacity", "128M"])
        a = start_node("a", join=b.address, options=["--capacity", "128M"])
        options = []
        if kind != "none":
            beside = b if kind == "own" else start_node("g", join=b.address, options=["--capacity", "64M"])
            options = ["--pool", beside.socket]
        nodes.append(GpuNode(binary, folder, "software:memory=512M", *options))
        made = Ground(a, b, nodes[-1])
        made.beside = beside if kind != "none" else None
        return made

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def data(make_file):
    """A file of a length that is no multiple of anything."""
    return make_file("source", BYTES)


MAPPED_PARTS = ("shared", "private", "writable", "populated")


@pytest.mark.parametrize("kind", ["own", "other"])
@pytest.mark.parametrize("rack", ["a", "b"])
def test_the_bytes_of_a_mapped_object_do_not_pass_through_the_client(ground, pooled, data, kind, rack):
    here = ground(kind)
    here.a.run("put", data, "--name", "data", "--rack", rack)
    before = received(here.a)
    parts, _ = here.run(pooled, "/pool/data", data, *MAPPED_PARTS, HINTERLAND_NO_PREFETCH="1")
    for part in MAPPED_PARTS:
        sent, copies, copied = parts[part]
        assert (copies, copied) == (1, BYTES) and sent < 8192, parts
    assert received(here.a) == before, "the client's rack fetched bytes that it does not need"


def test_without_the_preloaded_library_mappings_of_the_mount_are_known_too(ground, pooled, data):
    here = ground()
    here.a.run("put", data, "--name", "data", "--rack", "b")
    for options in (["--no-preload"], ["--no-preload", "--no-passthrough"]):
        parts, _ = here.run(pooled, "/pool/data", data, "shared", "dirty", options=options)
        assert parts["shared"][1:] == (1, BYTES)
        assert parts["dirty"][1] == 0
    here.a.run("put", data, "--name", "near", "--rack", "a")
    parts, _ = here.run(pooled, "/pool/near", data, "private", "dirty", options=["--no-preload"])
    assert (parts["private"][1], parts["dirty"][1]) == (1, 0)


@pytest.mark.parametrize("rack", ["a", "b"])
def test_what_the_program_wrote_arrives_and_not_what_the_object_says(ground, pooled, data, rack):
    here = ground()
    here.a.run("put", data, "--name", "data", "--rack", rack)
    parts, _ = here.run(pooled, "/pool/data", data, "shared", "dirty", "covered", "private")
    assert parts["dirty"][1] == 0 and parts["dirty"][0] > 5 * BYTES
    # Of three copies the first and the last are all of the pool, the last in three parts.
    assert parts["covered"][1] == 4 and BYTES < parts["covered"][0] < 2 * BYTES
    assert parts["private"][1:] == (1, BYTES)


def test_any_part_of_a_mapping_is_copied_in_the_order_of_its_stream(ground, pooled, data):
    here = ground("other")
    here.a.run("put", data, "--name", "data", "--rack", "b")
    parts, _ = here.run(pooled, "/pool/data", data, "pieces", "joined")
    assert parts["pieces"][1] == 40 and parts["joined"][1] == 2


def test_what_was_read_into_a_buffer_is_sent(ground, pooled, data):
    here = ground()
    here.a.run("put", data, "--name", "data")
    parts, _ = here.run(pooled, "/pool/data", data, "buffer")
    assert parts["buffer"][1] == 0 and parts["buffer"][0] > BYTES


@pytest.mark.parametrize("why", ["no pool", "switch"])
def test_bytes_are_sent_where_the_node_does_not_read_them(ground, pooled, data, why):
    here = ground("none" if why == "no pool" else "own")
    here.a.run("put", data, "--name", "data")
    environment = {"HINTERLAND_NO_POOL_COPIES": "1"} if why == "switch" else {}
    parts, _ = here.run(pooled, "/pool/data", data, *MAPPED_PARTS, **environment)
    assert all(parts[part][1] == 0 and parts[part][0] > BYTES for part in MAPPED_PARTS)


def test_a_file_that_is_none_of_the_pool_is_sent_whatever_its_name(ground, pooled, data, folder):
    here = ground()
    here.a.run("put", data, "--name", "data")
    number = int(here.a.json("stat", "data")["object"])
    other = folder / f"{number:016x}.bytes"
    other.write_bytes(bytes(reversed(data.read_bytes())))
    parts, _ = here.run(pooled, other, other, "shared", "private")
    assert parts["shared"][1] == 0 and parts["private"][1] == 0


def test_an_object_of_another_pool_is_sent_though_it_has_the_same_number(binary, folder, start_node, pooled, make_file):
    ours, theirs = start_node("a", options=["--capacity", "64M"]), start_node("x", options=["--capacity", "64M"])
    mine, other = make_file("mine", BYTES, seed=1), make_file("other", BYTES, seed=2)
    ours.run("put", mine, "--name", "data")
    theirs.run("put", other, "--name", "data")
    assert ours.json("stat", "data")["object"] == theirs.json("stat", "data")["object"]
    gpu = GpuNode(binary, folder, "software:memory=512M", "--pool", theirs.socket)
    try:
        parts, _ = Ground(ours, theirs, gpu).run(pooled, "/pool/data", mine, "shared")
        assert parts["shared"][1] == 0
    finally:
        gpu.stop()


@pytest.mark.parametrize("what", ["replaced", "removed"])
def test_an_object_that_is_gone_from_the_pool_is_sent_as_the_program_sees_it(ground, pooled, data, make_file, what):
    here = ground()
    here.a.run("put", data, "--name", "data", "--rack", "a")
    with here.start(pooled, "/pool/data", data, "meanwhile") as process:
        assert process.stdout.readline().startswith("start") and process.stdout.readline() == "mapped\n"
        here.a.run("rm", "data")
        if what == "replaced":
            here.a.run("put", make_file("other", BYTES, seed=9), "--name", "data", "--rack", "b")
        told, words = process.communicate("go\n", timeout=SECONDS)
    assert process.returncode == 0, words
    assert told.split()[0] == "meanwhile" and told.split()[2] == "0"


def test_a_pool_that_dies_ends_the_copy_with_an_error_and_without_bytes(ground, pooled, data):
    here = ground("other")
    here.a.run("put", data, "--name", "data", "--rack", "b")
    with here.start(pooled, "/pool/data", data, "lost", HINTERLAND_NO_PREFETCH="1") as process:
        assert process.stdout.readline().startswith("start") and process.stdout.readline() == "copied\n"
        here.beside.kill()
        told, words = process.communicate("go\n", timeout=SECONDS)
    assert process.returncode == 0, words
    assert told == "refused\n"
    assert "lost to a copy" in words and "hint:" in words


def test_a_node_of_the_pool_that_comes_back_is_found_again(ground, pooled, data):
    here = ground("other")
    here.a.run("put", data, "--name", "data", "--rack", "b")
    with here.start(pooled, "/pool/data", data, "shared", "meanwhile", "private") as process:
        lines = [process.stdout.readline().split() for _ in range(3)]
        assert lines[1][0] == "shared" and lines[2] == ["mapped"]
        here.beside.kill()
        here.beside.start()
        told, words = process.communicate("go\n", timeout=SECONDS)
    assert process.returncode == 0, words
    assert [line.split()[2] for line in told.splitlines()] == ["1", "1"]


def test_a_model_is_fetched_by_the_node_before_anything_is_copied(ground, pooled, data):
    here = ground("other")
    here.a.run("put", data, "--name", "models/data", "--rack", "b")
    before = received(here.beside)
    outcome = here.run(pooled, "pool:models/data", data, "buffer", options=["--model", "pool:models/data", "--no-preload"])
    assert outcome[0]["buffer"][1] == 0, "the program itself copied nothing by name"
    end = time.monotonic() + 20
    while received(here.beside) - before < BYTES:
        assert time.monotonic() < end, "the node's rack did not fetch the model"
        time.sleep(0.05)


def test_a_model_that_the_pool_does_not_have_is_told_before_the_program_starts(ground):
    here = ground()
    outcome = subprocess.run(here.words("echo", "started", options=["--model", "pool:nothing"]), capture_output=True, text=True, timeout=60, check=False)
    assert outcome.returncode != 0 and "nothing" in outcome.stderr and "hint:" in outcome.stderr and outcome.stdout == ""


@needs_llama
def test_the_weights_of_llama_cpp_go_from_the_pool_to_the_gpu_and_its_words_stay_the_same(ground):
    here = ground("other")
    here.a.run("put", LLAMA / "test.gguf", "--name", "test.gguf", "--rack", "b")
    runs = []
    for options, environment in (["--model", "pool:test.gguf"], {}), ([], {"HINTERLAND_NO_POOL_COPIES": "1"}):
        words = here.words(LLAMA / "tokens", LLAMA / "libraries", "pool:test.gguf" if options else "/pool/test.gguf", 4, 2, options=options)
        outcome = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert outcome.returncode == 0, outcome.stderr
        runs.append([line.split() for line in outcome.stdout.splitlines()])
    named, sent = runs
    assert [row[1] for row in named] == [row[1] for row in sent], "the same tokens"
    # Bytes of commands up to the end of loading. Four matrices of a layer have fewer than 64 KiB in a model this small, and are sent.
    small = 4 * 32 * 256 * 256 * 18 // 32
    loaded = [int(run[0][5]) for run in runs]
    assert loaded[0] < small + 200_000 < 16_000_000 < loaded[1], loaded


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_bench_of_loads_says_what_passes_through_the_client(binary):
    if not all((binary.parent / f"libhinterland_{name}.so").exists() for name in ("cuda", "preload")):
        pytest.skip("a library is missing (hint: cargo build -p hinterland-cuda -p hinterland-preload)")
    words = [binary, "bench", "gpu-load", "--quick", "--rounds", "1", "--json"]
    told = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True, env={**os.environ, "HINTERLAND_NO_POOL_COPIES": "1"})
    rows = {row["case"]: row for row in json.loads(told.stdout)["rows"]}
    assert rows.keys() == {"home-time", "warm-time", "cold-time", "channel-bytes", "client-rack-bytes"}
    assert all("why" not in row for row in rows.values()), rows
    channel, rack = rows["channel-bytes"], rows["client-rack-bytes"]
    assert channel["limit"] == 2 * 40 <= channel["ours"] < 1000 < 24 * MEBIBYTE < channel["peer"]
    assert rack["ours"] == 0 and rack["peer"] >= 24 * MEBIBYTE
