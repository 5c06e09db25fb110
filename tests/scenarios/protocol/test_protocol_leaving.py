"""Section 13 of PROTOCOL.md, frame by frame: hosts that drain, and servers that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection

from support.clients.raw_client import (
    RawClient,
    bearer,
    details_of,
    raw_connection,
    raw_participant,
)
from support.clients.raw_requests import (
    answer,
    ask,
    call_of,
    call_through,
    failure_of,
    next_of,
    offer,
    refusal,
    toolkit_of,
)
from toolbus import KeyRing
from toolbus.wire import (
    Attributes,
    Cancel,
    Describe,
    Dispatch,
    Drain,
    Explain,
    ListToolkits,
    Notice,
    Result,
    Subscribe,
    Unregister,
)
from toolbus_server import RoomServer, ServerSettings
from toolbus_server.limits import Limits
from toolbus_server.testing import TestServer, running_server
from toolbus_server.websocket import leaving as farewell


def settings_of(drain_s: float, **limits: int) -> ServerSettings:
    return ServerSettings(keys=KeyRing([]), port=0, drain_s=drain_s, limits=Limits(**limits))


# A host that drains


async def test_host_that_drains_finishes_its_calls_and_gets_no_other() -> None:
    """LEAVE-1, LEAVE-5: with another host and without one."""
    async with (
        running_server() as server,
        raw_participant(server, "host", instance="1") as leaves,
        raw_participant(server, "alice") as alice,
    ):
        await ask(leaves, offer())
        running = await call_through(alice, leaves, call_of())
        assert await ask(leaves, Drain(2, {})) == {}
        assert await ask(leaves, Drain(3, {"of a later release": 1})) == {}
        failed = await refusal(alice, call_of(request_id=8))
        assert (failed.code, failed.executed, failed.retryable) == ("no_host", "no", True)
        assert failed.retry_after_ms
        async with raw_participant(server, "host", instance="2") as stays:
            await ask(stays, offer())
            again = await call_through(alice, stays, call_of(request_id=9))
            answer(stays, again)
            assert isinstance(await alice.reply_to(9), Result)
        answer(leaves, running)
        assert isinstance(await alice.reply_to(7), Result)


async def test_draining_host_does_not_count_as_a_host_and_keeps_the_name() -> None:
    """LEAVE-5: in lists, events and registrations of others; its own are refused."""
    async with (
        running_server() as server,
        raw_participant(server, "host") as host,
        raw_participant(server, "alice") as alice,
    ):
        await ask(host, offer())
        await ask(alice, Subscribe(1, ["toolkits"]))
        await ask(host, Drain(2, {}))
        changed = await alice.next_event()
        assert (changed.name, changed.data["toolkit"]["hosts"]) == ("toolkit_changed", 0)
        (listed,) = (await ask(alice, ListToolkits(2, {})))["toolkits"]
        assert (listed["name"], listed["hosts"]) == ("echo", 0)
        described = await ask(alice, Describe(3, "echo", {}))
        assert described["toolkit"]["hosts"] == 0
        explained = await ask(alice, Explain(4, "echo", "say", {}))
        assert (explained["would_run"], explained["code"]) == (False, "no_host")
        assert (await refusal(alice, offer(request_id=5))).code == "already_exists"
        for manifest in (None, toolkit_of("other", "say")):
            failed = await refusal(host, offer(manifest, 6))
            assert (failed.code, failed.executed) == ("unavailable", "no")


@pytest.mark.parametrize("ends", ["normally", "by a successor", "by one that hosts nothing"])
async def test_name_of_a_host_that_drained_is_kept_for_the_next_one(ends: str) -> None:
    """LEAVE-5, REG-18: at no moment is it missing, and after a while it is free."""
    async with (
        running_server(settings=settings_of(1.0, reservation_ms=500)) as server,
        raw_participant(server, "alice") as alice,
    ):
        async with raw_participant(server, "host", instance="1") as leaves:
            await ask(leaves, offer())
            await ask(leaves, Attributes(2, {"status": "old"}))
            await ask(leaves, Drain(3, {}))
            await ask(alice, Subscribe(1, ["toolkits"]))
            if ends == "by one that hosts nothing":
                async with raw_participant(server, "host", instance="1", epoch=2):
                    assert await leaves.close_code() == 4409
                    assert (await refusal(alice, call_of())).code == "no_host"
                    await removed(alice)
                return
            if ends == "by a successor":
                async with raw_participant(server, "host", instance="1", epoch=2) as next_one:
                    assert await leaves.close_code() == 4409
                    assert (await refusal(alice, call_of())).code == "no_host"
                    await ask(next_one, offer())
                    running = await call_through(alice, next_one, call_of(request_id=8))
                    answer(next_one, running)
        if ends == "normally":
            assert (await refusal(alice, call_of(request_id=9))).code == "no_host"
        await removed(alice)
        assert (await refusal(alice, call_of(request_id=10))).code == "not_found"


async def removed(reader: RawClient) -> None:
    """Read on until a toolkit is removed."""
    while (await reader.next_event()).name != "toolkit_removed":
        pass


async def test_older_definition_serves_while_the_newer_one_drains() -> None:
    """LEAVE-5, REG-9."""
    async with (
        running_server() as server,
        raw_participant(server, "host", instance="1") as older,
        raw_participant(server, "host", instance="2") as newer,
        raw_participant(server, "alice") as alice,
    ):
        await ask(older, offer())
        await ask(newer, offer(toolkit_of("echo", "say", version="2")))
        running = await call_through(alice, newer, call_of())
        await ask(newer, Drain(2, {}))
        answer(older, await call_through(alice, older, call_of(request_id=8)))
        assert isinstance(await alice.reply_to(8), Result)
        answer(newer, running)
        assert isinstance(await alice.reply_to(7), Result)


async def test_unregister_frees_a_name_also_while_its_host_drains() -> None:
    """LEAVE-5, REG-12."""
    async with (
        running_server() as server,
        raw_participant(server, "host", instance="1") as one,
        raw_participant(server, "host", instance="2") as two,
        raw_participant(server, "alice") as alice,
    ):
        for host in (one, two):
            await ask(host, offer())
            await ask(host, Drain(2, {}))
        await ask(one, Unregister(3, "echo", True))
        assert (await refusal(alice, call_of())).code == "no_host"  # the other keeps it
        await ask(two, Unregister(3, "echo", True))
        assert (await refusal(alice, call_of(request_id=8))).code == "not_found"
        await ask(alice, offer(request_id=9))


async def test_calls_within_those_that_a_draining_host_runs_are_served() -> None:
    """LEAVE-5, CALL-14."""
    async with (
        running_server() as server,
        raw_participant(server, "host") as host,
        raw_participant(server, "other") as other,
        raw_participant(server, "alice") as alice,
    ):
        await ask(host, offer())
        await ask(other, offer(toolkit_of("inner", "run")))
        outer = await call_through(alice, host, call_of())
        await ask(host, Drain(2, {}))
        inner = await call_through(host, other, call_of("inner.run", 3, parent=outer.id))
        answer(other, inner)
        assert isinstance(await host.reply_to(3), Result)
        answer(host, outer)
        assert isinstance(await alice.reply_to(7), Result)


# A server that leaves


@asynccontextmanager
async def leaving(server: TestServer, *participants: RawClient) -> AsyncIterator[None]:
    """Stop the server, wait until all got the notice, and wait for its end after the block."""
    stopping = asyncio.create_task(server.server.stop())
    for each in participants:
        notice = await next_of(each, Notice)
        assert (notice.name, set(notice.data)) == ("leaving", {"grace_ms"})
    yield
    async with asyncio.timeout(60):
        await stopping


async def test_server_that_shuts_down_notifies_all_and_accepts_no_new_calls() -> None:
    """LEAVE-2, LEAVE-6, LEAVE-7, CONN-5: except those within others."""
    async with (
        running_server(settings=settings_of(7.0)) as server,
        raw_participant(server, "host") as host,
        raw_participant(server, "alice") as alice,
    ):
        await ask(host, offer())
        running = await call_through(alice, host, call_of())
        async with leaving(server, alice, host):
            failed = await refusal(alice, call_of(request_id=8))
            assert (failed.code, failed.executed, failed.retryable) == ("unavailable", "no", True)
            assert failed.retry_after_ms
            explained = await ask(alice, Explain(9, "echo", "say", {}))
            assert (explained["would_run"], explained["code"]) == (False, "unavailable")
            failed = await refusal(alice, call_of(request_id=10, parent=1))
            assert failed.code == "permission_denied"
            host.send_frame(call_of(request_id=11, parent=running.id))
            within = await next_of(host, Dispatch)
            assert within.remaining_ms is not None
            answer(host, within)
            assert isinstance(await host.reply_to(11), Result)
            async with raw_connection(server.url) as late:
                head = await late.upgrade("/rooms/lab", bearer(server.token("late")))
                assert (head.status, head.headers["retry-after"]) == (503, "1")
            answer(host, running)
            assert isinstance(await alice.reply_to(7), Result)
            assert {await alice.closed_by_both(), await host.closed_by_both()} == {1012}


async def test_notice_has_the_longest_time_that_the_server_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LEAVE-6, LEAVE-7: it ends as soon as there is no participant to wait for."""
    monkeypatch.setattr(farewell, "STAY_S", 60.0)
    async with (
        running_server(settings=settings_of(61.5)) as server,
        raw_participant(server, "alice") as alice,
    ):
        stopping = asyncio.create_task(server.server.stop())
        assert await next_of(alice, Notice) == Notice("leaving", {"grace_ms": 61_500})
        alice.abort()
        async with asyncio.timeout(60):
            await stopping


async def test_server_that_shuts_down_stays_for_a_second_before_it_closes() -> None:
    """LEAVE-7: a call that crosses the notice is refused, and not lost."""
    async with (
        running_server(settings=settings_of(60.0)) as server,
        raw_participant(server, "host") as host,
        raw_participant(server, "alice") as alice,
    ):
        await ask(host, offer())
        began = asyncio.get_running_loop().time()
        async with leaving(server, host):
            assert (await refusal(alice, call_of())).code == "unavailable"
            assert await alice.closed_by_both() == 1012
            took_s = asyncio.get_running_loop().time() - began
            assert 1.0 <= took_s < 30.0  # though nothing was in flight
            assert await host.closed_by_both() == 1012


async def test_participant_connected_just_before_the_shutdown_is_notified_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LEAVE-2: otherwise it would get no notice."""
    handle = RoomServer._handle

    async def begin_to_leave(server: RoomServer, connection: ServerConnection) -> None:
        server.admission.draining = True
        await handle(server, connection)

    monkeypatch.setattr(RoomServer, "_handle", begin_to_leave)
    async with running_server() as server, raw_connection(server.url) as late:
        head = await late.upgrade("/rooms/lab", bearer(server.token("late")))
        assert (head.status, await late.close_code()) == (101, 1012)
        assert server.server.hub.rooms == {}


@pytest.mark.parametrize("idempotent", [False, True])
async def test_call_still_running_at_the_end_of_a_shutdown_ends_by_phase(idempotent: bool) -> None:
    """LEAVE-8, guarantee "server drains"."""
    manifest = toolkit_of("echo", "say")
    manifest["tools"][0]["idempotent"] = idempotent
    async with (
        running_server(settings=settings_of(0.2)) as server,
        raw_participant(server, "host") as host,
        raw_participant(server, "alice") as alice,
    ):
        digest = (await ask(host, offer(manifest)))["digest"]
        running = await call_through(alice, host, call_of())
        async with leaving(server):
            failed = await failure_of(alice, 7)
            received = (failed.code, failed.executed, failed.retryable)
            assert received == ("unavailable", "maybe", idempotent)
            assert details_of(failed) == {"digest": digest}
            assert await next_of(host, Cancel) == Cancel(running.id, "leaving")
            assert {await alice.closed_by_both(), await host.closed_by_both()} == {1012}
