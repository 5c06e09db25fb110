"""One room that other nodes hold too: what is told of participants here, and heard of others.

What was told last and what is so now are compared, and the difference is told; so one that changed
is only marked (`touch`). What is heard is applied in the order of the room's version; where
one is missing the room is read anew.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from toolbus.errors import AlreadyExists, Unavailable
from toolbus_server.flights import Offer
from toolbus_server.hub import Hub, Occupant, OpenRoom
from toolbus_server.nodes.audience import Audience, Post
from toolbus_server.nodes.far_facts import (
    Change,
    Snapshot,
    name_key,
    offer_facts,
    place_held_by,
    read_kept,
    up_change,
)
from toolbus_server.nodes.far_members import FarMembers, drop_named, yield_name
from toolbus_server.nodes.redis_line import RedisAway
from toolbus_server.nodes.tellings import Tellings
from toolbus_server.room_view import Member
from toolbus_server.routing import Seat

__all__ = ["Home", "SharedRoom"]

_logger = logging.getLogger(__name__)


class Home(Post, Protocol):
    """The node whose room it is."""

    name: str

    async def tell(self, room: str, changes: list[Change]) -> tuple[int, list[Any]]:
        """Tell all nodes; give the version and what came of each change. Raises `RedisAway`."""

    def seat(self, room: str, node: str, member: Member, reads_chunks: bool) -> Seat | None:
        """Make a seat for a participant of another node, or None where that node is gone."""

    def read_anew(self, shared: SharedRoom) -> None:
        """Ask for the room as a whole; its `load` gets it."""

    def read_later(self, shared: SharedRoom) -> None:
        """Do so in a moment, as what was told was refused."""


class SharedRoom:
    """What a node has to do for one of its rooms, for others to share it.

    Args:
        room: The room here.
        hub: Where it is.
        home: The way to the others.
    """

    def __init__(self, room: OpenRoom, hub: Hub, home: Home) -> None:
        self.name = room.room.state.name
        self.node: str = home.name
        """The name of this node."""
        self._open = room
        self._state = room.room.state
        self._hub = hub
        self._home = home
        self._version: int | None = None
        """None until the room was read."""
        self._is_in_doubt = False
        self._early: list[tuple[int, str, bool, list[list[Any]]]] = []
        """News that came before what was read; it comes by another connection."""
        self._tellings = Tellings(lambda member: room.room.seats[member.id].reads_chunks)
        self._touched: dict[bytes, Member] = {}
        self._left: list[Change] = []
        """Of who left while nobody could be told, or steps aside."""
        self._telling: asyncio.Task[None] | None = None
        self._far = FarMembers(room, hub, home.seat, self._note)
        self.audience: Audience = Audience(room, self._far.at, home)
        """Who is told what without being called."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.entering: asyncio.Task[None] | None = None
        """Reads the room, as long as it takes."""

    # What this node tells

    def touch(self, member: Member) -> None:
        """Take note that a participant of this node came, changed or went."""
        place = place_held_by(member)
        far = self._far.at.get(place)
        if far is not None and far.member.epoch < member.epoch:
            self._far.leave(place, keep=True)  # it was at another node before
        self._touched[place] = member
        self._begin_to_tell()

    def part(self) -> None:
        """Tell that this node is to stop: who is here may be at another one too from now on."""
        for occupant in self._open.occupants.values():
            member = occupant.seat.member
            self._state.part(member)
            if self.is_shared:
                self._left += self._tellings.step_aside(member)
        self._begin_to_tell()

    def _begin_to_tell(self) -> None:
        if (self._touched or self._left) and self._version is not None and self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell_all())

    async def _tell_all(self) -> None:
        try:
            while self._touched or self._left:
                touched, self._touched = self._touched, {}
                changes, self._left = self._left, []
                for member in touched.values():
                    changes += self._tellings.news_of(member)
                if changes:
                    _, results = await self._home.tell(self.name, changes)
                    self._heed(changes, results)
        except RedisAway:
            self._is_in_doubt = True
            self._home.read_later(self)  # where Redis is back, or takes it by then, it is told anew
        finally:
            self._telling = None

    def _heed(self, changes: list[Change], results: list[Any]) -> None:
        """Follow what Redis has refused: here, too, others were first, or newer."""
        if b"taken" in results:  # theirs, too, was refused here as long as it was there twice
            self._begin_anew()
        for change, result in zip(changes, results, strict=True):
            if change[0] == "in" and result == 0:
                self._make_place(change[1], change[2])
            elif change[0] == "aside" and result == 0:
                self._tell_anew(change[4])
            if result == b"taken" and self._tellings.lost(*change[1:4]):
                self._lose(change[1], change[3])

    def _make_place(self, place: bytes, epoch: int) -> None:
        """Send away who came after a newer connection of its instance, at another node."""
        occupant = self._at(place)
        if occupant is not None and occupant.seat.member.epoch == epoch:
            occupant.replaced()
            self._hub.leave(self.name, occupant)

    def _tell_anew(self, place: bytes) -> None:
        """Tell of one whose next connection was told of before it had stepped aside."""
        self._tellings.forget(place)
        occupant = self._at(place)
        if occupant is not None:
            self._touched[place] = occupant.seat.member

    def _lose(self, place: bytes, key: bytes) -> None:
        occupant = self._at(place)
        if occupant is not None:
            for lost in drop_named(self._open, occupant.seat.member, key):
                _logger.warning("room %s: %s is another's", self.name, lost)

    def _at(self, place: bytes) -> Occupant | None:
        seated = self._open.occupants.values()
        return next((each for each in seated if place_held_by(each.seat.member) == place), None)

    def say(self, to: str | None, message: dict[str, Any]) -> int:
        """Send a message to those of a name at other nodes, or to all; return how many listen."""
        return self.audience.say(to, message)

    def _note(self, node: str, member: Member) -> None:
        self.audience.note(node, member)

    async def told(self) -> None:
        """Wait until all that was to be told has been."""
        if self._telling is not None:
            await asyncio.wait([self._telling])

    @property
    def is_settled(self) -> bool:
        """Whether all that was told was heard."""
        return self.is_shared and not self._is_in_doubt

    @property
    def is_shared(self) -> bool:
        """Whether the others know that this node holds the room."""
        return self._version is not None

    async def claim(self, member: Member, offer: Offer, number: int | None) -> int | None:
        """Ask for a toolkit's name before it is registered here; return its generation.

        While Redis is away a name that is held here, or private, is given without asking.

        Raises:
            AlreadyExists: The name is another identity's.
            Unavailable: Redis is away, and this node does not hold the name already; or a newer
                connection of the same instance is there.
        """
        key = name_key(member.identity, offer.name, offer.public)
        with self._tellings.claiming(member, key):
            return await self._claim(member, offer, number, key)

    async def _claim(
        self, member: Member, offer: Offer, number: int | None, key: bytes
    ) -> int | None:
        place = place_held_by(member)
        facts, digest = offer_facts(member.identity, offer), offer.definition.digest
        changes = self._tellings.news_of(member)
        changes.append(up_change(member, place, key, digest, number or 0, facts))
        try:
            version, results = await self._home.tell(self.name, changes)
        except RedisAway as away:
            if not offer.public or self._state.existing(member.identity, offer.name, True):
                return number  # nobody else can want it, or has it
            raise Unavailable("the other servers cannot be asked", executed="no") from away
        if results[-1] == b"taken":
            raise AlreadyExists(f"toolkit {offer.name} belongs to another participant")
        self._heed(changes[:-1], results[:-1])
        if not results[-1]:
            raise Unavailable("a newer connection of this instance is there", executed="no")
        await self._reached(version)
        self._tellings.claimed(member, key, facts)
        yield_name(self._open, member, offer)
        return int(results[-1])

    async def _reached(self, version: int) -> None:
        """Wait until what was so before a version is known here."""
        if self._version is None or self._version >= version:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((version, reached))
        await reached

    # What it hears

    def load(self, version: int, me: str, facts: dict[bytes, list[Any]], now_ms: int = 0) -> None:
        """Take the room as it stands, and tell what is not so any more of this node's own.

        Args:
            version: Of the room.
            me: This node with its incarnation.
            facts: What Redis holds of it.
            now_ms: The clock of Redis.
        """
        if self._version is not None and version < self._version:
            return  # it was read twice, and what was asked for first came last
        self._is_in_doubt = False
        snapshot = Snapshot.of(me, facts)
        for key in snapshot.unread:
            _logger.error("room %s: what Redis has as %r cannot be read", self.name, key)
        self._far.meet(snapshot)
        self._keep(snapshot, now_ms)
        here = [occupant.seat.member for occupant in self._open.occupants.values()]
        self._left += self._tellings.begin_with(snapshot.own, here)
        self._version = version
        self.audience.report_anew()
        for member in here:
            self.touch(member)
        self._begin_to_tell()
        self._wake()
        early, self._early = self._early, []
        for news in early:
            self.hear(*news)

    def _keep(self, snapshot: Snapshot, now_ms: int) -> None:
        """Keep the names that nobody serves, for the time that is left to them."""
        for name, (until_ms, number, packed) in snapshot.kept.items():
            try:
                owner, public, kept = read_kept(number, packed)
            except ValueError as error:
                words = "room %s: the name %r that is kept cannot be read: %s"
                _logger.error(words, self.name, name, error)
                continue
            changes = self._state.keep(owner, kept, public=public)
            self._hub.keep_far(self._open, changes, (until_ms - now_ms) / 1000)

    def _begin_anew(self) -> None:
        self._forget_version()
        self._home.read_anew(self)

    def unread(self) -> None:
        """Take note that what is known may not be so any more: the room is to be read."""
        self._forget_version()
        self._wake()  # what they wait for may never come

    def _forget_version(self) -> None:
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
        news = [] if is_own else changes
        known = [self._far.apply(writer, change) for change in news]
        self._wake()
        if not all(known):
            self._begin_anew()

    def _wake(self) -> None:
        still = []
        for needed, reached in self._waiting:
            if self._version is not None and needed > self._version:
                still.append((needed, reached))
            elif not reached.done():
                reached.set_result(None)
        self._waiting = still

    def forget_node(self, node: str) -> None:
        """Let everybody go who was at a node that has ended."""
        self._far.forget_node(node)
        self.audience.forget_node(node)

    def close(self) -> None:
        """Hear nothing more: the room has ended here."""
        self.audience.close()
        for _, reached in self._waiting:
            reached.cancel()
