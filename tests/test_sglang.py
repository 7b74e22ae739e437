"""HiCache of SGLang over KV blocks, where SGLang and an interpreter with torch are installed: its factory makes our back end, its host
pools and controller use it, and its own Mooncake back end passes its own test on Hinterland's store."""

import json
import os
import subprocess

import pytest
from conftest import TREE

# Made by `tests/peers`, and an interpreter that has torch.
PEER = TREE / ".cache/peers/sglang"
TORCH = TREE / ".cache/vllm/venv/bin/python"
SHIM = TREE / "python/hinterland/compat/mooncake/path"
pytestmark = pytest.mark.skipif(not (PEER.exists() and TORCH.exists()), reason="no SGLang with torch here (hint: tests/peers)")


def run(node, *words):
    """Runs a program of SGLang's interpreter against a node."""
    environment = {**os.environ, "PYTHONPATH": f"{SHIM}:{PEER}:{TREE / 'python'}", "HINTERLAND_SOCKET": str(node.socket),
                   "MOONCAKE_MASTER": "127.0.0.1:1", "MOONCAKE_PROTOCOL": "tcp", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "16777216"}
    outcome = subprocess.run([TORCH, "-W", "ignore", *words], capture_output=True, text=True, timeout=600, env=environment)
    assert outcome.returncode == 0, outcome.stderr[-4000:]
    return outcome


def test_sglangs_factory_pools_and_controller_work_with_the_back_end(hinterland, node):
    lines = run(node, TREE / "tests/programs/sglang_hicache.py", node.socket).stdout.splitlines()
    parts = {part.pop("part"): part for part in map(json.loads, lines)}
    layouts = [part for name, part in parts.items() if name.startswith(("MHA", "MLA"))]
    assert len(layouts) == 6
    for part in layouts:
        assert part == {"stored": [True] * 4, "exists": 4, "got": 4, "equal": True, "untouched": True, "backup_pgs": [4]}
    assert parts["tensors"] == {"stored": [True, True], "found": [True, True, False], "equal": True, "exists": True,
                                "wrong_size": True}
    assert parts["pools"] == {"kv_hit_pages": 3, "restorable": [3], "all_pages": 0, "loaded": [True, False], "equal": True}


def test_sglangs_own_mooncake_back_end_passes_its_own_test(hinterland, node):
    outcome = run(node, "-m", "sglang.srt.mem_cache.storage.mooncake_store.test_mooncake_store")
    assert "All tests passed" in outcome.stderr


def test_a_mistyped_setting_is_named(hinterland, node):
    program = """
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from hinterland.compat.sglang import HinterlandHiCache
extra = {"extra_backend_tg": "x", "prefetch_threshold": 4, "interface_v1": 1}
HinterlandHiCache(HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "m", extra_config=extra))
"""
    outcome = run(node, "-c", program)
    assert "no setting extra_backend_tg" in outcome.stderr and "is extra_backend_tag meant?" in outcome.stderr, outcome.stderr
    assert outcome.stderr.count("there is no setting") == 1, outcome.stderr


def test_a_node_that_goes_makes_pages_missing_and_one_that_comes_back_serves_them(hinterland, node):
    program = """
import os, signal, sys, torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from hinterland.compat.sglang import HinterlandHiCache
config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "m", extra_config={"socket": sys.argv[1], "extra_backend_tag": "tests"})
backend = HinterlandHiCache(config)
page = torch.arange(100.)
print(backend.set("k", page), backend.exists("k"), flush=True)
input()
print(backend.set("n", page), backend.exists("k"), backend.get("k", torch.zeros(100)), backend.batch_exists(["k"]), flush=True)
input()
print(backend.exists("k"), backend.set("k", page), bool((backend.get("k", torch.zeros(100)) == page).all()), flush=True)
"""
    environment = {**os.environ, "PYTHONPATH": f"{PEER}:{TREE / 'python'}"}
    engine = subprocess.Popen([TORCH, "-W", "ignore", "-c", program, node.socket], env=environment, text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert engine.stdout.readline() == "True True\n"
        node.kill()
        print(file=engine.stdin, flush=True)
        assert engine.stdout.readline() == "False False None 0\n"
        node.start()
        print(file=engine.stdin, flush=True)
        # Blocks outlive their node, also one that was killed.
        assert engine.stdout.readline() == "True True True\n"
        assert engine.wait(timeout=60) == 0
    finally:
        engine.kill()
        engine.wait()
        engine.stdin.close()
        engine.stdout.close()
