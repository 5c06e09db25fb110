"""Random replies as streams of each API, cut anywhere: what may run of them.

A stream is made of a whole reply in random pieces, as bytes of server-sent events. Of a stream that
is cut at a byte, a use may run only with the arguments of the reply, all of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from support.models.wire_replies import APIS, Says, events_of
from toolbus.errors import InvalidArguments
from toolbus.models import anthropic, gemini, openai_chat, openai_responses
from toolbus.models.adapter import Adapter
from toolbus.models.model_error import ModelError
from toolbus.turns.tool_use import arguments_of

__all__ = ["ADAPTERS", "check_cut", "random_says", "random_stream", "runnable", "sse"]

ADAPTERS: dict[str, Adapter] = dict(
    zip(APIS, (openai_chat, openai_responses, anthropic, gemini), strict=True)
)
_TEXTS = ("", "a", "é", 'quo"te', "{}", '{"folder": "/x"}', "line\nend", "\\", "x" * 40)
_CHAT_STYLES = ("usual", "no index", "ids", "name in pieces", "placeholder")
_NAMES = ("kit__purge", "kit__ping", "kit__read")


def random_says(dice: random.Random) -> Says:
    """Return a text and calls, whose arguments are always different ones."""
    uses = []
    for number in range(dice.randrange(4)):
        arguments: dict[str, Any] = {"number": number}
        for _ in range(dice.randrange(3)):
            value = dice.choice([dice.choice(_TEXTS), dice.random(), None, {"in": [1, {}]}])
            arguments[dice.choice("abc")] = value
        uses.append((dice.choice(_NAMES), arguments))
    return Says(dice.choice(_TEXTS), tuple(uses))


def random_stream(api: str, says: Says, dice: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of a reply in random pieces, as one of many servers sends them."""
    events = []
    style = dice.choice(_CHAT_STYLES)
    for name, event in events_of(api, says):
        found = _chat(event, dice, style) if api == "openai-chat" else _SPLIT[api](event, dice)
        events += [(name, each) for each in found]
    return events


def _chat(event: dict[str, Any], dice: random.Random, style: str) -> Iterator[dict[str, Any]]:
    choice = event["choices"][0]
    if "tool_calls" not in choice["delta"]:
        yield event
        return
    (call,) = choice["delta"]["tool_calls"]
    function = call["function"]
    if style == "no index":
        call = {key: value for key, value in call.items() if key != "index"}
    if "name" not in function:
        made = [{"arguments": piece} for piece in _pieces(function["arguments"], dice)]
    elif style == "name in pieces":
        made = [{"name": piece} for piece in _pieces(function["name"], dice)]
    else:
        made = [function | {"arguments": "{}"}] if style == "placeholder" else [function]
    for number, each in enumerate(made):
        piece = call | {"function": each}
        if number and style == "ids":
            piece["id"] = f"other{number}"  # the first id counts
        yield event | {"choices": [choice | {"delta": {"tool_calls": [piece]}}]}


def _responses(event: dict[str, Any], dice: random.Random) -> Iterator[dict[str, Any]]:
    kind = event["type"]
    if kind.endswith("arguments.delta"):
        yield from (event | {"delta": piece} for piece in _pieces(event["delta"], dice))
    elif kind == "response.completed" and dice.random() < 0.3:
        yield event | {"response": event["response"] | {"output": []}}
    elif not kind.endswith(("arguments.done", "item.done")) or dice.random() < 0.8:
        yield event


def _anthropic(event: dict[str, Any], dice: random.Random) -> Iterator[dict[str, Any]]:
    delta = event.get("delta", {})
    if delta.get("type") == "input_json_delta":
        for piece in _pieces(delta["partial_json"], dice):
            yield event | {"delta": delta | {"partial_json": piece}}
    elif event["type"] not in ("content_block_stop", "message_stop") or dice.random() < 0.9:
        yield event


def _gemini(event: dict[str, Any], _: random.Random) -> Iterator[dict[str, Any]]:
    yield event


_SPLIT: dict[str, Callable[[dict[str, Any], random.Random], Iterator[dict[str, Any]]]] = dict(
    zip(APIS[1:], (_responses, _anthropic, _gemini), strict=True)
)


def _pieces(text: str, dice: random.Random) -> list[str]:
    cuts = sorted(dice.randrange(len(text) + 1) for _ in range(dice.randrange(4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def sse(events: list[tuple[str, dict[str, Any]]]) -> bytes:
    """Return events as the bytes of a stream."""
    named = [f"event: {name}\n" if name else "" for name, _ in events]
    texts = [json.dumps(event, ensure_ascii=False) for _, event in events]
    return "".join(f"{a}data: {b}\n\n" for a, b in zip(named, texts, strict=True)).encode()


def _events(stream: bytes) -> list[dict[str, Any]]:
    """Return the events whose end has come."""
    *whole, _ = stream.decode(errors="replace").split("\n\n")
    found = [each.partition("data: ")[2] for each in whole]
    return [json.loads(each) for each in found if each.startswith("{")]


def check_cut(api: str, wanted: Sequence[tuple[str, Any]], stream: bytes) -> int:
    """Check what runs of a stream, and return how many uses do.

    Args:
        api: The API.
        wanted: The calls of the reply: names and arguments.
        stream: The bytes that have come.
    """
    try:
        ran = runnable(api, _events(stream))
    except ModelError:
        return 0
    assert all(each in wanted for each in ran), (ran, wanted, stream)
    return len(ran)


def runnable(api: str, events: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return name and arguments of the uses that run. Raises `ModelError` for what is no reply."""
    adapter = ADAPTERS[api]
    ran = []
    for use in adapter.uses(adapter.collect(events)):
        try:
            arguments = arguments_of(use)
        except InvalidArguments:
            continue
        if use.arguments is not None:  # else only a tool without parameters runs
            ran.append((use.name, arguments))
    return ran
