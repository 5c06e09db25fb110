"""What a model asks a turn to do, and what came of it: `ToolUse` and `ToolResult`.

There is one result for each use, whatever happened to the call. Chunks stay the values that the
tool gave; joining them is done here, on request.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, TypeAlias

from toolbus.chunks.chunk_types import Chunk, EmptyChunk, FileChunk, JsonChunk, LinkChunk, TextChunk
from toolbus.chunks.json_values import cut, packed_json
from toolbus.diagnostics.exit_codes import further_values
from toolbus.errors import (
    ApprovalDenied,
    ApprovalExpired,
    Executed,
    InvalidArguments,
    PermissionDenied,
    RoomException,
)
from toolbus.room.call_form import argument_object

__all__ = ["ResultState", "ToolResult", "ToolUse", "arguments_of", "file_label", "state_of"]

ResultState: TypeAlias = Literal["ok", "failed", "denied", "interrupted", "parked"]
"""How a use ended; a parked one has not."""

_DENIALS = (PermissionDenied, ApprovalDenied, ApprovalExpired)
_RAN: Mapping[str, str] = {
    "no": "The tool did not run.",
    "maybe": "It is not known whether the tool ran.",
    "yes": "The tool ran.",
}
_NEXT: Mapping[str, str] = {
    "invalid_arguments": "Correct the arguments and call it again.",
    "not_found": "Call only tools that are listed.",
    "tool_inactive": "Activate its group before you call it.",
    "approval_denied": "Do not call it again: a person refused it.",
    "approval_expired": "No person answered in time; ask before you call it again.",
    "definition_changed": "The tool has changed; its description is read again in the next turn.",
    "too_large": "Ask for less at a time.",
}
_MAX_FILE_CHARS = 30_000
"""Of files beside a value, which a model did not ask for, and which each further request has."""
_CHECK = "Find out whether it took effect before you call it again."


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call that a model asks for.

    Raises `TypeError` if id or name are not text. Everything else is checked when it is run, and a
    mistake is then a failed result.
    """

    id: str
    """The id that the model's provider gave it; the result has the same."""
    name: str
    """`toolkit.tool`, or the name that `Turn.provider_name` gave it."""
    arguments: Mapping[str, Any] | str | None = field(default_factory=dict)
    """Values by parameter, or the JSON text of them that the API of a model sends. Empty text means
    no arguments. None means that the reply has none: only a tool without parameters runs then."""
    attachment: Any = None
    """An upload, as `attachment` of `Room.invoke`."""
    input: Any = None
    """Values for a tool that takes an input stream, as `input` of `Room.stream`."""
    invalid: str = ""
    """Why it does not run, in words for the model, if the reply does not say for certain what to
    run. The result is an `invalid_arguments` with these words."""

    def __post_init__(self) -> None:
        for name, value in (("id", self.id), ("name", self.name)):
            if not isinstance(value, str):
                raise TypeError(f"ToolUse: {name} must be text, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of one use."""

    id: str
    """The id of the use."""
    tool: str
    """`toolkit.tool`; the name of the use if there is no such tool."""
    state: ResultState
    """"ok", "failed", "denied" by a grant or a person, "interrupted", or "parked" until
    `Turn.settle` gives its result."""
    chunks: tuple[Chunk, ...] = ()
    """The chunks that came, in order; also those before an error or an interruption."""
    error: RoomException | None = None
    """The error; None for "ok" and "parked". That of an interrupted call is a `Cancelled`."""
    executed: Executed = "yes"
    """Whether the tool's function ran. A middleware that answers in its place makes it "no"."""
    changed_arguments: Mapping[str, Any] | None = None
    """The arguments that were sent, if they are not those of the use."""
    streaming: bool = False
    """Whether the tool returns any number of chunks."""
    omitted: int = 0
    """How many further chunks a stream gave its reader that are not kept here."""

    @property
    def value(self) -> Any:
        """The plain value of the chunk, or None; a list for a streaming tool and several chunks."""
        values = [chunk.value for chunk in self.chunks]
        if self.streaming or len(values) > 1:
            return values
        return next(iter(values), None)

    @property
    def text(self) -> str:
        """All chunks as one text.

        Consecutive texts are joined without a separator, and so are consecutive bytes, which are
        read as UTF-8. JSON values are written as JSON, each on a line; a file that is not text, or
        not in memory, is named in brackets.
        """
        return "\n".join(filter(None, _blocks(self.chunks)))

    @property
    def data(self) -> bytes:
        """The bytes of all chunks, joined: files, and texts as UTF-8.

        Raises `ValueError` for chunks of other kinds, and for a file that is not in memory.
        """
        parts: list[bytes] = []
        for chunk in self.chunks:
            if isinstance(chunk, TextChunk):
                parts.append(chunk.text.encode())
            elif isinstance(chunk, FileChunk):
                parts.append(chunk.data)
            elif not isinstance(chunk, EmptyChunk):
                raise ValueError(f"a {type(chunk).__name__} is neither text nor bytes")
        return b"".join(parts)

    def for_model(self, named: Callable[[FileChunk], bool] | None = None) -> str:
        """Return the result in words that a model can use.

        That is the text; after an error also its code, whether the tool ran, and what to do next.
        A text file that has a name comes after it, as far as it has room: all that come beside
        other values have at most 30,000 characters together.

        Args:
            named: Says of a file that it is only named, since it is sent beside the text.
        """
        if self.state == "parked":
            return "(there is no result yet)"
        error = self.error
        blocks = _blocks(self.chunks, lambda file: (bool(named and named(file)), file.name))
        text = "\n".join(filter(None, blocks))
        if self.omitted:
            text = f"{text}\n[{self.omitted} more chunk{'' if self.omitted == 1 else 's'}]"
        if error is None:
            return text or "(no output)"
        if text:
            text += "\n[the output ends here]\n"
        label = "interrupted" if self.state == "interrupted" else f"error {error.code}"
        summary = f"{label}: {error.message.rstrip('.')}."
        if further := further_values(error):
            summary = f"{summary} Also: {'; '.join(further)}."
        words = (summary, _RAN[self.executed], _next_step(error, self.executed, self.state))
        return text + " ".join(filter(None, words))


def arguments_of(use: ToolUse) -> dict[str, Any]:
    """Return the arguments of a use as a dict, read from JSON text if they are that.

    Raises `InvalidArguments` for a use that is `invalid`, for a text that is not one JSON object,
    with its place as `line`, `column` and `position` in `details`, and for a value that cannot be
    sent, with its path: of two equal keys the last one counts, and NaN and infinities are refused
    (FRAME-7).
    """
    if use.invalid:
        raise _not_readable(use.invalid)
    text = use.arguments
    if not isinstance(text, str):
        return argument_object(text)
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
        packed_json("arguments", value)  # raises for what JSON text can have and a call cannot
    except json.JSONDecodeError as error:
        failure = _not_readable(f"the arguments are not JSON: {error}")
        failure.details |= {"line": error.lineno, "column": error.colno, "position": error.pos}
        raise failure from None  # not chained: the exception of the parser keeps the whole text
    except (ValueError, RecursionError):
        words = "the arguments are nested too deeply, or have a number with too many digits"
        raise _not_readable(words) from None
    if not isinstance(value, dict | None):
        raise _not_readable("the arguments must be one JSON object")
    return value or {}


def _not_readable(message: str) -> InvalidArguments:
    return InvalidArguments(message, details={"path": "", "message": message})


def state_of(error: RoomException) -> ResultState:
    """Return the state of a call that ended with an error and was not interrupted."""
    return "denied" if isinstance(error, _DENIALS) and error.executed == "no" else "failed"


def _next_step(error: RoomException, executed: Executed, state: ResultState) -> str:
    if state == "interrupted":
        return "" if executed == "no" else _CHECK
    if isinstance(error, PermissionDenied):
        return _after_denial(error)
    if advice := _NEXT.get(error.code):
        return advice
    if error.retryable:
        after = "" if error.retry_after_s is None else f" after {error.retry_after_s:g} s"
        return f"It may be called again{after}."
    return _CHECK if executed == "maybe" else ""


def _after_denial(error: PermissionDenied) -> str:
    if error.details.get("uncertain"):
        return "Do not repeat it: a call that the tool can judge may be permitted."
    if error.details.get("hint"):
        return "Do not repeat it: a call that is changed so may be permitted."
    rule = error.details.get("rule")
    if isinstance(rule, Mapping) and "match" in rule:
        return "Do not repeat it: with these arguments it is not permitted."
    return "Do not call it again: it is not permitted."


def _blocks(
    chunks: Sequence[Chunk],
    key: Callable[[FileChunk], tuple[bool, str]] = lambda file: (False, ""),
) -> list[str]:
    """Return one text for each run of texts, run of bytes, and other chunk.

    Files with one key are one run. It is whether they are only named, and the name that is shown
    with their text.
    """
    found: list[str] = []
    is_value = any(type(chunk) is not FileChunk for chunk in chunks)
    left = _MAX_FILE_CHARS if is_value else sys.maxsize
    for kind, same in groupby(chunks, type):
        group: list[Any] = list(same)
        if kind is TextChunk:
            found.append("".join(chunk.text for chunk in group))
        elif kind is FileChunk:
            for (is_named, name), same_key in groupby(group, key):
                files = [*same_key]
                text = None if is_named else _text_of(files)
                if text is None:
                    found += map(file_label, files)
                elif not name:
                    found.append(text)
                else:
                    whole = FileChunk(text.encode(), name, files[0].mime_type)
                    found.append(f"{file_label(whole)}\n{_start_of(text, left)}")
                    left = max(0, left - len(text))
        elif kind is JsonChunk:
            found += [json.dumps(chunk.json, ensure_ascii=False) for chunk in group]
        elif kind is LinkChunk:
            found += [chunk.url for chunk in group]
    return found


def _text_of(files: Sequence[FileChunk]) -> str | None:
    """Return the bytes of files as one text; None if they are not in memory, or not UTF-8."""
    if all(file.is_whole for file in files):
        try:
            return b"".join(file.data for file in files).decode()
        except UnicodeDecodeError:
            pass
    return None


def _start_of(text: str, most: int) -> str:
    missing = len(text) - most
    return f"{text[:most]}\n[{missing} characters are left out here]" if missing > 0 else text


def file_label(file: FileChunk) -> str:
    """Return the label of a file that is not shown: its name, type and size, in brackets."""
    size = f"{len(file.data)} bytes" if file.is_whole else "not in memory"
    return f"[file {cut(repr(file.name))}, {cut(file.mime_type)}, {size}]"
