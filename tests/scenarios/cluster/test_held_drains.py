"""PROTOCOL.md, HOLD-15: a node that is stopped does not wait for a person, whoever is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from support.deploy.balancer import balancer
from support.nodes.cluster import nodes, until_listed, until_present
from support.patience import PATIENCE_S
from support.redis.server import RedisPlace, any_redis
from support.rooms.approvals import person_in
from toolbus import ApiScope, RoomClient, Toolkit, tool

pytestmark = pytest.mark.redis
APPROVER = replace(ApiScope.full(), approve_all=("*",))


@pytest.fixture
async def redis() -> AsyncIterator[RedisPlace]:
    async with any_redis() as server:
        yield server


@pytest.mark.parametrize("who", ["host", "ann"])
async def test_call_over_nodes_is_asked_again_once_one_of_them_is_stopped(
    redis: RedisPlace, who: str
) -> None:
    """That of the host, or that of the caller: both move to the node of who approves."""
    wrote: list[str] = []

    @tool(approval=True)
    async def write(text: str) -> str:
        wrote.append(text)
        return text

    async with (
        asyncio.timeout(PATIENCE_S),
        nodes(redis, 3, drain_s=600) as (leaves, stays, last),
        balancer() as address,
        AsyncExitStack() as stack,
    ):
        address.lead_to(leaves.url)
        urls = {"host": stays.url, "ann": stays.url, who: address.url}
        host, ann = [
            await stack.enter_async_context(
                RoomClient(urls[name], room="lab", token=stays.token(name))
            )
            for name in ("host", "ann")
        ]
        await stack.enter_async_context(host.host(Toolkit("files", [write])))
        carol = await stack.enter_async_context(last.room("carol", api=APPROVER))
        await until_listed(ann, "files")
        await until_listed(carol, "files")
        await until_present(host, "ann", "carol")
        await until_present(carol, "ann", "host")
        person = await stack.enter_async_context(person_in(carol))
        call = asyncio.create_task(ann.invoke("files.write", {"text": "a"}, returns=str))
        lost = await person.asked()
        address.lead_to(last.url)
        stopping = asyncio.create_task(leaves.server.stop())
        assert (await person.settled()).outcome == "lost"
        again = await person.asked()
        assert (again.replaces, again.call_id) == (lost.id, lost.call_id)
        await carol.approve(again)
        assert await call == "a"
        await stopping
    assert wrote == ["a"]
