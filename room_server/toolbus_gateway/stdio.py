"""One member on standard input and output, for a client of MCP that starts this process.

The client may start it before the room server runs: it is answered soon, with no tools, and is told
when they come. Standard output carries the protocol alone.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server

from toolbus.cli.signals import stop_on_signals
from toolbus.client.retry import DEFAULT_WAIT_FOR_HOST_S
from toolbus.concurrency.thread_iterator import ThreadIterator
from toolbus.errors import Unavailable
from toolbus.room.room_client import RoomClient, settings_of
from toolbus.room.waiting_start import keep_trying
from toolbus_gateway.definitions import Definitions
from toolbus_gateway.listing import Listing, Target
from toolbus_gateway.mcp_server import Asker, GatewayServer, as_mcp_error
from toolbus_gateway.member import Member

__all__ = ["StdioMember", "serve_stdio"]

_WAITS_S = {"tools/list": 2.0, "tools/call": DEFAULT_WAIT_FOR_HOST_S}
"""Seconds that requests wait for the room to be joined: an empty list would stay in a client which
is not told of changes, and an editor shows nothing while it waits for a list."""


class StdioMember(Member):
    """A member that has no tools before it has joined its room.

    Args:
        room: Its connection, not entered; it waits for the server.
    """

    def __init__(self, room: RoomClient) -> None:
        super().__init__(room, Definitions())
        self._joined = asyncio.Event()

    @property
    def has_joined(self) -> bool:
        """Whether it has been in its room."""
        return self._joined.is_set()

    @property
    def tools_ttl_s(self) -> float:
        """Seconds for which a client may use a list again."""
        return super().tools_ttl_s if self.has_joined else 0.0

    async def wait_until_joined(self, timeout_s: float) -> None:
        """Wait until it has been in its room, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._joined.wait()

    async def stay(self) -> None:
        """Join the room and wait until the connection ends for good. Raises `RoomException`."""
        await self.room.connect()
        # The server may restart in this very moment.
        await keep_trying(super().follow, lambda: settings_of(self.room), True, doing="join")
        self._joined.set()
        self._change()
        await self.room.closed()

    async def listing(self, target: Target) -> Listing:
        """Return the tools under a path, as `Member.listing` does."""
        return await super().listing(target) if self.has_joined else Listing((), target)

    async def follow(self) -> None:
        """Follow the toolkits of the room, once it is joined."""
        if self.has_joined:
            await super().follow()


async def serve_stdio(room: RoomClient, target: Target) -> None:
    """Serve a client until it closes standard input or output, or a signal comes.

    What runs then is cancelled.

    Args:
        room: The connection of the member, not entered; it waits for the server.
        target: What the client sees of the room.

    Raises:
        RoomException: The room cannot be joined, or the connection has ended for good.
    """
    member = StdioMember(room)
    client = _Client(member, target)
    lines = _StandardInput()
    stop = stop_on_signals()
    tasks = [
        asyncio.create_task(member.stay()),
        asyncio.create_task(client.tell_changes()),
        asyncio.create_task(stop.wait()),
    ]
    for task in tasks:
        task.add_done_callback(lambda _: lines.end())
    try:
        with _until_client_has_gone():
            await client.serve(lines)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await member.aclose()
    for task in tasks:
        if not task.cancelled():
            task.result()


@contextmanager
def _until_client_has_gone() -> Iterator[None]:
    """End the block where standard output cannot be written because its reader has closed it."""
    try:
        yield
    except* ConnectionError:
        # The SDK's writer tries once more at its end, which Python 3.13 reports.
        sys.unraisablehook = _ignore_closed_pipe


def _ignore_closed_pipe(unraisable: sys.UnraisableHookArgs, /) -> None:
    if not isinstance(unraisable.exc_value, BrokenPipeError):
        sys.__unraisablehook__(unraisable)


class _Client:
    """The server of MCP for the one client."""

    def __init__(self, member: StdioMember, target: Target) -> None:
        self._member = member
        self._target = target
        self._server = GatewayServer(self._asker_of, has_sessions=True).mcp
        self._server.middleware.append(self._wait_for_room)
        self._server.add_notification_handler(
            "notifications/initialized", types.NotificationParams, self._initialized
        )
        self._session: ServerSession | None = None
        self._changed = asyncio.Event()
        member.on_change(self._changed.set)

    async def serve(self, lines: anyio.AsyncFile[str]) -> None:
        """Answer until the client sends no more."""
        server = self._server
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        async with stdio_server(stdin=lines) as (read, write):
            # What is printed would wait in a buffer until standard output is restored.
            with redirect_stdout(sys.stderr):
                await server.run(read, write, options)

    async def tell_changes(self) -> None:
        """Tell a client of 2025-11-25 when its tools change; a newer one asks for a stream."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._session is not None:
                await self._session.send_tool_list_changed()

    async def _initialized(
        self, ctx: ServerRequestContext[Any, Any], _: types.NotificationParams
    ) -> None:
        self._session = ctx.session

    async def _wait_for_room(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Give the room time to be joined: clients ask for the tools in the moment they start."""
        wait_s = _WAITS_S.get(ctx.method, 0.0)
        if wait_s and not self._member.has_joined:
            await self._member.wait_until_joined(wait_s)
        return await call_next(ctx)

    def _asker_of(self, ctx: ServerRequestContext[Any, Any]) -> Asker:
        if ctx.method == "tools/call" and not self._member.has_joined:
            text = "the room server has not been reached yet"
            raise as_mcp_error(Unavailable(text, executed="no", retryable=True))
        return Asker(self._member, self._target)


class _StandardInput(anyio.AsyncFile[str]):
    """The lines of standard input, until it ends or `end` is called.

    The SDK's own reader waits in a thread that nothing can wake, and with it a process that a
    signal should end.
    """

    def __init__(self) -> None:
        super().__init__(sys.stdin)
        # The thread of this one is a daemon, so that the process can end while it waits.
        self._lines = ThreadIterator(
            lambda: open(0, encoding="utf-8", errors="replace", closefd=False)
        )
        self._end = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """End the lines now, also for a reader that waits."""
        if not self._end.done():
            self._end.set_result(None)

    async def readline(self) -> str:
        """Return the next line; "" at the end."""
        reading = asyncio.ensure_future(anext(self._lines, ""))
        try:
            await asyncio.wait([reading, self._end], return_when=asyncio.FIRST_COMPLETED)
            return "" if self._end.done() else reading.result()
        except OSError:  # the client has gone
            return ""
        finally:
            reading.cancel()
