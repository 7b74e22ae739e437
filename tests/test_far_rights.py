"""Programs that change their user, their root or their rights, that come to a limit, and whose words nobody reads: they run as without far memory, or are told."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from test_far import KERNEL, SECONDS_MAX, compiled, far, library, pytestmark  # noqa: F401

NOBODY = 65534
# Programs of the system, which another user may run.
PYTHON = next((path for path in ("/usr/bin/python3", "/bin/python3") if os.path.exists(path)), None)

LOCKED = """
import ctypes
memory = bytearray(b"7") * (160 << 20)
assert ctypes.CDLL(None).mlockall(1) == 0
print("right" if memory.count(b"7") == len(memory) else "wrong")
"""


@pytest.mark.parametrize("where", ["a full disk", "a pipe without a reader"])
def test_words_that_nobody_can_read_end_no_program(binary, library, where):
    """It locks more than the budget, which the run has to say."""
    if where == "a full disk":
        words = os.open("/dev/full", os.O_WRONLY)
    else:
        read, words = os.pipe()
        os.close(read)
    command = [binary, "run", "--local", "64M", "--", sys.executable, "-c", LOCKED]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=words, text=True, timeout=SECONDS_MAX, check=False)
    finally:
        os.close(words)
    assert ended.returncode == 0 and ended.stdout == "right\n", (ended.returncode, ended.stdout)


@pytest.mark.parametrize(("limit", "is_room"), [(20, False), (40, True)])
def test_a_run_without_descriptors_for_a_program_is_refused(binary, library, limit, is_room):
    program = [sys.executable, "-c", "print(len(bytearray(160 << 20)))"]
    command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", binary, "run", "--local", "64M", "--", *program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    if is_room:
        assert ended.returncode == 0 and ended.stdout == f"{160 << 20}\n", ended.stderr
    else:
        assert ended.returncode == 1 and not ended.stdout, (ended.returncode, ended.stdout)
        assert f"{limit} open files" in ended.stderr and "hint: raise it before the run" in ended.stderr, ended.stderr


# A process that becomes another user's in a child of fork, and has children itself.
OTHER_USER = """
import os, sys
memory = bytearray(b"7") * (160 << 20)
def check(own):
    if memory[1:].count(b"7") != len(memory) - 1: os._exit(3)
    memory[0] = own
    return memory[0] == own
child = os.fork()
if child == 0:
    HOW
    grandchild = os.fork()
    if grandchild == 0:
        os._exit(0 if check(5) else 4)
    os._exit(0 if check(6) and os.waitpid(grandchild, 0)[1] == 0 and memory[0] == 6 else 5)
status = os.waitpid(child, 0)[1]
print("right" if status == 0 and check(7) else f"wrong: {status}")
"""

HOWS = {
    "user": "os.setgroups([]); os.setgid(65534); os.setuid(65534)",
    "root": "os.chroot(sys.argv[1]); os.chdir('/')",
}
# As daemons do that close all that they may have open.
HOWS |= {f"{how}, closed {when}": HOWS[how] for how in ["user", "root"] for when in ["before", "afterwards"]}
CLOSE = "os.closerange(3, 4096)"


@pytest.mark.parametrize("how", HOWS)
def test_who_changes_user_or_root_keeps_its_memory_and_so_do_its_children(binary, library, folder, how):
    if "closed" in how and KERNEL < (6, 9):
        pytest.skip("before Linux 6.9 nobody gets a descriptor of one thread alone")
    steps = {"before": [CLOSE, HOWS[how]], "afterwards": [HOWS[how], CLOSE]}.get(how.split()[-1], [HOWS[how]])
    program = [sys.executable, "-c", OTHER_USER.replace("HOW", "; ".join(steps)), folder]
    ended = far(binary, ["--local", "64M"], program)
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stdout + ended.stderr


# Gives up its capabilities, by a call that is for the calling thread alone.
FEWER_RIGHTS = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
memory = bytearray(b"7") * (100 << 20)
assert libc.capset(struct.pack("<Ii", 0x20080522, 0), bytes(24)) == 0
try:
    os.setuid(65534)
    print("wrong: the right was given up")
except PermissionError:
    print("right" if memory.count(b"7") == len(memory) else "wrong")
"""


def test_what_one_thread_may_not_is_an_error_and_no_end_of_the_program(binary, library):
    ended = far(binary, ["--local", "64M"], [sys.executable, "-c", FEWER_RIGHTS])
    assert ended.returncode == 0 and ended.stdout == "right\n", (ended.returncode, ended.stdout + ended.stderr)


@pytest.mark.skipif(PYTHON is None, reason="there is no Python that every user may run")
def test_programs_of_another_user_run_beside_the_budget_and_are_told_of(binary, library):
    script = "import os; os.setgid(65534); os.setuid(65534); os.execv('/bin/echo', ['echo', 'right'])"
    ended = far(binary, ["--local", "64M"], [PYTHON, "-c", script])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "/echo was started by a process that has changed its user" in ended.stderr, ended.stderr
    assert "; 1 programs started outside" in ended.stderr, ended.stderr


# Programs that end well: one that asks for memory, and one that does not and is told of only where far memory begins as it is loaded.
BESIDE = {
    "large": ([sys.executable, "-c", "memory = bytearray(b'7') * (20 << 20); print('right' if memory.count(b'7') == len(memory) else 'wrong')"], {}),
    "eager": (["/bin/echo", "right"], {"HINTERLAND_FAR_EAGER": "1"}),
}


@pytest.mark.parametrize("kind", BESIDE)
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="util-linux has setpriv")
def test_programs_without_the_right_to_a_userfaultfd_run_beside_the_budget_and_are_told_of(binary, library, kind):
    program, variables = BESIDE[kind]
    words = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace", *program]
    ended = far(binary, ["--local", "64M"], words, env={**os.environ, **variables})
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "has given up the right to a userfaultfd" in ended.stderr, ended.stderr


def test_a_run_without_the_right_is_refused_before_the_program_starts(binary, library):
    try:
        ended = far(binary, ["--local", "64M"], ["echo", "started"], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/")
    except PermissionError:
        pytest.skip("no other user may run what was built here")
    assert ended.returncode == 1 and ended.stdout == "", ended.stderr
    assert "CAP_SYS_PTRACE" in ended.stderr and "hint:" in ended.stderr, ended.stderr
    # In words of people who run programs, not of the kernel's interface.
    assert "error: far memory: this user may not follow the forks of programs\n" in ended.stderr, ended.stderr


@pytest.mark.parametrize("words,exit_code,said", [
    (["--name", ""], 2, "--name"),
    (["--name", "one\ntwo"], 2, "in one line"),
    (["--record", "one", "--report", "./one"], 2, "is one file"),
])
def test_options_that_make_no_sense_are_refused_before_the_program_starts(binary, library, tmp_path, words, exit_code, said):
    ended = far(binary, ["--local", "64M", *words], ["echo", "started"], cwd=tmp_path)
    assert ended.returncode == exit_code and ended.stdout == "", ended.stderr
    assert said in ended.stderr, ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_file_sizes_is_told_and_ends_nobody_without_a_word(binary, library):
    command = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", binary, "run", "--local", "64M", "--", "echo", "started"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ended.returncode == 1 and ended.stdout == "", ended
    assert "ulimit -f" in ended.stderr and "hint:" in ended.stderr, ended.stderr


# Forks where no file may be longer than nothing, by its own will or from the start.
NO_FILES = """
import os, resource, sys
memory = bytearray(b"7") * (100 << 20)
before = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (0, before))
child = os.fork()
if child == 0:
    os._exit(0 if memory.count(b"7") == len(memory) else 3)
print("right" if os.waitpid(child, 0)[1] == 0 and resource.getrlimit(resource.RLIMIT_FSIZE) == (0, before) else "wrong")
"""


@pytest.mark.parametrize("limit", [None, "-S", "-H"])
def test_a_program_that_may_make_no_files_runs_and_so_do_its_children(binary, library, limit):
    shell = ["sh", "-c", f'ulimit -S -f 0; [ {limit} = -S ] || ulimit -H -f 0; exec "$@"', "sh"] if limit else []
    ended = far(binary, ["--local", "64M"], [*shell, sys.executable, "-c", NO_FILES])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stdout + ended.stderr
    # Where the limit cannot be raised, its memory is the kernel's, which is told.
    assert (" 0 MiB far" not in ended.stderr) or (limit == "-H" and "ulimit -f" in ended.stderr), ended.stderr


def test_a_program_whose_first_thread_has_ended_keeps_its_bytes_and_ends(binary, library, tmp_path):
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_leader")])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stdout + ended.stderr


def test_guards_are_guards_and_what_they_were_put_on_is_gone(binary, library, tmp_path):
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_guards")])
    if ended.stdout == "skipped\n":
        pytest.skip("this kernel has no guards")
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stdout + ended.stderr


@pytest.mark.parametrize("kind", ["wiped", "hidden", "guards", "rest", "lengths"])
def test_advice_that_a_program_gives_itself_part_by_part_is_followed(binary, library, tmp_path, kind):
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_advised"), kind])
    if ended.stdout.startswith("skipped"):
        pytest.skip(ended.stdout)
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


@pytest.mark.parametrize("kind", ["wiped", "kept", "replaced", "robust", "inherits", "many"])
def test_what_the_kernel_alone_copes_with_is_never_far(binary, library, tmp_path, kind):
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_apart"), kind])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert " 0 MiB far" not in ended.stderr, ended.stderr


@pytest.mark.parametrize("kind", ["asks", "forks"])
def test_a_handler_may_ask_for_memory_and_fork_whatever_it_interrupts(binary, library, tmp_path, kind):
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_handled"), kind])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


@pytest.mark.parametrize("kind", ["in_parts", "low", "hidden", "hidden_alone"])
def test_memory_is_far_whatever_way_a_program_asks_for_it(binary, library, tmp_path, kind):
    """In parts of 32 KiB as Ruby, below 4 GiB as Chez Scheme, hidden from children as V8."""
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_asked"), kind])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "left the budget no room" not in ended.stderr, ended.stderr


def test_a_word_that_threads_wait_on_may_be_far(binary, library, tmp_path):
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_words")])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert " 0 MiB far" not in ended.stderr, ended.stderr


@pytest.mark.skipif(KERNEL < (6, 11), reason="before Linux 6.11 the kernel does not tell which mapping an address lies in")
@pytest.mark.parametrize("kind", ["closed", "unread", "barrier"])
def test_memory_that_may_not_be_written_is_far_and_stays_protected(binary, library, tmp_path, kind):
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_protected"), kind])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stdout + ended.stderr
    assert "stays resident" not in ended.stderr and "served above the budget" not in ended.stderr, ended.stderr


@pytest.mark.skipif(KERNEL < (6, 11), reason="sealing is of Linux 6.10, and as above")
def test_memory_that_is_sealed_against_writing_stays_and_is_asked_for_seldom(binary, library, tmp_path):
    """The kernel refuses for ever to let it go: it is as what is locked."""
    ended = far(binary, ["--local", "128M"], [compiled(tmp_path, "far_protected"), "sealed"])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stdout + ended.stderr
    assert "stays resident" not in ended.stderr and "served above the budget" not in ended.stderr, ended.stderr


@pytest.mark.parametrize("kind", ["half", "child", "more", "pinned"])
def test_what_a_program_locks_stays_and_the_rest_is_far_without_a_wait_for_it(binary, library, tmp_path, kind):
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_locked"), kind])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stdout + ended.stderr
    assert "stays resident" not in ended.stderr and "served above the budget" not in ended.stderr, ended.stderr
    # What is locked counts, and is named where it leaves no room.
    assert ("is shared, locked, mapped" in ended.stderr) == (kind == "more"), ended.stderr


# Locks all of its memory, in another root or as another user, who may lock less.
LOCKS_ALL = """
import ctypes, os, resource, sys
memory = bytearray(b"7") * (8 << 20)
libc = ctypes.CDLL(None, use_errno=True)
if sys.argv[1] == "root":
    os.chroot(sys.argv[2])
else:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
    os.setuid(65534)
print(libc.mlockall(1), os.strerror(ctypes.get_errno()), memory.count(b"7") == len(memory))
"""


@pytest.mark.parametrize("how", ["root", "user"])
def test_who_may_lock_all_memory_does_and_who_may_not_is_told(binary, library, folder, how):
    program = [sys.executable, "-c", LOCKS_ALL, how, str(folder)]
    ended = far(binary, ["--local", "96M"], program)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ("0 Success True\n" if how == "root" else "-1 Cannot allocate memory True\n"), ended.stdout


@pytest.mark.parametrize("where", [[], ["anywhere"]], ids=["at a point", "anywhere"])
def test_a_thread_that_is_cancelled_as_it_asks_for_memory_keeps_no_lock(binary, library, tmp_path, where):
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_cancelled"), *where])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


def test_a_program_that_its_own_filter_ends_is_told_why(binary, library, tmp_path):
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_filter")])
    assert ended.returncode == 128 + 31, ended
    assert "seccomp" in ended.stderr and "hint:" in ended.stderr, ended.stderr


@pytest.mark.parametrize("kind", BESIDE)
def test_programs_that_begin_behind_a_filter_run_beside_the_budget_and_are_told_of(binary, library, tmp_path, kind):
    program, variables = BESIDE[kind]
    ended = far(binary, ["--local", "64M"], [compiled(tmp_path, "far_filter"), *program], env={**os.environ, **variables})
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "may not make the system calls" in ended.stderr and "; 1 programs started outside" in ended.stderr, ended.stderr


def test_a_library_that_the_loader_cannot_name_is_refused_before_the_program_starts(binary, library, tmp_path):
    place = tmp_path / "with space"
    place.mkdir()
    for file in (binary, library):
        try:
            os.link(file, place / pathlib.Path(file).name)
        except OSError:
            # Another file system, or another mount of the same.
            shutil.copy(file, place)
    ended = far(place / pathlib.Path(binary).name, ["--local", "64M"], ["echo", "started"])
    assert ended.returncode == 1 and ended.stdout == "", ended.stderr
    assert "a space or a colon" in ended.stderr, ended.stderr


def test_a_program_that_did_not_load_the_library_is_told_of(binary, library, tmp_path):
    other = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-o", other, "-x", "c", "/dev/null"], check=True)
    ended = far(binary, ["--local", "64M"], ["echo", "right"], env={**os.environ, "HINTERLAND_PRELOAD": str(other)})
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "was not loaded into the program" in ended.stderr, ended.stderr


def test_a_program_with_another_library_in_the_place_of_ours_is_told_of(binary, library, tmp_path):
    other = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-o", other, "-x", "c", "/dev/null"], check=True)
    ended = far(binary, ["--local", "64M"], ["sh", "-c", f'LD_PRELOAD="{other}" exec /bin/echo right'])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "echo was started without LD_PRELOAD" in ended.stderr, ended.stderr


# As an allocator that counts what others map, or a library that notes which programs begin.
WITH_CALLS_OF_ITS_OWN = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
static char written[1 << 16] = {1};
void *mmap(void *at, size_t bytes, int protection, int flags, int file, off_t from) { return (void *)syscall(SYS_mmap, at, bytes, protection, flags, file, from); }
int munmap(void *at, size_t bytes) { written[bytes % sizeof written]++; return syscall(SYS_munmap, at, bytes); }
int execve(const char *path, char *const words[], char *const names[]) { return syscall(SYS_execve, path, words, names); }
"""
FILLS = 'memory = bytearray(b"7") * (160 << 20); print("right" if memory.count(b"7") == len(memory) else "wrong")'


@pytest.mark.parametrize("place", ["behind ours", "before ours"])
def test_a_library_with_calls_of_its_own_beside_ours_changes_nothing(binary, library, tmp_path, place):
    other = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", other, "-x", "c", "-"], input=WITH_CALLS_OF_ITS_OWN, text=True, check=True)
    if place == "behind ours":
        ended = far(binary, ["--local", "64M"], [sys.executable, "-c", FILLS], env={**os.environ, "LD_PRELOAD": str(other)})
    else:
        words = ["sh", "-c", f'LD_PRELOAD="{other}:$LD_PRELOAD" exec "$@"', "sh", sys.executable, "-c", FILLS]
        ended = far(binary, ["--local", "64M"], words)
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    # What `malloc` asks for does not come by the other library.
    assert " 0 MiB far" not in ended.stderr, ended.stderr


@pytest.mark.skipif(not shutil.which("valgrind"), reason="there is no valgrind")
def test_a_program_within_valgrind_runs_beside_the_budget_and_is_told_of(binary, library):
    ended = far(binary, ["--local", "64M"], ["valgrind", "--tool=none", "-q", sys.executable, "-c", FILLS])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "is statically linked" in ended.stderr and "hint:" in ended.stderr, ended.stderr


# Has as many files open as it may, and a child, which has the same limit.
FULL_TABLE = """
import os, resource, sys
memory = bytearray(b"7") * (160 << 20)
limit = (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1] if sys.argv[1] == "soft" else 128)
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
def is_full():
    try: os.dup(0)
    except OSError: return True
while not is_full(): pass
child = os.fork()
if child == 0:
    os._exit(0 if is_full() and resource.getrlimit(resource.RLIMIT_NOFILE) == limit and memory.count(b"7") == len(memory) else 3)
status = os.waitpid(child, 0)[1]
print("right" if status == 0 and is_full() and memory.count(b"7") == len(memory) else f"wrong: {status}")
"""


def may_raise_limits():
    """Whether this process has CAP_SYS_RESOURCE."""
    rights = next(line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    return int(rights.split()[1], 16) >> 24 & 1 == 1


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_child_of_a_program_that_has_no_descriptor_left_goes_on(binary, library, kind):
    if kind == "hard" and not may_raise_limits():
        pytest.skip("nobody here may raise a hard limit")
    ended = far(binary, ["--local", "64M"], [sys.executable, "-c", FULL_TABLE, kind])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr


CROWD = """
import os, time
children = []
for _ in range(80):
    child = os.fork()
    if child == 0:
        time.sleep(0.3)
        os._exit(0)
    children.append(child)
print("right" if all(os.waitpid(child, 0)[1] == 0 for child in children) else "wrong")
"""


def test_processes_for_which_there_is_no_descriptor_wait_for_others_to_end_and_that_is_told(binary, library):
    command = ["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", binary, "run", "--local", "64M", "--", sys.executable, "-c", CROWD]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "limit of open files" in ended.stderr and "hint:" in ended.stderr, ended.stderr


def test_a_full_back_end_is_named_as_the_reason_and_nothing_else(binary, library, folder):
    program = "import os; memory = bytearray(os.urandom(1 << 20)) * 160; memory[::4096] = bytes(len(memory) >> 12); print('right')"
    ended = far(binary, ["--local", "64M", "--far", f"ssd:{folder}@16M"], [sys.executable, "-c", program])
    assert ended.returncode == 0 and ended.stdout == "right\n", ended.stderr
    assert "no back end has room for it" in ended.stderr and "locked, pinned" not in ended.stderr, ended.stderr
