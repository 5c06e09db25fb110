"""What a turn asks a person about one call; one request is open at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.json_values import shown
from toolbus.concurrency.tasks import retrieve_error
from toolbus.errors import ApprovalExpired, PermissionDenied, Unavailable
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.decision import PermissionDecision
from toolbus.public_names import missing
from toolbus.room.room import Room
from toolbus.tools.approvals import ApprovalDecision, Judged
from toolbus.tools.approvers import approval_seconds
from toolbus.tools.tool_info import ToolInfo
from toolbus.turns.room_approvals import ask_in_room
from toolbus.turns.tool_use import ToolUse
from toolbus.turns.turn_calls import TurnCall

__all__ = ["ApprovalDecision", "ApprovalQueue", "ApprovalRequest", "Approve", "Approver"]


_logger = bounded_logger(__name__)
# An approver that is cancelled puts a terminal back in order. A turn waits 5 s for the end of a
# call.
_END_S = 2.0
_NO_APPROVER = (
    "a rule or the mode has to allow it (on the command line --permissions FILE or --mode), or the "
    'agent needs an approver (approve="room" asks who may approve it in its room; `toolbus chat '
    "--model` asks in its terminal)."
)
_left: set[asyncio.Task[ApprovalDecision]] = set()


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that waits until a person has decided about it."""

    use: ToolUse
    """What the model asks for. A call of a program has one too, with the id of the call."""
    tool: ToolInfo
    """The called tool."""
    arguments: Mapping[str, Any]
    """The values by parameter with which it would run: a copy, after all middlewares."""
    decision: PermissionDecision
    """Why a person is asked; `decision.suggestions` are rules that would have allowed it, or parts
    of it."""
    assessment: Assessment
    """What the tool says about this input. `reaches` names the tool that the call would reach, if
    it only forwards. `message`, `preview` and suggestions are words of the tool's owner."""
    purpose: str = ""
    """What the calls of the turn are for, in the words of the agent."""

    if not TYPE_CHECKING:  # for checkers it has no such attribute

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name)


Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[ApprovalDecision]]
"""Asks a person. It is cancelled when the time for an answer or the turn has ended."""
Approve: TypeAlias = Approver | Literal["room"]
"""Who is asked: by an approver, or in the room of the turn, those who may approve the call."""
_IN_ROOM = "room"


class ApprovalQueue:
    """The approval requests of one turn.

    Args:
        approve: Asks a person; None if nobody can be asked.
        timeout_s: Seconds that a request is open; 0 asks nobody, and None has no limit.

    Raises `TypeError` for what is not a function, and `ValueError` for what is not a time.
    """

    def __init__(self, approve: Approve | None, timeout_s: float | None) -> None:
        self.is_in_room: bool = isinstance(approve, str) and approve == _IN_ROOM
        """Whether the room of the turn is asked."""
        if not (approve is None or self.is_in_room or callable(approve)):
            text = 'approve must be an async function of an ApprovalRequest, or "room"'
            raise TypeError(f"{text}, not {shown(approve)}")
        self._approve: Approver | None = approve if callable(approve) else None
        self._timeout_s = approval_seconds(timeout_s, "the turn")
        self._lock = asyncio.Lock()
        self._users = 0

    @asynccontextmanager
    async def queue(self, call: TurnCall) -> AsyncIterator[bool]:
        """Hold the right to ask while the block runs; gives whether the call waited for it.

        The time of the call stands still while it waits: it waits for the person too.
        """
        clock, _ = call.begin_clock()
        waits = self._users > 0
        self._users += 1
        try:
            with clock.paused():
                await self._lock.acquire()
            try:
                yield waits
            finally:
                self._lock.release()
        finally:
            self._users -= 1

    async def ask(self, call: TurnCall, request: ApprovalRequest) -> ApprovalDecision:
        """Ask, and return the decision; the time of the call stands still meanwhile.

        Raises:
            PermissionDenied: There is no approver, or it gave no decision.
            ApprovalExpired: The time for an answer is over.
        """
        reason = request.decision.reason
        if self._approve is None:
            text = f"{reason} Nobody can be asked here: {_NO_APPROVER}"
            raise PermissionDenied(text, executed="no")
        self._check_time(reason)
        clock, _ = call.begin_clock()
        task = asyncio.ensure_future(_call_approver(self._approve, request))
        with clock.paused():
            try:
                done, _ = await asyncio.wait([task], timeout=self._timeout_s)
            finally:
                if not task.done():
                    await _end(task)
        if not done:
            text = f"{reason} Nobody has answered within {self._timeout_s:g} s."
            raise ApprovalExpired(text, executed="no")
        name = getattr(self._approve, "__qualname__", type(self._approve).__name__)
        if task.cancelled():
            raise _no_decision(request, f"its approver, {name}, was cancelled", "CancelledError")
        error = task.exception()
        if isinstance(error, Unavailable):  # no failure of it, as without a terminal
            _logger.warning("nobody is asked about %s: %s", request.tool.name, error.message)
            raise _no_decision(request, error.message, "Unavailable")
        if error is not None:
            _logger.error("the approver of a turn, %s, raised", name, exc_info=error)
            kind = type(error).__name__
            raise _no_decision(request, f"its approver, {name}, raised {kind}", kind)
        return task.result()

    async def ask_in_room(self, room: Room, call: TurnCall, judged: Judged) -> ApprovalDecision:
        """Ask those in a room who may approve a call; raises as `room_approvals.ask_in_room`."""
        self._check_time(judged.decision.reason)
        return await ask_in_room(room, call, judged, self._timeout_s)

    def _check_time(self, reason: str) -> None:
        if self._timeout_s == 0:
            raise ApprovalExpired(f"{reason} Nobody is waited for.", executed="no")


async def _call_approver(approve: Approver, request: ApprovalRequest) -> ApprovalDecision:
    try:
        answering = approve(request)
        if not isawaitable(answering):
            raise TypeError("approve must be an async function of an ApprovalRequest")
        return await answering
    except SystemExit as error:  # it would end the program from within a task
        raise RuntimeError("SystemExit") from error


async def _end(task: asyncio.Task[ApprovalDecision]) -> None:
    """Cancel the task of an approver, and wait for its end; leave it behind if it does not end."""
    task.cancel()
    task.add_done_callback(retrieve_error)
    _left.add(task)  # the loop itself keeps only a weak reference
    task.add_done_callback(_left.discard)
    await asyncio.wait([task], timeout=_END_S)


def _no_decision(request: ApprovalRequest, why: str, cause: str) -> PermissionDenied:
    text = f"{request.decision.reason} Nobody has decided: {why}."
    return PermissionDenied(text, executed="no", details={"cause": cause})
