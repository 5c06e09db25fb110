"""Makes calls and requests, one attempt at a time.

`PendingRequests` holds the requests that wait for their replies; `RetryPolicy` decides about
further attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from functools import partial
from math import ceil, inf
from time import monotonic
from typing import Any, Self

from toolbus.chunks.chunk_types import chunk_steps, read_chunk, read_value
from toolbus.chunks.receive_credit import BufferBudget
from toolbus.client.connection import Connection
from toolbus.client.local_errors import (
    check_loop,
    read_reply,
    recorded_end,
    request_encoding_error,
    request_too_large_error,
)
from toolbus.client.pending_requests import (
    InboundStream,
    PendingRequest,
    PendingRequests,
    read_file,
    read_parts,
)
from toolbus.client.reconnecting_connection import ReconnectingConnection
from toolbus.client.retry import MAX_ATTEMPTS, AffinityCache, CallPlan, RetryPolicy
from toolbus.concurrency.slices import run_in_slices
from toolbus.concurrency.timers import ROUNDING_MS
from toolbus.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidResult,
    RoomException,
    Unavailable,
    note_call,
)
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.plain import MAX_ASSESSMENT_BYTES, assessment_from_plain
from toolbus.telemetry.propagation import TRACESTATE, get_current
from toolbus.telemetry.tracing import CallSpan, Tracing
from toolbus.wire import (
    ASSESS_VERSION,
    FORWARD_VERSION,
    HOLDS_VERSION,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    Assess,
    BadBody,
    Call,
    Cancel,
    Describe,
    Frame,
    Hold,
    RequestId,
    Result,
    decode_from_client,
    encode,
    unpack_body,
)
from toolbus.wire.body_steps import LARGE_BODY_BYTES

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "GRACE_S",
    "REPLY_TIMEOUT_S",
    "AssessUnavailable",
    "Caller",
    "holds_unknown_error",
]

DEFAULT_TIMEOUT_S = 60.0
"""The timeout of a call that names none."""
# A server answers these within milliseconds: one that takes longer hangs, and the connection is not
# lost before 15 s without an answer to pings.
REPLY_TIMEOUT_S = 10.0
"""How long a request that a room makes by itself waits for its reply."""
GRACE_S = 0.25
"""How long after a deadline the server's own error may still arrive."""
_NO_CONNECTION = "no connection before the deadline"


class AssessUnavailable(Exception):
    """The server's version is too low for `Assess`; nothing was sent."""


def holds_unknown_error() -> Unavailable:
    """Make the error for a server that does not know of calls that wait for a person."""
    text = f"this server cannot ask a person: it needs version {HOLDS_VERSION} of the protocol"
    return Unavailable(text, executed="no", retryable=False)


class Caller:
    """Makes the calls and requests of one participant."""

    __slots__ = ("_connection", "_loop", "_pending", "affinities", "budget", "retries", "tracing")

    @property
    def pinned(self) -> frozenset[str]:
        """The digests of definitions that are trusted; none without a lock file."""
        return frozenset()

    def __init__(
        self, connection: ReconnectingConnection, pending: PendingRequests, tracing: Tracing
    ) -> None:
        self._connection: ReconnectingConnection | Connection = connection
        self._pending = pending
        self.tracing: Tracing = tracing
        """Records sampled calls."""
        self.budget: BufferBudget = pending.budget
        """Buffer memory of received chunks."""
        self._loop = asyncio.get_running_loop()
        self.retries: RetryPolicy = RetryPolicy(
            self._loop.time, self.request, lambda: connection.returned_at
        )
        self.affinities: AffinityCache = self.retries.affinities

    def bound_to(self, connection: Connection) -> Self:
        """Make a caller for one connection only: nested calls use that of their parent call."""
        bound = copy(self)
        bound._connection = connection
        return bound

    @property
    def can_forward(self) -> bool:
        """Whether calls can be forwarded: the server of the connection has the option."""
        return self._connection.version >= FORWARD_VERSION

    @property
    def can_hold(self) -> bool:
        """Whether calls can wait for a person: the server of the connection knows of that."""
        return self._connection.version >= HOLDS_VERSION

    async def request(
        self,
        build: Any,
        *fields: Any,
        timeout_s: float = 30.0,
        on_result: Callable[[Any], None] | None = None,
    ) -> dict[str, Any]:
        """Send a request that is not a call and return the body of its reply.

        Args:
            build: The frame's type; its first field is the id.
            fields: Its other fields.
            timeout_s: How long the reply may take, including the wait for a lost connection.
            on_result: As of `ask`.
        """
        deadline_at = self._loop.time() + timeout_s
        await self._wait_until_ready(deadline_at)
        return await self.ask(build, *fields, deadline_at=deadline_at, on_result=on_result)

    async def ask(
        self,
        build: Any,
        *fields: Any,
        deadline_at: float,
        on_result: Callable[[Any], None] | None = None,
    ) -> dict[str, Any]:
        """Send a request on the current connection, ready or not.

        `on_result` is called with the connection when the result is read, before the frames behind
        it; it must not raise.
        """
        request = self._pending.open(deadline_at)
        request.on_result = on_result
        if not self._send(request, build(request.id, *fields)):
            raise ConnectionLost("the connection was lost", executed="no")
        try:
            result = await request.future
        finally:
            self._pending.remove(request)
        return await read_reply(result)

    async def ask_person(
        self,
        dispatch: int | None,
        *fields: Any,
        on_result: Callable[[Any], None] | None = None,
    ) -> dict[str, Any]:
        """Send a `Hold` with these fields on the current connection; return the decision.

        A lost connection is waited for. If this task is cancelled, the question is withdrawn. A
        question of no running call is asked again where its server leaves (HOLD-18). `on_result` is
        as of `ask`.

        Raises what the server refuses it with, `ApprovalExpired`, and `Unavailable` at a server
        that knows no such question.
        """
        refused = 0
        while True:
            await self._wait_until_ready(self._loop.time() + DEFAULT_TIMEOUT_S)
            asked_on = self._connection.websocket
            try:
                return await self._ask_person_once(dispatch, *fields, on_result=on_result)
            except Unavailable as error:
                # Counted where nothing is replaced: else a server that refuses all would be asked
                # for ever.
                refused += self._connection.is_ready and self._connection.websocket is asked_on
                if dispatch is not None or not error.retryable or refused >= MAX_ATTEMPTS:
                    raise
                pause_s = error.retry_after_s or 0.0
            await asyncio.sleep(pause_s)

    async def _ask_person_once(
        self, *fields: Any, on_result: Callable[[Any], None] | None
    ) -> dict[str, Any]:
        if not self.can_hold:
            raise holds_unknown_error()
        request = self._pending.open(inf)
        request.on_result = on_result
        if not self._send(request, Hold(RequestId(request.id), *fields)):
            raise ConnectionLost("the connection was lost", executed="no")
        try:
            return await read_reply(await request.future)
        finally:
            if self._pending.remove(request) and request.written:
                request.websocket.send_message(encode(Cancel(RequestId(request.id), "cancelled")))

    async def describe(
        self, toolkit: str, participant: str | None, known: str | None = None
    ) -> dict[str, Any]:
        """Request the description of a toolkit, record it for retries, and return it.

        Args:
            toolkit: The toolkit's name.
            participant: The name of an owner, or None, as in a call.
            known: The digest of a definition that was read before: the reply has no `manifest` if
                it is still that one.
        """
        named = {"participant": participant, "digest": known}
        options = {name: value for name, value in named.items() if value is not None}
        body = await self.request(Describe, toolkit, options)
        if "manifest" in body:
            self.retries.record_description((toolkit, participant), body)
        return body

    async def call(self, plan: CallPlan, read: Callable[[bytes], Any] = read_chunk) -> Any:
        """Make a call and return its result.

        Args:
            plan: The call.
            read: Decodes the result's body; a file sent in pieces is always a chunk.

        Raises:
            RoomException: The call failed; `executed` says whether the tool ran.
        """
        span = None
        tracing = self.tracing
        if monotonic() >= tracing.idle_until or get_current():
            span = self.begin_span(plan)
        try:
            try:
                result = await self._make_attempt(plan, plan.options)
            except RoomException as error:
                again = partial(self._make_attempt, plan)
                result = await self.retries.begin(plan).repeat(error, again)
        except BaseException as end:
            if span is not None:
                span.end(recorded_end(end))
            note_call(end, plan.name)
            raise
        if isinstance(result, InboundStream):
            return await read_file(result, span)
        if span is not None:
            span.end()
        try:
            if len(result.body) > LARGE_BODY_BYTES:
                chunk = await run_in_slices(chunk_steps(result.body), len(result.body))
                return chunk.value if read is read_value else chunk
            return read(result.body)
        except (BadBody, ValueError, TypeError) as broken:
            raise InvalidResult("the host's result is not a chunk", executed="yes") from broken

    async def assess(self, plan: CallPlan) -> Assessment:
        """Ask what a tool says about a call that has `patterns`; nothing runs.

        Raises:
            RoomException: There is no answer, or it is no assessment; executed "no".
            AssessUnavailable: The server is older, so that nothing was sent.
        """
        try:
            try:
                result = await self._make_attempt(plan, plan.options)
            except RoomException as error:
                again = partial(self._make_attempt, plan)
                result = await self.retries.begin(plan).repeat(error, again)
        except RoomException as error:
            error.executed = "no"
            raise
        try:
            if isinstance(result, InboundStream):
                result.cancel()
                raise ValueError("it is a stream")
            if len(result.body) > MAX_ASSESSMENT_BYTES:
                raise ValueError(f"it has more than {MAX_ASSESSMENT_BYTES} bytes")
            return assessment_from_plain(unpack_body(result.body))
        except (BadBody, ValueError) as broken:
            text = f"the host's answer is no assessment: {broken}"
            raise InvalidResult(text, executed="no") from broken

    def begin_span(self, plan: CallPlan) -> CallSpan | None:
        """Add a call to a trace; return its span if that is recorded."""
        if (span := self.tracing.start_client(plan.name, plan.call_id)) is None:
            return None
        plan.traceparent, tracestate = span.context
        if tracestate is not None:
            plan.options[TRACESTATE] = tracestate
        return span if span.recording else None

    async def _make_attempt(
        self, plan: CallPlan, options: dict[str, Any] | None
    ) -> Result | InboundStream:
        """Make one attempt; return its result, or the stream of a file that began to arrive."""
        while (request := self._send_call(plan, options)) is None:
            await self._wait_until_ready(plan.deadline_at)
        try:
            result: Result | InboundStream = await request.future
            if isinstance(result, InboundStream) and result.is_in_parts:
                result = await read_parts(result)
            return result
        except asyncio.CancelledError:
            if isinstance(request.future, InboundStream):  # its first chunk arrived just now
                request.future.cancel()
            elif self._pending.remove(request) and request.written:
                request.websocket.send_message(encode(Cancel(RequestId(request.id), "cancelled")))
            raise

    async def send_attempt(
        self, plan: CallPlan, options: dict[str, Any] | None, stream: InboundStream
    ) -> PendingRequest:
        """Send one attempt of a call whose chunks and end go to `stream`.

        Raises:
            RoomException: It was not sent.
        """
        wait_s = DEFAULT_TIMEOUT_S  # a call without a deadline does not wait forever
        until = min(plan.deadline_at, self._loop.time() + wait_s)
        while (request := self._send_call(plan, options, stream)) is None:
            await self._wait_until_ready(until)
        return request

    def _send_call(
        self, plan: CallPlan, options: dict[str, Any] | None, stream: InboundStream | None = None
    ) -> PendingRequest | None:
        """Send one attempt; None if there is no connection that accepts it."""
        if not self._connection.is_ready:
            return None
        if plan.patterns is not None and self._connection.version < ASSESS_VERSION:
            raise AssessUnavailable
        remaining_s = plan.deadline_at - self._loop.time()
        if remaining_s <= 0:
            raise DeadlineExceeded("no time was left for the call", executed="no")
        if self.affinities.known:
            options = self.affinities.with_affinity(options, plan)
        ends_at, pending = plan.deadline_at + GRACE_S, self._pending
        websocket = self._connection.websocket
        request = (
            pending.open_stream(stream, ends_at, websocket) if stream else pending.open(ends_at)
        )
        request.call = plan
        remaining_ms = None if remaining_s == inf else ceil(remaining_s * 1000 - ROUNDING_MS)
        frame: Frame
        if plan.patterns is None:
            frame = Call(
                request.id,
                plan.call_id,
                plan.toolkit,
                plan.tool,
                remaining_ms,
                plan.arguments,
                options or None,
                plan.traceparent,
            )
        else:
            frame = Assess(
                request.id,
                plan.call_id,
                plan.toolkit,
                plan.tool,
                remaining_ms,
                plan.arguments,
                options or None,
                plan.patterns,
            )
        return request if self._send(request, frame, plan) else None

    def _send(self, request: PendingRequest, frame: Frame, plan: CallPlan | None = None) -> bool:
        """Send a request, or remove it; return whether a connection accepted it.

        Raises an error for a request that is invalid: the server would close the connection for it.
        """
        error: RoomException | None = None
        try:
            data = encode(frame)
            if type(frame) is not Call or frame.options or len(data) > MAX_HEADER_BYTES:
                decode_from_client(data)
                if len(data) > MAX_FRAME_BYTES:
                    error = request_too_large_error(len(data))
        except (ValueError, TypeError, OverflowError, RecursionError) as wrong:
            error = request_encoding_error(wrong)
        if error is not None:
            self._pending.remove(request)
            raise error
        websocket = request.websocket = self._connection.websocket
        if websocket is not None:
            if plan is not None and plan.key not in self.retries.known and websocket.is_open:
                self._request_description(plan, websocket)
            if websocket.send_message(data, request):
                return True
        self._pending.remove(request)
        return False

    async def _wait_until_ready(self, deadline_at: float) -> None:
        check_loop(self._loop)
        try:
            async with asyncio.timeout_at(deadline_at):
                await self._connection.ready()
        except TimeoutError:
            text = ": ".join(filter(None, (_NO_CONNECTION, self._connection.failure)))
            raise Unavailable(text, executed="no") from None

    def _request_description(self, plan: CallPlan, websocket: Any) -> None:
        """Request a toolkit's description once, beside the first call to it, without waiting."""
        ends_at = min(plan.deadline_at, self._loop.time() + DEFAULT_TIMEOUT_S)
        request = self._pending.open(ends_at + GRACE_S)
        self.retries.expect_description(plan.key, request.future)
        options = {} if plan.key[1] is None else {"participant": plan.key[1]}
        request.websocket = websocket
        websocket.send_message(encode(Describe(RequestId(request.id), plan.toolkit, options)))
