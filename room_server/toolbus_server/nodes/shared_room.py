"""One room that other nodes hold too: what is told of participants here, and heard of others.

What was told last and what is so now are compared, and the difference is told; so one that changed
is only marked (`touch`). What is heard is applied in the order of the room's version; where
one is missing the room is read anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from toolbus.errors import AlreadyExists, Unavailable
from toolbus_server.flights import Offer
from toolbus_server.hub import Hub, OpenRoom
from toolbus_server.nodes.far_facts import (
    Change,
    Snapshot,
    Told,
    hosted_facts,
    member_facts,
    name_key,
    offer_facts,
    place_of,
    read_hosted,
    read_member,
    up_change,
)
from toolbus_server.nodes.redis_line import RedisAway
from toolbus_server.room_view import Member, Toolkit
from toolbus_server.routing import Seat

__all__ = ["Change", "SharedRoom", "Writer"]

_logger = logging.getLogger(__name__)
Writer: TypeAlias = Callable[[str, list[Change]], Awaitable[tuple[int, list[Any]]]]
"""Tells changes of a room; gives the version and what came of each. Raises `RedisAway`."""


@dataclass(slots=True)
class _Far:
    """A participant of another node."""

    node: str
    member: Member


class SharedRoom:
    """What a node has to do for one of its rooms, for others to share it.

    Args:
        room: The room here.
        hub: Where it is.
        tell: The way to the others.
        seat: Makes a seat for a participant of another node, or None where that node is gone.
        read_anew: Asks for the room as a whole; `load` gets it.
        say: Sends a message to a node: room, for whom, and what.
    """

    def __init__(
        self,
        room: OpenRoom,
        hub: Hub,
        tell: Writer,
        seat: Callable[[str, str, Member, bool], Seat | None],
        read_anew: Callable[[SharedRoom], None],
        say: Callable[[str, str, str | None, dict[str, Any]], None],
    ) -> None:
        self.name = room.room.state.name
        self._open = room
        self._state = room.room.state
        self._hub = hub
        self._tell = tell
        self._seat = seat
        self._read_anew = read_anew
        self._say = say
        self._version: int | None = None
        """None until the room was read."""
        self._early: list[tuple[int, str, bool, list[list[Any]]]] = []
        """News that came before what was read; it comes by another connection."""
        self._told: dict[bytes, Told] = {}
        self._touched: dict[bytes, Member] = {}
        self._left: list[Change] = []
        """Of who left while nobody could be told."""
        self._telling: asyncio.Task[None] | None = None
        self._far: dict[bytes, _Far] = {}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.entering: asyncio.Task[None] | None = None
        """Reads the room, as long as it takes."""

    # What this node tells

    def touch(self, member: Member) -> None:
        """Take note that a participant of this node came, changed or went."""
        self._touched[place_of(member.identity, member.instance)] = member
        self._begin_to_tell()

    def _begin_to_tell(self) -> None:
        if (self._touched or self._left) and self._version is not None and self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell_all())

    async def _tell_all(self) -> None:
        try:
            while self._touched or self._left:
                touched, self._touched = self._touched, {}
                changes, self._left = self._left, []
                changes += [each for member in touched.values() for each in self._news_of(member)]
                if changes:
                    _, results = await self._tell(self.name, changes)
                    self._give_up_taken(changes, results)
        except RedisAway:
            pass  # all of it is told anew when it is back
        finally:
            self._telling = None

    def _give_up_taken(self, changes: list[Change], results: list[Any]) -> None:
        """Host no more what others registered first while this node was by itself."""
        if b"taken" in results:  # theirs, too, was refused here as long as it was there twice
            self._begin_anew()
        for change, result in zip(changes, results, strict=True):
            if change[0] == "in" and result == 0:
                self._make_place(change[1], change[2])
            told = self._told.get(change[1])
            if result == b"taken" and told is not None:
                told.hosted.pop(change[3], None)
                self._lose(change[1], change[3])

    def _make_place(self, place: bytes, epoch: int) -> None:
        """Send away who came after a newer connection of its instance, at another node."""
        for (identity, instance), occupant in list(self._open.occupants.items()):
            if place_of(identity, instance) == place and occupant.seat.member.epoch == epoch:
                occupant.replaced()
                self._hub.leave(self.name, occupant)

    def _lose(self, place: bytes, key: bytes) -> None:
        for occupant in self._open.occupants.values():
            member = occupant.seat.member
            if place_of(member.identity, member.instance) == place:
                for lost in self._drop_named(member, key):
                    _logger.warning("room %s: %s is another's", self.name, lost)

    def _drop_named(self, member: Member, key: bytes) -> list[str]:
        named = [t for t in member.toolkits if name_key(member.identity, t.name, t.public) == key]
        return [self._drop(member, toolkit) for toolkit in named]

    def _drop(self, member: Member, toolkit: Toolkit) -> str:
        name = toolkit.name
        self._open.registry.publish(self._state.unregister(member, name, public=toolkit.public))
        return name

    def say(self, to: str | None, message: dict[str, Any]) -> int:
        """Send a message to those of a name at other nodes, or to all; return how many listen."""
        listeners = [
            far
            for far in self._far.values()
            if far.member.listens and to in (None, far.member.identity.name)
        ]
        for node in {far.node for far in listeners}:
            self._say(node, self.name, to, message)
        return len(listeners)

    def take_message(self, to: str | None, message: dict[str, Any]) -> None:
        """Hand a message of a participant elsewhere to those here whom it is for."""
        seats = (occupant.seat.member for occupant in self._open.occupants.values())
        named = [member for member in seats if to in (None, member.identity.name)]
        self._open.feeds.deliver(message, named)

    async def told(self) -> None:
        """Wait until all that was to be told has been."""
        if self._telling is not None:
            await asyncio.wait([self._telling])

    @property
    def is_shared(self) -> bool:
        """Whether the others know that this node holds the room."""
        return self._version is not None

    def _news_of(self, member: Member) -> list[Change]:
        """Compare what was told of a participant with what is so."""
        place = place_of(member.identity, member.instance)
        told = self._told.get(place)
        if told is not None and told.epoch > member.epoch:
            return []
        if not member.is_there:
            if told is None or told.epoch != member.epoch:
                return []
            del self._told[place]
            return [["out", place, member.epoch, member.keeps_names]]
        changes: list[Change] = []
        if told is None or told.epoch != member.epoch:
            told = self._told[place] = Told(member.epoch)
        facts = member_facts(member, reads_chunks=self._open.room.seats[member.id].reads_chunks)
        if facts != told.facts:
            told.facts = facts
            changes.append(["in", place, member.epoch, facts])
        return changes + self._news_of_toolkits(member, place, told)

    def _news_of_toolkits(self, member: Member, place: bytes, told: Told) -> list[Change]:
        if member.is_draining:
            return []
        changes: list[Change] = []
        now: dict[bytes, bytes] = {}
        for toolkit in member.toolkits:
            key = name_key(member.identity, toolkit.name, toolkit.public)
            generation = next(each for each in toolkit.generations if member in each.hosts)
            facts = now[key] = hosted_facts(toolkit, generation)
            if told.hosted.get(key) != facts:
                digest = generation.definition.digest
                changes.append(up_change(member, place, key, digest, generation.number, facts))
        gone = [key for key in told.hosted if key not in now]
        told.hosted = now
        return changes + [["down", place, member.epoch, key, False] for key in gone]

    async def claim(self, member: Member, offer: Offer, number: int | None) -> int | None:
        """Ask for a toolkit's name before it is registered here; return its generation.

        While Redis is away a name that is held here, or private, is given without asking.

        Raises:
            AlreadyExists: The name is another identity's.
            Unavailable: Redis is away, and this node does not hold the name already.
        """
        place = place_of(member.identity, member.instance)
        key = name_key(member.identity, offer.name, offer.public)
        facts, digest = offer_facts(offer), offer.definition.digest
        changes = self._news_of(member)
        changes.append(up_change(member, place, key, digest, number or 0, facts))
        try:
            version, results = await self._tell(self.name, changes)
        except RedisAway as away:
            if not offer.public or self._state.existing(member.identity, offer.name, True):
                return number  # nobody else can want it, or has it
            raise Unavailable("the other servers cannot be asked", executed="no") from away
        if results[-1] == b"taken":
            raise AlreadyExists(f"toolkit {offer.name} belongs to another participant")
        await self._reached(version)
        told = self._told.get(place)
        if told is not None and told.epoch == member.epoch:
            told.hosted[key] = facts
        return int(results[-1])

    async def _reached(self, version: int) -> None:
        """Wait until what was so before a version is known here."""
        if self._version is None or self._version >= version:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((version, reached))
        await reached

    # What it hears

    def load(self, version: int, me: str, facts: dict[bytes, list[Any]]) -> None:
        """Take the room as it stands, and tell what is not so any more of this node's own."""
        if self._version is not None and version < self._version:
            return  # it was read twice, and what was asked for first came last
        snapshot = Snapshot.of(me, facts)
        self._told = snapshot.own
        self._meet(snapshot)
        self._version = version
        for occupant in self._open.occupants.values():
            self.touch(occupant.seat.member)
        here = {place_of(*key) for key in self._open.occupants}
        for place in [place for place in self._told if place not in here]:
            self._left.append(["out", place, self._told.pop(place).epoch, True])
        self._begin_to_tell()
        self._wake()
        early, self._early = self._early, []
        for news in early:
            self.hear(*news)

    def _meet(self, snapshot: Snapshot) -> None:
        """Take the others and what they host as they are now."""
        for place in [each for each in self._far if each not in snapshot.members]:
            self._on_out(place, keep=True)
        for place, (node, epoch, packed, _) in snapshot.members.items():
            self._on_in(node.decode(), place, epoch, packed)
        for place, far in self._far.items():
            for toolkit in list(far.member.toolkits):
                key = name_key(far.member.identity, toolkit.name, toolkit.public)
                if (place, key) not in snapshot.hosted:
                    self._drop(far.member, toolkit)
        for (place, _), (_, _, _, number, packed) in snapshot.hosted.items():
            self._on_up(place, number, packed)

    def _begin_anew(self) -> None:
        self.unread()
        self._read_anew(self)

    def unread(self) -> None:
        """Take note that what is known may not be so any more: the room is to be read."""
        self._version = None
        self._early = []

    def hear(self, version: int, writer: str, is_own: bool, changes: list[list[Any]]) -> None:
        """Take news of the room."""
        if self._version is None:
            self._early.append((version, writer, is_own, changes))
            return
        if version <= self._version:
            return
        if version != self._version + 1:
            _logger.warning("room %s: news is missing, it is read anew", self.name)
            self._begin_anew()
            return
        self._version = version
        for change in () if is_own else changes:
            self._apply(writer, change)
        self._wake()

    def _apply(self, writer: str, change: list[Any]) -> None:
        what, place, epoch = change[:3]
        if what == b"in":
            self._on_in(writer, place, epoch, change[3])
        elif what == b"out":
            self._on_out(place, keep=bool(change[3]))
        elif what == b"up":
            self._on_up(place, change[6], change[7])
        else:
            self._on_down(place, change[3])

    def _wake(self) -> None:
        version = self._version
        assert version is not None
        still = []
        for needed, reached in self._waiting:
            if needed > version:
                still.append((needed, reached))
            elif not reached.done():
                reached.set_result(None)
        self._waiting = still

    def _on_in(self, node: str, place: bytes, epoch: int, packed: bytes) -> None:
        newer, reads_chunks = read_member(packed)
        own = self._open.occupants.get((newer.identity, newer.instance))
        if own is not None:
            if own.seat.member.epoch >= epoch:
                return
            own.replaced()
            self._hub.leave(self.name, own)
        known = self._far.get(place)
        if known is not None and known.node == node and known.member.epoch == epoch:
            self._revise(known.member, newer)
            return
        if known is not None:
            self._on_out(place, keep=True)
        seat = self._seat(self.name, node, newer, reads_chunks)
        if seat is None:
            return
        newer.is_far = True
        self._far[place] = _Far(node, newer)
        self._hub.join_far(self._open, seat)

    def _revise(self, member: Member, newer: Member) -> None:
        was_draining = member.is_draining
        member.revise(newer)
        member.attributes, member.offers = newer.attributes, newer.offers
        member.listens = newer.listens
        if newer.is_draining and not was_draining:
            self._open.registry.publish(self._state.drain(member))
        self._open.feeds.announce(member, was_there=True)

    def _on_out(self, place: bytes, *, keep: bool) -> None:
        far = self._far.pop(place, None)
        if far is not None:
            self._hub.leave_far(self._open, far.member, reserve=keep)

    def _on_up(self, place: bytes, number: int, packed: bytes) -> None:
        far = self._far.get(place)
        if far is None:
            return
        offer = read_hosted(packed)
        try:
            done = self._state.register(
                far.member,
                offer.definition,
                public=offer.public,
                shared_with=offer.shared_with,
                generation=number,
            )
        except AlreadyExists:
            _logger.error("room %s: two own the toolkit %s", self.name, offer.name)
            return
        self._open.registry.publish(done.changes)

    def _on_down(self, place: bytes, key: bytes) -> None:
        if (far := self._far.get(place)) is not None:
            self._drop_named(far.member, key)

    def forget_node(self, node: str) -> None:
        """Let everybody go who was at a node that has ended."""
        for place in [place for place, far in self._far.items() if far.node == node]:
            self._on_out(place, keep=True)

    def close(self) -> None:
        """Hear nothing more: the room has ended here."""
        for _, reached in self._waiting:
            reached.cancel()
