"""Asks a person in the terminal what a tool asks: a choice, a text, or a JSON value by a schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolbus.chunks.chunk_types import Chunk, as_chunk
from toolbus.errors import ApprovalDenied, InvalidArguments
from toolbus.tools.questions import ToolQuestion
from toolbus.turns.terminal_dialogs import Left, Terminal, TerminalDialog, in_own_terminal
from toolbus.untrusted_text import json_text, one_line, printable
from toolbus.wire import unpack_body

__all__ = [
    "AnswerQuestion",
    "TypedAnswer",
    "answer_in_terminal",
    "ask_for_answer",
    "typed_answer",
]

_MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class AnswerQuestion:
    """What a person is asked to answer.

    All texts of `about` and `reasons` are escaped, as by `printable`; each stands behind its label.
    """

    about: Sequence[tuple[str, str]]
    """The tool, and for whom it is called."""
    text: str
    """The question; empty where the result of the call is asked for."""
    arguments: Mapping[str, Any] | None
    """The values by parameter of the call whose result is asked for; None for a question."""
    check: Callable[[Chunk], None]
    """Raises `InvalidArguments` for an answer that does not fit."""
    schema: Mapping[str, Any] | None = None
    """The schema of an answer, as it is shown."""
    options: Sequence[str] = ()
    """The answers to choose from."""
    reasons: Sequence[tuple[str, str]] = ()
    """Why it is asked once more, and until when."""

    def parts(self) -> list[tuple[str, str]]:
        """Return what is shown: labels, and texts that are escaped."""
        shown = [*self.about]
        if self.arguments is None:
            shown.append(("question", printable(self.text)))
        else:
            shown.append(("arguments", json_text(dict(self.arguments), indent=2)))
        choices = [f"{at}: {one_line(text)}" for at, text in enumerate(self.options, 1)]
        if choices:
            shown.append(("choices", "\n".join(choices)))
        if self.schema is not None:
            shown.append(("schema of the answer", json_text(dict(self.schema), indent=2)))
        return [*shown, *self.reasons]


@dataclass(frozen=True, slots=True)
class TypedAnswer:
    """What a person has answered, or why the person refuses to."""

    is_refused: bool
    value: Any = None
    reason: str = ""


def typed_answer(text: str, check: Callable[[Chunk], None]) -> Any:
    """Read what a person typed: the text itself where it fits, else the JSON value that it is.

    Raises `InvalidArguments` if neither fits.
    """
    try:
        check(as_chunk(text))
    except InvalidArguments as error:
        try:
            value = json.loads(text, parse_constant=float)
        except (ValueError, RecursionError):
            raise error from None
        try:
            check(as_chunk(value))
        except InvalidArguments:
            raise
        except Exception as wrong:
            raise InvalidArguments(str(wrong), executed="no") from wrong
        return value
    return text


async def answer_in_terminal(question: ToolQuestion) -> Any:
    """Let a person answer in the terminal of this process: `Turn(answer=answer_in_terminal)`.

    Raises `ApprovalDenied` if the person refuses, and `Unavailable` if there is no terminal.
    """
    packed = question.arguments
    asked = AnswerQuestion(
        (),
        question.text,
        None if packed is None else unpack_body(packed),
        question.check,
        question.schema,
        question.options,
    )
    answer = await ask_for_answer(asked, can_leave=False)
    assert answer is not None, "it cannot be left"
    if answer.is_refused:
        quote = f", and says: {json_text(answer.reason)}" if answer.reason else ""
        raise ApprovalDenied(f"a person refused to answer{quote}", details={"source": "person"})
    return answer.value


async def ask_for_answer(
    question: AnswerQuestion, first_key: str = "", *, can_leave: bool = True
) -> TypedAnswer | None:
    """Show a question in the terminal of this process, and return the answer.

    The keys are `a` to answer, or the number of a choice, `d` to refuse, and `v` to show all of a
    long text. Esc, `q` and Ctrl-D leave the question without an answer: then it returns None.

    Args:
        question: What is asked.
        first_key: A key that counts as pressed once the question is shown.
        can_leave: Whether the person may leave it; else Ctrl-D refuses.

    Raises `Unavailable` if the process has no terminal, or it was closed.
    """

    async def ask(terminal: Terminal) -> TypedAnswer:
        return await _Dialog(terminal, question, can_leave=can_leave).run(first_key)

    try:
        return await in_own_terminal(ask)
    except Left:
        return None


class _Dialog(TerminalDialog):
    """One question, until it is answered."""

    def __init__(self, terminal: Terminal, question: AnswerQuestion, *, can_leave: bool) -> None:
        super().__init__(terminal, can_leave=can_leave)
        self._question = question
        digits = [str(number) for number in range(1, len(question.options) + 1)]
        self._choices = dict(zip(digits, question.options, strict=True))

    async def run(self, key: str = "") -> TypedAnswer:
        """Show the question, and return the answer. Raises `Left`."""
        self._show()
        keys = "[a]nswer, [d]eny, [v]iew all: "
        if 0 < len(self._choices) < 10:
            keys = f"[1-{len(self._choices)}] choose, [d]eny, [v]iew all: "
        if self._can_leave:
            keys = f"[Esc/q] back, {keys}"
        while True:
            key = key or await self._key(keys)
            if len(self._choices) < 10 and key in self._choices:
                return TypedAnswer(False, self._choices[key])
            if key == "d":
                reason = await self._line("reason", "for the caller (may be empty)")
                return TypedAnswer(True, reason=reason[:_MAX_REASON_CHARS])
            if key == "\x04":
                return TypedAnswer(True)
            if key == "v":
                self._show(is_whole=True)
            elif key == "a" and (answer := await self._typed()) is not None:
                return answer
            elif key != "a":
                self._terminal.write("  Press one of these keys, without Enter.\n")
            key = ""

    def _show(self, *, is_whole: bool = False) -> None:
        asked = "the answer" if self._question.arguments is None else "the result of this call"
        self._terminal.write(f"\nWhat is {asked}?\n")
        for label, text in self._question.parts():
            self._quote(label, text, is_whole=is_whole)

    async def _typed(self) -> TypedAnswer | None:
        """Let the person type an answer; None if it does not fit."""
        what = "text, or JSON as the schema asks"
        if self._question.schema is None:
            what = "one of the choices, or its number" if self._choices else "text"
        text = await self._line("answer", what)
        text = self._choices.get(text.strip(), text)
        try:
            return TypedAnswer(False, typed_answer(text, self._question.check))
        except InvalidArguments as error:
            self._terminal.write(f"  {one_line(error.message)}\n")
            return None
