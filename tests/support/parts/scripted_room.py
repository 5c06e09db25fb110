"""A room whose server is the test: what it is told of a call, and what it makes come of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.parts.scripted_server import Line, scripted_server
from toolbus import ApiScope, ChunkStream, RoomClient, RoomException
from toolbus.telemetry.tracing import Tracing
from toolbus.wire import (
    Call,
    Cancel,
    Credit,
    Frame,
    Input,
    Participants,
    Progress,
    Result,
    StreamChunk,
    Unknown,
    decode_from_client,
    failed,
    pack_body,
)

TOLD = (Cancel, Credit, Input)


def json_body(value: Any) -> bytes:
    return pack_body([1, value])


def piece(data: bytes, *, more: bool, name: str = "") -> bytes:
    return pack_body([3, name, "text/x" if name else "", data, more])


class ScriptedRoom:
    """The server's side of one connection, with the room on the other side of it."""

    def __init__(self, room: RoomClient, line: Line) -> None:
        self.room = room
        self.line = line
        self.id = 0
        self.number = 0

    async def call(self) -> Call:
        """Wait for the next call; what follows is said of that one."""
        frame = await self.line.next_of(Call)
        self.id, self.number = frame.id, 0
        return frame

    async def chunk(self, body: bytes, number: int | None = None) -> None:
        self.number = self.number + 1 if number is None else number
        await self.line.send(StreamChunk(self.id, self.number, body))

    async def chunks(self, *values: Any) -> None:
        for value in values:
            await self.chunk(json_body(value))

    async def end(self, body: bytes = b"\x91\x00") -> None:
        await self.line.send(Result(self.id, body))

    async def fail(self, error: RoomException) -> None:
        await self.line.send(failed(self.id, error))

    async def progress(self, value: Any) -> None:
        await self.line.send(Progress(self.id, json_body(value)))

    async def want(self, chunks: int, size: int = 2**20) -> None:
        """Give credit for input."""
        await self.line.send(Credit(self.id, True, chunks, size))

    async def received(self) -> list[Frame]:
        """All that the room has said of calls, after it has read all that it was sent."""
        async with asyncio.timeout(60):
            return await self._told_until_asked() + await self._told_until_asked()

    async def _told_until_asked(self) -> list[Frame]:
        asking = asyncio.create_task(self.room.participants())
        found: list[Frame] = []
        while True:
            data = await self.line.connection.recv()
            assert isinstance(data, bytes)
            frame = decode_from_client(data)
            assert not isinstance(frame, Unknown)
            if isinstance(frame, Participants):
                break
            found += [frame] if isinstance(frame, TOLD) else []
        body: dict[str, Any] = {"participants": [], "cursor": None}
        await self.line.send(Result(frame.id, pack_body(body)))
        await asking
        return found

    @property
    def dropped(self) -> int:
        """How many frames reached nobody."""
        assert self.room._parts is not None
        return self.room._parts.table.dropped

    def at_chunk(self, act: Callable[[], Any]) -> None:
        """Do something in the very turn in which the next chunk reaches the room."""
        assert self.room._parts is not None
        table = self.room._parts.table
        (line,) = self.room._parts.calls._runners
        handlers: dict[Any, Any] = line._handlers

        def receive(frame: StreamChunk) -> None:
            handlers[StreamChunk] = table.receive
            table.receive(frame)
            act()

        handlers[StreamChunk] = receive

    @property
    def shares_left(self) -> int:
        """How many bytes of memory no stream has, of those that all of them share."""
        assert self.room._parts is not None
        return self.room._parts.table.budget.free_bytes

    @property
    def pending(self) -> set[int]:
        """The ids that are under way."""
        assert self.room._parts is not None
        return set(self.room._parts.table._pending)


async def values(chunks: ChunkStream) -> list[Any]:
    return [chunk.value async for chunk in chunks]


async def error_of(chunks: ChunkStream) -> tuple[list[Any], RoomException]:
    """Read to the end, which is an error."""
    seen: list[Any] = []

    async def go_on() -> None:
        async for chunk in chunks:
            seen.append(chunk.value)

    with pytest.raises(RoomException) as caught:
        await go_on()
    assert [chunk async for chunk in chunks] == []  # it is told once
    return seen, caught.value


@asynccontextmanager
async def scripted_room(tracing: Tracing | None = None) -> AsyncIterator[ScriptedRoom]:
    """Join a room of a server that does what the test says, for as long as the block runs."""
    async with (
        asyncio.timeout(60),
        scripted_server(ApiScope.full()) as server,
        RoomClient(server.url, room="lab", token="t", tracing=tracing) as room,
    ):
        yield ScriptedRoom(room, await server.next_line())
