"""PROTOCOL.md, HOLD-18: a node that is stopped does not wait for a person, whoever is there."""

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
from toolbus import ApiScope, CallNext, Chunk, RoomClient, ToolCall, Toolkit, tool

pytestmark = pytest.mark.redis
APPROVER = replace(ApiScope.full(), approve_all=("*",))


@pytest.fixture
async def redis() -> AsyncIterator[RedisPlace]:
    async with any_redis() as server:
        yield server


@pytest.mark.parametrize(("who", "asks_later"), [("host", False), ("ann", False), ("ann", True)])
async def test_call_over_nodes_is_asked_again_once_one_of_them_is_stopped(
    redis: RedisPlace, who: str, asks_later: bool
) -> None:
    """That of the host, or of the caller: who was there moves to the node of who approves."""
    wrote: list[str] = []
    arrived, gate = asyncio.Event(), asyncio.Event()

    async def waits(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        arrived.set()
        await gate.wait()
        async for chunk in next(call):
            yield chunk

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
        await stack.enter_async_context(host.host(Toolkit("files", [write], middlewares=[waits])))
        carol = await stack.enter_async_context(last.room("carol", api=APPROVER))
        await until_listed(ann, "files")
        await until_listed(carol, "files")
        await until_present(host, "ann", "carol")
        await until_present(carol, "ann", "host")
        person = await stack.enter_async_context(person_in(carol))
        call = asyncio.create_task(ann.invoke("files.write", {"text": "a"}, returns=str))
        await arrived.wait()
        address.lead_to(last.url)
        if not asks_later:
            gate.set()
            await person.added()
        stopping = asyncio.create_task(leaves.server.stop())
        if asks_later:
            while not leaves.server.hub.router.is_draining:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
            gate.set()
            await person.added()
        lost = await person.settled()
        assert lost.outcome == "lost"
        again = await person.asked()
        assert (again.replaces, again.call_id) == (lost.id, lost.call_id)
        await carol.approve(again)
        assert await call == "a"
        await stopping
    assert wrote == ["a"]
