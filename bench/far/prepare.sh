#!/bin/sh
# Installs what bench/far/workloads.py needs in .cache/far-apps, 600 MB. A second time takes a second.
set -eu
cd "$(dirname "$0")/../.."
exec tests/python-environment .cache/far-apps numpy scipy scikit-learn igraph
