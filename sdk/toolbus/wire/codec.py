"""Between bytes and frames, and between bytes and the values that travel inside frames.

`decode` reads a frame's header and leaves its opaque parts alone; `unpack_body` reads such a part,
once, where it is meant to be read. Both refuse what PROTOCOL.md refuses before it can cost memory
or time, and raise nothing but `BadFrame` and `BadBody`. Pure: no sockets, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from types import UnionType
from typing import Any, NamedTuple, NoReturn, TypeAlias, cast, get_args, get_origin, get_type_hints

import msgpack

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
# Below this size, containers that claim more than they hold cost less than a millisecond to refuse.
_TRUSTED_CLAIM_BYTES = 2_048
_MAX_ID = 2**53
_Shapes: TypeAlias = dict[int, tuple[type[Frame], int, frozenset[Any]]]
_PLAIN = frozenset({str, int, bool, type(None)})


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


def encode(frame: Frame) -> bytes:
    """Pack a frame into one message."""
    return cast(bytes, msgpack.packb((KINDS[type(frame)], *frame)))


def pack_body(value: Any) -> bytes:
    """Pack a value that only its receiver reads.

    Raises:
        BadBody: The value holds what msgpack cannot carry, such as an integer beyond 64 bits.
    """
    try:
        return cast(bytes, msgpack.packb(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadBody("", f"cannot be sent: {type(error).__name__}") from error


def _shapes(frames: tuple[type[Frame], ...]) -> _Shapes:
    """Every tuple of field types that a kind allows: one set look-up checks all fields."""
    shapes: _Shapes = {}
    for frame in frames:
        fields = [_field_types(hint) for hint in get_type_hints(frame).values()]
        shapes[KINDS[frame]] = (frame, len(fields) + 1, frozenset(product((int,), *fields)))
    return shapes


def _field_types(hint: Any) -> tuple[type, ...]:
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return tuple(get_origin(member) or member for member in members)


_CLIENT_SHAPES = _shapes(FROM_CLIENT)
_SERVER_SHAPES = _shapes(FROM_SERVER)


def decode_from_client(data: bytes) -> Frame | Unknown:
    """Read a message that a participant sent.

    Raises:
        BadFrame: The message breaks a rule of PROTOCOL.md's section FRAME.
    """
    return _decode(data, _CLIENT_SHAPES)


def decode_from_server(data: bytes) -> Frame | Unknown:
    """Read a message that a server sent.

    Raises:
        BadFrame: The message breaks a rule of PROTOCOL.md's section FRAME.
    """
    return _decode(data, _SERVER_SHAPES)


def _refuse_ext(_code: int, _data: bytes) -> NoReturn:
    raise ValueError("ext types are not part of the protocol")


def _decode(data: bytes, shapes: _Shapes) -> Frame | Unknown:
    try:
        fields = msgpack.unpackb(
            data,
            ext_hook=_refuse_ext,
            max_array_len=_MAX_HEADER_ITEMS,
            max_map_len=_MAX_HEADER_ITEMS,
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise BadFrame(1007, "not a msgpack value that this protocol allows") from error
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise BadFrame(1002, "a frame is an array that begins with its kind")
    known = shapes.get(fields[0])
    if known is None:
        _check_extra(data, fields)
        return Unknown(fields[0], fields[1] if len(fields) > 1 and _is_id(fields[1]) else None)
    frame_type, length, allowed = known
    if len(fields) != length:
        _check_extra(data, fields[length:])
        del fields[length:]
    if tuple(map(type, fields)) not in allowed:
        raise BadFrame(1002, f"a field of kind {fields[0]} is missing or of another type")
    _check_header(data, fields)
    del fields[0]
    return frame_type._make(fields)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_ID


def _check_header(data: bytes, fields: list[Any]) -> None:
    opaque = 0
    for value in fields:
        kind = type(value)
        if kind is bytes:
            opaque += len(value)
        elif kind is int:
            if not 0 <= value <= _MAX_ID:
                raise BadFrame(1002, "an integer is out of range")
        elif kind is dict or kind is list:
            if value:
                _check_header_value(value)
            if kind is dict:
                opaque += sum(len(part) for part in value.values() if type(part) is bytes)
    if len(data) - opaque > MAX_HEADER_BYTES:
        raise BadFrame(1009, "the header is too large")


def _check_extra(data: bytes, fields: list[Any]) -> None:
    """Fields and kinds that nobody reads must still be within the limits."""
    if len(data) > MAX_FRAME_BYTES:
        raise BadFrame(1009, "the frame is too large")
    _check_header_value(fields)


def _check_header_value(value: Any) -> None:
    try:
        # The frame's own array is the first level.
        _check_value(value, MAX_DEPTH - 1, "", binary=True)
    except BadBody as error:
        raise BadFrame(1007, error.reason) from error


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
        if len(data) > _TRUSTED_CLAIM_BYTES:
            _check_claims(data)
        value = msgpack.unpackb(data, ext_hook=_refuse_ext)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BadBody("", "not a msgpack value that this protocol allows") from error
    _check_value(value, MAX_DEPTH, "", binary=binary)
    return value


def _check_claims(data: bytes) -> None:
    """Refuse containers that claim more than they hold before anything is allocated for them."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    unpacker.skip()


def _check_value(value: Any, depth: int, path: str, *, binary: bool) -> None:
    kind = type(value)
    if kind is dict or kind is list:
        if depth == 0:
            raise BadBody(path, f"deeper than {MAX_DEPTH}")
        if kind is dict:
            _check_keys(value, path)
            items: Iterable[tuple[Any, Any]] = value.items()
        else:
            items = enumerate(value)
        for key, item in items:
            if type(item) not in _PLAIN:
                _check_value(item, depth - 1, f"{path}/{key}", binary=binary)
    elif kind is float:
        if not math.isfinite(value):
            raise BadBody(path, "NaN and infinities are not JSON")
    elif kind not in _PLAIN and not (binary and kind is bytes):
        raise BadBody(path, f"a {kind.__name__} is not a JSON value")


def _check_keys(value: dict[Any, Any], path: str) -> None:
    for key in value:
        if type(key) is not str:
            raise BadBody(path, "keys are text")
