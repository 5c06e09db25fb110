"""What the adapters of several providers share: requests, and what goes back of a reply.

A message that an API refuses ends the conversation, since it is part of each further request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from math import isfinite
from typing import Any, NoReturn

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.carried_values import repaired
from toolbus.chunks.chunk_types import FileChunk
from toolbus.chunks.json_values import shown
from toolbus.models.adapter import Conversation, Plain
from toolbus.models.api_errors import api_error
from toolbus.models.model_error import ModelError
from toolbus.models.results import media_type
from toolbus.schemas.forms import Dialect, SchemaForm, schema_form
from toolbus.turns.model_tools import ModelTool
from toolbus.turns.turn import Turn
from toolbus.turns.turn_tools import MAX_PROVIDER_NAME_CHARS
from toolbus.untrusted_text import SHOWN_CHARS, one_line

__all__ = [
    "FILLER",
    "MAX_OPENAI_FILE_BYTES",
    "alternating",
    "broken_off",
    "call_ids",
    "checked_conversation",
    "checked_reply",
    "file_name",
    "formed_tools",
    "is_picture",
    "reason_text",
    "sendable",
    "sent_arguments",
    "sent_name",
    "system_text",
    "without_repeats",
]

_logger = bounded_logger("toolbus.models")


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
    if not isinstance(conversation, str | Mapping):
        found = list(conversation)
        if all(isinstance(message, Mapping) for message in found):
            return found
    raise TypeError(
        "a conversation is a list of messages, such as [adapter.user(text)], not"
        f" {shown(conversation)}"
    )


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
    match value:
        case float() if not isfinite(value):
            return None
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {repaired(str(name)): _as_json(item) for name, item in value.items()}
        case list() | tuple():
            return [_as_json(item) for item in value]
    return repaired(str(value))


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
    """Return the words of a provider about a failure, in one line, cut."""
    return one_line(reason if isinstance(reason, str) else shown(reason), SHOWN_CHARS)


FILLER = "OK."
"""What the model says where it said nothing between two messages for it. It claims nothing: it
stands between results and their files as well as between results and the next question."""


def alternating(messages: Iterable[Mapping[str, Any]], filler: Plain) -> list[Mapping[str, Any]]:
    """Return messages in which the model speaks before each message of the user: else `filler`.

    Mistral refuses a message of the user behind a result, and many servers two messages of the
    user: such an order comes of a question that ended at a limit, or of an empty reply.
    """
    made: list[Mapping[str, Any]] = []
    speaks = filler["role"]
    for message in messages:
        if message.get("role") == "user" and made and made[-1].get("role") != speaks:
            made.append(filler)
        made.append(message)
    return made


# What the two adapters for OpenAI's APIs share
#
# Chat completions are the API of most other servers too (Ollama, vLLM, llama.cpp, the layers of
# Gemini and Mistral). What these send is repaired where they would refuse it when it goes back.


MAX_OPENAI_FILE_BYTES = 50 * 10**6
"""Of all files of one request together, before Base64:
developers.openai.com/api/docs/guides/file-inputs."""
_PICTURES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
_MAX_FILE_NAME_CHARS = 64
"""A tool chooses the name, and it is part of each further request."""


def is_picture(file: FileChunk) -> bool:
    """Whether the APIs take a file as a picture: PNG, JPEG, WebP, or GIF that is not animated.

    developers.openai.com/api/docs/guides/images-vision
    """
    kind = media_type(file)
    if kind not in _PICTURES or len(file.data) > MAX_OPENAI_FILE_BYTES:
        return False
    return kind != "image/gif" or b"NETSCAPE2.0" not in file.data  # the block that repeats frames


def file_name(file: FileChunk, extension: str) -> str:
    """Return the name that a file is sent with: the API goes by its extension."""
    name = repaired(file.name).rpartition("/")[2][-_MAX_FILE_NAME_CHARS:] or "file"
    return name if name.lower().endswith(extension) else f"{name}{extension}"


def checked_reply(reply: object, field: str) -> Plain:
    """Return a reply whose field `field`, which goes back, can be sent as JSON.

    The rest of a reply may be long: responses have the instructions and tools of their request.

    Raises `ModelError` for what is no object, is nested too deeply, or has an error.
    """
    if not isinstance(reply, Mapping):
        return sendable(reply)  # raises, and says what it is
    if error := reply.get("error"):
        raise api_error(error)
    return {**reply, **sendable({field: reply.get(field)})}


def sent_arguments(arguments: Any, field: str) -> str:
    """Return the arguments of a call as they go back: the same text if it is one JSON object.

    So does the `input` of a custom tool, which is no JSON.

    OpenAI takes any text. vLLM and llama.cpp read it as JSON, and refuse each further request of
    the conversation if it is broken (vllm-project/vllm#43995, ggml-org/llama.cpp#25510). What is
    no object is kept as text in one: `{"invalid_json": "..."}`.
    """
    if field == "input":
        return str(arguments or "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if arguments.strip() in ("", "null"):
        return "{}"
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(arguments, parse_constant=_refuse_constant), dict):
            return str(arguments)
    return json.dumps({"invalid_json": arguments}, ensure_ascii=False)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
