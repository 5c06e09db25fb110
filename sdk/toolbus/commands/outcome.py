"""How a command ends: what it says on stderr, and with which exit code.

Values go to stdout, by whoever has one; errors come here. The words and codes themselves are in
`toolbus.exit_codes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from toolbus.errors import Cancelled, RoomException
from toolbus.exit_codes import Subject, exit_code, failure_lines

__all__ = ["report", "reporting"]


def report(
    error: RoomException, *, as_json: bool, local: bool = False, subject: Subject | None = None
) -> None:
    """Say on stderr what went wrong, whether the tool ran, and what to do next.

    Args:
        error: What went wrong.
        as_json: As one JSON object, for programs.
        local: No room was involved, so words for people leave code and `executed` out.
        subject: What was asked for, to be named in the next step.
    """
    if not as_json:
        typer.echo("\n".join(failure_lines(error, subject, local=local)), err=True)
        return
    facts: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "executed": error.executed,
        "retryable": error.retryable,
        "details": error.details,
    }
    typer.echo(json.dumps(facts, ensure_ascii=False), err=True)


@contextmanager
def reporting(
    *, as_json: bool, local: bool = False, subject: Subject | None = None
) -> Iterator[None]:
    """Turn every expected error of the block, and Ctrl-C, into words and an exit code.

    See `report` for the arguments. A block within a block may know more of the subject.
    """
    try:
        yield
    except RoomException as error:
        report(error, as_json=as_json, local=local, subject=subject)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt:
        cancelled = Cancelled("given up by Ctrl-C")
        report(cancelled, as_json=as_json, local=local, subject=subject)
        raise typer.Exit(exit_code(cancelled)) from None
