"""The search that a list has in place of very many tools."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any
from weakref import ref

import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from gateway.conftest import REVISIONS, Door
from toolbus import Tool, ToolContext, Toolkit, tool
from toolbus.wire import ToolkitManifest, ToolManifest
from toolbus_gateway.limits import LISTED_TOOLS
from toolbus_gateway.listing import Listing, Target
from toolbus_gateway.names import listed_name
from toolbus_gateway.search import ToolSearches
from toolbus_gateway.tool_definitions import ToolDefinition

NAMES = ["tools__call", "tools__describe", "tools__search"]


class Numbered(Tool):
    """One of very many tools."""

    description = "Counts sheep."

    def __init__(self, number: int) -> None:
        super().__init__(input_schema={}, name=f"count_{number}")

    async def execute(self, context: ToolContext, /, **_: Any) -> str:
        return self.name


@tool(rules=["only at night"])
async def paint(context: ToolContext, colour: str) -> str:
    """Paints the fence."""
    context.emit({"progress": 1, "total": 2, "message": "half"})
    return f"painted {colour}"


@tool
async def rain(drops: int) -> AsyncIterator[str]:
    """Lets it rain."""
    for drop in range(drops):
        yield f"{drop}"


def many(name: str = "farm") -> Toolkit:
    """Return a toolkit with more tools than a list has."""
    return Toolkit(name, [*map(Numbered, range(LISTED_TOOLS)), paint, rain])


def texts(result: types.CallToolResult) -> list[str]:
    """Return the texts of a result."""
    return [getattr(block, "text", "") for block in result.content]


@pytest.mark.parametrize("mode", REVISIONS)
@pytest.mark.parametrize("toolkit", [None, "farm"])
async def test_many_tools_are_found_described_and_called(
    door: Door, mode: str, toolkit: str | None
) -> None:
    async with (
        door.server.room("host") as host,
        host.host(many()),
        door.client(mode, toolkit=toolkit) as client,
    ):
        listed = (await client.list_tools()).tools
        assert [each.name for each in listed] == NAMES
        name = "farm__paint" if toolkit is None else "paint"
        found = await client.call_tool("tools__search", {"query": "fence"})
        assert found.structured_content is not None
        assert [each["name"] for each in found.structured_content["tools"]] == [name]
        described = await client.call_tool("tools__describe", {"names": [name, "gone"]})
        assert described.structured_content is not None
        (shown,) = described.structured_content["tools"]
        assert shown["description"] == "Paints the fence.\n\nonly at night"
        assert shown["input_schema"]["required"] == ["colour"]
        assert [each["name"] for each in described.structured_content["missing"]] == ["gone"]

        seen: list[Any] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, total, message))

        painted = await client.call_tool(
            "tools__call",
            {"name": name, "arguments": '{"colour": "red"}'},
            progress_callback=on_progress,
        )
        assert texts(painted) == ["painted red"]
        assert seen == [(1, 2, "half")]
        rained = {"name": "farm.rain", "arguments": {"drops": 2}}
        assert texts(await client.call_tool("tools__call", rained)) == ["0", "1"]
        assert texts(await client.call_tool(name, {"colour": "blue"})) == ["painted blue"]


async def test_wrong_calls_of_the_search_are_results_with_their_error(door: Door) -> None:
    async with door.server.room("host") as host, host.host(many()), door.client() as client:
        rows: list[tuple[str, dict[str, Any], str, str]] = [
            ("tools__search", {"limit": 0}, "invalid_arguments", "limit"),
            ("tools__describe", {"names": []}, "invalid_arguments", "names"),
            ("tools__call", {}, "invalid_arguments", "name"),
            ("tools__call", {"name": "farm__paint", "arguments": "["}, "invalid_arguments", "JSON"),
            (
                "tools__call",
                {"name": "farm__paint", "colour": "red"},
                "invalid_arguments",
                "colour",
            ),
            ("tools__call", {"name": "farm__pain"}, "not_found", "near names: farm__paint"),
            ("tools__call", {"name": "tools__call"}, "not_found", "tools__call"),
        ]
        for name, arguments, code, words in rows:
            result = await client.call_tool(name, arguments)
            assert result.meta is not None
            assert result.meta["toolbus/error"]["code"] == code
            assert result.meta["toolbus/error"]["executed"] == "no"
            assert words in texts(result)[0]


async def test_tools_of_the_room_do_not_take_the_names_of_the_search(door: Door) -> None:
    @tool
    async def call(name: str, arguments: dict[str, Any]) -> str:
        return f"taken: {name} {arguments}"

    name = listed_name("tools", "call")
    async with (
        door.server.room("host") as host,
        host.host(Toolkit("tools", [call])),
        door.client("legacy") as client,  # one of 2026-07-28 uses a list again for 10 s
    ):
        assert [each.name for each in (await client.list_tools()).tools] == [name]
        with pytest.raises(MCPError, match="there is no tool tools__call"):
            await client.call_tool("tools__call", {"name": name, "arguments": {}})
        async with host.host(many()):
            await _listed(client, NAMES)
            given = {"name": name, "arguments": {"name": "x", "arguments": {}}}
            assert texts(await client.call_tool("tools__call", given)) == ["taken: x {}"]


async def _listed(client: Client, names: list[str]) -> None:
    """Ask until a list has these names: a change reaches the gateway at some time."""
    async with asyncio.timeout(60):
        while [each.name for each in (await client.list_tools()).tools] != names:
            pass


async def nothing(_: str) -> None:
    """Find no tool that is not listed."""


async def test_search_ends_with_its_listing() -> None:
    tools = tuple(ToolManifest(name=f"t{n}", input_schema={}) for n in range(LISTED_TOOLS + 1))
    manifest = ToolkitManifest(name="kit", tools=tools)
    listing = Listing([ToolDefinition.of(manifest, tool) for tool in tools], Target())
    searches = ToolSearches()
    using = [searches.use(listing, "tools__search", {}, nothing) for _ in range(3)]
    await asyncio.gather(*using)
    using.clear()
    toolkit = ref(await searches._toolkit(listing))
    ended = ref(listing)
    del listing
    gc.collect()
    assert ended() is None
    assert toolkit() is None
