"""The compiled module; `hinterland.Pool` adds records and locks to the Pool of this one."""

import sys
from collections.abc import Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Callable, Literal, NoReturn, Protocol

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing import Any as Buffer

__version__: str

class Pool:
    """A session with the node of this host."""

    def __new__(cls, socket: str | PathLike[str] | None = None) -> Pool: ...
    def __reduce__(self) -> NoReturn: ...
    @property
    def socket(self) -> Any:
        """The socket of the node, as a pathlib.Path."""
    def close(self) -> None:
        """Ends the session. What is mapped stays mapped."""
    def put(
        self,
        name: str,
        source: Any,
        copies: int = 1,
        rack: str | None = None,
        progress: Callable[[int, int | None], object] | None = None,
    ) -> Any: ...
    def get(self, name: str) -> bytes:
        """All bytes of an object."""
    def open(self, name: str, writable: bool = False) -> Object:
        """Opens an object for reads at any offset, or a region also for writes."""
    def map(self, name: str, writable: bool = False) -> Mapping:
        """Maps an object for reading, or a region of this rack also for writing."""
    def kv(self, fingerprint: str, within: float | None = None) -> KvCache:
        """Opens the KV blocks of engines that agree on everything in the fingerprint: model, revision, type, layout,
        tokens of a block, rank. Engines that disagree never meet."""
    def stat(self, name: str) -> Any: ...
    def list(self, prefix: str = "") -> Any: ...
    def remove(self, name: str) -> None:
        """Removes an object; who has it mapped keeps it until the mapping ends."""
    def verify(self, name: str) -> Any: ...
    def status(self) -> Any: ...
    def members(self) -> Any: ...
    def create_region(self, name: str, bytes: int, rack: str | None = None, spread: bool = False) -> Any: ...
    def read_guard(self, address: int, bytes: int, wait: float) -> Guard: ...
    def write_guard(self, address: int, bytes: int, wait: float) -> Guard: ...
    def alloc(self, bytes: int, kept: bool = False) -> int:
        """Allocates memory of this rack; returns its address. It is freed with the pool at the latest, or if `kept` when
        it is freed or its node ends."""
    def free(self, address: int) -> None:
        """Frees an allocation."""
    def read(self, address: int, bytes: int) -> bytes:
        """Reads bytes at an address of any rack."""
    def read_into(self, address: int, buffer: Buffer) -> int:
        """Fills a writable buffer with the bytes at an address of any rack; returns how many."""
    def write(self, address: int, data: Buffer) -> None:
        """Writes bytes at an address of any rack."""
    def lock(self, address: int, mode: Literal["read", "write"], wait: float) -> None: ...
    def unlock(self, address: int) -> None:
        """Gives a lock back."""

class Guard:
    """A locked range of a region; leaving its `with` block writes what is buffered and gives the lock back."""

    @property
    def address(self) -> int:
        """The address that is locked, at which the range starts."""
    @property
    def nbytes(self) -> int:
        """The length of the range."""
    @property
    def writable(self) -> bool:
        """Whether it may be written through."""
    @property
    def fence(self) -> int:
        """The number of the last grant of the lock to a writer; it grows with every writer."""
    def __reduce__(self) -> NoReturn: ...
    def read(self, offset: int, bytes: int) -> bytes:
        """Reads bytes at an offset of the range."""
    def read_into(self, buffer: Buffer, offset: int = 0) -> int:
        """Fills a writable buffer from an offset of the range on; returns how many bytes."""
    def write(self, offset: int, data: Buffer) -> None:
        """Writes bytes at an offset of the range. Up to 256 bytes to another node have arrived when `flush` or `unlock`
        returns, more when this does."""
    def flush(self) -> None:
        """Returns when all that was written has arrived."""
    def upgrade(self, wait: float = 10.0) -> None:
        """Makes a guard for writing of one for reading, once the other readers have left."""
    def unlock(self) -> None:
        """Writes what is buffered and gives the lock back; raises if something did not arrive."""
    def __enter__(self) -> Guard: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class KvCache:
    """KV blocks that processes of this host and user share. A key has 1 to 64 bytes, a block 1 byte to 4 MiB.

    Buffers may be views of a larger array, whatever their strides: one entry of a paged cache is one view. Where layers
    have arrays of their own, a block is a list of views. Finding and reading ask nobody; a block that is evicted while it is
    read counts as missing.
    """

    def __reduce__(self) -> NoReturn: ...
    def put(
        self, keys: Sequence[bytes], blocks: Sequence[Memory], *, prefix: bool = False, after: bytes | None = None
    ) -> list[bool]:
        """Writes blocks; for each, whether it is there now. One that was there before is not written again. With
        `prefix`, each block follows on the one before it, the first one on the block `after`: none is evicted before
        those that follow on it. What follows on a block that another process is writing meanwhile may be there before
        that one, follows on it as soon as it is there, and begins a prefix of its own if that process gives up."""
    def replace(self, keys: Sequence[bytes], blocks: Sequence[Memory]) -> list[bool]:
        """Writes blocks in place of those that their keys have, if any; for each, whether it is there now. A reader finds the
        old or the new one at any moment, whole. One that is pinned is not replaced."""
    def pin(self, keys: Sequence[bytes]) -> list[bool]:
        """Keeps blocks from being evicted until they are unpinned as often, or this object is closed; for each, whether
        it is: not if it is not there, or half of the memory is pinned."""
    def unpin(self, keys: Sequence[bytes]) -> list[bool]:
        """Takes pins back; for each, whether there was one."""
    def limit(self, quota_bytes: int | None = None, priority: int = 100) -> int:
        """Sets how many bytes of memory the namespace may take (None: all), and its priority: blocks of a lower one are
        evicted before any of a higher one. Returns the bytes that it takes now."""
    def events(self, after: int = 0) -> tuple[int, list[tuple[str, bytes, bytes | None, int]], bool]:
        """What came and went since `after`: the number to ask with next; for each event `stored` or `removed`, the key,
        the key that it follows on, and the length; and whether events before these are not known any more. The record
        begins with the first call."""
    def get_into(self, keys: Sequence[bytes], buffers: Sequence[Memory], remote: bool = False) -> list[bool]:
        """Fills buffers with blocks; for each, whether it was there. What is in the buffer of a missing one is of no
        use. With `remote`, blocks of other racks are brought here, and some copied while others come. HinterlandError
        (EINVAL) for a block of another length."""
    def read_into(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[Memory],
        offsets: Sequence[int] | None = None,
        remote: bool = False,
    ) -> list[int | None]:
        """Copies as much of each block as its buffer holds, from its byte `offset` on (by default the first); the length
        of the whole block, or None where it was not there, and then what is in the buffer is of no use. With `remote`, blocks
        of other racks and of the node's disk are brought here, and some copied while others come."""
    def read_ranges(
        self, keys: Sequence[bytes], buffers: Sequence[Sequence[Memory]], offsets: Sequence[Sequence[int]]
    ) -> list[int | None]:
        """Copies several parts of each block: one buffer for each offset. The parts of a block are all of the same block,
        also if it is removed and written again meanwhile. The answers are those of read_into."""
    def lengths(self, keys: Sequence[bytes], remote: bool = False) -> list[int | None]:
        """For each key, the length of its block in bytes, or None. With `remote`, blocks of other racks and of the node's disk
        count too, and stay where they are; one message is sent if not all are here."""
    def get(self, key: bytes) -> bytes | None:
        """A block, or None."""
    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """For each key, whether its block is there."""
    def match_prefix(self, keys: Sequence[bytes], remote: bool = False) -> int:
        """How many of the keys are there, from the first on: the prefix that an engine need not compute. With `remote`, those
        of other racks count too; one message is sent if not all are here."""
    def fetch(self, keys: Sequence[bytes]) -> list[bool]:
        """Brings blocks of other racks here and waits; for each key, whether its block is here then. A block that two
        processes want moves once."""
    def prefetch(self, keys: Sequence[bytes]) -> int:
        """Begins to bring blocks of other racks here and does not wait; returns how many are looked for: 0 if all are here, or
        if the node is busy with as much already. A `fetch` of the same keys waits for them."""
    def keys(self) -> list[bytes]:
        """All keys of the namespace, in no order. It looks at every slot of the store: for tools and clean-up."""
    def gpu(self, device: int | None = None) -> KvGpu:
        """Lets a GPU reach the blocks: loads its driver and a kernel, and registers the memory of all blocks, once. By default
        the GPU of the current context, else GPU 0. HinterlandError: ENODEV without driver, GPU or NVRTC, ENOMEM if the memory
        cannot be registered, ENOTSUP if the node's memory is not coherent."""
    def remove(self, keys: Sequence[bytes], everywhere: bool = False) -> int:
        """Removes blocks from the memory and the disk of this host; returns how many were there. Other racks keep theirs, and what
        asks with `remote`, or fetches, gets them from there, unless `everywhere`: then those of all nodes of the pool go, also what
        is on its way. HinterlandError (EHOSTUNREACH) as with clear()."""
    def remove_elsewhere(self, keys: Sequence[bytes]) -> int:
        """The same at all other nodes of the pool: after replace(), so that none has the old blocks. What came to this host from
        others goes, too."""
    def clear(self, everywhere: bool = False) -> int:
        """Removes all blocks of the namespace from the memory and the disk of this host; returns how many there were in memory.
        Other racks keep theirs, unless `everywhere`: then those of all nodes of the pool go, also what is on its way, and none is
        fetched from another rack for ten seconds. HinterlandError (EHOSTUNREACH) names the nodes at which blocks may be left: those that
        do not answer or have pinned ones."""
    def is_lost(self) -> bool:
        """Whether the node has ended the session, also because it was restarted: what is found then is what there was. A
        program that lives longer than its node opens the namespace again."""
    def queue(self, workers: int = 2, depth: int = 1024, wait: bool = False) -> KvQueue:
        """A queue of batches of these blocks, seen to by `workers` threads with a session each. One batch more than
        `depth` is refused with BlockingIOError's errno (EAGAIN), or waits if `wait`."""
    def close(self) -> None:
        """Gives the namespace back; its blocks stay."""
    def __enter__(self) -> KvCache: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class Fragments:
    """Memory by address, for programs that pass pointers to memory they have registered: `sizes` bytes at `addresses`, one
    after the other. Nobody can check an address: a wrong one ends the program or spoils its memory.

    `owner` is kept alive with it.
    """

    def __new__(
        cls, addresses: Sequence[int], sizes: Sequence[int], owner: object = None, writable: bool = True
    ) -> Fragments: ...
    @property
    def nbytes(self) -> int: ...

Memory = Buffer | Fragments | Sequence[Buffer | Fragments]

class CudaArray(Protocol):
    """Memory of a GPU that says where it lies, as PyTorch, CuPy, Numba and JAX have it."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

DeviceMemory = CudaArray | tuple[int, int] | Fragments | Sequence[CudaArray | tuple[int, int] | Fragments]

class KvGpu:
    """KV blocks that a GPU reaches: KvCache.gpu() makes it. Buffers are memory of that GPU: CUDA arrays of any strides, pairs
    (address, nbytes), Fragments of addresses, or lists of these for one block. Types that numpy lacks go as
    `tensor.view(torch.uint8)`.

    `stream` is torch.cuda.current_stream(), a CuPy stream, an object with __cuda_stream__, or a handle as a number; None is
    the default stream. Buffers and stream are kept alive until the transfer is done; whoever passes an address answers for
    it. HinterlandError: EINVAL for a block of another length than its buffer, EFAULT for an address that the GPU does not
    reach, EAGAIN if 512 MiB of puts are under way, EIO if the driver fails.
    """

    def __reduce__(self) -> NoReturn: ...
    @property
    def device_name(self) -> str:
        """What the GPU is called."""
    def get_into(self, keys: Sequence[bytes], buffers: Sequence[DeviceMemory], stream: object = None) -> KvTransfer:
        """Puts the copies of blocks into buffers on a stream, all in one launch, and does not wait. Nothing that was copied
        counts before wait() of the transfer has said so: work behind it on the stream may run before, and is then thrown
        away for blocks that are missing. Blocks of other racks or of a disk are brought by KvCache.fetch first."""
    def put(
        self,
        keys: Sequence[bytes],
        blocks: Sequence[DeviceMemory],
        stream: object = None,
        *,
        prefix: bool = False,
        after: bytes | None = None,
    ) -> KvTransfer:
        """Has blocks gathered on a stream, and does not wait. They are there when wait() has returned, and never if it is not
        called; what is behind it on the stream may change the buffers. `prefix` and `after` as in KvCache.put."""
    def close(self) -> None:
        """Takes the blocks away from the GPU, once all transfers are done."""
    def __enter__(self) -> KvGpu: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class KvTransfer:
    """A batch on its way to or from a GPU. Dropping it waits for the GPU; a put is not published then."""

    def __reduce__(self) -> NoReturn: ...
    def arrived(self) -> bool:
        """Whether the GPU is done, so that wait() does not wait for it. Nothing counts yet."""
    def wait(self) -> list[bool]:
        """Waits for the GPU; other threads run meanwhile. Of a get, for each key whether its block is in place; what is in the
        buffer of another is of no use. Of a put, for each whether it is there now: it is published here."""

class KvQueue:
    """Batches of KV blocks that worker threads see to. The descriptor is readable while answers wait, so that select,
    asyncio or a thread can wait for it; buffers are kept alive, and must be left alone, until the answer is drained.

    Batches may finish in any order.
    """

    def __reduce__(self) -> NoReturn: ...
    def event_fd(self) -> int:
        """The descriptor; it is valid until close(), and nobody but drain() reads from it."""
    def fileno(self) -> int:
        """The same as event_fd()."""
    def submit_put(self, keys: Sequence[bytes], blocks: Sequence[Memory]) -> int:
        """Has blocks written; returns the number of the batch. The answers are those of KvCache.put."""
    def submit_get(self, keys: Sequence[bytes], buffers: Sequence[Memory]) -> int:
        """Has buffers filled. The answers are those of KvCache.get_into; a block of another length fails the batch."""
    def submit_exists(self, keys: Sequence[bytes]) -> int:
        """Has blocks looked for."""
    def submit_match_prefix(self, keys: Sequence[bytes], remote: bool = False) -> int:
        """Has blocks looked for from the first on, with `remote` also in other racks: true for those before the first that is
        nowhere."""
    def submit_fetch(self, keys: Sequence[bytes]) -> int:
        """Has blocks of other racks and of the disk brought into this host's memory; the answers say which are there then."""
    def submit_pin(self, keys: Sequence[bytes]) -> int:
        """Has blocks kept from being evicted, until they are unpinned as often or the queue is closed; the answers say which
        are."""
    def submit_unpin(self, keys: Sequence[bytes]) -> int:
        """Takes back pins of this queue; the answers say where there was one."""
    def submit_remove(self, keys: Sequence[bytes]) -> int:
        """Has blocks removed from the memory and the disk of this host; the answers say which were in memory."""
    def submit_clear(self) -> int:
        """Has all blocks of the namespace removed from this host; there are no answers for keys."""
    def drain(self) -> list[tuple[int, bool, str | None, list[bool]]]:
        """The answers that wait: the number of the batch, whether it was done, else why not, and an answer for each
        key."""
    def close(self) -> None:
        """Ends the queue: waits for batches that are being seen to, gives up those that wait, and drops all answers. A node that is
        stopped is not waited for."""
    def __enter__(self) -> KvQueue: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class Object:
    """An open object or region: a handle to all of its bytes, or to those that `diminish` left. Offsets are always those of the
    whole object."""

    def __reduce__(self) -> NoReturn: ...
    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int:
        """The first byte that it reaches: 0, unless it was diminished."""
    @property
    def nbytes(self) -> int:
        """How many bytes it reaches from there on."""
    @property
    def is_writable(self) -> bool: ...
    @property
    def is_local(self) -> bool:
        """Whether the node of this host holds the bytes."""
    def read_at(self, offset: int | None = None, bytes: int | None = None) -> bytes:
        """Reads `bytes` bytes from `offset` on; by default from the first that it reaches, and all that follow."""
    def read_into(self, buffer: Buffer, offset: int | None = None) -> int:
        """Fills a writable buffer from `offset` on; returns how many bytes."""
    def write_at(self, offset: int, data: Buffer) -> None:
        """Writes bytes at `offset` of a region that was opened writable."""
    def diminish(self, offset: int | None = None, bytes: int | None = None, writable: bool = False) -> Object:
        """Makes a weaker handle of this one, for another part of the program: for reading, and if `writable` also for writing, to
        `bytes` bytes from `offset` on, by default all that this one reaches. It lives until it is closed, also when this one is
        closed before. AccessError if it would be writable and this one is not; HinterlandError (EINVAL) for bytes that this
        one does not reach, (EBADF) if it was revoked, (EMLINK) if 32 were made each from the one before.

            with pool.open("table", writable=True) as table:
                reader = table.diminish(4096, 4096)
                reader.read_at()         # the second page
                reader.read_at(0, 1)     # HinterlandError
                table.revoke()           # both are of no use any more
        """
    def revoke(self) -> None:
        """Takes this handle back, and all that were made from it: each use from here on is HinterlandError (EBADF). Those that it
        was made from stay. An access that another thread has begun may still end. What Pool.map has mapped is not the
        handle's, and stays. The second time nothing happens."""
    def close(self) -> None:
        """Gives the handle back. Those that were made from it stay."""
    def __len__(self) -> int: ...
    def __enter__(self) -> Object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class Mapping:
    """A mapped object: memoryview, numpy.frombuffer and torch.frombuffer see its memory without a copy.

    Views keep the memory mapped, also after close().
    """

    def __reduce__(self) -> NoReturn: ...
    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_writable(self) -> bool: ...
    @property
    def is_remote(self) -> bool:
        """Whether the bytes come from another rack when they are touched."""
    @property
    def is_symmetric(self) -> bool:
        """Whether it lies where every process has it."""
    @property
    def pointer(self) -> int:
        """Where the first byte lies in this process."""
    @property
    def closed(self) -> bool: ...
    def advise(
        self,
        advice: Literal["normal", "random", "sequential", "willneed"],
        offset: int = 0,
        bytes: int | None = None,
    ) -> None:
        """Says what is expected of a range."""
    def close(self) -> None:
        """Ends the mapping, or leaves it to the last view of its memory."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...
    def __enter__(self) -> Mapping: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
