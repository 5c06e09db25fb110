"""The events of a streamed reply, checked before the client of a provider reads them.

Servers report errors within a stream in more ways than the clients know, and some answer with a
whole reply. All of that is read here, once for all APIs: the clients get events of their API.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import httpx2

from toolbus.models.api_errors import error_in
from toolbus.models.reply_values import as_list, as_object

__all__ = ["MAX_ERROR_BYTES", "ErrorReply", "check_whole", "checked_events"]

MAX_ERROR_BYTES = 64 * 1024
"""What is read of the body of an error. Its text is cut to far less; a proxy may send any page."""
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


class ErrorReply(httpx2.HTTPError):
    """What came with the status of success reports an error, or is not a reply.

    Args:
        body: JSON that reports an error, or the text of what is not a reply.
        is_report: Whether it reports an error.
    """

    def __init__(self, body: Any, *, is_report: bool) -> None:
        super().__init__("the reply cannot be used")
        self.body = body
        self.is_report = is_report


def check_whole(content: bytes) -> None:
    """Raise `ErrorReply` for a body that reports an error; what is no JSON the client refuses."""
    if (error := error_in(_parsed(content))) is not None:
        raise ErrorReply(error, is_report=True)


async def checked_events(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a body, each as bytes of an event stream.

    Raises `ErrorReply` for an event that reports an error and for a body that is not a reply.
    """
    lines = _Lines()
    reader = _Reader()
    async with aclosing(pieces):
        async for piece in pieces:
            for line in lines.of(piece):
                if (event := reader.event(line)) is not None:
                    yield event
            if reader.has_enough:
                break
    reader.event(lines.rest())
    for event in reader.last_events():
        yield event


class _Lines:
    """Splits pieces into lines; only the newest piece is searched for a line end."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._ends_with_cr = False
        self._is_first = True

    def of(self, piece: bytes) -> Iterator[bytes]:
        if self._ends_with_cr:
            piece = piece.removeprefix(b"\n")
        self._ends_with_cr = piece.endswith(b"\r")
        *ends, rest = _LINE_END.split(piece)
        for end in ends:
            self._pieces.append(end)
            yield self.rest()
        if rest:
            self._pieces.append(rest)

    def rest(self) -> bytes:
        """Return the line so far, and begin the next one."""
        line = b"".join(self._pieces)
        self._pieces.clear()
        if self._is_first and line:
            self._is_first = False
            line = line.removeprefix(_BOM)
        return line


class _Reader:
    """Reads lines of an event stream, or of what came in its place."""

    def __init__(self) -> None:
        self._name = ""
        self._data: list[bytes] = []
        self._body: list[bytes] = []
        """Lines of a body that is not an event stream."""
        self._body_bytes = 0
        self._has_event = False

    @property
    def has_enough(self) -> bool:
        """Whether further lines change nothing: of a page the beginning says what it is."""
        return self._body_bytes > MAX_ERROR_BYTES and not _is_json(self._body[0])

    def event(self, line: bytes) -> bytes | None:
        """Read a line; return the event that it ends. Raises `ErrorReply`."""
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if self._body and self._has_event and field in (b"data", b"event"):
            # JSON between two events reports an error, or is not a part of the reply.
            self._check_body()
            self._body.clear()
        if self._body:
            self._body.append(line)
            self._body_bytes += len(line)
        elif not line:
            return self._ended_event()
        elif field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"error":  # of llama.cpp
            self._name = "error"
            self._data = [value]
            return self._ended_event()
        elif _is_json(line) or (
            not (self._has_event or self._data or self._name)
            # The first line is not one of an event stream, but that of a page, or of a text.
            and field.strip()
            and field not in (b"id", b"retry")
        ):
            self._body.append(line)
            self._body_bytes = len(line)
        return None

    def last_events(self) -> Iterator[bytes]:
        """Yield the events at the end of the body. Raises `ErrorReply`."""
        if self._body:
            value = self._check_body()
            if self._has_event:
                return  # what follows the events of a reply is no part of it
            replies = value if isinstance(value, list) else [value]
            events = [event for reply in replies for event in _as_events(reply)]
            if not events:
                raise ErrorReply(_text(b"\n".join(self._body)), is_report=False)
            for made in events:
                yield _written(made, json.dumps(made).encode())
            return
        # An event that is not JSON broke off: what reads the events says so.
        if _parsed(b"\n".join(self._data)) is not None and (event := self._ended_event()):
            yield event

    def _ended_event(self) -> bytes | None:
        name = self._name
        data = b"\n".join(self._data)
        self._name = ""
        self._data = []
        if not data.strip() or name == "ping":
            return None
        is_first = not self._has_event
        self._has_event = True
        if data.startswith(b"[DONE]"):
            return b"data: [DONE]\n\n"
        value = _parsed(data)
        if (error := error_in(value, name)) is not None:
            raise ErrorReply(error, is_report=True)
        if not isinstance(value, dict):
            raise ErrorReply(_text(data), is_report=name == "error")
        if is_first and _is_whole(value) and (events := _as_events(value)):
            return b"".join(_written(event, json.dumps(event).encode()) for event in events)
        # The client of Anthropic passes over events without a name, which some servers send.
        return _written(value, data, name) if value else None

    def _check_body(self) -> Any:
        """Return the body as JSON. Raises `ErrorReply` if it reports an error."""
        value = _parsed(b"\n".join(self._body))
        if (error := error_in(value)) is not None:
            raise ErrorReply(error, is_report=True)
        return value


def _parsed(data: bytes) -> Any:
    """Return what JSON means; None for what is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _is_json(line: bytes) -> bool:
    return line.lstrip().startswith((b"{", b"["))


def _text(data: bytes) -> str:
    return data[:MAX_ERROR_BYTES].decode("utf-8", "replace")


def _written(event: Mapping[str, Any], data: bytes, name: str = "") -> bytes:
    kind = name or event.get("type")
    head = f"event: {kind}\n" if isinstance(kind, str) and kind.isprintable() else ""
    return head.encode() + b"data: " + data.replace(b"\n", b" ") + b"\n\n"


def _as_events(reply: Any) -> list[dict[str, Any]]:
    """Return the events of a stream for a whole reply; none for what is not a reply."""
    match reply:
        case {"choices": [{"message": {}}, *_]}:
            return [_chat_event(reply)]
        case {"output": [*items]}:
            return [*_responses_events(reply, items)]
        case {"type": "message", "content": [*blocks]}:
            return [*_messages_events(reply, blocks)]
        case {"candidates": [*_]} | {"promptFeedback": {}}:
            return [dict(reply)]
    return []


def _is_whole(event: Mapping[str, Any]) -> bool:
    """Whether the only event of a stream is a whole reply."""
    match event:
        case {"choices": [{"delta": {}}, *_]}:
            return False
        case {"choices": [{"message": {}}, *_]} | {"object": "response"} | {"type": "message"}:
            return True
    return False


def _chat_event(reply: Mapping[str, Any]) -> dict[str, Any]:
    choices = []
    for choice in reply["choices"]:
        delta = dict(choice.get("message") or {})
        if isinstance(calls := delta.get("tool_calls"), list):
            found = [call for call in calls if isinstance(call, dict)]
            delta["tool_calls"] = [{**call, "index": n} for n, call in enumerate(found)]
        choices.append({**choice, "delta": delta})
        choices[-1].pop("message", None)
    return {**reply, "object": "chat.completion.chunk", "choices": choices}


def _responses_events(reply: Mapping[str, Any], items: list[Any]) -> Iterator[dict[str, Any]]:
    for index, item in enumerate(items):
        for number, part in enumerate(as_list(as_object(item).get("content"))):
            if isinstance(part, dict) and part.get("type") == "output_text":
                place = {"output_index": index, "content_index": number, "item_id": item.get("id")}
                text = part.get("text", "")
                yield {"type": "response.output_text.delta", "delta": text, **place}
    status = reply.get("status", "completed")
    yield {"type": f"response.{status}", "response": dict(reply)}


def _messages_events(reply: Mapping[str, Any], blocks: list[Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": {**reply, "content": []}}
    for index, block in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_stop", "index": index}
    ends = {name: reply.get(name) for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ends, "usage": reply.get("usage") or {}}
    yield {"type": "message_stop"}
