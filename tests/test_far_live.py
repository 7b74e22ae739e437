"""Far memory that is seen and changed while its program runs."""

import contextlib
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

TREE = pathlib.Path(__file__).resolve().parent.parent
MEBIBYTE = 1 << 20
SECONDS_MAX = 120
KERNEL = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="far memory follows forks, which needs CAP_SYS_PTRACE"),
    pytest.mark.skipif(KERNEL < (6, 8), reason="far memory moves pages, which needs Linux 6.8"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="far memory runs on x86-64 only"),
]

# Reads and checks memory for ever, and writes a part of it anew in each round. Ends well when it reads a line.
STEADY = """
import select, sys
pages = int(sys.argv[1]) * 256
memory = bytearray(pages * 4096)
version = [0] * pages
def word(page): return (page * 2654435761 + version[page] * 40503) & 0xFFFFFFFF
def write(page): memory[page * 4096:page * 4096 + 4] = word(page).to_bytes(4, "little")
for page in range(pages): write(page)
print("ready", flush=True)
rounds = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    for page in range(pages):
        if int.from_bytes(memory[page * 4096:page * 4096 + 4], "little") != word(page):
            print("WRONG", page, flush=True)
            sys.exit(1)
        if page % 7 == rounds % 7:
            version[page] += 1
            write(page)
    rounds += 1
print("right", flush=True)
"""


# Has 100 MiB that cannot be far, because other processes may have them.
SHARED = """
import mmap, sys
kept = mmap.mmap(-1, 100 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
for at in range(0, len(kept), 4096): kept[at] = 1
print("ready", flush=True)
sys.stdin.read()
"""


# Touches pages of its memory at random.
RANDOM = """
import random, select, sys
pages = int(sys.argv[1]) * 256
memory = bytearray(pages * 4096)
for page in range(pages): memory[page * 4096] = 1 + page % 250
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for page in random.choices(range(pages), k=2000):
        if memory[page * 4096] != 1 + page % 250:
            print("WRONG", page, flush=True)
            sys.exit(1)
print("right", flush=True)
"""


@pytest.fixture
def runtime(binary, folder):
    """Commands that see the far memory of one test alone."""
    if not (binary.parent / "libhinterland_preload.so").exists():
        pytest.fail("there is no libhinterland_preload.so (hint: cargo build -p hinterland-preload)")
    return Runtime(binary, folder)


class Runtime:
    """A runtime folder, and the commands that use it."""

    def __init__(self, binary, folder):
        self.binary = binary
        self.folder = folder
        self.sockets = folder / "hinterland/far"
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}

    def command(self, *words, **settings):
        """Runs a command of hinterland."""
        return subprocess.run(
            [self.binary, *map(str, words)], env=self.environment, capture_output=True, text=True,
            timeout=SECONDS_MAX, check=False, **settings,
        )  # fmt: skip

    def programs(self):
        """What `far list` says."""
        listed = self.command("far", "list", "--json")
        assert listed.returncode == 0, listed.stderr
        return json.loads(listed.stdout)["programs"]

    def program(self):
        """The one program that there is."""
        (program,) = self.programs()
        return program

    @contextlib.contextmanager
    def running(self, *options, mebibytes=150, program=None):
        """A program with far memory, which is ready; what is left of it goes at the end."""
        program = program or [sys.executable, "-c", STEADY, str(mebibytes)]
        running = subprocess.Popen(
            [self.binary, "run", *map(str, options), "--", *program], env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert running.stdout.readline() == "ready\n", running.stderr.read()
            yield running
        finally:
            running.kill()
            running.communicate()


def finished(running):
    """Ends a steady program and checks that no byte was wrong."""
    said, told = running.communicate("end\n", timeout=SECONDS_MAX)
    assert running.returncode == 0 and said == "right\n", (said, told)
    return told


def test_programs_are_listed_by_number_and_name_while_they_run(runtime):
    listed = runtime.command("far", "list")
    assert listed.returncode == 0 and "no program" in listed.stderr and not runtime.sockets.exists()
    with runtime.running("--local", "128M", "--name", "mine") as running:
        program = runtime.program()
        assert program["about"]["name"] == "mine" and program["supervisor"] == running.pid
        assert program["pid"] in program["processes"] and program["budget"] == {"bytes": 128 * MEBIBYTE}
        assert program["far_bytes"] > 0 and program["back_ends"][0]["name"] == "lz4"
        table = runtime.command("far", "ls").stdout
        assert str(program["pid"]) in table and "mine" in table and "128 MiB" in table
        assert runtime.sockets.stat().st_mode & 0o777 == 0o700
        finished(running)
    assert runtime.programs() == [] and not list(runtime.sockets.glob("*.sock"))


def test_budgets_go_down_and_up_while_the_program_works_and_no_byte_is_wrong(runtime):
    with runtime.running("--local", "1G", "--name", "steady") as running:
        assert runtime.program()["far_bytes"] == 0, "it fits"
        for budget in (96, 400, 80, 128):
            ended = runtime.command("switch", "steady", "--local", f"{budget}M", "--json")
            assert ended.returncode == 0, ended.stderr
            told = json.loads(ended.stdout)
            assert told["resident_bytes"] <= told["budget_bytes"] == budget * MEBIBYTE, told
            assert told["longest_stall_s"] >= 0 and told["pid"] == runtime.program()["pid"]
        program = runtime.program()
        assert program["resident_bytes"] <= 128 * MEBIBYTE and program["far_bytes"] > 0
        share = runtime.command("switch", program["pid"], "--local", "50%")
        assert share.returncode == 0 and "50%" in share.stdout, share.stderr
        finished(running)


def test_a_random_program_is_switched_to_and_fro_among_budgets(runtime, tmp_path):
    program = tmp_path / "far_random"
    subprocess.run(["cc", "-O1", "-o", program, TREE / "tests/programs/far_random.c", "-lpthread"], check=True)
    command = ["sh", "-c", 'echo ready; exec "$0" "$@"', program, "6000", "4242"]
    with runtime.running("--local", "64M", "--name", "random", program=command) as running:
        switched = 0
        while running.poll() is None:
            for budget in ("96M", "64M", "50%", "1G"):
                ended = runtime.command("switch", "random", "--local", budget, "--wait", "20")
                switched += ended.returncode == 0
        said, told = running.communicate(timeout=SECONDS_MAX)
        assert running.returncode == 0 and said == "right\n", told
        assert switched > 0, told


def faults(runtime, seconds=2):
    """Faults of the program in so many seconds."""
    before = runtime.program()["faults"]
    time.sleep(seconds)
    return runtime.program()["faults"] - before


def test_a_program_that_hardly_runs_is_told_how_much_would_be_enough_and_that_is(runtime):
    with runtime.running("--local", "64M", program=[sys.executable, "-c", RANDOM, "100"]) as running:
        told = running.stderr.readline()
        hint = re.search(r"with (\d+) MiB here instead of 64 MiB.*\(hint: .*: hinterland (switch \d+ --local (\d+)M)\)", told)
        assert hint and hint[1] == hint[3], told
        # It has 100 MiB, and Python itself.
        assert 95 <= int(hint[1]) <= 140, told
        program = runtime.program()
        assert 0 < program["short_bytes"] <= program["far_bytes"]
        assert "SHORT OF" in runtime.command("top", "--once").stdout
        before = faults(runtime)
        switched = runtime.command(*hint[2].split())
        assert switched.returncode == 0, switched.stderr
        # What is far comes here.
        time.sleep(2)
        after = faults(runtime)
        assert after * 5 < before, (before, after, hint[0])
        assert "would not have been" in finished(running)


def test_what_makes_no_sense_is_refused_and_changes_nothing(runtime):
    missing = runtime.command("switch", "4194304", "--local", "1G")
    assert missing.returncode == 1 and "none of this user's has" in missing.stderr and "hint:" in missing.stderr
    with runtime.running("--local", "128M", "--name", "mine") as running:
        before = runtime.program()
        cases = [
            (["1", "--local", "1G"], "no program 1 has far memory"),
            (["mine", "--local", "1M"], "at least 64M"),
            (["mine", "--local", "0%"], "1% to 100%"),
            (["mine"], "--local"),
        ]
        for words, part in cases:
            ended = runtime.command("switch", *words)
            assert ended.returncode != 0 and part in ended.stderr, (words, ended.stderr)
        assert runtime.program()["budget"] == before["budget"]
        finished(running)


def test_a_budget_below_what_cannot_leave_is_refused_with_the_least(runtime):
    with runtime.running("--local", "300M", "--name", "shared", program=[sys.executable, "-c", SHARED]):
        ended = runtime.command("switch", "shared", "--local", "80M")
        assert ended.returncode == 1 and "cannot leave" in ended.stderr and "hint:" in ended.stderr, ended.stderr
        assert runtime.program()["budget"] == {"bytes": 300 * MEBIBYTE}
        least = re.search(r"give it at least (\d+)M", ended.stderr).group(1)
        # A little more than the least, as the program's own memory changes from moment to moment.
        again = runtime.command("switch", "shared", "--local", f"{int(least) + 8}M")
        assert again.returncode == 0, again.stderr


def test_what_killed_supervisors_leave_is_recognised_and_removed(runtime):
    with runtime.running("--local", "128M", "--name", "killed") as running:
        (left,) = runtime.sockets.glob("*.sock")
        os.kill(running.pid, signal.SIGKILL)
        running.wait(timeout=SECONDS_MAX)
        assert left.exists()
        assert runtime.programs() == [] and not left.exists()
        gone = runtime.command("switch", "killed", "--local", "1G")
        assert gone.returncode == 1 and "no program killed" in gone.stderr


def test_other_users_may_neither_see_nor_change_a_program(runtime):
    nobody = 65534
    with runtime.running("--local", "128M", "--name", "mine") as running:
        (path,) = runtime.sockets.glob("*.sock")
        # Open on the way to the socket and the binary, as they are not by themselves: the socket itself must refuse.
        runtime.folder.chmod(0o755)
        path.parent.parent.chmod(0o755)
        listed = runtime.command("far", "list", user=nobody, group=nobody, extra_groups=[]) if can_execute(runtime.binary) else None
        assert listed is None or (listed.returncode == 1 and "of this user alone" in listed.stderr)
        path.parent.chmod(0o755)
        path.chmod(0o777)
        asked = ask_as(nobody, path, b'"status"\n')
        assert b"may not control" in asked and b"mine" not in asked
        path.parent.chmod(0o700)
        assert runtime.program()["budget"] == {"bytes": 128 * MEBIBYTE}
        finished(running)


def can_execute(path):
    """Whether any user reaches the binary: its folder may be private."""
    return all(parent.stat().st_mode & 0o001 for parent in path.parents)


def ask_as(user, path, request):
    """What a process of another user is answered."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as stream:
                stream.settimeout(SECONDS_MAX)
                stream.connect(str(path))
                stream.sendall(request)
                os.write(writer, stream.recv(65536))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def test_top_shows_programs_without_a_pool(runtime):
    none = runtime.command("top", "--once")
    assert none.returncode == 3, "without a node and without a program there is nothing to show"
    with runtime.running("--local", "128M", "--name", "watched") as running:
        picture = runtime.command("top", "--once").stdout
        assert "watched" in picture and "FAULTS/S" in picture and "lz4" in picture
        live = subprocess.Popen(
            [runtime.binary, "top", "--json", "--interval", "0.3"], env=runtime.environment, stdout=subprocess.PIPE, text=True
        )
        try:
            deadline = time.monotonic() + SECONDS_MAX
            rates = {}
            while rates.get("faults_per_s", 0) <= 0 and time.monotonic() < deadline:
                rates = json.loads(live.stdout.readline())["far"][0]["rates"]
            assert rates["faults_per_s"] > 0 and rates["in_bytes_per_s"] > 0
        finally:
            live.kill()
            live.communicate()
        finished(running)


def waited_for(running, condition):
    """Whether a condition becomes true while the program runs."""
    deadline = time.monotonic() + SECONDS_MAX
    while running.poll() is None and time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def active(program):
    """The back ends that take content."""
    return sorted(one["name"] for one in program["back_ends"] if one["life"] == "active")


def test_back_ends_are_exchanged_while_the_program_works_and_no_byte_is_wrong(runtime):
    disks = [runtime.folder / "one", runtime.folder / "other"]
    for disk in disks:
        disk.mkdir()
    one, other = (f"ssd:{disk}" for disk in disks)
    with runtime.running("--local", "96M", "--far", f"{one}@1G", "--name", "moves") as running:
        for far in (["lz4"], [f"{one}@1G", f"{other}@1G"], ["lz4", f"{other}@1G"], ["lz4"]):
            ended = runtime.command("switch", "moves", "--far", ",".join(far), "--json", "--wait", "60")
            assert ended.returncode == 0, ended.stderr
            told = json.loads(ended.stdout)
            assert told["longest_stall_s"] >= 0 and told["used_after_s"] <= told["seconds"]
            program = runtime.program()
            assert active(program) == sorted(word.split("@")[0] for word in far)
            held = {back_end["name"] for back_end in program["back_ends"] if back_end["held_bytes"] > 0}
            assert held <= set(active(program)), program["back_ends"]
        finished(running)


def test_a_random_program_is_switched_to_and_fro_among_back_ends(runtime, tmp_path):
    program = tmp_path / "far_random"
    subprocess.run(["cc", "-O1", "-o", program, TREE / "tests/programs/far_random.c", "-lpthread"], check=True)
    command = ["sh", "-c", 'echo ready; exec "$0" "$@"', program, "6000", "5151"]
    with runtime.running("--local", "64M", "--name", "random", program=command) as running:
        switched = 0
        while running.poll() is None:
            disk = f"ssd:{runtime.folder}@2G"
            for far, copies, budget in ((disk, 1, "64M"), (f"lz4,{disk}", 2, "96M"), (f"zstd,lz4,{disk}", 3, "64M"), ("lz4", 1, "64M")):
                ended = runtime.command(
                    "switch", "random", "--far", far, "--copies", copies, "--local", budget, "--wait", "20"
                )
                switched += ended.returncode == 0
        said, told = running.communicate(timeout=SECONDS_MAX)
        assert running.returncode == 0 and said == "right\n", told
        assert switched > 0, told


def test_the_number_of_copies_is_changed_while_the_program_works(runtime):
    with runtime.running("--local", "96M", "--far", f"lz4,ssd:{runtime.folder}@1G", "--name", "copied") as running:
        for copies in (2, 1, 2):
            ended = runtime.command("switch", "copied", "--copies", copies, "--json", "--wait", "60")
            assert ended.returncode == 0, ended.stderr
            assert json.loads(ended.stdout)["copies"] == copies
            program = runtime.program()
            held = [back_end["held_bytes"] for back_end in program["back_ends"]]
            # What moves at this moment is in the one and not yet in the other.
            apart = abs(held[0] - held[1])
            assert program["copies"] == copies and (copies == 1 or apart <= max(held) / 4), held
        ended = runtime.command("switch", "copied", "--copies", 3)
        assert ended.returncode != 0 and "as many back ends" in ended.stderr and "hint:" in ended.stderr, ended.stderr
        assert runtime.program()["copies"] == 2
        finished(running)


def test_back_ends_that_are_full_or_broken_are_refused_and_change_nothing(runtime):
    with runtime.running("--local", "96M", "--name", "stays") as running:
        before = active(runtime.program())
        cases = [
            (f"ssd:{runtime.folder}@8M", "have room for 8 MiB"),
            (f"lz4,ssd:{runtime.folder}/missing", "is no folder"),
            ("lz4,lz4", "named twice"),
            ("tape", "is no back end"),
        ]
        full = pathlib.Path("/dev/full")
        if full.exists():
            cases.append((f"ssd:{full}@1G", "is no folder"))
        for far, part in cases:
            ended = runtime.command("switch", "stays", "--far", far)
            assert ended.returncode != 0 and part in ended.stderr and "hint:" in ended.stderr, (far, ended.stderr)
            assert active(runtime.program()) == before
        finished(running)


def sizes(program):
    """The sizes of the back ends that take content."""
    return {one["name"]: one["limit_bytes"] for one in program["back_ends"] if one["life"] == "active"}


def test_a_back_end_in_use_gets_the_size_that_is_named(runtime):
    disk = f"ssd:{runtime.folder}"
    with runtime.running("--local", "96M", "--far", f"lz4,{disk}@256M", "--name", "sized") as running:
        assert sizes(runtime.program()) == {"lz4": None, disk: 256 * MEBIBYTE}
        ended = runtime.command("switch", "sized", "--far", f"lz4@1G,{disk}@512M")
        assert ended.returncode == 0, ended.stderr
        assert sizes(runtime.program()) == {"lz4": 1024 * MEBIBYTE, disk: 512 * MEBIBYTE}
        ended = runtime.command("switch", "sized", "--far", f"lz4@1G,{disk}@1G,ssd:{runtime.folder}/missing")
        assert ended.returncode == 1 and "is no folder" in ended.stderr, ended.stderr
        ended = runtime.command("switch", "sized", "--far", f"lz4,{disk}")
        assert ended.returncode == 0, ended.stderr
        assert sizes(runtime.program()) == {"lz4": 1024 * MEBIBYTE, disk: 512 * MEBIBYTE}
        finished(running)


def test_a_budget_that_is_refused_keeps_the_back_ends_that_stand_beside_it_out(runtime):
    with runtime.running("--local", "300M", "--name", "shared", program=[sys.executable, "-c", SHARED]):
        before = runtime.program()
        ended = runtime.command("switch", "shared", "--local", "80M", "--far", "zstd")
        assert ended.returncode == 1 and "cannot leave" in ended.stderr, ended.stderr
        after = runtime.program()
        assert (active(after), after["budget"]) == (active(before), before["budget"])
        ended = runtime.command("switch", "shared", "--local", "250M", "--far", "zstd")
        assert ended.returncode == 0, ended.stderr
        after = runtime.program()
        assert (active(after), after["budget"]) == (["zstd"], {"bytes": 250 * MEBIBYTE})


def test_the_memory_of_compressed_back_ends_and_latencies_are_told(runtime):
    with runtime.running("--local", "96M", "--name", "memory") as running:
        (lz4,) = runtime.program()["back_ends"]
        assert 0 < lz4["memory_bytes"] < lz4["held_bytes"], "counters of 4 bytes and zeros compress"
        assert 0 < lz4["get_s"] < 10 and 0 < lz4["put_s"] < 10
        assert re.search(r"lz4 [^,]* of memory \([0-9.]+ to 1\)", runtime.command("far", "list").stdout)
        told = finished(running)
    assert re.search(r"; lz4: \d+ MiB out, \d+ MiB in, at most \d+ MiB in \d+ MiB of memory \([0-9.]+ to 1\)", told), told


def test_copies_that_fail_together_are_warned_of_and_not_refused(runtime):
    disks = [f"ssd:{runtime.folder / name}@256M" for name in ("one", "other")]
    for name in ("one", "other"):
        (runtime.folder / name).mkdir()
    with runtime.running("--local", "96M", "--far", ",".join(disks), "--name", "fate") as running:
        for far in ([], ["--far", ",".join(disks)]):
            ended = runtime.command("switch", "fate", *far, "--copies", 2)
            assert ended.returncode == 0 and ended.stderr.count("are on one disk") == 1, ended.stderr
        ended = runtime.command("switch", "fate", "--far", f"lz4,{disks[0]}", "--copies", 2)
        assert ended.returncode == 0 and "are on one disk" not in ended.stderr, ended.stderr
        assert "are on one disk" not in finished(running)
    with runtime.running("--local", "96M", "--far", ",".join(disks), "--copies", 2) as running:
        assert finished(running).count("are on one disk") == 1


def report_of(path):
    """The data of a report."""
    text = path.read_text(encoding="utf-8")
    assert "://" not in re.sub(r"<script type.*?</script>", "", text, flags=re.DOTALL), "it needs the network"
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return text, json.loads(data)


def test_a_report_has_pages_faults_waits_and_back_ends_over_time(runtime):
    path = runtime.folder / "run.html"
    with runtime.running("--local", "96M", "--far", f"lz4,ssd:{runtime.folder}@1G", "--name", "told<b>", "--report", path) as running:
        switched = runtime.command("switch", "told<b>", "--local", "128M")
        assert switched.returncode == 0, switched.stderr
        told = finished(running)
    text, data = report_of(path)
    assert "the report is in" in told and "told&lt;b&gt;" in text and "told<b>" not in text
    moments = data["moments"]
    assert len(moments) > 1 and data["rows"] and data["back_ends"] == ["lz4", f"ssd:{runtime.folder}"]
    faults = int(re.search(r"(\d+) faults", told).group(1))
    assert 0 < sum(moment["faults"] for moment in moments) <= faults
    assert sum(part[1] for moment in moments for part in moment["parts"]) > 0
    assert sum(moved[1] for moment in moments for moved in moment["moved"]) > 0
    assert {moment["budget"] for moment in moments} >= {128 * MEBIBYTE}
    assert any(moment["resident"] > 0 and moment["far"] > 0 for moment in moments)


def test_a_report_that_cannot_be_written_is_told_before_the_program_starts(runtime):
    ended = runtime.command("run", "--local", "1G", "--report", "/nowhere/at/all.html", "--", "echo", "started")
    assert ended.returncode != 0 and not ended.stdout and "hint:" in ended.stderr
    alone = runtime.command("run", "--report", "report.html", "--", "echo", "started")
    assert alone.returncode == 2 and "--local" in alone.stderr


def test_a_browser_draws_the_report(runtime, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no browser (hint: apt install chromium)")
    path = runtime.folder / "run.html"
    with runtime.running("--local", "96M", "--report", path) as running:
        finished(running)
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    drawn = subprocess.run([*command, f"file://{path}"], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert 'data-drawn="yes"' in drawn.stdout, drawn.stderr[-2000:]
