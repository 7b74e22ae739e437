"""The guide docs/guides/two-racks.md, followed literally on two guests that are two racks."""

from guests import Guest
from guides import commands

BEGIN = """
network_up || exit 1
printf '10.0.0.1 first.lan\\n10.0.0.2 second.lan\\n' >>/etc/hosts
export PATH="{folder}:$PATH" XDG_RUNTIME_DIR=/tmp/run XDG_STATE_HOME=/tmp/state HOME=/tmp/home
mkdir -p /tmp/run /tmp/state /tmp/home && cd /tmp/home || exit 1
follow() {{ bash -e -c "$1"; }}
members() {{ for _ in $(seq 400); do [ $(hinterland status --json 2>/dev/null | grep -o '"rack":"\\(north\\|south\\)"' | sort -u | wc -l) = 2 ] && return; sleep 0.1; done; hinterland status; cat node.log; return 1; }}
"""


def quoted(section):
    """The commands of a section, each as one quoted word of a shell."""
    return ["'" + block.replace("'", "'\\''") + "'" for block in commands("two-racks.md", section)]


def test_the_guide_is_followed_literally(boot, binary):
    look, = quoted("What each host can do")
    key, first = quoted("The first host")
    second, = quoted("The second host")
    put, verify, get = quoted("Put here, read there")
    begin = BEGIN.format(folder=binary.parent)
    north = f"""{begin}
hinterland doctor >/dev/null; : {look}
expect "a key is made" follow {key}
cp pool.key /shared/pool.key; tell key
(eval {first}) >node.log 2>&1 &
expect "both racks are members" members
await put 90 || exit 1
expect "every copy is right" follow {verify}
expect "the bytes are those that were put" cmp both /shared/numbers
tell verified
await done 90; tested
"""
    south = f"""{begin}
await key 60 && cp /shared/pool.key .
(eval {second}) >node.log 2>&1 &
expect "both racks are members" members
expect "objects are put" follow {put}
export HINTERLAND_KEY_FILE=$PWD/pool.key
cp numbers /shared/numbers; tell put
await verified 90 || {{ tell done; exit 1; }}
expect "the other rack is read" follow {get}
tell done; tested
"""
    outcomes = boot(Guest("first", north, modules=("fuse",)), Guest("second", south, modules=("fuse",)))
    assert "4 right, 0 wrong" in outcomes["first"].output, outcomes["first"].output
    assert "3 right, 0 wrong" in outcomes["second"].output, outcomes["second"].output
