"""Sends what a call takes in: values and files, as fast as the host gives credit for them.

Nothing is taken from the caller's iterable before the host has asked for it, and no more than it
asked for. It runs in the caller's context, so that what it calls belongs to the caller's trace.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import aclosing
from contextvars import copy_context
from functools import partial
from typing import Any

from toolbus.chunk_bodies import OutgoingBody, file_bodies
from toolbus.chunks import FileChunk, as_chunk
from toolbus.errors import Executed, InvalidArguments, InvalidResult, TooLarge
from toolbus.file_pieces import NotBytes, PathSource
from toolbus.outflow import Outflow, OutgoingLine
from toolbus.thread_items import ThreadItems
from toolbus.wire import Input, RequestId, pack_body
from toolbus.wire.windows import MAX_CHUNK_BYTES

__all__ = ["InputSender", "as_attachment", "bodies_of_items", "check_readable"]

# Going through them never blocks.
_AT_HAND = (list, tuple, set, frozenset, deque, range)
_logger = logging.getLogger(__name__)


class InputSender:
    """What one call takes in, on its way.

    Args:
        bodies: Packed chunks, made as they are asked for, each with whether it is the last.
    """

    def __init__(self, bodies: AsyncGenerator[OutgoingBody, None]) -> None:
        self._bodies = bodies
        self._outflow: Outflow | None = None
        """Of an attempt that may still send it."""
        self._task: asyncio.Task[None] | None = None
        self._context = copy_context()
        self._stopped = False
        self._fail: Callable[[BaseException], None] = lambda _error: None

    @property
    def has_begun(self) -> bool:
        """Whether something was taken from the caller's iterable: no other attempt can have it."""
        return self._task is not None

    def attach(
        self, request: int, line: OutgoingLine, fail: Callable[[BaseException], None]
    ) -> None:
        """Belong to an attempt of the call.

        Args:
            request: Its id.
            line: Its connection.
            fail: Told what the caller's iterable raised, or what cannot be sent.
        """
        self._outflow = Outflow(line, partial(Input, RequestId(request)))
        self._fail = fail

    def give(self, chunks: int, total_bytes: int) -> None:
        """Take a credit of the host's; the first one begins it all."""
        outflow = self._outflow
        if self._stopped or outflow is None:
            return
        outflow.give(chunks, total_bytes)
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(outflow), context=self._context)
            self._task.add_done_callback(self._on_done)

    def end_attempt(self) -> None:
        """Stop, unless nothing was taken yet: then another attempt may send it."""
        if self.has_begun:
            self.stop()
        else:
            self._outflow = None

    def stop(self) -> None:
        """Take nothing more, and close the caller's iterable. Returns at once."""
        if self._stopped:
            return
        self._stopped = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._bodies.aclose())
        else:
            self._task.cancel()

    async def _run(self, outflow: Outflow) -> None:
        last = False
        async with aclosing(self._bodies) as bodies:
            while not last:
                await outflow.room()
                try:
                    body, last = await anext(bodies)
                except StopAsyncIteration:
                    body, last = None, True
                except NotBytes as error:
                    raise _unsendable(error, "maybe") from error
                if body is not None and len(body) > MAX_CHUNK_BYTES:
                    raise _too_large(body)
                outflow.send(body, last)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._stopped:
            if error is not None:
                _logger.error("an input raised while it was closed", exc_info=error)
        elif task.cancelled():
            self._fail(RuntimeError("the input was cancelled"))
        elif error is not None:
            self._fail(error)


# What is sent


def as_attachment(value: Any) -> FileChunk:
    """Read what a caller gave as an attachment. Raises InvalidArguments where it is none."""
    if isinstance(value, FileChunk):
        return _sendable_file(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return FileChunk(bytes(value))
    if isinstance(value, str | os.PathLike):
        return _sendable_file(FileChunk.from_path(value))
    if isinstance(value, AsyncIterable):
        return FileChunk.from_pieces(value)
    kind = type(value).__name__
    words = "an attachment is bytes, a path, a FileChunk or an async iterable of bytes"
    raise InvalidArguments(f"{words}, not {kind}")


def _sendable_file(file: FileChunk) -> FileChunk:
    try:
        checked = as_chunk(file)
    except InvalidResult as error:
        raise _unsendable(error, "no") from None
    assert isinstance(checked, FileChunk)
    return checked


def bodies_of_items(items: Any) -> AsyncGenerator[OutgoingBody, None]:
    """Pack the values of an iterable, files among them piece by piece.

    Raises:
        InvalidArguments: At once, where it is none, or one that cannot be meant.
    """
    if isinstance(items, AsyncIterable):
        return _packed(aiter(items))
    if isinstance(items, Iterable) and not isinstance(items, str | bytes | bytearray | Mapping):
        is_at_hand = isinstance(items, _AT_HAND)
        return _packed(_at_hand(items) if is_at_hand else ThreadItems(lambda: items))
    kind = type(items).__name__
    raise InvalidArguments(f"input is an iterable or an async iterable of values, not {kind}")


async def _at_hand(items: Iterable[Any]) -> AsyncGenerator[Any, None]:
    for item in items:
        yield item


async def _packed(items: AsyncIterator[Any]) -> AsyncGenerator[OutgoingBody, None]:
    try:
        async for item in items:
            try:
                chunk = as_chunk(item)
            except InvalidResult as error:
                raise _unsendable(error, "maybe") from error
            if not isinstance(chunk, FileChunk):
                yield pack_body(chunk.to_wire()), False
                continue
            async with aclosing(file_bodies(chunk)) as bodies:
                async for body, _ in bodies:
                    yield body, False
    finally:
        # What else can be closed is the caller's to close, as in a loop of its own.
        if isinstance(items, ThreadItems):
            items.leave()
        elif isinstance(items, AsyncGenerator):
            await items.aclose()


async def check_readable(file: FileChunk) -> None:
    """Raise `OSError` now, before anything is sent, where a file of this machine cannot be read."""
    if isinstance(file.source, PathSource):
        await file.source.check()


def _unsendable(error: InvalidResult, executed: Executed) -> InvalidArguments:
    return InvalidArguments(error.message, executed=executed, details=error.details)


def _too_large(body: bytes) -> TooLarge:
    words = f"a value of the input has {len(body)} bytes, at most {MAX_CHUNK_BYTES} can be sent"
    return TooLarge(words, executed="maybe")
