"""Splits a packed manifest into its tools, and limits what each holds before it is decoded. Pure.

Only the borders of the tools are found here; nothing is checked that the reader of a tool checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack

from toolbus.auth.grants import is_toolkit_name
from toolbus.wire import MAX_MANIFEST_BYTES, MAX_TOOLS, BadBody, pack_body

__all__ = [
    "MAX_TOOL_BYTES",
    "SplitManifest",
    "count_values",
    "join_manifest",
    "split_manifest",
    "toolkit_name_of",
]

MAX_TOOL_BYTES = 256 * 1024
"""Bytes of one packed tool."""
_MAX_FIELDS = 256
_MAX_FIELD_NAME_BYTES = 256
_TOOLS, _NAME = pack_body("tools"), pack_body("name")
_SHORT_TEXT = frozenset({*range(0xA0, 0xC0), 0xD9})
"""First bytes of texts of at most 255 bytes."""
_UNREADABLE = (msgpack.UnpackException, ValueError)


class SplitManifest(NamedTuple):
    """The pieces of a packed manifest."""

    head: bytes
    """A map of all fields but `tools`."""
    tools: list[bytes]
    """Each tool."""


class _TooMany(Exception):
    """There are more values than the limit."""


def split_manifest(packed: bytes, max_tools: int) -> SplitManifest:
    """Split a manifest. Raises `BadBody` if it is no map, or its tools are no list."""
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_MANIFEST_BYTES)
    unpacker.feed(packed)
    try:
        count = _header(unpacker.read_map_header, _MAX_FIELDS, "", "fields")
        fields: list[bytes] = []
        tools: list[bytes] = []
        for _ in range(count):
            name = _skipped(unpacker, packed)
            if name == _TOOLS:
                count_of_tools = _header(unpacker.read_array_header, max_tools, "/tools", "tools")
                tools = [_skipped(unpacker, packed) for _ in range(count_of_tools)]
            elif len(name) > _MAX_FIELD_NAME_BYTES:
                raise BadBody("", f"a field's name has more than {_MAX_FIELD_NAME_BYTES} bytes")
            else:
                fields.append(name + _skipped(unpacker, packed))
    except _UNREADABLE as error:
        if isinstance(error, BadBody):
            raise
        raise BadBody("", "is not msgpack that is allowed here") from error
    if unpacker.tell() != len(packed):
        raise BadBody("", "has bytes after its end")
    return SplitManifest(msgpack.Packer().pack_map_header(len(fields)) + b"".join(fields), tools)


def toolkit_name_of(packed: bytes) -> str:
    """Return the toolkit's name in a packed manifest that may be invalid otherwise; "" for none."""
    try:
        head = split_manifest(packed, MAX_TOOLS).head
        unpacker = msgpack.Unpacker(max_buffer_size=MAX_MANIFEST_BYTES)
        unpacker.feed(head)
        for _ in range(unpacker.read_map_header()):
            if _skipped(unpacker, head) == _NAME:
                name = unpacker.unpack() if head[unpacker.tell()] in _SHORT_TEXT else None
                return name if is_toolkit_name(name) else ""
            unpacker.skip()
    except _UNREADABLE:
        pass
    return ""


def join_manifest(head: Mapping[str, Any], tools: list[bytes]) -> bytes:
    """Pack a manifest from the fields other than `tools`, and its packed tools."""
    packer = msgpack.Packer()
    parts = [packer.pack_map_header(len(head) + bool(tools))]
    for name, value in head.items():
        parts += (pack_body(name), pack_body(value))
    if tools:
        parts += (_TOOLS, packer.pack_array_header(len(tools)), *tools)
    return b"".join(parts)


def count_values(packed: bytes, limit: int) -> int | None:
    """Count the maps, lists and plain values in packed bytes; None for more than the limit.

    Bytes that cannot be decoded count as far as they are read.
    """
    values = containers = 1

    def count(container: Any) -> None:
        nonlocal values, containers
        values += len(container)
        containers += 1
        if values > limit or containers > limit:
            raise _TooMany

    try:
        msgpack.unpackb(packed, object_hook=count, list_hook=count)
    except _TooMany:
        return None
    except (*_UNREADABLE, TypeError):
        pass
    return values


def _header(read: Any, limit: int, path: str, noun: str) -> int:
    try:
        count = int(read())
    except ValueError as error:
        kind = "list" if path else "map"
        raise BadBody(path, f"must be a {kind}") from error
    if count > limit:
        raise BadBody(path, f"more than {limit} {noun}")
    return count


def _skipped(unpacker: msgpack.Unpacker, packed: bytes) -> bytes:
    """Return the bytes of the next value."""
    begins = unpacker.tell()
    unpacker.skip()
    return packed[begins : unpacker.tell()]
