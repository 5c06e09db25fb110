"""Plain words, for a model whose replies are written down: `scripted_model`.

A conversation has messages of three forms:

    {"role": "user", "text": "...", "files": ["[file 'a.png', image/png, 9 bytes]"]}
    {"role": "model", "text": "...", "uses": [{"id": "...", "name": "...", "arguments": ...}]}
    {"role": "results", "results": [{"id": "...", "tool": "...", "state": "ok", "text": "..."}]}

A reply is such a message of the role `model`. Events of a streamed reply are `{"text": "..."}` for
each piece of the text, then `{"uses": [...]}`, which ends it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolbus.chunks.chunk_types import FileChunk
from toolbus.models.adapter import Conversation, Plain
from toolbus.models.endings import Ending
from toolbus.models.results import paired, user_parts
from toolbus.models.shared_parts import broken_off, checked_conversation, system_text
from toolbus.models.token_usage import TokenUsage
from toolbus.turns.tool_use import ToolResult, ToolUse, file_label
from toolbus.turns.turn import Turn

__all__ = [
    "collect",
    "definitions",
    "ending",
    "messages",
    "portable",
    "request",
    "text",
    "text_of",
    "usage",
    "user",
    "uses",
]


def definitions(turn: Turn) -> list[Plain]:
    """Return name, description and schema of each tool, as they are."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        for tool in turn.model_tools
    ]


def request(turn: Turn, conversation: Conversation, instructions: str = "") -> Plain:
    """Return system text, tools and messages."""
    return {
        "system": system_text(turn, instructions),
        "tools": definitions(turn),
        "messages": checked_conversation(conversation),
    }


def portable(conversation: Conversation) -> list[Plain]:
    """Return the same messages: no model thinks."""
    return [dict(message) for message in conversation]


def user(text: str, files: Iterable[FileChunk] = ()) -> Plain:
    """Return a message of the user, in which files are named.

    Raises `ValueError` for a file that is not in memory, and for a message that is empty.
    """
    parts = user_parts(text, files, lambda file: True)
    named = [file_label(part) for part in parts if not isinstance(part, str)]
    return {"role": "user", "text": text, "files": named}


def uses(reply: Mapping[str, Any]) -> list[ToolUse]:
    """Return what the reply asks for. Arguments that are no object are given as their JSON text."""
    return [ToolUse(use["id"], use["name"], _arguments(use["arguments"])) for use in reply["uses"]]


def text(reply: Mapping[str, Any]) -> str:
    """Return the text of the reply."""
    return str(reply["text"])


def ending(reply: Mapping[str, Any]) -> Ending:
    """Return how the reply ended: the model always ends it itself."""
    return Ending("stop", not (reply["uses"] or text(reply).strip()))


def usage(reported: Mapping[str, Any]) -> TokenUsage:
    """Return no tokens: nobody counts them."""
    return TokenUsage(0, 0)


def messages(reply: Mapping[str, Any], results: Sequence[ToolResult]) -> list[Plain]:
    """Return the reply, and a message with the results of its uses."""
    asked = uses(reply)
    answers = [
        {"id": result.id, "tool": result.tool, "state": result.state, "text": result.for_model()}
        for result in paired(asked, results)
    ]
    made = [dict(reply)]
    if answers:
        made.append({"role": "results", "results": answers})
    return made


def collect(events: Iterable[Mapping[str, Any]]) -> Plain:
    """Put a streamed reply together. Raises `ModelError` if it ended early."""
    pieces: list[str] = []
    for event in events:
        if "uses" in event:
            return {"role": "model", "text": "".join(pieces), "uses": event["uses"]}
        pieces.append(text_of(event))
    raise broken_off()


def text_of(event: Mapping[str, Any]) -> str:
    """Return the piece of text of an event."""
    return str(event.get("text", ""))


def _arguments(value: Any) -> Mapping[str, Any] | str:
    return value if isinstance(value, str | dict) else json.dumps(value)
