"""What anybody can write in an afternoon, as a peer of the bench: a file in a tmpfs for each block, all layers of it.

Reads and writes go between the file and the paged cache without a buffer between them. No engine knows when another is
still writing but by the file's name, nothing bounds the memory, and nothing says which model a file is of.
"""

import dataclasses
import os
import pathlib

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


@dataclasses.dataclass
class Step(KVConnectorMetadata):
    """Blocks of the engine's cache with their hashes."""

    loads: list = dataclasses.field(default_factory=list)
    saves: list = dataclasses.field(default_factory=list)


class FileConnector(KVConnectorBase_V1):
    """Blocks as files of the folder that `folder` names."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self.folder = pathlib.Path(self._kv_transfer_config.get_from_extra_config("folder", "/dev/shm/blocks"))
        self.block_tokens = vllm_config.cache_config.block_size
        self.requests, self.wanted = {}, {}

    def path(self, name):
        return self.folder / name.hex()

    # --- the scheduler's side

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        first, end = num_computed_tokens // self.block_tokens, (request.num_tokens - 1) // self.block_tokens
        count = 0
        for name in request.block_hashes[first:end]:
            if not self.path(name).exists():
                break
            count += 1
        return count * self.block_tokens, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.requests[request.request_id] = request
        self.wanted[request.request_id] = num_external_tokens // self.block_tokens

    def build_connector_meta(self, scheduler_output):
        step = Step()
        cached = scheduler_output.scheduled_cached_reqs
        computed = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        computed.update(zip(cached.req_ids, cached.num_computed_tokens))
        for request_id, tokens in scheduler_output.num_scheduled_tokens.items():
            names = self.requests[request_id].block_hashes
            (table,) = scheduler_output.kv_connector_block_state.resolve_block_ids(request_id)
            first = computed[request_id] // self.block_tokens
            end = min((computed[request_id] + tokens) // self.block_tokens, len(names))
            loaded = self.wanted.pop(request_id, 0)
            step.loads += list(zip(table[first - loaded : first], names[first - loaded : first]))
            step.saves += list(zip(table[first:end], names[first:end]))
        return step

    def request_finished(self, request, block_ids):
        self.requests.pop(request.request_id, None)
        return False, None

    # --- the worker's side

    def register_kv_caches(self, kv_caches):
        self.layers = [tensor.view(torch.uint8).numpy() for tensor in kv_caches.values()]

    def start_load_kv(self, forward_context, **kwargs):
        for block, name in self._get_connector_metadata().loads:
            with open(self.path(name), "rb", buffering=0) as file:
                os.preadv(file.fileno(), [layer[block] for layer in self.layers], 0)

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        for block, name in self._get_connector_metadata().saves:
            path = self.path(name)
            if not path.exists():
                part = path.with_suffix(f".{os.getpid()}")
                with open(part, "wb", buffering=0) as file:
                    os.writev(file.fileno(), [layer[block] for layer in self.layers])
                part.rename(path)
