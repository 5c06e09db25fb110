"""Whether the text of a tool's exception goes to its caller, and in which form.

An exception comes from code that its author did not write for callers: its text may be of any
length, contain anything, or not be available at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from toolbus.chunks.json_values import cut, shown
from toolbus.errors import PermissionDenied, ToolFailed
from toolbus.untrusted_text import one_line, printable
from toolbus.wire.error_frames import MAX_MESSAGE_CHARS

__all__ = ["SentErrors", "checked_errors", "described", "refusal_message", "refused_call"]

_GRANT = "agents.call"
_LACKING = MappingProxyType(
    {
        "host": "the host that made a nested call",
        "principal": "the participant that the call is made for",
    }
)
_TOOL = re.compile(r"[a-z][a-z0-9_-]{0,63}\.[A-Za-z0-9_-]{1,64}")


_MAX_MEMBERS = 8
"""Of a group of exceptions, whose texts are sent: a message has 4,096 characters (ERR-7)."""
_MAX_GROUPS = 64
"""Groups and members that are looked at: a tool may raise thousands, one within another."""


def refused_call(error: BaseException) -> dict[str, str] | None:
    """Return the facts about a refused call that may be sent on; None if there are none.

    Args:
        error: What a tool raised: the refusal, or the failure of a tool that it had called. The
            latter loses the name of the tool, which only its own caller may see.
    """
    match error:
        case ToolFailed(details={"refused": dict() as facts}):
            pass
        case PermissionDenied(details=dict() as facts):
            pass
        case _:
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


SentErrors: TypeAlias = Literal["text", "class"]
"""What a caller gets of an exception: its class and its text, or its class alone."""


def checked_errors(value: Any, label: str) -> SentErrors | None:
    """Return the value of an option `errors`. Raises `ValueError` for any other value."""
    if value is not None and value not in ("text", "class"):
        raise ValueError(f"{label}: errors must be 'text', 'class' or None, not {shown(value)}")
    return cast("SentErrors | None", value)


def described(error: BaseException, *, with_text: bool) -> tuple[str, dict[str, Any]]:
    """Return the message for the caller of a tool that raised an exception, and the details.

    The text is escaped and cut, so that the message has at most `MAX_MESSAGE_CHARS`. It comes after
    the words of this library; `details["text"]` is the text alone, which marks it as the tool's.
    """
    cause = one_line(cut(type(error).__name__))
    message = f"the tool raised {cause}"
    text = _text_of(error) if with_text else ""
    if not text:
        return message, {"cause": cause}
    text = printable(text, MAX_MESSAGE_CHARS - len(message) - 2)
    return f"{message}: {text}", {"cause": cause, "text": text}


def _text_of(error: BaseException) -> str:
    """Return the text of an exception, and of members of a group; empty if it cannot be made."""
    try:
        # The method of `str` itself: the text may be of a subclass, whose methods may do anything.
        text = str.__str__(str(error)).strip()
        if isinstance(error, BaseExceptionGroup):
            # What a `TaskGroup` raises says nothing by itself.
            leaves = islice(_leaves(error), _MAX_MEMBERS)
            # A refused nested call names a tool, which this caller may not see.
            described_ones = (described(leaf, with_text=not refused_call(leaf)) for leaf in leaves)
            text = "; ".join([text, *(message for message, _ in described_ones)])
        return text
    except KeyboardInterrupt:  # somebody wants the program to end
        raise
    except BaseException:  # of its `__str__`: any exception, also SystemExit and RecursionError
        return ""


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    """Yield the exceptions of a group that are no groups, up to a number of groups."""
    pending: list[BaseException] = [group]
    for _ in range(_MAX_GROUPS):
        if not pending:
            return
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending += error.exceptions[:_MAX_GROUPS][::-1]
        else:
            yield error
