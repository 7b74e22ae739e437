"""`./install`: what is copied works from there and goes again, and what it starts is a service as supervisors expect one."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
BUILT = pathlib.Path(os.environ.get("HINTERLAND_BIN", ROOT / "target/debug/hinterland")).resolve().parent
COUNT = """import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)
"""
LIBRARIES = ["libhinterland_preload.so", "libhinterland_cuda.so", "libhinterland.so"]

pytestmark = pytest.mark.skipif(
    not all((BUILT / name).exists() for name in LIBRARIES), reason="not all libraries are built"
)


@pytest.fixture(scope="module")
def place():
    """A folder that other users may enter, and what was built under the name that `./install` looks for."""
    with tempfile.TemporaryDirectory(prefix="hl-install-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        (folder / "built/release").mkdir(parents=True)
        for name in ["hinterland", *LIBRARIES]:
            (folder / "built/release" / name).symlink_to(BUILT / name)
        yield folder


def install(place, *options, home="/nonexistent", built="built"):
    environment = dict(os.environ, CARGO_TARGET_DIR=str(place / built), HOME=home)
    environment.pop("XDG_CONFIG_HOME", None)
    command = [ROOT / "install", "--no-build", *map(str, options)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def prefix(place):
    """An installation for one user."""
    done = install(place, "--prefix", place / "home/.local", home=str(place / "home"))
    assert done.returncode == 0, done.stderr
    return place / "home/.local"


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_everything_is_there_and_finds_itself(prefix):
    there = files(prefix)
    for name in [
        "bin/hinterland", "include/hinterland.h", "lib/hinterland/libhinterland_cuda.so", "lib/libhinterland.so",
        "share/bash-completion/completions/hinterland", "share/fish/vendor_completions.d/hinterland.fish",
        "share/man/man1/hinterland-node.1", "share/systemd/user/hinterland-node.service", "share/zsh/site-functions/_hinterland",
    ]:  # fmt: skip
        assert name in there, name
    assert (prefix.parent / ".config/hinterland/node.conf").exists()
    unit = (prefix / "share/systemd/user/hinterland-node.service").read_text()
    assert f"ExecStart={prefix}/bin/hinterland node" in unit and "OOMScoreAdjust" not in unit
    command = [prefix / "bin/hinterland", "run", "--local", "128M", "--", "cat", "/proc/self/maps"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if ran.returncode != 0 and "userfaultfd" in ran.stderr:
        pytest.skip("no userfaultfd")
    assert f"{prefix}/lib/hinterland/libhinterland_preload.so" in ran.stdout, ran.stderr


def test_a_gpu_elsewhere_is_used_from_what_is_installed(prefix, place):
    address = f"unix:{place}/gpu.sock"
    command = [prefix / "bin/hinterland", "--json", "gpu", "serve", "--device", "software:memory=64M", "--listen", address]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert json.loads(server.stdout.readline())["ready"]
        command = [prefix / "bin/hinterland", "run", "--no-mount", "--gpu", address, "--", sys.executable, "-c", COUNT]
        # An empty variable of the key is as good as none.
        environment = dict(os.environ, HINTERLAND_KEY_FILE="")
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stdout) == (0, "0 0 1\n"), ran.stderr
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_understands_the_services(prefix):
    for unit in sorted((prefix / "share/systemd/user").glob("*.service")):
        checked = subprocess.run(
            ["systemd-analyze", "verify", "--user", "--man=no", unit],
            env=dict(os.environ, XDG_RUNTIME_DIR=str(prefix)),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (checked.returncode, checked.stderr) == (0, ""), unit


def test_packages_and_removal(place):
    options = ["--prefix", "/usr", "--destdir", place / "package"]
    done = install(place, *options)
    assert done.returncode == 0, done.stderr
    there = files(place / "package")
    assert "usr/lib/systemd/system/hinterland-node.service" in there
    assert "usr/lib/systemd/system/hinterland-node.service.d/system.conf" in there
    unit = (place / "package/usr/lib/systemd/system/hinterland-node.service").read_text()
    assert "ExecStart=/usr/bin/hinterland node" in unit

    settings = place / "package/etc/hinterland/node.conf"
    settings.write_text("OPTIONS=--capacity 1G\n")
    assert install(place, *options).returncode == 0
    assert settings.read_text() == "OPTIONS=--capacity 1G\n", "settings stay"
    assert install(place, *options, "--remove").returncode == 0
    assert files(place / "package") == ["etc/hinterland/node.conf"]
    assert install(place, *options, "--remove").returncode == 0, "a second time"


def test_services_below_another_prefix_are_linked_to_where_systemd_looks(place):
    home = place / "home"
    done = install(place, "--prefix", home / "apart", home=str(home))
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    links = line.removeprefix("a node as a service:   ").split(" && systemctl")[0]
    subprocess.run(["sh", "-c", links], check=True)
    units = home / ".config/systemd/user"
    assert "ExecStart=" in (units / "hinterland-node.service").read_text(), line
    assert install(place, "--prefix", home / "apart", "--remove", home=str(home)).returncode == 0
    assert list(units.iterdir()) == []
    done = install(place, "--prefix", home / ".local", home=str(home))
    assert "ln -s" not in done.stdout, done.stdout


def test_what_cannot_be_is_told(place):
    told = install(place, "--prefix", "here")
    assert told.returncode == 1 and "hint: give a path from the root" in told.stderr
    told = install(place, "--prefix", place / "x", built="nothing")
    assert told.returncode == 1 and "is missing" in told.stderr and "cargo build --release" in told.stderr
    assert not (place / "x").exists()
    (place / "file").write_text("")
    told = install(place, "--prefix", place / "file")
    assert told.returncode == 1 and "is not writable" in told.stderr and "sudo ./install --no-build" in told.stderr
    for name in ["two words", "a&b", "a|b", "100%", "$HOME", "it's", "a\\b"]:
        told = install(place, "--prefix", place / name)
        assert told.returncode == 1 and "hint: choose a folder without blanks" in told.stderr, name
        assert not (place / name).exists()
    told = install(place, "--prefixes", "/x")
    assert told.returncode == 2 and "--prefixes is no option" in told.stderr and "usage: ./install" in told.stderr
    told = install(place, "--prefix")
    assert told.returncode == 2 and "--prefix names no folder" in told.stderr


class Service:
    """A node as systemd starts it."""

    def __init__(self, prefix, folder, *options):
        folder.mkdir()
        folder.chmod(0o755)
        self.socket = folder / "node.sock"
        self.told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.told.bind(str(folder / "notify"))
        self.told.settimeout(30)
        command = [prefix / "bin/hinterland", "--socket", self.socket, "node", "--name", "host", *options]
        command += ["--state", folder / "state", "--capacity", "32M", "--kv-capacity", "16M", "--cache-budget", "16M"]
        command += ["--backing", "base"]  # nothing stays mounted
        environment = dict(os.environ, NOTIFY_SOCKET=str(folder / "notify"))
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def words(self):
        return self.told.recv(4096).decode()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def test_a_service_tells_when_it_serves_and_when_it_ends(prefix, place):
    service = Service(prefix, place / "told", "--name", "other")
    try:
        words = service.words()
        assert words.startswith("READY=1\nSTATUS=node other ready"), words
        assert service.socket.stat().st_mode & 0o777 == 0o600
    finally:
        assert service.end() == 0
    assert service.words() == "STOPPING=1"


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_a_group_is_let_in_and_nobody_else(prefix, place):
    service = Service(prefix, place / "group", "--socket-group", "54321")

    def ask(group):
        command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--groups", group]
        command += [prefix / "bin/hinterland", "--socket", service.socket]
        put = subprocess.run([*command, "put", "-", "--name", "a"], input="hello", capture_output=True, text=True, timeout=60)
        return put, subprocess.run([*command, "get", "a", "-"], capture_output=True, text=True, timeout=60)

    try:
        assert "READY=1" in service.words()
        put, got = ask("54322")
        assert put.returncode == 3 and "this user may not use the node" in put.stderr, put.stderr
        assert "--socket-group GROUP" in got.stderr
        put, got = ask("54321")
        assert (put.returncode, got.stdout) == (0, "hello"), (put.stderr, got.stderr)
    finally:
        service.end()


def test_a_group_that_is_not_there_is_refused(prefix):
    command = [prefix / "bin/hinterland", "node", "--name", "a", "--socket-group", "no-such-group"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "groupadd --system no-such-group" in refused.stderr, refused.stderr


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
