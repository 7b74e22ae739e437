"""Mooncake's store class over the blocks of this host: the same calls, the same numbers, without a master or leases.

What differs: values live in the node, not in the process that put them, and stay when it closes; there is no lease, so a value can
be removed while others read it (they have it whole, or it is missing); memory passed by address must have been registered.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import random
import re
from typing import Any, Callable, Sequence, TypeVar

from ..pieces import Piece, length, view
from ..values import Name, Put, Values, named
from . import codes, tensors
from .config import ReplicateConfig
from .memory import BufferHandle, Registered, is_host_memory
from .sessions import Sessions

LOG = logging.getLogger("hinterland.mooncake")
# Where the peer looks for a free port; it stands in the host's name only.
PORTS = range(12300, 14301)
PUT_CODES = {Put.THERE: 0, Put.NO_ROOM: codes.NO_ROOM, Put.REFUSED: codes.INVALID_PARAMETERS}
Result = TypeVar("Result")


class MooncakeDistributedStore:
    """Values by name, shared by the processes of this host. Codes are 0 or a length, or negative as Mooncake's."""

    def __init__(self) -> None:
        self._values: Values | None = None
        self._registered = Registered()
        self._sessions = Sessions()
        self._hostname = ""
        self._arenas: dict[int, mmap.mmap] = {}

    # --- opening and closing ---

    def setup(self, *words: Any, **named_words: Any) -> int:
        """Connects to the node of this host. Of Mooncake's words `local_hostname`, `master_server_addr` and `tenant_id` matter:
        a master that is the path of a socket names the node's, else HINTERLAND_SOCKET or the default does; each tenant
        has values of its own."""
        names = ("local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol",
                 "rdma_devices", "master_server_addr", "engine", "enable_ssd_offload", "ssd_offload_path", "tenant_id")
        given = dict(words[0]) if words and isinstance(words[0], dict) else dict(zip(names, words))
        given.update(named_words.pop("config", None) or {}, **named_words)
        for size in ("global_segment_size", "local_buffer_size"):
            if not _is_size(given.get(size, 0)):
                return codes.INVALID_PARAMETERS
        host = str(given.get("local_hostname") or "localhost")
        self._hostname = host if ":" in host else f"{host}:{random.choice(PORTS)}"
        return self._connect(str(given.get("master_server_addr") or ""), str(given.get("tenant_id") or "default"))

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Connects as a client without memory of its own does."""
        return self._connect(server_address, "default")

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int = 0) -> int:
        """Connects with defaults."""
        return self._connect("", "default")

    def close(self) -> int:
        """Ends the connection. The values stay in the node."""
        values, self._values = self._values, None
        if values is not None:
            values.close()
        self._registered = Registered()
        self._sessions = Sessions()
        return 0

    def health_check(self) -> int:
        """0 if the node answers, 1 before setup and after close, else a code."""
        if self._values is None:
            return 1
        return 0 if self._values.is_alive() else codes.NO_NODE

    def get_hostname(self) -> str:
        """What the program called this host, with a port."""
        return self._hostname

    # --- memory by address ---

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Promises that `size` bytes from the address on are memory of this process, on the host."""
        if buffer_ptr > 0 and size > 0 and not is_host_memory(buffer_ptr, size):
            LOG.error("register_buffer: not all of %#x+%#x is memory of the host that can be read, and only such memory can be registered "
                      "(hint: copy what is on a GPU to the host first)", buffer_ptr, size)
            return codes.INVALID_PARAMETERS
        return 0 if self._registered.add(buffer_ptr, size) else codes.INVALID_PARAMETERS

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Takes the promise back."""
        return 0 if self._registered.remove(buffer_ptr) else codes.INVALID_PARAMETERS

    def alloc_from_mem_pool(self, size: int) -> int:
        """The address of fresh registered memory that lives as long as the store; 0 for none."""
        if size <= 0:
            return 0
        try:
            arena = mmap.mmap(-1, size)
        except (OSError, OverflowError) as error:
            LOG.error("alloc_from_mem_pool: no %d bytes (%s)", size, error)
            return 0
        start = ctypes.addressof(ctypes.c_char.from_buffer(arena))
        self._arenas[start] = arena
        self._registered.add(start, size)
        return start

    # --- writing ---

    def put(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Writes a value from an object with a buffer; one that is there stays as it is."""
        return self._put([key], [[view(value)]], config)[0]

    def put_batch(self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None) -> int:
        """Writes values; 0, or the first code that is not."""
        if len(keys) != len(values):
            return codes.INVALID_PARAMETERS
        return _first(self._put(keys, [[view(value)] for value in values], config))

    def put_parts(self, key: str, *parts: Any, config: ReplicateConfig | None = None) -> int:
        """Writes one value from several objects."""
        return self._put([key], [[view(part) for part in parts]], config)[0]

    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """Writes a value from registered memory."""
        return self.batch_put_from([key], [buffer_ptr], [size], config)[0]

    def batch_put_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """Writes values from registered memory."""
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [codes.INVALID_PARAMETERS] * len(keys)
        return self.batch_put_from_multi_buffers(keys, [[start] for start in buffer_ptrs], [[size] for size in sizes], config)

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Writes values, each gathered from several pieces of registered memory."""
        return self._put_from(keys, all_buffer_ptrs, all_sizes, config, replace=False)

    def upsert(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Writes a value in place of one that is there: a reader finds one of the two at any moment."""
        return self._put([key], [[view(value)]], config, replace=True)[0]

    def upsert_parts(self, key: str, *parts: Any, config: ReplicateConfig | None = None) -> int:
        """As `upsert`, from several objects."""
        return self._put([key], [[view(part) for part in parts]], config, replace=True)[0]

    def upsert_batch(self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None) -> int:
        """As `put_batch`, in place of what is there."""
        if len(keys) != len(values):
            return codes.INVALID_PARAMETERS
        return _first(self._put(keys, [[view(value)] for value in values], config, replace=True))

    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """As `put_from`, in place of what is there."""
        return self.batch_upsert_from([key], [buffer_ptr], [size], config)[0]

    def batch_upsert_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """As `batch_put_from`, in place of what is there."""
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [codes.INVALID_PARAMETERS] * len(keys)
        starts, lengths = [[start] for start in buffer_ptrs], [[size] for size in sizes]
        return self._put_from(keys, starts, lengths, config, replace=True)

    # --- reading ---

    def get(self, key: str) -> bytes:
        """A value, or b"" where it is missing."""
        return self._with(b"", lambda values: values.bytes(named(key)) or b"")

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """Values; b"" for those that are missing. Mooncake gives one b"" for no keys, so this does."""
        return [self.get(key) for key in keys] or [b""]

    def get_buffer(self, key: str) -> BufferHandle | None:
        """A value in memory of its own, or None."""
        found = self._with(None, lambda values: values.whole(named(key), BufferHandle))
        return found if isinstance(found, BufferHandle) else None

    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        """Values in memory of their own."""
        return [self.get_buffer(key) for key in keys]

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Copies a value into registered memory; its length. INVALID_PARAMETERS if it is longer than that."""
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Copies values into registered memory."""
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [codes.INVALID_PARAMETERS] * len(keys)
        return self.batch_get_into_multi_buffers(keys, [[start] for start in buffer_ptrs], [[size] for size in sizes])

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Copies values, each scattered to several pieces of registered memory."""
        def read(values: Values, names: list[Name], targets: list[list[Piece]]) -> list[int]:
            # Memory that a value does not fit in is left as it is.
            sizes = values.sizes(names)
            fitting = [index for index, size in enumerate(sizes) if size is not None and size <= length(targets[index])]
            found = values.read([names[index] for index in fitting], [targets[index] for index in fitting])
            for index, size in zip(fitting, found):
                sizes[index] = size
            return [codes.NOT_FOUND if size is None else size if size <= length(target) else codes.INVALID_PARAMETERS
                    for size, target in zip(sizes, targets)]

        return self._addressed(keys, all_buffer_ptrs, all_sizes, read)

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]:
        """For each buffer and key, copies ranges of the value to places in the buffer; their lengths, or codes. The ranges of
        one value are of one writing of it."""
        results = []
        for start, keys, into, out_of, sizes in zip(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes):
            results.append([self._ranges(start, *each) for each in zip(keys, into, out_of, sizes)])
        return results

    def is_exist(self, key: str) -> int:
        """1 if a value is there, 0 if not."""
        return self._with(codes.INTERNAL, lambda values: int(values.sizes([named(key)]) != [None]))

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """For each key, 1 if its value is there, 0 if not."""
        def look(values: Values) -> list[int]:
            return [int(size is not None) for size in values.sizes([named(key) for key in keys])]

        return self._with([codes.INVALID_PARAMETERS] * len(keys), look)

    def get_size(self, key: str) -> int:
        """The length of a value, or NOT_FOUND."""
        def look(values: Values) -> int:
            (size,) = values.sizes([named(key)])
            return codes.NOT_FOUND if size is None else size

        return self._with(codes.INVALID_PARAMETERS, look)

    # --- removing ---

    def remove(self, key: str, force: bool = False) -> int:
        """Removes a value: 0, or NOT_FOUND."""
        return self.batch_remove([key], force)[0]

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """Removes values."""
        def remove(values: Values) -> list[int]:
            return [0 if there else codes.NOT_FOUND for there in values.remove([named(key) for key in keys], everywhere=True)]

        return self._with([codes.INVALID_PARAMETERS] * len(keys), remove)

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes the values in whose names the pattern is found; how many there were."""
        try:
            pattern = re.compile(regex_pattern)
        except re.error:
            return codes.INVALID_PARAMETERS

        def remove(values: Values) -> int:
            found = {name for name in values.names() if pattern.search(name)}
            return sum(values.remove([named(name) for name in found], everywhere=True))

        return self._with(codes.INVALID_PARAMETERS, remove)

    def remove_all(self, force: bool = False) -> int:
        """Removes all values of the tenant; how many there were."""
        return self._with(codes.INVALID_PARAMETERS, lambda values: values.clear())

    # --- sessions: values that are read and written range by range ---

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        """Takes the values of keys as they are now, for ranged reads."""
        def start(values: Values) -> list[int]:
            return [0 if self._sessions.read(key, values.whole(named(key))) else codes.NOT_FOUND for key in keys]

        return self._with([codes.INVALID_PARAMETERS] * len(keys), start)

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Copies ranges of values that a session has; bytes for each key, or a code."""
        return self._session_ranges(keys, all_buffer_ptrs, all_sizes, all_src_offsets, self._sessions.copy_out)

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """Lets go of what the session took."""
        self._sessions.forget(keys)
        return 0

    def batch_put_session_start(
        self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """Begins values of so many bytes that are written range by range."""
        if len(keys) != len(sizes) or not _is_sound(config, len(keys)):
            return [codes.INVALID_PARAMETERS] * len(keys)

        def start(values: Values) -> list[int]:
            there = values.sizes([named(key) for key in keys])
            return [codes.ALREADY_EXISTS if known is not None else self._sessions.begin(key, size)
                    for key, size, known in zip(keys, sizes, there)]

        return self._with([codes.INVALID_PARAMETERS] * len(keys), start)

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Writes ranges of values that were begun; bytes for each key, or a code."""
        return self._session_ranges(keys, all_buffer_ptrs, all_sizes, all_dst_offsets, self._sessions.copy_in)

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        """Makes what was written visible."""
        results = []
        for key in keys:
            data = self._sessions.take(key)
            results.append(codes.INVALID_PARAMETERS if data is None else self._put([key], [[memoryview(data)]], None)[0])
        return results

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        """Gives values up that were begun."""
        return [codes.INVALID_PARAMETERS if self._sessions.take(key) is None else 0 for key in keys]

    # --- tensors ---

    def put_tensor(self, key: str, tensor: Any) -> int:
        """Writes a tensor of torch with its type and shape."""
        return self._put([key], [tensors.pieces(tensor)], None)[0]

    def get_tensor(self, key: str) -> Any:
        """A tensor of torch in memory of its own, or None."""
        found = self._with(None, lambda values: values.whole(named(key)))
        return None if found is None else tensors.tensor(found)

    def batch_put_tensor(self, keys: Sequence[str], values: Sequence[Any]) -> list[int]:
        """Writes tensors."""
        if len(keys) != len(values):
            return [codes.INVALID_PARAMETERS] * len(keys)
        return self._put(keys, [tensors.pieces(value) for value in values], None)

    def batch_get_tensor(self, keys: Sequence[str]) -> list[Any]:
        """Tensors in memory of their own; None for those that are missing."""
        return [self.get_tensor(key) for key in keys]

    # --- beneath ---

    def _connect(self, address: str, tenant: str) -> int:
        socket = address.removeprefix("unix:") if address.startswith(("/", "unix:/")) else None
        try:
            values = Values(f"values under names, tenant {tenant}", socket)
        except OSError as error:
            LOG.error("setup: %s", error)
            return codes.NO_NODE
        self.close()
        self._values = values
        return 0

    def _with(self, otherwise: Result, call: Callable[[Values], Result]) -> Result:
        """What a call gives, or something else before setup and when the node fails; then the log has the words."""
        if self._values is None:
            LOG.error("the store is not set up (hint: call setup)")
            return otherwise
        try:
            return call(self._values)
        except OSError as error:
            LOG.error("%s", error)
            return otherwise

    def _put(
        self, keys: Sequence[str], pieces: Sequence[Sequence[Piece]], config: ReplicateConfig | None, replace: bool = False
    ) -> list[int]:
        if not _is_sound(config, len(keys)):
            return [codes.INVALID_PARAMETERS] * len(keys)
        names = [named(key) for key in keys]

        def put(values: Values) -> list[int]:
            written = values.replace(names, pieces) if replace else values.put(names, pieces, anywhere=True)
            return [PUT_CODES[outcome] for outcome in written]

        return self._with([codes.NO_NODE] * len(keys), put)

    def _put_from(
        self,
        keys: Sequence[str],
        starts: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None,
        replace: bool,
    ) -> list[int]:
        def put(values: Values, names: list[Name], pieces: list[list[Piece]]) -> list[int]:
            written = values.replace(names, pieces) if replace else values.put(names, pieces, anywhere=True)
            return [PUT_CODES[outcome] for outcome in written]

        if not _is_sound(config, len(keys)):
            return [codes.INVALID_PARAMETERS] * len(keys)
        return self._addressed(keys, starts, sizes, put)

    def _addressed(
        self,
        keys: Sequence[str],
        all_starts: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        call: Callable[[Values, list[Name], list[list[Piece]]], list[int]],
    ) -> list[int]:
        """A call about those keys whose memory is registered; the others get a code."""
        results = [codes.INVALID_PARAMETERS] * len(keys)
        if not len(keys) == len(all_starts) == len(all_sizes):
            return results
        places = [index for index in range(len(keys)) if self._registered.covers_all(all_starts[index], all_sizes[index])]
        if len(places) < len(keys):
            LOG.error("memory that is not registered (hint: call register_buffer for all of it, and pass as many sizes)")
        pieces: list[list[Piece]] = [list(zip(all_starts[index], all_sizes[index])) for index in places]
        given = self._with([codes.NO_NODE] * len(places),
                           lambda values: call(values, [named(keys[index]) for index in places], pieces))
        for index, result in zip(places, given):
            results[index] = result
        return results

    def _ranges(self, start: int, key: str, into: Sequence[int], out_of: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """The ranges of one value into one buffer."""
        if not len(into) == len(out_of) == len(sizes):
            return [codes.INVALID_PARAMETERS] * len(into)
        if min(out_of, default=0) < 0 or not all(map(self._registered.covers, (start + offset for offset in into), sizes)):
            return [codes.INVALID_PARAMETERS] * len(into)
        pieces: list[Piece] = [(start + offset, size) for offset, size in zip(into, sizes)]

        def read(values: Values) -> list[int]:
            (found,) = values.read_ranges([named(key)], [pieces], [out_of])
            if found is None:
                return [codes.NOT_FOUND] * len(sizes)
            return [size if offset + size <= found else codes.INVALID_PARAMETERS for offset, size in zip(out_of, sizes)]

        return self._with([codes.NO_NODE] * len(sizes), read)

    def _session_ranges(
        self,
        keys: Sequence[str],
        all_starts: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_offsets: Sequence[Sequence[int]],
        copy: Callable[[str, list[tuple[int, int, int]]], int],
    ) -> list[int]:
        results = [codes.INVALID_PARAMETERS] * len(keys)
        if self._values is None or not len(keys) == len(all_starts) == len(all_sizes) == len(all_offsets):
            return results
        for index, (key, starts, sizes, offsets) in enumerate(zip(keys, all_starts, all_sizes, all_offsets)):
            if len(starts) == len(offsets) and self._registered.covers_all(starts, sizes):
                results[index] = copy(key, list(zip(starts, sizes, offsets)))
        return results


def _is_sound(config: ReplicateConfig | None, keys: int) -> bool:
    return config is None or config.is_sound(keys)


def _first(results: Sequence[int]) -> int:
    """0, or the first code that is not."""
    return next((result for result in results if result != 0), 0)


def _is_size(value: object) -> bool:
    """Whether a size is a number of bytes, also in words such as `16 MB`."""
    return isinstance(value, int) or re.fullmatch(r"\s*\d+(\.\d+)?\s*([kmgt]i?)?b?\s*", str(value), re.I) is not None
