"""One connection to the server, from its welcome to its end: who reads it, and what ends it.

There may be more than one at a time: while a server leaves, calls go on on the line to it that were
begun there, and new ones go by another. Which line is for what is decided in `link`; this module
knows frames only as far as the welcome and the notice that the server leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from toolbus.errors import Unavailable
from toolbus.transport import ClientTransport
from toolbus.wire import BadFrame, Notice, Welcome, decode_from_server

__all__ = ["Handlers", "Line", "LineKeeper"]

_logger = logging.getLogger(__name__)
_LEAVING = "leaving"

Handlers: TypeAlias = Mapping[type[Any], Callable[[Any], None]]
"""Who takes a frame of a type; others are ignored. None of them may raise."""


class LineKeeper(Protocol):
    """Who keeps lines, and is told what becomes of each."""

    def on_welcomed(self, line: Line) -> Handlers:
        """Learn that a line can be used; say who takes what comes by it."""

    def on_leaving(self, line: Line) -> None:
        """Learn that the server behind a line leaves: it takes no new calls."""

    def on_lost(self, line: Line) -> None:
        """Learn that a line is gone that was welcomed once."""


class Line:
    """One connection's reader, and the way to write to it.

    Args:
        keeper: Who is told.
    """

    def __init__(self, keeper: LineKeeper) -> None:
        self._keeper = keeper
        self._handlers: dict[type[Any], Callable[[Any], None]] = {Welcome: self._on_welcome}
        self._on_other_notice: Callable[[Any], None] | None = None
        self.welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        """The server's first frame; ConnectionError where the line was lost before."""
        self.closed: asyncio.Event = asyncio.Event()
        """Set when the connection is gone."""
        self.over: asyncio.Event = asyncio.Event()
        """Set when another line is needed: this one is gone, or the server behind it leaves."""
        self.connection: ClientTransport | None = None
        """Set with the connection's first step, and kept when it is gone."""
        self.is_ready: bool = False
        """Whether calls within others can be sent, unless the connection is closing."""

    @property
    def close_code(self) -> int | None:
        """With which code the connection was closed; None while it is not."""
        return None if self.connection is None else self.connection.close_code

    def on_message(self, data: bytes) -> None:
        """Read a frame and hand it on; the server closes no connection for what we cannot read."""
        try:
            frame = decode_from_server(data)
        except BadFrame as error:
            _logger.error("the server sent a broken frame: %s", error.reason)
            if self.connection is not None:
                self.connection.close_with(error.close_code, error.reason)
            return
        handler = self._handlers.get(type(frame))
        if handler is not None:
            handler(frame)

    def _on_welcome(self, welcome: Welcome) -> None:
        if not self.welcome.done() and self.connection is not None:
            # At once: what comes right behind the welcome may have to be answered.
            handlers = self._keeper.on_welcomed(self)
            self._on_other_notice = handlers.get(Notice)
            self._handlers.update(handlers)
            self._handlers[Notice] = self._on_notice
            self.is_ready = True
            self.welcome.set_result(welcome)

    def _on_notice(self, notice: Notice) -> None:
        if notice.name == _LEAVING:
            if not self.over.is_set():
                self.over.set()
                self._keeper.on_leaving(self)
        elif self._on_other_notice is not None:
            self._on_other_notice(notice)

    def on_close(self) -> None:
        """Tell the keeper, where the line was welcomed, and whoever waits for the welcome."""
        self.is_ready = False
        self.closed.set()
        self.over.set()
        if self.welcome.done():
            self._keeper.on_lost(self)
        else:
            self.welcome.set_exception(ConnectionError("the connection was lost"))
            self.welcome.exception()  # read, where nobody waits for it

    def ignore(self, kind: type[Any]) -> None:
        """Hand frames of a type to nobody any more."""
        self._handlers.pop(kind, None)

    async def ready(self) -> None:
        """Return at once where calls can be sent on this line: one that is gone never comes back.

        Raises:
            Unavailable: It is gone, or going.
        """
        if not self.is_ready or self.connection is None or not self.connection.is_open:
            words = "the connection that the call around this one came by is gone"
            raise Unavailable(words, executed="no", retryable=False)

    async def is_gone_within(self, seconds: float) -> bool:
        """Wait so long, or until the connection is gone; tell whether it is."""
        try:
            async with asyncio.timeout(seconds):
                await self.closed.wait()
        except TimeoutError:
            return False
        return True

    async def emptied(self) -> None:
        """Wait until the last answers are on their way: closing would drop what still waits."""
        if self.connection is not None:
            await self.connection.caught_up()

    def abort(self) -> None:
        """Drop the connection without a word; one that is gone is left alone."""
        if self.connection is not None:
            self.connection.transport.abort()

    async def hang_up(self) -> None:
        """Close the connection well and wait until it is gone."""
        if self.connection is not None:
            await self.connection.close()
