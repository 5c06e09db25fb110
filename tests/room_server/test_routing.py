"""The router alone: every call ends once, and `executed` says how far it had come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from support.facts import definition, scope
from support.router_table import ARGUMENTS, Table, phase, port_of
from toolbus.wire import (
    Call,
    CallId,
    Cancel,
    Dispatch,
    Failed,
    RequestId,
    Result,
    encode,
    unpack_body,
)
from toolbus_server.limits import Limits
from toolbus_server.routing import Seat


@pytest.fixture
def table() -> Iterator[Table]:
    """Whatever happened: nothing is left in any table, and no timer runs on."""
    table = Table()
    yield table
    assert table.router.in_flight == 0
    table.clock.advance(1e6)  # the one timer of all deadlines may be set, but not for ever
    assert table.clock.waiting == 0
    for seat in table.room.seats.values():
        assert [*seat.calls, *seat.call_ids, *seat.dispatched] == []
        assert seat.member.inflight == 0


# The way there and back


def test_a_call_goes_to_the_host_and_its_result_comes_back_unread(table: Table) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    table.call(alice, 7, caller_context=b"\xc1", attempt=2)

    dispatch = port_of(host).take_dispatch()
    assert (dispatch.call_id, dispatch.toolkit, dispatch.tool) == ("call-7", "t", "run")
    assert dispatch.remaining_ms == 5_000
    assert dispatch.arguments == ARGUMENTS
    assert dispatch.header == {
        "caller": alice.member.card,
        "caller_context": b"\xc1",
        "attempt": 2,
    }
    assert host.member.inflight == 1
    table.router.answer(host, Result(dispatch.id, b"\xc1"))
    assert port_of(alice).take_result() == Result(7, b"\xc1")


@pytest.mark.parametrize("at_s", [0.1, 1_500.123, 3_000.3, 86_400.7, 3e7 + 0.9])
def test_a_host_is_told_the_very_time_that_the_caller_gave(table: Table, at_s: float) -> None:
    """CALL-7: not a millisecond more, at whatever time by a clock that rounds."""
    host, alice = table.host("host", "t"), table.seat("alice")
    table.clock.advance(at_s)
    for number, ms in enumerate((1, 7, 200, 333, 5_000, 60_000)):
        table.call(alice, number, ms=ms)
        dispatch = port_of(host).take_dispatch()
        assert dispatch.remaining_ms == ms
        table.router.answer(host, Result(dispatch.id, b"\xc1"))


def test_a_call_that_names_no_time_gets_the_servers(table: Table) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    table.call(alice, 1, ms=None)
    assert port_of(host).take_dispatch().remaining_ms == 60_000
    table.clock.advance(60)
    assert phase(port_of(alice).take_failed()) == ("deadline_exceeded", "maybe")


def test_what_a_host_says_of_its_call_reaches_the_caller(table: Table) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    table.call(alice, 1)
    dispatch = port_of(host).take_dispatch()
    table.router.answer(host, Failed(dispatch.id, "overloaded", "no", True, "full", None, 250))
    assert port_of(alice).take_failed() == Failed(1, "overloaded", "no", True, "full", None, 250)


@pytest.mark.row(49)
def test_the_largest_result_that_fits_the_host_fits_the_caller_with_any_id(table: Table) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    assert host.last_dispatch >= 2**32
    host.last_dispatch = 2**32
    table.call(alice, 2**53)
    dispatch = port_of(host).take_dispatch()
    around_bytes = len(encode(Result(dispatch.id, bytes(2**16)))) - 2**16
    body = bytes(Limits().max_frame_bytes - around_bytes)
    table.router.answer(host, Result(dispatch.id, body))
    answer = port_of(alice).take_result()
    assert answer == Result(2**53, body)
    assert len(encode(answer)) <= Limits().max_frame_bytes


# Refusals: nothing is written


@pytest.mark.row(46)
def test_what_is_missing_is_refused_at_once(table: Table) -> None:
    table.host("host", "t")
    alice = table.seat("alice")
    for number, tool in enumerate(("x.run", "t.fly")):
        table.call(alice, number, tool)
        assert phase(port_of(alice).take_failed()) == ("not_found", "no")


@pytest.mark.row(61)
def test_a_host_without_room_for_a_call_is_overloaded_and_stays(table: Table) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    port_of(host).is_full = True
    table.call(alice, 1)
    failed = port_of(alice).take_failed()
    assert (*phase(failed), failed.retryable) == ("overloaded", "no", True)
    assert failed.retry_after_ms
    assert host.member.inflight == 0


@pytest.mark.row(32)
def test_an_id_in_use_is_refused_and_the_first_call_goes_on(table: Table) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    table.call(alice, 1)
    dispatch = port_of(host).take_dispatch()
    same_call = Call(RequestId(2), CallId("call-1"), "t", "run", None, ARGUMENTS, None)
    table.router.call(table.room, alice, same_call)
    assert phase(port_of(alice).take_failed()) == ("duplicate_call_id", "no")

    table.router.answer(host, Result(dispatch.id, b""))
    assert port_of(alice).take_result().id == 1
    table.call(alice, 1)
    table.router.answer(host, Result(port_of(host).take_dispatch().id, b""))


def test_one_caller_has_only_so_many_calls_in_flight() -> None:
    table = Table(replace(Limits(), max_calls=2))
    table.host("host", "t")
    alice, bob = table.seat("alice"), table.seat("bob")
    for number in range(3):
        table.call(alice, number)
    assert phase(port_of(alice).take_failed()) == ("quota_exceeded", "no")
    table.call(bob, 1)
    assert port_of(bob).sent == []


@pytest.mark.row(52)
def test_a_call_without_time_is_never_written(table: Table) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    table.call(alice, 1, ms=0)
    assert phase(port_of(alice).take_failed()) == ("deadline_exceeded", "no")
    assert port_of(host).sent == []


@pytest.mark.parametrize(
    ("option", "value"),
    [("participant", 1), ("parent", "1"), ("pin", b""), ("caller_context", {}), ("attempt", True)],
)
def test_an_option_of_another_type_is_refused_by_its_name(
    table: Table, option: str, value: Any
) -> None:
    table.host("host", "t")
    alice = table.seat("alice")
    table.call(alice, 1, **{option: value})
    failed = port_of(alice).take_failed()
    assert phase(failed) == ("invalid_arguments", "no")
    assert unpack_body(failed.details or b"")["path"] == f"/{option}"


@pytest.mark.row(40)
def test_a_pin_to_another_definition_is_refused_with_the_digest_there_is(table: Table) -> None:
    table.host("host", "t")
    alice = table.seat("alice")
    table.call(alice, 1, pin="0" * 64)
    failed = port_of(alice).take_failed()
    assert phase(failed) == ("definition_changed", "no")
    assert unpack_body(failed.details or b"") == {"digest": definition("t").digest}


# Ends by the router's own hand


def _cancel(table: Table, _host: Seat, caller: Seat) -> None:
    table.router.cancel(caller, Cancel(RequestId(1), ""))


ENDS: dict[str, Callable[[Table, Seat, Seat], None]] = {
    "deadline_exceeded": lambda table, host, caller: table.clock.advance(5),
    "cancelled": _cancel,
    "host_lost": lambda table, host, caller: table.leave(host),
}


@pytest.mark.row(50, 52, 53)
@pytest.mark.parametrize("code", ENDS)
@pytest.mark.parametrize(("written", "executed"), [(False, "no"), (True, "maybe")])
def test_executed_is_no_until_the_call_is_written_and_then_maybe(
    table: Table, code: str, written: bool, executed: str
) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    port_of(host).holds = not written
    table.call(alice, 1)
    ENDS[code](table, host, alice)

    failed = port_of(alice).take_failed()
    assert (*phase(failed), failed.retryable) == (code, executed, not written)
    port_of(host).release()
    kinds = [type(frame) for frame in port_of(host).sent]
    told = [Cancel] if code != "host_lost" else []
    assert kinds == ([Dispatch, *told] if written else [])
    assert port_of(alice).sent == []


@pytest.mark.row(51)
def test_a_lost_host_of_an_idempotent_tool_may_be_followed_by_another_try(table: Table) -> None:
    host, alice = table.host("host", "t", idempotent=True), table.seat("alice")
    table.call(alice, 1)
    table.leave(host)
    failed = port_of(alice).take_failed()
    assert (*phase(failed), failed.retryable) == ("host_lost", "maybe", True)


@pytest.mark.row(52, 53)
def test_late_double_and_unknown_words_are_dropped_and_counted(table: Table) -> None:
    host, alice, eve = table.host("host", "t"), table.seat("alice"), table.seat("eve")
    table.call(alice, 1)
    dispatch = port_of(host).take_dispatch()
    table.router.cancel(eve, Cancel(RequestId(1), "not mine"))
    table.router.answer(eve, Result(dispatch.id, b"forged"))
    assert port_of(alice).sent == []

    table.router.answer(host, Result(dispatch.id, b""))
    table.router.answer(host, Result(dispatch.id, b"again"))
    table.router.cancel(alice, Cancel(RequestId(1), "too late"))
    table.router.answer(host, Failed(dispatch.id + 1, "internal", "no", False, "", None, None))

    assert port_of(alice).take_result() == Result(1, b"")
    assert port_of(alice).sent == []
    assert table.router.dropped == 5


@pytest.mark.row(55)
def test_the_calls_of_a_caller_that_is_gone_are_cancelled_at_their_hosts(table: Table) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    table.call(alice, 1)
    dispatch = port_of(host).take_dispatch()
    table.leave(alice)
    assert port_of(host).take_cancel() == Cancel(dispatch.id, "caller_gone")


def test_one_who_calls_itself_and_leaves_ends_its_call_once(table: Table) -> None:
    host = table.host("host", "t")
    table.call(host, 1)
    table.leave(host)
    assert [type(frame) for frame in port_of(host).sent] == [Dispatch, Failed]


async def test_quiet_comes_with_the_last_end(table: Table) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    await table.router.quiet()
    table.call(alice, 1)
    table.router.answer(host, Result(port_of(host).take_dispatch().id, b""))
    await table.router.quiet()


# Calls within calls


def nested(table: Table) -> tuple[Seat, Seat, Seat, Dispatch]:
    """Alice calls a tool of the host `outer`, which is running it."""
    outer, inner = table.host("outer", "t"), table.host("inner", "u")
    alice = table.seat("alice")
    table.call(alice, 1)
    return outer, inner, alice, port_of(outer).take_dispatch()


@pytest.mark.row(57)
def test_a_nested_call_has_its_parents_principal_and_no_more_than_its_time(table: Table) -> None:
    outer, inner, alice, parent = nested(table)
    table.clock.advance(2)
    table.call(outer, 1, "u.run", 60_000, parent=parent.id)
    dispatch = port_of(inner).take_dispatch()
    assert dispatch.remaining_ms == 3_000
    assert dispatch.header["caller"] == outer.member.card
    assert dispatch.header["on_behalf_of"] == alice.member.card

    table.call(inner, 1, "t.run", 60_000, parent=dispatch.id)
    third = port_of(outer).take_dispatch()
    assert third.header["caller"] == inner.member.card
    assert third.header["on_behalf_of"] == alice.member.card
    table.clock.advance(3)
    assert table.router.in_flight == 0


@pytest.mark.row(56)
def test_the_seventeenth_call_within_calls_is_refused(table: Table) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    table.call(alice, 1)
    for depth in range(2, 18):
        parent = port_of(host).take_dispatch()
        table.call(host, depth, parent=parent.id)
    assert phase(port_of(host).take_failed()) == ("loop_detected", "no")
    assert table.router.in_flight == 16
    table.clock.advance(5)


@pytest.mark.row(58)
def test_a_parent_that_is_not_mine_or_has_ended_is_denied(table: Table) -> None:
    outer, inner, alice, parent = nested(table)
    eve = table.seat("eve")
    for who in (eve, alice, inner):
        table.call(who, 2, "u.run", parent=parent.id)
        assert phase(port_of(who).take_failed()) == ("permission_denied", "no")
    table.router.answer(outer, Result(parent.id, b""))
    table.call(outer, 2, "u.run", parent=parent.id)
    assert phase(port_of(outer).take_failed()) == ("permission_denied", "no")


@pytest.mark.row(58)
def test_a_parent_named_from_an_older_connection_is_no_call_of_the_new_one(table: Table) -> None:
    outer, inner, alice, parent = nested(table)
    table.leave(outer)
    again = table.host("outer", "t", "2")
    table.call(alice, 2)
    table.call(again, 1, "u.run", parent=parent.id)
    assert port_of(again).take_dispatch().id != parent.id
    assert phase(port_of(again).take_failed()) == ("permission_denied", "no")
    assert port_of(inner).sent == []
    table.clock.advance(5)


@pytest.mark.row(59)
def test_a_host_is_no_deputy_for_what_the_principal_may_not(table: Table) -> None:
    outer, inner = table.host("outer", "t"), table.host("inner", "u")
    alice = table.seat("alice", api=scope(call=True, allow=["t"]))
    table.call(alice, 1)
    parent = port_of(outer).take_dispatch()
    table.call(outer, 1, "u.run", parent=parent.id)
    assert phase(port_of(outer).take_failed()) == ("permission_denied", "no")
    assert port_of(inner).sent == []

    table.call(outer, 1, "u.run")
    assert "on_behalf_of" not in port_of(inner).take_dispatch().header
    table.clock.advance(5)


@pytest.mark.row(58)
def test_acting_for_somebody_needs_the_grant_and_somebody_who_is_there(table: Table) -> None:
    host, alice = table.host("host", "t"), table.seat("alice")
    agent = table.seat("agent", api=scope(call=True, act_for=["alice", "zoe"]))
    table.call(agent, 1, on_behalf_of="alice")
    assert port_of(host).take_dispatch().header["on_behalf_of"] == alice.member.card

    denied = set()
    for name in ("zoe", "host", "nobody"):
        table.call(agent, 2, on_behalf_of=name)
        failed = port_of(agent).take_failed()
        denied.add((*phase(failed), failed.message.replace(name, "NAME")))
    # Whoever may not act for a name does not learn whether somebody has it.
    assert denied == {
        ("permission_denied", "no", "nobody here is named 'NAME'"),
        ("permission_denied", "no", "no grant to act for 'NAME' (agents.act_for)"),
    }
    table.clock.advance(5)


@pytest.mark.row(58)
def test_a_nested_call_cannot_change_its_principal(table: Table) -> None:
    outer, inner, _alice, parent = nested(table)
    table.seat("bob")
    table.call(outer, 1, "u.run", parent=parent.id, on_behalf_of="bob")
    assert phase(port_of(outer).take_failed()) == ("permission_denied", "no")
    table.call(outer, 1, "u.run", parent=parent.id, on_behalf_of="alice")
    assert port_of(inner).take_dispatch()
    table.clock.advance(5)
