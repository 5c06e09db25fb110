"""Streams, uploads and large files through a real server, with a scripted host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from toolbus import FileChunk, RoomClient, Toolkit, tool
from toolbus.room.room import connection_of
from toolbus.wire import (
    Cancel,
    Credit,
    Dispatch,
    Frame,
    Input,
    Progress,
    Result,
    StreamChunk,
    encode,
    pack_body,
    unpack_body,
)
from toolbus.wire.flow_control import SendWindow
from toolbus_server.testing import running_server

T = TypeVar("T")


@tool
def anything() -> int:
    return 1


class ScriptedHost:
    """The frames of a scripted host: what it receives, and what it sends."""

    def __init__(self, room: RoomClient) -> None:
        link = connection_of(room).link
        assert link.websocket is not None
        self._connection = link.websocket
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        assert link._current is not None
        for kind in (Dispatch, Credit, Input, Cancel):
            link._current._handlers[kind] = self.frames.put_nowait

    def send(self, frame: Frame) -> None:
        self._connection.send_message(encode(frame))

    async def next_of(self, kind: type[T]) -> T:
        while not isinstance(frame := await self.frames.get(), kind):
            pass
        return frame

    async def send_chunk(self, dispatch: Dispatch, window: SendWindow, body: bytes) -> None:
        while not window.is_open:
            credit = await self.next_of(Credit)
            window.give(credit.chunks, credit.bytes)
        self.send(StreamChunk(dispatch.id, window.take(len(body)), body))


@asynccontextmanager
async def scripted_host() -> AsyncIterator[tuple[ScriptedHost, RoomClient]]:
    async with (
        asyncio.timeout(60),
        running_server() as server,
        server.room("host") as host,
        server.room("ann") as ann,
        host.host(Toolkit("t", [anything])),
    ):
        yield ScriptedHost(host), ann


def window_of(dispatch: Dispatch) -> SendWindow:
    header: dict[str, Any] = dict(dispatch.header)
    return SendWindow(header.get("credit_chunks", 1), header.get("credit_bytes", 2**15))


async def test_stream_of_many_windows_is_complete_and_in_order() -> None:
    """STREAM-3, STREAM-4."""
    count = 3_000
    async with scripted_host() as (host, ann), ann.stream("t.anything") as chunks:
        dispatch = await host.next_of(Dispatch)

        async def produce() -> None:
            window = window_of(dispatch)
            for number in range(count):
                await host.send_chunk(dispatch, window, pack_body([1, [number, "x" * 1_000]]))
            host.send(Result(dispatch.id, b"\x91\x00"))

        producing = asyncio.create_task(produce())
        assert [chunk.into(list[Any])[0] async for chunk in chunks] == [*range(count)]
        await producing


async def test_slow_reader_slows_its_host_down() -> None:
    """STREAM-3, STREAM-4, guarantee "slow reader"."""
    async with scripted_host() as (host, ann), ann.stream("t.anything") as chunks:
        dispatch = await host.next_of(Dispatch)
        window, sent = window_of(dispatch), 0
        # The server and the reader have this much room in all; nothing is read meanwhile.
        while sent < 4 * 2**20:
            try:
                async with asyncio.timeout(0.5):
                    await host.send_chunk(dispatch, window, pack_body([2, "x" * 60_000]))
            except TimeoutError:
                break
            sent += 60_000
        assert sent < 2 * 2**20
        producing = asyncio.create_task(host.send_chunk(dispatch, window, pack_body([2, "last"])))
        while (await anext(chunks)).value != "last":
            pass
        await producing


async def test_upload_and_a_large_file_back_take_no_frame_too_large() -> None:
    """STREAM-8, INPUT-1, PROGRESS-1."""
    received: list[Any] = []
    data = bytes(range(256)) * 8_192
    async with scripted_host() as (host, ann):
        invoked = asyncio.create_task(
            ann.invoke("t.anything", attachment=data, on_progress=received.append)
        )
        dispatch = await host.next_of(Dispatch)
        host.send(Progress(dispatch.id, pack_body([1, "begun"])))
        taken = b""
        while True:
            host.send(Credit(dispatch.id, True, 2**20, len(taken) + 2**18))
            piece = await host.next_of(Input)
            taken += unpack_body(piece.body or b"", binary=True)[3]
            if piece.last:
                break
        assert taken == data

        async def answer() -> None:
            window = window_of(dispatch)
            for start in range(0, len(data), 65_536):
                piece = [3, "back", "", data[start : start + 65_536], True]
                await host.send_chunk(dispatch, window, pack_body(piece))
            host.send(Result(dispatch.id, pack_body([3, "", "", b"."])))

        answering = asyncio.create_task(answer())
        file = await invoked
        assert isinstance(file, FileChunk)
        assert (file.name, await file.read()) == ("back", data + b".")
        await answering
        assert received == ["begun"]


async def test_leaving_a_stream_cancels_it_at_its_host() -> None:
    """CALL-11, guarantee "caller is killed"."""
    async with scripted_host() as (host, ann):
        async with ann.stream("t.anything", input=[1, 2]):
            dispatch = await host.next_of(Dispatch)
        cancel = await host.next_of(Cancel)
        assert cancel == Cancel(dispatch.id, "cancelled")
