"""Boots guests together, runs one script in each, and gives back what each said and how it ended."""

import dataclasses
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import time

from image import Archive, base_image
from network import Wires
from packages import CACHE, Missing, kernel, program, why_not

HERE = pathlib.Path(__file__).resolve().parent
# More guests than this on the two cores of a small machine take longer to boot than their tests to run.
GUESTS_MAX = 4
# Boots take 3 s on an idle machine and half a minute on one with ten times its work.
SECONDS_MAX = 300
RDMA_MODULES = ("rdma_rxe", "crc32_generic", "ib_uverbs", "rdma_ucm")


@dataclasses.dataclass
class Guest:
    """One guest: its script runs under bash, as root, in this machine's own files (what it changes is its own)."""

    name: str
    script: str
    wires: tuple = ("spine",)
    memory_mib: int = 384
    processors: int = 1
    modules: tuple = ()
    # More words for QEMU, such as devices.
    machine: tuple = ()


@dataclasses.dataclass
class Outcome:
    """What came of one guest; `status` is None if it never said how its script ended."""

    name: str
    status: int | None
    output: str
    console: str
    seconds: float


def boot(guests, seconds=SECONDS_MAX):
    """Boots all guests at once; returns their outcomes by name when each has ended or the time is up."""
    reason = why_not()
    if reason:
        raise Missing(reason)
    if not 1 <= len(guests) <= GUESTS_MAX or len({guest.name for guest in guests}) < len(guests):
        raise ValueError(f"1 to {GUESTS_MAX} guests with different names, not {[guest.name for guest in guests]}")
    core = kernel()
    image = base_image(core, sorted({module for guest in guests for module in guest.modules}))
    work = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=CACHE))
    shared = work / "shared"
    shared.mkdir()
    running = {}
    try:
        with Wires(guests) as wires:
            begun = time.monotonic()
            try:
                for row, guest in enumerate(guests):
                    running[guest.name] = _start(guest, row, guests, core, image, work, wires)
                ended = _wait(running, begun, seconds)
            finally:
                for process in running.values():
                    if process.poll() is None:
                        process.kill()
                    process.wait()
        return {guest.name: _outcome(guest, work, ended.get(guest.name, seconds)) for guest in guests}
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _wait(running, begun, seconds):
    ended = {}
    while len(ended) < len(running) and time.monotonic() - begun < seconds:
        for name, process in running.items():
            if name not in ended and process.poll() is not None:
                ended[name] = time.monotonic() - begun
        time.sleep(0.02)
    return ended


def _start(guest, row, guests, core, image, work, wires):
    folder = work / guest.name
    folder.mkdir()
    own = Archive()
    words = {"LAB_NAME": guest.name, "LAB_NUMBER": row + 1, "LAB_NAMES": " ".join(one.name for one in guests),
             "LAB_TREE": HERE.parent, "LAB_MODULES": " ".join(guest.modules)}
    own.file("lab/words", "".join(f"export {key}={shlex.quote(str(value))}\n" for key, value in words.items()).encode())
    own.file("lab/script", b". /lab/shell.sh\n" + guest.script.encode() + b"\n")
    for name in ("shell.sh", "last"):
        own.file(f"lab/{name}", (HERE / "guest" / name).read_bytes())
    first = folder / "first"
    first.write_bytes(image.read_bytes() + own.content())
    share = "local,security_model=none,multidevs=remap"
    command = ["ip", "netns", "exec", wires.namespace, program("qemu-system-x86_64"), "-M", "q35", "-accel", "tcg,thread=multi",
               "-cpu", "max", "-m", f"{guest.memory_mib}M", "-smp", str(guest.processors), "-nodefaults", "-no-user-config",
               "-display", "none", "-no-reboot", "-monitor", "none", "-serial", f"file:{folder}/console",
               "-serial", f"file:{folder}/output", "-serial", f"file:{folder}/status", "-kernel", core.image, "-initrd", first,
               "-append", f"console=ttyS0 loglevel=4 panic=-1 mitigations=off nokaslr audit=0 net.ifnames=0 no_timer_check {_clock()}",
               "-virtfs", f"{share},path={work}/shared,mount_tag=shared",
               "-virtfs", f"{share},path=/,mount_tag=host,readonly=on", *wires.cards(guest, row), *guest.machine]
    with open(folder / "qemu", "wb") as words:
        return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=words, stderr=words)


def _clock():
    """Words for the kernel: on a busy host an emulated guest measures its clock wrongly at boot, so it is told."""
    rate = re.search(r"^cpu MHz\s*: ([\d.]+)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return f"tsc=reliable tsc_early_khz={round(float(rate[1]) * 1000)}" if rate else "clocksource=acpi_pm"


def _outcome(guest, work, seconds):
    def said(name):
        path = work / guest.name / name
        return path.read_text(errors="replace") if path.exists() else ""

    status = said("status").split()
    return Outcome(guest.name, int(status[0]) if status else None, said("output"), said("console") + said("qemu"), seconds)
