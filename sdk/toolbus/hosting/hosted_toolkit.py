"""A toolkit as one connection hosts it, and which definition of it a dispatch means.

A dispatch names a toolkit, not its definition. The server sends the reply to a registration in the
order of its dispatches: those before it mean the old definition, those after it the new one. So the
reply itself, as it is read, switches the definition. Where that order is unknown, because a
connection was lost between request and reply, calls are refused as `no_host`, which callers try
again, until the server has confirmed one of both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import count
from math import inf
from typing import Any

from toolbus.hosting.host_grants import HostGrants
from toolbus.tools.execution import NO_LIMITS, ToolLimits, limits_of
from toolbus.tools.tool import Tool
from toolbus.tools.toolkit import Toolkit

__all__ = ["NO_PATTERNS", "Definitions", "HostedToolkit", "InvalidOffer", "check_shared_with"]

NO_PATTERNS = (
    "a name or a role is no pattern: write each of them in full, or '*' alone for all participants"
)
"""What to do about a `*` within an entry of `shared_with`."""


_NEVER = -1


class InvalidOffer(ValueError):
    """A toolkit cannot be offered with these options; the message names it and the reason."""


def check_shared_with(toolkit: str, shared_with: Any) -> None:
    """Raise `InvalidOffer` unless it is a list with entries `name:x`, `role:x` or `*`.

    A `*` within a name is refused: it is no pattern, and would match no participant.
    """
    is_list = isinstance(shared_with, Collection) and not isinstance(shared_with, str | bytes)
    if not is_list or not all(isinstance(entry, str) for entry in shared_with):
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
    grants: HostGrants = field(default_factory=HostGrants)
    """What people have granted to its callers."""
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
        self.toolkit.is_in_use = True
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


class Definitions:
    """The toolkits that one participant hosts, by name and whether they are public."""

    __slots__ = ("_hosted", "_latest", "_numbers", "get")

    def __init__(self) -> None:
        self._hosted: dict[tuple[str, bool], HostedToolkit] = {}
        self._numbers = count(1)
        self._latest: tuple[float, object | None] = (0, None)
        self.get: Callable[[tuple[str, bool]], HostedToolkit | None] = self._hosted.get
        """Find what is hosted by its key."""

    def add_connection(self, connection: object | None) -> float:
        """Return the number of a new connection: higher than those of all before it."""
        self._latest = next(self._numbers), connection
        return self._latest[0]

    def add(self, toolkit: Toolkit, *, public: bool) -> HostedToolkit:
        """Host a toolkit. Raises InvalidOffer if one of its name is hosted already."""
        hosted = HostedToolkit(toolkit, public)
        if hosted.key in self._hosted:
            raise InvalidOffer(f"this connection already hosts a toolkit {toolkit.name}")
        self._hosted[hosted.key] = hosted
        return hosted

    def remove(self, hosted: HostedToolkit) -> None:
        """Accept no more calls for a toolkit; no effect if it has been replaced."""
        if self._hosted.get(hosted.key) is hosted:
            del self._hosted[hosted.key]

    # Replacing a definition

    def request(self, old: HostedToolkit) -> None:
        """Note that the server is being asked to replace a definition.

        Calls of later connections are in doubt until the reply, or until `confirm`.
        """
        old.limit_to(old.first_connection, min(old.last_connection, self._latest[0]))

    def accept(self, old: HostedToolkit, new: HostedToolkit, connection: object | None) -> bool:
        """Switch to the new definition as the reply is read.

        Returns False if there is a newer connection: the old definition was registered there, and
        the server has to be asked again.
        """
        number, latest = self._latest
        if connection is not latest:
            old.limit_to(number, _NEVER)
            return False
        new.limit_to(number, new.last_connection)
        self._hosted[new.key] = new
        return True

    def doubt(self, hosted: HostedToolkit) -> None:
        """Refuse calls until `confirm`: it is unknown which definition the server has."""
        hosted.limit_to(hosted.first_connection, _NEVER)

    def confirm(self, hosted: HostedToolkit, connection: object | None = None) -> None:
        """Serve a definition that the server has: by its reply on a connection, or as before."""
        if connection is None or connection is self._latest[1]:
            hosted.limit_to(hosted.first_connection, inf)
