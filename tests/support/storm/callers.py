"""The callers of a storm: lanes that make one call after the other and note how each ended."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from support.storm.plan import STREAMS, Deed
from support.storm.verdict import LEFT, OK, Told
from support.storm.witness import pattern
from toolbus import FileChunk, RoomClient, RoomException

__all__ = ["Ledger", "Pulse", "lane", "own_failures_unlogged"]

_PULSE_S = 0.05


class Ledger:
    """What was asked for, and what callers were told."""

    def __init__(self) -> None:
        self.asked: dict[int, Deed] = {}
        self.told: list[Told] = []
        self.pulse = Pulse()

    def ask(self, deed: Deed) -> None:
        """Note that a call is made."""
        self.asked[deed.key] = deed


class _InputFailed(Exception):
    """What an input raises that was told to."""


@contextmanager
def own_failures_unlogged() -> Iterator[None]:
    """Drop what is logged of an input that was to fail, and did as its call had just ended.

    Else who keeps the log would keep the call.
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
    """How late the callers' own loop is: what it lacks the time for is no fault of the bus."""

    def __init__(self) -> None:
        self._late_s = 0.0
        self._due_at = 0.0

    async def run(self) -> None:
        """Count until cancelled."""
        while True:
            self._due_at = time.monotonic() + _PULSE_S
            await asyncio.sleep(_PULSE_S)
            self._late_s += max(0.0, time.monotonic() - self._due_at)

    @property
    def late_s(self) -> float:
        """Seconds, of all that it ran, with those of the beat that is due."""
        return self._late_s + max(0.0, time.monotonic() - self._due_at)


class _Reading:
    """What one caller has read of one call."""

    def __init__(self, deed: Deed) -> None:
        self.deed = deed
        self.paused_s = 0.0
        self.got = 0
        self.in_order = True
        self.left = False
        self.value: Any = None

    async def pause(self) -> None:
        """Take the time that this caller takes for each value."""
        began_at = time.monotonic()
        await asyncio.sleep(self.deed.reads_s)
        self.paused_s += time.monotonic() - began_at

    def take(self, row: Any) -> None:
        """Count a value of a stream."""
        self.in_order = self.in_order and row[:2] == [self.deed.key, self.got]
        self.got += 1


async def lane(
    room: RoomClient, deeds: Iterator[Deed], ledger: Ledger, is_over: asyncio.Event
) -> None:
    """Make one call after the other until it is over."""
    while not is_over.is_set():
        deed = next(deeds)
        ledger.ask(deed)
        late_s = ledger.pulse.late_s
        told = await _do(room, deed)
        told = replace(told, late_s=ledger.pulse.late_s - late_s)
        ledger.told.append(told)
        if told.code not in (OK, LEFT):
            await asyncio.sleep(0.01)  # a refusal comes at once: that is no load


async def _do(room: RoomClient, deed: Deed) -> Told:
    reading, began_at = _Reading(deed), time.monotonic()
    facts: dict[str, Any] = {"code": OK}
    making = asyncio.ensure_future(_make(room, deed, reading))
    if deed.gives_up_s is not None:
        await asyncio.wait([making], timeout=deed.gives_up_s)
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
    if reading.left:
        facts = {"code": LEFT, "executed": "maybe"}
    return Told(
        key=deed.key,
        took_s=time.monotonic() - began_at,
        paused_s=reading.paused_s,
        got=reading.got,
        in_order=reading.in_order,
        value=reading.value,
        **facts,
    )


async def _make(room: RoomClient, deed: Deed, reading: _Reading) -> None:
    if deed.tool in STREAMS:
        await _read_stream(room, deed, reading)
    elif deed.tool == "total":
        await _send_rows(room, deed, reading)
    else:
        await _ask(room, deed, reading)


def _options(deed: Deed) -> dict[str, Any]:
    shown: list[Any] = []
    told = {"on_progress": shown.append} if deed.progress else {}
    return {"timeout_s": deed.timeout_s, "retry": deed.retry, **told}


async def _ask(room: RoomClient, deed: Deed, reading: _Reading) -> None:
    arguments: dict[str, Any] = {"key": deed.key}
    options = _options(deed)
    if deed.tool == "keep":
        options["attachment"] = FileChunk.from_pieces(_pieces(deed))
    elif deed.tool == "blob":
        arguments["size"] = deed.size
    else:
        arguments["work_s"] = deed.work_s
    chunk = await room.invoke(f"storm.{deed.tool}", arguments, **options)
    reading.value = await _hash_of(chunk, reading) if deed.tool == "blob" else chunk.value


async def _hash_of(file: FileChunk, reading: _Reading) -> str:
    digest = hashlib.sha256()
    async for piece in file.pieces():
        digest.update(piece)
        await reading.pause()
    return digest.hexdigest()


async def _pieces(deed: Deed) -> AsyncIterator[bytes]:
    data = pattern(deed.key, deed.size)
    for at in range(0, len(data), 50_000):
        yield data[at : at + 50_000]


async def _rows(deed: Deed) -> AsyncIterator[list[Any]]:
    for number in range(deed.count):
        if number == deed.fails_at:
            raise _InputFailed
        await asyncio.sleep(deed.work_s)
        yield [deed.key, number, "x" * deed.size]
    if deed.fails_at == deed.count:
        raise _InputFailed


async def _send_rows(room: RoomClient, deed: Deed, reading: _Reading) -> None:
    """A sum is no stream of values; its input is one."""
    options = _options(deed)
    stream = room.stream("storm.total", {"key": deed.key}, input=_rows(deed), **options)
    async with stream as chunks:
        async for chunk in chunks:
            reading.value = chunk.value


async def _read_stream(room: RoomClient, deed: Deed, reading: _Reading) -> None:
    arguments: dict[str, Any] = {"key": deed.key}
    rows = _rows(deed) if deed.tool == "echo" else None
    if rows is None:
        arguments |= {"count": deed.count, "size": deed.size, "work_s": deed.work_s}
        arguments["fails_at"] = -1 if deed.fails_at is None else deed.fails_at
    async with room.stream(f"storm.{deed.tool}", arguments, input=rows, **_options(deed)) as chunks:
        async for chunk in chunks:
            reading.take(chunk.value)
            if reading.got - 1 == deed.leaves_at:
                reading.left = True
                return
            await reading.pause()
