"""Between bytes and frames, and between bytes and the values that travel inside frames.

`decode` reads a frame's header and leaves its opaque parts alone; `unpack_body` reads such a part,
once, where it is meant to be read. Both refuse what PROTOCOL.md refuses before it can cost memory
or time, and raise nothing but `BadFrame` and `BadBody`. Pure: no sockets, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
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
    "encode_fields",
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
_UNREADABLE = (ValueError, RecursionError, msgpack.UnpackException)
_Shapes: TypeAlias = "dict[int, _Shape]"
_PLAIN = frozenset({str, int, bool, type(None)})
_PLAIN_OR_BYTES = _PLAIN | {bytes}
_TEXT = frozenset({str})
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


# One packer for all: it keeps nothing between two values, and a new one costs more than its work.
encode_fields: Callable[[Any], bytes] = cast("Callable[[Any], bytes]", msgpack.Packer().pack)
"""Packs the fields of a frame, its kind first, into one message; `encode` for those in a hurry."""


def encode(frame: Frame) -> bytes:
    """Pack a frame into one message."""
    return encode_fields((KINDS[type(frame)], *frame))


def pack_body(value: Any) -> bytes:
    """Pack a value that only its receiver reads.

    Raises:
        BadBody: The value holds what msgpack cannot carry, such as an integer beyond 64 bits.
    """
    try:
        return encode_fields(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadBody("", f"cannot be sent: {type(error).__name__}") from error


class _Shape(NamedTuple):
    """What the fields of one kind may be, worked out so that checking them costs little."""

    make: Callable[[list[Any]], Frame]
    length: int
    allowed: frozenset[tuple[type, ...]]
    """Every tuple of types that the fields may have: one look-up checks them all."""
    numbers: tuple[int, ...]
    containers: tuple[int, ...]


def _shapes(frames: tuple[type[Frame], ...]) -> _Shapes:
    return {KINDS[frame]: _shape_of(frame) for frame in frames}


def _shape_of(frame: type[Frame]) -> _Shape:
    fields = [(int,), *(_field_types(hint) for hint in get_type_hints(frame).values())]
    return _Shape(
        make=partial(tuple.__new__, frame),
        length=len(fields),
        allowed=frozenset(product(*fields)),
        numbers=tuple(at for at, types in enumerate(fields) if at and int in types),
        containers=tuple(at for at, types in enumerate(fields) if {dict, list} & set(types)),
    )


def _field_types(hint: Any) -> tuple[type, ...]:
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return tuple(get_origin(member) or member for member in members)


_CLIENT_SHAPES = _shapes(FROM_CLIENT)
_SERVER_SHAPES = _shapes(FROM_SERVER)


def _refuse_ext(_code: int, _data: bytes) -> NoReturn:
    raise ValueError("ext types are not part of the protocol")


_unpack_header = partial(
    msgpack.unpackb,
    ext_hook=_refuse_ext,
    max_array_len=_MAX_HEADER_ITEMS,
    max_map_len=_MAX_HEADER_ITEMS,
)
_unpack_value = partial(msgpack.unpackb, ext_hook=_refuse_ext)


def _decode(shapes: _Shapes, data: bytes) -> Frame | Unknown:
    """Read a frame; what is not as nearly all frames are goes the longer way."""
    if len(data) > _TRUSTED_CLAIM_BYTES:
        _check_header_bytes(data)
    try:
        fields = _unpack_header(data)
        shape = shapes[fields[0]]
    except _UNREADABLE as error:
        raise BadFrame(1007, "not a msgpack value that this protocol allows") from error
    except (LookupError, TypeError):
        return _decode_unknown(fields)
    if tuple(map(type, fields)) not in shape.allowed:
        _cut_and_check_types(shape, fields)
    _check_fields(shape, fields)
    del fields[0]
    return shape.make(fields)


def _check_header_bytes(data: bytes) -> None:
    try:
        header_bytes = _header_bytes(data)
    except _UNREADABLE as error:
        raise BadFrame(1007, "not a msgpack value that this protocol allows") from error
    if header_bytes > MAX_HEADER_BYTES:
        raise BadFrame(1009, "the header is too large")


def _decode_unknown(fields: Any) -> Unknown:
    """Read what is no frame of a kind that this side reads."""
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise BadFrame(1002, "a frame is an array that begins with its kind")
    _check_header_value(fields, MAX_DEPTH)
    return Unknown(fields[0], fields[1] if len(fields) > 1 and _is_id(fields[1]) else None)


def _cut_and_check_types(shape: _Shape, fields: Any) -> None:
    """Drop trailing fields that a newer release knows; refuse fields of other types."""
    if type(fields) is list and len(fields) > shape.length:
        _check_header_value(fields[shape.length :], MAX_DEPTH)
        del fields[shape.length :]
    if type(fields) is not list or tuple(map(type, fields)) not in shape.allowed:
        raise BadFrame(1002, "a field is missing or of another type")


decode_from_client: Callable[[bytes], Frame | Unknown] = partial(_decode, _CLIENT_SHAPES)
"""Reads a message that a participant sent, or raises BadFrame."""
decode_from_server: Callable[[bytes], Frame | Unknown] = partial(_decode, _SERVER_SHAPES)
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


def _check_fields(shape: _Shape, fields: list[Any]) -> None:
    for place in shape.numbers:
        number = fields[place]
        if number is not None and not 0 <= number <= _MAX_ID:
            raise BadFrame(1002, "an integer is out of range")
    for place in shape.containers:
        if fields[place]:
            _check_container(fields[place])


def _check_container(value: dict[Any, Any] | list[Any]) -> None:
    """Check a map or a list among a frame's fields; most have nothing in them but plain values."""
    if (
        type(value) is dict
        and _TEXT.issuperset(map(type, value))
        and _PLAIN_OR_BYTES.issuperset(map(type, value.values()))
    ):
        return
    _check_header_value(value, MAX_DEPTH - 1)  # the frame's own array is the first level


def _check_header_value(value: Any, depth: int) -> None:
    try:
        _check_value(value, depth, "", binary=True)
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
        value = _unpack_value(data)
    except (*_UNREADABLE, TypeError) as error:
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
