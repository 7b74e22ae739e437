"""Programs that read an object of another rack instead of mapping it: through the same cache, right bytes or an error."""

import signal
import subprocess
import sys

from faults import MEBIBYTE, members_up, sha, wait_until

SIZE = 40 * MEBIBYTE + 777
# Reads everything in order, with plain reads that the kernel may not answer from what another mount has read.
WHOLE = """
import hashlib, sys
digest = hashlib.sha256()
with open(sys.argv[1], "rb", buffering=0) as source:
    while piece := source.read(1 << 20):
        digest.update(piece)
print(digest.hexdigest())
"""
# Reads pieces of any size from anywhere, and compares each with the file that was put.
ANYWHERE = """
import os, random, sys
pool, plain = (os.open(path, os.O_RDONLY) for path in sys.argv[1:3])
chance, size = random.Random(int(sys.argv[3])), os.fstat(plain).st_size
for _ in range(300):
    start, count = chance.randrange(size), chance.randrange(1, 3 << 20)
    assert os.pread(pool, count, start) == os.pread(plain, count, start), (start, count)
    os.posix_fadvise(pool, 0, 0, os.POSIX_FADV_DONTNEED)
print("right")
"""
MAPPED = """
import hashlib, mmap, sys
with open(sys.argv[1], "rb") as source:
    print(hashlib.sha256(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)).hexdigest())
"""
# Maps, waits for a line, asks for the first units, and touches eight others at once.
TOUCHED = """
import hashlib, mmap, sys, threading
with open(sys.argv[1], "rb") as source:
    mapped = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
view = memoryview(mapped)
print("mapped", flush=True)
sys.stdin.readline()
mapped.madvise(mmap.MADV_WILLNEED)
def touch(place):
    # It lets the others run meanwhile.
    hashlib.sha256(view[place:place + 4096])
for place in range(8):
    threading.Thread(target=touch, args=(16 + place << 20,)).start()
"""
# Reads a byte, waits for a line, and reads the rest.
IN_TWO = """
import hashlib, os, sys
source = os.open(sys.argv[1], os.O_RDONLY)
first = os.pread(source, 100, 0)
print("begun", flush=True)
sys.stdin.readline()
rest = b""
while piece := os.pread(source, 1 << 20, 100 + len(rest)):
    rest += piece
print(hashlib.sha256(first + rest).hexdigest())
"""


def program(node, text, *words, options=()):
    """The command that runs a Python program under `hinterland run`."""
    return node.command("run", *options, "--", sys.executable, "-c", text, *words)


def outcome(node, text, *words, options=()):
    """Runs it to its end; returns what it printed."""
    done = subprocess.run(program(node, text, *words, options=options), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stderr, node.words())
    return done.stdout.strip()


def sent(node):
    """Bytes that the node has sent, to other nodes and to programs of other racks."""
    return node.json("status")["counters"]["network_sent_bytes"]


def put(a, b, make_file, size=SIZE):
    """Puts a file into the rack of `b`; returns it, and what `b` has sent when that is done."""
    source = make_file("source", size)
    a.run("put", source, "--name", "data", "--rack", "b")
    return source, sent(b)


def test_a_second_process_that_reads_or_maps_moves_no_byte_over_the_network(two_racks, make_file):
    a, b = two_racks
    source, start = put(a, b, make_file)
    assert outcome(a, WHOLE, "/pool/data") == sha(source)
    first = sent(b)
    assert SIZE <= first - start <= SIZE + MEBIBYTE
    assert outcome(a, WHOLE, "/pool/data") == sha(source)
    assert outcome(a, MAPPED, "/pool/data") == sha(source)
    assert sent(b) == first


def test_what_was_mapped_is_read_from_memory(two_racks, make_file):
    a, b = two_racks
    source, _ = put(a, b, make_file)
    assert outcome(a, MAPPED, "/pool/data") == sha(source)
    first = sent(b)
    assert outcome(a, WHOLE, "/pool/data") == sha(source)
    assert sent(b) == first


def test_readers_and_a_mapping_that_evict_each_other_see_right_bytes_and_keep_the_budget(two_racks, make_file):
    a, b = two_racks
    source, _ = put(a, b, make_file)
    options = ["--budget", "6M", "--unit", "256K"]
    readers = [program(a, ANYWHERE, "/pool/data", str(source), str(seed), options=options) for seed in range(3)]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for words in readers]
    seen = []
    while any(reader.poll() is None for reader in running):
        assert outcome(a, MAPPED, "/pool/data", options=options) == sha(source)
        seen += [cache["resident_bytes"] for cache in a.json("status")["caches"]]
    assert [reader.stdout.read() for reader in running] == ["right\n"] * 3
    # A fill that a program waits for gets its unit even when all others are in use: one for each thread that fills.
    assert seen and max(seen) <= 6 * MEBIBYTE + 3 * (256 << 10)
    assert a.json("status")["counters"]["evictions"] > 100


def test_what_a_program_had_fetched_ahead_keeps_to_its_budget_when_it_is_gone(two_racks, make_file):
    a, b = two_racks
    put(a, b, make_file)
    begun = subprocess.Popen(program(a, TOUCHED, "/pool/data", options=["--budget", "2M", "--unit", "256K"]),
                             text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert begun.stdout.readline() == "mapped\n"
    b.process.send_signal(signal.SIGSTOP)
    begun.stdin.write("go on\n")
    begun.stdin.flush()
    # Eight units were asked for ahead, and eight threads wait for one each: more than those who fill have in hand.
    wait_until(lambda: a.json("status")["counters"]["faults"] >= 8)
    begun.kill()
    begun.wait()
    wait_until(lambda: not any(cache["mappings"] for cache in a.json("status")["caches"]))
    b.process.send_signal(signal.SIGCONT)
    wait_until(lambda: a.json("status")["counters"]["filled_bytes"] >= 16 * (256 << 10))
    # The three that fill may each have found all others still on their way.
    assert all(cache["resident_bytes"] <= 2 * MEBIBYTE + 3 * (256 << 10) for cache in a.json("status")["caches"])


def test_a_budget_smaller_than_one_unit_still_reads_right(two_racks, make_file):
    a, b = two_racks
    source, _ = put(a, b, make_file, 9 * MEBIBYTE)
    assert outcome(a, WHOLE, "/pool/data", options=["--budget", "1M", "--unit", "2M"]) == sha(source)


def test_a_reader_of_lost_bytes_gets_an_error_and_doctor_has_the_reason(start_node, make_file):
    d = start_node("d", options=["--capacity", "128M"])
    a, b = (start_node(name, join=d.address, options=["--capacity", "128M"]) for name in "ab")
    source, _ = put(a, b, make_file)
    reader = subprocess.Popen(program(a, IN_TWO, "/pool/data"), text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reader.stdout.readline() == "begun\n"
    b.kill()
    _, words = reader.communicate("go on\n", timeout=60)
    assert reader.returncode == 1 and "Input/output error" in words
    problems = [problem["text"] for problem in a.json("status")["problems"]]
    assert any("data" in text and "lost" in text for text in problems), problems
    b.start()
    wait_until(lambda: members_up(a) and all(members_up(a)))
    assert outcome(a, WHOLE, "/pool/data") == sha(source)


def test_with_a_replica_a_reader_does_not_notice_the_death_of_a_home(start_node, make_file):
    d = start_node("d", options=["--capacity", "16M"])
    # No room on `a`: both copies lie elsewhere.
    a, b, c = (start_node(name, join=d.address, options=["--capacity", room])
               for name, room in (("a", "16M"), ("b", "128M"), ("c", "128M")))
    source = make_file("source", SIZE)
    b.run("put", source, "--name", "data", "--copies", "2")
    homes = [home["rack"] for home in a.json("stat", "data")["homes"]]
    assert "a" not in homes, homes
    reader = subprocess.Popen(program(a, IN_TWO, "/pool/data"), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdout.readline() == "begun\n"
    next(node for node in (b, c) if node.rack in homes).kill()
    output, _ = reader.communicate("go on\n", timeout=60)
    assert output.strip() == sha(source)


def test_an_open_file_is_read_on_after_a_restart_of_the_own_node(start_node, make_file):
    b = start_node("b", options=["--capacity", "128M"])
    a = start_node("a", join=b.address, options=["--capacity", "128M"])
    source, _ = put(a, b, make_file)
    reader = subprocess.Popen(program(a, IN_TWO, "/pool/data"), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdout.readline() == "begun\n"
    a.kill()
    a.start()
    output, _ = reader.communicate("go on\n", timeout=60)
    assert output.strip() == sha(source)


def test_an_object_that_is_removed_stays_readable_while_it_is_open(two_racks, make_file):
    a, b = two_racks
    source, _ = put(a, b, make_file)
    reader = subprocess.Popen(program(a, IN_TWO, "/pool/data"), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdout.readline() == "begun\n"
    b.run("rm", "data")
    output, _ = reader.communicate("go on\n", timeout=60)
    assert output.strip() == sha(source)
    a.run("put", source, "--name", "data", "--rack", "b")
    assert outcome(a, WHOLE, "/pool/data") == sha(source)
