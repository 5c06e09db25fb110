"""What a tool asks a person in its middle, and what an answer has to be.

Values only. A question is a hold of the kind `answer` (PROTOCOL.md, HOLD-15): of a function that
runs, by `ToolContext.ask`, or for the result of a tool without code, `ExternalTool`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Self, TypeAlias

from toolbus.chunks.chunk_types import Chunk, JsonChunk, MixedChunk, TextChunk, as_chunk, read_chunk
from toolbus.chunks.json_values import cut, plain_json, shown
from toolbus.errors import (
    ApprovalDenied,
    ApprovalExpired,
    Executed,
    InvalidArguments,
    InvalidResult,
    RoomException,
    TooLarge,
)
from toolbus.schemas.validation import JsonCheck
from toolbus.tools.approvers import (
    DEFAULT_APPROVAL_S,
    approval_milliseconds,
    approval_seconds,
    checked_approvers,
)
from toolbus.tools.result_checks import result_violation
from toolbus.untrusted_text import json_text, one_line, printable
from toolbus.wire import MAX_HOLD_BYTES, BadBody, pack_body
from toolbus.wire.frames import MAX_REASON_CHARS

__all__ = [
    "Answerer",
    "AsksQuestion",
    "ToolQuestion",
    "answer_of",
    "answered_by",
    "misfit",
    "misfit_error",
    "question_digest",
]

_MAX_ASKED = 3
"""How often one question is asked: a client that checks no answers gets no more than two back."""
_LABEL = "context.ask"


@dataclass(frozen=True, slots=True)
class ToolQuestion:
    """What a person is asked for: a value, or the result of a call."""

    text: str
    """The question; empty where the result of a call is asked for."""
    schema: Mapping[str, Any] | None = None
    """A JSON Schema that the answer has to match; of a call that of its result."""
    options: tuple[str, ...] = ()
    """The answers of which one is chosen; empty for any."""
    timeout_s: float | None = DEFAULT_APPROVAL_S
    """Seconds that it waits; 0 never waits, None waits without limit."""
    approvers: tuple[str, ...] = ()
    """Who may answer: `role:x`, `name:y`, "others"; empty for those with the grant."""
    arguments: bytes | None = None
    """The packed arguments of the call whose result is asked for."""
    is_entered: bool = True
    """Whether the function of the call was entered; not where the answer stands for it."""
    reason: str = ""
    """Why it is asked once more."""

    @classmethod
    def of(
        cls,
        text: str,
        schema: Mapping[str, Any] | None,
        options: Sequence[str],
        timeout_s: float | None,
        to: Sequence[str],
    ) -> Self:
        """Make the question of a function. Raises `TypeError` and `ValueError` for what is none."""
        if not isinstance(text, str):
            raise TypeError(f"{_LABEL}: the question must be text, not {shown(text)}")
        if schema is not None:
            if not isinstance(schema, Mapping):
                raise TypeError(f"{_LABEL}: schema must be a JSON Schema, not {shown(schema)}")
            JsonCheck(dict(schema))  # raises `ValueError`
        if isinstance(options, str) or not all(isinstance(option, str) for option in options):
            raise TypeError(f"{_LABEL}: options must be a list of texts, not {shown(options)}")
        seconds = approval_seconds(timeout_s, _LABEL)
        return cls(text, schema, tuple(options), seconds, checked_approvers(to, _LABEL))

    def misfit(self, answer: Chunk) -> str:
        """Return why an answer is not what is asked for; empty if it is."""
        check = None if self.schema is None else JsonCheck(dict(self.schema))
        is_result = self.arguments is not None
        return misfit(answer, check, self.options, is_result=is_result)

    def check(self, answer: Chunk) -> None:
        """Raise `InvalidArguments` for an answer that is not what is asked for."""
        if wrong := self.misfit(answer):
            raise misfit_error(wrong)

    def to_wire(self, definition: str) -> tuple[str, bytes, bytes, dict[str, Any]]:
        """Return kind, digest, body and options of a `Hold` (PROTOCOL.md, HOLD-15).

        Raises `TooLarge` if there is more to be shown than fits.
        """
        body: dict[str, Any] = {"question": self.text} if self.arguments is None else {}
        if self.arguments is not None:
            body["arguments"] = self.arguments
        if self.schema is not None:
            body["schema"] = plain_json(dict(self.schema))
        if self.options:
            body["options"] = list(self.options)
        if self.reason:
            body["reason"] = self.reason
        packed = pack_body(body)
        if len(packed) > MAX_HOLD_BYTES:
            text = f"{len(packed)} bytes would have to be shown to a person, at most"
            raise TooLarge(f"{text} {MAX_HOLD_BYTES} can", executed="no")
        options: dict[str, Any] = {"approval_ms": approval_milliseconds(self.timeout_s)}
        if self.approvers:
            options["approvers"] = list(self.approvers)
        if self.is_entered:
            options["entered"] = True
        return "answer", question_digest(definition, packed), packed, options


Answerer: TypeAlias = Callable[[ToolQuestion], Awaitable[Any]]
"""Answers a question of a tool in this process: it returns the value, or raises `ApprovalDenied`.
It is cancelled when the time for an answer or the call has ended."""
AsksQuestion: TypeAlias = Callable[[ToolQuestion], Awaitable[Chunk]]
"""Asks a question, and returns the answer once it fits."""


def question_digest(definition: str, body: bytes) -> bytes:
    """Return SHA-256 of what is asked: the definition's digest, and the packed question."""
    return sha256(definition.encode() + body).digest()


def misfit(
    chunk: Chunk, check: JsonCheck | None, options: Sequence[str], *, is_result: bool
) -> str:
    """Return why an answer is not what is asked for; empty if it is.

    Args:
        chunk: The answer.
        check: That of the schema, if there is one.
        options: The answers of which one is chosen; empty for any.
        is_result: Whether it is the result of a call, which may have several chunks.
    """
    if isinstance(chunk, MixedChunk) and not is_result:
        return "one value is asked for"
    if options and not (isinstance(chunk, TextChunk | JsonChunk) and chunk.value in options):
        return f"it must be one of {cut(', '.join(map(json_text, options)))}"
    violation = None if check is None else result_violation(check, chunk)
    if violation is None:
        return ""
    return f"at {violation.path}: {violation.message}" if violation.path else violation.message


def misfit_error(wrong: str) -> InvalidArguments:
    """Make the error for an answer, from what is wrong with it."""
    details = {"path": "", "message": wrong}
    return InvalidArguments(f"the answer does not fit: {wrong}", executed="no", details=details)


async def answered_by(answerer: Answerer, question: ToolQuestion) -> Chunk:
    """Let a function of this process answer; return the answer.

    Raises `ApprovalExpired`, `InvalidResult` for an answer that does not fit, and what the function
    raises.
    """
    if question.timeout_s == 0:
        raise ApprovalExpired("nobody is waited for")
    try:
        async with asyncio.timeout(question.timeout_s) as limit:
            chunk = as_chunk(await answerer(question))
    except TimeoutError:
        if not limit.expired():
            raise
        text = f"nobody has answered within {question.timeout_s:g} s"
        raise ApprovalExpired(text) from None
    if wrong := question.misfit(chunk):
        raise InvalidResult(f"the answer does not fit: {wrong}", executed="yes")
    return chunk


async def answer_of(
    question: ToolQuestion, ask: Callable[[ToolQuestion], Awaitable[Mapping[str, Any]]]
) -> Chunk:
    """Ask until there is an answer that fits, a few times at most, and return it.

    Who answers with this SDK is refused at once what does not fit; an answer of another client may
    not fit, and then it is asked once more, with what is wrong with it.

    Args:
        question: The question.
        ask: Asks, and returns the decision as the server sends it.

    Raises `ApprovalDenied`, `InvalidResult` if no answer fits, and what `ask` raises.
    """
    for _ in range(_MAX_ASKED):
        reply = await ask(question)
        if reply["outcome"] != "answered":
            raise _denied(question, reply)
        try:
            chunk = read_chunk(reply["chunk"])
        except (BadBody, RoomException, ValueError, TypeError) as error:
            wrong = f"it is no chunk: {error}"
        else:
            wrong = question.misfit(chunk)
            if not wrong:
                return chunk
        who = one_line(str(reply["by"]["name"]))
        reason = printable(f"the answer of {who} does not fit: {wrong}", MAX_REASON_CHARS)
        # What is answered may have been done.
        question = replace(question, reason=reason, is_entered=True)
    raise InvalidResult(question.reason, executed="yes")


def _denied(question: ToolQuestion, reply: Mapping[str, Any]) -> ApprovalDenied:
    reason = printable(reply.get("reason") or "", MAX_REASON_CHARS)
    quote = f", and says: {json_text(reason)}" if reason else ""
    text = f"a person refused to answer{quote}"
    executed: Executed = "maybe" if question.is_entered else "no"
    return ApprovalDenied(text, executed=executed, details={"source": "person"})
