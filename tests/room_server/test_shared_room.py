"""A room that other nodes hold too: news and the room itself come by two connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from support.facts import definition, member
from support.still_clock import Notebook
from toolbus.errors import InvalidArguments, QuotaExceeded, Unavailable
from toolbus.wire import ParticipantId, Register, RequestId, pack_body
from toolbus_server.call_watch import CallReport
from toolbus_server.definition import KnownDefinition
from toolbus_server.flights import Offer
from toolbus_server.hub import Hub
from toolbus_server.limits import Limits
from toolbus_server.nodes import far_facts
from toolbus_server.nodes.far_facts import (
    hosted_facts,
    member_facts,
    name_key,
    offer_facts,
    place_held_by,
    place_of,
    read_hosted,
)
from toolbus_server.nodes.shared_room import SharedRoom
from toolbus_server.room_state import RoomState
from toolbus_server.room_view import Generation, Identity, Member, Toolkit
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
        self.version = 0
        """What all that is told makes of the room."""
        self.ended_nodes: set[str] = set()
        self.hub = hub = Hub(asyncio.get_running_loop(), Limits(), ServerTelemetry())
        self.state = hub.open("lab").room.state
        self.name = "me"
        self.room = hub.open("lab").room.share = SharedRoom(hub.open("lab"), hub, self)

    def names(self) -> set[str]:
        return {each.identity.name for each in self.state.people(None)}

    def comes(self, version: int, name: str) -> None:
        """Hear that somebody came to another node."""
        self.room.hear(version, "other 1", False, [[b"in", *_fact(name)]])

    async def tell(self, room: str, changes: list[list[Any]]) -> tuple[int, list[Any]]:
        self.told += changes
        results, self.results = self.results or [1] * len(changes), []
        return self.version, results

    def sits_here(self, host: Member) -> None:
        """Let a participant of this node in."""
        self.hub.open("lab").room.seats[host.id] = Seat(host, Notebook())
        self.state.join(host)

    async def registers(self, host: Member, name: str, version: str = "") -> None:
        """Let it host a toolkit, and wait until that is told."""
        self.state.register(host, definition(name, version=version), public=True)
        self.room.touch(host)
        await self.room.told()

    def seat(self, room: str, node: str, member: Member, reads_chunks: bool) -> Seat | None:
        if node in self.ended_nodes:
            return None
        return Seat(member, Notebook(), reads_chunks=reads_chunks)

    def read_anew(self, shared: SharedRoom) -> None:
        self.reads += 1

    def read_later(self, shared: SharedRoom) -> None: ...

    def say(self, node: str, room: str, to: str | None, message: dict[str, Any]) -> None: ...

    def report(self, node: str, room: str, report: CallReport) -> bool:
        return False


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


def _parting(desk: Desk, name: str) -> Member:
    """Give a participant elsewhere as it is once its node is told to stop."""
    (there,) = [each for each in desk.state.people(None) if each.identity.name == name]
    return replace(there, is_parting=True)


def _steps_aside(leaving: Member) -> list[Any]:
    """Say that it does."""
    place = place_of(leaving.identity, leaving.instance)
    facts = member_facts(leaving, reads_chunks=True)
    return [b"aside", place, leaving.epoch, facts, place_held_by(leaving)]


async def test_who_steps_aside_stays_while_its_next_connection_comes() -> None:
    desk = Desk()
    desk.room.load(0, "me 1", {})
    desk.comes(1, "ann")
    place, epoch, _ = _fact("ann")
    leaving = _parting(desk, "ann")
    aside = place_held_by(leaving)
    desk.room.hear(2, "other 1", False, [_steps_aside(leaving)])
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


async def test_who_stepped_aside_takes_no_room_from_anybody() -> None:
    """CONN-5: nor does one whose own place is taken over."""
    desk = Desk()
    desk.room.load(0, "me 1", {})
    desk.comes(1, "ann")
    desk.comes(2, "bob")
    aside = _steps_aside(_parting(desk, "ann"))

    def others() -> list[int]:
        who = [member(name) for name in ("ann", "bob", "cem")]
        return [desk.hub.elsewhere("lab", each.identity, each.instance) for each in who]

    assert others() == [1, 1, 2]
    desk.room.hear(3, "other 1", False, [aside])
    assert others() == [1, 0, 1]


async def test_who_stepped_aside_unheard_is_there_beside_its_next_connection() -> None:
    """As where that news is lost, and the room is read anew."""
    desk = Desk()
    desk.room.load(0, "me 1", {})
    desk.comes(1, "ann")
    place, epoch, _ = _fact("ann")
    leaving = _parting(desk, "ann")
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
    assert there == {leaving.id: True, newer.id: False}
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
    hosted = [b"other 1", host.epoch, b"", 1, offer_facts(host.identity, offer)]
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


async def test_of_a_host_with_many_toolkits_each_is_packed_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[str] = []

    def pack(owner: Identity, offer: Offer) -> bytes:
        packed.append(offer.name)
        return offer_facts(owner, offer)

    monkeypatch.setattr(far_facts, "offer_facts", pack)
    desk, host = Desk(), member("host")
    desk.room.load(1, "me 1", {})
    desk.sits_here(host)
    names = [f"kit{number}" for number in range(50)]
    for name in names:
        await desk.registers(host, name)
    assert packed == names
    assert [change[3] for change in desk.told[1:]] == [b"+" + name.encode() for name in names]


async def test_another_version_of_a_toolkit_is_told_and_so_is_its_end() -> None:
    desk, host = Desk(), member("host")
    desk.room.load(1, "me 1", {})
    desk.sits_here(host)
    await desk.registers(host, "kit")
    await desk.registers(host, "kit", version="2")
    desk.state.unregister(host, "kit", public=True)
    desk.room.touch(host)
    await desk.room.told()
    await desk.registers(host, "kit", version="2")
    assert [change[0] for change in desk.told[1:]] == ["up", "up", "down", "up"]


def test_what_another_node_reads_of_a_toolkit_is_what_its_host_registered() -> None:
    registered = definition("kit", "run", "walk", version="3", title="A Kit", description="Goes.")
    offer = Offer("kit", False, frozenset({"name:ann"}), registered)
    read = read_hosted(offer_facts(member("host").identity, offer))
    assert read[:3] == offer[:3]
    assert read.definition.manifest == registered.manifest
    assert read.definition.digest == registered.digest
    assert read.definition.words == registered.words
    assert read.definition.tools == registered.tools


def test_what_another_node_hosts_is_read_only_when_somebody_asks_for_it() -> None:
    registered = definition("kit", "run")
    read = read_hosted(
        offer_facts(member("host").identity, Offer("kit", True, frozenset(), registered))
    ).definition
    state = RoomState("lab", Random(1))
    host = member("host")
    state.join(host)
    state.register(host, read, public=True)
    assert isinstance(read, KnownDefinition)
    assert not read.is_read
    assert state.tool(host, state.resolve(host, "kit", None), "run").name == "run"
    assert read.is_read


def test_a_manifest_that_this_node_cannot_read_harms_only_who_asks_for_it() -> None:
    state, host = RoomState("lab", Random(1)), member("host")
    state.join(host)
    state.register(host, KnownDefinition("odd", "d" * 64, pack_body({"name": 7})), public=True)
    state.register(host, definition("kit", "run"), public=True)
    assert state.tool(host, state.resolve(host, "kit", None), "run").name == "run"
    with pytest.raises(InvalidArguments):
        state.tool(host, state.resolve(host, "odd", None), "run")


def _hosted(name: str, toolkit: str = "t") -> tuple[bytes, bytes, bytes]:
    """Give the place of a host, the key of its toolkit's name, and what it says of that."""
    who, kit = member(name), definition(toolkit)
    facts = offer_facts(who.identity, Offer(toolkit, True, frozenset(), kit))
    return place_of(who.identity, who.instance), name_key(who.identity, toolkit, True), facts


async def test_a_name_that_was_kept_before_is_kept_here_for_the_time_that_is_left() -> None:
    """REG-18."""
    desk = Desk()
    _, key, facts = _hosted("ann")
    desk.room.load(7, "me 1", {b"k" + key: [1_050, 3, facts]}, now_ms=1_000)
    toolkit = desk.state.resolve(member("bob"), "t")
    assert (toolkit.owner.name, toolkit.serving.number, toolkit.serving.hosts) == ("ann", 3, [])
    assert toolkit.reservation is not None
    async with asyncio.timeout(5):
        while toolkit.is_there:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.005)
    assert desk.state.toolkit_count == 0


async def test_a_name_that_redis_gave_to_another_is_kept_no_longer() -> None:
    """REG-18: the clocks of two nodes may differ by as long as news takes."""
    desk = Desk()
    _, key, facts = _hosted("ann")
    desk.room.load(7, "me 1", {b"k" + key: [60_000, 3, facts]}, now_ms=1_000)
    desk.comes(8, "bob")
    place, key, facts = _hosted("bob")
    up = [b"up", place, 1, key, b"", b"", 1, facts]
    desk.room.hear(9, "other 1", False, [up])
    toolkit = desk.state.resolve(member("bob"), "t")
    assert (toolkit.owner.name, len(toolkit.serving.hosts)) == ("bob", 1)


def test_what_is_said_of_a_toolkit_is_packed_once_for_those_it_is_shared_with() -> None:
    kept = Toolkit("t", member("ann").identity, public=False)
    generation = Generation(1, definition("t"))
    facts = hosted_facts(kept, generation)
    assert hosted_facts(kept, generation) is facts
    generation.shared_with = frozenset({"name:bob"})
    assert read_hosted(hosted_facts(kept, generation)).shared_with == {"name:bob"}


async def test_a_name_that_is_asked_for_is_not_taken_back_where_the_room_is_read_meanwhile() -> (
    None
):
    """REG-18: Redis has it by then, this node not yet."""
    desk, sitter = Desk(), Sitter("host")
    desk.hub.join("lab", sitter)
    desk.room.load(7, "me 1", {})
    await desk.room.told()
    desk.version = 9
    place, key, facts = _hosted("host", "kit")
    kit = definition("kit")
    asking = asyncio.create_task(
        desk.room.claim(sitter.seat.member, Offer("kit", True, frozenset(), kit), None)
    )
    await asyncio.sleep(0)
    told = [b"me 1", 1, member_facts(sitter.seat.member, reads_chunks=True), [key]]
    hosted = [b"me 1", 1, kit.digest.encode(), 1, facts]
    desk.room.load(9, "me 1", {b"m" + place: told, b"t" + place + b"\0" + key: hosted})
    assert await asking == 1
    desk.state.register(sitter.seat.member, kit, public=True)
    desk.room.touch(sitter.seat.member)
    await desk.room.told()
    assert "down" not in [change[0] for change in desk.told]


async def test_where_somebody_could_not_be_seated_what_is_kept_of_it_is_read() -> None:
    desk = Desk()
    desk.ended_nodes = {"other 1"}
    desk.room.load(7, "me 1", {})
    desk.comes(8, "ann")
    place, epoch, _ = _fact("ann")
    desk.room.hear(9, "other 1", False, [[b"out", place, epoch, True]])
    assert desk.reads == 1
    desk.room.load(9, "me 1", {})
    desk.room.hear(10, "other 1", False, [[b"out", place, epoch, True]])
    assert desk.reads == 1


async def test_what_is_granted_and_has_room_is_looked_at_again_when_all_others_know() -> None:
    """REG-1, REG-16: two may be asked for at the same time."""
    hub = Hub(asyncio.get_running_loop(), Limits(max_toolkits=1), ServerTelemetry())
    sitter = Sitter("host")
    hub.join("lab", sitter)
    open_room = hub.rooms["lab"]
    asked = asyncio.Event()
    touched: list[Member] = []

    class Slow:
        node = "here"

        async def claim(self, _member: Member, _offer: Offer, _number: int | None) -> int | None:
            await asked.wait()
            return 1

        def say(self, _to: str | None, _message: dict[str, Any]) -> int:
            return 0

        def touch(self, member: Member) -> None:
            touched.append(member)

    open_room.room.share = Slow()
    manifests = [pack_body({"name": f"k{number}", "tools": []}) for number in (1, 2)]
    first, second = [
        open_room.registry.register(sitter.seat, Register(RequestId(number), manifest, {}))
        for number, manifest in enumerate(manifests)
    ]
    assert isinstance(first, Awaitable)
    assert isinstance(second, Awaitable)
    asked.set()
    assert (await first)["generation"] == 1
    with pytest.raises(QuotaExceeded):
        await second
    assert touched == [sitter.seat.member] * 2
