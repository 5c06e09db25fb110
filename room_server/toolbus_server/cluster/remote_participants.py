"""The remote participants of a room, as other nodes publish them, and what is sent to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import AlreadyExists
from toolbus.wire import unpack_body
from toolbus_server.calls.call_state import Connection, Offer
from toolbus_server.calls.call_statistics import NodeCallReport
from toolbus_server.cluster.replication_codec import (
    Snapshot,
    name_key,
    slot_held_by,
    unpack_offer,
    unpack_participant,
)
from toolbus_server.registry.generations import Claim
from toolbus_server.registry.models import Identity, Participant, name_between, read_name_between
from toolbus_server.rooms.hub import Hub, OpenRoom
from toolbus_server.rooms.scheduling import Ended, Lane

__all__ = [
    "RemoteParticipants",
    "RemoteSubscribers",
    "SubscriberChannel",
    "unregister_named",
    "yield_name",
]

_logger = bounded_logger(__name__)


@dataclass(slots=True)
class RemoteParticipant:
    """A participant of another node."""

    node: str
    """The id of that node."""
    participant: Participant


class RemoteParticipants:
    """Adds remote participants to the room at this node, and removes them.

    Args:
        room: The room at this node.
        hub: The rooms of this node.
        connect: Creates the connection of a participant at a node; None if that node has ended.
        on_change: Called for each participant that was added, changed or removed, with its node.
    """

    def __init__(
        self,
        room: OpenRoom,
        hub: Hub,
        connect: Callable[[str, str, Participant, bool], Connection | None],
        on_change: Callable[[str, Participant], None],
    ) -> None:
        self._open = room
        self._name = room.routed.state.name
        self._state = room.routed.state
        self._hub = hub
        self._connect = connect
        self._on_change = on_change
        self.by_slot: dict[bytes, RemoteParticipant] = {}
        self._skipped: set[bytes] = set()
        """Slots of participants whose node had ended when their change arrived."""

    def apply_snapshot(self, snapshot: Snapshot) -> Iterator[None]:
        """Replace all remote participants and their toolkits by those of a snapshot, in steps."""
        self._skipped.clear()
        for slot, remote in list(self.by_slot.items()):
            node, epoch, *_ = snapshot.participants.get(slot, (b"", 0))
            if (node, epoch) != (remote.node.encode(), remote.participant.epoch):
                self.remove(slot, keep_names=True)  # one that changed its slot is added again
                yield
        for slot, (node, epoch, packed, _) in snapshot.participants.items():
            with self._log_invalid(node.decode(errors="replace")):
                self._add(node.decode(), slot, epoch, packed)
            yield
        for slot, remote in list(self.by_slot.items()):
            participant = remote.participant
            for toolkit in list(participant.toolkits):
                key = name_key(participant.identity, toolkit.name, toolkit.public)
                if (slot, key) not in snapshot.hosted:
                    unregister_named(self._open, participant, key)
                yield
        for (slot, name), (node, _, digest, number, packed) in snapshot.hosted.items():
            with self._log_invalid(node.decode(errors="replace")):
                place = snapshot.places.get(name, {}).get(digest.decode())
                self._register(slot, place or Claim(number, 0), packed)
            yield
        # The toolkits of this node's hosts are raised to the places that the other nodes know.
        for session in list(self._open.sessions.values()):
            owner = session.connection.participant
            for toolkit in list(owner.toolkits):
                places = snapshot.places.get(name_key(owner.identity, toolkit.name, toolkit.public))
                self._open.feeds.publish(self._state.adopt_places(toolkit, places or {}))
                yield

    @contextmanager
    def _log_invalid(self, node: str) -> Iterator[None]:
        """Log an invalid change of one participant, which affects no other."""
        try:
            yield
        except ValueError as error:
            message = "room %s: a change that node %s published cannot be read: %s"
            _logger.error(message, self._name, node, error)

    def apply_change(self, writer: str, change: list[Any]) -> bool:
        """Apply a change that another node published; return False if the room has to be read.

        That is so when a participant leaves whose node had ended before it was added: which of its
        names are reserved is unknown.
        """
        with self._log_invalid(writer):
            kind, slot, epoch = change[:3]
            if kind == b"out" and slot in self._skipped:
                self._skipped.discard(slot)
                return False
            if kind == b"in":
                self._add(writer, slot, epoch, change[3])
            elif kind == b"out":
                self.remove(slot, keep_names=bool(change[3]))
            elif kind == b"aside":
                self._change_slot(slot, change[3], change[4])
            elif kind == b"up":
                self._register(slot, Claim(change[6], change[8]), change[7])
            elif (remote := self.by_slot.get(slot)) is not None:
                unregister_named(self._open, remote.participant, change[3])
        return True  # also if it is invalid: reading the room again would not help

    def _add(self, node: str, slot: bytes, epoch: int, packed: bytes) -> None:
        newer, reads_chunks = unpack_participant(packed)
        own = self._open.sessions.get((newer.identity, newer.instance))
        if own is not None and slot_held_by(own.connection.participant) == slot:
            if own.connection.participant.epoch >= epoch:
                return
            own.replaced()
            self._hub.leave(self._name, own)
        known = self.by_slot.get(slot)
        if known is not None and known.node == node and known.participant.epoch == epoch:
            self._revise(known.participant, newer)
            self._on_change(node, known.participant)
            return
        if known is not None:
            self.remove(slot, keep_names=True)
        connection = self._connect(self._name, node, newer, reads_chunks)
        if connection is None:
            self._skipped.add(slot)
            return
        newer.is_remote, newer.node = True, node.rpartition(" ")[0]
        self.by_slot[slot] = RemoteParticipant(node, newer)
        self._hub.join_remote(self._open, connection)
        self._on_change(node, newer)

    def _revise(self, participant: Participant, newer: Participant) -> None:
        was_draining = participant.is_draining
        participant.apply_token(newer)
        self._hub.router.delegated.check_principal(self._open.routed, participant)
        participant.attributes, participant.offers = newer.attributes, newer.offers
        participant.receives_messages = newer.receives_messages
        participant.monitor_id = newer.monitor_id
        if newer.is_draining and not was_draining:
            self._open.feeds.publish(self._state.drain(participant))
        if newer.node_is_draining:
            self._state.mark_node_draining(participant)
        self._open.feeds.publish_participant(participant, was_present=True)

    def _change_slot(self, slot: bytes, packed: bytes, new_slot: bytes) -> None:
        remote = self.by_slot.pop(slot, None)
        if remote is not None:
            self.by_slot[new_slot] = remote
            self._revise(remote.participant, unpack_participant(packed)[0])
            self._on_change(remote.node, remote.participant)

    def remove(self, slot: bytes, *, keep_names: bool) -> None:
        """Remove a participant that has left; its names may stay reserved. Idempotent."""
        remote = self.by_slot.pop(slot, None)
        if remote is not None:
            self._hub.leave_remote(self._open, remote.participant, reserve=keep_names)
            self._on_change(remote.node, remote.participant)

    def _register(self, slot: bytes, claim: Claim, packed: bytes) -> None:
        remote = self.by_slot.get(slot)
        if remote is None:
            return
        offer = unpack_offer(packed)
        yield_name(self._open, remote.participant, offer)
        try:
            done = self._state.register(
                remote.participant,
                offer.definition,
                public=offer.public,
                shared_with=offer.shared_with,
                claim=claim,
            )
        except AlreadyExists:
            _logger.error("room %s: the toolkit %s has two owners", self._name, offer.name)
            return
        self._open.feeds.publish(done.changes)

    def remove_node(self, node: str) -> Iterator[None]:
        """Remove all participants of a node that has ended, one with each step."""
        for slot, remote in list(self.by_slot.items()):
            if remote.node == node and self.by_slot.get(slot) is remote:
                self.remove(slot, keep_names=True)
                yield


def unregister_named(room: OpenRoom, host: Participant, key: bytes) -> list[str]:
    """Unregister the toolkits of a host under a name key; return the toolkits' names."""
    state = room.routed.state
    named = [t for t in host.toolkits if name_key(host.identity, t.name, t.public) == key]
    for toolkit in named:
        room.feeds.publish(state.unregister(host, toolkit.name, public=toolkit.public))
    return [toolkit.name for toolkit in named]


def yield_name(room: OpenRoom, owner: Participant, offer: Offer) -> None:
    """End a reservation of a public name for any identity but its owner in Redis."""
    if offer.public:
        room.feeds.publish(room.routed.state.release_name(offer.name, owner.identity))


class SubscriberChannel(Protocol):
    """Sends to other nodes."""

    def send_message(self, node: str, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Send a message to participants at a node, named by `name_between`, or to all."""

    def send_report(self, node: str, room: str, report: NodeCallReport) -> bool:
        """Send a report of calls; return False if the node is unreachable or full."""


class RemoteSubscribers:
    """Sends messages and reports of one room to other nodes, and receives theirs."""

    def __init__(
        self, room: OpenRoom, remote: Mapping[bytes, RemoteParticipant], channel: SubscriberChannel
    ) -> None:
        self._open = room
        self._name = room.routed.state.name
        self._remote = remote
        self._channel = channel
        self._messages = Lane(room.feeds.scheduler)
        """Messages of remote participants, delivered one after another."""
        self._monitors: dict[str, dict[str, int]] = {}
        """By node, the participants that monitor calls, with the node's number of that monitor."""

    # Messages

    def send(self, to: Identity | None, message: dict[str, Any], sender: Identity) -> int:
        """Send a message to remote participants, or to all; return how many listen."""
        listeners = [
            remote
            for remote in self._remote.values()
            if remote.participant.receives_messages and to in (None, remote.participant.identity)
            if not self._open.routed.state.has_moved(remote.participant)
        ]
        name = None if to is None else name_between(to, sender.issuer)
        for node in {remote.node for remote in listeners}:
            self._channel.send_message(node, self._name, name, message)
        return len(listeners)

    def deliver(self, to: str | None, message: dict[str, Any]) -> None:
        """Deliver a message of a remote participant to its receivers at this node."""
        if to is None:
            local = [session.connection.participant for session in self._open.sessions.values()]
        else:
            *_, issuer = unpack_body(message["from"])[:4]
            named = self._open.routed.state.participants_of(read_name_between(to, issuer))
            local = [participant for participant in named if not participant.is_remote]
        size = len(message.get("body", b""))
        if self._messages.accepts(size):  # else it is dropped, as for a receiver that is behind
            self._messages.run(self._open.feeds.deliver(message, local), _log_bug, size)

    # Calls

    def update(self, node: str, participant: Participant) -> None:
        """Record whether a participant, which was added, changed or removed, monitors calls."""
        monitors = self._monitors.get(node, {})
        number = participant.monitor_id if participant.is_present else 0
        if number == monitors.get(participant.id, 0):
            return
        before = max(monitors.values(), default=0)
        if number:
            self._monitors.setdefault(node, monitors)[participant.id] = number
        else:
            del monitors[participant.id]
        # A node gets reports while it has a monitor, from the start for each new monitor.
        if not monitors:
            del self._monitors[node]
            self._open.feeds.monitor.stop_reports(node)
        elif number and number != before:
            send = partial(self._channel.send_report, node, self._name)
            self._open.feeds.monitor.start_reports(node, number, send)

    def close(self) -> None:
        """Send the last reports: the room has been closed at this node."""
        self._monitors.clear()
        self._open.feeds.monitor.finish_reports()


def _log_bug(delivery: Ended) -> None:
    if delivery.error is not None:
        _logger.error("a message could not be delivered", exc_info=delivery.error)
