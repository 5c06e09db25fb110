"""A server below version 6, which knows nothing of calls that wait for a person (GROW-2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.parts.scripted_server import ScriptedServer, scripted_server
from toolbus import ApiScope, RoomClient, Toolkit, tool
from toolbus.errors import Unavailable
from toolbus.wire import (
    Dispatch,
    Failed,
    Register,
    Subscribe,
    decode_from_client,
    pack_body,
)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server(ApiScope.full()) as server, asyncio.timeout(60):
        server.version = 5
        yield server


async def test_topic_of_holds_is_left_out(server: ScriptedServer) -> None:
    """HOLD-10, EVENT-1: for it alone this server would refuse the whole subscription."""
    async with RoomClient(server.url, room="lab", token="e30.e30.t") as alice:
        connection = await server.next_connection()
        with pytest.raises(Unavailable, match="version 6"):
            await alice.events(["holds"]).__aenter__()
        entering = asyncio.ensure_future(alice.events(["holds", "messages"]).__aenter__())
        request = await connection.answer(Subscribe, {"topics": ["messages"]})
        assert request.topics == ["messages"]
        await entering


async def test_requests_about_holds_are_not_sent(server: ScriptedServer) -> None:
    """HOLD-8, HOLD-10."""
    async with RoomClient(server.url, room="lab", token="e30.e30.t") as alice:
        for requesting in (alice.holds(), alice.hold("a"), alice.approve("a"), alice.deny("a")):
            with pytest.raises(Unavailable, match="version 6") as refused:
                await requesting
            assert (refused.value.executed, refused.value.retryable) == ("no", False)


async def test_host_that_has_to_ask_a_person_refuses_the_call(server: ScriptedServer) -> None:
    """HOLD-1: not retryable, or its caller would repeat it until its deadline."""

    @tool(approval=True)
    async def guarded() -> None:
        raise AssertionError("nobody has approved it")

    async with RoomClient(server.url, room="lab", token="e30.e30.t") as room:
        connection = await server.next_connection()
        hosting = room.host(Toolkit("kit", [guarded]))
        entering = asyncio.ensure_future(hosting.__aenter__())
        await connection.answer(Register, {"digest": "d" * 64, "generation": 1})
        await entering
        header = {"caller": pack_body(["p2", "bob", "user", "test"])}
        await connection.send(
            Dispatch(9, "c" * 32, "kit", "guarded", 5_000, pack_body({}), header, None)
        )
        reply = decode_from_client(await connection.websocket.recv(decode=False))
        assert isinstance(reply, Failed)
        assert (reply.id, reply.code, reply.executed) == (9, "unavailable", "no")
        assert not reply.retryable
