"""A KV connector for vLLM: engines of one host share the blocks that they compute.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "HinterlandConnector",
        "kv_connector_module_path": "hinterland.vllm", "kv_role": "kv_both"}'

Settings of `kv_connector_extra_config` stand in `hinterland.vllm.settings`; the guide is docs/guides/vllm.md.
"""

from .connector import HinterlandConnector

__all__ = ["HinterlandConnector"]
