"""A server that is newer than this SDK: unknown parts are ignored, known ones are read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.parts.scripted_server import ScriptedConnection, scripted_server
from toolbus import ApiScope, RoomClient, RoomException, Toolkit, tool
from toolbus.wire import Call, Describe, Register, Result, Subscribe, pack_body, unpack_body

MORE: list[Any] = ["a field more", b"\xc1", {"new": [None, 1.5, b"x"]}]
UNKNOWN: list[list[Any]] = [
    [200],
    [201, "no id"],
    [202, 1, {"code": "cancelled"}],  # an id, but no reply
    [32, 1, b"", {}],  # a frame that only clients send
    [4, 1, "unheard_of", {"toolkit": 7}],
]
DIGEST = "d" * 64
CARD = pack_body(["p2", "bob", "user", "test"])


async def send_frames(connection: ScriptedConnection, *frames: list[Any]) -> None:
    for frame in frames:
        await connection.websocket.send(pack_body(frame))


async def test_reply_is_read_among_unknown_kinds_and_fields() -> None:
    """FRAME-8, FRAME-9, FRAME-12, GROW-1: at the caller."""
    async with scripted_server(ApiScope.full()) as server:
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as alice:
            connection = await server.next_connection()
            calling = asyncio.ensure_future(alice.invoke("echo.say", {}, retry=False))
            call = await connection.next_of(Call)
            await send_frames(connection, *UNKNOWN, [2, call.id + 1000, b"\x91\x00", *MORE])
            await send_frames(
                connection, [18, call.id, "cancelled", *MORE]
            )  # for an unknown dispatch
            await send_frames(connection, [2, call.id, pack_body([2, "hello", "new", 7]), *MORE])
            async with asyncio.timeout(60):
                assert (await calling).value == "hello"
            assert connection.websocket.close_code is None


async def test_failure_with_an_unknown_code_keeps_its_details() -> None:
    """FRAME-8, ERR-3."""
    async with scripted_server(ApiScope.full()) as server:
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as alice:
            connection = await server.next_connection()
            calling = asyncio.ensure_future(alice.invoke("echo.say", {}, retry=False))
            call = await connection.next_of(Call)
            fields: list[Any] = ["too_new", "perhaps", False, "words", pack_body({"a": 1}), None]
            await send_frames(connection, [3, call.id, *fields, *MORE])
            with pytest.raises(RoomException, match="words") as failed:
                async with asyncio.timeout(60):
                    await calling
            facts = (failed.value.code, failed.value.executed, failed.value.details)
            assert facts == ("too_new", "maybe", {"a": 1})


async def test_dispatch_with_unknown_fields_and_keys_is_run() -> None:
    """FRAME-8, FRAME-9, FRAME-13, GROW-1: at the host, whose reply has only known fields."""

    @tool
    async def shout(text: str) -> str:
        return text.upper()

    async with scripted_server(ApiScope.full()) as server:
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as room:
            connection = await server.next_connection()
            hosting = asyncio.create_task(host_until_cancelled(room, Toolkit("echo", [shout])))
            body = {"digest": DIGEST, "generation": 1, "new": 1}
            await connection.answer(Register, body)
            header = {"caller": CARD, "new": [1, {"deep": None}], "later": b"\xc1"}
            arguments = pack_body({"text": "hello"})
            dispatch = [17, 2**40, "c" * 32, "echo", "shout", 5000, arguments, header, None]
            await send_frames(connection, *UNKNOWN, [*dispatch, *MORE])
            answer = await connection.next_of(Result)
            assert (answer.id, unpack_body(answer.body)) == (2**40, [2, "HELLO"])
            hosting.cancel()
            await connection.websocket.close()
            await asyncio.gather(hosting, return_exceptions=True)


async def host_until_cancelled(room: RoomClient, toolkit: Toolkit) -> None:
    async with room.host(toolkit):
        await asyncio.Event().wait()


async def test_event_with_unknown_keys_is_delivered() -> None:
    """EVENT-4, FRAME-13, GROW-1."""
    async with scripted_server(ApiScope.full()) as server:
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as alice:
            connection = await server.next_connection()
            listening = asyncio.ensure_future(first_event(alice))
            await connection.answer(Subscribe, {"topics": ["participants"], "new": 1})
            person: dict[str, Any] = {"id": "p2", "name": "bob", "role": "user", "issuer": "test"}
            person |= {"attributes": {}, "since": 1, "mood": "new"}
            await send_frames(connection, [4, 1, "participant_danced", {"participant": person}])
            await send_frames(
                connection, [4, 2, "participant_joined", {"participant": person, "x": 1}, *MORE]
            )
            async with asyncio.timeout(60):
                assert await listening == ("participant_joined", "bob")


async def first_event(room: RoomClient) -> tuple[str, str]:
    async for event in room.events(["participants"]):
        assert event.participant is not None
        return event.name, event.participant.name
    raise AssertionError("no event")


async def test_welcome_of_a_higher_version_is_accepted() -> None:
    """GROW-2, FRAME-8: it may have further facts, too."""
    async with scripted_server(ApiScope.full()) as server:
        server.version, server.more = 99, MORE
        async with RoomClient(server.url, room="lab", token="e30.e30.t") as alice:
            connection = await server.next_connection()
            describing = asyncio.ensure_future(alice.toolkit("echo"))
            await connection.answer(Describe, {**description(), "new": 1})
            async with asyncio.timeout(60):
                assert (await describing).info.name == "echo"


def description() -> dict[str, Any]:
    names = ("title", "description", "version")
    summary: dict[str, Any] = {"name": "echo", "digest": DIGEST, **dict.fromkeys(names, "")}
    summary |= {"public": True, "owner": {"name": "bob", "issuer": "test"}, "hosts": 1}
    summary |= {"tools": ["say"], "from_the_future": True}
    send_frames = {"name": "say", "input_schema": {}, "idempotent": True, "new": 1}
    return {"toolkit": summary, "manifest": {"name": "echo", "tools": [send_frames], "new": 1}}
