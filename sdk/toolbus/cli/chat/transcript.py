"""What was asked and what came of it: results by their numbers, and questions as trees. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolbus.cli.chat.render import MAX_DEPTH, inner_event, seconds, text_in
from toolbus.untrusted_text import one_line

__all__ = ["NumberedResult", "ReceivedFile", "ReplyText", "Transcript"]

_MAX_RESULTS = 500
"""Results that `/show` and `/save` know: an agent cuts the text of each to 16,384 characters."""
_MAX_TEXT_CHARS = 65_536
"""Of a result that is kept: an agent of others may cut nothing."""
_MAX_REPLY_CHARS = 16 * 1024 * 1024
"""Of a reply: far above what models say, and little enough to be kept."""
_MAX_CALLS = 1_000
"""Calls of one question that its tree shows."""
_MAX_FILE_BYTES = 64 * 1024 * 1024
"""Of all files that are kept in memory, for `/save`."""
_MAX_FILES = 1_000
"""Each is in memory at least by its name, whose end of 1,000 characters is kept."""


@dataclass(slots=True)
class ReceivedFile:
    """A file of a result."""

    name: str
    size: int = 0
    """Its bytes, as far as they were received."""
    data: bytes | None = None
    """None if it was too large to keep, or is saved."""
    path: str = ""
    """Where it is saved."""

    def event(self) -> dict[str, Any]:
        """Return it as an event, without its bytes."""
        return {"type": "file", "name": self.name, "size": self.size, "path": self.path or None}


@dataclass(slots=True)
class NumberedResult:
    """A result of a tool, by the number that `/show` and `/save` take."""

    number: int
    event: dict[str, Any]
    took_s: float | None
    files: list[ReceivedFile] = field(default_factory=list)


@dataclass(slots=True)
class _Call:
    tool: str
    began_at: float
    depth: int
    took_s: float | None = None
    state: str = ""


@dataclass(slots=True)
class _Step:
    """One reply of the model, and the calls that it asks for."""

    began_at: float
    ended_at: float
    text_chars: int = 0
    calls: list[_Call] = field(default_factory=list)


class ReplyText:
    """The text of a reply, which comes in many small pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0

    def add(self, piece: str) -> None:
        """Add a piece, as far as there is space."""
        if piece and self._chars < _MAX_REPLY_CHARS:
            self._pieces.append(piece[: _MAX_REPLY_CHARS - self._chars])
        self._chars += len(piece)

    def clear(self) -> None:
        """Begin anew."""
        self._pieces.clear()
        self._chars = 0

    @property
    def is_cut(self) -> bool:
        """Whether some of it is not kept."""
        return self._chars > _MAX_REPLY_CHARS

    def __str__(self) -> str:
        return "".join(self._pieces)


class Transcript:
    """The chat so far."""

    def __init__(self) -> None:
        self._results: deque[NumberedResult] = deque(maxlen=_MAX_RESULTS)
        self._count = 0
        self._open: dict[tuple[int, str], _Call] = {}
        self._steps: list[_Step] = []
        self._began_at = 0.0
        self._ended_at: float | None = None
        self._end: Mapping[str, Any] = {}
        self._failure = ""
        self._is_replying = False
        self._reply = ReplyText()
        self.trace: str = ""
        """The trace id of the last question."""

    def begin(self, now: float) -> None:
        """Begin a question; its tree takes the place of the last one."""
        self._open.clear()
        self._steps = [_Step(now, now)]
        self._began_at = now
        self._ended_at = None
        self._end = {}
        self._failure = ""
        self._is_replying = False
        self._reply.clear()
        self.trace = ""

    def add(self, event: Mapping[str, Any], now: float, depth: int = 0) -> NumberedResult | None:
        """Record an event; return the result that it is."""
        kind = event.get("type")
        if depth == 0:
            self._add_to_step(kind, event, now)
        inner = inner_event(event)
        if inner is not None and depth < MAX_DEPTH:
            return self.add(inner, now, depth + 1)
        if kind == "tool_call":
            if sum(len(step.calls) for step in self._steps) < _MAX_CALLS:
                call = _Call(text_in(event, "tool")[:200], now, depth)
                self._steps[-1].calls.append(call)
                self._open[depth, text_in(event, "id")[:200]] = call
        if kind == "tool_result":
            return self._end_call(event, now, depth)
        return None

    def add_file(self, file: ReceivedFile) -> None:
        """Add a file to the last result, if there are not too many."""
        if self._results and sum(len(result.files) for result in self._results) < _MAX_FILES:
            stored = replace(file, name=file.name[-1_000:])
            self._results[-1].files.append(stored)

    def fail(self, words: str, now: float) -> None:
        """Record that the question failed."""
        self._failure = words
        self._ended_at = now

    def result(self, number: int) -> NumberedResult | None:
        """Return a result by its number; None if there is none, or it is too long ago."""
        return next((result for result in self._results if result.number == number), None)

    @property
    def numbers(self) -> str:
        """The numbers of the results that are kept, for people."""
        if not self._results:
            return "none yet"
        return f"{self._results[0].number} to {self._results[-1].number}"

    @property
    def answer(self) -> str:
        """The text of the last reply."""
        return str(self._reply)

    def left_bytes(self) -> int:
        """Return how many bytes of files may still be kept."""
        sizes = (len(file.data or b"") for result in self._results for file in result.files)
        return max(0, _MAX_FILE_BYTES - sum(sizes))

    def _add_to_step(self, kind: Any, event: Mapping[str, Any], now: float) -> None:
        is_reply = kind in ("text", "restart", "tool_call")
        if is_reply and not self._is_replying and self._steps[-1].calls:
            self._steps.append(_Step(self._steps[-1].ended_at, now))
            self._reply.clear()
        if kind in ("tool_result", "progress"):
            self._is_replying = False
        elif is_reply:
            self._is_replying = True
        step = self._steps[-1]
        step.ended_at = now
        if kind == "text":
            text = text_in(event, "text")
            step.text_chars += len(text)
            self._reply.add(text)
        elif kind == "restart":
            step.text_chars = 0
            self._reply.clear()
        elif kind == "end":
            self._end = dict(event)
            self._ended_at = now
            self.trace = text_in(event, "trace") or self.trace

    def _end_call(self, event: Mapping[str, Any], now: float, depth: int) -> NumberedResult:
        call = self._open.pop((depth, text_in(event, "id")[:200]), None)
        executed = text_in(event, "executed")
        took_s: float | None = None
        if call is not None:
            took_s = call.took_s = now - call.began_at
            call.state = text_in(event, "state")[:200]
            if executed != "yes":
                call.state += f", executed: {executed[:200]}"
        self._count += 1
        facts = {
            **{key: text_in(event, key)[:200] for key in ("id", "tool", "state", "executed")},
            "text": text_in(event, "text")[:_MAX_TEXT_CHARS],
        }
        result = NumberedResult(self._count, facts, took_s)
        self._results.append(result)
        return result

    def tree(self, now: float) -> Iterator[str]:
        """Return the lines of the last question: its steps, their calls, and the trace."""
        if not self._steps:
            yield "nothing was asked yet"
            return
        took_s = (now if self._ended_at is None else self._ended_at) - self._began_at
        yield f"question  {seconds(took_s)}  {self._outcome()}"
        for number, step in enumerate(self._steps, 1):
            text = f"  text of {step.text_chars:,} characters" if step.text_chars else ""
            yield f"  step {number}  {seconds(step.ended_at - step.began_at)}{text}"
            for call in step.calls:
                took = "not ended"
                if call.took_s is not None:
                    took = f"{seconds(call.took_s)}  {call.state}"
                indent = "  " * call.depth
                yield one_line(f"    {indent}{call.tool}  {took}")
        if self.trace:
            yield one_line(f"trace {self.trace}", 200)

    def _outcome(self) -> str:
        if self._failure:
            return one_line(self._failure, 200)
        tokens = self._end.get("tokens")
        counted = ""
        if isinstance(tokens, Mapping) and any(tokens.values()):
            counted = f"  tokens: {tokens.get('input')} in, {tokens.get('output')} out"
        return one_line(f"{text_in(self._end, 'reason') or 'no end'}{counted}", 200)
