"""What a turn is made with, each option checked once, before anything is found or built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from toolbus.chunks.json_values import cut, shown
from toolbus.client.call_options import MAX_TIMEOUT_S, is_time
from toolbus.room.participants import Message
from toolbus.room.room import Room
from toolbus.room.room_client import RoomClient
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.middleware import Middleware
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.agent_state import AgentState
from toolbus.turns.approval_queue import ApprovalQueue
from toolbus.turns.approvals import Approver
from toolbus.turns.builders import AnyBuilder, ToolkitConfig
from toolbus.turns.skill_listing import SkillListing
from toolbus.turns.tool_groups import ToolGroup
from toolbus.turns.turn_permissions import TurnPermissions
from toolbus.turns.turn_toolkits import LocalToolkit, RequiredToolkit

if TYPE_CHECKING:  # most programs record nothing
    from toolbus.permissions.permissions import Permissions
    from toolbus.records.records import Records

__all__ = [
    "NOT_GIVEN",
    "Requests",
    "TurnOptions",
    "checked_builders",
    "checked_context",
    "checked_permissions",
    "checked_room",
    "checked_state",
    "checked_timeout",
    "requested",
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
    timeout_s: float
    approvals: ApprovalQueue
    permissions: TurnPermissions | None

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
        required = [
            *self.required,
            *(toolkit for group in self.groups for toolkit in group.required),
        ]
        if required:
            names = ", ".join(_name_of(toolkit) for toolkit in required)
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


def _name_of(required: RequiredToolkit | str) -> str:
    return required if isinstance(required, str) else required.name


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


def checked_permissions(
    permissions: Permissions | None, approve: Approver | None, state: AgentState
) -> TurnPermissions | None:
    """Return what may run, with what was granted in a state; None without permissions.

    Raises `TypeError` for what is not a `Permissions`, and `ValueError` for `approve` without them.
    """
    if permissions is not None:
        return TurnPermissions(permissions, state.rules)
    if approve is not None:
        raise ValueError("approve is called by permissions: pass them too, such as Permissions()")
    return None
