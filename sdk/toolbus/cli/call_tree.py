"""The tree of one call, from what its caller saw, the server reported, and hosts recorded.

Pure. Each of the three knows another part. The caller: when its attempts failed. The server: who
called whom, which host it chose, how each attempt ended and how long it took, but not when. The
record of a host: when the call began there, and what decided about it. Names are those of others:
what draws the tree escapes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from toolbus.errors import Executed
from toolbus.records.call_record import OK, CallRecord
from toolbus.room.calls import EndedCall
from toolbus.telemetry.attributes import (
    ATTEMPT,
    ERROR_TYPE,
    EXECUTED,
    HOLD_OUTCOME,
    REFUSALS,
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
)
from toolbus.telemetry.viewer.trace_tree import PartName, SpanRecord, TraceTree, build_tree

__all__ = ["CallFacts", "call_tree", "tree_as_json"]

_CALLER = "caller"
"""The id of the first line."""


@dataclass(slots=True)
class CallFacts:
    """What is known of a call that has ended. Times are in nanoseconds since the epoch."""

    call_id: str
    trace_id: str
    tool: str
    """`toolkit.tool`, as the caller named it."""
    caller: str
    room: str
    started_ns: int
    ended_ns: int = 0
    code: str | None = None
    """The code of the error; None for a result."""
    executed: Executed = "yes"
    failures: list[tuple[int, str]] = field(default_factory=list)
    """When attempts failed, and their codes; for a call with an error its end is the last one."""
    calls: list[EndedCall] = field(default_factory=list)
    """The attempts of this call and of nested calls that the server reported, as they ended."""
    records: Sequence[CallRecord] = ()
    """The records of this call and of others in its trace."""


def call_tree(facts: CallFacts) -> TraceTree:
    """Put the facts together: the caller, below it each attempt, and below that its host."""
    attempts, unreported = _attempts(facts)
    further = _match_records(attempts, facts.records)
    lines = _Lines(facts, attempts)
    lines.add_caller(unreported)
    for attempt in attempts:
        lines.add_attempt(attempt)
    for record in further:
        lines.add_record(record)
    return build_tree(lines.spans)


@dataclass(slots=True)
class _Attempt:
    """An attempt that the server reported, or several in a row that it refused with one code."""

    call: EndedCall
    place: int
    """Its number among the calls, in the order of their ends; of several attempts the last one."""
    first_ns: int | None
    last_ns: int | None
    """When the caller saw the end of the first attempt and of the last one, where that is known."""
    refusals: int = 1
    record: CallRecord | None = None
    """That of the host."""

    @property
    def tool(self) -> str:
        return f"{self.call.toolkit}.{self.call.tool}"


def _attempts(facts: CallFacts) -> tuple[list[_Attempt], list[tuple[int, str]]]:
    """Return the attempts that the server reported, and the failures that it did not report."""
    attempts: list[_Attempt] = []
    latest: dict[str, _Attempt] = {}
    failures = list(facts.failures)
    for place, call in enumerate(facts.calls):
        ended_ns = None
        if call.call_id == facts.call_id:
            ended_ns = facts.ended_ns if call.code is None else _take(failures, call.code)
        before = latest.get(call.call_id)
        if call.host_id is None and before is not None and _is_same_refusal(before.call, call):
            before.refusals += 1
            before.place, before.last_ns = place, ended_ns
        else:
            latest[call.call_id] = _Attempt(call, place, ended_ns, ended_ns)
            attempts.append(latest[call.call_id])
    # The end of the call itself stands in the first line.
    return attempts, [failure for failure in failures if failure[0] != facts.ended_ns]


def _is_same_refusal(before: EndedCall, call: EndedCall) -> bool:
    return before.host_id is None and before.code == call.code


def _take(failures: list[tuple[int, str]], code: str) -> int | None:
    """Remove the first failure with this code, and return its time."""
    for index, (failed_ns, failed_code) in enumerate(failures):
        if failed_code == code:
            del failures[index]
            return failed_ns
    return None


def _match_records(attempts: Sequence[_Attempt], records: Sequence[CallRecord]) -> list[CallRecord]:
    """Give each attempt the record of its host; return the others that add something."""
    left = sorted(records, key=lambda record: record.started_at)
    for attempt in attempts:
        for record in left:
            if record.call_id == attempt.call.call_id and record.owner == attempt.call.host:
                attempt.record = record
                left.remove(record)
                break
    # An agent records the calls of its turn too, with ids of its own: those that got to the server
    # are here already.
    reported = {(attempt.tool, attempt.call.caller) for attempt in attempts}
    return [
        record
        for record in left
        if record.decision == "denied" or (record.tool, record.caller) not in reported
    ]


class _Times(NamedTuple):
    """When something ran. What is not known of it stands for the order among its siblings."""

    start_ns: int
    end_ns: int
    known: Literal["times", "duration", "nothing"] = "times"


class _Lines:
    """Makes the lines of a tree."""

    def __init__(self, facts: CallFacts, attempts: Sequence[_Attempt]) -> None:
        self.spans: list[SpanRecord] = []
        """The lines so far."""
        self._facts = facts
        self._at_hosts: dict[tuple[str | None, str | None], int] = {
            (attempt.call.call_id, attempt.call.host_id): attempt.place for attempt in attempts
        }
        """The places of attempts by call and host."""
        self._dispatched = Counter(
            attempt.call.call_id for attempt in attempts if attempt.call.host_id is not None
        )
        self._numbers: Counter[str] = Counter()

    def add_caller(self, failures: Sequence[tuple[int, str]]) -> None:
        """Add the line of the call, and below it the failures that the caller alone saw."""
        facts = self._facts
        outcome = _outcome(facts.executed, facts.code)
        times = _Times(facts.started_ns, facts.ended_ns)
        self._add("caller", facts.tool, facts.caller, _CALLER, None, times, outcome)
        moments = [facts.started_ns, *(failed_ns for failed_ns, _ in facts.failures)]
        began = {failed_ns: before_ns for before_ns, failed_ns in pairwise(moments)}
        for code, group in groupby(failures, key=itemgetter(1)):
            failed = [failed_ns for failed_ns, _ in group]
            times = _Times(began[failed[0]], failed[-1])
            outcome = {ERROR_TYPE: code} | _refusals(len(failed))
            line = f"failure {failed[0]}"
            self._add("caller", facts.tool, facts.caller, line, _CALLER, times, outcome)

    def add_attempt(self, attempt: _Attempt) -> None:
        """Add the line of the server, and below it the one of the host that it chose, if any."""
        call = attempt.call
        outcome = _outcome(call.executed, call.code) | _refusals(attempt.refusals)
        if call.host_id is not None and self._dispatched[call.call_id] > 1:
            self._numbers[call.call_id] += 1
            outcome[ATTEMPT] = self._numbers[call.call_id]
        parent, note = self._parent(call)
        line = f"server {attempt.place}"
        room = f"room {self._facts.room}"
        times = self._server_times(attempt)
        is_rounded = call.host_id is not None and round(call.duration_s * 1e6) % 1_000 == 0
        self._add("server", attempt.tool, room, line, parent, times, outcome, note, "", is_rounded)
        if call.host_id is None:
            return
        at_host: tuple[_Times, dict[str, Any], str]
        at_host = (_Times(times.start_ns, times.start_ns, "nothing"), {}, "")
        if attempt.record is not None:
            at_host = _of_record(attempt.record)
        host_line = _host_line(attempt.place)
        self._add("host", attempt.tool, call.host or "", host_line, line, *at_host, call.host_id)
        if attempt.record is not None and attempt.record.waited_s:
            self._add_hold(host_line, attempt.record)
        elif call.outcome:
            held = _Times(times.start_ns, times.start_ns + round(call.held_s * 1e9), "duration")
            self._add_wait(host_line, attempt.tool, "", held, call.outcome)

    def _parent(self, call: EndedCall) -> tuple[str, str]:
        """Return the line that an attempt is below, and who made it if that line is not known."""
        if call.call_id == self._facts.call_id:
            return _CALLER, ""
        place = self._at_hosts.get((call.parent_id, call.caller_id))
        if place is None:
            return _CALLER, f"made by {call.caller}"
        return _host_line(place), ""

    def _server_times(self, attempt: _Attempt) -> _Times:
        """Return when an attempt was at the server, as far as its caller or its host tell."""
        duration_ns = round(attempt.call.duration_s * 1e9)
        host = None if attempt.record is None else _of_record(attempt.record)[0]
        if attempt.first_ns is not None and attempt.last_ns is not None:
            # The caller reads a result late if it is busy: the host ran within this time.
            late_ns = max(0, attempt.first_ns - duration_ns - host.start_ns) if host else 0
            # Not before the caller sent it: the server may round.
            start_ns = max(attempt.first_ns - late_ns - duration_ns, self._facts.started_ns)
            return _Times(start_ns, attempt.last_ns - late_ns)
        if host is not None:
            # The way to the host and back is taken to be equally long.
            start_ns = host.start_ns - max(0, duration_ns - (host.end_ns - host.start_ns)) // 2
            return _Times(start_ns, start_ns + duration_ns)
        start_ns = self._facts.started_ns + attempt.place
        return _Times(start_ns, start_ns + duration_ns, "duration")

    def add_record(self, record: CallRecord) -> None:
        """Add a call that only its record tells of, below a host of that name that ran then."""
        times, outcome, note = _of_record(record)
        parent = _CALLER
        if record.call_id != self._facts.call_id:
            for span in self.spans:
                if span.kind == "host" and span.resource[SERVICE_NAME] == record.caller:
                    if span.known == "nothing" or span.start_ns <= times.start_ns <= span.end_ns:
                        parent = span.span_id
        # What reached a host is matched, unless the server reports nothing.
        is_of_host = bool(record.owner) and not self._facts.calls
        part: PartName = "host" if is_of_host else "local"
        who = record.owner if is_of_host else record.caller
        line = f"record {len(self.spans)}"
        self._add(part, record.tool, who, line, parent, times, outcome, note=note)
        if record.waited_s:
            self._add_hold(line, record)

    def _add_hold(self, parent: str, record: CallRecord) -> None:
        """Add the wait for a person of a recorded call."""
        waited_ns = round(record.waited_s * 1e9)
        if record.settled_at is None:
            start_ns = round(record.started_at * 1e9)
            times = _Times(start_ns, start_ns + waited_ns, "duration")
        else:
            end_ns = round(record.settled_at * 1e9)
            times = _Times(end_ns - waited_ns, end_ns)
        self._add_wait(parent, record.tool, record.settled_by, times, record.settled)

    def _add_wait(self, parent: str, tool: str, who: str, times: _Times, outcome: str) -> None:
        shown = {HOLD_OUTCOME: outcome} if outcome else {}
        self._add("hold", tool, who, f"hold of {parent}", parent, times, shown)

    def _add(  # noqa: PLR0913 - a parameter for each column
        self,
        part: PartName,
        tool: str,
        who: str,
        line: str,
        parent: str | None,
        times: _Times,
        outcome: Mapping[str, Any],
        note: str = "",
        connection: str = "",
        is_rounded: bool = False,
    ) -> None:
        self.spans.append(
            SpanRecord(
                name=tool,
                kind=part,
                trace_id=self._facts.trace_id,
                span_id=line,
                parent_id=parent,
                start_ns=times.start_ns,
                end_ns=times.end_ns,
                known=times.known,
                is_rounded=is_rounded,
                attributes=outcome,
                resource={SERVICE_NAME: who, SERVICE_INSTANCE_ID: connection},
                status_message=note,
            )
        )


def _host_line(place: int) -> str:
    return f"host {place}"


def _outcome(executed: Executed, code: str | None) -> dict[str, Any]:
    return {EXECUTED: executed} if code is None else {EXECUTED: executed, ERROR_TYPE: code}


def _refusals(count: int) -> dict[str, Any]:
    return {REFUSALS: count} if count > 1 else {}


def _of_record(record: CallRecord) -> tuple[_Times, dict[str, Any], str]:
    """Return when a recorded call ran, how it ended, and what decided about it."""
    start_ns = round(record.started_at * 1e9)
    times = _Times(start_ns, start_ns + round(record.duration_s * 1e9))
    note = f"{record.decision} by {record.decided_by}" if record.decided_by else ""
    return times, _outcome(record.executed, None if record.outcome == OK else record.outcome), note


def tree_as_json(facts: CallFacts, tree: TraceTree, notes: Sequence[str]) -> dict[str, Any]:
    """Return the tree as JSON values: its lines top to bottom, each with its depth."""
    return {
        "trace_id": facts.trace_id,
        "call_id": facts.call_id,
        "room": facts.room,
        "duration_ms": tree.nodes[0].span.duration_ms,
        "lines": [_line_as_json(node.depth, node.span) for node in tree.nodes],
        "notes": list(notes),
    }


def _line_as_json(depth: int, span: SpanRecord) -> dict[str, Any]:
    return {
        "depth": depth,
        "part": span.kind,
        "tool": span.name,
        "who": "" if span.kind == "server" else span.resource[SERVICE_NAME],
        "connection": span.resource[SERVICE_INSTANCE_ID],
        "started_at": span.start_ns / 1e9 if span.known == "times" else None,
        "duration_ms": None if span.known == "nothing" else span.duration_ms,
        "executed": span.attributes.get(EXECUTED),
        "code": span.attributes.get(ERROR_TYPE),
        "outcome": span.attributes.get(HOLD_OUTCOME),
        "attempt": span.attributes.get(ATTEMPT),
        "refusals": span.attributes.get(REFUSALS),
        "note": span.status_message,
    }
