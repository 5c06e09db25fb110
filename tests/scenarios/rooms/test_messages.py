"""Messages between participants: who receives them, their fields, and slow readers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.clients.raw_client import (
    RawClient,
    details_of,
    raw_participant,
    with_grants,
)
from support.clients.raw_requests import ask, id_of, next_of, refusal, stop_reading
from support.parts.scripted_server import scripted_server
from support.rooms.unharmed_server import unharmed_server
from toolbus import AgentsGrant, ApiScope, Message, RoomClient, ToolContext, Toolkit, tool
from toolbus.errors import InvalidArguments, NotFound, PermissionDenied, QuotaExceeded, TooLarge
from toolbus.wire import Event, Participants, Send, Subscribe, pack_body, unpack_body
from toolbus_server.testing import TestServer

KIB = 1024
NOTE = pack_body({"text": "hi"})


async def listen(*clients: RawClient) -> None:
    for client in clients:
        await ask(client, Subscribe(900, ["messages"]))


async def say(client: RawClient, to: str | None, name: str = "note", body: bytes = NOTE) -> Any:
    return (await ask(client, Send(901, to, name, body)))["delivered"]


async def received(client: RawClient) -> list[str]:
    """Return the names of the events received so far."""
    client.send_frame(Participants(902, {}))
    names = []
    while isinstance(frame := await client.read_frame(), Event):
        names.append(frame.data["name"])
    return names


# Receivers


async def test_a_message_reaches_every_connection_of_a_name_that_listens(
    server: TestServer,
) -> None:
    """SEND-1, SEND-2."""
    async with (
        raw_participant(server, "ann") as ann,
        raw_participant(server, "bob", instance="1") as one,
        raw_participant(server, "bob", instance="2") as two,
        raw_participant(server, "bob", instance="3") as deaf,
        raw_participant(server, "carl") as carl,
    ):
        await listen(ann, one, two, carl)
        await ask(deaf, Subscribe(1, ["participants", "toolkits"]))
        assert await say(ann, "bob", "first") == 2
        ann.send_frame(Send(1, "ann", "to-myself", NOTE))
        assert await received(ann) == ["to-myself"]
        assert [await received(reader) for reader in (one, two, deaf, carl)] == [
            ["first"],
            ["first"],
            [],
            [],
        ]
        failed = await refusal(ann, Send(1, "nobody", "note", NOTE))
        assert (failed.code, failed.executed, failed.retryable) == ("not_found", "no", False)


async def test_a_broadcast_reaches_all_subscribers_except_the_sender(server: TestServer) -> None:
    """SEND-1."""
    async with (
        raw_participant(server, "ann", instance="1") as ann,
        raw_participant(server, "ann", instance="2") as twin,
        raw_participant(server, "bob") as bob,
        raw_participant(server, "deaf") as deaf,
        server.room("afar", room="other") as afar,
    ):
        await listen(ann, twin, bob)
        assert await say(ann, None, "to-all") == 2
        assert await say(deaf, None, "from-deaf") == 3
        assert [await received(reader) for reader in (ann, twin, bob, deaf)] == [
            ["from-deaf"],
            ["to-all", "from-deaf"],
            ["to-all", "from-deaf"],
            [],
        ]
        assert await afar.broadcast("note") == 0


async def test_sending_and_hearing_need_the_grant(server: TestServer) -> None:
    """SEND-1, EVENT-1."""
    async with (
        with_grants(server, "eve", presence=True, agents=AgentsGrant(use_tools=True)) as eve,
        with_grants(server, "bob", messaging=True) as bob,
    ):
        for to in ("bob", "nobody", None):
            assert (await refusal(eve, Send(1, to, "note", NOTE))).code == "permission_denied"
        assert (await refusal(eve, Subscribe(1, ["messages"]))).code == "permission_denied"
        await listen(bob)
        assert await say(bob, "bob") == 1


@pytest.mark.parametrize("name", ["", "x" * 65, "two words", "n\n", "ø", "a/b"])
async def test_a_name_that_is_none_is_refused(server: TestServer, name: str) -> None:
    """SEND-1."""
    async with raw_participant(server, "ann") as ann:
        failed = await refusal(ann, Send(1, None, name, NOTE))
        assert (failed.code, details_of(failed)["path"]) == ("invalid_arguments", "/name")
        assert await say(ann, None, "A-z_0.9") == 0


# Content


async def test_a_message_names_its_sender_and_its_body_is_unchanged(server: TestServer) -> None:
    """SEND-3."""
    scope = {"messaging": True, "agents": AgentsGrant(builders=["weather", "news*"])}
    async with with_grants(server, "ann", **scope) as ann, raw_participant(server, "bob") as bob:
        await listen(bob)
        for to, body in (("bob", b"\xc1 no msgpack at all"), (None, NOTE)):
            assert await say(ann, to, "note", body) == 1
            event = await bob.next_event()
            assert event.name == "message"
            card = unpack_body(event.data.pop("from"))
            assert card == [id_of(ann), "ann", "user", "toolbus-test"]
            assert event.data == {
                "name": "note",
                "body": body,
                "direct": to is not None,
                "builders": ["weather", "news*"],
            }


async def test_a_body_is_at_most_256_kib(server: TestServer) -> None:
    """SEND-1."""
    async with raw_participant(server, "ann") as ann, raw_participant(server, "bob") as bob:
        await listen(bob)
        assert await say(ann, "bob", "full", b"x" * (256 * KIB)) == 1
        failed = await refusal(ann, Send(1, "bob", "note", b"x" * (256 * KIB + 1)))
        assert (failed.code, failed.executed) == ("too_large", "no")
        assert await received(bob) == ["full"]


# Too many, too slow


async def test_sender_of_too_many_messages_is_refused_for_a_while_and_others_are_not() -> None:
    """SEND-2."""
    async with (
        unharmed_server() as server,
        raw_participant(server) as mallory,
        raw_participant(server, "bob") as bob,
    ):
        await listen(bob)
        for number in range(1_000):
            mallory.send_frame(Send(number, "bob", "spam", NOTE))
        failed = await refusal(mallory, Send(5_000, "bob", "spam", NOTE))
        assert (failed.code, failed.executed, failed.retryable) == ("quota_exceeded", "no", True)
        assert failed.message == "too many messages: at most 1,000 within 10 s"
        assert failed.retry_after_ms is not None
        assert 0 < failed.retry_after_ms <= 10_000
        assert await received(bob) == ["spam"] * 1_000
        assert await say(bob, "bob") == 1


async def test_a_reader_without_room_misses_messages_and_stays() -> None:
    """SEND-2, EVENT-2: what it missed leaves no gap in the numbers of what it is sent."""
    async with (
        unharmed_server() as server,
        raw_participant(server, "ann") as ann,
        raw_participant(server, "bob") as bob,
        raw_participant(server, "slow") as slow,
    ):
        await listen(bob, slow)
        stop_reading(slow)
        body, sent, taken = b"x" * (256 * KIB), 0, 0
        while (delivered := await say(ann, None, "big", body)) == 2:
            await bob.next_event()
            sent, taken = sent + 1, taken + 1
            assert sent < 200
        assert delivered == 1
        assert await say(ann, "slow", "big", body) == 0  # it is present, and has no room
        slow.read_again()
        numbers = [(await slow.next_event()).number for _ in range(taken)]
        assert numbers == list(range(1, taken + 1))
        assert await say(ann, "slow", "small") == 1
        last = await next_of(slow, Event)
        assert (last.number, last.data["name"]) == (taken + 1, "small")


# Through the SDK


@tool
async def greet_participants(context: ToolContext, name: str) -> list[str]:
    """Greet a participant, and return who is here."""
    await context.room.send(name, "greeting", {"from": context.caller.name})
    assert await context.room.list_builders(participant=name) == []
    await context.room.broadcast("done")
    return [participant.name for participant in await context.room.participants()]


async def test_messages_are_read_and_sent_through_the_sdk_also_by_a_tool(
    server: TestServer,
) -> None:
    """SEND-1, SEND-3."""
    async with (
        server.room("host") as host,
        host.host(Toolkit("greeter", [greet_participants])),
        server.room("ann") as ann,
        server.room("bob") as bob,
        bob.events() as events,
        asyncio.timeout(60),
    ):
        assert await ann.send("bob", "note", {"text": "hi"}) == 1
        event = await anext(events)
        assert (event.name, event.toolkit, event.participant) == ("message", None, None)
        assert isinstance(event.message, Message)
        assert (event.message.sender.name, event.message.sender.role) == ("ann", "user")
        assert (event.message.name, event.message.body) == ("note", {"text": "hi"})
        assert (event.message.direct, event.message.builders) == (True, ("*",))
        assert await ann.broadcast("ping") == 1
        message = (await anext(events)).message
        assert message is not None
        assert (message.name, message.body, message.direct) == ("ping", None, False)
        assert await ann.call("greeter.greet_participants", name="bob") == ["ann", "bob", "host"]
        for name, body in (("greeting", {"from": "ann"}), ("done", None)):
            message = (await anext(events)).message
            assert message is not None
            assert (message.sender.name, message.name, message.body) == ("host", name, body)


async def flood(room: RoomClient) -> None:
    for _ in range(1_100):
        await room.broadcast("spam")


async def test_messages_that_cannot_be_sent_are_refused_and_the_room_stays_open(
    server: TestServer,
) -> None:
    """SEND-1."""
    async with (
        server.room("ann") as ann,
        server.room("eve", api=ApiScope()) as eve,
        asyncio.timeout(60),
    ):
        with pytest.raises(NotFound):
            await ann.send("bob", "note")
        wrong: list[tuple[Any, Any, Any]] = [
            (None, "note", {}),
            ("ann", "two words", {}),
            ("ann", 7, {}),
            ("ann", "note", b"bytes"),
            ("ann", "note", {"x": float("nan")}),
            ("ann", "note", {"x": object()}),
        ]
        for to, name, body in wrong:
            with pytest.raises(InvalidArguments):
                await ann.send(to, name, body)
        for kib in (300, 1_100):
            with pytest.raises(TooLarge):
                await ann.send("ann", "note", "x" * kib * KIB)
        for refused in (eve.send("ann", "note"), eve.broadcast("note")):
            with pytest.raises(PermissionDenied):
                await refused
        with pytest.raises(QuotaExceeded) as caught:
            await flood(ann)
        assert caught.value.retry_after_s is not None
        assert await ann.participants()


async def test_a_message_that_cannot_be_read_is_passed_over(
    server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    """BODY-1, SEND-3."""
    async with (
        raw_participant(server, "mallory") as mallory,
        server.room("bob") as bob,
        bob.events() as events,
        bob.events(),
        asyncio.timeout(60),
    ):
        for body in (b"", b"\xc1", pack_body({}) + b"\x00", b"\x91" * 40 + b"\x90", b"\xc4\x01x"):
            assert await say(mallory, "bob", "odd", body) == 1
        assert await say(mallory, "bob", "good") == 1
        message = (await anext(events)).message
        assert message is not None
        assert message.name == "good"
    assert caplog.text.count("a message named odd cannot be decoded") == 1


async def test_messages_arrive_again_after_a_reconnect() -> None:
    """EVENT-4."""
    async with scripted_server() as server, asyncio.timeout(60):
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as room:
            connection = await server.next_connection()
            events = room.events()
            coming = asyncio.ensure_future(anext(events))
            await connection.answer(Subscribe, {"topics": []})
            await connection.websocket.close()
            connection = await server.next_connection()
            await connection.answer(Subscribe, {"topics": []})
            assert (await coming).name == "reconnected"
            card = pack_body(["p2", "ann", "user", "test", "from a newer release"])
            data = {"from": card, "name": "note", "body": NOTE, "direct": True, "builders": []}
            await connection.send(Event(1, "message", data))
            message = (await anext(events)).message
            assert message is not None
            assert (message.sender.id, message.sender.name) == ("p2", "ann")
            await connection.websocket.close()
            await events.aclose()
