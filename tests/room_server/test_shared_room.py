"""A room that other nodes hold too: news and the room itself come by two connections."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from support.facts import definition, member
from support.still_clock import Notebook
from toolbus.errors import Unavailable
from toolbus.wire import ParticipantId
from toolbus_server.flights import Offer
from toolbus_server.hub import Hub
from toolbus_server.limits import Limits
from toolbus_server.nodes.far_facts import (
    member_facts,
    name_key,
    offer_facts,
    place_held_by,
    place_of,
)
from toolbus_server.nodes.shared_room import SharedRoom
from toolbus_server.room_view import Member
from toolbus_server.routing import Seat
from toolbus_server.telemetry import ServerTelemetry


class Sitter:
    """Who is connected to this node."""

    def __init__(self, name: str) -> None:
        self.seat = Seat(member(name), Notebook(), reads_chunks=True)

    def replaced(self) -> None: ...

    def sent_away(self) -> None: ...


class Desk:
    """A room at this node, and what is asked for it."""

    def __init__(self) -> None:
        self.reads = 0
        self.results: list[Any] = []
        """What comes of what is told; where it is empty, all is well."""
        self.told: list[list[Any]] = []
        self.hub = hub = Hub(asyncio.get_running_loop(), Limits(), ServerTelemetry())
        self.state = hub.open("lab").room.state
        self.room = hub.open("lab").room.share = SharedRoom(hub.open("lab"), hub, self)

    def names(self) -> set[str]:
        return {each.identity.name for each in self.state.people(None)}

    def comes(self, version: int, name: str) -> None:
        """Hear that somebody came to another node."""
        self.room.hear(version, "other 1", False, [[b"in", *_fact(name)]])

    async def tell(self, _room: str, changes: list[list[Any]]) -> tuple[int, list[Any]]:
        self.told += changes
        results, self.results = self.results or [1] * len(changes), []
        return 0, results

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


async def test_who_steps_aside_stays_while_its_next_connection_comes() -> None:
    desk = Desk()
    desk.room.load(0, "me 1", {})
    desk.comes(1, "ann")
    (old,) = desk.state.people(None)
    place, epoch, _ = _fact("ann")
    leaving = replace(old, is_parting=True)
    aside = place_held_by(leaving)
    facts = member_facts(leaving, reads_chunks=True)
    desk.room.hear(2, "other 1", False, [[b"aside", place, epoch, facts, aside]])
    newer = replace(member("ann"), epoch=epoch + 1, id=ParticipantId("newer"))
    desk.room.hear(
        3, "third 1", False, [[b"in", place, epoch + 1, member_facts(newer, reads_chunks=True)]]
    )
    assert [each.is_parting for each in desk.state.people(None)].count(True) == 1
    assert len(list(desk.state.people(None))) == 2
    assert desk.state.parting_members == 1
    desk.room.hear(4, "other 1", False, [[b"out", aside, epoch, True]])
    assert [each.epoch for each in desk.state.people(None)] == [epoch + 1]
    assert desk.state.parting_members == 0


async def test_who_stepped_aside_unheard_is_there_beside_its_next_connection() -> None:
    """As where that news is lost, and the room is read anew."""
    desk = Desk()
    desk.room.load(0, "me 1", {})
    desk.comes(1, "ann")
    (old,) = desk.state.people(None)
    place, epoch, _ = _fact("ann")
    leaving = replace(old, is_parting=True)
    newer = replace(member("ann"), epoch=epoch + 1, id=ParticipantId("newer"))
    desk.room.load(
        3,
        "me 1",
        {
            b"m" + place_held_by(leaving): _told(b"other 1", leaving),
            b"m" + place: _told(b"third 1", newer),
        },
    )
    there = {each.id: each.is_parting for each in desk.state.people(None)}
    assert there == {old.id: True, newer.id: False}
    assert desk.state.parting_members == 1


async def test_who_steps_aside_too_late_for_its_next_connection_is_told_of_anew() -> None:
    desk = Desk()
    sitter = Sitter("ann")
    desk.hub.join("lab", sitter)
    desk.room.load(0, "me 1", {})
    await desk.room.told()
    desk.told, desk.results = [], [0]  # the place is taken by then
    desk.room.part()
    await desk.room.told()
    aside = place_held_by(sitter.seat.member)
    assert [change[0] for change in desk.told] == ["aside", "in"]
    assert desk.told[0][4] == desk.told[1][1] == aside
    assert desk.names() == {"ann"}


def _told(node: bytes, of: Member) -> list[Any]:
    return [node, of.epoch, member_facts(of, reads_chunks=True), []]


async def test_a_host_that_drains_is_known_as_one_to_a_node_that_comes_later() -> None:
    desk = Desk()
    host = member("host")
    host.is_draining = True
    place = place_of(host.identity, host.instance)
    told = [b"other 1", host.epoch, member_facts(host, reads_chunks=True), []]
    offer = Offer("kit", True, frozenset(), definition("kit"))
    hosted = [b"other 1", host.epoch, b"", 1, offer_facts(offer)]
    key = name_key(host.identity, "kit", True)
    facts = {b"m" + place: told, b"t" + place + b"\0" + key: hosted}
    for version in (7, 8):  # a room may be read anew, too
        desk.room.load(version, "me 1", facts)
        toolkit = desk.state.existing(host.identity, "kit", True)
        assert toolkit is not None
        assert toolkit.generations == []
        assert [each.identity.name for each in toolkit.draining] == ["host"]
    desk.room.hear(9, "other 1", False, [[b"out", place, host.epoch, False]])
    assert desk.state.existing(host.identity, "kit", True) is None


async def test_whoever_waits_for_news_is_let_go_when_the_way_to_the_others_breaks() -> None:
    desk = Desk()
    desk.room.load(7, "me 1", {})
    waiting = asyncio.ensure_future(desk.room._reached(9))
    await asyncio.sleep(0)
    desk.room.unread()
    async with asyncio.timeout(5):
        await waiting


async def test_whoever_was_followed_by_a_newer_connection_registers_nothing() -> None:
    desk = Desk()
    desk.room.load(7, "me 1", {})
    desk.results = [0]
    offer = Offer("kit", True, frozenset(), definition("kit"))
    with pytest.raises(Unavailable) as refused:
        await desk.room.claim(member("host"), offer, 3)
    assert refused.value.executed == "no"
