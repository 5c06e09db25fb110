"""A command in a pseudo-terminal, and what it has drawn there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine, heard_interrupts


class Terminal:
    """A terminal of 30 rows.

    Args:
        process: What runs there.
        ours: Our end of it.
    """

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process = process
        self.drawn = ""
        self._ours = ours

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until what was drawn contains this."""
        ends_at = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.drawn)) is None:
            assert self._read(ends_at - time.monotonic()), f"not drawn: {pattern}\n{self.drawn}"
        return found

    def forget(self) -> None:
        """Look only at what is drawn from now on."""
        self.drawn = ""

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._ours, f"{line}\n".encode())

    def interrupt(self) -> int:
        """Send what Ctrl-C sends, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self) -> int:
        """Read to the end, and return the exit code."""
        ends_at = time.monotonic() + PATIENCE_S
        while self._read(ends_at - time.monotonic()):
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self, timeout_s: float) -> bool:
        """Read what is drawn next; False at the end, or if nothing comes."""
        readable, _, _ = select.select([self._ours], [], [], max(0.0, timeout_s))
        try:
            data = os.read(self._ours, 65_536) if readable else b""
        except OSError:  # the other end is closed
            data = b""
        self.drawn += data.decode(errors="replace")
        return bool(data)


@contextmanager
def in_terminal(toolbus: CommandLine, *arguments: str, columns: int = 100) -> Iterator[Terminal]:
    """Run a command in a terminal; if it still runs when the block ends, it is killed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    variables = {**toolbus.environment(), "TERM": "xterm-256color"}
    del variables["COLUMNS"]
    try:
        with heard_interrupts():
            process = subprocess.Popen(
                [sys.executable, "-m", "toolbus", *arguments],
                cwd=toolbus.folder,
                env=variables,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
            )
        os.close(theirs)
        with process:
            try:
                yield Terminal(process, ours)
            finally:
                if process.returncode is None:
                    process.kill()
    finally:
        os.close(ours)
