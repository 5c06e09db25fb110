"""A program that serves for long: its variables and messages, and how it is asked to end.

What it writes to stderr is read line by line, so that it never blocks on a full pipe; the last
lines are kept, because they say why it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_toolkits.launcher.process import (
    PIPE_BYTES,
    PipeName,
    Program,
    StartedProcess,
    to_the_end,
)
from toolbus_toolkits.sandbox import Backend

__all__ = ["INHERITED", "RunningProgram", "launch", "program_environment"]

INHERITED = frozenset(
    "HOME LANG LANGUAGE LC_ALL LC_CTYPE LOGNAME PATH SHELL SSL_CERT_DIR SSL_CERT_FILE TERM TMPDIR"
    " TZ USER".split()
)
"""What a program inherits of its host: where programs, homes and certificates are, and how its user
reads. None of them holds a secret."""


def program_environment(
    added: Mapping[str, str] | None = None, host: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables of a program.

    Args:
        added: What the program's own entry sets; it wins.
        host: The variables of this process.
    """
    # A value that begins with "()" is a shell function: old shells execute it.
    inherited = {
        name: value
        for name, value in host.items()
        if name in INHERITED and not value.startswith("()")
    }
    return inherited | dict(added or {})


_LAST_LINES = 20
_FLOOD_PAUSE_S = 0.02
"""So long a flood of lines waits in its pipe, so that the event loop has time for other work."""


class RunningProgram:
    """A program that is started with `launch`.

    Args:
        on_line: Receives each line that it writes to stderr, cut and escaped; of what comes at
            once, the last 20.
        redact: Removes secrets from each line, before it is cut.
    """

    def __init__(self, on_line: Callable[[str], None] | None, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self._on_line = on_line
        self.given_up: str = ""
        """Why its output is not read to the end, set by who reads it."""
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._pending = b""
        self._output = asyncio.StreamReader(limit=PIPE_BYTES)
        self._process: StartedProcess | None = None

    @property
    def _started(self) -> StartedProcess:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        """The process id, and the id of its process group."""
        return self._started.pid

    @property
    def stdin(self) -> asyncio.StreamWriter:
        """Its standard input, to write to."""
        assert self._started.stdin is not None
        return self._started.stdin

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._started.returncode

    @property
    def confined_by(self) -> Backend | None:
        """What confines it; None without a sandbox. `subprocess` only sets limits."""
        confined = self._started.confined
        return None if confined is None else confined.backend

    @property
    def last_lines(self) -> list[str]:
        """The last 20 lines of stderr, escaped and cut to `SHOWN_CHARS`."""
        return list(self._lines)

    def ending(self) -> str:
        """Return how it ended, as words for an error, with its last line."""
        status = self.returncode
        if self.given_up:
            text = self.given_up
        elif status is None:
            text = "it closed its output"
        elif status < 0:
            text = f"it was ended by {_signal_name(-status)}"
        else:
            text = f"it ended with status {status}"
        return f"{text}; its last line was: {self._lines[-1]}" if self._lines else text

    async def read(self, limit: int = PIPE_BYTES) -> bytes:
        """Return the next bytes of its output; none when it has closed it, or has ended."""
        return await self._output.read(limit)

    async def stop(self, grace_s: float = 1.0) -> None:
        """End the program and all of its process group.

        Closing stdin asks it to end; after `grace_s` it gets SIGTERM, and after the same time again
        SIGKILL. What is left of its group is killed at once. Idempotent.
        """
        process = self._started
        with contextlib.suppress(OSError, RuntimeError):
            self.stdin.close()
        if not await self._has_ended(grace_s):
            process.signal(signal.SIGTERM)
            await self._has_ended(grace_s)
        await process.end()

    async def exited(self, limit_s: float = 1.0) -> None:
        """Wait until its exit status is known, and its last lines are read, within a limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._started.closed.wait()

    async def _has_ended(self, limit_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._started.ended.wait()
        return self._started.ended.is_set()

    def _receive(self, name: PipeName, data: bytes) -> None:
        if name == "stderr":
            self._read_lines(data)
        elif data:
            self._output.feed_data(data)
        else:
            self._output.feed_eof()

    def _read_lines(self, data: bytes) -> None:
        if not data:
            self._keep(self._pending)
            return
        *lines, pending = (self._pending + data).split(b"\n")
        self._pending = pending[:PIPE_BYTES]  # from its start, or a part of a secret could be shown
        for line in lines[-_LAST_LINES:]:
            self._keep(line)
        if len(data) == PIPE_BYTES and self._process is not None:
            pipe = self._process.stderr
            pipe.pause_reading()
            asyncio.get_running_loop().call_later(_FLOOD_PAUSE_S, pipe.resume_reading)

    def _keep(self, line: bytes) -> None:
        text = one_line(self._redact(line.decode(errors="replace")).strip(), SHOWN_CHARS)
        if text:
            self._lines.append(text)
            if self._on_line is not None:
                self._on_line(text)


@asynccontextmanager
async def launch(
    program: Program,
    *,
    on_line: Callable[[str], None] | None = None,
    redact: Callable[[str], str] = str,
) -> AsyncIterator[RunningProgram]:
    """Start a program; it and its process group end with the block, and with this process.

    Args:
        program: What is started.
        on_line: Receives each line that it writes to stderr.
        redact: Removes secrets from each line.

    Raises:
        LaunchFailed: It cannot be started; the message says what to do and shows no argument.
    """
    running = RunningProgram(on_line, redact)
    process = running._process = await StartedProcess.start(
        program, program_environment(program.env), "program", on_output=running._receive
    )
    running._output.set_transport(process.stdout)
    try:
        yield running
    finally:
        await to_the_end(running.stop())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
