"""A toolkit as one connection serves it: its bounds, and the calls that it runs now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from toolbus.tool import Tool
from toolbus.toolkit import Toolkit

__all__ = ["NO_BOUNDS", "Bounds", "HostedToolkit", "OfferMistake", "check_shares"]


class OfferMistake(ValueError):
    """A toolkit cannot be offered in this way; the words name it and say why."""


def check_shares(toolkit: str, shares: Iterable[str]) -> None:
    """Raise `OfferMistake` where one of those that a toolkit is shared with names nobody."""
    for share in shares:
        kind, _, name = share.partition(":")
        if share != "*" and not (kind in {"name", "role"} and name):
            who = (name or kind)[:64]
            words = f"shared_with names nobody by {share[:64]!r}"
            raise OfferMistake(f"toolkit {toolkit!r}: {words}: write name:{who}, role:{who} or '*'")


class Bounds(NamedTuple):
    """How many calls of a tool may run at a time, and for how long each; None is no limit."""

    slots: asyncio.Semaphore | None
    timeout_s: float | None


NO_BOUNDS = Bounds(None, None)
"""Of a tool that says nothing."""


def _bounds_of(tool: Tool) -> Bounds:
    """As many as the tool says; one for a sync tool that does not say."""
    limit = tool.max_concurrency or (None if tool.is_async else 1)
    return Bounds(None if limit is None else asyncio.Semaphore(limit), tool.timeout_s)


def _is_as_defined(method: Callable[..., Any], definition: Callable[..., Any]) -> bool:
    return getattr(method, "__func__", None) is definition


@dataclass(slots=True, eq=False)
class HostedToolkit:
    """A toolkit that this connection serves, with the slots of its tools."""

    toolkit: Toolkit
    public: bool
    bounds: dict[str, Bounds] = field(init=False)
    """Of those tools that have any."""
    checked: frozenset[str] = field(init=False)
    """The tools whose results are as `as_chunk` makes them: nothing on the way is overridden."""
    running: set[object] = field(default_factory=set)
    quiet: asyncio.Event | None = None
    """Set when none is running; there while somebody waits for that."""

    @property
    def key(self) -> tuple[str, bool]:
        """What tells it apart on its connection."""
        return (self.toolkit.name, self.public)

    def __post_init__(self) -> None:
        found = {tool.name: _bounds_of(tool) for tool in self.toolkit.tools}
        self.bounds = {name: bounds for name, bounds in found.items() if bounds != NO_BOUNDS}
        is_plain = _is_as_defined(self.toolkit.execute, Toolkit.execute)
        is_plain = is_plain and _is_as_defined(self.toolkit.get_tool, Toolkit.get_tool)
        tools = self.toolkit.tools if is_plain else ()
        as_made = [each for each in tools if _is_as_defined(each.make_result, Tool.make_result)]
        self.checked = frozenset(each.name for each in as_made)

    def ended(self) -> None:
        """Take note that a call has ended while somebody waits for that."""
        if self.quiet is not None and not self.running:
            self.quiet.set()
            self.quiet = None

    async def drained(self) -> None:
        """Wait until no call is running, on a thread neither."""
        while self.running:
            self.quiet = self.quiet or asyncio.Event()
            await self.quiet.wait()
