"""Calls of tools that are not listed now: their host restarts, or they have gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp_types import CallToolResult

from gateway.conftest import REVISIONS, Door, running_gateway
from gateway.test_search import many, texts
from support.rooms.events import until_hosts
from toolbus import RoomClient, Toolkit, tool
from toolbus_gateway.definitions import Definitions
from toolbus_gateway.listing import ListedTool, Target
from toolbus_gateway.member import Member
from toolbus_gateway.names import listed_name
from toolbus_gateway.tool_calls import CallSettings, call_tool


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with asyncio.timeout(60), running_gateway() as opened:
        yield opened


@tool
async def number() -> str:
    return "7"


LAB, HASHED = Toolkit("lab", [number]), Toolkit("lab__one", [number])
NAMED = {"name": "farm__paint", "arguments": {"colour": "red"}}


@asynccontextmanager
async def hosted_until_restart(door: Door, kit: Toolkit) -> AsyncIterator[None]:
    """Host a toolkit for the block; then its name is kept for the next process of the host."""
    async with door.server.room("host") as host, host.host(kit):
        yield
        await host.drain()


@pytest.mark.parametrize("mode", REVISIONS)
@pytest.mark.parametrize(
    ("kit", "call", "text"),
    [
        (LAB, ("lab__number", {}), "7"),
        (HASHED, (listed_name("lab__one", "number"), {}), "7"),
        (many(), ("tools__call", NAMED), "painted red"),
    ],
)
async def test_call_waits_for_a_host_that_restarts(
    door: Door,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    kit: Toolkit,
    call: tuple[str, dict[str, Any]],
    text: str,
) -> None:
    unlisted, is_found = Member.unlisted, asyncio.Event()

    async def watched(member: Member, target: Target, wanted: str) -> ListedTool | None:
        found = await unlisted(member, target, wanted)
        is_found.set()
        return found

    monkeypatch.setattr(Member, "unlisted", watched)
    async with door.server.room("watcher") as watcher, door.client(mode) as client:
        async with hosted_until_restart(door, kit):
            if kit is not LAB:  # the other is known by the room alone
                assert (await client.list_tools()).tools
        await until_hosts(watcher, kit.name, 0)
        while (await client.list_tools(cache_mode="refresh")).tools:
            pass  # the change reaches the gateway at some time
        calling = asyncio.create_task(client.call_tool(*call))
        await is_found.wait()
        async with hosted_until_restart(door, kit):
            assert texts(await calling) == [text]


@pytest.mark.parametrize(("has_left", "code"), [(False, "no_host"), (True, "not_found")])
@pytest.mark.parametrize("path", [None, "lab"])
async def test_tool_that_has_gone_for_good_is_a_result(
    door: Door, has_left: bool, code: str, path: str | None
) -> None:
    token, target = door.server.token("alice"), Target(path)
    room = RoomClient(door.server.url, room="lab", token=token, wait_for_host_s=0)
    async with room:
        member = Member(room, Definitions())
        async with door.server.room("host") as host, host.host(LAB):
            ((name, found),) = (await member.listing(target)).tools.items()
            if not has_left:
                await host.drain()
        await until_hosts(room, "lab", 0)
        while name in (listing := await member.listing(target)).tools and has_left:
            pass
        away = listing.tools.get(name) or await member.unlisted(target, name)
        assert away is not None
        assert away.full_name == found.full_name
        result = await call_tool(member, away, {}, CallSettings(), None)
        assert isinstance(result, CallToolResult)
        assert result.meta is not None
        error = result.meta["toolbus/error"]
        assert (result.is_error, error["code"], error["executed"]) == (True, code, "no")
        assert await member.unlisted(target, "lab__gone") is None


@pytest.mark.parametrize("mode", REVISIONS)
async def test_path_of_a_toolkit_that_has_not_come_has_no_tools(
    door: Door, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "toolbus_gateway")
    async with door.server.room("host") as host, door.client(mode, toolkit="lab") as client:
        for _ in range(2):
            assert (await client.list_tools(cache_mode="refresh")).tools == []
        async with host.host(LAB):
            while [each.name for each in (await client.list_tools(cache_mode="refresh")).tools] != [
                "number"
            ]:
                pass
    said = [record.getMessage() for record in caplog.records if "no tools" in record.getMessage()]
    assert said == ["no tools are listed until it comes: toolkit lab not found"]
