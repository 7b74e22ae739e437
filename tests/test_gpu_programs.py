"""Programs of nvcc's that check every result of what CUDA programs rarely use: graphs with copies, several devices, kinds of memory."""

import pathlib
import subprocess
import sys

import pytest

from test_gpu import NVCC, gpu_node, wait_until  # noqa: F401

TREE = pathlib.Path(__file__).resolve().parent.parent
# Source and its parts.
PROGRAMS = {
    "gpu_graphs": ("replays", "round_trip", "large", "nodes", "captured"),
    "gpu_nodes": ("generic", "events", "external", "driver", "kinds", "switched", "carried", "outlived", "filled"),
    "gpu_attributes": ("attributes", "memory", "parameters"),
    "gpu_host_nodes": ("captured", "places", "made", "waits", "streams", "threads", "refused", "landed", "changed", "begun"),
    "gpu_memory": ("volumes", "rows", "pools", "occupancy", "refused", "batch"),
    "gpu_devices": ("own", "peers", "events", "threads", "frees"),
    "gpu_captures": ("waits", "unseen", "relaxed", "default_stream", "threads", "exchanges"),
    "gpu_reset": ("memory", "handles", "code", "others"),
    "gpu_user_objects": ("counts", "graphs", "captured", "functions"),
    "gpu_misuse": ("devices", "memory", "copies", "streams", "events", "launches", "captures", "graphs", "processes"),
    "gpu_refusals": ("launches", "queries", "captures", "settings", "clusters"),
}

# Allocates, says what is free and what the last call returned, and frees when it is told to.
SHARES = """
import ctypes, sys
runtime = ctypes.CDLL("libcudart.so.13")
held = []
for line in sys.stdin:
    word, mebibytes = line.split()
    code = 0
    if word == "take":
        held.append(ctypes.c_void_p())
        code = runtime.cudaMalloc(ctypes.byref(held[-1]), ctypes.c_size_t(int(mebibytes) << 20))
        if code:
            held.pop()
            assert runtime.cudaGetLastError() == code
    elif word == "give":
        code = runtime.cudaFree(held.pop())
    elif word == "reset":
        code = runtime.cudaDeviceReset()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
    assert runtime.cudaDeviceSynchronize() == 0
    print(code, free.value >> 20, total.value >> 20, flush=True)
"""

needs_nvcc = pytest.mark.skipif(not NVCC.exists(), reason="nvcc is not installed (hint: tests/cuda-toolchain .cache/cuda)")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compiles a program, once."""
    folder, made = tmp_path_factory.mktemp("programs"), {}

    def compile_one(name):
        if name not in made:
            target = ["-arch=compute_90", "-code=compute_90", "-cudart", "shared"]
            source = TREE / f"tests/programs/{name}.cu"
            command = [NVCC.read_text().strip(), *target, "-o", folder / name, source]
            outcome = subprocess.run(command, capture_output=True, text=True, check=False)
            assert outcome.returncode == 0, outcome.stderr
            made[name] = folder / name
        return made[name]

    return compile_one


@needs_nvcc
@pytest.mark.parametrize("fabric", ["unix", "tcp"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_result_is_right(gpu_node, compiled, name, fabric):  # noqa: F811
    node = gpu_node("software:memory=512M,devices=2")
    outcome = node.run(compiled(name), *PROGRAMS[name], address=getattr(node, fabric))
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split() == list(PROGRAMS[name])


@needs_nvcc
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_result_is_right_where_work_takes_time(gpu_node, compiled, name):  # noqa: F811
    outcome = gpu_node("software:memory=512M,devices=2,delay-us=300").run(compiled(name), *PROGRAMS[name])
    assert outcome.returncode == 0, outcome.stderr


@needs_nvcc
def test_a_variable_in_unified_memory_is_named_and_its_kernels_are_refused(gpu_node, compiled):  # noqa: F811
    outcome = gpu_node().run(compiled("gpu_managed"))
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr.count("variable together is in unified memory") == 1


@needs_nvcc
def test_destructors_that_run_last_may_call_cuda(gpu_node, compiled):  # noqa: F811
    outcome = gpu_node().run(compiled("gpu_last"))
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.splitlines() == ["thread 7", "thread 7", "main", "thread 7", "program 7"]


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_functions_of_cublas_are_right_for_every_type_side_half_and_transpose(gpu_node, fabric):  # noqa: F811
    node = gpu_node("software:memory=512M")
    outcome = node.run(sys.executable, TREE / "tests/programs/gpu_blas.py", address=getattr(node, fabric))
    assert (outcome.returncode, outcome.stdout) == (0, "right\n"), outcome.stderr
    assert outcome.stderr.count("not supported") == 1 and "cublasSrotg_v2" in outcome.stderr


@pytest.mark.parametrize("device", ["software:memory=512M", "software:memory=512M,delay-us=300"])
def test_products_in_graphs_are_as_their_handle_was_set_when_they_were_captured(gpu_node, device):  # noqa: F811
    outcome = gpu_node(device).run(sys.executable, TREE / "tests/programs/gpu_blas_graphs.py")
    assert (outcome.returncode, outcome.stdout) == (0, "right\n"), outcome.stderr


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_programs_of_one_device_have_together_what_it_has(gpu_node, fabric):  # noqa: F811
    node = gpu_node("software:memory=512M")
    command, environment = node.program(sys.executable, "-c", SHARES, address=getattr(node, fabric))
    one, two = (
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    )

    def tell(program, line):
        program.stdin.write(line + "\n")
        program.stdin.flush()
        return tuple(map(int, program.stdout.readline().split()))

    assert tell(one, "look 0") == tell(two, "look 0") == (0, 512, 512)
    assert tell(one, "take 300") == (0, 212, 512)
    # What the first holds beyond its need, one part in 64, is not free to the second.
    assert tell(two, "look 0") == (0, 204, 512)
    assert tell(two, "take 205") == (2, 204, 512), "it is told at once, and goes on"
    assert tell(two, "take 200") == (0, 4, 512)
    assert tell(two, "take 5") == (2, 4, 512)
    assert tell(one, "give 0")[0] == 0
    assert tell(two, "take 250")[0] == 0, "what was freed is anybody's"
    assert tell(one, "take 20")[0] == 0
    assert tell(one, "reset 0") == (0, 54, 512), "a reset frees all that the program has, and nothing of the others"
    assert tell(two, "look 0") == (0, 62, 512)
    one.kill()
    one.wait()
    wait_until(lambda: tell(two, "look 0") == (0, 62, 512))
    two.stdin.close()
    assert two.wait(20) == 0
    for program in (one, two):
        program.stdout.close()
    one.stdin.close()


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_a_reset_takes_modules_and_handles_and_leaves_libraries(gpu_node, fabric):  # noqa: F811
    node = gpu_node("software:memory=512M")
    outcome = node.run(sys.executable, TREE / "tests/programs/gpu_reset.py", address=getattr(node, fabric))
    assert (outcome.returncode, outcome.stdout) == (0, "right\n"), outcome.stderr


@pytest.mark.parametrize("device", ["software:memory=512M,devices=2", "software:memory=512M,devices=2,delay-us=300"])
@pytest.mark.parametrize("part", ["rounds", "names", "apart", "current_ones", "primary", "outlives", "peers"])
def test_what_is_made_in_a_context_ends_with_it(gpu_node, part, device):  # noqa: F811
    outcome = gpu_node(device).run(sys.executable, TREE / "tests/programs/gpu_contexts.py", part)
    assert (outcome.returncode, outcome.stdout) == (0, f"{part}\n"), outcome.stderr


@pytest.mark.parametrize("device", ["software:memory=64M", "software:memory=64M,delay-us=300"])
@pytest.mark.parametrize("part", ["grown", "changed", "anyhow"])
def test_what_is_in_memory_that_a_program_maps_by_itself_stays_when_it_is_mapped_elsewhere(gpu_node, part, device):  # noqa: F811
    outcome = gpu_node(device).run(sys.executable, TREE / "tests/programs/gpu_pieces.py", part)
    assert (outcome.returncode, outcome.stdout) == (0, f"{part}\n"), outcome.stderr


@pytest.mark.parametrize("device", ["software:memory=64M", "software:memory=64M,delay-us=300"])
@pytest.mark.parametrize("part", ["given_back", "updated", "within", "freed", "elsewhere", "children", "launched", "appended"])
def test_memory_that_a_graph_allocates_is_its_own(gpu_node, part, device):  # noqa: F811
    outcome = gpu_node(device).run(sys.executable, TREE / "tests/programs/gpu_captured_memory.py", part)
    assert (outcome.returncode, outcome.stdout) == (0, f"{part}\n"), outcome.stderr
