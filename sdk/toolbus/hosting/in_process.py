"""Runs a toolkit in the process of its users, shared by all of them.

Its tools are started for the first user and stopped after the last one; the limits of a tool hold
for all users together. Permissions and names are the callers' responsibility.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_types import Chunk, FileChunk, as_chunk
from toolbus.concurrency.event_loop import running_loop
from toolbus.concurrency.tasks import is_cancelled, retrieve_error
from toolbus.errors import DeadlineExceeded, Executed, RoomException
from toolbus.hosting.hosted_toolkit import NO_LIMITS, HostedToolkit
from toolbus.hosting.local_input import LocalInput
from toolbus.hosting.loop_watchdog import runs_call, watched_loop
from toolbus.hosting.shared_places import Identity
from toolbus.hosting.tool_slots import ToolSlots
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.input_stream import InputStream
from toolbus.tools.tool import Tool
from toolbus.tools.tool_run import OnChunk, Participant, ToolRun
from toolbus.tools.toolkit import Toolkit, executed_now, failure_of, packed_result, settled_result
from toolbus.wire import ToolkitManifest, pack_body
from toolbus.wire.flow_control import MAX_PROGRESS_BYTES

__all__ = ["InProcessCall", "InProcessToolkit", "started_tools"]

_logger = bounded_logger(__name__)
_THREADS = 256


@dataclass(slots=True, eq=False)
class InProcessCall:
    """One call of a tool in this process: its caller, its principal, and its state."""

    tool: str
    arguments: dict[str, Any]
    caller: Participant
    on_behalf_of: Participant | None
    timeout_s: float
    id: str = ""
    """The id of the call."""
    caller_context: dict[str, Any] | None = None
    """The caller's own data; not checked."""
    on_progress: Callable[[Any], None] | None = None
    """Called on the event loop with the plain value of each progress."""
    source: LocalInput | None = None
    """The input of the call."""
    put: OnChunk | None = None
    """Receives the chunks of a streaming tool, and waits while its reader is behind."""
    state: dict[str, Any] | None = None
    """The toolkit's part of the agent's state."""
    wants_error_text: Callable[[], bool] = lambda: False
    """Whether the room's server asks for the texts of exceptions."""
    _threads_of: Callable[[], ThreadPoolExecutor] = field(init=False)
    """Returns the threads that the toolkit's functions run on."""
    _loop: asyncio.AbstractEventLoop = field(init=False)
    context: ToolContext = field(init=False)
    run: ToolRun = field(init=False)
    threads: set[asyncio.Future[Any]] = field(default_factory=set)
    """Functions that run on threads; they cannot be stopped."""
    toolkit: Toolkit | None = None
    """The toolkit that runs it; None before it is called."""
    has_ended: bool = False
    """Whether it has ended; progress after that is dropped."""

    def enter(
        self,
        room_until: Callable[[float], Any],
        threads_of: Callable[[], ThreadPoolExecutor],
    ) -> None:
        """Make the tool's context.

        Args:
            room_until: Makes the room for a call that ends at a time by the loop's clock.
            threads_of: Returns the threads that the toolkit's functions run on.
        """
        self._threads_of = threads_of
        self._loop = asyncio.get_running_loop()
        clock = self._loop.time
        deadline_at = clock() + self.timeout_s
        self.context = ToolContext(
            room_until(deadline_at),
            self.caller,
            on_behalf_of=self.on_behalf_of,
            caller_context=self.caller_context,
            deadline_at=deadline_at,
            clock=clock,
            run_sync=self._on_thread,
            on_chunk=None if self.put is None else self._put,
            on_progress=None if self.on_progress is None else self._emit,
        )
        self.run = run_of(self.context)
        self.run.call_id = self.id
        self.run.state = self.state
        if self.source is not None:
            self.source.run = self.run

    async def _put(self, chunk: Chunk) -> None:
        """Pass a chunk to the caller; an error of that ends the call."""
        assert self.put is not None
        try:
            await self.put(chunk)
        except RoomException as error:
            error.executed = self.run.executed
            raise self.run.fail(error) from error.__cause__

    def _emit(self, value: Any) -> None:
        """Pass a progress to the caller, from any thread; a large one is dropped."""
        if len(pack_body(as_chunk(value).to_wire())) > MAX_PROGRESS_BYTES:
            return
        if running_loop() is self._loop:
            self._report(value)
            return
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._report, value)

    def _report(self, value: Any) -> None:
        if self.on_progress is None or self.has_ended:
            return
        try:
            self.on_progress(value)
        except (Exception, asyncio.CancelledError):  # the latter from a future that it reads
            _logger.exception("on_progress raised")

    async def _on_thread(self, function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        context = copy_context()
        running = loop.run_in_executor(self._threads_of(), partial(context.run, function))
        running.add_done_callback(retrieve_error)
        self.threads.add(running)
        return await asyncio.shield(running)

    @property
    def method(self) -> str:
        """The tool's full name: `toolkit.tool`."""
        return self.tool if self.toolkit is None else f"{self.toolkit.name}.{self.tool}"

    @property
    def identity(self) -> Identity:
        """Who makes the call, issuer and name: callers share the slots of a tool."""
        return self.caller.issuer, self.caller.name

    @property
    def on_threads(self) -> list[asyncio.Future[Any]]:
        """Functions that still run on threads."""
        return [each for each in self.threads if not each.done()]

    @property
    def executed(self) -> Executed:
        """Whether the function ran so far; "no" too where a middleware answered in its place."""
        if self.toolkit is None:
            return "no"
        return "maybe" if self.on_threads else executed_now(self.toolkit, self.run)


class InProcessToolkit:
    """A toolkit that runs in the event loop in which this object is made.

    Args:
        toolkit: The toolkit whose tools are started, run and stopped.
    """

    def __init__(self, toolkit: Toolkit) -> None:
        self._toolkit = toolkit
        self._loop = asyncio.get_running_loop()
        self._limits = HostedToolkit(toolkit, public=False).limits
        self._changing = asyncio.Lock()
        self._users = 0
        self._started: AsyncExitStack | None = None
        self._threads: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, toolkit: Toolkit) -> InProcessToolkit:
        """Return the instance that all users of this toolkit in this event loop share."""
        shared: InProcessToolkit | None = toolkit.in_process
        if shared is None or shared._loop is not asyncio.get_running_loop():
            # The locks belong to the event loop that they were made in.
            shared = toolkit.in_process = cls(toolkit)
        return shared

    @property
    def manifest(self) -> ToolkitManifest:
        """The toolkit's manifest. Not to be changed."""
        return self._toolkit.manifest()

    @asynccontextmanager
    async def started(self, room: Any) -> AsyncIterator[None]:
        """Keep the tools started while the block runs. Raises what a tool's `start` raises."""
        self._users += 1
        try:
            async with self._changing:
                if self._started is None:
                    async with AsyncExitStack() as stack:
                        stack.enter_context(watched_loop())
                        await stack.enter_async_context(started_tools(self._toolkit.tools, room))
                        self._started = stack.pop_all()
            yield
        finally:
            self._users -= 1
            async with self._changing:
                if not self._users:
                    self._release_threads()
                if not self._users and self._started is not None:
                    stack, self._started = self._started, None
                    await stack.aclose()

    def _thread_pool(self) -> ThreadPoolExecutor:
        """Return the toolkit's threads: as many as its tools may use at a time."""
        if self._threads is None:
            slots = (limits.slots for limits in self._limits.values())
            asked_for = sum(each.count for each in slots if each is not None)
            self._threads = ThreadPoolExecutor(max(_THREADS, asked_for), "toolbus-tool")
        return self._threads

    def _release_threads(self) -> None:
        """Let threads end after their functions; no task waits for these."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def run(self, call: InProcessCall, room_until: Callable[[float], Any]) -> Chunk:
        """Run a call within the tool's limits and its own time, waiting for a free slot.

        The chunks of a streaming tool go to the call's `put`, and the result is empty.

        Raises:
            RoomException: The call failed; `executed` says whether the tool ran.
            Exception: What the iterable of the call's input raised.
        """
        call.enter(room_until, self._thread_pool)
        if self._toolkit.records is None:
            return await self._run_limited(call)
        recording = self._toolkit.records.recording(
            f"{self._toolkit.name}.{call.tool}",
            caller=call.caller,
            principal=call.on_behalf_of,
            call_id=call.id,
            arguments=call.arguments,
        )
        recording.executed = lambda: call.executed
        call.run.recording = recording
        with recording:
            return await self._run_limited(call)

    async def _run_limited(self, call: InProcessCall) -> Chunk:
        limits = self._limits.get(call.tool, NO_LIMITS)
        slots, most_s = limits.slots, limits.timeout_s
        ends_at = self._loop.time() + call.timeout_s
        try:
            async with asyncio.timeout_at(ends_at) as limit:
                if slots is not None:
                    await slots.acquire(call)
                try:
                    if most_s is not None and not limit.expired():
                        limit.reschedule(min(ends_at, self._loop.time() + most_s))
                    return await self._execute(call)
                finally:
                    if slots is not None:
                        _release(slots, call)
        except TimeoutError as error:
            assert limit.expired(), "a timeout of the tool itself is a ToolFailed"
            seconds = min(call.timeout_s, most_s or call.timeout_s)
            message = f"{self._toolkit.name}.{call.tool} did not end within {seconds:g} s"
            raise DeadlineExceeded(message, executed=call.executed) from error
        finally:
            call.has_ended = True

    @runs_call
    async def _execute(self, call: InProcessCall) -> Chunk:
        # An override of `execute` may not take an attachment.
        stream = () if call.source is None else (InputStream.of_source(call.source),)
        call.toolkit = self._toolkit
        try:
            chunk = await self._toolkit.execute(call.context, call.tool, call.arguments, *stream)
            if call.source is not None and call.source.error is not None:
                raise call.source.error
            if type(self._toolkit).execute is not Toolkit.execute:
                chunk = settled_result(call.run, chunk)
            if not isinstance(chunk, FileChunk):  # large files are sent in pieces by remote hosts
                packed_result(call.run, chunk)  # raises if a remote host could not send it
            return chunk
        except asyncio.CancelledError as error:
            if is_cancelled():
                call.run.cancel()
                raise
            error_of_tool = RuntimeError("the tool raised CancelledError")
            raise self._reported_error(call, error_of_tool) from error
        except BaseException as error:  # a tool's SystemExit does not end the program
            if call.source is not None and call.source.error is not None:
                raise call.source.error from None
            failure = self._reported_error(call, error)
            if failure is error:
                raise
            raise failure from error

    def _reported_error(self, call: InProcessCall, error: BaseException) -> RoomException:
        """Return the error for the caller, and log the tool's own error."""
        by_default = call.wants_error_text()
        call.run.sends_error_text = self._toolkit.sends_error_text(call.tool, by_default=by_default)
        failure = failure_of(error, call.run)
        if failure is not error and not isinstance(error, RoomException):
            _logger.error("tool %s.%s raised", self._toolkit.name, call.tool, exc_info=error)
        return failure


def _release(slots: ToolSlots, call: InProcessCall) -> None:
    """Give a slot of the tool back when the call's functions on threads have ended too."""
    if left := call.on_threads:
        ended = asyncio.gather(*left, return_exceptions=True)
        ended.add_done_callback(lambda _: slots.release(call))
    else:
        slots.release(call)


@asynccontextmanager
async def started_tools(tools: Iterable[Tool], room: Any) -> AsyncIterator[None]:
    """Start tools, and stop them in reverse order after the block or if one cannot start.

    The error of a `start` has a note with the tool's name.
    """
    async with AsyncExitStack() as stack:
        for tool in tools:
            try:
                await tool.start(room)
            except Exception as error:
                error.add_note(f"raised by the start of tool {tool.name}")
                raise
            stack.push_async_callback(_stop, tool)
        yield


async def _stop(tool: Tool) -> None:
    """Stop a tool; an error is logged and does not prevent other tools from stopping."""
    try:
        await tool.stop()
    except Exception:
        _logger.exception("tool %s raised while it was stopped", tool.name)
