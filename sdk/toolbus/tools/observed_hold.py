"""What the record and the trace of a call show of a question to a person.

For hosts and turns alike; used around the wait for the answer.

    host INTERNAL  execute_tool pay      the span of the call; in a turn that of its own call
      host INTERNAL  hold                from asking to the answer
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from toolbus.errors import ApprovalDenied, ApprovalExpired, PermissionDenied, RoomException
from toolbus.records.call_record import Settlement
from toolbus.telemetry.attributes import HOLD, OTHER, hold_attributes, settlement_attributes
from toolbus.tools.approvals import ApprovalDecision, decider_of, decision_of

if TYPE_CHECKING:  # most programs record nothing
    from toolbus.records.recording import Recording
    from toolbus.telemetry.recorder import SpanRecorder

__all__ = ["ObservedHold"]


class ObservedHold:
    """One question to a person, from asking to the answer; a context manager around that.

    Args:
        recording: The record of the call; None if there is none.
        recorder: Records the span, below the current one; None if nothing does.
        kind: What is asked for.
    """

    __slots__ = ("_began", "_recording", "_settlement", "_span", "hold")

    def __init__(
        self,
        recording: Recording | None,
        recorder: SpanRecorder | None = None,
        kind: str = "approve",
    ) -> None:
        self._recording = recording
        self._settlement: Settlement | None = None
        self.hold: str = ""
        """The id of the hold, once it is known."""
        self._span: trace.Span | None = None
        if recorder is not None and trace.get_current_span().is_recording():
            self._span = recorder.start_span(HOLD, SpanKind.INTERNAL, (hold_attributes(kind),))
        self._began = monotonic()

    def read(self, reply: Mapping[str, Any]) -> None:
        """Keep what was decided elsewhere, as the server sends it. Raises as `decision_of`."""
        if reply["outcome"] in ("approved", "denied"):
            self.settle(decision_of(reply))
        else:
            self.answered(decider_of(reply))
            self.hold = reply.get("hold", "")

    def answered(self, by: str = "") -> None:
        """Keep that a question was answered with a value."""
        self._settlement = Settlement("answered", by)

    def settle(self, decision: Any) -> None:
        """Keep what was decided."""
        if isinstance(decision, ApprovalDecision):  # else the approver made a mistake
            self._settlement, self.hold = _settlement_of(decision), decision.hold

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if isinstance(error, PermissionDenied):
            return  # nobody could be asked
        settlement = self._settlement
        if isinstance(error, ApprovalExpired):
            settlement = Settlement("expired")
            self.hold = error.details.get("hold", "")
        if isinstance(error, ApprovalDenied):  # by a function that answers in this process
            settlement = Settlement("denied")
        if self._recording is not None:
            self._recording.settle(settlement, monotonic() - self._began)
        if self._span is not None:
            outcome, by = (_end_of(error), "") if settlement is None else settlement[:2]
            self._span.set_attributes(settlement_attributes(self.hold, outcome, by))
            self._span.end()


def _end_of(error: BaseException | None) -> str:
    if isinstance(error, RoomException):
        return error.code
    return "cancelled" if isinstance(error, CancelledError) else OTHER


def _settlement_of(decision: ApprovalDecision) -> Settlement:
    if not decision.is_allowed:
        return Settlement("denied", decision.by, decision.reason)
    granted = ""
    if decision.scope == "state":
        granted = ", ".join(map(str, decision.rules)) or "exactly these arguments"
    outcome = "approved" if decision.arguments is None else "changed"
    return Settlement(outcome, decision.by, granted=granted)
