"""A toolkit that somebody else has to host before work can begin.

Waits on the room's events and never asks at intervals; says what is missing when the time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass
from math import isfinite
from typing import NamedTuple

from toolbus.errors import (
    ConnectionLost,
    NotFound,
    PermissionDenied,
    RoomException,
    Unavailable,
)
from toolbus.grants import is_participant_name, is_tool_name, is_toolkit_name
from toolbus.plain_json import cut
from toolbus.room_client import RoomClient
from toolbus.room_events import RoomEvent
from toolbus.toolkit_proxy import ToolkitProxy

__all__ = ["REQUIRED_TIMEOUT_S", "RequiredToolkit"]

REQUIRED_TIMEOUT_S = 60.0
"""How long a required toolkit is waited for unless that is said."""

_MAX_LISTED = 20
_INSTEAD_S = 2.0


class _Missing(NamedTuple):
    """What one look found to be missing."""

    words: str
    tools: tuple[str, ...] = ()
    is_there: bool = False


@dataclass(frozen=True, slots=True)
class RequiredToolkit:
    """A toolkit elsewhere that is needed, with at least one host.

    Raises `ValueError` for a name that is none, for `tools` without one, and for a time that is no
    number of seconds from 0 on.
    """

    name: str
    """The toolkit: my own private one, else the public one."""
    tools: tuple[str, ...] | list[str] | None = None
    """The tools of it that are needed; None needs no particular one."""
    participant: str | None = None
    """The name of an owner: then only that owner's toolkits count."""
    _: KW_ONLY
    timeout_s: float | None = None
    """Seconds to wait for it. None is 60; 0 looks once and does not wait."""

    def __post_init__(self) -> None:
        if not is_toolkit_name(self.name):
            raise ValueError(f"{cut(repr(self.name))} is no toolkit's name")
        if self.tools is not None:
            if not isinstance(self.tools, list | tuple) or not self.tools:
                raise ValueError(f"toolkit {self.name}: tools is a list of names, or None")
            for tool in self.tools:
                if not is_tool_name(tool):
                    raise ValueError(f"toolkit {self.name}: {cut(repr(tool))} is no tool's name")
            object.__setattr__(self, "tools", tuple(self.tools))
        if self.participant is not None and not is_participant_name(self.participant):
            raise ValueError(f"{cut(repr(self.participant))} is no participant's name")
        if self.timeout_s is not None and not _is_time(self.timeout_s):
            raise ValueError("timeout_s is a number of seconds from 0 on, or None")

    async def find(self, room: RoomClient) -> ToolkitProxy:
        """Return the toolkit, as soon as it is there with what is needed of it.

        Waiting needs the grant `use_tools`, since only who has it hears of toolkits that come.

        Raises:
            NotFound: It was not there in time; says what is missing and what is there.
            PermissionDenied: It is there, and none of its tools is for this participant; or it
                is not, and no event of it may be heard.
            Unavailable: The server could not be asked in time, or the room has ended.
        """
        seconds = REQUIRED_TIMEOUT_S if self.timeout_s is None else self.timeout_s
        looks: list[_Missing] = []
        try:
            async with asyncio.timeout(seconds or None) as limit:
                found = await (self._look_again(room) if seconds > 0 else self._look(room))
                if isinstance(found, ToolkitProxy):
                    return found
                if found is not None:
                    looks.append(found)
                if seconds > 0:
                    return await self._wait(room, looks)
        except TimeoutError:
            if not limit.expired():
                raise
        if not looks:
            words = f"no server could be asked about toolkit {self._label} within {seconds:g} s"
            raise Unavailable(words, executed="no")
        raise await self._not_found(room, looks[-1], seconds)

    async def _wait(self, room: RoomClient, looks: list[_Missing]) -> ToolkitProxy:
        """Wait until it is there; what each look finds to be missing is added to `looks`."""
        if not room.grants.agents.use_tools:
            missing = looks[-1].words if looks else f"toolkit {self._label} is not known"
            words = f"{missing}, and without the grant use_tools nobody tells of its coming"
            raise PermissionDenied(words)
        # Of toolkits alone: whoever asks for messages counts among those who took them.
        async with room.events(["toolkits"]) as events:
            while not isinstance(found := await self._look_again(room), ToolkitProxy):
                if found is not None:
                    looks.append(found)
                await self._news(events)
            return found

    async def _news(self, events: AsyncIterator[RoomEvent]) -> None:
        """Wait for an event that may change what a look finds."""
        async for event in events:
            if self._may_matter(event):
                return
        raise Unavailable("the room has ended", executed="no", retryable=False)

    def _may_matter(self, event: RoomEvent) -> bool:
        if event.toolkit is None:
            return event.name in {"reconnected", "missed"}
        return event.toolkit.name == self.name and event.name != "toolkit_removed"

    async def _look_again(self, room: RoomClient) -> ToolkitProxy | _Missing | None:
        """Look as `_look` does; None where the line was lost, whose return will be told."""
        try:
            return await self._look(room)
        except ConnectionLost:
            return None
        except Unavailable as error:
            if not error.retryable:
                raise
            return None

    async def _look(self, room: RoomClient) -> ToolkitProxy | _Missing:
        try:
            proxy = await room.toolkit(self.name, self.participant)
        except NotFound:
            return _Missing(f"toolkit {self._label} is not there")
        lacking = tuple(
            tool
            for tool in self.tools or ()
            if tool not in {each.name for each in proxy.manifest.tools}
        )
        if lacking:
            there = _names([each.name for each in proxy.manifest.tools])
            words = f"toolkit {self._label} has no {_names(lacking)}; it has: {there}"
            return _Missing(words, lacking, is_there=True)
        if proxy.info.hosts == 0:
            return _Missing(f"toolkit {self._label} has no host at the moment", is_there=True)
        return proxy

    @property
    def _label(self) -> str:
        return self.name if self.participant is None else f"{self.name} of {self.participant}"

    async def _not_found(self, room: RoomClient, missing: _Missing, seconds: float) -> NotFound:
        words = missing.words
        if not missing.is_there:
            words += await self._instead(room)
        if seconds > 0:
            words += f" (waited {seconds:g} s)"
        tools = list(missing.tools or self.tools or ())
        return NotFound(words, details={"toolkit": self.name, "tools": tools})

    async def _instead(self, room: RoomClient) -> str:
        """Say what is there in its place, as far as this participant may know."""
        names: list[str] = []
        try:
            async with asyncio.timeout(_INSTEAD_S), aclosing(room.toolkits()) as listed:
                async for each in listed:
                    if self.participant in (None, each.owner):
                        names.append(each.name)
                    if len(names) > _MAX_LISTED:
                        break
        except (RoomException, TimeoutError):
            return ""
        whose = "" if self.participant is None else f" of {self.participant}"
        return f"; what is there{whose}: {_names(names)}"


def _is_time(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isfinite(value) and value >= 0


def _names(names: list[str] | tuple[str, ...]) -> str:
    more = ", ..." if len(names) > _MAX_LISTED else ""
    return (", ".join(names[:_MAX_LISTED]) + more) or "nothing"
