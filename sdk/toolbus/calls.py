"""Makes calls and requests, one attempt at a time.

Where they wait for their answers is a `CallTable`; whether there is another attempt is decided in
`retries`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from math import ceil, inf
from time import monotonic
from typing import Any, Self

from toolbus.affinities import Affinities
from toolbus.call_ends import does_not_fit, object_in, recorded_end, unsendable
from toolbus.call_flow import CallFlow, file_of
from toolbus.call_table import CallTable, Pending
from toolbus.chunks import read_chunk
from toolbus.deadlines import ROUNDING_MS
from toolbus.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidResult,
    RoomException,
    Unavailable,
)
from toolbus.inflow import Shares
from toolbus.lines import Line
from toolbus.link import Link
from toolbus.retries import Plan, Retries
from toolbus.telemetry import CallSpan, Tracing
from toolbus.trace_context import TRACESTATE, current_context
from toolbus.wire import (
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    BadBody,
    Call,
    Cancel,
    Describe,
    Frame,
    RequestId,
    Result,
    decode_from_client,
    encode,
)

__all__ = ["DEFAULT_TIMEOUT_S", "GRACE_S", "Caller"]

DEFAULT_TIMEOUT_S = 60.0
"""The deadline of a call that names none."""
GRACE_S = 0.25
"""How long past a deadline the server's own word is waited for."""


class Caller:
    """Makes the calls and requests of one participant.

    Args:
        link: The line to the server.
        table: Where answers are awaited.
        tracing: Records sampled calls.
    """

    __slots__ = ("_link", "_loop", "_table", "_tracing", "affinities", "retries", "shares")

    def __init__(self, link: Link, table: CallTable, tracing: Tracing) -> None:
        self._link: Link | Line = link
        self._table = table
        self._tracing = tracing
        self.shares: Shares = table.shares
        """The memory for what waits to be read."""
        self._loop = asyncio.get_running_loop()
        self.retries: Retries = Retries(self._loop.time, self.request, lambda: link.returned_at)
        self.affinities: Affinities = Affinities()
        self.retries.on_description = self.affinities.note
        self.retries.on_error = self.affinities.learn

    def bound_to(self, line: Line) -> Self:
        """Make a caller that sends by one line alone: calls within a call go where that came by."""
        bound = copy(self)
        bound._link = line
        return bound

    async def request(self, build: Any, *fields: Any, timeout_s: float = 30.0) -> dict[str, Any]:
        """Send a request that is no call and return the body of its answer.

        Args:
            build: The frame's type; its first field is the id.
            fields: Its other fields.
            timeout_s: How long the answer may take; a link that is down is waited for within it.
        """
        deadline_at = self._loop.time() + timeout_s
        await self._wait_for_link(deadline_at)
        return await self.ask(build, *fields, deadline_at=deadline_at)

    async def ask(self, build: Any, *fields: Any, deadline_at: float) -> dict[str, Any]:
        """Send a request on the connection that is there now, ready or not."""
        pending = self._table.open(deadline_at)
        if not self._send(pending, build(pending.id, *fields)):
            raise ConnectionLost("the connection was lost", executed="no")
        try:
            result = await pending.future
        finally:
            self._table.give_up(pending)
        return object_in(result)

    async def call(self, plan: Plan, read: Callable[[bytes], Any] = read_chunk) -> Any:
        """Make a call and return its result.

        Args:
            plan: The call.
            read: What reads the result's body; a file that comes in pieces is always a chunk.

        Raises:
            RoomException: Why there is no result; `executed` says whether the tool ran.
        """
        span = pending = None
        tracing = self._tracing
        if tracing.roots is not None or current_context() or monotonic() >= tracing.idle_until:
            span = self.begin_span(plan)
        try:
            try:  # as `_answer` does it, without a coroutine more
                while (pending := self._begin(plan, plan.options)) is None:
                    await self._wait_for_link(plan.deadline_at)
                result: Result | CallFlow = await pending.future
            except RoomException as error:
                result = await self._further_attempts(plan, error)
        except BaseException as end:
            if pending is not None and isinstance(end, asyncio.CancelledError):
                self._withdraw(pending)
            if span is not None:
                span.end(recorded_end(end))
            raise
        if isinstance(result, CallFlow):
            return await file_of(result, span)
        if span is not None:
            span.end()
        try:
            return read(result.body)
        except (BadBody, ValueError, TypeError) as broken:
            raise InvalidResult("the host's answer is no chunk", executed="yes") from broken

    def begin_span(self, plan: Plan) -> CallSpan | None:
        """Put a call into a trace; return its span if that is recorded."""
        roots = self._tracing.roots
        if roots is not None and not current_context():
            plan.traceparent = roots.unsampled(plan.call_id, plan.drawn)
            if plan.traceparent is not None:
                return None
        if (span := self._tracing.start_client(plan.name, plan.call_id)) is None:
            return None
        plan.traceparent, tracestate = span.context
        if tracestate is not None:
            plan.options[TRACESTATE] = tracestate
        return span if span.recording else None

    async def _further_attempts(self, plan: Plan, error: RoomException) -> Result | CallFlow:
        history = self.retries.begin(plan)
        while True:
            options = await history.after(error)
            try:
                return await self._answer(plan, options)
            except RoomException as next_error:
                error = next_error

    async def _answer(self, plan: Plan, options: dict[str, Any] | None) -> Result | CallFlow:
        """Make one attempt; return its result, or the flow of a file of which a piece is here."""
        while (pending := self._begin(plan, options)) is None:
            await self._wait_for_link(plan.deadline_at)
        try:
            result: Result | CallFlow = await pending.future
            return result
        except asyncio.CancelledError:
            self._withdraw(pending)
            raise

    async def attempt(self, plan: Plan, options: dict[str, Any] | None, flow: CallFlow) -> Pending:
        """Send one attempt of a call; whatever comes of it goes to `flow`.

        Raises:
            RoomException: It was not sent.
        """
        wait_s = DEFAULT_TIMEOUT_S  # what has no deadline does not wait for ever
        until = min(plan.deadline_at, self._loop.time() + wait_s)
        while (pending := self._begin(plan, options, flow)) is None:
            await self._wait_for_link(until)
        return pending

    def _begin(
        self, plan: Plan, options: dict[str, Any] | None, flow: CallFlow | None = None
    ) -> Pending | None:
        """Send one attempt; None where there is no connection, or one that takes nothing more."""
        if not self._link.is_ready:
            return None
        remaining_s = plan.deadline_at - self._loop.time()
        if remaining_s <= 0:
            raise DeadlineExceeded("no time was left for the call", executed="no")
        if self.affinities.known:
            options = self.affinities.added_to(options, plan)
        ends_at, table = plan.deadline_at + GRACE_S, self._table
        connection = self._link.connection
        pending = table.open_flow(flow, ends_at, connection) if flow else table.open(ends_at)
        call = Call(
            pending.id,
            plan.call_id,
            plan.toolkit,
            plan.tool,
            None if remaining_s == inf else ceil(remaining_s * 1000 - ROUNDING_MS),
            plan.arguments,
            options or None,
            plan.traceparent,
        )
        return pending if self._send(pending, call, plan) else None

    def _send(self, pending: Pending, frame: Frame, plan: Plan | None = None) -> bool:
        """Send a request, or give it up; tell whether there was a connection to take it.

        Raises what ends it here: the server closes a connection that breaks a rule.
        """
        error: RoomException | None = None
        try:
            data = encode(frame)
            if type(frame) is not Call or frame.options or len(data) > MAX_HEADER_BYTES:
                decode_from_client(data)
                error = does_not_fit(len(data)) if len(data) > MAX_FRAME_BYTES else None
        except (ValueError, TypeError, OverflowError, RecursionError) as wrong:
            error = unsendable(wrong)
        if error is not None:
            self._table.give_up(pending)
            raise error
        connection = pending.connection = self._link.connection
        if connection is not None:
            if plan is not None and plan.key not in self.retries.known and connection.is_open:
                self._learn(plan, connection)
            if connection.send_message(data, pending):
                return True
        self._table.give_up(pending)
        return False

    def _withdraw(self, pending: Pending) -> None:
        """Give a call up that is under way, here and at the server."""
        if isinstance(pending.future, CallFlow):  # its first chunk came in this very turn
            pending.future.leave()
        elif self._table.give_up(pending) and pending.written:
            pending.connection.send_message(encode(Cancel(RequestId(pending.id), "cancelled")))

    async def _wait_for_link(self, deadline_at: float) -> None:
        try:
            async with asyncio.timeout_at(deadline_at):
                await self._link.ready()
        except TimeoutError:
            raise Unavailable("there was no connection in time", executed="no") from None

    def _learn(self, plan: Plan, connection: Any) -> None:
        """Ask what a toolkit is, once, beside the first call to it, waiting for nothing."""
        ends_at = min(plan.deadline_at, self._loop.time() + DEFAULT_TIMEOUT_S)
        pending = self._table.open(ends_at + GRACE_S)
        self.retries.expect(plan.key, pending.future)
        options = {} if plan.key[1] is None else {"participant": plan.key[1]}
        pending.connection = connection
        connection.send_message(encode(Describe(RequestId(pending.id), plan.toolkit, options)))
