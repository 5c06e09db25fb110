"""Reads the values for `toolbus call --input`: one JSON value per line of a file or of stdin.

Lines are read on demand, so an endless input works too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolbus.cli.arguments import read_json
from toolbus.diagnostics.exit_codes import UsageError

__all__ = ["json_lines"]

_STDIN = Path("-")
_READ_BYTES = 65_536
_MAX_LINE_BYTES = 1024 * 1024


class NotJson(UsageError):
    """A line of the input is not JSON."""

    next_step = (
        'write each line as JSON, a text in quotes: "to be"; the tool may have started: check its '
        "effects before you retry"
    )


def json_lines(path: Path) -> Iterator[Any]:
    """Open a file and return an iterator over the values of its lines, without empty lines.

    Args:
        path: The file; `-` is stdin.

    Raises:
        UsageError: The file cannot be opened. The iterator raises it, with `executed` "maybe", for
            a line that is not JSON, with its number, and for a line of more than 1 MiB.
    """
    if path == _STDIN:
        return _values(sys.stdin.fileno(), "stdin")
    try:
        return _values_of_file(os.open(path, os.O_RDONLY), str(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _values_of_file(file: int, name: str) -> Iterator[Any]:
    try:
        yield from _values(file, name)
    finally:
        os.close(file)


def _values(file: int, name: str) -> Iterator[Any]:
    for number, line in enumerate(_lines(file, name), start=1):
        if not line.strip():
            continue
        try:
            yield read_json(line.decode())
        except (ValueError, RecursionError) as error:
            raise NotJson(
                f"line {number} of {name} is not JSON: {error}", executed="maybe"
            ) from error


def _lines(file: int, name: str) -> Iterator[bytes]:
    """Return each line as soon as it is complete; the buffer of `sys.stdin` would delay it."""
    rest = b""
    try:
        while block := os.read(file, _READ_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
            if len(rest) > _MAX_LINE_BYTES:
                raise _unreadable(f"a line of {name} is longer than {_MAX_LINE_BYTES} bytes")
    except OSError as error:
        raise _unreadable(f"cannot read {name}: {error.strerror}") from error
    if rest:
        yield rest


def _unreadable(message: str) -> UsageError:
    # The iterator starts when the tool asks for the first value, so the tool may have run.
    return UsageError(message, executed="maybe")
