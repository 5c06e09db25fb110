"""A replicated room: deltas and the room itself arrive on two connections, in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from support.parts.manual_clock import RecordingPort
from support.parts.models import definition, participant
from toolbus.errors import InvalidArguments, QuotaExceeded, Unavailable
from toolbus.wire import ParticipantId, Register, RequestId, pack_body, unpack_body
from toolbus.wire.body_steps import run_steps
from toolbus_server.calls.call_state import Offer
from toolbus_server.calls.call_statistics import NodeCallReport
from toolbus_server.calls.router import Connection
from toolbus_server.calls.telemetry import ServerTelemetry
from toolbus_server.cluster import replicated_room, replication_codec
from toolbus_server.cluster.replicated_room import ReplicatedRoom
from toolbus_server.cluster.replication_codec import (
    name_key,
    pack_hosted,
    pack_offer,
    pack_participant,
    slot_held_by,
    slot_of,
    unpack_offer,
    unpack_participant,
)
from toolbus_server.limits import Limits
from toolbus_server.registry.call_checks import check_grant
from toolbus_server.registry.generations import Claim
from toolbus_server.registry.models import Generation, Identity, Participant, RegisteredToolkit
from toolbus_server.registry.room_state import RoomState
from toolbus_server.registry.toolkit_definition import LazyDefinition
from toolbus_server.rooms import scheduling
from toolbus_server.rooms.hub import Hub


@pytest.fixture(autouse=True)
def _endless_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply at once what needs one slice on a machine that is not busy."""
    monkeypatch.setattr(scheduling, "SLICE_S", 1e9)


class LocalSession:
    """A session at this node."""

    def __init__(self, name: str) -> None:
        self.connection = Connection(participant(name), RecordingPort(), reads_chunks=True)

    def replaced(self) -> None: ...

    def evict(self) -> None: ...


class RoomHarness:
    """A room at this node, and its owner, which records what is requested."""

    def __init__(self) -> None:
        self.reloads = 0
        self.results: list[Any] = []
        """Results of the next changes; empty if all are accepted."""
        self.published: list[list[Any]] = []
        self.version = 0
        """The version of the room after the next changes."""
        self.ended_nodes: set[str] = set()
        self.hub = hub = Hub(asyncio.get_running_loop(), Limits(), ServerTelemetry())
        self.state = hub.open("lab").routed.state
        self.name = "me"
        self.room = hub.open("lab").routed.replication = ReplicatedRoom(hub.open("lab"), hub, self)

    def names(self) -> set[str]:
        return {each.identity.name for each in self.state.participants(None)}

    def remote_joins(self, version: int, name: str) -> None:
        """Apply a delta: a participant joined at another node."""
        self.room.apply_delta(version, "other 1", False, [[b"in", *_fact(name)]])

    async def publish(self, room: str, changes: list[list[Any]]) -> tuple[int, list[Any]]:
        self.published += changes
        accepted = [[1, 0] if change[0] == "up" else 1 for change in changes]
        results, self.results = self.results or accepted, []
        return self.version, results

    def joins_here(self, host: Participant) -> None:
        """Add a participant of this node."""
        self.hub.open("lab").routed.connections[host.id] = Connection(host, RecordingPort())
        self.state.join(host)

    async def registers(self, host: Participant, name: str, version: str = "") -> None:
        """Register a toolkit of it, and wait until that is published."""
        self.state.register(host, definition(name, version=version), public=True)
        self.room.participant_changed(host)
        await self.room.wait_until_published()

    def remote_connection(
        self, room: str, node: str, participant: Participant, reads_chunks: bool
    ) -> Connection | None:
        if node in self.ended_nodes:
            return None
        return Connection(participant, RecordingPort(), reads_chunks=reads_chunks)

    def node_id(self) -> str:
        return "me 1"

    def send_holds(self, *_: Any) -> bool:
        return True

    async def ask_holder(self, *_: Any) -> dict[str, Any]:
        raise NotImplementedError

    def reload(self, replica: ReplicatedRoom) -> None:
        self.reloads += 1

    def reload_later(self, replica: ReplicatedRoom) -> None: ...

    def exit(self, room: str, beyond: Iterable[Identity]) -> None: ...

    def send_message(
        self, node: str, room: str, to: str | None, message: dict[str, Any]
    ) -> None: ...

    def send_report(self, node: str, room: str, report: NodeCallReport) -> bool:
        return False


def _fact(name: str) -> tuple[bytes, int, bytes]:
    who = participant(name)
    return slot_of(who.identity, who.instance), who.epoch, pack_participant(who, reads_chunks=True)


def test_who_is_connected_to_an_older_node_is_never_asked_to_assess() -> None:
    """ASSESS-4: its facts have no such field, whatever it says to its own node."""
    who = participant("ann")
    who.assesses = True
    facts = pack_participant(who, reads_chunks=True)
    older = pack_body(unpack_body(facts)[:18])
    assert [unpack_participant(packed)[0].assesses for packed in (facts, older)] == [True, False]


async def test_delta_before_the_snapshot_is_applied_after_it() -> None:
    harness = RoomHarness()
    harness.remote_joins(8, "early")
    harness.remote_joins(9, "later")
    harness.room.load(7, "me 1", {})
    assert harness.names() == {"early", "later"}
    assert harness.reloads == 0


async def test_delta_that_the_snapshot_contains_is_skipped() -> None:
    harness = RoomHarness()
    harness.remote_joins(7, "early")
    slot, epoch, facts = _fact("early")
    harness.room.load(7, "me 1", {b"m" + slot: [b"other 1", epoch, facts, []]})
    harness.remote_joins(8, "next")
    assert harness.names() == {"early", "next"}


async def test_gap_in_the_deltas_reloads_the_room() -> None:
    harness = RoomHarness()
    harness.room.load(7, "me 1", {})
    harness.remote_joins(9, "after a gap")
    assert harness.reloads == 1
    harness.remote_joins(10, "meanwhile")
    slot, epoch, facts = _fact("after a gap")
    harness.room.load(9, "me 1", {b"m" + slot: [b"other 1", epoch, facts, []]})
    assert harness.names() == {"after a gap", "meanwhile"}


async def test_change_that_cannot_be_read_affects_no_other_of_its_delta() -> None:
    harness = RoomHarness()
    harness.room.load(7, "me 1", {})
    harness.room.apply_delta(8, "other 1", False, [[b"unknown"], [b"in", *_fact("ann")]])
    assert (harness.names(), harness.reloads) == ({"ann"}, 0)


async def test_older_snapshot_that_arrives_later_is_ignored() -> None:
    harness = RoomHarness()
    slot, epoch, facts = _fact("here")
    harness.room.load(9, "me 1", {b"m" + slot: [b"other 1", epoch, facts, []]})
    harness.room.load(7, "me 1", {})
    assert harness.names() == {"here"}


def _on_draining_node(harness: RoomHarness, name: str) -> Participant:
    """Return a remote participant as it is once its node is draining."""
    (there,) = [each for each in harness.state.participants(None) if each.identity.name == name]
    return replace(there, node_is_draining=True)


def _slot_change(moved: Participant) -> list[Any]:
    """Build the change that a participant moves to a slot of its own."""
    slot = slot_of(moved.identity, moved.instance)
    facts = pack_participant(moved, reads_chunks=True)
    return [b"aside", slot, moved.epoch, facts, slot_held_by(moved)]


async def test_participant_on_a_draining_node_stays_beside_its_next_connection() -> None:
    harness = RoomHarness()
    harness.room.load(0, "me 1", {})
    harness.remote_joins(1, "ann")
    slot, epoch, _ = _fact("ann")
    moved = _on_draining_node(harness, "ann")
    own_slot = slot_held_by(moved)
    harness.room.apply_delta(2, "other 1", False, [_slot_change(moved)])
    newer = replace(participant("ann"), epoch=epoch + 1, id=ParticipantId("newer"))
    harness.room.apply_delta(
        3, "third 1", False, [[b"in", slot, epoch + 1, pack_participant(newer, reads_chunks=True)]]
    )
    assert [each.node_is_draining for each in harness.state.participants(None)].count(True) == 1
    assert len(list(harness.state.participants(None))) == 2
    assert harness.state.draining_node_participant_count == 1
    harness.room.apply_delta(4, "other 1", False, [[b"out", own_slot, epoch, True]])
    assert [each.epoch for each in harness.state.participants(None)] == [epoch + 1]
    assert harness.state.draining_node_participant_count == 0


async def test_participant_on_a_draining_node_does_not_count_against_the_room() -> None:
    """CONN-5: nor does one whose own slot is taken over."""
    harness = RoomHarness()
    harness.room.load(0, "me 1", {})
    harness.remote_joins(1, "ann")
    harness.remote_joins(2, "bob")
    own_slot = _slot_change(_on_draining_node(harness, "ann"))

    def others() -> list[int]:
        who = [participant(name) for name in ("ann", "bob", "cem")]
        return [harness.hub.remote_count("lab", each.identity, each.instance) for each in who]

    assert others() == [1, 1, 2]
    harness.room.apply_delta(3, "other 1", False, [own_slot])
    assert others() == [1, 0, 1]


async def test_snapshot_has_a_moved_participant_and_its_next_connection() -> None:
    """As after a lost delta, when the room is read again."""
    harness = RoomHarness()
    harness.room.load(0, "me 1", {})
    harness.remote_joins(1, "ann")
    slot, epoch, _ = _fact("ann")
    moved = _on_draining_node(harness, "ann")
    newer = replace(participant("ann"), epoch=epoch + 1, id=ParticipantId("newer"))
    harness.room.load(
        3,
        "me 1",
        {
            b"m" + slot_held_by(moved): _participant_fact(b"other 1", moved),
            b"m" + slot: _participant_fact(b"third 1", newer),
        },
    )
    there = {each.id: each.node_is_draining for each in harness.state.participants(None)}
    assert there == {moved.id: True, newer.id: False}
    assert harness.state.draining_node_participant_count == 1


async def test_participant_whose_slot_was_taken_before_its_move_is_published_again() -> None:
    harness = RoomHarness()
    session = LocalSession("ann")
    harness.hub.join("lab", session)
    harness.room.load(0, "me 1", {})
    await harness.room.wait_until_published()
    harness.published, harness.results = [], [0]  # the slot is taken by then
    harness.room.drain()
    await harness.room.wait_until_published()
    own_slot = slot_held_by(session.connection.participant)
    assert [change[0] for change in harness.published] == ["aside", "in"]
    assert harness.published[0][4] == harness.published[1][1] == own_slot
    assert harness.names() == {"ann"}


def _participant_fact(node: bytes, of: Participant) -> list[Any]:
    return [node, of.epoch, pack_participant(of, reads_chunks=True), []]


async def test_snapshot_has_a_draining_host_as_draining() -> None:
    harness = RoomHarness()
    host = participant("host")
    host.is_draining = True
    slot = slot_of(host.identity, host.instance)
    fact = [b"other 1", host.epoch, pack_participant(host, reads_chunks=True), []]
    offer = Offer("kit", True, frozenset(), definition("kit"))
    hosted = [b"other 1", host.epoch, b"", 1, pack_offer(host.identity, offer)]
    key = name_key(host.identity, "kit", True)
    facts = {b"m" + slot: fact, b"t" + slot + b"\0" + key: hosted}
    for version in (7, 8):  # a room may be read again, too
        harness.room.load(version, "me 1", facts)
        toolkit = harness.state.existing(host.identity, "kit", True)
        assert toolkit is not None
        assert toolkit.generations == []
        assert [each.identity.name for each in toolkit.draining] == ["host"]
    harness.room.apply_delta(9, "other 1", False, [[b"out", slot, host.epoch, False]])
    assert harness.state.existing(host.identity, "kit", True) is None


async def test_waiting_for_a_version_ends_when_the_room_is_invalidated() -> None:
    harness = RoomHarness()
    harness.room.load(7, "me 1", {})
    waiting = asyncio.ensure_future(harness.room._wait_for_version(9))
    await asyncio.sleep(0)
    harness.room.invalidate()
    async with asyncio.timeout(60):
        await waiting


async def test_replaced_connection_cannot_claim_a_name() -> None:
    harness = RoomHarness()
    harness.room.load(7, "me 1", {})
    harness.results = [0]
    offer = Offer("kit", True, frozenset(), definition("kit"))
    with pytest.raises(Unavailable) as refused:
        await harness.room.claim(participant("host"), offer, Claim(3))
    assert refused.value.executed == "no"


async def test_each_of_many_toolkits_is_packed_and_published_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[str] = []

    def pack(owner: Identity, offer: Offer) -> bytes:
        packed.append(offer.name)
        return pack_offer(owner, offer)

    monkeypatch.setattr(replication_codec, "pack_offer", pack)
    harness, host = RoomHarness(), participant("host")
    harness.room.load(1, "me 1", {})
    harness.joins_here(host)
    names = [f"kit{number}" for number in range(50)]
    for name in names:
        await harness.registers(host, name)
    assert packed == names
    assert [change[3] for change in harness.published[1:]] == [
        b"+" + name.encode() for name in names
    ]


async def test_new_version_of_a_toolkit_and_its_end_are_published() -> None:
    harness, host = RoomHarness(), participant("host")
    harness.room.load(1, "me 1", {})
    harness.joins_here(host)
    await harness.registers(host, "kit")
    await harness.registers(host, "kit", version="2")
    harness.state.unregister(host, "kit", public=True)
    harness.room.participant_changed(host)
    await harness.room.wait_until_published()
    await harness.registers(host, "kit", version="2")
    assert [change[0] for change in harness.published[1:]] == ["up", "up", "down", "up"]


def test_unpacked_offer_equals_the_registered_toolkit() -> None:
    registered = definition("kit", "run", "walk", version="3", title="A Kit", description="Goes.")
    offer = Offer("kit", False, frozenset({"name:ann"}), registered)
    read = unpack_offer(pack_offer(participant("host").identity, offer))
    assert read[:3] == offer[:3]
    assert read.definition.manifest == registered.manifest
    assert read.definition.digest == registered.digest
    assert read.definition.search_text == registered.search_text
    assert read.definition.tools == registered.tools


def test_remote_manifest_is_decoded_on_first_use() -> None:
    registered = definition("kit", "run", "stop")
    read = unpack_offer(
        pack_offer(participant("host").identity, Offer("kit", True, frozenset(), registered))
    ).definition
    state = RoomState("lab", Random(1))
    host = participant("host")
    state.join(host)
    state.register(host, read, public=True)
    assert isinstance(read, LazyDefinition)
    assert not read.is_read
    assert check_grant(host, state.resolve(host, "kit", None), "run").name == "run"
    assert not read.is_read
    assert len([*read.read_steps()]) == len(registered.tools) == 2
    assert read.is_read
    assert read.manifest == registered.manifest


def test_invalid_remote_manifest_fails_only_its_own_requests() -> None:
    state, host = RoomState("lab", Random(1)), participant("host")
    state.join(host)
    state.register(host, LazyDefinition("odd", "d" * 64, "", pack_body({"name": 7})), public=True)
    state.register(host, definition("kit", "run"), public=True)
    assert check_grant(host, state.resolve(host, "kit", None), "run").name == "run"
    with pytest.raises(InvalidArguments):
        check_grant(host, state.resolve(host, "odd", None), "run")


def _hosted(name: str, toolkit: str = "t") -> tuple[bytes, bytes, bytes]:
    """Return the slot of a host, the key of its toolkit's name, and its packed offer."""
    who, kit = participant(name), definition(toolkit)
    facts = pack_offer(who.identity, Offer(toolkit, True, frozenset(), kit))
    return slot_of(who.identity, who.instance), name_key(who.identity, toolkit, True), facts


async def test_reserved_name_stays_reserved_for_the_remaining_time() -> None:
    """REG-18."""
    harness = RoomHarness()
    _, key, facts = _hosted("ann")
    harness.room.load(7, "me 1", {b"k" + key: [1_050, 3, facts]}, now_ms=1_000)
    toolkit = harness.state.resolve(participant("bob"), "t")
    assert (toolkit.owner.name, toolkit.serving.number, toolkit.serving.hosts) == ("ann", 3, [])
    assert toolkit.reservation is not None
    async with asyncio.timeout(60):
        while toolkit.is_present:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)
    assert harness.state.toolkit_count == 0


async def test_reservation_ends_when_redis_gives_the_name_to_another() -> None:
    """REG-18: the clocks of two nodes may differ by as long as a delta takes."""
    harness = RoomHarness()
    _, key, facts = _hosted("ann")
    harness.room.load(7, "me 1", {b"k" + key: [60_000, 3, facts]}, now_ms=1_000)
    harness.remote_joins(8, "bob")
    slot, key, facts = _hosted("bob")
    up = [b"up", slot, 1, key, b"", b"", 1, facts, 0]
    harness.room.apply_delta(9, "other 1", False, [up])
    toolkit = harness.state.resolve(participant("bob"), "t")
    assert (toolkit.owner.name, len(toolkit.serving.hosts)) == ("bob", 1)


def test_toolkit_is_packed_again_only_when_it_is_shared_with_others() -> None:
    kept = RegisteredToolkit("t", participant("ann").identity, public=False)
    generation = Generation(1, definition("t"))
    facts = pack_hosted(kept, generation)
    assert pack_hosted(kept, generation) is facts
    generation.shared_with = frozenset({"name:bob"})
    assert unpack_offer(pack_hosted(kept, generation)).shared_with == {"name:bob"}


async def test_claimed_name_is_not_withdrawn_when_the_room_is_read_meanwhile() -> None:
    """REG-18: Redis has it by then, this node not yet."""
    harness, session = RoomHarness(), LocalSession("host")
    harness.hub.join("lab", session)
    harness.room.load(7, "me 1", {})
    await harness.room.wait_until_published()
    harness.version = 9
    slot, key, facts = _hosted("host", "kit")
    kit = definition("kit")
    claiming = asyncio.create_task(
        harness.room.claim(
            session.connection.participant, Offer("kit", True, frozenset(), kit), Claim()
        )
    )
    await asyncio.sleep(0)
    fact = [b"me 1", 1, pack_participant(session.connection.participant, reads_chunks=True), [key]]
    hosted = [b"me 1", 1, kit.digest.encode(), 1, facts]
    harness.room.load(9, "me 1", {b"m" + slot: fact, b"t" + slot + b"\0" + key: hosted})
    assert await claiming == Claim(1, 0)
    harness.state.register(session.connection.participant, kit, public=True)
    harness.room.participant_changed(session.connection.participant)
    await harness.room.wait_until_published()
    assert "down" not in [change[0] for change in harness.published]


async def test_room_that_is_read_again_has_the_places_of_generations_in_redis() -> None:
    """REG-22: a host that superseded with this definition elsewhere has left again."""
    harness, session = RoomHarness(), LocalSession("host")
    harness.hub.join("lab", session)
    harness.room.load(7, "me 1", {})
    kit, (_, key, _) = definition("kit"), _hosted("host", "kit")
    host = session.connection.participant
    joined = harness.state.register(host, kit, public=True).generation
    records: dict[bytes, Any] = {
        key: [b"owner", 0, [kit.digest.encode(), 5, 1, 4]],
        b"#owner": 3,
        b"+odd": [[], 1],
    }
    harness.room.load(8, "me 1", {b"n" + name: record for name, record in records.items()})
    assert (joined.number, joined.base) == (5, 4)


async def test_room_is_reloaded_when_a_skipped_participant_leaves() -> None:
    harness = RoomHarness()
    harness.ended_nodes = {"other 1"}
    harness.room.load(7, "me 1", {})
    harness.remote_joins(8, "ann")
    slot, epoch, _ = _fact("ann")
    harness.room.apply_delta(9, "other 1", False, [[b"out", slot, epoch, True]])
    assert harness.reloads == 1
    harness.room.load(9, "me 1", {})
    harness.room.apply_delta(10, "other 1", False, [[b"out", slot, epoch, True]])
    assert harness.reloads == 1


async def test_quota_is_checked_again_after_a_name_was_claimed() -> None:
    """REG-1, REG-16: two may be claimed at the same time."""
    hub = Hub(asyncio.get_running_loop(), Limits(max_toolkits=1), ServerTelemetry())
    session = LocalSession("host")
    hub.join("lab", session)
    open_room = hub.rooms["lab"]
    is_granted = asyncio.Event()
    changed: list[Participant] = []

    class Slow:
        node = "here"

        async def claim(self, _participant: Participant, _offer: Offer, _claim: Claim) -> Claim:
            await is_granted.wait()
            return Claim(1, 0)

        def send_message(self, *_: Any) -> int:
            return 0

        def room_closed(self, beyond: frozenset[Identity]) -> None: ...

        def publish_hold(self, _: Any) -> None: ...

        def wait_data(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {}

        def listing_holds(self) -> None: ...

        async def ask_holder(self, *_: Any) -> dict[str, Any]:
            return {}

        def participant_changed(self, participant: Participant) -> None:
            changed.append(participant)

    open_room.routed.replication = Slow()
    manifests = [pack_body({"name": f"k{number}", "tools": []}) for number in (1, 2)]
    first, second = [
        run_steps(
            open_room.toolkit_requests.register(
                session.connection, Register(RequestId(number), manifest, {})
            )
        )
        for number, manifest in enumerate(manifests)
    ]
    assert isinstance(first, Awaitable)
    assert isinstance(second, Awaitable)
    is_granted.set()
    assert (await first)["generation"] == 1
    with pytest.raises(QuotaExceeded):
        await second
    assert changed == [session.connection.participant] * 2


# Slices


@pytest.fixture
def _one_step_a_slice(_endless_slices: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "SLICE_S", 0.0)


def _up(host: Participant, name: str) -> list[Any]:
    offer = Offer(name, True, frozenset(), definition(name))
    key, facts = name_key(host.identity, name, True), pack_offer(host.identity, offer)
    slot, digest = slot_held_by(host), offer.definition.digest.encode()
    return [b"up", slot, host.epoch, key, b"", digest, 1, facts, 0]


async def until_applied(harness: RoomHarness) -> int:
    """Run the loop until all updates are applied; return how many iterations that took."""
    iterations = 0
    async with asyncio.timeout(60):
        while harness.hub.scheduler.is_busy:
            iterations += 1
            await asyncio.sleep(0)
    return iterations


def _with_toolkits(host: Participant, count: int) -> list[list[Any]]:
    return [[b"in", *_fact(host.identity.name)], *(_up(host, f"t{n}") for n in range(count))]


@pytest.mark.usefixtures("_one_step_a_slice")
async def test_updates_of_a_large_room_are_applied_in_slices_and_in_order() -> None:
    harness, host = RoomHarness(), participant("host")
    harness.room.load(0, "me 1", {})
    await until_applied(harness)
    harness.room.apply_delta(1, "other 1", False, _with_toolkits(host, 200))
    harness.remote_joins(2, "late")
    harness.room.remove_node("other 1")
    harness.remote_joins(3, "last")
    assert harness.state.toolkit_count < 10
    assert await until_applied(harness) >= 200
    assert (harness.state.reserved_count, harness.names()) == (200, {"last"})
    assert harness.reloads == 0


@pytest.mark.usefixtures("_one_step_a_slice")
async def test_a_room_that_becomes_invalid_during_a_delta_is_complete_after_it_is_read() -> None:
    harness, host = RoomHarness(), participant("host")
    harness.room.load(0, "me 1", {})
    await until_applied(harness)
    harness.room.apply_delta(1, "other 1", False, _with_toolkits(host, 20))
    await asyncio.sleep(0)
    harness.room.invalidate()
    await until_applied(harness)
    assert 0 < harness.state.toolkit_count < 20
    slot, epoch, packed = _fact("host")
    ups = [_up(host, f"t{number}") for number in range(20)]
    facts = {b"t" + slot + b"\0" + up[3]: [b"other 1", epoch, up[5], 1, up[7]] for up in ups}
    loading = harness.room.load(1, "me 1", {b"m" + slot: [b"other 1", epoch, packed, []], **facts})
    assert not loading.done()
    harness.room.apply_delta(2, "other 1", False, [[b"out", slot, epoch, False]])
    await loading
    assert harness.state.toolkit_count == 20
    await until_applied(harness)
    assert harness.state.toolkit_count == 0


async def test_the_changes_of_many_participants_are_published_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicated_room, "DELTA_CHANGES", 4)
    harness, sizes = RoomHarness(), list[int]()
    publish = harness.publish

    async def counted(room: str, changes: list[list[Any]]) -> tuple[int, list[Any]]:
        sizes.append(len(changes))
        return await publish(room, changes)

    monkeypatch.setattr(harness, "publish", counted)
    harness.room.load(0, "me 1", {})
    for number in range(10):
        host = participant(f"host-{number}")
        harness.joins_here(host)
        harness.room.participant_changed(host)
    await harness.room.wait_until_published()
    assert sizes == [4, 4, 2]
