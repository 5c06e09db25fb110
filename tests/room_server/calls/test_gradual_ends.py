"""A connection with thousands of calls ends: they end in steps, each once with its phase."""

from __future__ import annotations

from collections import Counter

import pytest

from support.parts.router_harness import RouterHarness, phase, port_of
from toolbus.wire import Cancel, Failed, Result
from toolbus_server.calls.delegation import MAX_ENDS_PER_ITERATION
from toolbus_server.calls.router import Connection

CALLERS, CALLS = 3, 1_000
MANY = CALLERS * CALLS
WRITTEN = CALLS - 10


def crowd() -> tuple[RouterHarness, Connection, list[Connection]]:
    """Make calls to one host; the last ones of each caller wait in the host's send queue."""
    harness = RouterHarness()
    host, callers = harness.host("host", "t"), [harness.named(f"c{n}") for n in range(CALLERS)]
    for number in range(1, CALLS + 1):
        port_of(host).holds = number > WRITTEN
        for caller in callers:
            harness.call(caller, number)
    return harness, host, callers


def serve_another(harness: RouterHarness) -> None:
    """Make a call between two other participants, which must be answered at once."""
    harness.call(harness.named("victim"), 1, "other.run")
    dispatch = port_of(harness.named("other-host")).take_dispatch()
    harness.router.answer(harness.named("other-host"), Result(dispatch.id, b""))
    assert port_of(harness.named("victim")).take(Result).id == 1


def ends_per_iteration(harness: RouterHarness) -> list[int]:
    steps, before = [MANY - harness.router.in_flight], harness.router.in_flight
    while before and len(steps) < MANY:
        serve_another(harness)
        harness.clock.advance(0)
        steps.append(before - harness.router.in_flight)
        before = harness.router.in_flight
    return steps


def test_others_are_served_between_the_ends_of_the_calls_of_a_lost_host() -> None:
    """CALL-8."""
    harness, host, callers = crowd()
    harness.host("other-host", "other")
    harness.leave(host)
    harness.call(harness.named("victim"), 2)
    assert phase(port_of(harness.named("victim")).take_failed()) == ("not_found", "no")
    assert max(ends_per_iteration(harness)) <= MAX_ENDS_PER_ITERATION
    port_of(host).release()
    for caller in callers:
        failures = [each for each in port_of(caller).sent if isinstance(each, Failed)]
        assert len({each.id for each in failures}) == len(port_of(caller).sent) == CALLS
        phases = {("host_lost", "maybe"): WRITTEN, ("host_lost", "no"): CALLS - WRITTEN}
        assert Counter(map(phase, failures)) == phases
    assert len(port_of(host).sent) == CALLERS * WRITTEN


def test_others_are_served_between_the_cancels_of_the_calls_of_a_lost_caller() -> None:
    harness, host, callers = crowd()
    harness.host("other-host", "other")
    port_of(host).holds = False
    port_of(host).sent.clear()
    for caller in callers:
        harness.leave(caller)
    assert max(ends_per_iteration(harness)) <= MAX_ENDS_PER_ITERATION
    assert [type(each) for each in port_of(host).sent] == [Cancel] * CALLERS * WRITTEN
    assert not host.dispatched


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_call_that_waits_for_its_end_may_end_in_another_way(how: str) -> None:
    harness, host, callers = crowd()
    harness.leave(host)
    if how == "deadline":
        harness.clock.advance(5.0)
    else:
        harness.router.cancel(callers[2], Cancel(next(iter(callers[2].calls)), ""))
    while harness.router.in_flight:
        harness.clock.advance(0)
    codes = [phase(each)[0] for each in port_of(callers[2]).sent if isinstance(each, Failed)]
    assert len(codes) == CALLS
    assert {"deadline": "deadline_exceeded", "cancel": "cancelled"}[how] in codes
