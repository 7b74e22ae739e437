"""Four hosts in two racks, one pool: the two hosts of a rack share memory, and the racks read each other's objects and regions by RDMA.

Bytes under locks are asked for, and not the way on which they come.
"""

import contextlib
import os
import pathlib
import subprocess

import pytest
from guests import HERE, RDMA_MODULES, Guest
from packages import TREE

# Each part has room for the objects of its host.
SHARED_BYTES = 16 << 20
PROGRAM = HERE / "guest/four_hosts.py"
# TCP has a wire of its own (eth0), so that what comes on it is counted apart from RDMA.
SCRIPT = """
network_up eth0 0 && network_up eth1 1 && rxe_up rxe0 eth1 || exit 1
for device in /sys/bus/pci/devices/*; do
    [ "$(cat $device/vendor)$(cat $device/device)" = 0x1af40x1110 ] && echo 1 >$device/enable && memory=$device/resource2_wc
done
export PATH="{folder}:$PATH" XDG_RUNTIME_DIR=/tmp/run XDG_STATE_HOME=/tmp/state HOME=/tmp/home HINTERLAND_KEY_FILE=/tmp/home/pool.key
mkdir -p /tmp/run /tmp/state /tmp/home && cd /tmp/home || exit 1
head -c 64 /dev/zero | tr '\\0' a >pool.key
if [ $LAB_NUMBER -le 2 ]; then rack=north; else rack=south; fi
join=
if [ $LAB_NUMBER != 1 ]; then
    await up 120 >/dev/null || exit 1
    join="--join 10.0.0.1:7401"
fi
# An emulated host may stand still for longer than a lease of 3 s; and pages that move would make near ones of far ones.
hinterland node --name $LAB_NAME --rack $rack --listen 0.0.0.0:7401 --advertise 10.0.0.$LAB_NUMBER:7401 --key pool.key $join \\
    --capacity 32M --cache-budget 16M --kv-capacity 8M --kv-remote-wait 10000 --lease 20 --hot off \\
    --coherence software --shelf $((2 - LAB_NUMBER % 2))/2:$memory {options} >node.log 2>&1 &
node=$!
for _ in $(seq 600); do hinterland status >/dev/null 2>&1 && break; sleep 0.1; done
tell up
members() {{ for _ in $(seq 400); do [ $(hinterland status --json 2>/dev/null | grep -o '"up":true' | wc -l) = 4 ] && return; sleep 0.1; done; hinterland status; cat node.log; return 1; }}
expect "four hosts are members" members
meet members 120
PYTHONPATH={tree}/python {python} {program}; status=$?
[ $status = 0 ] || cat node.log
expect "the program ended well" [ $status = 0 ]
expect "all copies are right" hinterland verify --all
expect "nobody holds a lock" sh -c 'hinterland locks 2>&1 | grep "nobody holds a lock"'
expect "four hosts are members still" members
expect "the node has seen no problem" sh -c 'hinterland status --json | grep "\\"problems\\":\\[\\]"'
meet looked 120
kill -INT $node; wait $node; expect "the node ends well" [ $? = 0 ]
grep -i "panicked\\|wrong" node.log && exit 1
tested
"""


@pytest.fixture(scope="session")
def python():
    """The interpreter of the tree, when it finds the package's compiled module."""
    subprocess.run([TREE / "python/build.sh"], check=True)
    return TREE / ".cache/venv/bin/python"


@contextlib.contextmanager
def shared_memory(rack):
    """QEMU's words for a device that is the same memory in all guests that have it, and its file."""
    memory = pathlib.Path("/dev/shm") / f"lab-{rack}-{os.getpid()}"
    memory.write_bytes(bytes(SHARED_BYTES))
    try:
        yield memory, ("-object", f"memory-backend-file,id=shared,mem-path={memory},size={SHARED_BYTES},share=on",
                       "-device", "ivshmem-plain,memdev=shared")
    finally:
        memory.unlink()


def test_four_hosts_in_two_racks_are_one_pool_by_shared_memory_and_rdma(boot, binary, python):
    script = SCRIPT.format(folder=binary.parent, tree=TREE, python=python, program=PROGRAM, options="")
    with shared_memory("north") as (north, north_device), shared_memory("south") as (south, south_device):
        devices = {"a": north_device, "b": north_device, "c": south_device, "d": south_device}
        outcomes = boot(*[Guest(name, script, wires=("spine", "rdma"), modules=RDMA_MODULES, memory_mib=512, machine=device)
                          for name, device in devices.items()], seconds=280)
        # Each host has stored into its part.
        for memory in (north, south):
            bytes_there = memory.read_bytes()
            assert [bytes_there[start:start + 8] for start in (0, SHARED_BYTES // 2)] == [b"HLSHELF1"] * 2
    for one in outcomes.values():
        assert "WRONG" not in one.output and one.output.count(" right, 0 wrong") == 2, one.output
