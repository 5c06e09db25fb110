"""Prints the events of answers: on a terminal, into pipes, as JSON.

A screen is used by the main thread alone.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import typer

from toolbus.cli.chat.render import (
    MAX_DEPTH,
    call_line,
    dropped_line,
    file_line,
    fitted,
    hold_line,
    inner_event,
    inner_text_line,
    result_line,
    text_in,
    value_line,
)
from toolbus.cli.chat.transcript import NumberedResult, ReplyText
from toolbus.cli.output import write_stdout
from toolbus.untrusted_text import json_text, one_line, visible

__all__ = ["JsonScreen", "PipeScreen", "Screen", "TerminalScreen"]

_DIM = "2"
_RED = "31"
_SILENT_S = 1.0
"""Seconds without an event before the terminal shows that it waits."""
_NO_TERMINAL = (200, 24)
_FAILURE_CHARS = 2_000
"""The size of what is not a terminal: a log is read in wider windows."""


class Screen(Protocol):
    """Where a chat is shown."""

    def show(self, event: Mapping[str, Any], result: NumberedResult | None) -> None:
        """Show an event; with its number, if it is a result."""

    def wait(self, silent_s: float) -> None:
        """Show that nothing has happened for so many seconds."""

    def pause(self) -> None:
        """Leave the terminal to somebody else: a question or the next line that is typed."""

    def notice(self, text: str) -> None:
        """Show words of this program."""

    def fail(self, lines: list[str], event: Mapping[str, Any]) -> None:
        """Show why a question has no answer: for people, and as an event."""


class TerminalScreen:
    """Text as it comes, a line for each call and result, and what changes in place."""

    def __init__(self) -> None:
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
        self._has_colors = not is_plain
        self._can_erase = os.environ.get("TERM", "dumb") != "dumb"
        self._is_mid_line = False
        self._drawn = ""
        """The line that the next one takes the place of."""

    def show(self, event: Mapping[str, Any], result: NumberedResult | None, depth: int = 0) -> None:
        """Show an event; with its number, if it is a result."""
        kind = event.get("type")
        inner = inner_event(event)
        if inner is not None and depth < MAX_DEPTH:
            self.show(inner, result, depth + 1)
        elif kind == "text" and depth:  # all that it has said so far, or the end of that
            self._status(inner_text_line(event, self._width(depth), depth))
        elif kind != "waiting":
            self._show_own(kind, event, result, depth)

    def _show_own(
        self, kind: Any, event: Mapping[str, Any], result: NumberedResult | None, depth: int
    ) -> None:
        match kind:
            case "text":
                self._write(visible(text_in(event, "text")))
            case "dropped":
                self._line(dropped_line(event), "", depth)
            case "restart":
                self.notice("(the reply broke off, its text does not count: it is asked again)")
            case "tool_call":
                self._line(call_line(event, self._width(depth)), _DIM, depth)
            case "tool_result" if result is not None:
                line = result_line(event, result.number, result.took_s, self._width(depth))
                self._line(line, _DIM if event.get("state") == "ok" else _RED, depth)
            case "held" | "resumed" | "parked":
                self._line(hold_line(event, self._width(depth)), "", depth)
            case "progress":
                self._status(value_line(event, self._width(depth)))
            case "file":
                self._line(file_line(event), _DIM, depth)
            case "end" if not depth:
                self._end(text_in(event, "reason"))

    def wait(self, silent_s: float) -> None:
        """Show that nothing has happened for so many seconds."""
        # In the middle of a line of text nothing is drawn: a terminal erases whole lines best.
        if silent_s >= _SILENT_S and not self._is_mid_line:
            self._status(f"  ({silent_s:.0f} s)")

    def pause(self) -> None:
        """Leave the terminal to somebody else: a question or the next line that is typed."""
        self._fresh_line()

    def notice(self, text: str) -> None:
        """Show words of this program."""
        self._fresh_line()
        for line in text.split("\n"):
            self._line(line, "", 0)

    def fail(self, lines: list[str], event: Mapping[str, Any]) -> None:
        """Show why a question has no answer."""
        self._fresh_line()
        for line in lines:
            self._line(line, _RED, 0)

    def _end(self, reason: str) -> None:
        self._fresh_line()
        if reason != "done":
            self.notice(f"(it stopped: {one_line(reason, 100)})")

    def _width(self, depth: int) -> int:
        return max(20, shutil.get_terminal_size().columns - 1 - 2 * depth)

    def _line(self, line: str, color: str, depth: int) -> None:
        self._fresh_line()
        write_stdout(f"{'  ' * depth}{self._styled(line, color)}\n".encode())

    def _styled(self, text: str, color: str) -> str:
        if color and self._has_colors:
            return f"\x1b[{color}m{text}\x1b[0m"
        return text

    def _write(self, text: str) -> None:
        if not text:
            return
        self._erase_status()
        write_stdout(text.encode())
        self._is_mid_line = not text.endswith("\n")

    def _fresh_line(self) -> None:
        self._erase_status()
        if self._is_mid_line:
            self._is_mid_line = False
            write_stdout(b"\n")

    def _status(self, text: str) -> None:
        """Draw a line that the next one takes the place of."""
        shown = fitted(text, self._width(0))
        if not self._can_erase or shown == self._drawn:
            return
        self._fresh_line()
        self._drawn = shown
        write_stdout(self._styled(shown, _DIM).encode())

    def _erase_status(self) -> None:
        if self._drawn:
            self._drawn = ""
            write_stdout(b"\r\x1b[K")


class PipeScreen:
    """The answer on stdout, everything else on stderr.

    The answer is the text of the last reply: it is written once it is known to be the last one, so
    that stdout has neither what the model said before a call nor a reply that broke off.
    """

    def __init__(self) -> None:
        self._reply = ReplyText()

    def show(self, event: Mapping[str, Any], result: NumberedResult | None, depth: int = 0) -> None:
        """Show an event; with its number, if it is a result."""
        kind = event.get("type")
        inner = inner_event(event)
        width = shutil.get_terminal_size(_NO_TERMINAL).columns
        if inner is not None and depth < MAX_DEPTH:
            self.show(inner, result, depth + 1)
            return
        match kind:
            case "tool_call":
                self.pause()
                self.notice("  " * depth + call_line(event, width))
            case "tool_result" if result is not None:
                # Why a call failed is read to its end; it stays one line.
                width = width if event.get("state") == "ok" else _FAILURE_CHARS
                line = result_line(event, result.number, result.took_s, width)
                self.notice("  " * depth + line)
            case "held" | "resumed" | "parked":
                self.notice("  " * depth + hold_line(event, width))
            case "dropped":
                self.notice(dropped_line(event))
            case "file":
                self.notice(file_line(event))
            case "text" if not depth:
                self._reply.add(text_in(event, "text"))
            case "restart" if not depth:
                self._reply.clear()
                self.notice("(the reply broke off: it is asked again)")
            case "end" if not depth:
                self._end(event)

    def _end(self, event: Mapping[str, Any]) -> None:
        text = str(self._reply)
        if self._reply.is_cut:
            self.notice("(the answer is cut: it is too long)")
        self._reply.clear()
        # Not escaped in a pipe, as the result of `toolbus call` is not: programs read it.
        if sys.stdout.isatty():
            text = visible(text)
        if text:
            text = text.removesuffix("\n") + "\n"
            write_stdout(text.encode(errors="backslashreplace"))
        reason = text_in(event, "reason")
        if reason != "done":
            self.notice(f"(it stopped: {one_line(reason, 100)})")

    def wait(self, silent_s: float) -> None:
        """Show nothing."""

    def pause(self) -> None:
        """Give the text so far to stderr: it is not an answer."""
        text = str(self._reply).strip("\n")
        self._reply.clear()
        if text:
            self.notice(visible(text))

    def notice(self, text: str) -> None:
        """Show words of this program."""
        typer.echo(text, err=True)

    def fail(self, lines: list[str], event: Mapping[str, Any]) -> None:
        """Show why a question has no answer."""
        self.pause()
        self.notice("\n".join(lines))


class JsonScreen:
    """Each event as a line of JSON on stdout, notices on stderr."""

    def show(self, event: Mapping[str, Any], result: NumberedResult | None) -> None:
        """Write an event."""
        write_stdout(f"{json_text(event)}\n".encode())

    def wait(self, silent_s: float) -> None:
        """Show nothing: `waiting` is an event."""

    def pause(self) -> None:
        """Do nothing."""

    def notice(self, text: str) -> None:
        """Show words of this program."""
        typer.echo(text, err=True)

    def fail(self, lines: list[str], event: Mapping[str, Any]) -> None:
        """Write the error as an event."""
        write_stdout(f"{json_text(event)}\n".encode())
