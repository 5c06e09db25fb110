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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from opentelemetry.context import Context, attach

from toolbus.chunks import Chunk
from toolbus.context import Participant, ToolContext
from toolbus.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArguments,
    InvalidResult,
    NoHost,
    Overloaded,
    RoomException,
    TooLarge,
)
from toolbus.hosted_toolkit import Bounds, HostedToolkit
from toolbus.telemetry import Tracing, call_attributes, read_trace_context
from toolbus.toolkit import Toolkit, failure_of
from toolbus.wire import (
    MAX_FRAME_BYTES,
    BadBody,
    Cancel,
    Dispatch,
    Frame,
    Result,
    failed,
    pack_body,
    unpack_body,
)

__all__ = ["MAX_INFLIGHT", "Runner"]

_logger = logging.getLogger(__name__)

MAX_INFLIGHT = 256
"""Calls that one connection runs and queues; one more is `overloaded`."""
_RETRY_AFTER_S = 0.1
# A result's frame is its body and a few bytes of kind, id and length.
_MAX_RESULT_BYTES = MAX_FRAME_BYTES - 32


_UNTRACED: AbstractContextManager[None] = nullcontext()


@dataclass(slots=True, eq=False)
class _Run:
    """One call that this host runs."""

    dispatch: Dispatch
    hosted: HostedToolkit
    context: ToolContext = field(init=False)
    task: asyncio.Task[None] | None = None
    threads: int = 0
    """How many of its functions are on threads now, which nothing can stop."""
    given_up: bool = False
    """The server has answered in our place: whatever comes of the function is not sent."""
    timed_out: bool = False
    """The tool's own `timeout_s` has passed."""

    def give_up(self) -> None:
        """Stop the function as far as that can be done."""
        self.given_up = True
        self.stop()

    def stop(self) -> None:
        self.context.cancel()
        if self.task is not None and not self.threads:
            self.task.cancel()

    def time_out(self) -> None:
        self.timed_out = True
        self.stop()


class Runner:
    """Runs what the server dispatches to one connection.

    Args:
        send: Sends a frame to the server, or drops it where there is no connection.
        room_of: Makes the room, bound to a call, that the tool sees: from the dispatch's id and its
            deadline by the loop's clock.
        room_name: The name of the room, for spans.
        tracing: Records sampled calls.
        max_inflight: How many calls may run and queue.
    """

    def __init__(
        self,
        *,
        send: Callable[[Frame], None],
        room_of: Callable[[int, float | None], Any],
        room_name: str,
        tracing: Tracing,
        max_inflight: int = MAX_INFLIGHT,
    ) -> None:
        self._send = send
        self._room_of = room_of
        self._room_name = room_name
        self._tracing = tracing
        self._max_inflight = max_inflight
        self._loop = asyncio.get_running_loop()
        self._hosted: dict[tuple[str, bool], HostedToolkit] = {}
        self._runs: dict[int, _Run] = {}
        self._alive: set[_Run] = set()
        self._threads: ThreadPoolExecutor | None = None
        # What runs here belongs to its own call, not to a span that is current while we connect.
        self._context = copy_context()
        self._context.run(attach, Context())

    # What is hosted

    def host(self, toolkit: Toolkit, *, public: bool) -> HostedToolkit:
        """Begin to serve a toolkit. Raises ValueError if one of its name is served already."""
        key = (toolkit.name, public)
        if key in self._hosted:
            raise ValueError(f"this connection hosts a toolkit {toolkit.name} already")
        self._hosted[key] = hosted = HostedToolkit(toolkit, public)
        return hosted

    def withdraw(self, hosted: HostedToolkit) -> None:
        """Take no more calls for a toolkit; running ones go on."""
        self._hosted.pop((hosted.toolkit.name, hosted.public), None)

    async def drained(self, hosted: HostedToolkit) -> None:
        """Wait until no call of a toolkit is running."""
        while hosted.running:
            hosted.quiet.clear()
            await hosted.quiet.wait()

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
        run = _Run(dispatch, hosted)
        try:
            run.context = self._context_of(run)
        except BadBody as error:
            self._refuse(dispatch, _bad_arguments("/caller_context", error.reason))
            return
        except (KeyError, TypeError, ValueError) as error:
            _logger.error("the server sent a call with a broken header: %s", error)
            self._refuse(dispatch, Internal("the call's header is broken", executed="no"))
            return
        self._runs[dispatch.id] = run
        self._alive.add(run)
        hosted.running.add(run)
        run.task = self._loop.create_task(self._run(run), context=self._context.copy())
        # Not in the task itself: one that is cancelled before its first step never runs a line.
        run.task.add_done_callback(partial(self._finish, run))

    def _refuse(self, dispatch: Dispatch, error: RoomException) -> None:
        self._send(failed(dispatch.id, error))

    def _context_of(self, run: _Run) -> ToolContext:
        dispatch, header = run.dispatch, run.dispatch.header
        deadline_at = None
        if dispatch.remaining_ms is not None:
            deadline_at = self._loop.time() + dispatch.remaining_ms / 1000
        behalf = header.get("on_behalf_of")
        words = header.get("caller_context")
        return ToolContext(
            self._room_of(dispatch.id, deadline_at),
            Participant(*header["caller"][:4]),
            on_behalf_of=None if behalf is None else Participant(*behalf[:4]),
            caller_context=None if words is None else unpack_body(words),
            deadline_at=deadline_at,
            clock=self._loop.time,
            run_sync=partial(self._in_thread, run),
        )

    def cancel(self, cancel: Cancel) -> None:
        """Give a call up; one that has ended is nobody's."""
        run = self._runs.get(cancel.id)
        if run is not None:
            run.give_up()

    def cancel_all(self) -> None:
        """Give every call up: nobody is there to be answered."""
        runs, self._runs = self._runs, {}
        for run in runs.values():
            run.give_up()

    async def stop(self) -> None:
        """Give every call up and wait for those that can be stopped."""
        self.cancel_all()
        waiting = [run.task for run in self._alive if run.task and not run.threads]
        if waiting:
            await asyncio.wait(waiting)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, run: _Run) -> None:
        if "traceparent" in run.dispatch.header or monotonic() >= self._tracing.idle_until:
            await self._run_traced(run)
            return
        reply: Frame
        try:
            reply = Result(run.dispatch.id, await self._outcome(run, _UNTRACED))
        except RoomException as failure:
            reply = failed(run.dispatch.id, failure)
        if not run.given_up:
            self._send(reply)

    async def _run_traced(self, run: _Run) -> None:
        dispatch = run.dispatch
        trace = self._tracing.start_host(
            f"{dispatch.toolkit}.{dispatch.tool}",
            dispatch.call_id,
            received=read_trace_context(dispatch.header),
        )
        if trace.recording:
            trace.describe(_who(self._room_name, run.context))
        error: RoomException | None = None
        try:
            body = await self._outcome(run, trace.executing())
            if not run.given_up:
                self._send(Result(dispatch.id, body))
        except RoomException as failure:
            error = failure
            if not run.given_up:
                self._send(failed(dispatch.id, failure))
        except asyncio.CancelledError:
            error = Cancelled("the call was given up", executed=run.context.executed)
            raise
        finally:
            trace.end(error)

    def _finish(self, run: _Run, task: asyncio.Task[None]) -> None:
        if not run.given_up and (task.cancelled() or task.exception() is not None):
            self._refuse(run.dispatch, self._last_word(run, task))
        if self._runs.get(run.dispatch.id) is run:
            del self._runs[run.dispatch.id]
        self._alive.discard(run)
        run.hosted.running.discard(run)
        if not run.hosted.running:
            run.hosted.quiet.set()

    def _last_word(self, run: _Run, task: asyncio.Task[None]) -> RoomException:
        """Speak for a task that ended without an answer, so that no caller waits for nothing."""
        if task.cancelled():
            return self._told(run, RuntimeError("the tool cancelled its own task"))
        _logger.error("a call met a bug", exc_info=task.exception())
        return Internal("a bug of the host's, logged there", executed=run.context.executed)

    async def _outcome(self, run: _Run, span: AbstractContextManager[Any]) -> bytes:
        """Run the tool; return the packed chunk, or raise what the caller is told."""
        try:
            with span:
                body = await self._execute(run)
        except asyncio.CancelledError as error:
            if run.given_up:
                raise
            if run.timed_out:
                raise _timed_out(run) from None
            if run.task is not None and run.task.cancelling():
                raise
            raise self._told(run, RuntimeError("the tool raised CancelledError")) from error
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a tool that calls sys.exit ends its call, not its host
            if run.timed_out:
                raise _timed_out(run) from error
            raise self._told(run, error) from error
        if run.timed_out:
            raise _timed_out(run)
        return body

    def _told(self, run: _Run, error: BaseException) -> RoomException:
        failure = failure_of(error, run.context)
        if failure is not error and not isinstance(error, RoomException):
            name = f"{run.dispatch.toolkit}.{run.dispatch.tool}"
            _logger.error("tool %s raised", name, exc_info=error)
        return failure

    async def _execute(self, run: _Run) -> bytes:
        dispatch, toolkit, context = run.dispatch, run.hosted.toolkit, run.context
        try:
            arguments = unpack_body(dispatch.arguments)
        except BadBody as error:
            raise context.refuse(_bad_arguments(error.path, error.reason)) from error
        if type(arguments) is not dict:
            raise context.refuse(_bad_arguments("", "arguments are one object"))
        bounds = run.hosted.bounds.get(dispatch.tool)
        if bounds is None:
            chunk = await toolkit.execute(context, dispatch.tool, arguments)
        else:
            chunk = await self._execute_bounded(run, bounds, arguments)
        try:
            body = pack_body(chunk.to_wire())
        except BadBody as error:
            unsendable = InvalidResult(error.reason, executed=context.executed)
            raise context.fail(unsendable) from error
        if len(body) > _MAX_RESULT_BYTES:
            raise context.fail(_too_large(run, body))
        return body

    async def _execute_bounded(self, run: _Run, bounds: Bounds, arguments: dict[str, Any]) -> Chunk:
        async with AsyncExitStack() as stack:
            if bounds.slots is not None:
                await stack.enter_async_context(bounds.slots)
            if bounds.timeout_s is not None:
                timer = self._loop.call_later(bounds.timeout_s, run.time_out)
                stack.callback(timer.cancel)
            return await run.hosted.toolkit.execute(run.context, run.dispatch.tool, arguments)

    async def _in_thread(self, run: _Run, function: Callable[[], Any]) -> Any:
        """Run a sync function on a thread of its own and keep the slot until it ends."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._max_inflight, "toolbus-tool")
        if run.given_up:
            raise asyncio.CancelledError
        run.threads += 1
        try:
            result = await self._loop.run_in_executor(self._threads, function)
        finally:
            run.threads -= 1
        if run.given_up or run.timed_out:
            # The thread could not be stopped; what awaits it can be.
            raise asyncio.CancelledError
        return result


def _who(room: str, context: ToolContext) -> dict[str, str]:
    behalf = context.on_behalf_of
    name = None if behalf is None else behalf.name
    return call_attributes(room=room, caller=context.caller.name, on_behalf_of=name)


def _timed_out(run: _Run) -> DeadlineExceeded:
    words = f"the tool's own limit of {run.hosted.toolkit.get_tool(run.dispatch.tool).timeout_s} s"
    return DeadlineExceeded(f"{words} passed", executed=run.context.executed)


def _bad_arguments(path: str, message: str) -> InvalidArguments:
    return InvalidArguments(message, details={"path": path, "message": message})


def _too_large(run: _Run, body: bytes) -> TooLarge:
    words = f"the result has {len(body)} bytes, more than one frame"
    return TooLarge(words, executed=run.context.executed)
