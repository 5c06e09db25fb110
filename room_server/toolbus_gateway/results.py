"""What a call in a room gave, as a result of MCP: its chunks in order, or its error."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import mcp_types as types

from toolbus import (
    Chunk,
    FileChunk,
    JsonChunk,
    LinkChunk,
    MixedChunk,
    RoomException,
    TextChunk,
)
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_gateway.definitions import RESULT, ToolDefinition

__all__ = ["ERROR_KEY", "ResultWriter", "error_result"]

ERROR_KEY = "toolbus/error"
"""The key of an error for programs, in `_meta` of a result."""


class ResultWriter:
    """Collects the chunks of one call as the content of its result.

    Args:
        definition: The tool.
        max_bytes: Of the content together. What is beyond is named with its size, and the result is
            an error of a tool that ran: nothing is kept for a later request.
    """

    def __init__(self, definition: ToolDefinition, max_bytes: int) -> None:
        self._definition = definition
        self._left_bytes = max_bytes
        self._max_bytes = max_bytes
        self._content: list[types.ContentBlock] = []
        self._values: list[Any] = []
        """Those that may be the structured content."""
        self._left_out: list[str] = []
        self._left_out_bytes = 0

    async def add(self, chunk: Chunk) -> None:
        """Add a chunk. Raises `RoomException` if a file that is being received breaks off."""
        match chunk:
            case MixedChunk(chunks):
                for part in chunks:
                    await self.add(part)
            case FileChunk():
                await self._add_file(chunk)
            case LinkChunk(url, name):
                if self._takes(len(url) + len(name), f"the link {_shown(name)}"):
                    self._content.append(types.ResourceLink(uri=url, name=name or url))
            case _:
                self._add_value(chunk)

    def _add_value(self, chunk: Chunk) -> None:
        """Add a text or JSON; where a schema describes a value that is no object, it may be all."""
        match chunk:
            case TextChunk(text):
                self._add_text(text)
            case JsonChunk(value):
                self._add_text(json.dumps(value, ensure_ascii=False))
        if isinstance(chunk, JsonChunk) or self._definition.is_wrapped:
            self._values.append(chunk.value)

    def result(self) -> types.CallToolResult:
        """Return the result of a call that has ended well."""
        if self._left_out:
            return self._too_large()
        structured = None
        if len(self._values) == 1 and not self._definition.is_streaming:
            (value,) = self._values
            is_object = isinstance(value, dict) and not self._definition.is_wrapped
            structured = value if is_object else {RESULT: value}
        return types.CallToolResult(content=self._content, structured_content=structured)

    def failed(self, error: RoomException) -> types.CallToolResult:
        """Return the result of a call that has failed; what came before is before its error."""
        result = error_result(error)
        return result.model_copy(update={"content": [*self._content, *result.content]})

    def _too_large(self) -> types.CallToolResult:
        limit = f"{self._max_bytes:,} bytes"
        parts = "; ".join(self._left_out)
        text = f"the tool ran (executed: yes), but a result here has at most {limit}; left out"
        error = {
            "code": "too_large",
            "executed": "yes",
            "retryable": False,
            "details": {"limit_bytes": self._max_bytes, "left_out_bytes": self._left_out_bytes},
        }
        return types.CallToolResult(
            content=[*self._content, types.TextContent(text=f"{text}: {parts}")],
            is_error=True,
            _meta={ERROR_KEY: error},
        )

    def _takes(self, size: int, what: str) -> bool:
        """Whether content of a size still fits; else it is left out."""
        if not self._left_out and size <= self._left_bytes:
            self._left_bytes -= size
            return True
        self._left_out_bytes += size
        if len(self._left_out) < _MAX_NAMED:
            self._left_out.append(f"{what} ({size:,} bytes)")
        elif len(self._left_out) == _MAX_NAMED:
            self._left_out.append("and more")
        return False

    def _add_text(self, text: str) -> None:
        # A character has at most 4 bytes; the bytes of a text that may not fit are counted.
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        if self._takes(size, "a text"):
            self._content.append(types.TextContent(text=text))

    async def _add_file(self, file: FileChunk) -> None:
        data = bytearray()
        size = 0
        async for piece in file.pieces():
            size += len(piece)
            # The rest is read all the same: a file that is dropped unread would end the call.
            if size <= self._left_bytes and not self._left_out:
                data += piece
        if self._takes(size, f"the file {_shown(file.name)}"):
            self._content.append(_file_block(file, bytes(data)))


_MAX_NAMED = 20
"""Parts that are named where a result is too large; a stream may have any number of them."""


def _shown(name: str) -> str:
    return one_line(name, SHOWN_CHARS) if name else "without a name"


def _file_block(file: FileChunk, data: bytes) -> types.ContentBlock:
    mime_type = file.mime_type
    kind = mime_type.partition("/")[0].lower()
    if kind == "image":
        return types.ImageContent(data=_base64(data), mime_type=mime_type)
    if kind == "audio":
        return types.AudioContent(data=_base64(data), mime_type=mime_type)
    uri = f"toolbus:///{quote(file.name or 'file', safe='')}"
    resource: types.TextResourceContents | types.BlobResourceContents
    text = _text_of(data, mime_type)
    if text is not None:
        resource = types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    else:
        resource = types.BlobResourceContents(uri=uri, mime_type=mime_type, blob=_base64(data))
    return types.EmbeddedResource(resource=resource)


def _text_of(data: bytes, mime_type: str) -> str | None:
    """Return the text of a file; None if it is none."""
    if not mime_type.lower().startswith(("text/", "application/json")):
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def error_result(error: RoomException) -> types.CallToolResult:
    """Return a failed call as a result, with words for a model and `_meta` for a program."""
    text = f"{error.message} ({error.code}; executed: {error.executed})"
    facts: dict[str, Any] = {
        "code": error.code,
        "executed": error.executed,
        "retryable": error.retryable,
        "details": error.details,
    }
    if error.retry_after_s is not None:
        facts["retry_after_s"] = error.retry_after_s
    return types.CallToolResult(
        content=[types.TextContent(text=text)], is_error=True, _meta={ERROR_KEY: facts}
    )
