"""What programs on four hosts do while their network is cut: regions with and without locks, blocks, names, moves of pages.

All that was acknowledged is read back, nobody sees bytes that were never written, who has lost a lock changes nothing any more,
and whoever is refused is told why.
"""

import concurrent.futures
import hashlib
import threading
import time

from faults import patiently
from on_hosts import SECONDS, Refused

MEBIBYTE = 1 << 20
PAGE = 2 * MEBIBYTE
EOWNERDEAD = 130
# Offsets in the first page of each region: words without a lock, then what one lock is for, then what is held over the cut.
LOCKED, HELD = 4096, 8192
LOCKED_WORDS = 40
# Below what a guard buffers, and above it.
PIECES = (64, 320)
BLOCK_BYTES = 3000


def word(number):
    """A word of 8 bytes, in hexadecimal."""
    return number.to_bytes(8, "little").hex()


def words_of(text):
    """The numbers of so many words."""
    data = bytes.fromhex(text)
    return [int.from_bytes(data[start:start + 8], "little") for start in range(0, len(data), 8)]


def block_of(key):
    """The bytes that belong to a key."""
    return hashlib.shake_128(key).digest(BLOCK_BYTES)


class Cell:
    """A word that one program writes without a lock: it counts up."""

    def __init__(self):
        self.acknowledged = self.tried = 0

    def check(self, seen, least, where):
        """What was seen is no older than what had been acknowledged before, and was written."""
        assert least <= seen <= self.tried, f"{where}: {seen} was read; {least} had been acknowledged, {self.tried} is the last"


class Locked:
    """What was seen of words under their lock, by the number of the grant."""

    def __init__(self):
        self.events, self.next = [], 0

    def note(self, fence, kind, **what):
        """Something that a holder did, in its order."""
        self.next += 1
        self.events.append(((fence, kind == "read only", self.next), what))

    def check(self, where):
        """Each holder has seen what the one before it left; a write of unknown fate came before the next holder, or never."""
        possible = None
        for (fence, _, _), what in sorted(self.events, key=lambda event: event[0]):
            read, wrote, known = what.get("read"), what.get("wrote"), what.get("known")
            width = len(read or wrote)
            possible = possible or [{0}] * width
            if read is not None:
                for number, (one, choices) in enumerate(zip(read, possible, strict=True)):
                    assert one in choices, f"{where}: word {number} was {one} under grant {fence}, and may be {choices}\n{self.events}"
                possible = [{one} for one in read]
            if wrote is not None:
                possible = [{one} if known else choices | {one} for one, choices in zip(wrote, possible, strict=True)]


class Users:
    """Programs on all hosts, and what they were told."""

    def __init__(self, nodes, programs, folder):
        self.nodes, self.folder = nodes, folder
        self.names = list(nodes)
        self.hosts = {name: programs(node) for name, node in nodes.items()}
        self.counting = threading.Lock()
        self.value = 0
        self.refusals = []
        self.regions = self._make_regions()
        self.cells = {(writer, home, page): Cell() for writer in nodes for home in self.regions for page in (0, 1)}
        self.locked = {home: Locked() for home in self.regions}
        self.held = {home: Locked() for home in self.regions}
        self.blocks = []

    def _make_regions(self):
        """A region on each node."""
        own = {node.json("status")["node"]: name for name, node in self.nodes.items()}
        regions = {}
        for number in range(4 * len(own)):
            node = self.nodes[self.names[number % len(own)]]
            patiently(node, "region", "create", f"words-{number}", "4M", seconds=SECONDS)
            shown = node.json("stat", f"words-{number}")
            home = own[shown["pages"][0]["node"]]
            regions.setdefault(home, (f"words-{number}", int(str(shown["address"]), 0)))
            if len(regions) == len(own):
                return regions
        raise AssertionError(f"no region lies on {set(own.values()) - set(regions)}")

    def new_value(self):
        """A number that nobody has written."""
        with self.counting:
            self.value += 1
            return self.value

    def refused(self, error, what):
        """Whoever is refused is told why, and what to try."""
        assert error.code is not None and "hint:" in error.text, f"{what}: {error}"
        self.refusals.append((what, str(error)))

    def at_once(self, what, *lists):
        """Does the same for many at the same time."""
        with concurrent.futures.ThreadPoolExecutor(128) as pool:
            return list(pool.map(what, *lists))

    # --- one thing each: true if it was done ---

    def write(self, name, home, page):
        """A program's next number into its own word."""
        cell = self.cells[name, home, page]
        cell.tried += 1
        number = cell.tried
        try:
            self.hosts[name].ask("write", self.cell_address(name, home, page), word(number))
        except Refused as error:
            self.refused(error, f"{name} writes to {home}")
            return False
        cell.acknowledged = number
        return True

    def cell_address(self, writer, home, page):
        """Where a program's word lies."""
        return self.regions[home][1] + page * PAGE + 64 * self.names.index(writer)

    def read(self, name, home, page):
        """The words of all programs in a page."""
        cells = [self.cells[writer, home, page] for writer in self.names]
        least = [cell.acknowledged for cell in cells]
        try:
            text = self.hosts[name].ask("read", self.regions[home][1] + page * PAGE, 64 * len(cells))
        except Refused as error:
            self.refused(error, f"{name} reads from {home}")
            return False
        for writer, cell, before, seen in zip(self.names, cells, least, words_of(text)[::8], strict=True):
            cell.check(seen, before, f"{name} reads {writer}'s word in page {page} of {home}")
        return True

    def locked_write(self, name, home, offset=LOCKED, count=LOCKED_WORDS):
        """A program takes a lock, reads, writes, and gives it back."""
        value = self.new_value()
        piece = PIECES[value % 2]
        address = self.regions[home][1] + offset
        said = self.hosts[name].ask("locked_write", address, word(value) * count, piece)
        seen = (self.locked if offset == LOCKED else self.held)[home]
        if said["read"] is not None:
            wrote = [value] * count if said["began"] else None
            seen.note(said["fence"], "both", read=words_of(said["read"]), wrote=wrote, known=said["error"] is None)
        if said["error"] is not None:
            self.refused(Refused(*said["error"]), f"{name} writes under a lock of {home}")
        return said["error"] is None

    def locked_read(self, name, home):
        """The same, for reading."""
        try:
            said = self.hosts[name].ask("locked_read", self.regions[home][1] + LOCKED, 8 * LOCKED_WORDS)
        except Refused as error:
            self.refused(error, f"{name} reads under a lock of {home}")
            return False
        self.locked[home].note(said["fence"], "read only", read=words_of(said["read"]))
        return True

    def store(self, name, home):
        """A holder writes under what it holds; nothing, or the number of the error."""
        value = self.new_value()
        fence = self.holding[name][1]
        try:
            self.hosts[name].ask("store", "held", 0, word(value))
        except Refused as error:
            self.refused(error, f"{name} writes under what it held of {home}")
            if error.code != EOWNERDEAD:
                self.held[home].note(fence, "both", wrote=[value], known=False)
            return error.code
        self.held[home].note(fence, "both", wrote=[value], known=True)
        return None

    def put_block(self, name, key):
        """A block into the memory of a host."""
        assert self.hosts[name].ask("put_block", key.hex(), block_of(key).hex())
        self.blocks.append(key)

    def finds_block(self, name, key):
        """Whether a host finds a block; it is right, or missing."""
        try:
            found = self.hosts[name].ask("block", key.hex(), BLOCK_BYTES)
        except Refused as error:
            self.refused(error, f"{name} gets the block {key}")
            return False
        assert found is None or found == block_of(key).hex(), f"{name} has other bytes of {key}"
        return found is not None

    # --- a cut ---

    def before(self, number):
        """What is there before a cut: names, blocks, locks that are held across it."""
        self.number = number
        shift = 1 + number % 3
        self.next = {name: self.names[(place + shift) % len(self.names)] for place, name in enumerate(self.names)}
        for name, node in self.nodes.items():
            self.put_block(name, f"before {number} {name}".encode())
            (self.folder / f"old-{name}").write_bytes(self.content(name, "old"))
            patiently(node, "put", self.folder / f"old-{name}", "--name", self.object_name(name), seconds=SECONDS)
        # A node leaves one that was silent alone for a while: the cut before may not be long ago.
        probes = {name: f"probe {number} {name}".encode() for name in self.names}
        self.at_once(self.put_block, self.names, probes.values())
        self.at_once(lambda pair: self.until_done(self.finds_block, *pair), [(name, key) for name in self.names for key in probes.values()])
        self.holding = {}
        for name, home in self.next.items():
            address = self.regions[home][1] + HELD
            self.holding[name] = (home, patiently_asked(self.hosts[name], "hold", "held", address, 8))
            assert self.store(name, home) is None, self.refusals[-1]

    def object_name(self, name):
        return f"names/{self.number}/{name}"

    def content(self, name, age):
        return hashlib.shake_128(f"{self.number} {name} {age}".encode()).digest(50_000)

    def pull(self, name):
        """Begins to pull a page that another node has: cuts happen in the middle of it."""
        process = self.nodes[name].run("region", "pull", self.regions[self.next[name]][0], "--page", "1", check=False)
        assert process.returncode == 0 or "hint:" in process.stderr, process
        return process.returncode == 0

    def during(self, way, may_write):
        """What all do while the network is cut; those of one part go on if they may write."""
        pairs = [(name, home) for name in self.names for home in self.regions]
        goes_on = {(name, home) for name, home in pairs if name in may_write and home in may_write}
        acts = {
            "writes": lambda name, home: self.write(name, home, 0),
            "reads": lambda name, home: self.read(name, home, 0),
            "locks": self.locked_write,
            "looks": self.locked_read,
            "finds": lambda name, home: self.finds_block(name, f"before {self.number} {home}".encode()),
            # A page that may be on its way belongs to one of two.
            "moves": lambda name, home: self.write(name, home, 1) and self.read(name, home, 1),
        }
        all_acts = [(what, *pair) for what in acts for pair in pairs]
        done = self.at_once(lambda one: acts[one[0]](*one[1:]), all_acts)
        found = {what: {} for what in acts}
        for (what, *pair), said in zip(all_acts, done, strict=True):
            found[what][tuple(pair)] = said
        parts = {name: part for part in way for name in part}
        for what, said in found.items():
            for pair in goes_on:
                assert said[pair] or what == "moves", f"{what} of {pair} in {way}:\n{self.refusals}"
            for name, home in pairs:
                assert what in ("finds", "moves") or parts[name] == parts[home] or not said[name, home], f"{what} of {name} reached {home} in {way}"
        self.at_once(lambda name: self.put_block(name, f"cut {self.number} {name}".encode()), self.names)
        self.names_removed = dict(zip(self.names, self.at_once(lambda name: self.replace(name, name in may_write), self.names), strict=True))
        self.lost = set(self.at_once(lambda name: self.take_over(name, parts, may_write), self.names)) - {None}

    def replace(self, name, may_write):
        """Removes a name whose bytes are elsewhere, and puts others under it; whether both were done."""
        node, victim = self.nodes[name], self.object_name(self.next[name])
        new = self.folder / f"new-{name}"
        new.write_bytes(self.content(self.next[name], "new"))
        for words in (("rm", victim), ("put", new, "--name", victim)):
            outcome = node.run(*words, check=False)
            for _ in range(2 if may_write else 0):
                if outcome.returncode == 0 or "no object" in outcome.stderr or "exists" in outcome.stderr:
                    break
                outcome = node.run(*words, check=False)
            if outcome.returncode != 0:
                assert "hint:" in outcome.stderr, outcome
                assert not may_write, f"{words} of {name}:\n{outcome.stderr}\n{node.words()}"
                return False
        assert may_write, f"{name} may not write"
        return True

    def take_over(self, name, parts, may_write):
        """Whoever keeps a lock of a holder behind the cut gives it to others; the holder's late writes are refused."""
        home, _ = self.holding[name]
        if parts[name] == parts[home]:
            if name in may_write:
                assert self.store(name, home) is None, f"{name} of {parts[name]} holds it as before: {self.refusals[-1]}"
            return None
        if home not in may_write:
            self.store(name, home)
            return None
        assert self.locked_write(home, home, HELD, 1), f"{home} should get what {name} held: {self.refusals[-1]}"
        assert self.store(name, home) is not None, f"{name} wrote under what {home} had taken over"
        return name

    def after(self):
        """The network is whole again, and so are all that use it."""
        for name in self.names:
            home, _ = self.holding[name]
            code = self.store(name, home)
            assert name not in self.lost or code == EOWNERDEAD, f"{name} had lost its lock of {home}, and hears {code}"
            try:
                self.hosts[name].ask("let_go", "held")
            except Refused as error:
                self.refused(error, f"{name} gives back what it held of {home}")
        pairs = [(name, home) for name in self.names for home in self.regions]
        first, second = zip(*pairs)
        for act in (lambda name, home: self.read(name, home, 0), lambda name, home: self.read(name, home, 1),
                    lambda name, home: self.write(name, home, 0), lambda name, home: self.write(name, home, 1),
                    self.locked_write, self.locked_read, lambda name, home: self.locked_write(name, home, HELD, 1)):
            self.at_once(lambda name, home, act=act: self.until_done(act, name, home), first, second)
        for home in self.regions:
            self.locked[home].check(f"the lock of {home}")
            self.held[home].check(f"what is held of {home}")
        for name in self.names:
            patiently(self.nodes[name], "region", "pull", self.regions[self.next[name]][0], "--page", "1", seconds=SECONDS)
        self.at_once(lambda pair: self.until_done(self.finds_block, *pair), [(name, key) for name in self.names for key in self.blocks])
        self.names_are_right()

    def until_done(self, act, *words):
        """Again and again: after a cut others need a moment to find each other."""
        deadline = time.monotonic() + SECONDS
        while not act(*words):
            assert time.monotonic() < deadline, f"{act} of {words} never succeeds: {self.refusals[-3:]}"
            time.sleep(0.1)

    def names_are_right(self):
        """Every name that was removed and put anew has its new bytes everywhere; others have one of both, or are gone."""
        for remover, done in self.names_removed.items():
            name = self.next[remover]
            allowed = [self.content(name, "new")] + ([] if done else [self.content(name, "old")])
            for node in self.nodes.values():
                target = self.folder / "found"
                if self.object_name(name) not in {row["name"] for row in node.json("ls")}:
                    assert not done, f"{self.object_name(name)} was acknowledged and is lost"
                    continue
                patiently(node, "get", self.object_name(name), target, seconds=SECONDS)
                assert target.read_bytes() in allowed, f"{node.name} has other bytes of {self.object_name(name)}"


def patiently_asked(host, what, *words):
    """Asks until it is done."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return host.ask(what, *words)
        except Refused:
            assert time.monotonic() < deadline, (what, words)
            time.sleep(0.1)
