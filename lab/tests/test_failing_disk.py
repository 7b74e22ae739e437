"""The disk below a pool's directory fails, or is full, under a real file system: what is in the pool is still found and read, and nothing that was acknowledged is lost."""

import pytest
from guests import Guest

# A file system counts on the checksums without asking for them.
MODULES = ("virtio_blk", "ext4", "crc32c_generic", "dm_flakey")
DISK_BYTES = 96 << 20
OBJECTS = 12

WORDS = """
ip link set lo up
export PATH="{folder}:$PATH" XDG_RUNTIME_DIR=/tmp/run XDG_STATE_HOME=/tmp/state HOME=/tmp/home DM_DISABLE_UDEV=1
mkdir -p /tmp/run /tmp/state /tmp/home /tmp/disk && cd /tmp/home || exit 1
sectors=$(blockdev --getsz /dev/vda)
# below TABLE: what lies below the file system from now on.
below() {{ dmsetup suspend --nolockfs disk && dmsetup load disk --table "$1" && dmsetup resume disk; }}
good="0 $sectors linear /dev/vda 0"
failing="0 $sectors flakey /dev/vda 0 0 1 1 error_writes"
dmsetup create disk --table "$good" || exit 1
mkfs.ext4 -q /dev/mapper/disk && mount /dev/mapper/disk /tmp/disk || exit 1
node() {{
    hinterland node --name a --rack one --state /tmp/disk/state --capacity 64M --cache-budget 16M --kv-capacity 4M --json >node.out 2>>node.log & node=$!
    for _ in $(seq 300); do grep -q ready node.out && return; kill -0 $node || return 1; sleep 0.1; done; return 1
}}
# lasts FIRST LAST: these objects are found and have their bytes.
lasts() {{ for number in $(seq $1 $2); do hinterland get object/$number - | cmp - source$number || return 1; done; }}
listed() {{ timeout 30 hinterland ls object/ --json; }}
# refused NAME: a put that is told why, and soon.
refused() {{ timeout 30 hinterland put source1 --name $1 --quiet 2>why; local status=$?; cat why; [ $status = 1 ] && grep -q "hint: .*disk" why; }}
node || {{ cat node.log; exit 1; }}
for number in $(seq {objects}); do
    head -c 100000 /dev/urandom >source$number
    hinterland put source$number --name object/$number --quiet || exit 1
done
sync
"""

# The disk's errors end the file system's journal: only another mount makes it writable.
FAILS = """
below "$failing"
expect "a put is refused with what to do" refused refused/1
for turn in 1 2; do
    expect "all are listed" sh -c 'timeout 30 hinterland ls object/ | grep -c object/ | grep -qx {objects}'
    expect "and have their bytes" lasts 1 {objects}
    expect "the node says so" timeout 30 hinterland status
    # Longer than a lease.
    sleep 12
done
expect "a second put is refused, too" refused refused/2
expect "the node is there" kill -0 $node
below "$good"
kill -INT $node; wait $node
# The memory of the objects is mounted below the state, and is no part of the disk.
memory=$(awk '$3 == "hugetlbfs" && index($2, "/tmp/disk/") {{ print $2 }}' /proc/mounts)
mkdir -p /tmp/aside && mount --move $memory /tmp/aside
umount /tmp/disk && {{ e2fsck -fy /dev/mapper/disk; [ $? -le 1 ]; }} && mount /dev/mapper/disk /tmp/disk && mount --move /tmp/aside $memory
expect "the disk is mended" [ $? = 0 ]
"""

FULL = """
dd if=/dev/zero of=/tmp/disk/rest bs=1M 2>/dev/null; dd if=/dev/zero of=/tmp/disk/rest2 bs=4k 2>/dev/null
# What is removed makes room for what comes next, so these stay; of long names the disk takes few.
head -c 100 source1 >short
long=$(printf 'x%.0s' $(seq 200))
for number in $(seq 2000); do hinterland put short --name more/$number/$long/$long/$long/$long --quiet 2>why || break; done
cat why
expect "what is too much is refused" grep -q "hint: .*disk" why
expect "all are listed" sh -c 'timeout 30 hinterland ls object/ | grep -c object/ | grep -qx {objects}'
expect "and have their bytes" lasts 1 {objects}
expect "the node is there" kill -0 $node
rm /tmp/disk/rest /tmp/disk/rest2
for _ in $(seq 60); do hinterland put source1 --name after/1 --quiet && break; sleep 0.5; done
expect "with room again it goes on" hinterland stat after/1
kill -INT $node; wait $node
"""

AFTER = """
expect "the node starts again" node
expect "nothing that was acknowledged is lost" lasts 1 {objects}
expect "new objects are taken" hinterland put source1 --name object/new --quiet
cat node.log
kill -INT $node; wait $node
tested
"""


@pytest.mark.parametrize("happens", [FAILS, FULL], ids=["fails", "full"])
def test_what_is_in_the_pool_is_found_and_read_while_the_directorys_disk_takes_no_writes(boot, binary, tmp_path, happens):
    disk = tmp_path / "disk"
    with open(disk, "wb") as file:
        file.truncate(DISK_BYTES)
    script = "".join((WORDS, happens, AFTER)).format(folder=binary.parent, objects=OBJECTS)
    machine = ("-drive", f"if=none,id=disk,file={disk},format=raw", "-device", "virtio-blk-pci,drive=disk")
    boot(Guest("a", script, modules=MODULES, machine=machine, memory_mib=1024, wires=()), seconds=400)
