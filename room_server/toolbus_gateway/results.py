"""What a call in a room gave, as a result of MCP: its chunks in order, or its error."""

from __future__ import annotations

import base64
import json
import re
from typing import Any
from urllib.parse import quote

import mcp_types as types
from pydantic import AnyUrl, TypeAdapter, ValidationError

from toolbus import (
    Chunk,
    EmptyChunk,
    FileChunk,
    JsonChunk,
    LinkChunk,
    RoomException,
    TextChunk,
)
from toolbus.chunks.chunk_types import chunks_of
from toolbus.chunks.json_values import is_plain
from toolbus.diagnostics.exit_codes import further_values
from toolbus.errors import Unavailable
from toolbus.untrusted_text import SHOWN_CHARS, one_line
from toolbus_gateway.output_schemas import RESULT
from toolbus_gateway.tool_definitions import ToolDefinition

__all__ = ["AS_TEXT_KEY", "ERROR_KEY", "UNREACHABLE", "ResultWriter", "error_result", "shown_error"]

ERROR_KEY = "toolbus/error"
"""The key of an error for programs, in `_meta` of a result."""
AS_TEXT_KEY = "toolbus/as_text"
"""The key of the places in the structured content that are text, as JSON cannot carry what the tool
gave: JSON pointers, in `_meta` of a result."""

UNREACHABLE = "the room server cannot be reached"
"""What clients read of it: its address, and what to do about it, is for the operator's log."""

_SERVER_URL = re.compile("wss?://")
_BLOCK_BYTES = 512
"""What a block of content counts beside its own bytes: a stream may have any number of texts of one
character, each of which takes some hundred bytes of memory and 5 us of the event loop."""
_MAX_NAMED = 20
"""Parts that are named where a result is too large; a stream may have any number of them."""
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*")
_ANY_TYPE = "application/octet-stream"
_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/yaml"})
_TEXT_SUFFIXES = ("+json", "+xml", "+yaml")
_MAX_PARTS = 20_000
"""Objects and lists in structured content: the SDK copies each of them four times, in 3 us,
while everybody waits. The content has their text all the same."""
_MAX_VALUES = 250_000
"""Values in it, for the same reason: each takes 0.2 us."""
_URL: TypeAdapter[AnyUrl] = TypeAdapter(AnyUrl)


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
        self._value: JsonChunk | None = None
        """What is the structured content."""
        self._left_out: list[str] = []
        self._left_out_bytes = 0
        self._has_cut_text = False

    async def add(self, chunk: Chunk) -> None:
        """Add a chunk. Raises `RoomException` if a file that is being received breaks off."""
        if not self._definition.is_streaming:
            self._value = self._value_of(chunk)
        for part in chunks_of(chunk):
            match part:
                case TextChunk(text):
                    self._add_text(text)
                case JsonChunk(value):
                    text = json.dumps(value, ensure_ascii=False)
                    if not _is_quick(text):
                        self._value = None
                    self._add_text(text)
                case LinkChunk(url, name):
                    self._add_link(url, name)
                case FileChunk():
                    await self._add_file(part)

    def _value_of(self, chunk: Chunk) -> JsonChunk | None:
        """Return the JSON of a result; where clients check it with a schema, a text may be it."""
        found = [part for part in chunks_of(chunk) if isinstance(part, JsonChunk)]
        if len(found) == 1:
            return found[0]
        if self._definition.has_output:
            match chunk:
                case TextChunk(text):
                    return JsonChunk(text, chunk.as_text)
                case EmptyChunk():
                    return JsonChunk(None)
        return None

    def result(self) -> types.CallToolResult:
        """Return the result of a call that has ended well."""
        if self._left_out:
            return self._incomplete(self._left_out_text(), "too_large", self._left_out_details())
        value = self._value
        is_checked = self._definition.has_output
        if is_checked and (value is None or value.as_text):
            # Clients refuse the whole result, with its content, unless it is an error.
            reason = "JSON cannot carry all of it"
            if value is None:
                reason = f"it has no such value, or one of over {_MAX_PARTS:,} objects and lists"
            text = f"the result is not as the tool's output schema has it: {reason}"
            return self._incomplete(text, "invalid_result", {})
        if value is None:
            return types.CallToolResult(content=self._content)
        is_object = isinstance(value.json, dict) and not self._definition.is_wrapped
        structured = value.json if is_object else {RESULT: value.json}
        meta: dict[str, Any] | None = None
        if value.as_text:
            above = "" if is_object else f"/{RESULT}"
            meta = {AS_TEXT_KEY: [above + place for place in value.as_text]}
        return types.CallToolResult(
            content=self._content, structured_content=structured, _meta=meta
        )

    def failed(self, error: RoomException) -> types.CallToolResult:
        """Return the result of a call that has failed; what came before is before its error."""
        result = error_result(error)
        content = [*self._content, *result.content]
        if self._left_out:
            content.append(types.TextContent(text=self._left_out_text()))
        return result.model_copy(update={"content": content})

    def _incomplete(self, reason: str, code: str, details: dict[str, Any]) -> types.CallToolResult:
        """Return the result of a tool that ran well, and that the client does not get as it is."""
        facts = {"code": code, "executed": "yes", "retryable": False, "details": details}
        text = types.TextContent(text=f"the tool ran (executed: yes), but {reason}")
        return types.CallToolResult(
            content=[*self._content, text], is_error=True, _meta={ERROR_KEY: facts}
        )

    def _left_out_text(self) -> str:
        parts = "; ".join(self._left_out)
        limit = f"a result here has at most {self._max_bytes:,} bytes"
        return f"{limit}; {self._left_out_bytes:,} bytes are left out: {parts}"

    def _left_out_details(self) -> dict[str, Any]:
        return {"limit_bytes": self._max_bytes, "left_out_bytes": self._left_out_bytes}

    def _takes(self, size: int, what: str) -> bool:
        """Whether content of a size still fits; else it is left out."""
        if size + _BLOCK_BYTES <= self._left_bytes:
            self._left_bytes -= size + _BLOCK_BYTES
            return True
        self._left_out_bytes += size
        if len(self._left_out) < _MAX_NAMED:
            self._left_out.append(f"{what} ({size:,} bytes)")
        elif len(self._left_out) == _MAX_NAMED:
            self._left_out.append("and more")
        return False

    def _add_text(self, text: str) -> None:
        if not text:  # a block without text makes providers of models refuse the request
            return
        size = len(text) if text.isascii() else len(text.encode())
        if self._has_cut_text:
            # What follows a gap would read as if it followed what stands before it.
            self._left_out_bytes += size
        elif self._takes(size, "a text, with all texts after it"):
            self._content.append(types.TextContent(text=text))
        else:
            self._has_cut_text = True

    def _add_link(self, url: str, name: str) -> None:
        uri = _uri(url)
        if uri is None:
            self._add_text(f"{name}: {url}" if name else url)
        elif self._takes(len(uri) + len(name), f"the link {_shown(name)}"):
            self._content.append(types.ResourceLink(uri=uri, name=name or url))

    async def _add_file(self, file: FileChunk) -> None:
        data = bytearray()
        size = 0
        most = self._left_bytes - _BLOCK_BYTES
        async for piece in file.pieces():
            size += len(piece)
            # The rest is read all the same, in the time of the call: its size is told, and a call
            # that is cancelled here would not have run to its end, while the result says that it
            # has. The same holds for the rest of a stream.
            if size <= most:
                data += piece
        if not self._takes(size, f"the file {_shown(file.name)}"):
            return
        if self._definition.has_output and (value := _json_of(file, data)) is not None:
            self._value = value  # toolkits send JSON that is larger than a frame as a file
            self._content.append(types.TextContent(text=data.decode()))
            return
        self._content.append(_file_block(file, bytes(data)))


def _shown(name: str) -> str:
    return one_line(name, SHOWN_CHARS) if name else "without a name"


def _uri(url: str) -> str | None:
    """Return an address as clients parse it; None if it is none.

    One that a client cannot parse would cost it the whole result.
    """
    try:
        parsed = str(_URL.validate_python(url))
    except ValidationError:
        return None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return url if is_plain else parsed


def _is_quick(text: str) -> bool:
    """Whether JSON has few enough parts to be structured content."""
    return text.count("[") + text.count("{") <= _MAX_PARTS and text.count(",") < _MAX_VALUES


def _json_of(file: FileChunk, data: bytearray) -> JsonChunk | None:
    if file.mime_type != "application/json":
        return None
    try:
        text = data.decode()
        if not _is_quick(text):
            return None
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    # A host writes any bytes. NaN, a lone surrogate or 500 levels would end this call, which has
    # run, with an error of the SDK that does not say so.
    return JsonChunk(value) if is_plain([value], 0) else None


def _file_block(file: FileChunk, data: bytes) -> types.ContentBlock:
    mime_type = file.mime_type
    essence = mime_type.partition(";")[0].strip().lower()
    if _MEDIA_TYPE.fullmatch(essence) is None:
        mime_type = essence = _ANY_TYPE
    elif not (mime_type.isascii() and mime_type.isprintable()):
        mime_type = essence
    kind = essence.partition("/")[0]
    # Clients compare the types of pictures and sounds with those that their model takes.
    if kind == "image":
        return types.ImageContent(data=_base64(data), mime_type=essence)
    if kind == "audio":
        return types.AudioContent(data=_base64(data), mime_type=essence)
    uri = f"toolbus:///{quote(file.name or 'file', safe='')}"
    resource: types.TextResourceContents | types.BlobResourceContents
    text = _text_of(data, essence)
    if text is not None:
        resource = types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    else:
        resource = types.BlobResourceContents(uri=uri, mime_type=mime_type, blob=_base64(data))
    return types.EmbeddedResource(resource=resource)


def _text_of(data: bytes, essence: str) -> str | None:
    """Return the text of a file; None if it is none."""
    is_text = essence.startswith("text/") or essence in _TEXT_TYPES
    if not (is_text or essence.endswith(_TEXT_SUFFIXES)):
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def shown_error(error: RoomException) -> RoomException:
    """Return an error as clients may read it: without the address of the room server."""
    words = f"{error.message} {error.details.get('url')}"
    if not isinstance(error, Unavailable) or _SERVER_URL.search(words) is None:
        return error
    return Unavailable(
        UNREACHABLE,
        executed=error.executed,
        retryable=error.retryable,
        retry_after_s=error.retry_after_s,
    )


def error_result(error: RoomException) -> types.CallToolResult:
    """Return a failed call as a result, with words for a model and `_meta` for a program."""
    error = shown_error(error)
    text = f"{error.message} ({error.code}; executed: {error.executed})"
    # All at once, or a model needs a call for each of them.
    text = "\n".join([text, *(f"also: {value}" for value in further_values(error))])
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
