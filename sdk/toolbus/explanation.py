"""What would become of a call: who would run it, or what would stop it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolbus.context import Participant

__all__ = ["Explanation"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The server's judgement of a call that was not made."""

    would_run: bool
    """Whether the call would be handed to a host now."""
    host: Participant | None = None
    """Who would run it; of several hosts the next call may meet another."""
    hosts: int = 0
    """How many connections serve the toolkit."""
    generation: int = 0
    """Counts the definitions that the toolkit's owner registered."""
    digest: str = ""
    """Names the definition that would run."""
    affinity: bool = False
    """Whether the tool keeps calls that belong together at one host."""
    node: str = ""
    """The server that the host is connected to, where several are one bus."""
    code: str = ""
    """The code of the error that the call would end with."""
    message: str = ""
    """The words of that error."""
    details: dict[str, Any] = field(default_factory=dict)
    """What that error says for programs."""

    @classmethod
    def from_wire(cls, body: Mapping[str, Any]) -> Explanation:
        """Read the server's answer."""
        if not body["would_run"]:
            return cls(False, code=body["code"], message=body["message"], details=body["details"])
        host = body["host"]
        return cls(
            True,
            host=Participant(host["id"], host["name"], host["role"], host["issuer"]),
            hosts=body["hosts"],
            generation=body["generation"],
            digest=body["digest"],
            affinity=body["affinity"],
            node=body.get("node", ""),
        )
