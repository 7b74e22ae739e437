"""A connector whose pool can lose blocks at the worst moment: after they were found, before they are copied."""

from hinterland.vllm import HinterlandConnector


class Forgetful(HinterlandConnector):
    """`forget(N)` makes the next load miss its last N keys; `told()` says which blocks were reported since."""

    to_forget = 0
    reported = 0

    def forget(self, count):
        self.to_forget = count
        self.reported = 0
        return True

    def told(self):
        return self.reported

    def bind_connector_metadata(self, connector_metadata):
        if self.to_forget and connector_metadata.loads:
            load = connector_metadata.loads[0]
            keys = [key for place in range(len(self.copier.slices)) for _, key in self.copier.keys(load, place)]
            self.copier.link.ask(lambda kv: kv.remove(keys[-self.to_forget :]), None)
            self.to_forget = 0
        super().bind_connector_metadata(connector_metadata)

    def get_transfer_results(self, finished_req_ids):
        results = super().get_transfer_results(finished_req_ids)
        self.reported += len(results.failed_recving)
        return results

    def get_block_ids_with_load_errors(self):
        blocks = super().get_block_ids_with_load_errors()
        self.reported += len(blocks)
        return blocks
