"""Guides, followed literally: what they tell people to type is typed, in the order in which it stands there.

Only places differ: files below /tmp lie in the test's folder, ports are free ones, and what was built is not built again.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import TREE
from faults import FULL
from guides import blocks
from loopback import free_port
from test_resp import redis  # noqa: F401

SECONDS = 120
# What a guide has people install or build before.
PREPARING = re.compile(r"^(cargo build|python/build\.sh|sudo |export PATH=).*$", re.MULTILINE)

# The model is compared in the place of a program that reads it.
READS_SMALL = {'llama-completion -m /pool/models/small -p "Once upon a time"': "cmp model.gguf /pool/models/small"}
READS_LARGE = {'llama-completion -m /pool/models/large -p "Once upon a time"': "cmp model.gguf /pool/models/large"}

# People look whether what they started is ready, and type on then.
BEGIN = """
set -eu
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
sleep() {
    for _ in $(seq 300); do
        command sleep 0.1
        if [ "$(grep -cE ' ready: |^mounted on |^Redis clients are served ' said)" -ge "$(jobs -p | wc -l)" ]; then return; fi
    done
}
"""


@pytest.fixture
def follow(binary, folder, hinterland):
    """A function that types blocks of a guide in one shell, and ends what they have started; it gives what was printed."""
    release = folder / "target/release"
    release.mkdir(parents=True)
    for built in ("hinterland", "libhinterland_preload.so"):
        if (binary.parent / built).exists():
            (release / built).symlink_to(binary.parent / built)
    (folder / "python").symlink_to(TREE / "python")

    def typed(chosen, changes=None, seconds=SECONDS):
        script, python = [BEGIN], []

        def run_python():
            if python:
                path = folder / f"typed-{len(script)}.py"
                path.write_text("".join(python), encoding="utf-8")
                script.append(f"{sys.executable} {path}")
                python.clear()

        for language, text in chosen:
            text = PREPARING.sub("", text).replace("/tmp/", f"{folder}/")
            for before, after in (changes or {}).items():
                assert before in text or any(before in other for _, other in chosen), f"the guide does not say {before!r} any more"
                text = text.replace(before, after)
            if language == "python":
                # Blocks that follow each other are one program to whoever reads them.
                python.append(text)
            else:
                run_python()
                script.append(text)
        run_python()
        path = folder / "typed.sh"
        path.write_text("\n".join(script), encoding="utf-8")
        # Beside the command and the package, what tests bring without installing it.
        python_path = [str(TREE / "python"), *map(str, TREE.glob(".cache/redis-py/lib/python*/site-packages"))]
        environment = {**os.environ, "PATH": f"{release}:{os.environ['PATH']}", "PYTHONPATH": ":".join(python_path),
                       "XDG_RUNTIME_DIR": str(folder)}
        environment.pop("HINTERLAND_SOCKET", None)
        with open(folder / "said", "w+", encoding="utf-8") as said:
            # Into a file: what runs on in the background would keep a pipe open.
            status = subprocess.run(["bash", path], cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, timeout=seconds).returncode
            said.seek(0)
            words = said.read()
        assert status == 0, f"{words}\nof\n{path.read_text(encoding='utf-8')}"
        return words

    return typed


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="no redis-cli (apt-get install redis-tools)")
def test_redis_clients(follow, redis):  # noqa: F811
    assert redis.Redis
    ports = {"6380": str(free_port()), "6381": str(free_port()), "0.0.0.0:": "127.0.0.1:", "--kv-capacity 1G": "--kv-capacity 300M"}
    chosen = blocks("redis.md")
    assert [language for language, _ in chosen] == ["sh", "sh", "python", "sh"]
    words = follow(chosen, ports)
    assert "hello\n" in words and "100000000\n" in words and "PONG\n" in words
    assert re.search(r"^db0:keys=2,", words, re.MULTILINE), words


def test_kv_blocks_from_python(follow, folder):
    chosen = blocks("kv-blocks.md")
    start, *programs = [block for block in chosen if "torch" not in block[1] and "--kv-disk" not in block[1]]
    assert start[0] == "sh" and [language for language, _ in programs] == ["python"] * 4
    words = follow([start, ("sh", "sleep 2\n"), *programs, ("python", "assert hits == [True] * 4 and here == [True] * 8\n")],
                   {"--kv-capacity 1G": f"--kv-capacity 64M --state {folder}/state"})
    assert "[True, True, True, True, True, True, True, True]\n" in words


def test_regions_from_the_command(follow):
    chosen = [block for block in blocks("regions.md") if block[0] == ""]
    assert len(chosen) == 2
    ports = {"7401": str(free_port()), "7402": str(free_port())}
    make, pull = (text for _, text in chosen)
    # Nodes take a moment; people see when they are ready.
    made = make.replace("/b &\n", "/b &\nsleep 2\n").replace("/a &\n", "/a &\nsleep 2\n")
    words = follow([("", made), ("", pull)], ports)
    assert re.search(r"^made counters of 16.0 MiB at 0x", words, re.MULTILINE) and "1 page of counters lies on this node" in words
    # Pages on two nodes are no two copies.
    assert "\npages " in words and "copies" not in words, words


def test_regions_from_python(follow):
    """The two blocks are one program: a part with fewer rights, and a guard."""
    nodes = [block for block in blocks("regions.md") if block[0] == ""][0][1]
    nodes = nodes.replace("/b &\n", "/b &\nsleep 2\n").replace("/a &\n", "/a &\nsleep 2\n")
    programs = [block for block in blocks("regions.md") if block[0] == "python"]
    assert len(programs) == 2
    looks = ("python", "assert pool.read(address, 8) == b'a record'\nprint('written under a lock')\n")
    words = follow([("", nodes), *programs, looks], {"7401": str(free_port()), "7402": str(free_port())})
    assert "written under a lock" in words, words


MOUNTS = pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="nothing can be mounted here")
# Where a guide says `in another terminal`.
UP = ("sh", "hinterland up --capacity 64M --state /tmp/state &\nsleep 2\n")


@MOUNTS
def test_files(follow, folder):
    (folder / "model.gguf").write_bytes(os.urandom(3 << 20))
    [(language, text)] = blocks("files.md")
    assert language == "sh"
    looks = text.replace("umount", "cat /tmp/files/notes.txt; sha256sum model.gguf /tmp/files/old-models/model.gguf\numount")
    words = follow([UP, (language, looks)])
    assert "a word\n" in words
    assert re.search(r"^notes.txt .*sealed", words, re.MULTILINE) and re.search(r"^old-models/model.gguf ", words, re.MULTILINE), words
    digests = re.findall(r"^([0-9a-f]{64}) ", words, re.MULTILINE)
    assert len(digests) == 2 and digests[0] == digests[1], words


@MOUNTS
def test_a_first_pool(follow, folder):
    """On one machine, then on two, which are two nodes of this one here; what reads the model is a program that says whether it is whole."""
    (folder / "model.gguf").write_bytes(os.urandom(5 << 20))
    chosen = blocks("first-pool.md")
    doctor, up, alone, key, big, small, files, copies = chosen
    place = {"hinterland up\n": UP[1].replace("/tmp/", f"{folder}/")}
    words = follow([doctor, up, alone, files], {**READS_SMALL, **place})
    assert re.search(r"^models/small ", words, re.MULTILINE) and "models-again" in words, words
    ports = {"big": free_port(), "small": free_port()}
    nodes = []
    for name, (language, text) in (("big", big), ("small", small)):
        before = f"--listen 0.0.0.0:7401 --advertise {name}.lan:7401"
        assert before in text
        text = text.replace(before, f"--listen 127.0.0.1:{ports[name]} --socket /tmp/{name}.sock --state /tmp/{name}")
        # A node runs on in a terminal of its own.
        nodes.append((language, re.sub(r"^(hinterland node .*)$", r"\1 &\nsleep 2", text, flags=re.MULTILINE)))
    there = ("sh", "export HINTERLAND_SOCKET=/tmp/small.sock\n")
    changes = {"big.lan:7401": f"127.0.0.1:{ports['big']}", "--capacity 48G": "--capacity 64M", "--cache-budget 8G": "--capacity 64M --cache-budget 64M"}
    words = follow([key, there, *nodes, copies], {**READS_LARGE, **changes})
    assert words.count(" ready: ") == 2 and re.search(r"^models/safe: 2 right copies", words, re.MULTILINE), words


@MOUNTS
def test_two_racks(follow, folder):
    """The two hosts are two nodes of this one."""
    doctor, key, first, second, put, verify, read = blocks("two-racks.md")
    nodes = []
    for name, (language, text) in (("first", first), ("second", second)):
        port = free_port()
        before = f"--listen 0.0.0.0:7401 --advertise {name}.lan:7401"
        assert before in text
        text = text.replace(before, f"--listen 127.0.0.1:{port} --socket /tmp/{name}.sock --state /tmp/{name} --kv-capacity 1M")
        # A node runs on in a terminal of its own.
        nodes.append((language, re.sub(r"^(hinterland node .*)$", r"\1 &\nsleep 2", text, flags=re.MULTILINE)))
        if name == "first":
            changes = {"first.lan:7401": f"127.0.0.1:{port}"}
    on = {name: ("sh", f"export HINTERLAND_SOCKET=/tmp/{name}.sock\n") for name in ("first", "second")}
    words = follow([doctor, key, *nodes, on["second"], put, on["first"], verify, on["second"], read], changes)
    assert words.count(" ready: ") == 2 and re.search(r"^try/both: 2 right copies", words, re.MULTILINE), words
    assert "removed try/far" in words and (folder / "both").read_bytes() == (folder / "numbers").read_bytes()


ENGINE = TREE / ".cache/demo-venv"


@pytest.mark.skipif(not (ENGINE / "bin/python").exists() or not (TREE / ".cache/models/smollm2-135m.gguf").exists() or not shutil.which("curl"),
                    reason="no llama.cpp, no model or no curl (hint: ./demo --prepare)")
def test_llama_servers(follow, folder):
    for name in (".cache", "bench"):
        (folder / name).symlink_to(TREE / name)
    install, start, ask, end = blocks("llamacpp.md")
    assert "./demo --prepare" in install[1]
    ports = {"7401": str(free_port()), "8081": str(free_port()), "8082": str(free_port()), "--kv-capacity 1G": "--kv-capacity 300M",
             "sleep 1": "command sleep 1"}
    # People type in a shell where each job can be ended with all that it has started.
    words = follow([("sh", "set -m\n"), start, ask, end], ports)
    (there, text), (restored, same) = re.findall(r"(\d+) of \d+ '(.*)'$", words, re.MULTILINE)
    assert text == same and there == "0" and int(restored) >= 128 and '"restored": 1' in words, words


@pytest.mark.skipif(not FULL, reason="starts two engines (./check --full)")
@pytest.mark.skipif(not (TREE / ".cache/vllm/installed").exists(), reason="vLLM is not installed (bench/vllm/prepare.sh does it)")
@pytest.mark.skipif(not shutil.which("nginx") or not shutil.which("curl"), reason="no nginx or curl (apt-get install nginx curl)")
def test_vllm_engines(follow, folder):
    (folder / ".cache").symlink_to(TREE / ".cache")
    install, start, balance, ask, end = blocks("vllm.md")
    assert "bench/vllm/prepare.sh" in install[1]
    ports = {port: str(free_port()) for port in ("7401", "8000", "8001", "8002")}
    # In a shell without a terminal each job is to be ended with all that it has started.
    words = follow([("sh", "set -m\n"), start, balance, ask, end], {**ports, "; do sleep 1; done": "; do command sleep 1; done"}, seconds=900)
    answers = [json.loads(line) for line in words.splitlines() if line.startswith('{"id"')]
    assert len(answers) == 3 and len({answer["choices"][0]["text"] for answer in answers}) == 1, words
    cached = [(answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0 for answer in answers]
    assert cached[0] == 0 and cached[1] == 1024, words


def test_mooncakes_store(follow, folder):
    begin, *_, store = blocks("sglang.md")
    words = follow([begin, ("sh", "sleep 2\n"), store], {"--kv-capacity 8G": f"--kv-capacity 64M --state {folder}/state"})
    assert "\n0 b'a value'\n" in words, words


@MOUNTS
def test_the_readme(follow, folder):
    """The part that starts two racks by hand."""
    (folder / "model.gguf").write_bytes(os.urandom(5 << 20))
    text = (TREE / "README.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```sh\n(cargo build.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ports = {"7401": str(free_port()), "7402": str(free_port()), "hinterland top ": "timeout 2 hinterland top || [ $? = 124 ] "}
    block = block.replace(".sock &\n", ".sock --capacity 64M &\nsleep 2\n").replace("7401 &\n", "7401 --capacity 64M &\nsleep 2\n")
    words = follow([("sh", block)], ports)
    assert words.count(" ready: ") == 2 and "models/small" in words and ('b"' in words or "b'" in words), words
