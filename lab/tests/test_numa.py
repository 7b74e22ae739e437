"""Memory that is a NUMA node without processors, as that of a CXL device that the kernel uses: a node lends it when told to."""

from guests import Guest

MACHINE = ("-object", "memory-backend-ram,id=near,size=512M", "-object", "memory-backend-ram,id=far,size=256M",
           "-numa", "node,nodeid=0,cpus=0,memdev=near", "-numa", "node,nodeid=1,memdev=far")
OBJECT_MIB = 64
SCRIPT = """
export PATH="{folder}:$PATH" XDG_RUNTIME_DIR=/tmp/run XDG_STATE_HOME=/tmp/state HOME=/tmp/home
mkdir -p /tmp/run /tmp/state /tmp/home && cd /tmp/home || exit 1
ip link set lo up
taken() {{ awk '/Shmem:|HugePages_Total:/ {{ sum += $3 == "HugePages_Total:" ? $4 * 2048 : $4 }} END {{ print int(sum / 1024) }}' /sys/devices/system/node/node$1/meminfo; }}
expect "the doctor names it" sh -c 'hinterland doctor | grep "NUMA node 1 has memory and no processor"'
head -c {bytes} /dev/urandom >object
for nodes in 1 0,1 0; do
    for kind in base transparent hugetlb; do
        before0=$(taken 0) before1=$(taken 1)
        hinterland node --name here --capacity 128M --cache-budget 4M --kv-capacity 4M --backing $kind --numa $nodes >node.log 2>&1 &
        node=$!
        for _ in $(seq 200); do hinterland status >/dev/null 2>&1 && break; sleep 0.1; done
        hinterland put object --name object --quiet || cat node.log
        got0=$(($(taken 0) - before0)) got1=$(($(taken 1) - before1))
        echo "--numa $nodes --backing $kind: $got0 MiB on node 0, $got1 MiB on node 1"
        case $nodes in
        1) expect "$kind: all lies on node 1" [ $got1 -ge {mib} -a $got0 -lt 16 ] ;;
        0) expect "$kind: all lies on node 0" [ $got0 -ge {mib} -a $got1 -lt 16 ] ;;
        *) expect "$kind: half lies on each" [ $got0 -ge $(({mib} * 3 / 8)) -a $got1 -ge $(({mib} * 3 / 8)) ] ;;
        esac
        hinterland get object back --quiet && expect "$kind: the bytes are right" cmp object back
        rm -f back
        hinterland rm object
        kill -INT $node && wait $node
    done
done
tested
"""


def test_objects_lie_on_the_nodes_that_are_named(boot, binary):
    script = SCRIPT.format(folder=binary.parent, bytes=OBJECT_MIB << 20, mib=OBJECT_MIB)
    outcomes = boot(Guest("here", script, memory_mib=768, machine=MACHINE), seconds=280)
    output = outcomes["here"].output
    print(output)
    assert output.count("the bytes are right") == 9, output
