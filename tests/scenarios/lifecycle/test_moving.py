"""A server that leaves, and another at the same address: participants move, and nothing fails.

The two servers do not know each other, so that hosts and callers meet again only when all of them
have moved.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from support.deploy.balancer import Balancer, balancer
from support.parts.scripted_server import scripted_server
from support.rooms.events import listed, until_hosts
from toolbus import ApiScope, Key, KeyRing, RoomClient, ToolContext, Toolkit, tool
from toolbus.errors import RoomException, Unavailable
from toolbus.room.participants import BuilderInfo
from toolbus.room.room import connection_of
from toolbus.wire import (
    SUBPROTOCOL,
    Call,
    Describe,
    Drain,
    Event,
    Notice,
    Register,
    Result,
    Subscribe,
    pack_body,
)
from toolbus_server import ServerSettings
from toolbus_server.testing import TestServer, running_server

KEY = Key.generate(kid="test", iss="acme")
LEAVING = Notice("leaving", {"grace_ms": 10_000})
MOVE = Notice("move", {})


class Work:
    """A toolkit that counts its runs, and blocks calls until they are released."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()
        self.entered = asyncio.Event()
        self.go = asyncio.Event()

    def toolkit(self) -> Toolkit:
        @tool
        async def once(key: int) -> int:
            self.runs[key] += 1
            await asyncio.sleep(0.005)
            return key

        @tool
        async def hold(context: ToolContext, nested: bool = False) -> str:
            self.entered.set()
            await self.go.wait()
            return str(await context.room.call("inner.say")) if nested else "held"

        return Toolkit("work", [once, hold])


class Pair(NamedTuple):
    """Two servers behind one address, which leads to the first of them until it is changed."""

    address: Balancer
    first: TestServer
    second: TestServer

    def room(self, name: str) -> RoomClient:
        return RoomClient(self.address.url, room="lab", token=self.first.token(name))

    def leave(self) -> asyncio.Task[None]:
        """Let new connections go to the second, and stop the first."""
        self.address.lead_to(self.second.url)
        return asyncio.create_task(self.first.server.stop())

    def names(self, server: TestServer) -> list[str]:
        """Return the names of a server's participants."""
        room = server.server.hub.rooms.get("lab")
        connections = room.routed.connections.values() if room else ()
        return sorted(connection.participant.identity.name for connection in connections)


@asynccontextmanager
async def pair(drain_s: float = 8.0) -> AsyncIterator[Pair]:
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=drain_s)
    async with (
        balancer() as address,
        running_server(key=KEY, settings=settings) as first,
        running_server(key=KEY) as second,
        asyncio.timeout(60),
    ):
        address.lead_to(first.url)
        yield Pair(address, first, second)


async def settled(task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(60):
        await task


async def test_no_call_fails_while_all_move_to_another_server() -> None:
    """LEAVE-9, guarantee "server drains": of a tool that is not idempotent, by callers that make
    one call after the other.
    """
    async with pair() as servers, servers.room("host") as host, servers.room("alice") as alice:
        work, keys = Work(), iter(range(100_000))
        is_over = asyncio.Event()
        done: list[int] = []

        async def call_repeatedly() -> None:
            while not is_over.is_set():
                key = next(keys)
                assert await alice.call("work.once", key=key) == key
                done.append(key)

        async with host.host(work.toolkit()), asyncio.TaskGroup() as group:
            await alice.toolkit("work")
            for _ in range(8):
                group.create_task(call_repeatedly())
            while len(done) < 50:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
            await settled(servers.leave())
            before = len(done)
            while len(done) < before + 50:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
            is_over.set()
        assert servers.names(servers.second) == ["alice", "host"]
        assert sorted(done) == sorted(work.runs)
        assert set(work.runs.values()) == {1}


async def test_calls_in_flight_end_on_the_connections_they_were_made_on() -> None:
    """LEAVE-9: caller and host have moved by then, and only the first server knows the call."""
    async with pair() as servers, servers.room("host") as host, servers.room("alice") as alice:
        work = Work()
        async with host.host(work.toolkit()):
            calling = asyncio.create_task(alice.call("work.hold"))
            await work.entered.wait()
            leaving = servers.leave()
            await until_hosts(alice, "work", 1)  # sent to the second, where both are now
            assert servers.names(servers.second) == ["alice", "host"]
            assert await alice.call("work.once", key=1) == 1
            assert servers.names(servers.first) == ["alice", "host"]
            assert not leaving.done()
            work.go.set()
            assert await calling == "held"
            # Both close by themselves, so that the first has no participant left to wait for.
            await settled(leaving)


async def test_calls_within_a_call_go_where_that_came_by() -> None:
    """LEAVE-9: the host of the outer call has moved, that of the inner one cannot."""

    @tool
    async def say() -> str:
        return "said at the first"

    async with pair() as servers, servers.room("host") as host, servers.room("alice") as alice:
        work = Work()
        inner = servers.first.room("inner")
        async with host.host(work.toolkit()), inner, inner.host(Toolkit("inner", [say])):
            calling = asyncio.create_task(alice.call("work.hold", nested=True))
            await work.entered.wait()
            leaving = servers.leave()
            await until_hosts(alice, "work", 1)
            work.go.set()
            assert await calling == "said at the first"
            await settled(leaving)


async def test_call_that_is_given_up_after_the_move_is_cancelled_where_it_runs() -> None:
    """LEAVE-9, CALL-10."""
    async with pair() as servers, servers.room("host") as host, servers.room("alice") as alice:
        work = Work()
        async with host.host(work.toolkit()):
            router = servers.first.server.hub.router
            calls = [asyncio.create_task(alice.call("work.hold")) for _ in range(2)]
            while router.in_flight < 2:  # noqa: ASYNC110 - a plain number
                await asyncio.sleep(0)
            leaving = servers.leave()
            await until_hosts(alice, "work", 1)
            calls[0].cancel()
            while router.in_flight > 1:  # noqa: ASYNC110 - a plain number
                await asyncio.sleep(0)
            assert router.failures == {"cancelled": 1}
            work.go.set()
            assert await calls[1] == "held"
            await settled(leaving)


async def test_rules_that_were_granted_move_with_their_host() -> None:
    """HOLD-13: a listing has no end, and the server that leaves does not wait for it."""

    @tool(approval=True)
    async def write(text: str) -> str:
        return text

    async with pair() as servers, servers.room("host") as host, servers.room("alice") as alice:
        async with host.host(Toolkit("files", [write])):
            async with alice.events(["holds"]) as events:
                calling = asyncio.create_task(alice.call("files.write", text="a"))
                hold = (await anext(events)).hold
                assert hold is not None
                await alice.approve(hold, rule=True)
                assert await calling == "a"
            await settled(servers.leave())
            await until_hosts(alice, "files", 1)
            assert await alice.call("files.write", text="a") == "a"
            while not await alice.granted_rules():  # noqa: ASYNC110 - it has no events
                await asyncio.sleep(0.01)
            assert servers.names(servers.second) == ["alice", "host"]


async def test_messages_and_subscriptions_of_a_participant_end_with_it() -> None:
    """LEAVE-9, EVENT-4: attributes, builders, subscriptions."""
    async with pair() as servers, servers.room("alice") as alice, servers.room("bob") as bob:
        await alice.set_attributes(status="busy")
        await alice.offer_builders([BuilderInfo("kit", "", {"type": "object"})])
        async with alice.events(["messages"]) as events:
            await settled(servers.leave())
            async with asyncio.timeout(60):
                assert (await anext(events)).name == "reconnected"
                await bob.send("alice", "note", "still there?")
                received = await anext(events)
            assert received.message is not None
            assert received.message.body == "still there?"
        people = {person.name: person.attributes for person in await bob.participants()}
        assert people == {"alice": {"status": "busy"}, "bob": {}}
        assert [builder.name for builder in await bob.list_builders("alice")] == ["kit"]


async def test_participant_that_no_node_accepts_waits_and_keeps_its_running_calls() -> None:
    """LEAVE-9, LEAVE-4: new calls wait, those in flight end, and the next server accepts it."""
    async with AsyncExitStack() as stack:
        settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=8.0)
        async with running_server(key=KEY, settings=settings) as first:
            again = ServerSettings(keys=KeyRing([]), port=first.server.port)
            host = await stack.enter_async_context(first.room("host"))
            alice = await stack.enter_async_context(first.room("alice"))
            work = Work()
            await stack.enter_async_context(host.host(work.toolkit()))
            await alice.toolkit("work")
            calling = asyncio.create_task(alice.call("work.hold"))
            await work.entered.wait()
            leaving = asyncio.create_task(first.server.stop())
            waiting = asyncio.create_task(_call_after_notice(alice, "work.once", key=1))
            refused = first.server.admission.refused
            while refused["draining"] < 4:  # noqa: ASYNC110 - a counter has no event
                await asyncio.sleep(0.01)
            with pytest.raises(Unavailable) as late:
                await alice.invoke("work.once", {"key": 2}, timeout_s=0.05)
            assert late.value.executed == "no"
            assert not waiting.done()
            work.go.set()
            assert await calling == "held"
            await settled(leaving)
        async with running_server(key=KEY, settings=again), asyncio.timeout(60):
            assert await waiting == 1
            assert work.runs == {1: 1}
            await until_hosts(alice, "work", 1)


async def _call_after_notice(room: RoomClient, name: str, **arguments: int) -> int:
    """Make a call once the client knows that the server leaves."""
    link = connection_of(room).link
    while link.is_ready:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0)
    return int(await room.call(name, **arguments))


async def test_participant_that_leaves_while_moving_leaves_both_servers() -> None:
    """LEAVE-9."""
    async with pair() as servers:
        work = Work()
        async with servers.room("alice") as alice:
            async with servers.room("host") as host, host.host(work.toolkit()):
                calling = asyncio.create_task(alice.call("work.hold"))
                await work.entered.wait()
                leaving = servers.leave()
                await until_hosts(alice, "work", 1)
                ending = asyncio.create_task(_let_go_soon(work))
            await ending
            async with asyncio.timeout(60):
                assert await calling == "held"
        await settled(leaving)
        assert servers.names(servers.second) == []


async def _let_go_soon(work: Work) -> None:
    """Release the call once its host has begun to leave."""
    await asyncio.sleep(0)
    work.go.set()


async def test_old_connection_that_is_lost_while_moving_ends_its_calls_alone() -> None:
    """LEAVE-9, ERR-8."""
    async with pair() as servers, servers.room("host") as host, servers.room("alice") as alice:
        work = Work()
        async with host.host(work.toolkit()):
            calling = asyncio.create_task(alice.call("work.hold"))
            await work.entered.wait()
            leaving = servers.leave()
            await until_hosts(alice, "work", 1)
            fresh = asyncio.create_task(alice.call("work.hold"))
            while not servers.second.server.hub.router.in_flight:  # noqa: ASYNC110 - a plain number
                await asyncio.sleep(0.01)
            for connection in list(
                servers.first.server.hub.rooms["lab"].routed.connections.values()
            ):
                if connection.participant.identity.name == "alice":
                    connection.port.transport.abort()  # type: ignore[attr-defined]  # a real connection
            with pytest.raises(RoomException) as lost:
                await calling
            assert (lost.value.code, lost.value.executed) == ("connection_lost", "maybe")
            await settled(leaving)
            assert not fresh.done()
            work.go.set()
            assert await fresh == "held"
            assert [toolkit.name for toolkit in await listed(alice)] == ["work"]


async def test_client_sends_drain_on_the_old_connection_after_the_new_one_is_complete() -> None:
    """LEAVE-9: in this order; the old connection is closed normally when its call has ended."""

    @tool
    async def say() -> str:
        return "said"

    async with (
        scripted_server(ApiScope.full()) as server,
        RoomClient(server.url, room="lab", token="e30.e30.t") as alice,
        asyncio.timeout(60),
    ):
        old = await server.next_connection()
        events = alice.events(["messages"])
        stream = asyncio.create_task(anext(events))
        await old.answer(Subscribe, {"topics": ["messages"]})
        hosting = asyncio.create_task(_host(alice, Toolkit("mine", [say])))
        await old.answer(Register, {"digest": "d" * 64, "generation": 3})
        calling = asyncio.create_task(alice.call("other.run"))
        await old.answer(Describe, {"toolkit": {}})  # requested with a first call
        call = await old.next_of(Call)
        await old.send(Notice("of_a_later_release", {"x": 1}))
        await old.send(LEAVING)
        new = await server.next_connection()
        assert (new.instance, new.epoch > old.epoch) == (old.instance, True)
        assert not new.asks_elsewhere  # a server alone may have been restarted
        offered = await new.answer(Register, {"digest": "d" * 64, "generation": 3})
        assert offered.options["generation"] == 3
        await new.answer(Subscribe, {"topics": ["messages"]})
        assert (await stream).name == "reconnected"
        await old.answer(Drain, {})
        await old.send(message("of the old line, told by the new one too"))
        await new.send(message("of the new line"))
        received = (await anext(events)).message
        assert received is not None
        assert received.name == "of the new line"
        await old.send(Result(call.id, pack_body([2, "late"])))
        assert await calling == "late"
        await old.websocket.wait_closed()
        assert old.websocket.close_code == 1000
        hosting.cancel()


def message(name: str) -> Event:
    sender = pack_body(["p2", "bob", "user", "test"])
    body = {"from": sender, "name": name, "body": pack_body(1), "direct": True, "builders": []}
    return Event(1, "message", body)


async def _host(room: RoomClient, toolkit: Toolkit) -> None:
    async with room.host(toolkit):
        await asyncio.Event().wait()


async def test_client_that_was_sent_away_while_it_moved_stays_away() -> None:
    """LEAVE-4, LEAVE-9: while no other server has accepted it."""
    async with balancer() as address, scripted_server() as server, asyncio.timeout(60):
        address.lead_to(server.url)
        async with RoomClient(address.url, room="lab", token="e30.e30.t") as alice:
            connection = await server.next_connection()
            address.lead_to("ws://127.0.0.1:1")
            await connection.send(LEAVING)
            while address.connections < 2:  # noqa: ASYNC110 - a counter has no event
                await asyncio.sleep(0.01)
            await connection.websocket.close(4440)
            with pytest.raises(RoomException) as ended:
                await alice.closed()
            assert ended.value.details == {"close_code": 4440}


async def test_client_that_is_asked_to_move_uses_its_connection_until_it_is_welcomed() -> None:
    """LEAVE-11: one attempt for each notice; the first server that it reaches sends no welcome."""
    is_open = asyncio.Event()

    async def send_nothing(connection: ServerConnection) -> None:
        await (await connection.ping())
        is_open.set()
        await connection.wait_closed()

    protocols = [Subprotocol(SUBPROTOCOL)]
    async with (
        asyncio.timeout(60),
        balancer() as address,
        scripted_server(ApiScope.full()) as server,
        serve(send_nothing, "127.0.0.1", 0, subprotocols=protocols, compression=None) as silent,
    ):
        address.lead_to(server.url)
        async with RoomClient(address.url, room="lab", token="e30.e30.t") as alice:
            first = await server.next_connection()
            address.lead_to(f"ws://127.0.0.1:{next(iter(silent.sockets)).getsockname()[1]}")
            await first.send(MOVE)
            await is_open.wait()
            calling = asyncio.create_task(alice.call("kit.run"))
            call = await first.next_of(Call)
            (unwelcomed,) = silent.connections
            await unwelcomed.close(1012)

            address.lead_to(server.url)
            await first.send(MOVE)
            second = await server.next_connection()
            assert (second.instance, second.asks_elsewhere) == (first.instance, True)
            assert second.epoch > first.epoch
            await first.answer(Drain, {})
            moved = asyncio.create_task(alice.call("kit.run"))
            await second.send(Result((await second.next_of(Call)).id, pack_body([1, "moved"])))
            await first.send(Result(call.id, pack_body([1, "stayed"])))
            assert [await calling, await moved] == ["stayed", "moved"]
            assert address.connections == 3
