"""The tools of a server's list, as far as a room takes them: the rest is left out and named.

They are made in slices, because a list may have a thousand tools with large schemas.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import mcp_types as types

from toolbus import Omission
from toolbus.wire import MAX_MANIFEST_BYTES, MAX_MANIFEST_VALUES, BadBody, pack_body
from toolbus.wire.body_steps import run_steps
from toolbus.wire.manifest import read_tool
from toolbus_toolkits.mcp.connection import ServerConnection
from toolbus_toolkits.mcp.names import tool_names
from toolbus_toolkits.mcp.tool_lists import MAX_TOOLS, TOO_MANY
from toolbus_toolkits.mcp.tools import MAX_DESCRIPTION_CHARS, McpTool

__all__ = ["ListedTools", "tools_of"]

_SLICE_S = 0.01
"""How long the event loop is held, but for the last tool of a slice."""
_RESERVED_BYTES = 64 * 1024
_RESERVED_VALUES = 2_000
"""Of a manifest, for all that is not its tools: rules, and what is left out and unchecked."""
_SHORTER_CHARS = (1_000, 300, 100)
"""To what descriptions are cut, step by step, before a tool is left out for the size of all."""
_TOO_LARGE = (
    "all tools together are larger than a toolkit may be: choose tools with enabledTools or "
    "disabledTools"
)


@dataclass(slots=True)
class ListedTools:
    """The tools of a server's list, and those of it that are left out."""

    tools: list[McpTool] = field(default_factory=list)
    left_out: list[Omission] = field(default_factory=list)
    """Tools that cannot be hosted, by the names that the server gives them."""
    description_chars: int = MAX_DESCRIPTION_CHARS
    """The longest description; less than usual where all tools together were too large."""

    @property
    def unchecked(self) -> list[Omission]:
        """Parts of schemas that only the server can check, by the names of the tools here."""
        return [Omission(tool.name, line) for tool in self.tools for line in tool.unchecked]


async def tools_of(
    listed: Iterable[types.Tool],
    connection: ServerConnection,
    timeout_s: float,
    former: ListedTools | None = None,
    *,
    trusted: bool = False,
) -> ListedTools:
    """Make the tools of a list.

    What is too large for one manifest first loses its long descriptions, and then the last tools in
    the order of their names.

    Args:
        listed: As the server lists them.
        connection: The connection to the server.
        timeout_s: Seconds that one call may run.
        former: What became of an earlier list: a tool whose definition is the same is used again.
        trusted: Whether the hints of the server count.
    """
    definitions = {tool.name: tool for tool in listed}
    names = tool_names(definitions)
    attempt = _Attempt(ListedTools(), {})
    for chars in (MAX_DESCRIPTION_CHARS, *_SHORTER_CHARS):
        known: dict[str, McpTool] = {}
        if former is not None and former.description_chars == chars:
            known = {tool.definition.name: tool for tool in former.tools}
        attempt = _Attempt(ListedTools(description_chars=chars), known)
        make = partial(
            McpTool,
            connection=connection,
            timeout_s=timeout_s,
            trusted=trusted,
            description_chars=chars,
        )
        async for name, original in _in_slices(names):
            attempt.add(name, definitions[original], make)
            if attempt.is_exceeded and chars != _SHORTER_CHARS[-1]:
                break
        if not attempt.is_exceeded:
            break
    left_out = attempt.made.left_out
    for original in sorted(set(definitions) - set(names.values())):
        left_out.append(Omission(original, "another tool of this server has its name here"))
    return attempt.made


class _Attempt:
    """The tools of a list with descriptions of one length.

    Args:
        made: Where they go.
        known: Tools of a former list, by their original names.
    """

    def __init__(self, made: ListedTools, known: Mapping[str, McpTool]) -> None:
        self.made = made
        self.is_exceeded: bool = False
        """Whether a tool has no place because all together are too large."""
        self._known = known
        self._bytes = 0
        self._values = 0

    def add(
        self, name: str, definition: types.Tool, make: Callable[[str, types.Tool], McpTool]
    ) -> None:
        """Add a tool, or leave it out."""
        if len(self.made.tools) == MAX_TOOLS:
            reason = TOO_MANY
        elif self.is_exceeded:  # also a smaller one: which are left out is easy to say
            reason = _TOO_LARGE
        else:
            reason = self._refusal(name, definition, make)
        if reason:
            self.made.left_out.append(Omission(definition.name, reason))

    def _refusal(
        self, name: str, definition: types.Tool, make: Callable[[str, types.Tool], McpTool]
    ) -> str:
        """Return why a tool is left out; else it is added."""
        tool = self._known.get(definition.name)
        try:
            if tool is None or (tool.name, tool.definition) != (name, definition):
                tool = make(name, definition)
            # With its defaults, as readers get it: a toolkit that only fits without them would be
            # hosted, and nobody could read its definition. Beside it they get the names once more.
            packed = pack_body(tool.manifest().model_dump(mode="json"))
            values = run_steps(read_tool(packed)).values  # raises if a room refuses it
        except BadBody as error:
            return f"{error.path}: {error.reason}" if error.path else error.reason
        except Exception as error:  # a definition may be anything
            return str(error) or type(error).__name__
        self._bytes += len(packed) + len(pack_body(name))
        self._values += values
        self.is_exceeded = (
            self._bytes > MAX_MANIFEST_BYTES - _RESERVED_BYTES
            or self._values > MAX_MANIFEST_VALUES - _RESERVED_VALUES
        )
        if self.is_exceeded:
            return _TOO_LARGE
        self.made.tools.append(tool)
        return ""


async def _in_slices(names: Mapping[str, str]) -> AsyncIterator[tuple[str, str]]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    for name, original in names.items():
        if loop.time() - began > _SLICE_S:
            await asyncio.sleep(0)
            began = loop.time()
        yield name, original
