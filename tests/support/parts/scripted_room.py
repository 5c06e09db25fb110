"""A room whose server is the test: the test reads what the room sends and chooses the replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.parts.scripted_server import ScriptedConnection, scripted_server
from toolbus import ApiScope, ChunkStream, RoomClient, RoomException
from toolbus.room.room import connection_of
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
    UnknownFrame,
    decode_from_client,
    failed,
    pack_body,
)

CALL_FRAMES = (Cancel, Credit, Input)


def json_body(value: Any) -> bytes:
    return pack_body([1, value])


def piece(data: bytes, *, more: bool, name: str = "") -> bytes:
    return pack_body([3, name, "text/x" if name else "", data, more])


class ScriptedRoom:
    """The server's side of one connection, and the room on its other side."""

    def __init__(self, room: RoomClient, connection: ScriptedConnection) -> None:
        self.room = room
        self.connection = connection
        self.id = 0
        self.number = 0

    async def call(self) -> Call:
        """Wait for the next call; later frames belong to that one."""
        frame = await self.connection.next_of(Call)
        self.id, self.number = frame.id, 0
        return frame

    async def chunk(self, body: bytes, number: int | None = None) -> None:
        self.number = self.number + 1 if number is None else number
        await self.connection.send(StreamChunk(self.id, self.number, body))

    async def chunks(self, *values: Any) -> None:
        for value in values:
            await self.chunk(json_body(value))

    async def end(self, body: bytes = b"\x91\x00") -> None:
        await self.connection.send(Result(self.id, body))

    async def fail(self, error: RoomException) -> None:
        await self.connection.send(failed(self.id, error))

    async def progress(self, value: Any) -> None:
        await self.connection.send(Progress(self.id, json_body(value)))

    async def want(self, chunks: int, size: int = 2**20) -> None:
        """Give credit for input."""
        await self.connection.send(Credit(self.id, True, chunks, size))

    async def received(self) -> list[Frame]:
        """Return all frames about calls that the room has sent, after it has read all that it
        received.
        """
        async with asyncio.timeout(60):
            return await self._sent_until_request() + await self._sent_until_request()

    async def _sent_until_request(self) -> list[Frame]:
        asking = asyncio.create_task(self.room.participants())
        found: list[Frame] = []
        while True:
            data = await self.connection.websocket.recv()
            assert isinstance(data, bytes)
            frame = decode_from_client(data)
            assert not isinstance(frame, UnknownFrame)
            if isinstance(frame, Participants):
                break
            found += [frame] if isinstance(frame, CALL_FRAMES) else []
        body: dict[str, Any] = {"participants": [], "cursor": None}
        await self.connection.send(Result(frame.id, pack_body(body)))
        await asking
        return found

    @property
    def dropped(self) -> int:
        """The number of frames that no request received."""
        return connection_of(self.room)._pending.dropped

    def at_chunk(self, act: Callable[[], Any]) -> None:
        """Run an action in the same event loop turn in which the room receives the next chunk."""
        table = connection_of(self.room)._pending
        (runner,) = connection_of(self.room)._runners
        handlers: dict[Any, Any] = runner._handlers

        def receive(frame: StreamChunk) -> None:
            handlers[StreamChunk] = table.receive
            table.receive(frame)
            act()

        handlers[StreamChunk] = receive

    @property
    def shares_left(self) -> int:
        """The free bytes of the memory that all streams share."""
        return connection_of(self.room)._pending.budget.free_bytes

    @property
    def pending(self) -> set[int]:
        """The ids of unanswered requests."""
        return set(connection_of(self.room)._pending._pending)


async def values(chunks: ChunkStream) -> list[Any]:
    return [chunk.value async for chunk in chunks]


async def error_of(chunks: ChunkStream) -> tuple[list[Any], RoomException]:
    """Read a stream that must end with an error; return its values and the error."""
    seen: list[Any] = []

    async def go_on() -> None:
        async for chunk in chunks:
            seen.append(chunk.value)

    with pytest.raises(RoomException) as caught:
        await go_on()
    assert [chunk async for chunk in chunks] == []  # it is raised once
    return seen, caught.value


@asynccontextmanager
async def scripted_room(tracing: Tracing | None = None) -> AsyncIterator[ScriptedRoom]:
    """Join a room of a server that the test controls, until the block ends."""
    async with (
        asyncio.timeout(60),
        scripted_server(ApiScope.full()) as server,
        RoomClient(server.url, room="lab", token="e30.e30.t", tracing=tracing) as room,
    ):
        yield ScriptedRoom(room, await server.next_connection())
