"""Measures one-sided reads and writes between two guests, ours and perftest's in turn, over soft-RoCE."""

from guests import RDMA_MODULES, Guest, boot

SCRIPT = """
network_up && rxe_up || exit 1
export XDG_RUNTIME_DIR=/tmp/run HOME=/tmp HINTERLAND_BENCH_PEER=10.0.0.1:18500
mkdir -p /tmp/run
meet network || exit 1
if [ $LAB_NUMBER = 1 ]; then
    {binary} bench rack-rw-peer & peer=$!
    until grep -q ':4844 .* 0A ' /proc/net/tcp; do sleep 0.05; kill -0 $peer || exit 1; done
    tell listening
    await done {seconds}; status=$?
    kill $peer 2>/dev/null; exit $status
else
    await listening || exit 1
    timeout {seconds} {binary} bench rack-rw --json {options} >/tmp/report; status=$?
    echo report:; cat /tmp/report
    tell done; exit $status
fi
"""
SECONDS = 900


def rack_rw(binary, rounds=5, quick=False):
    """Outcomes of both guests; the first has the memory, the second measures."""
    options = f"--rounds {rounds}" + (" --quick" if quick else "")
    script = SCRIPT.format(binary=binary, options=options, seconds=SECONDS - 30)
    return boot([Guest(name, script, memory_mib=512, modules=RDMA_MODULES) for name in ("memory", "reader")], SECONDS)


def report(outcomes):
    """The JSON object that the bench printed."""
    return outcomes["reader"].output.split("report:\n", 1)[1]
