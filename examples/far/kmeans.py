#!/usr/bin/env python3
"""Clusters random points, as a program that needs more memory than it gets: `hinterland run --local 50% -- examples/far/kmeans.py`.

usage: kmeans.py [POINTS]   (a million points are 122 MiB). With scikit-learn if it is there, else with numpy alone.
"""

import sys
import time

import numpy

COLUMNS, GROUPS, ROUNDS = 32, 8, 5


def cluster(points):
    """Lloyd's algorithm, a part of the points at a time."""
    centres = points[:GROUPS].copy()
    labels = numpy.empty(len(points), dtype=numpy.int32)
    for _ in range(ROUNDS):
        sums, counts = numpy.zeros((GROUPS, COLUMNS)), numpy.zeros(GROUPS)
        for first in range(0, len(points), 65536):
            part = points[first : first + 65536]
            nearest = ((centres**2).sum(axis=1) - 2 * part @ centres.T).argmin(axis=1)
            labels[first : first + len(part)] = nearest
            counts += numpy.bincount(nearest, minlength=GROUPS)
            for group in range(GROUPS):
                sums[group] += part[nearest == group].sum(axis=0)
        centres = (sums / numpy.maximum(counts, 1)[:, None]).astype(points.dtype)
    return labels


def main():
    """Makes points, clusters them, and says how large the groups are."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    points = numpy.random.default_rng(0).random((count, COLUMNS), dtype=numpy.float32)
    begun = time.monotonic()
    try:
        from sklearn.cluster import KMeans

        labels = KMeans(GROUPS, init=points[:GROUPS], n_init=1, max_iter=ROUNDS).fit(points).labels_
    except ImportError:
        labels = cluster(points)
    print("groups of", *sorted(numpy.bincount(labels, minlength=GROUPS).tolist()))
    print(f"{time.monotonic() - begun:.1f} s", file=sys.stderr)


main()
