"""Unmodified programs under `hinterland run`: every way to read a file gives the bytes that were put."""

import hashlib
import pathlib
import signal
import subprocess
import sys

import pytest

MEBIBYTE = 1 << 20
MAPPED = pathlib.Path(__file__).resolve().parent / "programs/mapped.py"
SIZE = 21 * MEBIBYTE + 777


@pytest.fixture(params=["in the rack", "across racks", "across racks, small budget"])
def placed(request, two_racks, make_file):
    """A node, the options of run, and the sha256 of the object `models/data` as that node reaches it."""
    a, b = two_racks
    source = make_file("source", SIZE)
    rack = "a" if request.param == "in the rack" else "b"
    a.run("put", source, "--name", "models/data", "--rack", rack)
    options = ["--budget", "8M"] if "budget" in request.param else []
    return a, options, hashlib.sha256(source.read_bytes()).hexdigest()


def run(placed, *program, **options):
    """Runs a program that finds the object at /pool/models/data."""
    node, run_options, _ = placed
    return node.run("run", *run_options, "--", *program, **options)


@pytest.mark.parametrize("program", [
    ["sha256sum", "/pool/models/data"],
    ["sh", "-c", "cp /pool/models/data $TMPDIR/copy && sha256sum < $TMPDIR/copy"],
    ["sh", "-c", "dd if=/pool/models/data bs=1000003 status=none | sha256sum"],
    ["sh", "-c", "cat /pool/models/data | sha256sum"],
    ["sh", "-c", "tail -c +5000001 /pool/models/data > $TMPDIR/b; head -c 5000000 /pool/models/data | cat - $TMPDIR/b | sha256sum"],
], ids=["sha256sum", "cp", "dd", "cat", "head and tail"])
def test_plain_reads(placed, folder, monkeypatch, program):
    monkeypatch.setenv("TMPDIR", str(folder))
    assert run(placed, *program).stdout.split()[0] == placed[2]


@pytest.mark.parametrize("way", [
    "whole", "backwards", "threads", "fork", "system_calls", "advice", "lock", "partial_unmap", "offset", "private",
    "shared_write", "twice", "numpy_memmap",
])
def test_mapped_reads(placed, way):
    if way == "numpy_memmap":
        pytest.importorskip("numpy")
    outcome = run(placed, sys.executable, MAPPED, way, "/pool/models/data")
    assert outcome.stdout.strip() == placed[2], outcome.stderr


def test_without_the_library_a_mapping_still_reads_right(placed):
    node, options, expected = placed
    outcome = node.run("run", "--no-preload", *options, "--", sys.executable, MAPPED, "whole", "/pool/models/data")
    assert outcome.stdout.strip() == expected


def test_safetensors_loads(two_racks, folder):
    numpy = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    a, _ = two_racks
    tensors = {f"layer.{n}": numpy.arange(300_000, dtype=numpy.float32) + n for n in range(8)}
    safetensors.save_file(tensors, folder / "model.safetensors")
    a.run("put", folder / "model.safetensors", "--name", "model.safetensors", "--rack", "b")
    program = ("import safetensors.numpy, sys\n"
               "tensors = safetensors.numpy.load_file('/pool/model.safetensors')\n"
               "print(sum(float(t[-1]) for t in tensors.values()))")
    outcome = a.run("run", "--", sys.executable, "-c", program)
    assert float(outcome.stdout) == sum(float(tensor[-1]) for tensor in tensors.values())


def test_names_are_folders_and_files(two_racks, make_file):
    a, _ = two_racks
    for name in ["models/one", "models/deep/two", "three"]:
        a.run("put", make_file("source", 1000), "--name", name)
    listing = a.run("run", "--", "find", "/pool", "-type", "f").stdout.split()
    assert sorted(listing) == ["/pool/models/deep/two", "/pool/models/one", "/pool/three"]


def test_nothing_can_be_written_into_the_mount(node, make_file):
    node.run("put", make_file("source", 1000), "--name", "one")
    for program in ["echo x > /pool/new", "echo x >> /pool/one", "rm /pool/one", "mkdir /pool/folder"]:
        assert node.run("run", "--", "sh", "-c", program, check=False).returncode != 0, program
    assert [entry["name"] for entry in node.json("ls")] == ["one"]


def test_the_status_is_the_programs(node):
    assert node.run("run", "--", "sh", "-c", "exit 7", check=False).returncode == 7
    assert node.run("run", "--", "sh", "-c", "kill -TERM $$", check=False).returncode == 128 + signal.SIGTERM
    assert node.run("run", "--", "/nonexistent", check=False).returncode == 127


def test_the_program_has_our_input_output_and_arguments(node):
    outcome = node.run("run", "--", "sh", "-c", 'cat; echo "$1" >&2', "sh", "--json", input="words\n")
    assert (outcome.stdout, outcome.stderr.strip().splitlines()[-1]) == ("words\n", "--json")


def test_an_interrupt_reaches_the_program(node):
    program = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    process = subprocess.Popen(node.command("run", "--", "sh", "-c", program), stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == "caught\n"
    assert process.returncode == 5


def test_the_mount_is_private_and_goes_with_the_program(node, make_file):
    node.run("put", make_file("source", 1000), "--name", "one")
    node.run("run", "--", "test", "-e", "/pool/one")
    assert not pathlib.Path("/pool/one").exists()
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        assert "/pool " not in mounts.read()


def test_room_for_our_descriptors_is_made_before_the_program_has_threads(node):
    # With threads the kernel waits for every processor when the table grows, some 15 ms at the first mapping.
    look = "print(next(line for line in open('/proc/self/status') if line.startswith('FDSize')).split()[1])"
    assert int(node.run("run", "--", sys.executable, "-c", look).stdout) > 960
    assert int(node.run("run", "--no-preload", "--", sys.executable, "-c", look).stdout) < 960
