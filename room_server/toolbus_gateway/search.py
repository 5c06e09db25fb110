"""A search in place of a list that would fill the prompt of a model.

`tools__search`, `tools__describe` and `tools__call` are those of the toolkit of
`toolbus.tool_search`, over one listing: they name tools as clients call them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, finalize

import mcp_types as types

from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.errors import NotFound
from toolbus.tool_search.search_toolkit import FoundTools, search_toolkit
from toolbus.tool_search.tool_index import IndexedTool, ToolIndex, as_name
from toolbus.tools.context import ToolContext
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.tool_use import ToolUse, arguments_of
from toolbus.turns.turn_tools import NamingTool
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_gateway.limits import MAX_RESULT_BYTES
from toolbus_gateway.listing import MAX_COMPARED, ListedTool, Listing
from toolbus_gateway.names import SEARCH_NAMES
from toolbus_gateway.results import ResultWriter
from toolbus_gateway.tool_definitions import ToolDefinition

__all__ = ["NamedCall", "ToolSearches"]

_threads = WorkerThreads("gateway-search", 2)
_NEAR = 3
"""How many near names a model reads in place of a wrong one."""


class NamedCall(NamedTuple):
    """A call of a tool of the room."""

    tool: ListedTool
    arguments: dict[str, Any]


class ToolSearches:
    """The searches of all members: one for each listing, for as long as there is that listing."""

    def __init__(self) -> None:
        self._making: WeakKeyDictionary[Listing, asyncio.Task[Toolkit]] = WeakKeyDictionary()
        manifest = search_toolkit(_ListedTools({}, None)).manifest()
        self._definitions = {
            tool.name: ToolDefinition.of(manifest, tool) for tool in manifest.tools
        }
        self._wire = [
            ListedTool(name, self._definitions[tool]).wire
            for name, tool in sorted(SEARCH_NAMES.items())
        ]

    def wire(self, listing: Listing) -> list[dict[str, Any]]:
        """Return what `tools/list` has of a listing. Not to be changed."""
        return self._wire if listing.is_searched else listing.wire

    async def use(
        self,
        listing: Listing,
        name: str,
        arguments: dict[str, Any],
        unlisted: Callable[[str], Awaitable[ListedTool | None]],
    ) -> NamedCall | types.CallToolResult:
        """Search or describe, or say which tool is to be called in place of `tools__call`.

        Args:
            listing: One that is searched, or that was before tools have gone.
            name: One of `SEARCH_NAMES`.
            arguments: As the client sent them.
            unlisted: Returns a tool that is not in the listing, and may be called.

        Raises `RoomException` for wrong arguments, and for a call of a tool that is not there.
        """
        toolkit = await self._toolkit(listing)
        tool = toolkit.get_tool(SEARCH_NAMES[name])
        if isinstance(tool, NamingTool):
            named, given = tool.named(tool.read_arguments(arguments))
            try:
                found = listing.tools[tool.find(named).name]
            except NotFound:
                away = await unlisted(named)
                if away is None:
                    raise
                found = away
            return NamedCall(found, arguments_of(ToolUse("", found.name, given)))
        writer = ResultWriter(self._definitions[tool.name], MAX_RESULT_BYTES)
        await writer.add(await toolkit.execute(ToolContext(), tool.name, arguments))
        return writer.result()

    async def _toolkit(self, listing: Listing) -> Toolkit:
        making = self._making.get(listing)
        if making is None or (making.done() and making.exception() is not None):
            # All that ask meanwhile wait for one: an index of 20,000 tools takes seconds.
            making = asyncio.create_task(_indexed(listing), name="toolbus-gateway-search")
            self._making[listing] = making
        return await asyncio.shield(making)


async def _indexed(listing: Listing) -> Toolkit:
    """Return the toolkit over a listing; its index ends with the listing."""
    index = await _threads.run(_index_of, listing.tools.values())
    finalize(listing, index.close)
    return search_toolkit(_ListedTools(listing.tools, index))


def _index_of(tools: Iterable[ListedTool]) -> ToolIndex:
    """Index tools by their toolkits; on a thread."""
    kits: dict[str, list[ToolDefinition]] = {}
    for tool in tools:
        kits.setdefault(tool.definition.toolkit, []).append(tool.definition)
    index = ToolIndex()
    for toolkit, found in kits.items():
        rows = [
            IndexedTool(tool.tool, tool.body.get("title", ""), tool.body["description"])
            for tool in found
        ]
        index.put(toolkit, "", found[0].about, rows)
    return index


class _ListedTools:
    """The tools of a listing as the toolkit `tools` searches them: `SearchableTools`.

    It has the tools and not the listing, which would never end otherwise.

    Args:
        tools: Those of the listing.
        index: Theirs; None for tools that are not searched.
    """

    def __init__(self, tools: dict[str, ListedTool], index: ToolIndex | None) -> None:
        self._tools = tools
        self._index = index
        self._names: dict[str, str] = {}
        """The names in the listing by `toolkit.tool`."""
        self._of_toolkit: dict[str, list[str]] = {}
        for name, tool in tools.items():
            self._names[tool.full_name] = name
            self._of_toolkit.setdefault(tool.definition.toolkit, []).append(name)

    async def search(self, query: str, limit: int, hidden: Collection[str] = ()) -> FoundTools:
        """Find tools by names and words. Raises `Unavailable` without FTS5."""
        assert self._index is not None
        found = await _threads.run(self._index.search, query, limit, hidden)
        tools = [self._info(self._names[f"{kit}.{tool}"]) for kit, tool in found.tools]
        return FoundTools(tools, found.more, 0)

    def find(self, name: str) -> ToolInfo:
        """Return a tool by its name, or by `toolkit.tool`. Raises `NotFound`."""
        asked = as_name(name[:SHOWN_CHARS])
        for candidate in (name, asked, self._names.get(name), self._names.get(asked)):
            if candidate is not None and candidate in self._tools:
                return self._info(candidate)
        near = self._near(name[:SHOWN_CHARS])
        hint = f"near names: {', '.join(near)}" if near else "search for it"
        text = f"there is no tool {one_line(name, SHOWN_CHARS)}; {hint}"
        raise NotFound(text, details={"near": near})

    def tools_of(self, toolkit: str) -> list[str]:
        """Return the names of the tools of a toolkit; none if it is not known."""
        return self._of_toolkit.get(toolkit, [])

    def _near(self, name: str) -> list[str]:
        """Return names that a wrong one may mean: written nearly so, or with the same words."""
        found = get_close_matches(name, islice(self._tools, MAX_COMPARED), n=_NEAR)
        if self._index is not None:
            near = self._index.near(name, _NEAR)
            found += (self._names[f"{toolkit}.{tool}"] for toolkit, tool in near)
        return list(dict.fromkeys(found))[:_NEAR]

    def _info(self, name: str) -> ToolInfo:
        """Describe a tool in the words of the gateway's lists, which stand for themselves."""
        definition = self._tools[name].definition
        body = definition.body
        kit, tool = definition.toolkit, definition.tool
        return ToolInfo(name, body["description"], body["inputSchema"], kit, tool)
