"""KV blocks to and from a GPU from Python, on what stands in for its driver: arrays, streams, and errors that say what to do."""

import ctypes
import errno
import gc
import json
import os
import subprocess
import threading

import numpy
import pytest
from conftest import TREE
from test_kv_restart import files, flip, settled

LIBRARY = TREE / "target/cuda_stand_in.so"
MEBIBYTE = 1 << 20


class StandIn:
    """The library that stands in for the driver: takes memory of its GPU, and steers it step by step."""

    def __init__(self):
        self.library = ctypes.CDLL(str(LIBRARY))

    def __getattr__(self, name):
        return getattr(self.library, name)

    def call(self, name, *words):
        """Calls a function of the driver in the context that everybody uses."""
        context = ctypes.c_size_t()
        assert self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self.library.cuCtxPushCurrent_v2(context) == 0
        code = getattr(self.library, name)(*words)
        self.library.cuCtxPopCurrent_v2(ctypes.byref(context))
        assert code == 0, name


class DeviceArray:
    """An array on the GPU, as CUDA libraries for Python show theirs; a numpy view of the same bytes to look at."""

    def __init__(self, stand_in, shape, kind="float16"):
        self.stand_in = stand_in
        self.host = numpy.zeros(shape, kind)
        self.address = ctypes.c_uint64()
        stand_in.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(self.host.nbytes))
        self.start = self.address.value
        # A GPU's memory cannot be looked at like this; that of the stand-in can.
        stand_in.stand_in_host.restype = ctypes.c_void_p
        self.raw = (ctypes.c_char * self.host.nbytes).from_address(stand_in.stand_in_host(self.address))
        self.host = numpy.frombuffer(self.raw, kind).reshape(shape)
        self.host[...] = 0

    def __getitem__(self, place):
        return DeviceView(self, self.host[place])

    def free(self):
        self.stand_in.call("cuMemFree_v2", self.address)


class DeviceView:
    """A part of such an array."""

    def __init__(self, whole, host, read_only=False):
        self.whole = whole
        self.host = host
        self.read_only = read_only

    @property
    def __cuda_array_interface__(self):
        offset = self.host.__array_interface__["data"][0] - self.whole.host.__array_interface__["data"][0]
        start = self.whole.start + offset
        return {"shape": self.host.shape, "typestr": self.host.dtype.str, "data": (start, self.read_only),
                "strides": self.host.strides, "version": 3}


@pytest.fixture(scope="session")
def library():
    """The stand-in, built."""
    subprocess.run([TREE / "tests/cuda_stand_in/build.sh", LIBRARY], check=True)


@pytest.fixture
def stand_in(library, monkeypatch):
    """The stand-in in place of driver and compiler, with its gate open afterwards."""
    monkeypatch.setenv("HINTERLAND_CUDA", str(LIBRARY))
    monkeypatch.setenv("HINTERLAND_NVRTC", str(LIBRARY))
    stand_in = StandIn()
    yield stand_in
    stand_in.stand_in_open()
    stand_in.stand_in_lack(b"nothing")


@pytest.fixture
def kv(hinterland, start_node):
    """The blocks of a model on a node of its own."""
    node = start_node("a", options=["--kv-capacity", "128M"])
    with hinterland.Pool(node.socket) as pool, pool.kv("model") as kv:
        yield kv


@pytest.fixture
def cache(stand_in):
    """A paged cache on the GPU: layers, keys and values, blocks, what a block holds."""
    cache = DeviceArray(stand_in, (30, 2, 16, 16 * 64))
    cache.host[...] = numpy.random.default_rng(1).random(cache.host.shape)
    yield cache
    gc.collect()
    cache.free()


def keys_of(count):
    return [number.to_bytes(32, "little") for number in range(count)]


def test_blocks_go_from_one_place_of_the_gpu_to_another(kv, stand_in, cache):
    with kv.gpu() as gpu:
        assert gpu.device_name == "stand-in"
        assert gpu.put(keys_of(8), [cache[:, :, block] for block in range(8)]).wait() == [True] * 8
        for block, key in enumerate(keys_of(8)):
            assert kv.get(key) == cache.host[:, :, block].tobytes()
        before = cache.host.copy()
        launches = stand_in.stand_in_launches()
        load = gpu.get_into(keys_of(9)[1:], [cache[:, :, 15 - block] for block in range(8)])
        assert load.wait() == [True] * 7 + [False] and load.wait() == [True] * 7 + [False]
        assert load.arrived() and stand_in.stand_in_launches() == launches + 1
        for block in range(7):
            assert (cache.host[:, :, 15 - block] == before[:, :, block + 1]).all()
        assert (cache.host[:, :, :9] == before[:, :, :9]).all(), "nothing beside them"


def test_memory_is_named_in_every_way(kv, stand_in, cache, hinterland):
    whole = cache.host
    start = cache.start
    row = whole[0, 0, 0].nbytes
    pairs = [(start, row), (start + 5 * row, 3)]
    blocks = [
        (start + row, 100), pairs, tuple(pairs), [cache[0, 1, 2], (start, 7)], cache[3], cache[::7, 1, ::-3, 5:9],
        hinterland.Fragments([start, start + 9 * row], [5, 11], owner=cache),
    ]
    raw = cache.raw
    expected = [
        raw[row : row + 100], raw[:row] + raw[5 * row : 5 * row + 3], raw[:row] + raw[5 * row : 5 * row + 3],
        whole[0, 1, 2].tobytes() + raw[:7], whole[3].tobytes(), whole[::7, 1, ::-3, 5:9].tobytes(),
        raw[:5] + raw[9 * row : 9 * row + 11],
    ]
    keys = keys_of(len(blocks))
    with kv.gpu() as gpu:
        assert all(gpu.put(keys, blocks).wait())
        assert [kv.get(key) for key in keys] == expected
        for key, block, bytes_then in zip(keys, blocks, expected):
            cache.host[...] = 0
            assert gpu.get_into([key], [block]).wait() == [True]
            assert kv.put([b"again" + key], [bytes_then]) == [True]
            assert gpu.put([b"round" + key], [block]).wait() == [True] and kv.get(b"round" + key) == bytes_then


def test_streams_are_named_in_every_way(kv, stand_in, cache):
    handle = ctypes.c_size_t()
    stand_in.call("cuStreamCreate", ctypes.byref(handle), 1)

    class Torch:
        cuda_stream = handle.value

    class Cupy:
        ptr = handle.value

    class Core:
        def __cuda_stream__(self):
            return (0, handle.value)

    with kv.gpu() as gpu:
        for number, stream in enumerate([None, 0, 1, handle.value, Torch(), Cupy(), Core()]):
            key = keys_of(number + 1)[-1]
            assert gpu.put([key], [cache[:, :, 0]], stream).wait() == [True]
            assert gpu.get_into([key], [cache[:, :, 1]], stream=stream).wait() == [True]
            assert (cache.host[:, :, 1] == cache.host[:, :, 0]).all()
        with pytest.raises(TypeError, match="hint: pass torch.cuda.current_stream"):
            gpu.put(keys_of(1), [cache[:, :, 0]], "the stream")


def test_nothing_counts_before_the_gpu_is_done(kv, stand_in, cache):
    key, other = keys_of(2)
    stand_in.stand_in_close()
    with kv.gpu() as gpu:
        put = gpu.put([key], [cache[:, :, 0]])
        assert not put.arrived() and kv.exists([key]) == [False]
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(put.wait()))
        waiting.start()
        # Other threads run while that one waits: this one.
        assert kv.exists([key]) == [False] and not answers
        stand_in.stand_in_open()
        waiting.join(60)
        assert answers == [[True]] and kv.get(key) == cache.host[:, :, 0].tobytes()
        stand_in.stand_in_close()
        get = gpu.get_into([key], [cache[:, :, 1]])
        assert kv.remove([key]) == 1 and kv.put([other], [os.urandom(cache.host[:, :, 0].nbytes)]) == [True]
        stand_in.stand_in_open()
        assert get.wait() == [False], "it was evicted before it was copied"


def test_a_block_that_a_restarted_node_replaces_is_a_miss(hinterland, start_node, stand_in, cache):
    node = start_node("r", options=["--kv-capacity", "128M"])
    blocks = [os.urandom(cache.host[:, :, 0].nbytes) for _ in range(2)]
    with hinterland.Pool(node.socket) as pool:
        kv = pool.kv("model")
        assert kv.put([b"stays", b"goes"], blocks) == [True] * 2
        settled(node)
        with kv.gpu() as gpu:
            stand_in.stand_in_close()
            get = gpu.get_into([b"stays", b"goes"], [cache[:, :, 0], cache[:, :, 1]])
            node.kill()
            node.start()
            with hinterland.Pool(node.socket) as later, later.kv("model") as again:
                assert again.exists([b"stays", b"goes"]) == [True] * 2, "the node after it has taken the blocks"
                assert again.remove([b"goes"]) == 1
                assert again.put([b"another"], [os.urandom(len(blocks[0]))]) == [True]
                stand_in.stand_in_open()
                assert get.wait() == [True, False]
            assert cache.host[:, :, 0].tobytes() == blocks[0]
        kv.close()


def test_a_damaged_block_is_a_miss_where_every_read_is_checked(hinterland, start_node, stand_in, cache):
    node = start_node("v", options=["--kv-capacity", "128M", "--kv-verify", "always"])
    with hinterland.Pool(node.socket) as pool, pool.kv("model") as kv, kv.gpu() as gpu:
        assert gpu.put([b"a", b"b"], [cache[:, :, 0], cache[:, :, 1]]).wait() == [True] * 2
        settled(node)
        (path,) = files(node, "blocks")
        flip(path, node.json("kv", "inspect", "model", "b")["offset"] + 4321)
        assert gpu.get_into([b"a", b"b"], [cache[:, :, 2], cache[:, :, 3]]).wait() == [True, False]


def test_a_put_that_nobody_waits_for_is_not_published(kv, stand_in, cache):
    with kv.gpu() as gpu:
        put = gpu.put(keys_of(1), [cache[:, :, 0]])
        del put
        assert kv.exists(keys_of(1)) == [False]
        prefix = gpu.put(keys_of(3), [cache[:, :, block] for block in range(3)], prefix=True)
        assert prefix.wait() == [True] * 3
        assert gpu.put(keys_of(4)[3:], [cache[:, :, 3]], after=keys_of(3)[2]).wait() == [True]


def test_wrong_memory_is_refused_with_what_to_do(kv, stand_in, cache, hinterland):
    kv.put(keys_of(1), [bytes(100)])
    start = cache.start
    host = numpy.zeros(100, "uint8")
    with kv.gpu() as gpu:
        for wrong, number in [
            ((start, 99), errno.EINVAL),
            ((host.__array_interface__["data"][0], 100), errno.EFAULT),
            ((0, 100), errno.EFAULT),
            ((start + cache.host.nbytes - 50, 100), errno.EFAULT),
            ([(start, 50), (8, 50)], errno.EFAULT),
        ]:
            with pytest.raises(hinterland.HinterlandError, match="hint:") as raised:
                gpu.get_into(keys_of(1), [wrong])
            assert raised.value.errno == number, wrong
        for wrong in [host, b"abc", None, [host], (1, 2, 3), DeviceView(cache, cache.host[0, 0, 0, :50], read_only=True)]:
            with pytest.raises(TypeError, match="hint:"):
                gpu.get_into(keys_of(1), [wrong])
        shared = DeviceView(cache, numpy.broadcast_to(cache.host[0, 0, 0, :25], (2, 25)))
        with pytest.raises(BufferError, match="hint:"):
            gpu.get_into(keys_of(1), [shared])
        with pytest.raises(hinterland.HinterlandError, match="hint: pass as many"):
            gpu.put(keys_of(2), [cache[0]])
    with pytest.raises(hinterland.HinterlandError, match="closed"):
        gpu.put(keys_of(1), [cache[0]])


def test_what_is_missing_is_told_with_what_to_do(kv, stand_in, hinterland, monkeypatch):
    for lacking, number, words in [
        (b"gpu", errno.ENODEV, "nvidia-smi"),
        (b"driver-version", errno.ENODEV, "CUDA 10.2.*470 or later"),
        (b"compiler", errno.ENODEV, "HINTERLAND_NVRTC"),
        (b"registration", errno.ENOMEM, "ulimit -l"),
    ]:
        stand_in.stand_in_lack(lacking)
        with pytest.raises(hinterland.HinterlandError, match=words) as raised:
            kv.gpu()
        assert raised.value.errno == number
    stand_in.stand_in_lack(b"nothing")
    with pytest.raises(hinterland.HinterlandError, match="no GPU 3"):
        kv.gpu(device=3)
    monkeypatch.setenv("HINTERLAND_CUDA", "/no/such/driver.so")
    with pytest.raises(hinterland.HinterlandError, match="no CUDA driver.*hint:") as raised:
        kv.gpu()
    assert raised.value.errno == errno.ENODEV


class Run(ctypes.Structure):
    """`hl_run` of the C header."""

    _fields_ = [("start", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("stride", ctypes.c_ssize_t), ("count", ctypes.c_size_t)]


class Block(ctypes.Structure):
    """`hl_block` of the C header."""

    _fields_ = [("key", ctypes.c_char_p), ("key_bytes", ctypes.c_size_t), ("runs", ctypes.POINTER(Run)),
                ("run_count", ctypes.c_size_t)]


def test_c_programs_copy_blocks_to_and_from_a_gpu(start_node, stand_in, cache):
    target = os.environ.get("CARGO_TARGET_DIR", TREE / "target")
    library = ctypes.CDLL(f"{target}/debug/libhinterland.so")
    library.hl_last_error.restype = ctypes.c_char_p
    node = start_node("c", options=["--kv-capacity", "128M"])
    pool, kv, gpu, transfer = (ctypes.c_void_p() for _ in range(4))
    arrived, answers = ctypes.c_int(), (ctypes.c_uint8 * 2)()
    assert library.hl_open(str(node.socket).encode(), ctypes.byref(pool)) == 0
    assert library.hl_kv_open(pool, b"model", ctypes.byref(kv)) == 0
    assert library.hl_kv_gpu_open(kv, -1, ctypes.byref(gpu)) == 0, library.hl_last_error()
    fragment = cache.host[0, 0, 0].nbytes
    start = cache.start

    def block(key, place):
        return Block(key, len(key), (Run * 1)(Run(start + place * fragment, fragment, 16 * fragment, 60)), 1)

    def begin(function, *blocks):
        return function(gpu, (Block * len(blocks))(*blocks), len(blocks), None, ctypes.byref(transfer))

    stand_in.stand_in_close()
    assert begin(library.hl_kv_put_on, block(b"one", 0), block(b"two", 1)) == 0, library.hl_last_error()
    assert library.hl_kv_transfer_arrived(transfer, ctypes.byref(arrived)) == 0 and arrived.value == 0
    stand_in.stand_in_open()
    assert library.hl_kv_transfer_wait(transfer, answers) == 0 and list(answers) == [1, 1]
    assert begin(library.hl_kv_get_on, block(b"two", 2), block(b"none", 3)) == 0
    assert library.hl_kv_transfer_wait(transfer, answers) == 0 and list(answers) == [1, 0]
    assert (cache.host[:, :, 2] == cache.host[:, :, 1]).all()
    assert begin(library.hl_kv_put_on, block(b"three", 3)) == 0 and library.hl_kv_transfer_drop(transfer) == 0
    found = (ctypes.c_uint8 * 1)()
    assert library.hl_kv_exists(kv, (Block * 1)(block(b"three", 3)), 1, found) == 0 and found[0] == 0
    short = Block(b"one", 3, (Run * 1)(Run(start, fragment, 0, 1)), 1)
    assert begin(library.hl_kv_get_on, short) == -errno.EINVAL and b"hint:" in library.hl_last_error()
    assert library.hl_kv_transfer_wait(None, answers) == -errno.EINVAL and library.hl_kv_transfer_drop(None) == 0
    assert library.hl_kv_gpu_close(gpu) == 0 and library.hl_kv_close(kv) == 0 and library.hl_close(pool) == 0


def test_nvrtc_of_pip_is_found_and_the_newest_wins(hinterland, tmp_path, monkeypatch):
    nvrtc = __import__("hinterland.nvrtc", fromlist=["path"])
    for name in ["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                 "nvidia/cuda_nvrtc/lib/libnvrtc.alt.so.12"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert nvrtc.path() == str(tmp_path / "nvidia/cu13/lib/libnvrtc.so.13")
    (tmp_path / "nvidia/cu13/lib/libnvrtc.so.13").unlink()
    assert nvrtc.path() == str(tmp_path / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")


def run(binary, *words, environment):
    return subprocess.run([binary, *words], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)


def test_the_doctor_says_whether_a_gpu_can_be_used(binary, library):
    with_it = {"HINTERLAND_CUDA": str(LIBRARY), "HINTERLAND_NVRTC": str(LIBRARY)}
    for environment, words in [
        (with_it, "KV blocks can go to stand-in directly (driver of CUDA 13.0, NVRTC 13.0)"),
        ({"HINTERLAND_CUDA": "/no/such/driver"}, "no CUDA driver: KV blocks go to memory of the host"),
        ({**with_it, "STAND_IN_LACKS": "driver-version"}, "the CUDA driver is too old"),
        ({**with_it, "HINTERLAND_NVRTC": "/no/such/compiler"}, "there is no NVRTC"),
    ]:
        assert words in run(binary, "doctor", environment=environment).stdout


def test_the_bench_never_prints_a_figure_of_the_stand_in(binary, library):
    environment = {"HINTERLAND_CUDA": str(LIBRARY), "HINTERLAND_NVRTC": str(LIBRARY)}
    outcome = run(binary, "bench", "kv-gpu", "--json", "--quick", environment=environment)
    assert outcome.returncode == 0, outcome.stderr
    rows = json.loads(outcome.stdout)["rows"]
    assert len(rows) == 8
    for row in rows:
        assert row["ours"] is row["limit"] is row["peer"] is row["spread"] is None
        assert row["why"].startswith("stand-in"), row
    outcome = run(binary, "bench", "kv-gpu", "--json", "--quick", environment={"HINTERLAND_CUDA": "/no/such/driver"})
    assert outcome.returncode != 0 and "no CUDA driver" in outcome.stderr
