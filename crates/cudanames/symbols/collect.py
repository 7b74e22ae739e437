"""Writes the lists of functions that the libraries of CUDA have: `python3 crates/cudanames/symbols/collect.py`.

Names come from the declarations that two crates publish (cudarc and nvml-wrapper-sys, both MIT or Apache-2.0), which cargo fetches
into a folder of its own, and from `additional.txt`, which holds what those lack: names that compilers write into programs,
twins of functions for the default stream of a thread, and old names that are still exported.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CUDARC = "0.19.10"
NVML = "0.10.0"
# The versions of CUDA whose functions a library with the name `.so.13` has. The driver has those of all versions.
FEATURES = ["cuda-13000", "cuda-13010", "cuda-13020", "cuda-13030", "cuda-13040"]
# What a function returns that says how it went; whoever calls any other reads its value as something else.
STATUS = {"cudaError_t", "CUresult", "cublasStatus_t", "nvmlReturn_t"}
MODULES = {"cudart": "runtime", "cuda": "driver", "cublas": "cublas", "cublaslt": "cublaslt"}


def sources() -> dict[str, Path]:
    """Where cargo has put the sources of both crates."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "src").mkdir()
        (root / "src/lib.rs").write_text("")
        (root / "Cargo.toml").write_text(
            '[package]\nname = "names"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n[dependencies]\n'
            f'cudarc = {{ version = "={CUDARC}", default-features = false, features = ["{FEATURES[0]}"] }}\n'
            f'nvml-wrapper-sys = "={NVML}"\n'
        )
        command = ["cargo", "metadata", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"]
        told = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return {package["name"]: Path(package["manifest_path"]).parent for package in json.loads(told)["packages"]}


def of_cudarc(text: str, is_of_all_versions: bool) -> dict[str, str]:
    """Names that a module of cudarc loads for any of the versions, each with what it returns."""
    found = {}
    pattern = re.compile(
        r'^(?P<cfg>#\[cfg\(any\([^\n]*\)\)\]\n)?pub unsafe fn \w+\((?P<arguments>[^{]*?)\)(?: -> (?P<returns>[^{]+?))? \{\n'
        r'.*?load::<_F>\("(?P<name>\w+)"\)',
        re.MULTILINE | re.DOTALL,
    )
    for match in pattern.finditer(text):
        cfg = match["cfg"]
        if is_of_all_versions or cfg is None or any(f'"{feature}"' in cfg for feature in FEATURES):
            found[match["name"]] = (match["returns"] or "()").strip()
    return found


def of_nvml(text: str) -> dict[str, str]:
    """Names that the structure of all functions of NVML has, each with what it returns."""
    fields = re.findall(r"pub (nvml\w+):\s*Result<\s*unsafe extern \"C\" fn\((.*?)::libloading::Error", text, re.DOTALL)
    return {name: returns[0] if (returns := re.findall(r"-> ([^,]+),\s*$", rest)) else "()" for name, rest in fields}


def old_names(names: dict[str, str]) -> dict[str, str]:
    """What functions with a version in their name were called before: such names are exported still."""
    found = {}
    for name, returns in names.items():
        if match := re.fullmatch(r"(\w+?)_v[2-9](_\w+)?", name):
            found[match[1]] = returns
    return found


def additional() -> dict[str, dict[str, str]]:
    """Names of `additional.txt`, by library."""
    found: dict[str, dict[str, str]] = {}
    library = ""
    for line in (HERE / "additional.txt").read_text().splitlines():
        words = line.split("#")[0].split()
        if words and words[0].endswith(":"):
            library = words[0][:-1]
        elif words:
            returns = "()" if words[1:] == ["null"] else "CUresult"
            found.setdefault(library, {})[words[0]] = returns
    return found


def main() -> None:
    """Collects and writes one file a library."""
    folders = sources()
    lists = {}
    for library, module in MODULES.items():
        text = (folders["cudarc"] / f"src/{module}/sys/mod.rs").read_text()
        lists[library] = of_cudarc(text, is_of_all_versions=library == "cuda")
    lists["nvml"] = of_nvml((folders["nvml-wrapper-sys"] / "src/bindings.rs").read_text())
    # cudarc declares a few functions of the driver's profiler in several modules.
    lists["cudart"] = {name: returns for name, returns in lists["cudart"].items() if name.startswith("cuda")}
    for library, more in additional().items():
        lists[library] = more | lists[library]
    for library in ("cuda", "nvml"):
        lists[library] = old_names(lists[library]) | lists[library]
    # The first interface of cuBLAS returns results, not how it went.
    lists["cublas"] = dict.fromkeys(old_names(lists["cublas"]), "()") | lists["cublas"]
    for library, names in lists.items():
        lines = [name if returns in STATUS else f"{name} null" for name, returns in sorted(names.items())]
        head = f"# Written by collect.py out of cudarc {CUDARC}, nvml-wrapper-sys {NVML} and additional.txt.\n"
        (HERE / f"{library}.txt").write_text(head + "\n".join(lines) + "\n")
        print(f"{library}: {len(lines)} names")


if __name__ == "__main__":
    main()
