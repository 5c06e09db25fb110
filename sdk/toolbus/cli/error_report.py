"""Reports errors of commands on stderr and ends them with an exit code.

The texts and exit codes are defined in `toolbus.diagnostics.exit_codes`.
"""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from toolbus.cli.own_commands import with_install_line
from toolbus.diagnostics.exit_codes import (
    CallTarget,
    ExitCode,
    UsageError,
    exit_code,
    failure_lines,
)
from toolbus.errors import Cancelled, Executed, RoomException
from toolbus.untrusted_text import json_text

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "ReaderClosed",
    "StdoutError",
    "guard_streams",
    "report",
    "reporting",
    "reporting_cancel",
    "stdout_error",
    "writing",
]


def report(
    error: RoomException, *, as_json: bool, local: bool = False, target: CallTarget | None = None
) -> None:
    """Print on stderr what failed, whether the tool ran, and what to do next.

    With `as_json` it is one JSON object, for programs; else the text is that of `failure_lines`.
    A message that names an extra, of any package, names it as this installation installs it.
    """
    error.message = with_install_line(error.message)
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
    except (KeyboardInterrupt, RoomException) as error:
        if isinstance(error, KeyboardInterrupt):
            error = Cancelled("cancelled with Ctrl-C")
        report(error, as_json=as_json, local=local, target=target)
        raise typer.Exit(exit_code(error)) from error


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


# The standard streams, where they cannot be written
#
# A full disk on stdout is a `StdoutError`. A reader that has closed the pipe ends the command with
# exit code 141, as SIGPIPE ends other programs, and without a message. Errors on stderr are
# ignored: nothing can be reported there.


class ReaderClosed(typer.Exit):
    """The reader of stdout has closed the pipe, and the command ends."""

    def __init__(self) -> None:
        super().__init__(ExitCode.READER_CLOSED)


class StdoutError(UsageError):
    """Stdout cannot be written, because the disk is full for example."""


def stdout_error(error: OSError, executed: Executed = "no") -> ReaderClosed | StdoutError:
    """Return the exception of a command whose stdout cannot be written."""
    if error.errno == errno.EPIPE:
        return ReaderClosed()
    return StdoutError(f"cannot write to stdout: {error.strerror}", executed=executed)


def guard_streams() -> None:
    """Replace `sys.stdout` and `sys.stderr`, so that their errors are those of this module."""
    sys.stdout = _guarded(sys.stdout, reports=True)
    sys.stderr = _guarded(sys.stderr, reports=False)


class _GuardedFile(io.FileIO):
    """A descriptor that drops what is written after the first error, so that Python can exit."""

    def __init__(self, number: int, *, reports: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self._reports = reports
        self._has_failed = False

    def write(self, data: Buffer) -> int:
        size = memoryview(data).nbytes
        if size and not self._has_failed:  # typer tests a stream with empty data
            try:
                return super().write(data)
            except OSError as error:
                self._has_failed = True
                if self._reports:
                    raise stdout_error(error) from error
        return size


def _guarded(stream: TextIO, *, reports: bool) -> TextIO:
    """Return a stream with the same descriptor; unchanged if it is not an ordinary file."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    is_unbuffered = isinstance(stream.buffer, io.FileIO)
    if not is_unbuffered and not isinstance(getattr(stream.buffer, "raw", None), io.FileIO):
        return stream
    raw = _GuardedFile(stream.fileno(), reports=reports)
    return io.TextIOWrapper(
        raw if is_unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=is_unbuffered or stream.write_through,
    )
