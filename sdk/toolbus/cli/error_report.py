"""Reports errors of commands on stderr and ends them with an exit code.

The texts and exit codes are defined in `toolbus.diagnostics.exit_codes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from toolbus.diagnostics.exit_codes import CallTarget, UsageError, exit_code, failure_lines
from toolbus.errors import Cancelled, Executed, RoomException
from toolbus.untrusted_text import json_text

__all__ = ["report", "reporting", "reporting_cancel", "writing"]


def report(
    error: RoomException, *, as_json: bool, local: bool = False, target: CallTarget | None = None
) -> None:
    """Print on stderr what failed, whether the tool ran, and what to do next.

    Args:
        error: The error.
        as_json: Print one JSON object, for programs.
        local: No room was involved, so the text for people omits code and `executed`.
        target: The target of the call, to be named in the next step.
    """
    if not as_json:
        typer.echo("\n".join(failure_lines(error, target, local=local)), err=True)
        return
    facts: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "executed": error.executed,
        "retryable": error.retryable,
        "details": error.details,
    }
    typer.echo(json_text(facts), err=True)


@contextmanager
def reporting(
    *, as_json: bool, local: bool = False, target: CallTarget | None = None
) -> Iterator[None]:
    """Report every expected error of the block, and Ctrl-C, and end with the exit code.

    The arguments are those of `report`. Blocks may be nested: the inner one reports.
    """
    try:
        yield
    except RoomException as error:
        report(error, as_json=as_json, local=local, target=target)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt:
        cancelled = Cancelled("cancelled with Ctrl-C")
        report(cancelled, as_json=as_json, local=local, target=target)
        raise typer.Exit(exit_code(cancelled)) from None


@contextmanager
def reporting_cancel(*, as_json: bool) -> Iterator[None]:
    """Report Ctrl-C before anything is hosted, without the status of a call."""
    try:
        yield
    except (KeyboardInterrupt, Cancelled) as error:
        if isinstance(error, KeyboardInterrupt):
            error = Cancelled("cancelled with Ctrl-C", executed="no")
        report(error, as_json=as_json, local=True)
        raise typer.Exit(exit_code(error)) from None


@contextmanager
def writing(path: Path, executed: Executed = "no") -> Iterator[None]:
    """Raise UsageError if the block cannot write the file."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", executed=executed) from error
