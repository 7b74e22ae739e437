"""The services that `./install` brings, under systemd itself: started, killed, let in by group, stopped and refused."""

import pathlib

import pytest
from guests import Guest

LIBRARIES = ["libhinterland_preload.so", "libhinterland_cuda.so", "libhinterland.so"]
SCRIPT = """
export HOME=/root
mkdir -p /tmp/built/release && ln -s {folder}/hinterland {folder}/*.so /tmp/built/release/
export CARGO_TARGET_DIR=/tmp/built
expect "it is installed" ./install --no-build
mount -t tmpfs run /run && mkdir -p /run/lock
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up
env container=lab unshare --pid --fork --mount-proc /lib/systemd/systemd --log-target=console --unit=hinterland-node.service >/tmp/systemd.log 2>&1 &
until first=$(pgrep -P $!); do sleep 0.1; done
# Who asks must be a process that systemd sees.
cat >/tmp/inside <<'END'
is() {{ [ "$(systemctl show hinterland-node --property $1 --value)" = "$2" ]; }}
until_is() {{ for _ in $(seq 600); do is "$@" 2>/dev/null && return 0; sleep 0.2; done; systemctl status hinterland-node; tail -5 /tmp/systemd.log; return 1; }}
expect "it serves" until_is ActiveState active
systemctl show hinterland-node --property StatusText
expect "and says so" sh -c 'systemctl show hinterland-node --property StatusText | grep "node $(uname -n) ready"'
expect "root uses it" sh -c 'echo hello | hinterland put - --name greeting'
expect "it is ended last" [ "$(cat /proc/$(pgrep -f "hinterland node --name")/oom_score_adj)" = -900 ]

pkill -9 -f "hinterland node --name"
expect "killed, it starts again" until_is NRestarts 1
expect "and serves" until_is ActiveState active
expect "what it had" sh -c '[ "$(hinterland get greeting -)" = hello ]'

expect "a group is made" groupadd --system hinterland
echo 'OPTIONS=--socket-group hinterland --capacity 32M' >/etc/hinterland/node.conf
expect "settings count" systemctl restart hinterland-node
user() {{ setpriv --reuid 65534 --regid 65534 --groups "$1" hinterland get greeting -; }}
expect "members are let in" user "$(getent group hinterland | cut -d: -f3)"
expect "others are not" sh -c '! setpriv --reuid 65534 --regid 65534 --clear-groups hinterland ls'

expect "it is stopped" systemctl stop hinterland-node
expect "and nobody answers" sh -c '! hinterland status'
echo 'OPTIONS=--capasity 32M' >/etc/hinterland/node.conf
expect "a wrong option is refused" sh -c '! systemctl start hinterland-node'
expect "once" is NRestarts 0
rm /etc/hinterland/node.conf
systemctl reset-failed hinterland-node
expect "without settings it serves" systemctl start hinterland-node
expect "Redis clients are served" systemctl start hinterland-resp
expect "counters are served" systemctl start hinterland-metrics
expect "to whom asks" sh -c 'hinterland --version; {python} -c "import urllib.request as r; assert b\\"hinterland_\\" in r.urlopen(\\"http://127.0.0.1:9464/metrics\\").read()"'
echo 'OPTIONS=--listen unix:/run/hinterland/gpu.sock --device software:memory=256M' >/etc/hinterland/gpu.conf
expect "a device is served" systemctl start hinterland-gpu
expect "to whom asks for it" hinterland gpu ls unix:/run/hinterland/gpu.sock
expect "and end" systemctl stop hinterland-gpu hinterland-metrics hinterland-resp hinterland-node
tested
END
exec nsenter --target "$first" --pid --mount bash -c ". /lab/shell.sh; LAB_GOOD=$LAB_GOOD LAB_BAD=$LAB_BAD; . /tmp/inside"
"""


def test_systemd_runs_a_node(boot, binary):
    if not all((binary.parent / name).exists() for name in LIBRARIES):
        pytest.skip("not all libraries are built")
    if not pathlib.Path("/lib/systemd/systemd").exists():
        pytest.skip("no systemd")
    outcomes = boot(Guest("host", SCRIPT.format(folder=binary.parent, python="python3"), memory_mib=1024), seconds=240)
    output = outcomes["host"].output
    print(output)
    assert output.count("ok    ") == 23 and "others are not" in output, output
