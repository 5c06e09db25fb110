"""Lists of tools that a room does not take as they are: what is hosted, and what is named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest

from support.mcp.hostile_server import answer_of, hostile_server
from support.rooms.events import until_hosts
from toolbus import Omission, ToolContext
from toolbus_server.testing import running_server
from toolbus_toolkits.mcp import McpHub, McpServer, McpToolkit, ServerAccess
from toolbus_toolkits.mcp.names import tool_name
from toolbus_toolkits.mcp.tools import tools_of
from toolbus_toolkits.network import AddressPolicy

LOOPBACK = ServerAccess(AddressPolicy(("127.0.0.1",), allow_private=True))
GOOD = {"name": "act", "inputSchema": {"type": "object"}}


def tool_of(name: str, description: str = "", **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"name": name, "description": description, "inputSchema": schema}


@asynccontextmanager
async def listing(*tools: Any, **options: Any) -> AsyncIterator[McpServer]:
    """Connect to a server that lists these tools."""
    async with (
        asyncio.timeout(60),
        hostile_server(
            list=lambda request: answer_of(request, "result", {"tools": list(tools)})
        ) as server,
        McpServer("web", url=f"{server.url}/mcp", access=LOOPBACK, **options) as client,
    ):
        yield client


def both_ways(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a tool whose results are described as its arguments are."""
    tool = tool_of("bad", a=schema)
    return {**tool, "outputSchema": tool["inputSchema"]}


NOT_TAKEN: dict[str, tuple[dict[str, Any], str]] = {
    "bytes": (both_ways({"enum": ["x" * 150_000]}), "more than 262144 bytes"),
    "values": (both_ways({"enum": list(range(40_000))}), "more than 65536 values"),
    "a task": ({**tool_of("bad"), "execution": {"taskSupport": "required"}}, "only as a task"),
}


@pytest.mark.parametrize("kind", NOT_TAKEN)
async def test_a_tool_that_a_room_does_not_take_is_left_out_and_named(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, words = NOT_TAKEN[kind]
    async with listing(bad, GOOD) as client:
        toolkit = client.toolkit()
        assert [tool.name for tool in toolkit.tools] == ["act"]
        (left_out,) = toolkit.left_out
    assert left_out.name == "bad"
    assert words in left_out.reason
    assert f"tools that are left out: 1: bad: {left_out.reason}" in caplog.text


async def test_of_two_tools_with_one_name_here_the_other_is_named() -> None:
    taken = tool_name("a.b")
    async with listing(tool_of("a.b"), tool_of(taken)) as client:
        toolkit = client.toolkit()
        assert [tool.name for tool in toolkit.tools] == [taken]
        assert [entry.name for entry in toolkit.left_out] == ["a.b"]


async def test_tools_beyond_the_most_of_a_toolkit_are_named_and_can_be_chosen() -> None:
    tools = [tool_of(f"t{number:04}") for number in range(1_005)]
    async with listing(*tools) as client:
        toolkit = client.toolkit()
        assert len(toolkit.tools) == 1_000
        assert [entry.name for entry in toolkit.left_out] == [f"t{n}" for n in range(1_000, 1_005)]
        assert "a toolkit has at most 1,000 tools" in toolkit.left_out[0].reason
    async with listing(*tools, enabled_tools=["t1004"]) as client:
        assert [tool.name for tool in client.toolkit().tools] == ["t1004"]
        assert client.toolkit().left_out == ()


async def test_tools_of_one_name_with_long_ones_and_invalid_ones_are_named() -> None:
    long = "x" * 1_001
    async with listing(tool_of("a"), tool_of("a"), tool_of(long), {"name": "bad"}, 5) as client:
        toolkit = client.toolkit()
        assert [tool.name for tool in toolkit.tools] == ["a"]
        reasons = {entry.name: entry.reason for entry in toolkit.left_out}
    assert list(reasons) == [Omission(long, "").name, "bad", "one without a name", "a"]
    assert reasons["bad"] == "inputSchema: Field required"


LOOK_AROUND = {"type": "string", "pattern": r"^(?!\.)(?!.*\.\.)a+$"}
UNCHECKED: dict[str, tuple[dict[str, Any], Any]] = {
    "look-around": (LOOK_AROUND, "aaa"),
    "ECMA class": ({"type": "string", "pattern": r"^[\w-.]+$"}, "aaa"),
    "required": ({"type": "object", "required": 5}, {}),
    "type": ({"type": "any"}, 1),
    "bytes": ({"enum": ["x" * 300_000]}, "x"),
    "levels": (json.loads('{"not":' * 60 + "{}" + "}" * 60), 1),
}


@pytest.mark.parametrize("kind", UNCHECKED)
async def test_what_cannot_be_checked_here_costs_the_check_and_not_the_tool(kind: str) -> None:
    schema, argument = UNCHECKED[kind]
    tool = {**both_ways(schema), "name": "act"}
    async with listing(tool, tool_of("plain", a={"type": "string"})) as client:
        toolkit = client.toolkit()
        assert toolkit.left_out == ()
        assert {entry.name for entry in toolkit.unchecked} == {"act"}
        assert {entry.reason.partition(":")[0] for entry in toolkit.unchecked} == {
            "input_schema",
            "output_schema",
        }
        assert toolkit.get_tool("act").read_arguments({"a": argument}) == {"a": argument}


async def test_a_list_says_what_is_left_out_and_unchecked() -> None:
    bad, _ = NOT_TAKEN["bytes"]
    odd = tool_of("odd", a=LOOK_AROUND)
    async with (
        listing(bad, odd) as client,
        running_server() as bus,
        bus.room("host") as room,
    ):
        hub = McpHub([client])
        async with hub.host(room), bus.room("ann") as ann:
            await until_hosts(ann, "web", 1)
            annotations = (await ann.toolkit("web")).manifest.annotations
        result: Any = await McpToolkit(hub).execute(ToolContext(), "list", {})
    listed: Any = result.value["servers"][0]
    found: Any
    for found in (annotations, listed):
        assert [entry["name"] for entry in found["left_out"]] == ["bad"]
        assert [entry["name"] for entry in found["unchecked"]] == ["odd"]


async def test_a_toolkit_that_is_too_large_loses_long_descriptions_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "a long description " * 100
    default = {"description": text}
    parameter = {"type": "object", "description": text, "default": default}
    tools = [tool_of(f"t{number:03}", text, a=parameter) for number in range(200)]
    async with listing(*tools) as client, running_server() as bus, bus.room("host") as room:
        toolkit = client.toolkit()
        assert len(toolkit.tools) == 200
        assert toolkit.left_out == ()
        manifest = toolkit.tools[0].manifest()
        cut = manifest.input_schema["properties"]["a"]
        assert cut["default"] == default
        for shorter in (manifest.description, cut["description"]):
            assert 900 < len(shorter) <= 1_000
            assert shorter.endswith(" long…")
        async with room.host(toolkit):
            pass
    assert "its descriptions are cut to 1000 characters" in caplog.text


async def test_a_toolkit_that_is_still_too_large_loses_its_last_tools(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tools = [tool_of(f"t{number:03}", a={"enum": ["x" * 20_000]}) for number in range(60)]
    kept: list[list[str]] = []
    for listed in (tools, [*reversed(tools)]):
        async with listing(*listed) as client, running_server() as bus, bus.room("host") as room:
            toolkit = client.toolkit()
            async with room.host(toolkit):
                kept.append([tool.name for tool in toolkit.tools])
                named = [entry.name for entry in toolkit.left_out]
    assert kept[0] == kept[1] == [f"t{number:03}" for number in range(len(kept[0]))]
    assert kept[0] + named == [tool["name"] for tool in tools]
    assert "choose tools with enabledTools or disabledTools" in caplog.text
    async with listing(*tools, enabled_tools=["t05*"]) as client:
        assert [tool.name for tool in client.toolkit().tools] == [f"t{n:03}" for n in range(50, 60)]
        assert client.toolkit().left_out == ()


async def test_every_toolkit_that_is_hosted_can_be_read_and_listed() -> None:
    """With its defaults and the names beside it, a definition is larger than it is registered."""
    tools = [tool_of(f"t{number:03}", a={"enum": ["x" * 800]}) for number in range(1_000)]
    async with listing(*tools) as client, running_server() as bus, bus.room("host") as room:
        toolkit = client.toolkit()
        assert 500 < len(toolkit.tools) < 1_000
        async with room.host(toolkit), bus.room("reader") as reader:
            manifest = (await reader.toolkit(toolkit.name)).manifest
            assert len(manifest.tools) == len(toolkit.tools)


async def test_others_run_while_a_long_list_is_made_into_tools() -> None:
    turns = 0
    client = McpServer("web", command="none")

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    parameters: dict[str, Any] = {
        f"p{number}": {"type": "string", "maxLength": number} for number in range(10)
    }
    tools = [
        types.Tool.model_validate(tool_of(f"t{number}", **parameters)) for number in range(1_000)
    ]
    counting = asyncio.create_task(count())
    await tools_of(tools, client._connection, 60.0)
    counting.cancel()
    assert turns > 5
