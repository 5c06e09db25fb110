"""One call as its host runs it: its state, how it is stopped, and the context of its tool."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

from toolbus.chunks.chunk_sequences import ChunkReader
from toolbus.chunks.chunk_types import Chunk
from toolbus.concurrency.slices import run_in_slices
from toolbus.errors import Executed, InvalidArguments, RoomException, ToolFailed
from toolbus.hosting.hosted_toolkit import HostedToolkit
from toolbus.hosting.output_stream import CallHost, OutputStream, unreadable_input
from toolbus.telemetry.attributes import SharedAttributes, call_attributes
from toolbus.telemetry.propagation import current_trace_id, trace_id_of
from toolbus.tools.call_room import CallRoom
from toolbus.tools.execution import CallThreads, Execution, Identity
from toolbus.tools.input_stream import ChunkSource
from toolbus.tools.sliced_parameters import MAX_CONTAINERS
from toolbus.tools.tool_run import Participant, progress_chunk
from toolbus.tools.toolkit import Toolkit, read_large_arguments
from toolbus.wire import AssessDispatch, BadBody, Dispatch, Failed, Frame, unpack_body
from toolbus.wire.body_steps import LARGE_BODY_BYTES, ContainerCount, unpack_steps

if TYPE_CHECKING:  # most programs record nothing, and few tools ask a person
    from toolbus.concurrency.pausable_clock import CallTime
    from toolbus.permissions.granted_permissions import GrantedPermissions
    from toolbus.records.recording import Recording
    from toolbus.records.records import Records
    from toolbus.tools.approvals import ApprovalDecision, ApprovalDemand
    from toolbus.tools.questions import ToolQuestion

__all__ = [
    "FIELDS_TO_READ",
    "CallRunner",
    "HostedCall",
    "accountable",
    "begin_recording",
    "describe_calls",
    "end_recording",
    "note_arguments",
    "record_refusal",
]

_MAX_CACHED_CALLERS = 512
"""Without it a host would hold everybody who ever called it."""
_STREAM_FIELDS = frozenset({"credit_chunks", "input", "progress"})
FIELDS_TO_READ = _STREAM_FIELDS | {"caller_context"}
"""The fields of a header for which `HostedCall.read_header` has to be called."""


_OUTCOMES = MappingProxyType(
    {
        "deadline": "deadline_exceeded",
        "broken": "stream_broken",
        "stalled": "stream_stalled",
        "leaving": "unavailable",
        "lost": "host_lost",
    }
)


class CallRunner(CallHost, CallThreads, Protocol):
    """What a call needs of its runner."""

    room_of: Callable[[int, CallTime], CallRoom]
    """Makes the room that is bound to a call, from the dispatch's id and the time of the call."""

    owner_of: Callable[[], str]
    """Returns the name of this host, for records."""
    wants_error_text: Callable[[], bool]
    """Whether the server asks for the texts of exceptions."""

    async def demand(
        self, call: HostedCall, demanded: ApprovalDemand | ToolQuestion
    ) -> Mapping[str, Any]:
        """Let the server ask a person about a call; return the decision as it sends it."""

    async def return_to_work(self, call: HostedCall) -> None:
        """Wait for a place for a call that has waited."""

    def finish(self, call: HostedCall) -> None:
        """Release what a call holds that has ended."""


class HostedCall(Execution):
    """One call that this host runs. Facts are decoded when the tool asks: most ask for none."""

    is_hosted = True
    enforces_approval = True
    # Class attributes: few calls change them.
    caller_context: dict[str, Any] | None = None
    """The caller's own data, once the header was read; not checked."""
    context_bytes: int = 0
    """The size of the caller's own data, if it is large and was not read with the header."""
    started: bool = False
    """Whether its task has begun."""
    task: asyncio.Task[None] | None = None
    """Runs the call; set after the task's first step if that is run at once."""
    stream: OutputStream | None = None
    """Chunks, progress and input of the call; None for a call that has none of them."""
    is_held: bool = False
    """Whether it waits for a person before its function is entered."""
    stop_reason: str = ""
    """Why the call was given up, as in the cancel frame; "lost" with the connection."""
    _room: CallRoom | None = None
    _identity: Identity | None = None

    def __init__(
        self, runner: CallRunner, dispatch: Dispatch | AssessDispatch, hosted: HostedToolkit
    ) -> None:
        remaining_ms = dispatch.remaining_ms
        self.deadline_at: float | None = (
            None if remaining_ms is None else runner.loop.time() + remaining_ms / 1000
        )
        """By the loop's clock; None if the call has no deadline."""
        self._runner: CallRunner = runner
        self.dispatch: Dispatch | AssessDispatch = dispatch
        self.hosted: HostedToolkit = hosted
        self.toolkit: Toolkit = hosted.toolkit
        self.tool: str = dispatch.tool

    @property
    def loop(self) -> asyncio.AbstractEventLoop:  # type: ignore[override]  # always has one
        """The loop of the host."""
        return self._runner.loop

    @property
    def clock(self) -> Callable[[], float]:
        """The loop's clock; without the time in which the call waited for a person."""
        return self._runner.loop.time if self.pausable is None else self.pausable.time

    @property
    def room(self) -> CallRoom:
        """The room, bound to this call."""
        if self._room is None:
            self._room = self._runner.room_of(self.dispatch.id, self)
        return self._room

    @property
    def caller(self) -> Participant:
        """Who made the call."""
        return _participant_of(self.dispatch.header["caller"])

    @property
    def identity(self) -> Identity:
        """Issuer and name of the participant for whom the call counts: see `accountable`."""
        if self._identity is None:
            self._identity = accountable(self.dispatch.header, self._runner.owner_of)
        return self._identity

    @property
    def on_behalf_of(self) -> Participant | None:
        """The principal for whom the caller acts, or None."""
        packed = self.dispatch.header.get("on_behalf_of")
        return None if packed is None else _participant_of(packed)

    @property
    def forwarded_for(self) -> tuple[Participant, ...]:
        """Those that the caller forwarded the call for, the nearest first; usually empty."""
        packed = self.dispatch.header.get("forwarded_for")
        if packed is None:
            return ()
        return tuple(map(_participant_of, unpack_body(packed, binary=True)))

    @property
    def builders(self) -> tuple[tuple[str, ...], ...]:
        """The patterns of what those behind the call may ask this host to build."""
        packed = self.dispatch.header.get("builders")
        return () if packed is None else tuple(map(tuple, unpack_body(packed)))

    @property
    def call_id(self) -> str:  # type: ignore[override]
        """The id of the call, the same for every attempt; empty for a question about a call."""
        return "" if isinstance(self.dispatch, AssessDispatch) else self.dispatch.call_id

    @property
    def granted(self) -> GrantedPermissions:  # type: ignore[override]
        """What people have granted to callers of this definition at this host."""
        return self.hosted.grants

    @property
    def owner(self) -> str:
        """The name of this host; empty if it has not joined."""
        return self._runner.owner_of()

    def attributes(self, room: str) -> dict[str, str]:
        """Return the caller and the room as span attributes; not to be changed."""
        header = self.dispatch.header
        return _span_attributes(room, header["caller"], header.get("on_behalf_of"))

    def read_header(self) -> None:
        """Read optional header fields. Raises `InvalidArguments` for an invalid caller context."""
        header = self.dispatch.header
        if "caller_context" in header:
            packed = header["caller_context"]
            if len(packed) > LARGE_BODY_BYTES:
                self.context_bytes = len(packed)
            else:
                with _reading_context():
                    self.caller_context = _one_object(unpack_body(packed))
        if not _STREAM_FIELDS.isdisjoint(header):
            self.open_stream()

    async def read_large_parts(self) -> dict[str, Any]:
        """Read arguments and the caller's own data in slices; return the arguments.

        Raises `InvalidArguments`, recorded: nothing ran.
        """
        if self.context_bytes:
            packed = self.dispatch.header["caller_context"]
            try:
                with _reading_context():
                    steps = unpack_steps(packed, count=ContainerCount(MAX_CONTAINERS))
                    self.caller_context = _one_object(await run_in_slices(steps, len(packed)))
            except InvalidArguments as error:
                raise self.refuse(error) from error.__cause__
        return await read_large_arguments(self, self.dispatch.arguments)

    def open_stream(self) -> OutputStream:
        """Return the stream of chunks; make it first if needed."""
        if self.stream is None:
            header = self.dispatch.header
            self.stream = OutputStream(self.dispatch.id, header, self, self._runner)
            if self.stream.input is not None:
                self.source: ChunkSource | None = ChunkReader(self.stream.input, unreadable_input)
        return self.stream

    @property
    def streams(self) -> bool:
        """Whether the caller accepts chunks before the call's end."""
        return "credit_chunks" in self.dispatch.header

    async def put(self, chunk: Chunk) -> None:
        """Send a chunk when the caller has credit; raises what `OutputStream.put` raises."""
        if self.stream is None or not self.streams:
            raise RuntimeError("the caller accepts no chunks")
        await self.stream.put(chunk)

    @property
    def wants_progress(self) -> bool:
        """Whether the caller asked for progress."""
        return self.dispatch.header.get("progress") is True

    def emit(self, value: Any) -> None:
        """Send progress to the caller, from any thread."""
        if self.stream is None:
            progress_chunk(value)  # raises the errors that it raises with a subscriber
        else:
            self.stream.emit(value)

    async def demand_approval(self, demand: ApprovalDemand) -> ApprovalDecision:
        """Ask the server who may approve the call."""
        from toolbus.tools.approvals import decision_of

        return decision_of(await self._runner.demand(self, demand))

    async def put_question(self, question: ToolQuestion) -> Chunk:
        """Ask the server who may answer."""
        from toolbus.tools.questions import answer_of

        return await answer_of(question, partial(self._runner.demand, self))

    async def return_to_work(self) -> None:
        """Wait until this host has a place for the call."""
        await self._runner.return_to_work(self)

    def finish(self) -> None:
        """Release what the call holds, once it has ended and its threads have too."""
        self._runner.finish(self)

    @property
    def wants_error_text(self) -> Callable[[], bool]:  # type: ignore[override]
        """Whether the server asks for the texts of exceptions."""
        return self._runner.wants_error_text

    def stop(self) -> None:
        """Stop the function as far as possible."""
        self.cancel()
        if self.task is not None and not self.awaited:
            self.task.cancel()
        if self.stream is not None:
            self.stream.stop()

    def self_cancelled_error(self) -> ToolFailed:
        """Make the error for a tool whose task was cancelled, but not by the runner."""
        message = "the tool's task was cancelled"
        return ToolFailed(message, executed=self.executed, details={"cause": "CancelledError"})


@contextmanager
def _reading_context() -> Iterator[None]:
    """Raise `InvalidArguments` for a caller's own data that cannot be read."""
    try:
        yield
    except BadBody as error:
        details = {"path": "/caller_context", "message": error.reason}
        raise InvalidArguments(error.reason, details=details) from error


def _one_object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise BadBody("", "caller_context must be one object")
    return value


@lru_cache(maxsize=_MAX_CACHED_CALLERS)
def _span_attributes(room: str, caller: bytes, on_behalf_of: bytes | None) -> SharedAttributes:
    """Make span attributes of two packed participants; cached, as callers repeat."""
    name = None if on_behalf_of is None else _participant_of(on_behalf_of).full_name
    caller_name = _participant_of(caller).full_name
    return SharedAttributes(call_attributes(room=room, caller=caller_name, on_behalf_of=name))


def accountable(header: Mapping[str, Any], owner_of: Callable[[], str]) -> Identity:
    """Return issuer and name of the participant whose share of a host a call uses.

    That is its caller. A call that the host forwarded to itself counts for the participant that it
    was forwarded for: else all callers of the forwarding tool had one share, which one of them
    could use up. A call that another host forwarded counts for that host.
    """
    packed = header["caller"]
    if "forwarded_for" in header and _participant_of(packed).full_name == owner_of():
        packed = unpack_body(header["forwarded_for"], binary=True)[-1]
    return _identity_of(packed)


@lru_cache(maxsize=_MAX_CACHED_CALLERS)
def _identity_of(packed: bytes) -> Identity:
    """Return issuer and name of a packed participant; cached, as callers repeat."""
    participant = _participant_of(packed)
    return participant.issuer, participant.name


def _participant_of(packed: bytes) -> Participant:
    return Participant(*unpack_body(packed)[:5])


def describe_calls(calls: Collection[HostedCall]) -> str:
    """Return the number of calls and their tools: "3 calls (work.hold x2, work.nap)"."""
    counts = Counter(call.method for call in tuple(calls))
    names = ", ".join(
        name if count == 1 else f"{name} x{count}" for name, count in sorted(counts.items())
    )
    total = counts.total()
    return f"{total} call{'' if total == 1 else 's'} ({names})"


def begin_recording(call: HostedCall, records: Records) -> Recording:
    """Begin the record of a call."""
    dispatch = call.dispatch
    recording = call.begin_recording(records, call.method)
    recording.trace_id = trace_id_of(dispatch.traceparent, dispatch.call_id)
    return recording


def note_arguments(recording: Recording, arguments: dict[str, object]) -> None:
    """Add the arguments, where they are kept, and the trace, where this host began it."""
    recording.keep_arguments(arguments)
    recording.trace_id = recording.trace_id or current_trace_id()


def record_refusal(call: HostedCall, records: Records, error: RoomException) -> None:
    """Record a call that this host refused as it arrived."""
    recording = begin_recording(call, records)
    _identify(recording, call)
    recording.end(error)


def end_recording(call: HostedCall, reply: Frame | None) -> None:
    """Record the end of a call, if it has not been recorded.

    Args:
        call: The call.
        reply: What it ends with; not sent if the server has answered in its place. None for a call
            that has no end of its own.
    """
    recording = call.recording
    if recording is None or recording.ended:
        return
    _identify(recording, call)
    if call.given_up:
        recording.end_with(_OUTCOMES.get(call.stop_reason, "cancelled"), call.executed)
    elif reply is None:
        recording.end_with("host_lost", call.executed)
    elif isinstance(reply, Failed):
        recording.end_with(reply.code, cast(Executed, reply.executed))  # of this host
    else:
        recording.end_with("ok", call.executed)


def _identify(recording: Recording, call: HostedCall) -> None:
    recording.owner, recording.digest = call.owner, call.hosted.digest
