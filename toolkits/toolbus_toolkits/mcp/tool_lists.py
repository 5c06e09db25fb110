"""Lists of tools on their way to the MCP SDK, which refuses a whole list for one invalid tool.

Here that tool is left out of the list before the SDK reads it. Nothing else is changed: what is
wrong in another way is for the SDK to refuse.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import mcp_types as types
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from toolbus.bounded_logging import bounded_logger
from toolbus.untrusted_text import one_line
from toolbus_toolkits.credentials.redaction import Redact
from toolbus_toolkits.mcp.stdio import Streams

__all__ = ["without_invalid_tools"]

_METHOD = "tools/list"
_MAX_PROBLEMS = 1_000
"""Of one list: one with more is left as it is."""
_MAX_SHOWN = 5
_MAX_REASON_CHARS = 200

_logger = bounded_logger(__name__)


@asynccontextmanager
async def without_invalid_tools(
    transport: Transport, server: str, version: Callable[[], str], redact: Redact = str
) -> AsyncIterator[Streams]:
    """Exchange messages over a transport, and leave invalid tools out of the lists that come.

    Args:
        transport: How the server is reached.
        server: Its name, for the log.
        version: Returns the version of MCP that is spoken; called with the first list.
        redact: Removes credentials from what is logged.
    """
    lists = _Lists(server, version, redact)
    async with transport as (received, sent):
        yield _Received(received, lists), _Sent(sent, lists)


class _Lists:
    """The lists that are asked for."""

    def __init__(self, server: str, version: Callable[[], str], redact: Redact) -> None:
        self._server = server
        self._version = version
        self._redact = redact
        self._asked = set[str]()
        self._logged = ""

    def sent(self, message: types.JSONRPCMessage) -> None:
        """Remember a request for a list."""
        if isinstance(message, types.JSONRPCRequest) and message.method == _METHOD:
            self._asked.add(str(message.id))

    def received(self, message: types.JSONRPCMessage) -> None:
        """Leave invalid tools out of the answer to such a request."""
        if not self._asked or not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            return
        asked = str(message.id)  # some servers return a number as text
        if asked in self._asked:
            self._asked.remove(asked)
            if isinstance(message, types.JSONRPCResponse):
                self._leave_out(message.result)

    def _leave_out(self, result: dict[str, Any]) -> None:
        left_out: list[str] = []
        while problems := self._problems(result):  # what one check has passed another may refuse
            tools = result["tools"]
            left_out += (self._words(tools[each], why) for each, why in problems.items())
            result["tools"] = [tool for i, tool in enumerate(tools) if i not in problems]
        words = "; ".join(left_out[:_MAX_SHOWN])
        if len(left_out) > _MAX_SHOWN:
            words += f"; and {len(left_out) - _MAX_SHOWN} more"
        if words and words != self._logged:  # once, and not for each list
            _logger.warning("MCP server %s: invalid tools are left out: %s", self._server, words)
        self._logged = words

    def _problems(self, result: dict[str, Any]) -> dict[int, str]:
        """Return why tools of a result are invalid, by their places in it."""
        try:
            parse_server_result(_METHOD, self._version(), result)
        except ValidationError as error:
            if error.error_count() > _MAX_PROBLEMS:
                return {}
            found: dict[int, str] = {}
            for each in error.errors(include_url=False, include_context=False, include_input=False):
                match each["loc"]:
                    case ("tools", int(place), *path):
                        where = ".".join(map(str, path))
                        found.setdefault(place, f"{where}: {each['msg']}" if where else each["msg"])
            return found
        except (KeyError, ValueError):  # of a version that has no such list
            pass
        return {}

    def _words(self, tool: object, reason: str) -> str:
        name = tool.get("name") if isinstance(tool, dict) else None
        shown = one_line(self._redact(name), 64) if isinstance(name, str) else "one without a name"
        return f"{shown}: {one_line(self._redact(reason), _MAX_REASON_CHARS)}"


class _Readable(Protocol):
    async def receive(self) -> SessionMessage | Exception: ...
    async def aclose(self) -> None: ...


class _Writable(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...
    async def aclose(self) -> None: ...


class _Received(ObjectReceiveStream[SessionMessage | Exception]):
    """What comes from a server."""

    def __init__(self, inner: _Readable, lists: _Lists) -> None:
        self._inner = inner
        self._lists = lists

    @property
    def last_context(self) -> Any:
        """The context of the last message, if the transport has it: the SDK asks for it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        item = await self._inner.receive()
        if isinstance(item, SessionMessage):
            self._lists.received(item.message)
        return item

    async def aclose(self) -> None:
        """Close what is wrapped."""
        await self._inner.aclose()


class _Sent(ObjectSendStream[SessionMessage]):
    """What is sent to a server."""

    def __init__(self, inner: _Writable, lists: _Lists) -> None:
        self._inner = inner
        self._lists = lists

    async def send(self, item: SessionMessage) -> None:
        """Send a message."""
        self._lists.sent(item.message)
        await self._inner.send(item)

    async def aclose(self) -> None:
        """Close what is wrapped."""
        await self._inner.aclose()
