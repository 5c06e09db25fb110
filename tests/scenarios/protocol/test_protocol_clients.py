"""PROTOCOL.md, rules for clients: retries and reconnects. Shown with this SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.parts.scripted_server import ScriptedConnection, scripted_server
from toolbus import (
    ConnectionLost,
    PermissionDenied,
    RoomClient,
    Toolkit,
)
from toolbus.wire import (
    Call,
    Describe,
    Event,
    Notice,
    Register,
    Result,
    Subscribe,
    pack_body,
)

_SUMMARY = {
    "name": "echo",
    "title": "",
    "description": "",
    "version": "",
    "digest": "d" * 64,
    "public": True,
    "owner": {"name": "host", "issuer": "test"},
    "hosts": 1,
    "tools": ["say", "pay"],
}
_TOOLS = [{"name": "say", "idempotent": True}, {"name": "pay", "idempotent": False}]
_DESCRIPTION = {"toolkit": _SUMMARY, "manifest": {"name": "echo", "tools": _TOOLS}}


async def _call_until_lost(
    room: RoomClient, connection: ScriptedConnection, tool: str
) -> asyncio.Task[Any]:
    """Let a call be written, with its toolkit known, and lose the connection."""
    call = asyncio.create_task(room.invoke(f"echo.{tool}", timeout_s=10))
    await connection.answer(Describe, _DESCRIPTION)
    await connection.next_of(Call)
    await connection.websocket.close(1012)
    return call


async def test_call_on_a_lost_connection_is_retried_only_if_known_to_be_idempotent() -> None:
    """RETRY-3, ERR-8: and only while the definition is the one that was read."""
    async with (
        scripted_server() as server,
        RoomClient(server.url, room="lab", token="e30.e30.t") as alice,
    ):
        connection = await server.next_connection()
        call = await _call_until_lost(alice, connection, "say")
        connection = await server.next_connection()
        asked = await connection.answer(Describe, {"toolkit": _SUMMARY, "unchanged": True})
        assert asked.options["digest"] == "d" * 64
        again = await connection.next_of(Call)
        assert again.options == {"attempt": 1, "pin": "d" * 64}
        await connection.send(Result(again.id, pack_body([2, "done"])))
        assert (await call).text == "done"
        paying = asyncio.create_task(alice.invoke("echo.pay", timeout_s=10))
        await connection.next_of(Call)
        await connection.websocket.close(1012)
        with pytest.raises(ConnectionLost) as lost:
            await paying
        assert lost.value.executed == "maybe"


async def test_client_reconnects_with_a_higher_epoch_and_registers_and_subscribes_again() -> None:
    """LEAVE-4, REG-10, EVENT-4."""
    async with (
        scripted_server() as server,
        RoomClient(server.url, room="lab", token="e30.e30.t") as alice,
    ):
        connection = await server.next_connection()
        events = alice.events()
        stream = asyncio.create_task(anext(events))
        await connection.answer(Subscribe, {"topics": ["toolkits"]})
        await connection.send(Event(1, "brand_new", {"x": 1}))
        await connection.send(Event(2, "toolkit_added", {"toolkit": _SUMMARY}))
        assert (await stream).name == "toolkit_added"
        hosting = asyncio.create_task(_host_until_cancelled(alice))
        await connection.answer(Register, {"digest": "d" * 64, "generation": 9, "base": 0})
        place = {"toolkit": "mine", "public": True, "serving": True, "generation": 12, "base": 12}
        await connection.send(Notice("serving", place))
        await connection.websocket.close(1012)
        again = await server.next_connection()
        assert (again.instance, again.epoch > connection.epoch) == (connection.instance, True)
        offered = await again.answer(Register, {"digest": "d" * 64, "generation": 9})
        assert (offered.options["generation"], offered.options["base"]) == (12, 12)
        await again.answer(Subscribe, {"topics": ["toolkits"]})
        async with asyncio.timeout(60):
            assert (await anext(events)).name == "reconnected"
        hosting.cancel()
        await again.websocket.close(4409)
        with pytest.raises(PermissionDenied):
            await alice.closed()


async def _host_until_cancelled(room: RoomClient) -> None:
    async with room.host(Toolkit("mine", [])):
        await asyncio.Event().wait()


@pytest.mark.parametrize("code", [4401, 4403, 4404, 4409, 4440])
async def test_client_does_not_reconnect_where_that_would_change_nothing(code: int) -> None:
    """LEAVE-4."""
    async with (
        scripted_server() as server,
        RoomClient(server.url, room="lab", token="e30.e30.t") as alice,
    ):
        connection = await server.next_connection()
        await connection.websocket.close(code)
        async with asyncio.timeout(60):
            with pytest.raises(PermissionDenied) as ended:
                await alice.closed()
        assert ended.value.details == {"close_code": code}
        assert server.connections.empty()
