"""Two vLLM engines on one pool: what one computes the other finds, tokens stay the same, and no loss of the pool or of a
block in it changes an answer. Runs where bench/vllm/prepare.sh has installed vLLM in .cache/vllm."""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import pytest
from conftest import TREE, Node, remove_folder

sys.path.insert(0, str(TREE / "bench/vllm"))
import engines_of_vllm as engines
from engines_of_vllm import CACHE, PYTHON

FULL = bool(os.environ.get("HINTERLAND_FULL"))
# How far apart logarithms of probabilities may lie that were computed in another order, in float32.
APART_MAX = 1e-3
# Tokens of a block of the engines: each engine's default on processors.
BLOCK = 128

pytestmark = pytest.mark.skipif(
    not (CACHE / "installed").exists(), reason="vLLM is not installed (bench/vllm/prepare.sh does it)"
)
only_full = pytest.mark.skipif(not FULL, reason="takes a minute (./check --full)")


class Said:
    """The tokens of an answer and how probable each was: a token may stay the same with a part of the cache wrong, its
    probability does not."""

    def __init__(self, tokens, chances):
        self.tokens = tokens
        self.chances = chances

    def __eq__(self, other):
        apart = (abs(mine - its) for mine, its in zip(self.chances, other.chances))
        return self.tokens == other.tokens and max(apart) < APART_MAX

    def __repr__(self):
        return f"{self.tokens} {[round(chance, 6) for chance in self.chances]}"


class Engine(engines.Engine):
    """An engine in float32: two ways of computing the same then never differ in a token."""

    def __init__(self, folder, name, model="tiny", extra=None, **more):
        transfer = None if extra is None else engines.transfer("Forgetful", "forgetful", check_seconds=0, **extra)
        arguments = {"dtype": "float32", "load_format": "auto", **more}
        super().__init__(folder / f"{name}.log", model, transfer, arguments, paths=[TREE / "tests/programs"])

    def generate(self, *prompts, tokens=4):
        answer = self.ask(prompts=prompts, max_tokens=tokens, chances=True)
        return answer["cached"], [Said(*pair) for pair in zip(answer["tokens"], answer["chances"])]

    def forget(self):
        """Empties the engine's own cache."""
        assert self.ask(reset="cache")["reset"]

    def call(self, name, *arguments):
        return self.ask(call=name, arguments=arguments)["answer"]


class Scene:
    """Engines, and the node that they share while it lives."""

    def __init__(self, binary):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hl-"))
        self.node = Node(binary, self.folder, "a", options=["--capacity", "64M", "--kv-capacity", "512M"])
        self.started = []
        self.seeds = iter(range(1, 1000))

    def start(self, *engines, **choices):
        """Starts engines side by side: (name, extra configuration or None)."""
        sharing = {"socket": str(self.node.socket)}
        new = [
            Engine(self.folder, name, extra=None if extra is None else {**sharing, **extra}, **choices)
            for name, extra in engines
        ]
        self.started += new
        for engine in new:
            engine.wait_ready()
        return new

    def run(self):
        if self.node.process is None or self.node.process.poll() is not None:
            self.node.start()

    def prompt(self, count):
        """Tokens that no prompt before began with."""
        chance = random.Random(next(self.seeds))
        return [chance.randrange(3, 4096) for _ in range(count)]

    def close(self):
        for engine in self.started:
            engine.stop()
        self.node.stop()
        remove_folder(self.folder)


@pytest.fixture(scope="module")
def scene(binary, hinterland):
    scene = Scene(binary)
    yield scene
    scene.close()


@pytest.fixture(scope="module")
def started(scene):
    """An engine without a pool, and two with one: their node is not there yet. Few blocks, so that requests are preempted,
    and few tokens in a step, so that prompts are computed in parts."""
    few = {"num_gpu_blocks_override": 24, "max_model_len": 2048, "max_num_batched_tokens": 512}
    return scene.start(("plain", None), ("beside", {"load": "beside"}), ("layers", {"load": "layers"}), **few)


@pytest.fixture
def shared(scene, started):
    """The engines, with a node that runs."""
    scene.run()
    return started


def test_without_a_node_an_engine_answers_as_ever(scene, started):
    plain, beside, layers = started
    prompt = scene.prompt(3 * BLOCK + 1)
    _, expected = plain.generate(prompt)
    for engine in (beside, layers):
        assert engine.generate(prompt) == ([0], expected)
        assert "goes on without it" in engine.log.read_text()


def test_what_one_engine_computed_is_a_hit_in_the_other(scene, shared):
    plain, beside, layers = shared
    for writer, reader in ((beside, layers), (layers, beside)):
        prompt = scene.prompt(8 * BLOCK + 1)
        _, expected = plain.generate(prompt)
        assert writer.generate(prompt) == ([0], expected)
        assert reader.generate(prompt) == ([8 * BLOCK], expected)
        # Another end after five blocks and a half.
        other = prompt[: 5 * BLOCK + 64] + scene.prompt(3 * BLOCK)
        writer.forget()
        reader.forget()
        assert reader.generate(other) == ([5 * BLOCK], plain.generate(other)[1])
        # A prompt of whole blocks leaves the last one to be computed, or there would be nothing to answer with.
        whole = prompt[: 4 * BLOCK]
        reader.forget()
        assert reader.generate(whole) == ([3 * BLOCK], plain.generate(whole)[1])


def test_blocks_that_fill_while_tokens_are_generated_are_shared(scene, shared):
    plain, beside, layers = shared
    prompt = scene.prompt(100)
    _, (said,) = beside.generate(prompt, tokens=200)
    assert plain.generate(prompt, tokens=200)[1] == [said]
    longer = prompt + said.tokens[:170]
    assert layers.generate(longer) == ([2 * BLOCK], plain.generate(longer)[1])


def test_requests_that_are_preempted_come_to_the_same_tokens(scene, shared):
    plain, beside, layers = shared
    prompts = [scene.prompt(5 * BLOCK - 10) for _ in range(4)]
    expected = [plain.generate(prompt, tokens=160)[1][0] for prompt in prompts]
    for engine in (beside, layers):
        engine.forget()
        _, tokens = engine.generate(*prompts, tokens=160)
        assert tokens == expected
        # One by one: whatever was saved around the preemptions is what belongs there.
        for prompt, wanted in zip(prompts, expected):
            engine.forget()
            (cached,), tokens = engine.generate(prompt, tokens=160)
            assert tokens == [wanted] and cached == 4 * BLOCK


@pytest.mark.parametrize("lost", [1, 2, 6])
def test_a_block_that_is_gone_between_match_and_load_is_computed(scene, shared, lost):
    plain, beside, layers = shared
    for writer, reader in ((beside, layers), (layers, beside)):
        prompt = scene.prompt(6 * BLOCK + 1)
        _, expected = plain.generate(prompt)
        writer.generate(prompt)
        assert reader.call("forget", lost)
        assert reader.generate(prompt)[1] == expected
        assert reader.call("told") == lost
        # What the reader computed again is in the pool again, and nothing that stands on missing bytes is.
        for engine in (writer, reader):
            engine.forget()
            assert engine.generate(prompt) == ([6 * BLOCK], expected)


def test_losses_under_other_requests_change_no_token(scene, shared):
    plain, beside, layers = shared
    for writer, reader in ((beside, layers), (layers, beside)):
        start = scene.prompt(2 * BLOCK)
        prompts = [start + scene.prompt(2 * BLOCK + 1) for _ in range(3)]
        expected = [plain.generate(prompt, tokens=20)[1][0] for prompt in prompts]
        for prompt in prompts:
            writer.generate(prompt)
        reader.call("forget", 4)
        assert reader.generate(*prompts, tokens=20)[1] == expected
        assert reader.call("told") > 0
        for prompt, wanted in zip(prompts, expected):
            writer.forget()
            assert writer.generate(prompt, tokens=20) == ([4 * BLOCK], [wanted])


def test_a_node_that_dies_and_comes_back_costs_misses_only(scene, shared):
    plain, beside, layers = shared
    prompt, later = scene.prompt(4 * BLOCK + 1), scene.prompt(4 * BLOCK + 1)
    _, expected = plain.generate(prompt)
    scene.node.kill()
    for engine in (beside, layers):
        assert engine.generate(prompt) == ([0], expected)
    scene.run()
    beside.generate(later)
    assert layers.generate(later) == ([4 * BLOCK], plain.generate(later)[1])
    # What an engine has in its own cache goes to the pool when it is used, so that a new node is soon as warm as the old.
    assert beside.generate(prompt)[0] == [4 * BLOCK]
    layers.forget()
    assert layers.generate(prompt) == ([4 * BLOCK], expected)


def test_a_reset_of_the_connector_empties_the_pool(scene, shared):
    _, beside, layers = shared
    prompt = scene.prompt(2 * BLOCK + 1)
    beside.generate(prompt)
    (space,) = scene.node.json("kv", "stat")[0]["namespaces"]
    assert space["blocks"] > 0 and space["label"].startswith("vLLM ")
    assert beside.ask(reset="connector")["reset"]
    (space,) = scene.node.json("kv", "stat")[0]["namespaces"]
    assert space["blocks"] == 0
    layers.forget()
    assert layers.generate(prompt)[0] == [0]


def test_the_parts_that_need_no_engine():
    """Matching against a plain model, slices, settings and fingerprints, inside vLLM's environment."""
    path = os.pathsep.join(str(TREE / part) for part in ("python", "tests/programs"))
    models = {name: str(CACHE / "models" / name) for name in ("tiny", "window")}
    outcome = subprocess.run(
        [PYTHON, TREE / "tests/programs/vllm_parts.py", json.dumps(models)], capture_output=True, text=True,
        timeout=300, env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
    )
    assert outcome.returncode == 0 and outcome.stdout.endswith("all is well\n"), outcome.stdout + outcome.stderr


@only_full
def test_layers_that_look_back_a_window_are_shared(scene):
    scene.run()
    plain, first, second = scene.start(("plain-w", None), ("first-w", {}), ("second-w", {}), model="window")
    prompt = scene.prompt(9 * BLOCK + 1)
    _, expected = plain.generate(prompt)
    assert first.generate(prompt) == ([0], expected)
    assert second.generate(prompt) == ([9 * BLOCK], expected)
    second.forget()
    second.call("forget", 2)
    assert second.generate(prompt)[1] == expected and second.call("told") > 0


@only_full
def test_a_router_hears_of_blocks_that_any_engine_stores_and_that_leave(scene, shared):
    _, beside, _ = shared
    endpoint = f"ipc://{scene.folder}/events"
    publishing = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    (telling,) = scene.start(("telling", {}), max_model_len=2048, kv_events_config=publishing)
    listener = subprocess.Popen(
        [PYTHON, TREE / "tests/programs/vllm_listener.py", endpoint], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(TREE / "python")},
    )
    try:
        assert json.loads(listener.stdout.readline()) == "ready"

        def heard(kind, count):
            """Waits for so many hashes of blocks in the pool; the engine tells them when it computes."""
            os.set_blocking(listener.stdout.fileno(), False)
            hashes, deadline = set(), time.monotonic() + 60
            while len(hashes) < count:
                assert time.monotonic() < deadline, hashes
                telling.generate(scene.prompt(5))
                time.sleep(0.15)
                for line in listener.stdout.read().splitlines():
                    what, names, medium = json.loads(line)
                    if what == kind and medium == "CPU":
                        hashes.update(names)
            return hashes

        # What is there at the start is told, too: wait for it to be over.
        telling.generate(scene.prompt(BLOCK + 1))
        heard("BlockStored", 1)
        beside.generate(scene.prompt(4 * BLOCK + 1))
        stored = heard("BlockStored", 4)
        # Earlier tests may have had other fingerprints.
        for space in scene.node.json("kv", "stat")[0]["namespaces"]:
            scene.node.json("kv", "clear", space["namespace"])
        assert stored & heard("BlockRemoved", 4)
    finally:
        listener.kill()
        listener.wait()


def racks_of(node):
    return node.json("kv", "stat")[0]["racks"]


def wait_for(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@only_full
def test_what_another_rack_or_the_disk_has_is_a_hit(binary, hinterland):
    """A writer in rack b, a reader in rack a: over TCP; then the reader's node is started anew: from what it has kept."""
    scene = Scene(binary)
    try:
        options = [*scene.node.options, "--kv-disk", str(scene.folder / "disk"), "--kv-remote-wait", "20000"]
        scene.node.options = options
        scene.run()
        other = Node(
            binary, scene.folder, "b", join=scene.node.address,
            options=["--capacity", "64M", "--kv-capacity", "512M", "--kv-remote-wait", "20000"],
        )
        other.start()
        try:
            there = {"socket": str(other.socket)}
            plain, writer, reader, alone = scene.start(
                ("plain-r", None), ("writer-r", there), ("reader-r", {}), ("alone-r", {"remote": False})
            )
            prompt = scene.prompt(9 * BLOCK + 1)
            _, expected = plain.generate(prompt)
            assert writer.generate(prompt) == ([0], expected)
            # The nodes connect once engines have opened their blocks on both.
            reader.generate(scene.prompt(BLOCK + 1))
            wait_for(lambda: racks_of(scene.node)["nodes"] == 1)
            assert alone.generate(prompt)[0] == [0]
            alone.forget()
            scene.node.json("kv", "clear", "vLLM")
            assert reader.generate(prompt) == ([9 * BLOCK], expected)
            assert racks_of(scene.node)["hits"] > 0 and racks_of(scene.node)["checksum_failures"] == 0
        finally:
            other.stop()
        scene.node.stop()
        scene.run()
        reader.forget()
        # The engine finds its node lost, then connects anew; the node may still be reading what it has on the disk.
        for _ in range(2):
            reader.generate(scene.prompt(BLOCK + 1))
        wait_for(lambda: not scene.node.json("kv", "stat")[0]["disk"]["state"].startswith("reading"))
        reader.forget()
        assert reader.generate(prompt) == ([9 * BLOCK], expected)
    finally:
        scene.close()


@only_full
def test_engines_that_disagree_never_meet(scene, shared):
    _, beside, _ = shared
    prompt = scene.prompt(4 * BLOCK + 1)
    beside.generate(prompt)
    (other,) = scene.start(("other", {"namespace": "other"}), max_model_len=2048)
    (half,) = scene.start(("half", {}), max_model_len=2048, dtype="bfloat16")
    assert other.generate(prompt)[0] == [0] and half.generate(prompt)[0] == [0]
    assert len(scene.node.json("kv", "stat")[0]["namespaces"]) >= 3
