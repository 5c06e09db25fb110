"""One run of a tool: the facts of its call, how far it has come, and what its runner provides.

For the runners of tools. What the author of a tool sees is `ToolContext`, which wraps a run.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from toolbus.auth.participant_names import full_name
from toolbus.chunks.chunk_types import Chunk, FileChunk, MixedChunk, result_chunk
from toolbus.concurrency.event_loop import running_loop
from toolbus.concurrency.loop_thread import LoopEnded, LoopWork
from toolbus.concurrency.pausable_clock import PausableClock
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.errors import (
    Cancelled,
    Executed,
    InvalidResult,
    PermissionDenied,
    RoomException,
    Unavailable,
)
from toolbus.tools.call_room import CallRoom
from toolbus.tools.tool_info import ToolInfo

if TYPE_CHECKING:  # most programs record nothing, and few turns ask a person
    from toolbus.permissions.decision import PermissionDecision
    from toolbus.permissions.granted_permissions import GrantedPermissions
    from toolbus.records.recording import Recording
    from toolbus.records.records import Records
    from toolbus.tools.approvals import ApprovalDecision, ApprovalDemand, ApprovalState
    from toolbus.tools.questions import Answerer, ToolQuestion

__all__ = [
    "LOCAL",
    "LOCAL_THREADS",
    "LocalRun",
    "OnChunk",
    "Parked",
    "Participant",
    "RunSync",
    "ToolRun",
    "TurnDefinitions",
    "progress_chunk",
]

T = TypeVar("T")
_IN_LOOP = (
    "call_sync and ask_sync are for the thread of a sync tool: this thread runs an event loop,"
    " which they would block; await context.room.call(...) or context.ask(...)"
)
_Error = TypeVar("_Error", bound=RoomException)

RunSync: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function outside the event loop's thread and returns its result."""
OnChunk: TypeAlias = Callable[[Chunk], Awaitable[None]]
"""Receives a chunk before a call's end, and waits while its reader gives no credit."""


@dataclass(frozen=True, slots=True)
class Participant:
    """A participant of a room, as the server identified it."""

    id: str
    """The id of its connection."""
    name: str
    """The token's `sub`."""
    role: str = "user"
    issuer: str = ""
    """The token's `iss`; name and issuer together are the identity."""
    alias: str = ""
    """The alias of that issuer, where the server has several; else empty."""

    @property
    def full_name(self) -> str:
        """What requests name it by, and people see: `alias/name`, or the name without an alias."""
        return full_name(self.name, self.alias)


class TurnDefinitions(Protocol):
    """Which definitions of tools the model of a turn was shown, and whose it may follow.

    A protocol, because the package of turns is above that of tools: a `ShownDefinitions`.
    """

    @property
    def toolkits(self) -> set[str]:
        """The names of the toolkits that the turn has itself.

        A name means one thing in a turn, and of a required toolkit there may be fewer tools in it
        than in the room.
        """

    def is_trusted(self, tool: ToolInfo) -> bool:
        """Whether the description, the rules and the schema of a tool are instructions."""

    def has_changed(self, tool: ToolInfo) -> bool:
        """Whether the definition of a tool's toolkit is another one than was shown before."""

    def show(self, tool: ToolInfo) -> None:
        """Note that the definition of a tool's toolkit is shown."""


class Parked(Unavailable):
    """How a call of a tool without code ends whose use is parked: it waits for its result.

    Middlewares see it pass, and a program that makes such a call itself gets it. It is never sent.
    """

    code = "parked"

    def __init__(self, tool: str, arguments: Mapping[str, Any]) -> None:
        text = (
            f"{tool} has no code, and nobody answers here (answer=): Turn.run parks its uses, and"
            " Turn.settle gives their results"
        )
        super().__init__(text, executed="no", retryable=False)
        self.arguments: Mapping[str, Any] = arguments
        """The arguments that reached the tool."""


LOCAL_THREADS = WorkerThreads("local-tools", 256, may_take_long=True)
"""Runs the sync functions of local runs that name no other threads: as many as a host runs."""
LOCAL = Participant(id="local", name="local")
"""The caller of a local run that names none."""


class ToolRun(ABC):
    """One run of a tool: the facts of its call, and whether the function ran.

    Each runner has a subclass, which provides the facts and decides how threads, chunks and
    progress are handled.
    """

    deadline_at: float | None
    """The deadline of the call, by `clock`; None if it has none."""
    caller_context: Mapping[str, Any] | None
    """The caller's own data; not checked."""

    # Class attributes: most runs change at most one of these.
    call_id: str = ""
    """The id of the call; empty for a local call without one."""
    state: dict[str, Any] | None = None
    """The toolkit's own part of an agent's state; None for a hosted tool."""
    is_hosted: bool = False
    """Whether the call came over a room."""
    without_runner: bool = False
    """Whether nothing but `Toolkit.execute` makes the caller's error of what the tool raises."""
    takes_input: bool = False
    """Whether the program that makes the call passes its input, without a runner."""
    entered: bool = False
    """Set when the tool's own function is being called; it stays set."""
    cancelled: bool = False
    """Whether the call was cancelled."""
    ended: bool = False
    """The tool has ended; functions that it left on threads may still run."""
    unentered: Executed = "maybe"
    """What `executed` is before the function was entered: "no" where nothing else can act in its
    place, as an override of `Toolkit.execute` or another process could."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop that the run belongs to, if it has one yet."""
    argument_bytes: int = 0
    """The packed size of large arguments, which are validated in slices; else 0."""
    _on_threads: set[object] | None = None
    """One token for each function that has not ended on its thread; for local runs."""
    sends_error_text: bool = False
    """Whether the caller gets the text of an exception; known when the run has failed."""
    input_error: OSError | None = None
    """What opening the attachment of a local call raised: its tool was not entered."""
    patterns: tuple[str, ...] = ()
    """The patterns of rules that an assessment was asked about."""
    workdirs: tuple[str, ...] = ()
    """The working directories of the permissions that the call was judged by."""
    shown_definitions: TurnDefinitions | None = None
    """What the model of the turn that makes the call was shown; None outside of turns."""
    decision: PermissionDecision | None = None
    """What the policy of the toolkit decided about the call, if it has one."""
    recording: Recording | None = None
    """The record of the call, while its runner makes one."""
    pausable: PausableClock | None = None
    """The clock of a call whose time may stand still: see `pausable_clock`."""
    followers: set[Callable[[], None]] | None = None
    """See `follow`; few calls have any."""
    granted: GrantedPermissions | None = None
    """What people have granted that counts for the policy of the toolkit too."""
    enforces_approval: bool = False
    """Whether tools with `approval` wait for a person: not where the caller's own permissions have
    decided about the flag, nor in a test that runs a tool directly."""
    is_judged: bool = False
    """Whether the policies have let the call through before its use was parked."""
    _recorded: RoomException | None = None
    _approval_states: dict[str, ApprovalState] | None = None

    @property
    @abstractmethod
    def clock(self) -> Callable[[], float]:
        """A monotonic clock in seconds."""

    @property
    @abstractmethod
    def room(self) -> CallRoom | None:
        """The room, bound to this call; None for a local call without one."""

    @property
    @abstractmethod
    def caller(self) -> Participant:
        """Who made the call."""

    @property
    @abstractmethod
    def on_behalf_of(self) -> Participant | None:
        """The principal for whom the caller acts, or None."""

    @property
    @abstractmethod
    def builders(self) -> tuple[tuple[str, ...], ...]:
        """The patterns of what those behind the call may ask to be built; see `ToolContext`."""

    def pausable_clock(self) -> PausableClock:
        """Return what is `clock` from now on: it stands still while a person is waited for.

        Time limits of middlewares and of turns within the call go by it. To be called on the loop.
        """
        if self.pausable is None:
            self.pausable = PausableClock(self.clock)
        return self.pausable

    @property
    def ends_at(self) -> float | None:
        """When the call has to end, by the loop's clock as things are; None if it need not."""
        if self.deadline_at is None:
            return None
        return asyncio.get_running_loop().time() + self.deadline_at - self.clock()

    def pause(self) -> None:
        """Let the time of the call stand still: it, or a call within it, waits for a person."""
        self.pausable_clock().pause()

    def resume(self) -> None:
        """Undo one `pause`."""
        self.pausable_clock().resume()

    @property
    def method(self) -> str:
        """The called tool, `toolkit.tool`; empty where the runner does not know it."""
        return ""

    @property
    def own_workdirs(self) -> tuple[str, ...]:
        """The folders that a grant for the tool is bound to, in the process of its caller."""
        return ()

    @property
    def forwarded_for(self) -> tuple[Participant, ...]:
        """Those that the caller forwarded the call for, the nearest first; usually empty."""
        return ()

    def cancel(self) -> None:
        """Set `cancelled`, and end the nested calls that threads wait for. Safe from any thread."""
        self.cancelled = True
        for nested in self._nested_calls.copy():
            nested.cancel()
        if self.followers is not None:
            self.end_followers()

    @property
    def approval_states(self) -> dict[str, ApprovalState]:
        """What persons have decided about the call, by tool, for all its attempts."""
        if self._approval_states is None:
            self._approval_states = {}
        return self._approval_states

    async def ask_person(self, demand: ApprovalDemand) -> ApprovalDecision:
        """Ask a person whether the call may run.

        Raises `PermissionDenied` where nobody can be asked, and `ApprovalExpired`.
        """
        text = "Nobody can be asked here: a host asks in its room, a turn its approve=."
        text = f"{demand.judged.decision.reason} {text}"
        raise PermissionDenied(text, executed="no")

    @property
    def can_ask(self) -> bool:
        """Whether there is somebody for `ask_question`."""
        return self.is_hosted

    async def ask_question(self, question: ToolQuestion) -> Chunk:
        """Ask a person for an answer, and return it once it fits.

        Raises `Unavailable` where nobody can be asked, `ApprovalDenied` if the person refuses to
        answer, and `ApprovalExpired`.
        """
        text = "nobody can be asked here: a test passes ToolContext(answer=...)"
        raise Unavailable(text, executed="no", retryable=False)

    def follow(self, end: Callable[[], None]) -> None:
        """Let `end` be called, on any thread, when the call has ended or was cancelled.

        For what serves the call and must not outlive it. It is called at once if that is so now,
        and may be called more than once. It must not raise.
        """
        if self.followers is None:
            self.followers = set()
        self.followers.add(end)
        if self.ended or self.cancelled:
            end()

    def unfollow(self, end: Callable[[], None]) -> None:
        """Undo `follow`."""
        if self.followers is not None:
            self.followers.discard(end)

    def end_followers(self) -> None:
        """Call what follows the call."""
        for end in tuple(self.followers or ()):
            end()

    @property
    def _nested_calls(self) -> set[LoopWork[Any]]:
        """The nested calls that threads wait for."""
        # Made by the first use, in one step: a tool may use several threads, and few tools use any.
        nested: set[LoopWork[Any]] = vars(self).setdefault("_nested", set())
        return nested

    def call_nested(self, start: Callable[[], Awaitable[T]]) -> T:
        """Make a nested call from a thread, and wait for its end there.

        Raises:
            RuntimeError: This thread runs an event loop.
            Cancelled: The run was cancelled; the nested call is cancelled too.
            Unavailable: The event loop has ended.
            Exception: What the call raises.
        """
        if running_loop() is not None:
            raise RuntimeError(_IN_LOOP)
        if self.loop is None:  # a tool that is run without a loop, as in a unit test

            async def alone() -> T:
                return await start()

            return asyncio.run(alone())
        try:
            nested = LoopWork(self.loop, start)
            self._nested_calls.add(nested)
            try:
                if self.cancelled:  # between two calls, or before this one was in the set
                    nested.cancel()
                return nested.run()
            finally:
                self._nested_calls.discard(nested)
        except CancelledError:
            raise Cancelled("the call of this tool was cancelled", executed="maybe") from None
        except LoopEnded:
            text = "the event loop of this tool has ended"
            raise Unavailable(text, executed="maybe", retryable=False) from None

    @abstractmethod
    async def run_sync(self, function: Callable[[], T]) -> T:
        """Run a function where sync tools run, and return its result."""

    @property
    @abstractmethod
    def streams(self) -> bool:
        """Whether the caller accepts chunks before the call's end."""

    @abstractmethod
    async def put(self, chunk: Chunk) -> None:
        """Send a chunk to the caller, and wait while the caller has given no credit.

        Raises `RuntimeError` if the caller accepts no chunks: see `streams`.
        """

    @property
    @abstractmethod
    def wants_progress(self) -> bool:
        """Whether the caller asked for progress."""

    @abstractmethod
    def emit(self, value: Any) -> None:
        """Send a progress; see `ToolContext.emit`."""

    def record(self, error: _Error) -> _Error:
        """Record an error that the caller gets as it is, and return it to be raised."""
        self._recorded = error
        return error

    def fail(self, error: _Error) -> _Error:
        """Record an error about what the caller would get; it says whether the function ran."""
        error.executed = "yes" if self.entered else self.executed
        return self.record(error)

    def made(self, make: Callable[[Any], Chunk], value: Any) -> Chunk:
        """Return the chunk that `make` makes of a value; an error of it is recorded by `fail`."""
        try:
            return make(value)
        except RoomException as error:
            self.fail(error)
            raise

    def refuse(self, error: _Error) -> _Error:
        """Do as `record`, unless the function was entered: then it is an error of the tool."""
        return error if self.entered else self.record(error)

    def is_recorded(self, error: RoomException) -> bool:
        """Return whether the caller gets an error as it is: no refusal from before an attempt."""
        return error is self._recorded and not (self.entered and error.executed == "no")

    def begin_recording(
        self, records: Records, tool: str, arguments: Mapping[str, Any] | None = None
    ) -> Recording:
        """Begin the record of the call of a tool, `toolkit.tool`."""
        self.recording = recording = records.recording(
            tool,
            caller=self.caller,
            principal=self.on_behalf_of,
            call_id=self.call_id,
            arguments=arguments,
        )
        return recording

    @property
    def executed(self) -> Executed:
        """Whether the function ran so far; unknown while a part of it is on a thread."""
        if self.is_on_thread:
            return "maybe"
        return "yes" if self.entered else self.unentered

    @property
    def is_on_thread(self) -> bool:
        """Whether a function of the run is on a thread, or waits for one."""
        return False


@dataclass(eq=False)
class LocalRun(ToolRun):
    """A run in the caller's own process."""

    room: CallRoom | None = None
    caller: Participant = LOCAL
    on_behalf_of: Participant | None = None
    caller_context: Mapping[str, Any] | None = None
    deadline_at: float | None = None
    clock: Callable[[], float] = time.monotonic
    in_thread: RunSync = LOCAL_THREADS.run
    """Runs sync functions."""
    on_chunk: OnChunk | None = None
    """Receives the chunks of a streaming tool; without it there is no stream."""
    on_progress: Callable[[Any], None] | None = None
    """Receives the plain value of each progress, on the thread that emits it."""
    builders: tuple[tuple[str, ...], ...] = ()
    without_runner: bool = False
    answerer: Answerer | None = None
    """Answers what the tool asks; without it nobody can be asked."""

    def pausable_clock(self) -> PausableClock:
        """Return what is `clock` from now on; see `ToolRun.pausable_clock`."""
        pausable = super().pausable_clock()
        self.clock = pausable.time
        return pausable

    @property
    def can_ask(self) -> bool:
        """Whether there is a function that answers."""
        return self.answerer is not None

    async def ask_question(self, question: ToolQuestion) -> Chunk:
        """Let the function answer that the context was made with."""
        if self.answerer is None:
            return await super().ask_question(question)
        from toolbus.tools.questions import answered_by

        return await answered_by(self.answerer, question)

    async def run_sync(self, function: Callable[[], T]) -> T:
        """Run a function where sync tools run, and return its result."""
        self.loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        token, tokens = object(), self._on_threads or set()
        self._on_threads = tokens
        tokens.add(token)

        def run() -> T:
            try:
                return function()
            finally:
                tokens.discard(token)

        result: T = await self.in_thread(run)
        return result

    @property
    def is_on_thread(self) -> bool:
        """Whether a function of the run is on a thread, or waits for one."""
        return bool(self._on_threads)

    @property
    def streams(self) -> bool:
        """Whether there is a receiver of chunks."""
        return self.on_chunk is not None

    async def put(self, chunk: Chunk) -> None:
        """Pass a chunk to its receiver. Raises `RuntimeError` if there is none."""
        if self.on_chunk is None:
            raise RuntimeError("the caller accepts no chunks")
        await self.on_chunk(chunk)

    @property
    def wants_progress(self) -> bool:
        """Whether there is a receiver of progress."""
        return self.on_progress is not None

    def emit(self, value: Any) -> None:
        """Pass a progress to its receiver, if there is one."""
        chunk = progress_chunk(value)
        if self.on_progress is not None:
            self.on_progress(chunk.value)


def progress_chunk(value: Any) -> Chunk:
    """Convert a progress to a chunk. Raises `InvalidResult` if it cannot be sent or is a file."""
    chunk = result_chunk(value)
    if isinstance(chunk, FileChunk | MixedChunk):
        raise InvalidResult("a progress must not be a file")
    return chunk
