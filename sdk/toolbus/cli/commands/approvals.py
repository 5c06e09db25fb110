"""`toolbus approvals`: calls that wait for a person, and the person's answers."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeAlias, TypeVar

import typer

from toolbus.cli.approvals.notices import HoldNotices
from toolbus.cli.approvals.questions import (
    SHORT_ID,
    answer_question_of,
    clock_text,
    granted_facts,
    hold_facts,
    outcome_text,
    question_of,
    tool_text,
    who_text,
)
from toolbus.cli.arguments import Arguments, needs_schema, read_arguments
from toolbus.cli.columns import show_columns, terminal_columns
from toolbus.cli.completion import complete_granted, complete_hold
from toolbus.cli.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.cli.suggestions import listed, nearest
from toolbus.diagnostics.exit_codes import CallTarget, UsageError, allow_step, with_step
from toolbus.errors import AlreadyExists, NotFound, PermissionDenied, RoomException
from toolbus.log_output import LOG_FORMAT
from toolbus.permissions.rule import Rule
from toolbus.room.holds import GrantedHold, HoldInfo
from toolbus.schemas.text import SchemaReader
from toolbus.turns.terminal_dialogs import rows_of
from toolbus.turns.terminal_questions import typed_answer
from toolbus.untrusted_text import json_text, one_line

__all__ = ["approvals"]

T = TypeVar("T")
Listed = TypeVar("Listed", HoldInfo, GrantedHold)
_COLUMNS = ("id", "age", "tool", "who", "why", "left")
_MARK = "    | "
_LIST_STEP = "`toolbus approvals --once` lists the calls that wait"

approvals: typer.Typer = typer.Typer(add_completion=False)
"""The command `toolbus approvals`."""

_Id: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The id of the approval, or its beginning.",
        autocompletion=complete_hold,
        show_default=False,
    ),
]


@approvals.callback(invoke_without_command=True)
@joins_a_room
def _approvals(  # noqa: PLR0913 - an option each
    ctx: typer.Context,
    options: RoomOptions,
    once: Annotated[bool, typer.Option("--once", help="List them, and end.")] = False,
    settled: Annotated[
        bool,
        typer.Option(
            "--settled",
            help="List those too that were settled within the last 10 minutes, and end.",
        ),
    ] = False,
    granted: Annotated[
        bool,
        typer.Option("--granted", help="List the rules that were granted instead, and end."),
    ] = False,
    bell: Annotated[
        bool,
        typer.Option(
            "--bell", help="Ring the bell of the terminal for each new one, and set its title."
        ),
    ] = False,
    command: Annotated[
        str,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Run a command of the shell for each, which gets id, tool, who and why as JSON on "
            "its standard input. It is killed after 30 s.",
            show_default=False,
        ),
    ] = "",
    with_arguments: Annotated[
        bool,
        typer.Option("--with-arguments", help="Give --exec the arguments of the calls, too."),
    ] = False,
) -> None:
    """Show the calls that wait for a person, and answer them.

    In a terminal they are a live table: Enter shows all that a call would do, and asks. --once,
    --settled and --json list them instead; --exec tells a command of each. Needs the grant approve
    for calls that are made for you, answer for what they ask you, approve_all for others'.
    """
    given = any((once, settled, granted, bell, command, with_arguments))
    if ctx.invoked_subcommand is not None:
        if given or options != RoomOptions():
            name = ctx.invoked_subcommand
            raise UsageError(f"options follow the command: toolbus approvals {name} ...")
        return
    is_list = once or settled or options.as_json
    if bell and (is_list or granted):
        raise UsageError("--bell is for the live table")
    if with_arguments and not command:
        raise UsageError("--with-arguments is for --exec")
    if command:
        if is_list or granted or bell:
            raise UsageError("--exec follows the calls that wait, and lists none: give it alone")
        _follow(options, command, with_arguments=with_arguments)
    elif granted:
        if once or settled:
            raise UsageError("--granted lists rules: omit --once and --settled")
        _list_granted(options)
    elif is_list:
        _list(options, settled=settled)
    else:
        _show_table(options, has_bell=bell)


def _show_table(options: RoomOptions, *, has_bell: bool) -> None:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not is_terminal or os.environ.get("TERM") == "dumb":  # as of a shell in an editor
        raise UsageError("there is no terminal for a live table: add --once for a list")
    from toolbus.cli.approvals.table import ApprovalTable  # most commands need no such table

    in_room(options, lambda room: ApprovalTable(room, has_bell=has_bell).run(), locked=False)


def _follow(options: RoomOptions, command: str, *, with_arguments: bool) -> None:
    logging.basicConfig(format=LOG_FORMAT)
    with suppress(KeyboardInterrupt):  # while it connects: later Ctrl-C ends it normally, too
        in_room(
            options,
            lambda room: HoldNotices(room, command, with_arguments=with_arguments).run(),
            locked=False,
        )


def _list(options: RoomOptions, *, settled: bool) -> None:
    found = in_room(options, lambda room: room.holds(settled=settled), locked=False)
    if options.as_json:
        typer.echo(json_text([hold_facts(hold) for hold in found]))
    elif found:
        columns = (*_COLUMNS, "outcome") if settled else _COLUMNS
        show_columns([columns, *(_row(hold)[: len(columns)] for hold in found)])
    else:
        typer.echo("no call waits for you to approve it", err=True)


def _row(hold: HoldInfo) -> tuple[str, ...]:
    left = "-"
    if hold.is_open and hold.left_s is not None:
        left = clock_text(hold.left_s)
    return (
        hold.id[:SHORT_ID],
        clock_text(hold.age_s),
        tool_text(hold),
        who_text(hold),
        one_line(hold.purpose, 60) or "-",
        left,
        outcome_text(hold),
    )


@approvals.command("show")
@joins_a_room
def _show(options: RoomOptions, id: _Id) -> None:
    """Show all that one call would do."""
    hold = in_room(options, lambda room: _read(room, id), locked=False)
    if options.as_json:
        typer.echo(json_text(hold_facts(hold)))
        return
    if hold.body is None:
        typer.echo(_text(hold))
        return
    for label, text in _shown_parts(hold):
        typer.echo(f"{label}:")
        width = (terminal_columns() or sys.maxsize) - len(_MARK)
        for row in rows_of(text.removesuffix("\n").replace("\t", "    "), width):
            typer.echo(f"{_MARK}{text[row]}")


def _shown_parts(hold: HoldInfo) -> list[tuple[str, str]]:
    """Return all that is known of a call that waits, each text behind its label."""
    if hold.kind == "answer":
        return answer_question_of(hold).parts()
    question = question_of(hold)
    arguments = ("arguments", json_text(dict(question.arguments), indent=2))
    rules = [("rule that would allow it", rule.shown()) for rule in question.suggestions]
    return [*question.about, arguments, *question.reasons, *rules]


@approvals.command("answer")
@joins_a_room
def _answer(
    options: RoomOptions,
    id: _Id,
    value: Annotated[
        list[str],
        typer.Argument(
            metavar="VALUE | NAME=VALUE...",
            help="A text, or a JSON value as the schema of the answer asks; or the fields of an "
            "object, as for `toolbus call`.",
            show_default=False,
        ),
    ],
) -> None:
    """Answer a question of a tool, or a call whose tool has no code.

    `toolbus approvals show ID` shows what is asked. An answer that does not fit is refused, and
    the question stays open. Needs the grant answer.
    """

    async def answer(room: CommandRoom) -> HoldInfo:
        hold = await _read(room, id)
        _check_kind(hold, "answer")
        await _settling(room.answer(hold, _typed_answer(hold, tuple(value))))
        return await room.hold(hold.id)

    _report(options, in_room(options, answer, locked=False))


def _check_kind(hold: HoldInfo, kind: str) -> None:
    if hold.kind != kind:
        wanted = "an answer" if hold.kind == "answer" else "an approval"
        text = f"it asks for {wanted}: toolbus approvals {hold.kind} {hold.id[:SHORT_ID]}"
        raise UsageError(text)


def _typed_answer(hold: HoldInfo, typed: tuple[str, ...]) -> Any:
    """Return the value of an answer. Raises `UsageError` and `InvalidArguments`."""
    body = hold.body
    if body is None:  # the server says how it was settled
        return typed[0]
    schema = body.schema or {}
    is_object = "object" in SchemaReader(schema).types(schema)
    if len(typed) > 1 or (is_object and not typed[0].lstrip().startswith("{")):
        return read_arguments(typed, schema)
    return typed_answer(typed[0], body.check)


@approvals.command("approve")
@joins_a_room
def _approve(
    options: RoomOptions,
    id: _Id,
    arguments: Arguments = None,
    always: Annotated[
        bool,
        typer.Option("--always", help="Allow exactly these arguments from now on, too."),
    ] = False,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            metavar="PATTERN",
            help="Allow from now on the calls of this tool that match PATTERN, in the tool's own "
            "pattern language; may be repeated.",
        ),
    ] = None,
    suggested: Annotated[
        bool,
        typer.Option(
            "--suggested", help="Allow from now on what the rules allow that `show` lists."
        ),
    ] = False,
) -> None:
    """Let a call run, also with other arguments than it asks for.

    Arguments are as for `toolbus call`: each replaces the one of its name, and one JSON object
    replaces all. What is allowed from now on holds for the same person and host, until that ends.
    """
    if always + bool(rule) + suggested > 1:
        raise UsageError("--always, --rule and --suggested exclude each other")

    async def approve(room: CommandRoom) -> HoldInfo:
        hold = await _read(room, id)
        _check_kind(hold, "approve")
        changed = await _changed(room, hold, tuple(arguments or ()))
        granted: Sequence[Rule] | bool | None = True if always else None
        if rule:
            if hold.body is not None and not hold.body.has_patterns:
                raise UsageError("the tool has no patterns: --always allows these arguments")
            granted = [_rule(hold, pattern) for pattern in rule]
        elif suggested and hold.body is not None:
            granted = hold.body.suggestions
            if not granted:
                raise UsageError("the tool suggests no rule: --always allows these arguments")
        try:
            await _settling(room.approve(hold, changed, granted))
        except PermissionDenied as error:
            if error.details.get("grant") == "agents.call":  # which changed arguments need
                target = CallTarget(hold.toolkit, hold.tool.partition(".")[2])
                raise with_step(error, allow_step(target, "caller")) from error
            raise
        return await room.hold(hold.id)

    _report(options, in_room(options, approve, locked=False))


@approvals.command("deny")
@joins_a_room
def _deny(
    options: RoomOptions,
    id: _Id,
    reason: Annotated[
        str, typer.Argument(help="Why, for the caller, which may be a model.", show_default=False)
    ] = "",
) -> None:
    """Refuse a call."""

    async def deny(room: CommandRoom) -> HoldInfo:
        hold = await _read(room, id)
        await _settling(room.deny(hold, reason))
        return await room.hold(hold.id)

    _report(options, in_room(options, deny, locked=False))


def _report(options: RoomOptions, hold: HoldInfo) -> None:
    typer.echo(json_text(hold_facts(hold)) if options.as_json else _text(hold))


def _text(hold: HoldInfo) -> str:
    """Return what has become of a call, in one line."""
    text = f"{one_line(hold.tool)} ({who_text(hold)}): {outcome_text(hold)}"
    if hold.is_away and hold.outcome in ("approved", "answered"):
        counts = "it runs" if hold.outcome == "approved" else "the answer counts"
        text += f"; {counts} only if the caller makes the call again within 10 minutes"
    return text


def _rule(hold: HoldInfo, pattern: str) -> Rule:
    try:
        return Rule(behavior="allow", tool=hold.tool, match=pattern)
    except ValueError as error:
        raise UsageError(f"--rule: {error}") from error


async def _settling(request: Awaitable[T]) -> T:
    """Wait for an answer's request; what names of toolkits need is no next step of its errors."""
    try:
        return await request
    except AlreadyExists as error:  # somebody else was first
        raise with_step(error, "") from error
    except PermissionDenied as error:
        if "grant" in error.details:
            raise
        # Such as the two-person rule: no token of the same person changes that.
        raise with_step(error, "let somebody else answer it") from error
    except NotFound as error:
        raise with_step(error, _LIST_STEP) from error


async def _read(room: CommandRoom, typed: str) -> HoldInfo:
    """Read the approval whose id begins so; an open one, if there is just one.

    Raises:
        NotFound: There is none.
        UsageError: There are several.
    """
    found = await room.holds(settled=True)
    waiting = [hold for hold in found if hold.is_open]
    hold = _chosen(waiting, typed) or _chosen(found, typed)
    try:
        # An approval that others decide about says so, if its whole id was typed.
        return await _settling(room.hold(typed if hold is None else hold.id))
    except NotFound as error:
        text = _with_nearest(error.message, typed, waiting)
        raise with_step(NotFound(text, details=error.details), _LIST_STEP) from error


async def _changed(
    room: CommandRoom, hold: HoldInfo, typed: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return the arguments to run it with in place of its own; None if they stay."""
    if not typed or hold.body is None:
        return None
    schema: Any = {}
    if needs_schema(typed):
        try:
            proxy = await room.toolkit(hold.toolkit, hold.owner)
            schema = proxy.tool(hold.tool.partition(".")[2]).input_schema
        except RoomException:
            pass  # texts are read as JSON then, else as they are; the host checks them
    changed = read_arguments(typed, schema)
    is_whole = len(typed) == 1 and typed[0].lstrip().startswith("{")
    return changed if is_whole else {**hold.body.arguments, **changed}


# Rules that were granted: "always" at a host


def _list_granted(options: RoomOptions) -> None:
    found = in_room(options, CommandRoom.granted_rules, locked=False)
    if options.as_json:
        typer.echo(json_text([granted_facts(granted) for granted in found]))
    elif found:
        rows = [
            (
                granted.id[:SHORT_ID],
                clock_text(granted.age_s),
                one_line(granted.tool),
                one_line(granted.owner),
                one_line(granted.asked_for),
                _rule_text(granted),
            )
            for granted in found
        ]
        show_columns([("id", "age", "tool", "host", "for", "rule"), *rows])
    else:
        typer.echo("no rule is granted that you may take back", err=True)


def _rule_text(granted: GrantedHold) -> str:
    # In the words of its host: what it is bound to, the server knows.
    return "(cannot be read)" if granted.rule is None else one_line(str(granted.rule))


@approvals.command("take-back")
@joins_a_room
def _take_back(
    options: RoomOptions,
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The id of the rule, or its beginning: see --granted.",
            autocompletion=complete_granted,
            show_default=False,
        ),
    ],
) -> None:
    """Take back a rule that was granted: persons are asked again about what it allowed."""

    async def take_back(room: CommandRoom) -> GrantedHold:
        found = await room.granted_rules()
        granted = _chosen(found, id)
        if granted is None:
            text = f"there is no granted rule {one_line(id, 64)} that you may take back"
            error = NotFound(_with_nearest(text, id, found))
            raise with_step(error, "`toolbus approvals --granted` lists them")
        await _settling(room.take_back(granted))
        return granted

    granted = in_room(options, take_back, locked=False)
    text = f"taken back: {_rule_text(granted)}"
    typer.echo(json_text(granted_facts(granted)) if options.as_json else text)


# Ids, which may be abbreviated


def _chosen(found: Sequence[Listed], typed: str) -> Listed | None:
    """Return what an id means; None if there is no such thing. Raises UsageError for several."""
    if not typed:  # such as of an unset variable: it would mean whatever there is
        raise UsageError("the id is empty")
    matching = [match for match in found if match.id.startswith(typed)]
    matching = [match for match in matching if match.id == typed] or matching
    if len(matching) > 1:
        ids = listed([match.id for match in matching])
        raise UsageError(f"several ids begin with {one_line(typed, 64)}: {ids}")
    return matching[0] if matching else None


def _with_nearest(text: str, typed: str, found: Sequence[Listed]) -> str:
    near = nearest(typed, [match.id for match in found])
    return f"{text}: did you mean {near[0]}?" if near else text
