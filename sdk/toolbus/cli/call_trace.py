"""`toolbus call --trace`: follows a call while it runs, and prints its tree afterwards.

It needs no collector and no extra. The call asks to be recorded, so that the server names its trace
in what it reports of calls (the grant `observe`): nested calls are in the same trace. Hosts that
record calls on this machine add their times.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import typer
from opentelemetry import trace

from toolbus.cli.call_tree import CallFacts, call_tree, tree_as_json
from toolbus.cli.room_options import CommandRoom
from toolbus.errors import Executed, RoomException
from toolbus.records.call_record import CallFilter, CallRecord
from toolbus.records.sqlite_file import NoRecords, RecordsUnavailable, read_calls
from toolbus.room.calls import CallReport
from toolbus.room.events import EventStream
from toolbus.room.room import connection_of
from toolbus.settings import records_file
from toolbus.telemetry.tracing import CallSpan, TraceContext, Tracing
from toolbus.telemetry.viewer.trace_tree import draw_lines
from toolbus.untrusted_text import SHOWN_CHARS, json_text, one_line

__all__ = ["CallTrace"]

# A server reports ten times a second, and another one of the same bus its calls to that one.
_LATE_REPORTS_S = 0.25
_REPORT_S = 2.0
"""How long the report of the call itself may take, if the server is slow."""
# A host writes records 50 ms after their calls.
_RECORD_S = 2.0
_RECORD_PAUSE_S = 0.05
_MAX_CALLS = 1_000
"""How many calls are kept of a trace: a call may run for days, and make others all the time."""


class _OwnSpan(CallSpan):
    """The span of the call at its caller: keeps how it ended, also where nothing records spans."""

    __slots__ = ("_facts", "_recorded")

    recording = True

    def __init__(self, facts: CallFacts, context: TraceContext, recorded: CallSpan | None) -> None:
        super().__init__(trace.INVALID_SPAN, context)
        self._facts = facts
        self._recorded = recorded

    def end(
        self,
        error: RoomException | None = None,
        *,
        executed: Executed | None = None,
        at_ns: int | None = None,
    ) -> None:
        """Keep the outcome, and end the recorded span with it."""
        facts = self._facts
        facts.ended_ns = time.time_ns()
        if error is not None:
            facts.code, facts.executed = error.code, error.executed
            if facts.failures and facts.failures[-1][1] == error.code:
                facts.failures.pop()  # the error of the last attempt
            facts.failures.append((facts.ended_ns, error.code))
        if self._recorded is not None:
            self._recorded.end(error, executed=executed, at_ns=at_ns)


class CallTrace(Tracing):
    """The trace of the one call of a command; give it to the room as its `tracing`."""

    def __init__(self) -> None:
        super().__init__()
        self._facts: CallFacts | None = None
        self._room = ""
        self._caller = ""
        self._left_out = 0
        self._notes: list[str] = []
        self._is_reported = asyncio.Event()

    def start_client(self, method: str, call_id: str) -> CallSpan:
        """Start the call, sampled: its id is the trace, unless a span is recorded here."""
        recorded = super().start_client(method, call_id)
        context = TraceContext(f"00-{call_id}-{call_id[16:]}-01")
        if recorded is not None and recorded.recording:
            context = recorded.context
        self._facts = CallFacts(
            call_id=call_id,
            trace_id=context.traceparent[3:35],
            tool=method,
            caller=self._caller,
            room=self._room,
            started_ns=time.time_ns(),
        )
        return _OwnSpan(self._facts, context, recorded)

    @asynccontextmanager
    async def following(self, room: CommandRoom, timeout_s: float) -> AsyncIterator[None]:
        """Follow the call of the block, and wait at its end for what the server reports of it.

        Args:
            room: The room, which has this as its `tracing`.
            timeout_s: How long the server may take to begin its reports.
        """
        self._room, self._caller = room.room, room.me.full_name
        connection_of(room).caller.retries.on_failed_attempt = self._on_failed_attempt
        reports = room.watch_calls()
        try:
            async with asyncio.timeout(timeout_s):
                await reports.__aenter__()
                # Comes within 100 ms; until then other servers of a bus may not report here yet.
                await anext(reports, None)
        except (RoomException, TimeoutError) as error:
            reason = error.message if isinstance(error, RoomException) else "it does not answer"
            self._notes.append(f"the server reports nothing of this call: {reason}")
        if not room.grants.trace:
            self._notes.append("nested calls are not known: no grant to continue a trace (trace)")
        reading = asyncio.create_task(self._read(reports))
        try:
            yield
        finally:
            if not reading.done() and self._facts is not None and room.is_connected:
                await self._wait_for_reports(self._facts)
            reading.cancel()

    def show(self, *, as_json: bool) -> None:
        """Print the tree on stderr; nothing if no call was made."""
        facts = self._facts
        if facts is None or not facts.ended_ns:
            return
        facts.records = self._records(facts)
        tree = call_tree(facts)
        if self._left_out:
            self._notes.append(f"{self._left_out} more nested calls are not shown")
        if any(node.span.known == "nothing" for node in tree.nodes):
            note = "times of hosts come from records on this machine: toolbus host --records"
            if any(call.code == "host_lost" for call in facts.calls):
                note += "; those of a host that was lost may be lost with it"
            self._notes.append(note)
        if as_json:
            typer.echo(json_text({"trace": tree_as_json(facts, tree, self._notes)}), err=True)
            return
        title = f"trace {facts.trace_id}  {tree.nodes[0].span.duration_ms:.2f} ms"
        notes = [f"  note: {one_line(note, SHOWN_CHARS)}" for note in self._notes]
        typer.echo("\n".join((title, *draw_lines(tree), *notes)), err=True)

    def _on_failed_attempt(self, error: RoomException) -> None:
        if self._facts is not None:
            self._facts.failures.append((time.time_ns(), error.code))

    async def _read(self, reports: EventStream[CallReport]) -> None:
        with suppress(RoomException):  # there are none, or the connection has ended
            async for report in reports:
                if self._facts is not None:
                    self._add(self._facts, report)
                self._is_reported.set()

    def _add(self, facts: CallFacts, report: CallReport) -> None:
        if report.has_gap or report.ended > len(report.calls):
            note = "the server's reports have gaps: calls may be missing"
            if note not in self._notes:
                self._notes.append(note)
        for call in report.calls:
            if call.call_id == facts.call_id or (
                call.trace_id == facts.trace_id and len(facts.calls) < _MAX_CALLS
            ):
                facts.calls.append(call)
            elif call.trace_id == facts.trace_id:
                self._left_out += 1

    async def _wait_for_reports(self, facts: CallFacts) -> None:
        late_at = asyncio.get_running_loop().time() + _LATE_REPORTS_S
        try:
            async with asyncio.timeout(_REPORT_S):
                while not any(
                    (call.call_id, call.code) == (facts.call_id, facts.code) for call in facts.calls
                ):
                    self._is_reported.clear()
                    await self._is_reported.wait()
        except TimeoutError:
            self._notes.append("the server has not reported the end of this call")
        await asyncio.sleep(late_at - asyncio.get_running_loop().time())

    def _records(self, facts: CallFacts) -> Sequence[CallRecord]:
        """Return what hosts have recorded here; wait for one that has not written it yet."""
        path = records_file(os.environ)
        chosen = CallFilter(
            since=facts.started_ns / 1e9 - 1, call_tree=(facts.call_id, facts.trace_id)
        )
        # SQLite has this file while a host has the records open.
        is_open = path.with_name(f"{path.name}-wal").exists()
        reached_host = not facts.calls or any(call.host_id for call in facts.calls)
        until = time.monotonic() + (_RECORD_S if is_open and reached_host else 0)
        while True:
            try:
                found = read_calls(path, chosen, _MAX_CALLS)
            except NoRecords:
                return ()
            except RecordsUnavailable as error:
                self._notes.append(error.message)
                return ()
            is_written = any(record.call_id == facts.call_id for record in found)
            if is_written or time.monotonic() >= until:
                return found
            time.sleep(_RECORD_PAUSE_S)
