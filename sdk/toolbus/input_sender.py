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
from typing import Any, Protocol, TypeAlias

from toolbus.chunks import FileChunk, as_chunk, file_piece_to_wire
from toolbus.errors import Executed, InvalidArguments, InvalidResult, TooLarge
from toolbus.file_pieces import NotBytes, PathSource
from toolbus.threaded_items import ThreadedItems
from toolbus.wire import Frame, Input, RequestId, pack_body
from toolbus.wire.windows import MAX_CHUNK_BYTES, SendWindow

__all__ = [
    "InputSender",
    "OutgoingLine",
    "as_attachment",
    "bodies_of_file",
    "bodies_of_items",
    "check_readable",
]

# Going through them never blocks.
_AT_HAND = (list, tuple, set, frozenset, deque, range)
# What a file is called, its first piece says.
_NAMELESS = FileChunk(b"", "", "")
_logger = logging.getLogger(__name__)


Outgoing: TypeAlias = tuple[bytes | None, bool]
"""A packed chunk, and whether nothing follows it; None where only that is to be said."""


class OutgoingLine(Protocol):
    """The connection that a call was sent on."""

    @property
    def is_behind(self) -> bool:
        """Whether what is sent now has to wait."""

    def gather(self) -> None:
        """Let small messages that are sent in this turn of the loop leave together."""

    async def caught_up(self) -> None:
        """Wait until nothing has to wait any more, or the connection is gone."""


class InputSender:
    """What one call takes in, on its way.

    Args:
        bodies: Packed chunks, made as they are asked for, each with whether it is the last.
    """

    def __init__(self, bodies: AsyncGenerator[Outgoing, None]) -> None:
        self._bodies = bodies
        self._window = SendWindow()
        self._task: asyncio.Task[None] | None = None
        self._context = copy_context()
        self._more: asyncio.Future[None] | None = None
        self._stopped = False
        self._request = RequestId(0)
        self._line: OutgoingLine | None = None
        self._send: Callable[[Frame], None] = lambda _frame: None
        self._fail: Callable[[BaseException], None] = lambda _error: None

    @property
    def has_begun(self) -> bool:
        """Whether something was taken from the caller's iterable: no other attempt can have it."""
        return self._task is not None

    def attach(
        self,
        request: int,
        line: OutgoingLine,
        send: Callable[[Frame], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Belong to an attempt of the call.

        Args:
            request: Its id.
            line: Its connection, as far as it tells whether there is room.
            send: Writes a frame on it.
            fail: Told what the caller's iterable raised, or what cannot be sent.
        """
        self._request, self._line, self._send, self._fail = RequestId(request), line, send, fail

    def give(self, chunks: int, total_bytes: int) -> None:
        """Take a credit of the host's; the first one begins it all."""
        if self._stopped:
            return
        self._window.give(chunks, total_bytes)
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), context=self._context)
            self._task.add_done_callback(self._on_done)
        elif self._more is not None and not self._more.done():
            self._more.set_result(None)

    def end_attempt(self) -> None:
        """Stop, unless nothing was taken yet: then another attempt may send it."""
        if self.has_begun:
            self.stop()
        else:
            self._window = SendWindow()

    def stop(self) -> None:
        """Take nothing more, and close the caller's iterable. Returns at once."""
        if self._stopped:
            return
        self._stopped = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._bodies.aclose())
        else:
            self._task.cancel()

    async def _run(self) -> None:
        async with aclosing(self._bodies) as bodies:
            while True:
                await self._room()
                try:
                    body, last = await anext(bodies)
                except StopAsyncIteration:
                    body, last = None, True
                if body is not None and len(body) > MAX_CHUNK_BYTES:
                    raise _too_large(body)
                number = self._window.take(0 if body is None else len(body))
                if self._line is not None:
                    self._line.gather()
                self._send(Input(self._request, number, body, last))
                if last:
                    return

    async def _room(self) -> None:
        """Wait until the host has room for a chunk, and the connection too."""
        while not self._window.is_open:
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        if self._line is not None and self._line.is_behind:
            await self._line.caught_up()

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


async def bodies_of_file(file: FileChunk) -> AsyncGenerator[Outgoing, None]:
    """Pack a file, piece by piece; an empty file is one piece."""
    last, is_first, named = b"", True, file
    async with aclosing(file.pieces()) as pieces:
        try:
            async for piece in pieces:
                if not is_first:
                    yield pack_body(file_piece_to_wire(named, last, more=True)), False
                    named = _NAMELESS
                last, is_first = piece, False
        except NotBytes as error:
            raise _unsendable(error, "maybe") from error
    yield pack_body(file_piece_to_wire(named, last, more=False)), True


def bodies_of_items(items: Any) -> AsyncGenerator[Outgoing, None]:
    """Pack the values of an iterable, files among them piece by piece.

    Raises:
        InvalidArguments: At once, where it is none, or one that cannot be meant.
    """
    if isinstance(items, AsyncIterable):
        return _packed(aiter(items))
    if isinstance(items, Iterable) and not isinstance(items, str | bytes | bytearray | Mapping):
        return _packed(_at_hand(items) if isinstance(items, _AT_HAND) else ThreadedItems(items))
    kind = type(items).__name__
    raise InvalidArguments(f"input is an iterable or an async iterable of values, not {kind}")


async def _at_hand(items: Iterable[Any]) -> AsyncGenerator[Any, None]:
    for item in items:
        yield item


async def _packed(items: AsyncIterator[Any]) -> AsyncGenerator[Outgoing, None]:
    try:
        async for item in items:
            try:
                chunk = as_chunk(item)
            except InvalidResult as error:
                raise _unsendable(error, "maybe") from error
            if not isinstance(chunk, FileChunk):
                yield pack_body(chunk.to_wire()), False
                continue
            async with aclosing(bodies_of_file(chunk)) as bodies:
                async for body, _ in bodies:
                    yield body, False
    finally:
        # What else can be closed is the caller's to close, as in a loop of its own.
        if isinstance(items, AsyncGenerator | ThreadedItems):
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
