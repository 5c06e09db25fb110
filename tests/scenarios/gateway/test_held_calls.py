"""A call that waits for its user, through gateways as processes before the nodes of one room."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client

from support.nodes.cluster import nodes, until_listed
from support.patience import PATIENCE_S
from support.processes.launch import clean_environment
from support.redis.server import any_redis
from toolbus import Toolkit, tool
from toolbus_server.testing import TestServer

APPROVAL = types.ElicitResult(action="accept", content={"approve": True})


async def approve(
    context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult:
    return APPROVAL


@asynccontextmanager
async def gateway_before(server: TestServer, key: Path) -> AsyncIterator[tuple[Process, Client]]:
    """Run a gateway, and connect a client that shows forms."""
    command = ("-m", "toolbus", "gateway", "--port", "0", "--url", server.url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command, "--state-key", f"@{key}"),
        env=clean_environment(),
        stdout=PIPE,
        stderr=DEVNULL,
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().split()[-1]
    headers = {"Authorization": f"Bearer {server.token('ann')}"}
    try:
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(f"{url}/rooms/lab/mcp", http_client=http)
            async with Client(transport, elicitation_callback=approve) as client:
                yield process, client
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.redis
async def test_answer_is_taken_by_another_gateway_after_the_first_is_killed(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return f"paid {amount}"

    key = tmp_path / "state.key"
    key.write_text("the secret of all gateways of this room\n")
    async with (
        asyncio.timeout(PATIENCE_S),
        any_redis() as redis,
        nodes(redis, 3) as (first, second, third),
        first.room("host") as host,
        host.host(Toolkit("desk", [pay])),
        second.room("ann") as near,
        third.room("bob") as far,
        gateway_before(second, key) as (killed, client),
        gateway_before(third, key) as (_, other),
    ):
        for room in (near, far):
            await until_listed(room, "desk")
        call = client.session.call_tool("desk__pay", {"amount": 5}, allow_input_required=True)
        question = await call
        assert isinstance(question, types.InputRequiredResult)
        assert question.input_requests is not None
        assert [hold.outcome for hold in await near.holds(settled=True)] == ["cancelled"]
        killed.kill()
        await killed.wait()
        paid = await other.session.call_tool(
            "desk__pay",
            {"amount": 5},
            input_responses=dict.fromkeys(question.input_requests, APPROVAL),
            request_state=question.request_state,
        )
        assert paid.content == [types.TextContent(text="paid 5")]
        assert ran == [5]
        holds = [(hold.outcome, hold.call_id) for hold in await near.holds(settled=True)]
        assert [outcome for outcome, _ in holds] == ["cancelled", "approved"]
        assert len({call_id for _, call_id in holds}) == 1  # the same call, made again
