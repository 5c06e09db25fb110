"""What `toolbus call --input` sends: the lines of a file or of stdin, each a JSON value.

They are read as they are asked for, so that what never ends can be sent, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolbus.commands.parameters import read_json
from toolbus.exit_codes import UsageMistake

__all__ = ["json_lines"]

_STDIN = Path("-")
_READ_BYTES = 65_536
_MAX_LINE_BYTES = 1024 * 1024


def json_lines(path: Path) -> Iterator[Any]:
    """Open a file, and give the values of its lines one after another; empty lines are left out.

    Args:
        path: The file; `-` is stdin.

    Raises:
        UsageMistake: It cannot be read; or, with the number of the line where it comes to that, a
            line is no JSON or has more than 1 MiB.
    """
    if path == _STDIN:
        return _values(sys.stdin.fileno(), "stdin")
    try:
        return _values_of_file(os.open(path, os.O_RDONLY), str(path))
    except OSError as error:
        raise UsageMistake(f"cannot read {path}: {error.strerror}") from error


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
            raise UsageMistake(f"line {number} of {name} is no JSON: {error}") from error


def _lines(file: int, name: str) -> Iterator[bytes]:
    """Give each line as soon as it is there: past the buffer of `sys.stdin`, which waits longer."""
    begun = b""
    try:
        while block := os.read(file, _READ_BYTES):
            *lines, begun = (begun + block).split(b"\n")
            yield from lines
            if len(begun) > _MAX_LINE_BYTES:
                raise UsageMistake(f"a line of {name} has more than {_MAX_LINE_BYTES} bytes")
    except OSError as error:
        raise UsageMistake(f"cannot read {name}: {error.strerror}") from error
    if begun:
        yield begun
