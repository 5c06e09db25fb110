"""The witness of a storm: a file to which hosts write a line before a tool's effect and one after.

Each line is one write to a file that is open for appending, so that lines written before a SIGKILL
persist, whichever process wrote them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["Run", "Runs", "Witness", "large_text", "pattern", "read_witness"]

_BLOCK = 4_096


def pattern(key: int, size: int) -> bytes:
    """Make the bytes of a file, the same in every process."""
    block = Random(key).randbytes(_BLOCK)
    return (block * (size // _BLOCK + 1))[:size]


def large_text(key: int, size: int) -> str:
    """Make the large result of a call, the same in every process."""
    block = f"{key} " * 64
    return (block * (size // len(block) + 1))[:size]


class Run:
    """One run of a tool, and its input.

    Args:
        key: The call's.
    """

    def __init__(self, key: int) -> None:
        self.key = key
        self.got = 0
        """Values, or bytes of a file."""
        self.in_order = True
        self.digest = "-"
        self._hash = hashlib.sha256()

    def take(self, number: int) -> None:
        """Count a value of the input by the number that it contains."""
        self.in_order = self.in_order and number == self.got
        self.got += 1

    def take_piece(self, piece: bytes) -> None:
        """Count a piece of a file."""
        self.got += len(piece)
        self._hash.update(piece)

    def close_file(self) -> str:
        """Compare the received bytes with the beginning of the expected file; return their hash."""
        self.digest = self._hash.hexdigest()
        expected = hashlib.sha256(pattern(self.key, self.got)).hexdigest()
        self.in_order = self.in_order and self.digest == expected
        return self.digest


class Witness:
    """Writes the file.

    Args:
        path: The path of the file.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *words: Any) -> None:
        """Write a line."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    @contextmanager
    def run(self, key: int, call_id: str, attempt: int) -> Iterator[Run]:
        """Record that a tool begins, and how it ended."""
        self.write("B", key, call_id, attempt)
        run, how = Run(key), "ended"
        try:
            yield run
        except (asyncio.CancelledError, GeneratorExit):
            how = "stopped"
            raise
        except BaseException:
            how = "raised"
            raise
        finally:
            order = "ordered" if run.in_order else "disordered"
            self.write("E", key, how, run.got, order, run.digest)


@dataclass(slots=True)
class Runs:
    """What the witness saw of one call."""

    began: list[tuple[str, int]] = field(default_factory=list)
    """The call's id and the attempt of each run."""
    ended: list[tuple[str, int, bool, str]] = field(default_factory=list)
    """For each run: how it ended, the number of values, whether they were in order, and a file's
    hash.
    """


def read_witness(lines: Iterable[str]) -> dict[int, Runs]:
    """Read a witness's lines, by the keys of the calls."""
    seen: dict[int, Runs] = {}
    for line in lines:
        mark, key, *words = line.split()
        runs = seen.setdefault(int(key), Runs())
        if mark == "B":
            runs.began.append((words[0], int(words[1])))
        else:
            runs.ended.append((words[0], int(words[1]), words[2] == "ordered", words[3]))
    return seen


def witness_of(path: Path) -> dict[int, Runs]:
    """Read a witness's file."""
    return read_witness(path.read_text().splitlines()) if path.exists() else {}
