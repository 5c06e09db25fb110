"""A room that other nodes hold too: news and the room itself come by two connections."""

from __future__ import annotations

import asyncio
from typing import Any

from support.facts import member
from support.still_clock import Notebook
from toolbus_server.hub import Hub
from toolbus_server.limits import Limits
from toolbus_server.nodes.far_facts import member_facts, place_of
from toolbus_server.nodes.shared_room import SharedRoom
from toolbus_server.room_view import Member
from toolbus_server.routing import Seat
from toolbus_server.telemetry import ServerTelemetry


class Desk:
    """A room at this node, and what is asked for it."""

    def __init__(self) -> None:
        self.reads = 0
        hub = Hub(asyncio.get_running_loop(), Limits(), ServerTelemetry())
        self.state = hub.open("lab").room.state
        self.room = SharedRoom(hub.open("lab"), hub, self)

    def names(self) -> set[str]:
        return {each.identity.name for each in self.state.people(None)}

    def comes(self, version: int, name: str) -> None:
        """Hear that somebody came to another node."""
        self.room.hear(version, "other 1", False, [[b"in", *_fact(name)]])

    async def tell(self, _room: str, _changes: list[list[Any]]) -> tuple[int, list[Any]]:
        return 0, []

    def seat(self, _room: str, _node: str, far: Member, reads_chunks: bool) -> Seat:
        return Seat(far, Notebook(), reads_chunks=reads_chunks)

    def read_anew(self, _room: SharedRoom) -> None:
        self.reads += 1

    def say(self, *_: object) -> None: ...


def _fact(name: str) -> tuple[bytes, int, bytes]:
    who = member(name)
    return place_of(who.identity, who.instance), who.epoch, member_facts(who, reads_chunks=True)


async def test_news_that_comes_before_the_room_itself_is_not_lost() -> None:
    desk = Desk()
    desk.comes(8, "early")
    desk.comes(9, "later")
    desk.room.load(7, "me 1", {})
    assert desk.names() == {"early", "later"}
    assert desk.reads == 0


async def test_news_that_the_room_has_already_is_not_taken_twice() -> None:
    desk = Desk()
    desk.comes(7, "early")
    place, epoch, facts = _fact("early")
    desk.room.load(7, "me 1", {b"m" + place: [b"other 1", epoch, facts, []]})
    desk.comes(8, "next")
    assert desk.names() == {"early", "next"}


async def test_a_room_is_read_anew_where_news_is_missing() -> None:
    desk = Desk()
    desk.room.load(7, "me 1", {})
    desk.comes(9, "after a gap")
    assert desk.reads == 1
    desk.comes(10, "meanwhile")
    place, epoch, facts = _fact("after a gap")
    desk.room.load(9, "me 1", {b"m" + place: [b"other 1", epoch, facts, []]})
    assert desk.names() == {"after a gap", "meanwhile"}


async def test_what_was_read_first_and_comes_last_changes_nothing() -> None:
    desk = Desk()
    place, epoch, facts = _fact("here")
    desk.room.load(9, "me 1", {b"m" + place: [b"other 1", epoch, facts, []]})
    desk.room.load(7, "me 1", {})
    assert desk.names() == {"here"}
