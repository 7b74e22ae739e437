"""The RDMA fabric on soft-RoCE: the fabric's own tests, over devices."""

import json
import os
import pathlib
import subprocess

import pytest
from guests import RDMA_MODULES, Guest
from packages import TREE


@pytest.fixture(scope="session")
def test_binaries():
    """The built tests of the fabric: those inside the crate, and those of its face."""
    command = ["cargo", "test", "-p", "hinterland-fabric", "--no-run", "--message-format=json", "--lib", "--test", "tcp"]
    said = subprocess.run(command, cwd=TREE, stdout=subprocess.PIPE, check=True, text=True, env=os.environ).stdout
    messages = [json.loads(line) for line in said.splitlines()]
    built = {one["target"]["name"]: pathlib.Path(one["executable"]) for one in messages if one.get("executable")}
    return built["hinterland_fabric"], built["tcp"]


def results(output):
    """How many tests passed and failed, by the closing lines of cargo's tests."""
    lines = [line.split() for line in output.splitlines() if line.startswith("test result: ")]
    return sum(int(line[3]) for line in lines), sum(int(line[5]) for line in lines)


def test_the_fabric_passes_its_tests_over_soft_roce(boot, test_binaries):
    inside, face = test_binaries
    script = f"""
network_up && rxe_up || exit 1
export HINTERLAND_TEST_RDMA=1
{inside} --test-threads 1 rdma:: 2>&1; first=$?
{face} --test-threads 1 2>&1; second=$?
exit $((first + second))
"""
    outcome = boot(Guest("a", script, modules=RDMA_MODULES, memory_mib=768), seconds=240)["a"]
    passed, failed = results(outcome.output)
    assert failed == 0 and passed > 30, outcome.output
    assert "skipped" not in outcome.output
