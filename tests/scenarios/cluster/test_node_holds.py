"""PROTOCOL.md, HOLD-1: servers that share their rooms let no call wait for a person yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.nodes.cluster import hosted, nodes, until_listed
from support.redis.server import RedisPlace, any_redis
from toolbus import RoomClient, ToolContext, Toolkit, tool
from toolbus.errors import RoomException, Unavailable

pytestmark = pytest.mark.redis
NOT_HERE = "approvals do not work on servers with Redis yet"


@tool(approval=True)
async def guarded() -> None:
    """It is never entered."""
    raise AssertionError("nobody has approved it")


@tool
async def ask(context: ToolContext) -> list[object]:
    """Call `guarded` within this call; return its error."""
    return refused_with(await _error_of(context.room))  # type: ignore[arg-type]


async def _error_of(room: RoomClient) -> RoomException:
    with pytest.raises(RoomException) as refused:
        await room.call("kit.guarded")
    return refused.value


def refused_with(error: RoomException) -> list[object]:
    return [error.code, error.executed, error.retryable, NOT_HERE in error.message]


@pytest.fixture
async def redis() -> AsyncIterator[RedisPlace]:
    async with any_redis() as server:
        yield server


async def test_demands_are_refused_wherever_caller_and_host_are(redis: RedisPlace) -> None:
    """Of a host beside its caller, of one at another node, and within a call from another node."""
    expected = ["unavailable", "no", False, True]
    async with (
        asyncio.timeout(60),
        nodes(redis) as (first, second),
        hosted(first, guarded),
        second.room("outer") as outer,
        outer.host(Toolkit("outer", [ask])),
        first.room("alice") as alice,
        second.room("bob") as bob,
    ):
        for room in (alice, bob):
            await until_listed(room, "kit")
            await until_listed(room, "outer")
            assert refused_with(await _error_of(room)) == expected
            assert await room.call("outer.ask") == expected
            for requesting in (room.holds(), room.deny("0" * 16)):
                with pytest.raises(Unavailable, match=NOT_HERE) as refused:
                    await requesting
                assert (refused.value.executed, refused.value.retryable) == ("no", False)
