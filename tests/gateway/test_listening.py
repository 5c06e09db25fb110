"""What a member sees of a room that changes, streams about that, and cancels by other requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from mcp.shared.exceptions import MCPError

import toolbus_gateway.mcp_server
from gateway.conftest import Door, running_gateway
from toolbus import ApiScope, RoomClient, Toolkit, tool
from toolbus.auth.grants import AgentsGrant
from toolbus_gateway.definitions import Definitions
from toolbus_gateway.listing import Target
from toolbus_gateway.member import Member

ALL = Target()


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with asyncio.timeout(60), running_gateway() as opened:
        yield opened


@tool
async def echo(text: str) -> str:
    return text


@tool
async def other() -> str:
    return "other"


def admin_of(door: Door) -> RoomClient:
    return RoomClient(door.server.url, room="lab", token=door.server.token("admin", room="*"))


async def test_each_change_of_the_tools_is_told_and_listed(door: Door) -> None:
    kit = Toolkit("words", [echo])
    async with (
        door.server.room("host") as host,
        door.client() as client,
        client.listen(tools_list_changed=True) as changes,
    ):
        assert (await client.list_tools()).tools == []

        async def listed() -> list[str]:
            await anext(changes)
            return [tool.name for tool in (await client.list_tools()).tools]

        async with host.host(kit):
            assert await listed() == ["words__echo"]
            await host.replace(kit.with_tools(other))
            while (names := await listed()) == ["words__echo"]:
                pass
            assert names == ["words__echo", "words__other"]
        while await listed():
            pass


async def test_a_session_of_2025_is_not_told_of_changes(door: Door) -> None:
    async with door.client("legacy") as client:
        assert client.server_capabilities.tools is not None
        assert not client.server_capabilities.tools.list_changed


@pytest.mark.parametrize("how", ["revoked", "drained"])
async def test_streams_end_with_the_token_and_with_the_gateway(door: Door, how: str) -> None:
    async with (
        admin_of(door) as admin,
        door.client() as client,
        client.listen(tools_list_changed=True) as first,
        client.listen(tools_list_changed=True) as second,
    ):
        if how == "revoked":
            await admin.admin("revoke", name="alice")
        else:
            await door.service.stop()
        assert [change async for change in first] == []  # each with its last message
        assert [change async for change in second] == []


async def test_one_token_has_a_limited_number_of_streams(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolbus_gateway.mcp_server, "MAX_LISTENERS", 2)
    async with (
        door.client() as client,
        door.client(name="bob") as another,
        client.listen(tools_list_changed=True),
    ):
        async with client.listen(tools_list_changed=True):
            with pytest.raises(MCPError, match="at most 2 streams"):
                async with client.listen(tools_list_changed=True):
                    pass
            async with another.listen(tools_list_changed=True):
                pass
        while True:
            try:
                async with client.listen(tools_list_changed=True):
                    break
            except MCPError:  # the closed one is being cleaned up
                continue


@pytest.mark.parametrize(
    ("agents", "names"),
    [
        (ApiScope.full().agents, ["mine__echo", "open__echo", "open__other"]),
        (AgentsGrant(use_tools=False), []),
        (
            AgentsGrant(use_tools=True, call=True, allow=("open.*",)),
            ["open__echo", "open__other"],
        ),
    ],
)
async def test_a_list_has_what_the_token_may_call(
    door: Door, agents: AgentsGrant, names: list[str]
) -> None:
    token = door.server.token("alice", api=ApiScope(agents=agents))
    async with (
        door.server.room("host") as host,
        door.server.room("alice") as alice,
        host.host(Toolkit("open", [echo, other])),
        host.host(Toolkit("mine", [other])),  # alice's own one shadows it
        host.host(Toolkit("shared", [other]), public=False, shared_with=["*"]),
        alice.host(Toolkit("mine", [echo]), public=False),
        RoomClient(door.server.url, room="lab", token=token) as room,
    ):
        member = Member(room, Definitions())
        assert [*(await member.listing(ALL)).tools] == names
        if len(names) == 3:
            for target in (Target("shared", "host"), Target("mine", "host")):
                assert [*(await member.listing(target)).tools] == ["other"]
            assert [*(await member.listing(Target("mine"))).tools] == ["echo"]


async def test_a_list_that_was_read_before_a_change_is_not_kept(door: Door) -> None:
    async with door.server.room("host") as host, door.server.room("alice") as room:
        member = Member(room, Definitions())
        await member.follow()
        changed = asyncio.Event()
        member.on_change(changed.set)
        async with host.host(Toolkit("words", [echo])):
            await changed.wait()
            reading = [asyncio.create_task(member.listing(ALL)) for _ in range(2)]
            await asyncio.sleep(0)
            changed.clear()
            async with host.host(Toolkit("more", [other])):
                await changed.wait()
                first, second = await asyncio.gather(*reading)
                assert first is second  # one was read for both
                assert [*(await member.listing(ALL)).tools] == ["more__other", "words__echo"]


ID = "1"
"""That of the call."""


@pytest.mark.parametrize(
    ("token", "session", "request_id", "calls", "is_cancelled"),
    [
        ("alice", "s1", ID, 1, True),
        ("alice", "s1", ID, 2, False),  # nobody knows which of them is meant
        ("alice", "s2", ID, 1, False),
        ("alice", None, ID, 1, False),
        ("bob", "s1", ID, 1, False),
        ("alice", "s1", "1.0", 1, False),
        ("alice", "s1", '"1"', 1, False),
        ("alice", "s1", "true", 1, False),
        ("alice", "s1", "[1]", 1, False),
        ("alice", "s1", "6", 1, False),
    ],
)
async def test_a_cancel_needs_the_token_the_session_and_the_id(
    door: Door, token: str, session: str | None, request_id: str, calls: int, is_cancelled: bool
) -> None:
    running: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    @tool
    async def wait() -> str:
        ended = asyncio.Event()
        running.put_nowait(ended)
        await ended.wait()
        return "done"

    tokens = {name: door.server.token(name) for name in ("alice", "bob")}
    async with (
        door.server.room("host") as host,
        host.host(Toolkit("words", [wait])),
        httpx2.AsyncClient(timeout=60) as http,
    ):

        async def post(whose: str, session_id: str | None, message: str) -> httpx2.Response:
            headers = {
                "Authorization": f"Bearer {tokens[whose]}",
                "Accept": "application/json, text/event-stream",
                "Content-Type": "application/json",
                "MCP-Protocol-Version": "2025-11-25",
            }
            if session_id is not None:
                headers["Mcp-Session-Id"] = session_id
            return await http.post(door.address(), content=message, headers=headers)

        params = '"params": {"name": "words__wait", "arguments": {}}'
        call = f'{{"jsonrpc": "2.0", "id": {ID}, "method": "tools/call", {params}}}'
        waiting = [asyncio.create_task(post("alice", "s1", call)) for _ in range(calls)]
        ends = [await running.get() for _ in range(calls)]
        cancelled = f'"notifications/cancelled", "params": {{"requestId": {request_id}}}'
        for _ in range(2):  # the second one finds nothing
            answer = await post(token, session, f'{{"jsonrpc": "2.0", "method": {cancelled}}}')
            assert answer.status_code == 202
        if not is_cancelled:
            for end in ends:
                end.set()
        for response in await asyncio.gather(*waiting):
            (line,) = [each for each in response.text.splitlines() if each.startswith("data: {")]
            answered: dict[str, Any] = json.loads(line.removeprefix("data: "))
            assert ("error" in answered) == is_cancelled
