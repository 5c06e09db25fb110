"""One node among others: its lease, who else lives, its rooms, and what its inbox brings."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.resources import files
from itertools import count
from typing import Any

import msgpack
import msgspec
from redis.asyncio.connection import ConnectionPool
from redis.exceptions import ResponseError

from toolbus_server.administration import Administration
from toolbus_server.flights import Seat
from toolbus_server.hub import Hub, OpenRoom
from toolbus_server.nodes.far_facts import Change
from toolbus_server.nodes.far_orders import FarOrders
from toolbus_server.nodes.node_name import NameClaim, NameHeld, check_node_name
from toolbus_server.nodes.parcels import MARK, read_parcel
from toolbus_server.nodes.peer import Peer, RelayedCall, inbox_of
from toolbus_server.nodes.redis_line import RedisAway, RedisLine
from toolbus_server.nodes.relays import Relays
from toolbus_server.nodes.shared_room import SharedRoom
from toolbus_server.room_view import Member

__all__ = ["BEAT_S", "LEASE_S", "WINDOW_BYTES", "Node"]

BEAT_S = 3.0
"""How often a node renews its lease."""
LEASE_S = 10.0
"""How long a lease lives that is not renewed: so long a node that died is taken to be there."""
WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes under way to one node from all others; Redis drops who has 8 MiB waiting for a minute."""
_LEAST_WINDOW_BYTES = 64 * 1024
_ENTER_S = 2.0
"""How long a participant waits for the room as the others have it."""
_ECHO = b"B"
"""What a node hears of its own beat: its inbox is heard, by the Redis that has its lease."""
_SCRIPTS = ("beat", "enter", "exit", "tell")
_NODES, _NODES_VERSION, _GONE = "toolbus:nodes", "toolbus:nodes:version", "toolbus:gone"
_logger = logging.getLogger(__name__)


class Node:
    """What makes this server one of many.

    Args:
        hub: Its rooms.
        pool: Makes connections to Redis.
        administration: Does what is asked for elsewhere, and has done elsewhere what is here.
        name: What it is called; it must be the only one of that name.

    Raises:
        ValueError: No node can be called so.
    """

    def __init__(
        self, hub: Hub, pool: ConnectionPool, administration: Administration, name: str = ""
    ) -> None:
        check_node_name(name)
        self._hub = hub
        self._pool = pool
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._claim = NameClaim(self.name)
        self._loop = asyncio.get_running_loop()
        self._relays = Relays(hub, self._loop)
        self._rooms: dict[str, SharedRoom] = {}
        self._peers: dict[str, Peer] = {}
        self._scripts: dict[str, bytes] = {}
        self._exits: dict[str, asyncio.Task[None]] = {}
        self._tidying: set[bytes] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.sessions: Iterator[int] = count(1)
        """Numbers for sessions with other nodes."""
        self._echo = asyncio.Event()
        self._line_task: asyncio.Task[None] | None = None
        self.is_joined = asyncio.Event()
        """Set while this node has a lease."""
        hub.on_close = self._exit
        self._begin_anew()
        self._orders = FarOrders(
            administration, lambda: self._line, _NODES, self._order, self._task
        )

    def _begin_anew(self) -> None:
        """Be another incarnation from now on: what the former one told counts no more."""
        self.me = f"{self.name} {secrets.token_hex(8)}"
        self._known_version = -1
        self._has_lease = False
        self.lease_ends_at: float = 0.0
        """By the loop's clock; never later than the others can take note of it."""
        self._line = RedisLine(self._pool, inbox_of(self.me), self)

    async def start(self) -> None:
        """Join the others, and stay with them; where Redis is away, join when it is back.

        Where a node of this name was killed a moment ago, that takes until its lease has ended.

        Raises:
            NameTaken: A node of this name lives.
        """
        self._line_task = self._loop.create_task(self._stay())
        try:
            await self._claim.decided(_ENTER_S)
        except TimeoutError:
            _logger.warning("node %s serves by itself until Redis answers", self.name)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Leave the others: what this node told is taken back by them at once."""
        if self._line.is_up and self._has_lease:
            try:
                async with asyncio.timeout(1.0):
                    if self._exits:
                        await asyncio.wait(self._exits.values())
                    await self._line.command("ZREM", _NODES, self.me)
                    await self._line.command("INCR", _NODES_VERSION)
                    await self._line.command("SADD", _GONE, self.me)
            except (RedisAway, TimeoutError):
                pass
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
                self._live(set())
                self._begin_anew()

    # Rooms

    async def enter(self, name: str) -> None:
        """Hold a room, as the others have it, before a participant joins it here.

        Where Redis is away it begins with nobody in it, and is joined with the others' later.
        """
        shared = self._rooms.get(name)
        if shared is None:
            open_room = self._hub.open(name)
            shared = SharedRoom(
                open_room, self._hub, self._tell, self._seat, self._read_anew, self._say
            )
            self._rooms[name] = open_room.room.share = shared
            self._read_anew(shared)
        if shared.entering is not None and not shared.is_shared:
            await asyncio.wait([shared.entering], timeout=_ENTER_S)

    async def _read(self, shared: SharedRoom) -> None:
        if not self._has_lease:
            return
        room = shared.name
        parts = ("version", "nodes", "facts")
        keys = (_NODES, *(_key(room, part) for part in parts), _rooms_of(self.me))
        try:
            if room in self._exits:
                await asyncio.wait([self._exits[room]])
            answer = await self._script("enter", keys, self.me, room)
        except RedisAway:
            return
        if not answer or self._rooms.get(room) is not shared:
            return
        keys_and_facts = iter(answer[1])
        packed = dict(zip(keys_and_facts, keys_and_facts, strict=True))
        facts = {key: msgpack.unpackb(fact, raw=True) for key, fact in packed.items()}
        shared.load(int(answer[0]), self.me, facts)

    def _read_anew(self, shared: SharedRoom) -> None:
        shared.entering = self._task(self._read(shared))

    def _exit(self, open_room: OpenRoom) -> None:
        name = open_room.room.state.name
        shared = self._rooms.pop(name, None)
        if shared is not None:
            shared.close()
            self._exits[name] = task = self._task(self._leave(shared))
            task.add_done_callback(partial(self._forget_exit, name))

    def _forget_exit(self, name: str, task: asyncio.Task[None]) -> None:
        if self._exits.get(name) is task:
            del self._exits[name]

    async def _leave(self, shared: SharedRoom) -> None:
        parts = ("version", "nodes", "facts", "names")
        keys = (*(_key(shared.name, part) for part in parts), _rooms_of(self.me))
        try:
            await shared.told()
            if shared.is_shared:
                await self._script("exit", keys, self.me, shared.name)
        except RedisAway:
            pass

    async def _tell(self, room: str, changes: list[Change]) -> tuple[int, list[Any]]:
        return await self._tell_as(self.me, room, msgpack.packb(changes, use_bin_type=False))

    async def _tell_as(self, writer: str, room: str, changes: bytes) -> tuple[int, list[Any]]:
        parts = ("version", "nodes", "facts", "names")
        keys = (_NODES, *(_key(room, part) for part in parts))
        kept_ms = self._hub.limits.reservation_ms
        answer = await self._script("tell", keys, writer, room, kept_ms, changes)
        if not answer:
            raise RedisAway("this node's lease has ended")
        return int(answer[0]), list(answer[1])

    def _seat(self, room: str, node: str, member: Member, reads_chunks: bool) -> Seat | None:
        return self._peer(node).seat(room, member, reads_chunks=reads_chunks)

    def _say(self, node: str, room: str, to: str | None, message: dict[str, Any]) -> None:
        self._peer(node).say(room, to, message)

    def hear(self, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Hand a message of a participant elsewhere to those here whom it is for."""
        shared = self._rooms.get(room)
        if shared is not None:
            shared.take_message(to, message)

    def _peer(self, node: str) -> Peer:
        peer = self._peers.get(node)
        if peer is None:
            peer = Peer(node, self._line, self._hub.router, self)
            self._peers[node] = peer
        return peer

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
        for shared in list(self._rooms.values()):
            self._read_anew(shared)
        while True:
            for peer in list(self._peers.values()):
                peer.ask()
            await asyncio.sleep(BEAT_S)
            async with asyncio.timeout(_beat_limit_s()):
                await self._beat()

    async def _join(self) -> None:
        for name in _SCRIPTS:
            source = (files(__package__) / "scripts" / f"{name}.lua").read_bytes()
            self._scripts[name] = await self._line.command("SCRIPT", "LOAD", source)
        await self._beat()
        await self._orders.agree()

    def takes_part(self) -> bool:
        """Whether this node is one of many now: it reaches Redis, and its lease has not ended."""
        return self._line.is_up and self._loop.time() < self.lease_ends_at

    def line_is_down(self) -> None:
        """End what goes on with other nodes: nothing of it can come any more."""
        self.is_joined.clear()
        self._scripts.clear()
        self._known_version = -1  # another Redis may count otherwise
        for peer in self._peers.values():
            peer.cut()
        for shared in self._rooms.values():
            shared.unread()

    def on_inbox(self, data: bytes) -> None:
        """Take news of a room, or a parcel."""
        try:
            if data.startswith(MARK):
                parcel = read_parcel(data)
                self._peer(parcel.sender).on_parcel(parcel, len(data))
                return
            if data.startswith(_ECHO):
                self._echo.set()
                return
            room, version, writer, changes = msgpack.unpackb(data[1:], raw=True)
        except (msgspec.MsgspecError, ValueError):
            _logger.exception("what came to the inbox cannot be read")
            return
        shared = self._rooms.get(room.decode())
        if shared is not None:
            shared.hear(version, writer.decode(), writer.decode() == self.me, changes)

    async def _script(self, name: str, keys: Iterable[str], *arguments: Any) -> Any:
        """Run a script. Raises `RedisAway` where this node has not joined, or Redis refuses it."""
        if name not in self._scripts or not (self._has_lease or name == "beat"):
            raise RedisAway("this node has not joined the others")
        keys = tuple(keys)
        words = ("EVALSHA", self._scripts[name], len(keys), *keys, *arguments)
        try:
            return await self._line.command(*words)
        except ResponseError as error:
            _logger.error("Redis refuses the script %s: %s", name, error)
            raise RedisAway(f"it refuses a script: {error}") from error

    # Leases

    async def _beat(self) -> None:
        """Renew the lease, and hear of it through the inbox. Raises what ends the line."""
        begins_at = self._loop.time()
        self._echo.clear()
        node, incarnation = self.me.rsplit(" ", 1)
        life_ms = int(LEASE_S * 1000)
        keys = (_NODES, _NODES_VERSION, _GONE)
        words = (node, incarnation, life_ms, self._known_version, int(not self._has_lease))
        answer = await self._script("beat", keys, *words)
        if answer[0] == 0:
            raise NameHeld(answer[1].decode(), answer[2])
        if answer[0] == 2:
            raise Fenced
        self._has_lease = True
        self.lease_ends_at = begins_at + LEASE_S
        if answer[2] is not None:
            self._known_version = answer[1]
            self._live({each.decode() for each in answer[2]})
        for dead in answer[3]:
            if dead not in self._tidying:
                self._tidying.add(dead)
                self._task(self._tidy(dead.decode()))
        await self._echo.wait()

    def _live(self, living: set[str]) -> None:
        """Take note of who lives; what was with others has ended."""
        for name in [name for name in self._peers if name not in living]:
            peer = self._peers.pop(name)
            for shared in self._rooms.values():
                shared.forget_node(name)
            peer.gone()

    async def _tidy(self, dead: str) -> None:
        """Take back in Redis what a node told that has ended."""
        rooms = _rooms_of(dead)
        try:
            for room in await self._line.command("SMEMBERS", rooms):
                await self._tell_as(dead, room.decode(), b"purge")
                await self._line.command("SREM", rooms, room)
            await self._line.command("SREM", _GONE, dead)
        except RedisAway:
            pass
        finally:
            self._tidying.discard(dead.encode())

    def _task(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Fenced(Exception):
    """The lease of this node had ended: what it told is taken back, and it begins anew."""


def _beat_limit_s() -> float:
    """How long a beat may take: a node takes the others to be away before they take it so."""
    return LEASE_S * 2 / 3 - BEAT_S


def _rooms_of(node: str) -> str:
    return f"toolbus:rooms:{node}"


def _key(room: str, part: str) -> str:
    return f"toolbus:{{r:{room}}}:{part}"
