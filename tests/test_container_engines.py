"""The guide of containers with Docker and Podman themselves: what `hinterland doctor` says is enough, and what the guide says works."""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import uuid

import pytest
from conftest import TREE

BINARY = pathlib.Path(os.environ.get("HINTERLAND_BIN", TREE / "target/debug/hinterland")).resolve()
FAR = 'hinterland run --no-mount --local 64M -- python3 -c "b = bytearray(200 << 20); b[100] = 1; print(len(b))"'
# Where this machine raises no limits, or has groups of both versions, Podman is told to leave them alone, and which program to use.
SETTINGS = {"docker": [[]], "podman": [[], ["--runtime", "runc"], ["--runtime", "runc", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1024:1024"]]}
# A group of the host that no user of it is in.
GROUP = "54321"
EVERYTHING = ["--device", "/dev/fuse", "--device", "/dev/userfaultfd", "--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE"]


class Engine:
    """Runs shell lines in containers of an image that has nothing: programs are those of this machine."""

    def __init__(self, name, folder):
        self.image = f"localhost/hinterland-{uuid.uuid4().hex[:12]}"
        # Podman keeps images in a folder of the test.
        self.command = [name] if name == "docker" else [name, "--root", str(folder / "store"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]
        self.settings = []
        root = folder / "root"
        for place in ["usr", "proc", "sys", "dev", "tmp", "run", "etc", "root", "h"]:
            (root / place).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        for place in ["bin", "lib", "lib64", "sbin"]:
            if pathlib.Path("/", place).is_symlink():
                (root / place).symlink_to(f"usr/{place}")
        packed = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
        subprocess.run([*self.command, "import", "-", self.image], input=packed, capture_output=True, check=True, timeout=120)

    def words(self, line, *options):
        """The command that runs a shell line in a container that is started with these options."""
        runtime = self.settings[:2] if self.settings[:1] == ["--runtime"] else []
        words = [*self.command, *runtime, "run", "--rm", *self.settings[len(runtime):], "-e", "PATH=/h:/usr/bin:/bin", "-e", "HOME=/root"]
        words += ["-v", "/usr:/usr:ro", "-v", f"{BINARY.parent}:/h:ro", "--network", "none"]
        return list(map(str, [*words, *options, self.image, "/bin/sh", "-c", f"cd /tmp; {line}"]))

    def run(self, line, *options):
        """What it says."""
        return subprocess.run(self.words(line, *options), capture_output=True, text=True, timeout=180)

    def end(self):
        """Removes the image."""
        subprocess.run([*self.command, "rmi", "-f", self.image], capture_output=True, timeout=120)


@pytest.fixture(scope="module", params=["docker", "podman"])
def engine(request):
    if os.getuid() != 0 or shutil.which(request.param) is None:
        pytest.skip(f"needs root and {request.param}")
    # Podman takes no path of more than 50 characters, which folders of tests have beside other workers.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hl-"))
    request.addfinalizer(lambda: shutil.rmtree(folder, ignore_errors=True))
    try:
        made = Engine(request.param, folder)
    except subprocess.SubprocessError as error:
        pytest.skip(f"no {request.param} here: {(getattr(error, 'stderr', None) or b'')[-200:]}")
    for made.settings in SETTINGS[request.param]:
        tried = made.run("echo works")
        if tried.stdout == "works\n":
            yield made
            made.end()
            return
    made.end()
    pytest.skip(f"no containers here: {tried.stderr.strip()[-200:]}")


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The folder of the socket of a node of the host, and what lies in it under the name `a`."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "run").mkdir()
    socket = folder / "run/node.sock"
    words = [BINARY, "--socket", socket, "node", "--name", "host", "--state", folder / "state", "--capacity", "64M", "--backing", "base"]
    words += ["--kv-capacity", "16M", "--cache-budget", "16M", "--listen", "127.0.0.1:0", "--socket-group", GROUP]
    node = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert "ready" in next(line for line in node.stdout if "ready" in line)
        content = os.urandom(5 << 20)
        subprocess.run([BINARY, "--socket", socket, "put", "-", "--name", "a", "-q"], input=content, check=True, timeout=60)
        yield folder / "run", hashlib.md5(content).hexdigest()
    finally:
        node.terminate()
        node.wait(30)


def missing(engine, *options):
    """The options that the doctor names in a container that was started with some, but for huge pages, which a host may not have."""
    report = json.loads(engine.run("hinterland doctor --json", *options).stdout)
    mends = [check["mend"] for check in report["machine"] if check["mend"]]
    mends = [mend for mend in mends if "hugepages" not in mend and "haltpoll" not in mend]
    return [word for mend in mends for words in re.findall(r"`(--[^`]*)`", mend) for word in words.split()]


NO_DEVICES = pytest.mark.skipif(not all(map(os.path.exists, ("/dev/fuse", "/dev/userfaultfd"))), reason="needs /dev/fuse and /dev/userfaultfd")


@NO_DEVICES
def test_what_the_doctor_says_is_enough(engine, host):
    options = missing(engine)
    assert {"/dev/fuse", "/dev/userfaultfd", "SYS_ADMIN", "SYS_PTRACE", "--shm-size"} <= set(options), options
    assert "/dev/fuse" not in missing(engine, "--device", "/dev/fuse") and missing(engine, *options) == []
    folder, digest = host
    lines = f"{FAR} && hinterland run -- md5sum /pool/a && hinterland run --local 64M -- md5sum /pool/a"
    done = engine.run(lines, "-v", f"{folder}:/run/hinterland", *options)
    assert done.stdout.split()[:4] == [str(200 << 20), digest, "/pool/a", digest], done.stderr


@NO_DEVICES
def test_each_refusal_names_what_is_missing_and_no_more(engine, host):
    socket = ["-v", f"{host[0]}:/run/hinterland"]
    for line in ["mkdir -p m; hinterland mount m", "hinterland run -- true"]:
        said = engine.run(line, *socket, "--device", "/dev/fuse").stderr
        assert "`--cap-add SYS_ADMIN`" in said and said.count("hint:") == 1, said
        said = engine.run(line, *socket, "--cap-add", "SYS_ADMIN").stderr
        assert "`--device /dev/fuse`" in said and "modprobe" not in said, said
    assert "`--device /dev/userfaultfd --cap-add SYS_PTRACE`" in engine.run(FAR).stderr
    assert "`--device /dev/userfaultfd`" in engine.run(FAR, "--cap-add", "SYS_PTRACE").stderr


def test_programs_of_any_user_use_the_node_of_the_host(engine, host):
    folder, digest = host
    lines = "hinterland -q get a b && md5sum b && echo more | hinterland -q put - --name b && hinterland get b - && hinterland -q rm b"
    for options in [[], ["--user", "1000:1000", "--group-add", GROUP]]:
        done = engine.run(lines, "-v", f"{folder}:/run/hinterland", *options)
        assert done.stdout.split() == [digest, "b", "more"], done.stderr
    told = engine.run("hinterland ls", "-v", f"{folder}:/run/hinterland", "--user", "1000:1000")
    assert told.returncode == 3 and "--socket-group" in told.stderr, told.stderr


@NO_DEVICES
def test_a_user_who_is_not_root_in_it_is_told_so(engine):
    user = ["--user", "1000:1000", *EVERYTHING]
    effective = int(engine.run("grep CapEff /proc/self/status", *user).stdout.split()[1], 16)
    # Docker keeps rights from who is not root, whatever was added; Podman does not.
    assert ("--user" in missing(engine, *user)) == (effective >> 19 & 1 == 0)


@NO_DEVICES
def test_forks_are_followed_in_no_user_namespace(engine):
    if engine.command[0] != "podman":
        pytest.skip("Docker decides that for the whole engine")
    users = ["--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"]
    tried = engine.run("echo works", *users)
    if tried.stdout != "works\n":
        pytest.skip(f"no user namespaces here: {tried.stderr.strip()[:300]}")
    told = missing(engine, *users, *EVERYTHING)
    assert told[:2] == ["--userns", "host"], told


@NO_DEVICES
def test_files_need_no_right_where_the_host_mounts_them(engine, host, tmp_path):
    folder, digest = host
    subprocess.run(["mount", "--bind", tmp_path, tmp_path], check=True)
    reader = mount = None
    try:
        subprocess.run(["mount", "--make-shared", tmp_path], check=True)
        (tmp_path / "pool").mkdir()
        line = "echo waits; until [ -e /srv/pool/a ]; do sleep 0.1; done; md5sum /srv/pool/a"
        words = engine.words(line, "-v", f"{tmp_path}:/srv:rslave")
        reader = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if reader.stdout.readline() != "waits\n":
            said = reader.communicate(timeout=60)[1]
            assert "not a shared" in said, said
            pytest.skip("the engine sees other mounts than this test")
        mount = subprocess.Popen([BINARY, "--socket", folder / "node.sock", "mount", tmp_path / "pool"], stderr=subprocess.PIPE, text=True)
        assert "mounted on" in mount.stderr.readline()
        assert reader.communicate(timeout=60)[0].split()[0] == digest
    finally:
        for process in filter(None, (reader, mount)):
            process.terminate()
            process.wait(30)
        with contextlib.suppress(OSError):
            subprocess.run(["umount", tmp_path], check=False)


def test_a_node_in_a_container_says_how_much_room_it_needs(engine):
    line = """hinterland up --capacity 100M --cache-budget 16M --kv-capacity 16M --backing base >up.log 2>&1 & node=$!
        for _ in $(seq 300); do hinterland ls >/dev/null 2>&1 && break; sleep 0.1; done
        head -c 80000000 /dev/zero | hinterland -q put - --name a && hinterland -q get a - | wc -c
        kill $node; wait $node; cat up.log"""
    told = engine.run(line)
    assert "start the container with `--shm-size 132m`" in told.stdout and "--shm-size" in told.stderr, told
    done = engine.run(line, "--shm-size", "132m")
    assert done.stdout.startswith("80000000\n") and "--shm-size" not in done.stdout and done.stderr == "", done
