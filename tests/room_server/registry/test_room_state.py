"""The state of a room, without sockets: names, hosts and lists."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.parts.models import definition, listed_toolkits, participant, scope
from toolbus.errors import AlreadyExists, InvalidArguments, NoHost, NotFound
from toolbus.wire import ToolManifest
from toolbus_server.registry.call_checks import affinity_of
from toolbus_server.registry.generations import Claim
from toolbus_server.registry.models import (
    Participant,
    RegisteredToolkit,
)
from toolbus_server.registry.room_state import MAX_RESERVED, RoomState
from toolbus_server.registry.toolkit_definition import Definition

V1 = definition(version="1")
V2 = definition(version="2")
A, B = definition(description="a"), definition(description="b")


def room_with(*participants: Participant) -> RoomState:
    state = RoomState("lab", Random(1))
    for each in participants:
        state.join(each)
    return state


def listed(state: RoomState, reader: Participant) -> list[str]:
    return [each.name for each in listed_toolkits(state, reader)]


# Names


def test_of_one_owner_the_private_toolkit_has_priority() -> None:
    alice, bob = participant("alice"), participant("bob")
    state = room_with(alice, bob)
    public = state.register(alice, V1, public=True).toolkit
    private = state.register(alice, V2, public=False, shared_with=frozenset({"name:bob"})).toolkit

    assert state.resolve(bob, "t", "alice") is private
    state.unregister(alice, "t", public=False)
    assert state.resolve(bob, "t", "alice") is public


def test_a_private_toolkit_with_the_name_of_its_owner_is_told_to_who_sees_it() -> None:
    agent, bob, eve = participant("t"), participant("bob"), participant("eve")
    state = room_with(agent, bob, eve)
    state.register(agent, V1, public=False, shared_with=frozenset({"name:bob"}))

    with pytest.raises(NotFound, match=r"private one of t: invoke it with participant=t$"):
        state.resolve(bob, "t")
    with pytest.raises(NotFound, match=r"toolkit t not found$"):
        state.resolve(eve, "t")


def test_an_identity_is_issuer_and_name() -> None:
    alice, other = participant("alice"), participant("alice", issuer="evil")
    state = room_with(alice, other)
    state.register(alice, V1, public=False)

    with pytest.raises(NotFound, match=r"toolkit t not found$"):
        state.resolve(other, "t")
    with pytest.raises(NotFound):
        state.resolve(other, "t", "alice")


def test_a_public_name_belongs_to_one_identity_until_it_is_unregistered() -> None:
    alice, bob, evil = participant("alice"), participant("bob"), participant("alice", issuer="evil")
    state = room_with(alice, bob, evil)
    state.register(alice, V1, public=True)

    for other in (bob, evil):
        with pytest.raises(AlreadyExists):
            state.register(other, V1, public=True)
    state.unregister(alice, "t", public=True)
    assert state.register(bob, V1, public=True).toolkit.owner == bob.identity


def test_only_a_host_can_unregister_its_toolkit() -> None:
    alice, bob = participant("alice"), participant("bob")
    state = room_with(alice, bob)
    state.register(alice, V1, public=True)

    for who, public in ((bob, True), (alice, False)):
        with pytest.raises(NotFound):
            state.unregister(who, "t", public=public)
    assert state.resolve(bob, "t")


# Tools


# Generations


@pytest.mark.parametrize(
    ("first", "second", "supersede", "served"),
    [
        ("1.0", "1.1", False, "1.1"),
        ("1.9", "1.10", False, "1.10"),
        ("1.1", "1.0", False, "1.1"),
        ("1.0", "1.0.0", False, "1.0"),  # equal: the first one stays
        ("1.0rc1", "1.0", False, "1.0"),
        ("", "0.1", False, "0.1"),
        ("0.1", "", False, "0.1"),
        ("nightly", "0.0.dev1", False, "0.0.dev1"),  # not PEP 440: as none
        ("0.0.dev1", "nightly", False, "0.0.dev1"),
        ("", "nightly", False, ""),
        ("1.1", "1.0", True, "1.0"),
        ("1.1", "", True, ""),
    ],
)
def test_of_two_definitions_the_higher_version_or_the_superseding_one_serves(
    first: str, second: str, supersede: bool, served: str
) -> None:
    """REG-9, REG-22: the other one serves when that is gone."""
    hosts = participant("alice", "1"), participant("alice", "2")
    state = room_with(*hosts)
    toolkit = state.register(hosts[0], definition(version=first), public=True).toolkit
    added = state.register(
        hosts[1], definition(version=second), public=True, claim=Claim(supersede=supersede)
    )
    assert toolkit.serving.definition.version == served
    assert (added.generation is toolkit.serving) == (second == served)
    (change,) = added.changes
    assert (change.serving is not None) == (second == served)

    (left,) = state.leave(toolkit.serving.hosts[0])
    assert toolkit.serving.definition.version == (first if second == served else second)
    assert left.serving is not None
    assert left.serving.now is toolkit.serving


def test_a_generation_in_reserve_supersedes_with_a_new_number() -> None:
    one, two, three = (participant("alice", each) for each in "123")
    state = room_with(one, two, three)
    toolkit = state.register(one, V2, public=True).toolkit
    reserve = state.register(two, V1, public=True).generation
    state.register(three, V1, public=True, claim=Claim(supersede=True))

    assert toolkit.serving is reserve
    assert (reserve.number, reserve.base, reserve.hosts) == (3, 3, [two, three])


def test_what_followed_a_rollback_stays_when_that_is_gone() -> None:
    """REG-22: a bad 2.0 is in reserve, 1.9 had superseded it, and 1.9.1 replaces 1.9."""
    bad, back, fixed = (participant("alice", each) for each in "123")
    state = room_with(bad, back, fixed)
    toolkit = state.register(bad, definition(version="2.0"), public=True).toolkit
    claim = Claim(supersede=True)
    state.register(back, definition(version="1.9"), public=True, claim=claim)
    state.register(fixed, definition(version="1.9.1"), public=True)
    state.leave(back)
    assert toolkit.serving.definition.version == "1.9.1"


def test_a_host_that_returns_does_not_supersede_a_higher_version_again() -> None:
    """REG-10: one that came while it was away."""
    old, gone, new = (participant("alice", each) for each in "123")
    state = room_with(old, gone, new)
    toolkit = state.register(old, V2, public=True).toolkit
    state.register(gone, V1, public=True, claim=Claim(supersede=True))
    state.leave(gone)
    state.register(new, definition(version="3"), public=True)
    state.join(gone)
    state.register(gone, V1, public=True, claim=Claim(2, 2, supersede=True))
    assert [each.definition.version for each in toolkit.generations] == ["2", "1", "3"]


_CLAIMS = st.tuples(
    st.integers(1, 6), st.integers(0, 6), st.sampled_from(["", "1", "1.0", "2", "x"])
)


@given(st.lists(_CLAIMS, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_nodes_agree_on_the_order_of_generations_whatever_the_order_of_arrival(
    claims: list[tuple[int, int, str]], shuffled: Random
) -> None:
    """REG-10, REG-22: also two hosts of one definition that claim different numbers."""
    orders = []
    arrivals = list(enumerate(claims))
    for _ in range(2):
        state = room_with()
        for key, (number, base, version) in arrivals:
            host = participant("alice", str(key))
            state.join(host)
            claim = Claim(number, min(base, number))
            toolkit = state.register(host, definition(version=version), public=True, claim=claim)
        generations = toolkit.toolkit.generations
        orders.append([(each.definition.digest, each.number, each.base) for each in generations])
        shuffled.shuffle(arrivals)
    assert orders[0] == orders[1]


def test_only_a_host_of_another_definition_is_a_conflict() -> None:
    one, two = participant("alice", "1"), participant("alice", "2")
    state = room_with(one, two)
    assert state.conflict(one, V1, public=True) is None
    toolkit = state.register(one, V1, public=True).toolkit
    assert state.conflict(two, V1, public=True) is None
    assert state.conflict(one, V2, public=True) is None  # it replaces its own offer
    assert state.conflict(two, V2, public=True) is toolkit.serving
    state.drain(one)
    assert state.conflict(two, V2, public=True) is None


def test_a_host_that_reconnects_with_its_generation_keeps_it_at_a_new_server() -> None:
    one, two = participant("alice", "1"), participant("alice", "2")
    state = room_with(one, two)
    toolkit = state.register(two, V2, public=True, claim=Claim(7)).toolkit
    state.register(one, V1, public=True, claim=Claim(3))

    assert toolkit.serving.definition.digest == V2.digest
    assert [each.number for each in toolkit.generations] == [3, 7]
    assert state.register(one, definition("other"), public=True).generation.number == 8


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_of_two_definitions_that_claim_one_generation_the_same_one_serves_in_whatever_order(
    order: tuple[Definition, Definition],
) -> None:
    hosts = participant("alice", "1"), participant("alice", "2")
    state = room_with(*hosts)
    for host, version in zip(hosts, order, strict=True):
        toolkit = state.register(host, version, public=True, claim=Claim(4)).toolkit
    assert toolkit.serving.definition.digest == max(A.digest, B.digest)


def test_generations_reveal_no_registrations_of_others() -> None:
    alice, bob = participant("alice"), participant("bob")
    state = room_with(alice, bob)
    state.register(bob, definition("hidden"), public=False)
    state.register(bob, definition("hidden", version="2"), public=False)
    assert state.register(alice, V1, public=True).generation.number == 1
    state.unregister(alice, V1.manifest.name, public=True)
    assert state.register(alice, V2, public=True).generation.number == 2


def test_no_claim_uses_up_the_numbers_of_others() -> None:
    mallory, alice = participant("mallory"), participant("alice")
    state = room_with(mallory, alice)
    greedy = state.register(mallory, definition("m"), public=True, claim=Claim(2**48 - 1))
    mine = state.register(alice, V1, public=True).generation
    again = state.register(mallory, definition("m", version="2"), public=True).generation

    assert mine.number < 2**41
    assert again.number > greedy.generation.number
    assert greedy.toolkit.serving is again


def test_a_new_registration_of_a_host_leaves_its_old_generation() -> None:
    one = participant("alice")
    state = room_with(one)
    toolkit = state.register(one, V1, public=True).toolkit
    state.register(one, V2, public=True)
    state.register(one, V2, public=True)

    assert [each.definition.digest for each in toolkit.generations] == [V2.digest]
    assert toolkit.serving.hosts == [one]
    assert one.toolkits == [toolkit]


def test_a_host_in_reserve_does_not_open_what_the_serving_one_closed() -> None:
    one, two = participant("alice", "1"), participant("alice", "2")
    bob = participant("bob")
    state = room_with(one, two, bob)
    opened = frozenset({"*"})
    number = state.register(one, V1, public=False, shared_with=opened).generation.number
    toolkit = state.register(two, V2, public=False).toolkit
    assert not toolkit.is_visible_to(bob)

    state.register(one, V1, public=False, shared_with=opened, claim=Claim(number))
    assert not toolkit.is_visible_to(bob)


# Succession and leaving


def test_a_newer_connection_takes_the_toolkits_over_in_one_step() -> None:
    old, new = participant("alice"), participant("alice", "1b")
    state = room_with(old)
    toolkit = state.register(old, V1, public=True).toolkit
    state.register(old, V2, public=False)

    assert state.replace(old, new) == []
    assert toolkit.serving.hosts == [new]
    assert len(new.toolkits) == 2
    assert old.toolkits == []


def test_a_newer_connection_with_fewer_grants_takes_over_only_what_it_may_register() -> None:
    old = participant("alice")
    new = participant("alice", "1b", api=scope(register_private_toolkit=True))
    state = room_with(old)
    state.register(old, V1, public=True)
    private = state.register(old, V2, public=False).toolkit

    changes = state.replace(old, new)
    assert [(each.kind, each.toolkit.public) for each in changes] == [("toolkit_removed", True)]
    assert new.toolkits == [private]
    with pytest.raises(NotFound):
        state.resolve(participant("bob"), "t")


def test_a_toolkit_without_hosts_is_removed_with_all_its_state() -> None:
    alice, bob = participant("alice"), participant("bob")
    state = room_with(alice, bob)
    state.register(alice, V1, public=True)
    state.register(alice, V2, public=False)
    state.register(alice, definition("u"), public=True)

    assert {change.kind for change in state.leave(alice)} == {"toolkit_removed"}
    assert listed(state, bob) == []
    assert alice.toolkits == []
    assert not state.is_empty
    state.leave(bob)
    assert state.is_empty
    tables = (state._public, state._private, state._order, state._by_order)
    assert not any(tables)


# Reservation


def left_by_its_last_host(
    *others: Participant, **offer: Any
) -> tuple[RoomState, RegisteredToolkit]:
    """Make a room in which alice's toolkit "t" is reserved for her."""
    alice = participant("alice")
    state = room_with(alice, *others)
    toolkit = state.register(alice, V1, **{"public": True, **offer}).toolkit
    [change] = state.leave(alice, reserve=True)
    assert change.kind == "toolkit_changed"
    assert toolkit.reservation is not None
    return state, toolkit


def test_a_lost_toolkit_is_listed_without_hosts_and_no_other_identity_takes_its_name() -> None:
    bob = participant("bob")
    state, toolkit = left_by_its_last_host(bob)

    assert listed(state, bob) == ["t"]
    assert state.resolve(bob, "t") is toolkit
    with pytest.raises(NoHost):
        state.choose_host(toolkit)
    with pytest.raises(AlreadyExists):
        state.register(bob, V2, public=True)


@pytest.mark.parametrize("again", [V1, V2])
def test_an_owner_that_reconnects_registers_its_reserved_name_again(again: Definition) -> None:
    state, toolkit = left_by_its_last_host(participant("bob"))
    reservation = toolkit.reservation
    assert reservation is not None
    alice = participant("alice", "2")
    state.join(alice)
    done = state.register(alice, again, public=True)

    assert (done.toolkit, [change.kind for change in done.changes]) == (
        toolkit,
        ["toolkit_changed"],
    )
    assert state.choose_host(toolkit) is alice
    assert reservation.ended
    assert state.release(reservation) == []
    assert state.resolve(alice, "t") is toolkit


def test_a_reservation_that_ends_frees_the_name_and_all_its_state() -> None:
    bob = participant("bob")
    state, toolkit = left_by_its_last_host(bob, public=False, shared_with=frozenset({"*"}))
    assert listed(state, bob) == ["t"]
    assert toolkit.reservation is not None
    reservation = toolkit.reservation

    assert [change.kind for change in state.release(reservation)] == ["toolkit_removed"]
    assert state.release(reservation) == []
    assert listed(state, bob) == []
    tables = (state._public, state._private, state._order, state._by_order)
    assert not any((*tables, state._reserved))


def test_a_reservation_keeps_no_room_alive() -> None:
    state, _ = left_by_its_last_host()
    assert state.is_empty


def test_the_names_that_one_identity_can_keep_are_bounded() -> None:
    bob = participant("bob")
    state = room_with(bob)
    for number in range(MAX_RESERVED + 3):
        alice = participant("alice", str(number))
        state.join(alice)
        state.register(alice, definition(f"t{number}"), public=True)
        state.leave(alice, reserve=True)

    assert len(listed(state, bob)) == MAX_RESERVED
    assert state.register(bob, definition(f"t{MAX_RESERVED}"), public=True).changes


# Choosing a host


def affine(name: str) -> ToolManifest:
    return ToolManifest(name="run", input_schema={}, affinity=name)


def pool_of(*instances: str) -> tuple[RoomState, RegisteredToolkit]:
    hosts = [participant("alice", instance) for instance in instances]
    state = room_with(*hosts)
    for host in hosts:
        toolkit = state.register(host, V1, public=True).toolkit
    return state, toolkit


def test_an_affinity_selects_one_host_at_any_server_however_busy_it_is() -> None:
    state, toolkit = pool_of("1", "2", "3")
    keys = [f"customer-{number}" for number in range(60)]
    first = {key: state.choose_host(toolkit, key).instance for key in keys}
    assert set(first.values()) == {"1", "2", "3"}
    for host in toolkit.serving.hosts:
        host.in_flight = ord(host.instance) * 7 % 5

    restarted, same = pool_of("3", "1", "2")
    assert {key: state.choose_host(toolkit, key).instance for key in keys} == first
    assert {key: restarted.choose_host(same, key).instance for key in keys} == first


def test_a_host_that_leaves_moves_only_its_own_affinities() -> None:
    state, toolkit = pool_of("1", "2", "3")
    keys = [f"customer-{number}" for number in range(60)]
    before = {key: state.choose_host(toolkit, key).instance for key in keys}
    state.leave(toolkit.serving.hosts[0])
    after = {key: state.choose_host(toolkit, key).instance for key in keys}

    moved = {key for key in keys if before[key] != after[key]}
    assert moved == {key for key in keys if before[key] == "1"}


def test_the_affinity_of_a_call_is_the_caller_or_derived_from_the_argument() -> None:
    alice, other = participant("alice"), participant("alice", issuer="other")
    assert affinity_of(affine("none"), alice, "x") is None
    assert affinity_of(affine("caller"), alice, None) != affinity_of(affine("caller"), other, None)
    assert affinity_of(affine("customer"), alice, "7f") == "7f"
    for key in (None, "", "x" * 129):
        with pytest.raises(InvalidArguments) as refused:
            affinity_of(affine("customer"), alice, key)
        assert refused.value.details["path"] == "/affinity"
        assert refused.value.details["argument"] == "customer"


def test_of_two_hosts_drawn_at_random_the_one_with_fewer_calls_is_chosen() -> None:
    slow, *fast = hosts = [participant("alice", str(number)) for number in range(4)]
    state = room_with(*hosts)
    for host in hosts:
        toolkit = state.register(host, V1, public=True).toolkit
    slow.in_flight = 10

    chosen = [state.choose_host(toolkit) for _ in range(200)]
    assert slow not in chosen
    assert set(fast) == set(chosen)
    for host in fast:
        host.in_flight = 10
    assert slow in [state.choose_host(toolkit) for _ in range(50)]


def test_a_host_at_a_draining_node_gets_calls_only_if_there_is_no_other() -> None:
    """LEAVE-10: also for calls with an affinity."""
    parting, staying = participants = [participant("alice", str(number)) for number in range(2)]
    state = room_with(*participants)
    for host in participants:
        toolkit = state.register(host, V1, public=True).toolkit
    state.mark_node_draining(parting)
    assert {state.choose_host(toolkit) for _ in range(20)} == {staying}
    assert {state.choose_host(toolkit, str(key)) for key in range(20)} == {staying}
    state.leave(staying)
    assert state.choose_host(toolkit) is parting
    state.leave(parting)
    assert state.draining_node_participant_count == 0


# Lists


def test_a_list_is_sorted_by_name_and_continues_after_a_cursor() -> None:
    alice, bob = participant("alice"), participant("bob")
    state = room_with(alice, bob)
    for name in ("c", "a", "b"):
        state.register(bob, definition(name), public=True)
    state.register(bob, definition("b"), public=False)
    state.register(alice, definition("b"), public=False, shared_with=frozenset({"name:bob"}))

    whole = listed_toolkits(state, bob)
    assert [(t.name, t.public, t.owner.name) for t in whole] == [
        ("a", True, "bob"),
        ("b", True, "bob"),
        ("b", False, "alice"),
        ("b", False, "bob"),
        ("c", True, "bob"),
    ]
    for place, toolkit in enumerate(whole):
        rest = listed_toolkits(state, bob, toolkit.order)
        assert list(rest) == whole[place + 1 :]


def test_a_cursor_whose_toolkit_was_removed_still_has_a_position() -> None:
    alice = participant("alice")
    state = room_with(alice)
    for name in ("a", "b", "c"):
        state.register(alice, definition(name), public=True)
    cursor = state.resolve(alice, "b").order
    state.unregister(alice, "b", public=True)

    assert [t.name for t in listed_toolkits(state, alice, cursor)] == ["c"]
