"""What is exchanged with one MCP server, between its transport and the MCP SDK.

The SDK has one class for errors that a server sent and for those that it made itself, and decides
by their codes and texts. Here both are marked by their origin before the SDK reads them, and what
answers no request ends.

The SDK refuses a whole list of tools for one invalid tool, too: here that tool is left out before,
and so is one that the entry of its server does not show. What is wrong otherwise is for the SDK to
refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from toolbus import Omission
from toolbus.bounded_logging import bounded_logger
from toolbus.untrusted_text import one_line
from toolbus.wire import MAX_TOOLS
from toolbus_toolkits.credentials.redaction import Redact
from toolbus_toolkits.mcp.content import make_valid
from toolbus_toolkits.mcp.log_budget import LogBudget
from toolbus_toolkits.mcp.messages import (
    CURRENT_CALL,
    MAX_WORDS,
    NEGOTIATION,
    RequestFailed,
    ServerError,
    Streams,
)

__all__ = ["MAX_NAMES", "TOO_MANY", "SeenTools", "ToolLists", "exchange"]

MAX_NAMES = 2_000
"""Names of a list that are remembered."""
_METHOD = "tools/list"
_SLICE = 50
"""Tools that are checked in one piece: some milliseconds."""
_MAX_PROBLEMS = 1_000
"""Of one slice: one with more is left as it is."""
_MAX_NAME_CHARS = 1_000
"""A server chooses its names, and they are in memory and in each comparison."""
_MAX_LEFT_OUT = 2_000
"""A server may list invalid tools without end: beyond it the rest is not remembered."""
TOO_MANY = f"a toolkit has at most {MAX_TOOLS:,} tools: choose with enabledTools or disabledTools"
"""Why a tool beyond those is left out."""

_logger = bounded_logger(__name__)


@dataclass(slots=True)
class SeenTools:
    """What a list of a server, over all its pages, has beside the tools that come of it."""

    is_shown: Callable[[str], bool]
    """Whether an entry shows a tool, by its name."""
    names: set[str] = field(default_factory=set)
    """The names that were listed, up to `MAX_NAMES`."""
    left_out: list[Omission] = field(default_factory=list)
    """Tools that are shown, and cannot be used."""

    def clear(self) -> None:
        """Forget it, before another list."""
        self.names.clear()
        self.left_out.clear()

    def takes(self, tool: object) -> bool:
        """Note a tool; return whether it is shown, as far as that is known."""
        name = _name_of(tool)
        if name is None:
            return True
        if len(name) > _MAX_NAME_CHARS:  # MCP itself has 128
            self.left_out.append(Omission(name, "its name is too long"))
            return False
        if len(self.names) < MAX_NAMES:
            self.names.add(name)
        return self.is_shown(name)


class ToolLists:
    """Makes the lists of one server readable.

    Args:
        server: Its name, for the log.
        version: Returns the version of MCP that is spoken; called with the first list.
        redact: Removes credentials from what is logged.
        seen: Takes what is left out, and says which tools are shown.
    """

    def __init__(
        self, server: str, version: Callable[[], str], redact: Redact, seen: SeenTools
    ) -> None:
        self._server = server
        self.version = version
        self._redact = redact
        self._seen = seen
        self._has_logged = False

    async def leave_out_invalid(self, result: dict[str, Any]) -> None:
        """Remove what is not shown, what is invalid, and what is beyond the tools of a toolkit."""
        tools = result.get("tools")
        if not isinstance(tools, list):
            return
        valid: list[Any] = []
        for start in range(0, len(tools), _SLICE):
            found = [tool for tool in tools[start : start + _SLICE] if self._seen.takes(tool)]
            if len(valid) > MAX_TOOLS:
                self._seen.left_out += (self._left_out(tool, TOO_MANY) for tool in found)
            else:
                valid += self._valid({**result, "tools": found})
            await asyncio.sleep(0)
            if len(self._seen.left_out) > _MAX_LEFT_OUT:
                if not self._has_logged:  # once, and not for each list
                    self._has_logged = True
                    text = f"a list of {len(tools):,} tools is not read to its end"
                    _logger.warning("MCP server %s: %s", self._server, text)
                unread = len(tools) - start - _SLICE
                if unread > 0:
                    name = f"the last {unread:,} of the list"
                    self._seen.left_out.append(Omission(name, "the list is not read to its end"))
                break
        result["tools"] = valid

    def _valid(self, part: dict[str, Any]) -> list[Any]:
        """Return the valid tools of a part of a list."""
        while problems := self._problems(part):  # what one check has passed another may refuse
            tools = part["tools"]
            self._seen.left_out += (
                self._left_out(tools[place], why) for place, why in problems.items()
            )
            part["tools"] = [tool for i, tool in enumerate(tools) if i not in problems]
        return list(part["tools"])

    def _problems(self, result: dict[str, Any]) -> dict[int, str]:
        """Return why tools of a result are invalid, by their places in it."""
        try:
            parse_server_result(_METHOD, self.version(), result)
        except ValidationError as error:
            if error.error_count() > _MAX_PROBLEMS:
                return {}
            found: dict[int, str] = {}
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            for problem in problems:
                match problem["loc"]:
                    case ("tools", int(place), *path):
                        text = f"{'.'.join(map(str, path))}: {problem['msg']}"
                        found.setdefault(place, text.removeprefix(": "))
            return found
        except (KeyError, ValueError):  # of a version that has no such list
            pass
        return {}

    def _left_out(self, tool: object, reason: str) -> Omission:
        name = _name_of(tool) or "one without a name"
        return Omission(self._redact(name), self._redact(reason))


def _name_of(tool: object) -> str | None:
    match tool:
        case {"name": str(name)}:
            return name
    return None


@asynccontextmanager
async def exchange(
    transport: AbstractAsyncContextManager[Streams],
    server: str,
    lists: ToolLists,
    unread: LogBudget,
    redact: Redact = str,
) -> AsyncIterator[Streams]:
    """Exchange messages over a transport.

    A received error is an MCPError whose `data` is the `ServerError`; a request that the transport
    could not bring to an answer is one whose `data` is the `RequestFailed`. Sending a request
    raises `RequestFailed`.

    Args:
        transport: How the server is reached. Beside messages it yields `RequestFailed`.
        server: Its name, for the log.
        lists: Makes lists of tools readable.
        unread: The budget of what is logged as unreadable.
        redact: Removes credentials from what is logged.
    """
    requests = _Requests(server, lists, unread, redact)
    async with transport as (received, sent):
        yield _Received(received, requests), _Sent(sent, requests)


class _Requests:
    """The requests that have no answer yet."""

    def __init__(self, server: str, lists: ToolLists, unread: LogBudget, redact: Redact) -> None:
        self._server = server
        self._lists = lists
        self._redact = redact
        self._asked: dict[str, types.JSONRPCRequest] = {}  # some servers return a number as text
        self._unread = unread
        self._questions = LogBudget(at_once=100, every_s=0.1)

    def sent(self, message: types.JSONRPCMessage) -> None:
        """Remember a request; forget one that is given up."""
        if isinstance(message, types.JSONRPCRequest):
            self._asked[str(message.id)] = message
        elif isinstance(message, types.JSONRPCNotification):
            if message.method == "notifications/cancelled" and message.params is not None:
                self._asked.pop(str(message.params.get("requestId")), None)

    async def received(self, item: SessionMessage | Exception) -> SessionMessage | None:
        """Return what the SDK gets for what came; None if that is nothing."""
        if isinstance(item, Exception):
            return self._failed(item)
        match item.message:
            case types.JSONRPCRequest():
                # Each costs a task and an answer: a server that floods gets none for the rest.
                return None if self._questions.passed("") is None else item
            case types.JSONRPCNotification():
                return item
            case types.JSONRPCResponse(id=request_id, result=result):
                asked = self._asked.pop(str(request_id), None)
                if asked is not None and asked.method == "tools/list":
                    await self._lists.leave_out_invalid(result)
                elif asked is not None and asked.method == "tools/call":
                    make_valid(result, self._lists.version())
            case types.JSONRPCError(id=request_id, error=error):
                asked = self._asked.pop(str(request_id), None)
                error.message = self._redact(error.message)  # the SDK writes it into spans
                if asked is not None and asked.method not in NEGOTIATION:
                    item.message.error = _marked(ServerError(error.code, error.message, error.data))
                elif request_id is None:
                    self._log(f"an error that names no request: {error.message}")
        return None if asked is None else item

    def _failed(self, error: Exception) -> SessionMessage | None:
        if not isinstance(error, RequestFailed):
            _logger.debug("MCP server %s: %r", self._server, error)
            return None
        error.words = one_line(self._redact(error.words), MAX_WORDS)
        asked = self._asked.pop(str(error.request_id), None)
        if asked is not None:
            marked = _marked(error)
            return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=asked.id, error=marked))
        if error.kind == "unreadable":
            self._log(error.words)
        return None

    def _log(self, words: str) -> None:
        text = one_line(words, MAX_WORDS)
        self._unread.log(_logger.warning, "MCP server %s: %s", self._server, text)


def _marked(origin: ServerError | RequestFailed) -> types.ErrorData:
    # With the server's code the SDK could take the error for one of its own.
    return types.ErrorData(code=0, message=str(origin), data=origin)


def _declare(request: types.JSONRPCRequest, *, can_ask: bool) -> None:
    """Declare in a request that a person can be asked only where that is so.

    From 2026-07-28 on each request has what its client can do; the SDK writes the same in all.
    """
    meta = (request.params or {}).get("_meta", {})
    declared = meta.get(types.CLIENT_CAPABILITIES_META_KEY)
    if declared and not can_ask:
        meta[types.CLIENT_CAPABILITIES_META_KEY] = {
            name: value for name, value in declared.items() if name != "elicitation"
        }


class _Received(ObjectReceiveStream[SessionMessage | Exception]):
    """What comes from a server."""

    def __init__(
        self, inner: ObjectReceiveStream[SessionMessage | Exception], requests: _Requests
    ) -> None:
        self._inner = inner
        self._requests = requests

    async def receive(self) -> SessionMessage:
        """Return the next message."""
        while True:
            message = await self._requests.received(await self._inner.receive())
            if message is not None:
                return message

    async def aclose(self) -> None:
        """Close what is wrapped."""
        await self._inner.aclose()


class _Sent(ObjectSendStream[SessionMessage]):
    """What is sent to a server."""

    def __init__(self, inner: ObjectSendStream[SessionMessage], requests: _Requests) -> None:
        self._inner = inner
        self._requests = requests

    async def send(self, item: SessionMessage) -> None:
        """Send a message.

        Raises:
            RequestFailed: A request was not sent, or not as a whole.
            BrokenResourceError: The same for another message.
        """
        self._requests.sent(item.message)
        call = CURRENT_CALL.get()
        if isinstance(item.message, types.JSONRPCRequest):
            if call is not None:
                call.count += 1
            _declare(item.message, can_ask=call is not None and call.can_ask)
        try:
            await self._inner.send(item)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            if not isinstance(item.message, types.JSONRPCRequest):
                raise
            is_closed = isinstance(error, anyio.ClosedResourceError)
            words = "the connection has ended"
            raise RequestFailed(words, "not_sent" if is_closed else "lost") from None

    async def aclose(self) -> None:
        """Close what is wrapped."""
        await self._inner.aclose()
