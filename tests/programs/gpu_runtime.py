"""The CUDA runtime as programs of tests call it."""

import ctypes

runtime = ctypes.CDLL("libcudart.so.13")
# A function that a stream calls.
HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def good(code):
    """Ends the program if a call failed."""
    assert code == 0, code


def stream(flags=0):
    """A new stream; flag 1 is apart from the default stream."""
    made = ctypes.c_void_p()
    good(runtime.cudaStreamCreateWithFlags(ctypes.byref(made), flags))
    return made
