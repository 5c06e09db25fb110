"""Nested calls over nodes: their principals, and their greatest depth."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.clients.ending_tokens import calling
from support.clients.raw_client import raw_participant
from support.nodes.cluster import hosted, nodes, until_listed, until_present
from support.nodes.tools import who
from support.processes.command_line import CommandLine
from support.redis.server import RedisPlace, any_redis
from support.rooms.delegation import LOSSES, delegation
from toolbus import ApiScope, ParticipantToken, RoomClient, ToolContext, Toolkit, tool
from toolbus.errors import LoopDetected, PermissionDenied, RoomException
from toolbus_server.testing import TestServer

pytestmark = pytest.mark.redis
TIME_S = 60
DEEPEST = 16
PATIENCE = 3


@tool
async def ask(context: ToolContext, name: str | None = None) -> list[Any]:
    """Call `who` within this call, for a principal; return its answer, or the error."""
    try:
        return list((await context.room.invoke("inner.who", on_behalf_of=name)).value)
    except RoomException as error:
        return [error.code, error.executed]


@tool
async def sink(context: ToolContext, others: list[str], depth: int = 1) -> list[Any]:
    """Call the next toolkit, which does the same, until that is refused; return the depth."""
    assert depth < DEEPEST + PATIENCE
    there, here = others
    try:
        return list(await context.room.call(f"{there}.sink", others=[here, there], depth=depth + 1))
    except LoopDetected as error:
        return [depth, error.executed]


class Nested(NamedTuple):
    """A tool `outer.ask` that calls `inner.who`, at another node than its own."""

    callers: TestServer
    """Another node."""
    outers: TestServer
    outer: RoomClient
    """The host of `outer`, whose name is "host"."""
    inner: RoomClient
    """The host of `inner`, whose name is "keeper"."""


@asynccontextmanager
async def nested(redis: RedisPlace, count: int = 3) -> AsyncIterator[Nested]:
    """Host both tools, each at its own node if there are enough."""
    async with nodes(redis, count) as servers:
        first, second, third = (servers[number % count] for number in range(3))
        async with hosted(second, ask, name="outer") as outer, third.room("keeper") as inner:
            async with inner.host(Toolkit("inner", [who])):
                await until_listed(outer, "inner")
                yield Nested(first, second, outer, inner)


@pytest.fixture
async def redis() -> AsyncIterator[RedisPlace]:
    async with any_redis() as server:
        yield server


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_nested_call_is_made_by_its_host_for_the_caller_of_its_parent(
    redis: RedisPlace, count: int
) -> None:
    """CALL-14, CALL-16: over nodes as on one, and for no other principal."""
    async with asyncio.timeout(TIME_S), nested(redis, count) as made:
        async with made.callers.room("ann") as ann:
            await until_listed(ann, "outer")
            await until_present(made.inner, "ann")
            for name in (None, "ann"):
                assert await ann.call("outer.ask", name=name) == ["host", "ann"]
            refused = await ann.call("outer.ask", name="keeper")
            assert refused == ["permission_denied", "no"]
            assert await made.outer.call("inner.who") == ["host", None]


async def test_the_tree_of_a_call_has_nested_calls_of_other_nodes(
    redis: RedisPlace, tmp_path: Path
) -> None:
    """WATCH-2: they name the call that they were made within."""
    async with asyncio.timeout(TIME_S), nested(redis) as made:
        async with made.callers.room("ann") as ann:
            await until_listed(ann, "outer")
        token = ParticipantToken(name="bob", room="lab", api=ApiScope.full())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "toolbus", "call", "outer.ask", "--trace", "--json"),
            *("--room", "lab", "--token", token.to_jwt(made.callers.key)),
            env=CommandLine(tmp_path).at(made.callers.url).environment(),
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await process.communicate()
        lines = json.loads(err.splitlines()[0])["trace"]["lines"]
        assert [(line["depth"], line["part"], line["tool"], line["who"]) for line in lines] == [
            (0, "caller", "outer.ask", "bob"),
            (1, "server", "outer.ask", ""),
            (2, "host", "outer.ask", "host"),
            (3, "server", "inner.who", ""),
            (4, "host", "inner.who", "keeper"),
        ]


async def test_a_nested_call_needs_the_grants_of_a_principal_at_another_node(
    redis: RedisPlace,
) -> None:
    """CALL-16: without them its host may still call, on its own behalf."""
    async with asyncio.timeout(TIME_S), nested(redis) as made:
        denied = calling(use_tools=True, deny=["inner"])
        async with made.callers.room("ann", api=denied) as ann:
            await until_listed(ann, "outer")
            await until_present(made.inner, "ann")
            assert await ann.call("outer.ask") == ["permission_denied", "no"]
            assert await made.outer.call("outer.ask") == ["host", "host"]


async def test_those_at_other_nodes_are_acted_for_by_hosts_that_may(redis: RedisPlace) -> None:
    """CALL-17: the participant is present and may call the tool; nested calls are for it too."""
    async with (
        asyncio.timeout(TIME_S),
        nested(redis) as made,
        made.callers.room("ann"),
        made.callers.room("poor", api=calling(allow=["other"])),
        made.outers.room("agent", api=calling(act_for=["ann", "zoe", "poor"])) as agent,
        made.outers.room("eve", api=calling()) as eve,
    ):
        await until_present(made.outer, "ann", "poor")
        await until_present(made.inner, "ann", "agent")
        for room, name in ((made.outer, "host"), (made.inner, "keeper"), (agent, "agent")):
            acted = await room.invoke("inner.who", on_behalf_of="ann")
            assert acted.value == [name, "ann"]
            acted = await room.invoke("outer.ask", on_behalf_of="ann")
            assert acted.value == ["host", "ann"]
        for room, name in ((eve, "ann"), (agent, "zoe"), (agent, "keeper"), (agent, "poor")):
            with pytest.raises(PermissionDenied) as raised:
                await room.invoke("inner.who", on_behalf_of=name)
            assert raised.value.executed == "no"


async def test_the_depth_of_calls_within_calls_counts_over_nodes(redis: RedisPlace) -> None:
    """CALL-15: whichever of the two nodes refuses the call that is too deep."""
    async with asyncio.timeout(TIME_S), nodes(redis) as (here, there):
        async with (
            hosted(here, sink, name="a") as first,
            hosted(there, sink, name="b") as second,
            here.room("ann") as ann,
        ):
            await until_listed(first, "b")
            await until_listed(second, "a")
            await until_present(second, "ann")
            for others in (["b", "a"], ["a", "b"]):
                assert await ann.call(f"{others[1]}.sink", others=others) == [DEEPEST, "no"]


@pytest.mark.parametrize("loss", LOSSES)
async def test_calls_over_nodes_end_when_the_participant_that_they_are_made_for(
    redis: RedisPlace, loss: str
) -> None:
    """CALL-26: it, both callers and both hosts are at nodes that are not the administrator's."""
    async with asyncio.timeout(TIME_S), nodes(redis, 4) as (first, second, third, boss):
        async with raw_participant(third, "ann") as ann, delegation(first, second, first) as made:
            await LOSSES[loss](boss, ann)
            await made.until_ended()
            await made.is_refused()


async def test_calls_over_nodes_end_with_the_last_connection_of_their_identity(
    redis: RedisPlace,
) -> None:
    """CALL-27: its two connections are at different nodes."""
    async with asyncio.timeout(TIME_S), nodes(redis, 3) as (first, second, third):
        async with (
            raw_participant(third, "ann", instance="one") as one,
            raw_participant(first, "ann", instance="two") as two,
            delegation(first, second, third) as made,
        ):
            one.abort()
            async with second.room("observer") as observer:
                async with observer.events(["participants"]) as events:
                    while len([p for p in await observer.participants() if p.name == "ann"]) > 1:
                        await anext(aiter(events))
            assert await made.goes_on()
            two.abort()
            await made.until_ended()
