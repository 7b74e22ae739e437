"""Objects of one rack on two guests that share memory: put on one, mapped and read on the other without the network, under `--coherence software`."""

import os
import pathlib

from guests import Guest

OBJECTS = 6
OBJECT_BYTES = 1 << 20
# Each part has room for seven such objects, so the second six take the room of the first.
SHARED_BYTES = 16 << 20
BEGIN = """
network_up || exit 1
{find}
export PATH="{folder}:$PATH" XDG_RUNTIME_DIR=/tmp/run XDG_STATE_HOME=/tmp/state HOME=/tmp/home HINTERLAND_KEY_FILE=/tmp/home/pool.key
mkdir -p /tmp/run /tmp/state /tmp/home && cd /tmp/home || exit 1
head -c 64 /dev/zero | tr '\\0' a >pool.key
members() {{ for _ in $(seq 400); do [ $(hinterland status --json 2>/dev/null | grep -o '"rack":"one"' | wc -l) -ge 2 ] && return; sleep 0.1; done; hinterland status; cat node.log; return 1; }}
node() {{ hinterland node --name $LAB_NAME --rack one --listen 0.0.0.0:7401 --advertise 10.0.0.$LAB_NUMBER:7401 --key pool.key --capacity 32M --cache-budget 32M --kv-capacity 4M --coherence software --shelf $LAB_NUMBER/2:$memory "$@" >node.log 2>&1 & }}
"""
# Memory of the guests' PCI devices.
FIND_PCI = """
for device in /sys/bus/pci/devices/*; do
    [ "$(cat $device/vendor)$(cat $device/device)" = 0x1af40x1110 ] && echo 1 >$device/enable && memory=$device/resource2_wc
done
"""
# A DIMM of both guests that lasts: one makes it a device of memory, the other looks at it again.
FIND_DAX = """
if [ $LAB_NUMBER = 1 ]; then
    ndctl create-namespace --force --reconfig namespace0.0 --mode devdax --map mem || exit 1
    tell made
else
    await made 120 >/dev/null || exit 1
    ndctl disable-region all && ndctl enable-region all || exit 1
fi
memory=/dev/dax0.0
for _ in $(seq 100); do [ -c $memory ] && break; sleep 0.1; done
ls -l $memory || exit 1
"""
# It is recognised, and the words say how it is given to a node.
DOCTOR = """
expect "doctor says what the device is for" sh -c 'hinterland doctor | grep "/dev/dax0.0: memory of a device: --shelf PART/PARTS:/dev/dax0.0"'
"""
HOME = """{begin}
{before}
node
for _ in $(seq 600); do hinterland status >/dev/null 2>&1 && break; sleep 0.1; done
tell up
expect "both hosts are members" members
for turn in 1 2; do
    for number in $(seq {objects}); do
        head -c {bytes} /dev/urandom >/shared/$turn-$number
        hinterland put /shared/$turn-$number --name $turn/$number --quiet --rack one || cat node.log
    done
    tell put$turn; await read$turn 120 >/dev/null || exit 1
    for number in $(seq {objects}); do hinterland rm $turn/$number; done
done
expect "every object had room on the shelf" sh -c '! grep -q "over the network" node.log'
cat node.log
tell done
tested
"""
READER = """{begin}
{before}
await up 120 >/dev/null || exit 1
node --join 10.0.0.1:7401
expect "both hosts are members" members
for turn in 1 2; do
    await put$turn 120 >/dev/null || exit 1
    for number in $(seq {objects}); do
        expect "object $turn/$number is right" hinterland run -- cmp /shared/$turn-$number /pool/$turn/$number
    done
    tell read$turn
done
hinterland status | grep shelf
expect "all bytes were loaded" sh -c 'hinterland status | grep -q "; {all} bytes loaded from the shelf"'
expect "none came over the network" sh -c 'hinterland status --json | grep -q "\\"network_received_bytes\\":0[,}}]"'
cat node.log; await done 60 >/dev/null
tested
"""


def put_and_load(boot, binary, machine, find, before="", modules=()):
    """Runs both guests; returns what they said."""
    words = {"begin": BEGIN.format(folder=binary.parent, find=find), "objects": OBJECTS, "bytes": OBJECT_BYTES, "all": 2 * OBJECTS * OBJECT_BYTES, "before": before}
    guests = [Guest(name, script.format(**words), machine=machine, modules=("fuse", *modules), memory_mib=512)
              for name, script in (("first", HOME), ("second", READER))]
    outcomes = boot(*guests, seconds=280)
    print(outcomes["first"].output, outcomes["second"].output)
    return outcomes["first"].output, outcomes["second"].output


def test_objects_are_put_on_one_host_and_loaded_on_the_other(boot, binary):
    memory = pathlib.Path("/dev/shm") / f"lab-shelf-{os.getpid()}"
    memory.write_bytes(bytes(SHARED_BYTES))
    device = ("-object", f"memory-backend-file,id=shared,mem-path={memory},size={SHARED_BYTES},share=on",
              "-device", "ivshmem-plain,memdev=shared")
    try:
        first, second = put_and_load(boot, binary, device, FIND_PCI)
        heads = [memory.read_bytes()[start:start + 8] for start in (0, SHARED_BYTES // 2)]
    finally:
        memory.unlink()
    # Both parts are in the host's file, so both guests really used it.
    assert heads == [b"HLSHELF1"] * 2
    assert "2 right, 0 wrong" in first, first
    assert f"{2 * OBJECTS + 3} right, 0 wrong" in second, second


# The kernel takes such memory in steps of 128 MiB.
DIMM_BYTES = 128 << 20
DIMM_MODULES = ("nfit", "nd_pmem", "dax_pmem", "device_dax")


def test_a_device_of_memory_is_a_shelf_of_two_hosts_and_doctor_knows_it(boot, binary):
    memory = pathlib.Path("/dev/shm") / f"lab-dimm-{os.getpid()}"
    with open(memory, "wb") as file:
        file.truncate(DIMM_BYTES)
    device = ("-machine", "nvdimm=on", "-m", "512M,slots=2,maxmem=2G",
              "-object", f"memory-backend-file,id=dimm,mem-path={memory},size={DIMM_BYTES},share=on", "-device", "nvdimm,memdev=dimm")
    try:
        first, second = put_and_load(boot, binary, device, FIND_DAX, before=DOCTOR, modules=DIMM_MODULES)
        # The kernel keeps the beginning of the DIMM for itself; a page of the device begins each part.
        heads = memory.read_bytes().count(b"HLSHELF1")
    finally:
        memory.unlink()
    assert heads >= 2
    assert "3 right, 0 wrong" in first, first
    assert f"{2 * OBJECTS + 4} right, 0 wrong" in second, second
