#!/usr/bin/env python3
"""Checks the parts of the vLLM connector that need no engine: `vllm_parts.py {"tiny": FOLDER, "window": FOLDER}`."""

import json
import os
import random
import sys
import types

from vllm import EngineArgs
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from hinterland.vllm.copy import Copier
from hinterland.vllm.events import Record
from hinterland.vllm.fingerprint import fingerprint
from hinterland.vllm.paged import BLOCK_BYTES_MAX, Group, cut
from hinterland.vllm.plan import Load, Planner, Save, Step, longest
from hinterland.vllm.settings import Settings


def refuses(work, *words):
    try:
        work()
    except ValueError as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError("it was not refused")


def windows_need_their_last_blocks_only():
    chance = random.Random(1)
    for _ in range(3000):
        count, per_block, looked_back, first = (chance.randrange(low, high) for low, high in
                                                ((0, 12), (1, 4), (0, 6), (0, 5)))
        there = [chance.random() < 0.85 for _ in range(count * per_block)]
        whole = [all(there[index * per_block : (index + 1) * per_block]) for index in range(count)]
        # Blocks before `first` are the engine's own.
        plain = max(end for end in range(count + 1) if end == 0 or all(whole[max(0, end - looked_back) : end]))
        assert longest(there, per_block, looked_back, first) == plain


def slices_hold_every_layer_once_and_fit():
    for layers in (1, 4, 28, 61, 128):
        for page in (1, 4096, 512 << 10, (1 << 20) + 1, 3 << 20, BLOCK_BYTES_MAX):
            names = [f"layer {number}" for number in range(layers)]
            slices = cut(names, page)
            assert [name for part in slices for name in part] == names
            assert all(0 < len(part) * page <= BLOCK_BYTES_MAX for part in slices)
            assert max(map(len, slices)) - min(map(len, slices)) <= 1


def settings_say_what_is_wrong():
    assert Settings.of({}) == Settings() and Settings.of({"check_seconds": 1}).check_seconds == 1
    refuses(lambda: Settings.of({"sockets": "x"}), "no setting sockets", "hint")
    for wrong in ({"load": "later"}, {"copy_threads": 0}, {"copy_threads": True}, {"save_decode": 1}, {"socket": 5},
                  {"check_seconds": -1}):
        refuses(lambda wrong=wrong: Settings.of(wrong), *wrong)


def fingerprints_differ_where_engines_do(models):
    def of(rank=0, namespace="", shape="shape", **changes):
        arguments = {"model": models["tiny"], "dtype": "bfloat16", "load_format": "dummy", "enforce_eager": True,
                     "skip_tokenizer_init": True, "max_model_len": 1024, **changes}
        return fingerprint(EngineArgs(**arguments).create_engine_config(), shape, namespace, rank)

    same = of()
    assert same == of(model=os.path.relpath(models["tiny"]))
    assert same == of() == of(max_model_len=2048, max_num_seqs=3)
    others = [of(1), of(namespace="b"), of(shape="b"), of(dtype="float32"), of(model=models["window"]), of(seed=7),
              of(prefix_caching_hash_algo="sha256_cbor"), of(load_format="auto"), of(hf_overrides={"rope_theta": 5}),
              of(revision="b"), of(kv_cache_dtype="fp8_e5m2")]
    assert len({same, *others}) == len(others) + 1
    refuses(lambda: of(prefix_caching_hash_algo="xxhash"), "PYTHONHASHSEED", "sha256_cbor")


def nothing_that_stands_on_missing_bytes_is_offered():
    group = Group(0, 16, None, (("layer",),))
    copier = Copier(None, [group], Settings())
    names = [bytes([number]) for number in range(8)]
    copier.invalid = {11}

    def offered(*saves):
        copier.open(Step([], list(saves)))
        copier._judge()
        return [block for blocks, _, _ in copier.offers.get(0, []) for block in blocks]

    # Blocks 10 11 12 were to be loaded, 11 was not: what follows is as useless, in this request and in others.
    assert offered(Save(0, 3, [[10, 11, 12, 13]], names[:4])) == [] and copier.invalid == {11, 13}
    assert offered(Save(2, 2, [[10, 13, 20]], names[2:3]), Save(0, 1, [[10, 21]], names[:2])) == [10, 21]
    assert copier.invalid == {11, 13, 20}
    # Computed anew on sound blocks they are sound.
    assert offered(Save(1, 1, [[10, 11, 12, 13]], names[1:4])) == [11, 12, 13] and copier.invalid == {20}
    copier.close()


def a_worker_that_shares_nothing_says_that_loads_failed():
    copier = Copier(None, [Group(0, 16, None, (("layer",),))], Settings())
    copier.open(Step([Load("r", [(0, 5, b"x"), (0, 6, b"y")])]))
    copier.load()
    assert copier.results() == ({"r"}, set()) and copier.take_invalid() == {5, 6}
    copier.close()


def a_request_is_not_loaded_without_end():
    kv = types.SimpleNamespace(match_prefix=lambda keys, remote: len(keys))
    link = types.SimpleNamespace(ask=lambda work, _: work(kv))
    planner = Planner([link], [Group(0, 16, None, (("layer",),))], Settings(), True, True)
    request = types.SimpleNamespace(request_id="r", num_tokens=65, block_hashes=[bytes([n]) * 32 for n in range(4)],
                                    lora_request=None)
    for _ in range(3):
        assert planner.match(request, 16) == 48
        planner.allocated(request, ([1, 2, 3, 4, 5],), 48)
    assert [block for _, block, _ in planner.pending[0].blocks] == [2, 3, 4]
    assert planner.match(request, 16) == 0
    request.lora_request = "an adapter"
    planner.finished("r")
    assert planner.match(request, 0) == 0


def a_reset_reaches_all_racks_that_blocks_come_from():
    for remote in (True, False):
        asked = []
        links = [types.SimpleNamespace(ask=lambda work, _: work(types.SimpleNamespace(clear=asked.append)))] * 2
        planner = Planner(links, [Group(0, 16, None, (("layer",),))], Settings(remote=remote), True, True)
        assert not planner.clear() and asked == [remote] * 2, "None is what a link answers without its pool"
        links[0].ask = lambda work, _: work(types.SimpleNamespace(clear=lambda everywhere: 0))
        assert planner.clear()


def a_block_is_told_when_all_slices_are_there_and_again_after_a_gap():
    class Pool:
        keys_there, answers, is_gone = [], [], False

        def events(self, after):
            self.asked = after
            return self.answers.pop(0)

        def keys(self):
            return self.keys_there

    kv, slices = Pool(), [bytes((0, 0)), bytes((0, 1))]
    link = types.SimpleNamespace(ask=lambda work, otherwise: otherwise if kv.is_gone else work(kv))
    record = Record(link, slices, 16, pause=0)
    a, b = b"a" * 32, b"b" * 32

    def told(*answers):
        kv.answers = [*answers]
        return [(type(event).__name__, getattr(event, "block_hashes", None)) for event in record.take()]

    def number(name):
        return [maybe_convert_block_hash(name)]

    def stored(name, part, parent=None):
        return ("stored", name + slices[part], parent and parent + slices[part], 5)

    kv.keys_there = [a + slices[0], a + slices[1], b + slices[0], b"another"]
    assert told((7, [], True)) == [("BlockStored", number(a))]
    assert told((8, [stored(b, 0)], False), (8, [], False)) == [] and kv.asked == 8
    assert told((9, [stored(b, 1, a)], False), (9, [], False)) == [("BlockStored", number(b))]
    gone = [("removed", a + slices[1], None, 0), ("removed", a + slices[0], None, 0)]
    assert told((11, gone, False), (11, [], False)) == [("BlockRemoved", number(a))]
    kv.keys_there = [b + slices[0], b + slices[1]]
    assert told((90, [], True)) == [("AllBlocksCleared", None), ("BlockStored", number(b))]
    kv.is_gone = True
    assert told() == [("AllBlocksCleared", None)] and told() == []


def main():
    windows_need_their_last_blocks_only()
    slices_hold_every_layer_once_and_fit()
    settings_say_what_is_wrong()
    nothing_that_stands_on_missing_bytes_is_offered()
    a_worker_that_shares_nothing_says_that_loads_failed()
    a_request_is_not_loaded_without_end()
    a_reset_reaches_all_racks_that_blocks_come_from()
    a_block_is_told_when_all_slices_are_there_and_again_after_a_gap()
    fingerprints_differ_where_engines_do(json.loads(sys.argv[1]))
    print("all is well")


if __name__ == "__main__":
    main()
