"""Where pip has put NVRTC, the run-time compiler of CUDA: the loader of programs does not look there."""

from __future__ import annotations

import pathlib
import sys

# Packages of CUDA 13, of CUDA 12, and of one version.
PLACES = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cu12/lib")


def path() -> str | None:
    """The newest libnvrtc below the folders that modules are imported from, or None."""
    for place in PLACES:
        for folder in map(pathlib.Path, filter(None, sys.path)):
            found = [library for library in (folder / place).glob("libnvrtc.so.*") if "alt" not in library.name]
            if found:
                return str(max(found, key=lambda library: library.name))
    return None
