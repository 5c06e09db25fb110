"""What would become of a call: which host would run it, or what would stop it. Runs nothing."""

from __future__ import annotations

from typing import Any

from toolbus.errors import RoomException
from toolbus.wire import Explain
from toolbus_server.request_options import check_options
from toolbus_server.routing import Room, Router, Seat

__all__ = ["explain"]


def explain(router: Router, room: Room, caller: Seat, request: Explain) -> dict[str, Any]:
    """Judge a call as the router would, and say what it decided.

    Args:
        router: Judges it.
        room: The room it would be made in.
        caller: Who would make it.
        request: Names the tool, with the options of a call.
    """
    try:
        check_options(request.options)
        toolkit, tool, _, host = router.judge(room, caller, request, request.options)
    except RoomException as error:
        facts = {"code": error.code, "message": error.message, "details": error.details}
        return {"would_run": False, **facts}
    member, share = host.member, room.share
    return {
        "would_run": True,
        **({} if share is None else {"node": member.node or share.node}),
        "host": {
            "id": member.id,
            "name": member.identity.name,
            "role": member.role,
            "issuer": member.identity.issuer,
        },
        "hosts": len(toolkit.serving.hosts),
        "generation": toolkit.serving.number,
        "digest": toolkit.serving.definition.digest,
        "affinity": tool.affinity != "none",
    }
