"""Participants, their messages, and the toolkits that they build on request.

Values only, as lists, events and messages contain them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolbus.auth.participant_names import full_name
from toolbus.tools.tool_run import Participant
from toolbus.wire import unpack_body

__all__ = ["BuilderInfo", "Message", "ParticipantInfo"]


@dataclass(frozen=True, slots=True)
class ParticipantInfo:
    """A participant as lists and events show it."""

    id: str
    """The id of the connection; two connections of one name have two ids."""
    name: str
    """The token's `sub`."""
    role: str
    """The token's role."""
    issuer: str
    """The token's `iss`; name and issuer together are the identity."""
    attributes: Mapping[str, Any]
    """The attributes that it published, unchecked. Empty if it has left."""
    since: float
    """When it joined, in seconds since the epoch, by the server's clock."""
    alias: str = ""
    """The alias of its issuer, where the server has several; else empty."""

    @property
    def full_name(self) -> str:
        """What requests name it by, and people see: `alias/name`, or the name without an alias."""
        return full_name(self.name, self.alias)

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
            alias=summary.get("alias", ""),
        )


@dataclass(frozen=True, slots=True)
class Message:
    """A message from a participant to one name or to all."""

    sender: Participant
    """The sender, as the server verified it."""
    name: str
    """The kind of message, chosen by the sender."""
    body: Any
    """A JSON value, unchecked."""
    direct: bool
    """Whether it was sent to this participant's name; otherwise it was a broadcast."""
    builders: tuple[str, ...] = ()
    """The sender's grant `agents.builders`: which toolkits it may ask an agent to build."""

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Message:
        """Decode a message. Raises BadBody for an invalid body."""
        return cls(
            sender=Participant(*unpack_body(data["from"])[:5]),
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
    """What the toolkit is for."""
    schema: Mapping[str, Any]
    """The JSON Schema of its configs."""

    @classmethod
    def from_wire(cls, offer: Mapping[str, Any]) -> BuilderInfo:
        """Decode an offer of a builder. A schema that is not an object restricts nothing."""
        schema = offer["schema"]
        return cls(offer["name"], offer["description"], schema if isinstance(schema, dict) else {})

    def to_wire(self) -> dict[str, Any]:
        """Encode it for the server."""
        return {"name": self.name, "description": self.description, "schema": self.schema}
