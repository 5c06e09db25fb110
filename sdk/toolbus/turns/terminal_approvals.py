"""Asks a person in the terminal whether a call may run: `Turn(approve=approve_in_terminal)`.

All that others wrote is escaped and stands behind a mark at the left, so that no text of a tool can
look like the question itself. What was typed before the question is dropped, so that nobody answers
a question that they have not seen.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import shlex
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeAlias
from unicodedata import east_asian_width
from weakref import WeakKeyDictionary

from toolbus.auth.participant_names import full_name
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.errors import Unavailable
from toolbus.permissions.rule import Rule
from toolbus.turns.approvals import ApprovalDecision, ApprovalRequest
from toolbus.untrusted_text import json_text, one_line, printable

__all__ = ["ApprovalQuestion", "approve_in_terminal", "ask_in_terminal", "rows_of"]

_HEAD_ROWS = 28
_TAIL_ROWS = 12
"""Rows of a text that are shown, unless the person asks for all: its beginning and its end."""
_MAX_LINE_BYTES = 4_000
"""A terminal takes lines of up to 4,095 bytes; longer arguments need an editor."""
_THREADS = WorkerThreads("terminal", 4, may_take_long=True)
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
_COLORS = {"+": "32", "-": "31", "@": "36"}
_HUNK = re.compile(r"^@@", re.MULTILINE)
_MARK = "    | "
"""Stands before each row that others wrote, and before nothing else."""


Edit: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Lets a person change a text that is one JSON object; an empty text leaves it as it is, and None
leaves the question."""
_ESCAPE = "\x1b"


class _Left(Exception):
    """The person has left a question without an answer."""


@dataclass(frozen=True, slots=True)
class ApprovalQuestion:
    """What a person is asked about one call, by a turn of this process or by a host in a room.

    All texts are escaped, as by `printable`; each stands behind its label.
    """

    about: Sequence[tuple[str, str]]
    """The tool, and for whom it is called: what stays so if the person changes the arguments."""
    arguments: Mapping[str, Any]
    """The values by parameter with which it would run."""
    reasons: Sequence[tuple[str, str]]
    """Why a person is asked, and what the tool says: about these arguments alone. A text behind
    the label "preview" may be a diff."""
    suggestions: Sequence[Rule] = ()
    """Rules that would have allowed it, or parts of it."""
    workdirs: str = ""
    """The folders, a line for each, in which alone something is allowed always."""
    is_asked_always: bool = False
    """Whether it is asked each time, whatever was allowed."""

    @classmethod
    def of_request(cls, request: ApprovalRequest) -> ApprovalQuestion:
        """Return what a turn asks."""
        assessment, decision, tool = request.assessment, request.decision, request.tool
        owner = f"of {full_name(tool.owner, tool.alias)}" if tool.owner else "in this process"
        workdirs = "\n".join(map(one_line, tool.workdirs))
        about = [("tool", f"{one_line(tool.name)} ({one_line(owner)})")]
        if workdirs:
            about.append(("in", workdirs))
        if assessment.reaches:
            about.append(("reaches", one_line(assessment.reaches)))
        reasons = [("asked because", printable(decision.reason))]
        if decision.rule is not None and str(decision.rule) != decision.rule.shown():
            reasons.append(("rule", decision.rule.shown()))
        # Most reasons quote it already.
        if assessment.message and json_text(assessment.message) not in decision.reason:
            speaker = "its owner says" if tool.owner else "the tool says"
            reasons.append((speaker, printable(assessment.message)))
        if assessment.preview:
            reasons.append(("preview", printable(assessment.preview)))
        return cls(
            about,
            request.arguments,
            reasons,
            decision.suggestions,
            workdirs,
            is_asked_always=decision.source != "mode",  # an ask rule, or an immune ask
        )


async def approve_in_terminal(request: ApprovalRequest) -> ApprovalDecision:
    """Show a request in the terminal of this process, and return the person's decision.

    It shows the tool, its owner, the arguments, why the person is asked, and what the tool says and
    would change. The keys are `a` to approve, `A` for always, `d` or Ctrl-D to deny, `e` to change
    the arguments, in `$VISUAL` or `$EDITOR` if one is set, and `v` to show all of a long text.
    Questions of several turns come one after another.

    Args:
        request: What a turn asks.

    Raises `Unavailable` if the process has no terminal, or it was closed.
    """
    return await _ask(ApprovalQuestion.of_request(request))


async def ask_in_terminal(
    question: ApprovalQuestion, first_key: str = "", edit: Edit | None = None
) -> ApprovalDecision | None:
    """Ask as `approve_in_terminal` does about what others may answer too.

    Esc, `q` and Ctrl-D leave the question without an answer: then it returns None. The message of
    a cancellation is shown: what has happened.

    Args:
        question: What is asked.
        first_key: A key that counts as pressed once the question is shown; not `a`, because nobody
            approves what was not shown.
        edit: Lets a person change the arguments where no editor is set; by default they are typed.
    """
    try:
        return await _ask(question, first_key, edit, can_leave=True)
    except _Left:
        return None


async def _ask(
    question: ApprovalQuestion,
    first_key: str = "",
    edit: Edit | None = None,
    *,
    can_leave: bool = False,
) -> ApprovalDecision:
    """Ask in the terminal. Raises `_Left`, and `Unavailable` if there is no terminal."""
    loop = asyncio.get_running_loop()
    async with _locks.setdefault(loop, asyncio.Lock()):
        with _Terminal() as terminal:
            try:
                dialog = _Dialog(terminal, question, edit, can_leave=can_leave)
                return await dialog.run(first_key)
            except asyncio.CancelledError as error:
                # What is written next does not stand behind a prompt.
                why = f"  Meanwhile: {one_line(str(error))}\n" if str(error) else ""
                with suppress(Unavailable):
                    terminal.write(f"\n{why}")
                raise


class _Terminal:
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
            self.fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            text = "there is no terminal to ask in: this process has none"
            raise Unavailable(text, executed="no", retryable=False) from None
        self._woken, self._wake = os.pipe()
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
        self.has_colors = not is_plain

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


class _Dialog:
    """One question, until it is decided."""

    def __init__(
        self,
        terminal: _Terminal,
        question: ApprovalQuestion,
        edit: Edit | None,
        *,
        can_leave: bool,
    ) -> None:
        self._terminal = terminal
        self._question = question
        self._edit_text = edit
        self._can_leave = can_leave
        self._edited: dict[str, Any] | None = None

    async def run(self, key: str = "") -> ApprovalDecision:
        """Show the question, and return the decision about it. Raises `_Left`."""
        self._show()
        keys = "[a]pprove, [A]lways, [d]eny, [e]dit, [v]iew all: "
        if self._can_leave:
            keys = f"[Esc/q] back, {keys}"
        while True:
            key = key or await self._key(keys)
            if key in ("a", "o"):  # `o` is "once"
                return ApprovalDecision.allow(arguments=self._edited)
            if key == "A" and (decision := await self._always()) is not None:
                return decision
            if key in ("d", "\x04"):
                if key == "d":
                    reason = await self._line("reason", "for the caller (may be empty)")
                    return ApprovalDecision.deny(reason[:500])
                return ApprovalDecision.deny()
            if key == "e":
                await self._edit()
            if key == "v":
                self._show(is_whole=True)
            if key not in set("Aev"):
                also = "q, " if self._can_leave else ""
                self._terminal.write(f"  Press one key, without Enter: {also}a, A, d, e or v.\n")
            key = ""

    def _show(self, *, is_whole: bool = False) -> None:
        self._terminal.write("\nMay this call run?\n")
        question = self._question
        parts = [*question.about, ("arguments", json_text(dict(self._arguments), indent=2))]
        if self._edited is None:  # the rest is about the arguments before
            parts += question.reasons
        for label, text in parts:
            self._quote(label, text, is_whole=is_whole)

    @property
    def _arguments(self) -> Mapping[str, Any]:
        return self._question.arguments if self._edited is None else self._edited

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
            raise _Left
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
                raise _Left
        return typed.rstrip("\r\n\x04")

    async def _always(self) -> ApprovalDecision | None:
        """Let the person choose what to allow from now on; None if nothing of it."""
        question = self._question
        if self._edited is None and question.is_asked_always:
            self._terminal.write("  Not always: this is asked each time, whatever was allowed.\n")
            return None
        rules = [] if self._edited is not None else list(question.suggestions)
        if question.workdirs:
            self._quote("in these folders alone", question.workdirs, is_whole=True)
        for number, rule in enumerate(rules, 1):
            which = "every call"
            if rule.match is not None:
                which = f"calls that match {json_text(rule.match)}"
            # All of it: its pattern may be long, to fake a line.
            self._quote(str(number), f"{which} of {one_line(rule.tool)}", is_whole=True)
        if len(rules) > 1:  # as for the parts of one input, which need a rule each
            self._terminal.write("  a: all of these\n")
        self._terminal.write("  x: exactly these arguments of this tool\n")
        keys = [*map(str, range(1, len(rules) + 1)), *["a"] * (len(rules) > 1), "x"]
        leaving = "Esc or q to leave, " if self._can_leave else ""
        key = await self._key(
            f"[{'/'.join(keys)}] allow always, {leaving}or any other key to go back: "
        )
        if key == "a" and len(rules) > 1:
            return ApprovalDecision.allow("state", rule=tuple(rules))
        if key == "x":
            return ApprovalDecision.allow("state", arguments=self._edited)
        if key.isascii() and key.isdigit() and 0 < int(key) <= len(rules):
            return ApprovalDecision.allow("state", rule=rules[int(key) - 1])
        self._terminal.write(f"  Nothing is allowed always: for that press {' or '.join(keys)}.\n")
        return None

    async def _edit(self) -> None:
        """Let the person change the arguments; they stay as they are where that fails."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        is_typed = not editor and self._edit_text is None
        written = json_text(dict(self._arguments), indent=None if is_typed else 2)
        if editor:
            text = await self._in_editor(editor, written)
        elif self._edit_text is not None:
            edited = await self._edit_text(written)
            if edited is None:
                raise _Left
            text = edited
        elif len(written.encode()) > _MAX_LINE_BYTES:
            self._terminal.write("They are too long to type: set EDITOR to change them.\n")
            return
        else:
            text = await self._line("the arguments as JSON", "one line (empty: as before)")
        if not text.strip():
            return
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            self._terminal.write(f"This is not JSON: {one_line(str(error), 200)}\n")
            return
        if not isinstance(value, dict):
            self._terminal.write("The arguments must be one JSON object.\n")
            return
        # As text: 1, 1.0 and true are equal, and are not the same arguments.
        asked = json_text(dict(self._question.arguments), sort_keys=True)
        self._edited = None if json_text(value, sort_keys=True) == asked else value
        self._show()

    async def _in_editor(self, editor: str, text: str) -> str:
        """Return the text as the editor leaves it; empty if it cannot be started, or fails."""
        folder = Path(tempfile.mkdtemp(prefix="toolbus-"))  # for this user alone
        path = folder / "arguments.json"
        try:
            path.write_text(text, encoding="utf-8")
            terminal = self._terminal.fd
            command = (*shlex.split(editor), str(path))
            running = await asyncio.create_subprocess_exec(
                *command, stdin=terminal, stdout=terminal, stderr=terminal
            )
            try:
                status = await running.wait()
            except asyncio.CancelledError:
                running.terminate()
                await running.wait()
                raise
            if status == 0:
                return path.read_text(encoding="utf-8")
            self._terminal.write(f"The editor ended with status {status}.\n")
        except (OSError, ValueError) as error:
            self._terminal.write(f"The editor cannot be used: {one_line(str(error), 200)}\n")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return ""


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
