"""A host's streams on a real connection: frames reach their call, and congestion slows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.parts.isolated_host import ALICE, PLENTY
from support.parts.scripted_server import ScriptedConnection, scripted_server
from toolbus import ApiScope, InputStream, RoomClient, Toolkit, tool
from toolbus.transport.websocket import WRITE_LIMIT_BYTES
from toolbus.wire import (
    CallId,
    Credit,
    Dispatch,
    Input,
    Register,
    RequestId,
    Result,
    StreamChunk,
    Unregister,
    pack_body,
    unpack_body,
)


@asynccontextmanager
async def hosting(*tools: Any) -> AsyncIterator[ScriptedConnection]:
    """Host tools; yield the server's end of the connection."""
    kit = Toolkit("t", tools)
    async with scripted_server(ApiScope.full()) as server, asyncio.timeout(60):
        room = RoomClient(server.url, room="lab", token="e30.e30.t")
        entering = asyncio.ensure_future(room.__aenter__())
        connection = await server.next_connection()
        await entering
        host = room.host(kit)
        registering = asyncio.ensure_future(host.__aenter__())
        await connection.answer(Register, {"digest": "d", "generation": 1})
        await registering
        yield connection
        leaving = asyncio.ensure_future(host.__aexit__(None, None, None))
        await connection.answer(Unregister, {})
        await leaving
        await room.__aexit__(None, None, None)


def dispatch(name: str, header: dict[str, Any]) -> Dispatch:
    header = {"caller": ALICE, **header}
    return Dispatch(7, CallId("7"), "t", name, None, pack_body({}), header)


async def test_peer_that_does_not_read_slows_the_tool_and_loses_nothing() -> None:
    made: list[int] = []
    total = 400

    @tool
    async def texts() -> AsyncIterator[str]:
        for number in range(total):
            made.append(number)
            yield f"{number} " + "x" * 100_000

    async with hosting(texts) as connection:
        await connection.send(dispatch("texts", PLENTY))
        before = -1
        while before != len(made):  # until all buffers in between are full
            before = len(made)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await asyncio.Event().wait()
        # The buffers of both operating systems add to our own limit.
        assert 2 * WRITE_LIMIT_BYTES < 100_000 * len(made) < 100_000 * total // 2
        for number in range(total):
            chunk = await connection.next_of(StreamChunk)
            assert chunk.number == number + 1
            assert unpack_body(chunk.body)[1].startswith(f"{number} ")
        assert (await connection.next_of(Result)).id == 7


async def test_credit_and_input_reach_their_call() -> None:
    @tool
    async def double(rows: InputStream[int]) -> AsyncIterator[int]:
        async for row in rows:
            yield 2 * row

    async with hosting(double) as connection:
        header = {"credit_chunks": 1, "credit_bytes": 1000, "input": True}
        await connection.send(dispatch("double", header))
        given = await connection.next_of(Credit)
        assert (given.id, given.of_input) == (7, True)
        call = RequestId(7)
        for number in (1, 2):
            await connection.send(Input(call, number, pack_body([1, number]), number == 2))
        assert unpack_body((await connection.next_of(StreamChunk)).body) == [1, 2]
        await connection.send(Credit(call, False, 2, 1000))
        assert unpack_body((await connection.next_of(StreamChunk)).body) == [1, 4]
        assert (await connection.next_of(Result)).id == 7
