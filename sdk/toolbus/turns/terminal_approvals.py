"""Asks a person in the terminal whether a call may run: `Turn(approve=approve_in_terminal)`."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from toolbus.auth.participant_names import full_name
from toolbus.permissions.rule import Rule
from toolbus.turns.approvals import ApprovalDecision, ApprovalRequest
from toolbus.turns.terminal_dialogs import (
    MAX_LINE_BYTES,
    Left,
    Terminal,
    TerminalDialog,
    in_own_terminal,
)
from toolbus.untrusted_text import json_text, one_line, printable

__all__ = ["ApprovalQuestion", "approve_in_terminal", "ask_in_terminal"]

Edit: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Lets a person change a text that is one JSON object; an empty text leaves it as it is, and None
leaves the question."""


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
    except Left:
        return None


async def _ask(
    question: ApprovalQuestion,
    first_key: str = "",
    edit: Edit | None = None,
    *,
    can_leave: bool = False,
) -> ApprovalDecision:
    """Ask in the terminal. Raises `Left`, and `Unavailable` if there is no terminal."""

    async def ask(terminal: Terminal) -> ApprovalDecision:
        return await _Dialog(terminal, question, edit, can_leave=can_leave).run(first_key)

    return await in_own_terminal(ask)


class _Dialog(TerminalDialog):
    """One question, until it is decided."""

    def __init__(
        self,
        terminal: Terminal,
        question: ApprovalQuestion,
        edit: Edit | None,
        *,
        can_leave: bool,
    ) -> None:
        super().__init__(terminal, can_leave=can_leave)
        self._question = question
        self._edit_text = edit
        self._edited: dict[str, Any] | None = None

    async def run(self, key: str = "") -> ApprovalDecision:
        """Show the question, and return the decision about it. Raises `Left`."""
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
                raise Left
            text = edited
        elif len(written.encode()) > MAX_LINE_BYTES:
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
