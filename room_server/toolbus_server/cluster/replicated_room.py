"""One room as a replica: publishes this node's participants, and applies what other nodes publish.

The state published last is compared with the current state, and the difference is published; so a
participant that changed is only marked (`participant_changed`). Deltas of other nodes are applied
in the order of the room's version; after a gap the room is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, Protocol

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import AlreadyExists, NotFound, Unavailable
from toolbus.wire import Holds, ParticipantId, Settle
from toolbus_server.calls.call_state import CallHold, Offer
from toolbus_server.calls.call_statistics import RoomCallMonitor
from toolbus_server.calls.router import Connection
from toolbus_server.cluster.hold_replicas import HoldChannel, HoldReplicas
from toolbus_server.cluster.redis.client import RedisUnavailable
from toolbus_server.cluster.remote_participants import (
    RemoteParticipants,
    RemoteSubscribers,
    SubscriberChannel,
    unregister_named,
    yield_name,
)
from toolbus_server.cluster.replication_codec import (
    PackedChange,
    PublishedFacts,
    Snapshot,
    name_key,
    pack_hosted,
    pack_offer,
    pack_participant,
    slot_held_by,
    slot_of,
    snapshot_of,
    unpack_reserved,
    up_change,
)
from toolbus_server.registry.generations import Claim
from toolbus_server.registry.models import Identity, Participant
from toolbus_server.registry.tool_visibility import Steps
from toolbus_server.rooms.hub import ConnectedSession, Hub, OpenRoom
from toolbus_server.rooms.scheduling import Ended, Lane

__all__ = ["ReplicatedRoom", "RoomOwner"]


class PublishedState:
    """What other nodes know about this node's participants in a room.

    Args:
        reads_chunks: Returns whether a participant takes large files in pieces.
    """

    def __init__(self, reads_chunks: Callable[[Participant], bool]) -> None:
        self._reads_chunks = reads_chunks
        self._published: dict[bytes, PublishedFacts] = {}
        self._claimed: list[tuple[str, bytes]] = []
        """Names that were requested and are not registered here yet, with the participant."""

    def load(
        self, published: dict[bytes, PublishedFacts], present: Iterable[Participant]
    ) -> list[PackedChange]:
        """Take over the published state; return the changes for participants that have left."""
        # What Redis has counts, not what this node believes: a publication may have failed after
        # Redis applied it.
        self._published = published
        slots = set(map(slot_held_by, present))
        left = [slot for slot in published if slot not in slots]
        return [["out", slot, published.pop(slot).epoch, True] for slot in left]

    def changes_of(self, participant: Participant) -> list[PackedChange]:
        """Compare a participant with its published state; return the changes as published."""
        slot = slot_held_by(participant)
        published = self._published.get(slot)
        # A newer connection of the instance has the slot: Redis would refuse the change.
        if published is not None and published.epoch > participant.epoch:
            return []
        if not participant.is_present:
            # One that was never published, or whose slot another connection has, is not withdrawn:
            # that would remove the other one.
            if published is None or published.epoch != participant.epoch:
                return []
            del self._published[slot]
            return [["out", slot, participant.epoch, participant.reserves_names]]
        changes: list[PackedChange] = []
        if published is None or published.epoch != participant.epoch:
            published = self._published[slot] = PublishedFacts(participant.epoch)
        facts = self._pack(participant)
        if facts != published.facts:
            published.facts = facts
            changes.append(["in", slot, participant.epoch, facts])
        return changes + self._changes_of_toolkits(participant, slot, published)

    def _pack(self, participant: Participant) -> bytes:
        return pack_participant(participant, reads_chunks=self._reads_chunks(participant))

    def _changes_of_toolkits(
        self, participant: Participant, slot: bytes, published: PublishedFacts
    ) -> list[PackedChange]:
        # It gets no new calls but keeps its names until it leaves: withdrawn now, a name could be
        # free before its next host has registered.
        if participant.is_draining:
            return []
        changes: list[PackedChange] = []
        current: dict[bytes, bytes] = {}
        for toolkit in participant.toolkits:
            key = name_key(participant.identity, toolkit.name, toolkit.public)
            generation = next(
                generation for generation in toolkit.generations if participant in generation.hosts
            )
            facts = current[key] = pack_hosted(toolkit, generation)
            if published.hosted.get(key) != facts:
                claim = Claim(generation.number, generation.base)
                digest = generation.definition.digest
                changes.append(up_change(participant, key, digest, claim, facts))
        # A name that is being claimed is in Redis before the participant has the toolkit here. A
        # change published meanwhile must not take it for one that was unregistered.
        for claimant, key in self._claimed:
            if claimant == participant.id and key in published.hosted:
                current.setdefault(key, published.hosted[key])
        removed = [key for key in published.hosted if key not in current]
        published.hosted = current
        return changes + [["down", slot, participant.epoch, key, False] for key in removed]

    @contextmanager
    def claiming(self, participant: Participant, key: bytes) -> Iterator[None]:
        """Keep a name published while the block runs, which requests it."""
        claim = (participant.id, key)
        self._claimed.append(claim)
        try:
            yield
        finally:
            self._claimed.remove(claim)

    def mark_claimed(self, participant: Participant, key: bytes, facts: bytes) -> None:
        """Mark a toolkit as published before it is registered here."""
        published = self._find(slot_held_by(participant), participant.epoch)
        if published is not None:
            published.hosted[key] = facts

    def mark_lost(self, slot: bytes, epoch: int, key: bytes) -> bool:
        """Mark a name as owned by another; return whether its host is published."""
        published = self._find(slot, epoch)
        if published is not None:
            published.hosted.pop(key, None)
        return published is not None

    def _find(self, slot: bytes, epoch: int) -> PublishedFacts | None:
        """Return the published state of the connection that has, or had, a slot."""
        # By epoch too: the answer to an old connection may arrive after a newer one took the slot.
        published = self._published.get(slot)
        return published if published is not None and published.epoch == epoch else None

    def release_slot(self, participant: Participant) -> list[PackedChange]:
        """Return the change that a participant on a draining node frees its instance's slot."""
        slot = slot_of(participant.identity, participant.instance)
        published = self._find(slot, participant.epoch)
        if published is None:
            return []
        own_slot = slot_held_by(participant)
        self._published[own_slot] = self._published.pop(slot)
        published.facts = self._pack(participant)
        return [["aside", slot, participant.epoch, published.facts, own_slot]]

    def mark_unpublished(self, slot: bytes) -> None:
        """Forget what was published of a slot, so that all of it is published again."""
        self._published.pop(slot, None)


_logger = bounded_logger(__name__)


DELTA_CHANGES = 256
"""A delta with as many changes gets no further participant; all nodes apply each delta at once."""


class RoomOwner(SubscriberChannel, HoldChannel, Protocol):
    """The node that the room belongs to."""

    name: str

    async def publish(self, room: str, changes: list[PackedChange]) -> tuple[int, list[Any]]:
        """Publish changes to all nodes; return the version and the result of each change.

        Raises `RedisUnavailable`.
        """

    def remote_connection(
        self, room: str, node: str, participant: Participant, reads_chunks: bool
    ) -> Connection | None:
        """Create the connection of a remote participant; None if its node has ended."""

    async def ask_holder(
        self, node: str, room: str, participant: Participant, request: Holds | Settle
    ) -> dict[str, Any]:
        """Pass a request about a hold to its node, as `Replication.ask_holder` does."""

    def exit(self, room: str, beyond: Iterable[Identity]) -> None:
        """Leave a room whose last participant of this node has left, as `room_closed` does."""

    def reload(self, replica: ReplicatedRoom) -> None:
        """Read the whole room from Redis, and pass it to `load`."""

    def reload_later(self, replica: ReplicatedRoom) -> None:
        """Do so after a pause, as a change was refused."""


class ReplicatedRoom:
    """One room of this node, replicated to the other nodes that hold it."""

    def __init__(self, room: OpenRoom, hub: Hub, owner: RoomOwner) -> None:
        self.name = room.routed.state.name
        self.node: str = owner.name
        """The name of this node."""
        self._open = room
        self._state = room.routed.state
        self._hub = hub
        self._owner = owner
        self._version: int | None = None
        """The version of the room; None until it is read."""
        self._failed_publications = 0
        """How many failed since the room was read, so that Redis may lack changes."""
        self._is_closed = False
        self._invalidations = 0
        """How often it turned out that the room has to be read again, or was closed."""
        self._updates = Lane(hub.scheduler)
        """What other nodes published, applied one after another."""
        self._buffered: list[tuple[int, str, bool, list[list[Any]]]] = []
        """Deltas that arrived before the room was read; they use another connection."""
        self._published = PublishedState(
            lambda participant: room.routed.connections[participant.id].reads_chunks
        )
        self._touched: dict[bytes, Participant] = {}
        self._pending: list[PackedChange] = []
        """Further changes to publish: of participants that left unpublished, or freed a slot."""
        self._publishing: asyncio.Task[None] | None = None
        self._remote = RemoteParticipants(room, hub, owner.remote_connection, self._remote_changed)
        self.holds: HoldReplicas = HoldReplicas(room, owner)
        """What waits for a person, at this node and at others."""
        self.subscribers: RemoteSubscribers = RemoteSubscribers(room, self._remote.by_slot, owner)
        """Those at other nodes."""
        self.monitor: RoomCallMonitor = room.feeds.monitor
        """Counts and records the room's calls."""
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.loading: asyncio.Task[None] | None = None
        """Reads the room, as long as it takes."""

    def _remote_changed(self, node: str, participant: Participant) -> None:
        self.subscribers.update(node, participant)
        self.holds.update(node, participant)

    # Holds

    def publish_hold(self, hold: CallHold) -> None:
        """Publish that something waits for a person at this node, or was settled."""
        self.holds.publish(hold)

    def wait_data(self, hold: CallHold, *, is_entered: bool) -> dict[str, Any]:
        """Return what the node of a caller is sent with `Held`, in place of what callers are."""
        return self.holds.wait_data(hold, is_entered=is_entered)

    def listing_holds(self) -> asyncio.Future[None] | None:
        """Return what is done once other nodes have sent their holds; None if they have."""
        return self.holds.listing()

    async def ask_holder(
        self, hold: CallHold, participant: Participant, request: Holds | Settle
    ) -> dict[str, Any]:
        """Pass a request of a participant of this node to the node of a hold; return its reply.

        Raises:
            Unavailable: That node does not answer.
            RoomException: As it answers.
        """
        return await self._owner.ask_holder(hold.node, self.name, participant, request)

    async def answer_hold(self, participant: str, request: Holds | Settle) -> dict[str, Any]:
        """Answer a request of a participant of another node about a hold of this one.

        Raises:
            NotFound: That participant is not here yet, or not any more.
            RoomException: As the request of a participant of this node.
        """
        connection = self._open.routed.connections.get(ParticipantId(participant))
        if connection is None:
            raise NotFound("there is no approval with this id")
        return await self._open.hold_requests.answer_elsewhere(connection, request)

    # Publishing

    def room_closed(self, beyond: frozenset[Identity]) -> None:
        """Leave the room, as `Replication` says."""
        self._owner.exit(self.name, beyond)

    def participant_changed(self, participant: Participant) -> None:
        """Mark a participant of this node that joined, changed or left."""
        slot = slot_held_by(participant)
        remote = self._remote.by_slot.get(slot)
        if remote is not None and remote.participant.epoch < participant.epoch:
            self._remote.remove(slot, keep_names=True)  # it has moved here from another node
        self._touched[slot] = participant
        self._start_publishing()

    def drain(self) -> None:
        """Publish that this node is draining: its participants may connect to another one."""
        for session in self._open.sessions.values():
            participant = session.connection.participant
            self._state.mark_node_draining(participant)
            if self.is_loaded:
                self._pending += self._published.release_slot(participant)
        self._start_publishing()

    def _start_publishing(self) -> None:
        has_changes = self._touched or self._pending
        if has_changes and self._version is not None and self._publishing is None:
            self._publishing = asyncio.get_running_loop().create_task(self._publish_all())

    async def _publish_all(self) -> None:
        try:
            while self._touched or self._pending:
                changes, self._pending = self._pending, []
                while self._touched and len(changes) < DELTA_CHANGES:
                    slot = next(iter(self._touched))
                    changes += self._published.changes_of(self._touched.pop(slot))
                if changes:
                    _, results = await self._owner.publish(self.name, changes)
                    self._handle_results(changes, results)
        except RedisUnavailable:
            self._failed_publications += 1
            self._owner.reload_later(self)  # which publishes again what Redis lacks by then
        finally:
            self._publishing = None

    def _handle_results(self, changes: list[PackedChange], results: list[Any]) -> None:
        """Follow changes that Redis refused: another node was first, or newer."""
        if b"taken" in results:  # this room refused the other owner's toolkit, too
            self._reload()
        for change, result in zip(changes, results, strict=True):
            if change[0] == "in" and result == 0:
                self._disconnect_replaced(change[1], change[2])
            elif change[0] == "aside" and result == 0:
                self._republish(change[4])
            if result == b"taken" and self._published.mark_lost(*change[1:4]):
                self._unregister_lost(change[1], change[3])

    def _disconnect_replaced(self, slot: bytes, epoch: int) -> None:
        """Disconnect a participant whose instance has a newer connection at another node."""
        session = self._session_in(slot)
        if session is not None and session.connection.participant.epoch == epoch:
            session.replaced()
            self._hub.leave(self.name, session)

    def _republish(self, slot: bytes) -> None:
        """Publish a participant again whose slot was taken over before it was freed."""
        self._published.mark_unpublished(slot)
        session = self._session_in(slot)
        if session is not None:
            self._touched[slot] = session.connection.participant

    def _unregister_lost(self, slot: bytes, key: bytes) -> None:
        session = self._session_in(slot)
        if session is not None:
            for lost in unregister_named(self._open, session.connection.participant, key):
                _logger.warning("room %s: %s belongs to another participant", self.name, lost)

    def _session_in(self, slot: bytes) -> ConnectedSession | None:
        for session in self._open.sessions.values():
            if slot_held_by(session.connection.participant) == slot:
                return session
        return None

    def send_message(self, to: Identity | None, message: dict[str, Any], sender: Identity) -> int:
        """Send a message to remote participants, or to all; return how many listen."""
        return self.subscribers.send(to, message, sender)

    async def wait_until_published(self) -> None:
        """Wait until the running publication has ended."""
        if self._publishing is not None:
            await asyncio.wait([self._publishing])

    @property
    def is_confirmed(self) -> bool:
        """Whether Redis has confirmed all that this node published."""
        return self.is_loaded and not self._failed_publications

    @property
    def is_loaded(self) -> bool:
        """Whether the room was read, so that the other nodes know that this one holds it."""
        return self._version is not None

    async def claim(self, participant: Participant, offer: Offer, claim: Claim) -> Claim:
        """Claim a toolkit's name before it is registered here; return its place.

        While Redis is unavailable, a name that is held here, or private, is granted unasked.

        Raises:
            AlreadyExists: The name belongs to another identity.
            Unavailable: Redis is unavailable, and this node does not hold the name already; or
                the instance has a newer connection.
        """
        owner = participant.identity
        key = name_key(owner, offer.name, offer.public)
        facts = pack_offer(owner, offer)
        with self._published.claiming(participant, key):
            changes = self._published.changes_of(participant)
            changes.append(up_change(participant, key, offer.definition.digest, claim, facts))
            try:
                version, results = await self._owner.publish(self.name, changes)
            except RedisUnavailable as error:
                if not offer.public or self._state.existing(owner, offer.name, True):
                    return claim  # no other identity can claim it
                raise Unavailable("the other servers cannot be reached", executed="no") from error
            if results[-1] == b"taken":
                raise AlreadyExists(f"toolkit {offer.name} belongs to another participant")
            self._handle_results(changes[:-1], results[:-1])
            if not results[-1]:
                raise Unavailable("a newer connection of this instance is there", executed="no")
            await self._wait_for_version(version)
            self._published.mark_claimed(participant, key, facts)
            yield_name(self._open, participant, offer)
            number, base = results[-1]
            return Claim(number, base)

    async def _wait_for_version(self, version: int) -> None:
        """Wait until all changes up to a version are applied here."""
        if self._version is None or self._version >= version:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((version, reached))
        await reached

    # Applying what other nodes published

    def load(
        self, version: int, node_id: str, facts: dict[bytes, list[Any]], now_ms: int = 0
    ) -> asyncio.Future[None]:
        """Replace the room by its state in Redis, and publish what differs at this node.

        A large room is loaded in slices; deltas that arrive meanwhile are applied after it. The
        future is done when the room is loaded, or need not be any more. `now_ms` is the clock of
        Redis.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._updates.run(self._load(version, node_id, facts, now_ms), partial(_settle, done))
        return done

    def _load(
        self, version: int, node_id: str, facts: dict[bytes, list[Any]], now_ms: int
    ) -> Steps[None]:
        if self._is_closed or (self._version is not None and version < self._version):
            return  # it was read twice, and the answers arrived in reverse order
        begun, failures = self._invalidations, self._failed_publications
        snapshot = yield from snapshot_of(node_id, facts)
        for key in snapshot.invalid:
            _logger.error("room %s: the fact %r in Redis cannot be read", self.name, key)
        for _ in chain(
            [None], self._remote.apply_snapshot(snapshot), self._reserve_names(snapshot, now_ms)
        ):
            yield
            if self._invalidations != begun:
                return  # it is read again, or closed
        self._failed_publications -= failures
        present = [session.connection.participant for session in self._open.sessions.values()]
        self._pending += self._published.load(snapshot.own, present)
        self._version = version
        self.monitor.resend_report()
        self.holds.send_all()
        for participant in present:
            self.participant_changed(participant)
        self._start_publishing()
        self._wake_waiters()
        buffered, self._buffered = self._buffered, []
        for delta in buffered:
            yield from self._apply_delta(*delta)

    def _reserve_names(self, snapshot: Snapshot, now_ms: int) -> Iterator[None]:
        """Reserve the names without hosts for the time that is left to them."""
        for name, (until_ms, number, packed) in snapshot.reserved.items():
            try:
                owner, public, generation = unpack_reserved(number, packed)
            except ValueError as error:
                message = "room %s: the reserved name %r cannot be read: %s"
                _logger.error(message, self.name, name, error)
                continue
            changes = self._state.restore_reservation(owner, generation, public=public)
            self._open.feeds.publish(changes)
            self._hub.reserve_names(self._open, changes, (until_ms - now_ms) / 1000)
            yield

    def _reload(self) -> None:
        self._forget_version()
        self._owner.reload(self)

    def invalidate(self) -> None:
        """Mark the room as possibly outdated: it has to be read again."""
        self.holds.disconnected()
        self._forget_version()
        self._wake_waiters()  # the version that they wait for may never arrive

    def _forget_version(self) -> None:
        self._invalidations += 1
        self._version = None
        self._buffered = []

    def apply_delta(
        self, version: int, writer: str, is_own: bool, changes: list[list[Any]]
    ) -> None:
        """Apply the changes of one version, by this node or by another one; many in slices."""
        self._updates.run(self._apply_delta(version, writer, is_own, changes), self._update_ended)

    def _apply_delta(
        self, version: int, writer: str, is_own: bool, changes: list[list[Any]]
    ) -> Steps[None]:
        if self._version is None:
            self._buffered.append((version, writer, is_own, changes))
            return
        if self._is_closed or version <= self._version:
            return
        if [b"reset"] in changes:
            self._publish_again(version)
            return
        if version != self._version + 1:
            _logger.warning("room %s: a delta is missing, the room is read again", self.name)
            self._reload()
            return
        begun, applied = self._invalidations, True
        if is_own:
            changes = []
        for change in changes:
            applied &= self._remote.apply_change(writer, change)
            yield
            if self._invalidations != begun:
                return  # the room is read again, or closed
        self._version = version
        self._wake_waiters()
        if not applied:
            self._reload()

    def _publish_again(self, version: int) -> None:
        """Publish all participants of this node: Redis has lost the state of the room."""
        _logger.warning(
            "room %s: another program changed or deleted its keys in Redis, or Redis evicted them: "
            "this node publishes its participants again",
            self.name,
        )
        self._version = version
        self._wake_waiters()
        present = [session.connection.participant for session in self._open.sessions.values()]
        self._published.load({}, present)
        for participant in present:
            self.participant_changed(participant)
        # By then the others have published theirs; who has left meanwhile is removed.
        self._owner.reload_later(self)

    def _update_ended(self, update: Ended) -> None:
        if update.error is not None:
            message = "room %s: a bug, the room is read again"
            _logger.error(message, self.name, exc_info=update.error)
            self._reload()

    def _wake_waiters(self) -> None:
        waiters = []
        for needed, reached in self._waiters:
            if self._version is not None and needed > self._version:
                waiters.append((needed, reached))
            elif not reached.done():
                reached.set_result(None)
        self._waiters = waiters

    def remove_node(self, node: str) -> None:
        """Remove all participants of a node that has ended."""
        self._updates.run(self._remove_node(node), self._update_ended)

    def _remove_node(self, node: str) -> Steps[None]:
        yield from self._remote.remove_node(node)
        self.monitor.forget_node(node)
        self.holds.forget_node(node)

    def close(self) -> None:
        """Stop: the room has been closed at this node."""
        self._is_closed = True
        self._invalidations += 1
        self.subscribers.close()
        self.holds.close()
        for _, reached in self._waiters:
            reached.cancel()


def _settle(done: asyncio.Future[None], load: Ended) -> None:
    if done.done():  # its task was cancelled
        return
    if load.error is None:
        done.set_result(None)
    else:
        done.set_exception(load.error)
