"""Symbolic links of a writable mount: objects that every mount of the pool shows as links."""

import errno
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from faults import members_up, wait_until
from test_belonging import start_adopting
from test_files import run
from test_mount_writing import Mount, code_of, content, names, pytestmark  # noqa: F401

# Bytes of each link, whatever it says (docs/decisions/2026-11-30-symbolic-links.md).
LINK_BYTES = 4219


@pytest.fixture
def mount(node, folder):
    """The node's pool, mounted writable."""
    mounted = Mount(node, folder)
    yield mounted
    if mounted.process.poll() is None:
        mounted.stop()


@pytest.fixture
def plain():
    """A folder on a tmpfs."""
    path = Path(tempfile.mkdtemp(prefix="hl-links-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def kinds(path):
    """What a listing says of each name, without asking for its attributes."""
    with os.scandir(path) as found:
        return {entry.name: "link" if entry.is_symlink() else "folder" if entry.is_dir() else "file" for entry in found}


def test_a_link_is_one_for_every_mount_and_lives_as_long_as_its_object(node, folder):
    one, two = Mount(node, folder, "one"), Mount(node, folder, "two")
    reader = Mount(node, folder, "reader", options=())
    (one / "lib").mkdir()
    (one / "lib/libx.so.1").write_bytes(b"code")
    os.symlink("libx.so.1", one / "lib/libx.so")
    os.symlink("lib", one / "lib64")
    for mounted in (one, two, reader):
        status = os.lstat(mounted / "lib/libx.so")
        assert stat.S_ISLNK(status.st_mode) and status.st_size == len("libx.so.1")
        assert os.readlink(mounted / "lib/libx.so") == "libx.so.1"
        wait_until(lambda m=mounted: (m / "lib64/libx.so").read_bytes() == b"code")
        assert kinds(mounted.folder) == {"lib": "folder", "lib64": "link"}
        assert kinds(mounted / "lib") == {"libx.so": "link", "libx.so.1": "file"}
    assert code_of(lambda: os.symlink("x", reader / "y")) == errno.EROFS
    assert code_of(lambda: os.unlink(reader / "lib64")) == errno.EROFS
    assert [node.json("stat", name)["bytes"] for name in ("lib64", "lib/libx.so")] == [LINK_BYTES] * 2
    os.rename(two / "lib", two / "other")
    os.rename(two / "lib64", two / "other64")
    assert os.readlink(two / "other/libx.so") == "libx.so.1" and os.readlink(two / "other64") == "lib"
    for mounted in (one, two, reader):
        mounted.stop()
    node.stop()
    node.start()
    again = Mount(node, folder, "again")
    assert kinds(again.folder) == {"other": "folder", "other64": "link"}
    assert os.readlink(again / "other/libx.so") == "libx.so.1" and (again / "other/libx.so").read_bytes() == b"code"
    os.unlink(again / "other64")
    os.unlink(again / "other/libx.so")
    assert names(node) == ["other/libx.so.1"]
    again.stop()


def test_a_link_leads_to_any_bytes_of_any_length(mount):
    targets = [b"x", b"/", b"../..", b"\xff\xfe not text\n", bytes(range(1, 256)), b"y" * 4095]
    for number, target in enumerate(targets):
        os.symlink(target, os.fsencode(mount / f"link-{number}"))
        assert os.readlink(os.fsencode(mount / f"link-{number}")) == target
        assert os.lstat(mount / f"link-{number}").st_size == len(target)
    assert code_of(lambda: os.symlink("z" * 4096, mount / "long")) == errno.ENAMETOOLONG
    assert code_of(lambda: os.symlink("", mount / "empty")) == errno.ENOENT
    assert len(kinds(mount.folder)) == len(targets)


def test_what_has_a_name_keeps_it(mount, node, folder):
    (mount / "file").write_bytes(b"x")
    (mount / "folder").mkdir()
    os.symlink("file", mount / "link")
    with open(mount / "open", "wb") as opened:
        for name in ("file", "folder", "link", "open"):
            assert code_of(lambda n=name: os.symlink("other", mount / n)) == errno.EEXIST
        opened.write(b"y")
    # Two mounts make links of one name at the same moment.
    other = Mount(node, folder, "other")
    for number in range(30):
        outcomes = []
        barrier = threading.Barrier(2)

        def make(mounted, target, name=f"raced-{number}", outcomes=outcomes, barrier=barrier):
            barrier.wait()
            try:
                os.symlink(target, mounted / name)
                outcomes.append(target)
            except FileExistsError:
                outcomes.append(None)

        makers = [threading.Thread(target=make, args=words) for words in ((mount, "one"), (other, "two"))]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join()
        made = [target for target in outcomes if target]
        assert len(made) == 1 and os.readlink(mount / f"raced-{number}") == made[0], outcomes
    other.stop()


def test_links_are_followed_replaced_and_told_from_files(mount, folder):
    os.symlink("target", mount / "link")
    assert code_of((mount / "link").read_bytes) == errno.ENOENT
    (mount / "link").write_bytes(b"through")
    assert (mount / "target").read_bytes() == b"through" and (mount / "link").is_symlink()
    os.truncate(mount / "link", 3)
    assert (mount / "target").read_bytes() == b"thr"
    assert code_of(lambda: os.open(mount / "link", os.O_WRONLY | os.O_NOFOLLOW)) == errno.ELOOP
    os.symlink("loop", mount / "loop")
    assert code_of((mount / "loop").read_bytes) == errno.ELOOP
    (folder / "outside").write_bytes(b"outside")
    os.symlink(folder / "outside", mount / "away")
    assert (mount / "away").read_bytes() == b"outside"
    os.symlink("other", mount / "new")
    os.rename(mount / "new", mount / "link")
    assert os.readlink(mount / "link") == "other" and (mount / "target").read_bytes() == b"thr"
    (mount / "file").write_bytes(b"file")
    os.rename(mount / "file", mount / "link")
    assert not (mount / "link").is_symlink() and (mount / "link").read_bytes() == b"file"
    (mount / "folder").mkdir()
    assert code_of(lambda: os.rename(mount / "folder", mount / "loop")) == errno.ENOTDIR
    assert code_of(lambda: os.rename(mount / "loop", mount / "folder")) == errno.EISDIR
    assert code_of(lambda: os.rmdir(mount / "loop")) == errno.ENOTDIR
    os.utime(mount / "loop", (1_000_000_000, 1_100_000_000), follow_symlinks=False)
    os.chown(mount / "loop", os.getuid(), os.getgid(), follow_symlinks=False)
    assert os.lstat(mount / "loop").st_mtime == 1_100_000_000 and os.readlink(mount / "loop") == "loop"


def test_a_link_has_marks_of_its_own(mount):
    (mount / "folder").mkdir()
    (mount / "folder/file").write_bytes(b"x")
    before = os.stat(mount / "folder")
    os.symlink("file", mount / "folder/link")
    assert os.stat(mount / "folder").st_mtime_ns > before.st_mtime_ns
    link = os.lstat(mount / "folder/link")
    assert stat.S_IMODE(link.st_mode) == 0o777 and link.st_nlink == 1
    os.chmod(mount / "folder/link", 0o640)
    os.utime(mount / "folder/link", (1_000_000_000, 1_100_000_000))
    assert os.lstat(mount / "folder/link") == link
    followed = os.stat(mount / "folder/link")
    assert followed == os.stat(mount / "folder/file") and stat.S_IMODE(followed.st_mode) == 0o640
    os.rename(mount / "folder/link", mount / "folder/moved")
    assert os.stat(mount / "folder/moved") == followed
    moved = os.lstat(mount / "folder/moved")
    assert (moved.st_ino, moved.st_mode, moved.st_mtime, moved.st_size) == (link.st_ino, link.st_mode, link.st_mtime, 4)


def test_a_link_that_another_host_makes_in_the_place_of_a_file_is_followed(node, folder):
    one, two = Mount(node, folder, "one"), Mount(node, folder, "two")
    (one / "target").write_bytes(b"target")
    for _ in range(20):
        (one / "name").write_bytes(b"file")
        wait_until(lambda: tried_read(two / "name") == b"file")
        os.symlink("target", one / "new")
        os.rename(one / "new", one / "name")
        # The kernel of the second takes the name for the file that it was told of.
        assert (two / "name").read_bytes() == b"target" and os.readlink(two / "name") == "target"
        # And here for the link, until the second is over.
        (one / "new").write_bytes(b"newer")
        os.rename(one / "new", one / "name")
        wait_until(lambda: tried_read(two / "name") == b"newer")
        os.unlink(one / "name")
    assert content(node, "target") == b"target"
    one.stop()
    two.stop()


@pytest.mark.parametrize("mode", ["ab", "r+b"])
def test_what_a_link_that_another_host_has_just_made_leads_to_is_written(node, folder, mode):
    one, two = Mount(node, folder, "one"), Mount(node, folder, "two")
    (one / "folder").mkdir()
    (one / "folder/target").write_bytes(b"target")
    os.symlink("folder/target", one / "middle")
    for number in range(6):
        (one / "name").write_bytes(b"file")
        wait_until(lambda: tried_read(two / "name") == b"file")
        os.symlink("middle", one / "new")
        os.rename(one / "new", one / "name")
        # The kernel of the second takes the name for the file that it was told of.
        with open(two / "name", mode) as file:
            file.seek(0, os.SEEK_END)
            file.write(b"%d" % number)
        written = b"target" + b"0123456789"[: number + 1]
        wait_until(lambda w=written: content(node, "folder/target") == w)
        assert os.readlink(one / "name") == "middle"
        os.unlink(one / "name")
    one.stop()
    two.stop()


def tried_read(path):
    try:
        return path.read_bytes()
    except OSError:
        return None


def test_bytes_make_no_link(mount, node, folder):
    """Who chooses the bytes of a file, an upload for example, is not to choose what its name leads to."""
    os.symlink("/etc/passwd", mount / "link")
    raw = content(node, "link")
    assert len(raw) == LINK_BYTES and raw.startswith(b"Hinterland symbolic link\n")
    (mount / "copy").write_bytes(raw)
    (folder / "raw").write_bytes(raw)
    assert node.run("put", folder / "raw", "--name", "put").returncode == 0
    wait_until(lambda: "copy" in names(node))
    again = Mount(node, folder, "again")
    for mounted in (mount, again):
        for name in ("copy", "put"):
            assert not (mounted / name).is_symlink() and (mounted / name).read_bytes() == raw
        assert kinds(mounted.folder) == {"copy": "file", "link": "link", "put": "file"}
    again.stop()


def test_links_that_nodes_bring_into_another_pool_are_links_there(start_node, folder):
    """The directory is lost with its whole state, and once more."""
    a = start_node("a", options=["--capacity", "0"])
    b = start_node("b", join=a.address, options=["--capacity", "64M"])
    c = start_node("c", join=a.address, options=["--capacity", "64M"])
    wait_until(lambda: members_up(a) == [True, True, True], why=a.words)
    mounted = Mount(b, folder, "first")
    (mounted / "file").write_bytes(b"bytes")
    os.symlink("file", mounted / "first")
    mounted.stop()
    raw = content(b, "first")
    links, files, folders = ["first"], ["file"], {}
    for pool in ("second", "third"):
        for node in (b, c, a):
            node.stop()
        shutil.rmtree(a.state)
        a.start()
        # Mounted before the links come: it hears of the pool that they are from when it sees them.
        early = Mount(a, folder, f"early-{pool}")
        start_adopting(b)
        start_adopting(c)
        mounted = Mount(b, folder, pool)
        for shown in (early, mounted):
            assert kinds(shown.folder) == {**dict.fromkeys(links, "link"), **dict.fromkeys(files, "file"), **folders}
            assert [os.readlink(shown / link) for link in links] == ["file"] * len(links)
            assert (shown / "first").read_bytes() == b"bytes"
        os.symlink("file", mounted / pool)
        # The bytes of a link are one in its own object only, also of one that came from another pool.
        (mounted / f"copy-{pool}").write_bytes(raw)
        (mounted / "far").mkdir(exist_ok=True)
        os.setxattr(mounted / "far", "user.hinterland.rack", b"c")
        (mounted / f"far/{pool}").write_bytes(b"far")
        assert not (mounted / f"copy-{pool}").is_symlink()
        links, files, folders = [*links, pool], [*files, f"copy-{pool}"], {"far": "folder"}
        # A node that had none of the links may be the one that brings them into the next pool: it keeps known of which they are.
        names_of_c = c.state / "names"
        wait_until(lambda n=names_of_c: n.exists() and "pool " in n.read_text(), why=c.words)
        early.stop()
        mounted.stop()


def test_a_link_whose_home_is_away_can_be_removed(two_racks, folder):
    a, b = two_racks
    mounted = Mount(b, folder, "one")
    (mounted / "far").mkdir()
    os.setxattr(mounted / "far", "user.hinterland.rack", b"a")
    os.symlink("there", mounted / "far/link")
    assert b.json("stat", "far/link")["homes"][0]["rack"] == "a"
    mounted.stop()
    a.kill()
    mounted = Mount(b, folder, "two")
    assert not (mounted / "far/link").is_symlink()
    assert "far/link" in mounted.words()
    assert list(kinds(mounted / "far")) == ["link"]
    os.rename(mounted / "far/link", mounted / "moved")
    os.unlink(mounted / "moved")
    assert os.listdir(mounted.folder) == ["far"]
    mounted.stop()


def test_links_on_a_home_that_does_not_answer_are_waited_for_once(two_racks, folder):
    a, b = two_racks
    mounted = Mount(b, folder, "one")
    (mounted / "far").mkdir()
    os.setxattr(mounted / "far", "user.hinterland.rack", b"a")
    links = [f"link-{number}" for number in range(8)]
    for link in links:
        os.symlink("there", mounted / "far" / link)
    mounted.stop()
    mounted = Mount(b, folder, "two")
    a.process.send_signal(signal.SIGSTOP)
    try:
        assert sorted(os.listdir(mounted / "far")) == links
        assert not any((mounted / "far" / link).is_symlink() for link in links)
        # The first is waited for, and the others say why they are not.
        said = mounted.words()
        assert said.count("did not answer a moment ago") >= len(links) - 1, said
        os.unlink(mounted / "far" / links[0])
    finally:
        a.process.send_signal(signal.SIGCONT)
    mounted.stop()
    mounted = Mount(b, folder, "three")
    assert kinds(mounted / "far") == dict.fromkeys(links[1:], "link")
    mounted.stop()


def test_files_on_a_home_that_is_down_and_does_not_answer_are_waited_for_once(two_racks, folder):
    a, b = two_racks
    mounted = Mount(b, folder, "one")
    (mounted / "far").mkdir()
    os.setxattr(mounted / "far", "user.hinterland.rack", b"a")
    files = [mounted / "far" / f"file-{number}" for number in range(8)]
    for number, path in enumerate(files):
        path.write_bytes(b"%d" % number * 100_000)
    mounted.stop()
    mounted = Mount(b, folder, "one")
    a.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: sorted(members_up(b)) == [False, True], why=b.words)
        assert [code_of(path.read_bytes) for path in files] == [errno.EIO] * len(files)
        said = mounted.words()
        assert said.count("did not answer a moment ago") >= len(files) - 1, said
    finally:
        a.process.send_signal(signal.SIGCONT)
    # Whoever comes back is asked as soon as the directory has heard of it.
    wait_until(lambda: members_up(b) == [True, True], why=b.words)
    assert [path.read_bytes() for path in files] == [b"%d" % number * 100_000 for number in range(8)]
    mounted.stop()


NAMES = ["a", "b", "c", "d/a", "d/b"]
TARGETS = ["a", "b", "d", "d/a", "../a", "nothing", "./c"]


@pytest.mark.parametrize("seed", range(4))
def test_random_links_are_those_of_a_tmpfs(mount, node, plain, seed):
    chance = random.Random(seed)
    steps = []
    # One level down, for links lead up from there.
    roots = [mount / "here", plain / "here"]
    for root in roots:
        root.mkdir()

    def both(*words):
        steps.append(words)
        outcomes = []
        for root in roots:
            try:
                outcomes.append(act(root, *words))
            except OSError as error:
                outcomes.append(errno.errorcode[error.errno])
        assert outcomes[0] == outcomes[1], (outcomes, steps[-40:])

    def act(root, what, name, other, target):
        path = root / name
        if what == "link":
            return os.symlink(target, path)
        if what == "write":
            return path.write_bytes(other.encode() * 100)
        if what == "read":
            return path.read_bytes()
        if what == "look":
            status = os.lstat(path)
            return (stat.S_IFMT(status.st_mode), None if path.is_dir() else status.st_size, os.path.exists(path))
        if what == "readlink":
            return os.readlink(path)
        if what == "move":
            return os.rename(path, root / other)
        if what == "list":
            return sorted(kinds(root / chance_folder).items())
        if what == "mkdir":
            return os.mkdir(root / "d")
        if what == "rmdir":
            return os.rmdir(root / "d")
        return os.unlink(path)

    for _ in range(300):
        chance_folder = chance.choice([".", "d"])
        what = chance.choice(
            ["link", "link", "link", "write", "write", "read", "read", "look", "look", "readlink", "move", "move", "list", "list",
             "mkdir", "rmdir", "remove", "remove"]
        )
        name, other = chance.sample(NAMES, 2)
        both(what, name, other, chance.choice(TARGETS))


def test_programs_that_make_links_find_them(mount, node, folder):
    source = folder / "source"
    (source / "lib").mkdir(parents=True)
    (source / "lib/libx.so.1.2").write_bytes(b"code")
    os.symlink("libx.so.1.2", source / "lib/libx.so.1")
    os.symlink("libx.so.1", source / "lib/libx.so")
    os.symlink("lib", source / "lib64")
    os.symlink("nowhere", source / "dangling")
    shown = {"lib/libx.so.1": "libx.so.1.2", "lib/libx.so": "libx.so.1", "lib64": "lib", "dangling": "nowhere"}
    run("cp", "-a", source, mount / "cp")
    run("tar", "-cf", folder / "all.tar", "-C", source, ".")
    (mount / "tar").mkdir()
    run("tar", "-xpf", folder / "all.tar", "-C", mount / "tar")
    copies = ["cp", "tar"]
    if shutil.which("rsync"):
        run("rsync", "-a", f"{source}/", mount / "rsync")
        assert run("rsync", "-ai", f"{source}/", mount / "rsync") == "", "nothing is to be copied again"
        copies.append("rsync")
    if shutil.which("git"):
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "safe.directory=*"]
        run(*git, "init", "-q", source)
        run(*git, "-C", source, "add", ".")
        run(*git, "-C", source, "commit", "-qm", "first")
        run(*git, "clone", "-q", "--no-hardlinks", source, mount / "git")
        assert run(*git, "-C", mount / "git", "status", "--porcelain") == ""
        assert run(*git, "-C", mount / "git", "config", "--default=true", "core.symlinks") == "true\n"
        copies.append("git")
    for copy in copies:
        assert {name: os.readlink(mount / copy / name) for name in shown} == shown
        assert (mount / copy / "lib64/libx.so").read_bytes() == b"code"
    run("ln", "-sfn", "tar", mount / "current")
    run("ln", "-sfn", "cp", mount / "current")
    assert (mount / "current/lib64/libx.so").read_bytes() == b"code" and os.readlink(mount / "current") == "cp"
    run(sys.executable, "-m", "venv", "--without-pip", mount / "venv")
    assert os.readlink(mount / "venv/bin/python3")
    assert run(mount / "venv/bin/python", "-c", "import sys; print(sys.prefix)") == f"{mount / 'venv'}\n"
    run("rm", "-r", *[mount / name for name in os.listdir(mount.folder)])
    assert names(node) == [] and os.listdir(mount.folder) == []


def test_a_mount_that_is_killed_as_it_makes_links_leaves_whole_ones(node, folder):
    mounted = Mount(node, folder, "one")
    script = "import os, sys\nfor number in range(10_000):\n    os.symlink('there', f'{sys.argv[1]}/{number}')\n"
    with subprocess.Popen([sys.executable, "-c", script, mounted.folder], stderr=subprocess.DEVNULL) as maker:
        wait_until(lambda: len(names(node)) > 10)
        mounted.stop(signal.SIGKILL)
        maker.wait(30)
    again = Mount(node, folder, "two")
    found = kinds(again.folder)
    assert set(found.values()) == {"link"} and sorted(found) == names(node)
    assert {os.readlink(again / name) for name in found} == {"there"}
    again.stop()
