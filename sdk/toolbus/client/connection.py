"""One connection to the server, from its welcome to its end.

There may be several at a time: while a server drains, calls that began on the connection to it
continue there, and new calls use another one. `ReconnectingConnection` chooses the connection; this
module interprets only the welcome, and the notices that ask for another connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import Unavailable
from toolbus.transport.websocket import ClientTransport
from toolbus.wire import BadFrame, Notice, Welcome, decode_from_server

__all__ = ["Connection", "ConnectionOwner", "Handlers"]

_logger = bounded_logger(__name__)
_LEAVING, _MOVE = "leaving", "move"

Handlers: TypeAlias = Mapping[type[Any], Callable[[Any], None]]
"""Handlers by frame type; other frames are ignored. A handler must not raise."""


class ConnectionOwner(Protocol):
    """Owns connections and is notified of their events."""

    def on_welcomed(self, connection: Connection) -> Handlers:
        """React to a connection that can be used; return the handlers of its frames."""

    def on_leaving(self, connection: Connection) -> None:
        """React to the notice that a connection's server is leaving: it accepts no new calls."""

    def on_lost(self, connection: Connection) -> None:
        """React to the loss of a connection that had been welcomed."""


class Connection:
    """Receives and sends on one websocket."""

    failure: str = ""
    """Empty: a closed connection is not opened again."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._handlers: dict[type[Any], Callable[[Any], None]] = {Welcome: self._on_welcome}
        self._notice_handler: Callable[[Any], None] | None = None
        self.welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        """The server's first frame; ConnectionError if the connection was lost before it."""
        self.closed: asyncio.Event = asyncio.Event()
        """Set when the connection is closed."""
        self.needs_replacement: asyncio.Event = asyncio.Event()
        """Set when another connection is needed: this one is closed, or its server is leaving."""
        self.should_move: bool = False
        """Whether the server asks to connect to another server, and serves this one meanwhile."""
        self.attention: asyncio.Event = asyncio.Event()
        """Set when `needs_replacement` or `should_move` is."""
        self.websocket: ClientTransport | None = None
        """Set when the websocket is created; kept after it is closed."""
        self.version: int = 0
        """The version of the protocol that the server speaks; 0 before the welcome."""
        self.is_ready: bool = False
        """Whether nested calls can be sent, unless the websocket is closing."""

    @property
    def close_code(self) -> int | None:
        """The websocket's close code; None while it is open."""
        return None if self.websocket is None else self.websocket.close_code

    @property
    def close_text(self) -> str:
        """Who closed the websocket, why and with which code; empty if it was cut off."""
        if self.websocket is None:
            return ""
        protocol = self.websocket.protocol
        is_first = protocol.close_rcvd is None or protocol.close_rcvd_then_sent is False
        close = protocol.close_sent if is_first else protocol.close_rcvd
        if close is None:
            return ""
        closer = "this client" if is_first else "the server"
        reason = f"{close.reason}, " if close.reason else ""
        return f"{closer} closed it: {reason}{close.code}"

    def on_message(self, data: bytes) -> None:
        """Decode a frame and call its handler; an invalid frame closes the connection."""
        try:
            frame = decode_from_server(data)
        except BadFrame as error:
            _logger.error("the server sent an invalid frame: %s", error.reason)
            if self.websocket is not None:
                self.websocket.close_with(error.close_code, error.reason)
            return
        handler = self._handlers.get(type(frame))
        if handler is not None:
            handler(frame)

    def _on_welcome(self, welcome: Welcome) -> None:
        if not self.welcome.done() and self.websocket is not None:
            facts = welcome.facts
            texts = [*map(facts.get, ("name", "issuer", "role")), facts.get("alias", "")]
            has_identity = all(isinstance(text, str) for text in texts)
            if not has_identity or not isinstance(facts.get("api"), dict):
                _logger.error("the server sent a welcome without the identity of its participant")
                self.websocket.close_with(1002, "a welcome without an identity")
                return
            self.version = welcome.version
            # At once: frames right after the welcome may need their handlers.
            handlers = self._owner.on_welcomed(self)
            self._notice_handler = handlers.get(Notice)
            self._handlers.update(handlers)
            self._handlers[Notice] = self._on_notice
            self.is_ready = True
            self.welcome.set_result(welcome)

    def _on_notice(self, notice: Notice) -> None:
        if notice.name == _LEAVING:
            if not self.needs_replacement.is_set():
                self.needs_replacement.set()
                self.attention.set()
                self._owner.on_leaving(self)
        elif notice.name == _MOVE:
            self.should_move = True
            self.attention.set()
        elif self._notice_handler is not None:
            self._notice_handler(notice)

    def on_close(self) -> None:
        """Notify the owner if the connection was welcomed, and the task that waits for that."""
        self.is_ready = False
        self.closed.set()
        self.needs_replacement.set()
        self.attention.set()
        if self.welcome.done():
            self._owner.on_lost(self)
        else:
            self.welcome.set_exception(ConnectionError("the connection was lost"))
            self.welcome.exception()  # mark as retrieved if nothing waits for it

    def ignore(self, kind: type[Any]) -> None:
        """Ignore frames of a type from now on."""
        self._handlers.pop(kind, None)

    async def ready(self) -> None:
        """Return at once if calls can be sent; a closed connection never reopens.

        Raises:
            Unavailable: It is closed or closing.
        """
        if not self.is_ready or self.websocket is None or not self.websocket.is_open:
            message = "the parent call's connection is closed"
            raise Unavailable(message, executed="no", retryable=False)

    async def closes_within(self, seconds: float) -> bool:
        """Wait until the connection is closed, for some seconds; return whether it is."""
        try:
            async with asyncio.timeout(seconds):
                await self.closed.wait()
        except TimeoutError:
            return False
        return True

    async def flushed(self) -> None:
        """Wait until all queued replies are written: closing would drop them."""
        if self.websocket is not None:
            await self.websocket.drained()

    def abort(self) -> None:
        """Drop the connection without a closing handshake."""
        if self.websocket is not None:
            self.websocket.transport.abort()

    async def close(self) -> None:
        """Close the connection with a closing handshake and wait for its end."""
        if self.websocket is not None:
            await self.websocket.close()
