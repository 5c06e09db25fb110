"""Dialogs in the terminal that controls this process: approvals, and questions of tools.

All that others wrote is escaped and stands behind a mark at the left, so that no text of a tool can
look like the question itself. What was typed before the question is dropped, so that nobody answers
a question that they have not seen.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Self, TypeVar
from unicodedata import east_asian_width
from weakref import WeakKeyDictionary

from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.errors import Unavailable
from toolbus.untrusted_text import one_line

__all__ = ["MAX_LINE_BYTES", "Left", "Terminal", "TerminalDialog", "in_own_terminal", "rows_of"]

T = TypeVar("T")
_HEAD_ROWS = 28
_TAIL_ROWS = 12
"""Rows of a text that are shown, unless the person asks for all: its beginning and its end."""
MAX_LINE_BYTES = 4_000
"""A terminal takes lines of up to 4,095 bytes; longer arguments need an editor."""
_THREADS = WorkerThreads("terminal", 4, may_take_long=True)
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
_COLORS = {"+": "32", "-": "31", "@": "36"}
_HUNK = re.compile(r"^@@", re.MULTILINE)
_MARK = "    | "
"""Stands before each row that others wrote, and before nothing else."""
_ESCAPE = "\x1b"


class Left(Exception):
    """The person has left a question without an answer."""


async def in_own_terminal(ask: Callable[[Terminal], Awaitable[T]]) -> T:
    """Ask in the terminal of this process; questions come one after another.

    The message of a cancellation is shown: what has happened.

    Raises what `ask` raises, and `Unavailable` if there is no terminal.
    """
    loop = asyncio.get_running_loop()
    async with _locks.setdefault(loop, asyncio.Lock()):
        with Terminal() as terminal:
            try:
                return await ask(terminal)
            except asyncio.CancelledError as error:
                # What is written next does not stand behind a prompt.
                why = f"  Meanwhile: {one_line(str(error))}\n" if str(error) else ""
                with suppress(Unavailable):
                    terminal.write(f"\n{why}")
                raise


class Terminal:
    """The terminal that controls this process, in single keys or in lines."""

    def __init__(self) -> None:
        try:
            import termios  # only systems with such terminals have it
            import tty
        except ImportError:
            raise Unavailable(
                "this system has no terminal to ask in", executed="no", retryable=False
            ) from None
        self._termios, self._tty = termios, tty
        try:
            self.fd: int = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            text = "there is no terminal to ask in: this process has none"
            raise Unavailable(text, executed="no", retryable=False) from None
        self._woken, self._wake = os.pipe()
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
        self.has_colors: bool = not is_plain

    def __enter__(self) -> Self:
        self._former = self._termios.tcgetattr(self.fd)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, self._termios.error):  # it may be closed by now
            self._termios.tcsetattr(self.fd, self._termios.TCSADRAIN, self._former)
        # A thread that still reads ends by this, and not with the next key that is pressed.
        os.close(self._wake)
        for opened in (self.fd, self._woken):
            os.close(opened)

    @property
    def width(self) -> int:
        """Its columns now; stdout may be a file."""
        columns = 0
        with suppress(OSError):
            columns = os.get_terminal_size(self.fd).columns
        return max(20, columns or shutil.get_terminal_size().columns)

    def write(self, text: str) -> None:
        """Write text. Raises `Unavailable` if the terminal was closed."""
        data = text.encode(errors="backslashreplace")
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except OSError:
                raise _closed() from None

    def forget_input(self) -> None:
        """Drop what was typed so far."""
        self._termios.tcflush(self.fd, self._termios.TCIFLUSH)

    @contextmanager
    def keys(self) -> Iterator[None]:
        """Read single keys that are not echoed; Ctrl-C stays an interruption."""
        self._tty.setcbreak(self.fd, self._termios.TCSADRAIN)
        try:
            yield
        finally:
            self._termios.tcsetattr(self.fd, self._termios.TCSADRAIN, self._former)

    @contextmanager
    def lines(self, *, end_at_escape: bool) -> Iterator[None]:
        """Read whole lines; Esc may end one too."""
        if not end_at_escape:
            yield
            return
        attributes = self._termios.tcgetattr(self.fd)
        attributes[6][self._termios.VEOL] = _ESCAPE.encode()
        self._termios.tcsetattr(self.fd, self._termios.TCSADRAIN, attributes)
        try:
            yield
        finally:
            self._termios.tcsetattr(self.fd, self._termios.TCSADRAIN, self._former)

    async def read(self) -> bytes:
        """Return what was typed: a key, several at once, or a line."""
        reading = asyncio.ensure_future(_THREADS.run(self._read))
        try:
            data = await asyncio.shield(reading)
        except asyncio.CancelledError:
            os.write(self._wake, b"x")
            await asyncio.wait([reading])  # ends at once: the files must outlive it
            raise
        return data

    def _read(self) -> bytes:
        ready, _, _ = select.select([self.fd, self._woken], [], [])
        if self._woken in ready:
            return b""
        try:
            data = os.read(self.fd, 65_536)
        except OSError:
            raise _closed() from None
        return data or b"\x04"


def _closed() -> Unavailable:
    return Unavailable("the terminal was closed", executed="no", retryable=False)


class TerminalDialog:
    """One question, until it is decided.

    Args:
        terminal: The terminal.
        can_leave: Whether the person may leave it without an answer.
    """

    def __init__(self, terminal: Terminal, *, can_leave: bool) -> None:
        self._terminal = terminal
        self._can_leave = can_leave

    def _quote(self, label: str, text: str, *, is_whole: bool) -> None:
        """Write text that others wrote, each row behind a mark; of a long one the middle is cut."""
        text = text.removesuffix("\n").replace("\t", "    ")
        width = self._terminal.width - len(_MARK)
        is_diff = label == "preview" and _HUNK.search(text) is not None
        has_colors = is_diff and self._terminal.has_colors
        head = list(islice(rows_of(text, width), None if is_whole else _HEAD_ROWS + _TAIL_ROWS + 1))
        tail: list[slice] = []
        if not is_whole and len(head) > _HEAD_ROWS + _TAIL_ROWS:
            del head[_HEAD_ROWS:]
            # A row has at most `width` characters and a line end: what is before is not looked at.
            after = head[-1].stop
            begin = max(after + text.startswith("\n", after), len(text) - _TAIL_ROWS * (width + 1))
            tail = list(rows_of(text, width, begin))[-_TAIL_ROWS:]
        self._terminal.write(f"  {label}:\n")
        self._write_rows(text, head, has_colors=has_colors)
        if tail:
            hidden = text[head[-1].stop : tail[0].start].removeprefix("\n").removesuffix("\n")
            lines = hidden.count("\n") + 1
            self._terminal.write(
                f"    ({len(hidden):,} characters are hidden here, of {lines:,} lines: press v)\n"
            )
            self._write_rows(text, tail, has_colors=has_colors)

    def _write_rows(self, text: str, rows: Iterable[slice], *, has_colors: bool) -> None:
        for row in rows:
            shown = text[row]
            line = text.rfind("\n", 0, row.start) + 1
            first = text[line : line + 1] if has_colors else ""
            if color := _COLORS.get(first):
                shown = f"\x1b[{color}m{shown}\x1b[0m"
            self._terminal.write(f"{_MARK}{shown}\n")

    async def _key(self, prompt: str) -> str:
        with self._terminal.keys():
            # Before the prompt: a person who answers at once must not be dropped, too.
            self._terminal.forget_input()
            self._terminal.write(prompt)
            typed = (await self._terminal.read()).decode(errors="replace")
        self._terminal.write(f"{one_line(typed, 20)}\n")
        if self._can_leave and typed in (_ESCAPE, "q", "\x04"):
            raise Left
        # Several at once are an arrow key, or pasted text: nobody decided so.
        return typed if len(typed) == 1 else ""

    async def _line(self, name: str, about: str) -> str:
        with self._terminal.lines(end_at_escape=self._can_leave):
            self._terminal.forget_input()
            way_back = "; Esc: back" if self._can_leave else ""
            self._terminal.write(f"{name}{way_back}, {about}: ")
            typed = (await self._terminal.read()).decode(errors="replace")
            if self._can_leave and (not typed.endswith("\n") or typed.strip() == "q"):
                self._terminal.write("\n")
                self._terminal.forget_input()  # an arrow key is more than its Esc
                raise Left
        return typed.rstrip("\r\n\x04")


def rows_of(text: str, width: int, begin: int = 0) -> Iterator[slice]:
    """Yield where rows of a text are, so that the terminal breaks none: such a row has no mark."""
    used = 0
    for at in range(begin, len(text)):
        character = text[at]
        if character == "\n":
            yield slice(begin, at)
            begin = at + 1
            used = 0
            continue
        columns = 2 if east_asian_width(character) in "WF" else 1
        if used + columns > width:
            yield slice(begin, at)
            begin = at
            used = 0
        used += columns
    yield slice(begin, len(text))
