"""The callers of a storm: tasks that make one call after the other and record how each ended."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from support.storm.plan import HELD, STREAMS, PlannedCall
from support.storm.verdict import LEFT, OK, CallOutcome
from support.storm.witness import large_text, pattern
from toolbus import FileChunk, HeldCall, RoomClient, RoomException

__all__ = ["Ledger", "Pulse", "make_calls", "own_failures_unlogged"]

_PULSE_S = 0.05


class Ledger:
    """The calls that were made, and how they ended for their callers."""

    def __init__(self) -> None:
        self.asked: dict[int, PlannedCall] = {}
        self.reports: list[CallOutcome] = []
        self.reported = asyncio.Event()
        """Set at each end of a call; a waiter clears it."""
        self.pulse = Pulse()

    def ask(self, planned: PlannedCall) -> None:
        """Record that a call is made."""
        self.asked[planned.key] = planned

    def report(self, outcome: CallOutcome) -> None:
        """Record how a call ended."""
        self.reports.append(outcome)
        self.reported.set()


class _InputFailed(Exception):
    """Raised by an input that was planned to fail."""


@contextmanager
def own_failures_unlogged() -> Iterator[None]:
    """Drop the log records of inputs that were planned to fail and failed after their call had
    ended.

    A log handler that keeps such a record would keep the call.
    """
    logger = logging.getLogger("toolbus.client.input_sender")
    logger.addFilter(_is_not_own)
    try:
        yield
    finally:
        logger.removeFilter(_is_not_own)


def _is_not_own(record: logging.LogRecord) -> bool:
    return record.exc_info is None or record.exc_info[0] is not _InputFailed


class Pulse:
    """How late the callers' event loop is: what it lacks the time for is no fault of the bus."""

    def __init__(self) -> None:
        self._late_s = 0.0
        self._due_at = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._due_at = time.monotonic() + _PULSE_S
            await asyncio.sleep(_PULSE_S)
            self._late_s += max(0.0, time.monotonic() - self._due_at)

    @property
    def late_s(self) -> float:
        """Seconds that the loop was late in all, the current period included."""
        return self._late_s + max(0.0, time.monotonic() - self._due_at)


class _Reading:
    """What one caller has read of one call."""

    def __init__(self, planned: PlannedCall) -> None:
        self.planned = planned
        self.paused_s = 0.0
        self._held_at: float | None = None
        self.got = 0
        self.in_order = True
        self.left = False
        self.value: Any = None

    async def pause(self) -> None:
        """Wait for as long as this caller takes for each value."""
        began_at = time.monotonic()
        await asyncio.sleep(self.planned.reads_s)
        self.paused_s += time.monotonic() - began_at

    def note_wait(self, held: HeldCall) -> None:
        """Count the time in which the call waits for a person."""
        self.end_wait()
        if held.is_open:
            self._held_at = time.monotonic()

    def end_wait(self) -> None:
        """Count that of the current wait, if there is one."""
        if self._held_at is not None:
            self.paused_s += time.monotonic() - self._held_at
            self._held_at = None

    def take(self, row: Any) -> None:
        """Count a value of a stream."""
        self.in_order = self.in_order and row[:2] == [self.planned.key, self.got]
        self.got += 1


async def make_calls(
    room: RoomClient, planned_calls: Iterator[PlannedCall], ledger: Ledger, is_over: asyncio.Event
) -> None:
    """Make one call after the other until the storm is over."""
    while not is_over.is_set():
        planned = next(planned_calls)
        ledger.ask(planned)
        late_s = ledger.pulse.late_s
        report = await _do(room, planned)
        report = replace(report, late_s=ledger.pulse.late_s - late_s)
        ledger.report(report)
        if report.code not in (OK, LEFT):
            await asyncio.sleep(0.01)  # a refusal comes at once: that is no load


async def _do(room: RoomClient, planned: PlannedCall) -> CallOutcome:
    reading, began_at = _Reading(planned), time.monotonic()
    facts: dict[str, Any] = {"code": OK}
    making = asyncio.ensure_future(_make(room, planned, reading))
    if planned.gives_up_s is not None:
        await asyncio.wait([making], timeout=planned.gives_up_s)
        making.cancel()
    try:
        await making
    except asyncio.CancelledError:
        mine = asyncio.current_task()
        if mine is not None and mine.cancelling():
            raise
        facts = {"code": LEFT, "executed": "maybe"}
    except _InputFailed:
        facts = {"code": "input", "executed": "maybe", "own": True}
    except RoomException as error:
        chunks = error.details.get("chunks")
        facts = {"code": error.code, "executed": error.executed, "chunks": chunks}
        facts["words"] = error.message
    reading.end_wait()
    if reading.left:
        facts = {"code": LEFT, "executed": "maybe"}
    return CallOutcome(
        key=planned.key,
        took_s=time.monotonic() - began_at,
        paused_s=reading.paused_s,
        got=reading.got,
        in_order=reading.in_order,
        value=reading.value,
        **facts,
    )


async def _make(room: RoomClient, planned: PlannedCall, reading: _Reading) -> None:
    if planned.tool in STREAMS:
        await _read_stream(room, planned, reading)
    elif planned.tool == "total":
        await _send_rows(room, planned, reading)
    else:
        await _ask(room, planned, reading)


def _options(planned: PlannedCall) -> dict[str, Any]:
    shown: list[Any] = []
    options: dict[str, Any] = {"on_progress": shown.append} if planned.progress else {}
    if planned.on_behalf_of is not None:
        options["on_behalf_of"] = planned.on_behalf_of
    return {"timeout_s": planned.timeout_s, "retry": planned.retry, **options}


async def _ask(room: RoomClient, planned: PlannedCall, reading: _Reading) -> None:
    arguments: dict[str, Any] = {"key": planned.key}
    options = _options(planned)
    if planned.tool == "keep":
        options["attachment"] = FileChunk.from_pieces(_pieces(planned))
    elif planned.tool == "blob":
        arguments["size"] = planned.size
    else:
        arguments["work_s"] = planned.work_s
    if planned.tool == "large":
        arguments["size"] = planned.size
    if planned.tool in HELD:
        options |= {"approval_timeout_s": planned.approval_timeout_s, "on_held": reading.note_wait}
    chunk = await room.invoke(f"storm.{planned.tool}", arguments, **options)
    reading.value = await _hash_of(chunk, reading) if planned.tool == "blob" else chunk.value
    if planned.tool == "large":  # the text itself is not kept, as there are thousands
        reading.value = reading.value == large_text(planned.key, planned.size)


async def _hash_of(file: FileChunk, reading: _Reading) -> str:
    digest = hashlib.sha256()
    async for piece in file.pieces():
        digest.update(piece)
        await reading.pause()
    return digest.hexdigest()


async def _pieces(planned: PlannedCall) -> AsyncIterator[bytes]:
    data = pattern(planned.key, planned.size)
    for at in range(0, len(data), 50_000):
        yield data[at : at + 50_000]


async def _rows(planned: PlannedCall) -> AsyncIterator[list[Any]]:
    for number in range(planned.count):
        if number == planned.fails_at:
            raise _InputFailed
        await asyncio.sleep(planned.work_s)
        yield [planned.key, number, "x" * planned.size]
    if planned.fails_at == planned.count:
        raise _InputFailed


async def _send_rows(room: RoomClient, planned: PlannedCall, reading: _Reading) -> None:
    """Send rows of values as an input; a sum has no stream of values."""
    options = _options(planned)
    stream = room.stream("storm.total", {"key": planned.key}, input=_rows(planned), **options)
    async with stream as chunks:
        async for chunk in chunks:
            reading.value = chunk.value


async def _read_stream(room: RoomClient, planned: PlannedCall, reading: _Reading) -> None:
    arguments: dict[str, Any] = {"key": planned.key}
    rows = _rows(planned) if planned.tool == "echo" else None
    if rows is None:
        arguments |= {"count": planned.count, "size": planned.size, "work_s": planned.work_s}
        arguments["fails_at"] = -1 if planned.fails_at is None else planned.fails_at
    async with room.stream(
        f"storm.{planned.tool}", arguments, input=rows, **_options(planned)
    ) as chunks:
        async for chunk in chunks:
            reading.take(chunk.value)
            if reading.got - 1 == planned.leaves_at:
                reading.left = True
                return
            await reading.pause()
