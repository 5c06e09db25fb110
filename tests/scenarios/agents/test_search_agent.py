"""An agent in a room with more tools than its budget: it searches them, for whoever asks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE_S
from toolbus import (
    Agent,
    AgentsGrant,
    ApiScope,
    FunctionTool,
    JsonChunk,
    RemoteToolkit,
    RoomClient,
    ToolContext,
    Toolkit,
    open_model,
    tool,
)
from toolbus_server.testing import TestServer, running_server


@tool
async def whose(context: ToolContext, text: str = "") -> str:
    """Tell for whom a call is."""
    assert context.on_behalf_of is not None
    return f"{text} for {context.on_behalf_of.name}"


@tool
async def other(text: str) -> str:
    """Do something else with a text."""
    return text


def use(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"uses": [{"name": name, "arguments": arguments}]}


SEARCHING = [
    use("tools.search", query="whose"),
    use("tools.describe", names=["far.whose"]),
    use("tools.call", name="far.whose", arguments={"text": "done"}),
    {"text": "It is done."},
]
DIRECT = [use("far.whose", text="done"), {"text": "It is done."}]


@asynccontextmanager
async def agent_of(
    path: Path, replies: list[Any], **options: Any
) -> AsyncIterator[tuple[TestServer, Agent]]:
    """An agent whose room has the toolkit `far`."""
    script = path / "replies.jsonl"
    script.write_text("".join(f"{json.dumps(reply)}\n" for reply in replies))
    async with asyncio.timeout(PATIENCE_S), running_server() as server:
        async with server.room("host") as host, host.host(RemoteToolkit("far", [whose, other])):
            model = open_model(f"scripted:{script}")
            async with server.room("helper") as room:
                async with Agent(room, model, name="helper", **options) as agent:
                    yield server, agent


async def events_of(room: RoomClient) -> list[dict[str, Any]]:
    async with room.stream("helper.ask", {"text": "Whose?"}, participant="helper") as chunks:
        return [chunk.value async for chunk in chunks if isinstance(chunk, JsonChunk)]


async def tool_names(room: RoomClient) -> list[str]:
    about = (await room.invoke("helper.about", participant="helper")).value
    return [each["name"] for each in about["tools"]]


async def test_agent_searches_calls_and_shows_the_named_tool(tmp_path: Path) -> None:
    async with agent_of(tmp_path, SEARCHING, tool_budget_tokens=10) as (server, _):
        async with server.room("ann") as ann:
            names = await tool_names(ann)
            events = await events_of(ann)
    assert names == ["tools.search", "tools.describe", "tools.call"]
    calls = [
        (event["tool"], event["arguments"]) for event in events if event["type"] == "tool_call"
    ]
    assert calls[0] == ("tools.search", {"query": "whose"})
    assert calls[2] == ("far.whose", {"text": "done"})
    results = [event for event in events if event["type"] == "tool_result"]
    assert [result["tool"] for result in results] == ["tools.search", "tools.describe", "far.whose"]
    assert results[2]["text"] == "done for ann"
    assert events[-1]["text"] == "It is done."


async def test_tools_that_fit_the_budget_are_there_themselves(tmp_path: Path) -> None:
    async with agent_of(tmp_path, DIRECT, tool_budget_tokens=1_000) as (server, _):
        async with server.room("ann") as ann:
            assert await tool_names(ann) == ["far.whose", "far.other"]
            results = [each for each in await events_of(ann) if each["type"] == "tool_result"]
            assert [result["text"] for result in results] == ["done for ann"]
            # They come and go; each question has what there is when it begins.
            await fill(server, ann)


async def fill(server: TestServer, ann: RoomClient) -> None:
    """Let many tools come and go."""
    made = [
        FunctionTool(act, name=f"act{number}", description="Act. " * 50) for number in range(20)
    ]
    async with server.room("late") as late, late.host(RemoteToolkit("wide", made)):
        await until_listed(ann, ["tools.search", "tools.describe", "tools.call"])
    await until_listed(ann, ["far.whose", "far.other"])


async def until_listed(room: RoomClient, names: list[str]) -> None:
    """Wait until a question has exactly these tools; there is no event for it."""
    while await tool_names(room) != names:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def act(text: str) -> str:
    return text


@pytest.mark.parametrize("options", [{"available": False}, {"required": ["far"]}])
async def test_what_is_required_is_no_part_of_the_budget(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    async with agent_of(tmp_path, DIRECT, tool_budget_tokens=0, **options) as (server, _):
        async with server.room("ann") as ann:
            expected = ["far.whose", "far.other"] if "required" in options else []
            assert await tool_names(ann) == expected


async def test_toolkit_of_the_agent_keeps_the_name_tools(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    own = Toolkit("tools", [other])
    async with agent_of(tmp_path, DIRECT, tool_budget_tokens=0, always=[own]) as (server, _):
        async with server.room("ann") as ann:
            names = await tool_names(ann)
    assert names == [
        "tools.other",
        *(f"room_tools.{each}" for each in ("search", "describe", "call")),
    ]
    assert "the one that searches the room is room_tools" in caplog.text


async def test_asker_reaches_no_more_by_name_than_itself(tmp_path: Path) -> None:
    less = ApiScope(agents=AgentsGrant(call=True, use_tools=True, allow=["helper"]))
    async with agent_of(tmp_path, SEARCHING, tool_budget_tokens=0) as (server, _):
        async with server.room("eve", api=less) as eve, server.room("ann") as ann:
            for room, state in ((eve, "denied"), (ann, "ok")):
                results = [each for each in await events_of(room) if each["type"] == "tool_result"]
                assert (results[2]["tool"], results[2]["state"]) == ("far.whose", state)


async def test_agent_of_this_process_without_a_room_has_no_search(tmp_path: Path) -> None:
    script = tmp_path / "replies.jsonl"
    script.write_text('{"text": "Hello."}\n')
    async with Agent(None, open_model(f"scripted:{script}"), tool_budget_tokens=0) as agent:
        assert (await agent.about())["tools"] == []
