"""Far memory under real programs: every byte right, the budget held, and a clear end when something dies."""

import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from guides import commands
from leavings import marked, processes, proportional_bytes

TREE = pathlib.Path(__file__).resolve().parent.parent
MEBIBYTE = 1 << 20
SECONDS_MAX = 90

KERNEL = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="far memory follows forks, which needs CAP_SYS_PTRACE"),
    pytest.mark.skipif(KERNEL < (6, 8), reason="far memory moves pages, which needs Linux 6.8"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="far memory runs on x86-64 only"),
]


@pytest.fixture(scope="module")
def library(binary):
    """The preloaded library beside the binary."""
    path = binary.parent / "libhinterland_preload.so"
    if not path.exists():
        pytest.fail(f"there is no {path} (hint: cargo build -p hinterland-preload)")
    return path


def compiled(folder, name):
    """A program of tests/programs."""
    subprocess.run(["cc", "-O1", "-o", folder / name, TREE / f"tests/programs/{name}.c", "-lpthread"], check=True)
    return folder / name


@pytest.fixture(scope="module")
def random_program(tmp_path_factory):
    """A program that checks everything it reads against what it wrote."""
    return compiled(tmp_path_factory.mktemp("far"), "far_random")


def far(binary, options, program, **settings):
    """Runs a program with far memory and returns what became of it."""
    command = [binary, "run", *options, "--", *program]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False, **settings
    )


def resident_bytes(text):
    """The most that the program had resident, as the end of the run says."""
    number, unit = re.search(r"at most ([0-9.]+) (KiB|MiB|GiB) resident", text).groups()
    return float(number) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]


@pytest.mark.parametrize("back_ends", [["lz4"], ["ssd"], ["lz4", "ssd"]])
@pytest.mark.parametrize("unit", ["4K", "64K", "2M"])
def test_a_random_program_reads_what_it_wrote(binary, library, random_program, folder, back_ends, unit):
    names = [name if name == "lz4" else f"ssd:{folder}@2G" for name in back_ends]
    copies = ["--copies", str(len(names))]
    options = ["--local", "64M", "--far", ",".join(names), "--far-unit", unit, *copies]
    ended = far(binary, options, [random_program, "4000", "977"])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "MiB written" in ended.stderr and not list(folder.iterdir())


@pytest.mark.parametrize("threads", ["0", "1", "7"])
def test_any_number_of_threads_may_serve_back_ends_beside_the_others(binary, library, random_program, threads):
    env = {**os.environ, "HINTERLAND_FAR_READERS": threads, "HINTERLAND_FAR_WRITERS": threads}
    ended = far(binary, ["--local", "64M", "--far-unit", "16K"], [random_program, "4000", "31"], env=env)
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


@pytest.mark.parametrize("variable", ["HINTERLAND_FAR_READERS", "HINTERLAND_FAR_WRITERS"])
def test_what_is_no_number_of_threads_is_refused_before_the_program_starts(binary, library, variable):
    for number in ["17", "-1", "many"]:
        ended = far(binary, ["--local", "64M"], ["true"], env={**os.environ, variable: number})
        assert ended.returncode == 1 and f"{variable} is {number}" in ended.stderr, ended.stderr
        assert "0 to 16" in ended.stderr


def test_a_program_whose_name_the_kernel_cuts_within_a_character_has_far_memory(binary, library, tmp_path):
    program = compiled(tmp_path, "far_freed").rename(tmp_path / "a-program-for-ää")
    ended = far(binary, ["--local", "96M"], [program, "200"])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert re.search(r"lz4: [1-9]\d* MiB out", ended.stderr), ended.stderr


@pytest.mark.parametrize("words", [[], ["hole"]])
def test_memory_that_is_given_for_free_and_written_again_keeps_to_the_budget(binary, library, tmp_path, words):
    program = compiled(tmp_path, "far_freed")
    ended = far(binary, ["--local", "96M"], [program, "300", *words])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert resident_bytes(ended.stderr) <= 96 * MEBIBYTE and "stays resident" not in ended.stderr, ended.stderr


def test_memory_that_is_taken_out_while_threads_wait_in_it_keeps_what_they_write(binary, library, tmp_path):
    program = compiled(tmp_path, "far_released")
    ended = far(binary, ["--local", "96M", "--far-unit", "4K"], [program, "3"])
    assert ended.returncode == 0 and ended.stdout == "right\n", (ended.stdout, ended.stderr)


@pytest.mark.parametrize("unit", [[], ["--far-unit", "64K"]], ids=["fit", "64K"])
def test_memory_whose_pages_move_while_its_mapping_stays_is_zeros_there_and_whole_elsewhere(binary, library, tmp_path, unit):
    program = compiled(tmp_path, "far_left_mapped")
    ended = far(binary, ["--local", "64M", *unit], [program])
    assert ended.returncode == 0 and ended.stdout == "right\n", (ended.stdout, ended.stderr)


OUTLIVES = """
import os, sys
PAGE, count = 4096, 200 << 8
memory = bytearray(count * PAGE)
def write(round):
    for page in range(count):
        memory[page * PAGE:page * PAGE + 8] = (round * count + page).to_bytes(8, "little")
def check(round):
    for page in range(count):
        if int.from_bytes(memory[page * PAGE:page * PAGE + 8], "little") != round * count + page:
            sys.exit(f"page {page} is wrong in round {round}")
def resident():
    return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("VmRSS"))
write(1)
if child := os.fork():
    if sys.argv[1] == "stays":
        check(1)
        os.waitpid(child, 0)
    os._exit(0)
most = 0
for round in range(1, 4):
    check(round)
    write(round + 1)
    most = max(most, resident())
print("right", most, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("parent", ["ends", "stays"])
def test_a_child_of_a_large_program_keeps_to_the_budget_whether_its_parent_lives_or_not(binary, library, tmp_path, parent):
    script = tmp_path / "outlives.py"
    script.write_text(OUTLIVES)
    # Waits for the pipe, which the child has, too.
    ended = far(binary, ["--local", "96M"], ["sh", "-c", f'"{sys.executable}" "{script}" {parent} | cat'])
    said, most = ended.stdout.split()
    assert ended.returncode == 0 and said == "right", ended.stderr
    assert int(most) <= 96 and "above the budget" not in ended.stderr, (most, ended.stderr)


# What all processes together may have above the budget while they are looked at one after the other: pages that leave one of them and come to another one
# meanwhile count twice.
BURST_TOLERANCE_BYTES = 16 * MEBIBYTE


def test_threads_of_several_processes_that_fill_memory_at_once_keep_to_the_budget_together(binary, library, tmp_path):
    """384 MiB of twelve threads in four processes: the sum of all is looked at, all the time."""
    environment, mark = marked()
    command = [binary, "run", "--local", "96M", "--", compiled(tmp_path, "far_burst"), "2"]
    sums, most = [], 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as running:
        deadline = time.monotonic() + SECONDS_MAX
        while running.poll() is None and time.monotonic() < deadline:
            each = [proportional_bytes(process) for process in processes(mark) if int(process) != running.pid]
            sums.append(sum(each))
            most = max(most, *each, 0)
        said, told = running.communicate(timeout=SECONDS_MAX)
    assert running.returncode == 0 and said == "right\n", told
    # They did work at the same time, and had the budget together.
    assert len(sums) > 20 and max(sums) > 64 * MEBIBYTE and most < max(sums), (len(sums), most, max(sums))
    assert max(sums) <= 96 * MEBIBYTE + BURST_TOLERANCE_BYTES, max(sums)
    assert "above the budget" not in told, told
    # One process, which the end of the run says.
    assert "largest process had at most" in told and resident_bytes(told) <= 96 * MEBIBYTE, told


MANY = """
import os, sys
memory = bytearray(b"7") * (64 << 20)
held, hold = os.pipe()
told, tell = os.pipe()
children = []
for _ in range(80):
    child = os.fork()
    if child == 0:
        os.close(hold)
        os.write(tell, b"x")
        os.read(held, 1)
        os._exit(memory[:: 1 << 20].count(b"7") != 64)
    children.append(child)
for _ in children:
    os.read(told, 1)
os.close(hold)
print("right" if all(os.waitpid(child, 0)[1] == 0 for child in children) else "wrong")
"""


def test_more_processes_at_once_than_the_limit_of_open_files_would_hold(binary, library):
    command = ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", binary, "run", "--local", "64M", "--", sys.executable, "-c", MANY]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


def test_a_program_has_the_limit_of_open_files_that_it_would_have_alone(binary, library):
    command = ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", binary, "run", "--local", "96M", "--", "sh", "-c", "ulimit -n"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ended.stdout == "256\n", ended.stderr


@pytest.mark.parametrize("unit", ["4K", "64K"])
def test_a_child_reads_what_was_there_while_another_thread_waited_for_it(binary, library, tmp_path, unit):
    program = compiled(tmp_path, "far_forked")
    ended = far(binary, ["--local", "64M", "--far-unit", unit], [program, "100"])
    assert ended.returncode == 0 and ended.stdout == "right\n", (ended.stdout, ended.stderr)


IN_PLACE = """
memory = bytearray(b"7") * (160 << 20)
step = 1 << 16
for round in range(3):
    for at in range(0, len(memory), step):
        part = memory[at : at + step]
        memory[at : at + step] = part[1:] + part[:1]
print("right" if memory.count(b"7") == len(memory) else "wrong")
"""


def test_what_is_read_and_written_in_order_waits_for_few_first_writes(binary, library):
    writes = {}
    for guess in ["0", "1"]:
        env = {**os.environ, "HINTERLAND_FAR_GUESS": guess}
        ended = far(binary, ["--local", "96M"], [sys.executable, "-c", IN_PLACE], env=env)
        assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
        writes[guess] = int(re.search(r"\(([0-9]+) of them first writes\)", ended.stderr).group(1))
    assert writes["1"] < writes["0"] / 4, writes


def test_small_units_that_follow_each_other_come_back_several_at_once(binary, library):
    said = r"([0-9]+) MiB filled ahead, ([0-9]+) of them several units at once"
    for together in ["0", "1"]:
        env = {**os.environ, "HINTERLAND_FAR_TOGETHER": together}
        ended = far(binary, ["--local", "96M"], [sys.executable, "-c", IN_PLACE], env=env)
        assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
        ahead, several = map(int, re.search(said, ended.stderr).groups())
        assert ahead > 160 and (several > ahead / 4 if together == "1" else several == 0), ended.stderr


# A matrix with rows of eight pages, gone through column by column, down and up again.
COLUMNS = """
import mmap
pages, row = 40960, 8
memory = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(pages):
    memory[page * 4096 : page * 4096 + 4] = page.to_bytes(4, "little")
found = 0
for column in range(row):
    down = range(column, pages, row)
    for page in down if column % 2 else reversed(down):
        found += int.from_bytes(memory[page * 4096 : page * 4096 + 4], "little") == page
print("right" if found == pages else "wrong")
"""


@pytest.mark.alone
def test_who_goes_down_columns_and_up_again_waits_for_few_pages(binary, library):
    faults = {}
    for trends in ["0", "1"]:
        env = {**os.environ, "HINTERLAND_FAR_TRENDS": trends}
        ended = far(binary, ["--local", "64M"], [sys.executable, "-c", COLUMNS], env=env)
        assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
        count, along = map(int, re.search(r"; ([0-9]+) faults .* ([0-9]+) along steps", ended.stderr).groups())
        faults[trends] = count
        assert (along > 50) == (trends == "1"), ended.stderr
    assert faults["1"] < faults["0"] / 2, faults


# Memory that is reserved by the tebibyte, and of which little is used.
SPARSE = """
import mmap, os, re
bytes, parts = 1 << 40, 300
memory = mmap.mmap(-1, bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
step = bytes // parts // 4096 * 4096
content = lambda part: b"%7d|" % part * (1 << 17)
for part in range(parts):
    memory[part * step : part * step + (1 << 20)] = content(part)
is_right = all(memory[part * step : part * step + (1 << 20)] == content(part) for part in range(parts))
print("right" if is_right and memory[step - 1] == 0 else "wrong")
print(re.search(r"VmHWM:\\s+([0-9]+) kB", open(f"/proc/{os.getppid()}/status").read())[1])
"""


def test_a_tebibyte_that_is_hardly_used_is_far_and_costs_the_supervisor_little(binary, library):
    ended = far(binary, ["--local", "96M"], [sys.executable, "-c", SPARSE])
    assert ended.returncode == 0 and ended.stdout.startswith("right\n"), ended.stderr
    assert resident_bytes(ended.stderr) < 112 * MEBIBYTE, ended.stderr
    # The content compresses to next to nothing.
    assert int(ended.stdout.split()[1]) < 160 << 10, ended.stdout


def test_a_mapping_that_was_protected_in_parts_can_be_moved_as_one(binary, library, tmp_path):
    ended = far(binary, ["--local", "64M", "--far-unit", "64K"], [compiled(tmp_path, "far_parts")])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


NUMPY = """
import numpy, sys
count = int(sys.argv[1]) * 131072
numbers = numpy.arange(count, dtype=numpy.int64)
numbers += 1
assert int(numbers.sum()) == count * (count + 1) // 2
print("right")
"""


@pytest.mark.parametrize("follow", ["0", "1"])
def test_a_thread_that_faults_all_the_time_may_run_where_it_might_before(binary, library, tmp_path, follow):
    ended = far(
        binary,
        ["--local", "64M", "--far-unit", "4K"],
        [compiled(tmp_path, "far_follow"), "96", "20000"],
        env={**os.environ, "HINTERLAND_FAR_FOLLOW": follow},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    looks, fewer, children, fewer_of_children = map(int, re.findall("[0-9]+", ended.stdout))
    # Where the serving thread waits for another one just then, the program may look before it has all of its processors again.
    assert (looks, children) == (20000, 10) and fewer <= looks // 100 and fewer_of_children <= 1, ended.stdout


def test_numpy_sums_an_array_larger_than_the_budget_and_the_budget_is_held(binary, library):
    pytest.importorskip("numpy")
    ended = far(binary, ["--local", "160M"], [sys.executable, "-c", NUMPY, "300"])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert resident_bytes(ended.stderr) <= 160 * MEBIBYTE, ended.stderr


def test_a_program_that_fits_takes_no_faults_of_its_memory(binary, library):
    ended = far(binary, ["--local", "512M"], [sys.executable, "-c", "print(len(bytearray(100 << 20)))"])
    assert ended.returncode == 0 and ended.stdout == f"{100 << 20}\n", ended.stderr
    assert "out 0 MiB written" in ended.stderr


CHURN = """
grown = bytearray(2 << 20)
for round in range(20):
    taken = bytearray(40 << 20)
    taken[::4096] = b"7" * (len(taken) >> 12)
    grown.extend(bytes(1 << 20))
    del taken
print("right" if not any(grown) else "wrong")
"""


def test_memory_that_was_given_back_does_not_count_before_any_is_under_service(binary, library):
    """The program has 800 MiB and 20 sizes of one array in turn, but never more than 100 MiB at once."""
    ended = far(binary, ["--local", "160M"], [sys.executable, "-c", CHURN])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert re.search(r"\b0 faults", ended.stderr), ended.stderr


def test_a_full_back_end_loses_no_byte_and_says_so(binary, library, random_program, folder):
    ended = far(binary, ["--local", "64M", "--far", f"ssd:{folder}@16M"], [random_program, "3000", "5"])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "has no room" in ended.stderr and "--far" in ended.stderr
    assert "fewer copies" not in ended.stderr, "one copy was asked for"


SLOW = """
import sys, time
memory = bytearray(300 << 20)
for at in range(0, len(memory), 4096):
    memory[at] = at >> 12 & 255
print("ready", flush=True)
while True:
    for at in range(0, len(memory), 4096):
        if memory[at] != at >> 12 & 255:
            print("WRONG", flush=True)
    time.sleep(0.001)
"""


def started(binary):
    """A program that reads its far memory for ever."""
    command = [binary, "run", "--local", "128M", "--", sys.executable, "-c", SLOW]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "ready\n"
    (program,) = (
        int(child)
        for task in pathlib.Path(f"/proc/{running.pid}/task").iterdir()
        for child in (task / "children").read_text(encoding="utf-8").split()
    )
    return running, program


def is_alive(process):
    """Whether a process is there and no zombie."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")")[-1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_supervisor_ends_the_program_with_a_message_and_no_wrong_byte(binary, library):
    running, program = started(binary)
    running.kill()
    deadline = time.monotonic() + 20
    while is_alive(program) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(program)
    said, told = running.communicate(timeout=20)
    assert "WRONG" not in said and "supervisor of far memory is gone" in told


def test_a_killed_supervisor_ends_a_program_that_writes_to_where_it_is_said(binary, library, tmp_path):
    """The kernel holds a pipe for a writer that waits for its far memory: whoever has something to say there waits, too."""
    command = [binary, "run", "--local", "64M", "--", compiled(tmp_path, "far_written")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as running:
        try:
            assert running.stdout.readline() == b"ready\n"
            children = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text(encoding="utf-8")
            (program,) = map(int, children.split())
            running.send_signal(signal.SIGSTOP)
            running.stdin.write(b"\n")
            running.stdin.flush()
            deadline = time.monotonic() + 20
            # It writes, and waits for a page; before that, it waits for the byte.
            call = pathlib.Path(f"/proc/{program}/syscall")
            while not call.read_text(encoding="utf-8").startswith("1 0x1 ") and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.2)
            running.kill()
            while is_alive(program) and time.monotonic() < deadline:
                time.sleep(0.05)
            has_ended = not is_alive(program)
            if not has_ended:
                os.kill(program, signal.SIGKILL)
            assert has_ended
        finally:
            running.kill()


def test_a_killed_program_ends_the_run_and_leaves_nothing(binary, library):
    running, program = started(binary)
    os.kill(program, signal.SIGKILL)
    said, told = running.communicate(timeout=20)
    assert running.returncode == 128 + signal.SIGKILL and "WRONG" not in said
    assert "far memory: at most" in told


def test_impossible_settings_are_refused_before_the_program_starts(binary, library, tmp_path):
    cases = [
        (["--local", "1M"], "at least 64M"),
        (["--local", "200%"], "1% to 100%"),
        (["--local", "1G", "--far", "tape"], "is no back end"),
        (["--local", "1G", "--copies", "2"], "--far names 1"),
        (["--local", "1G", "--far", "ssd:/nowhere/at/all"], "hint:"),
        (["--local", "1G", "--far", f"ssd:{tmp_path}@60T"], f"ssd:{tmp_path}@2G"),
        (["--local", "1G", "--far", f"ssd:{tmp_path}@32"], "at least 1M"),
        (["--local", "1G", "--far-unit", "3K"], "power of two"),
    ]
    for options, part in cases:
        ended = far(binary, options, ["echo", "started"])
        assert ended.returncode != 0 and part in ended.stderr and not ended.stdout, (options, ended.stderr)
    static = tmp_path / "static"
    (tmp_path / "static.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    subprocess.run(["cc", "-static", "-o", static, tmp_path / "static.c"], check=True)
    ended = far(binary, ["--local", "1G"], [static])
    assert ended.returncode != 0 and "statically linked" in ended.stderr


def test_programs_that_go_past_far_memory_are_told_of_however_they_begin(binary, library, tmp_path):
    (tmp_path / "static.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    names = ["spawned", "forked", "shelled", "posix", "bare", "other"]
    for name in names[:4]:
        subprocess.run(["cc", "-static", "-o", tmp_path / name, tmp_path / "static.c"], check=True)
    for name in ["bare", "other", "own"]:
        subprocess.run(["cc", "-o", tmp_path / name, tmp_path / "static.c"], check=True)
    # One runs as another user, one as the user who runs it in any case.
    os.chown(tmp_path / "other", 65534, -1)
    (tmp_path / "other").chmod(0o4755)
    (tmp_path / "own").chmod(0o4755)
    script = f"""
import os, subprocess
folder = {str(tmp_path)!r}
for _ in range(3):
    assert subprocess.run([folder + "/spawned"]).returncode == 0
assert os.system(folder + "/shelled") == 0
child = os.fork()
if child == 0:
    os.execv(folder + "/forked", ["forked"])
assert os.waitpid(child, 0)[1] == 0
assert os.waitpid(os.posix_spawn(folder + "/posix", ["posix"], os.environ), 0)[1] == 0
for name in ("bare", "other", "own"):
    assert subprocess.run([folder + "/" + name]).returncode == 0
assert subprocess.run([folder + "/bare"], env={{}}).returncode == 0
try:
    subprocess.run([folder + "/nowhere"])
except FileNotFoundError:
    print("right", flush=True)
os.execv(folder + "/spawned", ["spawned"])
"""
    ended = far(binary, ["--local", "128M"], [sys.executable, "-c", script])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    told = [line for line in ended.stderr.splitlines() if "none of the budget's" in line]
    assert sorted(line.split()[1] for line in told) == sorted(str(tmp_path / name) for name in names), ended.stderr
    for line in told:
        why = {"bare": "without LD_PRELOAD", "other": "runs as another user"}
        assert why.get(pathlib.Path(line.split()[1]).name, "statically linked") in line, line
    assert "; 9 programs started outside" in ended.stderr, ended.stderr


def test_children_of_every_kind_get_their_memory(binary, library):
    script = """
import os, subprocess, sys
memory = bytearray(200 << 20)
for at in range(0, len(memory), 4096): memory[at] = at >> 12 & 255
def check():
    assert all(memory[at] == at >> 12 & 255 for at in range(0, len(memory), 4096))
for _ in range(3):
    child = os.fork()
    if child == 0:
        check(); memory[4096] = 99; grandchild = os.fork()
        if grandchild == 0:
            assert memory[4096] == 99; memory[4096] = 1; check(); os._exit(0)
        assert os.waitpid(grandchild, 0)[1] == 0 and memory[4096] == 99
        os._exit(0)
    check()
    assert os.waitpid(child, 0)[1] == 0
assert subprocess.run(["sh", "-c", "echo $((6 * 7))"], capture_output=True).stdout == b"42\\n"
assert os.system("true") == 0
check()
os.execv(sys.executable, [sys.executable, "-c", "b = bytearray(b'7' * (150 << 20)); assert b.count(b'7') == len(b); print('right')"])
"""
    ended = far(binary, ["--local", "128M"], [sys.executable, "-c", script])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


def test_children_are_told_apart_when_several_of_one_parent_begin(binary, library):
    script = """
import ctypes, os, threading
memory = bytearray(160 << 20)
for at in range(0, len(memory), 4096): memory[at] = at >> 12 & 255
def check(own):
    for at in range(4096, len(memory), 4096): assert memory[at] == at >> 12 & 255, at
    memory[0] = own
def ended(child): return os.waitpid(child, 0)[1]
# Past the C library: this child never greets, so that those after it are one of two.
read, write = os.pipe()
raw = ctypes.CDLL(None).syscall(57)
if raw == 0:
    os.close(write); os.read(read, 1); check(1); os._exit(memory[0] - 1)
for own in range(2, 5):
    child = os.fork()
    if child == 0:
        check(own); os._exit(memory[0] - own)
    assert ended(child) == 0
os.close(write)
assert ended(raw) == 0
# From several threads at once.
wrong = []
def forks(own):
    for _ in range(5):
        child = os.fork()
        if child == 0:
            memory[0] = own; os._exit(memory[8192] - 2)
        if ended(child): wrong.append(own)
threads = [threading.Thread(target=forks, args=(own,)) for own in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
check(0)
print("wrong" if wrong else "right")
"""
    ended = far(binary, ["--local", "128M"], [sys.executable, "-W", "ignore", "-c", script])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


def test_a_shell_that_forks_all_the_time_ends(binary, library):
    """A child begins while threads of its parent are still beginning."""
    script = "for i in $(seq 1 300); do x=$(echo $i | cat); done; echo right"
    for _ in range(2):
        ended = far(binary, ["--local", "160M"], ["bash", "-c", script])
        assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
        assert "at most 0 MiB here" in ended.stderr, ended.stderr


def test_the_guide_works_as_it_is_written(binary, library, folder):
    (script,) = commands("far-memory.md")
    path = f"{pathlib.Path(binary).parent}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["sh", "-ec", script], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert resident_bytes(ended.stderr) <= 200 * MEBIBYTE


def test_a_share_of_what_the_program_uses_stays_here(binary, library):
    """The program fills 400 MiB, of which with its libraries a little more than half may stay."""
    program = "import numpy; numbers = numpy.ones(400 << 17); numbers += 1; assert numbers.sum() == 800 << 17; print('right')"
    ended = far(binary, ["--local", "50%"], [sys.executable, "-c", program])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert resident_bytes(ended.stderr) <= 300 * MEBIBYTE, ended.stderr


def test_no_byte_is_wrong_while_the_kernel_moves_pages_elsewhere(binary, library, random_program):
    """Compaction makes the kernel stop moves early and say less than it has moved."""
    compact = pathlib.Path("/proc/sys/vm/compact_memory")
    if not os.access(compact, os.W_OK):
        pytest.skip("this machine does not let memory be compacted")
    over = threading.Event()

    def disturb():
        while not over.is_set():
            compact.write_text("1", encoding="ascii")

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for seed in ("978", "981"):
            ended = far(binary, ["--local", "64M", "--far", "lz4", "--far-unit", "64K"], [random_program, "4000", seed])
            assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    finally:
        over.set()
        thread.join()


def test_a_disk_back_end_is_a_folder_and_files_stay_as_they_are(binary, library, tmp_path):
    mine = tmp_path / "mine"
    mine.write_bytes(b"kept")
    for path in (mine, tmp_path / "missing"):
        ended = far(binary, ["--local", "200M", "--far", f"ssd:{path}"], ["true"])
        assert ended.returncode != 0 and "is no folder" in ended.stderr and "hint:" in ended.stderr, ended.stderr
    assert mine.read_bytes() == b"kept"
    assert list(tmp_path.iterdir()) == [mine]
