"""Documents that can be run are run: the quick start of the README, and the generated reference."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

TREE = pathlib.Path(__file__).resolve().parent.parent


def quick_start():
    """The commands of the README's quick start, joined where a line goes on."""
    text = (TREE / "README.md").read_text(encoding="utf-8")
    section = text.split("## Quick start", 1)[1]
    return re.search(r"```sh\n(.*?)```", section, re.DOTALL).group(1)


def test_the_quick_start_of_the_readme_works(binary, folder, make_file):
    make_file("model.gguf", 3 << 20)
    script = quick_start().replace("/tmp/hl", str(folder / "hl"))
    kept = [line for line in script.splitlines() if not line.startswith(("cargo ", "hinterland top"))]
    kept = [line if not line.endswith("&") else f"{line[:-1]} > node.log 2>&1 &\nsleep 2" for line in kept]
    script = "\n".join(["set -e", *kept]).replace("$PWD/target/release", str(binary.parent))
    script = re.sub(r"hinterland doctor.*", "hinterland doctor || true", script)
    process = subprocess.Popen(["bash", "-c", script], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True, env={**os.environ, "NO_COLOR": "1"})
    try:
        output, words = process.communicate(timeout=60)
    finally:
        # The whole group: the nodes were started in the background of the script.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        while list((folder / "hl").glob("*.sock")) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert process.returncode == 0, words
    assert "models/small" in output
    assert "b'" in output, "the program under run printed the first bytes"


def test_the_reference_is_what_the_binary_says(binary):
    made = subprocess.run([str(binary), "generate", "reference"], capture_output=True, text=True, check=True).stdout
    kept = (TREE / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert kept.strip() == made.strip(), "hint: cargo xtask docs"


def test_the_aims_are_shown_beside_the_newest_figures():
    made = subprocess.run([sys.executable, str(TREE / "bench/record.py"), "aims"], capture_output=True, text=True, check=True).stdout
    kept = (TREE / "docs/reference/aims.md").read_text(encoding="utf-8")
    assert kept == made, "hint: bench/record.py aims > docs/reference/aims.md"
