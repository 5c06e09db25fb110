"""One node among others: it keeps its lease, knows who else lives, and hands on what comes."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import msgspec
from redis.asyncio.connection import ConnectionPool

from toolbus_server.administration import Administration, RoomsElsewhere
from toolbus_server.call_watch import CallReport
from toolbus_server.hub import Hub
from toolbus_server.nodes.far_facts import read_news
from toolbus_server.nodes.far_orders import FarOrders
from toolbus_server.nodes.lease import NODES, Fenced, Lease
from toolbus_server.nodes.node_name import NameClaim, NameHeld, check_node_name
from toolbus_server.nodes.parcels import MARK, read_parcel
from toolbus_server.nodes.peer import Peer, RelayedCall, inbox_of
from toolbus_server.nodes.redis_line import RedisAway, RedisLine
from toolbus_server.nodes.relays import Relays
from toolbus_server.nodes.room_index import rooms_elsewhere
from toolbus_server.nodes.shared_rooms import SharedRooms, rooms_of

__all__ = ["BEAT_S", "LEASE_S", "WINDOW_BYTES", "Node"]

BEAT_S = 3.0
"""How often a node renews its lease."""
LEASE_S = 10.0
"""How long a lease lives that is not renewed: so long a node that died is taken to be there."""
WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes under way to one node from all others; Redis drops who has 8 MiB waiting for a minute."""
_LEAST_WINDOW_BYTES = 64 * 1024
_PART_S = 1.0
"""How long a node that is told to stop waits until the others know, and at its end once more."""
_MOST_ENDED = 1_000
_START_S = 2.0
"""How long the start waits for Redis."""
_BACK_S = 1.0
"""How long after its line broke a node takes it to be back soon."""
_AFTER_BUG_S = 1.0
_AFTER_END_S = 0.02
_ECHO = b"B"
"""What a node hears of its own beat: its inbox is heard, by the Redis that has its lease."""
_logger = logging.getLogger(__name__)


class Node:
    """What makes this server one of many.

    Args:
        hub: Its rooms.
        pool: Makes connections to Redis.
        administration: Does what is asked for elsewhere, and has done elsewhere what is here.
        name: What it is called; it must be the only one of that name.
        family: What it shares with former nodes of its name that are known to have ended, or "".

    Raises:
        ValueError: No node can be called so.
    """

    def __init__(
        self,
        hub: Hub,
        pool: ConnectionPool,
        administration: Administration,
        name: str = "",
        family: str = "",
    ) -> None:
        check_node_name(name)
        self._hub = hub
        self._family = family
        self._pool = pool
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._claim = NameClaim(self.name)
        self._loop = asyncio.get_running_loop()
        self._relays = Relays(hub, self._loop)
        self._peers: dict[str, Peer] = {}
        self._ended: dict[str, None] = {}
        """Nodes whose lease has ended, the latest; one that sends all the same learns it soon."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.sessions: Iterator[int] = count(1)
        """Numbers for sessions with other nodes."""
        self._line_task: asyncio.Task[None] | None = None
        self._first_end_s = 0.0
        self._back_by = 0.0
        self.is_joined = asyncio.Event()
        """Set while this node has a lease."""
        self._begin_anew()
        self._rooms = SharedRooms(
            self.name,
            hub,
            lambda: self.lease,
            self._living_peer,
            self._task,
            joins_anew=self._joins_anew,
        )
        self._orders = FarOrders(administration, lambda: self._line, NODES, self._order, self._task)
        administration.rooms_elsewhere = self._rooms_elsewhere

    def _begin_anew(self) -> None:
        """Be another incarnation from now on: what the former one told counts no more."""
        self.me = f"{self.name} {self._family}{secrets.token_hex(8)}"
        self._line = RedisLine(self._pool, inbox_of(self.me), self)
        self.lease: Lease = Lease(self.me, self._line, self._family)
        self._living: set[str] = set()

    async def start(self) -> None:
        """Join the others, and stay with them; where Redis is away, join when it is back.

        Where a node of this name was killed a moment ago, that takes until its lease has ended.

        Raises:
            NameTaken: A node of this name lives.
        """
        self._line_task = self._loop.create_task(self._stay())
        try:
            await self._claim.decided(_START_S)
        except TimeoutError:
            _logger.warning("node %s serves by itself until Redis answers", self.name)
        except BaseException:
            await self.stop()
            raise

    async def part(self) -> None:
        """Tell the others that this node is told to stop.

        From now on who is here may be at another node as well, and gets calls only where nobody
        else is.
        """
        await self._rooms.part(_PART_S)

    async def stop(self) -> None:
        """Leave the others: what this node told is taken back by them at once."""
        await self._rooms.left(_PART_S)
        with suppress(RedisAway, TimeoutError):
            async with asyncio.timeout(_PART_S):
                await self.lease.end(rooms_of(self.me))
        for task in (self._line_task, *self._tasks):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _stay(self) -> None:
        while True:
            try:
                await self._line.run()
            except NameHeld as held:
                await asyncio.sleep(self._claim.contest(held))
            except Fenced:
                _logger.warning("the lease of node %s had ended: it begins anew", self.name)
                for name in list(self._peers):
                    self._part_with(name)
                self._begin_anew()
            except Exception:  # it is to be one of many again, whatever that was
                _logger.exception("the line of node %s met a bug", self.name)
                await asyncio.sleep(_AFTER_BUG_S)

    # Rooms, and other nodes

    async def enter(self, name: str) -> None:
        """Hold a room, as the others have it, before a participant joins it here."""
        await self._rooms.enter(name)

    def hear(self, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Hand a message of a participant elsewhere to those here whom it is for."""
        self._rooms.hear(room, to, message)

    def hear_calls(self, node: str, room: str, report: CallReport) -> None:
        """Hand what has become of calls at another node to those here who watch."""
        self._rooms.hear_calls(node, room, report)

    def report_anew(self, node: str) -> None:
        """Have another node hear again what has become of calls, where it is to know that."""
        self._rooms.report_anew(node)

    async def _rooms_elsewhere(self, after: str, most: int) -> RoomsElsewhere:
        return await rooms_elsewhere(self.lease.script, after, most)

    def _peer(self, node: str) -> Peer:
        peer = self._peers.get(node)
        if peer is None:
            peer = Peer(node, self._line, self._hub.router, self)
            self._peers[node] = peer
        return peer

    def _living_peer(self, node: str) -> Peer | None:
        return None if node in self._ended else self._peer(node)

    def relay(self, peer: Peer, call: RelayedCall) -> None:
        """Take a call of a participant elsewhere to a host here. Raises what stops it."""
        self._relays.take(peer, call)

    def _order(self, node: str, action: str, options: dict[str, Any]) -> None:
        if node != self.me:
            self._peer(node).order(action, options)

    def obey(self, action: str, options: dict[str, Any]) -> None:
        """Do what an administrator asked for at another node."""
        self._orders.obey(action, options)

    def window(self) -> int:
        """Say how many bytes may be under way to one node."""
        return max(_LEAST_WINDOW_BYTES, WINDOW_BYTES // max(1, len(self._peers)))

    # What the line brings

    async def line_is_up(self) -> None:
        """Have a lease, and read all rooms."""
        async with asyncio.timeout(_beat_limit_s()):
            await self._join()
        self.is_joined.set()
        self._claim.won()
        self._rooms.read_all()
        self._rooms.tidy(self.me)
        while True:
            for peer in list(self._peers.values()):
                peer.ask()
            # By then who lives has renewed its lease: who died is noticed as its own ends.
            await asyncio.sleep(min(BEAT_S, self._first_end_s + _AFTER_END_S))
            async with asyncio.timeout(_beat_limit_s()):
                await self._beat()

    async def _join(self) -> None:
        await self.lease.load()
        await self._beat()
        await self._orders.agree()

    def takes_part(self) -> bool:
        """Whether this node is one of many now: it reaches Redis, and its lease has not ended."""
        return self._line.is_up and self._loop.time() < self.lease.ends_at

    def _joins_anew(self) -> bool:
        """Whether it was one of many a moment ago, or has a line, and is about to be so again."""
        is_soon = self._line.is_up or self._loop.time() < self._back_by
        return is_soon and not self.takes_part()

    def line_is_down(self) -> None:
        """End what goes on with other nodes: nothing of it can come any more."""
        if self.is_joined.is_set():
            self._back_by = self._loop.time() + _BACK_S
        self.is_joined.clear()
        self.lease.line_is_down()
        for peer in self._peers.values():
            peer.cut()
        self._rooms.unread()

    def on_inbox(self, data: bytes) -> None:
        """Take news of a room, or a parcel."""
        try:
            if data.startswith(MARK):
                parcel = read_parcel(data)
                sender = self._living_peer(parcel.sender)
                if sender is not None:  # else all between the two has ended here, and is to there
                    sender.on_parcel(parcel, len(data))
                return
            if data.startswith(_ECHO):
                self.lease.hear_echo()
                return
            news = read_news(data[1:])
        except (msgspec.MsgspecError, ValueError) as error:
            _logger.error("what came to the inbox cannot be read: %s", error)
            return
        self._rooms.hear_news(*news)

    # Leases

    async def _beat(self) -> None:
        """Renew the lease, and hear of it through the inbox. Raises what ends the line."""
        known = self._living | self._peers.keys()
        renewal = await self.lease.renew(LEASE_S)
        self._first_end_s = renewal.first_end_s
        if renewal.living is not None:
            self._living = renewal.living
            self._welcome_back(self._ended.keys() & renewal.living)
        self._end_with(known - self._living)
        for dead in renewal.dead:
            self._rooms.tidy(dead)
        await self.lease.echoed()

    def _end_with(self, ended: set[str]) -> None:
        """Take note of nodes that were known, and whose lease has ended by now."""
        self._ended |= dict.fromkeys(ended)
        while len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        for name in ended & self._peers.keys():
            self._part_with(name)

    def _welcome_back(self, nodes: set[str]) -> None:
        """Know nodes again that had ended: they have begun anew before they told or sent anything.

        So it is with one that did not hear that it had a lease, and whose lease had ended when it
        asked again.
        """
        for name in nodes:
            del self._ended[name]
        if nodes:
            self._rooms.read_all()  # what they told since then was not heeded

    def _part_with(self, node: str) -> None:
        """End what was with a node: who is there has gone, and so have calls from and to there."""
        self._rooms.forget_node(node)
        self._peers.pop(node).gone()

    def _task(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("a task of node %s met a bug", self.name, exc_info=error)


def _beat_limit_s() -> float:
    """How long a beat may take: a node takes the others to be away before they take it so."""
    return LEASE_S * 2 / 3 - BEAT_S
