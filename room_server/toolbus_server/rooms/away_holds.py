"""The holds of one room whose callers have lost their connections (PROTOCOL.md, HOLD-19).

The caller may make the call again under the same id. Until then a person may decide about it, and
the decision waits. It is used once, for a hold that asks the same: nothing runs without its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from toolbus.errors import QuotaExceeded
from toolbus_server import identity_usage
from toolbus_server.calls.call_state import CallHold, HeldTool
from toolbus_server.calls.holds import AWAY_S, SETTLED_S, may_settle, note_read
from toolbus_server.identity_usage import IdentityUsage
from toolbus_server.registry.models import Participant

__all__ = ["AwayHold", "AwayHolds"]


@dataclass(slots=True, eq=False)
class AwayHold:
    """A hold whose caller is away, and what was decided about it."""

    hold: CallHold
    caller: Participant
    """As it was on the connection that was lost."""
    asked: tuple[Any, ...]
    """All that a decision is about: the body too, as a preview may differ."""
    usage: IdentityUsage
    """That of the host: decisions count as what it asks."""
    timer: asyncio.TimerHandle
    """Ends it, and once somebody has decided, the decision."""
    approver: Participant | None = None
    decision: bytes = b""
    """The packed reply for the host; empty until somebody has decided."""

    def decision_about(self, hold: CallHold) -> bytes:
        """Return what decides the hold of a later attempt of the call, and note who did; or empty.

        It asks the same, and who has decided may still do so.
        """
        if self.asked != _asked(hold):
            return b""
        former = self.hold
        for reader in former.read_by:
            note_read(hold, reader)
        if self.approver is None or not may_settle(self.approver, hold):
            return b""
        hold.by, hold.answer, hold.reason = former.by, former.answer, former.reason
        hold.is_changed = former.is_changed
        return self.decision


class AwayHolds:
    """The holds of one room whose callers are away, by their calls.

    Args:
        loop: The event loop.
        withdraw: Ends an open hold: its caller is back, or has not come back in time.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, withdraw: Callable[[CallHold], None]
    ) -> None:
        self._loop = loop
        self._withdraw = withdraw
        self._of_calls: dict[Any, AwayHold] = {}

    def add(self, hold: CallHold, caller: Participant) -> None:
        """Add an open hold of a call that has ended, and whose host was answered."""
        self.end(hold.tool)
        asker, ends_at = hold.open_connection, self._loop.time() + AWAY_S
        # It ends with its host, which may use the id of its request again.
        asker.asked[-hold.number] = asker.asked.pop(hold.request_id)
        hold.request_id = -hold.number
        hold.is_away, hold.ends_at = True, min(hold.ends_at, ends_at)
        timer = self._loop.call_at(ends_at, self.end, hold.tool)
        away = AwayHold(hold, caller, _asked(hold), asker.usage, timer)
        self._of_calls[_call_of(hold.tool)] = away

    def end(self, tool: HeldTool) -> AwayHold | None:
        """End and return that of an earlier attempt of a call: a decision counts once."""
        away = self._of_calls.pop(_call_of(tool), None)
        if away is not None:
            away.timer.cancel()
            away.usage.held_bytes -= len(away.decision)
            if not away.hold.ended:
                self._withdraw(away.hold)
        return away

    def decide(self, hold: CallHold, approver: Participant, decision: bytes) -> None:
        """Store what was decided about a hold. Raises QuotaExceeded."""
        away = self._of_calls[_call_of(hold.tool)]
        held_bytes = away.usage.held_bytes - len(hold.body) + len(decision)
        if held_bytes > identity_usage.MAX_HELD_BYTES:
            raise QuotaExceeded("too much waits for callers of the hosts of this identity")
        away.approver, away.decision = approver, decision
        away.usage.held_bytes += len(decision)
        away.timer.cancel()
        ends_at = self._loop.time() + SETTLED_S
        away.timer = self._loop.call_at(ends_at, self.end, hold.tool)

    def hold_ended(self, hold: CallHold) -> None:
        """Remove a hold that has ended, unless a decision about it is stored."""
        away = self._of_calls.get(_call_of(hold.tool))
        if away is not None and away.hold is hold and not away.decision:
            self.end(hold.tool)

    def remove(self, matches: Callable[[Participant], bool]) -> None:
        """End those whose caller, or who has decided, was removed or has a revoked token."""
        for away in list(self._of_calls.values()):
            if matches(away.caller) or (away.approver is not None and matches(away.approver)):
                self.end(away.hold.tool)


def _call_of(tool: HeldTool) -> Any:
    assert tool.caller is not None, "somebody makes the call"
    return tool.caller.identity, tool.call_id


def _asked(hold: CallHold) -> tuple[Any, ...]:
    body = sha256(hold.body).digest()
    return hold.kind, hold.digest, body, hold.tool.names, hold.tool.asked_for, hold.asked_by
