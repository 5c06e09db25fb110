"""What a turn is made with, each option checked once, before anything is found or built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from toolbus.agents.agent_state import AgentState
from toolbus.agents.builders import AnyBuilder, ToolkitConfig
from toolbus.agents.call_questions import Asking
from toolbus.agents.questions import Ask
from toolbus.agents.skill_listing import SkillListing
from toolbus.agents.tool_groups import ToolGroup
from toolbus.agents.turn_permissions import TurnPermissions
from toolbus.agents.turn_toolkits import LocalToolkit, RequiredToolkit
from toolbus.chunks.json_values import shown
from toolbus.client.call_options import MAX_TIMEOUT_S, is_time
from toolbus.room.participants import Message
from toolbus.room.room_client import RoomClient
from toolbus.tools.middleware import Middleware
from toolbus.tools.toolkit import Toolkit

if TYPE_CHECKING:  # most programs record nothing
    from toolbus.permissions.permissions import Permissions
    from toolbus.records.records import Records

__all__ = [
    "Requests",
    "TurnOptions",
    "checked_builders",
    "checked_permissions",
    "checked_room",
    "checked_state",
    "checked_timeout",
    "requested",
]

Requests: TypeAlias = Sequence[Mapping[str, Any] | ToolkitConfig] | None
"""The configs of toolkits to be built, as `read_configs` takes them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TurnOptions:
    """The options of one turn, as its class documents them."""

    room: RoomClient
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
    asking: Asking
    permissions: TurnPermissions | None


def checked_room(room: object) -> RoomClient:
    """Return the agent's room. Raises `TypeError` for anything else."""
    if not isinstance(room, RoomClient):
        kind = type(room)
        name = f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
        raise TypeError(f"a turn is made with an agent's toolbus.RoomClient, not {name}")
    return room


def checked_state(state: AgentState | None) -> AgentState:
    """Return the state of a turn, a new one for None. Raises `TypeError` for anything else."""
    if not isinstance(state, AgentState | None):
        raise TypeError(f"state must be an AgentState, not {type(state).__name__}")
    return state or AgentState()


def checked_builders(builders: Iterable[AnyBuilder]) -> tuple[AnyBuilder, ...]:
    """Return the available builders. Raises `TypeError` for what is no list."""
    if not isinstance(builders, Iterable):
        raise TypeError(f"builders must be a list, not {shown(builders)}")
    return tuple(builders)


def requested(message: Message | None, tools: Requests) -> Requests:
    """Return the requested configs; those of a message are checked when the turn is entered.

    Raises `TypeError` for what is no message, and for JSON without one.
    """
    if message is None:
        own = tuple(tools or ())
        if not all(isinstance(each, ToolkitConfig) for each in own):
            raise TypeError(
                "without message= tools must be ToolkitConfig objects: pass message= to build"
                " what a sender requests as JSON; toolkits of your own belong into always="
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
    permissions: Permissions | None, ask: Ask | None, state: AgentState
) -> TurnPermissions | None:
    """Return what may run, with what was granted in a state; None without permissions.

    Raises `TypeError` for what is no `Permissions`, and `ValueError` for `ask` without them.
    """
    if permissions is not None:
        return TurnPermissions(permissions, state.rules)
    if ask is not None:
        raise ValueError("ask is called by permissions: pass them too, such as Permissions()")
    return None
