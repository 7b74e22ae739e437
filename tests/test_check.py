"""`./check` itself: what it adds up of the words of cargo and pytest, and that the benches it runs are there."""

import pathlib
import re
import subprocess

import pytest

TREE = pathlib.Path(__file__).resolve().parent.parent
CHECK = (TREE / "check").read_text(encoding="utf-8")

CARGO = "test result: ok. 65 passed; 0 failed; 2 ignored; 0 measured; 7 filtered out; finished in 0.01s"
CARGO_FAILED = "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s"
REASON = "SKIPPED [3] tests/test_vllm.py:29: takes a minute (./check --full)"


def function(name):
    """A function of the script, which runs everything when it is read as a whole."""
    found = re.search(rf"^{name}\(\) \{{\n.*?^\}}\n", CHECK, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[0]


@pytest.mark.parametrize(("lines", "counts"), [
    ([], "0 0 0"),
    ([CARGO], "65 0 2"),
    ([CARGO, "warning: 1 failed", CARGO_FAILED], "68 1 2"),
    ([REASON, "120 passed, 3 skipped in 65.12s (0:01:05)"], "120 0 3"),
    (["1 failed, 120 passed, 3 skipped, 2 errors in 65.12s (0:01:05)"], "120 3 3"),
    (["3 skipped in 0.02s"], "0 0 3"),
    (["==== 2 passed, 1 skipped in 1.20s ====", CARGO], "67 0 3"),
])
def test_passed_failed_and_skipped_are_added_up(folder, lines, counts):
    log = folder / "log"
    log.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = ["bash", "-c", f"{function('count_tests')} count_tests \"$1\"", "check", log]
    assert subprocess.run(command, text=True, capture_output=True, check=True).stdout.strip() == counts


def test_the_benches_of_the_last_step_are_there(binary):
    named = re.findall(r"for name in (.*?); do", function("step_bench"))
    listed = subprocess.run([binary, "bench", "list"], text=True, capture_output=True, check=True).stdout
    known = {line.split()[0] for line in listed.splitlines() if line.strip()}
    assert named
    assert {name for line in named for name in line.split()} <= known, listed
