"""The standard streams of the command line, with defined behaviour where they cannot be written.

A full disk on stdout is a `StdoutError`. A reader that has closed the pipe ends the command with
exit code 141, as SIGPIPE ends other programs, and without a message. Errors on stderr are ignored:
nothing can be reported there.
"""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

import typer

from toolbus.diagnostics.exit_codes import ExitCode, UsageError
from toolbus.errors import Executed

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["ReaderClosed", "StdoutError", "guard_streams", "stdout_error"]


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
    sys.stdout = _guarded(sys.stdout, _raise_once)
    sys.stderr = _guarded(sys.stderr, _ignore)


def _raise_once(error: OSError) -> None:
    raise stdout_error(error) from error


def _ignore(_: OSError) -> None:
    pass


class _GuardedFile(io.FileIO):
    """A descriptor that drops what is written after the first error, so that Python can exit."""

    def __init__(self, number: int, on_error: Callable[[OSError], None]) -> None:
        super().__init__(number, "w", closefd=False)
        self._on_error = on_error
        self._has_failed = False

    def write(self, data: Buffer) -> int:
        size = memoryview(data).nbytes
        if size and not self._has_failed:  # typer tests a stream with empty data
            try:
                return super().write(data)
            except OSError as error:
                self._has_failed = True
                self._on_error(error)
        return size


def _guarded(stream: TextIO, on_error: Callable[[OSError], None]) -> TextIO:
    """Return a stream with the same descriptor; unchanged if it is not an ordinary file."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    is_unbuffered = isinstance(stream.buffer, io.FileIO)
    if not is_unbuffered and not isinstance(getattr(stream.buffer, "raw", None), io.FileIO):
        return stream
    raw = _GuardedFile(stream.fileno(), on_error)
    return io.TextIOWrapper(
        raw if is_unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=is_unbuffered or stream.write_through,
    )
