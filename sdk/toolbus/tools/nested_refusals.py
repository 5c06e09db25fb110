"""The part of a refused nested call that the caller of its tool receives (ERR-9).

The server decides whether the name of the refused tool may be part of it. It is checked here, since
an error that a tool raises may contain anything.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from toolbus.errors import PermissionDenied, RoomException, ToolFailed

__all__ = ["refusal_message", "refused_call"]

_GRANT = "agents.call"
_LACKING = MappingProxyType(
    {
        "host": "the host that made a nested call",
        "principal": "the participant that the call is made for",
    }
)
_TOOL = re.compile(r"[a-z][a-z0-9_-]{0,63}\.[A-Za-z0-9_-]{1,64}")


def refused_call(error: RoomException) -> dict[str, str] | None:
    """Return the facts about a refused call that may be sent on; None if there are none.

    Args:
        error: What a tool raised: the refusal, or the failure of a tool that it had called. The
            latter loses the name of the tool, which only its own caller may see.
    """
    details = error.details if isinstance(error.details, dict) else {}
    facts = details.get("refused") if isinstance(error, ToolFailed) else details
    if not isinstance(error, PermissionDenied | ToolFailed) or not isinstance(facts, dict):
        return None
    lacks, tool = facts.get("lacks"), facts.get("tool")
    if facts.get("grant") != _GRANT or not isinstance(lacks, str) or lacks not in _LACKING:
        return None
    known = {"grant": _GRANT, "lacks": lacks}
    if isinstance(error, PermissionDenied) and isinstance(tool, str) and _TOOL.fullmatch(tool):
        known["tool"] = tool
    return known


def refusal_message(facts: dict[str, str]) -> str:
    """Return the facts of `refused_call` as text."""
    tool = facts.get("tool", "a tool that you may not see")
    return f"{_LACKING[facts['lacks']]} has no grant to call {tool} (agents.call, agents.allow)"
