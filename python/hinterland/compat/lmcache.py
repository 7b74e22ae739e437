"""A native plug-in of LMCache: its second level in the KV blocks of this host.

    --l2-adapter '{"type": "native_plugin", "module_path": "hinterland.compat.lmcache", "class_name": "Client",
                   "adapter_params": {"namespace": "my cluster"}}'

Batches go to a queue whose threads copy without the interpreter. Keys are of any length and so are values: those of more than a block
are parts and a head, as `values` has them, and the head follows when all parts are there. What is not in the memory of this host is
looked for on the node's disk and in other racks by helper threads, so that nobody else waits for it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import select
import threading
from dataclasses import dataclass
from typing import Callable, Sequence

from .. import KvQueue
from .values import BLOCK_BYTES_MAX, Head, Name, Values, named, new_head

# A number, whether it was done, why not, and an answer for each key.
Completion = tuple[int, bool, str, list[bool]]


@dataclass
class Task:
    """A batch of LMCache's that the queue has."""

    number: int
    keys: int
    # Makes the answers for the keys of those of the queue; None if it has handed the queue a second step.
    finish: Callable[[list[bool]], "list[bool] | None"] = lambda answers: answers
    # Whether the batch has failed when one key has.
    needs_all: bool = False


class Client:
    """What LMCache asks of a native connector. `socket`: the node's, by default as everywhere; engines that share a `namespace`
    share values."""

    def __init__(
        self, socket: str | None = None, namespace: str = "lmcache", workers: int = 2, depth: int = 4096
    ) -> None:
        for name, number in (("workers", workers), ("depth", depth)):
            if not isinstance(number, int) or number < 1:
                raise ValueError(f"{name} is {number!r} (hint: a whole number of at least 1, as in \"adapter_params\": {{\"{name}\": 2}})")
        self._values = Values(f"values under names, LMCache {namespace}", socket)
        self._workers, self._depth = workers, depth
        self._lock = threading.RLock()
        # Readable while the queue or `_done` has answers; it stays the same when the queue is opened again.
        self._events = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._events.register(self._wake, select.EPOLLIN)
        self._done: list[Completion] = []
        self._tasks: dict[int, Task] = {}
        self._numbers = 0
        self._closed = False
        self._open_queue()
        self._helpers = concurrent.futures.ThreadPoolExecutor(workers, "hinterland-lmcache")

    def event_fd(self) -> int:
        """A descriptor that is readable while completions wait."""
        return self._events.fileno()

    def submit_batch_get(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        """Has values copied into memory of exactly their length; false for those that are missing or have another one."""
        names, values = _both(keys, memoryviews)

        def start(task: Task) -> None:
            sizes = self._values.kv.lengths([name.value for name in names])
            heads = self._values.heads([name if size is None else _NOBODY for name, size in zip(names, sizes)])
            job = _Job()
            for name, size, head, value in zip(names, sizes, heads, values):
                if size is not None and size == len(value) + len(name.prelude):
                    # What stands before the value is a part of its block.
                    job.add([name.value], [[bytearray(len(name.prelude)), value]] if name.prelude else [value])
                elif head is not None and head.size == len(value):
                    job.add(head.keys(), head.places([value]))
                else:
                    job.add([], [])

            def finish(answers: list[bool]) -> list[bool] | None:
                return self._with_the_rest(task, job.answers(answers), read)

            task.finish = finish
            self._hand(task, self._queue.submit_get(job.keys, job.places))

        def read(places: list[int]) -> list[bool]:
            sizes = self._values.sizes([names[place] for place in places])
            fitting = [place for place, size in zip(places, sizes) if size == len(values[place])]
            found = self._values.read([names[place] for place in fitting], [[values[place]] for place in fitting])
            right = {place for place, size in zip(fitting, found) if size == len(values[place])}
            return [place in right for place in places]

        return self._begin(len(names), start)

    def submit_batch_set(self, keys: Sequence[str], memoryviews: Sequence[memoryview]) -> int:
        """Has values written that are not there; the batch fails if one finds no room."""
        names, values = _both(keys, memoryviews)

        def start(task: Task) -> None:
            task.needs_all = True
            there = self._values.sizes_here(names)
            heads: dict[int, Head] = {}
            job = _Job()
            for index, (name, size, value) in enumerate(zip(names, there, values)):
                if size is not None or len(value) == 0:
                    job.add([], [])
                elif len(value) <= BLOCK_BYTES_MAX - len(name.prelude):
                    job.add([name.value], [[name.prelude, value] if name.prelude else value])
                else:
                    heads[index] = new_head(name, len(value))
                    job.add(heads[index].keys(), heads[index].places([value]))

            def finish(answers: list[bool]) -> list[bool] | None:
                stored = [size is not None or answer for size, answer in zip(there, job.answers(answers))]
                whole: dict[int, Head] = {}
                for index, head in heads.items():
                    # The last parts of a value may have taken the place of its first.
                    stored[index] = stored[index] and all(self._values.kv.exists(head.keys()))
                    if stored[index]:
                        whole[index] = head
                    else:
                        self._values.kv.remove(head.keys())
                if not whole:
                    return stored
                self._put_heads(task, names, whole, stored)
                return None

            task.finish = finish
            self._hand(task, self._queue.submit_put(job.keys, job.places))

        return self._begin(len(names), start)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Has values looked for."""
        names = [named(key) for key in keys]

        def start(task: Task) -> None:
            def finish(there: list[bool]) -> list[bool] | None:
                long = iter(self._values.sizes_here([name for name, is_there in zip(names, there) if not is_there]))
                here = [is_there or next(long) is not None for is_there in there]
                return self._with_the_rest(task, here, look)

            task.finish = finish
            self._hand(task, self._queue.submit_exists([name.value for name in names]))

        def look(places: list[int]) -> list[bool]:
            return [size is not None for size in self._values.sizes([names[place] for place in places])]

        return self._begin(len(names), start)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Has values removed from the memory and the disk of this host; true for those that were there."""
        names = [named(key) for key in keys]

        def start(task: Task) -> None:
            self._help(task, lambda: self._values.remove(names))

        return self._begin(len(names), start)

    def drain_completions(self) -> list[Completion]:
        """The completions that wait: the number of the batch, whether it was done, words if not, and an answer for each key."""
        with self._lock:
            if self._closed:
                return []
            for batch, done, error, answers in self._queue.drain():
                self._answered(self._tasks.pop(batch), done, error or "", answers)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            done_now, self._done = self._done, []
            return done_now

    def close(self) -> None:
        """Waits for what is being copied and gives the rest up."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        # They need the lock to end.
        self._helpers.shutdown(wait=True, cancel_futures=True)
        self._queue.close()
        self._values.close()
        self._events.close()
        os.close(self._wake)

    def _begin(self, keys: int, start: Callable[[Task], None]) -> int:
        """Starts a batch; the number by which LMCache knows it. What fails at once is announced like everything else."""
        with self._lock:
            if self._closed:
                raise ValueError("the client is closed (hint: make another)")
            self._numbers += 1
            task = Task(self._numbers, keys)
            try:
                self._mend()
                start(task)
            except OSError as error:
                self._fail(task, str(error))
            return task.number

    def _hand(self, task: Task, batch: int) -> None:
        self._tasks[batch] = task

    def _put_heads(self, task: Task, names: list[Name], heads: dict[int, Head], stored: list[bool]) -> None:
        """The second step of a set: the parts are there, so their heads may be."""
        wanted = [names[index] for index in heads]

        def finish(answers: list[bool]) -> list[bool]:
            for index, answer, winner in zip(heads, answers, self._values.heads(wanted)):
                stored[index] = answer and winner is not None
                if winner is None or winner.number != heads[index].number:
                    # Another writer was first, and its value is as good; or there was no room.
                    self._values.kv.remove(heads[index].keys())
            return stored

        self._values.make_way(wanted)
        task.finish = finish
        blocks = [head.block() for head in heads.values()]
        self._hand(task, self._queue.submit_put([name.head for name in wanted], blocks))

    def _answered(self, task: Task, done: bool, error: str, answers: list[bool]) -> None:
        """Turns an answer of the queue into a completion, or into a second step."""
        if not done:
            self._fail(task, error)
            return
        try:
            results = task.finish(answers)
        except OSError as failure:
            self._fail(task, str(failure))
            return
        if results is not None:
            is_done = not task.needs_all or all(results)
            self._done.append((task.number, is_done, "" if is_done else "no room for all values", results))

    def _with_the_rest(
        self, task: Task, here: list[bool], ask: Callable[[list[int]], list[bool]]
    ) -> list[bool] | None:
        """The answers, or None where some keys are not here: a helper is told to `ask` for them, by their places, beyond the memory of
        this host."""
        rest = [place for place, is_here in enumerate(here) if not is_here]
        if not rest:
            return here

        def work() -> list[bool]:
            for place, answer in zip(rest, ask(rest)):
                here[place] = answer
            return here

        self._help(task, work)
        return None

    def _help(self, task: Task, work: Callable[[], list[bool]]) -> None:
        """Has a helper thread find the answers of a batch."""
        def run() -> None:
            answers, error = [False] * task.keys, ""
            try:
                answers = work()
            except Exception as failure:  # Whatever it is, the batch has an end.
                error = str(failure) or repr(failure)
            with self._lock:
                if not self._closed:
                    self._complete((task.number, not error, error, answers))

        self._helpers.submit(run)

    def _fail(self, task: Task, error: str) -> None:
        self._complete((task.number, False, error, [False] * task.keys))

    def _complete(self, completion: Completion) -> None:
        """Announces what the queue's descriptor does not."""
        self._done.append(completion)
        os.eventfd_write(self._wake, 1)

    def _open_queue(self) -> None:
        """Opens a queue that waits when it is full: LMCache has nowhere to put a batch that is refused. OSError leaves all as it is."""
        kv = self._values.kv
        queue = kv.queue(self._workers, self._depth, wait=True)
        self._events.register(queue.fileno(), select.EPOLLIN)
        self._kv, self._queue = kv, queue

    def _mend(self) -> None:
        """Opens the queue again if the node has gone and come back; what it had is answered as failed."""
        if self._values.kv is self._kv:
            return
        old = self._queue
        self._open_queue()
        self._events.unregister(old.fileno())
        old.close()
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            self._fail(task, "the node has gone (hint: the batch may be submitted again)")


class _Job:
    """Blocks of a batch for the queue, and which of them are those of each key."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.places: list[object] = []
        self._ends: list[int] = []

    def add(self, keys: Sequence[bytes], places: Sequence[object]) -> None:
        """The blocks of the next key; none for one that needs none."""
        self.keys += keys
        self.places += places
        self._ends.append(len(self.keys))

    def answers(self, found: list[bool]) -> list[bool]:
        """For each key, whether it has blocks and all of them were done."""
        starts = [0, *self._ends[:-1]]
        return [end > start and all(found[start:end]) for start, end in zip(starts, self._ends)]


def _both(keys: Sequence[str], memoryviews: Sequence[memoryview]) -> tuple[list[Name], list[memoryview]]:
    if len(keys) != len(memoryviews):
        raise ValueError(f"{len(keys)} keys and {len(memoryviews)} buffers (hint: pass as many of each)")
    return [named(key) for key in keys], [memoryview(each).cast("B") for each in memoryviews]


_NOBODY = named("")
