"""Unmodified CUDA programs whose GPU is elsewhere: a program of nvcc's with every result checked, and llama.cpp as npm has it."""

import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

import pytest
from loopback import free_port

TREE = pathlib.Path(__file__).resolve().parent.parent
NVCC = TREE / ".cache/cuda/nvcc"
LLAMA = TREE / ".cache/llamacpp-cuda"
PARTS = ("basic", "streams", "graphs", "symbols", "rows", "memory", "errors", "threads")
SECONDS = 240

# Asks what devices there are, as programs do that fork before they use any; says what the child and the parent get from CUDA.
ASKS_AND_FORKS = """
import ctypes, os
nvml = ctypes.CDLL("libnvidia-ml.so.1")
count, handle, again = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
memory, uuid = (ctypes.c_ulonglong * 3)(), ctypes.create_string_buffer(96)
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value == 1
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
assert nvml.nvmlDeviceGetUUID(handle, uuid, 96) == 0
assert nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(again)) == 0 and again.value == handle.value
assert nvml.nvmlDeviceGetHandleByUUID(b"GPU-none", ctypes.byref(again)) == 6
assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0 and list(memory) == [512 << 20, 512 << 20, 0]

def use():
    runtime, place = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
    code = runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(64 << 20))
    assert code != 0 or nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0 and memory[1] <= 448 << 20
    # Of the processes that use the device this one alone has a name here.
    for name, words in (("", 2), ("_v2", 3), ("_v3", 3)):
        ask, room, found = nvml["nvmlDeviceGetComputeRunningProcesses" + name], ctypes.c_uint(0), (ctypes.c_ulonglong * 6)()
        there = 1 if code == 0 else 0
        assert ask(handle, ctypes.byref(room), None) == (7 if there else 0) and room.value == there
        room.value = 2
        assert ask(handle, ctypes.byref(room), found) == 0 and room.value == there
        own = [os.getpid(), 64 << 20, 2**64 - 1 if words == 3 else 0, 0, 0, 0]
        assert list(found) == (own if there else [0] * 6)
    # No device is part of a fabric.
    for version, words in ((2 << 24 | 36, 9), (3 << 24 | 40, 10)):
        fabric = (ctypes.c_uint * 12)(version, *[7] * 11)
        assert nvml.nvmlDeviceGetGpuFabricInfoV(handle, fabric) == 0
        assert list(fabric) == [version] + [0] * (words - 1) + [7] * (12 - words)
    assert nvml.nvmlDeviceGetGpuFabricInfoV(handle, (ctypes.c_uint * 12)(1 << 24 | 36)) == 25
    return code

child = os.fork()
if child == 0:
    os._exit(use())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), use())
"""

# Loads a module that the node refuses, and then one that it takes.
REFUSED_LOAD = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
code = b".version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry nothing() { ret; }\\n"
module = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), code) == 218
assert cuda.cuCtxSynchronize() == 0, "it was told, and is not told again"
assert cuda.cuModuleLoadData(ctypes.byref(module), code) == 0
"""

# Has bytes come back into pinned memory, looks until they are there, and then waits for them; says how often the core waited for the node.
COMES_BEFORE = """
import ctypes
runtime, core = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libhinterland_cuda.so")
place, stream, counters = ctypes.c_void_p(), ctypes.c_void_p(), (ctypes.c_uint64 * 5)()
back = ctypes.c_void_p()
assert runtime.cudaMallocHost(ctypes.byref(back), ctypes.c_size_t(4096)) == 0
assert runtime.cudaStreamCreate(ctypes.byref(stream)) == 0
assert runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(4096)) == 0
assert runtime.cudaMemset(place, 7, ctypes.c_size_t(4096)) == 0

def waits():
    core.hl_gpu_counters(counters)
    return counters[0]

assert runtime.cudaDeviceSynchronize() == 0
before = waits()
assert runtime.cudaMemcpyAsync(back, place, ctypes.c_size_t(4096), 2, stream) == 0
while runtime.cudaStreamQuery(stream) == 600:
    pass
assert runtime.cudaStreamSynchronize(stream) == 0
assert ctypes.string_at(back, 4096) == bytes([7]) * 4096
print(waits() - before)
"""

needs_llama = pytest.mark.skipif(
    not (LLAMA / "tokens").exists(), reason="llama.cpp for CUDA is not installed (hint: tests/llamacpp-cuda .cache/llamacpp-cuda)"
)


class GpuNode:
    """A GPU node with devices in software, on a socket and a port."""

    def __init__(self, binary, folder, device, *options):
        self.binary = binary
        self.path = folder / f"gpu-{free_port()}.sock"
        self.port = free_port()
        self.unix = f"unix:{self.path}"
        self.tcp = f"tcp:127.0.0.1:{self.port}"
        words = ["gpu", "serve", "--listen", self.unix, "--listen", self.tcp, "--device", device, *options]
        self.log = open(folder / "gpu.log", "w", encoding="utf-8")
        self.process = subprocess.Popen([binary, *map(str, words)], stdout=self.log, stderr=self.log)
        end = time.monotonic() + 20
        # A socket has its path a moment before it can be connected to, and the port comes after it.
        while "are served at" not in (folder / "gpu.log").read_text(encoding="utf-8"):
            assert self.process.poll() is None and time.monotonic() < end, (folder / "gpu.log").read_text(encoding="utf-8")
            time.sleep(0.02)

    def program(self, *words, address=None, **environment):
        """Words of a command that runs a program with this node's GPU."""
        run = [self.binary, "--quiet", "run", "--gpu", address or self.unix, "--", *words]
        return [str(word) for word in run], {**os.environ, "HINTERLAND_SOCKET": "/nowhere", **environment}

    def run(self, *words, address=None, **environment):
        """Runs a program to its end."""
        command, environment = self.program(*words, address=address, **environment)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)

    def sessions(self):
        """What the node says of its sessions."""
        told = subprocess.run([self.binary, "gpu", "ls", self.unix, "--json"], capture_output=True, text=True, timeout=20, check=True)
        return json.loads(told.stdout)["sessions"]

    def stop(self):
        """Ends the node."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


@pytest.fixture
def gpu_node(binary, folder):
    """Starts GPU nodes, and ends them."""
    nodes = []

    def start(device="software:memory=512M", *options):
        nodes.append(GpuNode(binary, folder, device, *options))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The program that checks every result, compiled by nvcc and linked to the vendor's libraries."""
    if not NVCC.exists():
        pytest.skip("nvcc is not installed (hint: tests/cuda-toolchain .cache/cuda)")
    path = tmp_path_factory.mktemp("gpu") / "program"
    target = ["-gencode", "arch=compute_90,code=compute_90", "-gencode", "arch=compute_90,code=sm_90", "-cudart", "shared"]
    source = TREE / "tests/programs/gpu_program.cu"
    subprocess.run([NVCC.read_text().strip(), *target, "-o", path, source], check=True, capture_output=True)
    return path


def wait_until(what, seconds=5):
    """Waits for a condition."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_every_result_of_a_program_of_nvcc_is_right(gpu_node, program, fabric):
    node = gpu_node()
    outcome = node.run(program, *PARTS, address=getattr(node, fabric))
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split() == list(PARTS)
    assert outcome.stderr == ""


def test_a_program_whose_default_stream_is_each_threads_own_is_right(gpu_node, folder):
    if not NVCC.exists():
        pytest.skip("nvcc is not installed (hint: tests/cuda-toolchain .cache/cuda)")
    path = folder / "per-thread"
    target = ["-arch=compute_90", "-code=compute_90", "-cudart", "shared", "--default-stream", "per-thread"]
    subprocess.run([NVCC.read_text().strip(), *target, "-o", path, TREE / "tests/programs/gpu_program.cu"], check=True, capture_output=True)
    outcome = gpu_node().run(path, *PARTS)
    assert (outcome.returncode, outcome.stderr) == (0, "")


@pytest.mark.parametrize("switch", ["HINTERLAND_NO_FENCE", "HINTERLAND_NO_GRAPH_EDITS", "HINTERLAND_NO_IMAGE_FACTS", "HINTERLAND_NO_RECENT_LAUNCHES", "HINTERLAND_NO_BIAS"])
def test_results_are_the_same_without_an_optimisation(gpu_node, program, switch):
    outcome = gpu_node().run(program, "streams", "graphs", "errors", **{switch: "1"})
    assert outcome.returncode == 0, outcome.stderr


def test_work_that_takes_time_is_waited_for(gpu_node, program):
    outcome = gpu_node("software:memory=512M,delay-us=300").run(program, "basic", "streams", "graphs")
    assert outcome.returncode == 0, outcome.stderr


def test_a_network_with_delay_changes_no_result(gpu_node, program):
    node = gpu_node()
    outcome = node.run(program, "basic", "streams", "rows", address=node.tcp, HINTERLAND_GPU_DELAY_US="200")
    assert outcome.returncode == 0, outcome.stderr


def test_a_fault_of_a_kernel_is_told_where_the_program_waits_and_stays(gpu_node, program):
    node = gpu_node()
    outcome = node.run(program, "fault")
    assert outcome.returncode == 0, outcome.stderr
    assert "write_nowhere" in outcome.stderr and "illegal address" in outcome.stderr
    assert node.run(program, "basic").returncode == 0, "the next program is not hurt"


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_a_program_of_the_drivers_interface_with_ptx_of_its_own_is_right(gpu_node, fabric):
    node = gpu_node()
    outcome = node.run(sys.executable, TREE / "tests/programs/gpu_driver.py", address=getattr(node, fabric))
    assert (outcome.returncode, outcome.stdout) == (0, "right\n"), outcome.stderr
    shares = "cuMemExportToShareableHandle is not supported for a GPU elsewhere: each program has memory"
    for reason in ("only its driver knows", "cuIpcGetMemHandle is not", "events of several processes are not", shares):
        assert outcome.stderr.count(reason) == 1, outcome.stderr


def test_empty_variables_are_none(gpu_node):
    empty = {"HINTERLAND_GPU_MEMORY": "", "HINTERLAND_GPU_DELAY_US": "", "HINTERLAND_KEY_FILE": ""}
    outcome = gpu_node().run(sys.executable, TREE / "tests/programs/gpu_driver.py", **empty)
    assert (outcome.returncode, outcome.stdout) == (0, "right\n"), outcome.stderr


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_functions_that_are_looked_up_take_the_arguments_of_the_version_that_was_asked_for(gpu_node, folder, fabric):
    node = gpu_node()
    words = (sys.executable, TREE / "tests/programs/gpu_entries.py", folder / "code.ptx")
    outcome = node.run(*words, address=getattr(node, fabric))
    assert (outcome.returncode, outcome.stdout) == (0, "right\n"), outcome.stderr


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_no_stream_means_the_threads_own_to_functions_that_say_so_in_their_names(gpu_node, fabric):
    node = gpu_node()
    outcome = node.run(sys.executable, TREE / "tests/programs/gpu_own_streams.py", address=getattr(node, fabric))
    assert (outcome.returncode, outcome.stdout) == (0, "right\n"), outcome.stderr


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_a_program_that_asks_what_devices_there_are_may_fork_and_use_them_in_a_child(gpu_node, fabric):
    node = gpu_node()
    outcome = node.run(sys.executable, "-c", ASKS_AND_FORKS, address=getattr(node, fabric))
    assert (outcome.returncode, outcome.stdout) == (0, "0 0\n"), outcome.stderr


def test_code_that_the_driver_refuses_is_refused_by_the_call_that_loads_it(gpu_node):
    outcome = gpu_node("software:memory=64M,fault=load:1:218").run(sys.executable, "-c", REFUSED_LOAD)
    assert outcome.returncode == 0, outcome.stderr


def test_what_a_kernel_prints_is_the_programs_output(gpu_node, program):
    outcome = gpu_node().run(program, "print")
    told = ["before", "thread 0 says 7", "thread 1 says 7", "a letter of zero: [\0]", "print"]
    assert outcome.stdout.splitlines() == told


def test_a_program_without_a_node_is_not_started(binary, folder):
    environment = {**os.environ, "HINTERLAND_SOCKET": "/nowhere"}
    for address in (f"unix:{folder}/nobody.sock", f"tcp:127.0.0.1:{free_port()}"):
        words = [binary, "run", "--gpu", address, "--", "touch", folder / "started"]
        outcome = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert outcome.returncode == 3, outcome.stderr
        assert address in outcome.stderr and outcome.stderr.count("hint:") == 1, outcome.stderr
    assert not (folder / "started").exists()


def test_a_program_whose_node_is_gone_when_it_asks_is_told_so_and_has_no_gpu(gpu_node, program):
    node = gpu_node()
    script = 'kill -9 "$0"; while [ -e "/proc/$0/exe" ]; do sleep 0.02; done; exec "$1" basic'
    outcome = node.run("sh", "-c", script, node.process.pid, program)
    assert outcome.returncode == 1
    assert node.unix in outcome.stderr and "hint:" in outcome.stderr
    assert "no CUDA-capable device" in outcome.stderr


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_a_program_ends_promptly_when_its_node_is_killed(gpu_node, program, fabric):
    node = gpu_node()
    command, environment = node.program(program, "forever", address=getattr(node, fabric))
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "going\n"
    node.process.kill()
    out, words = running.communicate(timeout=15)
    assert running.returncode == 7
    assert out.split() == ["cudaErrorDevicesUnavailable"]
    assert "the GPU node is gone" in words and "hint:" in words


def test_memory_of_a_killed_program_is_back_at_once(gpu_node, program):
    node = gpu_node()
    for _ in range(5):
        command, environment = node.program(program, "forever")
        running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert running.stdout.readline() == "going\n"
        assert len(node.sessions()) == 1
        running.kill()
        running.wait()
        wait_until(lambda: not node.sessions(), seconds=2)
    assert node.run(program, "memory").returncode == 0


def test_many_programs_share_a_device(gpu_node, program):
    node = gpu_node("software:memory=512M")
    running = []
    for _ in range(4):
        command, environment = node.program(program, "basic", "threads")
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    for one in running:
        _, words = one.communicate(timeout=SECONDS)
        assert one.returncode == 0, words


def tokens(node, prefill, decode, **environment):
    """Runs llama.cpp and returns a row a step: number, token, microseconds, waits, commands, bytes, messages, bytes of code."""
    words = [LLAMA / "tokens", LLAMA / "libraries", LLAMA / "test.gguf", prefill, decode]
    if node is None:
        words[1] = LLAMA / "processor"
        outcome = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=SECONDS, check=True)
    else:
        outcome = node.run(*words, **environment)
        assert outcome.returncode == 0, outcome.stderr
    return {int(row[0]): [float(word) for word in row[1:]] for row in map(str.split, outcome.stdout.splitlines())}


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_what_has_come_before_it_is_asked_for_is_no_wait(gpu_node, fabric):
    node = gpu_node()
    outcome = node.run(sys.executable, "-c", COMES_BEFORE, address=getattr(node, fabric))
    assert (outcome.returncode, outcome.stdout) == (0, "0\n"), outcome.stderr


@needs_llama
@pytest.mark.alone
@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_a_token_of_llama_cpp_waits_once_and_sends_little(gpu_node, fabric):
    """The library as npm has it, 32 layers, machine code for capability 8.9; kernels do nothing here, so calls are all that counts."""
    node = gpu_node("software:memory=2G,kernels=none,capability=8.9")
    rows = tokens(node, 32, 12, address=getattr(node, fabric))
    waits, messages, sent = ({step: row[at] for step, row in rows.items()} for at in (2, 5, 4))
    # The prompt, the first token, the token that is captured, and those that are replayed. The logits come into pinned memory: when the
    # machine lets the program lie between their copy and the call that waits for it, they are there by then, and it waits for nothing.
    for step in range(-1, 12):
        assert waits[step] <= 1, rows[step]
    assert max(waits[step] for step in range(-1, 12)) == 1, "waits are counted"
    for step in range(2, 12):
        assert sent[step] <= 2500, rows[step]
    # What is issued while the one before is on its way goes along; a program that is stopped between two calls sends one more.
    assert statistics.median(messages[step] for step in range(2, 12)) <= 3, rows
    again = tokens(node, 32, 3, address=getattr(node, fabric))
    assert sum(row[6] for row in rows.values()) > 0, "code was sent at first"
    assert sum(row[6] for row in again.values()) == 0, "and not again"


@needs_llama
def test_a_recapture_sends_what_differs(gpu_node):
    """After 256 cells of the cache llama.cpp captures anew: most of the list is as before."""
    rows = tokens(gpu_node("software:memory=2G,kernels=none,capability=8.9"), 200, 80)
    captures = [step for step, row in rows.items() if step > 2 and row[4] > 20_000]
    assert captures, "the cache grew within these tokens"
    assert all(rows[step][2] <= 4 for step in captures)
    whole = gpu_node("software:memory=2G,kernels=none,capability=8.9")
    without = tokens(whole, 200, 80, HINTERLAND_NO_GRAPH_EDITS="1")
    assert sum(row[4] for row in rows.values()) < sum(row[4] for row in without.values())


@needs_llama
def test_llama_cpp_says_the_same_on_a_gpu_elsewhere_as_on_the_processor(gpu_node):
    """Its own kernels, from PTX, on the device in software."""
    near = tokens(None, 4, 2)
    far = tokens(gpu_node("software:memory=2G"), 4, 2)
    said = [[rows[step][0] for step in (-1, 0, 1)] for rows in (near, far)]
    assert said[0] == said[1]
    assert len(set(said[0])) > 1, "the model does not say one word for ever"


def test_what_killed_processes_left_is_removed_by_the_next_one_and_what_is_in_use_is_not(gpu_node, folder, monkeypatch):
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    def left(contents, process):
        return sorted(temporary.glob(f"hinterland-{contents}-{process.pid}-*"))

    node = gpu_node()
    command, environment = node.program("sleep", "600")
    killed, living = (subprocess.Popen(command, env=environment) for _ in range(2))
    for one in (killed, living):
        wait_until(lambda one=one: left("cuda", one) and (left("cuda", one)[0] / "libcudart.so.13").exists(), seconds=20)
    killed.kill()
    killed.wait()
    node.process.kill()
    node.process.wait()
    assert left("cuda", killed) and left("gpu", node.process), "nobody cleans up behind a process that is killed"
    after = gpu_node()
    assert not left("cuda", killed) and not left("gpu", node.process)
    assert left("cuda", living) and left("gpu", after.process)
    last = gpu_node()
    after.process.kill()
    after.process.wait()
    assert subprocess.run(last.program("true")[0], env=environment, check=True, timeout=60).returncode == 0
    assert not left("gpu", after.process) and left("cuda", living)
    for one in (living, last.process):
        one.terminate()
        one.wait(20)
    assert not list(temporary.iterdir())


@pytest.fixture
def forks(binary, folder):
    """A program that forks, linked with the libraries that stand in for CUDA's."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    subprocess.run([binary, "gpu", "libraries", folder / "libraries"], check=True, capture_output=True)
    path = folder / "forks"
    subprocess.run(["cc", "-O1", "-pthread", TREE / "tests/programs/gpu_forks.c", "-o", path, f"-L{folder}/libraries", "-l:libcudart.so.13",
                    f"-Wl,-rpath-link,{folder}/libraries"], check=True)
    return path


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_a_child_of_a_fork_is_told_that_it_has_no_gpu_and_its_parent_goes_on(gpu_node, forks, fabric):
    node = gpu_node()
    outcome = node.run(forks, "children", address=getattr(node, fabric))
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "right\n", "")


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_children_that_go_on_do_not_keep_the_session_of_a_dead_parent(gpu_node, forks, fabric):
    node = gpu_node()
    command, environment = node.program(forks, "orphans", address=getattr(node, fabric))
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    children = [int(word) for word in running.stdout.readline().split()]
    try:
        assert len(children) == 2 and len(node.sessions()) == 1
        running.kill()
        running.wait()
        wait_until(lambda: not node.sessions(), seconds=3)
        assert all(pathlib.Path(f"/proc/{child}").exists() for child in children)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_symbol_that_is_missing_is_named_once(gpu_node, binary, folder):
    source = folder / "missing.c"
    source.write_text(
        "int cudaMallocArray(void *, void *, unsigned long, unsigned long, unsigned);\n"
        "int main(void) { cudaMallocArray(0, 0, 0, 0, 0); return cudaMallocArray(0, 0, 0, 0, 0) != 801; }\n"
    )
    subprocess.run([binary, "gpu", "libraries", folder / "libraries"], check=True, capture_output=True)
    subprocess.run(["cc", source, "-o", folder / "missing", f"-L{folder}/libraries", "-l:libcudart.so.13",
                    f"-Wl,-rpath-link,{folder}/libraries"], check=True)
    outcome = gpu_node().run(folder / "missing")
    assert outcome.returncode == 0
    assert outcome.stderr.count("cudaMallocArray") == 1


def test_a_program_with_the_runtime_inside_is_told_at_its_start_that_it_has_no_gpu(gpu_node, folder):
    if not NVCC.exists():
        pytest.skip("nvcc is not installed (hint: tests/cuda-toolchain .cache/cuda)")
    nvcc = pathlib.Path(NVCC.read_text().strip())
    (folder / "program.cu").write_text("""#include <cstdio>
        __global__ void kernel(int *p) { *p = 1; }
        int main() { int *p; puts(cudaGetErrorName(cudaMalloc(&p, 4))); kernel<<<1, 1>>>(p); return cudaGetLastError() != 0; }""")
    # As nvcc links without being told otherwise.
    subprocess.run([nvcc, "-arch=compute_90", "-code=compute_90", f"-L{nvcc.parent.parent}/lib", "-o", folder / "program", folder / "program.cu"],
                   check=True, capture_output=True)
    node = gpu_node()
    for name, path in ((folder / "program", os.environ["PATH"]), ("program", f"{folder}:{os.environ['PATH']}")):
        words = [node.binary, "run", "--gpu", node.unix, "--", name]
        environment = {**os.environ, "HINTERLAND_SOCKET": "/nowhere", "PATH": path}
        outcome = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert (outcome.returncode, outcome.stdout) == (1, "cudaErrorCallRequiresNewerDriver\n"), outcome.stderr
        said = [line for line in outcome.stderr.splitlines() if "linked into it" in line]
        assert len(said) == 1 and str(folder / "program") in said[0] and "-cudart shared" in said[0], outcome.stderr
    # A program without GPU code, linked by another compiler and stripped.
    if shutil.which("g++"):
        (folder / "plain.cpp").write_text("#include <cuda_runtime.h>\nint main() { int n; return cudaGetDeviceCount(&n); }")
        subprocess.run(["g++", "-s", f"-I{nvcc.parent.parent}/include", folder / "plain.cpp", "-o", folder / "plain",
                        nvcc.parent.parent / "lib/libcudart_static.a", "-ldl", "-lrt", "-lpthread"], check=True, capture_output=True)
        told = subprocess.run([node.binary, "run", "--gpu", node.unix, "--", folder / "plain"], env=environment, capture_output=True,
                              text=True, timeout=SECONDS, check=False)
        assert told.returncode == 36 and told.stderr.count("linked into it") == 1
    told = subprocess.run([node.binary, "run", "--gpu", node.unix, "--", "true"], env=environment, capture_output=True, text=True,
                          timeout=SECONDS, check=True)
    assert "linked into it" not in told.stderr


def test_a_function_that_is_looked_up_and_missing_is_named_once_on_demand(gpu_node):
    program = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
for name in (b"cuNotThere", b"cuInit", b"cuNotThere", b"cu\\x1b[31mRed"):
    entry = ctypes.c_void_p()
    print(cuda.cuGetProcAddress_v2(name, ctypes.byref(entry), 13000, ctypes.c_uint64(0), None), bool(entry))
"""
    node = gpu_node()
    for switch, named in (("0", 0), ("1", 1)):
        outcome = node.run(sys.executable, "-c", program, HINTERLAND_VERBOSE=switch)
        assert outcome.stdout.splitlines() == ["500 False", "0 True", "500 False", "500 False"], outcome.stderr
        assert outcome.stderr.count("cuNotThere was looked up") == named
        assert "cuInit" not in outcome.stderr and "\x1b" not in outcome.stderr


@pytest.mark.parametrize("device", ["software:memory=512M", "software:memory=512M,delay-us=300"])
def test_functions_that_streams_call_are_called_in_order_beside_the_program(gpu_node, device):
    node = gpu_node(device)
    for address in (node.unix, node.tcp):
        outcome = node.run(sys.executable, TREE / "tests/programs/gpu_callbacks.py", address=address)
        assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "right\n", "")


@pytest.mark.parametrize("device", ["software:memory=64M", "software:memory=64M,delay-us=50000"])
@pytest.mark.parametrize("part", ["waited", "unregistered", "pieces", "filled", "threads"])
def test_the_work_of_a_stream_that_has_ended_is_waited_for(gpu_node, part, device):
    outcome = gpu_node(device).run(sys.executable, TREE / "tests/programs/gpu_streams.py", part)
    assert (outcome.returncode, outcome.stdout) == (0, f"{part}\n"), outcome.stderr


def test_a_program_may_end_streams_faster_than_their_work_is_done(gpu_node):
    outcome = gpu_node("software:memory=64M,delay-us=3000").run(sys.executable, TREE / "tests/programs/gpu_streams.py", "many")
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "many\n", "")


@pytest.mark.parametrize("device", ["software:memory=64M", "software:memory=64M,delay-us=50000"])
def test_work_behind_the_default_stream_is_done_when_all_before_it_is(gpu_node, device):
    part = "behind_the_default"
    outcome = gpu_node(device).run(sys.executable, TREE / "tests/programs/gpu_streams.py", part)
    assert (outcome.returncode, outcome.stdout) == (0, f"{part}\n"), outcome.stderr


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_a_graph_is_made_of_what_was_captured_whatever_ended_since(gpu_node, fabric):
    node = gpu_node("software:memory=64M")
    outcome = node.run(sys.executable, TREE / "tests/programs/gpu_streams.py", "captured", address=getattr(node, fabric))
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "captured\n", "")


def test_a_capture_that_has_failed_is_told_without_an_error(gpu_node):
    outcome = gpu_node("software:memory=64M").run(sys.executable, TREE / "tests/programs/gpu_streams.py", "failed")
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "failed\n", "")


def test_a_pool_that_nobody_named_is_not_missed(gpu_node, folder):
    node = gpu_node()
    words = [node.binary, "run", "--gpu", node.unix, "--", "true"]
    environment = {name: value for name, value in os.environ.items() if name != "HINTERLAND_SOCKET"}
    environment["XDG_RUNTIME_DIR"] = str(folder / "empty")
    told = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert told.stderr == ""
    environment["HINTERLAND_SOCKET"] = str(folder / "nobody.sock")
    told = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert "the pool is not mounted" in told.stderr


def test_memory_that_the_node_has_not_is_told(gpu_node, program):
    node = gpu_node("software:memory=64M")
    for asked, is_told in (("64M", False), ("3G", True)):
        words = [node.binary, "--quiet", "run", "--gpu", node.unix, "--gpu-memory", asked, "--", program, "basic"]
        outcome = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=SECONDS, check=False)
        assert outcome.returncode == 0, outcome.stderr
        assert ("3.00 GiB of device memory were asked for, and device 0 of the GPU node gives 64.0 MiB" in outcome.stderr) == is_told
