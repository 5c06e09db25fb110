"""A model whose replies are written in a file: for tests, demonstrations and documentation.

The file is JSON lines in UTF-8, a reply each. Empty lines, and lines that begin with `#`, are left
out:

    # asks for two tools at once, then says something
    {"uses": [{"name": "clock.now"}, {"name": "greeter.greet", "arguments": {"name": "Ada"}}]}
    {"text": "It is noon."}

`name` is `toolkit.tool` or the name that a provider would get. `arguments` may be any JSON, also
text that is not JSON, as models write it. A line `{"error": "..."}` is a `ModelError` in place of a
reply.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.models import scripted
from toolbus.models.adapter import Adapter, Plain
from toolbus.models.model_error import ModelError

__all__ = ["ScriptedModel"]

_logger = bounded_logger(__name__)
_MAX_BYTES = 16 * 1024 * 1024
"""All of a file is in memory, as text and as replies, as long as its model."""
_PIECE_CHARS = 16
"""A text comes in pieces of some words, as from an API."""


class ScriptedModel:
    """Gives the replies of a file, one after the other.

    Each conversation reads the file from its start: the number of replies in the conversation
    tells which one is next. After the last one the first is next again, and the log says so. The
    file is read here, and not again.

    Raises `ValueError` for a file that cannot be read, and for a mistake in it, with path and line.
    """

    adapter: Adapter = scripted
    """The words of scripted models."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = Path(path)
        self.name: str = f"scripted:{self._path}"
        """The name that `open_model` was given."""
        self._replies = list(_read(self._path))
        if not self._replies:
            raise ValueError(f"{path} has no reply")

    def __repr__(self) -> str:
        return f"<model {self.name}>"

    async def reply(self, request: Mapping[str, Any]) -> Plain:
        """Return the next reply. Raises `ModelError` for a line that is an error."""
        number = sum(message.get("role") == "model" for message in request["messages"])
        round_number, line = divmod(number, len(self._replies))
        if round_number and line == 0:
            _logger.warning("%s has no more replies: it begins again with the first", self._path)
        written = self._replies[line]
        if written["error"]:
            raise ModelError(written["error"])
        # The ids differ within a conversation, and are the same each time.
        uses = [{"id": f"use-{number + 1}-{n}"} | use for n, use in enumerate(written["uses"], 1)]
        return {"role": "model", "text": written["text"], "uses": uses}

    async def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Plain, None]:
        """Yield the next reply in pieces. Raises `ModelError` for a line that is an error."""
        reply = await self.reply(request)
        text = reply["text"]
        for start in range(0, len(text), _PIECE_CHARS):
            yield {"text": text[start : start + _PIECE_CHARS]}
        yield {"uses": reply["uses"]}

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""


def _read(path: Path) -> Iterator[Plain]:
    """Yield text, uses and error of each reply."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError(f"{path} is larger than {_MAX_BYTES} bytes")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        place = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{place}: this is not UTF-8") from None
    # Not `splitlines`: a JSON text may have U+2028 in it.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                yield _reply_of(line)
            except RecursionError:
                raise ValueError(f"{path}:{number}: it is nested too deeply") from None
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None


def _reply_of(line: str) -> Plain:
    try:
        reply = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    _check_keys(reply, "a reply", ("text", "uses", "error"))
    text, uses, failure = reply.get("text", ""), reply.get("uses", []), reply.get("error", "")
    if not isinstance(text, str) or not isinstance(uses, list) or not isinstance(failure, str):
        raise ValueError("text and error must be text, and uses must be a list")
    if bool(failure) == bool(text or uses):
        raise ValueError("a reply has text, uses, or both; or else an error")
    for use in uses:
        _check_keys(use, "a use", ("name", "arguments"))
        if not isinstance(use.get("name"), str) or not use["name"]:
            raise ValueError("a use needs the name of a tool")
    made = [{"name": use["name"], "arguments": use.get("arguments", {})} for use in uses]
    return {"text": text, "uses": made, "error": failure}


def _check_keys(value: Any, what: str, known: Sequence[str]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a JSON object")
    if unknown := sorted(value.keys() - set(known)):
        raise ValueError(f"{what} has no {unknown[0]!r}, only {', '.join(known)}")
