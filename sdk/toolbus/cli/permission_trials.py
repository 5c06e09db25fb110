"""What permissions would decide about calls that nobody makes: typed ones, and recorded ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from toolbus.auth.participant_names import full_name, is_alias
from toolbus.errors import RoomException
from toolbus.permissions.decision import PermissionDecision
from toolbus.records.call_record import CallRecord
from toolbus.records.recording import whole_arguments
from toolbus.tools.tool_run import LOCAL, Participant

__all__ = ["Judge", "Tally", "TriedCall", "named", "recorded_call", "tally"]

_MAX_ASKED = 1_000  # different inputs; each may take its host seconds
# An issuer that is not known here. What matters is only whether two are the same.
_ISSUER = "of-names-without-alias"


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    owner: str = ""
    issuer: str = ""
    alias: str = ""

    @property
    def own_name(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class _Context:
    caller: Participant
    on_behalf_of: Participant | None
    is_hosted: bool
    forwarded_for: Sequence[Participant] = ()


@dataclass(frozen=True, slots=True)
class TriedCall:
    """A call that is judged and not made."""

    tool: _Tool
    arguments: Mapping[str, Any]
    context: _Context

    @classmethod
    def of(
        cls,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        owner: Participant | None = None,
        caller: Participant = LOCAL,
        principal: Participant | None = None,
        at_host: bool = False,
    ) -> TriedCall:
        """Make one as the caller judges it, or the host, to which its tools are its own."""
        by = (owner.name, owner.issuer, owner.alias) if owner and not at_host else ()
        return cls(_Tool(tool, *by), arguments, _Context(caller, principal, at_host))

    @property
    def owner(self) -> str | None:
        """The owner of the toolkit as requests name it; None for one of this process."""
        return full_name(self.tool.owner, self.tool.alias) or None


Judge: TypeAlias = Callable[[TriedCall], Awaitable[PermissionDecision]]
"""Decides about a call. Raises `RoomException` if its tool cannot be asked."""


def named(text: str, sender: Participant | None = None, issuer: str = "") -> Participant:
    """Return a participant by its name or `alias/name`, as a sender writes it."""
    alias, slash, name = text.partition("/")
    if not slash or not is_alias(alias):
        alias, name = (sender.alias if sender is not None else ""), text
    if not issuer:
        is_own = sender is not None and sender.alias == alias and sender.issuer
        issuer = sender.issuer if is_own and sender is not None else alias or _ISSUER
    return Participant("", name, issuer=issuer, alias=alias)


def recorded_call(record: CallRecord, arguments: Mapping[str, Any], *, at_host: bool) -> TriedCall:
    """Return the call of a record."""
    caller = named(record.caller, None, record.issuer) if record.caller else LOCAL
    principal = None
    if record.principal:
        principal = named(record.principal, caller, record.principal_issuer)
    owner = named(record.owner, caller) if record.owner else None
    return TriedCall.of(
        record.tool,
        arguments,
        owner=owner,
        caller=caller,
        principal=principal,
        at_host=at_host,
    )


@dataclass(slots=True)
class Tally:
    """How recorded calls would have been decided."""

    decided: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Calls by tool, behavior, and what decided."""
    apart: Counter[str] = field(default_factory=Counter)
    """Calls that were not judged, by the reason."""

    def facts(self) -> dict[str, Any]:
        """Return it for `--json`."""
        keys = ("tool", "behavior", "by")
        decided = [
            {**dict(zip(keys, row, strict=True)), "calls": calls} for row, calls in self.rows()
        ]
        return {"decided": decided, "not_judged": dict(self.apart)}

    def rows(self) -> list[tuple[tuple[str, str, str], int]]:
        """Return what was decided, the most frequent first."""
        return sorted(self.decided.items(), key=lambda item: (-item[1], item[0]))


async def tally(records: Iterable[CallRecord], judge: Judge, *, at_host: bool) -> Tally:
    """Judge recorded calls that were let through, or that a person or permissions refused."""
    found = Tally()
    known: dict[tuple[str | None, ...], PermissionDecision | str] = {}
    for record in records:
        if not _came_to_permission(record):
            found.apart["they were refused for another reason"] += 1
            continue
        arguments = whole_arguments(record.arguments)
        if arguments is None:
            state = "cut" if record.arguments else "not kept"
            found.apart[f"their arguments were {state}"] += 1
            continue
        people = (record.caller, record.issuer, record.principal, record.principal_issuer)
        key = (record.tool, record.owner, record.arguments, *people)
        if key not in known and len(known) >= _MAX_ASKED:
            found.apart[f"beyond the first {_MAX_ASKED:,} different inputs"] += 1
            continue
        if key not in known:
            call = recorded_call(record, arguments, at_host=at_host)
            known[key] = await _decision(call, judge)
        decision = known[key]
        if isinstance(decision, str):
            found.apart[decision] += 1
        else:
            found.decided[record.tool, decision.behavior, decision.by] += 1
    return found


async def _decision(call: TriedCall, judge: Judge) -> PermissionDecision | str:
    try:
        return await judge(call)
    except RoomException as error:
        return f"their tools could not be asked ({error.code})"


def _came_to_permission(record: CallRecord) -> bool:
    by = record.decided_by.removeprefix("policy: ")  # of the host
    is_by_permission = by.startswith(("rule ", "mode ")) or by in (
        "person",
        "tool",
        "policy",
        "approval",
    )
    return record.decision == "allowed" or is_by_permission
