"""Runs a toolkit in the process of its users, shared by all of them.

Its tools are started for the first user and stopped after the last one; the limits of a tool hold
for all users together. Permissions and names are the callers' responsibility.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_types import Chunk, FileChunk, JsonChunk, LinkChunk
from toolbus.errors import DeadlineExceeded, Executed, InvalidResult, RoomException, TooLarge
from toolbus.hosting.hosted_toolkit import NO_LIMITS, HostedToolkit, ToolLimits
from toolbus.hosting.shared_places import Identity
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.tool import Tool
from toolbus.tools.tool_run import Participant, ToolRun
from toolbus.tools.toolkit import (
    MAX_RESULT_BYTES,
    Toolkit,
    executed_now,
    failure_of,
    packed_result,
)
from toolbus.wire import ToolkitManifest

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
    _threads_of: Callable[[], ThreadPoolExecutor] = field(init=False)
    """Returns the threads that the toolkit's functions run on."""
    context: ToolContext = field(init=False)
    run: ToolRun = field(init=False)
    threads: set[asyncio.Future[Any]] = field(default_factory=set)
    """Functions that run on threads; they cannot be stopped."""
    collected: list[Any] = field(default_factory=list)
    """The values that a streaming tool has yielded."""
    collected_bytes: int = 0

    def enter(
        self,
        room_until: Callable[[float], Any],
        threads_of: Callable[[], ThreadPoolExecutor],
        *,
        is_stream: bool,
    ) -> None:
        """Make the tool's context.

        Args:
            room_until: Makes the room for a call that ends at a time by the loop's clock.
            threads_of: Returns the threads that the toolkit's functions run on.
            is_stream: Whether the tool yields chunks.
        """
        self._threads_of = threads_of
        clock = asyncio.get_running_loop().time
        deadline_at = clock() + self.timeout_s
        self.context = ToolContext(
            room_until(deadline_at),
            self.caller,
            on_behalf_of=self.on_behalf_of,
            deadline_at=deadline_at,
            clock=clock,
            run_sync=self._on_thread,
            on_chunk=self._collect if is_stream else None,
        )
        self.run = run_of(self.context)

    async def _collect(self, chunk: Chunk) -> None:
        """Collect a value of a stream; the list of all values must fit one frame."""
        if isinstance(chunk, FileChunk | LinkChunk):
            raise self.run.fail(
                InvalidResult("a turn accepts streams of plain values only, not of files or links")
            )
        self.collected_bytes += len(packed_result(self.run, chunk))
        if self.collected_bytes > MAX_RESULT_BYTES:
            message = (
                f"the values of {self.tool} do not fit one frame: {self.collected_bytes} bytes"
            )
            raise self.run.fail(TooLarge(message, executed=self.run.executed))
        self.collected.append(chunk.value)

    async def _on_thread(self, function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        context = copy_context()
        running = loop.run_in_executor(self._threads_of(), partial(context.run, function))
        running.add_done_callback(_consume_exception)
        self.threads.add(running)
        return await asyncio.shield(running)

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
        """Whether the function ran, after the call was cancelled."""
        if self.on_threads:
            return "maybe"
        return "yes" if self.run.entered else "no"


class InProcessToolkit:
    """A toolkit that runs in the event loop in which this object is made.

    Args:
        toolkit: The toolkit whose tools are started, run and stopped.
    """

    def __init__(self, toolkit: Toolkit) -> None:
        self._toolkit = toolkit
        self._loop = asyncio.get_running_loop()
        self._limits = HostedToolkit(toolkit, public=False).limits
        self._streaming = {tool.name for tool in toolkit.tools if tool.streaming}
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
            asked_for = sum(tool.max_concurrency or 1 for tool in self._toolkit.tools)
            self._threads = ThreadPoolExecutor(max(_THREADS, asked_for), "toolbus-tool")
        return self._threads

    def _release_threads(self) -> None:
        """Let threads end after their functions; no task waits for these."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def run(self, call: InProcessCall, room_until: Callable[[float], Any]) -> Chunk:
        """Run a call within the tool's limits and its own time, waiting for a free slot.

        The values of a streaming tool become one list, which must fit one frame.

        Raises:
            RoomException: The call failed; `executed` says whether the tool ran.
        """
        call.enter(room_until, self._thread_pool, is_stream=call.tool in self._streaming)
        if self._toolkit.records is None:
            return await self._run_limited(call)
        recording = self._toolkit.records.recording(
            f"{self._toolkit.name}.{call.tool}",
            caller=call.caller,
            principal=call.on_behalf_of,
            arguments=call.arguments,
        )
        recording.executed = lambda: (
            "maybe" if call.on_threads else executed_now(self._toolkit, call.run)
        )
        call.run.recording = recording
        with recording:
            return await self._run_limited(call)

    async def _run_limited(self, call: InProcessCall) -> Chunk:
        limits = self._limits.get(call.tool, NO_LIMITS)
        seconds = min(call.timeout_s, limits.timeout_s or call.timeout_s)
        try:
            async with asyncio.timeout(call.timeout_s) as waiting, _slot(limits, call):
                async with asyncio.timeout(limits.timeout_s) as running:
                    return await self._execute(call)
        except TimeoutError as error:
            assert waiting.expired() or running.expired(), (
                "a timeout of the tool itself is a ToolFailed"
            )
            message = f"{self._toolkit.name}.{call.tool} did not end within {seconds:g} s"
            raise DeadlineExceeded(message, executed=call.executed) from error

    async def _execute(self, call: InProcessCall) -> Chunk:
        try:
            chunk = await self._toolkit.execute(call.context, call.tool, call.arguments)
            if call.tool in self._streaming:
                chunk = JsonChunk(call.collected)
            if not isinstance(chunk, FileChunk):  # large files are sent in pieces by remote hosts
                packed_result(call.run, chunk)  # raises if a remote host could not send it
            return chunk
        except asyncio.CancelledError as error:
            if _is_cancelled():
                call.run.cancel()
                raise
            error_of_tool = RuntimeError("the tool raised CancelledError")
            raise self._reported_error(call, error_of_tool) from error
        except BaseException as error:  # a tool's SystemExit does not end the program
            failure = self._reported_error(call, error)
            if failure is error:
                raise
            raise failure from error

    def _reported_error(self, call: InProcessCall, error: BaseException) -> RoomException:
        """Return the error for the caller, and log the tool's own error."""
        failure = failure_of(error, call.run)
        if failure is not error and not isinstance(error, RoomException):
            _logger.error("tool %s.%s raised", self._toolkit.name, call.tool, exc_info=error)
        return failure


@asynccontextmanager
async def _slot(limits: ToolLimits, call: InProcessCall) -> AsyncIterator[None]:
    """Hold one of the tool's slots until the call's functions on threads have ended too."""
    if limits.slots is None:
        yield
        return
    await limits.slots.acquire(call)
    release = partial(limits.slots.release, call)
    try:
        yield
    finally:
        if left := call.on_threads:
            asyncio.gather(*left, return_exceptions=True).add_done_callback(lambda _: release())
        else:
            release()


def _is_cancelled() -> bool:
    """Whether this call was cancelled: by its caller, its timeout or the end of the turn."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _consume_exception(ended: asyncio.Future[Any]) -> None:
    """Mark the error of an abandoned function as retrieved, so that asyncio does not log it."""
    if not ended.cancelled():
        ended.exception()


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
