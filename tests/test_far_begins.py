"""When far memory begins in a process: with the first memory that is worth it, in whatever thread and call that is, and before the process could not any more."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from stuck import Stuck
from test_far import SECONDS_MAX, TREE, compiled, far, is_alive, library, pytestmark, resident_bytes  # noqa: F401
from test_far_live import runtime  # noqa: F401

MEBIBYTE = 1 << 20
EAGER = {**os.environ, "HINTERLAND_FAR_EAGER": "1"}
# What a process may give up and have far memory all the same.
GIVEN_UP = [
    *["setuid", "seteuid", "setreuid", "setresuid", "setfsuid", "chroot", "unshare", "capset", "seccomp", "no_new_privs", "mlockall"],
    *["nofile", "fsize", "as"],
]


@pytest.fixture(scope="module")
def begins(tmp_path_factory):
    """A program that looks whether far memory has begun in it."""
    return built(tmp_path_factory.mktemp("far") / "far_begins")


def built(path, *options):
    """The program, built with these options."""
    subprocess.run(["cc", "-O1", *options, "-o", path, TREE / "tests/programs/far_begins.c", "-lpthread"], check=True)
    return path


@pytest.mark.parametrize("kind", ["small", "at_once", "shared", "in_parts", "reserves", "little_stack"])
def test_far_memory_begins_with_the_first_memory_that_is_worth_it(binary, library, begins, kind):
    ended = far(binary, ["--local", "96M"], [begins, kind])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


def test_a_process_that_begins_at_once_is_as_one_that_waits(binary, library, begins):
    """The switch: with it, what is said of small processes is not true."""
    ended = far(binary, ["--local", "96M"], [begins, "small"], env=EAGER)
    assert ended.returncode == 1 and "!has_begun()" in ended.stderr, ended.stderr
    ended = far(binary, ["--local", "96M"], [begins, "little_stack"], env=EAGER)
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


def test_a_program_with_much_data_of_its_own_begins_at_once(binary, library, tmp_path):
    ended = far(binary, ["--local", "96M"], [built(tmp_path / "far_data", "-DDATA")])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


def test_arrays_that_a_program_is_loaded_with_are_in_the_budget(binary, library, tmp_path):
    """As with Fortran, and in many benchmarks: all memory is there as the program begins, and none was ever asked for."""
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_static")])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert resident_bytes(ended.stderr) <= 65 * MEBIBYTE and "alone left the budget no room" not in ended.stderr, ended.stderr


def test_all_of_the_heap_is_in_the_budget_once_far_memory_begins(binary, library, begins):
    ended = far(binary, ["--local", "96M"], [begins, "heap"])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert resident_bytes(ended.stderr) <= 97 * MEBIBYTE, ended.stderr


@pytest.mark.parametrize("kind", ["threads", "forks", "forks_in_malloc", "handlers", "vforks"])
def test_whoever_asks_first_and_whatever_goes_on_meanwhile_no_byte_is_wrong(binary, library, begins, kind):
    ended = far(binary, ["--local", "96M"], [begins, kind])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


@pytest.mark.parametrize("what", GIVEN_UP)
def test_who_gives_something_up_before_it_asks_for_memory_keeps_to_the_budget(binary, library, begins, what):
    ended = far(binary, ["--local", "96M"], [begins, "gives_up", what])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    # One that limits its address space cannot have as much.
    assert what == "as" or " 0 MiB far" not in ended.stderr, ended.stderr
    assert resident_bytes(ended.stderr) <= 97 * MEBIBYTE, ended.stderr


def test_who_enters_a_user_namespace_gets_it_and_is_told_of(binary, library, begins):
    ended = far(binary, ["--local", "96M"], [begins, "user_namespace"])
    if "unshare(CLONE_NEWUSER) == 0 (Operation not permitted)" in ended.stderr:
        pytest.skip("this machine lets nobody have a user namespace")
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "has given up the right to a userfaultfd" in ended.stderr, ended.stderr


def test_who_has_no_descriptor_left_is_told_once_and_has_far_memory_later(binary, library, begins):
    ended = far(binary, ["--local", "96M"], [begins, "no_descriptors"])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert ended.stderr.count("far memory cannot begin") == 1 and "hint:" in ended.stderr, ended.stderr


def waiting(binary, begins, words):
    """A run of a program that has not begun, and its number."""
    command = [binary, "run", "--local", "96M", "--", *words]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return running, int(running.stdout.readline().split()[1])


def has_ended(program):
    """Whether a process ends in time."""
    deadline = time.monotonic() + SECONDS_MAX
    while is_alive(program) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(program)


# Becomes the program, with and without memory before that.
BECOMES = "import os, sys; memory = bytearray(int(sys.argv[1]) << 20); os.execv(sys.argv[2], [sys.argv[2], 'late'])"


@pytest.mark.parametrize("before", ["nothing", "a small one", "a large one"])
def test_a_small_program_ends_with_its_run(binary, library, begins, before):
    words = {
        "nothing": [begins, "late"],
        "a small one": ["sh", "-c", f"exec {begins} late"],
        "a large one": [sys.executable, "-c", BECOMES, "50", begins],
    }
    running, program = waiting(binary, begins, words[before])
    running.kill()
    assert has_ended(program)
    running.communicate()


def test_a_process_that_asks_when_the_supervisor_is_gone_is_ended_with_a_message(binary, library, begins):
    """Not the first process of the run, which ends with it."""
    running, program = waiting(binary, begins, ["sh", "-c", f"{begins} late; true"])
    running.kill()
    said, told = running.communicate("x", timeout=SECONDS_MAX)
    assert said == "" and "far memory cannot be had, and the program is ended" in told, (said, told)
    assert has_ended(program)


def test_a_small_program_is_listed_by_its_number_and_can_be_switched(runtime):
    with runtime.running("--local", "96M", program=["sh", "-c", "echo ready; read line; read line"]) as running:
        program = runtime.program()
        (shell,) = program["processes"]
        assert pathlib.Path(f"/proc/{shell}/comm").read_text(encoding="utf-8") == "sh\n"
        switched = runtime.command("switch", shell, "--local", "128M")
        assert switched.returncode == 0, switched.stderr
        assert runtime.program()["budget_bytes"] == 128 * MEBIBYTE
        assert runtime.command("switch", running.pid + 100000, "--local", "96M").returncode != 0


def test_programs_that_have_the_library_are_not_looked_at_and_others_are(binary, library, tmp_path):
    """A program that nobody tells of needs no connection: the supervisor accepts one, of the first process."""
    script = f"i=0; while [ $i -lt 20 ]; do /bin/true; i=$((i+1)); done; {script_of(tmp_path)}; env -i /bin/true"
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-e", "trace=connect", "-o", trace, binary, "run", "--local", "96M", "--", "sh", "-c", script]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    except FileNotFoundError:
        pytest.skip("there is no strace")
    assert ended.returncode == 0, ended.stderr
    assert "/true was started without LD_PRELOAD" in ended.stderr, ended.stderr
    connects = re.findall(r"connect\(.*far\.sock", trace.read_text(encoding="utf-8"))
    # The first process, the script, and what `env` begins.
    assert len(connects) == 3, connects


def script_of(folder):
    """A script that does nothing."""
    path = folder / "script"
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_what_a_shell_starts_is_right_with_and_without_the_switch(binary, library):
    script = "for i in $(seq 1 60); do x=$(echo $i | cat); y=$(/bin/true; (:); sort </dev/null); done; echo right"
    for environment in (os.environ, EAGER):
        ended = far(binary, ["--local", "160M"], ["bash", "-c", script], env=environment)
        assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
        assert "was not loaded" not in ended.stderr, ended.stderr


def test_a_program_without_far_memory_ends_by_the_signal_that_it_would(binary, library, begins):
    running, program = waiting(binary, begins, [begins, "late"])
    os.kill(program, signal.SIGTERM)
    running.communicate(timeout=SECONDS_MAX)
    assert running.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("kind", ["stays", "ends", "late"])
def test_what_a_program_leaves_behind_has_its_bytes_until_it_ends_and_is_told_of(binary, library, tmp_path, kind):
    """Its first process ends as it forks: the run is about to end while the other one is on its way."""
    program = compiled(tmp_path, "far_daemon")
    told, right, number = 0, 0, 0
    # Busy machines leave it too little time for all of its memory, most times.
    while number < 8 or (number < 60 and (right == 0 or (kind == "ends" and told == number))):
        file = tmp_path / f"said{number}"
        number += 1
        ended = far(binary, ["--local", "64M"], [program, file, kind])
        deadline = time.monotonic() + SECONDS_MAX
        is_told = "left a process behind, which is ended" in ended.stderr and "far_daemon (" in ended.stderr
        # One that begins when the run is over has the kernel's memory, and goes on.
        while kind == "late" and not is_told and not (file.exists() and file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        is_right = file.exists() and file.read_text() == "right"
        # On a busy machine one may still be looking at its memory when its time is over. It never finds anything wrong.
        assert ended.returncode == 0 and (is_told or is_right), ended.stderr
        assert is_told or kind != "stays", ended.stderr
        # What was leaving its parent as that forked and ended.
        assert "lost" not in ended.stderr, ended.stderr
        told, right = told + is_told, right + is_right
    assert right > 0 and (kind != "ends" or told < number)


@pytest.mark.parametrize("how", ["clone", "_Fork"])
def test_who_was_made_past_the_c_library_ends_with_the_run(binary, library, tmp_path, how):
    """It has never said who it is, and would read zeros in memory that nobody serves any more."""
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_cloned"), tmp_path / "said", how])
    assert ended.returncode == 0 and "left a process behind, which is ended" in ended.stderr, ended.stderr
    assert "far_cloned (" in ended.stderr and (tmp_path / "said").read_text() == "", ended.stderr


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="nothing can be mounted here")
def test_the_end_of_a_run_passes_over_a_process_of_which_the_kernel_says_nothing(binary, library, tmp_path):
    """Somebody else's, on its way to another program: whoever reads its variables waits until a file system answers."""
    program = compiled(tmp_path, "far_cloned")
    with Stuck(tmp_path / "stuck"):
        ended = far(binary, ["--local", "64M"], [program, tmp_path / "said", "clone"])
    assert ended.returncode == 0 and "left a process behind, which is ended" in ended.stderr, ended.stderr
    assert "far_cloned (" in ended.stderr and (tmp_path / "said").read_text() == "", ended.stderr


def test_a_child_of_a_fork_without_handlers_keeps_to_the_budget(binary, library, tmp_path):
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_cloned"), "none", "waits"])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert resident_bytes(ended.stderr) <= 65 * MEBIBYTE, ended.stderr


def test_what_processes_have_in_common_counts_once(binary, library, tmp_path):
    """Six of them have one file of 40 MiB: counted in each of them, it alone would be twice the budget, and nothing of their own could stay."""
    path = tmp_path / "common"
    path.write_bytes(b"\1" * (40 * MEBIBYTE))
    ended = far(binary, ["--local", "128M"], [compiled(tmp_path, "far_common"), path])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "alone left the budget no room" not in ended.stderr, ended.stderr
