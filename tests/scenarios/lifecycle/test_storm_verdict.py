"""The verdict on a storm can fail: ledgers with one error each, and their plan."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from support.storm.plan import (
    IDEMPOTENT,
    STREAMS,
    PlannedCall,
    connection_faults,
    planned_calls,
    planned_faults,
)
from support.storm.verdict import ENDLESS_S, GRACE_S, LEFT, OK, CallOutcome, problems
from support.storm.witness import Runs, Witness, pattern, read_witness, witness_of

KEY, SIZE = 7, 5_000
DIGEST = hashlib.sha256(pattern(KEY, SIZE)).hexdigest()
ONCE = PlannedCall(key=KEY, tool="once", timeout_s=1.0)
AGAIN = PlannedCall(key=KEY, tool="again", timeout_s=1.0)
COUNT = PlannedCall(key=KEY, tool="count", count=10)
TOTAL = PlannedCall(key=KEY, tool="total", count=10)
ECHO = PlannedCall(key=KEY, tool="echo", count=10)
KEEP = PlannedCall(key=KEY, tool="keep", size=SIZE)
WELL = CallOutcome(key=KEY, code=OK, value=KEY)
NO = CallOutcome(key=KEY, code="no_host", executed="no")
MAYBE = CallOutcome(key=KEY, code="host_lost", executed="maybe", chunks=0)


def runs(*began: int, ended: Any = ()) -> Runs:
    return Runs([("c", attempt) for attempt in began], list(ended))


def end(how: str = "ended", got: int = 0, *, ordered: bool = True, digest: str = "-") -> Any:
    return (how, got, ordered, digest)


RAN = runs(0, ended=[end()])
LOST = runs(0)


def judge(planned: PlannedCall, report: CallOutcome, seen: Runs | None = None) -> str:
    """Return all problems of one call."""
    found = problems({KEY: planned}, [report], {} if seen is None else {KEY: seen})
    return " | ".join(message.partition(": Deed(")[0] for message in found)


@pytest.mark.parametrize(
    ("planned", "report", "seen"),
    [
        (ONCE, WELL, RAN),
        (ONCE, NO, None),
        (ONCE, MAYBE, None),
        (ONCE, MAYBE, LOST),
        (ONCE, MAYBE, RAN),
        (ONCE, replace(NO, code=LEFT), RAN),
        (ONCE, replace(WELL, took_s=1.0 + GRACE_S), RAN),
        (ONCE, replace(WELL, took_s=9.0, paused_s=4.0, late_s=3.0), RAN),
        (AGAIN, WELL, runs(0, 1, 2, ended=[end()])),
        (replace(ONCE, tool="fail"), replace(WELL, code="tool_failed"), RAN),
        (COUNT, replace(WELL, got=10, took_s=ENDLESS_S), RAN),
        (COUNT, replace(MAYBE, got=4, chunks=4), LOST),
        (replace(COUNT, fails_at=4), replace(WELL, code="tool_failed", got=4, chunks=4), RAN),
        (TOTAL, replace(WELL, value=10), runs(0, ended=[end(got=10)])),
        (TOTAL, MAYBE, runs(0, ended=[end("stopped", 3)])),
        (replace(TOTAL, fails_at=3), replace(MAYBE, code="input", own=True), LOST),
        (ECHO, replace(WELL, got=10), runs(0, ended=[end(got=10)])),
        (KEEP, replace(WELL, value=DIGEST), runs(0, ended=[end(got=SIZE, digest=DIGEST)])),
    ],
)
def test_good_ledger_has_no_problem(
    planned: PlannedCall, report: CallOutcome, seen: Runs | None
) -> None:
    assert judge(planned, report, seen) == ""


@pytest.mark.parametrize(
    ("planned", "report", "seen", "message"),
    [
        (ONCE, NO, LOST, "did not run, and it did"),
        (ONCE, replace(MAYBE, executed="yes"), LOST, "ran to an end, and it did not"),
        (ONCE, WELL, runs(0, ended=[end("stopped")]), "ended well, and it did not"),
        (ONCE, WELL, None, "ended well, and it did not"),
        (ONCE, replace(NO, executed="perhaps"), None, "none of the three"),
        (ONCE, WELL, runs(0, 1, ended=[end()]), "ran 2 times"),
        (ONCE, replace(NO, code=LEFT), runs(0, 1), "ran 2 times"),
        (AGAIN, WELL, runs(0, 1, 2, 3, ended=[end()]), "ran 4 times"),
        (AGAIN, WELL, runs(0, 0, ended=[end()]), "an attempt ran twice"),
        (AGAIN, WELL, Runs([("c", 0), ("d", 1)], [end()]), "several ids"),
        (ONCE, MAYBE, runs(0, ended=[end(), end()]), "more often than it began"),
        (ONCE, replace(WELL, value=8), RAN, "another value"),
        (ONCE, replace(WELL, took_s=1.1 + GRACE_S), RAN, "ended late"),
        (COUNT, replace(WELL, got=10, took_s=ENDLESS_S + 3), RAN, "ended late"),
        (replace(ONCE, gives_up_s=0.1), replace(NO, code=LEFT, took_s=3.0), None, "ended late"),
        (ONCE, replace(MAYBE, code="internal"), LOST, "nothing explains"),
        (ONCE, replace(WELL, code="tool_failed"), RAN, "raised by itself"),
        (replace(ONCE, tool="fail"), WELL, RAN, "was to fail"),
        (COUNT, replace(WELL, got=9), RAN, "9 values of 10"),
        (COUNT, replace(WELL, got=10, in_order=False), RAN, "gap"),
        (COUNT, replace(MAYBE, got=4, chunks=4, in_order=False), LOST, "gap"),
        (COUNT, replace(MAYBE, got=4, chunks=5), LOST, "5 chunks behind 4"),
        (COUNT, replace(MAYBE, got=4, chunks=None), LOST, "None chunks behind 4"),
        (replace(COUNT, fails_at=4), replace(WELL, got=10), RAN, "was to fail"),
        (
            replace(COUNT, fails_at=4),
            replace(WELL, code="tool_failed", got=3, chunks=3),
            RAN,
            "raised behind 3",
        ),
        (TOTAL, replace(WELL, value=10), runs(0, ended=[end(got=9)]), "without all of its input"),
        (TOTAL, MAYBE, runs(0, ended=[end("stopped", 3, ordered=False)]), "upload with a gap"),
        (TOTAL, MAYBE, runs(0, ended=[end("stopped", 11)]), "more than was sent"),
        (replace(TOTAL, fails_at=3), MAYBE, runs(0, ended=[end(got=3)]), "input that failed"),
        (KEEP, replace(WELL, value=DIGEST), runs(0, ended=[end(got=SIZE)]), "other bytes"),
        (KEEP, WELL, runs(0, ended=[end(got=SIZE, digest=DIGEST)]), "another value"),
    ],
)
def test_errors_of_a_wrong_ledger_are_named(
    planned: PlannedCall, report: CallOutcome, seen: Runs | None, message: str
) -> None:
    assert message in judge(planned, report, seen)


def test_each_call_ends_once_and_none_ends_that_was_not_made() -> None:
    seen = {KEY: RAN}
    assert "ended 0 times" in problems({KEY: ONCE}, [], seen)[0]
    assert "ended 2 times" in problems({KEY: ONCE}, [WELL, WELL], seen)[0]
    assert "never asked for" in problems({}, [WELL], {})[0]


def test_call_within_a_call_runs_once() -> None:
    assert problems({}, [], {-KEY: RAN}) == []
    assert "inner call ran 2 times" in problems({}, [], {-KEY: runs(0, 1)})[0]


def test_witness_is_read_as_it_was_written(tmp_path: Path) -> None:
    witness = Witness(str(tmp_path / "witness"))
    with witness.run(1, "c", 0) as run:
        run.take(0)
        run.take(2)
    with witness.run(2, "d", 1) as run:
        run.take_piece(pattern(2, 100))
        digest = run.close_file()
    with witness.run(3, "e", 0) as run:
        run.take_piece(b"other bytes")
        run.close_file()
    with pytest.raises(KeyError), witness.run(4, "f", 0):
        raise KeyError
    seen = witness_of(tmp_path / "witness")
    assert seen[1] == Runs([("c", 0)], [("ended", 2, False, "-")])
    assert seen[2] == Runs([("d", 1)], [("ended", 100, True, digest)])
    assert seen[3].ended[0][2] is False
    assert [how for how, *_ in seen[4].ended] == ["raised"]
    assert read_witness(["B 9 c 0"]) == {9: Runs([("c", 0)])}


def test_seed_draws_the_same_again_and_another_one_something_else() -> None:
    drawn = [list(islice(planned_calls(seed, 1), 300)) for seed in ("a", "a", "b")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {planned.tool for planned in drawn[0]} > STREAMS | IDEMPOTENT
    happens = [list(islice(planned_faults(seed, server=True), 50)) for seed in ("a", "a", "b")]
    assert happens[0] == happens[1] != happens[2]
    assert "server" not in str(list(islice(planned_faults("a", server=False), 200)))
    lines = [list(islice(connection_faults("a", part), 50)) for part in (0, 0, 1)]
    assert lines[0] == lines[1] != lines[2]


def test_no_two_callers_use_one_key() -> None:
    drawn = [
        {planned.key for planned in islice(planned_calls("a", number), 300)}
        for number in range(1, 5)
    ]
    assert len(set.union(*drawn)) == 1_200
    assert min(set.union(*drawn)) > 0
