"""PROTOCOL.md, HOLD-5 to HOLD-9, HOLD-14 and HOLD-17, on a virtual clock: whose time stands still,
and for how long; how many holds there may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from support.parts.held_room import DIGEST, HeldRoom, held_room
from support.parts.models import definition, participant
from support.parts.router_harness import phase, port_of
from toolbus import ApiScope
from toolbus.errors import (
    AlreadyExists,
    ApprovalDenied,
    ApprovalExpired,
    NotFound,
    QuotaExceeded,
)
from toolbus.wire import (
    Cancel,
    Event,
    Failed,
    Held,
    Holds,
    RequestId,
    Result,
    Resumed,
    Settle,
    StreamChunk,
    failed,
    pack_body,
    unpack_body,
)
from toolbus.wire.body_steps import run_steps
from toolbus_server import identity_usage
from toolbus_server.calls import holds as hold_rules
from toolbus_server.calls.holds import may_settle
from toolbus_server.calls.router import Connection
from toolbus_server.registry.models import Visibility
from toolbus_server.rooms import event_feed

APPROVER = replace(ApiScope.full(), approve_all=("*",))
ENDLESS: dict[str, Any] = {"credit_chunks": 9, "credit_bytes": 9_000}


def end_of(connection: Connection) -> tuple[str, str]:
    """Return how the last call of a caller has failed: code and executed."""
    failures = [frame for frame in port_of(connection).sent if isinstance(frame, Failed)]
    return phase(failures[-1])


def refusal_of(frame: Any) -> tuple[str, str, bool]:
    return frame.code, frame.executed, frame.retryable


def waited(connection: Connection) -> list[tuple[int, int]]:
    """Take the ids and times of the `resumed` that a caller was sent."""
    frames = port_of(connection).sent
    port_of(connection).sent = [frame for frame in frames if not isinstance(frame, Held | Resumed)]
    return [(frame.id, frame.waited_ms) for frame in frames if isinstance(frame, Resumed)]


@pytest.fixture
def room() -> Iterator[HeldRoom]:
    with held_room(HeldRoom()) as room:
        yield room


class Chain:
    """Three calls within each other, of which the innermost is made after 2 s."""

    def __init__(self, room: HeldRoom, *, reads_holds: tuple[bool, bool, bool]) -> None:
        self.room = room
        self.callers = [room.connection("alice"), room.host("one", "t"), room.host("two", "u")]
        self.last = room.host("three", "v")
        for caller, reads in zip(self.callers, reads_holds, strict=True):
            caller.reads_holds = reads
        alice, one, two = self.callers
        outer = room.begin(alice, 1, "t.run", ms=10_000)
        room.clock.advance(1)
        middle = room.begin(one, 2, "u.run", ms=8_000, parent=outer)
        room.clock.advance(1)
        self.dispatch = room.begin(two, 3, "v.run", ms=60_000, parent=middle)


def test_deadlines_of_a_call_and_of_those_around_it_move_by_the_wait(room: HeldRoom) -> None:
    """HOLD-6: at 9 s instead of 109 s, and all of them, whatever time-outs they have."""
    chain = Chain(room, reads_holds=(True, True, True))
    hold = room.hold(chain.last, chain.dispatch)
    for caller in chain.callers:
        held = port_of(caller).take(Held)
        assert (held.data["hold"], held.data["left_ms"]) == (hold.id, 300_000)
        assert held.data.get("may_settle", False) is (caller is chain.callers[0])
    room.clock.advance(100)
    room.settle(chain.callers[0], hold)
    assert [waited(caller) for caller in chain.callers] == [
        [(1, 100_000)],
        [(2, 100_000)],
        [(3, 100_000)],
    ]
    assert unpack_body(port_of(chain.last).take_result().body)["outcome"] == "approved"
    room.clock.advance(6.9)
    assert room.router.in_flight == 3
    room.clock.advance(0.2)  # the middle one, and what is nested in it
    room.clock.advance(0)
    assert end_of(chain.callers[1]) == end_of(chain.callers[2]) == ("deadline_exceeded", "maybe")
    assert port_of(chain.callers[0]).sent == []
    room.clock.advance(0.9)
    assert end_of(chain.callers[0]) == ("deadline_exceeded", "maybe")


@pytest.mark.parametrize("deaf", [0, 1, 2])
def test_hold_ends_at_the_deadline_of_a_caller_that_reads_none(room: HeldRoom, deaf: int) -> None:
    """HOLD-6: its time goes on, and it is sent nothing; that of the others stands still."""
    chain = Chain(room, reads_holds=(deaf != 0, deaf != 1, deaf != 2))
    hold = room.hold(chain.last, chain.dispatch)
    left_s = (8.0, 7.0, 7.0)[deaf]
    assert hold.ends_at == pytest.approx(room.clock.now + left_s)
    assert not any(isinstance(frame, Held) for frame in port_of(chain.callers[deaf]).sent)
    room.clock.advance(left_s)
    room.clock.advance(0)
    assert hold.outcome in ("expired", "cancelled")
    with pytest.raises(AlreadyExists, match=hold.outcome):
        room.settle(chain.callers[0], hold)
    ended = port_of(chain.callers[deaf]).sent[-1]
    assert isinstance(ended, Failed)
    assert ended.code in ("deadline_exceeded", "cancelled")
    if deaf == 2:
        assert ended.executed == "no"  # it was held before its function was entered
    room.router.cancel(chain.callers[0], Cancel(RequestId(1), "cancelled"))
    room.clock.advance(0)


def test_call_within_one_that_stands_still_stands_still_until_that_goes_on(room: HeldRoom) -> None:
    """HOLD-7: it inherits what is left to its parent, not what the clock shows."""
    alice, one = room.connection("alice"), room.host("one", "t")
    two, three = room.host("two", "u"), room.host("three", "v")
    outer = room.begin(alice, 1, ms=10_000)
    hold = room.hold(two, room.begin(one, 2, "u.run", ms=60_000, parent=outer))
    room.clock.advance(50)
    aside = room.begin(one, 3, "v.run", ms=60_000, parent=outer)
    deep = room.begin(three, 4, "t.run", ms=60_000, parent=aside)
    assert port_of(one).take(Held).id == 2
    assert port_of(one).take(Held) == Held(3, {})
    assert port_of(three).take(Held) == Held(4, {})
    brief = room.begin(one, 5, "v.run", ms=60_000, parent=outer)
    assert port_of(one).take(Held) == Held(5, {})
    room.router.answer(three, Result(brief, b"\x91\x00"))  # its end is all that follows
    port_of(one).take_result()
    room.clock.advance(50)
    assert room.router.in_flight == 4
    room.settle(alice, hold)
    assert waited(alice) == [(1, 100_000)]
    assert waited(one) == [(2, 100_000), (3, 50_000)]
    assert waited(three) == [(4, 50_000)]
    room.router.answer(one, Result(deep, b"\x91\x00"))
    port_of(three).sent.clear()
    port_of(one).sent.clear()
    room.clock.advance(9.9)
    assert room.router.in_flight == 3
    room.clock.advance(0.2)
    room.clock.advance(0)
    assert room.router.in_flight == 0


def observed(connection: Connection) -> tuple[int, list[Any], list[Any]]:
    """Take the event about calls that an observer was sent: held, holds, how ended calls waited."""
    data = port_of(connection).take(Event).data
    ended = [(call[0], round(call[10] / 1e6), call[11]) for call in unpack_body(data["calls"])]
    return data["held"], unpack_body(data["holds"]), ended


@pytest.mark.parametrize("reads_holds", [True, False])
def test_observer_sees_which_calls_wait_for_how_long_and_how_that_ends(
    room: HeldRoom, reads_holds: bool
) -> None:
    """WATCH-2: also a call around the one that waits, and one whose caller reads no holds."""
    chain = Chain(room, reads_holds=(True, True, reads_holds))
    eve = room.connection("eve")
    run_steps(room.feeds.subscribe(eve, ["calls"]))
    room.pass_time(0.1)
    assert observed(eve) == (0, [], [])
    hold = room.hold(chain.last, chain.dispatch)
    own = room.hold(chain.last, None, tool="t.run", call_id="own")
    room.pass_time(0.1)
    shown = [hold.id, "call-3", "v", "run", "two", "three"]
    of_own = [own.id, "own", "t", "run", "three", "three"]
    held, holds, ended = observed(eve)
    assert (held, [wait[:7] for wait in holds]) == (2, [[*shown, "open"], [*of_own, "open"]])
    assert holds[0][7] == pytest.approx(1e5)
    room.pass_time(2.9)
    room.settle(chain.callers[0], hold)
    for caller in (chain.last, *reversed(chain.callers[1:])):
        (dispatch,) = caller.dispatched
        room.router.answer(caller, Result(dispatch, b"\x91\x00"))
    room.pass_time(0.1)
    held, holds, ended = observed(eve)
    assert (held, [wait[:7] for wait in holds]) == (1, [[*shown, "approved"], [*of_own, "open"]])
    assert holds[0][7] == pytest.approx(3e6)
    assert ended == [("call-3", 3, "approved"), ("call-2", 3, None), ("call-1", 3, None)]
    room.requests.withdraw(own)
    room.pass_time(0.1)
    held, holds, ended = observed(eve)
    assert (held, [wait[6] for wait in holds], ended) == (0, ["cancelled"], [])
    room.feeds.remove(eve.participant)


def test_holds_side_by_side_within_one_call_are_counted(room: HeldRoom) -> None:
    """HOLD-6: `waited_ms` is 0 until the last of them has ended; the wait is not added up."""
    alice, one, two = room.connection("alice"), room.host("one", "t"), room.host("two", "u")
    outer = room.begin(alice, 1, ms=10_000)
    first = room.hold(two, room.begin(one, 2, "u.run", ms=60_000, parent=outer))
    room.clock.advance(20)
    second = room.hold(two, room.begin(one, 3, "u.run", ms=60_000, parent=outer))
    room.clock.advance(20)
    room.settle(alice, first)
    # The other one began within a call that stood still, and goes on with that alone.
    assert (waited(alice), waited(one)) == ([(1, 0)], [(2, 40_000)])
    room.clock.advance(20)
    room.settle(alice, second, "deny")
    assert (waited(alice), waited(one)) == ([(1, 60_000)], [(3, 0), (3, 40_000)])
    assert end_of(one) == ("deadline_exceeded", "maybe")  # its 10 s have passed meanwhile
    room.clock.advance(9.9)
    assert room.router.in_flight == 2
    room.clock.advance(0.2)
    room.clock.advance(0)


def test_silence_of_a_stream_does_not_count_while_it_is_held(room: HeldRoom) -> None:
    """HOLD-6: what was silent before it counts, what was sent meanwhile is as of its end."""
    alice, one, two = room.connection("alice"), room.host("one", "t"), room.host("two", "u")
    for number, is_sent in ((1, False), (2, True)):
        dispatch = room.begin(alice, number, ms=None, idle_ms=10_000, **ENDLESS)
        room.pass_time(6)
        hold = room.hold(two, room.begin(one, 9, "u.run", parent=dispatch))
        room.pass_time(100)
        if is_sent:
            room.router.streams.chunk(one, StreamChunk(RequestId(dispatch), 1, b"\x91\x00"))
        room.settle(alice, hold)
        room.pass_time(9.9 if is_sent else 3.9)
        assert alice.calls
        room.pass_time(1.5)  # it is looked at from time to time
        assert end_of(alice) == ("stream_stalled", "maybe")


LIMITS: list[tuple[dict[str, Any], dict[str, Any], float]] = [
    ({}, {}, 300),
    ({"approval_ms": 1_000}, {}, 1),
    ({}, {"approval_ms": 1_000}, 1),
    ({"approval_ms": 2_000}, {"approval_ms": 1_000}, 1),
    ({"approval_ms": 1_000}, {"approval_ms": 2_000}, 1),
    ({"approval_ms": 2**53}, {"approval_ms": 7_200_000}, 7_200),
    ({"approval_ms": 0}, {}, 0),
    ({}, {"approval_ms": 0}, 0),
]


@pytest.mark.parametrize(("of_call", "of_hold", "waits_s"), LIMITS)
def test_call_waits_as_long_as_caller_and_host_allow(
    room: HeldRoom, of_call: dict[str, Any], of_hold: dict[str, Any], waits_s: float
) -> None:
    """HOLD-5, HOLD-14: and then nothing has run."""
    alice, host = room.connection("alice"), room.host("host", "t")
    dispatch = room.begin(alice, 1, ms=1_000, **of_call)
    if not waits_s:
        assert isinstance(room.refusal_of_hold(host, dispatch, **of_hold), ApprovalExpired)
    else:
        room.hold(host, dispatch, **of_hold)
        room.clock.advance(waits_s - 0.1)
        assert port_of(host).sent == []
        room.clock.advance(0.1)
        assert phase(port_of(host).take_failed()) == ("approval_expired", "no")
    room.clock.advance(1.001)
    assert end_of(alice) == ("deadline_exceeded", "no" if waits_s else "maybe")


def test_decision_after_the_time_counts_as_late_although_the_timer_is_later(
    room: HeldRoom,
) -> None:
    """HOLD-5, HOLD-8: as in a loop that was busy."""
    alice, host = room.connection("alice"), room.host("host", "t")
    hold = room.hold(host, room.begin(alice, 1))
    room.clock.now += 300
    with pytest.raises(AlreadyExists, match="expired"):
        room.settle(alice, hold)
    assert phase(port_of(host).take_failed()) == ("approval_expired", "no")
    room.clock.advance(5.001)


def test_host_that_asks_again_and_again_holds_no_longer_than_once(room: HeldRoom) -> None:
    """HOLD-5: what its calls within the call wait for is not added up."""
    alice, host, other = room.connection("alice"), room.host("host", "t"), room.host("other", "u")
    dispatch = room.begin(alice, 1, ms=1_000)
    for number in range(2):
        hold = room.hold(other, room.begin(host, 2 + number, "u.run", parent=dispatch))
        room.clock.advance(299)
        room.settle(alice, hold)
    for _ in range(3):
        hold = room.hold(host, dispatch)
        room.clock.advance(99)
        room.settle(alice, hold)
    hold = room.hold(host, dispatch)
    room.clock.advance(3.1)
    assert hold.outcome == "expired"
    assert isinstance(room.refusal_of_hold(host, dispatch), ApprovalExpired)
    room.clock.advance(1.001)
    room.clock.advance(0)


def test_host_that_sends_while_it_holds_has_begun(room: HeldRoom) -> None:
    """HOLD-14: executed is not "no", whatever it says."""
    alice, host = room.connection("alice"), room.host("host", "t")
    dispatch = room.begin(alice, 1, **ENDLESS)
    room.hold(host, dispatch)
    room.router.streams.chunk(host, StreamChunk(RequestId(dispatch), 1, b"\x91\x00"))
    room.router.cancel(alice, Cancel(RequestId(1), "cancelled"))
    assert end_of(alice) == ("cancelled", "maybe")


def test_call_without_any_limit_waits_without_end(room: HeldRoom) -> None:
    """HOLD-5."""
    alice, host = room.connection("alice"), room.host("host", "t")
    hold = room.hold(host, room.begin(alice, 1, approval_ms=2**53), approval_ms=2**53)
    assert "left_ms" not in port_of(alice).take(Held).data
    room.clock.advance(1e9)
    assert not hold.ended
    room.settle(alice, hold)
    assert waited(alice) == [(1, 10**12)]
    room.clock.advance(5)


ENDS: list[tuple[str, dict[str, Any], str]] = [
    ("open", {}, "no"),
    ("open", {"entered": True}, "maybe"),
    ("queued", {}, "no"),
    ("approved", {}, "maybe"),
    ("denied", {}, "no"),
    ("asked again", {}, "no"),
    ("withdrawn", {}, "no"),
]


@pytest.mark.parametrize(("stage", "options", "executed"), ENDS)
@pytest.mark.parametrize("end", ["cancel", "caller leaves", "host leaves", "deadline"])
def test_executed_is_no_until_the_approval_is_written(
    room: HeldRoom, stage: str, options: dict[str, Any], executed: str, end: str
) -> None:
    """HOLD-14: an approval that still waits in the send queue then is never written."""
    alice, host = room.connection("alice"), room.host("host", "t")
    hold = room.hold(host, room.begin(alice, 1), **options)
    call = alice.calls[1]
    port_of(host).holds = stage == "queued"
    if stage == "withdrawn":
        room.router.cancel(host, Cancel(RequestId(hold.request_id), ""))
    elif stage != "open":
        room.settle(alice, hold, "deny" if stage == "denied" else "approve")
    if stage == "asked again":
        room.hold(host, call.dispatch_id)
    if end == "cancel":
        room.router.cancel(alice, Cancel(RequestId(1), "cancelled"))
    elif end == "caller leaves":
        room.leave(alice)
    elif end == "host leaves":
        room.leave(host)
    else:
        room.clock.advance(300)
        room.clock.advance(5.001)
    room.clock.advance(0)
    if end != "caller leaves":
        ended = port_of(alice).sent[-1]
        assert isinstance(ended, Failed)
        assert ended.executed == executed
        if end == "host leaves":
            assert ended.retryable is (executed == "no")
    port_of(host).release()
    outcomes = [
        unpack_body(frame.body)["outcome"]
        for frame in port_of(host).sent
        if isinstance(frame, Result)
    ]
    assert ("approved" in outcomes) is (stage in ("approved", "asked again"))


ANSWER_ENDS: list[tuple[list[str], str]] = [
    ([], "no"),
    (["listed"], "no"),
    (["read by another"], "no"),
    (["denied"], "no"),
    (["read"], "maybe"),
    (["answered"], "maybe"),
    (["read", "denied"], "maybe"),
    (["read", "withdrawn", "asked again"], "maybe"),
]


@pytest.mark.parametrize(("steps", "executed"), ANSWER_ENDS)
def test_executed_is_no_until_somebody_may_act_upon_what_he_read(
    room: HeldRoom, steps: list[str], executed: str
) -> None:
    """HOLD-17: and the host is told with the end of its question."""
    alice, bob, host = room.connection("alice"), room.connection("bob"), room.host("host", "t")
    dispatch = room.begin(alice, 1)
    hold = room.hold(host, dispatch, kind="answer")
    for step in steps:
        if step == "listed":
            run_steps(room.requests.holds(alice, Holds(RequestId(9), {})))
        elif step == "read":
            room.read(alice, hold)
        elif step == "read by another":
            with pytest.raises(NotFound):
                room.read(bob, hold)
        elif step == "withdrawn":
            room.router.cancel(host, Cancel(RequestId(hold.request_id), ""))
        elif step == "asked again":
            hold = room.hold(host, dispatch, kind="answer", entered=True)
        elif step == "denied":
            room.settle(alice, hold, "deny")
        else:
            room.settle(alice, hold, "answer", chunk=b"\x91\x00")
    port_of(host).sent.clear()
    is_open = not hold.ended
    room.leave(host)
    assert end_of(alice) == ("host_lost", executed)
    if is_open and "asked again" not in steps:
        assert phase(port_of(host).take_failed()) == ("host_lost", executed)


@pytest.mark.parametrize(("readers", "executed"), [("", "no"), ("a", "no"), ("ab", "maybe")])
def test_who_refuses_has_not_acted_but_others_who_have_read_may_have(
    room: HeldRoom, readers: str, executed: str
) -> None:
    """HOLD-17: whatever the host says."""
    people = {name: room.connection(name, api=APPROVER) for name in "ab"}
    host = room.host("host", "t")
    dispatch = room.begin(people["a"], 1)
    hold = room.hold(host, dispatch, kind="answer")
    for name in readers:
        room.read(people[name], hold)
    room.settle(people["a"], hold, "deny")
    room.router.answer(host, failed(RequestId(dispatch), ApprovalDenied("no", executed="no")))
    assert end_of(people["a"]) == ("approval_denied", executed)


def test_reply_of_a_host_while_it_holds_ends_the_wait_before_the_call(room: HeldRoom) -> None:
    """HOLD-6: `resumed` is about a call whose id is still taken."""
    alice, host = room.connection("alice"), room.host("host", "t")
    dispatch = room.begin(alice, 1)
    hold = room.hold(host, dispatch)
    room.router.answer(host, Result(RequestId(dispatch), b"\x91\x00"))
    assert [type(frame) for frame in port_of(alice).sent] == [Held, Resumed, Result]
    assert hold.outcome == "cancelled"
    assert phase(port_of(host).take_failed()) == ("cancelled", "no")


LEAVING = [
    ("host", "open", "lost"),
    ("host", "nested", "lost"),
    ("host", "entered", "open"),
    ("host", "approved", "approved"),
    ("server", "open", "lost"),
    ("server", "nested", "lost"),
    ("server", "entered", "open"),
    ("server", "approved", "approved"),
]


@pytest.mark.parametrize(("who", "stage", "outcome"), LEAVING)
def test_who_leaves_waits_for_no_person(room: HeldRoom, who: str, stage: str, outcome: str) -> None:
    """HOLD-18: nor begins to. What was entered goes on; what is nested cannot be made elsewhere."""
    alice, host, other = room.connection("alice"), room.host("host", "t"), room.host("other", "u")
    around: dict[str, Any] = {"parent": room.begin(alice, 1, "u.run")} if stage == "nested" else {}
    caller, retryable = (other, who == "host") if around else (alice, True)
    hold = room.hold(host, room.begin(caller, 2, **around), entered=stage == "entered")
    asks_later = room.begin(caller, 3, **around)
    if stage == "approved":
        room.settle(alice, hold)
    port_of(host).sent.clear()
    room.drain(host, is_server=who == "server")
    assert hold.outcome == outcome
    if outcome == "lost":
        assert [type(frame) for frame in port_of(host).sent] == [Failed, Cancel]
        resumed, failed = port_of(caller).sent[-2:]
        assert (type(resumed), *refusal_of(failed)) == (Resumed, "unavailable", "no", retryable)
    else:
        assert port_of(host).sent == []
    assert room.refusal_of_hold(host, asks_later).retryable is retryable
    assert room.hold(host, asks_later, entered=True).outcome == "open"
    room.leave(alice)
    room.clock.advance(0)


@pytest.mark.parametrize(("who", "within"), [("host", "open"), ("server", "lost")])
def test_own_question_ends_with_its_server_and_that_of_no_call_is_to_be_asked_again(
    room: HeldRoom, who: str, within: str
) -> None:
    """HOLD-18."""
    alice, host = room.connection("alice"), room.host("host", "t")
    about = {"tool": "files.write", "local": True}
    dispatch = room.begin(alice, 1)
    holds = room.hold(host, dispatch, **about), room.hold(host, None, **about)
    room.drain(host, is_server=who == "server")
    assert [hold.outcome for hold in holds] == [within, "lost"]
    assert refusal_of(port_of(host).sent[-1]) == ("unavailable", "no", True)
    if who == "server":
        assert refusal_of(port_of(host).sent[0]) == ("unavailable", "no", False)
        assert room.refusal_of_hold(host, None, **about).retryable
        assert not room.refusal_of_hold(host, dispatch, **about).retryable
    room.leave(alice)
    room.clock.advance(0)


QUOTAS: list[tuple[str, int]] = [("MAX_OF_CALLER", 3), ("MAX_OF_HOST", 3), ("MAX_OF_ROOM", 3)]


@pytest.mark.parametrize(("name", "most"), QUOTAS)
def test_holds_of_a_caller_a_host_and_a_room_are_limited(
    room: HeldRoom, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    """HOLD-9: and one more fits as soon as one has ended."""
    monkeypatch.setattr(hold_rules, name, most)
    alice, bob = room.connection("alice"), room.connection("bob")
    host, other = room.host("host", "t"), room.host("other", "u")
    holds = [room.hold(host, room.begin(alice, number)) for number in range(most)]
    refused = room.refusal_of_hold(host, room.begin(alice, 10))
    assert isinstance(refused, QuotaExceeded)
    assert refused.executed == "no"
    # Whom it does not concern is not limited by it.
    for number, caller, place, tool in ((11, bob, host, "t.run"), (12, alice, other, "u.run")):
        dispatch = room.begin(caller, number, tool)
        is_concerned = name == "MAX_OF_ROOM" or (name == "MAX_OF_HOST") is (place is host)
        if is_concerned:
            assert isinstance(room.refusal_of_hold(place, dispatch), QuotaExceeded)
        else:
            room.settle(caller, room.hold(place, dispatch))
    room.settle(alice, holds[0])
    room.settle(alice, room.hold(host, alice.calls[10].dispatch_id))
    for caller in (alice, bob):
        room.leave(caller)
    room.clock.advance(0)


def test_bodies_of_the_hosts_of_one_identity_are_limited(
    room: HeldRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOLD-9."""
    monkeypatch.setattr(identity_usage, "MAX_HELD_BYTES", 2)
    alice, host = room.connection("alice"), room.host("host", "t")
    holds = [room.hold(host, room.begin(alice, number)) for number in range(2)]
    assert isinstance(room.refusal_of_hold(host, room.begin(alice, 3)), QuotaExceeded)
    room.settle(alice, holds[0])
    room.settle(alice, room.hold(host, alice.calls[3].dispatch_id))
    room.leave(alice)
    room.clock.advance(0)


async def test_host_that_asks_and_withdraws_without_end_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HOLD-10: events that are not sent yet are limited, and those that are have no gaps."""
    monkeypatch.setattr(event_feed, "MAX_HOLD_EVENTS", 4)
    room = HeldRoom()
    alice, host = room.connection("alice"), room.host("host", "t")
    run_steps(room.feeds.subscribe(alice, ["holds"]))
    dispatch = room.begin(alice, 1)
    for _ in range(10):
        hold = room.hold(host, dispatch)
        room.router.cancel(host, Cancel(RequestId(hold.request_id), ""))
    port_of(alice).sent.clear()
    while room.feeds.scheduler.is_busy:
        room.clock.advance(0.01)
    events = [frame for frame in port_of(alice).sent if isinstance(frame, Event)]
    assert [(event.number, event.data["hold"]["outcome"]) for event in events] == [
        (number, "cancelled") for number in range(1, 5)
    ]


def test_settled_holds_are_found_for_ten_minutes_and_keep_no_call(
    room: HeldRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOLD-8: their bodies, arguments and calls are not held in memory meanwhile."""
    monkeypatch.setattr(hold_rules, "MAX_SETTLED", 3)
    alice, host = room.connection("alice"), room.host("host", "t")
    holds = []
    for number in range(4):
        hold = room.hold(host, room.begin(alice, number))
        changes = {"arguments": pack_body({"number": number})}
        request = Settle(RequestId(next(room.ids)), hold.id, "approve", DIGEST, changes)
        for _ in range(2):
            assert room.requests.settle(alice, request) == {"outcome": "approved"}
        holds.append(hold)
        resumed = next(each for each in port_of(alice).sent if isinstance(each, Resumed))
        port_of(alice).sent.clear()
        known = {"hold": hold.id, "tool": "t.run"}
        assert resumed.data == {**known, "outcome": "approved", "changed": True}
    assert list(room.room_holds.settled) == [hold.id for hold in holds[1:]]
    assert all(hold.call is None and hold.asker is None and not hold.body for hold in holds)
    assert holds[3].answer is not None
    assert changes["arguments"] not in holds[3].answer
    room.clock.advance(600)
    room.room_holds.drop_old(room.clock.now)
    assert not room.room_holds.settled


def test_settled_hold_is_shown_to_the_same_people_without_its_toolkit(room: HeldRoom) -> None:
    """HOLD-8: its definition, which may be large, is not held in memory meanwhile."""
    alice, host = room.connection("alice"), room.connection("host")
    approver = ApiScope(approve_all=["*"])
    people = [alice, *(room.connection(name, api=approver) for name in ("shared", "other"))]
    shares = frozenset({"name:alice", "name:shared"})
    room.room.state.register(
        host.participant, definition("t", "run"), public=False, shared_with=shares
    )
    room.call(alice, 1, participant="host")
    hold = room.hold(host, alice.calls[1].dispatch_id)
    assert [may_settle(one.participant, hold) for one in people] == [True, True, False]
    room.leave(host)
    room.clock.advance(0)
    assert hold.outcome == "lost"
    assert [may_settle(one.participant, hold) for one in people] == [True, True, False]
    assert isinstance(hold.tool.toolkit, Visibility)


def test_approvers_of_a_question_are_of_the_issuer_of_who_asks(room: HeldRoom) -> None:
    """HOLD-11, HOLD-12: not of that of the owner of the tool that it is about."""
    host, asker = participant("host", issuer="away"), room.connection("asker")
    room.room.state.join(host)
    room.room.state.register(host, definition("t", "run"), public=True)
    hold = room.hold(asker, None, tool="t.run", approvers=["name:bob"])
    scope = ApiScope(approve=("*",))
    bobs = [participant("bob", issuer=issuer, api=scope) for issuer in ("acme", "away")]
    assert [may_settle(bob, hold) for bob in bobs] == [True, False]
    room.router.cancel(asker, Cancel(RequestId(hold.request_id), ""))


def test_withdrawn_questions_displace_no_settled_hold_of_others(room: HeldRoom) -> None:
    """HOLD-8."""
    alice, host = room.connection("alice"), room.host("host", "t")
    hold = room.hold(host, room.begin(alice, 1))
    room.settle(alice, hold, "deny")
    mallory = room.connection("mallory", api=ApiScope())
    for _ in range(hold_rules.MAX_SETTLED + 1):
        question = room.hold(mallory, None, tool="t.other", local=True)
        room.router.cancel(mallory, Cancel(RequestId(question.request_id), ""))
    room.settle(alice, hold, "deny")
    assert len(room.room_holds.settled) == hold_rules.MAX_SETTLED_OF_ASKER + 1
    room.leave(host)
    room.clock.advance(0)


def test_retry_after_a_lost_host_replaces_its_hold(room: HeldRoom) -> None:
    """HOLD-10: for the same caller and the same id of the call; not after any other end."""
    alice, bob = room.connection("alice"), room.connection("bob")
    one, two = room.host("one", "t"), room.host("one", "t", "2")
    lost = {}
    for host in (one, two):
        room.call(alice, 1)
        (dispatch,) = one.dispatched or two.dispatched
        chosen = one if one.dispatched else two
        lost[chosen] = room.hold(chosen, dispatch)
        assert lost[chosen].replaces == "".join(
            hold.id for hold in lost.values() if hold is not lost[chosen]
        )
        if host is one:
            room.leave(chosen)
            room.clock.advance(0)
    (call,) = alice.calls.values()
    room.call(bob, 1)
    (theirs,) = bob.calls.values()
    assert room.hold(theirs.host, theirs.dispatch_id).replaces == ""
    for caller in (alice, bob):
        room.leave(caller)
    room.clock.advance(0)
    assert call.ended
