"""One call as its host runs it: what its tool is told of it, and how it can be stopped.

What a tool may ask for is made when it asks: most tools ask for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from toolbus.context import Participant, ToolContext
from toolbus.errors import Executed
from toolbus.hosted_toolkit import HostedToolkit
from toolbus.wire import BadBody, Dispatch, unpack_body

__all__ = ["CallRunner", "HostedCall"]

T = TypeVar("T")


class CallRunner(Protocol):
    """What a call needs of whoever runs it."""

    loop: asyncio.AbstractEventLoop
    """Whose clock deadlines are told by."""
    room_of: Callable[[int, float | None], Any]
    """Makes the room that is bound to a call, from the dispatch's id and its deadline."""

    async def in_thread(self, run: HostedCall, function: Callable[[], Any]) -> Any:
        """Run a function on a thread."""


class HostedCall(ToolContext):
    """One call that this host runs, and what its tool is told of it."""

    __slots__ = (
        "_runner",
        "awaited",
        "dispatch",
        "ended",
        "given_up",
        "hosted",
        "slots",
        "started",
        "task",
        "threads",
        "timed_out",
    )

    def __init__(self, runner: CallRunner, dispatch: Dispatch, hosted: HostedToolkit) -> None:
        # Every fact of a context is set right here, or made by a property below: handing them on
        # to `super().__init__` would cost each call more than all the rest of this.
        self._clock = clock = runner.loop.time
        remaining_ms = dispatch.remaining_ms
        self._deadline_at = None if remaining_ms is None else clock() + remaining_ms / 1000
        self._room = None
        self._caller_context = None
        self._cancelled = False
        self.entered: bool = False
        self._refusal = None
        self._failure = None
        self._runner = runner
        self.dispatch: Dispatch = dispatch
        self.hosted: HostedToolkit = hosted
        self.task: asyncio.Task[None] | None = None
        self.started: bool = False
        """A task that is cancelled before its first step never runs a line."""
        self.threads: int = 0
        """How many of its functions are on threads now, which nothing can stop."""
        self.awaited: int = 0
        """How many of these its tool waits for."""
        self.ended: bool = False
        """The tool has ended; what it left on threads may go on."""
        self.slots: asyncio.Semaphore | None = None
        """Where it holds a slot, until its threads have ended too."""
        self.given_up: bool = False
        """The server has answered in our place: whatever comes of the function is not sent."""
        self.timed_out: bool = False
        """The tool's own `timeout_s` has passed."""

    # What a tool asks for is made when it asks.

    @property
    def room(self) -> Any:
        """The room, bound to this call."""
        if self._room is None:
            self._room = self._runner.room_of(self.dispatch.id, self._deadline_at)
        return self._room

    @property
    def caller(self) -> Participant:
        """Who made the call."""
        return _participant_of(self.dispatch.header["caller"])

    @property
    def on_behalf_of(self) -> Participant | None:
        """The principal for whom the caller acts, or None."""
        card = self.dispatch.header.get("on_behalf_of")
        return None if card is None else _participant_of(card)

    def read_caller_context(self) -> None:
        """Unpack what the caller sent along. Raises BadBody if that is no object."""
        words = unpack_body(self.dispatch.header["caller_context"])
        if type(words) is not dict:
            raise BadBody("", "caller_context is one object")
        self._caller_context = words

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

    def time_out(self) -> None:
        """Stop the function because its tool's own limit has passed."""
        self.timed_out = True
        self.stop()


def _participant_of(card: bytes) -> Participant:
    return Participant(*unpack_body(card)[:4])
