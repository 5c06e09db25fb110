"""The packed form of a hold, as nodes exchange it. Pure.

It has all that other nodes list, and decide by who may settle it. The body stays at the node of the
host; only of rules that were granted, which lists show in full, it is there too.
"""

from __future__ import annotations

from math import inf
from typing import Any, cast

from toolbus.errors import RoomException
from toolbus.wire import pack_body, unpack_body
from toolbus_server.calls.call_state import CallHold, HeldTool, HoldKeeper, ShownParticipant
from toolbus_server.calls.holds import OTHERS
from toolbus_server.registry.models import Identity, RegisteredToolkit, Visibility

__all__ = ["pack_hold", "unpack_hold"]


def pack_hold(hold: CallHold, now: float) -> bytes:
    """Pack a hold of this node by position; new fields go at the end."""
    tool = hold.tool
    left_ms = None if hold.ends_at == inf else max(0, int((hold.ends_at - now) * 1000))
    return pack_body(
        [
            hold.id,
            hold.kind,
            hold.outcome,
            _pack_visibility(tool.toolkit),
            list(tool.names),
            list(tool.owner),
            tool.definition,
            _pack_shown(tool.caller),
            list(tool.asked_for),
            _pack_shown(tool.principal),
            list(map(_pack_shown, tool.forwarded_for)),
            tool.call_id,
            tool.purpose,
            list(hold.asked_by),
            hold.is_own,
            hold.digest,
            list(hold.approvers),
            int((now - hold.opened_at) * 1000),
            left_ms,
            hold.replaces,
            _pack_shown(hold.by),
            hold.reason,
            hold.is_changed,
            hold.body if hold.kind == "granted" else b"",
            hold.is_away,
        ]
    )


def _pack_visibility(toolkit: RegisteredToolkit | Visibility | None) -> list[Any] | None:
    if toolkit is None:
        return None
    seen = toolkit.visibility if isinstance(toolkit, RegisteredToolkit) else toolkit
    return [seen.public, *seen.owner, sorted(seen.shared_with)]


def _pack_shown(shown: ShownParticipant | None) -> list[Any] | None:
    return None if shown is None else [*shown.identity, shown.shown]


def unpack_hold(packed: bytes, node: str, keeper: HoldKeeper, now: float) -> CallHold:
    """Unpack a hold of another node. Raises `ValueError`."""
    try:
        fields: list[Any] = unpack_body(packed, binary=True)
        left_ms, approvers = fields[18], tuple(fields[16])
        tool = HeldTool(
            _visibility(fields[3]),
            cast("tuple[str, str]", tuple(fields[4])),
            Identity(*fields[5]),
            fields[6],
            _shown(fields[7]),
            Identity(*fields[8]),
            _shown(fields[9]),
            tuple(ShownParticipant(Identity(*row[:2]), row[2]) for row in fields[10]),
            fields[11],
            fields[12],
        )
        return CallHold(
            id=fields[0],
            number=0,
            keeper=keeper,
            kind=fields[1],
            tool=tool,
            asked_by=Identity(*fields[13]),
            asker=None,
            request_id=0,
            call=None,
            is_own=fields[14],
            digest=fields[15],
            body=fields[23],
            approvers=approvers,
            named=frozenset(approvers) - {OTHERS},
            opened_at=now - fields[17] / 1000,
            ends_at=inf if left_ms is None else now + left_ms / 1000,
            node=node,
            replaces=fields[19],
            outcome=fields[2],
            by=_shown(fields[20]),
            reason=fields[21],
            is_changed=fields[22],
            is_away=len(fields) > 24 and fields[24],  # not from nodes of an older version
        )
    except (TypeError, LookupError, AttributeError, RoomException) as error:
        raise ValueError(f"it has another form than nodes write: {error}") from error


def _visibility(fields: list[Any] | None) -> Visibility | None:
    if fields is None:
        return None
    return Visibility(fields[0], Identity(*fields[1:3]), frozenset(fields[3]))


def _shown(fields: list[Any] | None) -> ShownParticipant | None:
    return None if fields is None else ShownParticipant(Identity(*fields[:2]), fields[2])
