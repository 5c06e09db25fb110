"""The rooms of one node, for others to hold too: entered, read, told of, left, and tidied up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import msgpack
from redis.exceptions import RedisError

from toolbus_server import room_state
from toolbus_server.call_watch import CallReport
from toolbus_server.flights import Seat
from toolbus_server.hub import Hub, OpenRoom
from toolbus_server.nodes.far_facts import Change, read_fact
from toolbus_server.nodes.lease import NODES, Lease
from toolbus_server.nodes.peer import Peer
from toolbus_server.nodes.redis_line import RedisAway
from toolbus_server.nodes.room_index import ROOMS
from toolbus_server.nodes.shared_room import SharedRoom
from toolbus_server.room_view import Member

__all__ = ["SharedRooms", "rooms_of"]

_ENTER_S = 2.0
"""How long a participant waits for the room as the others have it."""
_PARTS = ("version", "nodes", "facts", "names", "kept")
_AGAIN_S = 1.0
_LOOK_S = 0.02
Starter: TypeAlias = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Runs what has to be waited for, as long as the node lives."""


class SharedRooms:
    """All rooms of a node.

    Args:
        name: What this node is called.
        hub: Where they are.
        lease: Gives the lease of the incarnation that there is now.
        peer: Finds another node, or makes it; gives None for one that has ended.
        start: Runs what has to be waited for.
        joins_anew: Says whether this node is about to be one of many again.
    """

    def __init__(
        self,
        name: str,
        hub: Hub,
        lease: Callable[[], Lease],
        peer: Callable[[str], Peer | None],
        start: Starter,
        *,
        joins_anew: Callable[[], bool],
    ) -> None:
        self.name: str = name
        """What this node is called."""
        self._hub = hub
        self._lease = lease
        self._peer = peer
        self._start = start
        self._joins_anew = joins_anew
        self._rooms: dict[str, SharedRoom] = {}
        self._exits: dict[str, asyncio.Task[None]] = {}
        self._tidying: set[str] = set()
        self._refused: set[SharedRoom] = set()
        hub.on_close = self._exit

    async def enter(self, name: str) -> None:
        """Hold a room, as the others have it, before a participant joins it here.

        Where Redis is away it begins with nobody in it, and is joined with the others' later.
        """
        while True:
            shared = self._rooms.get(name) or self._begin(name)
            if shared.entering is not None and not shared.is_shared:
                await asyncio.wait([shared.entering], timeout=_ENTER_S)
            if self._rooms.get(name) is shared:  # else it has ended meanwhile
                return

    def _begin(self, name: str) -> SharedRoom:
        open_room = self._hub.open(name)
        shared = SharedRoom(open_room, self._hub, self)
        self._rooms[name] = open_room.room.share = shared
        self.read_anew(shared)
        return shared

    def read_all(self) -> None:
        """Read all rooms anew."""
        for shared in list(self._rooms.values()):
            self.read_anew(shared)

    def read_anew(self, shared: SharedRoom) -> None:
        """Read a room as a whole, and load it."""
        shared.entering = self._start(self._read(shared))

    def read_later(self, shared: SharedRoom) -> None:
        """Read a room anew in a moment, if Redis is there then."""
        if shared not in self._refused:
            self._refused.add(shared)
            self._start(self._read_later(shared))

    async def _read_later(self, shared: SharedRoom) -> None:
        await asyncio.sleep(_AGAIN_S)
        self._refused.discard(shared)
        if self._rooms.get(shared.name) is shared and self._lease().line.is_up:
            self.read_anew(shared)

    async def _read(self, shared: SharedRoom) -> None:
        # Else who comes meanwhile would find nobody there.
        while self._joins_anew():  # noqa: ASYNC110 - that a lease has ended nobody tells
            await asyncio.sleep(_LOOK_S)
        lease, room = self._lease(), shared.name
        if not lease.is_held or self._rooms.get(room) is not shared:
            return
        keys = (NODES, *_keys(room), rooms_of(lease.me), ROOMS)
        try:
            if room in self._exits:
                await asyncio.wait([self._exits[room]])
            if self._rooms.get(room) is not shared:
                return
            answer = await lease.script("enter", keys, lease.me, room)
        except RedisAway:
            if lease.line.is_up:  # it refuses for now, as a Redis without its replicas does
                self.read_later(shared)
            return
        if not answer or self._rooms.get(room) is not shared:
            return
        keys_and_facts = iter(answer[1])
        packed = dict(zip(keys_and_facts, keys_and_facts, strict=True))
        facts = {key: read_fact(fact) for key, fact in packed.items()}
        shared.load(int(answer[0]), lease.me, facts, int(answer[2]))

    # What this node tells

    async def tell(self, room: str, changes: list[Change]) -> tuple[int, list[Any]]:
        """Tell all nodes; give the version and what came of each change. Raises `RedisAway`."""
        me = self._lease().me
        return await self._tell_as(me, room, msgpack.packb(changes, use_bin_type=False))

    async def _tell_as(self, writer: str, room: str, changes: bytes) -> tuple[int, list[Any]]:
        keys = (NODES, *_keys(room), rooms_of(writer), ROOMS)
        kept_ms, most = self._hub.limits.reservation_ms, room_state.MAX_RESERVED
        answer = await self._lease().script("tell", keys, writer, room, kept_ms, changes, most)
        if not answer:
            raise RedisAway("this node's lease has ended")
        return int(answer[0]), list(answer[1])

    def say(self, node: str, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Send a message to the participants of a name at another node, or to all."""
        peer = self._peer(node)
        if peer is not None:
            peer.say(room, to, message)

    def report(self, node: str, room: str, report: CallReport) -> bool:
        """Tell another node, where somebody watches, what has become of calls."""
        peer = self._peer(node)
        return peer is not None and peer.report(room, report)

    def seat(self, room: str, node: str, member: Member, reads_chunks: bool) -> Seat | None:
        """Make a seat for a participant of another node, or None where that node is gone."""
        peer = self._peer(node)
        return None if peer is None else peer.seat(room, member, reads_chunks=reads_chunks)

    def _exit(self, open_room: OpenRoom) -> None:
        name = open_room.room.state.name
        shared = self._rooms.pop(name, None)
        if shared is not None:
            shared.close()
            self._exits[name] = task = self._start(self._leave(shared))
            task.add_done_callback(partial(self._forget_exit, name))

    def _forget_exit(self, name: str, task: asyncio.Task[None]) -> None:
        if self._exits.get(name) is task:
            del self._exits[name]

    async def _leave(self, shared: SharedRoom) -> None:
        lease = self._lease()
        keys = (*_keys(shared.name), rooms_of(lease.me), ROOMS)
        if shared.entering is not None:  # which waits for the exit before this one
            await asyncio.wait([shared.entering])
        await shared.told()
        try:
            if shared.is_settled:
                await lease.script("exit", keys, lease.me, shared.name)
            else:
                await self._tell_as(lease.me, shared.name, b"purge")
        except RedisAway:  # where it is away it is tidied when it is back
            if lease.line.is_up:
                self._start(self._tidy_later(lease.me))

    async def part(self, limit_s: float) -> None:
        """Tell the others that this node is told to stop, and wait until they know.

        Args:
            limit_s: How long that may take at most.
        """
        rooms = list(self._rooms.values())
        for shared in rooms:
            shared.part()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for shared in rooms:
                    await shared.told()

    async def left(self, limit_s: float) -> None:
        """Wait until the others know of all rooms that this node has left.

        Args:
            limit_s: How long that may take at most.
        """
        if self._exits:
            await asyncio.wait(self._exits.values(), timeout=limit_s)

    # What it hears

    def hear_news(self, room: str, version: int, writer: str, changes: list[Any]) -> None:
        """Take news of a room."""
        shared = self._rooms.get(room)
        if shared is not None:
            shared.hear(version, writer, writer == self._lease().me, changes)

    def hear(self, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Hand a message of a participant elsewhere to those here whom it is for."""
        shared = self._rooms.get(room)
        if shared is not None:
            shared.audience.take_message(to, message)

    def hear_calls(self, node: str, room: str, report: CallReport) -> None:
        """Hand what has become of calls at another node to those here who watch."""
        shared = self._rooms.get(room)
        if shared is not None:
            shared.audience.take_report(node, report)

    def report_anew(self, node: str) -> None:
        """Have another node hear again what has become of calls, where it is to know that."""
        for shared in self._rooms.values():
            shared.audience.report_anew(node)

    def unread(self) -> None:
        """Take note that what is known of them may not be so any more."""
        for shared in self._rooms.values():
            shared.unread()

    def forget_node(self, node: str) -> None:
        """Let everybody go who was at a node that has ended."""
        for shared in self._rooms.values():
            shared.forget_node(node)

    # What nodes leave behind

    def tidy(self, dead: str) -> None:
        """Take back in Redis what a node told that has ended; once at a time.

        Of this node itself it is what it told of rooms that it has left while Redis was away.
        """
        if dead not in self._tidying:
            self._tidying.add(dead)
            self._start(self._tidy(dead))

    async def _tidy(self, dead: str) -> None:
        lease, rooms = self._lease(), rooms_of(dead)
        try:
            for room in await lease.line.command("SMEMBERS", rooms):
                if dead != lease.me or room.decode() not in self._rooms:
                    await self._tell_as(dead, room.decode(), b"purge")
            await lease.forget(dead)
        except (RedisAway, RedisError):
            if lease.line.is_up:
                self._start(self._tidy_later(dead))
        finally:
            self._tidying.discard(dead)

    async def _tidy_later(self, dead: str) -> None:
        await asyncio.sleep(_AGAIN_S)
        self.tidy(dead)


def rooms_of(node: str) -> str:
    """Name where Redis has the rooms that a node holds."""
    return f"toolbus:rooms:{node}"


def _keys(room: str) -> Iterator[str]:
    """Name what is kept of a room, in the order in which the scripts have it."""
    return (f"toolbus:{{r:{room}}}:{part}" for part in _PARTS)
