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
# What this processor has, named one by one: "native" would also use AMX, which virtual machines show and then refuse.
options=-DGGML_NATIVE=OFF
for pair in avx:AVX avx2:AVX2 fma:FMA f16c:F16C bmi2:BMI2 avx512f:AVX512 avx512_vnni:AVX512_VNNI; do
    if grep -qw "${pair%:*}" /proc/cpuinfo; then
        options="$options -DGGML_${pair#*:}=ON"
    fi
done
cmake -S "$folder/source" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release $options -DBUILD_SHARED_LIBS=ON \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF
nice -n 10 cmake --build "$folder/build" -j "$(nproc)" --target llama
