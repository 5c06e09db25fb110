"""The lease of one incarnation of a node: what makes it one of many, and lets it run scripts.

A lease is renewed in time or has ended for good; whoever begins anew is another incarnation, and
what the former one told counts no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from importlib.resources import files
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from toolbus_server.nodes.node_name import NameHeld
from toolbus_server.nodes.redis_line import RedisAway, RedisLine

__all__ = ["NODES", "Fenced", "Lease", "Renewal"]

_SCRIPTS = {
    "beat": ("beat",),
    "enter": ("one_room", "enter"),
    "exit": ("exit",),
    "leave": ("leave",),
    "rooms": ("rooms",),
    "tell": ("one_room", "tell"),
}
"""Each with the files that it is made of."""
NODES = "toolbus:nodes"
"""Where Redis has the leases: nodes with their incarnations, by when they end."""
_NODES_VERSION, _GONE = "toolbus:nodes:version", "toolbus:gone"
_TIDYING = "toolbus:tidying"
_logger = logging.getLogger(__name__)


class Fenced(Exception):
    """The lease of this node had ended: what it told is taken back, and it begins anew."""


class Renewal(NamedTuple):
    """What a node learns as it renews its lease."""

    living: set[str] | None
    """All nodes that live, with their incarnations; None where that is as it was."""
    dead: list[str]
    """Nodes that have ended, and whose telling nobody has taken back yet."""
    first_end_s: float
    """How long the lease lives that ends first, if it is not renewed."""


class Lease:
    """What a node has while the others count on it.

    Args:
        me: The node's name and its incarnation, with a space between.
        line: Leads to Redis.
        family: How the incarnations of former nodes of this name begin that are known to have
            ended: their leases end when this one begins. None where empty.
    """

    def __init__(self, me: str, line: RedisLine, family: str = "") -> None:
        self.me = me
        self.ends_at: float = 0.0
        """By the loop's clock; never later than the others can take note of it."""
        self.is_held = False
        """Whether this incarnation has had a lease; that it has ended is not known by itself."""
        self.line: RedisLine = line
        """Leads to Redis, up or down."""
        self._loop = asyncio.get_running_loop()
        self._family = family
        self._known_version = -1
        self._scripts: dict[str, bytes] = {}
        self._echo = asyncio.Event()

    async def load(self) -> None:
        """Have Redis know the scripts. Raises `RedisAway`."""
        folder = files(__package__) / "scripts"
        for name, parts in _SCRIPTS.items():
            source = b"".join((folder / f"{part}.lua").read_bytes() for part in parts)
            self._scripts[name] = await self.line.command("SCRIPT", "LOAD", source)

    def line_is_down(self) -> None:
        """Take note that another Redis may answer next, which knows no scripts and counts anew."""
        self._scripts.clear()
        self._known_version = -1

    async def script(self, name: str, keys: Iterable[str], *arguments: Any) -> Any:
        """Run a script. Raises `RedisAway` where this node has not joined, or Redis refuses it."""
        if not self.is_held:
            raise RedisAway("this node has not joined the others")
        return await self._run(name, keys, *arguments)

    async def _run(self, name: str, keys: Iterable[str], *arguments: Any) -> Any:
        if name not in self._scripts:
            raise RedisAway("this node has not joined the others")
        keys = tuple(keys)
        words = ("EVALSHA", self._scripts[name], len(keys), *keys, *arguments)
        try:
            return await self.line.command(*words)
        except ResponseError as error:
            _logger.error("Redis refuses the script %s: %s", name, error)
            raise RedisAway(f"it refuses a script: {error}") from error

    async def renew(self, life_s: float) -> Renewal:
        """Make the lease end later, or begin.

        Args:
            life_s: How long it lives from now on.

        Raises:
            NameHeld: Another node has this one's name.
            Fenced: It had ended.
            RedisAway: Nothing came of it.
        """
        begins_at = self._loop.time()
        self._echo.clear()
        node, incarnation = self.me.rsplit(" ", 1)
        words = (node, incarnation, int(life_s * 1000), self._known_version, int(not self.is_held))
        keys = (NODES, _NODES_VERSION, _GONE)
        answer = await self._run("beat", keys, *words, self._family)
        if answer[0] == 0:
            raise NameHeld(answer[1].decode(), answer[2])
        if answer[0] == 2:
            raise Fenced
        self.is_held = True
        self.ends_at = begins_at + life_s
        living = None
        if answer[2] is not None:
            self._known_version = answer[1]
            living = set(map(_name, answer[2]))
        return Renewal(living, list(map(_name, answer[3])), answer[4] / 1000)

    def hear_echo(self) -> None:
        """Take note that the inbox brought the last renewal: Redis and the inbox are of one."""
        self._echo.set()

    async def echoed(self) -> None:
        """Wait until the inbox has brought the last renewal."""
        await self._echo.wait()

    async def forget(self, dead: str) -> None:
        """Say that nothing is left of a node that has ended. Raises `RedisAway`."""
        await self.line.command("SREM", _GONE, dead)
        await self.line.command("DEL", f"{_TIDYING}:{dead}")

    async def end(self, rooms: str) -> None:
        """Give the lease back; what this node told of rooms, the others take back at once.

        Args:
            rooms: The key of the rooms that it holds; where there are none nothing is left of it.

        Raises:
            RedisAway: Nothing came of it, or there is no lease.
        """
        await self.script("leave", (NODES, _NODES_VERSION, _GONE, rooms), self.me)


def _name(node: bytes) -> str:
    """Read what a node is called; whoever wrote what is no name, it harms nobody."""
    return node.decode(errors="replace")
