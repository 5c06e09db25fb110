"""A reader of events: when it starts to receive, what it receives, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.parts.scripted_server import scripted_server
from toolbus import ApiScope, EventStream, RoomClient, RoomEvent
from toolbus.errors import InvalidArguments, PermissionDenied, RoomException, Unavailable
from toolbus.wire import Event, Failed, Participants, Subscribe
from toolbus_server.testing import TestServer, running_server


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with running_server() as running:
        yield running


async def next_message(events: EventStream[RoomEvent]) -> str:
    message = (await anext(events)).message
    assert message is not None
    return message.name


async def test_participant_gets_messages_as_soon_as_it_has_joined(server: TestServer) -> None:
    async with server.room("ann") as ann, server.room("bob") as bob, asyncio.timeout(60):
        async with bob.events() as events:
            assert await ann.send("bob", "first") == 1
            assert await ann.send("bob", "second") == 1
            assert [await next_message(events), await next_message(events)] == ["first", "second"]
        assert await ann.send("bob", "third") == 0


async def test_the_block_is_not_entered_before_the_server_has_answered() -> None:
    async with scripted_server() as server, asyncio.timeout(60):
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as room:
            connection = await server.next_connection()
            entering = asyncio.create_task(room.events().__aenter__())
            request = await connection.next_of(Subscribe)
            asking = asyncio.create_task(room.participants())
            await connection.answer(Participants, {"participants": [], "cursor": None})
            assert await asking == []
            assert not entering.done()
            await connection.send(Failed(request.id, "unavailable", "no", False, "no", None, None))
            with pytest.raises(RoomException):
                await entering
            await connection.websocket.close()


async def test_subscriber_without_any_allowed_event_is_refused(server: TestServer) -> None:
    async with server.room("eve", api=ApiScope()) as eve, asyncio.timeout(60):
        for stream in (eve.events(), eve.watch_calls()):
            with pytest.raises(PermissionDenied):
                await stream.__aenter__()
            assert [event async for event in stream] == []
    with pytest.raises(Unavailable):
        await eve.events().__aenter__()


async def test_topics_are_read_once_and_others_are_refused(server: TestServer) -> None:
    async with server.room("ann") as ann, server.room("bob") as bob, asyncio.timeout(60):
        async with ann.events(topic for topic in ["messages"]) as events:
            await bob.send("ann", "hello")
            assert await next_message(events) == "hello"
        odd: list[Any] = [5, None, "messages", [], ["calls"], [["messages"]]]
        for topics in odd:
            with pytest.raises(InvalidArguments, match="topics must be among holds, messages"):
                await ann.events(topics).__aenter__()


async def test_watching_calls_has_begun_once_the_block_runs(server: TestServer) -> None:
    async with server.room("eve") as eve, eve.watch_calls() as stream, asyncio.timeout(60):
        assert server.server.hub.rooms["lab"].routed.monitor is not None
        assert (await anext(stream)).in_flight == 0


async def test_giving_up_waiting_loses_no_event(server: TestServer) -> None:
    async with (
        server.room("ann") as ann,
        server.room("bob") as bob,
        bob.events() as events,
        asyncio.timeout(60),
    ):
        for name in ("first", "second"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.02)
            assert await ann.send("bob", name) == 1
            assert await next_message(events) == name


async def test_closing_ends_waiting_readers_and_drops_unread_data(server: TestServer) -> None:
    async with server.room("ann") as ann, server.room("bob") as bob, asyncio.timeout(60):
        events = await bob.events().__aenter__()
        waiting = [asyncio.create_task(anext(events, None)) for _ in range(2)]
        await bob.participants()
        await events.aclose()
        assert await asyncio.gather(*waiting) == [None, None]
        unread = await bob.events().__aenter__()
        assert await ann.send("bob", "unread") == 1
        await unread.aclose()
        await unread.aclose()
        assert await anext(unread, None) is None
        with pytest.raises(RuntimeError, match="has ended"):
            await unread.__aenter__()
        assert await ann.send("bob", "note") == 0


async def test_reader_that_breaks_off_without_a_block_is_subscribed_no_more(
    server: TestServer,
) -> None:
    async def first_name(room: RoomClient) -> str:
        async for event in room.events(["messages"]):
            return event.name
        raise AssertionError("the room ended")

    async with server.room("ann") as ann, server.room("bob") as bob, asyncio.timeout(60):
        reading = asyncio.create_task(first_name(bob))
        await bob.participants()  # sent on the same connection, after the subscription
        assert await ann.send("bob", "note") == 1
        assert await reading == "message"
        for _ in range(2):  # the subscription ends with the first answer
            await bob.participants()
        assert await ann.send("bob", "note") == 0


async def test_readers_of_one_stream_share_its_chunks() -> None:
    async with scripted_server() as server, asyncio.timeout(60):
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as room:
            connection = await server.next_connection()
            events = room.events()
            first, second = (asyncio.create_task(anext(events)) for _ in range(2))
            await connection.answer(Subscribe, {"topics": ["toolkits"]})
            summary = {"title": "", "description": "", "version": "", "digest": "d", "hosts": 1}
            more = {"public": True, "owner": {"name": "o", "issuer": ""}, "tools": []}
            for number, name in enumerate("ab", 1):
                toolkit = {"name": name} | summary | more
                await connection.send(Event(number, "toolkit_added", {"toolkit": toolkit}))
            received = [(await event).toolkit for event in (first, second)]
            assert [toolkit.name for toolkit in received if toolkit is not None] == ["a", "b"]
            await connection.websocket.close()


async def test_all_readers_of_a_stream_end_with_the_room(server: TestServer) -> None:
    async with server.room("bob") as bob:
        events = await bob.events().__aenter__()
        waiting = [asyncio.create_task(anext(events, None)) for _ in range(2)]
    async with asyncio.timeout(60):
        assert await asyncio.gather(*waiting) == [None, None]
