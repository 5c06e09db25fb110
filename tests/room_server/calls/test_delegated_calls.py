"""Nested calls end with the call around them: in every depth, by phase, some in one iteration."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from support.parts.router_harness import RouterHarness, phase, port_of
from toolbus.errors import ToolFailed
from toolbus.wire import Cancel, Dispatch, Failed, RequestId, Result, failed
from toolbus_server.calls.delegation import MAX_ENDS_PER_ITERATION

DEADLINE_S = 5
ENDLESS: dict[str, Any] = {"ms": None, "credit_chunks": 9, "credit_bytes": 9_000}
KINDS: dict[str, dict[str, Any]] = {
    "call": {},
    "stream": ENDLESS,
    "upload": {"input": True},
}


class Chain:
    """Alice calls `a`, whose host calls `b`, whose host calls `c`; each is running."""

    def __init__(self, **inner: Any) -> None:
        self.harness = harness = RouterHarness()
        self.alice = harness.connection("alice")
        self.a, self.b, self.c = (harness.host(f"host-{name}", name) for name in "abc")
        harness.call(self.alice, 1, "a.run", ms=DEADLINE_S * 1_000)
        self.outer = port_of(self.a).take_dispatch()
        harness.call(self.a, 2, "b.run", parent=self.outer.id, **inner)
        self.middle = port_of(self.b).take_dispatch()
        port_of(self.c).holds = True
        harness.call(self.b, 3, "c.run", parent=self.middle.id, **inner)

    def answer_last(self) -> None:
        """Answer the last call that `b` received."""
        last = port_of(self.b).sent.pop()
        assert isinstance(last, Dispatch)
        self.harness.router.answer(self.b, Result(last.id, b""))

    def fail(self) -> None:
        error = failed(RequestId(self.outer.id), ToolFailed("no luck"))
        self.harness.router.answer(self.a, error)


ENDS: dict[str, Callable[[Chain], None]] = {
    "result": lambda on: on.harness.router.answer(on.a, Result(on.outer.id, b"")),
    "error": Chain.fail,
    "cancel": lambda on: on.harness.router.cancel(on.alice, Cancel(RequestId(1), "")),
    "deadline": lambda on: on.harness.clock.advance(DEADLINE_S),
    "caller is lost": lambda on: on.harness.leave(on.alice),
    "host is lost": lambda on: on.harness.leave(on.a),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_call_ends_the_calls_nested_in_it(end: str, kind: str) -> None:
    """CALL-25: at their hosts, and at their callers by phase; `c` was not written."""
    on = Chain(**KINDS[kind])
    ENDS[end](on)
    code = "deadline_exceeded" if end == "deadline" else "cancelled"
    reason = {"deadline": "deadline", "host is lost": "caller_gone"}.get(end, "cancelled")
    [lost] = [each for each in port_of(on.a).sent if isinstance(each, Failed)]
    assert (lost.id, *phase(lost), lost.retryable) == (2, code, "maybe", False)
    assert port_of(on.b).take_cancel() == Cancel(on.middle.id, reason)
    deeper = port_of(on.b).take_failed()
    assert (deeper.id, *phase(deeper)) == (3, code, "no")
    port_of(on.c).release()
    assert port_of(on.c).sent == []
    assert on.harness.router.in_flight == 0
    assert on.harness.room.delegated == {}


def test_nested_calls_that_ended_are_not_kept_by_their_parent() -> None:
    on = Chain()
    for number in range(10, 1_010):
        on.harness.call(on.a, number, "b.run", parent=on.outer.id)
        on.answer_last()
    [outer] = on.alice.calls.values()
    kept = list(outer.nested or {})
    assert len(kept) == 1
    ENDS["result"](on)


def test_calls_of_others_are_served_between_the_ends_of_many_nested_calls() -> None:
    """CALL-25: at most `MAX_ENDS_PER_ITERATION` of them end in one iteration of the event loop."""
    on = Chain()
    many = 3_000
    for number in range(10, 10 + many):
        on.harness.call(on.a, number, "b.run", parent=on.outer.id)
    ENDS["result"](on)
    port_of(on.b).sent.clear()
    left = [len(on.a.calls)]
    while left[-1] and len(left) <= many:
        on.harness.call(on.alice, 5, "b.run")
        on.answer_last()
        assert isinstance(port_of(on.alice).sent[-1], Result)
        on.harness.clock.advance(0)
        left.append(len(on.a.calls))
    steps = [before - after for before, after in pairwise(left)]
    assert max(steps) <= MAX_ENDS_PER_ITERATION
    assert len(left) >= many // MAX_ENDS_PER_ITERATION
    assert on.harness.router.in_flight == 0
