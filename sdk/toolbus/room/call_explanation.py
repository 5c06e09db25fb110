"""What would happen to a call: which host would run it, or which error would end it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolbus.errors import ERRORS, PermissionDenied, RoomException
from toolbus.permissions.assessment import Assessment
from toolbus.tools.tool_run import Participant

__all__ = ["CallExplanation"]


def _participant(facts: Mapping[str, Any]) -> Participant:
    identity = (facts["name"], facts["role"], facts["issuer"], facts.get("alias", ""))
    return Participant(facts["id"], *identity)


@dataclass(frozen=True, slots=True)
class CallExplanation:
    """The decision about a call that was not made: the server's, and that of the host's policy."""

    would_run: bool
    """Whether the call would be sent to a host now."""
    host: Participant | None = None
    """The host that would run it; with several hosts the next call may go to another one."""
    hosts: int = 0
    """How many connections serve the toolkit."""
    generation: int = 0
    """The number of the definition, counting those that the toolkit's owner registered."""
    digest: str = ""
    """The digest of the definition that would run."""
    affinity: bool = False
    """Whether the tool has an affinity: calls that belong together go to one host."""
    node: str = ""
    """The node that the host is connected to, if there are several."""
    assesses: bool = False
    """Whether that host answers `Room.assess` itself."""
    code: str = ""
    """The code of the error that the call would end with."""
    message: str = ""
    """The message of that error."""
    details: dict[str, Any] = field(default_factory=dict)
    """The details of that error."""
    assessment: Assessment | None = None
    """What the tool says about these arguments; None if it was not asked, or did not answer."""

    def error(self) -> RoomException:
        """Make the error that the call would end with."""
        kind = ERRORS.get(self.code, RoomException)
        return kind(self.message, executed="no", details=self.details)

    def assessed(self, assessment: Assessment, tool: str) -> CallExplanation:
        """Return this with what the tool says; a call that its policy refuses would not run."""
        if not assessment.refusal:
            return replace(self, assessment=assessment)
        return replace(
            self,
            would_run=False,
            code=PermissionDenied.code,
            message=f"the policy of its host refuses {tool}: {assessment.refusal}",
            details={"source": "policy"},
            assessment=assessment,
        )

    @classmethod
    def from_wire(cls, body: Mapping[str, Any]) -> CallExplanation:
        """Decode the server's reply."""
        if not body["would_run"]:
            return cls(False, code=body["code"], message=body["message"], details=body["details"])
        host = body["host"]
        return cls(
            True,
            host=_participant(host),
            hosts=body["hosts"],
            generation=body["generation"],
            digest=body["digest"],
            affinity=body["affinity"],
            node=body.get("node", ""),
            assesses=body.get("assesses") is True,
        )
