"""Nodes under mutual TLS: the guide, who is refused, and certificates that are replaced while nodes run."""

import os
import re
import shutil
import subprocess
import time

import pytest
from guides import blocks
from loopback import free_port
from test_guides import follow  # noqa: F401

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl (apt-get install openssl)")
SECONDS = 60


def make_authority(folder):
    """Types what the guide has people type for an authority and two hosts."""
    folder.mkdir(parents=True, exist_ok=True)
    for _, text in blocks("tls.md", "An authority, and a certificate for each host"):
        subprocess.run(["bash", "-euc", text], cwd=folder, check=True, capture_output=True, timeout=SECONDS)
    return folder


@pytest.fixture
def pool(binary, folder):
    """A function that starts a node with these words; what it printed is in a file of its name."""
    running = []

    def start(name, *words, ready=True):
        said = open(folder / f"{name}.said", "w+", encoding="utf-8")
        command = [binary, "--socket", folder / f"{name}.sock", "node", "--name", name, "--state", folder / name, "--capacity", "64M", "--cache-budget", "32M",
                   "--kv-capacity", "4M", "--backing", "base", *words]
        process = subprocess.Popen(list(map(str, command)), stdout=said, stderr=subprocess.STDOUT)
        running.append(process)
        deadline = time.monotonic() + SECONDS
        while ready and " ready: " not in (folder / f"{name}.said").read_text(encoding="utf-8"):
            assert process.poll() is None and time.monotonic() < deadline, (folder / f"{name}.said").read_text(encoding="utf-8")
            time.sleep(0.05)
        return process

    yield start
    for process in reversed(running):
        process.terminate()
        process.wait(SECONDS)


def run(binary, folder, name, *words, tls=None, check=True):
    environment = {key: value for key, value in os.environ.items() if key != "HINTERLAND_TLS"}
    if tls:
        environment["HINTERLAND_TLS"] = str(tls)
    command = list(map(str, [binary, "--socket", folder / f"{name}.sock", *words]))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert not check or done.returncode == 0, done.stderr
    return done


def test_the_guide(follow):  # noqa: F811
    ports = {"7401": str(free_port()), "7402": str(free_port())}
    chosen = [block for block in blocks("tls.md") if block[0] == "sh"]
    assert len(chosen) == 5
    further = """
sleep 2
head -c 3000000 /dev/urandom > model
hinterland --socket /tmp/hl/a.sock put model --name model --rack b
hinterland --socket /tmp/hl/a.sock get model copy
cmp model copy
hinterland --socket /tmp/hl/b.sock stat model
"""
    words = follow([*chosen[:3], ("sh", "sleep 2\n"), *chosen[3:], ("sh", further)], ports)
    assert re.search(r"^put model: .* in rack b$", words, re.MULTILINE), words


def test_who_has_no_certificate_of_the_authority_is_refused_and_told_why(binary, folder, pool):
    ours, theirs = make_authority(folder / "ours"), make_authority(folder / "theirs")
    port = free_port()
    address = f"127.0.0.1:{port}"
    pool("a", "--listen", address, "--tls", ours / "a")
    pool("b", "--join", address, "--tls", ours / "b")
    for name, words, said in [
        ("plain", [], "hint: give --tls, or HINTERLAND_TLS to a program"),
        ("foreign", ["--tls", theirs / "b"], "the other side's certificate is not of this side's ca.crt"),
        ("missing", ["--tls", folder / "nowhere"], "ca.crt: "),
    ]:
        process = pool(name, "--join", address, *words, ready=False)
        assert process.wait(SECONDS) != 0
        text = (folder / f"{name}.said").read_text(encoding="utf-8")
        assert said in text and "hint: " in text, text
    (folder / "model").write_bytes(os.urandom(3_000_000))
    put = ["put", folder / "model", "--name", "model", "--rack", "b"]
    refused = run(binary, folder, "a", *put, check=False)
    assert refused.returncode != 0 and "HINTERLAND_TLS" in refused.stderr, refused.stderr
    (ours / "a/tls.key").chmod(0o644)
    warned = run(binary, folder, "a", *put, tls=ours / "a").stderr
    assert "all users of this host can read the key in" in warned and "chmod 600" in warned, warned
    (ours / "a/tls.key").chmod(0o600)
    run(binary, folder, "a", "get", "model", folder / "copy", tls=ours / "a")
    assert (folder / "copy").read_bytes() == (folder / "model").read_bytes()
    # Mapped through the own node's cache, for which the program needs no certificate.
    mapped = run(binary, folder, "a", "run", "--at", folder / "pool", "--", "cmp", folder / "model", folder / "pool/model", check=False)
    assert mapped.returncode == 0, mapped.stderr
    members = run(binary, folder, "a", "status").stdout
    assert " b" in members, members


def test_certificates_that_are_replaced_are_used_and_bad_ones_are_said(binary, folder, pool):
    first, second = make_authority(folder / "first"), make_authority(folder / "second")
    port = free_port()
    address = f"127.0.0.1:{port}"
    pool("a", "--listen", address, "--tls", first / "a", "--lease", "2")
    # Both authorities are believed first, then hosts get certificates of the new one.
    both = (first / "ca.crt").read_text(encoding="utf-8") + (second / "ca.crt").read_text(encoding="utf-8")
    (first / "a/ca.crt").write_text(both, encoding="utf-8")
    (second / "b/ca.crt").write_text(both, encoding="utf-8")
    time.sleep(1.5)
    pool("b", "--join", address, "--tls", second / "b", "--lease", "2")
    (first / "a/tls.crt").write_text("nothing", encoding="utf-8")
    deadline = time.monotonic() + SECONDS
    while "the certificates of before are used on" not in run(binary, folder, "a", "doctor", check=False).stdout + (folder / "a.said").read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    (folder / "model").write_bytes(b"bytes")
    run(binary, folder, "b", "put", folder / "model", "--name", "model", "--rack", "a", tls=second / "b")
    run(binary, folder, "b", "get", "model", folder / "copy", tls=second / "b")
    assert (folder / "copy").read_bytes() == b"bytes"
