"""What the two adapters for OpenAI's APIs share: calls and files.

Chat completions are the API of most other servers too (Ollama, vLLM, llama.cpp, the layers of
Gemini and Mistral). What these send is repaired where they would refuse it when it goes back: one
such message would end the conversation, since it is part of each further request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from toolbus.chunks.carried_values import repaired
from toolbus.chunks.chunk_types import FileChunk
from toolbus.models.adapter import Plain
from toolbus.models.api_errors import api_error
from toolbus.models.results import media_type
from toolbus.models.shared_parts import sendable

__all__ = [
    "MAX_FILE_BYTES",
    "checked_reply",
    "file_name",
    "is_picture",
    "sent_arguments",
]

MAX_FILE_BYTES = 50 * 10**6
"""Of all files of one request together, before Base64:
developers.openai.com/api/docs/guides/file-inputs."""
_PICTURES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
_MAX_FILE_NAME_CHARS = 64


def is_picture(file: FileChunk) -> bool:
    """Whether the APIs take a file as a picture: PNG, JPEG, WebP, or GIF that is not animated.

    developers.openai.com/api/docs/guides/images-vision
    """
    kind = media_type(file)
    if kind not in _PICTURES or len(file.data) > MAX_FILE_BYTES:
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


def sent_arguments(arguments: Any) -> str:
    """Return the arguments of a call as they go back: the same text if it is one JSON object.

    OpenAI takes any text. vLLM and llama.cpp read it as JSON, and refuse each further request of
    the conversation if it is broken (vllm-project/vllm#43995, ggml-org/llama.cpp#25510). What is
    no object is kept as text in one: `{"invalid_json": "..."}`.
    """
    if not isinstance(arguments, str):
        return sent_arguments(json.dumps(arguments, ensure_ascii=False))
    if arguments.strip() in ("", "null"):
        return "{}"
    try:
        is_object = isinstance(json.loads(arguments, parse_constant=_refuse_constant), dict)
    except (ValueError, RecursionError):
        is_object = False
    return arguments if is_object else json.dumps({"invalid_json": arguments}, ensure_ascii=False)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
