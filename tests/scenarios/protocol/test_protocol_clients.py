"""PROTOCOL.md, rules for clients: retries and reconnects. Shown with this SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.clients.raw_client import raw_participant
from support.clients.raw_requests import answer, ask, next_of, offer
from support.parts.scripted_server import ScriptedConnection, scripted_server
from toolbus import (
    ConnectionLost,
    DeadlineExceeded,
    PermissionDenied,
    RoomClient,
    RoomException,
    Toolkit,
)
from toolbus.wire import (
    Call,
    Cancel,
    Describe,
    Dispatch,
    Event,
    Failed,
    Register,
    Result,
    Subscribe,
    pack_body,
)
from toolbus_server.testing import running_server

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


def _failed(
    dispatch: Dispatch, code: str, executed: str, *, retryable: bool, digest: str
) -> Failed:
    details = pack_body({"digest": digest})
    return Failed(dispatch.id, code, executed, retryable, "words", details, None)


@pytest.mark.row(51)
@pytest.mark.parametrize(
    ("code", "executed", "retryable", "is_tried_again"),
    [
        ("overloaded", "no", True, True),
        ("no_host", "no", True, True),
        ("host_lost", "maybe", True, True),
        ("host_lost", "maybe", False, False),
        ("tool_failed", "yes", True, False),
        ("not_found", "no", False, False),
        ("deadline_exceeded", "maybe", False, False),
    ],
)
async def test_only_calls_that_are_safe_to_repeat_are_retried(
    code: str, executed: str, retryable: bool, is_tried_again: bool
) -> None:
    """RETRY-1, RETRY-2: same call, a new id, the attempt counted."""
    async with (
        running_server() as server,
        raw_participant(server, "host") as host,
        server.room("alice") as alice,
    ):
        digest = (await ask(host, offer()))["digest"]
        call = asyncio.create_task(alice.call("echo.say"))
        first = await next_of(host, Dispatch)
        host.send_frame(_failed(first, code, executed, retryable=retryable, digest=digest))
        if is_tried_again:
            second = await next_of(host, Dispatch)
            assert second.call_id == first.call_id
            assert (first.header.get("attempt", 0), second.header["attempt"]) == (0, 1)
            answer(host, second)
            assert await call is None
        else:
            with pytest.raises(RoomException) as ended:
                await call
            assert (ended.value.code, ended.value.executed) == (code, executed)


async def test_there_are_three_attempts_and_one_that_may_have_run_keeps_maybe() -> None:
    """RETRY-1, RETRY-5."""
    async with (
        running_server() as server,
        raw_participant(server, "host") as host,
        server.room("alice") as alice,
    ):
        digest = (await ask(host, offer()))["digest"]
        call = asyncio.create_task(alice.call("echo.say"))
        lost = await next_of(host, Dispatch)
        host.send_frame(_failed(lost, "host_lost", "maybe", retryable=True, digest=digest))
        for attempt in (1, 2):
            again = await next_of(host, Dispatch)
            assert again.header["attempt"] == attempt
            host.send_frame(_failed(again, "overloaded", "no", retryable=True, digest=digest))
        with pytest.raises(RoomException) as ended:
            await call
        assert (ended.value.code, ended.value.executed) == ("overloaded", "maybe")
        assert not ended.value.retryable


async def test_refused_call_waits_at_least_for_retry_after() -> None:
    """RETRY-4: and not after its deadline, nor longer than 1 s for a host."""
    async with (
        running_server() as server,
        raw_participant(server, "host") as host,
        server.room("alice") as alice,
    ):
        await ask(host, offer())
        loop = asyncio.get_running_loop()
        call = asyncio.create_task(alice.call("echo.say"))
        first = await next_of(host, Dispatch)
        began = loop.time()
        host.send_frame(Failed(first.id, "overloaded", "no", True, "", None, 200))
        answer(host, await next_of(host, Dispatch))
        assert loop.time() - began >= 0.2
        await call
        for code, pause_ms, timeout_s in (("overloaded", 60_000, 5.0), ("no_host", 1_500, 60.0)):
            call = asyncio.create_task(alice.invoke("echo.say", timeout_s=timeout_s))
            refused = await next_of(host, Dispatch)
            host.send_frame(Failed(refused.id, code, "no", True, "", None, pause_ms))
            with pytest.raises(RoomException) as ended:
                await call
            assert ended.value.code == code


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
        RoomClient(server.url, room="lab", token="t") as alice,
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


async def test_client_waits_for_the_servers_answer_and_then_ends_the_call_itself() -> None:
    """RETRY-6."""
    async with (
        scripted_server() as server,
        RoomClient(server.url, room="lab", token="t") as alice,
    ):
        connection = await server.next_connection()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(DeadlineExceeded) as ended:
            await alice.invoke("echo.say", timeout_s=0.05)
        assert loop.time() - began >= 0.29
        assert ended.value.executed == "maybe"
        late = await connection.next_of(Call)
        await connection.send(Result(late.id, pack_body([0])))  # dropped
        call = asyncio.create_task(alice.invoke("echo.say", timeout_s=10))
        sent = await connection.next_of(Call)
        call.cancel()
        assert (await connection.next_of(Cancel)).id == sent.id


async def test_client_reconnects_with_a_higher_epoch_and_registers_and_subscribes_again() -> None:
    """LEAVE-4, REG-10, EVENT-4."""
    async with (
        scripted_server() as server,
        RoomClient(server.url, room="lab", token="t") as alice,
    ):
        connection = await server.next_connection()
        events = alice.events()
        stream = asyncio.create_task(anext(events))
        await connection.answer(Subscribe, {"topics": ["toolkits"]})
        await connection.send(Event(1, "brand_new", {"x": 1}))
        await connection.send(Event(2, "toolkit_added", {"toolkit": _SUMMARY}))
        assert (await stream).name == "toolkit_added"
        hosting = asyncio.create_task(_host_until_cancelled(alice))
        await connection.answer(Register, {"digest": "d" * 64, "generation": 9})
        await connection.websocket.close(1012)
        again = await server.next_connection()
        assert (again.instance, again.epoch > connection.epoch) == (connection.instance, True)
        offered = await again.answer(Register, {"digest": "d" * 64, "generation": 9})
        assert offered.options["generation"] == 9
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
        RoomClient(server.url, room="lab", token="t") as alice,
    ):
        connection = await server.next_connection()
        await connection.websocket.close(code)
        async with asyncio.timeout(60):
            with pytest.raises(PermissionDenied) as ended:
                await alice.closed()
        assert ended.value.details == {"close_code": code}
        assert server.connections.empty()
