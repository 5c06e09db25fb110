"""The toolkits of a turn: its own, those that others must host, and the public ones of its room.

A required toolkit waits for the room's events and does not poll. What is missing is logged when the
waiting begins, with similar names after a second, and named by the error if the time runs out.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from typing import NamedTuple, TypeVar, cast

from toolbus.auth.grants import ToolRights, is_tool_name, is_toolkit_name
from toolbus.auth.participant_names import means, reference_fault
from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.json_values import shown
from toolbus.client.call_options import is_time
from toolbus.diagnostics.exit_codes import grant_command
from toolbus.errors import (
    ConnectionLost,
    DefinitionChanged,
    NoHost,
    NotFound,
    PermissionDenied,
    RoomException,
    Unavailable,
)
from toolbus.room.events import RoomEvent
from toolbus.room.room import connection_of
from toolbus.room.room_client import RoomClient
from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.tools.toolkit import Toolkit, invalid_name_text
from toolbus.turns.builders import run_concurrently

__all__ = [
    "DESCRIBED_AT_A_TIME",
    "REQUIRED_TIMEOUT_S",
    "LocalToolkit",
    "RequiredToolkit",
    "available_toolkits",
    "checked_required",
    "checked_toolkits",
    "described",
    "usable_toolkits",
]

T = TypeVar("T")

REQUIRED_TIMEOUT_S = 60.0
"""Default seconds to wait for a required toolkit."""

_logger = bounded_logger(__name__)
_MAX_LISTED = 20
"""Names in one message: a room has hundreds of toolkits, and one of them up to 1,000 tools."""
_MAX_COMPARED = 500
"""Names that are compared with a wrong one, which takes some 20 ms."""
_SILENT_WAIT_S = 1.0
"""A host that starts beside its agent is there by then; after it, the name may be wrong."""
_ALTERNATIVES_S = 2.0
_ALIAS_FORM = "an alias is a lower-case letter, then up to 63 of a-z 0-9 _ -"


_turn_logger = bounded_logger("toolbus.turns.turn")
DESCRIBED_AT_A_TIME = 64
"""Toolkits that are described at a time, so that a full room does not fill the connection."""


@dataclass(frozen=True, slots=True)
class LocalToolkit:
    """A toolkit for `Turn(always=[...])` that has another name there.

    Raises `TypeError` unless it is a toolkit, and `ValueError` for an invalid alias.
    """

    toolkit: Toolkit
    alias: str
    """Its name in the turn: its tools are `alias.tool`."""

    def __post_init__(self) -> None:
        if not isinstance(self.toolkit, Toolkit):
            raise TypeError(f"LocalToolkit takes a Toolkit, not {type(self.toolkit).__name__}")
        _check_alias(self.toolkit.name, self.alias)

    @property
    def name(self) -> str:
        """Its name in the turn."""
        return self.alias


class _Missing(NamedTuple):
    """What one check found to be missing."""

    text: str
    tools: tuple[str, ...] = ()
    exists: bool = False


@dataclass(frozen=True, slots=True)
class RequiredToolkit:
    """A required toolkit of another participant, with at least one host.

    Raises `ValueError` for an invalid name, for empty `tools`, and for a time that is not a number
    of seconds of 0 or more.
    """

    name: str
    """The toolkit: the participant's own private one, else the public one."""
    tools: tuple[str, ...] | list[str] | None = None
    """The required tools of it; None requires no particular one."""
    participant: str | None = None
    """The name of an owner, or `alias/name`: then only that owner's toolkits count."""
    _: KW_ONLY
    timeout_s: float | None = None
    """Seconds to wait for it. None is 60; 0 checks once and does not wait."""
    alias: str | None = None
    """Its name in the turn, where its own is taken: its tools are `alias.tool`."""
    pin: str | None = None
    """The digest of the only definition to use, which `toolbus tools NAME` shows. A definition that
    somebody has read and pinned is trusted: a model is shown its words as they are."""

    def __post_init__(self) -> None:
        if not is_toolkit_name(self.name):
            raise ValueError(invalid_name_text(self.name))
        if self.tools is not None:
            if not isinstance(self.tools, list | tuple) or not self.tools:
                raise ValueError(f"toolkit {self.name}: tools must be a list of names, or None")
            for tool in self.tools:
                if not is_tool_name(tool):
                    raise ValueError(f"toolkit {self.name}: {shown(tool)} is not a tool name")
            object.__setattr__(self, "tools", tuple(self.tools))
        owner = self.participant
        if owner is not None and (fault := reference_fault(owner)) is not None:
            raise ValueError(f"{shown(owner)} is not a participant name: it {fault}")
        if self.timeout_s is not None and not is_time(self.timeout_s):
            raise ValueError("timeout_s must be a number of seconds, 0 or more, or None")
        if self.alias is not None:
            _check_alias(self.name, self.alias)
        if self.pin is not None and not re.fullmatch("[0-9a-f]{64}", str(self.pin)):
            raise ValueError(f"toolkit {self.name}: pin must be a digest: 64 of 0-9 a-f")

    async def find(self, room: RoomClient, rights: ToolRights | None = None) -> ToolkitProxy:
        """Return the toolkit as soon as it is hosted with the required tools.

        Waiting needs the grant `use_tools`, since only its holders get events of toolkits. A tool
        that the toolkit lacks is waited for too, since a host with a newer definition may be on its
        way: a warning names at once the tool, those that there are, and the closest name. After
        1 s a warning names a toolkit that is not there or has no host, and similar names.

        Raises:
            NotFound: It was not hosted in time; names what is missing and what is available.
            DefinitionChanged: It has another definition than the pinned one.
            PermissionDenied: The grants cover none of its tools, or not all that are required; or
                it is not hosted, and the grant to receive its events is missing.
            Unavailable: The server did not reply in time, or the room is closed.
        """
        if self.tools is not None:
            self._check_grants(self.tools, rights or ToolRights(room.grants.agents))
        seconds = REQUIRED_TIMEOUT_S if self.timeout_s is None else self.timeout_s
        checks: list[_Missing] = []
        try:
            async with asyncio.timeout(seconds or None) as limit:
                found = await (self._check_again(room) if seconds > 0 else self._check(room))
                if isinstance(found, ToolkitProxy):
                    return found
                self._note(found, checks, seconds)
                if seconds > 0:
                    warning = asyncio.create_task(self._warn(room, checks, seconds))
                    try:
                        return await self._wait(room, checks, seconds)
                    finally:
                        warning.cancel()
                        await asyncio.wait([warning])
        except TimeoutError:
            if not limit.expired():
                raise
        if not checks:
            text = f"no reply from a server about toolkit {self._label} within {seconds:g} s"
            raise Unavailable(text, executed="no")
        raise await self._not_found(room, checks[-1], seconds)

    def _check_grants(self, tools: Iterable[str], rights: ToolRights) -> None:
        """Refuse required tools that the server would hide from this participant."""
        hidden = [f"{self.name}.{tool}" for tool in tools if not rights.may_read(self.name, tool)]
        if hidden:
            text = f"the grants of the token do not cover {_names(hidden)}"
            flags = " ".join(f"--allow {name}" for name in hidden[:_MAX_LISTED])
            command = f"toolbus token create --name NAME {flags}"
            details = {"grant": f"agents.allow={hidden[0]}"}
            raise PermissionDenied(f"{text}: `{command}`", details=details)

    def _note(self, found: _Missing | None, checks: list[_Missing], seconds: float) -> None:
        """Append what a check found to be missing, and log it if that is news and is waited for."""
        if found is None:
            return
        if seconds > 0 and found not in checks[-1:]:
            level = logging.WARNING if found.tools else logging.INFO
            _logger.log(level, "%s; waiting up to %g s for it", found.text, seconds)
        checks.append(found)

    async def _warn(self, room: RoomClient, checks: list[_Missing], seconds: float) -> None:
        """Log a warning if the wait is not over soon; that tools are lacking was logged at once."""
        await asyncio.sleep(_SILENT_WAIT_S)
        missing = checks[-1] if checks else _Missing(f"toolkit {self._label} is not known yet")
        if missing.tools:
            return
        others = await self._alternatives(room, missing)
        left_s = seconds - _SILENT_WAIT_S
        _logger.warning("%s%s; waiting up to %g s more for it", missing.text, others, left_s)

    async def _wait(self, room: RoomClient, checks: list[_Missing], seconds: float) -> ToolkitProxy:
        """Wait until it is hosted; append what each check finds to be missing to `checks`."""
        if not room.grants.agents.use_tools:
            missing = checks[-1].text if checks else f"toolkit {self._label} is not known"
            grant = "agents.use_tools"
            text = f"{missing}, and waiting for it needs the grant {grant}"
            raise PermissionDenied(f"{text}: `{grant_command(grant)}`", details={"grant": grant})
        # Only toolkits: a subscriber of messages would be counted as their receiver.
        async with room.events(["toolkits"]) as events:
            while not isinstance(found := await self._check_again(room), ToolkitProxy):
                self._note(found, checks, seconds)
                await self._next_relevant_event(events)
            return found

    async def _next_relevant_event(self, events: AsyncIterator[RoomEvent]) -> None:
        """Wait for an event that may change the result of a check."""
        async for event in events:
            if event.toolkit is None:
                may_matter = event.name in {"reconnected", "missed"}
            else:
                may_matter = event.toolkit.name == self.name and event.name != "toolkit_removed"
            if may_matter:
                return
        raise Unavailable("the room is closed", executed="no", retryable=False)

    async def _check_again(self, room: RoomClient) -> ToolkitProxy | _Missing | None:
        """Check as `_check` does; None if the connection was lost: the reconnect is an event."""
        try:
            return await self._check(room)
        except ConnectionLost:
            return None
        except Unavailable as error:
            if not error.retryable:
                raise
            return None

    async def _check(self, room: RoomClient) -> ToolkitProxy | _Missing:
        try:
            proxy = await room.toolkit(self.name, self.participant)
        except NotFound:
            return _Missing(f"toolkit {self._label} does not exist")
        except NoHost:
            # Its name is reserved without its definition: the room was empty meanwhile.
            return self._without_host()
        info = proxy.info
        if self.pin not in (None, info.digest):
            raise DefinitionChanged(
                f"toolkit {info.name} of {info.full_owner} has the digest {info.digest}, and"
                f" {self.pin} is pinned: `toolbus tools {info.name}` shows the definition it has"
                " now",
                details={"toolkit": info.name, "digest": info.digest},
            )
        present = [tool.name for tool in proxy.manifest.tools]
        lacking = tuple(tool for tool in self.tools or () if tool not in present)
        if lacking:
            text = f"toolkit {self._label} has no {_names(lacking)}{_nearest(lacking, present)}"
            return _Missing(f"{text}; it has: {_names(present)}", lacking, exists=True)
        return proxy if info.hosts else self._without_host()

    def _without_host(self) -> _Missing:
        return _Missing(f"toolkit {self._label} has no host at the moment", exists=True)

    @property
    def _of_owner(self) -> str:
        return (self.participant and f" of {self.participant}") or ""

    @property
    def _label(self) -> str:
        return f"{self.name}{self._of_owner}"

    async def _not_found(self, room: RoomClient, missing: _Missing, seconds: float) -> NotFound:
        text = missing.text + await self._alternatives(room, missing)
        if seconds > 0:
            text += f" (waited {seconds:g} s)"
        tools = list(missing.tools or self.tools or ())
        return NotFound(text, details={"toolkit": self.name, "tools": tools})

    async def _alternatives(self, room: RoomClient, missing: _Missing) -> str:
        """List the toolkits that this participant can see in place of one that does not exist."""
        if missing.exists:
            return ""
        names: list[str] = []
        owners: list[str] = []
        try:
            async with asyncio.timeout(_ALTERNATIVES_S), aclosing(room.toolkits()) as listed:
                async for info in listed:
                    owner = self.participant
                    if owner is None or means(owner, info.owner, info.alias, room.me.alias):
                        names.append(info.name)
                        if info.name == self.name:
                            owners.append(info.full_owner)
                    if len(names) >= _MAX_COMPARED:
                        break
        except (RoomException, TimeoutError):
            return ""
        if owners and self.participant is None:
            # Such as an agent: a bare name is only one's own private toolkit, or the public one.
            text = f"; {_names(owners)} has a private one, which counts if its owner is named"
            name, owner = self.name, owners[0]
            code = f"RequiredToolkit({name!r}, participant={owner!r})"
            return f"{text}: {code}, or --require {name}@{owner}"
        nearest = _nearest([self.name], names)
        return f"{nearest}; available toolkits{self._of_owner}: {_names(names)}"


def _nearest(lacking: Sequence[str], present: Sequence[str]) -> str:
    near = [name for unknown in lacking for name in get_close_matches(unknown, present, n=1)]
    return f" (did you mean {' and '.join(near[:_MAX_LISTED])}?)" if near else ""


def _names(names: list[str] | tuple[str, ...]) -> str:
    more = ", ..." if len(names) > _MAX_LISTED else ""
    return (", ".join(names[:_MAX_LISTED]) + more) or "none"


def _check_alias(toolkit: str, alias: object) -> None:
    """Raise `ValueError` unless an alias has the form of a toolkit's name."""
    if not is_toolkit_name(alias):
        raise ValueError(f"toolkit {toolkit}: {shown(alias)} is not a name for it: {_ALIAS_FORM}")


def checked_required(
    option: str, values: Iterable[RequiredToolkit | str]
) -> tuple[RequiredToolkit, ...]:
    """Return required toolkits, made of a name where that is all there is to say.

    Raises `TypeError` unless it is a list of them, and `ValueError` for what is not a name.
    """
    if isinstance(values, Iterable) and not isinstance(values, str):
        values = [RequiredToolkit(value) if isinstance(value, str) else value for value in values]
    return checked_toolkits(option, cast("Iterable[RequiredToolkit]", values), RequiredToolkit)


def checked_toolkits(option: str, values: Iterable[T], *kinds: type[T]) -> tuple[T, ...]:
    """Return the toolkits of an option; TypeError unless it is a list, and all are of a kind."""
    name = kinds[0].__name__
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{option} must be a list of {name}, not {type(values).__name__}")
    toolkits = tuple(values)
    for toolkit in toolkits:
        if not isinstance(toolkit, kinds):
            text = f"{name}, not {type(toolkit).__name__}"
            if isinstance(toolkit, str):
                text = f"{name}({shown(toolkit)}), not str"
            elif name == "Toolkit" and callable(toolkit):
                text += "; write Toolkit('name', [...])"
            raise TypeError(f"{option} must contain {text}")
    return toolkits


def usable_toolkits(
    room: RoomClient, rights: ToolRights, listed: Iterable[ToolkitInfo], hidden: Collection[str]
) -> list[ToolkitInfo]:
    """Return the public toolkits that have a host and a tool that may be called."""
    me = room.me.name, room.me.issuer
    infos = list(listed)
    # A call by name goes to the participant's own private toolkit of that name.
    own = {info.name for info in infos if not info.public and (info.owner, info.issuer) == me}
    return [
        info
        for info in infos
        if info.public
        and info.hosts > 0
        and info.name not in hidden
        and info.name not in own
        and any(rights.may_call(info.name, tool) for tool in info.tools)
    ]


async def available_toolkits(
    room: RoomClient, rights: ToolRights, present: Iterable[ToolkitProxy]
) -> list[ToolkitProxy]:
    """Describe every public toolkit that has a host and a tool that may be called, by name.

    The room is listed once. A toolkit that has gone since is left out.
    """
    listed = [info async for info in room.toolkits()]
    hidden = {proxy.info.name for proxy in present if proxy.info.public}
    limit = asyncio.Semaphore(DESCRIBED_AT_A_TIME)
    wanted = usable_toolkits(room, rights, listed, hidden)
    found = await run_concurrently([_described(room, info, limit) for info in wanted])
    return [proxy for proxy in found if proxy is not None]


async def _described(
    room: RoomClient, listed: ToolkitInfo, limit: asyncio.Semaphore
) -> ToolkitProxy | None:
    known = connection_of(room).manifests.get((listed.name, None))
    if known is not None and known.is_of(listed):
        return ToolkitProxy(room, listed, known.manifest, {})
    async with limit:
        return await described(room, listed.name)


async def described(room: RoomClient, name: str) -> ToolkitProxy | None:
    """Describe the public toolkit of a name; None if it has gone, has no host, or is refused."""
    try:
        proxy: ToolkitProxy = await room.toolkit(name)
    except (NotFound, NoHost, PermissionDenied, DefinitionChanged) as error:
        is_changed = "difference" in error.details  # from the lock file
        level = logging.WARNING if is_changed else logging.INFO
        _turn_logger.log(level, "the turn leaves out the toolkit %s: %s", name, error.message)
        return None
    return proxy if proxy.info.public and proxy.info.hosts else None
