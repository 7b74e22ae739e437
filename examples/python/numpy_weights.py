"""Puts an array into the pool, maps it in another process of this host, and multiplies with it there.

usage: PYTHONPATH=python python3 examples/python/numpy_weights.py [RACK]    (with a node on the default socket)
"""

import multiprocessing
import sys

import numpy

import hinterland

SHAPE = (512, 1024)


def multiply(name: str, vector: numpy.ndarray) -> numpy.ndarray:
    """Runs in the other process: the weights are neither sent nor copied, but mapped."""
    with hinterland.Pool() as pool, pool.map(name) as mapping:
        mapping.advise("sequential")
        weights = numpy.frombuffer(mapping, dtype="f4").reshape(SHAPE)
        where = "another rack" if mapping.is_remote else "this rack"
        print(f"mapped {mapping.nbytes} bytes of {where} at {mapping.pointer:#x}", flush=True)
        return weights @ vector


def main() -> None:
    rack = sys.argv[1] if len(sys.argv) > 1 else None
    weights = numpy.arange(numpy.prod(SHAPE), dtype="f4").reshape(SHAPE) % 7
    vector = numpy.ones(SHAPE[1], dtype="f4")
    with hinterland.Pool() as pool:
        info = pool.put("examples/weights", weights, rack=rack)
        try:
            print(f"put {info.bytes} bytes into rack {info.homes[0].rack}", flush=True)
            with multiprocessing.get_context("spawn").Pool(1) as workers:
                product = workers.apply(multiply, ("examples/weights", vector))
            print("the same product:", bool((product == weights @ vector).all()))
        finally:
            pool.remove("examples/weights")


if __name__ == "__main__":
    main()
