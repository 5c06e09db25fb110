"""The participants of a room who are at other nodes, as what is heard of them says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from toolbus.errors import AlreadyExists
from toolbus_server.flights import Offer, Seat
from toolbus_server.hub import Hub, OpenRoom
from toolbus_server.nodes.far_facts import (
    Snapshot,
    name_key,
    place_held_by,
    read_hosted,
    read_member,
)
from toolbus_server.room_view import Member

__all__ = ["Far", "FarMembers", "drop_named", "yield_name"]

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Far:
    """A participant of another node."""

    node: str
    """That node with its incarnation."""
    member: Member


class FarMembers:
    """Seats them in the room here, and lets them go.

    Args:
        room: The room here.
        hub: Where it is.
        seat: Makes a seat for one at a node, or None where that node is gone.
        note: Told of each at a node that came, changed or went.
    """

    def __init__(
        self,
        room: OpenRoom,
        hub: Hub,
        seat: Callable[[str, str, Member, bool], Seat | None],
        note: Callable[[str, Member], None],
    ) -> None:
        self._open = room
        self._name = room.room.state.name
        self._state = room.room.state
        self._hub = hub
        self._seat = seat
        self._note = note
        self.at: dict[bytes, Far] = {}
        """By place."""
        self._unseated: set[bytes] = set()
        """Places of those whose node had ended when they were heard of."""

    def meet(self, snapshot: Snapshot) -> None:
        """Take the others and what they host as they are now."""
        self._unseated.clear()
        for place in [each for each, far in self.at.items() if not _stands(far, each, snapshot)]:
            self.leave(place, keep=True)  # one that stepped aside comes anew
        for place, (node, epoch, packed, _) in snapshot.members.items():
            with self._of_one(node):
                self._come(node.decode(), place, epoch, packed)
        for place, far in self.at.items():
            for toolkit in list(far.member.toolkits):
                key = name_key(far.member.identity, toolkit.name, toolkit.public)
                if (place, key) not in snapshot.hosted:
                    drop_named(self._open, far.member, key)
        for (place, _), (node, _, _, number, packed) in snapshot.hosted.items():
            with self._of_one(node):
                self._host(place, number, packed)

    @contextmanager
    def _of_one(self, node: bytes | str) -> Iterator[None]:
        """Take what a node tells of one participant: where it cannot be read the others count."""
        try:
            yield
        except ValueError as error:
            name = node.decode(errors="replace") if isinstance(node, bytes) else node
            words = "room %s: what node %s tells of somebody there cannot be read: %s"
            _logger.error(words, self._name, name, error)

    def apply(self, writer: str, change: list[Any]) -> bool:
        """Take one piece of news that a node has told; return whether all is known then.

        Of one whose node had ended before it could be seated, its names that are kept are not.
        """
        with self._of_one(writer):
            return self._apply(writer, change)
        return True  # to read it once more would help nobody

    def _apply(self, writer: str, change: list[Any]) -> bool:
        what, place, epoch = change[:3]
        if what == b"out" and place in self._unseated:
            self._unseated.discard(place)
            return False
        if what == b"in":
            self._come(writer, place, epoch, change[3])
        elif what == b"out":
            self.leave(place, keep=bool(change[3]))
        elif what == b"aside":
            self._step_aside(place, change[3], change[4])
        elif what == b"up":
            self._host(place, change[6], change[7])
        elif (far := self.at.get(place)) is not None:
            drop_named(self._open, far.member, change[3])
        return True

    def _come(self, node: str, place: bytes, epoch: int, packed: bytes) -> None:
        newer, reads_chunks = read_member(packed)
        own = self._open.occupants.get((newer.identity, newer.instance))
        if own is not None and place_held_by(own.seat.member) == place:
            if own.seat.member.epoch >= epoch:
                return
            own.replaced()
            self._hub.leave(self._name, own)
        known = self.at.get(place)
        if known is not None and known.node == node and known.member.epoch == epoch:
            self._revise(known.member, newer)
            self._note(node, known.member)
            return
        if known is not None:
            self.leave(place, keep=True)
        seat = self._seat(self._name, node, newer, reads_chunks)
        if seat is None:
            self._unseated.add(place)
            return
        newer.is_far, newer.node = True, node.rpartition(" ")[0]
        self.at[place] = Far(node, newer)
        self._hub.join_far(self._open, seat)
        self._note(node, newer)

    def _revise(self, member: Member, newer: Member) -> None:
        was_draining = member.is_draining
        member.revise(newer)
        member.attributes, member.offers = newer.attributes, newer.offers
        member.listens, member.watches = newer.listens, newer.watches
        if newer.is_draining and not was_draining:
            self._open.registry.publish(self._state.drain(member))
        if newer.is_parting:
            self._state.part(member)
        self._open.feeds.announce(member, was_there=True)

    def _step_aside(self, place: bytes, packed: bytes, aside: bytes) -> None:
        far = self.at.pop(place, None)
        if far is not None:
            self.at[aside] = far
            self._revise(far.member, read_member(packed)[0])
            self._note(far.node, far.member)

    def leave(self, place: bytes, *, keep: bool) -> None:
        """Let one go who is there no more; with whether its names are kept. Idempotent."""
        far = self.at.pop(place, None)
        if far is not None:
            self._hub.leave_far(self._open, far.member, reserve=keep)
            self._note(far.node, far.member)

    def _host(self, place: bytes, number: int, packed: bytes) -> None:
        far = self.at.get(place)
        if far is None:
            return
        offer = read_hosted(packed)
        yield_name(self._open, far.member, offer)
        try:
            done = self._state.register(
                far.member,
                offer.definition,
                public=offer.public,
                shared_with=offer.shared_with,
                generation=number,
            )
        except AlreadyExists:
            _logger.error("room %s: two own the toolkit %s", self._name, offer.name)
            return
        self._open.registry.publish(done.changes)

    def forget_node(self, node: str) -> None:
        """Let everybody go who was at a node that has ended."""
        for place in [place for place, far in self.at.items() if far.node == node]:
            self.leave(place, keep=True)


def _stands(far: Far, place: bytes, snapshot: Snapshot) -> bool:
    """Whether it is the same connection that has a place there."""
    node, epoch, *_ = snapshot.members.get(place, (b"", 0))
    return node == far.node.encode() and epoch == far.member.epoch


def drop_named(room: OpenRoom, member: Member, key: bytes) -> list[str]:
    """Have a participant host no more what has a name's key; return the toolkits' names."""
    state = room.room.state
    named = [t for t in member.toolkits if name_key(member.identity, t.name, t.public) == key]
    for toolkit in named:
        room.registry.publish(state.unregister(member, toolkit.name, public=toolkit.public))
    return [toolkit.name for toolkit in named]


def yield_name(room: OpenRoom, owner: Member, offer: Offer) -> None:
    """Keep a public name no longer for another than the one whom Redis has given it to."""
    if offer.public:
        room.registry.publish(room.room.state.yield_name(offer.name, owner.identity))
