"""PyTorch as PyPI has it, whose GPU is elsewhere: what needs no kernel of its own is computed on the device in software."""

import pathlib

import pytest

from test_gpu import gpu_node  # noqa: F401

TREE = pathlib.Path(__file__).resolve().parent.parent
PYTHON = TREE / ".cache/vllm/venv/bin/python"
PROGRAM = TREE / "tests/programs/gpu_torch.py"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="PyTorch for CUDA is not installed (hint: bench/vllm/prepare.sh)")


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_products_and_copies_of_pytorch_are_right(gpu_node, fabric):  # noqa: F811
    node = gpu_node("software:memory=1G")
    outcome = node.run(PYTHON, PROGRAM, address=getattr(node, fabric))
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == "Hinterland software device\n"
    assert "Warning" not in outcome.stderr and "not supported" not in outcome.stderr


OUT_OF_MEMORY = """
import torch
there = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
try:
    torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    assert "this process has" in str(error), error
    print("out of memory")
assert torch.equal(torch.arange(8).cuda().cpu(), torch.arange(8))
"""


@pytest.mark.parametrize("expands", ["False", "True"])
def test_memory_that_is_out_is_the_error_that_programs_catch(gpu_node, expands):  # noqa: F811
    segments = f"expandable_segments:{expands}"
    outcome = gpu_node("software:memory=1G,kernels=none").run(PYTHON, "-c", OUT_OF_MEMORY, PYTORCH_CUDA_ALLOC_CONF=segments)
    assert (outcome.returncode, outcome.stdout) == (0, "out of memory\n"), outcome.stderr
    assert "not supported" not in outcome.stderr


def test_a_step_of_training_calls_nothing_that_is_missing(gpu_node):  # noqa: F811
    outcome = gpu_node("software:memory=1G,kernels=none").run(PYTHON, PROGRAM, "kernels")
    assert outcome.returncode == 0, outcome.stderr
    assert "not supported" not in outcome.stderr


@pytest.mark.parametrize("fabric", ["unix", "tcp"])
def test_children_of_a_program_with_pytorch_are_told_and_the_program_goes_on(gpu_node, fabric):  # noqa: F811
    node = gpu_node("software:memory=1G")
    outcome = node.run(PYTHON, TREE / "tests/programs/gpu_torch_forks.py", address=getattr(node, fabric))
    assert (outcome.returncode, outcome.stdout) == (0, "right\n"), outcome.stderr


def test_kernels_without_ptx_are_refused_in_words(gpu_node):  # noqa: F811
    outcome = gpu_node("software:memory=1G").run(PYTHON, PROGRAM, "kernels")
    assert outcome.returncode == 1
    assert "PTX" in outcome.stderr and "no kernel image is available" in outcome.stderr
