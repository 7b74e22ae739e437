"""The command: starts llama-server, serves its clients in its place, and ends with it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import pathlib
import shutil
import signal
import sys

from .command import Command, CommandError, take_apart
from .proxy import Proxy
from .server import Server, ServerEnded, make_folder
from .start import Settings, Unshared, begin_sharing

logger = logging.getLogger("hinterland.llamacpp")

USAGE_STATUS = 2
FAILURE_STATUS = 1
TAKEN_OVER = ("LLAMA_ARG_HOST", "LLAMA_ARG_PORT")


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our options, and the command behind `--`."""
    parser = argparse.ArgumentParser(
        prog="python -m hinterland.llamacpp",
        usage="%(prog)s [options] -- llama-server [options of llama-server]",
        description="Starts a llama-server and serves its clients, at the --host and --port of its command, with prompts that"
        " other servers have computed. GET /hinterland says what was shared.",
    )
    parser.add_argument("--socket", help="the node's socket (HINTERLAND_SOCKET, or the usual one)")
    parser.add_argument("--namespace", default="", help="any text; only servers with the same one share")
    parser.add_argument("--min-tokens", type=int, default=256, metavar="N", help="less is computed and not shared (256)")
    parser.add_argument("--scratch", metavar="DIR", help="a folder for files of slots, in memory at best (/dev/shm)")
    parser.add_argument("--check-seconds", type=float, default=5.0, metavar="S", help="between looks for the node (5)")
    at = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:at])
    if not words[at + 1:]:
        parser.error("there is no command (hint: python -m hinterland.llamacpp -- llama-server -m model.gguf)")
    if arguments.min_tokens < 1 or arguments.check_seconds < 0:
        parser.error("--min-tokens is at least 1 and --check-seconds not negative")
    return arguments, words[at + 1:]


async def serve(server: Server, command: Command, settings: Settings, folder: pathlib.Path) -> int:
    """Serves until the server ends or a signal comes; the status to end with."""
    stop = asyncio.Event()
    # Who started this program may have blocked them.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stopped = asyncio.ensure_future(stop.wait())
    serving = asyncio.ensure_future(serve_clients(server, command, settings, folder))
    try:
        await asyncio.wait([stopped, serving], return_when=asyncio.FIRST_COMPLETED)
        return serving.result() if serving.done() else 0
    finally:
        for task in (stopped, serving):
            task.cancel()
        await asyncio.gather(stopped, serving, return_exceptions=True)


async def serve_clients(server: Server, command: Command, settings: Settings, folder: pathlib.Path) -> int:
    """Serves until the server ends; its status."""
    sharing, why = None, None
    try:
        await server.wait_ready()
        try:
            sharing = await begin_sharing(server, command, settings, folder)
        except Unshared as error:
            why = str(error)
            logger.warning("nothing is shared: %s", why)
        listening = await Proxy(server, sharing, why).listen(command.host, command.port)
        try:
            place = listening.sockets[0].getsockname()
            logger.info("serving at http://%s:%s", place[0], place[1])
            return await server.wait_ended()
        finally:
            # Not waited for: a client may read for minutes.
            listening.close()
    except ServerEnded as ended:
        return ended.status
    finally:
        if sharing is not None:
            sharing.store.link.close()


def main(words: list[str]) -> int:
    """Runs the command; the status to end with."""
    logging.basicConfig(level=logging.INFO, format="hinterland: %(message)s")
    arguments, started = parse(words)
    settings = Settings(
        arguments.socket or os.environ.get("HINTERLAND_SOCKET"), arguments.namespace, arguments.min_tokens, arguments.check_seconds
    )
    try:
        command = take_apart(started, os.environ)
        folder = make_folder(arguments.scratch)
    except CommandError as error:
        logger.error("%s", error)
        return USAGE_STATUS
    except OSError as error:
        logger.error("there is no folder for files of slots: %s (hint: --scratch DIR)", error)
        return FAILURE_STATUS
    server = Server(folder, command.authorization)
    environment = {name: value for name, value in os.environ.items() if name not in TAKEN_OVER}
    try:
        server.start(command.started(server.socket, folder), environment)
        return asyncio.run(serve(server, command, settings, folder))
    except OSError as error:
        logger.error("%s (hint: check the command, the host and the port)", error)
        return FAILURE_STATUS
    finally:
        # From here on signals are of no use: the end is near.
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):
                signal.signal(number, signal.SIG_IGN)
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
