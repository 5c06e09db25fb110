"""Calls and requests under way: sent once, answered once, whatever happens to the connection.

A `CallTable` owns correlation: every request opened there is settled exactly once, by its answer,
by the loss of the connection, by its time, or by being given up. A `Caller` makes calls with it,
one attempt at a time; whether there is another attempt is decided in `retries`.
"""

from __future__ import annotations

import asyncio
import logging
from copy import copy
from math import ceil
from time import monotonic
from typing import Any, Self, TypeAlias

from msgspec import Struct
from opentelemetry.context import get_current

from toolbus.affinities import Affinities
from toolbus.call_ends import does_not_fit, recorded_end, unsendable
from toolbus.chunks import Chunk, FileChunk, chunk_from_wire
from toolbus.deadlines import Deadlines
from toolbus.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Executed,
    InvalidResult,
    RoomException,
    Unavailable,
)
from toolbus.inflow import CallFlow
from toolbus.lines import Line
from toolbus.link import Link
from toolbus.received_file import file_result
from toolbus.retries import Plan, Retries
from toolbus.telemetry import TRACESTATE, CallSpan, Tracing
from toolbus.wire import (
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    BadBody,
    BadFrame,
    Call,
    Cancel,
    Describe,
    Failed,
    Frame,
    RequestId,
    Result,
    decode_from_client,
    encode,
    exception_of,
    unpack_body,
)

__all__ = ["DEFAULT_TIMEOUT_S", "GRACE_S", "CallTable", "Caller", "Pending"]

DEFAULT_TIMEOUT_S = 60.0
"""The deadline of a call that names none."""
GRACE_S = 0.25
"""How long past a deadline the server's own word is waited for."""

_TOO_LARGE = 1009
_logger = logging.getLogger(__name__)

Reply: TypeAlias = Result | Failed


class Pending(Struct, eq=False):
    """A request that waits for its answer; as a ticket it tells whether it was sent at all."""

    id: int
    future: asyncio.Future[Any]
    """Told of the end; a `CallFlow` in its place, where chunks come before that."""
    connection: Any = None
    """What it was sent on; its answer comes by no other."""
    written: bool = False
    ended: bool = False

    @property
    def executed(self) -> Executed:
        """What this side knows by itself of whether a call's tool ran."""
        return "maybe" if self.written else "no"


class CallTable:
    """The requests of one participant, on whichever connection they were sent.

    Args:
        loop: Where the futures live.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: dict[int, Pending] = {}
        self._deadlines = Deadlines(loop, self.expire)
        self._last_id = 0
        self.dropped: int = 0
        """Late and unknown answers: counted, never fatal."""

    def __len__(self) -> int:
        return len(self._pending)

    def open(self, deadline_at: float) -> Pending:
        """Open a request with an id of its own; at a time by the loop's clock it ends by itself."""
        self._last_id += 1
        pending = Pending(self._last_id, self._loop.create_future())
        self._pending[pending.id] = pending
        self._deadlines.add(deadline_at, pending)
        return pending

    def drop(self) -> None:
        """Count what came for nobody."""
        self.dropped += 1

    def close(self) -> None:
        """End everything; no request is opened any more."""
        self.lose_all()
        self._deadlines.close()

    def settle(self, reply: Reply) -> None:
        """Hand an answer to whoever waits for it.

        One that nobody waits for is dropped and counted.
        """
        pending = self._pending.pop(reply.id, None)
        if pending is None:
            self.dropped += 1
            return
        pending.ended = True
        if pending.future.done():
            self.dropped += 1
        elif isinstance(reply, Result):
            pending.future.set_result(reply)
        else:
            pending.future.set_exception(exception_of(reply))

    def give_up(self, pending: Pending) -> bool:
        """Forget a request that nobody waits for any more; return whether it was under way."""
        pending.ended = True
        return self._pending.pop(pending.id, None) is not None

    def expire(self, pending: Pending) -> None:
        """End a request whose time is up and whose answer did not come."""
        if self.give_up(pending) and not pending.future.done():
            error = DeadlineExceeded("no answer came in time", executed=pending.executed)
            pending.future.set_exception(error)

    def lose_all(self) -> None:
        """End everything: there is no connection any more."""
        for pending in list(self._pending.values()):
            self._lose(pending)

    def lose(self, connection: Any) -> None:
        """End what was sent on a connection that is gone."""
        for pending in list(self._pending.values()):
            if pending.connection is connection:
                self._lose(pending)

    def _lose(self, pending: Pending) -> None:
        self.give_up(pending)
        if not pending.future.done():
            error = ConnectionLost("the connection was lost", executed=pending.executed)
            pending.future.set_exception(error)

    async def settled(self, connection: Any) -> None:
        """Wait until nothing that was sent on a connection waits for its answer."""
        while waiting := [
            _end_of(each.future)
            for each in self._pending.values()
            if each.connection is connection and not each.future.done()
        ]:
            await asyncio.wait(waiting)


class Caller:
    """Makes the calls and requests of one participant.

    Args:
        link: The line to the server.
        table: Where answers are awaited.
        tracing: Records sampled calls.
    """

    def __init__(self, link: Link, table: CallTable, tracing: Tracing) -> None:
        self._link: Link | Line = link
        self._table = table
        self._tracing = tracing
        self._loop = asyncio.get_running_loop()
        self.retries: Retries = Retries(self._loop.time, self.request, lambda: link.returned_at)
        self.affinities: Affinities = Affinities()

    def bound_to(self, line: Line) -> Self:
        """Make a caller that sends by one line alone: calls within a call go where that came by."""
        bound = copy(self)
        bound._link = line
        return bound

    # Requests to the server itself

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
        data = self._packed(pending, build(pending.id, *fields))
        self._send(pending, data)
        try:
            result = await pending.future
        finally:
            self._table.give_up(pending)
        return _object_in(result)

    # Calls

    async def call(self, plan: Plan) -> Chunk:
        """Make a call and return its result.

        Raises:
            RoomException: Why there is no result; `executed` says whether the tool ran.
        """
        span = None
        if monotonic() >= self._tracing.idle_until or get_current():
            span = self._begin_span(plan)
        try:
            try:
                result = await self._attempt(plan, plan.options)
            except RoomException as error:
                result = await self._further_attempts(plan, error)
        except BaseException as end:
            if span is not None:
                span.end(recorded_end(end))
            raise
        if isinstance(result, CallFlow):
            return await _file_of(result, span)
        if span is not None:
            span.end()
        try:
            return chunk_from_wire(unpack_body(result.body, binary=True))
        except (BadBody, ValueError, TypeError) as broken:
            raise InvalidResult("the host's answer is no chunk", executed="yes") from broken

    def _begin_span(self, plan: Plan) -> CallSpan | None:
        """Put the call into a trace; return its span if that is recorded."""
        plan.traceparent = self._tracing.unsampled_root(plan.call_id)
        if plan.traceparent is not None:
            return None
        span = self._tracing.start_client(plan.name, plan.call_id)
        if span is None:
            return None
        plan.traceparent, tracestate = span.context
        if tracestate is not None:
            plan.options[TRACESTATE] = tracestate
        return span if span.recording else None

    async def _further_attempts(self, plan: Plan, error: RoomException) -> Result | CallFlow:
        if self.affinities.learn(plan, error):
            try:
                return await self._attempt(plan, plan.options)
            except RoomException as next_error:
                error = next_error
        history = self.retries.begin(plan)
        while True:
            options = await history.after(error)
            try:
                return await self._attempt(plan, options)
            except RoomException as next_error:
                error = next_error

    async def _attempt(self, plan: Plan, options: dict[str, Any] | None) -> Result | CallFlow:
        link = self._link
        if not link.is_ready or link.connection is None or not link.connection.is_open:
            await self._wait_for_link(plan.deadline_at)
        remaining_s = plan.deadline_at - self._loop.time()
        if remaining_s <= 0:
            raise DeadlineExceeded("no time was left for the call", executed="no")
        if self.affinities.known:
            options = self.affinities.added_to(options, plan)
        pending = self._table.open(plan.deadline_at + GRACE_S)
        data = self._packed(
            pending,
            Call(
                pending.id,
                plan.call_id,
                plan.toolkit,
                plan.tool,
                ceil(remaining_s * 1000),
                plan.arguments,
                options or None,
                plan.traceparent,
            ),
        )
        if plan.key not in self.retries.known:
            self._learn(plan)
        self._send(pending, data)
        try:
            result: Result | CallFlow = await pending.future
            return result
        except asyncio.CancelledError:
            self._withdraw(pending)
            raise

    def _packed(self, pending: Pending, frame: Frame) -> bytes:
        """Pack a request, or end it here: the server closes a connection that breaks a rule."""
        try:
            data = encode(frame)
            if type(frame) is not Call or frame.options or len(data) > MAX_HEADER_BYTES:
                decode_from_client(data)
            if len(data) <= MAX_FRAME_BYTES:
                return data
            error: RoomException = does_not_fit()
        except BadFrame as broken:
            error = does_not_fit() if broken.close_code == _TOO_LARGE else unsendable(broken)
        except (ValueError, TypeError, OverflowError, RecursionError) as wrong:
            error = unsendable(wrong)
        self._table.give_up(pending)
        raise error

    def _send(self, pending: Pending, data: bytes) -> None:
        connection = pending.connection = self._link.connection
        if connection is None or not connection.send_message(data, pending):
            self._table.give_up(pending)
            raise ConnectionLost("the connection was lost", executed="no")

    def _withdraw(self, pending: Pending) -> None:
        """Give a call up that is under way, here and at the server."""
        waiting: asyncio.Future[Any] | CallFlow = pending.future
        if isinstance(waiting, CallFlow):  # its first chunk came in this very turn
            waiting.leave()
        elif self._table.give_up(pending) and pending.written:
            pending.connection.send_message(encode(Cancel(RequestId(pending.id), "cancelled")))

    async def _wait_for_link(self, deadline_at: float) -> None:
        try:
            async with asyncio.timeout_at(deadline_at):
                await self._link.ready()
        except TimeoutError:
            raise Unavailable("there was no connection in time", executed="no") from None

    def _learn(self, plan: Plan) -> None:
        """Ask what a toolkit is, once, beside the first call to it, waiting for nothing."""
        self.retries.expect(plan.key)
        ends_at = min(plan.deadline_at, self._loop.time() + DEFAULT_TIMEOUT_S)
        pending = self._table.open(ends_at + GRACE_S)
        pending.future.add_done_callback(lambda future: self._note(plan, future))
        participant = plan.key[1]
        options = {} if participant is None else {"participant": participant}
        connection = pending.connection = self._link.connection
        if connection is not None:
            connection.send_message(encode(Describe(RequestId(pending.id), plan.toolkit, options)))

    def _note(self, plan: Plan, future: asyncio.Future[Result]) -> None:
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            self.retries.forget(plan.key, error)
            return
        try:
            self.retries.note(plan.key, _object_in(future.result()))
        except (RoomException, LookupError, TypeError) as broken:
            _logger.error("the description of %s cannot be read: %r", plan.toolkit, broken)


def _end_of(future: asyncio.Future[Any] | CallFlow) -> asyncio.Future[Any]:
    return future.over() if isinstance(future, CallFlow) else future


def _object_in(answer: Result) -> dict[str, Any]:
    if type(answer) is not Result:
        raise InvalidResult("the server's answer is no object", executed="no")
    try:
        body = unpack_body(answer.body, binary=True)
    except BadBody as error:
        raise InvalidResult("the server's answer cannot be read", executed="no") from error
    if type(body) is not dict:
        raise InvalidResult("the server's answer is no object", executed="no")
    return body


async def _file_of(flow: CallFlow, span: CallSpan | None) -> FileChunk:
    """Make a result of which the first piece is here; the span ends with the last of them."""
    if span is not None:
        flow.tell_end(lambda end: span.end(None if end is None else recorded_end(end)))
    first = await flow.next()
    assert first is not None
    return file_result(flow, first)
