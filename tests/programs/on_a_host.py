"""A program on a host of a network: does with the pool what lines of JSON on its standard input say, each on a thread of its own.

Usage: on_a_host.py SOCKET. Each answer is a line with the request's number, and what came of it or the error.
"""

import json
import sys
import threading

import hinterland

# Longer than a lease, so that what a lost holder had is given to others meanwhile.
WAIT = 12.0


class Host:
    """The pool as the host's node shows it, and what is held and open."""

    def __init__(self, socket):
        self.pool = hinterland.Pool(socket)
        self.blocks = self.pool.kv("partitions")
        self.guards = {}

    def read(self, address, count):
        """Bytes without a lock."""
        return self.pool.read(address, count).hex()

    def write(self, address, data):
        """Writes without a lock."""
        self.pool.write(address, bytes.fromhex(data))

    def hold(self, name, address, count):
        """Takes a lock for writing and keeps it."""
        self.guards[name] = self.pool.write_guard(address, count, wait=WAIT)
        return self.guards[name].fence

    def store(self, name, offset, data):
        """Writes under a lock that is held, until it has arrived."""
        self.guards[name].write(offset, bytes.fromhex(data))
        self.guards[name].flush()

    def let_go(self, name):
        """Gives a lock back."""
        self.guards.pop(name).unlock()

    def locked_read(self, address, count):
        """Reads under a lock of its own."""
        guard = self.pool.read_guard(address, count, wait=WAIT)
        try:
            return {"fence": guard.fence, "read": guard.read(0, count).hex()}
        finally:
            guard.unlock()

    def locked_write(self, address, data, piece):
        """Reads and then writes under a lock of its own, in pieces: says how far it came, also if it fails."""
        data = bytes.fromhex(data)
        said = {"fence": None, "read": None, "began": False, "error": None}
        try:
            guard = self.pool.write_guard(address, len(data), wait=WAIT)
            said["fence"] = guard.fence
            try:
                said["read"] = guard.read(0, len(data)).hex()
                said["began"] = True
                for start in range(0, len(data), piece):
                    guard.write(start, data[start:start + piece])
            finally:
                guard.unlock()
        except hinterland.HinterlandError as error:
            said["error"] = [error.errno, error.strerror]
        return said

    def put_block(self, key, data):
        """Writes a block of this host."""
        return self.blocks.put([bytes.fromhex(key)], [bytes.fromhex(data)])[0]

    def block(self, key, count):
        """A block of any rack, or nothing."""
        buffer = bytearray(count)
        [found] = self.blocks.get_into([bytes.fromhex(key)], [buffer], remote=True)
        return buffer.hex() if found else None

    def remove_block(self, key):
        """Removes a block in all racks."""
        return self.blocks.remove([bytes.fromhex(key)], everywhere=True)


def main():
    """Reads requests until there are no more."""
    host = Host(sys.argv[1])
    speaking = threading.Lock()

    def answer(number, what, words):
        try:
            said = {"number": number, "value": getattr(host, what)(*words)}
        except hinterland.HinterlandError as error:
            said = {"number": number, "error": [error.errno, error.strerror]}
        except Exception as error:  # Whatever it is, the test is to know.
            said = {"number": number, "error": [None, repr(error)]}
        with speaking:
            print(json.dumps(said), flush=True)

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        threading.Thread(target=answer, args=(request["number"], request["what"], request["words"]), daemon=True).start()


main()
