"""The RDMA fabric on soft-RoCE: the fabric's own tests, and those of regions and KV blocks of other racks, over devices."""

import json
import os
import pathlib
import re
import subprocess

import pytest
from guests import RDMA_MODULES, Guest
from packages import TREE


def built(package, *targets):
    """The built tests of a package, in the order of their targets; `--lib` first gives those inside the crate."""
    words = [word for target in targets for word in (["--lib"] if target == "--lib" else ["--test", target])]
    command = ["cargo", "test", "-p", package, "--no-run", "--message-format=json", *words]
    said = subprocess.run(command, cwd=TREE, stdout=subprocess.PIPE, check=True, text=True, env=os.environ).stdout
    messages = [json.loads(line) for line in said.splitlines()]
    found = {one["target"]["name"]: pathlib.Path(one["executable"]) for one in messages if one.get("executable")}
    return [found[package.replace("-", "_") if target == "--lib" else target] for target in targets]


def results(output):
    """How many tests passed and failed, by the closing lines of cargo's tests."""
    lines = [line.split() for line in output.splitlines() if line.startswith("test result: ")]
    return sum(int(line[3]) for line in lines), sum(int(line[5]) for line in lines)


@pytest.fixture(scope="session")
def fabric_tests():
    return built("hinterland-fabric", "--lib", "tcp")


@pytest.fixture(scope="session")
def node_tests():
    return built("hinterland-node", "regions", "kv_racks")


def test_the_fabric_passes_its_tests_over_soft_roce(boot, fabric_tests):
    inside, face = fabric_tests
    script = f"""
network_up && rxe_up && network_up eth1 1 && rxe_up rxe1 eth1 || exit 1
export HINTERLAND_TEST_RDMA=1
{inside} --test-threads 1 rdma:: 2>&1; first=$?
{face} --test-threads 1 2>&1; second=$?
exit $((first + second))
"""
    guest = Guest("a", script, wires=("spine", "other"), modules=RDMA_MODULES, memory_mib=768)
    outcome = boot(guest, seconds=280)["a"]
    passed, failed = results(outcome.output)
    assert failed == 0 and passed > 30, outcome.output
    assert "skipped" not in outcome.output


# Names of tests, and how many packets their bytes are at the least: fewer, and they did not come by RDMA.
REGIONS = ("a_spread_region", "a_page_moves_with", "reads_never_go_back")
BLOCKS = ("blocks_of_the_other_rack", "blocks_that_leave_their_home", "readers_in_both_racks", "bytes_that_changed")


@pytest.mark.parametrize(("place", "names", "packets"), [(0, REGIONS, 5000), (1, BLOCKS, 500)], ids=["regions", "blocks"])
def test_memory_of_other_racks_passes_its_tests_over_soft_roce(boot, node_tests, place, names, packets):
    script = f"""
network_up && rxe_up || exit 1
sent() {{ cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }}
before=$(sent)
{node_tests[place]} --test-threads 1 --nocapture {" ".join(names)} 2>&1; status=$?
echo "packets: $(($(sent) - before))"
exit $status
"""
    outcome = boot(Guest("a", script, modules=RDMA_MODULES, memory_mib=1024), seconds=280)["a"]
    passed, failed = results(outcome.output)
    assert failed == 0 and passed == len(names), outcome.output
    assert int(re.search(r"^packets: (\d+)$", outcome.output, re.M)[1]) >= packets, outcome.output
