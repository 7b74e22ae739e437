"""The libraries under CUDA's names with their real core: every one loads, whole, and unmodified programs find what they import."""

import pathlib
import shutil
import subprocess

import pytest

TREE = pathlib.Path(__file__).resolve().parent.parent
# Loads each library that is named, all symbols at once, and says what the loader says.
LOADER = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
        if (!library) { puts(dlerror()); return 1; }
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver && dlsym(driver, "cuInit") && dlvsym(RTLD_DEFAULT, "cudaMalloc", "libcudart.so.13") ? 0 : 2;
}
"""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def libraries(binary, folder):
    """A folder with the libraries, and the paths in it."""
    if not (binary.parent / "libhinterland_cuda.so").exists():
        pytest.skip("there is no libhinterland_cuda.so (hint: cargo build -p hinterland-cuda)")
    place = folder / "libraries"
    told = subprocess.run([binary, "gpu", "libraries", place], check=True, capture_output=True, text=True).stdout
    return place, told.splitlines()


def run(place, *words):
    """Runs a program for which these libraries stand first, with every symbol bound at the start."""
    environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(place), "LD_BIND_NOW": "1"}
    return subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, timeout=60, check=False)


def compiled(folder):
    """The program that loads libraries."""
    (folder / "loader.c").write_text("#define _GNU_SOURCE\n" + LOADER)
    subprocess.run(["cc", folder / "loader.c", "-o", folder / "loader", "-ldl"], check=True)
    return folder / "loader"


def test_every_library_loads_with_the_real_core(libraries, folder):
    place, written = libraries
    assert [pathlib.Path(path).name for path in written] == [
        "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcuda.so.1", "libnvidia-ml.so.1",
        "libhinterland_cuda.so"]
    outcome = run(place, compiled(folder), *written, "libcuda.so", "libnvidia-ml.so")
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


def test_writing_the_libraries_again_changes_nothing(binary, libraries):
    place, written = libraries
    before = [pathlib.Path(path).lstat().st_mtime_ns for path in written]
    subprocess.run([binary, "gpu", "libraries", place], check=True, capture_output=True)
    assert [pathlib.Path(path).lstat().st_mtime_ns for path in written] == before


def test_the_linker_takes_them_for_the_vendors(libraries, folder):
    """A program is linked as against the vendor's, and the loader has no word to say about its versions."""
    place, _ = libraries
    (folder / "program.c").write_text("int cudaRuntimeGetVersion(int *);\nint cublasGetVersion_v2(void *, int *);\n"
                                      "int main(void) { int version = 0; cudaRuntimeGetVersion(&version); return version / 1000 != 13; }\n")
    subprocess.run(["cc", folder / "program.c", "-o", folder / "program", f"-L{place}", "-l:libcudart.so.13", "-l:libcublas.so.13",
                    f"-Wl,-rpath-link,{place}", "-Wl,--no-as-needed"], check=True)
    versions = subprocess.run(["readelf", "-VW", folder / "program"], check=True, capture_output=True, text=True).stdout
    assert "libcudart.so.13" in versions
    outcome = run(place, folder / "program")
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_a_program_of_the_real_compiler_starts_with_them(libraries, folder):
    """What nvcc links against the vendor's own runtime."""
    named = TREE / ".cache/cuda/nvcc"
    if not named.exists():
        pytest.skip("nvcc is not installed (hint: tests/cuda-toolchain .cache/cuda)")
    nvcc = pathlib.Path(named.read_text().strip())
    place, _ = libraries
    (folder / "program.cu").write_text("#include <cuda_runtime.h>\n__global__ void kernel(int *p) { *p = 1; }\n"
                                       "int main() { int version = 0; cudaRuntimeGetVersion(&version); return version / 1000 != 13; }\n")
    vendor = folder / "vendor"
    vendor.mkdir()
    (vendor / "libcudart.so").symlink_to(nvcc.parent.parent / "lib/libcudart.so.13")
    subprocess.run([nvcc, "-arch=sm_90", "-cudart", "shared", "-L", vendor, "-L", nvcc.parent.parent / "lib", folder / "program.cu",
                    "-o", folder / "program"], check=True, env={"PATH": f"{nvcc.parent}:/usr/bin:/bin"})
    outcome = run(place, folder / "program")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    missing = subprocess.run(["ldd", "-r", folder / "program"], env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(place)},
                             capture_output=True, text=True, check=True)
    assert "undefined symbol" not in missing.stdout + missing.stderr and "not found" not in missing.stdout, missing.stdout
