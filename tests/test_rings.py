"""Threads of a program and the two rings of its session: who has them, who waits for whom, and what a dead node is to them."""

import os
import subprocess
import sys
import textwrap
import threading

MEBIBYTE = 1 << 20
# How long anything may take that does not take long.
LONG_SECONDS = 120

PROGRAM = """
    import sys, threading
    import hinterland
    pool = hinterland.Pool(sys.argv[1])
    def ask():
        for _ in range(20):
            pool.list("")
    if sys.argv[2] == "threads":
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    else:
        ask()
    print(pool.status().counters.ring_requests)
"""


def ring_requests(node, threads, environment=None):
    """How many requests of a program the node has answered over rings."""
    words = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(node.socket), threads]
    environment = {**os.environ, **(environment or {})}
    outcome = subprocess.run(words, capture_output=True, text=True, timeout=LONG_SECONDS, env=environment)
    assert outcome.returncode == 0, outcome.stderr
    return int(outcome.stdout)


def test_a_program_has_rings_once_it_has_threads(hinterland, node):
    assert ring_requests(node, "one") == 0
    assert ring_requests(node, "threads", {"HINTERLAND_NO_RINGS": "1"}) == 0
    after = ring_requests(node, "threads")
    # The first request of all goes over the socket at most for each thread.
    assert after >= 76
    assert ring_requests(node, "threads", {"HINTERLAND_SINGLE_RING": "1"}) >= after + 76


def test_a_thread_that_waits_for_a_lock_of_another_rack_hears_at_once_that_its_node_is_dead(hinterland, two_racks):
    near, far = two_racks
    with hinterland.Pool(far.socket) as holder, hinterland.Pool(near.socket) as pool:
        address = holder.create_region("region", 2 * MEBIBYTE, rack=far.rack).address
        failed = []

        def wait():
            try:
                with pool.wlock(address, wait=LONG_SECONDS):
                    pass
            except OSError as error:
                failed.append(error)

        def ask():
            try:
                while True:
                    pool.stat("region")
            except OSError as error:
                failed.append(error)

        with holder.wlock(address):
            threads = [threading.Thread(target=run) for run in (wait, ask, ask)]
            for thread in threads:
                thread.start()
            while near.json("status")["counters"]["ring_requests"] < 100:
                pass
            near.kill()
            for thread in threads:
                thread.join(timeout=LONG_SECONDS / 2)
                assert not thread.is_alive()
        assert len(failed) == 3
        assert all(isinstance(error, hinterland.NoNodeError) for error in failed), failed
