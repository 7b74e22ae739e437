#!/bin/sh
# Builds llama.cpp's libraries from the source package of llama-cpp-python into the folder named, for this processor.
set -eu
folder=$1
mkdir -p "$folder"
if [ -e "$folder/build/bin/libllama.so" ]; then
    exit 0
fi
if [ ! -d "$folder/source" ]; then
    python3 -m pip download -q --no-deps --no-binary llama-cpp-python -d "$folder" llama-cpp-python==0.3.36
    tar -xzf "$folder"/llama_cpp_python-*.tar.gz -C "$folder"
    mv "$folder"/llama_cpp_python-*/vendor/llama.cpp "$folder/source"
    rm -rf "$folder"/llama_cpp_python-*
fi
cmake -S "$folder/source" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=ON \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF
nice -n 10 cmake --build "$folder/build" -j "$(nproc)" --target llama
