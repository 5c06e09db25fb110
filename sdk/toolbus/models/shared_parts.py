"""What the adapters of several providers share: requests, and what goes back of a reply.

A message that an API refuses ends the conversation, since it is part of each further request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from math import isfinite
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.carried_values import repaired
from toolbus.chunks.json_values import shown
from toolbus.models.adapter import Conversation, Plain
from toolbus.models.model_error import ModelError
from toolbus.schemas.forms import Dialect, SchemaForm, schema_form
from toolbus.turns.model_tools import ModelTool
from toolbus.turns.turn import Turn
from toolbus.turns.turn_tools import MAX_PROVIDER_NAME_CHARS
from toolbus.untrusted_text import one_line

__all__ = [
    "broken_off",
    "call_ids",
    "checked_conversation",
    "formed_tools",
    "reason_text",
    "sendable",
    "sent_name",
    "system_text",
    "without_repeats",
]

_logger = bounded_logger("toolbus.models")
_MAX_REASON_CHARS = 500


def formed_tools(turn: Turn, dialect: Dialect) -> list[tuple[ModelTool, SchemaForm]]:
    """Return the tools of a turn with their schemas as a provider takes them.

    A tool of others, MCP servers included, whose schema has no form is left out, and the log
    names it: else any participant could keep an agent from asking its model.

    Raises `ValueError` for a tool of this process, with its name.
    """
    found: list[tuple[ModelTool, SchemaForm]] = []
    for tool in turn.model_tools:
        try:
            found.append((tool, schema_form(tool.input_schema, dialect)))
        except ValueError as error:
            if not (tool.tool.owner or "mcp" in tool.tool.annotations):
                raise ValueError(f"{tool.tool.name}: {error}") from error
            _logger.warning(
                "the request leaves out the tool %s, whose schema has no form for this model: %s",
                *(tool.tool.name, error),
            )
    return found


def system_text(turn: Turn, instructions: str) -> str:
    """Return the instructions and the prompt of the turn; empty if both are blank."""
    return "\n\n".join(text for text in (instructions, turn.prompt()) if text.strip())


def checked_conversation(conversation: Conversation) -> list[Mapping[str, Any]]:
    """Return the messages as a new list. Raises `TypeError` for what is no list of messages."""
    is_one = isinstance(conversation, str | Mapping)
    found = [] if is_one else list(conversation)
    if is_one or not all(isinstance(message, Mapping) for message in found):
        raise TypeError(
            "a conversation is a list of messages, such as [adapter.user(text)], not"
            f" {shown(conversation)}"
        )
    return found


def sendable(reply: object) -> Plain:
    """Return a reply that can be sent as JSON, in UTF-8.

    Its lone surrogates are replaced by U+FFFD, and numbers that JSON has not by null: a client
    reads them, and cannot send them.

    Raises `ModelError` for what is no object, or is nested too deeply.
    """
    if not isinstance(reply, Mapping):
        kind = type(reply).__name__
        raise ModelError(f"a reply is a dict, such as response.to_dict(), not a value of {kind}")
    try:
        return dict(reply) if _is_sendable(reply) else _as_json(reply)
    except RecursionError:
        raise ModelError("the reply is nested too deeply") from None


def _is_sendable(value: object) -> bool:
    try:
        return bool(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError):
        return False


def _as_json(value: Any) -> Any:
    """Copy a value as plain JSON."""
    if isinstance(value, str):
        return repaired(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {repaired(str(name)): _as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return value if value is None or isinstance(value, bool | int) else repaired(str(value))


def call_ids(given: Iterable[object], reply: Mapping[str, Any]) -> list[str]:
    """Return an id for each call of a reply, no two of them equal.

    Those of the API where it gave them. Some servers give none, or the same one twice; then the id
    is made from the reply's own, so that it is the same each time the reply is read.
    """
    ids: dict[str, None] = {}
    for number, found in enumerate(given):
        if not isinstance(found, str) or not found or found in ids:
            seed = f"{reply.get('id')} {reply.get('created')} {number}"
            digest = sha256(seed.encode(errors="replace")).hexdigest()
            found = f"call_{digest[:24]}"
        ids[found] = None
    return list(ids)


def without_repeats(parts: Iterable[Plain], id_name: str) -> list[Plain]:
    """Return the parts of a reply without calls that came twice, equal in all fields and their id.

    Calls that a model wants twice have two ids, at least of a server that gives any.
    """
    first: dict[str, Plain] = {}
    found: list[Plain] = []
    for part in parts:
        part_id = part.get(id_name)
        if isinstance(part_id, str) and part_id:
            earlier = first.setdefault(part_id, part)
            if earlier is not part and earlier == part:
                continue
        found.append(part)
    return found


def sent_name(name: object) -> str:
    """Return the name of a call as it goes back.

    Models call what is not there, such as `multi_tool_use.parallel`, and the API refuses a name
    with other characters than its own definitions may have.
    """
    return re.sub(r"[^A-Za-z0-9_-]", "_", str(name or ""))[:MAX_PROVIDER_NAME_CHARS] or "unnamed"


def broken_off() -> ModelError:
    """Return the error for a stream that ended before the reply did."""
    return ModelError("the stream ended before the reply did", retryable=True)


def reason_text(reason: object) -> str:
    """Return the words of a provider about a failure, in one line of at most 500 characters."""
    return one_line(reason if isinstance(reason, str) else shown(reason), _MAX_REASON_CHARS)
