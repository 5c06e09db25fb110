"""The public toolkits of a room that an agent can use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable

from toolbus.auth.grants import ToolRights
from toolbus.bounded_logging import bounded_logger
from toolbus.errors import DefinitionChanged, NoHost, NotFound, PermissionDenied
from toolbus.room.room import connection_of
from toolbus.room.room_client import RoomClient
from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.turns.builders import run_concurrently

__all__ = ["DESCRIBED_AT_A_TIME", "available_toolkits", "described", "usable_toolkits"]

_logger = bounded_logger("toolbus.turns.turn")
DESCRIBED_AT_A_TIME = 64
"""Toolkits that are described at a time, so that a full room does not fill the connection."""


def usable_toolkits(
    room: RoomClient, rights: ToolRights, listed: Iterable[ToolkitInfo], hidden: Collection[str]
) -> list[ToolkitInfo]:
    """Return the public toolkits that have a host and a tool that may be called.

    Args:
        room: The agent's room.
        rights: The grants of its token.
        listed: All toolkits that it can see.
        hidden: Names of toolkits that are left out.
    """
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

    Args:
        room: The agent's room.
        rights: The grants of its token.
        present: Toolkits that the turn has already.
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
        _logger.log(level, "the turn leaves out the toolkit %s: %s", name, error.message)
        return None
    return proxy if proxy.info.public and proxy.info.hosts else None
