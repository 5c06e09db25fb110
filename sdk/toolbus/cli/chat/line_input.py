"""The line editor of the chat: `readline`, with a history in TOOLBUS_HOME.

The history has a question a line, as JSON text, so that a question of several lines stays one. Each
is added at once: two chats, and one that is killed, lose nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolbus.atomic_file import write_atomically
from toolbus.chunks.json_values import is_encodable

try:
    import readline
except ImportError:  # Python on Windows has none: lines are read as they are
    readline = None  # type: ignore[assignment]

__all__ = ["History", "LineInput"]

_MAX_ENTRIES = 1_000
"""How many stay when the file has twice as many: each start of a chat reads all of them."""
_MAX_FILE_BYTES = 4 * 1024 * 1024
"""The part of the file that is read; a longer one is made shorter, or it would grow for ever."""
PROMPT = "you> "
_MORE = "...> "


class History:
    """The questions that were typed, in a file that only the user can read.

    A file that cannot be read or written is no reason not to chat: then there is no history.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[str]:
        """Return the last entries; make the file shorter if it has many more."""
        try:
            if not self._path.is_file():  # opening a FIFO would wait for its writer
                return []
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _MAX_FILE_BYTES))
                lines = file.read(_MAX_FILE_BYTES).split(b"\n")
        except OSError:
            return []
        entries = [entry for line in lines if (entry := _entry(line))]
        recent = entries[-_MAX_ENTRIES:]
        if len(entries) > 2 * _MAX_ENTRIES or size > _MAX_FILE_BYTES:
            with suppress(OSError):
                write_atomically(self._path, b"".join(map(_line, recent)), mode=0o600)
        return recent

    def add(self, text: str) -> None:
        """Append an entry."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        for name in ("O_NOFOLLOW", "O_NONBLOCK"):  # a FIFO that nobody reads is an error then
            flags |= getattr(os, name, 0)
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            number = os.open(self._path, flags, 0o600)
            try:
                if hasattr(os, "fchmod"):  # not on Windows
                    os.fchmod(number, 0o600)
                os.write(number, _line(text[:10_000]))
            finally:
                os.close(number)


def _line(entry: str) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _entry(line: bytes) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    # The editor takes no NUL and no lone surrogate, and shows other control characters as `^[`.
    is_text = isinstance(value, str) and "\0" not in value and is_encodable(value)
    return value if is_text else ""


class LineInput:
    """Reads what a person types.

    Args:
        words: What the Tab key completes at the start of a line.
    """

    def __init__(self, history: History, words: Sequence[str]) -> None:
        self._history = history
        self._words = words
        self._last = ""
        # Without a terminal at both ends `input` does not edit, and writes the prompt to stdout.
        self._edits = sys.stdin.isatty() and sys.stdout.isatty()
        if self._edits and readline is not None:
            self._prepare(readline)

    def _prepare(self, editor: Any) -> None:
        editor.set_auto_history(False)  # a question of several lines is one entry
        editor.parse_and_bind("set enable-bracketed-paste on")
        editor.parse_and_bind("set enable-keypad off")
        editor.parse_and_bind("tab: complete")
        editor.set_completer_delims(" ")
        editor.set_completer(self._complete)
        for entry in self._history.load():
            with suppress(UnicodeError):  # characters that this locale does not have
                editor.add_history(entry)
                self._last = entry

    def read(self) -> str:
        """Return the next question: a line, or several that end with a backslash but the last.

        Raises EOFError at the end of the input, KeyboardInterrupt for Ctrl-C.
        """
        lines = [self._line(PROMPT)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._line(_MORE))
        text = "\n".join(lines).strip()
        if text and text != self._last:
            self._last = text
            self._history.add(text)
            if self._edits and readline is not None:
                readline.add_history(text)
        return text

    def _line(self, prompt: str) -> str:
        if self._edits:
            return input(prompt)
        print(prompt, end="", file=sys.stderr, flush=True)  # noqa: T201 - a prompt is no result
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def _complete(self, typed: str, number: int) -> str | None:
        if not typed.startswith("/"):
            return None
        matching = [word for word in self._words if word.startswith(typed)]
        return matching[number] if number < len(matching) else None
