"""A sandbox that runs command lines and says what each of them changed, wherever that is.

All of the system is below an overlay, in namespaces of its own (`unshare`): what a line writes is
seen, and is gone afterwards. The process that starts the lines, and one beside it, have a variable
that no line gets: who shows it has looked into another process. It needs a Linux that lets this
user make such namespaces.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from support.pytest_plugins.missing_parts import not_verified
from support.shell import sandbox_process

__all__ = ["Outcome", "Sandbox", "sandbox"]

_UNSHARE = "unshare --user --map-root-user --mount --pid --net --ipc --uts --fork --kill-child"

_TEMPORARY = frozenset({"/tmp", "/var/tmp"})
"""Their own times are no change: `tac` and `sort` make files there, and delete them again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one line did."""

    line: str
    exit: int | None
    """Its exit status; None if it was ended by the deadline."""
    output: str
    """What it wrote to stdout and stderr, cut at 100,000 bytes."""
    changed: tuple[str, ...]
    """Files and folders that were made, deleted or changed: content, mode, owner or time."""
    shows_secret: bool
    """Whether a variable of another process stood in its output."""
    left: tuple[str, ...]
    """The names of processes that went on after its end, outside of its process group."""
    timed_out: bool

    @property
    def fault(self) -> str:
        """What a line that only reads must not have done; empty if it did nothing of it."""
        faults = [f"changed {path}" for path in self.changed if path not in _TEMPORARY]
        faults += [f"left {name} behind" for name in self.left]
        if self.shows_secret:
            faults.append("showed the variables of a process")
        return ", ".join(faults)


class Sandbox:
    """A sandbox that runs lines, one after the other.

    Args:
        directory: Where lines start.
        environment: The variables that they start with.
        stdin: Of the process inside.
        stdout: Of the process inside.
    """

    def __init__(
        self, directory: Path, environment: Mapping[str, str], stdin: IO[str], stdout: IO[str]
    ) -> None:
        self._directory = directory
        self._environment = dict(environment)
        self._stdin = stdin
        self._stdout = stdout

    def run(self, lines: Iterable[str], *, timeout_s: float = 5) -> Iterator[Outcome]:
        """Run each line as `bash --noprofile --norc -c`, and yield what it did."""
        for line in lines:
            task = {
                "line": line,
                "directory": str(self._directory),
                "environment": self._environment,
                "timeout_s": timeout_s,
            }
            self._stdin.write(json.dumps(task) + "\n")
            self._stdin.flush()
            outcome = self._answer()
            yield Outcome(
                line=line,
                exit=outcome["exit"],
                output=outcome["output"],
                changed=tuple(outcome["changed"]),
                shows_secret=outcome["shows_secret"],
                left=tuple(outcome["left"]),
                timed_out=outcome["timed_out"],
            )

    def _answer(self) -> dict[str, Any]:
        text = self._stdout.readline()
        if not text:
            raise RuntimeError("the sandbox has ended")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def begin(self) -> str:
        """Wait for it; return why the machine does not allow it, or an empty text."""
        return str(self._answer().get("fault", ""))


@contextmanager
def sandbox(directory: Path, environment: Mapping[str, str]) -> Iterator[Sandbox]:
    """Start a sandbox; where the machine does not allow one, skip the test as NOT VERIFIED.

    Args:
        directory: Where lines start.
        environment: The variables that they start with.
    """
    what = "a command that only reads changes nothing"
    try:
        subprocess.run([*_UNSHARE.split(), "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        not_verified(what, f"unshare: {error}")
    command = [*_UNSHARE.split(), sys.executable, "-I", sandbox_process.__file__, str(directory)]
    host = {**os.environ, "HOST_KEY": sandbox_process.SECRET.decode()}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=host
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        inside = Sandbox(directory, environment, process.stdin, process.stdout)
        try:
            fault = inside.begin()
            if fault:
                not_verified(what, fault)
            # An ordinary user cannot change files below a folder of another user, not even in an
            # overlay: then no line would be found to change anything.
            probe = next(inside.run(["touch toolbus-probe"]))
            if not probe.changed:
                not_verified(what, f"nothing can be written in {directory}: {probe.output}")
            yield inside
        finally:
            process.kill()
