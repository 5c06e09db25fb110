"""Calls with streams, uploads, files or progress.

A `StreamingCall` is one such call with all its attempts, and a `ChunkStream` is what its caller
reads. `ChunkReader` makes chunks of the received bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

from toolbus.chunks.chunk_sequences import ChunkReader
from toolbus.chunks.chunk_types import Chunk
from toolbus.chunks.receive_credit import ReceivedChunk
from toolbus.chunks.result_parts import JoinedParts
from toolbus.client.caller import Caller
from toolbus.client.input_sender import InputSender
from toolbus.client.local_errors import recorded_end
from toolbus.client.pending_requests import InboundStream, unreadable_result
from toolbus.client.retry import CallPlan, RetryHistory
from toolbus.concurrency.tasks import retrieve_error
from toolbus.errors import Cancelled, RoomException, note_call
from toolbus.telemetry.tracing import CallSpan

__all__ = ["ChunkStream", "StreamingCall"]


class StreamingCall:
    """One call whose chunks are read as they arrive; it may be retried before the first chunk."""

    def __init__(
        self,
        caller: Caller,
        plan: CallPlan,
        *,
        on_progress: Callable[[Any], None] | None = None,
        input_sender: InputSender | None = None,
        is_stream: bool = False,
    ) -> None:
        self._caller = caller
        self._plan = plan
        self._on_progress = on_progress
        self._input_sender = input_sender
        self._is_stream = is_stream
        """Whether the host may send any number of chunks of any kind."""
        self._stream: InboundStream | None = None
        self._history: RetryHistory | None = None
        self._span: CallSpan | None = None
        self._retry_task: asyncio.Task[None] | None = None
        """Makes another attempt, even if no task waits for it; kept if it failed."""
        self._is_over = False
        self._has_received = False
        """Whether a chunk was received: there is no further attempt then."""

    async def begin(self) -> None:
        """Send the first attempt.

        Raises:
            RoomException: It cannot be sent; `executed` is "no".
        """
        self._span = self._caller.begin_span(self._plan)
        try:
            await self._send_attempt(self._plan.options)
        except RoomException as error:
            await self._wait_for_retry(self._start_retry(error))

    async def result(self) -> Chunk:
        """Make a call that is not a stream and return its result.

        Raises:
            RoomException: The call failed; `executed` says whether the tool ran.
            Exception: The error of the input's iterable.
        """
        try:
            await self.begin()
            chunk = await ChunkReader(JoinedParts(self), unreadable_result, self.cancel).next()
        except BaseException:
            self.cancel()
            raise
        assert chunk is not None, "the result is a chunk"
        return chunk

    async def next(self) -> ReceivedChunk | None:
        """Wait for the next chunk; None after the last one. Cancelling loses nothing.

        Raises:
            RoomException: The error that ended the call, after all earlier chunks; again on later
                calls.
            Exception: The error of the input's iterable, likewise.
        """
        while True:
            if self._retry_task is not None:
                await self._wait_for_retry(self._retry_task)
            assert self._stream is not None
            try:
                received = await self._stream.next()
            except RoomException as error:
                sender = self._input_sender
                input_has_started = sender is not None and sender.has_started
                if not (self._is_over or self._has_received or input_has_started):
                    self._start_retry(error)
                    continue
                if self._history is not None:
                    error = self._history.final_error(error)
                self._finish(error)
                raise error from None
            except Exception as error:
                self._finish(error)
                raise
            self._has_received = True
            if received is None or received.last:
                self._finish(None)
            return received

    def _start_retry(self, error: RoomException) -> asyncio.Task[None]:
        self._retry_task = asyncio.create_task(self._retry_after(error))
        self._retry_task.add_done_callback(retrieve_error)
        return self._retry_task

    async def _wait_for_retry(self, retry: asyncio.Task[None]) -> None:
        """Wait for the next attempt; it continues if the wait is cancelled."""
        await asyncio.wait([retry])
        if not retry.cancelled():  # otherwise the call was ended, and its stream has the error
            retry.result()
        self._retry_task = None

    def fail(self, error: RoomException) -> RoomException:
        """End the call with a local error, unless it has ended, and drop unread chunks."""
        self._finish(error)
        if self._retry_task is not None:
            self._retry_task.cancel()
        if self._stream is not None:
            self._stream.fail(error)
        return error

    def cancel(self) -> None:
        """Cancel the call, unless it has ended, and drop unread chunks."""
        self.fail(Cancelled("the caller cancelled the call"))

    async def _send_attempt(self, options: dict[str, Any]) -> None:
        stream = self._stream = InboundStream(
            self._caller.budget, on_progress=self._on_progress, input_sender=self._input_sender
        )
        if self._is_stream:
            options = {**options, **stream.initial_credit()}
        try:
            await self._caller.send_attempt(self._plan, options, stream)
        except BaseException:
            stream.cancel()
            raise

    async def _retry_after(self, error: RoomException) -> None:
        """Make another attempt when it is due, or raise the error that ends the call."""
        if self._history is None:
            self._history = self._caller.retries.begin(self._plan)
        try:
            await self._history.repeat(error, self._send_attempt)
        except BaseException as end:
            self._finish(end)
            raise

    def _finish(self, error: BaseException | None) -> None:
        self._is_over = True
        note_call(error, self._plan.name)
        if self._input_sender is not None:
            self._input_sender.stop()
        span, self._span = self._span, None
        if span is not None:
            span.end(recorded_end(error))


class ChunkStream:
    """The chunks of one call: `async with room.stream("logs.tail") as chunks:`.

    The call is sent when the block is entered, and cancelled if the block is left before its end.
    Read it with `async for chunk in chunks:`. A slow reader slows the tool down: at most 256 chunks
    and 1 MiB are buffered here. An error that ended the call is raised after the chunks that came
    before it, with their number as `details["chunks"]`. A file sent in pieces is one chunk; reading
    the next chunk skips its unread pieces.

    It can be entered once and is read by one task at a time: a second one gets a `RuntimeError`.
    """

    __slots__ = ("_call", "_chunk_count", "_chunks", "_has_ended", "_prepare", "_was_entered")

    def __init__(self, prepare: Callable[[], Awaitable[StreamingCall]]) -> None:
        """Made by the library.

        Args:
            prepare: Makes the call, once, when the block is entered.
        """
        self._prepare = prepare
        self._was_entered = False
        self._call: StreamingCall | None = None
        self._chunks: ChunkReader | None = None
        self._chunk_count = 0
        self._has_ended = False

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise RuntimeError("this stream was already entered: make another one")
        self._was_entered = True
        call = await self._prepare()
        try:
            await call.begin()
        except BaseException as error:
            call.cancel()
            if isinstance(error, RoomException):
                self._add_chunk_count(error)
            raise
        self._call, self._chunks = call, ChunkReader(call, unreadable_result)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._has_ended = True
        if self._call is not None:
            self._call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._chunks is None:
            text = "async with room.stream(...), or the method of a proxy, as chunks:"
            raise RuntimeError(f"enter the stream first: {text}")
        if self._has_ended:
            raise StopAsyncIteration
        try:
            chunk = await self._chunks.next()
        except RoomException as error:
            self._has_ended = True
            self._add_chunk_count(error)
            raise
        if chunk is None:
            self._has_ended = True
            raise StopAsyncIteration
        self._chunk_count += 1
        return chunk

    def _add_chunk_count(self, error: RoomException) -> None:
        error.details = {**error.details, "chunks": self._chunk_count}
