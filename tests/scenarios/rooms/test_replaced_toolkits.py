"""A hosted toolkit is replaced by another definition, while calls run and after faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from support.nodes.cluster import until_listed
from support.nodes.relayed import joined_nodes
from support.redis.server import redis_server
from toolbus import (
    ConnectionLost,
    DefinitionChanged,
    DefinitionConflict,
    NotFound,
    RoomClient,
    RoomException,
    Tool,
    ToolContext,
    Toolkit,
    tool,
)
from toolbus_server.testing import FaultProxy, Faults, TestServer, running_server

REPLACEMENTS = 20
CALLERS = 8


class Part(Tool):
    """A tool that logs when it is started and stopped, and may wait before it ends."""

    def __init__(self, name: str, log: list[str], *, waits: bool = False) -> None:
        super().__init__(name, {"type": "object"}, max_concurrency=1)
        self.log = log
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()
        self.go = asyncio.Event()
        self.fails = ""
        if not waits:
            self.go.set()

    async def start(self, room: Any) -> None:
        if self.fails:
            raise OSError(self.fails)
        self.log.append(f"+{self.name}")

    async def stop(self) -> None:
        self.log.append(f"-{self.name}")
        self.stopped.set()

    async def execute(self, context: ToolContext, /, **arguments: Any) -> str:
        self.log.append(self.name)
        self.began.set()
        await self.go.wait()
        return self.name


@asynccontextmanager
async def two_rooms() -> AsyncIterator[tuple[TestServer, RoomClient, RoomClient]]:
    """Run a server with the participants `host` and `alice`."""
    async with asyncio.timeout(60), running_server() as server, joined(server, server) as rooms:
        yield server, rooms[0], rooms[1]


@asynccontextmanager
async def joined(here: TestServer, there: TestServer) -> AsyncIterator[list[RoomClient]]:
    async with here.room("host") as host, there.room("alice") as alice:
        yield [host, alice]


@asynccontextmanager
async def rooms_of(nodes: int) -> AsyncIterator[list[RoomClient]]:
    """Run servers with `host` and `alice`, each at one of its own if there are two."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        if nodes == 1:
            servers = [await stack.enter_async_context(running_server())]
        else:
            redis = await stack.enter_async_context(redis_server())
            servers = await stack.enter_async_context(joined_nodes(redis.url, redis.url))
        yield await stack.enter_async_context(joined(servers[0], servers[-1]))


async def test_calls_under_way_end_on_the_old_definition_and_its_tools_stop_after_them() -> None:
    log: list[str] = []
    old = Part("old", log, waits=True)
    lasting = Part("lasting", log, waits=True)
    new = Part("new", log)
    first = Toolkit("kit", [old, lasting])
    async with two_rooms() as (_, host, alice):
        async with host.host(first):
            running = [
                asyncio.create_task(alice.call(f"kit.{name}")) for name in ("old", "lasting")
            ]
            await asyncio.gather(old.began.wait(), lasting.began.wait())
            await host.replace(first.without("old").with_tools(new))
            assert await alice.call("kit.new") == "new"
            with pytest.raises(NotFound):
                await alice.call("kit.old")
            # `lasting` keeps its one slot: the call of the old definition has it.
            waiting = asyncio.create_task(alice.call("kit.lasting"))
            await alice.call("kit.new")
            assert log == ["+old", "+lasting", "old", "lasting", "+new", "new", "new"]
            for part in (old, lasting):
                part.go.set()
            assert await asyncio.gather(*running, waiting) == ["old", "lasting", "lasting"]
            await old.stopped.wait()
            assert "-lasting" not in log
        assert sorted(log[-2:]) == ["-lasting", "-new"]


def numbered(number: int) -> Toolkit:
    """Make a definition whose tool returns its number; every other one is large."""

    @tool
    async def read() -> int:
        return number

    more = [f"rule {i} of definition {number}" for i in range(200 if number % 2 else 0)]
    return Toolkit("kit", [read], description=str(number), rules=more)


async def pinned(room: RoomClient, digest: str) -> int:
    """Call one definition only."""
    return await room.invoke("kit.read", returns=int, pin=digest)


@pytest.mark.parametrize("nodes", [1, 2])
async def test_no_call_fails_while_a_toolkit_is_replaced_twenty_times(nodes: int) -> None:
    """CALL-5, REG-11: and a call that is pinned to a definition never runs the other one."""
    kits = [numbered(0), numbered(1)]
    digests: list[str] = []
    called = asyncio.Event()
    calls, refused, is_over = 0, 0, False
    async with rooms_of(nodes) as (host, alice), host.host(kits[1]):
        for kit in kits:
            await host.replace(kit)
            digests.append((await host.toolkit("kit")).info.digest)
        await until_listed(alice, "kit")

        async def call_on() -> None:
            nonlocal calls
            while not is_over:
                assert await alice.call("kit.read") in (0, 1)
                calls += 1
                called.set()

        async def call_pinned(number: int) -> None:
            nonlocal refused
            while not is_over:
                try:
                    assert await pinned(alice, digests[number]) == number
                except DefinitionChanged as error:
                    refused += error.executed == "no"

        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(call_on())
                group.create_task(call_pinned(number % 2))
            for number in range(REPLACEMENTS):
                await host.replace(kits[number % 2])
                wanted = calls + CALLERS
                while calls < wanted:
                    called.clear()
                    await called.wait()
            is_over = True
        assert await host.call("kit.read") == 1
        assert refused > 0


async def test_replicas_serve_the_new_definition_when_each_has_replaced_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """REG-22, REG-23."""
    async with two_rooms() as (server, one, alice), server.room("host") as two:
        async with one.host(numbered(1)), two.host(numbered(1)):
            with pytest.raises(DefinitionConflict):
                await one.replace(numbered(2), supersede=False)
            await one.replace(numbered(2))
            assert await alice.call("kit.read") == 1
            assert "joins the reserve" in caplog.text
            await two.replace(numbered(2))
            assert {await alice.call("kit.read") for _ in range(9)} == {2}
            await one.replace(numbered(3), supersede=True)
            assert {await alice.call("kit.read") for _ in range(9)} == {3}


def refused_kits(log: list[str]) -> list[tuple[Callable[[], Toolkit], type[Exception], str]]:
    failing = Part("failing", log)
    failing.fails = "no disk"
    kit = Toolkit("kit", [Part("read", log)])
    large = Part("large", log)
    large.input_schema = {"type": "object", "properties": {"a": {"enum": list(range(66_000))}}}
    return [
        (lambda: kit.with_tools(Part("more", log), failing), OSError, "no disk"),
        (lambda: Toolkit("kit", [large]), ValueError, "no room takes its tools: large: .* values"),
        (lambda: Toolkit("kid"), ValueError, r"hosts no toolkit kid: did you mean kit\?"),
        (lambda: Toolkit("other"), ValueError, "host it first"),
        (lambda: "kit", TypeError, "replace takes one Toolkit, not str"),  # type: ignore[list-item, return-value]
    ]


async def test_refused_replacement_leaves_the_old_definition_served_and_nothing_started() -> None:
    log: list[str] = []
    async with two_rooms() as (_, host, alice), host.host(numbered(7)):
        digest = (await alice.toolkit("kit")).info.digest
        for make, kind, message in refused_kits(log):
            with pytest.raises(kind, match=message):
                await host.replace(make())
            assert await pinned(alice, digest) == 7
        with pytest.raises(ValueError, match="supersede must be True, False or None"):
            await host.replace(numbered(8), supersede=1)  # type: ignore[arg-type]
        started = [line[1:] for line in log if line[0] == "+"]
        assert sorted(started) == sorted(line[1:] for line in log if line[0] == "-")
        assert "more" in started


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_lost_reply_is_settled_by_asking_again(is_cancelled: bool) -> None:
    """The new definition is served, or after a cancellation the old one."""
    async with two_rooms() as (server, _, alice), FaultProxy(server.url) as proxy:
        async with server.room("bob", via=proxy) as host, host.host(numbered(1)):
            proxy.to_participant = Faults(lost=True)
            async with alice.events(["toolkits"]) as events:
                replacing = asyncio.create_task(host.replace(numbered(2)))
                await anext(events)  # the server has switched, and its reply is lost
            if is_cancelled:
                replacing.cancel()
                await asyncio.wait([replacing])
            proxy.to_participant = Faults()
            proxy.reset()
            if not is_cancelled:
                await replacing
            while True:
                with suppress(ConnectionLost):
                    await host.call("kit.read")  # it is connected again
                    break
            calls = [await alice.call("kit.read") for _ in range(9)]
            assert set(calls) == {1 if is_cancelled else 2}
            digest = (await alice.toolkit("kit")).info.digest
            assert await pinned(alice, digest) == calls[0]


async def test_toolkit_cannot_be_replaced_after_its_block_or_a_drain() -> None:
    async with two_rooms() as (_, host, alice):
        async with host.host(numbered(1)):
            await host.replace(numbered(2))
            await host.drain()
            with pytest.raises(RoomException, match="draining"):
                await host.replace(numbered(3))
    async with two_rooms() as (_, host, alice):
        async with host.host(numbered(1)):
            await host.replace(numbered(2))
        with pytest.raises(ValueError, match="hosts no toolkit kit"):
            await host.replace(numbered(3))
        with pytest.raises(NotFound):
            await alice.call("kit.read")
