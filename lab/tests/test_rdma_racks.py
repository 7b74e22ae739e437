"""Two racks whose nodes read each other by RDMA, and what happens when devices, addresses and limits go away under load."""

import re

import pytest
from guests import RDMA_MODULES, Guest

OBJECTS = 6
OBJECT_BYTES = 1 << 20
# Packets carry up to 4096 bytes: fewer than this, and the bytes did not come by RDMA.
PACKETS = OBJECTS * OBJECT_BYTES // 4096
# A device that carried this many carried bytes of objects.
SOME = 100
# TCP has a wire of its own (eth0), so that devices and addresses of the others can be taken away.
BEGIN = """
network_up eth0 0 || exit 1
network_up eth1 1 && rxe_up rxe0 eth1 || exit 1
[ -z "{second}" ] || {{ network_up eth2 2 && rxe_up rxe1 eth2; }} || exit 1
export PATH="{folder}:$PATH" XDG_RUNTIME_DIR=/tmp/run XDG_STATE_HOME=/tmp/state HOME=/tmp/home
export HINTERLAND_KEY_FILE=/tmp/home/pool.key
mkdir -p /tmp/run /tmp/state /tmp/home && cd /tmp/home || exit 1
head -c 64 /dev/zero | tr '\\0' a >pool.key
packets() {{ cat /sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts 2>/dev/null || echo 0; }}
counter() {{ cat /sys/class/infiniband/$1/ports/1/hw_counters/$2; }}
by_tcp() {{ cat /sys/class/net/eth0/statistics/rx_bytes; }}
received() {{ cat /sys/class/infiniband/$1/ports/1/hw_counters/rcvd_pkts 2>/dev/null || echo 0; }}
is_gone() {{ [ ! -e /sys/class/infiniband/$1 ] || {{ rdma link; return 1; }}; }}
until_members() {{ for _ in $(seq 400); do [ $(hinterland status --json 2>/dev/null | grep -o '"rack":"\\(north\\|south\\)"' | sort -u | wc -l) = 2 ] && return; sleep 0.1; done; cat node.log; return 1; }}
at_least() {{ [ "$1" -ge "$2" ] || {{ echo "$1 is below $2"; return 1; }}; }}
at_most() {{ [ "$1" -le "$2" ] || {{ echo "$1 is above $2"; return 1; }}; }}
same() {{ # FIRST LAST: each object is fetched and compared
    local number
    for number in $(seq $1 $2); do
        timeout 60 hinterland get try/$number copy --quiet && cmp copy /shared/object$number || return 1
        rm -f copy
    done
}}
load() {{ # FIRST LAST DEVICE: objects are read beside the script; returns when the device has carried bytes of them
    local before=$(received $3)
    rm -f load.status
    (same $1 $2 >load.log 2>&1; echo $? >load.status) &
    for _ in $(seq 600); do [ $(received $3) -ge $((before + {some})) ] && return; sleep 0.05; done
    cat load.log; return 1
}}
mounted() {{ # one process reads from here on, and keeps its queue pairs
    mkdir -p files; hinterland mount files >mount.log 2>&1 &
    for _ in $(seq 200); do mountpoint -q files && break; sleep 0.1; done
    mountpoint files || {{ cat mount.log; return 1; }}
    same() {{ local number; for number in $(seq $1 $2); do timeout 60 cmp files/try/$number /shared/object$number || return 1; done; }}
}}
until_it() {{ # FIRST LAST COMMAND...: an object a second is read and compared until the command is right; says which was the last in `next`
    local last=$2; next=$1; shift 2
    until "$@" >/dev/null 2>&1; do
        [ $next -le $last ] && same $next $next || return 1
        next=$((next + 1)); sleep 1
    done
}}
under_way() {{ [ ! -e load.status ] || {{ cat load.log; return 1; }}; }}
loaded() {{ for _ in $(seq 4000); do [ -s load.status ] && break; sleep 0.05; done; [ "$(cat load.status)" = 0 ] || {{ cat load.log; return 1; }}; }}
"""
HOME = """{begin}
{before}
${{node_command:-hinterland}} node --name first --rack north --listen 0.0.0.0:7401 --advertise 10.0.0.1:7401 --key pool.key --capacity 96M --cache-budget 8M --kv-capacity 4M {options} >node.log 2>&1 &
for _ in $(seq 600); do hinterland status >/dev/null 2>&1 && break; sleep 0.1; done
tell up
expect "both racks are members" until_members
for number in $(seq {objects}); do
    head -c {bytes} /dev/urandom >/shared/object$number
    hinterland put /shared/object$number --name try/$number --rack north --quiet || cat node.log
done
before=$(packets rxe0)
tell put
{script}
await done 120 >/dev/null
{after}
tell counted
tested
"""
READER = """{begin}
{before}
await up 120 >/dev/null || exit 1
${{node_command:-hinterland}} node --name second --rack south --listen 0.0.0.0:7401 --advertise 10.0.0.2:7401 --key pool.key --join 10.0.0.1:7401 --capacity 32M --cache-budget 64M --kv-capacity 4M {options} >node.log 2>&1 &
expect "both racks are members" until_members
await put 120 >/dev/null || exit 1
{script}
tell done; await counted 60 >/dev/null
grep -i "panicked" node.log && exit 1
tested
"""


def pair(binary, home, reader, second=False):
    """Two guests with one or two RDMA wires; `home` and `reader` are words for their scripts."""
    begin = BEGIN.format(folder=binary.parent, second="yes" if second else "", some=SOME)
    wires = ("spine", "rdma", "other") if second else ("spine", "rdma")
    empty = {"begin": begin, "objects": OBJECTS, "bytes": OBJECT_BYTES, "script": "", "before": "", "after": "", "options": ""}
    return [
        Guest(name, text.format(**{**empty, **words}), wires=wires, modules=(*RDMA_MODULES, "fuse", "sch_netem"), memory_mib=512)
        for name, text, words in (("first", HOME, home), ("second", READER, reader))
    ]


def right(outcomes):
    """How many checks were right, in all guests."""
    said = "".join(one.output for one in outcomes.values())
    assert "WRONG" not in said, said
    return sum(int(count) for count in re.findall(r"^(\d+) right, 0 wrong$", said, re.M))


def test_objects_of_another_rack_come_by_rdma_and_every_byte_is_right(boot, binary):
    counted = f'expect "the bytes came by RDMA" at_least $(($(packets rxe0) - before)) {PACKETS}'
    read = f"""
expect "every object is right" same 1 {OBJECTS}
expect "a program reads them" hinterland run -- cmp /shared/object1 /pool/try/1
expect "all copies are right" hinterland verify --all
expect "the device is known to doctor" sh -c 'hinterland doctor | grep "rxe0 port 1: 4: ACTIVE"'
"""
    assert right(boot(*pair(binary, {"after": counted}, {"script": read}))) == 7


def test_without_rdma_the_devices_are_left_alone(boot, binary):
    counted = 'expect "no bytes came by RDMA" at_most $(($(packets rxe0) - before)) 50'
    read = f'expect "every object is right" same 1 {OBJECTS}'
    assert right(boot(*pair(binary, {"after": counted, "options": "--rdma off"}, {"script": read}))) == 4


def test_a_device_that_is_taken_away_under_load_leaves_tcp(boot, binary):
    read = f"""
load 1 {OBJECTS} rxe0; expect "bytes came by RDMA" [ $? = 0 ]
expect "reads are under way" under_way
expect "the device is deleted" timeout 60 rdma link delete rxe0
expect "it is gone" is_gone rxe0
expect "every object is right while the device goes" loaded
expect "later reads are right" hinterland verify --all
"""
    assert right(boot(*pair(binary, {}, {"script": read}))) == 8


def test_a_link_that_goes_down_at_the_home_leaves_tcp(boot, binary):
    down = """await reading 60 >/dev/null; ip link set eth1 down
expect "the link is down" grep -q down /sys/class/net/eth1/operstate
tell down"""
    read = f"""
came=$(received rxe0)
expect "first reads are right" same 1 2
expect "they came by RDMA" at_least $(($(received rxe0) - came)) {2 * OBJECT_BYTES // 4096}
load 3 {OBJECTS} rxe0; expect "more bytes come by RDMA" [ $? = 0 ]
tell reading; await down 60 >/dev/null
expect "every object is right while the link goes" loaded
"""
    assert right(boot(*pair(binary, {"script": down}, {"script": read}))) == 7


def test_two_devices_share_the_load_and_one_goes_on_alone(boot, binary):
    objects, before, while_gone, after = 16, 3, 9, 16
    read = f"""
zero=$(received rxe0) one=$(received rxe1) tcp=$(by_tcp)
expect "first reads are right" same 1 {before}
share={before * OBJECT_BYTES // 4096 // 4}
expect "the first device carried its share" at_least $(($(received rxe0) - zero)) $share
expect "the second too" at_least $(($(received rxe1) - one)) $share
load {before + 1} {while_gone} rxe1; expect "the second carries more" [ $? = 0 ]
expect "reads are under way" under_way
expect "the second is taken away" timeout 60 rdma link delete rxe1
expect "it is gone" is_gone rxe1
zero=$(received rxe0)
expect "reads were still under way" under_way
expect "every object is right without it" loaded
expect "the first device carried them" at_least $(($(received rxe0) - zero)) $share
expect "the second comes back" rxe_up rxe1 eth2
expect "reads right after that are right" same {while_gone + 1} {while_gone + 2}
sleep 5; expect "and a while later" same {while_gone + 3} {while_gone + 4}
one=$(received rxe1)
expect "later reads are right" same {while_gone + 5} {after}
expect "the second device carries its share again" at_least $(($(received rxe1) - one)) $share
expect "no bytes of objects came by TCP" at_most $(($(by_tcp) - tcp)) {objects * OBJECT_BYTES // 8}
"""
    assert right(boot(*pair(binary, {"objects": objects}, {"script": read}, second=True))) == 18


# Soft-RoCE does not let a device go that a process has open: that it goes shows that both sides have let go of it.
GONE = """ip link set eth2 down
expect "the second wire is down" grep -q down /sys/class/net/eth2/operstate"""
DELETED = """expect "the device is let go and deleted" timeout 90 rdma link delete rxe1
expect "it is gone" is_gone rxe1"""
BACK = """ip link set eth2 up
expect "the second device comes back" rxe_up rxe1 eth2"""


@pytest.mark.parametrize("side", ["reader", "home"])
def test_a_reader_that_stays_uses_a_device_again_that_went_and_came_back(boot, binary, side):
    objects, before, while_down = 40, 3, 8
    home = f"""await reading 200 >/dev/null
{GONE}
tell down
{DELETED}
tell deleted; await return 200 >/dev/null
{BACK}
tell back"""
    at_home = ("tell reading; await down 60 >/dev/null", "", "tell return; await back 60 >/dev/null")
    here = (GONE, f"({DELETED}\ntell deleted) &", BACK)
    gone, deleted, back = at_home if side == "home" else here
    read = f"""
mounted; expect "there is a reader" [ $? = 0 ]
zero=$(received rxe0) one=$(received rxe1) tcp=$(by_tcp)
expect "first reads are right" same 1 {before}
share={before * OBJECT_BYTES // 4096 // 4}
expect "the first device carried its share" at_least $(($(received rxe0) - zero)) $share
expect "the second too" at_least $(($(received rxe1) - one)) $share
load {before + 1} {while_down} rxe1; expect "the second carries more" [ $? = 0 ]
expect "reads are under way" under_way
{gone}
zero=$(received rxe0)
expect "every object is right without it" loaded
{deleted}
until_it {while_down + 1} {objects} [ -e /shared/deleted ]; expect "reads are right until it is gone" [ $? = 0 ]
expect "and after that" same $next $((next + 1))
expect "the first device carried them" at_least $(($(received rxe0) - zero)) $share
{back}
carries() {{ [ $(received rxe1) -ge $((one + {SOME})) ]; }}
one=$(received rxe1)
until_it $((next + 2)) {objects} carries; expect "reads are right until the second carries bytes" [ $? = 0 ]
zero=$(received rxe0) one=$(received rxe1)
expect "later reads are right" same $next $((next + {before - 1}))
expect "the first device carried its share of them" at_least $(($(received rxe0) - zero)) $share
expect "the second too, again" at_least $(($(received rxe1) - one)) $share
expect "no bytes of objects came by TCP" at_most $(($(by_tcp) - tcp)) {4 * OBJECT_BYTES}
"""
    script = home if side == "home" else ""
    # Of the device that is deleted beside the reads, a subshell counts.
    assert right(boot(*pair(binary, {"objects": objects, "script": script}, {"script": read}, second=True))) == {"reader": 19, "home": 21}[side]


def test_packets_that_are_lost_are_asked_for_again_and_silence_is_survived(boot, binary):
    lossy, silent, again, objects = 6, 20, 26, 28
    home = """
await reading 120 >/dev/null; expect "packets are lost" tc qdisc add dev eth1 root netem loss 3%; tell lossy
await more 200 >/dev/null; expect "all are lost" tc qdisc change dev eth1 root netem loss 100%; tell silent
await again 200 >/dev/null; tc -s qdisc show dev eth1; expect "none is lost" tc qdisc delete dev eth1 root
tell cleared"""
    read = f"""
load 1 {lossy} rxe0; expect "bytes came by RDMA" [ $? = 0 ]
tell reading; await lossy 60 >/dev/null
expect "reads are under way" under_way
expect "every object is right while packets are lost" loaded
asked=$(counter rxe0 completer_retry_err) came=$(received rxe0)
expect "and those that are begun then" same {lossy + 1} {lossy + 4}
expect "they came by RDMA" at_least $(($(received rxe0) - came)) {4 * OBJECT_BYTES // 4096}
expect "packets were asked for again" at_least $(($(counter rxe0 completer_retry_err) - asked)) 1
failed=$(counter rxe0 retry_exceeded_err)
load {lossy + 5} {silent} rxe0; expect "more bytes come by RDMA" [ $? = 0 ]
tell more; await silent 60 >/dev/null
expect "reads are still under way" under_way
expect "every object is right in silence" loaded
expect "the queue pair was given up" at_least $(($(counter rxe0 retry_exceeded_err) - failed)) 1
tell again; await cleared 60 >/dev/null
expect "reads right after that are right" same {silent + 1} {silent + 2}
sleep 3; expect "and a while later" same {silent + 3} {silent + 3}
came=$(received rxe0)
expect "later reads are right" same {again - 2} {objects}
expect "they came by RDMA again" at_least $(($(received rxe0) - came)) {3 * OBJECT_BYTES // 4096}
"""
    assert right(boot(*pair(binary, {"script": home, "objects": objects}, {"script": read}))) == 19


def test_an_address_that_changes_is_found_again(boot, binary):
    change = """await reading 60 >/dev/null; ip address delete 10.0.1.1/24 dev eth1; ip address add 10.0.1.77/24 dev eth1
tell changed; await settled 60 >/dev/null; before=$(packets rxe0)"""
    counted = f'expect "later bytes came by RDMA" at_least $(($(packets rxe0) - before)) {4 * OBJECT_BYTES // 4096}'
    read = f"""
expect "first reads are right" same 1 2
tell reading; await changed 60 >/dev/null
expect "reads are right while the address changes" same 3 {OBJECTS - 5}
sleep 3; expect "and after it" same {OBJECTS - 4} {OBJECTS - 4}
tell settled; sleep 1
expect "and by the address that is there" same {OBJECTS - 3} {OBJECTS}
"""
    assert right(boot(*pair(binary, {"script": change, "after": counted}, {"script": read}))) == 7


# A node that may lock little memory: root could lock any amount, so it goes without that right.
LIMITED = """
ulimit -l {kib}
limited() {{ setpriv --bounding-set -ipc_lock "$(type -P hinterland)" "$@"; }}
"""


def limited(kib):
    """Words before a node that make it run under this limit."""
    return LIMITED.format(kib=kib) + "node_command=limited"


def test_a_limit_on_locked_memory_at_the_home_is_said_and_bytes_come_by_tcp(boot, binary):
    counted = """expect "no object came by RDMA" at_most $(($(packets rxe0) - before)) 200
expect "the node says why" grep -q "rdma: .*KiB were asked for and the limit on locked memory is 1024 KiB (hint: raise it" node.log"""
    read = f'expect "every object is right" same 1 {OBJECTS}'
    assert right(boot(*pair(binary, {"before": limited(1024), "after": counted}, {"script": read}))) == 5


def test_a_limit_on_locked_memory_at_the_reader_is_said_and_bytes_come_by_tcp(boot, binary):
    counted = 'expect "no object came by RDMA" at_most $(($(packets rxe0) - before)) 200'
    read = f"""
expect "a program reads every byte" hinterland run -- sh -c 'for number in $(seq {OBJECTS}); do cmp /shared/object$number /pool/try/$number || exit 1; done'
expect "the node says why" grep -q "rdma: .*the limit on locked memory is 256 KiB (hint: raise it" node.log
"""
    assert right(boot(*pair(binary, {"after": counted}, {"script": read, "before": limited(256)}))) == 5


def test_a_device_that_is_named_and_missing_is_an_error(boot, binary):
    script = BEGIN.format(folder=binary.parent, second="", some=SOME) + """
node() { timeout 20 hinterland node --name first --listen 127.0.0.1:7401 --capacity 16M --cache-budget 8M --kv-capacity 4M --rdma "$1"; }
refused() { ! node "$1" >said 2>&1 && grep -q "$2" said && grep -q "hint: .*doctor" said || { cat said; return 1; }; }
expect "a name that is wrong" refused mlx5_7 'no RDMA device "mlx5_7"; this host has rxe0'
expect "one of two that is wrong" refused rxe0,mlx5_7 'no RDMA device "mlx5_7"'
ip link set eth1 down
expect "a device without a port that works" refused rxe0 'no RDMA device of this host has an active port'
rdma link delete rxe0
expect "no device at all" refused rxe0 'this host has none'
tested
"""
    guest = Guest("a", script, wires=("spine", "rdma"), modules=RDMA_MODULES, memory_mib=512)
    assert right(boot(guest)) == 4
