"""YCSB's core, as Maven Central has it, on the hash table of examples/table from two racks: workloads A to F without one failed operation."""

import re
import shutil
import subprocess

import pytest
from conftest import TREE
from faults import FULL
from test_table import program, racks  # noqa: F401

FOLDER = TREE / ".cache/ycsb"
RECORDS, OPERATIONS = 2000, 5000
MIX = {
    "a": {"read": 0.5, "update": 0.5}, "b": {"read": 0.95, "update": 0.05}, "c": {"read": 1}, "d": {"read": 0.95, "insert": 0.05},
    "e": {"scan": 0.95, "insert": 0.05}, "f": {"read": 0.5, "readmodifywrite": 0.5},
}
needs_java = pytest.mark.skipif(
    not FULL or not all(map(shutil.which, ["mvn", "javac"])),
    reason="./check --full only, with Maven (apt-get install maven default-jdk-headless)",
)


def ycsb(ports, workload, phase, seed_records):
    """Runs YCSB's client; returns how often each status of each operation came."""
    kinds = ("read", "update", "insert", "scan", "readmodifywrite")
    mix = [f"{kind}proportion={MIX[workload].get(kind, 0)}" for kind in kinds]
    properties = [
        "workload=site.ycsb.workloads.CoreWorkload", f"recordcount={seed_records}", f"operationcount={OPERATIONS}", *mix,
        "insertorder=ordered", "zeropadding=12", "dataintegrity=true", "fieldcount=3", "fieldlength=50", "maxscanlength=20",
        f"requestdistribution={'latest' if workload == 'd' else 'zipfian'}", f"ports={','.join(map(str, ports))}",
    ]
    command = ["java", "-cp", f"{FOLDER}/jars/*:{FOLDER}/classes", "site.ycsb.Client", phase, "-db", "StringStore", "-threads", "4"]
    command += [word for entry in properties for word in ("-p", entry)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert outcome.returncode == 0, outcome.stderr
    return {(kind, status): int(count) for kind, status, count in re.findall(r"\[([A-Z-]+)\], Return=([A-Z_]+), (\d+)", outcome.stdout)}


@needs_java
@pytest.mark.parametrize("workload", sorted(MIX))
def test_no_operation_of_ycsb_fails_and_every_record_read_is_right(racks, workload):
    subprocess.run([TREE / "tests/ycsb/prepare", FOLDER], check=True)
    a, b, serve = racks
    ports = [serve(node)[1] for node in (a, b)]
    loaded = ycsb(ports, workload, "-load", RECORDS)
    assert loaded == {("INSERT", "OK"): RECORDS}
    done = ycsb(ports, workload, "-t", RECORDS)
    assert done and all(status == "OK" for _, status in done), done
    if "read" in MIX[workload]:
        # YCSB compares every field that it reads with the one that belongs to the key.
        assert done[("VERIFY", "OK")] == done[("READ", "OK")], done
