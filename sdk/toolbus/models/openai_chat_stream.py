"""Puts a streamed chat completion together: `collect` of `toolbus.models.openai_chat`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from toolbus.models.adapter import Plain
from toolbus.models.model_error import ModelError
from toolbus.models.openai_parts import api_error

__all__ = ["choices_of", "collect"]

_WHOLE = frozenset({"role", "id", "type", "name", "index", "format"})
"""Fields whose text is whole in each piece that has it: pieces of it are not joined."""


def collect(events: Iterable[Mapping[str, Any]]) -> Plain:
    """Put a streamed reply together; see `Adapter`.

    Servers differ in how they send calls: in pieces or whole, with an id once, in each piece or
    never, and some with one `index` for all of them, or none.
    """
    reply: Plain = {}
    choices: dict[int, list[Plain]] = {}
    for event in events:
        if not isinstance(event, Mapping):
            raise ModelError("an event of the stream is no object", retryable=True)
        if error := event.get("error"):
            raise api_error(error)
        reply |= {name: value for name, value in event.items() if value is not None}
        for choice in choices_of(event):
            index = choice.get("index")
            choices.setdefault(index if isinstance(index, int) else 0, []).append(choice)
    reply.pop("obfuscation", None)  # padding of the events
    try:
        reply["choices"] = [_joined_choice(index, choices[index]) for index in sorted(choices)]
    except RecursionError:
        raise ModelError("the reply is nested too deeply") from None
    if not choices or reply["choices"][0].get("finish_reason") is None:
        raise ModelError("the stream ended before the reply did", retryable=True)
    return reply | {"object": "chat.completion"}


def choices_of(event: Mapping[str, Any]) -> list[Plain]:
    """Return the choices that an event adds to; none for the event with the usage."""
    choices = event.get("choices") if isinstance(event, Mapping) else None
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def _joined_choice(index: int, pieces: Sequence[Plain]) -> Plain:
    deltas = [piece["delta"] for piece in pieces if isinstance(piece.get("delta"), dict)]
    calls = [
        call
        for delta in deltas
        if isinstance(delta.get("tool_calls"), list)
        for call in delta["tool_calls"]
        if isinstance(call, dict)
    ]
    texts = [{name: delta[name] for name in delta if name != "tool_calls"} for delta in deltas]
    message: Plain = {"role": "assistant", "content": None} | _joined_objects(texts)
    if calls:
        message["tool_calls"] = [_joined_objects(call.pieces) for call in _calls(calls)]
    choice: Plain = {"logprobs": None, "finish_reason": None}
    for piece in pieces:
        choice |= {name: value for name, value in piece.items() if value is not None}
    logprobs = [piece["logprobs"] for piece in pieces if isinstance(piece.get("logprobs"), dict)]
    if logprobs:
        choice["logprobs"] = _joined_objects(logprobs)
    choice.pop("delta", None)
    return choice | {"index": index, "message": message}


@dataclass(slots=True)
class _Call:
    """A call whose pieces come."""

    id: str
    name: str
    pieces: list[Plain]

    def add(self, piece: Plain) -> None:
        """Add a piece, without its index: that is no part of a whole reply."""
        self.id = self.id or _text(piece, "id")
        self.name = self.name or _text(_function(piece), "name")
        self.pieces.append({name: piece[name] for name in piece if name != "index"})

    def is_ended_by(self, piece: Plain) -> bool:
        """Whether a piece with the same index, or with none, begins another call."""
        call_id = _text(piece, "id")
        if call_id and self.id:
            return call_id != self.id
        name = _text(_function(piece), "name")
        if not name or not self.name:
            return False
        if name != self.name:
            return True
        # The same name again, and no id to tell: another call if the only piece was a whole one.
        begins = _text(_function(piece), "arguments").lstrip().startswith("{")
        return begins and len(self.pieces) == 1 and _is_object(self.pieces[0])


def _is_object(piece: Plain) -> bool:
    try:
        return isinstance(json.loads(_text(_function(piece), "arguments")), dict)
    except (ValueError, RecursionError):
        return False


def _calls(pieces: Iterable[Plain]) -> list[_Call]:
    """Return the calls whose pieces these are, in the order in which they began."""
    calls: list[_Call] = []
    by_index: dict[int, _Call] = {}
    by_id: dict[str, _Call] = {}
    for piece in pieces:
        index = piece.get("index")
        call_id = _text(piece, "id")
        call: _Call | None
        if isinstance(index, int):
            call = by_index.get(index)
        elif call_id:
            call = by_id.get(call_id)
        else:
            call = calls[-1] if calls else None
        if call is None or call.is_ended_by(piece):
            call = _Call("", "", [])
            calls.append(call)
        call.add(piece)
        if isinstance(index, int):
            by_index[index] = call
        if call_id:
            by_id[call_id] = call
    return calls


def _function(piece: Plain) -> Plain:
    function = piece.get("function")
    return function if isinstance(function, dict) else {}


def _text(piece: Plain, name: str) -> str:
    text = piece.get(name)
    return text if isinstance(text, str) else ""


def _joined_objects(pieces: Sequence[Plain]) -> Plain:
    """Join the fields of pieces; null is no value of a field that another piece has."""
    values: dict[str, list[Any]] = {}
    for piece in pieces:
        for name, value in piece.items():
            found = values.setdefault(name, [])
            if value is not None:
                found.append(value)
    return {name: _joined(name, found) for name, found in values.items()}


def _joined(name: str, values: Sequence[Any]) -> Any:
    """Return the value of a field from those of its pieces, in order.

    Texts and lists are joined, objects field by field, and of all others the last one counts.
    """
    if len(values) < 2:
        return values[0] if values else None
    if name in _WHOLE:
        return next((value for value in values if value != ""), "")
    if all(isinstance(value, str) for value in values):
        return "".join(values)
    if all(isinstance(value, dict) for value in values):
        return _joined_objects(values)
    if all(isinstance(value, list) for value in values):
        return _joined_lists(values)
    if name == "content":  # parts from one event, and text from another
        parts = [value if isinstance(value, list) else [_text_part(value)] for value in values]
        return list(chain.from_iterable(parts))
    return values[-1]


def _text_part(value: Any) -> Plain:
    return {"type": "text", "text": value if isinstance(value, str) else ""}


def _joined_lists(lists: Sequence[list[Any]]) -> list[Any]:
    """Join lists; items that are objects with an `index` are pieces of the item there."""
    items = list(chain.from_iterable(lists))
    if not all(isinstance(item, dict) and isinstance(item.get("index"), int) for item in items):
        return items
    by_index: dict[int, list[Plain]] = {}
    for item in items:
        by_index.setdefault(item["index"], []).append(item)
    return [_joined_objects(pieces) for pieces in by_index.values()]
