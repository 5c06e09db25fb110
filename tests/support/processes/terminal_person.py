"""A scripted person at the terminal that controls a program."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Mapping
from typing import Self

__all__ = ["ALWAYS", "JSON", "KEYS", "REASON", "Person"]

KEYS, ALWAYS = "[v]iew all: ", "to go back: "
REASON, JSON = "(may be empty): ", "(empty: as before): "
# The prompts of `ask_in_terminal`.


class Person:
    """Types into the terminal of a Python program, once what it waits for is on the screen.

    Unlike `pseudo_terminal.Terminal`, the terminal controls the process: it is its `/dev/tty`.
    """

    def __init__(
        self, program: str, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> None:
        unset = ("NO_COLOR", "EDITOR", "VISUAL")
        environment = {name: text for name, text in os.environ.items() if name not in unset}
        environment |= {"TERM": "xterm", **(variables or {})}
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [sys.executable, "-c", program, *arguments], environment)
        self.screen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._terminal, text.encode())

    def reads(self, text: str) -> str:
        """Wait until the screen shows a text; return what it shows up to there."""
        end = time.monotonic() + 60
        while text not in self.screen:
            ready, _, _ = select.select([self._terminal], [], [], max(0, end - time.monotonic()))
            assert ready, self.screen
            try:
                read = os.read(self._terminal, 65_536)
            except OSError:  # the program has ended
                read = b""
            assert read, self.screen
            self.screen += read.decode(errors="replace")
        before, self.screen = self.screen.split(text, 1)
        return before
