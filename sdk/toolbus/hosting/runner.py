"""Runs the calls that reach a host, within their limits, and sends their results.

A `Runner` owns one task per call. It refuses calls beyond its limit, queues calls that may not run
yet, applies the timeouts of tools and cancel frames, and replies exactly once, or not at all if the
server has already replied in its place. A sync function runs on a thread that cannot be stopped: it
can check `context.cancelled`, and its slot is released when it ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import Context as TaskContext
from contextvars import copy_context
from copy import copy
from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_sender import OutgoingConnection
from toolbus.chunks.chunk_types import Chunk, EmptyChunk, FileChunk, MixedChunk, fitting
from toolbus.chunks.receive_credit import BufferBudget
from toolbus.chunks.result_parts import LARGE_RESULT_BYTES
from toolbus.concurrency.tasks import raise_error
from toolbus.errors import (
    Cancelled,
    Internal,
    InvalidArguments,
    InvalidResult,
    NoHost,
    Overloaded,
    RoomException,
    Unavailable,
)
from toolbus.forked_children import end_child
from toolbus.hosting.fair_slots import MAX_IN_FLIGHT, CallsAside, FairSlots, HeldSlots
from toolbus.hosting.hosted_call import (
    FIELDS_TO_READ,
    HostedCall,
    accountable,
    begin_recording,
    describe_calls,
    end_recording,
    note_arguments,
    record_refusal,
)
from toolbus.hosting.hosted_toolkit import Definitions, HostedToolkit
from toolbus.hosting.loop_watchdog import runs_call
from toolbus.permissions.plain import MAX_ASSESSMENT_BYTES, assessment_to_plain
from toolbus.telemetry.attributes import decision_attributes
from toolbus.telemetry.propagation import (
    CALL_AS_TRACE,
    CALL_ID,
    Context,
    attach,
    enter_call_as_trace,
)
from toolbus.telemetry.tracing import (
    HostCall,
    Tracing,
    enter_unsampled,
    is_unsampled,
    read_trace_context,
)
from toolbus.tools.call_room import CallRoom
from toolbus.tools.context import ToolContext
from toolbus.tools.toolkit import (
    MAX_RESULT_BYTES,
    Toolkit,
    packed_result,
    read_arguments,
    too_large,
)
from toolbus.wire import (
    AssessDispatch,
    Cancel,
    Credit,
    Dispatch,
    Frame,
    Input,
    Result,
    encode,
    failed,
    pack_body,
)
from toolbus.wire.body_steps import LARGE_BODY_BYTES
from toolbus.wire.flow_control import MAX_CHUNK_BYTES

if TYPE_CHECKING:  # few tools ask a person
    from toolbus.concurrency.pausable_clock import CallTime
    from toolbus.hosting.host_grants import AskPerson
    from toolbus.tools.approvals import ApprovalDemand
    from toolbus.tools.execution import Identity
    from toolbus.tools.questions import ToolQuestion

__all__ = ["Runner"]

_logger = bounded_logger(__name__)

_RETRY_AFTER_S = 0.1
_STOP_TIMEOUT_S = 2.0


class Runner:
    """Runs what the server dispatches to one connection.

    Args:
        room_of: Makes the room for a call's tool, from the dispatch's id and the time of the call.
        room_name: The name of the room, for spans.
        tracing: Records sampled calls.
        connection: The connection; without one, frames are dropped.
        max_in_flight: How many calls may run and queue, before their callers share: see
            `FairSlots`.
        loop_is_ending: Returns whether the event loop is cancelling all its tasks.
        owner_of: Returns the name of this host, for records of calls.
        wants_error_text: Whether the server asks for the texts of exceptions.
    """

    __slots__ = (
        "_abandoned",
        "_aside",
        "_ask_person",
        "_calls",
        "_connection_number",
        "_context",
        "_find",
        "_held",
        "_loop_is_ending",
        "_process_id",
        "_returning",
        "_room_name",
        "_running",
        "_sends_parts",
        "_slots",
        "_threads",
        "_tracing",
        "connection",
        "definitions",
        "input_budget",
        "loop",
        "owner_of",
        "room_of",
        "wants_error_text",
    )

    def __init__(  # noqa: PLR0913 - each is one fact of a host, by keyword
        self,
        *,
        room_of: Callable[[int, CallTime], CallRoom],
        room_name: str,
        tracing: Tracing,
        connection: OutgoingConnection | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        loop_is_ending: Callable[[], bool] = lambda: False,
        owner_of: Callable[[], str] = lambda: "",
        wants_error_text: Callable[[], bool] = lambda: False,
    ) -> None:
        self.connection: OutgoingConnection | None = connection
        """The connection that frames are sent on."""
        self.input_budget: BufferBudget = BufferBudget()
        """Buffer memory for the inputs of all calls."""
        self.room_of: Callable[[int, CallTime], CallRoom] = room_of
        self._room_name = room_name
        self._tracing = tracing
        self._slots = FairSlots.of(max_in_flight)
        self._held = HeldSlots()
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        """The loop whose clock the deadlines use."""
        self.definitions: Definitions = Definitions()
        """What is hosted, for all connections."""
        self._find = self.definitions.get
        self._connection_number: float = 0
        self._calls: dict[int, HostedCall] = {}
        self._running: set[HostedCall] = set()
        self._sends_parts = False
        self._ask_person: AskPerson | None = None
        self._aside = CallsAside()
        self._returning: dict[HostedCall, asyncio.Future[None]] = {}
        self._abandoned: set[asyncio.Task[None]] = set()
        self._process_id = os.getpid()
        # Made when it is first used: most participants of a room host nothing.
        self._threads = cache(partial(ThreadPoolExecutor, self._slots.total, "toolbus-tool"))
        self._loop_is_ending = loop_is_ending
        self.owner_of: Callable[[], str] = owner_of
        """Returns the name of this host, for records of calls."""
        self.wants_error_text: Callable[[], bool] = wants_error_text
        """Whether the server asks for the texts of exceptions."""
        # A call must not inherit the span that is current while we connect.
        self._context = copy_context()
        self._context.run(attach, Context())

    def for_connection(
        self,
        connection: OutgoingConnection | None,
        room_of: Callable[[int, CallTime], CallRoom],
        *,
        sends_parts: bool,
        ask_person: AskPerson | None = None,
    ) -> Runner:
        """Make a runner for another connection with the same toolkits within the same limits."""
        other = copy(self)
        other.connection, other.room_of = connection, room_of
        other._calls, other.input_budget = {}, BufferBudget()
        other._connection_number = self.definitions.add_connection(connection)
        other._sends_parts, other._ask_person = sends_parts, ask_person
        return other

    @property
    def running_calls(self) -> Collection[HostedCall]:
        """The calls of all connections that have not ended, on threads too: a live view."""
        return self._running

    # What is hosted

    def host(self, toolkit: Toolkit, *, public: bool) -> HostedToolkit:
        """Host a toolkit. Raises ValueError if one of its name is hosted already."""
        return self.definitions.add(toolkit, public=public)

    async def idle(self) -> None:
        """Wait until no call that arrived on this connection is running.

        Those that wait for a person, and were not entered, are not waited for: see HOLD-18.
        """
        while tasks := [
            call.task
            for call in self._calls.values()
            if call.task and not (call.task.done() or call.is_held)
        ]:
            await asyncio.wait(tasks)

    # Calls

    def dispatch(self, dispatch: Dispatch | AssessDispatch) -> None:
        """Start a call or an assessment, or refuse it at once. Must not raise."""
        hosted = self._find((dispatch.toolkit, "private" not in dispatch.header))
        if hosted is None or not (hosted.is_for_all or hosted.serves(self._connection_number)):
            self._refuse(dispatch, NoHost(f"this host no longer serves {dispatch.toolkit}"))
            return
        is_scarce = self._aside.count or len(self._running) >= self._slots.common
        if is_scarce and (reason := self._overload(dispatch.header)):
            self._refuse(dispatch, Overloaded(reason, retry_after_s=_RETRY_AFTER_S), hosted)
            return
        call = HostedCall(self, dispatch, hosted)
        if not FIELDS_TO_READ.isdisjoint(dispatch.header):  # few calls have any of them
            try:
                call.read_header()
            except InvalidArguments as error:
                self._refuse(dispatch, error, hosted)
                return
        if hosted.toolkit.records is not None and type(dispatch) is Dispatch:
            begin_recording(call, hosted.toolkit.records)
        self._calls[dispatch.id] = call
        self._running.add(call)
        if self._held.counts is not None:
            self._held.begin(call)
        hosted.running_calls.add(call)
        if type(dispatch) is AssessDispatch:
            running = self._assess(call, dispatch)
        else:
            running = self._run(call)
        call.task = _start_task(self.loop, running, self._context.copy(), dispatch.tool)

    def _overload(self, header: Mapping[str, Any]) -> str:
        """Return why a caller gets no place; empty if it gets one."""
        caller = accountable(header, self.owner_of)
        used, held = self._places_of(caller)
        if not self._slots.may_take(used, held):
            return f"the host runs {used} calls, {held} of them yours"
        if self._aside.is_full(caller):
            return "too many bytes of results wait at the host for you to read"
        return ""

    def _places_of(self, caller: Identity) -> tuple[int, int]:
        """Return how many places are taken, and, once they are scarce, how many a caller has."""
        used = len(self._running) - self._aside.count
        if used < self._slots.common:
            return used, 0
        return used, self._held.of(caller, self._running) - self._aside.count_of(caller)

    # Calls that wait for a person

    async def demand(
        self, call: HostedCall, demanded: ApprovalDemand | ToolQuestion
    ) -> Mapping[str, Any]:
        """Let the server ask a person about a call; it takes no place meanwhile.

        Raises `Unavailable` at an older server, `TooLarge` for what is too much to be shown, and
        what the server refuses the question with; executed "no".
        """
        if self._ask_person is None:
            raise Unavailable("this host has no connection", executed="no", retryable=False)
        from toolbus.tools.observed_hold import ObservedHold

        fields = demanded.to_wire(call.hosted.digest)
        # A function that asks from its thread keeps that, and there is one for each place.
        place = nullcontext() if call.is_on_thread else self._aside.waiting(call.identity)
        call.is_held = not demanded.is_entered
        try:
            with ObservedHold(call.recording, self._tracing.recorder(), fields[0]) as hold, place:
                self._admit_returning()
                reply = await self._ask_person(call.dispatch.id, *fields)
                hold.read(reply)
                return reply
        finally:
            call.is_held = False

    async def return_to_work(self, call: HostedCall) -> None:
        """Wait for a place for a call that has waited, behind those of its caller."""
        if call.is_on_thread:
            return
        used, held = self._places_of(call.identity)
        # It is among the running ones already.
        if self._slots.may_take(used - 1, max(0, held - 1)):
            return
        admitted = self._returning[call] = self.loop.create_future()
        try:
            with self._aside.waiting(call.identity):
                await admitted
        finally:
            del self._returning[call]

    def _admit_returning(self) -> None:
        """Give free places to calls that have waited for a person."""
        # One at a time: it is counted when its task goes on. Whose caller holds too many places is
        # passed over, so that no caller makes all others wait.
        for call, admitted in self._returning.items():
            is_waiting = not admitted.done()
            if is_waiting and self._slots.may_take(*self._places_of(call.identity)):
                admitted.set_result(None)
                return

    def _refuse(
        self,
        dispatch: Dispatch | AssessDispatch,
        error: RoomException,
        hosted: HostedToolkit | None = None,
    ) -> None:
        if hosted is not None and type(dispatch) is Dispatch:
            records = hosted.toolkit.records
            if records is not None:
                record_refusal(HostedCall(self, dispatch, hosted), records, error)
        self.send(failed(dispatch.id, error))

    def cancel(self, cancel: Cancel) -> None:
        """Cancel a call; no effect if it has ended."""
        call = self._calls.get(cancel.id)
        if call is not None:
            self._cancel_call(call, cancel.reason)

    def on_stream_frame(self, frame: Credit | Input) -> None:
        """Pass a frame to its call; dropped if the call has ended or has no stream."""
        call = self._calls.get(frame.id)
        if call is not None and call.stream is not None:
            call.stream.receive(frame)

    def send(self, frame: Frame) -> None:
        """Send a frame to the server, or drop it if there is no connection."""
        if self.connection is not None:
            self.connection.send_message(encode(frame))

    def cancel_all(self) -> None:
        """Cancel every call: the connection is lost or will be closed."""
        for call in list(self._calls.values()):
            self._cancel_call(call, "lost")
        self._calls.clear()

    def _cancel_call(self, call: HostedCall, reason: str) -> None:
        if not call.given_up:
            call.given_up, call.stop_reason = True, reason
        call.stop()
        if not call.started:
            end_recording(call, None)
            self.finish(call)

    async def stop(self) -> None:
        """Cancel every call and wait for those that can be stopped."""
        self.cancel_all()
        stoppable = {call.task for call in self._running if call.task and not call.awaited}
        try:
            if waiting := stoppable - self._abandoned:
                _, left = await asyncio.wait(waiting, timeout=_STOP_TIMEOUT_S)
                if left:
                    self._abandoned |= left
                    names = describe_calls([call for call in self._running if call.task in left])
                    _logger.warning("%s did not end after the cancellation: left behind", names)
        finally:
            self._threads().shutdown(wait=False, cancel_futures=True)
            for call in self._running:  # left behind: no other end of them will be known
                end_recording(call, None)

    @runs_call
    async def _run(self, call: HostedCall) -> None:
        call.started = True
        reply: Frame | None = None
        CALL_ID.set(call.dispatch.call_id)
        try:
            trace = None
            if call.dispatch.traceparent == CALL_AS_TRACE:
                enter_call_as_trace(call.dispatch.call_id)
            elif call.dispatch.traceparent or monotonic() >= self._tracing.idle_until:
                trace = self._trace(call)
            if trace is None:
                body = await self._execute(call)
            else:
                body = await self._recorded(call, trace)
            reply = Result(call.dispatch.id, body)
        except RoomException as failure:
            reply = failed(call.dispatch.id, failure)
        except asyncio.CancelledError:
            reply = failed(call.dispatch.id, call.self_cancelled_error())
            raise
        except Exception:
            _logger.exception("a bug in the host ended a call")
            bug = Internal("a bug in the host; see its log", executed=call.executed)
            reply = failed(call.dispatch.id, bug)
        finally:
            # It is unknown how far a tool got that was cancelled by the end of the event loop.
            is_interrupted = (
                call.task is not None and call.task.cancelling() and self._loop_is_ending()
            )
            try:
                if call.stream is not None:
                    call.stream.end()  # its latest progress is sent before the reply
                if not (
                    reply is None or call.given_up or is_interrupted or self.connection is None
                ):
                    self.connection.send_message(encode(reply))
            finally:
                if call.recording is not None:
                    end_recording(call, None if is_interrupted else reply)
                self.finish(call)

    @runs_call
    async def _assess(self, call: HostedCall, dispatch: AssessDispatch) -> None:
        """Answer what the tool says about the call; of the tool, `assess` alone runs.

        It holds a place of the host like a call, and is cancelled like one; it is not recorded, is
        in no trace, and takes no slot of its tool: who asks should not wait for those that run.
        """
        call.started = True
        reply: Frame | None = None
        CALL_ID.set(dispatch.call_id)
        try:
            if len(dispatch.arguments) + call.context_bytes <= LARGE_BODY_BYTES:
                arguments = read_arguments(call, dispatch.arguments)
            else:
                arguments = await call.read_large_parts()
            assessment = await call.hosted.toolkit.assess(
                ToolContext(run=call), dispatch.tool, arguments, tuple(dispatch.patterns)
            )
            body = pack_body(assessment_to_plain(assessment))
            if len(body) > MAX_ASSESSMENT_BYTES:  # the server would close the connection for it
                raise InvalidResult(f"an assessment of {len(body)} bytes", executed="no")
            reply = Result(dispatch.id, body)
        except RoomException as error:
            error.executed = "no"
            reply = failed(dispatch.id, error)
        except asyncio.CancelledError:  # by the tool, unless the question was given up
            cancelled = Cancelled("the tool's task was cancelled", executed="no")
            reply = failed(dispatch.id, cancelled)
            raise
        except (Exception, SystemExit):
            _logger.exception("an assessment of %s failed", call.method)
            text = "the assessment failed; see the log of the host"
            reply = failed(dispatch.id, Internal(text, executed="no"))
        finally:
            self._end_if_forked()
            if reply is not None and not call.given_up:
                self.send(reply)
            self.finish(call)

    def _trace(self, call: HostedCall) -> HostCall | None:
        """Add the tool to the call's trace; return its spans if they are recorded."""
        dispatch = call.dispatch
        traceparent = dispatch.traceparent
        # The context is not reset: the task has its own.
        if traceparent is not None and is_unsampled(traceparent):
            enter_unsampled(traceparent, dispatch.header)
            return None
        received = read_trace_context(traceparent, dispatch.header)
        trace = self._tracing.start_host(call.method, dispatch.call_id, received=received)
        if not trace.recording:
            trace.executing().__enter__()
            return None
        trace.describe(call.attributes(self._room_name))
        return trace

    async def _recorded(self, call: HostedCall, trace: HostCall) -> bytes:
        error: RoomException | None = None
        try:
            with trace.executing():
                return await self._execute(call)
        except RoomException as failure:
            error = failure
            raise
        except asyncio.CancelledError:
            error = Cancelled("the call was cancelled", executed=call.executed)
            raise
        finally:
            if call.decision is not None:
                trace.describe(decision_attributes(call.decision.behavior, call.decision.by))
            trace.end(error)

    def finish(self, call: HostedCall) -> None:
        """Forget a call that has ended, and give its place back once its threads have ended too."""
        if self._calls.get(call.dispatch.id) is call:
            del self._calls[call.dispatch.id]
        call.ended = True
        if call.followers is not None:
            call.end_followers()
        if call.threads:
            return  # until these have ended too
        if call.slots is not None:
            call.free_slot()
        if self._held.counts is not None and call in self._running:
            self._held.end(call, is_scarce=len(self._running) > self._slots.common // 2)
        self._running.discard(call)
        call.hosted.running_calls.discard(call)
        if call.hosted.idle_event is not None:
            call.hosted.on_call_ended()
        if self._returning:
            self._admit_returning()

    async def _execute(self, call: HostedCall) -> bytes:
        """Run the tool; return the packed chunk, or raise the error for the caller."""
        dispatch = call.dispatch
        try:
            if len(dispatch.arguments) + call.context_bytes <= LARGE_BODY_BYTES:
                arguments = read_arguments(call, dispatch.arguments)
            else:
                arguments = await call.read_large_parts()
            if call.recording is not None:
                note_arguments(call.recording, arguments)
            limits = call.hosted.limits.get(dispatch.tool)
            # Few functions for most calls: the path of a call is counted by a test.
            if limits is None:
                chunk = await call.execute(arguments)
            else:
                chunk = await call.execute_limited(limits, arguments)
            if os.getpid() != self._process_id:
                self._end_if_forked()
            if type(chunk) is FileChunk or type(chunk) is MixedChunk:
                body = await self._last_body(call, chunk)
            else:
                body = packed_result(call, chunk)
                if len(body) > LARGE_RESULT_BYTES:
                    body = await self._send_parts(call, body)
        except BaseException as error:
            self._end_if_forked(error)
            reason = call.error_for(error)
            if reason is error:
                raise
            raise reason from error
        return body

    async def _last_body(self, call: HostedCall, chunk: Chunk) -> bytes:
        """Send what of a file or a mixed result comes first, and return the body of the rest."""
        if type(chunk) is FileChunk:
            if chunk.is_local:  # the function has ended: the caller may read at its own pace
                call.free_slot()
            return await call.open_stream().send_all_but_last(chunk)
        if type(chunk) is MixedChunk and call.streams:
            for part in chunk.chunks:
                await call.put(fitting(part, MAX_CHUNK_BYTES))
            chunk = EmptyChunk()
        body = packed_result(call, chunk)
        if len(body) > LARGE_RESULT_BYTES:
            return await self._send_parts(call, body)
        return body

    async def _send_parts(self, call: HostedCall, body: bytes) -> bytes:
        """Send all but the last part of a large result, if its caller reads parts; return that."""
        header = call.dispatch.header
        reads_parts = not (call.streams or "whole" in header or "files_only" in header)
        if not (reads_parts and self._sends_parts):
            if len(body) > MAX_RESULT_BYTES:
                raise too_large(call, body)
            return body
        call.free_slot()  # the function has ended: the caller may read at its own pace
        with self._aside.waiting(call.identity, len(body)):
            self._admit_returning()
            return await call.open_stream().send_all_but_last_part(body)

    def begin_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Start a sync function on a thread."""
        return self.loop.run_in_executor(self._threads(), self._run_sync, function)

    def _run_sync(self, function: Callable[[], Any]) -> Any:
        try:
            result = function()
        except BaseException as error:
            self._end_if_forked(error)
            raise
        self._end_if_forked()
        return result

    def _end_if_forked(self, error: BaseException | None = None) -> None:
        # A tool forked, and its child leaves the tool, by an exception or a result. What follows
        # would be a second host, with the event loop of the first; a program without a loop would
        # end here.
        if os.getpid() != self._process_id:
            end_child(error or SystemExit(0))


def _start_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, None],
    context: TaskContext,
    name: str,
) -> asyncio.Task[None] | None:
    """Run a coroutine as a task of the running loop, with a name for logs, and return the task.

    From Python 3.12 on the coroutine runs at once up to its first wait. Returns None if it raised
    `KeyboardInterrupt` or `SystemExit` there; the loop raises that in its next iteration.
    """
    if sys.version_info < (3, 12):
        return asyncio.Task(coroutine, loop=loop, name=name, context=context)
    try:
        return asyncio.Task(coroutine, loop=loop, name=name, context=context, eager_start=True)
    except (KeyboardInterrupt, SystemExit) as error:
        loop.call_soon(raise_error, error)
        return None
