"""Replays a recorded conversation to the current server: its replies must be the same.

What a server chooses may differ: ids, the generation and cursors (but one choice always replaces
the same recorded one), times, limits, and texts for people. It may send more than it did: fields at
a frame's end, keys, kinds. Answers to a client may come before or after what others cause, such as
the dispatch of a call. All else must be equal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from support.clients.raw_client import (
    BINARY,
    CLOSE,
    RawClient,
    bearer,
    raw_connection,
    websocket_frame,
)
from toolbus_server.testing import TestServer

WELCOME, RESULT, FAILED, EVENT = 1, 2, 3, 4
DISPATCH, CANCEL, REGISTER, CALL = 17, 18, 32, 16
OLD_KINDS = frozenset({WELCOME, RESULT, FAILED, EVENT, DISPATCH, CANCEL})
"""The frames that a client of the first release reads; it ignores all others."""

_ANSWERS = frozenset({WELCOME, RESULT, FAILED})

# Positions in a frame, or keys in a map: what the server chooses, and what must only have its type.
_CHOSEN = {(WELCOME, 2), (WELCOME, 4), (DISPATCH, 1), (CANCEL, 1)}
_CHOSEN_KEYS = frozenset({"id", "generation", "cursor"})
_FREE = {(WELCOME, 1), (FAILED, 5), (FAILED, 7), (DISPATCH, 5)}
_FREE_KEYS = frozenset({"message", "since", "limits", "heartbeat_ms", "exp"})


class ConversationDiffers(AssertionError):
    """The server's frame differs from the recorded one."""


@dataclass(slots=True)
class Choices:
    """What the server chose in the recording, and what it chose now instead."""

    now: dict[Any, Any] = field(default_factory=dict)

    def bind(self, then: Any, now: Any, place: str) -> None:
        """Record a choice; one that was recorded must be the same again."""
        if type(then) is not type(now) or self.now.setdefault(then, now) != now:
            raise ConversationDiffers(f"{place}: {now!r} in the place of {then!r}")

    def translated(self, frame: list[Any]) -> list[Any]:
        """Replace recorded choices in a frame that a client sends."""
        match frame:
            case [int(kind), number, *rest] if kind in (RESULT, FAILED):
                return [kind, self.now[number], *rest]
            case [int(kind), *most, dict(options), traceparent] if kind == CALL:
                return [kind, *most, self._of_options(options), traceparent]
            case [int(kind), number, manifest, options] if kind == REGISTER:
                return [kind, number, manifest, self._of_options(options)]
        return frame

    def _of_options(self, options: dict[str, Any]) -> dict[str, Any]:
        chosen = ("parent", "generation")
        return {key: self.now[item] if key in chosen else item for key, item in options.items()}


def conversations(folder: Path) -> Iterator[Path]:
    """Return the files of all recorded conversations."""
    yield from sorted(folder.glob("*.json"))


class Replay:
    """One conversation with a server.

    Args:
        server: The current server.
        stack: Closes the connections.
    """

    def __init__(self, server: TestServer, stack: AsyncExitStack) -> None:
        self._server = server
        self._stack = stack
        self._clients: dict[str, RawClient] = {}
        self._early: dict[str, list[list[Any]]] = {}
        """Frames of each client that came before an answer, or before what others caused."""
        self.choices = Choices()
        self.received = 0
        """How many frames of the server's were as they had been."""

    async def run(self, conversation: list[dict[str, Any]]) -> None:
        """Replay it step by step.

        Raises:
            ConversationDiffers: A frame differs.
        """
        for step in conversation:
            match step:
                case {"joins": who, "name": name, "path": path}:
                    await self._join(who, name, path)
                case {"by": who, "frame": frame}:
                    self._clients[who].send_message(self.encoded(frame))
                case {"to": who, "frame": frame}:
                    await self._receive(who, frame)
                case {"leaves": who, "code": int(code)}:
                    closing = websocket_frame(code.to_bytes(2, "big"), opcode=CLOSE)
                    self._clients[who].send(closing)
                case {"closed": who, "code": code}:
                    if (now := await self._clients[who].close_code()) != code:
                        raise ConversationDiffers(f"{who} closed with {now} instead of {code}")
                case {"leaves": _, "code": None}:
                    pass  # the server does not notice
                case _:
                    raise ValueError(f"no step: {step}")

    def encoded(self, frame: list[Any]) -> bytes:
        """Return the bytes that a client sends."""
        return packed(self.choices.translated(self._with_tokens(frame)))

    def _with_tokens(self, frame: list[Any]) -> list[Any]:
        return [
            self._server.token(field["$token"])
            if isinstance(field, dict) and "$token" in field
            else field
            for field in frame
        ]

    async def _join(self, who: str, name: str, path: str) -> None:
        client = await self._stack.enter_async_context(raw_connection(self._server.url))
        head = await client.upgrade(path, bearer(self._server.token(name)))
        assert head.status == 101, head
        self._clients[who] = client

    async def _receive(self, who: str, then: list[Any]) -> None:
        early = self._early.setdefault(who, [])
        is_answer = then[0] in _ANSWERS
        now = next((each for each in early if (each[0] in _ANSWERS) == is_answer), None)
        if now is not None:
            early.remove(now)
        async with asyncio.timeout(60):
            while now is None:
                frame = await self._next(who, then)
                if (frame[0] in _ANSWERS) == is_answer:
                    now = frame
                else:
                    early.append(frame)
        same_frame(then, now, self.choices)
        self.received += 1

    async def _next(self, who: str, then: list[Any]) -> list[Any]:
        """Return the next frame that a client of the first release reads."""
        while True:
            raw = await self._clients[who].read_raw()
            if raw.opcode == CLOSE:
                raise ConversationDiffers(f"{who} was closed instead of told {then}")
            if raw.opcode == BINARY:
                frame: list[Any] = msgpack.unpackb(raw.payload)
                if frame[0] in OLD_KINDS:
                    return frame


def same_frame(then: list[Any], now: list[Any], choices: Choices) -> None:
    """Compare a frame of the server with the recorded one.

    Raises:
        ConversationDiffers: They differ.
    """
    kind = then[0]
    if now[0] != kind or len(now) < len(then):
        raise ConversationDiffers(f"{now} instead of {then}")
    for index, (old, new) in enumerate(zip(then, now, strict=False)):
        place = f"/{index} of {kind}"
        if (kind, index) in _CHOSEN:
            choices.bind(old, new, place)
        elif (kind, index) in _FREE:
            _same_type(old, new, place)
        else:
            _same(old, new, place, choices)


def _same(then: Any, now: Any, place: str, choices: Choices) -> None:
    match then:
        case {"$packed": value} if isinstance(now, bytes):
            _same(value, msgpack.unpackb(now), place, choices)
        case {"$bin": text} if isinstance(now, bytes):
            _equal(text, now.hex(), place)
        case dict() if isinstance(now, dict):
            _same_map(then, now, place, choices)
        case list() if isinstance(now, list) and len(now) == len(then):
            for index, (old, new) in enumerate(zip(then, now, strict=True)):
                _same(old, new, f"{place}/{index}", choices)
        case str() if then in choices.now:
            _equal(choices.now[then], now, place)  # as in `caller`, which has no name
        case _:
            _equal(then, now, place)


def _same_map(then: dict[str, Any], now: dict[str, Any], place: str, choices: Choices) -> None:
    for key, old in then.items():
        if key not in now:
            raise ConversationDiffers(f"{place}: no {key!r} any more")
        inside = f"{place}/{key}"
        if key in _CHOSEN_KEYS and old is not None:
            choices.bind(old, now[key], inside)
        elif key in _FREE_KEYS:
            _same_type(old, now[key], inside)
        else:
            _same(old, now[key], inside, choices)


def _same_type(then: Any, now: Any, place: str) -> None:
    if type(then) is not type(now):
        raise ConversationDiffers(f"{place}: {now!r} instead of {then!r}")
    if isinstance(then, dict):
        for key, old in then.items():
            if key not in now:
                raise ConversationDiffers(f"{place}: no {key!r} any more")
            _same_type(old, now[key], f"{place}/{key}")


def _equal(then: Any, now: Any, place: str) -> None:
    if type(then) is not type(now) or then != now:
        raise ConversationDiffers(f"{place}: {now!r} instead of {then!r}")


def packed(value: Any) -> bytes:
    """Return the bytes of a recorded value."""
    data = msgpack.packb(_bytes_in(value))
    assert isinstance(data, bytes)
    return data


def _bytes_in(value: Any) -> Any:
    match value:
        case {"$packed": held}:
            return packed(held)
        case {"$bin": text}:
            return bytes.fromhex(text)
        case dict():
            return {key: _bytes_in(item) for key, item in value.items()}
        case list():
            return [_bytes_in(item) for item in value]
    return value


def read_conversation(path: Path) -> list[dict[str, Any]]:
    """Read a recorded conversation."""
    conversation: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["talk"]
    return conversation
