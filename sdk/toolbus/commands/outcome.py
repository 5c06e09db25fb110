"""How a command ends: its exit code, its words on stderr, and what to do next.

The table here is the only place that knows exit codes. Values go to stdout, by whoever has one;
errors come here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import typer

from toolbus.errors import Cancelled, InvalidArguments, RoomException

__all__ = ["ExitCode", "UsageMistake", "exit_code", "printable", "report", "reporting"]


class ExitCode(IntEnum):
    """What a script can tell from a command's end."""

    OK = 0
    TOOL_FAILED = 1
    """The tool ran and failed."""
    USAGE = 2
    """What was typed, set or sent is wrong."""
    REFUSED = 3
    """The token, a grant, an approval or a pin does not allow it."""
    NOT_FOUND = 4
    """No such toolkit or tool, or none that this participant may know of."""
    GIVEN_UP = 5
    """The deadline passed, or the caller gave up."""
    AWAY = 6
    """Nobody was there to do it, or they were lost."""


class UsageMistake(InvalidArguments):
    """Something that was typed or set is wrong; the message says what to do about it."""


_EXIT_CODES: dict[str, ExitCode] = {
    "tool_failed": ExitCode.TOOL_FAILED,
    "invalid_result": ExitCode.TOOL_FAILED,
    "internal": ExitCode.TOOL_FAILED,
    "invalid_arguments": ExitCode.USAGE,
    "permission_denied": ExitCode.REFUSED,
    "already_exists": ExitCode.REFUSED,
    "definition_changed": ExitCode.REFUSED,
    "loop_detected": ExitCode.REFUSED,
    "duplicate_call_id": ExitCode.REFUSED,
    "approval_denied": ExitCode.REFUSED,
    "approval_expired": ExitCode.REFUSED,
    "tool_inactive": ExitCode.REFUSED,
    "not_found": ExitCode.NOT_FOUND,
    "deadline_exceeded": ExitCode.GIVEN_UP,
    "cancelled": ExitCode.GIVEN_UP,
    "no_host": ExitCode.AWAY,
    "overloaded": ExitCode.AWAY,
    "quota_exceeded": ExitCode.AWAY,
    "unavailable": ExitCode.AWAY,
    "host_lost": ExitCode.AWAY,
    "connection_lost": ExitCode.AWAY,
    "stream_broken": ExitCode.AWAY,
    "stream_stalled": ExitCode.AWAY,
}

_NEXT_STEPS = {
    "tool_failed": "its host's log may say more",
    "invalid_result": "tell whoever runs the host: what the tool returned cannot be sent",
    "invalid_arguments": "`toolbus tools TOOLKIT.TOOL` shows what it takes",
    "permission_denied": "`toolbus doctor` shows what this token may do; "
    "`toolbus token create` makes another",
    "already_exists": "choose another name, or stop whoever has it",
    "definition_changed": "`toolbus tools TOOLKIT` shows the digest that is served now",
    "loop_detected": "look for tools that call each other in a circle",
    "not_found": "`toolbus tools` lists what you can see, each with its owner; another's private "
    "toolkit is called with --participant OWNER",
    "deadline_exceeded": "give it more time with --timeout",
    "no_host": "start its host again, or try once more when it is back",
    "overloaded": "try again in a moment, or start another host of it",
    "quota_exceeded": "try again when fewer calls are under way",
    "unavailable": "is the server running, and is --url right? `toolbus doctor` looks into it",
    "too_large": "send or ask for less at a time",
}
_MAY_HAVE_RUN = "it may have run: look at its effect before you try again"


def exit_code(error: RoomException) -> ExitCode:
    """Return the exit code of an error; one that this release does not know is `TOOL_FAILED`."""
    if error.code == "too_large":
        return ExitCode.USAGE if error.executed == "no" else ExitCode.TOOL_FAILED
    return _EXIT_CODES.get(error.code, ExitCode.TOOL_FAILED)


def printable(text: str) -> str:
    """Make a stranger's words safe for a terminal: control characters are shown, not obeyed."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def _next_step(error: RoomException) -> str:
    if isinstance(error, UsageMistake):
        return ""
    if error.executed == "maybe":
        return _MAY_HAVE_RUN
    return _NEXT_STEPS.get(error.code, "")


def report(error: RoomException, *, as_json: bool, local: bool = False) -> None:
    """Say on stderr what went wrong, whether the tool ran, and what to do next.

    Args:
        error: What went wrong.
        as_json: As one JSON object, for programs.
        local: No room was involved, so words for people leave code and `executed` out.
    """
    if as_json:
        facts: dict[str, Any] = {
            "code": error.code,
            "message": error.message,
            "executed": error.executed,
            "retryable": error.retryable,
            "details": error.details,
        }
        typer.echo(json.dumps(facts, ensure_ascii=False), err=True)
        return
    # Further lines are set in, so that no stranger's words can pass for ours.
    words = printable(error.message).replace("\n", "\n    ")
    if not local:
        words = f"{error.code}: {words} (executed: {error.executed})"
    typer.echo(f"toolbus: {words}", err=True)
    if step := _next_step(error):
        typer.echo(f"  next: {step}", err=True)


@contextmanager
def reporting(*, as_json: bool, local: bool = False) -> Iterator[None]:
    """Turn every expected error of the block, and Ctrl-C, into words and an exit code.

    See `report` for the arguments.
    """
    try:
        yield
    except RoomException as error:
        report(error, as_json=as_json, local=local)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt:
        cancelled = Cancelled("given up by Ctrl-C")
        report(cancelled, as_json=as_json, local=local)
        raise typer.Exit(exit_code(cancelled)) from None
