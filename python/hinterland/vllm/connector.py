"""The class that vLLM loads: hands each call to the scheduler's side or the worker's."""

import dataclasses

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.logger import init_logger

from .copy import Copier
from .events import Record
from .fingerprint import device, fingerprint, weights
from .link import Link
from .paged import NotShareable, check_ranks, check_scales, groups, shape, slices_of
from .plan import Planner, Step
from .settings import Settings

logger = init_logger("vllm.hinterland")

STANDS_ASIDE = "Hinterland shares nothing of this engine: %s."
# Another engine may have other weights under the same name, and what it computed would be taken for this one's.
NOT_TOLD = (
    "nothing tells which weights %s stands for (hint: --revision with a commit, --model with a folder, or a namespace for this version of"
    " the weights)"
)


class HinterlandConnector(KVConnectorBase_V1, SupportsHMA):
    """Shares KV blocks with the engines of this host that agree on everything that matters."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self.settings = Settings.of(transfer.kv_connector_extra_config)
        # A pool is a cache: a block that is gone is a miss, not an error that ends a request.
        transfer.kv_load_failure_policy = "recompute"
        self.planner = self.copier = self.record = None
        self.block_count = kv_cache_config.num_blocks
        parallel = vllm_config.parallel_config
        try:
            check_ranks(parallel)
            check_scales(vllm_config.cache_config)
            if weights(vllm_config) is None and not self.settings.namespace:
                raise NotShareable(NOT_TOLD % vllm_config.model_config.model)
            self.groups = groups(kv_cache_config)
        except NotShareable as reason:
            logger.warning(STANDS_ASIDE, reason)
            return
        if len(self.groups) > 1 and self.settings.load == "layers":
            raise ValueError("hinterland: load=layers needs a model whose layers are all alike (hint: load=beside)")
        where = f"{device(vllm_config.device_config.device_type)} {shape(kv_cache_config)}"
        ranks = range(parallel.world_size) if role == KVConnectorRole.SCHEDULER else [parallel.rank]
        links = []
        for rank in ranks:
            text = fingerprint(vllm_config, where, self.settings.namespace, rank)
            links.append(Link(self.settings.socket, text, self.settings.check_seconds))
        if role == KVConnectorRole.SCHEDULER:
            self.planner = Planner(links, self.groups, self.settings, transfer.is_kv_consumer, transfer.is_kv_producer)
            if vllm_config.kv_events_config and vllm_config.kv_events_config.enable_kv_cache_events:
                planner = self.planner
                # A prefix is a hit when the layers that look at all of it have it. Ranks store alike: one stands for all.
                self.record = Record(links[0], planner.whole or planner.windowed, planner.block_tokens)
        else:
            settings = self.settings
            if vllm_config.speculative_config or getattr(parallel, "use_ubatching", False):
                # There a layer is computed several times in a step.
                settings = dataclasses.replace(settings, save_beside=False)
            self.copier = Copier(links[0], self.groups, settings)

    @property
    def requires_kv_delivery(self):
        """A save that is dropped is a miss later, no more."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        """Layers are waited for and saved one by one."""
        return True

    # --- the scheduler's side ------------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        count = self.planner.match(request, num_computed_tokens) if self.planner else 0
        return count, count > 0 and self.settings.load == "beside"

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if self.planner:
            self.planner.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return self.planner.plan(scheduler_output) if self.planner else Step()

    def request_finished(self, request, block_ids):
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request, block_ids):
        if self.planner:
            self.planner.finished(request.request_id)
        return False, None

    def reset_cache(self):
        return self.planner.clear() if self.planner else None

    def take_events(self):
        return self.record.take() if self.record else ()

    # --- the worker's side ---------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches):
        if not self.copier:
            return
        try:
            slices, device = slices_of(self.groups, kv_caches, self.block_count, self.settings.device)
        except NotShareable as reason:
            # It has no slices then, and says of every load that it failed.
            logger.warning(STANDS_ASIDE, reason)
            return
        self.copier.register(slices, device)

    def bind_connector_metadata(self, connector_metadata):
        super().bind_connector_metadata(connector_metadata)
        if self.copier:
            self.copier.open(connector_metadata)

    def start_load_kv(self, forward_context, **kwargs):
        if self.copier:
            self.copier.load()

    def wait_for_layer_load(self, layer_name):
        if self.copier:
            self.copier.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        if self.copier:
            self.copier.layer_done(layer_name)

    def wait_for_save(self):
        if self.copier:
            self.copier.end()

    def get_transfer_results(self, finished_req_ids):
        finished, failed = self.copier.results() if self.copier else (set(), set())
        return KVConnectorTransferResults(finished_recving=finished, failed_recving=failed)

    def get_block_ids_with_load_errors(self):
        return self.copier.take_invalid() if self.copier else set()

    def shutdown(self):
        for link in self.planner.links if self.planner else ():
            link.close()
        if self.copier:
            self.copier.close()
            self.copier.link.close()
