"""Real programs from packages, for far memory: each prints one line of JSON with its seconds, its peak of memory, and a checksum that is equal in every setting.

usage: workloads.py NAME [SCALE]   (SCALE 1 needs 150 to 300 MiB each)
       workloads.py --list
"""

import hashlib
import json
import os
import sys
import time

# One thread: what another thread does in the meantime is not the memory's doing.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


def digest(*parts):
    """A checksum of arrays, numbers and words. Floating-point numbers count with nine digits."""
    import numpy

    whole = hashlib.sha256()
    for part in parts:
        array = numpy.asarray(part)
        if array.dtype.kind == "f":
            mantissa, exponent = numpy.frexp(array.astype(numpy.float64))
            whole.update(numpy.round(mantissa * 1e9).astype(numpy.int64).tobytes() + exponent.astype(numpy.int32).tobytes())
        else:
            whole.update(array.tobytes())
    return whole.hexdigest()[:16]


def random(seed=0):
    """Numbers that are the same each time."""
    import numpy

    return numpy.random.default_rng(seed)


# --- HPC ----------------------------------------------------------------------------------------------------------


def sort(scale):
    """numpy sorts floating-point numbers."""
    numbers = random().random(int(20_000_000 * scale))
    numbers.sort()
    return numbers[:: max(1, len(numbers) // 4096)]


def stream(scale):
    """The triad of STREAM over three numpy arrays."""
    import numpy

    count = int(8_000_000 * scale)
    a, b, c = numpy.ones(count), numpy.full(count, 2.0), numpy.full(count, 3.0)
    for _ in range(5):
        numpy.multiply(b, 0.5, out=a)
        numpy.add(a, c, out=a)
        numpy.multiply(a, 0.25, out=c)
    return a[::1000], float(c.sum())


def linpack(scale):
    """LAPACK solves a dense system."""
    import numpy

    size = int(3600 * scale**0.5)
    matrix = random().random((size, size))
    solution = numpy.linalg.solve(matrix, numpy.ones(size))
    # The solution itself has no nine digits that must be equal; that it solves the system is what counts.
    return [bool(numpy.allclose(matrix @ solution, 1.0, atol=1e-4))]


def fft(scale):
    """scipy transforms a large array forth and back."""
    import numpy
    import scipy.fft

    numbers = random().random((2048, int(2048 * scale)))
    back = scipy.fft.irfft2(scipy.fft.rfft2(numbers), s=numbers.shape)
    return [bool(numpy.allclose(numbers, back))]


def sparse(scale):
    """scipy multiplies a sparse matrix with a vector, as solvers do."""
    import numpy
    import scipy.sparse

    size, entries = int(1_000_000 * scale), int(10_000_000 * scale)
    numbers = random()
    rows, columns = numbers.integers(0, size, entries), numbers.integers(0, size, entries)
    matrix = scipy.sparse.coo_matrix((numpy.ones(entries), (rows, columns)), shape=(size, size)).tocsr()
    vector = numpy.ones(size)
    for _ in range(5):
        vector = matrix @ vector
        vector /= vector.max()
    return vector[::100]


# --- graphs -------------------------------------------------------------------------------------------------------


def graph(scale):
    """A random igraph graph."""
    import igraph

    vertices, edges = int(250_000 * scale), int(1_500_000 * scale)
    return igraph.Graph(n=vertices, edges=random().integers(0, vertices, (edges, 2)))


def pagerank(scale):
    """igraph ranks the vertices of a random graph."""
    return graph(scale).pagerank()


def breadth(scale):
    """igraph searches a random graph breadth first."""
    order, _, parents = graph(scale).bfs(0)
    return order, parents


def components(scale):
    """igraph finds the connected components of a random graph."""
    return graph(scale).connected_components().membership


def shortest(scale):
    """scipy finds shortest paths in a sparse graph."""
    import numpy
    import scipy.sparse

    size, entries = int(400_000 * scale), int(6_000_000 * scale)
    numbers = random()
    rows, columns = numbers.integers(0, size, entries), numbers.integers(0, size, entries)
    weights = numbers.integers(1, 100, entries).astype(numpy.float64)
    matrix = scipy.sparse.coo_matrix((weights, (rows, columns)), shape=(size, size)).tocsr()
    return scipy.sparse.csgraph.dijkstra(matrix, indices=0)[::100]


# --- AI and data --------------------------------------------------------------------------------------------------


def kmeans(scale):
    """scikit-learn clusters points."""
    from sklearn.cluster import KMeans

    points = random().random((int(1_000_000 * scale), 32), dtype="float32")
    found = KMeans(8, n_init=1, max_iter=5, random_state=0).fit(points)
    return found.labels_[::100]


def example(scale):
    """The program of the guide: examples/far/kmeans.py."""
    import contextlib
    import io
    import pathlib
    import runpy

    sys.argv[1:] = [str(int(2_000_000 * scale))]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(str(pathlib.Path(__file__).resolve().parents[2] / "examples/far/kmeans.py"))
    return [said.getvalue()]


def neighbours(scale):
    """scikit-learn finds nearest neighbours by a tree."""
    from sklearn.neighbors import KDTree

    points = random().random((int(1_500_000 * scale), 8))
    distances, found = KDTree(points).query(points[:2000], k=5)
    return found, distances


def boosting(scale):
    """scikit-learn trains trees by gradient boosting."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    points = random().random((int(500_000 * scale), 20))
    model = HistGradientBoostingRegressor(max_iter=8, random_state=0).fit(points, points[:, 0] * points[:, 1])
    return model.predict(points[:5000]).round(6)


def transformer(scale):
    """The layers of a transformer with random weights, in numpy: all weights are read for each token."""
    import numpy

    numbers, width, layers = random(), 512, int(16 * scale)
    weights = [[numbers.standard_normal((width, 4 * width), dtype="float32") * 0.02 for _ in range(3)] for _ in range(layers)]
    token = numbers.standard_normal((4, width), dtype="float32")
    for _ in range(12):
        for up, gate, down in weights:
            inner = numpy.maximum(token @ up, 0) * (token @ gate)
            token = token + inner @ down.T
            token /= numpy.sqrt((token**2).mean(axis=1, keepdims=True))
    return numpy.round(token, 2)


def database(scale):
    """SQLite keeps a table in memory, with an index, and is asked at random."""
    import sqlite3

    rows = int(800_000 * scale)
    table = sqlite3.connect(":memory:")
    table.execute("create table item (id integer primary key, other integer, words text)")
    table.executemany("insert into item values (?, ?, ?)", ((n, n * 7919 % rows, f"words of item {n} " * 4) for n in range(rows)))
    table.execute("create index by_other on item (other)")
    keys = random().integers(0, rows, 20_000)
    return [table.execute("select id, length(words) from item where other = ?", (int(key),)).fetchone()[0] for key in keys]


WORKLOADS = {
    "sort": (sort, "HPC"), "stream": (stream, "HPC"), "linpack": (linpack, "HPC"), "fft": (fft, "HPC"), "sparse": (sparse, "HPC"),
    "pagerank": (pagerank, "graph"), "breadth": (breadth, "graph"), "components": (components, "graph"), "shortest": (shortest, "graph"),
    "kmeans": (kmeans, "AI"), "example": (example, "AI"), "neighbours": (neighbours, "AI"), "boosting": (boosting, "AI"), "transformer": (transformer, "AI"),
    "database": (database, "data"),
}  # fmt: skip


def memory():
    """The most memory that this process had at once, and how much of what it has now are pages of files."""
    with open("/proc/self/status", encoding="ascii") as status:
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in status if line.endswith("kB\n")}
    return {"peak_bytes": kibibytes["VmHWM"] << 10, "file_bytes": kibibytes["RssFile"] << 10}


def main():
    """Runs one."""
    if sys.argv[1] == "--list":
        print("\n".join(WORKLOADS))
        return
    name, scale = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    begun = time.monotonic()
    result = WORKLOADS[name][0](scale)
    checksum = digest(*result) if isinstance(result, tuple) else digest(result)
    print(json.dumps({"name": name, "checksum": checksum, "s": round(time.monotonic() - begun, 3), **memory()}))


main()
