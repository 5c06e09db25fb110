"""Sends the input of a call, values and files, within the credit of the host.

Nothing is taken from the caller's iterable before the host has sent credit, and not more than the
credit allows. The iterable runs in the caller's context, so that its calls belong to the caller's
trace.
"""

from __future__ import annotations

import asyncio
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

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_sender import ChunkSender, OutgoingConnection
from toolbus.chunks.chunk_sequences import OutgoingBody, file_bodies
from toolbus.chunks.chunk_types import FileChunk, as_chunk
from toolbus.chunks.file_io import NotBytes
from toolbus.concurrency.thread_iterator import ThreadIterator
from toolbus.errors import InvalidArguments, InvalidResult, RoomException, TooLarge
from toolbus.wire import Input, RequestId, pack_body
from toolbus.wire.flow_control import MAX_CHUNK_BYTES

__all__ = [
    "InputSender",
    "as_items",
    "bodies_of_items",
    "close_items",
    "error_of_call",
    "invalid_option",
]

# Iterating over these never blocks.
_IN_MEMORY = (list, tuple, set, frozenset, deque, range)
_logger = bounded_logger(__name__)


class InputSender:
    """Sends the input of one call.

    Args:
        bodies: Packed chunks, made on demand, each with whether it is the last.
    """

    def __init__(self, bodies: AsyncGenerator[OutgoingBody, None]) -> None:
        self._bodies = bodies
        self._sender: ChunkSender | None = None
        """Of the attempt that may still send the input."""
        self._task: asyncio.Task[None] | None = None
        self._context = copy_context()
        self._stopped = False
        self._on_error: Callable[[BaseException], None] = lambda _error: None

    @property
    def has_started(self) -> bool:
        """Whether the iterable was started: then no other attempt can send it."""
        return self._task is not None

    def attach(
        self,
        request: int,
        connection: OutgoingConnection,
        on_error: Callable[[BaseException], None],
    ) -> None:
        """Belong to an attempt of the call; `on_error` gets an error of the iterable."""
        self._sender = ChunkSender(connection, partial(Input, RequestId(request)))
        self._on_error = on_error

    def add_credit(self, chunks: int, total_bytes: int) -> None:
        """Add credit from the host; the first credit starts the iterable."""
        sender = self._sender
        if self._stopped or sender is None:
            return
        sender.add_credit(chunks, total_bytes)
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(sender), context=self._context)
            self._task.add_done_callback(self._on_done)

    def end_attempt(self) -> None:
        """Stop if the iterable was started; otherwise another attempt may send the input."""
        if self.has_started:
            self.stop()
        else:
            self._sender = None

    def stop(self) -> None:
        """Take no more items and close the iterable. Returns at once."""
        if self._stopped:
            return
        self._stopped = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._bodies.aclose())
        else:
            self._task.cancel()

    async def _run(self, sender: ChunkSender) -> None:
        last = False
        async with aclosing(self._bodies) as bodies:
            while not last:
                await sender.ready()
                try:
                    body, last = await anext(bodies)
                except StopAsyncIteration:
                    body, last = None, True
                except NotBytes as error:
                    raise _invalid_input(error) from error
                if body is not None and len(body) > MAX_CHUNK_BYTES:
                    text = f"a value of the input has {len(body)} bytes, at most {MAX_CHUNK_BYTES}"
                    raise TooLarge(f"{text} can be sent", executed="maybe")
                sender.send(body, last)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._stopped:
            if error is not None:
                _logger.error("the input's iterable raised while it was closed", exc_info=error)
        elif task.cancelled():
            self._on_error(RuntimeError("the input was cancelled"))
        elif error is not None:
            self._on_error(error_of_call(error))


# The items


def invalid_option(name: str, message: str) -> InvalidArguments:
    """Make the error for an option of a call, with its path."""
    return InvalidArguments(message, details={"path": f"/{name}", "message": message})


def as_items(items: Any) -> AsyncIterator[Any]:
    """Return the values of an iterable as they are read; one that may block runs on a thread.

    Raises `InvalidArguments` if it is not an iterable of values.
    """
    if isinstance(items, AsyncIterable):
        return aiter(items)
    if isinstance(items, Iterable) and not isinstance(items, str | bytes | bytearray | Mapping):
        if isinstance(items, _IN_MEMORY):
            return _iterate_in_memory(items)
        return ThreadIterator(lambda: items)
    kind = type(items).__name__
    text = f"input must be an iterable or async iterable of values, not {kind}"
    raise invalid_option("input", text)


async def _iterate_in_memory(items: Iterable[Any]) -> AsyncGenerator[Any, None]:
    for item in items:
        yield item


async def bodies_of_items(items: AsyncIterator[Any]) -> AsyncGenerator[OutgoingBody, None]:
    """Pack the values that `as_items` returned, with files in pieces."""
    try:
        async for item in items:
            try:
                chunk = as_chunk(item)
            except InvalidResult as error:
                raise _invalid_input(error) from error
            if not isinstance(chunk, FileChunk):
                yield pack_body(chunk.to_wire()), False
                continue
            async with aclosing(file_bodies(chunk)) as bodies:
                async for body, _ in bodies:
                    yield body, False
    finally:
        await close_items(items)


async def close_items(items: AsyncIterator[Any]) -> None:
    """Close what `as_items` returned; other iterators are their makers' to close."""
    if isinstance(items, ThreadIterator):
        items.stop()
    elif isinstance(items, AsyncGenerator):
        await items.aclose()


def error_of_call(error: BaseException) -> BaseException:
    """Return an error of the iterable as that of the call whose input it is.

    The status of an error of another call does not hold for this one: its tool has been started by
    the time that the iterable is, and may have run.
    """
    if not isinstance(error, RoomException) or error.executed == "maybe":
        return error
    own = type(error).__new__(type(error), *error.args)
    vars(own).update(vars(error), executed="maybe", retryable=False)
    return own.with_traceback(error.__traceback__)


def _invalid_input(error: InvalidResult) -> InvalidArguments:
    return InvalidArguments(error.message, executed="maybe", details=error.details)
