"""What was meant by a name that is not there, among those that the participant may see anyway.

It asks the server one thing at most, waits little for it, and keeps silent where it knows nothing.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import NamedTuple, Protocol

from toolbus.errors import NotFound, RoomException
from toolbus.exit_codes import Subject
from toolbus.toolkit_proxy import ToolkitInfo

__all__ = ["FirstToolkits", "near_name", "near_tool"]

_PATIENCE_S = 2.0
_MAX_CHARS = 64
_MAX_NAMES = 1_000
_MAX_LISTED = 8


class Misnamed(NotFound):
    """A name is not there; the message says which ones are."""

    next_step = ""
    """The message says it."""


class FirstToolkits(NamedTuple):
    """The first toolkits that a participant can see, in the order of their names."""

    toolkits: list[ToolkitInfo]
    are_all: bool

    def tell_of(self, name: str) -> bool:
        """Whether a toolkit of this name would be among them."""
        return self.are_all or (bool(self.toolkits) and name < self.toolkits[-1].name)


class ToolkitLister(Protocol):
    """What is needed of a room."""

    @property
    def name(self) -> str:
        """The room's name."""

    @property
    def identity(self) -> str:
        """My own name."""

    async def first_toolkits(self) -> FirstToolkits:
        """List toolkits by one request."""


async def near_name(error: NotFound, room: ToolkitLister, asked: Subject) -> NotFound:
    """Say what was meant by a toolkit, or a toolkit and tool, that the server does not find.

    Args:
        error: What the server said.
        room: Where it was said; its list is asked for once.
        asked: What was asked for.

    Returns:
        The same error, or one that names what is there.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            seen = await room.first_toolkits()
    except (RoomException, TimeoutError):
        return error
    me, error = room.identity, _placed(error, room.name)
    for each in seen.toolkits:
        if each.name == asked.toolkit and _is_reached(each, asked, me):
            return near_tool(error, asked, each.tools)
    if not seen.tell_of(asked.toolkit):
        return error
    words = _near_toolkit(seen.toolkits, asked, me)
    return _misnamed(error, words) if words else error


def _placed(error: NotFound, room: str) -> NotFound:
    """Name the room in which a toolkit was looked for: it may be in another one."""
    if not error.message.startswith("toolkit "):
        return error
    return NotFound(f"{error.message} in room {room}", details=error.details)


def near_tool(error: NotFound, asked: Subject, there: Iterable[str]) -> NotFound:
    """Say what was meant by a tool, of those that its toolkit has."""
    names = list(islice(there, _MAX_NAMES))
    if not asked.tool or asked.tool in names or not names:
        return error
    if near := _nearest(asked.tool, names):
        told = " or ".join(f"{asked.toolkit}.{name}" for name in near)
        return _misnamed(error, f"did you mean {told}?")
    listed = ", ".join(name[:_MAX_CHARS] for name in names[:_MAX_LISTED])
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    look = Subject(asked.toolkit, participant=asked.participant).look
    return _misnamed(error, f"{asked.toolkit} has {listed}{more}, see `{look}`")


def _is_reached(each: ToolkitInfo, asked: Subject, me: str) -> bool:
    """Whether its name would mean it, asked for in this way."""
    return each.owner == asked.participant if asked.participant else each.public or each.owner == me


def _near_toolkit(seen: Sequence[ToolkitInfo], asked: Subject, me: str) -> str:
    namesake = next((each for each in seen if each.name == asked.toolkit), None)
    if namesake is not None:
        return f"there is {_whose(namesake)}"
    near = _nearest(asked.toolkit, [each.name for each in seen])
    if not near:
        return ""
    found = next(each for each in seen if each.name == near[0])
    tool = f".{asked.tool}" if asked.tool in found.tools else ""
    whose = "" if _is_reached(found, asked, me) else f", {_whose(found)}"
    return f"did you mean {found.name}{tool}{whose}?"


def _whose(each: ToolkitInfo) -> str:
    """Say how a toolkit is to be named that is not reached as it was."""
    if each.public:
        return f"a public one of {each.owner}, without --participant"
    return f"one of {each.owner}, with --participant {shlex.quote(each.owner)}"


def _nearest(name: str, names: Sequence[str]) -> list[str]:
    short = [each for each in dict.fromkeys(names) if len(each) <= _MAX_CHARS]
    return get_close_matches(name[:_MAX_CHARS], short[:_MAX_NAMES], n=2)


def _misnamed(error: NotFound, words: str) -> NotFound:
    return Misnamed(f"{error.message}: {words}", details=error.details)
