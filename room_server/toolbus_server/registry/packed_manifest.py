"""The bytes of a manifest: split into its tools and fields, joined, and in canonical form. Pure.

A packed manifest is not decoded: only the borders are found here, and nothing is checked that the
reader of a tool checks. Going through a manifest of 1 MiB takes 6 ms at most.

Digests are those of the canonical form of RFC 8785, but for one point: an integer beyond 2^53,
which that form does not have, is written with all its digits, since a body of this protocol may
hold it (PROTOCOL.md, BODY-1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from heapq import merge
from json.encoder import encode_basestring
from typing import Any, NamedTuple

import msgpack
import rfc8785
from msgspec import Raw

from toolbus.auth.grants import is_toolkit_name
from toolbus.wire import MAX_MANIFEST_BYTES, MAX_TOOLS, BadBody, pack_body
from toolbus.wire.body_steps import Steps
from toolbus.wire.codec import MAP_TAGS

__all__ = ["join_manifest", "set_aside", "split_manifest", "toolkit_name_of", "write_canonical"]

# A megabyte of short fields would be read in one step of the event loop (PROTOCOL.md, REG-2).
_MAX_FIELDS = 256
_MAX_FIELD_NAME_BYTES = 256
_TOOLS, _NAME = pack_body("tools"), pack_body("name")
_SHORT_TEXT = frozenset({*range(0xA0, 0xC0), 0xD9})
"""First bytes of texts of at most 255 bytes."""
_EMPTY_MAP = pack_body({})
_UNREADABLE = (msgpack.UnpackException, ValueError)


class SplitManifest(NamedTuple):
    """The pieces of a packed manifest."""

    head: bytes
    """A map of all fields but `tools`."""
    tools: list[bytes]
    """Each tool."""


def split_manifest(packed: bytes, max_tools: int) -> SplitManifest:
    """Split a manifest. Raises `BadBody` if it is not a map, or its tools are not a list."""
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
                if head[unpacker.tell()] in _SHORT_TEXT:
                    name = unpacker.unpack()
                    if is_toolkit_name(name):
                        return name
                return ""
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


def set_aside(packed: bytes, names: Collection[str]) -> tuple[bytes, dict[str, Raw]]:
    """Take the values of some fields, if they are maps, out of a packed map.

    Returns:
        The packed map with an empty map in each of these places, and the packed values by name.

    Raises:
        BadBody: It is not a packed map.
    """
    wanted = {pack_body(name): name for name in names}
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_MANIFEST_BYTES)
    unpacker.feed(packed)
    try:
        count = int(unpacker.read_map_header())
        parts = [packed[: unpacker.tell()]]
        aside: dict[str, Raw] = {}
        for _ in range(count):
            name = _skipped(unpacker, packed)
            value = _skipped(unpacker, packed)
            if name in wanted and value[0] in MAP_TAGS:
                aside[wanted[name]] = Raw(value)
                value = _EMPTY_MAP
            parts += (name, value)
    except _UNREADABLE as error:
        raise BadBody("", "is no map of msgpack that is allowed here") from error
    return b"".join(parts), aside


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


_PIECES_PER_STEP = 1_024
"""A piece is a value, or what stands before it. The slowest, a float, takes 1.5 us."""
_NAMES_PER_STEP = 2_048
"""How many names of one map are sorted in one step: 65,536 at once would take 50 ms."""
_WORDS = {None: b"null", True: b"true", False: b"false"}
_utf16 = partial(str.encode, encoding="utf-16-be")  # the order of names in RFC 8785


def write_canonical(value: Any, write: Callable[[bytes], object]) -> Steps[None]:
    """Write a JSON value, as `unpack_body` returns it, in steps of 2 ms at most."""
    open_containers: list[Iterator[Any]] = [iter((value,))]
    pieces: list[bytes] = []
    while open_containers:
        for item in open_containers[-1]:
            if len(pieces) == _PIECES_PER_STEP:
                write(b"".join(pieces))
                pieces.clear()
                yield
            kind = type(item)
            if kind is dict and item:
                names = yield from _sorted_names(item)
                open_containers.append(_pieces_of_map(item, names))
                break
            if kind is list and item:
                open_containers.append(_pieces_of_list(item))
                break
            pieces.append(item if kind is bytes else _scalar(item))
        else:
            open_containers.pop()
    write(b"".join(pieces))


def _sorted_names(value: dict[str, Any]) -> Steps[Iterable[str]]:
    """Sort the names of a map; of a large one in runs, which are merged while it is written."""
    if len(value) <= _NAMES_PER_STEP:
        return sorted(value, key=_utf16)
    names = [*value]
    runs = []
    for start in range(0, len(names), _NAMES_PER_STEP):
        runs.append(sorted(names[start : start + _NAMES_PER_STEP], key=_utf16))
        yield
    return merge(*runs, key=_utf16)


def _pieces_of_map(value: dict[str, Any], names: Iterable[str]) -> Iterator[Any]:
    """Iterate over the values, and as bytes over what stands before and behind them."""
    before = b"{"
    for name in names:
        yield b"%b%b:" % (before, _scalar(name))
        yield value[name]
        before = b","
    yield b"}"


def _pieces_of_list(value: list[Any]) -> Iterator[Any]:
    before = b"["
    for item in value:
        yield before
        yield item
        before = b","
    yield b"]"


def _scalar(value: Any) -> bytes:
    """Write a value that has no others in it."""
    kind = type(value)
    if kind is str:
        return encode_basestring(value).encode()
    if kind is int:
        return b"%d" % value
    if kind is float:
        return rfc8785.dumps(value)  # only these digits are what ECMAScript writes
    if kind is dict or kind is list:
        return b"{}" if kind is dict else b"[]"
    return _WORDS[value]
