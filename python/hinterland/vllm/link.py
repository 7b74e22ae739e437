"""The blocks of an engine: a namespace of a pool that may be absent, in the words of vLLM's log."""

from vllm.logger import init_logger

import hinterland.link

logger = init_logger("vllm.hinterland")


class Link(hinterland.link.Link):
    """The blocks of one fingerprint, or nothing while there is no node."""

    def __init__(self, socket, fingerprint, check_seconds):
        super().__init__(socket, fingerprint, check_seconds, logger, "the engine goes on without it")
