"""Inputs that make no sense or change under our hands, and machines that lack something: refused in words, nothing left."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from faults import MEBIBYTE, sha, wait_until

MAPPED = pathlib.Path(__file__).resolve().parent / "programs/mapped.py"
need_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take things away from a process")
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def used_bytes(node):
    """Bytes that the node's objects hold or have reserved."""
    return node.json("status")["used_bytes"]


def without_output(how, *words):
    """Words of a command whose standard output takes nothing."""
    return ["sh", "-c", f'exec "$@" {how}', "sh", *map(str, words)]


def without(device, stand_in, *words):
    """Words of a command that sees `stand_in` in place of a device."""
    script = f'mount --bind {stand_in} {device} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, words)]


@pytest.mark.parametrize("path,change", [("/sys/kernel/mm/transparent_hugepage/enabled", "shrinks"),
                                         ("/proc/self/status", "grows")])
def test_a_file_that_changes_its_size_while_it_is_put_leaves_nothing(node, path, change):
    # These files announce one size and have another, as a file would that somebody writes to meanwhile.
    if not os.path.exists(path):
        pytest.skip(f"there is no {path}")
    outcome = node.run("put", path, "--name", change, check=False)
    assert outcome.returncode == 1
    assert "changed its size" in outcome.stderr and "hint: let nobody write to it meanwhile" in outcome.stderr
    assert node.json("ls") == []
    wait_until(lambda: used_bytes(node) == 0)
    with open(path, "rb") as stream:
        node.run("put", "-", "--name", change, stdin=stream)


def test_a_file_that_is_cut_while_it_is_put_leaves_nothing(node, folder):
    source = folder / "source"
    with open(source, "wb") as target:
        target.truncate(200 * MEBIBYTE)
    put = subprocess.Popen(node.command("put", source, "--name", "cut"), stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
    wait_until(lambda: used_bytes(node) > 0 or put.poll() is not None)
    os.truncate(source, 1000)
    words = put.communicate(timeout=60)[1]
    if put.returncode == 0:
        # It was faster than the knife: then it is whole.
        assert node.json("stat", "cut")["bytes"] == 200 * MEBIBYTE
        return
    assert "hint:" in words
    assert node.json("ls") == []
    wait_until(lambda: used_bytes(node) == 0)


@pytest.mark.parametrize("command", [["stat"], ["get"], ["rm"], ["verify"]], ids=lambda words: words[0])
@pytest.mark.parametrize("name", ["", "a" * 4096, "a/../b", "/a", "a/..", "a\nb"],
                         ids=["empty", "4 KiB", "up", "root", "end up", "newline"])
def test_names_that_cannot_be_are_refused_everywhere(node, folder, command, name):
    more = [folder / "back"] if command == ["get"] else []
    outcome = node.run(*command, name, *more, check=False)
    assert outcome.returncode in (1, 2) and "hint:" in outcome.stderr, outcome.stderr
    assert "panicked" not in outcome.stderr and not (folder / "back").exists()


def test_an_object_larger_than_the_pool_moves_no_byte_and_leaves_no_room_taken(two_racks, make_file, folder):
    a, b = two_racks
    a.run("put", make_file("small", 3 * MEBIBYTE), "--name", "small", "--rack", "b")
    before = used_bytes(a), used_bytes(b)
    huge = folder / "huge"
    with open(huge, "wb") as target:
        target.truncate(300 * MEBIBYTE)
    for options in ([], ["--rack", "b"], ["--copies", "2"]):
        outcome = a.run("put", huge, "--name", "huge", *options, check=False)
        assert outcome.returncode == 1 and "hint:" in outcome.stderr, outcome.stderr
    assert (used_bytes(a), used_bytes(b)) == before
    assert b.json("status")["counters"]["network_received_bytes"] == 0
    assert [entry["name"] for entry in a.json("ls")] == ["small"]


def test_two_writers_of_one_name_take_turns(node, make_file):
    first = subprocess.Popen(node.command("put", "-", "--name", "name"), stdin=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    source = make_file("source", 1000)
    wait_until(lambda: "being written" in node.run("stat", "name", check=False).stderr)
    second = node.run("put", source, "--name", "name", check=False)
    assert second.returncode == 1 and "name" in second.stderr and "hint:" in second.stderr
    first.kill()
    first.wait()
    first.stdin.close()
    wait_until(lambda: node.run("put", source, "--name", "name", check=False).returncode == 0, seconds=3)
    assert node.json("verify", "name")[0]["bad"] == []


@pytest.mark.parametrize("place", ["in the rack", "across racks"])
def test_an_object_that_is_removed_while_it_is_mapped(two_racks, make_file, place):
    a, b = two_racks
    source = make_file("source", 24 * MEBIBYTE + 5)
    home = a if place == "in the rack" else b
    a.run("put", source, "--name", "data", "--rack", home.name)
    program = subprocess.Popen(
        a.command("run", "--unit", "1M", "--", sys.executable, MAPPED, "half_and_wait", "/pool/data"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "half\n"
    a.run("rm", "data")
    assert a.json("ls") == []
    output, words = program.communicate("go on\n", timeout=60)
    if place == "in the rack":
        assert output.strip() == sha(source), words
    else:
        # Bytes that had not come yet are gone with their home: words and SIGBUS, or the right bytes. Never others.
        assert output.strip() in ("", sha(source))
        assert output or ("data" in words and program.returncode == 128 + 7), (program.returncode, words)
    for node in two_racks:
        wait_until(lambda node=node: used_bytes(node) == 0)
    wait_until(lambda: a.json("status")["cache_bytes"] == 0, seconds=15)


@pytest.mark.parametrize("option", ["--capacity", "--cache-budget", "--kv-capacity"])
def test_more_memory_than_there_is_is_refused_at_the_start(binary, folder, option):
    command = [binary, "--socket", folder / "socket", "node", "--name", "large", "--state", folder / "state", option, "100T"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 1 and "this machine has " in outcome.stderr and "hint: ask for less with --capacity" in outcome.stderr
    assert "100 TiB" in outcome.stderr and "GiB of memory" not in outcome.stderr.split("100 TiB")[1], outcome.stderr
    assert not (folder / "state").exists()


@pytest.fixture
def limited():
    """A function that makes a control group whose parent allows so many bytes, and gives its file of processes."""
    version_1 = pathlib.Path("/sys/fs/cgroup/memory")
    root, file = (version_1, "memory.limit_in_bytes") if version_1.is_dir() else (pathlib.Path("/sys/fs/cgroup"), "memory.max")
    outer = root / f"hinterland-test-{os.getpid()}"

    def made(limit):
        try:
            outer.mkdir()
            (outer / file).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"no control group can be made: {error}")
        (outer / "inner").mkdir()
        return outer / "inner" / "cgroup.procs"

    yield made
    for group in (outer / "inner", outer):
        if group.exists():
            wait_until(lambda group=group: not (group / "cgroup.procs").read_text())
            group.rmdir()


@need_root
def test_more_memory_than_the_control_group_has_is_refused_at_the_start(binary, folder, limited):
    processes = limited(96 * MEBIBYTE)

    def node(capacity):
        command = [binary, "--socket", folder / "socket", "node", "--name", "large", "--state", folder / "state",
                   "--backing", "base", "--capacity", capacity, "--cache-budget", "32M", "--kv-capacity", "16M"]
        return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                preexec_fn=lambda: processes.write_text("0"))

    refused = node("64M")
    words, _ = refused.communicate(timeout=60)
    assert refused.returncode == 1 and "control group" in words and "96.0 MiB" in words and "112 MiB are asked for" in words, words
    assert "/memory." in words and "hint: ask for less with --capacity" in words
    starts = node("48M")
    try:
        assert " ready: " in starts.stdout.readline() + starts.stdout.readline()
        doctor = subprocess.run([binary, "doctor"], capture_output=True, text=True, timeout=60,
                                preexec_fn=lambda: processes.write_text("0"))
        assert "programs here may use 96.0 MiB of memory" in doctor.stdout
    finally:
        starts.terminate()
        starts.wait()


@need_root
def test_a_limit_is_seen_beside_a_mount_whose_name_is_no_text(binary, folder, limited):
    processes = limited(96 * MEBIBYTE)
    odd = os.fsencode(folder) + b"/\xff"
    os.mkdir(odd)
    command = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', odd, binary, "doctor"]
    doctor = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=lambda: processes.write_text("0"))
    assert "programs here may use 96.0 MiB of memory" in doctor.stdout, doctor.stdout + doctor.stderr


def start(binary, folder, **changes):
    """Tries to start a node with a mistake in its options; what it says. One that starts all the same is ended."""
    options = {"name": "second", "socket": folder / "second.sock", "state": folder / "second", "capacity": "16M",
               "cache_budget": "16M", "kv_capacity": "1M", **changes}
    words = [f"--{option.replace('_', '-')}={value}" for option, value in options.items()]
    process = subprocess.Popen([binary, "node", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = ""
        for line in process.stdout:
            said += line
            assert " ready: " not in line, said
        return process.wait(), said
    finally:
        process.terminate()
        process.communicate()


def test_a_second_node_on_the_same_state_is_refused_and_the_first_goes_on(binary, two_racks, make_file, folder):
    a, b = two_racks
    source = make_file("source", 3 * MEBIBYTE)
    b.run("put", source, "--name", "data", "--rack", b.rack)
    for node, more in ((a, {}), (b, {"join": a.address}), (b, {})):
        status, said = start(binary, folder, state=node.state, **more)
        assert status == 1 and "is the state of a node that runs" in said and "hint: stop that one" in said, said
    assert all(member["up"] for member in a.json("status")["members"])
    a.run("get", "data", folder / "back")
    assert sha(folder / "back") == sha(source)
    b.kill()
    b.start()
    a.run("verify", "data")


def test_a_node_whose_socket_is_taken_leaves_no_state_behind(binary, node, folder):
    status, said = start(binary, folder, socket=node.socket)
    assert status == 1 and "hint:" in said, said
    assert not (folder / "second").exists()
    status, said = start(binary, folder, socket=node.socket, state=node.folder)
    assert status == 1 and node.folder.exists() and node.state.exists(), said


def test_a_capacity_below_what_the_objects_use_is_told(start_node, make_file):
    node = start_node("a", options=["--capacity", "64M"])
    node.run("put", make_file("data", 9 * MEBIBYTE), "--name", "data")
    node.stop()
    assert "--capacity is" not in node.words()
    node.options = ["--capacity", "8M"]
    node.start()
    assert "objects here use 10.0 MiB, and --capacity is 8.00 MiB" in node.words(), node.words()
    node.run("verify", "data")
    assert "no room" in node.run("put", make_file("more", 9), "--name", "more", check=False).stderr


def test_a_file_that_is_no_socket_stays(binary, folder, make_file):
    path = make_file("precious", 1000)
    before = path.read_bytes()
    status, said = start(binary, folder, socket=path)
    assert status == 1 and "no socket" in said and "hint: choose another path" in said, said
    assert path.read_bytes() == before


@need_root
def test_a_full_disk_under_the_state_is_said_and_room_mends_it(binary, folder, start_node):
    small = folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M", "none", small], check=True)
    try:
        with (small / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(bytes(MEBIBYTE)):
                pass
        status, said = start(binary, folder, state=small / "state")
        assert status == 1 and "No space left" in said and "hint: make room on that disk" in said, said
        (small / "filler").unlink()
        start_node("again", state=small / "state", options=["--capacity", "16M"]).stop()
    finally:
        subprocess.run(["umount", "--recursive", small], check=False)


def test_wrong_keys_and_addresses_name_the_option(binary, folder):
    for changes, hint in (({"key": folder / "nothing"}, "hint: --key names the file"), ({"join": "first.lan"}, "hint: write HOST:PORT")):
        status, said = start(binary, folder, **changes)
        assert status in (1, 2) and hint in said, said


def test_an_address_that_leads_others_astray_is_refused(binary, folder):
    key = folder / "key"
    key.write_text("0123456789abcdef" * 4)
    for changes, words in (
        ({"listen": "0.0.0.0:0", "key": key}, "hint: say with --advertise HOST:PORT"),
        ({"advertise": "0.0.0.0:7401"}, "hint: say with --advertise HOST:PORT"),
        ({"listen": "127.0.0.1:7999", "join": "127.0.0.1:7999"}, "is this node itself"),
        ({"listen": "0.0.0.0:7999", "join": "127.0.0.1:1"}, "hint: copy the file with the pool's key from 127.0.0.1:1"),
        ({"listen": "192.0.2.1:7401", "key": key}, "hint: no card of this host has this address"),
        ({"join": "nowhere.invalid:7401"}, "cannot connect to nowhere.invalid:7401"),
    ):
        status, said = start(binary, folder, **changes)
        assert status == 1 and words in said, said


def test_who_does_not_find_himself_where_others_are_told_says_so(start_node):
    a = start_node("a", options=["--capacity", "16M"])
    assert "do not find" not in a.words()
    for address, why in (("127.0.0.1:1", "cannot connect to 127.0.0.1:1"), (a.address, "answers there")):
        b = start_node(options=["--capacity", "16M", "--advertise", address])
        deadline = time.monotonic() + 30
        while "do not find this one there" not in b.words() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert why in b.words() and "hint: give --advertise" in b.words(), b.words()


def test_memory_of_a_mistyped_kind_or_without_a_unit_is_refused(binary, folder):
    for changes, words in (
        ({"backing": "hugetbl"}, "is no kind of memory"),
        ({"backing": folder / "none/memory"}, f"mkdir -p {folder}/none/memory"),
        ({"backing": __file__}, "is a file (hint: name a folder"),
        ({"capacity": "16"}, "16 B is too little (hint: 0 for none"),
    ):
        status, said = start(binary, folder, **changes)
        assert status == 2 and words in said, said
    assert not (folder / "none").exists()


def test_a_variable_for_the_key_that_is_empty_is_as_good_as_none(node):
    node.run("ls", env={**os.environ, "HINTERLAND_KEY_FILE": ""})
    outcome = node.run("ls", env={**os.environ, "HINTERLAND_KEY_FILE": "/nowhere"}, check=False)
    assert outcome.returncode == 1 and "/nowhere" in outcome.stderr


def test_a_module_that_was_not_built_is_named_with_what_builds_it(folder):
    environment = {**os.environ, "HINTERLAND_BUILT": "1", "CARGO_TARGET_DIR": str(folder)}
    script = pathlib.Path(__file__).parent.parent / "python/build.sh"
    outcome = subprocess.run([script, "--release"], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert outcome.returncode == 1 and "cargo build --package hinterland-python --release" in outcome.stderr, outcome.stderr


def test_a_key_of_raw_bytes_is_refused_with_how_one_is_made(binary, folder):
    (folder / "raw").write_bytes(bytes(range(224, 256)))
    status, said = start(binary, folder, key=folder / "raw")
    assert status == 1 and "holds no pool key" in said and "hint: 64 hexadecimal digits" in said, said


def test_the_socket_of_a_node_that_runs_is_refused_with_what_to_choose(binary, folder, two_racks):
    status, said = start(binary, folder, socket=two_racks[0].socket)
    assert status == 1 and "hint: another node runs here; stop it, or choose another path for the socket" in said, said


def test_nothing_stays_of_a_node_that_finds_no_pool(binary, folder):
    status, said = start(binary, folder, join="127.0.0.1:1")
    assert status == 1 and "hint: is the node up" in said, said
    assert str(folder) not in pathlib.Path("/proc/self/mounts").read_text()
    number = (folder / "second/node.id").read_text().strip()
    assert not any(number in name for name in os.listdir("/dev/shm")) and not (folder / "second.sock").exists()


def test_verifying_a_region_is_refused_and_no_problem(node):
    node.run("region", "create", "counters", "4M")
    outcome = node.run("verify", "counters", check=False)
    assert outcome.returncode == 1 and "counters is a region" in outcome.stderr and "hint: " in outcome.stderr
    assert "WRONG" not in outcome.stdout and node.json("status")["problems"] == []
    assert "no object has a name that begins with" in node.run("ls", "nothing").stderr


def test_nothing_is_made_of_no_bytes_or_without_a_name(node):
    outcome = node.run("region", "create", "counters", "0", check=False)
    assert outcome.returncode == 1 and "hint: say how large it is" in outcome.stderr, outcome.stderr
    outcome = node.run("region", "create", "", "16M", check=False)
    assert outcome.returncode == 2 and "a name cannot be empty (hint: names are" in outcome.stderr, outcome.stderr
    assert node.json("ls") == [] and node.json("status")["used_bytes"] == 0


@pytest.mark.parametrize("name", ["link", "/proc/self/fd/1"])
def test_get_leaves_symbolic_links(node, make_file, folder, name):
    source, target = make_file("source", 3000), folder / "target"
    node.run("put", source, "--name", "data")
    link = folder / name
    if name == "link":
        link.symlink_to("target")
    with target.open("wb") as stdout:
        node.run("get", "data", link, stdout=stdout, stderr=None, capture_output=False)
    # The latter is what /dev/stdout leads to, and nobody can take it away from others.
    assert link.is_symlink() and sha(target) == sha(source)


def test_few_descriptors_are_said_at_the_start(binary, folder):
    command = ["prlimit", "--nofile=24", str(binary), "node", "--name", "n", "--state", folder / "n", "--socket",
               folder / "n.sock", "--capacity", "16M"]
    outcome = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=20, check=False)
    assert outcome.returncode == 1
    assert "24 files" in outcome.stderr and "hint: raise the limit" in outcome.stderr and "ulimit -n" in outcome.stderr


@pytest.mark.parametrize("limit", [4, 6, 10])
def test_a_client_with_few_descriptors_works_or_says_so(node, make_file, limit):
    node.run("put", make_file("source", 1000), "--name", "x")
    command = ["prlimit", f"--nofile={limit}", *node.command("stat", "x")]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert outcome.returncode == 0 or "ulimit -n" in outcome.stderr or "shared libraries" in outcome.stderr, outcome


@need_root
def test_without_a_fuse_device_the_command_that_brings_it_is_named(node, folder):
    devices = folder / "dev"
    devices.mkdir()
    for name, minor in [("null", 3), ("zero", 5), ("urandom", 9)]:
        os.mknod(devices / name, 0o666 | 0o020000, os.makedev(1, minor))
    (folder / "pool").mkdir()
    for words in (["mount", folder / "pool"], ["run", "--", "true"]):
        outcome = subprocess.run(without("/dev", devices, *node.command(*words)), capture_output=True, text=True,
                                 timeout=30, check=False)
        assert outcome.returncode == 1
        assert "/dev/fuse" in outcome.stderr and "modprobe fuse" in outcome.stderr, outcome.stderr


@need_root
def test_without_the_right_to_serve_faults_programs_read_through_the_mount(two_racks, make_file, folder):
    with open("/proc/sys/vm/unprivileged_userfaultfd", encoding="ascii") as setting:
        if setting.read().strip() != "0":
            pytest.skip("everybody may serve faults here")
    a, b = two_racks
    source = make_file("source", 9 * MEBIBYTE + 1)
    b.run("put", source, "--name", "data")
    folder.chmod(0o755)
    a.socket.chmod(0o666)
    fuse = folder / "fuse"
    os.mknod(fuse, 0o666 | 0o020000, os.makedev(10, 229))
    fuse.chmod(0o666)
    run = without("/dev/fuse", fuse, *NOBODY, *a.command("run", "--", "python3"))
    options = {"capture_output": True, "text": True, "timeout": 60, "check": False}
    probe = subprocess.run([*run, "-c", ""], **options)
    if probe.returncode != 0 and ("cannot be started" in probe.stderr or "failed to execute" in probe.stderr):
        pytest.skip(f"a program lies where only its owner can read it: {probe.stderr}")
    outcome = subprocess.run([*run, str(MAPPED), "whole", "/pool/data"], **options)
    assert outcome.stdout.strip() == sha(source), outcome.stderr
    assert "slower" in outcome.stderr and "vm.unprivileged_userfaultfd=1" in outcome.stderr


def test_a_restarted_node_serves_clients_that_were_attached(two_racks, make_file, folder):
    a, b = two_racks
    source = make_file("source", 5 * MEBIBYTE)
    b.run("put", source, "--name", "data")
    script = f"cat /pool/data | sha256sum; echo go; read line; cat /pool/data | sha256sum; {sys.executable} {MAPPED} whole /pool/data"
    program = subprocess.Popen(a.command("run", "--", "sh", "-c", script), stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout.readline().split()[0] == sha(source)
    assert program.stdout.readline() == "go\n"
    a.kill()
    a.start()
    output, words = program.communicate("\n", timeout=60)
    assert [line.split()[0] for line in output.splitlines()] == [sha(source)] * 2, words


def test_the_folder_of_a_socket_is_made_below_the_runtime_folder_only(binary, folder):
    mistyped = folder / "mistyped/node.sock"
    words = {
        "node": ["node", "--name", "a", "--socket", mistyped, "--state", folder / "state", "--listen", "127.0.0.1:0"],
        "gpu": ["gpu", "serve", "--listen", mistyped, "--device", "software"],
    }
    for name, command in words.items():
        refused = subprocess.run([binary, *command], capture_output=True, text=True, check=False, timeout=60)
        assert refused.returncode == 1 and f"mkdir -p {folder}/mistyped" in refused.stderr, (name, refused.stderr)
    assert not mistyped.parent.exists()
    runtime = folder / "runtime"
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    command = [binary, "gpu", "serve", "--listen", f"unix:{runtime}/hinterland/gpu.sock", "--device", "software"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until((runtime / "hinterland/gpu.sock").exists)
        finally:
            server.terminate()


def test_a_static_program_does_not_see_the_gpu_node_and_is_told_of(binary, folder):
    if not (binary.parent / "libhinterland_cuda.so").exists() or not shutil.which("cc"):
        pytest.skip("needs the library of CUDA and a compiler")
    (folder / "program.c").write_text("int main(void) { return 7; }\n", encoding="utf-8")
    address = f"unix:{folder}/gpu.sock"
    with subprocess.Popen([binary, "gpu", "serve", "--listen", address, "--device", "software", "--json"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert json.loads(server.stdout.readline())["ready"]
            for options, is_told in ((["-static"], True), ([], False)):
                subprocess.run(["cc", *options, "-o", folder / "program", folder / "program.c"], check=True)
                ended = subprocess.run([binary, "run", "--no-mount", "--gpu", address, "--", folder / "program"], capture_output=True, text=True,
                                       check=False, timeout=60)
                assert ended.returncode == 7 and ("is statically linked" in ended.stderr) == is_told, ended.stderr
            if os.geteuid() == 0:
                # The loader takes the libraries out of what such a program passes on.
                os.chown(folder / "program", 65534, 65534)
                (folder / "program").chmod(0o4755)
                ended = subprocess.run([binary, "run", "--no-mount", "--gpu", address, "--", folder / "program"], capture_output=True, text=True,
                                       check=False, timeout=60)
                assert ended.returncode == 7 and "GPU node, nor do programs that it starts" in ended.stderr, ended.stderr
        finally:
            server.terminate()


def test_a_runtime_folder_that_takes_no_socket_is_told_with_the_option(binary, folder):
    # Nobody makes folders there.
    environment = {**os.environ, "XDG_RUNTIME_DIR": "/sys"}
    environment.pop("HINTERLAND_SOCKET", None)
    command = [binary, "up", "--state", folder / "state"]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 1 and "/sys/hinterland" in refused.stderr and "--socket" in refused.stderr, refused.stderr


def test_a_script_without_its_interpreter_says_what_is_missing(node, folder):
    for line, name in (("#!/usr/bin/none-of-this-name", "none-of-this-name"), ("#!/bin/sh\r", "sh\\r")):
        script = folder / "script"
        script.write_bytes(f"{line}\necho".encode())
        script.chmod(0o755)
        outcome = node.run("run", "--", script, check=False)
        assert outcome.returncode == 126 and f'{name}", which is not there' in outcome.stderr, outcome.stderr


@pytest.mark.parametrize("how,reason", [(">&-", "Bad file descriptor"), ("> /dev/full", "No space left")])
def test_what_cannot_be_written_to_standard_output_is_told(node, how, reason):
    node.run("put", "-", "--name", "small", input="bytes")
    lines = [["ls"], ["ls", "--json"], ["stat", "small"], ["get", "small", "-"], ["get", "small", "/dev/stdout"], ["status"], ["--help"], ["ls", "--help"], ["--version"]]
    for words in lines:
        outcome = subprocess.run(without_output(how, *node.command(*words)), stderr=subprocess.PIPE, text=True)
        assert outcome.returncode == 1 and reason in outcome.stderr and "hint" in outcome.stderr, (words, outcome)
    # Whoever has nothing to write needs nobody who takes it.
    for words in (["rm", "small"], ["ls"]):
        outcome = subprocess.run(without_output(how, *node.command(*words)), stderr=subprocess.PIPE, text=True)
        assert outcome.returncode == 0, outcome


def test_errors_are_json_where_that_is_asked_for(node):
    for words, status, what in [
        (["ls", "--nothing"], 2, "unexpected argument"),
        (["put", "/dev/null", "--copies", "9"], 2, "not in 1..=8"),
        (["rm"], 2, "required arguments"),
        (["stat", "missing"], 1, "missing"),
        (["run", "--no-preload", "--", "/nofile"], 127, "/nofile"),
        (["run", "--no-preload", "--", "/etc/passwd"], 126, "/etc/passwd"),
    ]:
        if words[0] == "run" and not os.path.exists("/dev/fuse"):
            continue
        outcome = node.run("--json", *words, check=False)
        said = json.loads(outcome.stderr)
        assert (outcome.returncode, said["exit"], outcome.stdout) == (status, status, ""), (words, outcome)
        assert what in said["error"] and said["hint"], said


def test_a_key_file_that_all_can_read_is_warned_of_and_one_that_is_none_is_told(start_node, folder):
    key = folder / "pool.key"
    key.write_text("5a" * 32)
    key.chmod(0o644)
    node = start_node("keyed", options=["--key", key])
    warning = f"all users of this host can read the key in {key}"
    assert node.words().count(warning) == 1 and f"chmod 600 {key}" in node.words()
    environment = {**os.environ, "HINTERLAND_KEY_FILE": str(key)}
    assert node.run("ls", env=environment).stderr.count(warning) == 1
    key.chmod(0o640)
    assert warning not in node.run("ls", env=environment).stderr
    for path in (folder / "missing", "/dev/null"):
        outcome = node.run("ls", env={**environment, "HINTERLAND_KEY_FILE": str(path)}, check=False)
        assert outcome.returncode == 1 and f"{path}" in outcome.stderr and "HINTERLAND_KEY_FILE" in outcome.stderr, outcome
        assert "hint: name the file that the nodes have with --key" in outcome.stderr, outcome
