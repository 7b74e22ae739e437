"""Far memory under what programs do to their memory: it works, or they are told, and no byte is wrong."""

import os
import pathlib
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys

import pytest

from faults import FULL, wait_until
from leavings import descriptors, marked, memory_bytes, processes, shared_files

TREE = pathlib.Path(__file__).resolve().parent.parent
MEBIBYTE = 1 << 20
SECONDS_MAX = 120
# What a machine that does other things, too, may have less of after many programs: of memory that is free or can be freed, and of shared memory.
AVAILABLE_TOLERANCE_BYTES = 512 * MEBIBYTE
SHARED_TOLERANCE_BYTES = 64 * MEBIBYTE

KERNEL = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="far memory follows forks, which needs CAP_SYS_PTRACE"),
    pytest.mark.skipif(KERNEL < (6, 8), reason="far memory moves pages, which needs Linux 6.8"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="far memory runs on x86-64 only"),
]


@pytest.fixture(scope="module", autouse=True)
def library(binary):
    """The preloaded library beside the binary."""
    path = binary.parent / "libhinterland_preload.so"
    if not path.exists():
        pytest.fail(f"there is no {path} (hint: cargo build -p hinterland-preload)")
    return path


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """A program that does one thing to its far memory."""
    program = tmp_path_factory.mktemp("far") / "far_calls"
    subprocess.run(["cc", "-O1", "-o", program, TREE / "tests/programs/far_calls.c", "-lpthread"], check=True)
    return program


def far(binary, options, program, **settings):
    """Runs a program with far memory and returns what became of it."""
    command = [binary, "run", *options, "--", *program]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False, **settings)


def resident_bytes(text):
    """The most that the program had resident, as the end of the run says."""
    number, unit = re.search(r"at most ([0-9.]+) (KiB|MiB|GiB) resident", text).groups()
    return float(number) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]


def is_right(ended):
    """Whether the program found every byte as it should be."""
    if ended.stdout.startswith("skipped"):
        pytest.skip(ended.stdout)
    return ended.returncode == 0 and ended.stdout == "right\n"


@pytest.mark.parametrize(
    "kind",
    [
        *["advice", "forks", "fixed", "locks", "uring", "splices", "signals", "process_memory", "limits", "arenas", "own_faults", "own_faults_late"],
        *["closes", "stops", "orphans", "crowds"],
    ],
)
def test_memory_is_as_without_us(binary, calls, folder, kind):
    ended = far(binary, ["--local", "96M"], [calls, kind, folder / "file"])
    assert is_right(ended), ended.stderr


@pytest.mark.parametrize("kind", ["forks", "crowds"])
def test_a_program_that_is_the_first_process_of_a_pid_namespace_has_its_bytes(binary, calls, kind):
    ended = far(binary, ["--local", "96M"], ["unshare", "--fork", "--pid", calls, kind])
    assert is_right(ended), ended.stderr


def test_a_program_begun_in_a_pid_namespace_of_its_own_has_its_bytes(binary, calls):
    ended = far(binary, ["--local", "96M"], [calls, "namespaces"])
    # Both programs say it.
    assert ended.returncode == 0 and ended.stdout == "right\nright\n", ended.stderr


def test_a_run_whose_proc_shows_other_processes_is_refused(binary, calls):
    command = ["unshare", "--fork", "--pid", binary, "run", "--local", "96M", "--", calls, "nothing"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ended.returncode != 0 and "/proc" in ended.stderr and "hint:" in ended.stderr, ended.stderr


def test_a_run_ends_while_a_process_of_it_is_stopped(binary, calls):
    ended = far(binary, ["--local", "96M"], [calls, "stays_stopped"])
    number, said = ended.stdout.split("\n", 1)
    if is_process(number, calls):
        os.kill(int(number), signal.SIGKILL)
    assert ended.returncode == 0 and said == "right\n", ended.stderr


def is_process(number, program):
    """Whether a process with this number runs the program."""
    try:
        return pathlib.Path(f"/proc/{number}/exe").resolve() == pathlib.Path(program).resolve()
    except OSError:
        return False


def test_buffers_of_direct_reads_and_writes_may_be_far(binary, calls):
    # A folder of a disk: a file system in memory may not know O_DIRECT.
    path = TREE / "target" / f"far-direct-{os.getpid()}"
    try:
        ended = far(binary, ["--local", "96M"], [calls, "direct", path])
    finally:
        path.unlink(missing_ok=True)
    assert is_right(ended), ended.stderr


def test_a_reservation_of_many_gibibytes_costs_what_is_used_of_it(binary, calls):
    """4 TiB of addresses, 192 MiB of which are used."""
    ended = far(binary, ["--local", "96M"], [calls, "reserves"])
    assert is_right(ended) and "GiB far" not in ended.stderr, ended.stderr


def test_who_locks_all_memory_gets_it_and_is_told(binary, calls):
    ended = far(binary, ["--local", "96M"], [calls, "lock_all"])
    assert is_right(ended) and "of it alone left the budget no room: memory that is shared, locked" in ended.stderr, ended.stderr


def test_a_working_set_far_larger_than_the_budget_makes_progress(binary, calls):
    ended = far(binary, ["--local", "64M", "--far-unit", "2M"], [calls, "tiny"])
    assert is_right(ended), ended.stderr


def test_a_core_dump_is_said_to_lack_what_was_far(binary, calls, folder):
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text(encoding="ascii").strip()
    if "|" in pattern or "/" in pattern:
        pytest.skip("core dumps go elsewhere on this machine")

    def allow():
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    ended = far(binary, ["--local", "96M"], [calls, "aborts"], cwd=folder, preexec_fn=allow)
    assert ended.returncode == 128 + signal.SIGABRT
    assert "core dump has zeros" in ended.stderr and "hint:" in ended.stderr, ended.stderr
    assert any("core" in path.name for path in folder.iterdir())


def test_another_process_reads_the_bytes_or_an_error(binary, calls):
    """What debuggers use: a far page is an error to them and never other bytes, and the program goes on."""
    command = [binary, "run", "--local", "96M", "--", calls, "waits"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        address, expected = map(int, running.stdout.readline().split())
        (program,) = children(running.pid)
        with open(f"/proc/{program}/mem", "rb", buffering=0) as memory:
            try:
                found = os.pread(memory.fileno(), 8, address)
                assert int.from_bytes(found, "little") == expected
            except OSError as error:
                assert error.errno == 5
        if shutil.which("gdb"):
            said = subprocess.run(
                ["gdb", "--batch", "-nx", "-p", str(program), "-ex", f"x/gx {address}"], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
            )
            text = said.stdout + said.stderr
            # A machine may forbid to attach at all.
            assert f"0x{expected:016x}" in text or "Cannot access memory" in text or "ptrace" in text, text
        said, told = running.communicate("x", timeout=SECONDS_MAX)
    assert running.returncode == 0 and said == "right\n", told


def children(process):
    """The children of a process."""
    return [
        int(child)
        for task in pathlib.Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text(encoding="utf-8").split()
    ]


def test_programs_that_a_library_cannot_help_are_refused_before_they_start(binary, folder):
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not pathlib.Path(go).exists() or not (FULL or (TREE / ".cache/go-build").exists()):
        pytest.skip("go is not installed, or has built nothing here yet and HINTERLAND_FULL is not set")
    (folder / "go.mod").write_text("module farprogram\n\ngo 1.20\n", encoding="utf-8")
    (folder / "main.go").write_text('package main\n\nfunc main() { println("started") }\n', encoding="utf-8")
    environment = {**os.environ, "GOCACHE": str(TREE / ".cache/go-build"), "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    subprocess.run([go, "build", "-buildmode=pie", "-o", "pie", "main.go"], cwd=folder, env=environment, check=True, timeout=SECONDS_MAX)
    script = folder / "script"
    script.write_text(f"#!{folder}/pie\n", encoding="utf-8")
    script.chmod(0o755)
    for program in (folder / "pie", script):
        ended = far(binary, ["--local", "1G"], [program])
        assert ended.returncode != 0 and "started" not in ended.stderr, ended.stderr
        assert "asks the kernel for memory itself" in ended.stderr and "hint:" in ended.stderr


def test_a_program_that_is_not_there_is_told_of_and_nothing_else(binary):
    ended = far(binary, ["--local", "1G"], ["/nonexistent/program"])
    assert ended.returncode == 127 and "there is no program" in ended.stderr, ended.stderr
    assert "far memory" not in ended.stderr


JAVA = """
public class Far {
    public static void main(String[] words) {
        long[][] parts = new long[50][];
        for (int i = 0; i < parts.length; i++) {
            parts[i] = new long[4 << 17];
            for (int j = 0; j < parts[i].length; j++) parts[i][j] = i * 1000003L ^ j;
        }
        for (int round = 0; round < 2; round++)
            for (int i = 0; i < parts.length; i++) {
                for (int j = 0; j < parts[i].length; j++)
                    if (parts[i][j] != (i * 1000003L ^ j)) throw new RuntimeException("WRONG");
                if (i % 2 == round) parts[i] = parts[i].clone();
            }
        System.gc();
        System.out.println("right");
    }
}
"""


@pytest.mark.parametrize("collector", ["G1", "Serial"] if FULL else ["G1"])
def test_java_has_a_heap_larger_than_the_budget(binary, folder, collector):
    if not shutil.which("java") or not shutil.which("javac"):
        pytest.skip("java is not installed")
    (folder / "Far.java").write_text(JAVA, encoding="utf-8")
    subprocess.run(["javac", "-d", folder, folder / "Far.java"], check=True, timeout=SECONDS_MAX)
    ended = far(binary, ["--local", "160M"], ["java", "-Xms300m", "-Xmx400m", f"-XX:+Use{collector}GC", "-cp", folder, "Far"])
    assert is_right(ended), ended.stderr
    assert resident_bytes(ended.stderr) <= 180 * MEBIBYTE, ended.stderr


NODE = """
const parts = [], objects = [];
for (let i = 0; i < 40; i++) {
    const part = new Float64Array(4 << 17);
    for (let j = 0; j < part.length; j++) part[j] = i * 1000003 + j;
    parts.push(part);
}
for (let i = 0; i < 300000; i++) objects.push({ number: i, text: "n" + i });
for (let round = 0; round < 2; round++)
    parts.forEach((part, i) => part.forEach((value, j) => { if (value !== i * 1000003 + j) throw "WRONG"; }));
objects.forEach((one, i) => { if (one.number !== i || one.text !== "n" + i) throw "WRONG"; });
console.log("right");
"""


def test_node_js_has_more_memory_than_the_budget(binary):
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    ended = far(binary, ["--local", "160M"], ["node", "-e", NODE])
    assert is_right(ended), ended.stderr


def test_a_killed_program_leaves_nothing(binary, calls, folder):
    """No process, no file and no descriptor of a back end is there once the run has ended."""
    command = [binary, "run", "--local", "96M", "--far", f"ssd:{folder}@1G", "--", calls, "waits"]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as running:
        running.stdout.readline()
        (program,) = children(running.pid)
        os.kill(program, signal.SIGKILL)
        running.communicate(timeout=SECONDS_MAX)
    assert running.returncode == 128 + signal.SIGKILL
    assert not pathlib.Path(f"/proc/{program}").exists() and not list(folder.iterdir())


# Its child says who it is as the run ends, with its memory far.
KILLED_AFTER_A_FORK = """
import os, signal, time
memory = os.urandom(1 << 20) * 90
parent = os.getpid()
if os.fork():
    os.kill(parent, signal.SIGKILL)
while os.getppid() == parent:
    time.sleep(0.001)
"""

# Its parent ends the supervisor as the child takes its first steps.
SUPERVISOR_KILLED_AFTER_A_FORK = """
import os, random, signal, time
memory = os.urandom(1 << 20) * 90
supervisor, pause = os.getppid(), random.random() * 0.004
if os.fork():
    time.sleep(pause)
    os.kill(supervisor, signal.SIGKILL)
while True:
    time.sleep(0.001)
"""


@pytest.mark.parametrize(
    ("program", "code"),
    [(KILLED_AFTER_A_FORK, 128 + signal.SIGKILL), (SUPERVISOR_KILLED_AFTER_A_FORK, -signal.SIGKILL)],
    ids=["program", "supervisor"],
)
def test_a_child_that_was_forked_as_something_was_killed_ends_too(binary, folder, program, code):
    """It must not hold what its faults wait for before it has the thread that sees the supervisor's end: some waited for ever."""
    environment, mark = marked(TMPDIR=str(folder))
    command = [binary, "run", "--local", "64M", "--far", "lz4", "--", sys.executable, "-c", program]
    for _ in range(20):
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, timeout=SECONDS_MAX)
        assert ended.returncode == code
    wait_until(lambda: not processes(mark), why=lambda: f"processes are left: {processes(mark)}")


@pytest.mark.alone
def test_many_programs_one_after_the_other_leave_nothing(node, binary, calls, folder):
    """Folders, processes, what the pool lends and the memory of this machine are as before, whether the program ends well, badly or by force."""
    temporary = folder / "temporary"
    temporary.mkdir()
    environment, mark = marked(TMPDIR=str(temporary))
    program = [sys.executable, "-c", "b = bytearray(90 << 20)"]
    node.run("run", "--local", "64M", "--far", "pool", "--", *program)
    files, opened = shared_files(), descriptors(node.process.pid)
    available, shared = memory_bytes("MemAvailable"), memory_bytes("Shmem")
    programs = [["true"], ["false"], ["sh", "-c", "kill -9 $$"], ["/nonexistent/program"], [calls, "nothing"], program, [sys.executable, "-c", KILLED]]
    for turn in range(1000 if FULL else 50):
        far = "pool" if turn % 2 else "lz4"
        ended = node.run("run", "--local", "64M", "--far", far, "--", *programs[turn % len(programs)], check=False, env=environment)
        assert ended.returncode in (0, 1, 2, 127, 128 + signal.SIGKILL), ended.stderr
    wait_until(lambda: not processes(mark), why=lambda: f"processes are left: {processes(mark)}")
    assert not list(temporary.iterdir())
    assert not [line for line in local_sockets() if "far.sock" in line and str(temporary) in line]
    assert shared_files() <= files
    wait_until(lambda: not any(member["used_bytes"] for member in node.json("status")["members"]), why="far memory stays in the pool")
    is_as_before = lambda: all(count <= opened[kind] for kind, count in descriptors(node.process.pid).items())
    wait_until(is_as_before, why=lambda: f"the node has {descriptors(node.process.pid)}, and had {opened}")
    wait_until(lambda: memory_bytes("Shmem") <= shared + SHARED_TOLERANCE_BYTES, why="shared memory is left")
    wait_until(lambda: memory_bytes("MemAvailable") >= available - AVAILABLE_TOLERANCE_BYTES, why="memory is missing")


# Has more than its budget, so that some is far when it is killed.
KILLED = """
import os, signal
memory = os.urandom(1 << 20) * 90
os.kill(os.getpid(), signal.SIGKILL)
"""


def local_sockets():
    """Lines of the kernel's list of local sockets."""
    return pathlib.Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
