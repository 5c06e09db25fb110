"""A tool with results of any size, hosted with the SDK and without it, and its callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import ECHO, next_of
from toolbus import RoomClient, Toolkit, tool
from toolbus.wire import Dispatch, Register, RequestId, Result, pack_body, unpack_body
from toolbus_server.testing import Faults, TestServer

SLOW = Faults(bytes_per_s=12_500_000)
"""A connection of 100 Mbit/s."""
MANY_LARGE = [(16, 1_000_000), (64, 250_000)]
"""How many calls at a time have results of how many bytes: 16 MB together."""


def text_of(number: int, size: int) -> str:
    """Return a text of which every part names its call."""
    return f"{number:08d}" * (size // 8)


@tool
async def say(number: int, size: int) -> str:
    """Return the text of a call."""
    return text_of(number, size)


async def say_whole(host: RawClient) -> None:
    """Answer each call with a single frame, as a host does that knows no parts."""
    while True:
        frame = await next_of(host, Dispatch)
        asked = unpack_body(frame.arguments)
        body = pack_body([2, text_of(asked["number"], asked["size"])])
        host.send_frame(Result(RequestId(frame.id), body))
        await host.flush()


@asynccontextmanager
async def raw_host(server: TestServer) -> AsyncIterator[RawClient]:
    """Host `echo.say` without the SDK."""
    async with raw_participant(server, "hosts") as host:
        host.send_frame(Register(RequestId(1), pack_body(ECHO), {"public": True}))
        await host.reply_to(1)
        answering = asyncio.create_task(say_whole(host))
        try:
            yield host
        finally:
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering


@asynccontextmanager
async def sdk_host(server: TestServer) -> AsyncIterator[RoomClient]:
    """Host `echo.say` with the SDK."""
    async with server.room("hosts") as host, host.host(Toolkit("echo", [say])):
        yield host


async def arrives(room: RoomClient, number: int, size: int) -> bool:
    """Call, and return whether exactly the right text arrived."""
    chunk = await room.invoke("echo.say", {"number": number, "size": size}, timeout_s=60)
    return bool(chunk.value == text_of(number, size))
