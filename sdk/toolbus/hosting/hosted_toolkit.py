"""A toolkit as one connection hosts it: limits of its tools, and calls that run now."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import InitVar, dataclass, field
from math import inf
from typing import Any

from toolbus.tools.tool import Tool
from toolbus.tools.tool_limits import NO_LIMITS, ToolLimits, limits_of
from toolbus.tools.toolkit import Toolkit

__all__ = [
    "NO_PATTERNS",
    "HostedToolkit",
    "InvalidOffer",
    "check_shared_with",
]


NO_PATTERNS = (
    "a name or a role is no pattern: write each of them in full, or '*' alone for all participants"
)
"""What to do about a `*` within an entry of `shared_with`."""


class InvalidOffer(ValueError):
    """A toolkit cannot be offered with these options; the message names it and the reason."""


def check_shared_with(toolkit: str, shared_with: Any) -> None:
    """Raise `InvalidOffer` unless it is a list with entries `name:x`, `role:x` or `*`.

    A `*` within a name is refused: it is no pattern, and would match no participant.
    """
    if not _are_strings(shared_with):
        raise InvalidOffer(f"toolkit {toolkit!r}: shared_with must be a list of strings")
    for entry in shared_with:
        if "*" in entry and entry != "*":
            raise InvalidOffer(
                f"toolkit {toolkit!r}: shared_with has {entry[:64]!r}, and {NO_PATTERNS}"
            )
        kind, _, name = entry.partition(":")
        if entry != "*" and not (kind in {"name", "role"} and name):
            name_text = (name or kind)[:64]
            message = f"shared_with has an invalid entry {entry[:64]!r}"
            raise InvalidOffer(
                f"toolkit {toolkit!r}: {message}: write name:{name_text}, role:{name_text} or '*'"
            )


def _are_strings(values: Any) -> bool:
    is_list = isinstance(values, Collection) and not isinstance(values, str | bytes)
    return is_list and all(isinstance(value, str) for value in values)


def _inherited_limits(tool: Tool, former: Sequence[HostedToolkit]) -> ToolLimits:
    for hosted in reversed(former):
        if tool in hosted.toolkit.tools:
            return hosted.limits.get(tool.name, NO_LIMITS)
    return limits_of(tool)


@dataclass(slots=True, eq=False)
class HostedToolkit:
    """A toolkit that this connection hosts, with the slots of its tools."""

    toolkit: Toolkit
    public: bool
    limits: dict[str, ToolLimits] = field(init=False)
    """By tool; only tools with limits."""
    digest: str = ""
    """The digest of its definition, once the server has said it."""
    running_calls: set[object] = field(default_factory=set)
    former: InitVar[Sequence[HostedToolkit]] = ()
    """Definitions that may have calls yet: a tool that they have too keeps its slots."""
    first_connection: float = 0
    """The number of the first connection whose calls mean this definition."""
    last_connection: float = inf
    """The number of the last one."""
    is_for_all: bool = True
    """Whether the calls of every connection mean it."""
    idle_event: asyncio.Event | None = None
    """Set when no call is running; present while a task waits for that."""

    @property
    def key(self) -> tuple[str, bool]:
        """Identifies it on its connection: name and whether it is public."""
        return (self.toolkit.name, self.public)

    def __post_init__(self, former: Sequence[HostedToolkit]) -> None:
        found = {tool.name: _inherited_limits(tool, former) for tool in self.toolkit.tools}
        self.limits = {name: limits for name, limits in found.items() if limits != NO_LIMITS}

    def limit_to(self, first: float, last: float) -> None:
        """Serve the calls of the connections with these numbers only."""
        self.first_connection, self.last_connection = first, last
        self.is_for_all = first == 0 and last == inf

    def serves(self, connection: float) -> bool:
        """Whether the calls of the connection with this number mean it."""
        return self.first_connection <= connection <= self.last_connection

    def on_call_ended(self) -> None:
        """Wake the tasks that wait for the end of all calls, if this was the last one."""
        if self.idle_event is not None and not self.running_calls:
            self.idle_event.set()
            self.idle_event = None

    async def drained(self) -> None:
        """Wait until no call is running, not even on a thread."""
        while self.running_calls:
            self.idle_event = self.idle_event or asyncio.Event()
            await self.idle_event.wait()
