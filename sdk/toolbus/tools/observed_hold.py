"""What the record of a call shows of a question to a person: who decided what, and the wait.

For hosts and turns alike; used around the wait for the answer.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from toolbus.errors import ApprovalExpired, PermissionDenied
from toolbus.records.call_record import Settlement
from toolbus.tools.approvals import ApprovalDecision

if TYPE_CHECKING:  # most programs record nothing
    from toolbus.records.recording import Recording

__all__ = ["ObservedHold"]


class ObservedHold:
    """One question to a person, from asking to the answer; a context manager around that.

    Args:
        recording: The record of the call; None if there is none.
    """

    __slots__ = ("_began", "_recording", "_settlement")

    def __init__(self, recording: Recording | None) -> None:
        self._recording = recording
        self._settlement: Settlement | None = None
        self._began = monotonic()

    def settle(self, decision: Any) -> None:
        """Keep what was decided."""
        if isinstance(decision, ApprovalDecision):  # else the approver made a mistake
            self._settlement = _settlement_of(decision)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if isinstance(error, PermissionDenied):
            return  # nobody could be asked
        settlement = self._settlement
        if isinstance(error, ApprovalExpired):
            settlement = Settlement("expired")
        if self._recording is not None:
            self._recording.settle(settlement, monotonic() - self._began)


def _settlement_of(decision: ApprovalDecision) -> Settlement:
    if not decision.is_allowed:
        return Settlement("denied", decision.by, decision.reason)
    granted = ""
    if decision.scope == "state":
        granted = ", ".join(map(str, decision.rules)) or "exactly these arguments"
    outcome = "approved" if decision.arguments is None else "changed"
    return Settlement(outcome, decision.by, granted=granted)
