"""One call of a turn: what it is, where it runs, and how it is dispatched to a tool.

A tool runs in this process (`LocalDispatch`) or elsewhere (`RemoteDispatch`). Around both are the
middlewares of the turn. `CollectedChunks` keeps the chunks that come, or hands them to a reader.
`turn_runs` starts calls and ends them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from toolbus.chunks.attachments import check_readable
from toolbus.chunks.chunk_types import Chunk, FileChunk, JsonChunk, LinkChunk, MixedChunk, one_chunk
from toolbus.client.call_options import CallOptions
from toolbus.client.input_sender import (
    as_items,
    close_items,
    error_of_call,
)
from toolbus.concurrency.pausable_clock import CallTime, PausableClock
from toolbus.errors import (
    DeadlineExceeded,
    Executed,
    InvalidResult,
    RoomException,
    TooLarge,
    ToolFailed,
)
from toolbus.hosting.in_process import Given, InProcessCall, InProcessToolkit, LocalInput
from toolbus.permissions.assessment import Assessment
from toolbus.room.room import Room, bound_room
from toolbus.schemas.validation import JsonCheck
from toolbus.tools.chain import MiddlewareChain, collected
from toolbus.tools.context import ToolContext
from toolbus.tools.middleware import Middleware, ToolCall
from toolbus.tools.result_checks import check_result
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import LocalRun, OnChunk, Participant, TurnDefinitions
from toolbus.tools.toolkit import MAX_MIXED_BYTES, MAX_RESULT_BYTES, Toolkit, failure_of
from toolbus.wire import BadBody, pack_body

if TYPE_CHECKING:  # most calls are neither recorded nor traced
    from toolbus.permissions.granted_permissions import GrantedPermissions
    from toolbus.records.recording import Recording
    from toolbus.telemetry.turn_spans import TurnCallSpan
    from toolbus.tools.approvals import ApprovalDecision, ApprovalDemand, ApprovalState
    from toolbus.tools.questions import ToolQuestion
    from toolbus.turns.tool_use import ToolUse

__all__ = [
    "CollectedChunks",
    "CollectedValues",
    "Dispatch",
    "Judge",
    "LocalDispatch",
    "PassedOnChunks",
    "RemoteDispatch",
    "TurnCall",
    "TurnEntry",
    "TurnFacts",
    "context_of",
    "in_memory",
    "packed_size",
    "pulled",
    "run_call",
]


R = TypeVar("R", bound=LocalRun)
_EVIDENCE: Mapping[Executed, int] = {"no": 0, "maybe": 1, "yes": 2}


class CollectedChunks:
    """Keeps the chunks of a streaming tool; all together have to fit one frame."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self.chunks: list[Chunk] = []
        """The chunks so far."""
        self.total_bytes: int = 0
        """Their packed size."""
        self.omitted: int = 0
        """How many further chunks came and were dropped."""

    async def put(self, chunk: Chunk) -> None:
        """Keep a chunk; a file that is still being received is read into memory.

        Raises `TooLarge` if they do not fit one frame, and `InvalidResult` if one cannot be sent.
        """
        if isinstance(chunk, FileChunk) and not chunk.is_local:
            chunk = await in_memory(chunk, MAX_RESULT_BYTES - self.total_bytes, self._tool)
        size = packed_size(self._tool, chunk)
        if not self._keep(chunk, size):
            total = self.total_bytes + size
            text = f"the values of {self._tool} do not fit one frame: {total} bytes"
            raise TooLarge(text, executed="maybe")

    def _keep(self, chunk: Chunk, size: int) -> bool:
        """Keep a chunk if no other was omitted and it fits; return whether it was kept."""
        if self.omitted or self.total_bytes + size > MAX_RESULT_BYTES:
            self.omitted += 1
            return False
        self.total_bytes += size
        self.chunks.append(chunk)
        return True


class CollectedValues(CollectedChunks):
    """Keeps the plain values of a streaming tool, which become one list."""

    async def put(self, chunk: Chunk) -> None:
        """Keep a value. Raises `InvalidResult` for files and links."""
        if isinstance(chunk, FileChunk | LinkChunk):
            text = "a turn accepts streams of plain values only, not of files or links"
            raise InvalidResult(f"{text}: use turn.stream", executed="maybe")
        await super().put(chunk)

    @property
    def as_one(self) -> Chunk:
        """All values as one list."""
        mixed = MixedChunk(tuple(self.chunks))
        return JsonChunk(mixed.value, mixed.as_text, mixed.more_as_text)


class PassedOnChunks(CollectedChunks):
    """Hands chunks to a reader one by one, and keeps those that fit one frame.

    The tool waits until a chunk was taken, so that a slow reader slows it down. A file in pieces is
    read after it was taken: the tool waits until the reader asks for the next chunk.
    """

    def __init__(self, tool: str) -> None:
        super().__init__(tool)
        self._waiting: deque[Chunk] = deque()
        self._lent: Chunk | None = None
        """The file in pieces that the reader has."""
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._has_ended = False

    async def put(self, chunk: Chunk) -> None:
        """Pass a chunk on, and wait until it is taken or read; drop it after the end.

        Raises `InvalidResult` or `TooLarge` if it alone cannot be sent.
        """
        if self._has_ended:
            return
        self._keep(chunk, packed_size(self._tool, chunk))
        self._waiting.append(chunk)
        self._changed.set()
        while (self._waiting or self._lent is not None) and not self._has_ended:
            self._taken.clear()
            await self._taken.wait()

    def end(self) -> None:
        """Let the reader end after the chunks that wait for it."""
        self._has_ended = True
        self._changed.set()
        self._taken.set()

    async def next(self) -> Chunk | None:
        """Wait for the next chunk; None after the last one."""
        self._lent = None
        self._taken.set()
        while not self._waiting:
            if self._has_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        chunk = self._waiting.popleft()
        if isinstance(chunk, FileChunk) and not chunk.is_local:
            self._lent = chunk
        self._taken.set()
        return chunk


async def pulled(
    tool: str, run: Callable[[OnChunk], Awaitable[Chunk]]
) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks that a function puts; closing the generator cancels it."""
    passed_on = PassedOnChunks(tool)
    task = asyncio.ensure_future(run(passed_on.put))
    task.add_done_callback(lambda _: passed_on.end())
    try:
        while (chunk := await passed_on.next()) is not None:
            yield chunk
        await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved: it was raised above, or the reader has left


async def in_memory(file: FileChunk, limit: int, tool: str) -> FileChunk:
    """Read a file that is being received. Raises `TooLarge` if it has more than `limit` bytes."""
    data = bytearray()
    async for piece in file.pieces():
        data += piece
        if len(data) > limit:
            text = f"a file of {tool} does not fit one frame: use turn.stream, or turn.invoke"
            raise TooLarge(text, executed="maybe")
    return FileChunk(bytes(data), file.name, file.mime_type)


def packed_size(tool: str, chunk: Chunk) -> int:
    """Return the size of a chunk in a frame; 0 for a file that is not in memory.

    Raises `InvalidResult` if it cannot be sent and `TooLarge` if it does not fit one frame.
    """
    if isinstance(chunk, FileChunk):
        # An empty file takes memory too.
        described = len(chunk.name) + len(chunk.mime_type)
        return described + len(chunk.data) if chunk.is_whole else 0
    try:
        size = len(pack_body(chunk.to_wire()))
    except BadBody as error:
        raise InvalidResult(error.reason, executed="maybe") from error
    most = MAX_MIXED_BYTES if isinstance(chunk, MixedChunk) else MAX_RESULT_BYTES
    if size > most:
        text = f"a chunk of {tool} has {size} bytes, at most {most} can be sent"
        raise TooLarge(text, executed="maybe")
    return size


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """Who calls in a turn, for whom, through which room, and what may be called now."""

    agent: Participant
    sender: Participant | None
    """The principal of all calls; None is the agent itself."""
    view: Callable[[CallTime | None], Room | None]
    """Makes the room that is bound to a call; None without a room."""
    check_active: Callable[[str, str], None]
    """Gets a tool and its group. Raises `ToolInactive` if the group is inactive."""
    wants_error_text: Callable[[], bool]
    """Whether the room's server asks for the texts of exceptions."""
    shown_definitions: TurnDefinitions
    """What tools in this process find as `run.shown_definitions`."""
    builders: tuple[tuple[str, ...], ...] = ()
    """What tools in this process find as `context.builders`."""
    answers: Callable[[TurnCall, ToolQuestion], Awaitable[Chunk]] | None = None
    """Asks what tools in this process ask; None if nobody can be asked."""


class Judge(Protocol):
    """Decides about the calls of a turn that has permissions: a `CallJudge`."""

    @property
    def workdirs(self) -> tuple[str, ...]:
        """The working directories, as tools in this process get them."""

    @property
    def grants(self) -> GrantedPermissions:
        """What people have granted in the state of the turn."""

    async def permitted(self, call: TurnCall, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments to run a call with, or raise why it may not run."""

    async def ask_for_host(self, call: TurnCall, demand: ApprovalDemand) -> ApprovalDecision:
        """Ask a person about a call for the policy of a toolkit in this process."""


class NamedCalls(Protocol):
    """Finds the tools that are named in the arguments of a `NamingTool`: `CallsByName`."""

    def read(self, arguments: dict[str, Any]) -> tuple[str, Any]:
        """Return the named tool and its arguments. Raises `InvalidArguments`."""

    def entry(self, name: str, group: str) -> TurnEntry:
        """Return a tool that is not in the turn. Raises `NotFound`."""


class Dispatch(Protocol):
    """Runs the calls of one tool."""

    @property
    def state(self) -> dict[str, Any] | None:
        """The toolkit's part of the agent's state; None for a toolkit elsewhere."""

    @property
    def digest(self) -> str:
        """Identifies the definition of the toolkit, here or in its room."""

    @property
    def is_external(self) -> bool:
        """Whether it has no code, so that its uses are parked."""

    @property
    def asked_as(self) -> Mapping[str, Any]:
        """How a question to a person names the tool (PROTOCOL.md, HOLD-12)."""

    async def run(self, call: TurnCall, arguments: dict[str, Any], put: OnChunk) -> Chunk:
        """Run a call and return its result; chunks of a stream go to `put`.

        Raises what `Turn.invoke` raises.
        """

    async def assess(
        self, context: ToolContext, arguments: dict[str, Any], patterns: tuple[str, ...]
    ) -> Assessment:
        """Ask the tool about a call that is not made yet. Raises `RoomException`."""


@dataclass(slots=True, eq=False)
class TurnEntry:
    """A tool of the turn, and what runs its calls."""

    info: ToolInfo
    dispatch: Dispatch
    group: str
    """The group that it belongs to."""
    naming: NamedCalls | None = None
    """Finds the tool that a call of it names, which is called in its place; usually None."""
    _output: JsonCheck | None = field(default=None, init=False)
    """Its output schema, compiled when it is first needed."""

    def check_result(self, chunk: Chunk) -> None:
        """Raise `InvalidResult` for what a middleware gave that breaks the output schema."""
        schema = self.info.output_schema
        if schema is None:
            return
        if self._output is None:
            self._output = JsonCheck(schema)
        check_result(self._output, chunk)


@dataclass(slots=True, eq=False)
class TurnCall:
    """One call of a turn, with its progress."""

    id: str
    entry: TurnEntry
    arguments: dict[str, Any]
    options: CallOptions
    collected: CollectedChunks
    """Takes the chunks of a stream."""
    sent: dict[str, Any] | None = None
    """The arguments of the latest attempt, if a middleware changed them."""
    attempts: int = 0
    inner: InProcessCall | None = None
    """The attempt that runs in this process."""
    task: asyncio.Task[Chunk] | None = None
    ended: asyncio.Future[None] | None = None
    """Done when the task has ended, or was given up because it does not end."""
    interrupted: bool = False
    """Whether it was interrupted, or its turn has ended."""
    input_error: Exception | None = None
    """What the iterable of its input raised."""
    use: ToolUse | None = None
    """The use that it runs; None for a call of a program."""
    via: ToolInfo | None = None
    """The tool that was called and named this one, if it was not called itself."""
    judge: Judge | None = None
    """Decides whether it may run; None in a turn without permissions, or if it was let through when
    its use was parked."""
    given: Given | None = None
    """What its use, which was parked, is given; else None."""
    approval_state: ApprovalState | None = None
    """What the judge knows of it over its attempts; None before the first one."""
    recording: Recording | None = None
    """Its record, if the turn makes one."""
    span: TurnCallSpan | None = None
    """Its span, if the turn has one."""
    within: CallTime | None = None
    """The call that the turn serves: it stands still with this one."""
    clock: PausableClock | None = None
    """What its time-outs go by, once something needs it: no time is taken by a person."""
    deadline_at: float = 0.0
    """When it has to end, by that clock."""
    _settled: Executed = field(default="no", init=False)
    """What is known from attempts that have ended."""
    _is_under_way: bool = field(default=False, init=False)
    """Whether an attempt runs."""

    @property
    def executed(self) -> Executed:
        """Whether the tool ran in any attempt so far, as far as this side knows."""
        running: Executed = "maybe" if self._is_under_way else "no"
        if self.inner is not None:
            running = self.inner.executed
        return max(self._settled, running, key=_EVIDENCE.__getitem__)

    def end(self) -> None:
        """Mark the call as ended, or as given up."""
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)

    def interrupt(self) -> None:
        """Cancel the task, and tell a tool in this process before it ends."""
        self.interrupted = True
        if self.inner is not None:
            self.inner.cancel()
        if self.task is not None:
            self.task.cancel()

    def begin_clock(self) -> tuple[PausableClock, float]:
        """Return the clock of the call and its deadline; the time begins with the first use."""
        if self.clock is None:
            self.clock = PausableClock()
            self.deadline_at = self.clock.time() + self.options.timeout_s
        return self.clock, self.deadline_at

    @property
    def ends_at(self) -> float | None:
        """When it has to end, by the loop's clock as things are, as far as its clock has begun."""
        around = None if self.within is None else self.within.ends_at
        if self.clock is None:  # all of its time is that of its dispatch
            return around
        own = self.clock.loop_time(self.deadline_at)
        return own if around is None else min(own, around)

    def pause(self) -> None:
        """Let its time stand still, and that of the call that the turn serves."""
        self.begin_clock()[0].pause()
        if self.within is not None:
            self.within.pause()

    def resume(self) -> None:
        """Undo one `pause`."""
        self.begin_clock()[0].resume()
        if self.within is not None:
            self.within.resume()

    @property
    def left_s(self) -> float:
        """Seconds that the dispatch of the call may take."""
        clock, deadline_at = self.begin_clock()
        return deadline_at - clock.time()

    def late(self) -> DeadlineExceeded:
        """Make the error for a call whose time is over."""
        text = f"{self.entry.info.name} did not end within {self.options.timeout_s:g} s"
        return DeadlineExceeded(text, executed=self.executed)

    async def attempt(self, arguments: dict[str, Any], put: OnChunk) -> Chunk:
        """Dispatch the call to its tool if it may run, and record whether the tool ran."""
        if self.judge is not None:
            arguments = await self.judge.permitted(self, arguments)
        self.attempts += 1
        self._is_under_way = True
        try:
            chunk = await self.entry.dispatch.run(self, arguments, put)
        except RoomException as error:
            self._settle(error.executed)
            raise
        except BaseException as error:
            if isinstance(error, Exception):
                self.input_error = error
            self._settle((self.inner and self.inner.executed) or "maybe")
            raise
        self._settle((self.inner and self.inner.executed) or "yes")
        return chunk

    def _settle(self, executed: Executed) -> None:
        self._settled = max(self._settled, executed, key=_EVIDENCE.__getitem__)
        self.inner, self._is_under_way = None, False


class LocalDispatch:
    """Runs the calls of a tool in this process."""

    def __init__(
        self,
        toolkit: InProcessToolkit,
        tool: str,
        facts: TurnFacts,
        state: Callable[[], dict[str, Any]],
    ) -> None:
        self._toolkit = toolkit
        self._tool = tool
        self._facts = facts
        self._state = state

    @property
    def state(self) -> dict[str, Any]:
        """The toolkit's part of the agent's state."""
        return self._state()

    def prompt_text(self) -> str:
        """Return what the toolkit has for the prompt now."""
        toolkit = self._toolkit.toolkit
        if type(toolkit).prompt_text is Toolkit.prompt_text:
            return ""  # its state is not made for that
        return toolkit.prompt_text(self._state())

    @property
    def digest(self) -> str:
        """Identifies the definition of the toolkit in this process."""
        return self._toolkit.digest

    @property
    def is_external(self) -> bool:
        """Whether the tool has no code."""
        from toolbus.tools.external_tool import ExternalTool  # few turns have one

        return isinstance(self._toolkit.toolkit.get_tool(self._tool), ExternalTool)

    @property
    def asked_as(self) -> Mapping[str, Any]:
        """That the tool is in this process."""
        return {"local": True}

    async def run(self, call: TurnCall, arguments: dict[str, Any], put: OnChunk) -> Chunk:
        """Run a call, with the same context as a tool elsewhere gets."""
        options, facts = call.options, self._facts
        source = None
        if options.input is not None:
            source = LocalInput(options.input)
        elif options.attachment is not None:
            source = LocalInput(as_items([options.attachment]))
        inner = call.inner = InProcessCall(
            tool=self._tool,
            arguments=arguments,
            caller=facts.agent,
            on_behalf_of=facts.sender,
            timeout_s=options.timeout_s,
            call_id=call.id,
            caller_context=options.caller_context,
            on_progress=options.on_progress,
            source=source,
            on_chunk=put,
            state=self._state(),
            wants_error_text=facts.wants_error_text,
            builders=facts.builders,
        )
        inner.shown_definitions = facts.shown_definitions
        if facts.answers is not None:
            inner.answers = partial(facts.answers, call)
        inner.within = call
        inner.given = call.given
        inner.is_judged = call.given is not None
        if call.clock is not None:  # without judge and middlewares, its time begins here
            inner.left_s = call.left_s
        if call.judge is not None:
            inner.workdirs = call.judge.workdirs
            inner.granted = call.judge.grants
            inner.enforces_approval = False  # the permissions of the turn have decided about it
            inner.asks = partial(call.judge.ask_for_host, call)
        if source is None:
            return await self._toolkit.run(inner, facts.view)
        try:
            return await self._toolkit.run(inner, facts.view)
        except Exception as error:
            if error is source.error:
                raise error_of_call(error) from error.__cause__
            raise
        finally:
            if options.input is not None:
                await close_items(options.input)

    async def assess(
        self, context: ToolContext, arguments: dict[str, Any], patterns: tuple[str, ...]
    ) -> Assessment:
        """Ask the tool about a call."""
        return await self._toolkit.toolkit.assess(context, self._tool, arguments, patterns)


class RemoteDispatch:
    """Runs the calls of a tool that another participant hosts, without a state."""

    state: dict[str, Any] | None = None
    is_external: bool = False

    def __init__(self, room: Room, tool: str, participant: str | None, digest: str) -> None:
        self._room = room
        self._tool = tool
        self._participant = participant
        self.digest: str = digest
        """Identifies the definition of the toolkit."""

    @property
    def asked_as(self) -> Mapping[str, Any]:
        """The name by which its owner has the tool, and the owner if one was named."""
        named = {"tool": self._tool}
        return named if self._participant is None else named | {"participant": self._participant}

    async def run(self, call: TurnCall, arguments: dict[str, Any], put: OnChunk) -> Chunk:
        """Run a call as `Room.invoke` or `Room.stream` does."""
        options = call.options
        is_stream = call.entry.info.streaming
        named: dict[str, Any] = {
            "participant": self._participant,
            "timeout_s": options.timeout_s if call.clock is None else call.left_s,
            "caller_context": options.caller_context,
            "attachment": options.attachment,
            "pin": self.digest,
            "on_progress": options.on_progress,
            "on_held": options.on_held,
            "purpose": options.purpose,
            "approval_timeout_s": options.approval_timeout_s,
        }
        room = bound_room(self._room, call)
        if not is_stream and options.input is None:
            chunk: Chunk = await room.invoke(self._tool, arguments, **named)
            return chunk
        # The call's own deadline bounds it, as that of a tool in this process.
        stream = room.stream(
            self._tool, arguments, input=options.input, stall_timeout_s=None, **named
        )
        results: list[Any] = []
        async with stream as chunks:
            async for chunk in chunks:
                if is_stream:
                    await put(chunk)
                    continue
                if isinstance(chunk, FileChunk) and not chunk.is_local:
                    # It cannot be read any more when its stream has been left.
                    chunk = await in_memory(chunk, MAX_RESULT_BYTES, self._tool)
                results.append(chunk)
        return one_chunk(results)

    async def assess(
        self, _: ToolContext, arguments: dict[str, Any], patterns: tuple[str, ...]
    ) -> Assessment:
        """Ask the tool about a call, as it would be made."""
        return await self._room.assess(
            self._tool,
            arguments,
            patterns=patterns,
            participant=self._participant,
            pin=self.digest,
        )


async def run_call(call: TurnCall, middlewares: Sequence[Middleware], facts: TurnFacts) -> Chunk:
    """Run a call inside the middlewares of the turn, and return its result.

    The chunks of a stream go to `call.collected`, and the result is empty.

    Raises:
        RoomException: The call failed, or a middleware did.
        OSError: The attachment cannot be read.
        Exception: What the iterable of the input raised.
    """
    if call.given is None:  # a group may become inactive while a use is parked
        facts.check_active(call.entry.info.name, call.entry.group)
    if call.options.attachment is not None:
        await check_readable(call.options.attachment)
    if not middlewares:
        return await call.attempt(call.arguments, call.collected.put)
    run = _TurnRun.of(call, facts)
    # A copy, to find arguments that a middleware changed in place.
    first = ToolCall(call.entry.info, {**call.arguments}, ToolContext(run=run), call.id)
    chunks = MiddlewareChain(middlewares, run.attempts).run(first)
    assert run.deadline_at is not None, "as it was made"
    try:
        async with run.pausable_clock().timeout_at(run.deadline_at) as limit:
            return await collected(run, call.entry.info, chunks, run.checked)
    except TimeoutError as error:
        if not limit.expired():
            raise failure_of(error, run) from error
        raise call.late() from None
    except (Exception, SystemExit) as error:
        if error is call.input_error:
            raise
        failure = failure_of(error, run)
        if failure is not error:
            raise failure from error
        if call.attempts and failure.executed == "maybe":
            failure.executed = run.executed  # what the chain could not know during the attempt
        raise


def context_of(call: TurnCall, facts: TurnFacts) -> ToolContext:
    """Make the context of a call for a tool that assesses it."""
    return ToolContext(run=_run_of_call(call, facts, LocalRun))


def _run_of_call(call: TurnCall, facts: TurnFacts, kind: type[R]) -> R:
    options = call.options
    pausable, deadline_at = call.begin_clock()
    run = kind(
        facts.view(call),
        facts.agent,
        facts.sender,
        options.caller_context,
        deadline_at,
        pausable.time,
        on_chunk=call.collected.put,
        on_progress=options.on_progress,
        builders=facts.builders,
    )
    run.call_id = call.id
    run.state = call.entry.dispatch.state
    run.pausable = pausable
    if call.judge is not None:
        run.workdirs = call.judge.workdirs
    return run


class _TurnRun(LocalRun):
    """A call as the middlewares of its turn see it, over all its attempts here or elsewhere."""

    _call: TurnCall
    _facts: TurnFacts
    _was_entered = False
    _result: Chunk | None = None
    """What the tool returned in its latest attempt, checked where it ran."""

    @classmethod
    def of(cls, call: TurnCall, facts: TurnFacts) -> Self:
        """Make it for a call that begins."""
        run = _run_of_call(call, facts, cls)
        run._call, run._facts = call, facts
        return run

    @property
    def entered(self) -> bool:
        """Whether the tool ran in any attempt, or a middleware acted as one."""
        return self._was_entered or self._call.executed == "yes"

    @entered.setter
    def entered(self, entered: bool) -> None:
        self._was_entered = entered

    @property
    def executed(self) -> Executed:
        """Whether the tool ran in any attempt so far, as far as this side knows."""
        return "yes" if self._was_entered else self._call.executed

    @property
    def sends_error_text(self) -> bool:  # type: ignore[override]
        """Whether the caller gets the text of an error of a middleware: as of the room's tools."""
        return self._facts.wants_error_text()

    async def put(self, chunk: Chunk) -> None:
        """Pass a chunk to the caller; an error of that ends the call."""
        try:
            await super().put(chunk)
        except RoomException as error:
            self.fail(error)
            raise

    def checked(self, chunk: Chunk) -> Chunk:
        """Return a chunk of the middlewares. Raises a `RoomException`, recorded."""
        entry = self._call.entry
        try:
            # A middleware may have changed the value of the same chunk.
            entry.check_result(chunk)
            if not entry.info.streaming and chunk is not self._result:
                packed_size(entry.info.name, chunk)
        except RoomException as error:
            self.fail(error)
            raise
        return chunk

    async def attempts(self, tool_call: ToolCall) -> AsyncGenerator[Chunk, None]:
        """Run the tool: the innermost part of the chain."""
        call, arguments = self._call, dict(tool_call.arguments)
        if call.given is None:
            call.sent = None if arguments == call.arguments else arguments
        try:
            if call.attempts and call.options.has_input:
                raise ToolFailed("the input of this call was read: it cannot run again")
            if not call.entry.info.streaming:
                self._result = await call.attempt(arguments, call.collected.put)
                yield self._result
                return
            run = partial(call.attempt, arguments)
            async with aclosing(pulled(call.entry.info.name, run)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except RoomException as error:
            if error.executed != self.executed:  # it covers all attempts of the call
                error.executed, error.retryable = self.executed, False
            self.record(error)
            raise
