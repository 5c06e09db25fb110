"""A toolkit that runs in the process of whoever uses it, for all who use it at a time.

Its tools are started for the first of them and stopped after the last; the bounds that a tool asks
for hold for all of them together. Rights and names are the business of whoever calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from toolbus.chunks import Chunk, FileChunk, JsonChunk, LinkChunk
from toolbus.context import Participant, ToolContext
from toolbus.errors import DeadlineExceeded, Executed, InvalidResult, RoomException, TooLarge
from toolbus.hosted_toolkit import NO_BOUNDS, Bounds, HostedToolkit
from toolbus.tool import Tool
from toolbus.toolkit import MAX_RESULT_BYTES, Toolkit, failure_of, packed_result
from toolbus.wire import ToolkitManifest

__all__ = ["LocalCall", "LocalToolkit", "started_tools"]

_logger = logging.getLogger(__name__)
_THREADS = 256


@dataclass(slots=True, eq=False)
class LocalCall:
    """One call of a local tool: who makes it, for whom, and how far it has come."""

    tool: str
    arguments: dict[str, Any]
    caller: Participant
    on_behalf_of: Participant | None
    timeout_s: float
    threads_of: Callable[[], ThreadPoolExecutor] = field(init=False)
    """Gives the threads that its toolkit's functions run on."""
    context: ToolContext = field(init=False)
    threads: set[asyncio.Future[Any]] = field(default_factory=set)
    """What runs on threads, which nothing can stop."""
    gathered: list[Any] = field(default_factory=list)
    """What a streaming tool has given."""
    gathered_bytes: int = 0

    def enter(self, room_until: Callable[[float], Any], *, is_stream: bool) -> None:
        """Make the tool's context; its room is the one that ends with the call."""
        clock = asyncio.get_running_loop().time
        deadline_at = clock() + self.timeout_s
        self.context = ToolContext(
            room_until(deadline_at),
            self.caller,
            on_behalf_of=self.on_behalf_of,
            deadline_at=deadline_at,
            clock=clock,
            run_sync=self._on_thread,
            on_chunk=self._gather if is_stream else None,
        )

    async def _gather(self, chunk: Chunk) -> None:
        """Keep what a stream gives, as far as the list of it fits one frame."""
        if isinstance(chunk, FileChunk | LinkChunk):
            raise self.context.fail(
                InvalidResult("a turn gathers a stream of plain values: this gives files or links")
            )
        self.gathered_bytes += len(packed_result(self.context, chunk))
        if self.gathered_bytes > MAX_RESULT_BYTES:
            words = f"what {self.tool} gives is more than one frame: {self.gathered_bytes} bytes"
            raise self.context.fail(TooLarge(words, executed=self.context.executed))
        self.gathered.append(chunk.value)

    async def _on_thread(self, function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        within = copy_context()
        running = loop.run_in_executor(self.threads_of(), partial(within.run, function))
        running.add_done_callback(_look_at)
        self.threads.add(running)
        return await asyncio.shield(running)

    @property
    def on_threads(self) -> list[asyncio.Future[Any]]:
        """What still runs on threads."""
        return [each for each in self.threads if not each.done()]

    @property
    def executed(self) -> Executed:
        """Whether the function ran, once the call has been given up."""
        if self.on_threads:
            return "maybe"
        return "yes" if self.context.entered else "no"


class LocalToolkit:
    """A toolkit that is run here, in the event loop that is running when this is made.

    Args:
        toolkit: Whose tools are started, run and stopped.
    """

    def __init__(self, toolkit: Toolkit) -> None:
        self._toolkit = toolkit
        self._loop = asyncio.get_running_loop()
        self._bounds = HostedToolkit(toolkit, public=False).bounds
        self._streaming = {tool.name for tool in toolkit.tools if tool.streaming}
        self._changing = asyncio.Lock()
        self._users = 0
        self._started: AsyncExitStack | None = None
        self._threads: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, toolkit: Toolkit) -> LocalToolkit:
        """Return the one that all share who use this toolkit in this event loop."""
        shared: LocalToolkit | None = toolkit.in_process
        if shared is None or shared._loop is not asyncio.get_running_loop():
            # The locks of an earlier loop are no use in this one.
            shared = toolkit.in_process = cls(toolkit)
        return shared

    @property
    def manifest(self) -> ToolkitManifest:
        """What others are told of the toolkit. Not to be changed."""
        return self._toolkit.manifest()

    @asynccontextmanager
    async def started(self, room: Any) -> AsyncIterator[None]:
        """Keep its tools started for as long as the block runs. Raises what a `start` raises."""
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
                    self._leave_threads()
                if not self._users and self._started is not None:
                    stack, self._started = self._started, None
                    await stack.aclose()

    def _threads_of_its_own(self) -> ThreadPoolExecutor:
        """Give the threads of this toolkit: as many as its tools may use at a time."""
        if self._threads is None:
            asked_for = sum(tool.max_concurrency or 1 for tool in self._toolkit.tools)
            self._threads = ThreadPoolExecutor(max(_THREADS, asked_for), "toolbus-tool")
        return self._threads

    def _leave_threads(self) -> None:
        """Let threads end once their functions have; nobody waits for these."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def run(self, call: LocalCall, room_until: Callable[[float], Any]) -> Chunk:
        """Run a call within the tool's bounds and its own time, waiting for a free slot.

        What a streaming tool gives is one list, and has to fit one frame.

        Raises:
            RoomException: Why there is no result; `executed` says whether the tool ran.
        """
        call.threads_of = self._threads_of_its_own
        call.enter(room_until, is_stream=call.tool in self._streaming)
        bounds = self._bounds.get(call.tool, NO_BOUNDS)
        seconds = min(call.timeout_s, bounds.timeout_s or call.timeout_s)
        try:
            async with asyncio.timeout(call.timeout_s) as waiting, _slot(bounds, call):
                async with asyncio.timeout(bounds.timeout_s) as running:
                    return await self._execute(call)
        except TimeoutError as error:
            assert waiting.expired() or running.expired(), "a tool's own is a ToolFailed"
            words = f"{self._toolkit.name}.{call.tool} has not ended within {seconds:g} s"
            raise DeadlineExceeded(words, executed=call.executed) from error

    async def _execute(self, call: LocalCall) -> Chunk:
        try:
            chunk = await self._toolkit.execute(call.context, call.tool, call.arguments)
            if call.tool in self._streaming:
                chunk = JsonChunk(call.gathered)
            if not isinstance(chunk, FileChunk):  # a large one comes in pieces from elsewhere
                packed_result(call.context, chunk)  # what could not come from there is refused
            return chunk
        except asyncio.CancelledError as error:
            if _is_given_up():
                call.context.cancel()
                raise
            itself = RuntimeError("the tool raised CancelledError")
            raise self._told(call, itself) from error
        except BaseException as error:  # a tool that exits ends nobody's program
            failure = self._told(call, error)
            if failure is error:
                raise
            raise failure from error

    def _told(self, call: LocalCall, error: BaseException) -> RoomException:
        """Decide what the caller is told, and log what it is not."""
        failure = failure_of(error, call.context)
        if failure is not error and not isinstance(error, RoomException):
            _logger.error("tool %s.%s raised", self._toolkit.name, call.tool, exc_info=error)
        return failure


@asynccontextmanager
async def _slot(bounds: Bounds, call: LocalCall) -> AsyncIterator[None]:
    """Hold one of the tool's slots, until what the call left on threads has ended too."""
    if bounds.slots is None:
        yield
        return
    await bounds.slots.acquire()
    release = bounds.slots.release
    try:
        yield
    finally:
        if left := call.on_threads:
            asyncio.gather(*left, return_exceptions=True).add_done_callback(lambda _: release())
        else:
            release()


def _is_given_up() -> bool:
    """Whether somebody cancelled this call: its caller, its time, or the end of the turn."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _look_at(ended: asyncio.Future[Any]) -> None:
    """Keep what a function raised that nobody waits for any more from being reported as a bug."""
    if not ended.cancelled():
        ended.exception()


@asynccontextmanager
async def started_tools(tools: Iterable[Tool], room: Any) -> AsyncIterator[None]:
    """Start tools, and stop them in reverse order after the block, or where one cannot start."""
    async with AsyncExitStack() as stack:
        for tool in tools:
            await tool.start(room)
            stack.push_async_callback(_stop, tool)
        yield


async def _stop(tool: Tool) -> None:
    """End a tool; one that fails to end keeps nothing else from ending."""
    try:
        await tool.stop()
    except Exception:
        _logger.exception("tool %s raised while it was stopped", tool.name)
