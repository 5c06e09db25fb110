"""The messages in a text of a server: a line, the body of a response, or an event.

A request without an answer fails by where the failure was made. `ServerError` holds what a server
sent, whatever its code and text say: it is the server's answer. `RequestFailed` is made on this
side, by what the transport saw. The MCP SDK has one class for both.

A text is bounded in values before it is read, because each takes many times its bytes in memory. It
is read leniently where its meaning is clear; what cannot be read names the request that it answers,
so that nobody waits for an answer that has come.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import mcp_types as types
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from toolbus.chunks.carried_values import repaired
from toolbus.untrusted_text import one_line
from toolbus_toolkits.bounded_json import has_more_values

__all__ = [
    "CURRENT_CALL",
    "MAX_MESSAGE_BYTES",
    "MAX_RAW_WORDS",
    "MAX_WORDS",
    "NEGOTIATION",
    "FailureKind",
    "LoopShare",
    "Received",
    "RequestFailed",
    "SentRequests",
    "ServerError",
    "Streams",
    "read_messages",
]

FailureKind: TypeAlias = Literal[
    "not_sent", "no_session", "status", "lost", "unreadable", "timeout"
]
"""What was seen of a request without an answer.

`not_sent`: the server did not get it. `no_session`: it has status 404 and a session's id, which in
MCP says that the server does not know the session. `status`: another status of HTTP. `lost`: no
answer will come. `unreadable`: the answer is no message. `timeout`: none came in time.
"""


NEGOTIATION = frozenset({"server/discover", "initialize"})
"""The SDK finds a common version by the codes of the errors to these, and nothing runs by them."""


class ServerError(Exception):
    """The error that a server sent as its answer to a request."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class RequestFailed(Exception):
    """A request that has no answer.

    Args:
        words: Why; they may hold text of the server.
        kind: What was seen of it.
        request_id: Which request it is; None if that is not known, or is clear.
        status: The status of HTTP.
        retry_after_s: How long the server asks to wait.
    """

    def __init__(
        self,
        words: str,
        kind: FailureKind,
        *,
        request_id: types.RequestId | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__()
        self.words = words
        self.kind = kind
        self.request_id = request_id
        self.status = status
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.words

    @property
    def has_not_run(self) -> bool:
        """Whether the server has certainly done nothing for it."""
        return self.kind in ("not_sent", "no_session")


@dataclass(slots=True)
class SentRequests:
    """The requests of one call: one more for each answer to what its server asks."""

    can_ask: bool = False
    """Whether a person can be asked what the server asks its user."""
    count: int = 0
    """How many the transport was asked to send."""


CURRENT_CALL: ContextVar[SentRequests | None] = ContextVar("CURRENT_CALL", default=None)
"""The call that a request belongs to: the SDK sends within the task of its caller."""


MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""The longest text of a server."""
MAX_WORDS = 1_000
"""How much a server says in an error or a record of the log, which all callers may cause."""
MAX_RAW_WORDS = 4_000
"""Before credentials are taken out and it is cut further, so that no part of one is left."""
_MAX_VALUES = 200_000
"""They take 0.1 s to read."""
_UNCOUNTED_BYTES = 64 * 1024
"""A text of so many bytes has fewer than `_MAX_VALUES` values."""
_MAX_DEPTH = 200
"""As for pydantic, which cannot write what is deeper than 255."""
_LONG_S = 0.005
"""A server whose messages take longer than this to read takes turns with the rest."""
_SEARCHED_BYTES = 64 * 1024
"""An id is near the start or the end: all 16 MiB would be searched while the event loop waits."""
_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_ID_VALUE = re.compile(r'\s*:\s*(-?\d{1,18}(?:\.0+)?(?=[\s,}])|"(?:[^"\\]|\\.){0,200}")')
_LAST_ID = re.compile(r'"id"\s*:\s*(-?\d{1,18}(?:\.0+)?|"[^"\\]{0,200}")\s*\}\s*\Z')

Streams: TypeAlias = tuple[
    ObjectReceiveStream[SessionMessage | Exception], ObjectSendStream[SessionMessage]
]
"""What a session of the MCP SDK reads from and writes to."""
Received: TypeAlias = types.JSONRPCMessage | RequestFailed
"""A message, or what is none."""


class LoopShare:
    """Lets others go on between the messages of one server, for as long as these took to read."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._began = clock()

    async def give_back(self) -> None:
        """Wait as long as was used, if that was long."""
        took_s = self._clock() - self._began
        if took_s > _LONG_S:
            await self._sleep(took_s)
            self._began = self._clock()


def read_messages(data: bytes) -> list[Received]:
    """Return the messages of a text; several if it is a batch.

    It may have a byte order mark, half characters, or a number as 9.0. What is no message is a
    `RequestFailed` with the id that it seems to answer.
    """
    if len(data) > _UNCOUNTED_BYTES and has_more_values(data.decode(errors="replace"), _MAX_VALUES):
        return [_unreadable(data, f"it has more than {_MAX_VALUES:,} values")]
    try:
        return [types.jsonrpc_message_adapter.validate_json(data, by_name=False)]
    except ValidationError:
        pass
    text = data.removeprefix(_BOM).decode(errors="replace")
    try:
        value = _whole_characters(json.loads(text))
    except RecursionError:
        return [_unreadable(data, "it nests too deep")]
    except ValueError as error:
        return [_unreadable(data, f"it is no JSON: {error}")]
    if not isinstance(value, list):
        value = [value]
    return [_message(message, data) for message in value]


def _whole_characters(value: Any, depth: int = 0) -> Any:
    """Return a value with U+FFFD for each half of a surrogate pair, which JSON may hold.

    Raises `RecursionError` for a value that nests deeper than the first reading allows.
    """
    if depth > _MAX_DEPTH:
        raise RecursionError
    if isinstance(value, str):
        return value if value.isascii() else repaired(value)
    if isinstance(value, list):
        return [_whole_characters(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {
            _whole_characters(name): _whole_characters(member, depth + 1)
            for name, member in value.items()
        }
    return value


def _message(value: Any, data: bytes) -> Received:
    request_id = None
    if isinstance(value, dict):
        request_id = _id(value.get("id"))
        if request_id is not None:
            value["id"] = request_id
    try:
        return types.jsonrpc_message_adapter.validate_python(value, by_name=False)
    except (ValidationError, RecursionError):
        words = f"the server sent what is no message: {_shown(data)}"
        return RequestFailed(words, "unreadable", request_id=request_id)


def _id(value: Any) -> types.RequestId | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _unreadable(data: bytes, reason: str) -> RequestFailed:
    words = f"the server sent what cannot be read: {reason}: {_shown(data)}"
    return RequestFailed(words, "unreadable", request_id=_id_in(data))


def _shown(data: bytes) -> str:
    return one_line(data[:MAX_RAW_WORDS].decode(errors="replace"), MAX_RAW_WORDS)


def _id_in(data: bytes) -> types.RequestId | None:
    """Return the id of a message that is not valid JSON, near its start or at its end."""
    start = data[:_SEARCHED_BYTES].decode(errors="replace")
    depth = 0
    for token in _TOKEN.finditer(start):
        if token[0] in "{[":
            depth += 1
        elif token[0] in "}]":
            depth -= 1
        elif depth == 1 and token[0] == '"id"' and (value := _ID_VALUE.match(start, token.end())):
            return _id(json.loads(value[1]))
    last = _LAST_ID.search(data[-300:].decode(errors="replace"))
    return last and _id(json.loads(last[1]))
