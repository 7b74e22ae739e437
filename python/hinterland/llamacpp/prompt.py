"""The tokens of a request, as the server will make them."""

from __future__ import annotations

import json
from array import array
from typing import Any, NamedTuple

from .http import Request
from .server import Server

COMPLETIONS = {"/completion", "/completions", "/v1/completions"}
CHATS = {"/chat/completions", "/v1/chat/completions"}
# Requests that leave slots alone, beside all that only read.
HARMLESS = {
    "/tokenize", "/detokenize", "/apply-template", "/chat/completions/input_tokens", "/v1/chat/completions/input_tokens",
    "/v1/responses/input_tokens", "/responses/input_tokens", "/v1/messages/count_tokens",
}
# What makes more or other keys and values than those of the prompt.
UNSHARED = ("lora", "n_cache_reuse")


class Prompt(NamedTuple):
    """A request for one completion of a text: the JSON of its body, and the tokens of the prompt."""

    content: dict[str, Any]
    tokens: array[int]


def touches_slots(request: Request) -> bool:
    """Whether the server may use a slot for it."""
    return request.method == "POST" and request.path not in HARMLESS


async def prompt_of(request: Request, server: Server) -> Prompt | None:
    """The prompt, or nothing for a request that is passed on as it is. OSError when the server cannot be asked, RecursionError for
    JSON of too many levels."""
    if request.method != "POST" or request.path not in COMPLETIONS | CHATS:
        return None
    try:
        content = json.loads(request.body)
    except ValueError:
        return None
    if not isinstance(content, dict) or content.get("n", 1) not in (1, None) or any(content.get(name) for name in UNSHARED):
        return None
    authorization = request.header("authorization")
    text = content.get("prompt")
    if request.path in CHATS:
        status, made = await server.ask("POST", "/apply-template", content, authorization)
        text = made.get("prompt") if status == 200 and isinstance(made, dict) else None
    if isinstance(text, str):
        wanted = {"content": text, "add_special": True, "parse_special": True}
        status, made = await server.ask("POST", "/tokenize", wanted, authorization)
        text = made.get("tokens") if status == 200 and isinstance(made, dict) else None
    return Prompt(content, array("i", text)) if is_tokens(text) else None


def is_tokens(value: object) -> bool:
    """Whether it is a list of tokens and not of prompts."""
    return isinstance(value, list) and bool(value) and all(type(token) is int and 0 <= token < 1 << 31 for token in value)
