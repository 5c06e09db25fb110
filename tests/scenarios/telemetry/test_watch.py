"""Observing a room's calls: what a monitor receives, and what it costs the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import (
    answer,
    ask,
    call_of,
    call_through,
    id_of,
    offer,
    refusal,
    stop_reading,
    toolkit_of,
)
from support.processes.host_process import host_process
from support.rooms.approvals import person_in
from support.rooms.call_watching import OBSERVER, Sum
from support.rooms.server_state import is_watched
from support.rooms.unharmed_server import check_call, unharmed_server
from toolbus import (
    AgentsGrant,
    ApiScope,
    CallReport,
    Key,
    KeyRing,
    RoomClient,
    RoomEvent,
    ToolContext,
    Toolkit,
    tool,
)
from toolbus.errors import HostLost, InvalidArguments, NotFound, PermissionDenied, RoomException
from toolbus.wire import (
    Cancel,
    Event,
    Participants,
    Send,
    Subscribe,
    decode_from_server,
    pack_body,
    unpack_body,
)
from toolbus_server import ServerSettings
from toolbus_server.testing import TestServer, running_server

KIB = 1024


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with running_server() as server:
        yield server


async def next_report(client: RawClient) -> dict[str, Any]:
    while (event := await client.next_event()).name != "calls":
        pass
    return {**event.data, "calls": unpack_body(event.data["calls"]), "number": event.number}


# Grants and content


async def test_watching_needs_the_grant_and_a_refusal_changes_nothing(server: TestServer) -> None:
    """WATCH-1, EVENT-1."""
    blind = ApiScope(agents=AgentsGrant(use_tools=True, call=True), presence=True)
    async with raw_participant(server, token=server.token("bob", api=blind)) as bob:
        await ask(bob, Subscribe(1, ["participants"]))
        failed = await refusal(bob, Subscribe(2, ["participants", "calls"]))
        assert (failed.code, failed.executed) == ("permission_denied", "no")
        assert not is_watched(server)
        async with server.room("ann"):
            assert (await bob.next_event()).name == "participant_joined"
    async with server.room("bob", api=blind) as room:
        with pytest.raises(PermissionDenied):
            await room.watch_calls().__aenter__()


async def test_a_monitor_gets_every_call_of_its_room_without_arguments_and_results(
    server: TestServer,
) -> None:
    """WATCH-2, WATCH-4: also of a private toolkit that it can neither list nor call."""
    secret = "a-secret-value"
    token = server.token("eve", api=OBSERVER)
    async with (
        raw_participant(server, "bob") as bob,
        raw_participant(server, "ann") as ann,
        raw_participant(server, token=token) as eve,
        server.room("afar", room="other") as afar,
    ):
        manifest = toolkit_of("hidden", "run")
        await ask(bob, offer(manifest, public=False, shared_with=["name:ann"]))
        await ask(eve, Subscribe(1, ["calls"]))
        with pytest.raises(NotFound):
            await afar.call("nothing.here")
        call = call_of("hidden.run", arguments=pack_body({"text": secret}), participant="bob")
        dispatch = await call_through(ann, bob, call)
        answer(bob, dispatch, [2, secret])
        await ann.reply_to(call.id)
        calls: list[Any] = []
        while not calls:
            payload = (await eve.read_raw()).payload
            assert secret.encode() not in payload
            event = decode_from_server(payload)
            assert isinstance(event, Event)
            calls = unpack_body(event.data["calls"])
        assert [each[:7] for each in calls] == [
            [
                *(call.call_id, [id_of(ann), "ann"], "hidden", "run"),
                *([id_of(bob), "bob"], None, "yes"),
            ]
        ]
        eve.send_frame(call_of("hidden.run", 8, participant="bob"))
        reply = await eve.reply_to(8)
        assert getattr(reply, "code", None) == "not_found"


async def test_a_monitor_sees_for_how_long_a_call_waits_for_a_person_and_how_that_ends(
    server: TestServer,
) -> None:
    """WATCH-2."""

    @tool(approval=True)
    async def pay() -> str:
        return "paid"

    async with (
        server.room("bob") as bob,
        bob.host(Toolkit("payments", [pay]), public=True),
        server.room("ann") as ann,
        server.room("eve", api=OBSERVER) as eve,
        eve.watch_calls() as stream,
        person_in(ann) as person,
    ):
        async with asyncio.timeout(60):
            calling = asyncio.ensure_future(ann.call("payments.pay"))
            hold = await person.added()
            while not (report := await anext(stream)).held:
                pass
            (waiting,) = report.waiting
            assert (report.in_flight, report.held, waiting.is_open) == (1, 1, True)
            assert (waiting.hold_id, waiting.call_id) == (hold.id, hold.call_id)
            assert (waiting.toolkit, waiting.tool) == ("payments", "pay")
            assert (waiting.caller, waiting.host) == ("ann", "bob")
            await ann.deny(hold, "a secret")
            await asyncio.wait([calling])
            while not (report := await anext(stream)).calls:
                assert "a secret" not in repr(report)
            (call,) = report.calls
    assert (report.held, call.code, call.outcome) == (0, "approval_denied", "denied")
    assert waiting.held_s < call.held_s <= call.duration_s


async def test_a_killed_host_ends_calls_in_flight_for_a_watcher_that_joined_during_the_call(
    server: TestServer, tmp_path: Path
) -> None:
    """WATCH-1, WATCH-2."""
    async with (
        host_process(server, tmp_path / "witness", hold=True) as host,
        server.room("ann") as ann,
        server.room("eve") as eve,
    ):
        calling = asyncio.ensure_future(ann.invoke("work.wait"))
        await host.wrote("began wait")
        async with eve.watch_calls() as stream:
            first = await anext(stream)
            assert (first.in_flight, first.started, first.ended, first.calls) == (1, 0, 0, ())
            await host.kill()
            with pytest.raises(HostLost) as lost:
                await calling
            total = Sum()
            await total.until(stream, 1)
        (call,) = total.calls
        assert (total.in_flight, total.failed) == (0, 1)
        assert (call.toolkit, call.tool, call.caller, call.host) == ("work", "wait", "ann", "host")
        assert (call.code, call.executed) == ("host_lost", lost.value.executed)
        assert call.duration_s > 0
        assert not is_watched(server)


@tool
async def work(context: ToolContext, how: str) -> str:
    """End well, fail, or wait until it is stopped."""
    if how == "fail":
        raise ValueError("these words stay here")
    if how == "nested":
        return str(await context.room.call("work.work", how="well"))
    if how == "wait":
        await asyncio.Event().wait()
    return how


async def test_whatever_ends_calls_a_watcher_ends_with_none_in_flight(server: TestServer) -> None:
    """WATCH-2, WATCH-3: and each as its caller's reply has it."""
    async with (
        server.room("host") as host,
        host.host(Toolkit("work", [work])),
        server.room("ann") as ann,
        raw_participant(server, "rob") as rob,
        server.room("eve", api=OBSERVER) as eve,
        eve.watch_calls() as stream,
    ):
        assert (await anext(stream)).in_flight == 0
        received = await asyncio.gather(
            *(ann.call("work.work", how=how) for how in ("well", "nested", "fail")),
            ann.invoke("work.work", {"how": "wait"}, timeout_s=2),
            ann.call("work.nothing"),
            return_exceptions=True,
        )
        ends = {each.code: each.executed for each in received if isinstance(each, RoomException)}
        rob.send_frame(call_of("work.work", 1, arguments=pack_body({"how": "wait"})))
        rob.send_frame(Cancel(1, "cancelled"))
        await rob.reply_to(1)
        rob.send_frame(call_of("work.work", 2, arguments=pack_body({"how": "wait"})))
        rob.send_frame(Participants(3, {}))
        await rob.reply_to(3)
        rob.abort()
        total = Sum()
        await total.until(stream, 8)
        assert (total.in_flight, total.started, total.ended) == (0, 8, 8)
        assert total.failed == len([call for call in total.calls if call.code])
        good = [call for call in total.calls if call.code is None]
        assert {call.executed for call in good} == {"yes"}
        assert sorted(call.caller for call in good) == ["ann", "ann", "host"]
        of_ann = {c.code: c.executed for c in total.calls if c.code and c.caller == "ann"}
        assert of_ann == ends
        of_rob = [(c.code, c.executed) for c in total.calls if c.caller == "rob"]
        assert of_rob == [("cancelled", "maybe")] * 2
        assert "these words" not in str(total.calls)


# Costs for others


async def test_a_slow_monitor_misses_events_delays_no_call_and_stays_connected() -> None:
    """WATCH-5, EVENT-2: what it missed is in the counts of the next report."""
    body = b"x" * (256 * KIB)
    async with (
        unharmed_server() as server,
        raw_participant(server, "slow") as slow,
        raw_participant(server, "eve") as eve,
        raw_participant(server, "bob") as bob,
        server.room("ann") as ann,
    ):
        await ask(slow, Subscribe(1, ["calls", "messages"]))
        await ask(eve, Subscribe(1, ["calls"]))
        await next_report(slow)
        await next_report(eve)
        stop_reading(slow)
        while (await ask(bob, Send(2, "slow", "big", body)))["delivered"]:
            pass
        for _ in range(5):
            async with asyncio.timeout(60):
                await check_call(ann)
            quick = {"ended": 0, "in_flight": 1}
            ended = 0
            while ended < 1 or quick["in_flight"]:
                quick = await next_report(eve)
                ended += quick["ended"]
        slow.read_again()
        numbers, received = [1], {"started": 0, "ended": 0, "in_flight": 1}
        while received["ended"] < 5 or received["in_flight"]:
            event = await slow.next_event()
            numbers.append(event.number)
            if event.name == "calls":
                for name in ("started", "ended"):
                    received[name] += event.data[name]
                received["in_flight"] = event.data["in_flight"]
        assert (received["started"], received["ended"]) == (5, 5)
        assert numbers == list(range(1, len(numbers) + 1))


async def test_many_calls_make_few_events_with_exact_counts(server: TestServer) -> None:
    """WATCH-1, WATCH-3."""
    async with (
        server.room("host") as host,
        host.host(Toolkit("work", [work])),
        server.room("ann") as ann,
        server.room("eve") as eve,
        eve.watch_calls() as stream,
    ):
        total = Sum()
        total.add(await anext(stream))
        clock = asyncio.get_running_loop().time
        began = clock()
        for _ in range(5):  # no more at a time than a host accepts
            await asyncio.gather(*(ann.call("work.work", how="well") for _ in range(200)))
        events = 0
        while total.ended < 1_000 or total.in_flight:
            each = await anext(stream)
            assert len(each.calls) <= min(200, each.ended)
            total.add(each)
            events += 1
        assert events <= (clock() - began) * 10 + 1
        assert (total.started, total.ended, total.failed) == (1_000, 1_000, 0)


# Through the SDK


async def test_a_monitor_reconnects_to_a_restarted_server_and_gets_a_gap_event() -> None:
    """WATCH-1, EVENT-4."""
    key = Key.generate(kid="test", iss="acme")
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=0.0)
    async with running_server(key=key, settings=settings) as first, asyncio.timeout(60):
        eve = first.room("eve")
        async with eve, eve.watch_calls() as stream:
            assert not (await anext(stream)).has_gap
            port = int(first.url.rpartition(":")[2])
            await first.server.stop()
            again = ServerSettings(keys=KeyRing([]), port=port)
            async with running_server(key=key, settings=again) as second:
                assert (await anext(stream)).has_gap
                async with second.room("ann") as ann:
                    with pytest.raises(NotFound):
                        await ann.call("no.tool")
                    later = await anext(stream)
                assert (later.has_gap, later.ended, later.failed) == (False, 1, 1)


async def test_event_reader_keeps_its_events_while_a_monitor_runs_beside_it(
    server: TestServer,
) -> None:
    async with server.room("eve") as eve, eve.events() as events, asyncio.timeout(60):
        async with eve.watch_calls() as stream:
            await anext(stream)
            assert (await anext(events)).name == "missed"
            async with server.room("ann"):
                assert await joined(events) == "ann"
            assert is_watched(server)
        assert (await anext(events)).name in {"participant_left", "missed"}
        assert not is_watched(server)
        async with server.room("bob"):
            assert await joined(events) == "bob"


async def joined(events: AsyncIterator[RoomEvent]) -> str:
    while (event := await anext(events)).name != "participant_joined":
        pass
    assert event.participant is not None
    return event.participant.name


async def test_events_of_some_topics_leave_the_others_where_they_are(server: TestServer) -> None:
    async with (
        server.room("ann") as ann,
        server.room("eve") as eve,
        eve.events(["participants"]) as events,
        asyncio.timeout(60),
    ):
        assert await ann.send("eve", "note") == 0
        async with eve.events(["messages"]) as messages:
            assert await ann.send("eve", "note") == 1
            assert (await anext(messages)).name == "message"
            assert (await anext(events)).name == "missed"
            async with server.room("bob"):
                assert (await anext(events)).name == "participant_joined"
        for wrong in (["calls"], ["x"], [], "toolkits"):
            with pytest.raises(InvalidArguments):
                await anext(eve.events(wrong))


async def test_a_watcher_whose_next_token_lacks_the_grant_is_refused(server: TestServer) -> None:
    """WATCH-1."""
    scopes = [OBSERVER, ApiScope(presence=True)]

    async def token() -> str:
        return server.token("eve", api=scopes.pop(0))

    eve = RoomClient(server.url, room="lab", token=token)
    async with eve, eve.watch_calls() as stream, asyncio.timeout(60):
        await anext(stream)
        open_room = server.server.hub.rooms["lab"]
        (session,) = open_room.sessions.values()
        session.connection.port.transport.abort()  # type: ignore[attr-defined]  # a real connection
        with pytest.raises(PermissionDenied):
            await exhausted(stream)


async def exhausted(stream: AsyncIterator[CallReport]) -> None:
    async for _ in stream:
        pass
