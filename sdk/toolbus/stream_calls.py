"""Calls that are more than a question and its answer: streams, uploads, files, progress.

A `LiveCall` is one of them, attempt by attempt. Which chunks are made of what comes is decided in
`chunk_reader`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from toolbus.call_ends import recorded_end
from toolbus.call_flow import CallFlow, unreadable_result
from toolbus.calls import Caller
from toolbus.chunk_reader import ChunkReader
from toolbus.chunks import Chunk
from toolbus.errors import Cancelled, RoomException
from toolbus.inflow import Arrival
from toolbus.input_sender import InputSender
from toolbus.retries import History, Plan
from toolbus.telemetry import CallSpan

__all__ = ["LiveCall"]


class LiveCall:
    """One call whose chunks are read as they come; tried again until the first of them is there.

    Args:
        caller: Makes it.
        plan: The call, with the options that every attempt sends.
        on_progress: Takes the plain value of each progress.
        feed: Sends what the call takes in.
        is_stream: Whether the host may send chunks of any kind, as many as are read.
    """

    def __init__(
        self,
        caller: Caller,
        plan: Plan,
        *,
        on_progress: Callable[[Any], None] | None = None,
        feed: InputSender | None = None,
        is_stream: bool = False,
    ) -> None:
        self._caller = caller
        self._plan = plan
        self._on_progress = on_progress
        self._feed = feed
        self._is_stream = is_stream
        self._flow: CallFlow | None = None
        self._history: History | None = None
        self._span: CallSpan | None = None
        self._retry: asyncio.Task[None] | None = None
        """Makes another attempt, whether or not somebody waits for it; kept where it failed."""
        self._is_over = False
        self._has_begun = False
        """Whether a chunk has come: from then on there is no other attempt."""

    async def begin(self) -> None:
        """Send the first attempt.

        Raises:
            RoomException: It cannot be sent; `executed` is "no".
        """
        self._span = self._caller.begin_span(self._plan)
        try:
            await self._try(self._plan.options)
        except RoomException as error:
            await self._retried(self._begin_retry(error))

    async def result(self) -> Chunk:
        """Make the call and return its result, where it is no stream.

        Raises:
            RoomException: Why there is none; `executed` says whether the tool ran.
            Exception: What the iterable raised that was to be the input.
        """
        try:
            await self.begin()
            chunk = await ChunkReader(self, unreadable_result, self.leave).next()
        except BaseException:
            self.leave()
            raise
        assert chunk is not None, "the result is a chunk"
        return chunk

    async def next(self) -> Arrival | None:
        """Wait for the next chunk; None behind the last one. Cancelling it loses nothing.

        Raises:
            RoomException: Why there is none, after all chunks that came before; each time again.
            Exception: What the iterable raised that was to be the input, likewise.
        """
        while True:
            if self._retry is not None:
                await self._retried(self._retry)
            assert self._flow is not None
            try:
                arrival = await self._flow.next()
            except RoomException as error:
                if self._stays_failed:
                    final = error if self._history is None else self._history.final(error)
                    self._end(final)
                    raise final from None
                self._begin_retry(error)
                continue
            except Exception as error:
                self._end(error)
                raise
            self._has_begun = True
            if arrival is None or arrival.last:
                self._end(None)
            return arrival

    @property
    def _stays_failed(self) -> bool:
        """Whether an error is the call's end, with no other attempt behind it."""
        has_given = self._feed is not None and self._feed.has_begun
        return self._is_over or self._has_begun or has_given

    def _begin_retry(self, error: RoomException) -> asyncio.Task[None]:
        self._retry = asyncio.create_task(self._try_again(error))
        self._retry.add_done_callback(_note_failure)
        return self._retry

    async def _retried(self, retry: asyncio.Task[None]) -> None:
        """Wait for the next attempt, which goes on where the waiting is cancelled."""
        await asyncio.wait([retry])
        if not retry.cancelled():  # else the call was broken off, and its flow says why
            retry.result()
        self._retry = None

    def wrong(self, error: RoomException) -> RoomException:
        """End the call with an error of this side's, unless it has ended, and drop what came."""
        self._end(error)
        if self._retry is not None:
            self._retry.cancel()
        if self._flow is not None:
            self._flow.wrong(error)
        return error

    def leave(self) -> None:
        """Give the call up, unless it has ended, and drop what was not read."""
        self.wrong(Cancelled("the caller gave the call up"))

    async def _try(self, options: dict[str, Any]) -> None:
        flow = self._flow = CallFlow(
            self._caller.shares, on_progress=self._on_progress, feed=self._feed
        )
        if self._is_stream:
            options = {**options, **flow.open_wide()}
        try:
            await self._caller.attempt(self._plan, options, flow)
        except BaseException:
            flow.leave()
            raise

    async def _try_again(self, error: RoomException) -> None:
        """Make another attempt once one is due, or raise the error that ends the call."""
        if self._history is None:
            self._history = self._caller.retries.begin(self._plan)
        while True:
            try:
                options = await self._history.after(error)
            except BaseException as end:
                self._end(end)
                raise
            try:
                await self._try(options)
            except RoomException as next_error:
                error = next_error
            else:
                return

    def _end(self, error: BaseException | None) -> None:
        self._is_over = True
        if self._feed is not None:
            self._feed.stop()
        span, self._span = self._span, None
        if span is not None:
            span.end(None if error is None else recorded_end(error))


def _note_failure(task: asyncio.Task[None]) -> None:
    """Let a failure that nobody reads go unlogged: the call was left, or will be."""
    if not task.cancelled():
        task.exception()
