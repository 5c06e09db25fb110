"""What a command writes, within bounds and as models may read it, and as progress of its call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from toolbus import ToolContext
from toolbus.untrusted_text import visible
from toolbus_toolkits.launcher.command import RunningCommand
from toolbus_toolkits.launcher.process import PipeName

__all__ = ["MAX_CHARS", "CommandOutput", "OutputProgress"]

MAX_CHARS = 30_000
"""Of one result, as models read it: some 8,000 tokens."""
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""What writes more writes by mistake."""
_PROGRESS_CHARS = 1_500
"""Of each stream: with four bytes a character both fit into the 16 KiB of a progress."""
_PROGRESS_EVERY_S = 0.25


class _Stream:
    """The beginning and the end of what a command writes to one pipe."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        room = MAX_CHARS - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[:-MAX_CHARS]
        self.size += len(data)

    def text(self, limit: int) -> tuple[str, bool]:
        """Return it as a model may read it, within a limit of characters; whether that cut it."""
        data = self._head + self._tail
        shown = _shown(data)
        if len(shown) <= limit and len(data) == self.size:
            return shown, False
        half = limit // 2 - 50
        note = f"\n[the middle of {self.size:,} bytes is left out]\n"
        return f"{shown[:half]}{note}{shown[-half:]}", True

    def last(self, chars: int) -> str:
        """Return the last characters, escaped."""
        return _shown((self._head + self._tail)[-4 * chars :])[-chars:]


def _shown(data: bytearray) -> str:
    # A lone `\r` writes a line of progress anew: then each is a line, and none is hidden.
    text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return visible(text)


class CommandOutput:
    """What a command writes; one that writes more than 64 MiB is killed."""

    def __init__(self, process: RunningCommand | None = None) -> None:
        self.streams: dict[str, _Stream] = {"stdout": _Stream(), "stderr": _Stream()}
        self.process: RunningCommand | None = process
        """Set once it is started."""
        self.is_killed: bool = False
        """Whether it was killed for what it wrote."""
        self.on_output: Callable[[], None] | None = None
        """Called when it has written something."""

    def receive(self, name: PipeName, data: bytes) -> None:
        """Take a piece of its output."""
        self.streams[name].add(data)
        size = sum(stream.size for stream in self.streams.values())
        if size > MAX_OUTPUT_BYTES and self.process is not None and not self.is_killed:
            self.is_killed = True
            self.process.kill()
        if self.on_output is not None:
            self.on_output()

    def texts(self, notes: Iterable[str] = ()) -> tuple[str, str, bool]:
        """Return stdout, stderr, and whether a middle is left out.

        Args:
            notes: Lines about the command, which follow in brackets on stderr.
        """
        # Each stream has half of the characters, and what the other one does not need.
        wanted = len(self.streams["stdout"].text(MAX_CHARS)[0])
        stderr, is_cut = self.streams["stderr"].text(max(MAX_CHARS // 2, MAX_CHARS - wanted))
        stdout, is_stdout_cut = self.streams["stdout"].text(MAX_CHARS - len(stderr))
        if self.is_killed:
            notes = (f"it was ended: it wrote more than {MAX_OUTPUT_BYTES:,} bytes", *notes)
        for note in notes:
            if stderr and not stderr.endswith("\n"):
                stderr += "\n"
            stderr += f"[{note}]\n"
        return stdout, stderr, is_cut or is_stdout_cut


class _ShownStream(Protocol):
    def last(self, chars: int) -> str:
        """Return the last characters, escaped."""


class _ShownOutput(Protocol):
    on_output: Callable[[], None] | None

    @property
    def streams(self) -> Mapping[str, _ShownStream]:
        """By their names."""


class OutputProgress:
    """What a command has written until now, for a caller that wants to see it."""

    def __init__(self, context: ToolContext, output: _ShownOutput) -> None:
        self._context = context
        self._output = output
        self._timer: asyncio.TimerHandle | None = None
        if context.wants_progress:
            output.on_output = self._begin

    def _begin(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PROGRESS_EVERY_S, self._emit)

    def _emit(self) -> None:
        self._timer = None
        streams = self._output.streams
        self._context.emit({name: stream.last(_PROGRESS_CHARS) for name, stream in streams.items()})

    def close(self) -> None:
        """Emit nothing more."""
        self._output.on_output = None
        if self._timer is not None:
            self._timer.cancel()
