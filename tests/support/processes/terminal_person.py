"""A scripted person at the terminal that controls a program."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import termios
import time
from codecs import getincrementaldecoder
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from support.patience import PATIENCE_S

__all__ = ["ALWAYS", "JSON", "KEYS", "REASON", "Person"]

KEYS, ALWAYS = "[v]iew all: ", "to go back: "
REASON, JSON = "(may be empty): ", "(empty: as before): "
# The prompts of `approve_in_terminal`.


class Person:
    """Types into the terminal of a Python program, once what it waits for is on the screen.

    Unlike `pseudo_terminal.Terminal`, the terminal controls the process: it is its `/dev/tty`.
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        folder: Path | None = None,
        columns: int = 0,
    ) -> None:
        unset = ("NO_COLOR", "EDITOR", "VISUAL")
        environment = {name: text for name, text in os.environ.items() if name not in unset}
        environment |= {"TERM": "xterm", **(variables or {})}
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            if folder is not None:
                os.chdir(folder)
            termios.tcsetwinsize(0, (24, columns))
            os.execve(sys.executable, [sys.executable, "-c", program, *arguments], environment)
        self.screen = ""
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._terminal)

    def ended(self) -> int:
        """Wait until the program has ended; return its exit code."""
        end = time.monotonic() + PATIENCE_S
        while self._read(end):
            pass
        self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._terminal, text.encode())

    def reads(self, text: str) -> str:
        """Wait until the screen shows a text; return what it shows up to there."""
        end = time.monotonic() + PATIENCE_S
        while text not in self.screen:
            assert self._read(end), self.screen
        before, self.screen = self.screen.split(text, 1)
        return before

    def _read(self, end: float) -> bool:
        """Read what is on the screen next; False if the program has ended."""
        ready, _, _ = select.select([self._terminal], [], [], max(0, end - time.monotonic()))
        assert ready, self.screen
        try:
            read = os.read(self._terminal, 65_536)
        except OSError:  # the program has ended
            read = b""
        self.screen += self._decoder.decode(read)
        return bool(read)
