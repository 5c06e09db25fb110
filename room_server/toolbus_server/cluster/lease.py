"""The lease of a node, which makes it a member and lets it run scripts, and the claim on its name.

A lease is renewed in time or ends for good. A node that lost its lease starts a new incarnation,
and state published by the earlier one is void. Scripts that Redis refuses are logged here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import AlreadyExists
from toolbus_server.cluster.exchange import EXCHANGE_KEY, EXCHANGE_VERSION, LEASES_KEY
from toolbus_server.cluster.redis.client import RedisClient, RedisUnavailable

__all__ = [
    "REPEAT_S",
    "ExchangeDiffers",
    "Lease",
    "LeaseExpired",
    "NameClaim",
    "NameHeld",
    "NameTaken",
    "RefusalLog",
    "Renewal",
    "check_node_name",
]

_logger = bounded_logger(__name__)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_RETRY_AT_START_S, _RETRY_S = 1.0, 3.0
_SCRIPTS = {
    "renew_lease": ("renew_lease",),
    "enter": ("one_room", "enter"),
    "exit": ("one_room", "exit"),
    "check_room": ("one_room", "check_room"),
    "leave": ("leave",),
    "publish_change": ("one_room", "publish_change"),
    "rooms": ("rooms",),
}
"""Each script with the files that it consists of."""
_VERSION_KEY, _ENDED_KEY = "toolbus:nodes:version", "toolbus:nodes:ended"
_ADDRESSES_KEY = "toolbus:nodes:addresses"
_CLEANUP_KEY = "toolbus:nodes:cleanup"
REPEAT_S = 60.0
"""The shortest time between two lines about one script that is still refused."""
_MAX_TARGETS = 1_000
"""Limit of the keys that are remembered for one script."""


class NameHeld(Exception):
    """Another node holds this one's name, so this one gets no lease yet.

    Args:
        other: Its name with its incarnation.
        left_ms: Milliseconds until its lease expires, if it is not renewed.
    """

    def __init__(self, other: str, left_ms: int) -> None:
        super().__init__(other)
        self.other = other
        self.left_ms = left_ms


class ExchangeDiffers(Exception):
    """Live nodes have another exchange version, so this one gets no lease yet.

    Args:
        other: One of them, with its incarnation.
        version: Their version; "" for a release that has none.
    """

    def __init__(self, other: str, version: str) -> None:
        super().__init__(other, version)
        self.other = other
        self.version = version


class NameTaken(AlreadyExists):
    """Another node that is alive has this one's name."""

    next_step = "choose another name with --node (TOOLBUS_NODE), or stop the other server first"


def check_node_name(name: str) -> None:
    """Raise ValueError for an invalid name; "" is valid and lets the node choose one."""
    if name and not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid node name: use at most 128 letters, digits, . _ and -, with "
            "a letter or digit at both ends"
        )


class NameClaim:
    """What this node knows about another node that holds its name: a live one, or one that ended.

    A lease that is renewed belongs to a live node. A lease that only runs down belongs to a node
    that was killed, and its expiry is awaited. The requests to Redis are made by `node`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: NameHeld | None = None
        self._is_starting = True
        self._other_is_alive = False
        self._is_decided = asyncio.Event()
        self._timeout: asyncio.Timeout | None = None
        self._timeout_s = 0.0

    async def wait_until_decided(self, timeout_s: float) -> None:
        """Wait, once, until the name belongs to this node.

        If another node holds it, that takes until the other lease has expired.

        Raises:
            NameTaken: The other node is alive.
            TimeoutError: Redis did not answer in time.
        """
        self._timeout_s = timeout_s
        try:
            async with asyncio.timeout(timeout_s) as self._timeout:
                await self._is_decided.wait()
        finally:
            self._is_starting = False
        if self._other_is_alive:
            raise NameTaken(f"another live server has the node name {self._name}")

    def granted(self) -> None:
        """Record that the name belongs to this node."""
        self._held = None
        self._is_decided.set()

    def postponed(self) -> None:
        """Record that the name is claimed later, as this node may not join the others yet."""
        self._is_decided.set()

    def refused(self, held: NameHeld) -> float:
        """Record that another node holds the name; return the seconds until the next attempt."""
        before, self._held = self._held, held
        left_s = max(held.left_ms, 0) / 1000 + 0.01
        if not self._is_starting:
            if before is None or before.other != held.other:
                _logger.warning(
                    "another server has the node name %s: this server works without the cluster "
                    "until the other lease has expired",
                    self._name,
                )
            return min(_RETRY_S, left_s)
        if before is None:
            if self._timeout is not None and not self._timeout.expired():
                expiry = asyncio.get_running_loop().time() + left_s
                self._timeout.reschedule(expiry + self._timeout_s)
            _logger.warning(
                "the lease of a node %s has not expired: this node starts after it has, in at most "
                "%.1f s, unless that node is alive",
                self._name,
                left_s,
            )
        elif before.other != held.other or before.left_ms < held.left_ms:
            self._other_is_alive = True
            self._is_decided.set()
        return min(_RETRY_AT_START_S, left_s)


class LeaseExpired(Exception):
    """The lease of this node has expired: its published state is withdrawn."""


class Renewal(NamedTuple):
    """The result of a renewal."""

    live_nodes: set[str] | None
    """All nodes with a lease, with their incarnations; None if unchanged."""
    ended_nodes: list[str]
    """Nodes without a lease whose published state this node has to withdraw."""
    next_expiry_s: float
    """Seconds until the first lease expires, if it is not renewed."""
    addresses: dict[str, str] | None
    """The URLs of all nodes that have one, by node with its incarnation; None if unchanged."""


class Lease:
    """The lease of one incarnation.

    Args:
        node_id: The node's name and its incarnation, with a space between.
        redis: The connection to Redis.
        family: The prefix of the incarnations of former nodes of this name that are known to have
            ended: their leases end when this one begins. Empty for none.
        refusals: Logs the scripts that Redis refuses; by default a log of this incarnation alone.
    """

    def __init__(
        self, node_id: str, redis: RedisClient, family: str = "", refusals: RefusalLog | None = None
    ) -> None:
        self.node_id = node_id
        self.ends_at: float = 0.0
        """Expiry by the loop's clock; never later than other nodes can notice it."""
        self.is_held = False
        """Whether this incarnation has had a lease; an expiry does not change it."""
        self.address = ""
        """The URL at which other nodes reach this one, or "": published with the next renewal."""
        self.redis: RedisClient = redis
        """The connection to Redis, up or down."""
        self._loop = asyncio.get_running_loop()
        self._family = family
        self._refusals = refusals or RefusalLog(self._loop.time)
        # No version of Redis is below 0, so the first renewal always gets the list of nodes.
        self._known_version = -1
        self._scripts: dict[str, bytes] = {}
        self.echo: asyncio.Event = asyncio.Event()
        """Set when the inbox has received the last renewal: it is subscribed at the same Redis."""

    async def load_scripts(self) -> None:
        """Load the scripts into Redis. Raises `RedisUnavailable`."""
        folder = files("toolbus_server.cluster") / "scripts"
        for name, parts in _SCRIPTS.items():
            source = b"".join((folder / f"{part}.lua").read_bytes() for part in parts)
            self._scripts[name] = await self.redis.command("SCRIPT", "LOAD", source)

    def on_disconnected(self) -> None:
        """Forget scripts and version: the next connection may lead to another Redis."""
        # With the old version, another Redis that happens to count the same would send no list, and
        # this node would go on with nodes that are not there.
        self._scripts.clear()
        self._known_version = -1

    async def script(self, name: str, keys: Iterable[str], *arguments: Any) -> Any:
        """Run a script.

        Raises `RedisUnavailable` if this node has not joined, or if Redis refuses the script.
        """
        if not self.is_held:
            raise RedisUnavailable("this node has not joined the others")
        return await self._run(name, keys, *arguments)

    async def _run(self, name: str, keys: Iterable[str], *arguments: Any) -> Any:
        if name not in self._scripts:
            raise RedisUnavailable("this node has not joined the others")
        keys = tuple(keys)
        command = ("EVALSHA", self._scripts[name], len(keys), *keys, *arguments)
        try:
            answer = await self.redis.command(*command)
        # To a caller a refused script is as an outage: a Redis that is full or read-only may accept
        # the same script later, and what was to be published is published again then.
        except ResponseError as error:
            self._refusals.refused(name, keys, str(error))
            raise RedisUnavailable(f"Redis refuses a script: {error}") from error
        self._refusals.accepted(name, keys)
        return answer

    async def renew(self, duration_s: float) -> Renewal:
        """Renew the lease, or acquire it, so that it expires in `duration_s` seconds.

        Raises:
            ExchangeDiffers: Live nodes have another exchange version.
            NameHeld: Another node has this one's name.
            LeaseExpired: The lease had expired before.
            RedisUnavailable: There was no answer.
        """
        # Read before the request: Redis counts the lease from a later moment, so this node stops
        # first. Read after the answer, others could declare it lost while it still routes calls.
        begins_at = self._loop.time()
        # Cleared before too, as the echo may arrive ahead of the answer.
        self.echo.clear()
        name, incarnation = self.node_id.rsplit(" ", 1)
        # Only the first renewal may acquire: a lease that expired stays lost, as others have
        # withdrawn what this incarnation published, and would not read it again.
        is_first = int(not self.is_held)
        arguments = (name, incarnation, int(duration_s * 1000), self._known_version, is_first)
        keys = (LEASES_KEY, _VERSION_KEY, _ENDED_KEY, _ADDRESSES_KEY, EXCHANGE_KEY)
        more = (self._family, self.address, EXCHANGE_VERSION)
        answer = await self._run("renew_lease", keys, *arguments, *more)
        if answer[0] == 0:
            raise NameHeld(answer[1].decode(), answer[2])
        if answer[0] == 2:
            raise LeaseExpired
        if answer[0] == 3:
            raise ExchangeDiffers(_decode_id(answer[1]), _decode_id(answer[2]))
        self.is_held = True
        self.ends_at = begins_at + duration_s
        live_nodes = addresses = None
        if answer[2] is not None:
            self._known_version = answer[1]
            live_nodes = set(map(_decode_id, answer[2]))
            flat = map(_decode_id, answer[5])
            addresses = dict(zip(flat, flat, strict=True))
        ended_nodes = list(map(_decode_id, answer[3]))
        return Renewal(live_nodes, ended_nodes, answer[4] / 1000, addresses)

    async def mark_cleaned(self, ended: str) -> None:
        """Record that nothing is left of an ended node. Raises `RedisUnavailable`."""
        # In this order: without the second key but still in the set, the node would be given to
        # another one, which would find nothing to clean up.
        await self.redis.command("SREM", _ENDED_KEY, ended)
        await self.redis.command("DEL", f"{_CLEANUP_KEY}:{ended}")

    async def release(self, rooms_key: str) -> None:
        """Release the lease; other nodes withdraw at once what this one published.

        Nothing is left if this node holds no rooms. Raises `RedisUnavailable` without an answer or
        a lease.
        """
        keys = (LEASES_KEY, _VERSION_KEY, _ENDED_KEY, rooms_key, _ADDRESSES_KEY, EXCHANGE_KEY)
        await self.script("leave", keys, self.node_id)


def _decode_id(node: bytes) -> str:
    """Decode the id of a node; invalid bytes of an untrusted writer are replaced."""
    return node.decode(errors="replace")


@dataclass(slots=True)
class _Refused:
    """A script that is refused for some keys."""

    targets: dict[Hashable, float] = field(default_factory=dict)
    """The keys, and when it was last refused for them."""
    count: int = 0
    next_line_at: float = float("-inf")
    is_logged: bool = False


class RefusalLog:
    """The refusals of one node."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._refused: dict[str, _Refused] = {}

    def refused(self, script: str, target: Hashable, reason: str) -> None:
        """Record that Redis refused a script for some keys."""
        state, now = self._refused.setdefault(script, _Refused()), self._now()
        state.count += 1
        if target in state.targets or len(state.targets) < _MAX_TARGETS:
            state.targets[target] = now
        if now < state.next_line_at:
            return
        state.next_line_at, state.is_logged = now + REPEAT_S, True
        if state.count == 1:
            _logger.error("Redis refuses the script %s: %s", script, reason)
        else:
            message = "Redis still refuses the script %s, %d times until now: %s"
            _logger.error(message, script, state.count, reason)

    def accepted(self, script: str, target: Hashable) -> None:
        """Record that Redis ran a script; the end of a refusal is logged."""
        state = self._refused.get(script)
        if state is None:
            return
        state.targets.pop(target, None)
        since = self._now() - REPEAT_S
        if any(refused_at > since for refused_at in state.targets.values()):
            return
        if state.is_logged:
            message = "Redis runs the script %s again, after %d refusals"
            _logger.warning(message, script, state.count)
        self._refused[script] = _Refused(next_line_at=state.next_line_at)
