"""Calls that are more than a question and its answer: streams, uploads, files, progress.

A `StreamTable` hands over what comes before a call's end, a `StreamCaller` makes such calls, and a
`LiveCall` is one of them, attempt by attempt. Which chunks are made of it is decided above.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil, inf
from typing import Any, cast

from toolbus.call_ends import recorded_end
from toolbus.calls import DEFAULT_TIMEOUT_S, GRACE_S, Caller, CallTable, Pending
from toolbus.chunks import Chunk
from toolbus.errors import Cancelled, ConnectionLost, DeadlineExceeded, RoomException
from toolbus.inflow import Arrival, CallFlow, Shares, TwoReaders
from toolbus.input_sender import InputSender
from toolbus.link import Link
from toolbus.outflow import sending_on
from toolbus.received_file import file_result, read_arrival
from toolbus.retries import History, Plan
from toolbus.telemetry import CallSpan
from toolbus.wire import Call, Credit, Progress, StreamChunk

__all__ = ["LiveCall", "StreamCaller", "StreamTable"]


class StreamTable(CallTable):
    """The requests of one connection at a time, with what comes before their ends.

    Args:
        loop: Where the futures live.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.shares: Shares = Shares()
        """The memory for what waits to be read."""

    def open_flow(self, flow: CallFlow, deadline_at: float, connection: Any) -> Pending:
        """Open a request whose chunks and end go to a flow; with infinity it has all the time."""
        self._last_id += 1
        pending = Pending(self._last_id, _as_future(flow), connection)
        self._pending[pending.id] = pending
        if deadline_at < inf:
            self._deadlines.add(deadline_at, pending)
        flow.attach(pending, sending_on(connection), self.give_up)
        return pending

    def take_chunk(self, frame: StreamChunk) -> None:
        """Hand a chunk to the call it is of; the first one of a unary call is its answer.

        One that nobody waits for is dropped and counted.
        """
        pending = self._pending.get(frame.id)
        if pending is None:
            self.drop()
            return
        waiting: asyncio.Future[Any] | CallFlow = pending.future
        if isinstance(waiting, CallFlow):
            waiting.take_chunk(frame)
        elif waiting.done():
            self.drop()
        else:
            flow = CallFlow(self.shares)
            pending.future = _as_future(flow)
            flow.attach(pending, sending_on(pending.connection), self.give_up)
            flow.take_chunk(frame)
            waiting.set_result(flow)

    def take_credit(self, frame: Credit) -> None:
        """Let more of a call's input go. What is not for a call's input is dropped."""
        flow = self._flow(frame.id)
        if flow is not None and frame.of_input:
            flow.take_credit(frame)

    def take_progress(self, frame: Progress) -> None:
        """Hand a progress to who asked for it."""
        flow = self._flow(frame.id)
        if flow is not None:
            flow.take_progress(frame)

    def _flow(self, request: int) -> CallFlow | None:
        pending = self._pending.get(request)
        flow: Any = None if pending is None else pending.future
        return flow if isinstance(flow, CallFlow) else None


class StreamCaller(Caller):
    """Makes the calls and requests of one participant, streams and uploads among them."""

    def __init__(self, link: Link, table: StreamTable, tracing: Any) -> None:
        super().__init__(link, table, tracing)
        self._flows = table

    async def call_with(
        self, plan: Plan, on_progress: Callable[[Any], None] | None, feed: InputSender | None
    ) -> Chunk:
        """Make a call that has input or tells of its progress, and return its result.

        Raises:
            RoomException: Why there is no result; `executed` says whether the tool ran.
            Exception: What the iterable raised that was to be the input.
        """
        call = LiveCall(self, plan, on_progress=on_progress, feed=feed)
        try:
            await call.begin()
            first = await call.next()
        except BaseException:
            call.leave()
            raise
        assert first is not None
        if not first.last:
            return file_result(call, first)
        chunk, _ = read_arrival(call, first)
        return chunk

    def new_flow(
        self, on_progress: Callable[[Any], None] | None, feed: InputSender | None
    ) -> CallFlow:
        """Make what keeps the chunks of one attempt."""
        return CallFlow(self._flows.shares, on_progress=on_progress, feed=feed)

    def begin_span(self, plan: Plan) -> CallSpan | None:
        """Put the call into a trace; return its span if that is recorded."""
        return self._begin_span(plan)

    async def attempt(
        self, plan: Plan, options: dict[str, Any], flow: CallFlow, feed: InputSender | None
    ) -> None:
        """Send one attempt of a call; whatever comes of it goes to `flow`.

        Raises:
            RoomException: It was not sent.
        """
        link = self._link
        if not link.is_ready or link.connection is None or not link.connection.is_open:
            await self._wait_for_link(min(plan.deadline_at, self._loop.time() + DEFAULT_TIMEOUT_S))
        remaining_s = plan.deadline_at - self._loop.time()
        if remaining_s <= 0:
            raise DeadlineExceeded("no time was left for the call", executed="no")
        connection = link.connection
        if connection is None:
            raise ConnectionLost("the connection was lost", executed="no")
        with_affinity = self.affinities.added_to(options, plan)
        pending = self._flows.open_flow(flow, plan.deadline_at + GRACE_S, connection)
        call = Call(
            pending.id,
            plan.call_id,
            plan.toolkit,
            plan.tool,
            None if remaining_s == inf else ceil(remaining_s * 1000),
            plan.arguments,
            with_affinity or None,
            plan.traceparent,
        )
        data = self._packed(pending, call)
        if plan.key not in self.retries.known:
            self._learn(plan)
        if feed is not None:
            feed.attach(pending.id, connection, flow.break_off)
        self._send(pending, data)


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
        caller: StreamCaller,
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
        self._is_read = False
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

    async def next(self) -> Arrival | None:
        """Wait for the next chunk; None behind the last one. Cancelling it loses nothing.

        Raises:
            RoomException: Why there is none, after all chunks that came before; each time again.
            Exception: What the iterable raised that was to be the input, likewise.
            TwoReaders: Another task is waiting.
        """
        if self._is_read:
            raise TwoReaders
        self._is_read = True
        try:
            return await self._next()
        finally:
            self._is_read = False

    async def _next(self) -> Arrival | None:
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

    def break_off(self, error: BaseException) -> None:
        """End the call with an error of this side's, unless it has ended."""
        self._end(error)
        if self._retry is not None:
            self._retry.cancel()
        if self._flow is not None:
            self._flow.break_off(error)
            self._flow.leave()

    def leave(self) -> None:
        """Give the call up, unless it has ended, and drop what was not read."""
        self.break_off(Cancelled("the caller gave the call up"))

    async def _try(self, options: dict[str, Any]) -> None:
        flow = self._flow = self._caller.new_flow(self._on_progress, self._feed)
        if self._is_stream:
            options = {**options, **flow.open_wide()}
        try:
            await self._caller.attempt(self._plan, options, flow, self._feed)
        except BaseException:
            flow.leave()
            raise

    async def _try_again(self, error: RoomException) -> None:
        """Make another attempt once one is due, or raise the error that ends the call."""
        while True:
            try:
                options = await self._next_options(error)
            except BaseException as end:
                self._end(end)
                raise
            try:
                await self._try(options)
            except RoomException as next_error:
                error = next_error
            else:
                return

    async def _next_options(self, error: RoomException) -> dict[str, Any]:
        caller = self._caller
        if self._history is None:
            self._history = caller.retries.begin(self._plan)
            if caller.affinities.learn(self._plan, error):
                return self._plan.options
        return await self._history.after(error)

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


def _as_future(flow: CallFlow) -> asyncio.Future[Any]:
    """Let a flow stand where a table only tells of the end."""
    return cast("asyncio.Future[Any]", flow)
