"""`ToolSearch` knows the public tools of a room while they come and go, and after faults."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from support.patience import PATIENCE_S
from support.rooms.events import until
from toolbus import (
    AgentsGrant,
    ApiScope,
    FunctionTool,
    NotFound,
    RemoteToolkit,
    RoomClient,
    ToolInfo,
    ToolSearch,
    Turn,
)
from toolbus.tool_search.tool_search import definition_bytes
from toolbus.turns.model_tools import Trust
from toolbus_server.testing import FaultProxy, room_of, running_server

KITS = 300


async def act(text: str = "") -> str:
    """Act on a thing."""
    return text


def kit(name: str, *tools: str, word: str = "thing", **options: Any) -> RemoteToolkit:
    made = [FunctionTool(act, name=tool, description=f"Acts on a {word}.") for tool in tools]
    return RemoteToolkit(name, made, **options)


async def names(tools: ToolSearch, query: str = "", limit: int = 1_000) -> list[str]:
    return [tool.name for tool in (await tools.search(query, limit)).tools]


async def until_known(tools: ToolSearch, query: str, expected: list[str]) -> None:
    """Wait until a search finds exactly these."""
    while await names(tools, query) != expected:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)


async def test_toolkits_come_change_and_go_while_an_agent_searches() -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(60))
        ann, bob, helper = await stack.enter_async_context(room_of("ann", "bob", "helper"))
        there = await stack.enter_async_context(AsyncExitStack())
        for number in range(KITS // 2):
            await there.enter_async_context(ann.host(kit(f"old{number}", "get", "put")))
        tools = ToolSearch()
        await tools.start(helper)
        stack.push_async_callback(tools.stop)
        assert len(await names(tools)) == KITS
        full = tools.tokens

        searching = asyncio.create_task(search_until_cancelled(helper, tools))
        coming = [kit(f"new{number}", "get", word="zebra") for number in range(KITS // 2)]
        for each in coming:
            await stack.enter_async_context(bob.host(each))
        await there.aclose()
        async with ann.host(kit("old0", "get", word="yak")):
            await until_known(tools, "yak", ["old0.get"])
        await until(lambda: "old0" not in tools._known)
        expected = sorted(f"new{number}.get" for number in range(KITS // 2))
        await until_known(tools, "", expected)
        assert sorted(await names(tools, "zebra")) == expected
        assert await names(tools, "put") == []
        assert 0 < tools.tokens < full
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching


async def search_until_cancelled(room: RoomClient, tools: ToolSearch) -> None:
    """Search all the time; what is found has a definition, or has gone since."""
    async with Turn(room, always=[tools.toolkit]) as turn:
        while True:
            for query in ("get", "zebra", "old1", ""):
                found = await turn.call("tools.search", query=query)
                asked = [tool["name"] for tool in found["tools"]] or ["nothing"]
                said = await turn.call("tools.describe", names=asked)
                assert len(said["tools"]) + len(said.get("missing", ())) == len(asked)


async def test_changes_during_a_lost_connection_are_known_after_it() -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await enter(asyncio.timeout(PATIENCE_S))
        server = await enter(running_server())
        proxy = await enter(FaultProxy(server.url))
        ann = await enter(server.room("ann"))
        helper = await enter(server.room("helper", via=proxy))
        same = kit("same", "get")
        going = await enter(AsyncExitStack())
        await enter(ann.host(same))
        for name in ("gone", "changed"):
            await going.enter_async_context(ann.host(kit(name, "get")))
        tools = ToolSearch()
        await tools.start(helper)
        stack.push_async_callback(tools.stop)
        before = tools._known["same"]

        await proxy.refuse()
        proxy.reset()
        await going.aclose()
        await enter(ann.host(kit("changed", "get", word="yak")))
        await enter(ann.host(kit("new", "get")))
        await proxy.accept()
        await until_known(tools, "", ["changed.get", "new.get", "same.get"])
        await until_known(tools, "yak", ["changed.get"])
        assert tools._known["same"] is before  # compared by digest


async def test_agent_knows_public_toolkits_with_a_host_and_a_tool_that_it_may_call() -> None:
    grant = AgentsGrant(call=True, use_tools=True, allow=["*"], deny=["ops", "web.drop"])
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await enter(asyncio.timeout(PATIENCE_S))
        server = await enter(running_server())
        ann = await enter(server.room("ann"))
        bob = await enter(server.room("bob"))
        await enter(ann.host(kit("web", "get", "drop")))
        await enter(ann.host(kit("ops", "get")))
        await enter(bob.host(kit("mail", "get", annotations={"tags": ["letters", 5]})))
        await enter(bob.host(kit("secret", "get", public=False)))
        await enter(bob.host(kit("shared", "get", public=False, shared_with=["*"])))
        helper = await enter(server.room("helper", api=ApiScope(agents=grant)))
        tools = ToolSearch()
        await tools.start(helper)
        stack.push_async_callback(tools.stop)
        assert await names(tools) == ["mail.get", "web.get"]
        assert await names(tools, "letters") == ["mail.get"]
        owners = [tool.owner for tool in (await tools.search("", 5)).tools]
        assert owners == ["bob", "ann"]
        quiet = ApiScope(agents=AgentsGrant(call=True))
        other = await enter(server.room("other", api=quiet))
        none = ToolSearch()
        await none.start(other)
        stack.push_async_callback(none.stop)
        assert (await names(none), none.tokens) == ([], 0)


async def test_newer_token_changes_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(PATIENCE_S), room_of("ann", "helper") as (ann, helper):
        tools = ToolSearch()
        async with ann.host(kit("web", "get", "drop")), ann.host(kit("ops", "get")):
            await tools.start(helper)
            full = tools.tokens
            less = ApiScope(agents=AgentsGrant(call=True, use_tools=True, allow=["web.get"]))
            with monkeypatch.context() as patch:
                patch.setattr(RoomClient, "grants", property(lambda _: less))
                assert await names(tools) == ["web.get"]  # at once
                await until(lambda: 0 < tools.tokens < full)
            await until_known(tools, "", ["ops.get", "web.get", "web.drop"])
            assert tools.tokens == full
            await tools.stop()


async def test_beyond_the_most_tools_toolkits_are_left_out_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asyncio.timeout(PATIENCE_S), room_of("ann", "helper") as (ann, helper):
        tools = ToolSearch(max_tools=5)
        caplog.set_level(logging.WARNING, "toolbus.tool_search")
        async with AsyncExitStack() as stack:
            for name in ("a", "b"):
                await stack.enter_async_context(ann.host(kit(name, "get", "put")))
            await tools.start(helper)
            async with (
                ann.host(kit("c", "get", "put")),
                Turn(helper, always=[tools.toolkit]) as turn,
            ):
                await until(lambda: bool(tools._left_out))
                found = await turn.call("tools.search", query="")
                assert ([each["name"] for each in found["tools"]], found["left_out"]) == (
                    ["a.get", "a.put", "b.get", "b.put"],
                    1,
                )
                assert "more tools than can be searched" in caplog.text
                await stack.aclose()  # there is place now
                await until_known(tools, "", ["c.get", "c.put"])
                assert "left_out" not in await turn.call("tools.search", query="")
        await tools.stop()


async def test_tools_are_started_and_stopped_once() -> None:
    async with asyncio.timeout(PATIENCE_S), room_of("ann", "helper") as (ann, helper):
        tools = ToolSearch()
        async with ann.host(kit("web", "get")):
            await tools.start(helper)
            with pytest.raises(RuntimeError, match="started before"):
                await tools.start(helper)
            await tools.stop()
            await tools.stop()
            assert tools.tokens == 0
            await tools.start(helper)
            assert await names(tools) == ["web.get"]
            await tools.stop()


async def test_toolkit_that_goes_while_the_room_is_read_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asyncio.timeout(PATIENCE_S), room_of("ann", "helper") as (ann, helper):
        async with AsyncExitStack() as going:
            for number in range(100):
                await going.enter_async_context(ann.host(kit(f"kit{number}", "get")))
            stays = kit("stays", "get")
            async with ann.host(stays):
                read = RoomClient.toolkit
                leave: list[Callable[[], Any]] = [going.aclose]

                async def toolkit(room: RoomClient, name: str, *more: Any, **options: Any) -> Any:
                    while leave:
                        await leave.pop()()
                    return await read(room, name, *more, **options)

                monkeypatch.setattr(RoomClient, "toolkit", toolkit)
                tools = ToolSearch()
                await tools.start(helper)
                await until_known(tools, "", ["stays.get"])
                await tools.stop()


async def test_full_name_is_the_name_of_one_tool() -> None:
    async with asyncio.timeout(PATIENCE_S), room_of("ann", "helper") as (ann, helper):
        tools = ToolSearch()
        async with ann.host(kit("a__b", "c")), ann.host(kit("a", "b__c", "b", "getAll")):
            await tools.start(helper)
            found = {
                name: tools.find(name).name for name in ("a__b", "a__b.c", "a.b__c", "A.getall")
            }
            assert found == {
                "a__b": "a.b",  # and the name of a toolkit
                "a__b.c": "a__b.c",
                "a.b__c": "a.b__c",
                "A.getall": "a.getAll",
            }
            with pytest.raises(NotFound, match=r"near names: .*a\.b"):
                tools.find("b")
            await tools.stop()


async def test_description_of_very_many_tools_is_bounded() -> None:
    async with asyncio.timeout(PATIENCE_S), room_of("ann", "helper") as (ann, helper):
        tools = ToolSearch()
        wide = kit("wide", *(f"act{number}" for number in range(200)), word="thing " * 200)
        async with ann.host(wide), ann.host(kit("one", "get", word="x" * 60_000)):
            await tools.start(helper)
            async with Turn(helper, always=[tools.toolkit]) as turn:
                said = await turn.call("tools.describe", names=["wide", "one.get"])
                assert 10 < len(said["tools"]) < 100
                assert said["left_out"][0] == f"wide.act{len(said['tools'])}"
                (long,) = (await turn.call("tools.describe", names=["one.get"]))["tools"]
                assert len(long["description"]) < 5_000  # cut, as in a prompt
            await tools.stop()


async def test_one_toolkit_that_cannot_be_read_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(tool: ToolInfo, trust: Trust) -> int:
        if tool.toolkit == "deep":
            raise RecursionError("too deep")
        return definition_bytes(tool, trust)

    monkeypatch.setattr("toolbus.tool_search.tool_search.definition_bytes", fails)
    async with asyncio.timeout(PATIENCE_S), room_of("ann", "helper") as (ann, helper):
        tools = ToolSearch()
        async with ann.host(kit("deep", "get")), ann.host(kit("plain", "get")):
            await tools.start(helper)
            assert await names(tools) == ["plain.get"]
            async with ann.host(kit("later", "get")):
                await until_known(tools, "", ["later.get", "plain.get"])
            await tools.stop()
    assert "the toolkit deep cannot be searched" in caplog.text
