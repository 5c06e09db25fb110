"""Where a turn runs: in an agent's room, in this process alone, or inside a running tool.

It decides who calls, for whom, through which room, and until when.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from toolbus.concurrency.event_loop import running_loop
from toolbus.errors import DeadlineExceeded, PermissionDenied, Unavailable
from toolbus.room.participants import Message
from toolbus.room.room import Room, bound_room, connection_of
from toolbus.room.room_client import RoomClient, client_of
from toolbus.telemetry.tracing import Tracing
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.tool_run import LOCAL, Participant, ToolRun
from toolbus.turns.turn_options import TurnOptions
from toolbus.turns.turn_runs import TurnRuns

__all__ = ["TurnScope", "end_with", "scope_of"]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TurnScope:
    """The participants and the room of an entered turn. Made by `scope_of`."""

    agent: Participant
    """Who calls."""
    sender: Participant | None = None
    """The principal of all calls; None is the agent itself."""
    client: RoomClient | None = None
    """The agent in its room: finds toolkits, and starts those of `always`. None without a room."""
    room: Room | None = None
    """The room that all calls are made through."""
    principal: str | None = None
    """On whose behalf they are made, unless the room knows it."""
    builders: tuple[tuple[str, ...], ...] | None = None
    """The patterns that limit what may be built; None means unlimited."""
    serves: ToolRun | None = None
    """The call that the turn serves: its calls end with it."""
    deadline_at: float | None = None
    """When that call has to end, by the loop's clock."""

    def view(self, deadline_at: float | None = None) -> Room | None:
        """Return the room of a call that ends at a time by the loop's clock, if there is one."""
        if self.room is None:
            return None
        return bound_room(self.room, deadline_at, self.principal)

    @property
    def tracing(self) -> Tracing:
        """What records the turn: as its room does, or as this process is set up."""
        return Tracing() if self.client is None else connection_of(self.client).caller.tracing

    @property
    def wants_error_text(self) -> Callable[[], bool]:
        """Tells, each time it is called, whether the room's server asks for texts of exceptions."""
        return _never if self.client is None else connection_of(self.client).wants_error_text

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Run the block within the time of the call that the turn serves."""
        try:
            async with asyncio.timeout_at(self.deadline_at) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            text = "the time of the call that this turn serves was over before the turn began"
            raise DeadlineExceeded(text, executed="no") from None


def end_with(served: ToolRun, runs: TurnRuns) -> Callable[[], None]:
    """Let the calls of a turn end with the call that it serves; return what undoes that."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        text = _end_of(served)
        if running_loop() is loop:
            runs.end_at_once(text)
            return
        with suppress(RuntimeError):  # the loop of the turn has ended, and all calls with it
            loop.call_soon_threadsafe(runs.end_at_once, text)

    served.follow(end)
    return partial(served.unfollow, end)


def _end_of(served: ToolRun) -> str:
    what = "was cancelled" if served.cancelled else "has ended"
    return f"the call that this turn serves {what}"


def scope_of(options: TurnOptions) -> TurnScope:
    """Find out where a turn runs that is entered now.

    Raises:
        PermissionDenied: The sender of its message cannot be named.
        Unavailable: The call that it serves has ended, or its room is closed.
        DeadlineExceeded: The time of that call is over.
    """
    if options.context is not None:
        return _inside(options.context)
    if options.room is None:
        return TurnScope(agent=LOCAL)
    return _in_room(options.room, options.message)


def _in_room(room: RoomClient, message: Message | None) -> TurnScope:
    agent = room.me
    if message is None:
        return TurnScope(agent=agent, client=room, room=room)
    sender = _other_than(agent, message.sender)
    if sender is not None and sender.issuer not in ("", agent.issuer) and not sender.alias:
        # Its bare name would mean a participant of the agent's issuer.
        raise PermissionDenied(
            "the sender is of another issuer, for which the server gives no alias: no calls on its"
            " behalf"
        )
    return TurnScope(
        agent=agent,
        sender=sender,
        client=room,
        room=room,
        principal=None if sender is None else sender.full_name,
        builders=(message.builders,),
    )


def _inside(context: ToolContext) -> TurnScope:
    """Return the scope of a turn that serves the call of a running tool.

    The room of that call knows parent, principal and deadline: nothing of them is named again.
    """
    run = run_of(context)
    if run.ended or run.cancelled:
        raise Unavailable(_end_of(run), executed="no", retryable=False)
    deadline_at = None
    left = context.deadline
    if left is not None:
        if left <= 0:
            text = "no time is left of the call that this turn serves"
            raise DeadlineExceeded(text, executed="no")
        deadline_at = asyncio.get_running_loop().time() + left
    room = run.room
    if room is None:
        return TurnScope(agent=LOCAL, builders=run.builders, serves=run, deadline_at=deadline_at)
    assert isinstance(room, Room), "as the options were checked"
    client = client_of(room)
    agent = client.me
    # A hosted tool runs for its caller, or for whom that acts; the caller in a turn is the agent.
    principal = run.on_behalf_of or (run.caller if run.is_hosted else None)
    return TurnScope(
        agent=agent,
        sender=_other_than(agent, principal),
        client=client,
        room=bound_room(room, deadline_at),
        builders=run.builders,
        serves=run,
        deadline_at=deadline_at,
    )


def _other_than(agent: Participant, principal: Participant | None) -> Participant | None:
    """Return for whom an agent calls; None if that is the agent itself."""
    if principal is None:
        return None
    is_agent = (principal.name, principal.issuer or agent.issuer) == (agent.name, agent.issuer)
    return None if is_agent else principal
