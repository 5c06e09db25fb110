"""Asks in a room whether a call of a turn may run: `Turn(approve="room")`.

The server shows the question, as one of the agent's own, to those who may approve the call
(PROTOCOL.md, HOLD-12). It names the call that the turn serves, so that the server knows for whom it
is, and lets the time of that call stand still. What is shown is what was judged, packed: the call
is sent with these bytes, and is pinned to the definition that they were judged for.
"""

from __future__ import annotations

from dataclasses import replace

from toolbus.bounded_logging import bounded_logger
from toolbus.client.held_calls import HeldCall, report_held
from toolbus.errors import ApprovalExpired, PermissionDenied, RoomException, Unavailable
from toolbus.room.room import Room, ask_before_call
from toolbus.tools.approvals import ApprovalDecision, ApprovalDemand, Judged, decision_of
from toolbus.turns.turn_calls import TurnCall

__all__ = ["ask_in_room"]

_logger = bounded_logger(__name__)


async def ask_in_room(
    room: Room, call: TurnCall, judged: Judged, timeout_s: float | None
) -> ApprovalDecision:
    """Ask who may approve a call, and return the decision.

    Meanwhile its time stands still, and that of the call that its turn serves. If this task is
    cancelled, the question is withdrawn.

    Raises:
        PermissionDenied: The server cannot ask anybody, or its answer cannot be read.
        ApprovalExpired: Nobody has decided in time.
        TooLarge: There is more to be shown than fits.
        RoomException: The question could not be asked; executed "no".
    """
    dispatch, options = call.entry.dispatch, call.options
    demand = ApprovalDemand(judged, timeout_s=timeout_s, has_input=options.has_input)
    kind, digest, body, named = demand.to_wire(dispatch.digest)
    named |= {"tool": call.entry.info.name, "call_id": call.id, "definition": dispatch.digest}
    named |= dispatch.asked_as
    if options.purpose is not None:
        named["purpose"] = options.purpose
    held = HeldCall("", named["tool"])
    ended = replace(held, outcome="cancelled")
    call.pause()
    report_held(options.on_held, held)
    try:
        reply = await ask_before_call(room, kind, digest, body, named)
        is_changed = reply.get("arguments") is not None
        ended = replace(held, outcome=reply["outcome"], changed=is_changed)
    except RoomException as error:
        error.executed = "no"
        if isinstance(error, ApprovalExpired):
            ended = replace(held, outcome="expired")
        if not isinstance(error, Unavailable) or error.retryable:
            raise
        # An older server, or one that cannot do it: it is no failure of the call.
        _logger.warning("nobody is asked about %s: %s", named["tool"], error.message)
        text = f"{judged.decision.reason} Nobody has decided: {error.message}."
        raise PermissionDenied(text, executed="no", details={"cause": "Unavailable"}) from error
    finally:
        call.resume()
        report_held(options.on_held, ended)
    return decision_of(reply)
