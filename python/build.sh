#!/usr/bin/env bash
# Builds the compiled module and puts it beside the package, for use from the tree.
#
# usage: python/build.sh [--release]
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
folder=debug
if [ "${1:-}" = --release ]; then folder=release; fi
# `./check` has built everything at once and says so.
[ -n "${HINTERLAND_BUILT:-}" ] || cargo build --quiet --package hinterland-python "$@"
built="${CARGO_TARGET_DIR:-target}/$folder/lib_native.so"
if [ ! -f "$built" ]; then
    echo "there is no $built (hint: cargo build --package hinterland-python $*, or leave HINTERLAND_BUILT out)" >&2
    exit 1
fi
# Renamed into place: an interpreter that has the old file loaded keeps it, and of several that build each has a file of its own.
new="$here/hinterland/_native.$$.so"
cp "$built" "$new"
mv -f "$new" "$here/hinterland/_native.abi3.so"
