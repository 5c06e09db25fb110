"""Participants, their attributes and events through the SDK, also after a reconnect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.parts.scripted_server import ScriptedConnection, scripted_server
from toolbus import AgentsGrant, ApiScope, BuilderInfo, RequiredToolkit, RoomClient
from toolbus.errors import (
    ConnectionLost,
    InvalidArguments,
    PermissionDenied,
    RoomException,
)
from toolbus.wire import (
    Attributes,
    Builders,
    Failed,
    Participants,
)
from toolbus_server.testing import TestServer

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
OFFER = {"name": "weather", "description": "Forecasts.", "schema": SCHEMA}


async def test_participants_see_each_other_through_the_sdk(server: TestServer) -> None:
    """PEOPLE-1, PEOPLE-2, PEOPLE-3."""
    async with server.room("ann") as ann, ann.events() as events:
        await ann.set_attributes(mood="curious")
        async with asyncio.timeout(60), server.room("bob", role="agent") as bob:
            received = [await anext(events), await anext(events)]
            assert {event.name for event in received} == {
                "participant_changed",
                "participant_joined",
            }
            words = ["red"]
            await bob.set_attributes(status="busy", self=1, words=words)
            words.append("blue")
            event = await anext(events)
            person = event.participant
            assert (event.name, event.toolkit, event.message) == ("participant_changed", None, None)
            assert person is not None
            assert (person.name, person.role) == ("bob", "agent")
            assert person.attributes == {"status": "busy", "self": 1, "words": ["red"]}
            await bob.set_attributes(status=None)
            assert [participant.attributes for participant in await bob.participants()] == [
                {"mood": "curious"},
                {"self": 1, "words": ["red"]},
            ]


async def test_subscriber_gets_only_events_that_its_grant_covers(server: TestServer) -> None:
    """EVENT-1."""
    async with (
        server.room("dan", api=ApiScope(presence=True)) as dan,
        server.room("eve", api=ApiScope()) as eve,
        dan.events() as events,
    ):
        await dan.set_attributes(status="here")
        async with asyncio.timeout(60):
            assert (await anext(events)).name == "participant_changed"
        with pytest.raises(PermissionDenied):
            await anext(eve.events())
        with pytest.raises(PermissionDenied):
            await eve.participants()


async def test_attributes_that_cannot_be_sent_are_refused_and_the_room_stays_open(
    server: TestServer,
) -> None:
    """PEOPLE-2, BUILD-1."""
    async with server.room("bob") as bob, asyncio.timeout(60):
        for wrong in (object(), float("nan"), b"x", 2**70):
            with pytest.raises(InvalidArguments):
                await bob.set_attributes(status=wrong)
        for length in (17_000, 70_000):
            with pytest.raises(InvalidArguments):
                await bob.set_attributes(status="x" * length)
        wrong_offers: list[Any] = [None, [OFFER], [BuilderInfo("No Name", "", {})]]
        for offers in wrong_offers:
            with pytest.raises(InvalidArguments):
                await bob.offer_builders(offers)
        assert [participant.attributes for participant in await bob.participants()] == [{}]
        await bob.offer_builders(info for info in [BuilderInfo("weather", "Forecasts.", SCHEMA)])
        assert await bob.list_builders(participant="bob") == [
            BuilderInfo("weather", "Forecasts.", SCHEMA)
        ]


async def test_participant_knows_its_identity_and_its_grants(server: TestServer) -> None:
    scope = ApiScope(agents=AgentsGrant(call=True, deny=("a.b",)), presence=True)
    async with server.room("dan", api=scope, role="guest") as dan:
        (person,) = await dan.participants()
        assert (dan.me.id, dan.me.name) == (person.id, dan.name)
        assert (dan.me.role, dan.me.issuer) == ("guest", person.issuer)
        assert dan.grants == scope


async def test_wider_token_gives_a_subscriber_more_events(server: TestServer) -> None:
    """REFRESH-1, EVENT-1."""
    scopes = [ApiScope(presence=True), ApiScope(presence=True, messaging=True)]

    async def newest() -> str:
        return server.token("dan", api=scopes[0])

    async with (
        RoomClient(server.url, room="lab", token=newest) as dan,
        server.room("bob") as bob,
        dan.events() as events,
        asyncio.timeout(60),
    ):
        assert await bob.send("dan", "note") == 0
        await bob.set_attributes(status="here")
        assert (await anext(events)).name == "participant_changed"
        del scopes[0]
        await dan.refresh()
        assert dan.grants.messaging
        assert await bob.send("dan", "note", "hello") == 1
        received = [await anext(events)]
        while received[-1].name != "message":
            received.append(await anext(events))
        assert "missed" in {event.name for event in received}
        assert received[-1].message is not None
        assert received[-1].message.body == "hello"


async def test_events_end_with_a_room_that_one_is_sent_out_of(server: TestServer) -> None:
    async with server.room("boss") as boss, server.room("dan") as dan, asyncio.timeout(60):
        finding = asyncio.create_task(RequiredToolkit("missing").find(dan))
        async with dan.events() as events:
            for _ in range(3):  # as often as the search requests before it waits
                await dan.participants()
            await boss.admin("kick", room="lab", participant="dan")
            with pytest.raises(PermissionDenied, match="an administrator removed"):
                await anext(events)
        with pytest.raises(RoomException):
            await finding
        with pytest.raises(PermissionDenied):
            await dan.closed()


async def published_after(connection: ScriptedConnection) -> tuple[Any, Any]:
    """Return what a client announces as soon as it has reconnected."""
    attributes = (await connection.answer(Attributes, {})).attributes
    return attributes, (await connection.answer(Builders, {})).options


async def test_attributes_are_published_again_after_a_reconnect() -> None:
    """LEAVE-4: to a server that may know nothing of it."""
    async with scripted_server() as server, asyncio.timeout(60):
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as room:
            connection = await server.next_connection()
            status = ["busy"]
            setting = asyncio.ensure_future(room.set_attributes(status=status, seat=3))
            await connection.answer(Attributes, {})
            await setting
            status.append("changed by its owner, and never set")
            setting = asyncio.ensure_future(room.set_attributes(seat=None))
            await connection.answer(Attributes, {})
            await setting
            offering = asyncio.ensure_future(room.offer_builders([BuilderInfo("t", "", {})]))
            await connection.answer(Builders, {})
            await offering
            await connection.websocket.close()
            connection = await server.next_connection()
            offers = {"offer": [{"name": "t", "description": "", "schema": {}}]}
            assert await published_after(connection) == ({"status": ["busy"]}, offers)
            await connection.websocket.close()


async def test_unconfirmed_registrations_are_withdrawn_after_a_reconnect() -> None:
    async with scripted_server() as server, asyncio.timeout(60):
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as room:
            connection = await server.next_connection()
            setting = asyncio.ensure_future(room.set_attributes(status="busy"))
            await connection.next_of(Attributes)
            offering = asyncio.ensure_future(room.offer_builders([BuilderInfo("t", "", {})]))
            await connection.next_of(Builders)
            await connection.websocket.close()
            for lost in (setting, offering):
                with pytest.raises(ConnectionLost):
                    await lost
            connection = await server.next_connection()
            assert await published_after(connection) == ({"status": None}, {"offer": []})
            await connection.websocket.close()


async def test_attributes_refused_after_a_reconnect_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripted_server() as server, asyncio.timeout(60):
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as room:
            connection = await server.next_connection()
            setting = asyncio.ensure_future(room.set_attributes(status="busy"))
            await connection.answer(Attributes, {})
            await setting
            await connection.websocket.close()
            connection = await server.next_connection()
            request = await connection.next_of(Attributes)
            await connection.send(
                Failed(request.id, "quota_exceeded", "no", True, "much", None, None)
            )
            asking = asyncio.ensure_future(room.participants())
            await connection.answer(Participants, {"participants": [], "cursor": None})
            assert await asking == []
            await connection.websocket.close()
    assert "attributes and builders could not be published again" in caplog.text
