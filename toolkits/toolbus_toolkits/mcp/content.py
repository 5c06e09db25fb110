"""What an MCP server returns, as a result of toolbus; and its failures, as errors."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any
from urllib.parse import urlsplit

import mcp_types as types
from mcp_types.methods import is_input_required, parse_server_result
from pydantic import FailFast, TypeAdapter, ValidationError

from toolbus import Chunk, EmptyChunk, FileChunk, JsonChunk, LinkChunk, MixedChunk, TextChunk
from toolbus.chunks.chunk_types import MAX_PARTS
from toolbus.untrusted_text import printable
from toolbus_toolkits.credentials.redaction import Redact, redacted_bytes, redacted_json

__all__ = ["failure_text", "make_valid", "progress_value", "to_chunk", "without_values"]

_MAX_FAILURE_CHARS = 4_000
"""Less than an error may have (PROTOCOL.md, ERR-7), so that a mark shows where it was cut."""
_METHOD = "tools/call"
_MEMBERS = frozenset({"_meta", "content", "isError", "resultType", "structuredContent"})
_BLOCKS = TypeAdapter(Annotated[list[types.ContentBlock], FailFast()])
_MAX_CHECKED = 1_000
"""Blocks that are checked one by one; 60 ms if none is valid."""


def make_valid(result: dict[str, Any], version: str) -> None:
    """Change a result of a call that is not valid MCP so that the MCP SDK reads it.

    The tool has run, so that nothing of what it returned may be lost: a block that is not valid, or
    of a kind that is not known, becomes a text of its JSON, and so do all of a long list, and what
    is there instead of `content`.
    """
    if is_input_required(result) or _are_blocks(result.get("content")):
        if _is_valid(result, version):
            return
    content = result.get("content")
    if content is None:
        content = {key: value for key, value in result.items() if key not in _MEMBERS} or []
    blocks = content if isinstance(content, list) else [content]
    if len(blocks) > _MAX_CHECKED:
        blocks = [json.dumps(blocks, ensure_ascii=False)]
    structured = result.get("structuredContent")
    if structured is not None and not isinstance(structured, dict):
        result["structuredContent"] = {"result": structured}
    if result.get("isError") is None:
        result.pop("isError", None)
    result.setdefault("resultType", "complete")
    result["content"] = []
    if not _is_valid(result, version):
        result.pop("_meta", None)
    # One by one, because a check of all does not say which of them is valid.
    result["content"] = [
        block if _is_valid({**result, "content": [block]}, version) else _text_block(block)
        for block in blocks
    ]


def _are_blocks(content: Any) -> bool:
    """Whether content is valid but for the version; to the first block that is not."""
    try:
        _BLOCKS.validate_python(content, by_name=False)
    except ValidationError:
        return False
    return True


def _is_valid(result: dict[str, Any], version: str) -> bool:
    try:
        parse_server_result(_METHOD, version, result)
    except ValidationError:
        return False
    except (KeyError, ValueError):  # of a version that has no such result
        pass
    return True


def _text_block(value: Any) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"type": "text", "text": text}


def to_chunk(result: types.CallToolResult) -> Chunk:
    """Return the result of a call as one chunk.

    Structured content is a JSON value. A block is a text, a file (image, audio, binary resource) or
    a link; one of a kind that is not known here, and binary data that is not Base64, is a JSON
    value in MCP's own form. Nothing at all is no value. Several of these are a `MixedChunk`, the
    structured content first. A text that only repeats structured content, as MCP asks for, is left
    out. More than `MAX_PARTS` chunks are one JSON value in MCP's form.
    """
    chunks: list[Chunk] = []
    copies: list[Any] = []
    structured = result.structured_content
    if structured is not None:
        chunks.append(JsonChunk(structured))
        copies = _repeated_by_texts(structured)
    chunks += [
        _chunk_of(block) for block in result.content if not (copies and _is_copy(block, copies))
    ]
    if not chunks:
        return EmptyChunk()
    if len(chunks) > MAX_PARTS:
        return JsonChunk(result.model_dump(mode="json", by_alias=True, exclude_none=True))
    return chunks[0] if len(chunks) == 1 else MixedChunk(tuple(chunks))


def _repeated_by_texts(structured: Any) -> list[Any]:
    """Return the values that a text beside structured content may only repeat.

    Servers wrap what is no object in an object with one member, such as `{"result": ...}` or
    `{"content": ...}`. Those that name it `result` write each item of a list as a block.
    """
    repeated = [structured]
    if isinstance(structured, list):
        repeated += structured
    elif isinstance(structured, dict) and len(structured) == 1:
        ((name, value),) = structured.items()
        repeated.append(value)
        if name == "result" and isinstance(value, list):
            repeated += value
    return repeated


def _is_copy(block: types.ContentBlock, values: list[Any]) -> bool:
    """Whether a block is only the text of one of these values."""
    if not isinstance(block, types.TextContent):
        return False
    if block.text in values:
        return True
    try:
        return json.loads(block.text) in values
    except (ValueError, RecursionError):
        return False


def without_values(result: types.CallToolResult, redact: Redact) -> types.CallToolResult:
    """Return a result without values of credentials: in texts, JSON values and binary data.

    Args:
        result: The result as the server sent it; one without any is returned itself.
        redact: Removes them from a text.
    """
    text = result.model_dump_json(by_alias=True)
    if redact(text) == text:  # values are seen here in their forms of JSON and base64
        return result
    data = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    blocks = data.get("content", [])
    binary = [_take_binary(block, redact) for block in blocks]
    clean = redacted_json(data, redact)
    for block, (key, encoded) in zip(clean.get("content", []), binary, strict=True):
        if key:
            _holder(block)[key] = encoded
    return types.CallToolResult.model_validate(clean)


def _take_binary(block: dict[str, Any], redact: Redact) -> tuple[str, str]:
    """Take the binary data out of a block, and return its key and the data without values."""
    holder = _holder(block)
    key = next((name for name in ("data", "blob") if isinstance(holder.get(name), str)), "")
    if not key:
        return "", ""
    encoded = holder.pop(key)
    try:
        data = base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        return key, redact(encoded)
    clean = redacted_bytes(data, redact)
    return key, encoded if clean is data else base64.b64encode(clean).decode()


def _holder(block: dict[str, Any]) -> dict[str, Any]:
    resource = block.get("resource")
    return resource if isinstance(resource, dict) else block


def failure_text(result: types.CallToolResult) -> str:
    """Return the words of a result that is an error, escaped and cut to 4,000 characters."""
    texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
    text = "\n".join(texts) or "the tool failed, and its server says nothing more"
    return printable(text, _MAX_FAILURE_CHARS)


def progress_value(progress: float, total: float | None, message: str | None) -> dict[str, Any]:
    """Return a progress of an MCP server as the value that `context.emit` sends."""
    value = {"progress": progress, "total": total, "message": message}
    return {name: part for name, part in value.items() if part is not None}


def _chunk_of(block: types.ContentBlock) -> Chunk:
    """Return a block as a chunk; what cannot be read as its kind as JSON in MCP's form."""
    match block:
        case types.TextContent():
            return TextChunk(block.text)
        case types.ImageContent() | types.AudioContent():
            return _file_of(block, block.data, "", block.mime_type)
        case types.ResourceLink():
            return LinkChunk(block.uri, block.title or block.name)
        case types.EmbeddedResource(resource=types.TextResourceContents() as text):
            return TextChunk(text.text)
        case types.EmbeddedResource(resource=types.BlobResourceContents() as blob):
            kind = blob.mime_type or "application/octet-stream"
            return _file_of(block, blob.blob, _last_part(blob.uri), kind)
    return JsonChunk(_as_json(block))


def _file_of(block: types.ContentBlock, encoded: str, name: str, mime_type: str) -> Chunk:
    try:
        data = base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        return JsonChunk(_as_json(block))
    return FileChunk(data, name, mime_type)


def _as_json(block: types.ContentBlock) -> Any:
    return block.model_dump(mode="json", by_alias=True, exclude_none=True)


def _last_part(uri: str) -> str:
    try:
        return urlsplit(uri).path.rpartition("/")[2]
    except ValueError:
        return ""
