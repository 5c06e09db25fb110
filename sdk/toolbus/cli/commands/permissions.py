"""`toolbus permissions`: checks rule files, and shows what they would decide.

Reasons quote what others say: control characters are escaped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from toolbus.auth.grants import is_tool_name, is_toolkit_name
from toolbus.auth.participant_names import full_name, is_alias
from toolbus.cli.arguments import Arguments, read_arguments
from toolbus.cli.columns import show_columns
from toolbus.cli.commands.records import read_since
from toolbus.cli.completion import complete_owner, complete_tool
from toolbus.cli.error_report import reporting
from toolbus.cli.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.errors import RoomException
from toolbus.permissions.assessment import Assessment
from toolbus.permissions.decision import PermissionDecision
from toolbus.permissions.permissions import Permissions
from toolbus.permissions.plain import assessment_to_plain, rule_to_plain
from toolbus.permissions.rule_file import RuleFileError, rule_file_schema
from toolbus.records.call_record import CallFilter, CallRecord
from toolbus.records.recording import whole_arguments
from toolbus.records.sqlite_file import read_calls
from toolbus.tools.decisions import judge
from toolbus.tools.tool_run import LOCAL, Participant
from toolbus.untrusted_text import json_text, one_line

__all__ = ["permissions"]

_MAX_RECORDS = 100_000
"""All are in memory while they are judged."""
_MAX_ASKED = 1_000
"""Different inputs; each may take its host seconds."""
_COLUMNS = ("calls", "tool", "behavior", "decided by")

permissions: typer.Typer = typer.Typer(add_completion=False, no_args_is_help=True)
_File = Annotated[Path, typer.Argument(metavar="FILE", help="The rule file.", show_default=False)]
_Tool = Annotated[
    str | None,
    typer.Argument(
        help="The tool: toolkit.tool. With --records a pattern of tools.",
        autocompletion=complete_tool,
    ),
]
_Participant = Annotated[
    str | None, typer.Option(help="Owner of the toolkit.", autocompletion=complete_owner)
]
_OnBehalfOf = Annotated[str | None, typer.Option(help="The participant that the call is made for.")]
_Policy = Annotated[
    bool, typer.Option("--policy", help="Decide as the host of the toolkit, not as the caller.")
]
_ReadOnly = Annotated[
    bool, typer.Option("--read-only", help="Without a room: the tool changes nothing.")
]
_Approval = Annotated[
    bool, typer.Option("--approval", help="Without a room: the tool wants a person to approve.")
]
_Matches = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Without a room: a pattern that matches; may be repeated. If none is given, patterns "
        "of denials and asks count as matching.",
    ),
]
_Records = Annotated[
    Path | None, typer.Option(help="Decide about the calls of this file of records.")
]
_Since = Annotated[
    str | None, typer.Option(help="With --records: calls since 15m, 1h, 7d ago, or since a date.")
]


_ONLY_WITH_PATTERNS = (
    "only tools with patterns of their own compare it, such as shell.run; `toolbus host --policy` "
    "logs each rule that covers no call"
)


@permissions.callback()
def _permissions() -> None:
    """Check rule files, and show what they would decide about calls."""


@permissions.command("check")
def _check(
    file: _File, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Check a rule file: print its mode and how many rules it has, or the line of a mistake."""
    with reporting(as_json=json, local=True):
        found = _read(file)
    count = Counter(rule.behavior for rule in found.rules)
    if json:
        facts = {
            "mode": found.mode,
            "rules": {behavior: count[behavior] for behavior in ("deny", "ask", "allow")},
            "workdirs": found.workdirs,
            "trusted_owners": found.trusted_owners,
        }
        typer.echo(json_text(facts))
        return
    listed = ", ".join(f"{count[behavior]} {behavior}" for behavior in ("deny", "ask", "allow"))
    typer.echo(f"{one_line(str(file))}: mode {found.mode}; rules: {listed}")
    if any(rule.match is not None for rule in found.rules):
        typer.echo(f"  match: {_ONLY_WITH_PATTERNS}")
    for label, texts in (("working directories", found.workdirs), ("trusts", found.trusted_owners)):
        if texts:
            typer.echo(f"  {label}: {', '.join(map(one_line, texts))}")


@permissions.command("schema")
def _schema() -> None:
    """Print the JSON Schema of rule files, for editors."""
    typer.echo(json_text(rule_file_schema(), indent=2))


@permissions.command("try")
@joins_a_room
def _try(  # noqa: PLR0913 - a parameter for each flag
    options: RoomOptions,
    file: _File,
    tool: _Tool = None,
    arguments: Arguments = None,
    participant: _Participant = None,
    on_behalf_of: _OnBehalfOf = None,
    policy: _Policy = False,
    read_only: _ReadOnly = False,
    approval: _Approval = False,
    matches: _Matches = None,
    records: _Records = None,
    since: _Since = None,
) -> None:
    """Show what a rule file would decide about a call, or about recorded calls. Nothing runs.

    With --url, --room, --token or --context the tool is asked there about this very input. Else
    --read-only, --approval and --matches say what the tool would.
    """
    rules = _read(file)
    trial = _Trial(rules, read_only, approval, matches, policy)
    is_asked = any((options.url, options.room, options.token, options.context))
    if is_asked and (read_only or approval or matches is not None):
        text = "--read-only, --approval and --matches are for decisions without a room"
        raise UsageError(text)
    if records is not None:
        if arguments or participant or on_behalf_of or options.name:
            raise UsageError("with --records the calls say who called what with which arguments")
        chosen = _recorded(records, tool, since)
        if is_asked:
            found = in_room(options, lambda room: replace(trial, room=room).tally(chosen))
        else:
            found = asyncio.run(trial.tally(chosen))
        _show_tally(found, len(chosen), options, is_asked=is_asked)
        return
    if tool is None or since is not None:
        raise UsageError("name a tool and its arguments, or records with --records and --since")
    # Without a room too: no rule covers what is not the name of a tool, so nothing would deny it.
    toolkit, _, name = tool.partition(".")
    if not (is_toolkit_name(toolkit) and is_tool_name(name)):
        raise UsageError(f"{one_line(tool, 64)} is not a tool: write toolkit.tool")
    typed = _Typed(tool, tuple(arguments or ()), participant, on_behalf_of)
    if is_asked:
        decision, assessment = in_room(
            options, lambda room: replace(trial, room=room).decide_there(typed)
        )
    else:
        decision, assessment = trial.decide_here(typed, options.name)
    _show_decision(decision, assessment, options, is_asked=is_asked)


def _read(file: Path) -> Permissions:
    try:
        return Permissions.from_toml(file)
    except RuleFileError as error:
        details = {"path": error.path, "line": error.line}
        raise UsageError(str(error), details=details) from error


def _recorded(path: Path, tool: str | None, since: str | None) -> list[CallRecord]:
    try:
        chosen = CallFilter.of(tool, None, None, read_since(since))
        return read_calls(path, chosen, _MAX_RECORDS)
    except ValueError as error:
        raise UsageError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Typed:
    """A call as it was typed."""

    tool: str
    arguments: tuple[str, ...]
    participant: str | None
    on_behalf_of: str | None


@dataclass(frozen=True, slots=True)
class _Trial:
    """The permissions that are tried, and what is known without asking."""

    permissions: Permissions
    read_only: bool
    approval: bool
    matches: list[str] | None
    at_host: bool
    room: CommandRoom | None = None

    async def tally(self, records: Iterable[CallRecord]) -> _Tally:
        """Judge recorded calls that were let through, or that a person or permissions refused."""
        found = _Tally()
        known: dict[tuple[str | None, ...], PermissionDecision | str] = {}
        for record in records:
            if not _came_to_permission(record):
                found.not_judged["they were refused for another reason"] += 1
                continue
            arguments = whole_arguments(record.arguments)
            if arguments is None:
                state = "cut" if record.arguments else "not kept"
                found.not_judged[f"their arguments were {state}"] += 1
                continue
            people = (record.caller, record.issuer, record.principal, record.principal_issuer)
            key = (record.tool, record.owner, record.arguments, *people)
            if key not in known and len(known) >= _MAX_ASKED:
                found.not_judged[f"beyond the first {_MAX_ASKED:,} different inputs"] += 1
                continue
            if key not in known:
                call = _recorded_call(record, arguments, at_host=self.at_host)
                known[key] = await self._judge(call)
            decision = known[key]
            if isinstance(decision, str):
                found.not_judged[decision] += 1
            else:
                found.decided[record.tool, decision.behavior, decision.by] += 1
        return found

    def decide_here(self, typed: _Typed, name: str | None) -> tuple[PermissionDecision, Assessment]:
        """Decide from flags; the schema of the tool is not known."""
        caller = _named(name, LOCAL) or LOCAL
        call = _TriedCall.of(
            typed.tool,
            read_arguments(typed.arguments, {}),
            owner=_named(typed.participant, caller),
            caller=caller,
            principal=_named(typed.on_behalf_of, caller),
            at_host=self.at_host,
        )
        assessment = self._flags()
        return self.permissions.decide(call, assessment), assessment

    async def decide_there(self, typed: _Typed) -> tuple[PermissionDecision, Assessment]:
        """Decide with what the tool says in the room."""
        assert self.room is not None
        toolkit, _, name = typed.tool.partition(".")
        proxy = await self.room.toolkit(toolkit, typed.participant)
        me, info = self.room.me, proxy.info
        arguments = read_arguments(typed.arguments, proxy.tool(name).input_schema)
        owner = replace(me, name=info.owner, issuer=info.issuer, alias=info.alias)
        call = _TriedCall.of(
            typed.tool,
            arguments,
            owner=owner,
            caller=me,
            principal=_named(typed.on_behalf_of, me),
            at_host=self.at_host,
        )
        return await self._asked(call, typed.participant, on_behalf_of=typed.on_behalf_of)

    async def _judge(self, call: _TriedCall) -> PermissionDecision | str:
        """Decide about a recorded call; return why its tool cannot be asked."""
        if self.room is None:
            return self.permissions.decide(call, self._flags())
        try:
            # Asked as oneself: whom a recorded call was made for may have left the room.
            decision, _ = await self._asked(call, call.owner)
        except RoomException as error:
            return f"their tools could not be asked ({error.code})"
        return decision

    async def _asked(
        self, call: _TriedCall, participant: str | None, **options: Any
    ) -> tuple[PermissionDecision, Assessment]:
        assert self.room is not None
        ask = partial(
            self.room.assess, call.tool.name, call.arguments, participant=participant, **options
        )
        return await judge(
            lambda _: self.permissions, call, lambda patterns: ask(patterns=patterns)
        )

    def _flags(self) -> Assessment:
        assessment = Assessment(
            "ask" if self.approval else "pass",
            read_only=self.read_only,
            immune=self.approval,
            source="manifest",
        )
        if self.matches is None:
            return assessment
        return replace(assessment, matches=tuple(self.matches), source="tool")


# Calls that nobody makes: typed ones, and recorded ones


@dataclass(frozen=True, slots=True)
class _TriedTool:
    name: str
    owner: str = ""
    issuer: str = ""
    alias: str = ""
    workdirs: tuple[str, ...] = ()

    @property
    def own_name(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class _TriedContext:
    caller: Participant
    on_behalf_of: Participant | None
    is_hosted: bool
    forwarded_for: Sequence[Participant] = ()


@dataclass(frozen=True, slots=True)
class _TriedCall:
    """A call that is judged and not made."""

    tool: _TriedTool
    arguments: Mapping[str, Any]
    context: _TriedContext

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
    ) -> _TriedCall:
        """Make one as the caller judges it, or the host, to which its tools are its own."""
        tried = _TriedTool(tool)
        if owner and not at_host:
            tried = _TriedTool(tool, owner.name, owner.issuer, owner.alias)
        return cls(tried, arguments, _TriedContext(caller, principal, at_host))

    @property
    def owner(self) -> str | None:
        """The owner of the toolkit as requests name it; None for one of this process."""
        return full_name(self.tool.owner, self.tool.alias) or None


def _named(text: str | None, sender: Participant, issuer: str = "") -> Participant | None:
    """Return a participant by its name or `alias/name`, as a sender writes it."""
    if not text:
        return None
    alias, slash, name = text.partition("/")
    if not slash or not is_alias(alias):
        alias = sender.alias
        name = text
    if not issuer and sender.alias == alias:
        issuer = sender.issuer
    # One that is not known here. What matters is only whether two are the same.
    issuer = issuer or alias or "of-names-without-alias"
    return Participant("", name, issuer=issuer, alias=alias)


def _recorded_call(
    record: CallRecord, arguments: Mapping[str, Any], *, at_host: bool
) -> _TriedCall:
    caller = _named(record.caller, LOCAL, record.issuer) or LOCAL
    return _TriedCall.of(
        record.tool,
        arguments,
        owner=_named(record.owner, caller),
        caller=caller,
        principal=_named(record.principal, caller, record.principal_issuer),
        at_host=at_host,
    )


@dataclass(slots=True)
class _Tally:
    """How recorded calls would have been decided."""

    decided: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Calls by tool, behavior, and what decided."""
    not_judged: Counter[str] = field(default_factory=Counter)
    """Calls that were not judged, by the reason."""

    def facts(self) -> dict[str, Any]:
        """Return it for `--json`."""
        keys = ("tool", "behavior", "by")
        decided = [
            {**dict(zip(keys, row, strict=True)), "calls": calls} for row, calls in self.rows()
        ]
        return {"decided": decided, "not_judged": dict(self.not_judged)}

    def rows(self) -> list[tuple[tuple[str, str, str], int]]:
        """Return what was decided, the most frequent first."""
        return sorted(self.decided.items(), key=lambda item: (-item[1], item[0]))


def _came_to_permission(record: CallRecord) -> bool:
    by = record.decided_by.removeprefix("policy: ")  # of the host
    if record.decision == "allowed" or by.startswith(("rule ", "mode ")):
        return True
    return by in {"person", "tool", "policy", "approval"}


# Showing


def _show_decision(
    decision: PermissionDecision, assessment: Assessment, options: RoomOptions, *, is_asked: bool
) -> None:
    if options.as_json:
        facts = {
            "behavior": decision.behavior,
            "reason": decision.reason,
            "source": decision.source,
            "by": decision.by,
            "mode": decision.mode,
            "suggestions": [rule_to_plain(rule) for rule in decision.suggestions],
            "asked": is_asked,
            "assessment": assessment_to_plain(assessment),
        }
        typer.echo(json_text(facts))
        return
    typer.echo(f"{decision.behavior}: {one_line(decision.reason)}")
    # Parts with the same patterns are one in `parts`; each that needs a rule has a suggestion.
    is_one = not assessment.parts or len(assessment.parts) == len(decision.suggestions) == 1
    covers = "it" if is_one else "a part of it"
    for rule in decision.suggestions:
        typer.echo(f"  this rule would allow {covers}: {rule}")
    _say_how(is_asked=is_asked)


def _show_tally(found: _Tally, calls: int, options: RoomOptions, *, is_asked: bool) -> None:
    if options.as_json:
        typer.echo(json_text({**found.facts(), "asked": is_asked}))
    else:
        rows = [(str(calls), *row) for row, calls in found.rows()]
        if rows:
            show_columns([_COLUMNS, *rows])
        else:
            typer.echo("no recorded call was judged", err=True)
        for reason, count in sorted(found.not_judged.items()):
            typer.echo(f"not judged: {count:,} calls, because {reason}", err=True)
        _say_how(is_asked=is_asked)
    if calls == _MAX_RECORDS:
        typer.echo(f"these are the newest {calls:,} calls: --since chooses fewer", err=True)


def _say_how(*, is_asked: bool) -> None:
    if not is_asked:
        text = (
            "the tool is not known here: without --read-only, --approval and --matches it is "
            "assumed to change something, to want no approval, and to match what denies or asks; "
            "--room NAME asks it"
        )
        typer.echo(text, err=True)
