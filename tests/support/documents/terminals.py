"""Terminals for the console blocks of a document: shells, and services that keep running."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from support.documents.snippets import Step, pattern_of, settled
from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine
from support.processes.pseudo_terminal import in_terminal

_WAITING = re.compile(
    r"^(\S+ has no host now|toolkit \S+ not found.*); waiting up to [\d.]+ s more for one\n",
    re.MULTILINE,
)
"""What a call prints only on a machine on which a restarted host takes longer than a second."""
_MARK = "\x1e"
PROMPT = "you> "
"""Of a chat."""
_CONTROL = r"\x1b\[[?\d;]*\w"


@dataclass(slots=True, eq=False)
class Service:
    """A command that runs until it is terminated, and its output so far."""

    process: subprocess.Popen[str]
    command: str
    prints: Sequence[str]
    """What it prints until it ends."""
    exit_code: int = 0
    """With which it ends when it is terminated."""
    reader: threading.Thread = field(init=False)
    """Collects what is printed."""
    _printed: str = ""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._printed += line
                self._changed.notify_all()

    def wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until a pattern is found in what was printed."""
        with self._changed:
            found = self._changed.wait_for(lambda: pattern.search(self._printed), PATIENCE_S)
        assert found, f"not printed: {pattern.pattern}\nbut: {self._printed}"
        return found

    def shows(self, prints: Sequence[str]) -> None:
        """Wait until lines have been printed as a document shows them."""
        wanted = pattern_of(prints)
        with self._changed:
            found = self._changed.wait_for(
                lambda: wanted.search(settled(self._printed) + "\n"), PATIENCE_S
            )
            assert found, f"promised: {chr(10).join(prints)}\nprinted: {self._printed}"

    def printed_until_end(self, most_s: float) -> str:
        """Wait until nothing can be printed any more, and return all that was."""
        self.process.wait(most_s)
        self.reader.join(most_s)
        return self._printed

    def end(self) -> None:
        """Terminate it; it must exit with its code."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == self.exit_code, self._printed


class Terminals:
    """Shells in one folder with the same variables; what was started ends with the block.

    Args:
        folder: Where commands run.
        variables: Their environment.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.variables = dict(variables)
        self.services: list[Service] = []
        self._left = ExitStack()

    def __enter__(self) -> Terminals:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    def start(self, command: str, prints: Sequence[str], *, exit_code: int = 0) -> Service:
        """Start a service; `end_all` waits for all that it prints, and for its exit code."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {command}"],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        service = Service(process, command, prints, exit_code)
        # Undone from the last to the first: killed, read to the end, waited for.
        self._left.enter_context(process)
        self._left.callback(service.reader.join, PATIENCE_S)
        self._left.callback(process.kill)
        self.services.append(service)
        return service

    def restart(self, service: Service, command: str) -> Service:
        """Kill a service, and start it again at its place, with this command."""
        service.process.kill()
        service.process.wait(PATIENCE_S)
        place = self.services.index(service)
        self.services.remove(service)
        started = self.start(command, service.prints, exit_code=service.exit_code)
        self.services.insert(place, self.services.pop())
        return started

    def type(self, steps: Sequence[Step]) -> None:
        """Type commands into one shell; each must print what its step shows, and no more."""
        for step, printed in zip(steps, self._type(steps), strict=False):
            assert _is_as_shown(step, printed), (
                f"$ {step.command}\n{printed}promised: {step.prints}"
            )

    def converse(self, step: Step) -> None:
        """Type at the prompts of a chat what a step shows there; it must show the rest, and end."""
        shown = ""
        here = CommandLine(self.folder, self.variables)
        with in_terminal(here, *shlex.split(step.command)[1:]) as terminal:
            for line in step.prints:
                if line.startswith(PROMPT):
                    terminal.wait_for(rf"{PROMPT}(?:{_CONTROL})*\Z")
                    shown += terminal.drawn
                    terminal.forget()
                    terminal.type(line.removeprefix(PROMPT))
            assert terminal.ended() == 0, shown
            shown += terminal.drawn
        plain = re.sub(rf"{_CONTROL}|\r", "", shown)
        assert _is_as_shown(step, plain), f"$ {step.command}\n{plain}promised: {step.prints}"

    def prints(self, step: Step) -> bool:
        """Type a command; return whether it prints what its step shows, and no more."""
        return _is_as_shown(step, self._type([step])[0])

    def _type(self, steps: Sequence[Step]) -> list[str]:
        """Type commands into one shell; return what each of them printed."""
        lines = [f"{each.command}\n_code=$?; printf '{_MARK}'; (exit $_code)" for each in steps]
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S * (1 + len(steps)),
            check=False,
        )
        return done.stdout.split(_MARK)

    def end_all(self) -> None:
        """Wait for the rest of each service's output, and terminate them, the last one first."""
        for service in self.services:
            service.shows(service.prints)
        for service in reversed(self.services):
            service.end()


def _is_as_shown(step: Step, printed: str) -> bool:
    printed = _WAITING.sub("", printed)
    text = f"{settled(printed)}\n" if printed else ""
    return pattern_of(step.prints).fullmatch(text) is not None
