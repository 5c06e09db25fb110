"""Who calls in a turn, for whom, and through which room."""

from __future__ import annotations

from dataclasses import dataclass

from toolbus.agents.turn_options import TurnOptions
from toolbus.errors import PermissionDenied
from toolbus.room.room import Room
from toolbus.room.room_client import RoomClient
from toolbus.tools.tool_run import Participant

__all__ = ["TurnScope"]


@dataclass(frozen=True, slots=True, eq=False)
class TurnScope:
    """The participants and the room of an entered turn."""

    room: RoomClient
    """The agent's room."""
    agent: Participant
    sender: Participant | None
    """The principal of all calls; None is the agent itself."""
    principal: str | None
    """The name of that principal."""

    @classmethod
    def of(cls, options: TurnOptions) -> TurnScope:
        """Find the participants of a turn. Raises `PermissionDenied` as `_principal` does."""
        agent = options.room.me
        sender = None if options.message is None else options.message.sender
        principal = _principal(agent, sender)
        return cls(options.room, agent, None if principal is None else sender, principal)

    def view(self, deadline_at: float | None = None) -> Room:
        """Return the room of a call that ends at a time by the loop's clock."""
        return Room(self.room._core, self.room._parent, deadline_at, self.principal)


def _principal(agent: Participant, sender: Participant | None) -> str | None:
    """Return the name on whose behalf the calls of a turn are made; None is the agent itself.

    Raises:
        PermissionDenied: The sender is of another issuer, of which the server gives no alias: its
            bare name would mean a participant of the agent's issuer.
    """
    if sender is None or (sender.name, sender.issuer or agent.issuer) == (agent.name, agent.issuer):
        return None
    if sender.issuer not in ("", agent.issuer) and not sender.alias:
        raise PermissionDenied(
            "the sender is of another issuer, for which the server gives no alias: no calls on its"
            " behalf"
        )
    return sender.full_name
