"""Programs of nvcc's that check every result of what CUDA programs rarely use: graphs with copies, several devices, kinds of memory."""

import pathlib
import subprocess
import sys

import pytest

from test_gpu import NVCC, gpu_node  # noqa: F401

TREE = pathlib.Path(__file__).resolve().parent.parent
# Source and its parts.
PROGRAMS = {
    "gpu_graphs": ("replays", "round_trip", "large", "nodes", "captured"),
    "gpu_memory": ("volumes", "rows", "pools", "occupancy", "refused"),
    "gpu_devices": ("own", "peers", "events", "threads", "frees"),
}

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


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_functions_of_cublas_are_right_for_every_type_side_half_and_transpose(gpu_node, fabric):  # noqa: F811
    node = gpu_node("software:memory=512M")
    outcome = node.run(sys.executable, TREE / "tests/programs/gpu_blas.py", address=getattr(node, fabric))
    assert (outcome.returncode, outcome.stdout) == (0, "right\n"), outcome.stderr
    assert outcome.stderr.count("not supported") == 1 and "cublasSrotg_v2" in outcome.stderr
