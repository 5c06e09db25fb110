"""What a turn is made with, each option checked once, and where it runs: its `TurnScope`.

The scope decides who calls, for whom, through which room, and until when: in an agent's room, in
this process alone, or inside a running tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from toolbus.chunks.json_values import cut, shown
from toolbus.client.call_options import MAX_TIMEOUT_S, CallOptions, is_time
from toolbus.concurrency.event_loop import running_loop
from toolbus.concurrency.pausable_clock import CallTime
from toolbus.errors import DeadlineExceeded, InvalidArguments, PermissionDenied, Unavailable
from toolbus.room.participants import Message
from toolbus.room.room import Room, bound_room, connection_of
from toolbus.room.room_client import RoomClient, client_of
from toolbus.telemetry.tracing import Tracing
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.middleware import Middleware
from toolbus.tools.tool_run import LOCAL, Participant, ToolRun
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.agent_state import AgentState
from toolbus.turns.approvals import ApprovalQueue, Approve
from toolbus.turns.builders import AnyBuilder, ToolkitConfig
from toolbus.turns.tool_groups import SkillListing, ToolGroup
from toolbus.turns.tool_questions import Answer
from toolbus.turns.turn_permissions import TurnPermissions
from toolbus.turns.turn_runs import TurnRuns
from toolbus.turns.turn_toolkits import LocalToolkit, RequiredToolkit

if TYPE_CHECKING:  # most programs record nothing
    from toolbus.permissions.permissions import Permissions
    from toolbus.records.records import Records

__all__ = [
    "NOT_GIVEN",
    "Requests",
    "TurnOptions",
    "TurnScope",
    "checked_builders",
    "checked_context",
    "checked_defaults",
    "checked_permissions",
    "checked_room",
    "checked_state",
    "checked_timeout",
    "end_with",
    "requested",
    "scope_of",
]

NOT_GIVEN: Any = ...
"""The room of a turn for which none was named; None says that there is none."""
Requests: TypeAlias = Sequence[Mapping[str, Any] | ToolkitConfig] | None
"""The configs of toolkits to be built, as `read_configs` takes them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TurnOptions:
    """The options of one turn, as its class documents them."""

    room: RoomClient | None
    context: ToolContext | None
    message: Message | None
    always: tuple[Toolkit | LocalToolkit, ...]
    required: tuple[RequiredToolkit, ...]
    builders: tuple[AnyBuilder, ...]
    tools: Requests
    """What is to be built; of a message they are checked when the turn is entered."""
    model: Any
    available: bool
    groups: tuple[ToolGroup, ...]
    skills: tuple[SkillListing, ...]
    middlewares: tuple[Middleware, ...]
    state: AgentState
    records: Records | None
    defaults: CallOptions
    """What calls have that name nothing else."""
    approvals: ApprovalQueue
    permissions: TurnPermissions | None
    answer: Answer | None = None
    """Who answers what tools in this process ask; by default the room if that approves."""

    def __post_init__(self) -> None:
        """Refuse what does not go with where the turn runs. Raises `ValueError`."""
        if self.context is not None and self.message is not None:
            raise ValueError(
                "a turn inside a tool serves the call of that tool: message= is for Turn(room)"
            )
        if self.room is not None:
            return
        if self.context is None:
            where = "Turn(None) has no room"
        elif run_of(self.context).room is None:
            where = "the context of this turn has no room"
        else:
            return
        if self.approvals.is_in_room or self.answer == "room":
            name = "approve" if self.approvals.is_in_room else "answer"
            raise ValueError(
                f'{where}, so that nobody can be asked there: {name}="room" needs Turn(room), or a'
                " context with a room"
            )
        required = [
            *self.required,
            *(toolkit for group in self.groups for toolkit in group.required),
        ]
        if required:
            names = ", ".join(getattr(toolkit, "name", str(toolkit)) for toolkit in required)
            raise ValueError(
                f"{where}, so that nobody else hosts what is required ({cut(names)}): use"
                " Turn(room), or toolkits of this process in always="
            )
        if self.available:
            raise ValueError(f"{where}, so that no toolkit is available in it: use Turn(room)")
        if self.message is not None:
            raise ValueError(
                f"{where}, so that no calls can be made on behalf of the sender of a message: use"
                " Turn(room, message=message)"
            )


def checked_room(room: object, context: ToolContext | None) -> RoomClient | None:
    """Return the agent's room; None for a turn without one, or inside a tool.

    Raises `TypeError` for anything else, and unless there is either a room, or None, or a context.
    """
    if context is not None:
        if room is NOT_GIVEN:
            return None
        raise TypeError(
            "a turn takes a room or context=, not both: inside a tool, Turn(context=context) uses"
            " the room of the context"
        )
    if room is NOT_GIVEN:
        raise TypeError(
            "a turn is made with an agent's room, Turn(room); with Turn(None) for tools of this"
            " process alone; or inside a running tool with Turn(context=context)"
        )
    if room is None or isinstance(room, RoomClient):
        return room
    kind = type(room)
    name = f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
    hint = ""
    if isinstance(room, ToolContext | Room):
        hint = ": inside a running tool use Turn(context=context)"
    raise TypeError(f"a turn is made with an agent's toolbus.RoomClient, not {name}{hint}")


def checked_context(context: object) -> ToolContext | None:
    """Return the context of the running tool; None without one.

    Raises `TypeError` for anything else, and for a context whose room toolbus did not make.
    """
    if context is None:
        return None
    if not isinstance(context, ToolContext):
        raise TypeError(f"context must be the ToolContext of a running tool, not {shown(context)}")
    room = run_of(context).room
    if room is not None and not isinstance(room, Room):
        kind = type(room).__name__
        raise TypeError(f"a turn inside a tool needs a toolbus.Room as context.room, not {kind}")
    return context


def checked_state(state: AgentState | None) -> AgentState:
    """Return the state of a turn, a new one for None. Raises `TypeError` for anything else."""
    if not isinstance(state, AgentState | None):
        raise TypeError(f"state must be an AgentState, not {type(state).__name__}")
    return state or AgentState()


def checked_builders(builders: Iterable[AnyBuilder]) -> tuple[AnyBuilder, ...]:
    """Return the available builders. Raises `TypeError` for what is not a list."""
    if not isinstance(builders, Iterable):
        raise TypeError(f"builders must be a list, not {shown(builders)}")
    return tuple(builders)


def requested(message: Message | None, context: ToolContext | None, tools: Requests) -> Requests:
    """Return the requested configs; those of others are checked when the turn is entered.

    Raises `TypeError` for what is not a message, and for JSON without a message or a context.
    """
    if message is None:
        if context is not None:
            return tools
        own = tuple(tools or ())
        if not all(isinstance(config, ToolkitConfig) for config in own):
            raise TypeError(
                "without message= tools must be ToolkitConfig objects: pass message= to build"
                " what a sender requests as JSON, or context= inside a tool; toolkits of your own"
                " belong into always="
            )
        return own
    if not isinstance(message, Message):
        raise TypeError(f"message must be a Message, not {type(message).__name__}")
    if tools is not None:
        return tools
    return message.body.get("tools") if isinstance(message.body, Mapping) else None


def checked_timeout(seconds: object) -> float:
    """Return the time-out of a turn's calls. Raises `ValueError` unless it is above 0."""
    if is_time(seconds) and isinstance(seconds, int | float) and 0 < seconds < MAX_TIMEOUT_S:
        return float(seconds)
    raise ValueError(f"timeout_s must be a number of seconds above 0, not {shown(seconds)}")


def checked_defaults(
    timeout_s: float, purpose: str | None, approval_timeout_s: float | None
) -> CallOptions:
    """Return the options of a turn's calls. Raises `ValueError` for what is invalid."""
    seconds = checked_timeout(timeout_s)
    try:
        return CallOptions(
            timeout_s=seconds, purpose=purpose, approval_timeout_s=approval_timeout_s
        )
    except InvalidArguments as error:
        raise ValueError(error.message) from None


def checked_permissions(
    permissions: Permissions | None, approve: Approve | None, state: AgentState
) -> TurnPermissions | None:
    """Return what may run, with what was granted in a state; None without permissions.

    Raises `TypeError` for what is not a `Permissions`, and `ValueError` for `approve` without them.
    """
    if permissions is not None:
        return TurnPermissions(permissions, state.rules)
    if approve is not None:
        raise ValueError("approve is called by permissions: pass them too, such as Permissions()")
    return None


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

    def view(self, call: CallTime | None = None) -> Room | None:
        """Return the room that is bound to a call of the turn, if there is one."""
        return None if self.room is None else bound_room(self.room, call, self.principal)

    @property
    def tracing(self) -> Tracing:
        """What records the turn: as its room does, or as this process is set up."""
        return Tracing() if self.client is None else connection_of(self.client).caller.tracing

    @property
    def wants_error_text(self) -> Callable[[], bool]:
        """Tells, each time it is called, whether the room's server asks for texts of exceptions."""
        if self.client is None:
            return lambda: False
        return connection_of(self.client).wants_error_text

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Run the block within the time of the call that the turn serves."""
        served = self.serves
        if served is None or served.deadline_at is None:
            yield
            return
        try:
            async with served.pausable_clock().timeout_at(served.deadline_at) as limit:
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
    left = context.deadline
    if left is not None and left <= 0:
        text = "no time is left of the call that this turn serves"
        raise DeadlineExceeded(text, executed="no")
    room = run.room
    if room is None:
        return TurnScope(agent=LOCAL, builders=run.builders, serves=run)
    assert isinstance(room, Room), "as the options were checked"
    client = client_of(room)
    agent = client.me
    # A hosted tool runs for its caller, or for whom that acts; the caller in a turn is the agent.
    principal = run.on_behalf_of or (run.caller if run.is_hosted else None)
    return TurnScope(
        agent=agent,
        sender=_other_than(agent, principal),
        client=client,
        room=bound_room(room, run),
        builders=run.builders,
        serves=run,
    )


def _other_than(agent: Participant, principal: Participant | None) -> Participant | None:
    """Return for whom an agent calls; None if that is the agent itself."""
    if principal is None:
        return None
    is_agent = (principal.name, principal.issuer or agent.issuer) == (agent.name, agent.issuer)
    return None if is_agent else principal
