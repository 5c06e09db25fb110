"""Runs a toolkit in the process of its users, shared by all of them.

Its tools are started for the first user and stopped after the last one; the limits of a tool hold
for all users together. Permissions and names are the callers' responsibility.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_types import Chunk, FileChunk, as_chunk
from toolbus.concurrency.event_loop import running_loop
from toolbus.errors import (
    DeadlineExceeded,
    InvalidArguments,
    InvalidResult,
    PermissionDenied,
    RoomException,
    Unavailable,
    note_call,
)
from toolbus.hosting.hosted_toolkit import HostedToolkit
from toolbus.hosting.loop_watchdog import runs_call, watched_loop
from toolbus.tools.call_room import CallRoom
from toolbus.tools.execution import Execution, Identity, ToolLimits
from toolbus.tools.tool import Tool
from toolbus.tools.tool_run import LocalRun, Parked, ToolRun, progress_chunk
from toolbus.tools.toolkit import Toolkit, packed_result
from toolbus.wire import ToolkitManifest, pack_body, unpack_body
from toolbus.wire.flow_control import MAX_PROGRESS_BYTES

if TYPE_CHECKING:  # few tools ask a person
    from toolbus.concurrency.pausable_clock import CallTime
    from toolbus.tools.approvals import ApprovalDecision, ApprovalDemand, AsksPerson
    from toolbus.tools.questions import AsksQuestion, ToolQuestion

__all__ = ["Given", "InProcessCall", "InProcessToolkit", "LocalInput", "started_tools"]

_END: Any = object()


_logger = bounded_logger(__name__)
_THREADS = 256


class LocalInput:
    """The source of an `InputStream`, for one call."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items
        self._count = 0
        self.run: ToolRun | None = None
        """Records the error with which the input ends the call; set when the call begins."""
        self.error: Exception | None = None
        """What the iterable raised, or the error for a value that cannot be sent."""

    async def next(self) -> Chunk | None:
        """Wait for the next chunk; None after the last one."""
        try:
            value = await anext(self._items, _END)
        except Exception as error:
            self.error = error
            raise
        if value is _END:
            return None
        self._count += 1
        try:
            chunk = as_chunk(value)
        except InvalidResult as error:
            invalid = InvalidArguments(error.message, executed="maybe", details=error.details)
            self.error = invalid
            raise invalid from error
        if isinstance(chunk, FileChunk) and not chunk.is_whole:
            return FileChunk.from_pieces(self._pieces(chunk), chunk.name, chunk.mime_type)
        return chunk

    async def _pieces(self, file: FileChunk) -> AsyncGenerator[bytes, None]:
        async with aclosing(file.pieces()) as pieces:
            try:
                async for piece in pieces:
                    yield piece
            except Exception as error:
                self.error = error
                raise

    def fail(self, error: RoomException) -> RoomException:
        """Let the call fail with an error, unless the tool handles it."""
        run = self.run
        if run is None:
            return error
        is_first = self._count <= 1 and not run.entered
        error.executed = "no" if is_first else run.executed
        return run.record(error)


@dataclass(slots=True, eq=False)
class Given:
    """What a use that was parked was given."""

    result: Chunk | RoomException
    is_taken: bool = False
    """Whether the tool has it; until then the call can be refused, and nothing is lost."""


@dataclass(eq=False, kw_only=True)
class InProcessCall(Execution, LocalRun):
    """One call of a tool in this process.

    `on_chunk` waits while the reader of the chunks is behind, and `on_progress` is called on the
    event loop with the plain value of each progress.
    """

    tool: str
    arguments: dict[str, Any]
    timeout_s: float
    call_id: str = ""
    """The id of the call."""
    source: LocalInput | None = None
    """The input of the call."""
    state: dict[str, Any] | None = None
    """The toolkit's part of the agent's state."""
    wants_error_text: Callable[[], bool] = lambda: False
    """Whether the room's server asks for the texts of exceptions."""
    left_s: float | None = None
    """What is left of `timeout_s`, where some of it has passed already."""
    within: CallTime | None = None
    """The time of the turn's call, which stands still with this one."""
    asks: AsksPerson | None = None
    """Asks a person about this call; None if nobody can be asked."""
    answers: AsksQuestion | None = None
    """Asks a person what the function asks; None if nobody can be asked."""
    enforces_approval: bool = True
    """Whether a tool with `approval` asks: not where the permissions of the turn have judged it."""
    given: Given | None = None
    """The result of a tool without code, or the error in its place; None while there is none."""

    @property
    def own_workdirs(self) -> tuple[str, ...]:
        """The folders of its toolkit, else those of the permissions, by their real paths."""
        return self.toolkit.workdirs or tuple(map(os.path.realpath, self.workdirs))

    def begin(
        self, runner: InProcessToolkit, room_of: Callable[[CallTime], CallRoom | None]
    ) -> None:
        """Take what the runner provides, and the room that is bound to the call."""
        self._runner = runner
        self.toolkit: Toolkit = runner.toolkit
        loop = asyncio.get_running_loop()
        self.loop: asyncio.AbstractEventLoop | None = loop
        self.clock: Callable[[], float] = loop.time
        left_s = self.timeout_s if self.left_s is None else self.left_s
        self.deadline_at: float | None = loop.time() + left_s
        self.room: CallRoom | None = room_of(self)
        self._limit = asyncio.timeout_at(self.deadline_at)
        if self.source is not None:
            self.source.run = self

    async def run(self, limits: ToolLimits | None) -> Chunk:
        """Run the call within the tool's limits and its own time; see `InProcessToolkit.run`."""
        source = self.source
        try:
            async with self._limit:
                try:
                    if limits is None:
                        chunk = await self.execute(self.arguments)
                    else:
                        chunk = await self.execute_limited(limits, self.arguments)
                    if source is not None and source.error is not None:
                        raise source.error
                    if not isinstance(chunk, FileChunk):  # remote hosts send files in pieces
                        packed_result(self, chunk)  # raises if a remote host could not send it
                    return chunk
                except BaseException as error:
                    was_cancelled = isinstance(error, asyncio.CancelledError)
                    if source is not None and source.error is not None and not was_cancelled:
                        raise source.error from None
                    reason = self.error_for(error)
                    note_call(reason, self.method)
                    if reason is error:
                        raise
                    raise reason from error
        except TimeoutError as error:
            assert self._limit.expired(), "a timeout of the tool itself is a ToolFailed"
            if self.timed_out:  # in a task that was cancelled before
                raise self.timeout_error() from error
            message = f"{self.method} did not end within {self.timeout_s:g} s"
            raise DeadlineExceeded(message, executed=self.executed) from error
        finally:
            self.ended = True
            if self.followers is not None:
                self.end_followers()
            self.finish()

    def pause(self) -> None:
        """Let the time of the call stand still, and that of the turn's call."""
        super().pause()
        if not (self.ended or self._limit.expired()):  # what it left behind may still call
            self._limit.reschedule(None)
        if self.within is not None:
            self.within.pause()

    def resume(self) -> None:
        """Undo one `pause`."""
        super().resume()
        is_over = self.ended or self._limit.expired()
        if not (is_over or self.pausable_clock().is_paused):
            self._limit.reschedule(self.ends_at)
        if self.within is not None:
            self.within.resume()

    async def demand_approval(self, demand: ApprovalDemand) -> ApprovalDecision:
        """Ask the approver of the turn."""
        if self.asks is None:
            text = "Nobody can be asked here: the turn needs permissions= and approve=."
            text = f"{demand.judged.decision.reason} {text}"
            raise PermissionDenied(text, executed="no")
        from toolbus.tools.observed_hold import ObservedHold

        with ObservedHold(self.recording) as observed:
            decision = await self.asks(demand)
            observed.settle(decision)
        return decision

    @property
    def can_ask(self) -> bool:
        """Whether the turn says who answers."""
        return self.answers is not None

    async def put_question(self, question: ToolQuestion) -> Chunk:
        """Return what its use was given, or ask who answers in the turn, or park the use.

        Only the result of a tool without code may come later. Raises `Parked`.
        """
        if self.given is not None:
            self.given.is_taken = True
            if isinstance(self.given.result, RoomException):
                raise self.given.result
            return self.given.result
        if self.answers is None:
            if question.arguments is not None:
                raise Parked(self.method, unpack_body(question.arguments))
            text = 'nobody can be asked here: the turn needs answer=, or answer="room"'
            raise Unavailable(text, executed="no", retryable=False)
        from toolbus.tools.observed_hold import ObservedHold

        with ObservedHold(self.recording) as observed:
            answer = await self.answers(question)
            observed.answered()
        return answer

    async def put(self, chunk: Chunk) -> None:
        """Pass a chunk to the caller; an error of that ends the call."""
        try:
            await super().put(chunk)
        except RoomException as error:
            raise self.fail(error) from error.__cause__

    def emit(self, value: Any) -> None:
        """Pass a progress to the caller, from any thread; a large one is dropped."""
        chunk = progress_chunk(value)
        if self.on_progress is None or len(pack_body(chunk.to_wire())) > MAX_PROGRESS_BYTES:
            return
        if self.loop is None or running_loop() is self.loop:
            self._report(chunk.value)
            return
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._report, chunk.value)

    def _report(self, value: Any) -> None:
        if self.on_progress is None or self.ended:  # what comes after the end is dropped
            return
        try:
            self.on_progress(value)
        except (Exception, asyncio.CancelledError):  # the latter from a future that it reads
            _logger.exception("on_progress raised")

    def stop(self) -> None:
        """Stop the function as far as possible."""
        self.cancel()
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    @property
    def identity(self) -> Identity:
        """Who makes the call, issuer and name."""
        return self.caller.issuer, self.caller.name


class InProcessToolkit:
    """A toolkit that runs in the event loop in which this object is made."""

    def __init__(self, toolkit: Toolkit) -> None:
        self.toolkit: Toolkit = toolkit
        self._loop = asyncio.get_running_loop()
        self._limits = HostedToolkit(toolkit, public=False).limits
        self._changing = asyncio.Lock()
        self._users = 0
        self._started: AsyncExitStack | None = None
        self._threads: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, toolkit: Toolkit) -> InProcessToolkit:
        """Return the instance that all users of this toolkit in this event loop share."""
        shared = toolkit.in_process
        if not isinstance(shared, cls) or shared._loop is not asyncio.get_running_loop():
            # The locks belong to the event loop that they were made in.
            shared = toolkit.in_process = cls(toolkit)
        return shared

    @property
    def manifest(self) -> ToolkitManifest:
        """The toolkit's manifest. Not to be changed."""
        return self.toolkit.manifest()

    @cached_property
    def digest(self) -> str:
        """Identifies the definition: another one than the digest that a server computes."""
        fields = self.manifest.model_dump(mode="json", exclude_defaults=True)
        return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    @asynccontextmanager
    async def started(self, room: CallRoom | None) -> AsyncIterator[None]:
        """Keep the tools started while the block runs. Raises what a tool's `start` raises."""
        self._users += 1
        try:
            async with self._changing:
                if self._started is None:
                    async with AsyncExitStack() as stack:
                        stack.enter_context(watched_loop())
                        await stack.enter_async_context(started_tools(self.toolkit.tools, room))
                        self._started = stack.pop_all()
            yield
        finally:
            self._users -= 1
            async with self._changing:
                if not self._users and self._threads is not None:
                    # They end after their functions; no task waits for these.
                    self._threads.shutdown(wait=False, cancel_futures=True)
                    self._threads = None
                if not self._users and self._started is not None:
                    stack, self._started = self._started, None
                    await stack.aclose()

    def begin_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Start a sync function; there are as many threads as the tools may use at a time."""
        if self._threads is None:
            slots = (limits.slots for limits in self._limits.values())
            asked_for = sum(slot.count for slot in slots if slot is not None)
            self._threads = ThreadPoolExecutor(max(_THREADS, asked_for), "toolbus-tool")
        return self._loop.run_in_executor(self._threads, function)

    @runs_call
    async def run(
        self, call: InProcessCall, room_of: Callable[[CallTime], CallRoom | None]
    ) -> Chunk:
        """Run a call within the tool's limits and its own time, waiting for a free slot.

        The chunks of a streaming tool go to the call's `on_chunk`, and the result is empty.

        Raises:
            RoomException: The call failed; `executed` says whether the tool ran.
            Exception: What the iterable of the call's input raised.
        """
        call.begin(self, room_of)
        limits = self._limits.get(call.tool)
        if self.toolkit.records is None:
            return await call.run(limits)
        recording = call.begin_recording(self.toolkit.records, call.method, call.arguments)
        recording.executed = lambda: call.executed
        with recording:
            return await call.run(limits)


@asynccontextmanager
async def started_tools(tools: Iterable[Tool], room: CallRoom | None) -> AsyncIterator[None]:
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
