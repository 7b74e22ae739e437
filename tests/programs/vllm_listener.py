#!/usr/bin/env python3
"""Prints what an engine publishes, as routers read it: `vllm_listener.py ENDPOINT`. A line of JSON for each event: its kind, its
hashes, where the blocks are."""

import json
import sys

import msgspec
import zmq
from vllm.distributed.kv_events import KVEventBatch


def main():
    socket = zmq.Context().socket(zmq.SUB)
    socket.connect(sys.argv[1])
    socket.setsockopt_string(zmq.SUBSCRIBE, "")
    decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
    print(json.dumps("ready"), flush=True)
    while True:
        _, _, payload = socket.recv_multipart()
        for event in decoder.decode(payload).events:
            hashes, medium = getattr(event, "block_hashes", []), getattr(event, "medium", None)
            print(json.dumps([type(event).__name__, hashes, medium]), flush=True)


if __name__ == "__main__":
    main()
