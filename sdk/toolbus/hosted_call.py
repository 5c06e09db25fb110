"""One call as its host runs it: what its tool is told of it, and how it can be stopped.

What a tool may ask for is made when it asks: most tools ask for nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from toolbus.chunk_reader import ChunkReader
from toolbus.chunks import Chunk
from toolbus.context import Participant, ToolContext, progress_chunk
from toolbus.errors import DeadlineExceeded, Executed, InvalidArguments, ToolFailed
from toolbus.hosted_input import unreadable_input
from toolbus.hosted_stream import HostedStream, WireEnd
from toolbus.hosted_toolkit import HostedToolkit
from toolbus.input_stream import InputStream
from toolbus.semantics import SharedAttributes, call_attributes
from toolbus.wire import BadBody, Dispatch, unpack_body

__all__ = ["CallRunner", "HostedCall", "name_calls"]

T = TypeVar("T")

_CALLERS_KEPT = 256
_OF_STREAMS = frozenset({"credit_chunks", "input", "progress"})


class CallRunner(WireEnd, Protocol):
    """What a call needs of whoever runs it."""

    room_of: Callable[[int, float | None], Any]
    """Makes the room that is bound to a call, from the dispatch's id and its deadline."""

    async def in_thread(self, run: HostedCall, function: Callable[[], Any]) -> Any:
        """Run a function on a thread."""


class HostedCall(ToolContext):
    """One call that this host runs, and what its tool is told of it."""

    task: asyncio.Task[None] | None = None
    """What runs it; known once it waits, where it has started at once."""
    started: bool = False
    """A task that is cancelled before its first step never runs a line."""
    threads: int = 0
    """How many of its functions are on threads now, which nothing can stop."""
    awaited: int = 0
    """How many of these its tool waits for."""
    ended: bool = False
    """The tool has ended; what it left on threads may go on."""
    slots: asyncio.Semaphore | None = None
    """Where it holds a slot, until its threads have ended too."""
    stream: HostedStream | None = None
    """What it sends and takes beside arguments and answer, where it does."""
    given_up: bool = False
    """The server has answered in our place: whatever comes of the function is not sent."""
    timed_out: bool = False
    """The tool's own `timeout_s` has passed."""

    def __init__(self, runner: CallRunner, dispatch: Dispatch, hosted: HostedToolkit) -> None:
        # Not `super().__init__`: every fact of a context is made by a property below when somebody
        # asks, which mostly nobody does.
        self._runner = runner
        self.dispatch: Dispatch = dispatch
        self.hosted: HostedToolkit = hosted
        self._began_at: float = runner.loop.time()
        # What each call is asked for: what an instance has of its own is read more quickly.
        self.task = self.slots = self.stream = None
        self.given_up = self.timed_out = False
        self.threads = 0

    @property
    def method(self) -> str:
        """The tool as it is written: `toolkit.tool`."""
        return f"{self.dispatch.toolkit}.{self.dispatch.tool}"

    def attributes(self, room: str) -> dict[str, str]:
        """Say for its spans who called it, and where; not to be changed."""
        header = self.dispatch.header
        return _facts_of(room, header["caller"], header.get("on_behalf_of"))

    # What a tool asks for is made when it asks.

    @property
    def room(self) -> Any:
        """The room, bound to this call."""
        if self._room is None:
            self._room = self._runner.room_of(self.dispatch.id, self._ends_at)
        return self._room

    @property
    def _ends_at(self) -> float | None:
        remaining_ms = self.dispatch.remaining_ms
        return None if remaining_ms is None else self._began_at + remaining_ms / 1000

    @property
    def deadline(self) -> float | None:
        """Seconds left, never below 0; None where the call has no deadline."""
        ends_at = self._ends_at
        return None if ends_at is None else max(0.0, ends_at - self._runner.loop.time())

    @property
    def caller(self) -> Participant:
        """Who made the call."""
        return _participant_of(self.dispatch.header["caller"])

    @property
    def on_behalf_of(self) -> Participant | None:
        """The principal for whom the caller acts, or None."""
        card = self.dispatch.header.get("on_behalf_of")
        return None if card is None else _participant_of(card)

    def read_header(self) -> None:
        """Take up what few calls have. Raises `InvalidArguments` for a broken caller's context."""
        header = self.dispatch.header
        if "caller_context" in header:
            self._caller_context = _caller_context(header["caller_context"])
        if not _OF_STREAMS.isdisjoint(header):
            self.open_stream()

    def execute(self, arguments: dict[str, Any]) -> Coroutine[Any, Any, Chunk]:
        """Run the tool, with the call's input where it has one."""
        toolkit, name = self.hosted.toolkit, self.dispatch.tool
        if self.stream is None or self.stream.input is None:
            return toolkit.execute(self, name, arguments)
        chunks = ChunkReader(self.stream.input, unreadable_input)
        return toolkit.execute(self, name, arguments, InputStream.of_source(chunks))

    def open_stream(self) -> HostedStream:
        """Make what sends chunks, unless it is there."""
        if self.stream is None:
            header = self.dispatch.header
            self.stream = HostedStream(self.dispatch.id, header, self, self._runner)
        return self.stream

    @property
    def streams(self) -> bool:
        """Whether the caller takes chunks before the call's end."""
        return "credit_chunks" in self.dispatch.header

    async def put(self, chunk: Chunk) -> None:
        """Send a chunk once the caller has room for it; raises what `HostedStream.put` raises."""
        if self.stream is None or not self.streams:
            raise RuntimeError("the caller takes no chunks: context.streams tells")
        await self.stream.put(chunk)

    def emit(self, value: Any) -> None:
        """Tell the caller how far the call is, from any thread."""
        if self.stream is None:
            progress_chunk(value)  # raises what it would raise where somebody listens
        else:
            self.stream.emit(value)

    async def run_sync(self, function: Callable[[], T]) -> T:
        """Run a function on a thread of the runner's."""
        result: T = await self._runner.in_thread(self, function)
        return result

    @property
    def executed(self) -> Executed:
        """Whether the function ran; nobody knows while a part of it is on a thread."""
        return "maybe" if self.threads else super().executed

    def stop(self) -> None:
        """Stop the function as far as that can be done."""
        self.cancel()
        if self.task is not None and not self.awaited:
            self.task.cancel()
        if self.stream is not None:
            self.stream.stop()

    def free_slot(self) -> None:
        """Let another call of the tool run, unless a part of this one is still on a thread."""
        if self.slots is not None and not self.threads:
            self.slots.release()
            self.slots = None

    def cancelled_itself(self) -> ToolFailed:
        """Say that the tool's task ended as cancelled without being told to."""
        words = "the tool's task was cancelled"
        return ToolFailed(words, executed=self.executed, details={"cause": "CancelledError"})

    def took_too_long(self) -> DeadlineExceeded:
        """Say that the tool's own limit has passed."""
        limit_s = self.hosted.toolkit.get_tool(self.dispatch.tool).timeout_s
        words = f"the tool's own limit of {limit_s} s passed"
        return DeadlineExceeded(words, executed=self.executed)

    def time_out(self) -> None:
        """Stop the function because its tool's own limit has passed."""
        self.timed_out = True
        self.stop()


def _caller_context(packed: bytes) -> dict[str, Any]:
    try:
        words = unpack_body(packed)
        if type(words) is not dict:
            raise BadBody("", "caller_context is one object")
    except BadBody as error:
        details = {"path": "/caller_context", "message": error.reason}
        raise InvalidArguments(error.reason, details=details) from error
    return words


@lru_cache(maxsize=_CALLERS_KEPT)
def _facts_of(room: str, caller: bytes, behalf: bytes | None) -> SharedAttributes:
    """Read two cards for what spans say of them: most calls come from few callers."""
    name = None if behalf is None else _participant_of(behalf).name
    facts = call_attributes(room=room, caller=_participant_of(caller).name, on_behalf_of=name)
    return SharedAttributes(facts)


def _participant_of(card: bytes) -> Participant:
    return Participant(*unpack_body(card)[:4])


def name_calls(calls: Collection[HostedCall]) -> str:
    """Say how many calls there are, and of which tools: "3 calls (work.hold x2, work.nap)"."""
    counted = Counter(each.method for each in tuple(calls))
    names = ", ".join(
        name if count == 1 else f"{name} x{count}" for name, count in sorted(counted.items())
    )
    total = counted.total()
    return f"{total} call{'' if total == 1 else 's'} ({names})"
