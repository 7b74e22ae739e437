"""Ethernet between guests: a bridge for each wire and a tap for each card, in a network namespace of their own."""

import os
import subprocess

# Frames of guests may be this long: RDMA messages of 4096 bytes travel in one.
MTU = 9000


class Wires:
    """All wires that a list of guests names; a context that takes everything away again."""

    def __init__(self, guests):
        self.namespace = f"lab-{os.getpid()}"
        self._taps = {}
        self._guests = guests

    def __enter__(self):
        _run("ip", "netns", "add", self.namespace)
        try:
            for wire in sorted({wire for guest in self._guests for wire in guest.wires}):
                self._ip("link", "add", wire, "mtu", str(MTU), "type", "bridge")
                self._ip("link", "set", wire, "up")
            for row, guest in enumerate(self._guests):
                for column, wire in enumerate(guest.wires):
                    tap = f"tap{row}.{column}"
                    self._ip("tuntap", "add", "mode", "tap", tap)
                    self._ip("link", "set", tap, "mtu", str(MTU), "master", wire, "up")
                    self._taps[guest.name, column] = tap
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run(["ip", "netns", "del", self.namespace], check=False)

    def _ip(self, *words):
        _run("ip", "-n", self.namespace, *words)

    def cards(self, guest, row):
        """QEMU's words for the network cards of one guest: eth0 is on its first wire."""
        words = []
        for column, _ in enumerate(guest.wires):
            mac = f"52:54:00:00:{column:02x}:{row + 1:02x}"
            words += ["-netdev", f"tap,id=net{column},ifname={self._taps[guest.name, column]},script=no,downscript=no"]
            words += ["-device", f"virtio-net-pci,netdev=net{column},romfile=,host_mtu={MTU},mac={mac}"]
        return words


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"`{' '.join(words)}` failed: {done.stderr.strip()} (hint: the lab needs root and /dev/net/tun)")
