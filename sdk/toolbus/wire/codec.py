"""Between bytes and frames, and between bytes and the values that travel inside frames.

`decode` reads a frame's header and leaves its opaque parts alone; `unpack_body` reads such a part,
once, where it is meant to be read. Both refuse what PROTOCOL.md refuses before it can cost memory
or time, and raise nothing but `BadFrame` and `BadBody`. Pure: no sockets, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from operator import attrgetter, or_
from types import UnionType
from typing import Any, NamedTuple, NoReturn, cast, get_args, get_origin, get_type_hints

import msgpack
import msgspec

from toolbus.wire.frames import FROM_CLIENT, FROM_SERVER, KINDS, Frame

__all__ = [
    "MAX_DEPTH",
    "MAX_FRAME_BYTES",
    "MAX_HEADER_BYTES",
    "BadBody",
    "BadFrame",
    "Unknown",
    "decode_from_client",
    "decode_from_server",
    "encode",
    "pack_body",
    "unpack_body",
]

MAX_FRAME_BYTES = 1024 * 1024
"""One websocket message (PROTOCOL.md, FRAME-4)."""
MAX_HEADER_BYTES = 64 * 1024
"""All of a frame but its opaque parts (PROTOCOL.md, FRAME-5)."""
MAX_DEPTH = 32
"""Arrays and maps within each other (PROTOCOL.md, FRAME-6)."""

_MAX_HEADER_ITEMS = 4_096
_MAX_ID = 2**53
_FIXARRAY = 0x90
_UNREADABLE = (ValueError, RecursionError, msgspec.DecodeError, msgpack.UnpackException)
_PLAIN = frozenset({str, int, bool, type(None)})
_PLAIN_OR_BYTES = _PLAIN | {bytes}
_ARRAY_TAGS = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
_MAP_TAGS = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
_BINARY_TAGS = frozenset({0xC4, 0xC5, 0xC6})


class BadFrame(ValueError):
    """A frame that ends the connection with `close_code`."""

    def __init__(self, close_code: int, reason: str) -> None:
        super().__init__(reason)
        self.close_code = close_code
        self.reason = reason


class BadBody(ValueError):
    """An opaque part that its reader refuses; `path` is a JSON pointer to the offending value."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


class Unknown(NamedTuple):
    """A frame of a kind that this side does not read; `id` is its first field if that is one."""

    kind_number: int
    id: int | None


encode: Callable[[Frame], bytes] = msgspec.msgpack.Encoder().encode
"""Packs a frame into one message. Raises TypeError, ValueError or OverflowError where it cannot."""

# One packer for all: it keeps nothing between two values, and a new one costs more than its work.
# It writes plain values and nothing else, where msgspec would write dates and models too.
_pack_value = cast("Callable[[Any], bytes]", msgpack.Packer().pack)


def pack_body(value: Any) -> bytes:
    """Pack a value that only its receiver reads.

    Raises:
        BadBody: The value holds what msgpack cannot carry, such as an integer beyond 64 bits.
    """
    try:
        return _pack_value(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadBody("", f"cannot be sent: {type(error).__name__}") from error


def _refuse_ext(_code: int, _data: memoryview) -> NoReturn:
    raise ValueError("ext types are not part of the protocol")


_read_value = msgspec.msgpack.Decoder(ext_hook=_refuse_ext).decode


class _Shape(NamedTuple):
    """What is left to check of a frame whose fields have their types."""

    head: int
    """The first byte of an array with just its kind and its fields."""
    container: Callable[[Any], dict[str, Any] | list[Any]] | None
    """Gives its map or list, the one field that msgspec has not looked into."""


class _Reader(NamedTuple):
    """What one side of a connection reads."""

    decode: Callable[[bytes], Frame]
    shapes: dict[type[Frame], _Shape]
    kinds: frozenset[int]


def _reader(frames: tuple[type[Frame], ...]) -> _Reader:
    any_of_them: Any = reduce(or_, frames)
    return _Reader(
        decode=msgspec.msgpack.Decoder(any_of_them, ext_hook=_refuse_ext).decode,
        shapes={frame: _shape_of(frame) for frame in frames},
        kinds=frozenset(KINDS[frame] for frame in frames),
    )


def _shape_of(frame: type[Frame]) -> _Shape:
    hints = get_type_hints(frame)
    containers = [name for name, hint in hints.items() if {dict, list} & _origins(hint)]
    return _Shape(
        head=_FIXARRAY + 1 + len(hints),
        container=attrgetter(containers[0]) if containers else None,
    )


def _origins(hint: Any) -> set[Any]:
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return {get_origin(member) for member in members}


_CLIENT = _reader(FROM_CLIENT)
_SERVER = _reader(FROM_SERVER)


def _decode(reader: _Reader, data: bytes) -> Frame | Unknown:
    """Read a frame; what is not as nearly all frames are goes the longer way."""
    if len(data) > MAX_HEADER_BYTES:
        _check_header_bytes(data)
    try:
        frame = reader.decode(data)
    except _UNREADABLE:
        return _explain(reader, data)
    head, container = reader.shapes[type(frame)]
    if data[0] != head:
        _check_trailing(data, head - _FIXARRAY)
    if container is not None and (value := container(frame)):
        _check_container(value, len(data))
    return frame


def _check_header_bytes(data: bytes) -> None:
    try:
        header_bytes = _header_bytes(data)
    except _UNREADABLE as error:
        raise BadFrame(1007, "not a msgpack value that this protocol allows") from error
    if header_bytes > MAX_HEADER_BYTES:
        raise BadFrame(1009, "the header is too large")


def _read_fields(data: bytes) -> Any:
    try:
        return _read_value(data)
    except (*_UNREADABLE, TypeError) as error:
        raise BadFrame(1007, "not a msgpack value that this protocol allows") from error


def _explain(reader: _Reader, data: bytes) -> Unknown:
    """Read what is no frame of a kind that this side reads, or say which rule it breaks."""
    fields = _read_fields(data)
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise BadFrame(1002, "a frame is an array that begins with its kind")
    _check_header_value(fields, MAX_DEPTH)
    if fields[0] in reader.kinds:
        raise BadFrame(1002, "a field is missing, of another type or out of range")
    return Unknown(fields[0], fields[1] if len(fields) > 1 and _is_id(fields[1]) else None)


def _check_trailing(data: bytes, known: int) -> None:
    """Look at fields that a newer release knows: they are ignored, but may not break a rule."""
    trailing = _read_fields(data)[known:]
    if trailing:
        _check_header_value(trailing, MAX_DEPTH)


decode_from_client: Callable[[bytes], Frame | Unknown] = partial(_decode, _CLIENT)
"""Reads a message that a participant sent, or raises BadFrame."""
decode_from_server: Callable[[bytes], Frame | Unknown] = partial(_decode, _SERVER)
"""Reads a message that a server sent, or raises BadFrame."""


def _header_bytes(data: bytes) -> int:
    """Measure what a frame holds beside its opaque parts; stop where it is too much.

    This is done with long frames before a value is made of them: msgpack's own walk makes none, and
    ends where a container claims more than there is.
    """
    opaque = end = 0
    for start, end in _parts_of(data):
        if data[start] in _BINARY_TAGS:
            opaque += end - start
        if end - opaque > MAX_HEADER_BYTES:
            break
    return end - opaque


def _parts_of(data: bytes) -> Iterator[tuple[int, int]]:
    """Go through the fields of a frame, and through the keys and values of its maps."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    if data[0] not in _ARRAY_TAGS:
        unpacker.skip()
        return
    for _ in range(unpacker.read_array_header()):
        start = unpacker.tell()
        is_map = start < len(data) and data[start] in _MAP_TAGS
        for _ in range(2 * unpacker.read_map_header() if is_map else 1):
            start = unpacker.tell()
            unpacker.skip()
            yield start, unpacker.tell()


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_ID


def _check_container(value: dict[str, Any] | list[Any], frame_bytes: int) -> None:
    """Check a map or a list among a frame's fields; most have nothing in them but plain values."""
    if frame_bytes <= _MAX_HEADER_ITEMS and type(value) is dict:
        if _PLAIN_OR_BYTES.issuperset(map(type, value.values())):
            return
    _check_header_value(value, MAX_DEPTH - 1)  # the frame's own array is the first level


def _check_header_value(value: Any, depth: int) -> None:
    try:
        _check_value(value, depth, "", binary=True)
    except BadBody as error:
        raise BadFrame(1007, error.reason) from error
    _check_items(value)


def _check_items(value: Any) -> None:
    if isinstance(value, dict | list):
        if len(value) > _MAX_HEADER_ITEMS:
            raise BadFrame(1007, f"more than {_MAX_HEADER_ITEMS} items")
        for item in value.values() if isinstance(value, dict) else value:
            _check_items(item)


def unpack_body(data: bytes, *, binary: bool = False) -> Any:
    """Read an opaque part, once, at its receiver.

    Args:
        data: The packed bytes.
        binary: Whether byte strings may stand among the values; JSON has none.

    Raises:
        BadBody: It is not msgpack, deeper than 32, has a key that is not text, NaN, an infinity or
            an ext type.
    """
    try:
        value = _read_value(data)
    except (*_UNREADABLE, TypeError) as error:
        raise BadBody("", "not a msgpack value that this protocol allows") from error
    _check_value(value, MAX_DEPTH, "", binary=binary)
    return value


def _check_value(value: Any, depth: int, path: str, *, binary: bool) -> None:
    kind = type(value)
    if kind is dict or kind is list:
        if depth == 0:
            raise BadBody(path, f"deeper than {MAX_DEPTH}")
        is_map = kind is dict
        items: Iterable[tuple[Any, Any]] = value.items() if is_map else enumerate(value)
        for key, item in items:
            if is_map and type(key) is not str:
                raise BadBody(path, "keys are text")
            if type(item) not in _PLAIN:
                _check_value(item, depth - 1, f"{path}/{key}", binary=binary)
    elif kind is float:
        if not math.isfinite(value):
            raise BadBody(path, "NaN and infinities are not JSON")
    elif kind not in _PLAIN and not (binary and kind is bytes):
        raise BadBody(path, f"a {kind.__name__} is not a JSON value")
