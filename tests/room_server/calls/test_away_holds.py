"""PROTOCOL.md, HOLD-19, on a virtual clock: what waits for a person whose caller lost its line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from support.parts.held_room import HeldRoom, held_room
from support.parts.router_harness import port_of
from toolbus import ApiScope
from toolbus.errors import QuotaExceeded
from toolbus.wire import Cancel, Failed, Holds, RequestId, Result, Resumed, unpack_body
from toolbus.wire.body_steps import run_steps
from toolbus_server import identity_usage
from toolbus_server.calls import holds as hold_rules
from toolbus_server.calls.call_state import CallHold
from toolbus_server.calls.router import Connection

AGAIN = [
    ({}, "alice", True),
    ({"digest": b"e" * 32}, "alice", False),
    ({"body": b"\x81\xa1a\x01"}, "alice", False),
    ({"kind": "answer"}, "alice", False),
    ({"approvers": ["name:carol"]}, "alice", False),
]


class AwayRoom(HeldRoom):
    """A room in which the call of alice is held as she loses her connection."""

    def __init__(self) -> None:
        super().__init__()
        self.host_connection = self.host("host", "t")
        self.bob = self.connection("bob", api=ApiScope(approve_all=["*"]))

    def lose_caller(self, **options: Any) -> CallHold:
        alice = self.connection("alice")
        hold = self.hold(self.host_connection, self.begin(alice, 1), **options)
        self.leave(alice)
        return hold

    def ask_again(self, name: str = "alice", **options: Any) -> tuple[Connection, CallHold]:
        """Let a caller make the call once more, and its host ask."""
        caller = self.connection(name, "2")
        dispatch = self.begin(caller, 1)
        port_of(self.host_connection).sent.clear()
        return caller, self.hold(self.host_connection, dispatch, **options)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """What the host was sent about its questions since it was asked again."""
        frames = port_of(self.host_connection).sent
        return [unpack_body(one.body, binary=True) for one in frames if isinstance(one, Result)]

    def listed(self, who: Connection) -> list[tuple[str, bool]]:
        page = run_steps(self.requests.holds(who, Holds(RequestId(1), {})))
        return [(hold["id"], "away" in hold) for hold in page["holds"]]


@pytest.fixture
def room() -> Iterator[AwayRoom]:
    with held_room(AwayRoom()) as room:
        yield room


def test_hold_of_a_lost_caller_is_listed_for_a_minute_and_then_ends(room: AwayRoom) -> None:
    """HOLD-19: its host was answered at once, and may withdraw it no more."""
    eve = room.connection("eve", api=ApiScope(approve=["*"]))
    hold = room.lose_caller()
    request, *_ = [one.id for one in port_of(room.host_connection).sent if type(one) is Failed]
    room.router.cancel(room.host_connection, Cancel(request, "cancelled"))
    assert room.listed(room.bob) == [(hold.id, True)]
    assert room.listed(eve) == []
    room.clock.advance(hold_rules.AWAY_S - 0.1)
    assert not hold.ended
    room.clock.advance(0.1)
    assert hold.outcome == "cancelled"
    assert room.listed(room.bob) == []


@pytest.mark.parametrize("decision", ["approve", "deny"])
@pytest.mark.parametrize(("options", "caller", "is_same"), [*AGAIN, ({}, "mallory", False)])
def test_decision_made_meanwhile_counts_once_for_the_same_call_alone(
    room: AwayRoom, decision: str, options: dict[str, Any], caller: str, is_same: bool
) -> None:
    hold = room.lose_caller()
    outcome = {"approve": "approved", "deny": "denied"}[decision]
    room.settle(room.bob, hold, decision)
    assert (hold.outcome, room.decisions) == (outcome, [])
    room.clock.advance(hold_rules.SETTLED_S - 1)
    back, again = room.ask_again(caller, **options)
    assert again.outcome == (outcome if is_same else "open")
    assert [one["outcome"] for one in room.decisions] == ([outcome] if is_same else [])
    if is_same:
        assert room.decisions[0]["by"]["name"] == "bob"
        assert back.calls[1].executed == ("maybe" if decision == "approve" else "no")
        assert again.replaces == hold.id
        # It was used: a further question of the host, and a further attempt, are asked anew.
        assert room.hold(room.host_connection, back.calls[1].dispatch_id).outcome == "open"
    room.leave(back)
    room.clock.advance(0)
    if is_same:
        assert room.ask_again()[1].outcome == "open"
        room.leave(room.connections[-1])
    room.clock.advance(hold_rules.SETTLED_S)


def test_changed_arguments_wait_for_the_caller_and_it_is_told(room: AwayRoom) -> None:
    hold = room.lose_caller()
    carol = room.connection("carol", api=replace(ApiScope.full(), approve_all=("*",)))
    room.settle(carol, hold, arguments=b"\x80")
    room.leave(carol)
    back, again = room.ask_again()
    assert (again.outcome, room.decisions[0]["arguments"]) == ("approved", b"\x80")
    resumed = [one.data["changed"] for one in port_of(back).sent if isinstance(one, Resumed)]
    assert resumed == [True]
    room.leave(back)


def test_decision_is_forgotten_after_ten_minutes(room: AwayRoom) -> None:
    room.settle(room.bob, room.lose_caller())
    room.clock.advance(hold_rules.SETTLED_S)
    back, again = room.ask_again()
    assert again.outcome == "open"
    room.leave(back)


def test_decision_of_somebody_who_lost_the_grant_is_not_used(room: AwayRoom) -> None:
    room.settle(room.bob, room.lose_caller())
    room.bob.participant.scope = ApiScope()
    back, again = room.ask_again()
    assert (again.outcome, room.decisions) == ("open", [])
    room.leave(back)


@pytest.mark.parametrize("options", [{}, {"digest": b"e" * 32}])
def test_caller_that_is_back_before_the_decision_is_asked_in_place_of_the_former(
    room: AwayRoom, options: dict[str, Any]
) -> None:
    former = room.lose_caller()
    back, again = room.ask_again(**options)
    assert (former.outcome, again.replaces) == ("cancelled", former.id)
    assert room.listed(room.bob) == [(again.id, False)]
    room.leave(back)


def test_caller_that_is_back_before_it_is_missed_is_listed_once(room: AwayRoom) -> None:
    """Its node was killed, for example, and nobody knows that yet."""
    before = room.connection("alice")
    former = room.hold(room.host_connection, room.begin(before, 1))
    back, again = room.ask_again()
    room.leave(before)
    assert former.outcome == "cancelled"
    assert room.listed(room.bob) == [(again.id, False)]
    room.leave(back)


ENDS = ["cancel", "deadline", "removed", "for another", "nested", "entered", "own", "host leaves"]


@pytest.mark.parametrize("end", ENDS)
def test_no_other_end_of_a_call_leaves_its_hold(room: AwayRoom, end: str) -> None:
    alice, host = room.connection("alice", api=ApiScope.full()), room.host_connection
    room.connection("carol")
    other = room.host("other", "u")
    caller, around = alice, dict[str, Any]()
    if end == "nested":
        caller, around = other, {"parent": room.begin(alice, 2, "u.run")}
    if end == "for another":
        around = {"on_behalf_of": "carol"}
    options: dict[str, Any] = {"entered": True} if end == "entered" else {}
    options |= {"tool": "u.run"} if end == "own" else {}
    hold = room.hold(host, room.begin(caller, 1, **around), **options)
    if end == "cancel":
        room.router.cancel(alice, Cancel(RequestId(1), "caller_gone"))
    elif end == "deadline":
        room.clock.advance(300)
    elif end == "removed":
        room.router.end_calls_of(alice, may_return=False)
    else:
        room.leave(caller)
    if end == "host leaves":
        assert hold.outcome == "open"
        room.leave(host)
    assert hold.outcome != "open"
    for connection in [*room.room.connections.values()]:
        room.leave(connection)
    room.clock.advance(0)


@pytest.mark.parametrize("is_server", [True, False])
def test_drain_ends_the_hold_of_a_lost_caller(room: AwayRoom, is_server: bool) -> None:
    """HOLD-18."""
    hold = room.lose_caller()
    room.drain(room.host_connection, is_server=is_server)
    assert hold.outcome == "lost"


@pytest.mark.parametrize(("is_read", "executed"), [(True, "maybe"), (False, "no")])
def test_answer_that_was_read_meanwhile_may_have_been_acted_upon(
    room: AwayRoom, is_read: bool, executed: str
) -> None:
    """HOLD-17."""
    hold = room.lose_caller(kind="answer")
    if is_read:
        room.read(room.bob, hold)
    back, _ = room.ask_again(kind="answer")
    assert back.calls[1].executed == executed
    room.leave(back)


def test_answer_that_was_read_before_ends_with_its_caller(room: AwayRoom) -> None:
    alice = room.connection("alice")
    hold = room.hold(room.host_connection, room.begin(alice, 1), kind="answer")
    room.read(room.bob, hold)
    room.leave(alice)
    assert hold.outcome == "cancelled"


def test_holds_and_decisions_of_lost_callers_count(
    room: AwayRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOLD-9."""
    monkeypatch.setattr(hold_rules, "MAX_OF_CALLER", 1)
    monkeypatch.setattr(identity_usage, "MAX_HELD_BYTES", 40)
    hold = room.lose_caller()
    alice = room.connection("alice", "2")
    refused = room.refusal_of_hold(room.host_connection, room.begin(alice, 2))
    assert isinstance(refused, QuotaExceeded)
    with pytest.raises(QuotaExceeded):
        room.settle(room.bob, hold)
    assert hold.outcome == "open"
    room.leave(alice)
