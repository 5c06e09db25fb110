"""Who is in a room, what they say to each other, and what they build on request.

Values only, as lists, events and messages bring them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolbus.context import Participant
from toolbus.wire import unpack_body

__all__ = ["BuilderInfo", "Message", "ParticipantInfo"]


@dataclass(frozen=True, slots=True)
class ParticipantInfo:
    """A participant as lists and events show it."""

    id: str
    """This connection: another one of the same name has another id."""
    name: str
    """The token's `sub`."""
    role: str
    """The token's role."""
    issuer: str
    """The token's `iss`; name and issuer together are the identity."""
    attributes: Mapping[str, Any]
    """What it says of itself; nobody has checked it. Empty where it has left."""
    since: float
    """When it came, in seconds since the epoch, by the server's clock."""

    @classmethod
    def from_wire(cls, summary: Mapping[str, Any]) -> ParticipantInfo:
        """Read a participant as the server sends it."""
        return cls(
            id=summary["id"],
            name=summary["name"],
            role=summary["role"],
            issuer=summary["issuer"],
            attributes=summary["attributes"],
            since=summary["since"] / 1000,
        )


@dataclass(frozen=True, slots=True)
class Message:
    """What a participant said to me, or to all."""

    sender: Participant
    """Who sent it, by the server's own tables."""
    name: str
    """What kind of message it is, as its sender calls it."""
    body: Any
    """What it says: a JSON value. Nobody has checked it."""
    direct: bool
    """Whether it was sent to my name; else it was for everybody."""
    builders: tuple[str, ...] = ()
    """The sender's grant `agents.builders`: which toolkits it may ask an agent to build."""

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Message:
        """Read a message as the server passes it on. Raises BadBody where its body is none."""
        return cls(
            sender=Participant(*unpack_body(data["from"])[:4]),
            name=data["name"],
            body=unpack_body(data["body"]),
            direct=data["direct"],
            builders=tuple(data["builders"]),
        )


@dataclass(frozen=True, slots=True)
class BuilderInfo:
    """A toolkit that a participant builds on request."""

    name: str
    """The toolkit's name."""
    description: str
    """What it is for."""
    schema: Mapping[str, Any]
    """The JSON Schema of its configs."""

    @classmethod
    def from_wire(cls, offer: Mapping[str, Any]) -> BuilderInfo:
        """Read an offer as the server tells it."""
        return cls(offer["name"], offer["description"], offer["schema"])

    def to_wire(self) -> dict[str, Any]:
        """Return it as the server is told."""
        return {"name": self.name, "description": self.description, "schema": self.schema}
