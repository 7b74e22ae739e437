"""The vLLM connector's worker with a paged cache in the memory of a GPU: blocks go to the pool and come back by launches on the
stand-in for the driver, in the places where they belong, and no copy goes before what the engine has launched. vLLM and PyTorch are
not needed: what is used of them stands in this file."""

import collections
import importlib
import sys
import types

import numpy
import pytest
from conftest import TREE
from test_kv_gpu import DeviceArray, DeviceView, library, stand_in  # noqa: F401

BLOCKS, PAGE = 16, 512
Place = collections.namedtuple("Place", "type index")


class Tensor:
    """What the connector asks of a torch tensor, over memory of the stand-in."""

    def __init__(self, whole, host):
        self.whole, self.host = whole, host
        self.device = Place("cuda", 0)
        self.shape = host.shape

    def dim(self):
        return self.host.ndim

    def stride(self, axis=None):
        steps = tuple(step // self.host.itemsize for step in self.host.strides)
        return steps if axis is None else steps[axis]

    def detach(self):
        return self

    def movedim(self, source, target):
        return Tensor(self.whole, numpy.moveaxis(self.host, source, target))

    def view(self, kind):
        return Tensor(self.whole, self.host.view(kind))

    def numel(self):
        return self.host.size

    def __getitem__(self, place):
        return Tensor(self.whole, self.host[place])

    @property
    def __cuda_array_interface__(self):
        return DeviceView(self.whole, self.host).__cuda_array_interface__


class Streams:
    """The streams of a program, and what each was told to wait for."""

    def __init__(self):
        self.marks, self.waited = 0, []

    def module(self):
        streams = self

        class Stream:
            cuda_stream = 0

            def __init__(self, index):
                self.index = index

            def wait_event(self, event):
                streams.waited.append(event)

            def record_event(self):
                streams.marks += 1
                return streams.marks

        cuda = types.SimpleNamespace(Stream=Stream, current_stream=Stream)
        return types.SimpleNamespace(cuda=cuda, uint8=numpy.uint8)


@pytest.fixture
def parts(monkeypatch):
    """The modules of the connector, over stand-ins of vLLM's and PyTorch's."""
    streams = Streams()

    def module(name, **names):
        made = types.ModuleType(name)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    torch = streams.module()
    module("torch", cuda=torch.cuda, uint8=torch.uint8)
    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    for count in range(1, base.count(".") + 1):
        module(".".join(base.split(".")[:count]))
    module(base, KVConnectorMetadata=type("KVConnectorMetadata", (), {}))
    module("hinterland.vllm").__path__ = [str(TREE / "python/hinterland/vllm")]
    loaded = {name: importlib.import_module(f"hinterland.vllm.{name}") for name in ("copy", "device", "paged", "plan", "settings")}
    yield types.SimpleNamespace(streams=streams, **loaded)
    for name in [name for name in sys.modules if name.startswith("hinterland.vllm")]:
        del sys.modules[name]


class Link:
    """The blocks of a node that does not go."""

    def __init__(self, kv):
        self.kv = kv

    def ask(self, work, otherwise):
        return work(self.kv)


@pytest.fixture
def kv(hinterland, start_node):
    node = start_node("a", options=["--kv-capacity", "64M"])
    with hinterland.Pool(node.socket) as pool, pool.kv("model") as kv:
        yield kv


def caches(stand_in, axes):  # noqa: F811
    """Four layers of a paged cache, keys and values before or behind the blocks, and the memory that they lie in."""
    whole = DeviceArray(stand_in, (4, *axes, PAGE))
    whole.host[...] = numpy.random.default_rng(3).random(whole.host.shape)
    return whole, {f"layer.{number}": Tensor(whole, whole.host[number]) for number in range(4)}


def block_of(layers, axes, block):
    """The bytes of one block, layer after layer."""
    axis = axes.index(BLOCKS)
    return b"".join(numpy.moveaxis(layer.host, axis, 0)[block].tobytes() for layer in layers)


@pytest.mark.parametrize("axes", [(BLOCKS, 2), (2, BLOCKS)])
@pytest.mark.parametrize("beside", [True, False])
def test_blocks_of_a_gpu_come_back_where_they_belong(kv, stand_in, parts, axes, beside):  # noqa: F811
    whole, layers = caches(stand_in, axes)
    group = parts.paged.Group(0, 16, None, (("layer.0", "layer.1"), ("layer.2", "layer.3")))
    slices, device = parts.paged.slices_of([group], layers, BLOCKS, True)
    assert slices[0][3].block_bytes == 2 * 2 * PAGE * 2
    copier = parts.copy.Copier(Link(kv), [group], parts.settings.Settings(device=True, save_beside=beside, copy_threads=2))
    copier.register(slices, device)
    names = [bytes([number]) * 32 for number in range(5)]
    save = parts.plan.Save(first=0, computed=0, tables=[[3, 5, 7, 9, 11]], hashes=names)
    copier.open(parts.plan.Step(saves=[save], busy=True))
    for layer in layers:
        copier.layer_done(layer)
    copier.end()
    # Each of the two slices waited for a mark that was set after its last layer.
    assert len(parts.streams.waited) == 2 and min(parts.streams.waited) > 1
    both = [layers["layer.0"], layers["layer.1"]], [layers["layer.2"], layers["layer.3"]]
    for number, some in enumerate(both):
        for block, name in zip(save.tables[0], names):
            assert kv.get(name + bytes((0, number))) == block_of(some, axes, block)
    kept = [[block_of(some, axes, block) for block in save.tables[0]] for some in both]
    before = whole.host.copy()
    # A request finds them, and one that is not there, in other places of the cache.
    rooms = [1, 2, 4, 6, 8, 10]
    wanted = list(zip([0] * 6, rooms, [*names, b"\xff" * 32]))
    copier.open(parts.plan.Step(loads=[parts.plan.Load("request", wanted)]))
    copier.load()
    assert parts.streams.waited[-1] == parts.streams.marks, "the load waits for what the step began with"
    assert copier.results() == ({"request"}, set()) and copier.take_invalid() == {10}
    for some, blocks in zip(both, kept):
        assert [block_of(some, axes, room) for room in rooms[:5]] == blocks
    axis = 1 + axes.index(BLOCKS)
    others = [block for block in range(BLOCKS) if block not in rooms]
    assert (whole.host.take(others, axis) == before.take(others, axis)).all(), "nothing beside them"
    copier.close()
    whole.free()


def test_a_gpu_is_left_alone_unless_it_is_allowed_and_understood(stand_in, parts):  # noqa: F811
    group = parts.paged.Group(0, 16, None, (("layer.0",),))
    whole, layers = caches(stand_in, (BLOCKS, 2))
    with pytest.raises(parts.paged.NotShareable, match='"device": true'):
        parts.paged.slices_of([group], layers, BLOCKS, False)
    with pytest.raises(parts.paged.NotShareable, match="has the shape"):
        parts.paged.slices_of([group], layers, BLOCKS + 1, True)
    whole.free()
    # Where there are as many blocks as keys and values, nobody can tell which is which.
    whole = DeviceArray(stand_in, (1, 2, 2, PAGE))
    with pytest.raises(parts.paged.NotShareable, match="2 blocks has the shape"):
        parts.paged.slices_of([group], {"layer.0": Tensor(whole, whole.host[0])}, 2, True)
    layers["layer.0"].device = Place("xpu", 0)
    with pytest.raises(parts.paged.NotShareable, match="of a device"):
        parts.paged.slices_of([group], {"layer.0": layers["layer.0"]}, BLOCKS, True)
    whole.free()
