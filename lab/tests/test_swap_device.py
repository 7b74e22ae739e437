"""Swap on far memory: a kernel with the module nbd swaps on `hinterland swap serve`, and every byte comes back."""

import pathlib
import subprocess

import guests
import packages
import pytest
from guests import Guest

MODULES = ("nbd", "zram", "virtio_blk", "lzo_rle")
SOURCE = pathlib.Path(guests.HERE) / "guest/swapped.c"
# A guest's disk, for the kernel's own swap.
DISK_BYTES = 128 << 20

WORDS = """
far={binary}
export XDG_RUNTIME_DIR=/tmp/run HOME=/tmp
mkdir -p /tmp/run
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir -p /sys/fs/cgroup/app
echo 20M >/sys/fs/cgroup/app/memory.max
count() {{ awk -v name=$1 '$1 == name {{ print $2 }}' /proc/vmstat; }}
limited() {{ bash -c 'echo $$ >/sys/fs/cgroup/app/cgroup.procs && exec "$@"' limited "$@"; }}
# served LOG OPTIONS...: a server in the background, and returns when it is ready
served() {{
    local log=$1; shift
    $far swap serve --json "$@" >$log 2>$log.words & server=$!
    until grep -q ready $log; do kill -0 $server || {{ cat $log $log.words; return 1; }}; sleep 0.1; done
}}
# swap NAME: the program in a control group that is much smaller, on whatever swap is on
swap() {{
    local before=$(count pswpout)
    limited {swapped} 48 {rounds} >/tmp/said || {{ cat /tmp/said; dmesg | tail -20; return 1; }}
    echo "$1: $(tail -1 /tmp/said), $(($(count pswpout) - before)) pages out"
    [ $(count pswpout) -gt $before ]
}}
"""


@pytest.fixture(scope="session")
def swapped():
    """The program that has more memory than there is."""
    folder = packages.CACHE
    program = folder / "swapped"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", program, SOURCE], check=True)
    return program


def words(binary, swapped, rounds=1):
    """What scripts of this file begin with."""
    return WORDS.format(binary=binary, swapped=swapped, rounds=rounds)


def test_a_static_program_larger_than_its_memory_finds_every_byte_and_disk_and_zram_stand_beside(boot, binary, swapped, tmp_path):
    disk = tmp_path / "disk"
    with open(disk, "wb") as file:
        file.truncate(DISK_BYTES)
    script = words(binary, swapped) + """
served /tmp/log --size 128M; expect "a server is ready" [ $? = 0 ]
expect "the kernel swaps on it" $far swap attach
swapon --show
swap far; expect "every byte is right on far memory" [ $? = 0 ]
expect "detaching brings it back" $far swap detach
expect "nothing is swapped on any more" sh -c '! grep -q nbd /proc/swaps'
kill $server; wait $server; expect "the server ends well" [ $? = 0 ]
tail -1 /tmp/log
grep -q '"lost_bytes":0,' /tmp/log; expect "nothing was lost" [ $? = 0 ]
echo 128M >/sys/block/zram0/disksize; mkswap /dev/zram0 >/dev/null; swapon /dev/zram0; swap zram; swapoff /dev/zram0
mkswap /dev/vda >/dev/null; swapon /dev/vda; swap disk; swapoff /dev/vda
tested
"""
    machine = ("-drive", f"if=none,id=swap,file={disk},format=raw", "-device", "virtio-blk-pci,drive=swap")
    said = boot(Guest("a", script, modules=MODULES, machine=machine, memory_mib=512, wires=()))["a"].output
    assert "0 wrong" in said.split("far: ", 1)[1], said
    assert "zram: " in said and "disk: " in said, said


def test_a_server_that_is_killed_ends_programs_and_no_byte_is_wrong(boot, binary, swapped):
    script = words(binary, swapped) + """
served /tmp/log --size 128M; expect "a server is ready" [ $? = 0 ]
expect "the kernel swaps on it" $far swap attach --timeout 10
limited """ + str(swapped) + """ 48 1000 >/tmp/said & program=$!
until grep -q filled /tmp/said; do kill -0 $program || break; sleep 0.1; done
kill -9 $server
wait $program; status=$?
echo "the program ended with $status: $(tail -1 /tmp/said)"
# Its handler has no stack any more if that is lost, too: then the kernel ends it with SIGSEGV.
expect "the program is told, and sees no wrong byte" [ $status = 7 -o $status = 135 -o $status = 139 ]
expect "and has said nothing of wrong bytes" sh -c '! grep -q wrong /tmp/said'
expect "the dead device is taken away" $far swap detach
served /tmp/log2 --size 128M; expect "another server takes its place" [ $? = 0 ]
expect "and is swapped on" $far swap attach
swap again; expect "every byte is right on the second" [ $? = 0 ]
expect "detaching brings it back" $far swap detach
tested
"""
    said = boot(Guest("a", script, modules=MODULES, memory_mib=512, wires=()))["a"].output
    assert "0 wrong" in said.split("again: ", 1)[1], said


def test_a_guest_swaps_on_the_memory_of_another_one(boot, binary, swapped):
    script = words(binary, swapped) + """
network_up || exit 1
if [ $LAB_NUMBER = 1 ]; then
    served /tmp/log --size 128M --listen 0.0.0.0:10809 --serve-other-hosts; expect "a server is ready for others" [ $? = 0 ]
    tell listening
    await done 200; kill $server; wait $server; cat /tmp/log
else
    await listening 200 || exit 1
    expect "the kernel swaps on it" $far swap attach 10.0.0.1:10809
    swap other; expect "every byte is right" [ $? = 0 ]
    expect "detaching brings it back" $far swap detach
    tell done
fi
tested
"""
    chosen = [Guest(name, script, modules=MODULES, memory_mib=512) for name in ("memory", "program")]
    boot(*chosen)
