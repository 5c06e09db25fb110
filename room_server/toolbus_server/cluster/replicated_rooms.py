"""The rooms of one node as replicas: entered, read, published, left, and cleaned up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import msgpack
from redis.exceptions import RedisError

from toolbus.errors import NotFound, Overloaded, RoomException, Unavailable
from toolbus.wire import (
    Failed,
    Holds,
    Result,
    Settle,
    decode_from_client,
    failed,
    pack_body,
)
from toolbus_server.calls.call_state import Connection
from toolbus_server.calls.call_statistics import NodeCallReport
from toolbus_server.cluster.exchange import LEASES_KEY
from toolbus_server.cluster.hold_replicas import HoldShare
from toolbus_server.cluster.lease import Lease
from toolbus_server.cluster.peer import Peer
from toolbus_server.cluster.redis.client import RedisUnavailable
from toolbus_server.cluster.replicated_room import ReplicatedRoom
from toolbus_server.cluster.replication_codec import PackedChange, owner_key, unpack_fact
from toolbus_server.registry import room_state
from toolbus_server.registry.models import Identity, Participant
from toolbus_server.rooms.administration import RoomsElsewhere
from toolbus_server.rooms.hub import Hub

__all__ = ["CHECK_S", "ReplicatedRooms", "rooms_key"]

_ENTER_S = 2.0
"""Seconds that a participant waits until the room is read."""
_PARTS = ("version", "nodes", "facts", "names", "kept")
_RETRY_S = 1.0
_ROOMS_KEY = "toolbus:rooms"
"""All rooms that a node holds, sorted by name."""
_MAX_FACTS = 20_000
"""Facts that one page of rooms reads, plus those of one room: Redis is busy for about 10 ms."""
CHECK_S = 5.0
"""Seconds between two checks of the keys of each room."""
_POLL_S = 0.02
_FACTS_AT_ONCE = 256
TaskStarter: TypeAlias = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a coroutine in a task that ends with the node."""


@dataclass(eq=False)
class ReplicatedRooms:
    """All rooms of a node."""

    name: str
    """The name of this node."""
    _hub: Hub
    _lease: Callable[[], Lease]
    """Returns the lease of the current incarnation."""
    _peer: Callable[[str], Peer | None]
    """Returns another node, or None if it has ended."""
    _start: TaskStarter
    _is_rejoining: Callable[[], bool]
    """Returns whether this node has no lease now and expects one soon."""
    _rooms: dict[str, ReplicatedRoom] = field(default_factory=dict)
    _exits: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _cleaning_up: set[str] = field(default_factory=set)
    _reloading_later: set[ReplicatedRoom] = field(default_factory=set)

    async def enter(self, name: str) -> None:
        """Load a room from Redis, before a participant joins it here.

        While Redis is unavailable the room begins empty, and is merged with the others' later.
        """
        while True:
            replica = self._rooms.get(name)
            if replica is None:
                open_room = self._hub.open(name)
                replica = ReplicatedRoom(open_room, self._hub, self)
                self._rooms[name] = open_room.routed.replication = replica
                self.reload(replica)
            if replica.loading is not None and not replica.is_loaded:
                await asyncio.wait([replica.loading], timeout=_ENTER_S)
            if self._rooms.get(name) is replica:  # else it has been closed meanwhile
                return

    def reload_all(self) -> None:
        """Read all rooms from Redis again, as changes may have been missed."""
        for replica in list(self._rooms.values()):
            self.reload(replica)

    def reload(self, replica: ReplicatedRoom) -> None:
        """Read the whole room from Redis, and load it."""
        replica.loading = self._start(self._read(replica))

    def reload_later(self, replica: ReplicatedRoom) -> None:
        """Read a room again after a pause, if Redis is available then."""
        if replica not in self._reloading_later:
            self._reloading_later.add(replica)
            self._start(self._reload_later(replica))

    async def _reload_later(self, replica: ReplicatedRoom) -> None:
        await asyncio.sleep(_RETRY_S)
        self._reloading_later.discard(replica)
        if self._rooms.get(replica.name) is replica and self._lease().redis.is_connected:
            self.reload(replica)

    async def _read(self, replica: ReplicatedRoom) -> None:
        # Otherwise a participant that joins meanwhile would find the room empty.
        while self._is_rejoining():  # noqa: ASYNC110 - no event reports that a lease expired
            await asyncio.sleep(_POLL_S)
        lease, room = self._lease(), replica.name
        if not lease.is_held or self._rooms.get(room) is not replica:
            return
        keys = _keys(room, lease.node_id)
        try:
            if room in self._exits:
                await asyncio.wait([self._exits[room]])
            if self._rooms.get(room) is not replica:
                return
            answer = await lease.script("enter", keys, lease.node_id, room)
        except RedisUnavailable:
            if lease.redis.is_connected:  # a refusal for now, as by a Redis without its replicas
                self.reload_later(replica)
            return
        if not answer or self._rooms.get(room) is not replica:
            return
        places = ((b"n" + name, record) for name, record in _pairs(answer[3]))
        facts = await _unpacked(chain(_pairs(answer[1]), places))
        if self._rooms.get(room) is replica:
            await replica.load(int(answer[0]), lease.node_id, facts, int(answer[2]))

    async def check_repeatedly(self) -> None:
        """Check the rooms from time to time: another program may change or delete their keys."""
        while True:
            await asyncio.sleep(CHECK_S)
            for replica in list(self._rooms.values()):
                # One that was left has sent its exit: a check after it would enter the room again.
                if replica.is_loaded and self._rooms.get(replica.name) is replica:
                    with suppress(RedisUnavailable):
                        await self._check(replica)

    async def _check(self, replica: ReplicatedRoom) -> None:
        lease = self._lease()
        keys = _keys(replica.name, lease.node_id)
        was_missing = await lease.script("check_room", keys, lease.node_id, replica.name)
        if was_missing and self._rooms.get(replica.name) is replica:
            self.reload(replica)

    # Publishing

    async def publish(self, room: str, changes: list[PackedChange]) -> tuple[int, list[Any]]:
        """Publish changes to all nodes; return the version and the result of each change.

        Raises `RedisUnavailable`.
        """
        node_id = self._lease().node_id
        return await self._publish_as(node_id, room, msgpack.packb(changes, use_bin_type=False))

    async def _publish_as(self, writer: str, room: str, changes: bytes) -> tuple[int, list[Any]]:
        keys = _keys(room, writer)
        replica = self._rooms.get(room)
        has_entered = int(replica is not None and replica.is_loaded and changes != b"purge")
        more = (self._hub.limits.reservation_ms, changes, room_state.MAX_RESERVED, has_entered)
        answer = await self._lease().script("publish_change", keys, writer, room, *more)
        if not answer:
            raise RedisUnavailable("this node's lease has expired")
        return int(answer[0]), list(answer[1])

    def send_message(self, node: str, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Send a message to the participants of a name at another node, or to all."""
        peer = self._peer(node)
        if peer is not None:
            peer.send_message(room, to, message)

    def send_report(self, node: str, room: str, report: NodeCallReport) -> bool:
        """Send a report of calls to another node, which has a monitor."""
        peer = self._peer(node)
        return peer is not None and peer.send_report(room, report)

    # Holds

    def node_id(self) -> str:
        """Return the id of this node."""
        return self._lease().node_id

    def send_holds(self, node: str, room: str, share: HoldShare) -> bool:
        """Send holds to another node; return False if it is unreachable or full."""
        peer = self._peer(node)
        return peer is not None and peer.send_holds(room, share)

    async def ask_holder(
        self, node: str, room: str, participant: Participant, request: Holds | Settle
    ) -> dict[str, Any]:
        """Pass a request about a hold to its node, as `Replication.ask_holder` does."""
        peer = self._peer(node)
        if peer is None:
            raise Unavailable("the server of the host has ended", executed="no", retryable=False)
        return await peer.ask(room, participant.id, request)

    async def answer_hold_request(
        self, node: str, room: str, participant: str, number: int, data: bytes
    ) -> None:
        """Answer a request of a participant of another node about a hold of this one."""
        peer, request = self._peer(node), decode_from_client(data)
        replica = self._rooms.get(room)
        if peer is None or not isinstance(request, Holds | Settle):
            return
        reply: Result | Failed
        try:
            if replica is None:
                raise NotFound("there is no approval with this id")
            if peer.is_full and isinstance(request, Holds):  # whose reply may have 256 KiB
                raise Overloaded("too much waits for the server of the approver", executed="no")
            reply = Result(request.id, pack_body(await replica.answer_hold(participant, request)))
        except RoomException as error:
            reply = failed(request.id, error)
        peer.send_reply(number, reply)

    def remote_connection(
        self, room: str, node: str, participant: Participant, reads_chunks: bool
    ) -> Connection | None:
        """Create the connection of a remote participant; None if its node has ended."""
        peer = self._peer(node)
        if peer is None:
            return None
        return peer.remote_connection(room, participant, reads_chunks=reads_chunks)

    def exit(self, name: str, beyond: Iterable[Identity]) -> None:
        """Leave a room whose last participant of this node has left, as `room_closed` does."""
        replica = self._rooms.pop(name, None)
        if replica is not None:
            replica.close()
            owners = list(map(owner_key, beyond))
            self._exits[name] = task = self._start(self._leave(replica, owners))
            task.add_done_callback(partial(self._exit_done, name))

    def _exit_done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._exits.get(name) is task:
            del self._exits[name]

    async def _leave(self, replica: ReplicatedRoom, beyond: list[bytes]) -> None:
        lease = self._lease()
        keys = _keys(replica.name, lease.node_id)
        if replica.loading is not None:  # which waits for the exit before this one
            await asyncio.wait([replica.loading])
        await replica.wait_until_published()
        try:
            if replica.is_confirmed:
                await lease.script("exit", keys, lease.node_id, replica.name, *beyond)
            else:
                await self._publish_as(lease.node_id, replica.name, b"purge")
        except RedisUnavailable:  # if disconnected, the clean-up runs after the reconnect
            if lease.redis.is_connected:
                self._start(self._clean_up_later(lease.node_id))

    async def drain(self, limit_s: float) -> None:
        """Publish that this node is draining, and wait until that is published."""
        rooms = list(self._rooms.values())
        for replica in rooms:
            replica.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for replica in rooms:
                    await replica.wait_until_published()

    async def wait_for_exits(self, limit_s: float) -> None:
        """Wait until Redis has all exits from rooms that this node left."""
        if self._exits:
            await asyncio.wait(self._exits.values(), timeout=limit_s)

    # Messages of other nodes

    def apply_delta(self, room: str, version: int, writer: str, changes: list[Any]) -> None:
        """Apply a delta of a room, if this node holds it."""
        replica = self._rooms.get(room)
        if replica is not None:
            replica.apply_delta(version, writer, writer == self._lease().node_id, changes)

    def replica_of(self, room: str) -> ReplicatedRoom | None:
        """Return a room, if this node holds it."""
        return self._rooms.get(room)

    def resend_reports(self, node: str) -> None:
        """Send another node the reports of calls again, if it has a monitor, and all holds."""
        for replica in self._rooms.values():
            replica.monitor.resend_report(node)
            replica.holds.resend(node)

    def invalidate(self) -> None:
        """Mark all rooms as possibly outdated."""
        for replica in self._rooms.values():
            replica.invalidate()

    def remove_node(self, node: str) -> None:
        """Remove all participants of a node that has ended."""
        for replica in self._rooms.values():
            replica.remove_node(node)

    async def elsewhere(self, after: str, limit: int) -> RoomsElsewhere:
        """Read at most `limit` rooms of all nodes after a name; none if Redis is unavailable."""
        try:
            script = self._lease().script("rooms", [_ROOMS_KEY], after, limit, _MAX_FACTS)
            has_more, found = await script
        except RedisUnavailable:
            return RoomsElsewhere({}, is_all=True)
        values = iter(found)
        rows = zip(values, values, values, strict=True)
        rooms = {name.decode(): (participants, toolkits) for name, participants, toolkits in rows}
        return RoomsElsewhere(rooms, not has_more)

    # State of ended nodes

    def clean_up(self, ended: str) -> None:
        """Withdraw in Redis what an ended node published; one run at a time.

        Of this node itself, that is what it published about rooms that it left while Redis was
        unavailable.
        """
        if ended not in self._cleaning_up:
            self._cleaning_up.add(ended)
            self._start(self._clean_up(ended))

    async def _clean_up(self, ended: str) -> None:
        lease = self._lease()
        try:
            for room in await lease.redis.command("SMEMBERS", rooms_key(ended)):
                if ended != lease.node_id or room.decode() not in self._rooms:
                    await self._publish_as(ended, room.decode(), b"purge")
            await lease.mark_cleaned(ended)
        except (RedisUnavailable, RedisError):
            if lease.redis.is_connected:
                self._start(self._clean_up_later(ended))
        finally:
            self._cleaning_up.discard(ended)

    async def _clean_up_later(self, ended: str) -> None:
        await asyncio.sleep(_RETRY_S)
        self.clean_up(ended)


def rooms_key(node_id: str) -> str:
    """Return the key of the rooms that a node holds."""
    return f"toolbus:rooms:{node_id}"


def _keys(room: str, node_id: str) -> list[str]:
    """Return the keys that scripts take for a room and a node that holds it."""
    parts = [f"toolbus:{{r:{room}}}:{part}" for part in _PARTS]
    return [LEASES_KEY, *parts, rooms_key(node_id), _ROOMS_KEY]


def _pairs(flat: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the fields and values of a hash, as a script returns them."""
    items = iter(flat)
    return zip(items, items, strict=True)


async def _unpacked(packed: Iterable[tuple[bytes, bytes]]) -> dict[bytes, Any]:
    """Unpack the facts by their keys, some hundred in each iteration of the loop."""
    facts: dict[bytes, Any] = {}
    for key, fact in packed:
        facts[key] = unpack_fact(fact)
        if len(facts) % _FACTS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return facts
