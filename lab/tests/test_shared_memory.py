"""Memory that two guests share: a device of their machines that is one file of the host."""

import os
import pathlib

import test_rdma
from guests import Guest

SHARED_BYTES = 1 << 20


def test_two_guests_speak_through_memory_that_they_share(boot, tmp_path):
    ring, = test_rdma.built("hinterland-ring", "two_hosts")
    memory = pathlib.Path("/dev/shm") / f"lab-shared-{os.getpid()}"
    memory.write_bytes(bytes(SHARED_BYTES))
    device = ("-object", f"memory-backend-file,id=shared,mem-path={memory},size={SHARED_BYTES},share=on",
              "-device", "ivshmem-plain,memdev=shared")
    script = f"""
export HINTERLAND_TEST_END=$LAB_NAME
for device in /sys/bus/pci/devices/*; do
    [ "$(cat $device/vendor)$(cat $device/device)" = 0x1af40x1110 ] && echo 1 >$device/enable && HINTERLAND_TEST_MEMORY=$device/resource2_wc
done
export HINTERLAND_TEST_MEMORY
ls -l $HINTERLAND_TEST_MEMORY || exit 1
exec {ring} --nocapture
"""
    try:
        outcomes = boot(*[Guest(name, script, machine=device) for name in ("answer", "ask")], seconds=150)
        # The session is in the host's file: both guests really used it.
        assert memory.read_bytes()[:8] == b"HLRING01"
    finally:
        memory.unlink()
    assert all("1 passed" in one.output for one in outcomes.values()), outcomes
