"""Machines that lack something: each lack is said with the command that mends it, and nothing is lost or hangs."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

ROOT = os.geteuid() == 0
NOBODY = 65534
need_root = pytest.mark.skipif(not ROOT, reason="only root can take things away from a process")


@need_root
def test_a_full_disk_under_the_state_refuses_and_recovers(start_node, folder, make_file):
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", disk], check=True)
    node = start_node("a", state=disk / "state", options=["--capacity", "64M"])
    source = make_file("source", 1000)
    node.run("put", source, "--name", "before")
    with open(disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError):
        while True:
            filler.write(bytes(4096))
    for number in range(3):
        outcome = node.run("put", source, "--name", f"refused{number}", check=False)
        assert outcome.returncode == 1 and "hint:" in outcome.stderr and "full" in outcome.stderr
    (disk / "filler").unlink()
    node.run("put", source, "--name", "after")
    assert [entry["name"] for entry in node.json("ls")] == ["after", "before"]
    node.kill()
    node.start()
    assert [entry["name"] for entry in node.json("ls")] == ["after", "before"]


def test_few_descriptors_refuse_clients_and_keep_the_node(start_node, make_file):
    node = start_node("a", wrapper=["prlimit", "--nofile=64"], options=["--capacity", "64M"])
    programs = [subprocess.Popen(node.command("put", "-", "--name", f"o{number}"), stdin=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for number in range(80)]
    words = [program.communicate(timeout=120)[1] for program in programs]
    failed = [text for program, text in zip(programs, words) if program.returncode != 0]
    assert all("hint:" in text for text in failed), failed
    assert node.process.poll() is None
    node.run("put", make_file("source", 1000), "--name", "last")
    assert {entry["bytes"] for entry in node.json("ls")} <= {0, 1000}


@need_root
def test_without_fuse_the_hint_says_so(node):
    hidden = ["unshare", "--mount", "sh", "-c", 'mount --bind /dev/null /dev/fuse && exec "$@"', "sh"]
    (node.folder / "pool").mkdir()
    for words in (["mount", node.folder / "pool"], ["run", "--", "true"]):
        outcome = subprocess.run([*hidden, *node.command(*words)], capture_output=True, text=True, timeout=60)
        assert outcome.returncode == 1 and "mounting on" in outcome.stderr and "hint:" in outcome.stderr, outcome.stderr


@need_root
def test_somebody_without_privileges_can_run_a_node_and_put_and_get(binary, folder, make_file):
    folder.chmod(0o777)
    source = make_file("source", 3_000_000)
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    if subprocess.run([*command, str(binary), "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("the binary lies where only its owner can read it")
    log = open(folder / "log", "wb")
    process = subprocess.Popen([*command, str(binary), "node", "--name", "n", "--socket", folder / "n.sock", "--state",
                                folder / "n", "--capacity", "64M"], stdout=subprocess.PIPE, stderr=log)
    try:
        assert b"ready" in process.stdout.readline(), (folder / "log").read_text()
        tool = [*command, str(binary), "--socket", folder / "n.sock"]
        subprocess.run([*tool, "put", source, "--name", "x"], check=True, timeout=60, capture_output=True)
        back = subprocess.run([*tool, "get", "x", "-"], check=True, timeout=60, capture_output=True).stdout
        assert back == source.read_bytes()
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()
        log.close()
    words = (folder / "log").read_text()
    assert "may not mount huge pages" in words and "sysctl" not in words and len(words.splitlines()[0]) < 260, words


@pytest.mark.parametrize("kind", ["base", "transparent", "hugetlb"])
def test_every_kind_of_memory_serves_both_racks(start_node, make_file, folder, kind):
    options = ["--capacity", "64M", "--backing", kind]
    try:
        b = start_node("b", options=options)
    except AssertionError as error:
        assert "hint:" in str(error), error
        pytest.skip(f"this machine has no {kind} memory, and says so")
    a = start_node("a", join=b.address, options=options)
    source = make_file("source", 9_000_001)
    b.run("put", source, "--name", "x")
    for node in (a, b):
        outcome = node.run("run", "--", "sha256sum", "/pool/x")
        expected = subprocess.run(["sha256sum", source], capture_output=True, text=True, check=True).stdout
        assert outcome.stdout.split()[0] == expected.split()[0]


def test_the_state_may_lie_in_shared_memory(start_node, make_file):
    """There lies what outlives a node, too: huge pages of the node take no mark of that."""
    state = pathlib.Path(tempfile.mkdtemp(prefix="hl-state-", dir="/dev/shm"))
    try:
        node = start_node("a", state=state, options=["--capacity", "64M"])
        source = make_file("source", 3_000_000)
        node.run("put", source, "--name", "x")
        node.kill()
        node.start()
        assert node.run("get", "x", "-", text=False).stdout == source.read_bytes()
        node.stop()
    finally:
        for mounted in state.glob("memory-*/hugetlb"):
            subprocess.run(["umount", mounted], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(state)


def test_a_sealed_object_lies_on_the_disk_that_is_memory(start_node, make_file, folder):
    memory = folder / "memory"
    memory.mkdir()
    kind = subprocess.run(["stat", "-f", "-c", "%T", memory], capture_output=True, text=True).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{folder} lies in memory")
    node = start_node("a", options=["--capacity", "64M", "--backing", memory])
    node.run("put", make_file("source", 9_000_001), "--name", "x")
    path, = memory.rglob("*.bytes")
    assert unwritten_pages(path) == 0
    # The kernel may write pages at any moment by itself, but not each time before one can look.
    content = path.read_bytes()
    assert any(path.write_bytes(content) and unwritten_pages(path) for _ in range(20)), "the file system does not say"


def unwritten_pages(path):
    """Pages of a file that are only in the page cache; the test is skipped where the kernel cannot say."""
    cachestat = 451
    whole, counts = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    with open(path, "rb") as file:
        if ctypes.CDLL(None).syscall(cachestat, file.fileno(), whole, counts, 0) != 0:
            pytest.skip("the kernel has no cachestat (Linux 6.5)")
    _, dirty, writeback, _, _ = counts
    return dirty + writeback


def test_memory_comes_from_the_numa_nodes_that_are_named(start_node, make_file, folder):
    node = start_node("a", options=["--capacity", "64M", "--numa", "0"])
    node.run("put", make_file("source", 9_000_001), "--name", "x")
    assert "of NUMA nodes 0" in node.json("status")["backing"] + node.words()
    with pytest.raises(AssertionError, match="node 1000 has no memory.*numactl"):
        start_node("b", options=["--capacity", "64M", "--numa", "1000"])
    outcome = node.run("up", "--numa", "some", check=False)
    assert outcome.returncode == 2 and "names no NUMA nodes" in outcome.stderr


def test_a_device_is_no_folder_of_memory_and_it_is_said_how_it_is_used(start_node):
    with pytest.raises(AssertionError, match="is a device and no folder.*--numa"):
        start_node("a", options=["--capacity", "64M", "--backing", "/dev/zero"])


def test_nodes_with_one_folder_for_memory_keep_their_own_objects(start_node, make_file, folder):
    """As a folder of huge pages that several containers have: each node removes files of memory that it does not know."""
    memory = folder / "memory"
    memory.mkdir()
    options = ["--capacity", "64M", "--backing", memory]
    source = make_file("source", 3_000_001)
    one = start_node("one", options=options)
    one.run("put", source, "--name", "x")
    other = start_node("other", options=options)
    other.run("put", make_file("another", 3_000_001, seed=2), "--name", "x")
    one.stop()
    one.start()
    for node in (one, other):
        assert "1 right copy" in node.run("verify", "x").stdout
    one.run("get", "x", folder / "got")
    assert (folder / "got").read_bytes() == source.read_bytes()
    for node in (one, other):
        node.run("rm", "x")
        node.stop()
    assert list(memory.iterdir()) == [], "nothing is left of nodes without objects"
