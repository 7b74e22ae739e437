"""etcd for tests: members as processes that can be killed and stopped, and what they know.

The programs are those of Debian's packages etcd-server and etcd-client, unpacked by tests/etcd-server into .cache/etcd.
"""

import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import urllib.request

import pytest
from loopback import free_port

TREE = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = TREE / ".cache/etcd/bin"
READY_SECONDS_MAX = 30


def program(name):
    """The path of `etcd` or `etcdctl`, or None."""
    ours = PROGRAMS / name
    return str(ours) if ours.exists() else shutil.which(name)


needs_etcd = pytest.mark.skipif(program("etcd") is None, reason="no etcd (tests/etcd-server .cache/etcd unpacks Debian's)")


class Member:
    """One etcd process; it can be killed and started again on its data."""

    def __init__(self, folder, name, host="127.0.0.1", wrapper=(), options=(), scheme="http"):
        self.folder, self.name, self.host, self.scheme = folder, name, host, scheme
        self.wrapper, self.options = [str(word) for word in wrapper], [str(word) for word in options]
        self.client, self.peer = f"{host}:{free_port()}", f"{host}:{free_port()}"
        self.log = folder / f"etcd-{name}.log"
        self.process = None

    def start(self, cluster):
        """Starts the process; it serves when most members are there."""
        command = [*self.wrapper, program("etcd"), "--name", self.name, "--data-dir", self.folder / f"etcd-{self.name}",
                   "--listen-client-urls", f"{self.scheme}://{self.client}", "--advertise-client-urls", f"{self.scheme}://{self.client}",
                   "--listen-peer-urls", f"http://{self.peer}", "--initial-advertise-peer-urls", f"http://{self.peer}",
                   "--initial-cluster", cluster, "--logger", "zap", "--log-level", "warn", *self.options]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self):
        """Ends it as a crash would."""
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        """SIGSTOP or SIGCONT."""
        self.process.send_signal(number)


class Cluster:
    """Members of one etcd."""

    def __init__(self, folder, count, **choices):
        first = len(list(folder.glob("etcd-*.log")))
        self.members = [Member(folder, f"e{first + number}", **choices) for number in range(count)]
        self.words = ",".join(f"{member.name}=http://{member.peer}" for member in self.members)
        self.scheme = "etcds" if self.members and self.members[0].scheme == "https" else "etcd"

    def start(self, wait=True):
        """Starts all members that do not run."""
        for member in self.members:
            if member.process is None or member.process.poll() is not None:
                member.start(self.words)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self):
        """Waits until the cluster answers."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                return self.get("ready")
            except OSError as error:
                if time.monotonic() > deadline:
                    raise AssertionError(f"etcd is not ready: {error}\n{self.members[0].log.read_text()[-2000:]}") from error
                time.sleep(0.05)

    def stop(self):
        """Ends all members."""
        for member in self.members:
            if member.process is not None and member.process.poll() is None:
                member.signal(signal.SIGCONT)
                member.kill()

    def directory(self, prefix=""):
        """What nodes take as --directory."""
        return f"{self.scheme}://{','.join(member.client for member in self.members)}{prefix}"

    def ask(self, path, **question):
        """Asks the first member that answers."""
        failure = None
        for member in self.members:
            request = urllib.request.Request(f"http://{member.client}/v3/{path}", json.dumps(question).encode(),
                                             {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=2) as answer:
                    return json.load(answer)
            except OSError as error:
                failure = error
        raise failure

    def get(self, key):
        """The value of a key, or None."""
        found = self.ask("kv/range", key=text(key)).get("kvs", [])
        return base64.b64decode(found[0].get("value", "")) if found else None

    def version(self, key):
        """How often a key was written since it is there."""
        return self.ask("kv/range", key=text(key))["kvs"][0]["version"]

    def put(self, key, value):
        """Writes a key."""
        self.ask("kv/put", key=text(key), value=text(value))

    def leader(self, prefix="hinterland"):
        """Who leads the directory, as etcd knows it: a name, or None."""
        value = self.get(f"{prefix}/leader")
        return json.loads(value)["name"] if value else None

    def ctl(self, *words, **options):
        """Runs etcdctl."""
        endpoints = ",".join(f"{member.scheme}://{member.client}" for member in self.members)
        return subprocess.run([program("etcdctl"), f"--endpoints={endpoints}", *map(str, words)], check=True,
                              capture_output=True, text=True, env={**os.environ, "ETCDCTL_API": "3"}, **options)


def text(value):
    """Bytes or text as etcd's JSON has them."""
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
