"""Checks a storm: the calls that were made, how they ended for callers, and what the witness saw.

A pure function: the same input gives the same problems, and a correct run gives none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from support.storm.plan import IDEMPOTENT, STREAMS, PlannedCall
from support.storm.witness import Runs, pattern

__all__ = ["BETWEEN_NODES", "GRACE_S", "LEFT", "NEVER", "OK", "CallOutcome", "problems"]

OK, LEFT = "ok", "left"
GRACE_S = 2.5
"""Ten times what a caller waits after a deadline: other processes use this machine too."""
ENDLESS_S = 40.0
"""How long a call without a deadline may last: faults end long before that."""
MOST_ATTEMPTS = 3
NEVER = frozenset(
    {
        "already_exists",
        "definition_changed",
        "definition_conflict",
        "duplicate_call_id",
        "internal",
        "invalid_arguments",
        "invalid_result",
        "loop_detected",
        "permission_denied",
        "stream_broken",
        "too_large",
    }
)
"""Codes that no fault of one server explains."""
BETWEEN_NODES = frozenset({"stream_broken"})
"""Codes of those that a loss between nodes explains."""
_BY_ITSELF = frozenset({"fail", "count", "count_in_thread"})
"""Tools that raise if their call asked for it."""
_NESTING = frozenset({"nest", "nest_approved"})
"""Tools that raise what a call of theirs ends with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """How one call ended for its caller."""

    key: int
    code: str
    """An error's code, or `OK`; `LEFT` if the caller cancelled the call or left the stream."""
    executed: str = "yes"
    took_s: float = 0.0
    paused_s: float = 0.0
    """Of these, the seconds that its reader took."""
    late_s: float = 0.0
    """By how many seconds the callers' own loop was late meanwhile."""
    got: int = 0
    """Values of a stream."""
    in_order: bool = True
    """Whether these were the first ones, each of them, and nothing else."""
    chunks: int | None = None
    """The number of values, as the error tells it."""
    value: object = None
    """The result of a unary call; of a file its hash."""
    words: str = ""
    """The message of the error."""
    own: bool = False
    """Whether the caller's own input raised the error."""


def problems(
    asked: Mapping[int, PlannedCall],
    reports: Sequence[CallOutcome],
    seen: Mapping[int, Runs],
    never: frozenset[str] = NEVER,
) -> list[str]:
    """List the problems, each with the key of its call; error codes in `never` are problems."""
    found: list[str] = []
    by_key: dict[int, list[CallOutcome]] = {}
    for report in reports:
        by_key.setdefault(report.key, []).append(report)
    for key, planned in asked.items():
        ends = by_key.pop(key, [])
        if len(ends) != 1:
            found.append(f"call {key} ended {len(ends)} times: {ends}")
            continue
        runs = seen.get(key, Runs())
        found += [f"{words}: {planned}, {ends[0]}, {runs}" for words in _of(planned, ends[0], runs)]
        if ends[0].code in never and not _lacks_principal(planned, ends[0]):
            found.append(f"an end that nothing explains: {planned}, {ends[0]}, {runs}")
    found += [f"call {key} was never asked for: {ends}" for key, ends in by_key.items()]
    found += [f"inner {words}: {key}" for key, runs in seen.items() for words in _inner(key, runs)]
    return found


def _lacks_principal(planned: PlannedCall, report: CallOutcome) -> bool:
    """Whether a fault explains the refusal: the participant that it is made for may be away."""
    return planned.on_behalf_of is not None and report.code == "permission_denied"


def _of(planned: PlannedCall, report: CallOutcome, runs: Runs) -> Iterator[str]:
    yield from _in_time(planned, report)
    yield from _executed(report, runs)
    yield from _ran(planned, runs)
    yield from _taken_in(planned, report, runs)
    if report.code == LEFT:
        return
    if report.code == OK:
        yield from _good_end(planned, report)
    elif not report.own:
        yield from _bad_end(planned, report)
    if not report.in_order:
        yield "a stream with a gap, or out of order"


def _in_time(planned: PlannedCall, report: CallOutcome) -> Iterator[str]:
    limits = [each for each in (planned.timeout_s, planned.gives_up_s) if each is not None]
    limit_s = min(limits, default=ENDLESS_S)
    if report.took_s - report.paused_s - report.late_s > limit_s + GRACE_S:
        yield f"ended late, after {report.took_s:.1f} s"


def _executed(report: CallOutcome, runs: Runs) -> Iterator[str]:
    if report.own or report.code == LEFT:
        return
    if report.executed not in ("no", "maybe", "yes"):
        yield "executed is none of the three"
    if report.executed == "no" and runs.began:
        yield "told that it did not run, and it did"
    if report.executed == "yes" and not runs.ended:
        yield "told that it ran to an end, and it did not"
    if report.code == OK and "ended" not in [how for how, *_ in runs.ended]:
        yield "told that it ended well, and it did not"


def _ran(planned: PlannedCall, runs: Runs) -> Iterator[str]:
    most = MOST_ATTEMPTS if planned.tool in IDEMPOTENT else 1
    if len(runs.began) > most:
        yield f"ran {len(runs.began)} times"
    if len({call_id for call_id, _ in runs.began}) > 1:
        yield "ran under several ids"
    attempts = [attempt for _, attempt in runs.began]
    if len(set(attempts)) != len(attempts):
        yield "an attempt ran twice"
    if len(runs.ended) > len(runs.began):
        yield "ended more often than it began"


def _inner(key: int, runs: Runs) -> Iterator[str]:
    if key < 0 and len(runs.began) > 1:
        yield f"call ran {len(runs.began)} times"


def _taken_in(planned: PlannedCall, report: CallOutcome, runs: Runs) -> Iterator[str]:
    most = planned.size if planned.tool == "keep" else planned.count
    for how, got, in_order, digest in runs.ended:
        if not in_order:
            yield "an upload with a gap, or out of order"
        if got > most:
            yield "an upload with more than was sent"
        if (
            planned.tool in ("total", "echo", "keep")
            and how == "ended"
            and planned.fails_at is None
        ):
            if got != most:
                yield "a tool that ended well without all of its input"
            if planned.tool == "keep" and digest != _digest(planned):
                yield "an upload of other bytes"
        if planned.tool in ("total", "echo") and how == "ended" and planned.fails_at is not None:
            yield "a tool that ended well, with input that failed"


def _good_end(planned: PlannedCall, report: CallOutcome) -> Iterator[str]:
    if planned.fails_at is not None or planned.tool == "fail":
        yield "ended well, and was to fail"
    if planned.tool in STREAMS and report.got != planned.count:
        yield f"ended well with {report.got} values of {planned.count}"
    expected: dict[str, object] = {"large": True, "total": planned.count}
    expected |= {"keep": _digest(planned), "blob": _digest(planned)}
    if planned.tool not in STREAMS and report.value != expected.get(planned.tool, planned.key):
        yield "ended well with another value"


def _bad_end(planned: PlannedCall, report: CallOutcome) -> Iterator[str]:
    if planned.tool in STREAMS and report.chunks != report.got:
        yield f"an end that speaks of {report.chunks} chunks behind {report.got}"
    if report.code != "tool_failed":
        return
    if planned.tool in STREAMS and planned.tool in _BY_ITSELF and report.got != planned.fails_at:
        yield f"a tool that raised behind {report.got} values"
    if planned.tool not in _BY_ITSELF | _NESTING:
        yield "a tool that raised by itself"


def _digest(planned: PlannedCall) -> str:
    return hashlib.sha256(pattern(planned.key, planned.size)).hexdigest()
