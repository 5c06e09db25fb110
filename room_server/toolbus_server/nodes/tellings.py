"""What was told of participants of this node, beside what is so now: the difference is news.

Pure, and of one room. It makes the changes; telling them, and what comes of that, is its owner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from toolbus_server.nodes.far_facts import (
    Change,
    Told,
    hosted_facts,
    member_facts,
    name_key,
    place_held_by,
    place_of,
    up_change,
)
from toolbus_server.room_view import Member

__all__ = ["Tellings"]


class Tellings:
    """What the others know of this node's participants in a room.

    Args:
        reads_chunks: Says of a participant whether it takes large files in pieces.
    """

    def __init__(self, reads_chunks: Callable[[Member], bool]) -> None:
        self._reads_chunks = reads_chunks
        self._told: dict[bytes, Told] = {}
        self._claimed: list[tuple[str, bytes]] = []
        """Names that were asked for and are not registered here yet, with who asked."""

    def begin_with(self, told: dict[bytes, Told], here: Iterable[Member]) -> list[Change]:
        """Take what the others know as they have it; return news of those who are not here."""
        self._told = told
        places = set(map(place_held_by, here))
        gone = [place for place in told if place not in places]
        return [["out", place, told.pop(place).epoch, True] for place in gone]

    def news_of(self, member: Member) -> list[Change]:
        """Compare what was told of a participant with what is so; from now on that was told."""
        place = place_held_by(member)
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
        facts = self._facts_of(member)
        if facts != told.facts:
            told.facts = facts
            changes.append(["in", place, member.epoch, facts])
        return changes + self._news_of_toolkits(member, place, told)

    def _facts_of(self, member: Member) -> bytes:
        return member_facts(member, reads_chunks=self._reads_chunks(member))

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
        for who, key in self._claimed:
            if who == member.id and key in told.hosted:
                now.setdefault(key, told.hosted[key])
        gone = [key for key in told.hosted if key not in now]
        told.hosted = now
        return changes + [["down", place, member.epoch, key, False] for key in gone]

    @contextmanager
    def claiming(self, member: Member, key: bytes) -> Iterator[None]:
        """Take back nothing of a name as long as the block runs, which asks for it."""
        claim = (member.id, key)
        self._claimed.append(claim)
        try:
            yield
        finally:
            self._claimed.remove(claim)

    def claimed(self, member: Member, key: bytes, facts: bytes) -> None:
        """Take note that a toolkit was told of before it is registered here."""
        told = self._told_of(place_held_by(member), member.epoch)
        if told is not None:
            told.hosted[key] = facts

    def lost(self, place: bytes, epoch: int, key: bytes) -> bool:
        """Take note that a toolkit's name is another's; return whether its host was told of."""
        told = self._told_of(place, epoch)
        if told is not None:
            told.hosted.pop(key, None)
        return told is not None

    def _told_of(self, place: bytes, epoch: int) -> Told | None:
        """Find what was told of the connection that has, or had, a place."""
        told = self._told.get(place)
        return told if told is not None and told.epoch == epoch else None

    def step_aside(self, member: Member) -> list[Change]:
        """Say that a participant, which is parting by now, makes its place free and stays."""
        place = place_of(member.identity, member.instance)
        told = self._told_of(place, member.epoch)
        if told is None:
            return []
        aside = place_held_by(member)
        self._told[aside] = self._told.pop(place)
        told.facts = self._facts_of(member)
        return [["aside", place, member.epoch, told.facts, aside]]

    def forget(self, place: bytes) -> None:
        """Take what was told of a place for untold."""
        self._told.pop(place, None)
