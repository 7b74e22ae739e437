"""PyTorch on a GPU elsewhere in a program that forks: multiprocessing's children are told, other programs start, and the parent goes on."""

import ctypes
import multiprocessing
import subprocess
import sys

import torch

INITIALIZATION_ERROR = 3


def be_child(tensor, results):
    """What a child of a fork gets: PyTorch's own words, and CUDA's number below them."""
    try:
        tensor.cpu()
        results.put("no error")
    except RuntimeError as error:
        pointer = ctypes.c_void_p()
        code = ctypes.CDLL("libcudart.so.13").cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1024))
        results.put(code if "forked subprocess" in str(error) or "initialization error" in str(error) else str(error))


if __name__ == "__main__":
    numbers = torch.arange(10_000, dtype=torch.float32)
    far = numbers.cuda()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=be_child, args=(far, results))
    child.start()
    found = results.get(timeout=60)
    child.join(60)
    assert found == INITIALIZATION_ERROR and child.exitcode == 0, (found, child.exitcode)
    assert torch.equal(far.cpu(), numbers)
    # Another program, which has a session of its own.
    code = "import torch; print(torch.ones(3).cuda().cpu().sum().item())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "3.0\n"
    assert torch.equal(far.cpu(), numbers)
    print("right")
