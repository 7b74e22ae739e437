"""Guides, followed literally: what they tell people to type is typed, in the order in which it stands there.

Only places differ: files below /tmp lie in the test's folder, ports are free ones, and what was built is not built again.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from conftest import TREE
from loopback import free_port
from test_resp import redis  # noqa: F401

SECONDS = 120
# What a guide has people install or build before.
PREPARING = re.compile(r"^(cargo build|python/build\.sh|sudo |export PATH=).*$", re.MULTILINE)

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


def blocks(name):
    """The language and the text of each block of a guide."""
    text = (TREE / "docs/guides" / name).read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def follow(binary, folder, hinterland):
    """A function that types blocks of a guide in one shell, and ends what they have started; it gives what was printed."""
    release = folder / "target/release"
    release.mkdir(parents=True)
    for built in ("hinterland", "libhinterland_preload.so"):
        if (binary.parent / built).exists():
            (release / built).symlink_to(binary.parent / built)

    def typed(chosen, changes=None):
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
            status = subprocess.run(["bash", path], cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, timeout=SECONDS).returncode
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


def test_kv_blocks_from_python(follow):
    chosen = blocks("kv-blocks.md")
    start, *programs = [block for block in chosen if "torch" not in block[1] and "--kv-disk" not in block[1]]
    assert start[0] == "sh" and [language for language, _ in programs] == ["python"] * 4
    words = follow([start, ("sh", "sleep 2\n"), *programs, ("python", "assert hits == [True] * 4 and here == [True] * 8\n")],
                   {"--kv-capacity 1G": "--kv-capacity 64M"})
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


@pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="nothing can be mounted here")
def test_files(follow, folder):
    (folder / "model.gguf").write_bytes(os.urandom(3 << 20))
    (folder / "notes.txt").write_text("a line of letters\n", encoding="utf-8")
    [(language, text)] = blocks("files.md")
    assert language == "sh"
    begin = ("sh", "hinterland up --capacity 64M --state /tmp/state &\nsleep 2\n")
    waits = text.replace("--writable &\n", "--writable &\nsleep 1\nmkdir -p /tmp/files/models\ncp notes.txt /tmp/files/\n")
    looks = waits.replace("umount", "cat /tmp/files/notes.txt; sha256sum model.gguf /tmp/files/old-models/model.gguf\numount")
    words = follow([begin, (language, looks)])
    assert "b line of letters" in words
    digests = re.findall(r"^([0-9a-f]{64}) ", words, re.MULTILINE)
    assert len(digests) == 2 and digests[0] == digests[1], words
