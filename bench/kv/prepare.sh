#!/bin/sh
# Installs the peer of the kv benches, Mooncake's store, in .cache/bench/mooncake (or below the folder named). A second
# time takes a second.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=$(mkdir -p "${1:-$here/../../.cache/bench}" && cd "${1:-$here/../../.cache/bench}" && pwd)
python="$cache/mooncake/bin/python"
if [ ! -x "$python" ]; then
    python3 -m venv "$cache/mooncake"
fi
"$python" -c 'import mooncake.store' 2>/dev/null || "$python" -m pip install -q mooncake-transfer-engine-non-cuda==0.3.13.post1 numpy
if ! "$python" -c 'import ctypes; ctypes.CDLL("libibverbs.so.1")' 2>/dev/null; then
    echo "Mooncake's client needs a library that is missing (hint: apt-get install -y libibverbs1)" >&2
    exit 1
fi
echo "ready in $cache"
