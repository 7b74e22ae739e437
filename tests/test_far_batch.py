"""Batches of programs with far memory: in turn, within one memory, and nothing left behind."""

import contextlib
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from guides import commands
SECONDS_MAX = 120
KERNEL = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="far memory follows forks, which needs CAP_SYS_PTRACE"),
    pytest.mark.skipif(KERNEL < (6, 8), reason="far memory moves pages, which needs Linux 6.8"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="far memory runs on x86-64 only"),
]

FILL = """
import sys
memory = bytearray(int(sys.argv[1]) << 20)
for at in range(0, len(memory), 4096): memory[at] = at >> 12 & 255
assert all(memory[at] == at >> 12 & 255 for at in range(0, len(memory), 4096))
print("right", flush=True)
if len(sys.argv) > 2: sys.stdin = open(sys.argv[2]); sys.stdin.read()
"""


@pytest.fixture
def ground(binary, folder):
    """A folder with a program, and commands in it that see their own far memory alone."""
    if not (binary.parent / "libhinterland_preload.so").exists():
        pytest.fail("there is no libhinterland_preload.so (hint: cargo build -p hinterland-preload)")
    (folder / "fill.py").write_text(FILL, encoding="utf-8")
    return Ground(binary, folder)


class Ground:
    """A folder for batches."""

    def __init__(self, binary, folder):
        self.binary = binary
        self.folder = folder
        self.sockets = folder / "run/hinterland/far"
        (folder / "tmp").mkdir()
        (folder / "run").mkdir()
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "run"), "TMPDIR": str(folder / "tmp")}

    def write(self, jobs, memory="600M", back_ends=("lz4",), **host):
        """Writes a batch; jobs are dictionaries."""
        lines = ["[host]", f'memory = "{memory}"', f"back_ends = {json.dumps(list(back_ends))}"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in host.items()]
        for job in jobs:
            lines += ["[[job]]", *(f"{name} = {json.dumps(value)}" for name, value in job.items())]
        (self.folder / "jobs.toml").write_text("\n".join(lines), encoding="utf-8")

    def settings(self):
        """What all commands share."""
        return {"cwd": self.folder, "env": self.environment, "text": True}

    def batch(self, *options):
        """Runs the batch to its end."""
        command = [self.binary, "batch", "jobs.toml", *map(str, options)]
        return subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=False, **self.settings())

    def ended(self, *options):
        """The jobs of the batch by name, after it has ended."""
        done = self.batch("--json", *options)
        assert done.stdout, done.stderr
        return done, {job["name"]: job for job in json.loads(done.stdout)["jobs"]}

    def job(self, name, mebibytes, *words, **more):
        """A job that fills memory."""
        program = [sys.executable, "fill.py", str(mebibytes), *words]
        return {"name": name, "program": program, "memory": f"{mebibytes + 20}M", **more}


def test_jobs_run_in_turn_within_the_memory_and_instances_are_used_again(ground):
    (ground.folder / "far").mkdir()
    jobs = [
        ground.job("first", 200, local="100M"),
        ground.job("second", 200, local="100M", far=["ssd:far@1G"]),
        ground.job("third", 200, local="100M"),
        ground.job("fourth", 100, slowdown=3, seconds=100),
    ]
    ground.write(jobs, memory="240M", back_ends=["lz4", "ssd:far@1G"], instances=1, jobs_each=1)
    done, ended = ground.ended("--logs", "logs")
    assert done.returncode == 0, done.stderr
    assert [ended[job["name"]]["outcome"] for job in jobs] == ["done"] * 4, done.stderr
    assert [ended[job["name"]]["instance"] for job in jobs] == ["created", "switched", "switched", "warm"]
    assert all((ground.folder / f"logs/{job['name']}.out").read_text() == "right\n" for job in jobs)
    assert ended["first"]["faults"] > 0 and ended["first"]["far_bytes_max"] > 0
    assert ended["fourth"]["kept"] is True and ended["first"]["kept"] is None
    assert ended["second"]["waited_s"] >= ended["first"]["seconds"], "one at a time"
    assert not list((ground.folder / "tmp").iterdir()) and not list((ground.folder / "far").iterdir())
    assert not list(ground.sockets.glob("*.sock"))


def test_jobs_with_the_same_back_ends_share_an_instance_at_once(ground):
    gate = ground.folder / "gate"
    os.mkfifo(gate)
    jobs = [ground.job(name, 100, str(gate), local="90M") for name in ("one", "two")]
    ground.write(jobs, memory="400M", instances=1)
    running = subprocess.Popen(
        [ground.binary, "batch", "jobs.toml", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **ground.settings()
    )
    try:
        listed = [ground.binary, "far", "list", "--json"]
        deadline = time.monotonic() + SECONDS_MAX
        names, far = set(), 0
        while time.monotonic() < deadline and not (names == {"one", "two"} and far):
            programs = json.loads(subprocess.run(listed, capture_output=True, check=True, **ground.settings()).stdout)["programs"]
            names = {program["about"]["name"] for program in programs}
            far = min((program["far_bytes"] for program in programs), default=0)
        assert names == {"one", "two"} and far
        lower = [ground.binary, "switch", "one", "--local", "110M"]
        assert subprocess.run(lower, capture_output=True, check=False, **ground.settings()).returncode == 0
        other = [ground.binary, "switch", "one", "--far", "lz4"]
        refused = subprocess.run(other, capture_output=True, check=False, **ground.settings())
        assert refused.returncode == 1 and "shared in their batch" in refused.stderr
        # Each job waits at its gate: they end when it was opened and closed for writing.
        descriptor = os.open(gate, os.O_RDWR)
        said, told = finish(running, gate, descriptor)
        ended = {job["name"]: job for job in json.loads(said)["jobs"]}
        assert running.returncode == 0, told
        assert sorted(job["instance"] for job in ended.values()) == ["created", "online"]
    finally:
        running.kill()
        running.communicate()


def finish(running, gate, descriptor):
    """Opens and closes the gate until all who read there have ended."""
    os.close(descriptor)
    deadline = time.monotonic() + SECONDS_MAX
    while running.poll() is None and time.monotonic() < deadline:
        try:
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            # Nobody reads at this moment.
            pass
        time.sleep(0.01)
    return running.communicate(timeout=SECONDS_MAX)


def test_a_job_that_fails_does_not_keep_the_others(ground):
    (ground.folder / "static.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    subprocess.run(["cc", "-static", "-o", ground.folder / "static", ground.folder / "static.c"], check=True)
    jobs = [
        {"name": "fails", "program": ["sh", "-c", "exit 7"], "memory": "10M"},
        {"name": "dies", "program": ["sh", "-c", "kill -9 $$"], "memory": "10M"},
        {"name": "missing", "program": ["/no/such/program"], "memory": "10M"},
        {"name": "static", "program": [str(ground.folder / "static")], "memory": "10M"},
        {"name": "no-folder", "program": ["true"], "memory": "10M", "far": ["ssd:/nowhere/at/all"]},
        {"name": "late", "program": ["sleep", "0.2"], "memory": "10M", "seconds": 0.01},
        ground.job("good", 100, local="80M"),
    ]
    ground.write(jobs)
    done, ended = ground.ended()
    assert done.returncode == 1
    outcomes = {name: job["outcome"] for name, job in ended.items()}
    assert outcomes == {
        "fails": "failed (7)", "dies": "killed (9)", "missing": "failed (127)", "static": "not started",
        "no-folder": "not started", "late": "done", "good": "done",
    }, done.stderr  # fmt: skip
    assert "statically linked" in done.stderr and "is no folder" in done.stderr and ended["late"]["kept"] is False
    table = ground.batch()
    assert "failed (7)" in table.stdout and "ASKED FOR" in table.stdout and re.search(r"late .* NO", table.stdout)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_batch_that_is_killed_leaves_nothing_behind(ground, ending):
    gate = ground.folder / "gate"
    os.mkfifo(gate)
    ground.write([ground.job(name, 100, str(gate), local="80M") for name in ("one", "two")])
    running = subprocess.Popen(
        [ground.binary, "batch", "jobs.toml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **ground.settings()
    )
    listed = [ground.binary, "far", "list", "--json"]
    try:
        processes = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(processes) < 2 and time.monotonic() < deadline:
            programs = json.loads(subprocess.run(listed, capture_output=True, check=True, **ground.settings()).stdout)["programs"]
            processes = [process for program in programs for process in program["processes"]]
        assert len(processes) == 2
        running.send_signal(ending)
        running.wait(timeout=SECONDS_MAX)
        while any(map(is_alive, processes)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(is_alive, processes))
    finally:
        running.kill()
        running.communicate()
    # The next command clears away what a killed one could not.
    ground.write([{"name": "next", "program": ["true"], "memory": "10M"}])
    assert ground.batch().returncode == 0
    assert json.loads(subprocess.run(listed, capture_output=True, check=True, **ground.settings()).stdout)["programs"] == []
    assert not list(ground.sockets.glob("*.sock")) and not list((ground.folder / "tmp").iterdir())


def is_alive(process):
    """Whether a process is there and no zombie."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")")[-1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


TOUCH = """
import random
memory = bytearray(160 << 20)
for at in range(0, len(memory), 4096): memory[at] = 1
while True: memory[random.randrange(len(memory) >> 12) << 12] = 1
"""


@pytest.mark.parametrize("options", [[], ["--awake"]])
@pytest.mark.skipif(not os.access("/dev/cpu_dma_latency", os.W_OK), reason="no processor can be kept from sleep without /dev/cpu_dma_latency")
def test_processors_are_kept_awake_for_the_jobs_of_a_batch_that_asks_for_it(ground, options):
    (ground.folder / "touch.py").write_text(TOUCH, encoding="utf-8")
    ground.write([{"name": "touch", "program": [sys.executable, "touch.py"], "memory": "180M", "local": "80M"}])
    running = subprocess.Popen([ground.binary, "batch", "jobs.toml", *options], stderr=subprocess.PIPE, **ground.settings())
    try:
        links = pathlib.Path(f"/proc/{running.pid}/fd")
        # Without it there is nothing to wait for: as long as it takes with it, and longer.
        deadline = time.monotonic() + (30 if options else 8)
        is_awake = False
        while not is_awake and time.monotonic() < deadline:
            time.sleep(0.02)
            with contextlib.suppress(FileNotFoundError):
                is_awake = any(os.readlink(link) == "/dev/cpu_dma_latency" for link in links.iterdir())
        assert is_awake == bool(options)
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=SECONDS_MAX)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take the device away")
def test_a_batch_that_cannot_keep_processors_awake_says_so_before_anything_starts(ground):
    ground.write([{"name": "ran", "program": ["touch", "ran"], "memory": "10M"}])
    device = "/dev/cpu_dma_latency"
    without = f'touch device; mount --bind device {device} && mount -o remount,bind,ro {device} && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", without, "sh", ground.binary, "batch", "jobs.toml", "--awake"]
    if not os.path.exists(device):
        words = words[6:]
    done = subprocess.run(words, capture_output=True, timeout=SECONDS_MAX, check=False, **ground.settings())
    assert done.returncode == 1 and "--awake" in done.stderr and "leave --awake away" in done.stderr, done.stderr
    assert not (ground.folder / "ran").exists()


def test_plans_are_shown_and_exported_without_running_anything(ground):
    words = ["sh", "-c", "echo \"it's\" $HOME > ran"]
    ground.write([{"name": "quoted", "program": words, "memory": "400M", "deadline": 90}], memory="1G", image="example/image:1")
    shown = ground.batch("--dry-run")
    assert shown.returncode == 0 and "quoted" in shown.stdout and "50% here by rule" in shown.stdout
    plan = json.loads(ground.batch("--dry-run", "--json").stdout)["jobs"]
    assert plan[0]["instance"] == "created" and plan[0]["far"] == ["lz4"]
    for scheduler in ("slurm", "kubernetes"):
        done = ground.batch("--export", scheduler, "--into", "out")
        assert done.returncode == 0, done.stderr
    assert not (ground.folder / "ran").exists()
    script = ground.folder / "out/quoted.sbatch"
    text = script.read_text(encoding="utf-8")
    assert "#SBATCH --mem=" in text and "#SBATCH --time=2\n" in text
    path = {**ground.environment, "PATH": f"{ground.binary.parent}:{os.environ['PATH']}"}
    ran = subprocess.run(["sh", script], cwd=ground.folder, env=path, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ran.returncode == 0 and (ground.folder / "ran").read_text() == f"it's {os.environ['HOME']}\n", ran.stderr
    manifest = json.loads((ground.folder / "out/quoted.json").read_text(encoding="utf-8"))
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert container["command"][-3:] == words and container["image"] == "example/image:1"
    assert manifest["kind"] == "Job" and manifest["spec"]["activeDeadlineSeconds"] == 90
    assert "--awake" not in text and "--awake" not in container["command"]
    for scheduler in ("slurm", "kubernetes"):
        assert ground.batch("--export", scheduler, "--into", "awake", "--awake").returncode == 0
    assert " --awake --name quoted -- " in (ground.folder / "awake/quoted.sbatch").read_text(encoding="utf-8")
    assert '"--awake"' in (ground.folder / "awake/quoted.json").read_text(encoding="utf-8")


def test_batches_that_make_no_sense_are_refused_before_anything_starts(ground):
    ran = {"name": "ran", "program": ["touch", "ran"], "memory": "10M"}
    cases = [
        ([], {}, "no [[job]]"),
        ([ran, {**ran}], {}, "two jobs are called ran"),
        ([ran, {**ran, "name": "large", "memory": "10G"}], {}, "needs"),
        ([{**ran, "trace": "no.trace"}], {}, "no.trace"),
        ([{**ran, "trace": "jobs.toml"}], {}, "trace"),
        ([{**ran, "slow": 2}], {}, "slow"),
        ([ran], {"back_ends": ["tape"]}, "is no back end"),
        ([ran], {"instances": 0}, "an instance"),
    ]
    for jobs, host, part in cases:
        ground.write(jobs, **host)
        done = ground.batch()
        assert done.returncode == 1 and part in done.stderr and "hint:" in done.stderr, (part, done.stderr)
    assert not (ground.folder / "ran").exists()
    (ground.folder / "jobs.toml").unlink()
    assert "jobs.toml" in ground.batch().stderr
    ground.write([ran])
    no_image = ground.batch("--export", "kubernetes", "--into", "out")
    assert no_image.returncode == 1 and "image" in no_image.stderr and not (ground.folder / "out").exists()


def test_the_guide_works_as_it_is_written(ground):
    (script,) = commands("far-batch.md")
    path = f"{ground.binary.parent}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {**ground.settings(), "env": {**ground.environment, "PATH": path}}
    done = subprocess.run(["sh", "-ec", script], capture_output=True, timeout=SECONDS_MAX, check=False, **settings)
    assert done.returncode == 0, done.stderr
    for name in ("small", "large", "on-disk"):
        assert (ground.folder / f"logs/{name}.out").read_text() == "right\n"
        assert (ground.folder / f"cluster/{name}.sbatch").exists()
    assert done.stdout.count("done") == 3, done.stdout
    assert shutil.which("python3", path=path)


def test_a_batch_that_is_interrupted_tells_of_the_jobs_that_are_done(ground):
    kept = ground.folder / "kept"
    os.mkfifo(kept)
    ground.write([
        {"name": "first", "program": [sys.executable, "fill.py", "60"], "memory": "80M", "local": "64M"},
        {"name": "second", "program": [sys.executable, "fill.py", "60", str(kept)], "memory": "80M", "local": "64M"},
    ], memory="220M", instances=1, jobs_each=1)
    batch = subprocess.Popen([ground.binary, "batch", "jobs.toml", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **ground.settings())
    try:
        for line in batch.stderr:
            if line.startswith("second starts"):
                break
        batch.send_signal(signal.SIGINT)
        output, words = batch.communicate(timeout=SECONDS_MAX)
    finally:
        batch.kill()
        batch.wait()
    assert batch.returncode == 1 and "interrupted: 1 jobs had ended" in words, words
    assert [(job["name"], job["outcome"]) for job in json.loads(output)["jobs"]] == [("first", "done")]
