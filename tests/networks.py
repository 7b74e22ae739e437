"""A network of hosts as network namespaces, joined by wires that can be cut into any parts. It needs no root where users may make namespaces."""

import shutil
import subprocess
import time

import pytest

# Hosts are 10.77.0.1, .2 and so on: nothing outside the namespaces has a way there.
NETWORK = "10.77.0"


class Network:
    """Hosts, each with one card on a wire; a wire for each part of the network."""

    def __init__(self, names):
        self.names = list(names)
        self.holders = []
        if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
            pytest.skip("no unshare, nsenter or ip")
        self.switch = self._hold(["unshare", "-Urn"], [])
        try:
            self._make()
        except OSError as error:
            self.stop()
            pytest.skip(f"no network of one's own can be made here: {error}")

    def _hold(self, unshare, enter):
        holder = subprocess.Popen([*enter, *unshare, "sleep", "1800"])
        self.holders.append(holder)
        # `unshare` becomes `sleep` when the namespace is there.
        end = time.monotonic() + 5
        while time.monotonic() < end:
            if holder.poll() is not None:
                break
            with open(f"/proc/{holder.pid}/comm", encoding="utf-8") as comm:
                if comm.read() == "sleep\n":
                    return holder
            time.sleep(0.01)
        self.stop()
        pytest.skip("no network of one's own can be made here")

    @staticmethod
    def _enter(holder):
        return ["nsenter", "-t", str(holder.pid), "-U", "-n", "--preserve-credentials"]

    def _ip(self, holder, *words):
        done = subprocess.run([*self._enter(holder), "ip", *map(str, words)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"`ip {' '.join(map(str, words))}` failed: {done.stderr.strip()}")

    def _make(self):
        for number in range(len(self.names)):
            self._ip(self.switch, "link", "add", f"part{number}", "type", "bridge")
            self._ip(self.switch, "link", "set", f"part{number}", "up")
        self.hosts = {}
        for number, name in enumerate(self.names, 1):
            # Within the same user namespace, so that the card may be moved there.
            holder = self._hold(["unshare", "-n"], ["nsenter", "-t", str(self.switch.pid), "-U", "--preserve-credentials"])
            self.hosts[name] = holder
            self._ip(self.switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", holder.pid)
            self._ip(self.switch, "link", "set", f"port{number}", "master", "part0", "up")
            self._ip(holder, "link", "set", "lo", "up")
            self._ip(holder, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            self._ip(holder, "link", "set", "eth0", "up")

    def address(self, name):
        """The host's address."""
        return f"{NETWORK}.{self.names.index(name) + 1}"

    def inside(self, name):
        """What stands before a command that runs on the host."""
        return self._enter(self.hosts[name])

    def split(self, parts):
        """Cuts the network into parts; hosts of one part reach each other and nobody else."""
        for part, names in enumerate(parts):
            for name in names:
                self._ip(self.switch, "link", "set", f"port{self.names.index(name) + 1}", "master", f"part{part}")

    def heal(self):
        """Joins all parts."""
        self.split([self.names])

    def stop(self):
        """Ends the namespaces, and with them the wires."""
        for holder in reversed(self.holders):
            holder.kill()
            holder.wait()


def partitions(names):
    """Every way to cut names into two parts and more."""
    def ways(rest):
        if not rest:
            yield []
            return
        first, others = rest[0], rest[1:]
        for way in ways(others):
            yield [[first], *way]
            for place, part in enumerate(way):
                yield [*way[:place], [first, *part], *way[place + 1:]]
    return [way for way in ways(list(names)) if len(way) > 1]
