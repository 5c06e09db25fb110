"""Runs the calls that reach a host: how many at a time, for how long, and what is said at the end.

A `Runner` owns one task for each call from its arrival to its answer. It refuses what it has no
room for, queues what may not run yet, lets the deadline of a tool and a cancel reach the function,
and answers exactly once, or not at all when the server has already answered in its place. A sync
function runs on a thread that nothing can stop: it is told through `context.cancelled`, and its
slot is free when it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from copy import copy
from time import monotonic
from typing import Any

from opentelemetry.context import Context, attach

from toolbus.chunks import Chunk, FileChunk
from toolbus.eager_tasks import starter
from toolbus.errors import (
    Cancelled,
    Internal,
    InvalidArguments,
    NoHost,
    Overloaded,
    RoomException,
)
from toolbus.hosted_call import HostedCall, name_calls
from toolbus.hosted_toolkit import NO_BOUNDS, Bounds, HostedToolkit, OfferMistake
from toolbus.inflow import Shares
from toolbus.outflow import OutgoingLine
from toolbus.telemetry import (
    HostCall,
    Tracing,
    enter_unsampled,
    is_unsampled,
    read_trace_context,
)
from toolbus.toolkit import Toolkit, failure_of, packed_result, read_arguments
from toolbus.trace_context import OF_THE_CALL, enter_calls_own
from toolbus.wire import (
    Cancel,
    Credit,
    Dispatch,
    Frame,
    Input,
    Result,
    encode,
    failed,
)

__all__ = ["MAX_INFLIGHT", "Runner"]

_logger = logging.getLogger(__name__)

MAX_INFLIGHT = 256
"""Calls that one connection runs and queues; one more is `overloaded`."""
_RETRY_AFTER_S = 0.1
_STOP_TIMEOUT_S = 2.0


class Runner:
    """Runs what the server dispatches to one connection.

    Args:
        room_of: Makes the room, bound to a call, that the tool sees: from the dispatch's id and its
            deadline by the loop's clock.
        room_name: The name of the room, for spans.
        tracing: Records sampled calls.
        line: The connection; what is sent without one is dropped.
        max_inflight: How many calls may run and queue.
    """

    __slots__ = (
        "_alive",
        "_context",
        "_hosted",
        "_left",
        "_max_inflight",
        "_room_name",
        "_runs",
        "_starter",
        "_threads",
        "_tracing",
        "inputs",
        "is_cut",
        "line",
        "loop",
        "room_of",
    )

    def __init__(
        self,
        *,
        room_of: Callable[[int, float | None], Any],
        room_name: str,
        tracing: Tracing,
        line: OutgoingLine | None = None,
        max_inflight: int = MAX_INFLIGHT,
    ) -> None:
        self.line: OutgoingLine | None = line
        """What is sent goes by it."""
        self.inputs: Shares = Shares()
        """What the inputs of all calls share."""
        self.room_of: Callable[[int, float | None], Any] = room_of
        self._room_name = room_name
        self._tracing = tracing
        self._max_inflight = max_inflight
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        """Whose clock deadlines are told by."""
        self._hosted: dict[tuple[str, bool], HostedToolkit] = {}
        self._runs: dict[int, HostedCall] = {}
        self._alive: set[HostedCall] = set()
        self._left: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(max_inflight, "toolbus-tool")
        self._starter = starter(self.loop)
        self.is_cut: Callable[[], bool] = lambda: False
        """Tells whether the event loop ends, with every task of it."""
        # What runs here belongs to its own call, not to a span that is current while we connect.
        self._context = copy_context()
        self._context.run(attach, Context())

    def beside(
        self, line: OutgoingLine | None, room_of: Callable[[int, float | None], Any]
    ) -> Runner:
        """Make the runner of another connection, which hosts the same within the same bounds.

        Args:
            line: The other connection.
            room_of: As that of the first, of rooms whose calls go by it.
        """
        other = copy(self)
        other.line, other.room_of = line, room_of
        other._runs, other.inputs = {}, Shares()
        return other

    @property
    def alive(self) -> Collection[HostedCall]:
        """The calls of all connections that have not ended, on threads neither: a live view."""
        return self._alive

    # What is hosted

    def host(self, toolkit: Toolkit, *, public: bool) -> HostedToolkit:
        """Begin to serve a toolkit. Raises ValueError if one of its name is served already."""
        key = (toolkit.name, public)
        if key in self._hosted:
            raise OfferMistake(f"this connection hosts a toolkit {toolkit.name} already")
        self._hosted[key] = hosted = HostedToolkit(toolkit, public)
        return hosted

    def withdraw(self, hosted: HostedToolkit) -> None:
        """Take no more calls for a toolkit; running ones go on."""
        self._hosted.pop(hosted.key, None)

    async def drained(self, hosted: HostedToolkit) -> None:
        """Wait until no call of a toolkit is running."""
        await hosted.drained()

    async def idle(self) -> None:
        """Wait until no call that came by this connection is running."""
        while tasks := [
            run.task for run in self._runs.values() if run.task and not run.task.done()
        ]:
            await asyncio.wait(tasks)

    # Calls

    def dispatch(self, dispatch: Dispatch) -> None:
        """Take a call, or refuse it at once. Must not raise."""
        hosted = self._hosted.get((dispatch.toolkit, "private" not in dispatch.header))
        if hosted is None:
            self._refuse(dispatch, NoHost(f"this host serves {dispatch.toolkit} no more"))
            return
        if len(self._alive) >= self._max_inflight:
            words = f"the host runs {self._max_inflight} calls"
            self._refuse(dispatch, Overloaded(words, retry_after_s=_RETRY_AFTER_S))
            return
        run = HostedCall(self, dispatch, hosted)
        if len(dispatch.header) > 1:
            try:
                run.read_header()
            except InvalidArguments as error:
                self._refuse(dispatch, error)
                return
        self._runs[dispatch.id] = run
        self._alive.add(run)
        hosted.running.add(run)
        run.task = self._starter.start(self._run(run), self._context.copy())

    def _refuse(self, dispatch: Dispatch, error: RoomException) -> None:
        self.send(failed(dispatch.id, error))

    def cancel(self, cancel: Cancel) -> None:
        """Give a call up; one that has ended is nobody's."""
        run = self._runs.get(cancel.id)
        if run is not None:
            self._give_up(run)

    def on_input(self, frame: Credit | Input) -> None:
        """Let a call read or send more; dropped where it has ended, or is not open for that."""
        run = self._runs.get(frame.id)
        if run is not None and run.stream is not None:
            run.stream.take(frame)

    def send(self, frame: Frame) -> None:
        """Send a frame to the server, or drop it where there is no connection."""
        if self.line is not None:
            self.line.send_message(encode(frame))

    def cancel_all(self) -> None:
        """Give every call up: nobody is there to be answered."""
        for run in list(self._runs.values()):
            self._give_up(run)
        self._runs.clear()

    def _give_up(self, run: HostedCall) -> None:
        run.given_up = True
        run.stop()
        if not run.started:
            self._finish(run)

    async def stop(self) -> None:
        """Give every call up and wait for those that can be stopped."""
        self.cancel_all()
        stoppable = {run.task for run in self._alive if run.task and not run.awaited}
        try:
            if waiting := stoppable - self._left:
                _, left = await asyncio.wait(waiting, timeout=_STOP_TIMEOUT_S)
                if left:
                    self._left |= left
                    names = name_calls([run for run in self._alive if run.task in left])
                    _logger.warning("%s not ended when cancelled: left behind", names)
        finally:
            self._starter.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, run: HostedCall) -> None:
        run.started = True
        reply: Frame | None = None
        try:
            trace = None
            if run.dispatch.traceparent == OF_THE_CALL:
                enter_calls_own(run.dispatch.call_id)
            elif run.dispatch.traceparent or monotonic() >= self._tracing.idle_until:
                trace = self._trace(run)
            if trace is None:
                body = await self._outcome(run)
            else:
                body = await self._recorded(run, trace)
            reply = Result(run.dispatch.id, body)
        except RoomException as failure:
            reply = failed(run.dispatch.id, failure)
        except asyncio.CancelledError:
            reply = failed(run.dispatch.id, run.cancelled_itself())
            raise
        except Exception:
            _logger.exception("a call met a bug")
            bug = Internal("a bug of the host's, logged there", executed=run.executed)
            reply = failed(run.dispatch.id, bug)
        finally:
            try:
                if run.stream is not None:
                    run.stream.end()  # what it has to say goes before the answer
                # Of a tool that its host's end cut off nobody can say how far it came.
                is_cut_off = run.task is not None and run.task.cancelling() and self.is_cut()
                if not (reply is None or run.given_up or is_cut_off or self.line is None):
                    self.line.send_message(encode(reply))
            finally:
                self._finish(run)

    def _trace(self, run: HostedCall) -> HostCall | None:
        """Put the tool into the call's trace; return its spans if they are recorded."""
        dispatch = run.dispatch
        traceparent = dispatch.traceparent
        # What is entered here is entered for good: the task has a context of its own.
        if traceparent is not None and is_unsampled(traceparent):
            enter_unsampled(traceparent, dispatch.header)
            return None
        received = read_trace_context(traceparent, dispatch.header)
        trace = self._tracing.start_host(run.method, dispatch.call_id, received=received)
        if not trace.recording:
            trace.executing().__enter__()
            return None
        trace.describe(run.attributes(self._room_name))
        return trace

    async def _recorded(self, run: HostedCall, trace: HostCall) -> bytes:
        error: RoomException | None = None
        try:
            with trace.executing():
                return await self._outcome(run)
        except RoomException as failure:
            error = failure
            raise
        except asyncio.CancelledError:
            error = Cancelled("the call was given up", executed=run.executed)
            raise
        finally:
            trace.end(error)

    def _finish(self, run: HostedCall) -> None:
        if self._runs.get(run.dispatch.id) is run:
            del self._runs[run.dispatch.id]
        run.ended = True
        if run.threads:
            return  # until they have ended, too
        if run.slots is not None:
            run.free_slot()
        self._alive.discard(run)
        run.hosted.running.discard(run)
        if run.hosted.quiet is not None:
            run.hosted.ended()

    async def _outcome(self, run: HostedCall) -> bytes:
        """Run the tool; return the packed chunk, or raise what the caller is told."""
        dispatch = run.dispatch
        try:
            arguments = read_arguments(run, dispatch.arguments)
            bounds = run.hosted.bounds.get(dispatch.tool)
            if bounds is None and run.stream is None:
                chunk = await run.hosted.toolkit.execute(run, dispatch.tool, arguments)
            else:
                chunk = await self._execute_bounded(run, bounds or NO_BOUNDS, arguments)
            if type(chunk) is FileChunk:
                if chunk.is_at_hand:  # the function has ended: its caller may read as it likes
                    run.free_slot()
                body = await run.open_stream().send_all_but_last(chunk)
            else:
                body = packed_result(run, chunk, is_checked=dispatch.tool in run.hosted.checked)
        except BaseException as error:
            reason = self._reason(run, error)
            if reason is error:
                raise
            raise reason from error
        if run.timed_out:
            raise run.took_too_long()
        return body

    def _reason(self, run: HostedCall, error: BaseException) -> BaseException:
        """Decide what a call ends with whose tool ended so; a tool that exits ends no host."""
        if isinstance(error, KeyboardInterrupt) or not self.loop.is_running():
            return error  # nobody is told: the loop is at its end, or was left with the call
        if not isinstance(error, asyncio.CancelledError):
            return run.took_too_long() if run.timed_out else self._told(run, error)
        if run.timed_out and not run.given_up:
            return run.took_too_long()
        if run.given_up or (run.task is not None and run.task.cancelling()):
            return error
        return self._told(run, RuntimeError("the tool raised CancelledError"))

    def _told(self, run: HostedCall, error: BaseException) -> RoomException:
        failure = failure_of(error, run)
        if failure is not error and not isinstance(error, RoomException):
            _logger.error("tool %s raised", run.method, exc_info=error)
        return failure

    async def _execute_bounded(
        self, run: HostedCall, bounds: Bounds, arguments: dict[str, Any]
    ) -> Chunk:
        if bounds.slots is not None:
            await bounds.slots.acquire()
            run.slots = bounds.slots
        timer = None
        if bounds.timeout_s is not None:
            timer = self.loop.call_later(bounds.timeout_s, run.time_out)
        try:
            return await run.execute(arguments)
        finally:
            if timer is not None:
                timer.cancel()

    async def in_thread(self, run: HostedCall, function: Callable[[], Any]) -> Any:
        """Run a sync function on a thread of its own and keep the slot until it ends."""
        if run.given_up:
            raise asyncio.CancelledError
        future = self.loop.run_in_executor(self._threads, function)
        run.threads += 1
        run.awaited += 1
        future.add_done_callback(lambda _: self._leave_thread(run))
        try:
            # A tool may stop to wait; its thread goes on, and so does what it holds.
            result = await asyncio.shield(future)
        finally:
            run.awaited -= 1
        if run.given_up or run.timed_out:
            # The thread could not be stopped; what awaits it can be.
            raise asyncio.CancelledError
        return result

    def _leave_thread(self, run: HostedCall) -> None:
        run.threads -= 1
        if run.ended:
            self._finish(run)
