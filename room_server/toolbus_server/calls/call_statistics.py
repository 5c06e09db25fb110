"""Counts and records of a room's calls for the participants that observe them.

Nothing of this runs without observers. With observers a call costs a record in a bounded list;
ten times a second at most, and only if something changed, each observer is sent one event. Records
hold metadata only: no arguments, no results. A call in flight has the room's monitor in its field
`monitor`, so that every end is counted, whichever it is. Of calls that wait for persons each node
knows all.

Where nodes share the room each node records the calls that its own participants make, so that each
call is recorded once, and reports them to the nodes that have observers; these add up the reports.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from random import randrange
from typing import Any, NamedTuple, TypeAlias

from toolbus.auth.participant_names import full_name
from toolbus.errors import RoomException
from toolbus.telemetry.tracing import read_trace_context
from toolbus.wire import Call, pack_body, unpack_body
from toolbus_server.calls.call_state import CallHold, Connection, InFlightCall, RoutedRoom
from toolbus_server.calls.holds import time_waited_s

__all__ = ["MAX_RECORDS", "CallCounts", "CallRecords", "NodeCallReport", "RoomCallMonitor"]

MAX_RECORDS = 200
"""Records of ended calls that are kept until they are sent; the counts go on (WATCH-3)."""
MAX_HOLDS = 100
"""Of those that are open, and of those that ended since the last event: more than anybody reads."""
FLUSH_S = 0.1
"""How long changes are collected before they are sent together (PROTOCOL.md, WATCH-1)."""
# What a caller may write in a call that is refused is bounded by the frame alone.
_MAX_NAME_CHARS = 64
_MAX_ID = 2**48
_CODE = 5
"""The index of the error code in a record."""
_NumberedRecord: TypeAlias = tuple[int, list[Any]]
"""The record of an ended call, with its number among the ended calls."""


class CallCounts(NamedTuple):
    """How many calls a room has had while it was observed."""

    started: int
    ended: int
    failed: int
    """Ended calls that ended with an error."""

    def since(self, earlier: CallCounts) -> CallCounts:
        """Return what was counted after `earlier`."""
        return CallCounts(
            self.started - earlier.started, self.ended - earlier.ended, self.failed - earlier.failed
        )


class CallRecords:
    """Counts of calls, with the records of ended calls that are not sent yet."""

    def __init__(self) -> None:
        self.started = 0
        """How many calls have started."""
        self._ended = 0
        self._failed = 0
        self._sent = 0
        """How many calls had ended when records were sent last."""
        self._succeeded_records: deque[_NumberedRecord] = deque()
        self._failed_records: deque[_NumberedRecord] = deque()
        self._packed = b""
        """The records that are sent now, packed once for all receivers that are up to date."""

    @property
    def counts(self) -> CallCounts:
        """The counts until now."""
        return CallCounts(self.started, self._ended, self._failed)

    def add_ended(self, record: list[Any], *, failed: bool) -> None:
        """Count an ended call and keep its record."""
        self._ended += 1
        self._failed += failed
        self._keep(self._ended, record, failed=failed)

    def add(self, counts: CallCounts, records: list[list[Any]]) -> None:
        """Add the counts of another node, with the records that it kept."""
        self.started += counts.started
        self._ended += counts.ended
        self._failed += counts.failed
        first = self._ended - len(records) + 1
        for number, record in enumerate(records, first):
            self._keep(number, record, failed=record[_CODE] is not None)

    def _keep(self, number: int, record: list[Any], *, failed: bool) -> None:
        (self._failed_records if failed else self._succeeded_records).append((number, record))
        if len(self._succeeded_records) + len(self._failed_records) > MAX_RECORDS:
            (self._succeeded_records or self._failed_records).popleft()

    def pack(self) -> None:
        """Pack the records that are to be sent now; call `clear` afterwards."""
        self._packed = self._pack(self._sent)

    def packed_since(self, ended: int) -> bytes:
        """Return the records, packed, for a receiver that has those of so many ended calls."""
        return self._pack(ended) if ended > self._sent else self._packed

    def _pack(self, sent: int) -> bytes:
        records = sorted((*self._succeeded_records, *self._failed_records), key=itemgetter(0))
        return pack_body([record for number, record in records if number > sent])

    def clear(self) -> None:
        """Drop the records that were sent."""
        self._sent = self._ended
        self._succeeded_records.clear()
        self._failed_records.clear()


class NodeCallReport(NamedTuple):
    """What one node reports to another about the calls of its own participants in a room."""

    monitor_id: int
    """The monitor of the receiving node that it is for."""
    series: int
    """Identifies the series that the counts belong to; each series begins at 0."""
    in_flight: int
    started: int
    ended: int
    failed: int
    calls: bytes
    """Records of the calls that ended since the previous report, as far as kept; packed."""

    @property
    def counts(self) -> CallCounts:
        """The counts since the series began."""
        return CallCounts(self.started, self.ended, self.failed)


class _ReportTarget:
    """Another node that has observers."""

    def __init__(
        self, monitor_id: int, counts: CallCounts, send: Callable[[NodeCallReport], bool]
    ) -> None:
        self._monitor_id = monitor_id
        self._first = counts
        self._send = send
        self._series = randrange(1, _MAX_ID)
        self._last = (counts, -1)  # unlike any state, so that the first report is sent
        self.may_have_lost_report = False
        """Whether the last report may have been lost, so that another one has to be sent."""

    def report(self, records: CallRecords, in_flight: int) -> bool:
        """Send what changed; return whether the node is up to date now."""
        counts = records.counts
        if self._last == (counts, in_flight) and not self.may_have_lost_report:
            return True
        started, ended, failed = counts.since(self._first)
        calls = records.packed_since(self._last[0].ended)
        report = NodeCallReport(
            self._monitor_id, self._series, in_flight, started, ended, failed, calls
        )
        if not self._send(report):
            return False
        self._last = (counts, in_flight)
        self.may_have_lost_report = False
        return True


class RoomCallMonitor:
    """Monitors the calls of one room for all that observe them.

    Args:
        notify: Sends every observer what changed, at most ten times a second; returns False if an
            observer's queue is full and it has to be sent the current state later.
    """

    def __init__(
        self, room: RoutedRoom, loop: asyncio.AbstractEventLoop, notify: Callable[[], bool]
    ) -> None:
        self._room = room
        self._loop = loop
        self._notify = notify
        self._in_flight = 0
        self._own = CallRecords()
        """The calls of this node's participants, for the other nodes."""
        self._all = CallRecords()
        """The calls of the whole room, for the observers here."""
        self._targets: dict[str, _ReportTarget] = {}
        self._reports: dict[str, NodeCallReport] = {}
        """The last report of each other node."""
        self.monitor_id = 0
        """Changes when the first observer subscribes; 0 while there is none at this node."""
        self.holds: Mapping[str, CallHold] = {}
        """The open holds of the room, the oldest first."""
        self.hold_changes = 0
        """How often a hold began or ended; only whether it is the same has a meaning."""
        self._settled: deque[list[Any]] = deque(maxlen=MAX_HOLDS)
        """The holds that ended since the last event."""
        self._held: dict[str, Any] = {}
        """What the event that is sent now says of holds."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def counts(self) -> CallCounts:
        """The counts until now; only differences between two of them have a meaning."""
        return self._all.counts

    @property
    def in_flight(self) -> int:
        """How many calls of the room have not ended, as far as reported to this node."""
        return self._in_flight + sum(report.in_flight for report in self._reports.values())

    # Observers

    def start(self) -> None:
        """Send the current state to an observer that has subscribed; the first starts it all."""
        if not self.monitor_id:
            self.monitor_id = randrange(1, _MAX_ID)
        self._monitor_room()
        self._schedule()

    def stop(self) -> None:
        """Stop: the last observer of this node has left."""
        self.monitor_id = 0
        self._reports.clear()
        self._all.clear()
        self._settled.clear()
        self._stop_if_unused()

    def _monitor_room(self) -> None:
        if self._room.monitor is not None:
            return
        self._room.monitor = self
        self._in_flight = 0
        for connection in self._room.connections.values():
            if not connection.participant.is_remote:
                for call in connection.calls.values():
                    if call.patterns is None:
                        self._monitor_call(call)

    def _stop_if_unused(self) -> None:
        if self.monitor_id or self._targets:
            return
        self._room.monitor = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._own.clear()

    def changes_since(self, counts: CallCounts) -> dict[str, Any]:
        """Return the data of an event for an observer that has all until these counts."""
        changed = self.counts.since(counts)
        calls = self._all.packed_since(counts.ended)
        return {"in_flight": self.in_flight, **changed._asdict(), "calls": calls, **self._held}

    # Other nodes

    def start_reports(
        self, node: str, monitor_id: int, send: Callable[[NodeCallReport], bool]
    ) -> None:
        """Report the calls of this node's participants to the monitor of another node from now on.

        `send` returns False if that node cannot be reached, or its queue is full.
        """
        self._monitor_room()
        self._targets[node] = _ReportTarget(monitor_id, self._own.counts, send)
        self._schedule()

    def resend_report(self, node: str | None = None) -> None:
        """Report once more to a node, or to all: the last report may have been lost."""
        for name, target in self._targets.items():
            if node in (None, name):
                target.may_have_lost_report = True
                self._schedule()

    def stop_reports(self, node: str) -> None:
        """Report no more to a node."""
        if self._targets.pop(node, None) is not None:
            self._stop_if_unused()

    def finish_reports(self) -> None:
        """Send the last reports: no participant of this node is in the room any more."""
        self._own.pack()
        for target in self._targets.values():
            target.report(self._own, self._in_flight)
        self._targets.clear()
        self._stop_if_unused()

    def receive_report(self, node: str, report: NodeCallReport) -> None:
        """Add the report of another node; drop one that is for an earlier monitor."""
        if not self.monitor_id or report.monitor_id != self.monitor_id:
            return
        known, last = CallCounts(0, 0, 0), self._reports.get(node)
        if last is not None and last.series == report.series:
            known = last.counts
        elif last is not None:  # calls that ended between the two series were not reported
            lost = max(0, last.in_flight - report.in_flight)
            self._all.add(CallCounts(0, lost, lost), [])
        self._reports[node] = report
        self._all.add(report.counts.since(known), unpack_body(report.calls))
        self._schedule()

    def forget_node(self, node: str) -> None:
        """Count the calls of a node that has ended as failed: its callers have lost them."""
        report = self._reports.pop(node, None)
        if report is not None and report.in_flight:
            self._all.add(CallCounts(0, report.in_flight, report.in_flight), [])
            self._schedule()

    # Calls

    def call_started(self, call: InFlightCall) -> None:
        """Count a call that was dispatched to its host."""
        self._count_start()
        self._monitor_call(call)
        self._schedule()

    def call_refused(self, caller: Connection, request: Call, error: RoomException) -> None:
        """Count a call that ended before it was dispatched."""
        self._count_start()
        traceparent: str | None = None
        # The trace of an untrusted caller is not continued, so its id would mean nothing here.
        if caller.participant.scope.trace:
            context = read_trace_context(request.traceparent, None)
            if context is not None and context.sampled:
                traceparent = request.traceparent
        parent_id = request.options.get("parent") if request.options else None
        parent = caller.dispatched.get(parent_id) if isinstance(parent_id, int) else None
        self._add_ended(
            error,
            [
                request.call_id[:_MAX_NAME_CHARS],
                _id_and_name(caller),
                request.toolkit[:_MAX_NAME_CHARS],
                request.tool[:_MAX_NAME_CHARS],
                None,
                error.code,
                error.executed,
                0,
                traceparent,
                None if parent is None else parent.call_id,
                0,
                None,
            ],
        )

    def call_ended(self, call: InFlightCall, error: RoomException | None) -> None:
        """Count the end of a call whose start was counted."""
        call.monitor = None
        if self._room.monitor is not self:  # the last observer has left meanwhile
            return
        self._in_flight -= 1
        parent = None if call.delegation is None else call.delegation.parent
        now, outcome = self._loop.time(), "" if call.wait is None else call.wait.outcome
        self._add_ended(
            error,
            [
                call.call_id,
                _id_and_name(call.caller),
                call.definition.name,
                call.tool.name,
                _id_and_name(call.host),
                None if error is None else error.code,
                "yes" if error is None else error.executed,
                round((now - call.started_at) * 1e6),
                call.traceparent,
                None if parent is None else parent.call_id,
                round(time_waited_s(call, now) * 1e6),
                outcome or None,
            ],
        )

    def hold_changed(self, hold: CallHold) -> None:
        """Tell observers that a call waits for a person, or does no more."""
        if self.monitor_id:
            self.hold_changes += 1
            if hold.ended:
                self._settled.append(self._described(hold, hold.settled_at))
            self._schedule()

    def _described(self, hold: CallHold, now: float) -> list[Any]:
        tool, asker = hold.tool, hold.asked_by
        assert tool.caller is not None, "rules that were granted wait for nobody"
        shown = tool.caller.shown
        return [
            hold.id,
            tool.call_id,
            *tool.names,
            full_name(shown["name"], shown.get("alias", "")),
            full_name(asker.name, self._room.state.issuers.alias_before(asker)),
            hold.outcome,
            round((now - hold.opened_at) * 1e6),
        ]

    def _pack_holds(self) -> None:
        now = self._loop.time()
        waiting = [hold for hold in self.holds.values() if hold.kind != "granted"]
        listed = [self._described(hold, now) for hold in waiting[:MAX_HOLDS]]
        self._held = {"held": len(waiting), "holds": pack_body([*self._settled, *listed])}
        self._settled.clear()

    def _monitor_call(self, call: InFlightCall) -> None:
        self._in_flight += 1
        call.monitor = self

    def _active_records(self) -> Iterator[CallRecords]:
        if self.monitor_id:
            yield self._all
        if self._targets:
            yield self._own

    def _count_start(self) -> None:
        for records in self._active_records():
            records.started += 1

    def _add_ended(self, error: RoomException | None, record: list[Any]) -> None:
        for records in self._active_records():
            records.add_ended(record, failed=error is not None)
        self._schedule()

    # Sending

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._loop.time() + FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        for records in self._active_records():
            records.pack()
        sent = [target.report(self._own, self._in_flight) for target in self._targets.values()]
        if self.monitor_id:
            self._pack_holds()
            sent.append(self._notify())
        if not all(sent):
            self._schedule()
        for records in self._active_records():
            records.clear()


def _id_and_name(connection: Connection) -> list[str]:
    participant = connection.participant
    known: list[str] = [participant.id, participant.identity.name]
    if participant.alias:
        known += (participant.identity.issuer, participant.alias)
    return known
