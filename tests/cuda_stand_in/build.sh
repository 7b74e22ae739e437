#!/usr/bin/env bash
# Builds the library that stands in for the CUDA driver and NVRTC in tests, unless it is newer than its sources.
#
# usage: tests/cuda_stand_in/build.sh FILE
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
kernel=$(realpath "$here/../../crates/gpu/src/copy.cu")
into=$1

if ! command -v c++ >/dev/null; then
    echo "a C++ compiler is missing (hint: sudo apt-get install g++)" >&2
    exit 1
fi
newest=$(stat -c %Y "$here"/*.cpp "$here"/*.h "$here/build.sh" "$kernel" | sort -n | tail -n 1)
if [ -f "$into" ] && [ "$(stat -c %Y "$into")" -gt "$newest" ]; then exit 0; fi
mkdir -p "$(dirname "$into")"
# Tests that run at the same time each build one of their own and put it in place whole.
new="$into.$$"
# A GPU refuses words at addresses that they are not aligned to; the processor does not, so the compiler checks.
c++ -std=c++17 -O1 -g -fsanitize=alignment -fsanitize-undefined-trap-on-error -fPIC -shared -fvisibility=hidden -pthread -Wall -Wextra -Wno-unknown-pragmas \
    -DKERNEL="\"$kernel\"" -o "$new" "$here/driver.cpp"
mv -f "$new" "$into"
