"""Events of an answer as lines of text for a terminal. Pure.

All text of others is escaped here: no control character of a model, a tool or its result is
printed. An event may come from an agent of anybody, so that no field of it is relied on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unicodedata import combining, east_asian_width

from toolbus.agents.agent_events import EVENT_TYPES
from toolbus.untrusted_text import json_text, one_line, visible

__all__ = [
    "MAX_DEPTH",
    "call_line",
    "dropped_line",
    "file_line",
    "fitted",
    "hold_line",
    "inner_event",
    "inner_text_line",
    "result_line",
    "seconds",
    "text_in",
    "value_line",
    "whole_result",
]

_WIDEST = 4_000
"""Of an event's text that is escaped for one line: no terminal is wider."""
MAX_DEPTH = 8
"""Agents behind agents whose events are distinguished."""


def text_in(event: Mapping[str, Any], key: str) -> str:
    """Return a field as text; JSON if it is no text, empty if there is none."""
    value = event.get(key)
    if isinstance(value, str):
        return value
    return "" if value is None else json_text(value)


def fitted(text: str, width: int) -> str:
    """Cut a line to the columns of a terminal, so that it stays one line."""
    used = 0
    end = 0
    for character in text:
        used += _columns(character)
        if used > width:
            break
        end += 1
    if end == len(text):
        return text
    used = sum(map(_columns, text[:end]))
    while end and used > width - 1:  # a column for the mark of the cut
        end -= 1
        used -= _columns(text[end])
    return text[:end] + "…"


def _columns(character: str) -> int:
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def seconds(took_s: float) -> str:
    """Return a duration for people: `12 ms`, `3.4 s`, `2 min 5 s`."""
    if took_s < 1:
        return f"{took_s * 1000:.0f} ms"
    if took_s < 60:
        return f"{took_s:.1f} s"
    return f"{took_s // 60:.0f} min {took_s % 60:.0f} s"


def inner_event(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the event of an agent that answers inside a call, which its progress tells."""
    value = event.get("value")
    if event.get("type") != "progress" or not isinstance(value, Mapping):
        return None
    kind = value.get("type")
    return value if isinstance(kind, str) and kind in EVENT_TYPES else None


def call_line(event: Mapping[str, Any], width: int) -> str:
    """Return the line of a `tool_call`."""
    arguments = event.get("arguments")
    written = arguments if isinstance(arguments, str) else json_text(arguments)
    tool = one_line(text_in(event, "tool"), _WIDEST)
    return fitted(f"> {tool} {one_line(written, _WIDEST)}", width)


def result_line(event: Mapping[str, Any], number: int, took_s: float | None, width: int) -> str:
    """Return the line of a `tool_result`: its number, how it ended, and its first line of text.

    Args:
        event: The event.
        number: What `/show` takes.
        took_s: Seconds since the call began, if it is known.
        width: The columns of the terminal.
    """
    facts = [one_line(text_in(event, "state"), _WIDEST)]
    if event.get("executed") != "yes":
        facts.append(f"executed: {one_line(text_in(event, 'executed'), _WIDEST)}")
    if took_s is not None:
        facts.append(seconds(took_s))
    tool = one_line(text_in(event, "tool"), _WIDEST)
    lines = text_in(event, "text").lstrip().split("\n", 1)
    first = one_line(lines[0].rstrip("\r"), _WIDEST)
    more = " …" if len(lines) > 1 and lines[1].strip() else ""
    return fitted(f"< {number} {tool} {', '.join(facts)}: {first}{more}", width)


def value_line(event: Mapping[str, Any], width: int) -> str:
    """Return the line of a `progress`."""
    tool = one_line(text_in(event, "tool"), _WIDEST)
    text = text_in(event, "value").rstrip("\n")
    return fitted(f"  {tool}: {one_line(text, _WIDEST)}", width)


def dropped_line(event: Mapping[str, Any]) -> str:
    """Return the line of a `dropped`."""
    reason = one_line(text_in(event, "reason"), _WIDEST)
    return f"(the model does not see all that was said before: {reason})"


def hold_line(event: Mapping[str, Any], width: int) -> str:
    """Return the line of a `held`, what waits and by which id, a `resumed`, or a `parked`."""
    if event.get("type") == "parked":
        tool = one_line(text_in(event, "tool"), _WIDEST)
        return fitted(f"  waits for its result from outside: {tool}", width)
    if event.get("type") == "resumed":
        outcome = one_line(text_in(event, "outcome"), _WIDEST)
        changed = " with other arguments" if event.get("changed") is True else ""
        what = "answer" if outcome == "answered" else "approval"
        return fitted(f"  {what}: {outcome}{changed}", width)
    tool = text_in(event, "waits_for") or text_in(event, "tool") or "a call"
    tool = one_line(tool, _WIDEST)
    is_question = event.get("kind") == "answer"
    facts = [f"waits for {'an answer' if is_question else 'approval'}: {tool}"]
    verb = "answer" if is_question else "approve"
    if event.get("nobody") is True:
        facts = [f"nobody in the room may {verb} {tool}"]
    elif event.get("may_settle") is False:
        facts = [f"waits for somebody else to {verb} {tool}"]
    if hold := text_in(event, "hold"):
        facts.append(f"id {one_line(hold, 100)}")
    left_s = event.get("left_s")
    if isinstance(left_s, int | float) and 0 <= left_s < 1e9:
        facts.append(f"for {seconds(round(left_s))} at most")
    return fitted(f"  {', '.join(facts)}", width)


def file_line(event: Mapping[str, Any]) -> str:
    """Return the line of a `file` of the result before it; its path is not cut."""
    name = one_line(text_in(event, "name"), 100) or "(no name)"
    path = event.get("path")
    saved = f": saved as {one_line(path)}" if isinstance(path, str) else ""
    size = one_line(text_in(event, "size"), 100)
    return f"  file {name}, {size} bytes{saved}"


def inner_text_line(event: Mapping[str, Any], width: int, depth: int) -> str:
    """Return the last line of what an agent behind the agent says, as far as it fits."""
    last = text_in(event, "text").rstrip().rpartition("\n")[2]
    return fitted(f"{'  ' * depth}| {one_line(last[-(width // 2) :])}", width)


def whole_result(event: Mapping[str, Any], number: int) -> str:
    """Return all of a result, as `/show` prints it."""
    head = f"{number} {text_in(event, 'tool')} {text_in(event, 'state')}"
    return f"{one_line(head)}\n{visible(text_in(event, 'text'))}"
