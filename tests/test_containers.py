"""What works in a container with the usual rights, filter of system calls and devices, and what is said of the rest: runc, without an image."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

BINARY = pathlib.Path(os.environ.get("HINTERLAND_BIN", pathlib.Path(__file__).parent.parent / "target/debug/hinterland")).resolve()
# What Docker leaves to root in a container.
RIGHTS = """CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT MKNOD AUDIT_WRITE
NET_RAW""".split()
# Of what the usual filters forbid, that which Hinterland would use; each is refused as there.
FORBIDDEN = ["mbind", "set_mempolicy", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "kexec_load"]
COUNT = """import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)
"""
FAR = 'run --no-mount --local 64M -- python3 -c "b = bytearray(200 << 20); b[100] = 1; print(len(b))"'


class Containers:
    """Runs shell lines in containers whose files are this machine's programs and nothing else."""

    def __init__(self, folder):
        self.folder = folder
        self.count = 0
        self.socket = folder / "run"
        self.socket.mkdir()
        self.root = folder / "root"
        for name in ["usr", "proc", "sys", "dev", "tmp", "run", "etc", "root", "h"]:
            (self.root / name).mkdir(parents=True)
        for name in ["bin", "lib", "lib64", "sbin"]:
            if pathlib.Path("/", name).is_symlink():
                (self.root / name).symlink_to(f"usr/{name}")
        subprocess.run(["runc", "spec"], cwd=folder, check=True, capture_output=True)
        self.usual = json.loads((folder / "config.json").read_text())

    def run(self, line, rights=(), devices=()):
        """A shell line in a container of its own with more rights and devices than usual."""
        config = json.loads(json.dumps(self.usual))
        process, linux = config["process"], config["linux"]
        kept = [f"CAP_{right}" for right in [*RIGHTS, *rights]]
        process["capabilities"] = {kind: kept for kind in ["bounding", "effective", "permitted"]}
        process.pop("rlimits", None)
        process.update(terminal=False, args=["/bin/sh", "-c", f"cd /tmp; {line}"], env=["PATH=/h:/usr/bin:/bin", "HOME=/root"])
        config["root"] = {"path": str(self.root), "readonly": False}
        for source, target in [("/usr", "/usr"), (str(BINARY.parent), "/h"), (str(self.socket), "/run/hinterland")]:
            config["mounts"].append({"source": source, "destination": target, "type": "bind", "options": ["rbind", "rprivate"]})
        linux["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": FORBIDDEN, "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}
        linux["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
        numbers = {device: os.stat(device).st_rdev for device in devices}
        linux["devices"] = [
            {"path": path, "type": "c", "major": os.major(number), "minor": os.minor(number), "fileMode": 0o666}
            for path, number in numbers.items()
        ]
        (self.folder / "config.json").write_text(json.dumps(config))
        self.count += 1
        command = ["runc", "--root", str(self.folder / "state"), "run", "--bundle", str(self.folder), f"hinterland-{os.getpid()}-{self.count}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def containers(tmp_path_factory):
    if os.getuid() != 0 or shutil.which("runc") is None:
        pytest.skip("needs root and runc")
    made = Containers(tmp_path_factory.mktemp("containers"))
    tried = made.run("echo works")
    if tried.stdout != "works\n":
        pytest.skip(f"no containers here: {tried.stderr.strip()[-200:]}")
    return made


def test_the_doctor_says_how_to_start_it(containers):
    told = containers.run("hinterland doctor")
    for option in ["--device /dev/userfaultfd", "--cap-add SYS_PTRACE", "--device /dev/fuse --cap-add SYS_ADMIN", "--shm-size"]:
        assert f"start the container with `{option}" in told.stdout, told.stdout
    # What is set for the whole machine is set outside.
    assert all("on the host" in line for line in told.stdout.splitlines() if "echo " in line), told.stdout
    assert "sysctl vm." not in told.stdout and "modprobe" not in told.stdout, told.stdout


def test_a_node_in_a_container_and_its_objects(containers):
    line = """hinterland up --capacity 32M >up.log 2>&1 & node=$!
        for _ in $(seq 100); do hinterland ls >/dev/null 2>&1 && break; sleep 0.1; done
        head -c 5000000 /dev/urandom >a; hinterland -q put a --name a && hinterland -q get a b && cmp a b && echo same
        kill $node; wait $node"""
    done = containers.run(line)
    assert done.stdout == "same\n", done.stderr


def test_a_node_that_is_to_choose_numa_nodes_needs_a_right(containers):
    told = containers.run("hinterland node --name a --numa 0 --capacity 32M --kv-capacity 16M --cache-budget 16M")
    assert told.returncode == 1 and "--cap-add SYS_NICE" in told.stderr and told.stderr.count("hint:") == 1, told.stderr


@pytest.mark.skipif(not os.path.exists("/dev/userfaultfd"), reason="no /dev/userfaultfd")
def test_far_memory_needs_a_device_and_a_right(containers):
    told = containers.run(f"hinterland {FAR}")
    assert told.returncode == 1 and "--device /dev/userfaultfd" in told.stderr and told.stderr.count("hint:") == 1, told.stderr
    told = containers.run(f"hinterland {FAR}", devices=["/dev/userfaultfd"])
    assert told.returncode == 1 and "--cap-add SYS_PTRACE" in told.stderr and told.stderr.count("hint:") == 1, told.stderr
    done = containers.run(f"hinterland {FAR}", devices=["/dev/userfaultfd"], rights=["SYS_PTRACE"])
    assert (done.returncode, done.stdout) == (0, f"{200 << 20}\n"), done.stderr


def test_a_program_uses_the_node_of_the_host(containers, tmp_path):
    socket = containers.socket / "node.sock"
    command = [BINARY, "--socket", socket, "node", "--name", "host", "--state", tmp_path / "state", "--capacity", "32M"]
    command += ["--kv-capacity", "16M", "--cache-budget", "16M", "--backing", "base"]
    node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert "ready" in next(line for line in node.stdout if "ready" in line)
        done = containers.run("echo hello | hinterland -q put - --name a; hinterland get a -")
        assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
        told = containers.run("hinterland run -- cat /pool/a")
        assert told.returncode == 1 and "--device /dev/fuse --cap-add SYS_ADMIN" in told.stderr and "--no-mount" in told.stderr
        if os.path.exists("/dev/fuse"):
            done = containers.run("hinterland run -- cat /pool/a", rights=["SYS_ADMIN"], devices=["/dev/fuse"])
            assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    finally:
        node.terminate()
        node.wait(30)


@pytest.mark.skipif(not (BINARY.parent / "libhinterland_cuda.so").exists(), reason="the library of CUDA is not built")
def test_a_gpu_of_others_needs_no_right(containers):
    address = f"unix:{containers.socket}/gpu.sock"
    command = [BINARY, "--json", "gpu", "serve", "--device", "software", "--listen", address]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert json.loads(server.stdout.readline())["ready"]
        (containers.root / "tmp/count.py").write_text(COUNT)
        done = containers.run("hinterland run --no-mount --gpu unix:/run/hinterland/gpu.sock -- python3 count.py")
        assert (done.returncode, done.stdout) == (0, "0 0 1\n"), done.stderr
    finally:
        server.terminate()
        server.wait(30)


def test_no_mount_alone_is_refused(tmp_path):
    told = subprocess.run([BINARY, "run", "--no-mount", "--", "true"], capture_output=True, text=True, timeout=60)
    assert told.returncode == 2 and "--local SIZE" in told.stderr, told.stderr
