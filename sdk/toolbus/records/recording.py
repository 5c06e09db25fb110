"""The record of one call while it runs. Works around any call, local or remote."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from toolbus.errors import Executed, RoomException
from toolbus.records.call_record import (
    OK,
    CallRecord,
    Decision,
    Settlement,
    decision_of,
    stored,
)
from toolbus.telemetry.propagation import current_trace_id
from toolbus.untrusted_text import json_text

__all__ = ["MAX_ARGUMENT_CHARS", "Identified", "Recording", "whole_arguments"]

MAX_ARGUMENT_CHARS = 2_000
"""Of arguments, as JSON: each call would add up to a megabyte to a file of records."""
_MAX_ITEMS, _MAX_STRING, _MAX_INT_BITS = 50, 500, 64
_UNSETTLED = Settlement("")


class Identified(Protocol):
    """A participant, as far as records need it."""

    @property
    def full_name(self) -> str:
        """The name, with the alias of its issuer if it has one."""

    @property
    def issuer(self) -> str:
        """The issuer of its token."""


class Recording:
    """One call from its start to its end; made by `Records.recording`.

    Use it as a context manager around the call, or call `end`. Only the first end counts. An
    exception of the block passes on: a `RoomException` is recorded with its code, the end of the
    task as `cancelled`, any other as `tool_failed`. Nothing here raises because a record cannot be
    stored.
    """

    __slots__ = (
        "_began",
        "_caller",
        "_decided",
        "_keeps_arguments",
        "_principal",
        "_put",
        "_reached_owner",
        "_settled_at",
        "_settlement",
        "_started_at",
        "_tool",
        "_waited_s",
        "arguments",
        "call_id",
        "digest",
        "ended",
        "executed",
        "owner",
        "trace_id",
    )

    def __init__(
        self,
        put: Callable[[CallRecord], None],
        tool: str,
        *,
        caller: Identified | None = None,
        principal: Identified | None = None,
        call_id: str = "",
        keeps_arguments: bool = False,
    ) -> None:
        self._put = put
        self._tool = tool
        self._caller = caller
        self._principal = principal
        self._keeps_arguments = keeps_arguments
        self._decided: tuple[Decision, str] | None = None
        self._reached_owner: str | None = None
        self._settlement = _UNSETTLED
        self._settled_at: float | None = None
        self._waited_s = 0.0
        self._started_at = time.time()
        self._began = time.monotonic()
        self.call_id: str = call_id
        """The id of the call."""
        self.owner: str = ""
        """Who hosts the toolkit."""
        self.digest: str = ""
        """The digest of the toolkit's definition."""
        self.trace_id: str = ""
        """The trace of the call; by default the current one at its end."""
        self.arguments: str | None = None
        """The kept arguments, as JSON."""
        self.executed: Callable[[], Executed] | None = None
        """Returns whether the tool's function ran, for a call that ends without a `RoomException`.

        By default "yes" for a call that returned, and "maybe" for any other.
        """
        self.ended: bool = False
        """Whether the call has been recorded."""

    def keep_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Keep the arguments, cut, if the records keep arguments at all."""
        if not self._keeps_arguments:
            return
        try:
            text = json_text(_cut_value(arguments, [_MAX_ITEMS]))
        except Exception:  # code of the caller's own classes
            text = "<not readable>"
        if len(text) > MAX_ARGUMENT_CHARS:
            text = text[: MAX_ARGUMENT_CHARS - 1] + "…"
        self.arguments = text

    def reach(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, owner: str = ""
    ) -> None:
        """Record the call as one of the tool that it reaches, because its own tool only forwards.

        So who looks for the calls of a tool finds them whichever way they came. The digest is not
        known then.

        Args:
            tool: The reached tool, `toolkit.tool`.
            arguments: Those that it gets.
            owner: Who hosts it, where that is known.
        """
        self._tool = tool
        self._reached_owner = owner
        self.keep_arguments(arguments or {})

    def decide(self, decision: Decision, by: str) -> None:
        """Set what was decided about the call, and what decided. By default its end implies it."""
        self._decided = decision, by

    def settle(self, settlement: Settlement | None, waited_s: float) -> None:
        """Set what a person decided about the call, if one did, after a wait of so many seconds."""
        self._waited_s += waited_s
        if settlement is not None:
            self._settlement = Settlement(*map(stored, settlement))
            self._settled_at = time.time()

    def end(self, error: BaseException | None = None) -> None:
        """Record that the call has ended: with an error, or None for its result."""
        if isinstance(error, RoomException):
            self.end_with(error.code, error.executed)
            return
        outcome = "tool_failed"
        usual: Executed = "maybe"
        if error is None:
            outcome, usual = OK, "yes"
        elif isinstance(error, asyncio.CancelledError):
            outcome = "cancelled"
        self.end_with(outcome, usual if self.executed is None else self.executed())

    def end_with(self, outcome: str, executed: Executed) -> None:
        """Record that the call has ended, by its outcome and whether the function ran."""
        if self.ended:
            return
        self.ended = True
        decision, by = self._decided or decision_of(outcome, executed)
        caller, issuer = _identity(self._caller)
        principal, principal_issuer = _identity(self._principal)
        owner, digest, settlement = self.owner, self.digest, self._settlement
        if self._reached_owner is not None:
            owner, digest = self._reached_owner, ""
        self._put(
            CallRecord(
                tool=stored(self._tool),
                started_at=self._started_at,
                duration_s=time.monotonic() - self._began,
                outcome=stored(outcome),
                executed=executed,
                caller=caller,
                issuer=issuer,
                principal=principal,
                principal_issuer=principal_issuer,
                call_id=stored(self.call_id),
                owner=stored(owner),
                digest=stored(digest),
                decision=decision,
                decided_by=stored(by),
                trace_id=self.trace_id or current_trace_id(),
                arguments=self.arguments,
                settled=settlement.outcome,
                settled_by=settlement.by,
                settled_at=self._settled_at,
                settled_reason=settlement.reason,
                granted=settlement.granted,
                waited_s=self._waited_s,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self.end(error)


def _identity(who: Identified | None) -> tuple[str, str]:
    """Return the name and the issuer of a participant; empty for none."""
    if who is None:
        return "", ""
    return stored(who.full_name), stored(who.issuer)


def whole_arguments(recorded: str | None) -> dict[str, Any] | None:
    """Return the arguments of a record; None if they were not kept, or something of them is cut.

    A text that ends where texts are cut, with their mark, counts as cut.
    """
    try:
        found = json.loads(recorded or "null")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and not _is_cut(found) else None


def _is_cut(value: Any) -> bool:
    """Whether `_cut_value` may have left something out; it has bounded the depth."""
    if isinstance(value, dict):
        return any(
            name == "…" or len(name) >= _MAX_STRING or _is_cut(member)
            for name, member in value.items()
        )
    if isinstance(value, list):
        return any(map(_is_cut, value))
    if not isinstance(value, str):
        return False
    is_placeholder = value.startswith("<") and value.endswith(">") and value[1:-1].isidentifier()
    return is_placeholder or value == "…" or (len(value) == _MAX_STRING and value[-1] == "…")


def _cut_value(value: Any, left: list[int]) -> Any:
    """Copy a value; `left` counts the items that may still be copied.

    So the effort and the depth are bounded, whatever the arguments are.
    """
    if isinstance(value, str):
        return value if len(value) <= _MAX_STRING else value[: _MAX_STRING - 1] + "…"
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and value.bit_length() <= _MAX_INT_BITS:
        return value
    if not isinstance(value, Mapping | list | tuple):
        return f"<{type(value).__name__}>"
    if isinstance(value, Mapping):
        members: dict[str, Any] = {}
        for name, member in value.items():
            if left[0] == 0:
                members["…"] = len(value)
                break
            left[0] -= 1
            members[str(name)[:_MAX_STRING]] = _cut_value(member, left)
        return members
    items: list[Any] = []
    for item in value:
        if left[0] == 0:
            items.append("…")
            break
        left[0] -= 1
        items.append(_cut_value(item, left))
    return items
