"""What the lab takes from the machine's package manager: programs of the host, and a kernel that is unpacked, not installed."""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

TREE = pathlib.Path(__file__).resolve().parent.parent
CACHE = TREE / ".cache/lab"
# Program -> the Debian package that has it.
HOST_PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "rdma": "iproute2",
    "depmod": "kmod",
    "ibv_devinfo": "ibverbs-utils",
    "ib_read_lat": "perftest",
    "ndctl": "ndctl",
    "dmsetup": "dmsetup",
    "mkfs.ext4": "e2fsprogs",
}
# Not programs: what libibverbs loads for soft-RoCE, and the connection manager.
HOST_FILES = {
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
    "/usr/lib/x86_64-linux-gnu/librdmacm.so.1": "librdmacm1",
}
KERNEL = "linux-image-amd64"
SUPERUSER_PATHS = "/usr/local/sbin:/usr/sbin:/sbin"


class Missing(Exception):
    """Something the lab cannot do without; the text says what and how to get it."""


def program(name):
    """Path of a program of the host, or None."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SUPERUSER_PATHS}")


def missing_packages():
    """Names of the packages that must be installed first, sorted."""
    lacking = {package for name, package in HOST_PROGRAMS.items() if program(name) is None}
    lacking |= {package for path, package in HOST_FILES.items() if not pathlib.Path(path).exists()}
    return sorted(lacking)


def why_not():
    """Why the lab cannot run here, as one sentence with a hint; None if it can."""
    if os.geteuid() != 0:
        return "the lab makes bridges and taps, which needs root (hint: sudo lab/lab ...)"
    if not pathlib.Path("/dev/net/tun").exists():
        return "/dev/net/tun is missing (hint: modprobe tun, or give the container that device)"
    if os.uname().machine != "x86_64":
        return f"guests are x86-64 and this machine is {os.uname().machine} (hint: use another machine)"
    packages = missing_packages()
    if packages:
        return f"packages are missing (hint: lab/lab setup, or apt-get install {' '.join(packages)})"
    return None


def install():
    """Installs what is missing on this host."""
    packages = missing_packages()
    if not packages:
        return
    if program("apt-get") is None:
        raise Missing(f"this machine has no apt-get (hint: install what Debian calls {' '.join(packages)})")
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    if subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        raise Missing(f"`{' '.join(command)}` failed (hint: run apt-get update, then this again as root)")


class Kernel:
    """An unpacked kernel package: its image as an ELF file, and its modules."""

    def __init__(self, folder):
        self.folder = folder
        self.release = next((folder / "lib/modules").iterdir()).name
        self.modules = folder / "lib/modules" / self.release
        self.image = folder / "vmlinux"

    def module_files(self, names):
        """The files that loading these modules needs, dependencies first named by modules.dep."""
        needs, files = {}, {}
        for line in (self.modules / "modules.dep").read_text().splitlines():
            path, rest = line.split(":", 1)
            needs[path] = rest.split()
            files[re.sub(r"\.ko(\.xz|\.zst)?$", "", pathlib.Path(path).name).replace("-", "_")] = path
        wanted = []
        for name in names:
            path = files.get(name.replace("-", "_"))
            if path is None:
                # Built into the kernel, or this kernel has none: loading it in the guest says which.
                continue
            wanted += [path, *needs[path]]
        return sorted(set(wanted))


def kernel():
    """The lab's kernel, fetched and unpacked by package name the first time."""
    folder = CACHE / "kernel"
    if not (folder / "vmlinux").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            work = pathlib.Path(work)
            _download_kernel(work)
            shutil.rmtree(folder, ignore_errors=True)
            (work / "unpacked").rename(folder)
    return Kernel(folder)


def _download_kernel(work):
    said = subprocess.run(["apt-cache", "depends", KERNEL], capture_output=True, text=True, check=False).stdout
    names = re.findall(r"Depends: (linux-image-\S+)", said)
    if not names:
        raise Missing(f"apt does not know {KERNEL} (hint: apt-get update; the lab takes Debian's kernel)")
    fetched = subprocess.run(["apt-get", "download", "-qq", names[0]], cwd=work, stderr=subprocess.PIPE, text=True, check=False)
    packages = list(work.glob("*.deb"))
    if not packages:
        raise Missing(f"{names[0]} could not be fetched: {fetched.stderr.strip()} (hint: apt-get update)")
    target = work / "unpacked"
    subprocess.run(["dpkg-deb", "-x", packages[0], target], check=True)
    release = next((target / "lib/modules").iterdir()).name
    for link in ("build", "source"):
        (target / "lib/modules" / release / link).unlink(missing_ok=True)
    subprocess.run([program("depmod"), "-b", target, release], check=True)
    _unpack_image(target / f"boot/vmlinuz-{release}", target / "vmlinux")
    shutil.rmtree(target / "usr", ignore_errors=True)


def _unpack_image(packed, into):
    """Takes the ELF image out of a bzImage: a guest without hardware virtualisation would need seconds for that."""
    import lzma  # pylint: disable=import-outside-toplevel

    data = packed.read_bytes()
    start = data.find(b"\xfd7zXZ\x00")
    image = lzma.LZMADecompressor().decompress(data[start:]) if start >= 0 else b""
    if image[:4] != b"\x7fELF":
        raise Missing(f"{packed.name} holds no ELF image that xz can unpack (hint: use Debian 12's kernel)")
    into.write_bytes(image)


def digest(*things):
    """A short name for whatever was made of these things."""
    return hashlib.sha256(repr(things).encode()).hexdigest()[:12]
