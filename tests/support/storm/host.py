"""A host of a storm in its own process: `python host.py WITNESS`, until SIGTERM.

Its tools write to the witness that they began and how they ended, with a digest of their input.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from support.rooms.leftovers import entries_of, report_holdings
from support.storm.witness import Run, Witness, large_text, pattern
from toolbus import (
    FileChunk,
    InputStream,
    RoomClient,
    ToolContext,
    ToolFailed,
    Toolkit,
    tool,
)
from toolbus.concurrency import event_loop
from toolbus.errors import Cancelled, Unavailable
from toolbus.hosting.hosted_call import HostedCall
from toolbus.service.remote_toolkit import serve_toolkits
from toolbus.tools.context import run_of

__all__ = ["storm_toolkit"]


class _Notes:
    """Records in the witness which call runs, by the key in its dispatch."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    def run(self, context: ToolContext, key: int) -> AbstractContextManager[Run]:
        call = run_of(context)
        assert isinstance(call, HostedCall)
        dispatch = call.dispatch
        attempt = dispatch.header.get("attempt", 0)
        return self._witness.run(key, dispatch.call_id, attempt)


def _unary(notes: _Notes) -> list[Any]:
    @tool
    async def once(context: ToolContext, key: int, work_s: float = 0.0) -> int:
        with notes.run(context, key):
            context.emit(key)
            await asyncio.sleep(work_s)
            return key

    @tool(idempotent=True)
    async def again(context: ToolContext, key: int, work_s: float = 0.0) -> int:
        with notes.run(context, key):
            context.emit(key)
            await asyncio.sleep(work_s)
            return key

    @tool
    async def nest(context: ToolContext, key: int, work_s: float = 0.0) -> int:
        with notes.run(context, key):
            return await _nested(context, "once", key, work_s)

    @tool(approval=True)
    async def approved(context: ToolContext, key: int, work_s: float = 0.0) -> int:
        with notes.run(context, key):
            context.emit(key)
            await asyncio.sleep(work_s)
            return key

    @tool
    async def nest_approved(context: ToolContext, key: int, work_s: float = 0.0) -> int:
        with notes.run(context, key):
            return await _nested(context, "approved", key, work_s)

    @tool(max_concurrency=8)
    def thread(context: ToolContext, key: int, work_s: float = 0.0) -> int:
        with notes.run(context, key):
            until = time.monotonic() + work_s
            while time.monotonic() < until and not context.cancelled:
                time.sleep(0.002)
            return key

    @tool
    async def fail(context: ToolContext, key: int, work_s: float = 0.0) -> int:
        with notes.run(context, key):
            await asyncio.sleep(work_s)
            raise ToolFailed("as asked", retryable=key % 2 == 0)

    @tool
    async def large(context: ToolContext, key: int, size: int, work_s: float = 0.0) -> str:
        with notes.run(context, key):
            await asyncio.sleep(work_s)
            return large_text(key, size)

    return [once, again, nest, approved, nest_approved, thread, fail, large]


async def _nested(context: ToolContext, tool_name: str, key: int, work_s: float) -> int:
    """Make the call within another one, for whom that one is made."""
    principal = context.on_behalf_of
    inner = await context.room.invoke(
        f"storm.{tool_name}",
        {"key": -key, "work_s": work_s},
        on_behalf_of=None if principal is None else principal.name,
    )
    return -int(inner.value)


def _row(key: int, number: int, size: int) -> list[Any]:
    return [key, number, "x" * size]


def _streams_out(notes: _Notes) -> list[Any]:
    @tool
    async def count(
        context: ToolContext, key: int, count: int, size: int, work_s: float, fails_at: int = -1
    ) -> AsyncIterator[list[Any]]:
        with notes.run(context, key):
            for number in range(count):
                if number == fails_at:
                    raise ToolFailed("as asked")
                context.emit(number)
                await asyncio.sleep(work_s)
                yield _row(key, number, size)
            if fails_at == count:
                raise ToolFailed("as asked")

    @tool(max_concurrency=8)
    def count_in_thread(
        context: ToolContext, key: int, count: int, size: int, work_s: float, fails_at: int = -1
    ) -> Iterator[list[Any]]:
        with notes.run(context, key):
            for number in range(count):
                if number == fails_at:
                    raise ToolFailed("as asked")
                time.sleep(work_s)
                yield _row(key, number, size)
            if fails_at == count:
                raise ToolFailed("as asked")

    return [count, count_in_thread]


def _streams_in(notes: _Notes) -> list[Any]:
    @tool
    async def total(context: ToolContext, key: int, rows: InputStream[list[Any]]) -> int:
        with notes.run(context, key) as run:
            async for row in rows:
                run.take(row[1])
                context.emit(run.got)
            return run.got

    @tool
    async def echo(
        context: ToolContext, key: int, rows: InputStream[list[Any]]
    ) -> AsyncIterator[list[Any]]:
        with notes.run(context, key) as run:
            async for row in rows:
                run.take(row[1])
                yield row

    return [total, echo]


def _files(notes: _Notes) -> list[Any]:
    @tool
    async def keep(context: ToolContext, key: int, attachment: FileChunk) -> str:
        with notes.run(context, key) as run:
            try:
                async for piece in attachment.pieces():
                    run.take_piece(piece)
                    context.emit(run.got)
            finally:
                digest = run.close_file()
            return digest

    @tool
    async def blob(context: ToolContext, key: int, size: int) -> FileChunk:
        with notes.run(context, key):
            return FileChunk(pattern(key, size), f"{key}.bin")

    return [keep, blob]


def storm_toolkit(witness: Witness) -> Toolkit:
    """Make the toolkit `storm`."""
    notes = _Notes(witness)
    streams = [*_streams_out(notes), *_streams_in(notes)]
    tools = [*_unary(notes), *streams, *_files(notes)]
    return Toolkit("storm", tools, version=os.environ.get("STORM_VERSION", ""))


class _Announced(RoomClient):
    """Prints "ready" once it hosts something."""

    @asynccontextmanager
    async def host(self, toolkit: Toolkit, **options: Any) -> AsyncIterator[Toolkit]:
        async with super().host(toolkit, **options):
            print("ready", flush=True)  # noqa: T201 - the parent reads it
            yield toolkit


async def main(path: str) -> None:
    """Host until SIGTERM, and report what this process holds meanwhile."""
    room = _Announced()

    def of_room() -> dict[str, Any]:
        return {"entries": entries_of(room)}

    reporting = asyncio.create_task(report_holdings(of_room))
    toolkit = storm_toolkit(Witness(path))
    while True:
        try:
            await serve_toolkits([toolkit], room)
            break
        except Cancelled:  # it was terminated before it could host
            break
        except Unavailable:  # it came while the connection or the server was down
            await asyncio.sleep(0.1)
    reporting.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    event_loop.run(main(sys.argv[1]))
