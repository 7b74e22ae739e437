"""A put whose object is sealed has succeeded, whatever becomes of the directory from then on."""

import contextlib
import socket
import threading

from faults import sha, wait_until

ROOM = ["--capacity", "64M", "--lease", "300", "--repair", "off"]


class Middle:
    """Carries bytes to a node. It breaks down at the message after so many that follow the one with a marker in it."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets = [self.listener]
        self.marker, self.left = None, 0
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def break_after(self, marker, count):
        """Sets the marker, and how many messages pass, that one counted."""
        self.marker, self.left = marker, count

    def accept(self):
        """Connects each who comes to the node behind."""
        with contextlib.suppress(OSError):
            while True:
                one, _ = self.listener.accept()
                other = socket.create_connection(self.target)
                self.sockets += [one, other]
                threading.Thread(target=self.carry, args=(one, other, True), daemon=True).start()
                threading.Thread(target=self.carry, args=(other, one, False), daemon=True).start()

    def carry(self, source, target, is_counted):
        """Carries one direction; a message is what comes at once."""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                if is_counted and not self.passes(data):
                    self.stop()
                target.sendall(data)

    def passes(self, data):
        """Counts a message to the node."""
        with self.lock:
            if self.marker is None or (self.marker != b"" and self.marker not in data):
                return True
            self.marker = b""
            self.left -= 1
            return self.left >= 0

    def stop(self):
        """Ends every connection, and takes no more."""
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def test_a_put_succeeds_whose_directory_goes_away_behind_the_seal(start_node, make_file, folder):
    d = start_node("d", options=ROOM)
    middle = Middle(d.address)
    a = start_node("a", join=middle.address, options=ROOM)
    source = make_file("source", 100_000)
    # The name is taken, and the object is sealed: whoever asks the directory then learns nothing.
    middle.break_after(b"two-messages", 2)
    put = a.json("put", source, "--name", "two-messages", "--rack", "a")
    middle.stop()
    a.stop()
    a.join = d.address
    a.start()
    wait_until(lambda: d.run("get", "two-messages", folder / "back", check=False).returncode == 0, 20)
    assert sha(folder / "back") == sha(source)
    assert put == d.json("stat", "two-messages")
