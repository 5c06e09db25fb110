"""Encodes and decodes frames, and the values inside frames.

`decode_from_client` and `decode_from_server` read a frame's header and leave its opaque parts
packed; `unpack_body` reads such a part, once, at its receiver. They refuse what PROTOCOL.md refuses
before it costs memory or time, and raise only `BadFrame` and `BadBody`. Pure: no sockets, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from operator import or_
from types import UnionType
from typing import Any, NamedTuple, NoReturn, Union, cast, get_args, get_origin

import msgpack
import msgspec
from msgspec.structs import astuple

from toolbus.wire.frames import FROM_CLIENT, FROM_SERVER, KINDS, Call, Dispatch, Frame
from toolbus.wire.json_check import PLAIN_OR_BYTES, BadBody, check_value

__all__ = [
    "BINARY_TAGS",
    "MAP_TAGS",
    "MAX_DEPTH",
    "MAX_FRAME_BYTES",
    "MAX_HEADER_BYTES",
    "BadBody",
    "BadFrame",
    "UnknownFrame",
    "decode_from_client",
    "decode_from_server",
    "encode",
    "pack_body",
    "unpack_body",
]

MAX_FRAME_BYTES = 1024 * 1024
"""One websocket message (PROTOCOL.md, FRAME-4)."""
MAX_HEADER_BYTES = 64 * 1024
"""A frame without its opaque parts (PROTOCOL.md, FRAME-5)."""
MAX_DEPTH = 32
"""Nesting of arrays and maps (PROTOCOL.md, FRAME-6)."""

_MAX_HEADER_ITEMS = 4_096
"""Each item becomes an object of some 50 bytes, of which one byte was sent (PROTOCOL.md,
FRAME-7)."""
_MAX_ID = 2**53
"""Beyond it JavaScript and other peers have no exact integers (PROTOCOL.md, FRAME-3)."""
# Up to this size, a container with a false length costs less than a millisecond to refuse.
_TRUSTED_CLAIM_BYTES = 2_048
# Enough for most values; a packer grows its buffer by itself.
_PACKED_BYTES = 512
_FIXARRAY = 0x90
_JSON_CHUNK = b"\x92\x01"
_NOT_ALLOWED = "not a msgpack value that this protocol allows"
_KEY_NO_TEXT = "keys are text"
_STRICT_KEY = "strict_map_key"  # what the unpacker says of another key than text and bytes
_OTHER_FIELD = "a field is missing, of another type or out of range"
_UNREADABLE = (ValueError, RecursionError, msgspec.DecodeError, msgpack.UnpackException)
_ARRAY_TAGS = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
MAP_TAGS = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
"""The first byte of a packed map."""
_CONTAINER_TAGS = _ARRAY_TAGS | MAP_TAGS
BINARY_TAGS = frozenset({0xC4, 0xC5, 0xC6})
"""The first byte of a packed byte string."""


class BadFrame(ValueError):
    """A frame after which the connection is closed with `close_code`."""

    def __init__(self, close_code: int, reason: str) -> None:
        super().__init__(reason)
        self.close_code = close_code
        self.reason = reason


class UnknownFrame(NamedTuple):
    """A frame of a kind that this side does not read; `id` is its first field if that is an id."""

    kind_number: int
    id: int | None


_pack_plain = msgspec.msgpack.Encoder().encode
encode: Callable[[Frame], bytes] = _pack_plain
"""Packs a frame into one message. Raises TypeError, ValueError or OverflowError if it cannot."""


def pack_body(value: Any) -> bytes:
    """Pack an opaque value of dict, list, str, bytes, numbers, bool and None.

    Raises:
        BadBody: The value holds anything else, or an integer beyond 64 bits.
    """
    try:
        # msgspec would also accept dates and models, so it gets plain values only. For a piece of a
        # file it takes a tenth of the time. A shared `Packer` would mix concurrent values.
        if _is_flat(value, PLAIN_OR_BYTES) if type(value) is dict else _is_shallow(value):
            return _pack_plain(value)
        return cast(bytes, msgpack.Packer(strict_types=True, buf_size=_PACKED_BYTES).pack(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _encoding_error(error) from error


def _encoding_error(error: Exception) -> BadBody:
    return BadBody("", f"cannot be sent: {type(error).__name__}")


def pack_json_chunk(value: Any) -> bytes:
    """Pack the chunk of a JSON value, which most results are, as `pack_body` packs `[1, value]`."""
    if type(value) is not dict or not _is_flat(value, PLAIN_OR_BYTES):
        return pack_body([1, value])
    try:
        return _JSON_CHUNK + _pack_plain(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _encoding_error(error) from error


def refuse_ext(_code: int, _data: bytes) -> NoReturn:
    """Refuse an ext type; for the hooks of msgpack."""
    raise ValueError("ext types are not part of the protocol")


# msgpack refuses keys that are neither text nor bytes before it builds the map. This is required:
# hashes of other keys are predictable, and a few thousand collisions would take minutes.
_unpack_value = partial(msgpack.unpackb, ext_hook=refuse_ext)
_unpack_header = partial(
    _unpack_value, max_array_len=_MAX_HEADER_ITEMS, max_map_len=_MAX_HEADER_ITEMS
)

# Decodes a map of text to plain values in one step, without intermediate objects.
_unpack_flat = msgspec.msgpack.Decoder(dict[str, str | int | bool | None]).decode
_unpack_items = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_unpack_plain = msgspec.msgpack.Decoder().decode


class _Shape(NamedTuple):
    """How a value decoded by msgspec becomes a frame."""

    frame: type[Frame]
    head: int
    """The first byte of an array of exactly the kind and the fields."""
    packed_index: int | None = None
    """The index of the field that is a map or list, if it is still packed."""
    kinds: frozenset[type] = frozenset()
    """The types that this field may have."""


class _Reader(NamedTuple):
    """The decoders of one side of a connection."""

    decode: Callable[[bytes], Any]
    """Decodes nearly all frames: those in which the maps of calls have plain values."""
    decode_packed: Callable[[bytes], Any]
    """Leaves every map and list packed."""
    shapes: dict[type[Any], _Shape]
    """By the type that these decoders return: the frame itself, or its twin with a packed field."""
    kinds: frozenset[int]


def _reader(frames: tuple[type[Frame], ...]) -> _Reader:
    twins = dict(map(_twin, frames))
    direct = {frame: _Shape(frame, _head(frame)) for frame in frames if frame in (Call, Dispatch)}
    others = [twin for twin, shape in twins.items() if shape.frame not in direct]
    return _Reader(
        decode=_decoder([*direct, *others]),
        decode_packed=_decoder([*twins]),
        shapes={**twins, **direct},
        kinds=frozenset(KINDS[frame] for frame in frames),
    )


def _decoder(kinds: list[type[Any]]) -> Callable[[bytes], Any]:
    union: Any = reduce(or_, kinds)
    return msgspec.msgpack.Decoder(union).decode


def _head(frame: type[Frame]) -> int:
    return _FIXARRAY + 1 + len(frame.__struct_fields__)


def _twin(frame: type[Frame]) -> tuple[type[Any], _Shape]:
    """Make the twin of a frame whose map or list stays packed; return the frame if it has none."""
    fields = msgspec.structs.fields(frame)
    for index, field in enumerate(fields):
        is_union = get_origin(field.type) in (Union, UnionType)
        members = get_args(field.type) if is_union else (field.type,)
        kinds = frozenset(get_origin(member) or member for member in members)
        if kinds & {dict, list}:
            typed: list[Any] = [
                (entry.name, entry.type)
                if entry.required
                else (entry.name, entry.type, entry.default)
                for entry in fields
            ]
            typed[index] = (field.name, msgspec.Raw)
            name, tag = f"_{frame.__name__}", KINDS[frame]
            twin = msgspec.defstruct(name, typed, tag=tag, array_like=True, gc=False)
            return twin, _Shape(frame, _head(frame), index, kinds)
    return frame, _Shape(frame, _head(frame))


_CLIENT = _reader(FROM_CLIENT)
_SERVER = _reader(FROM_SERVER)


def _decode_function(reader: _Reader) -> Callable[[bytes], Frame | UnknownFrame]:
    """Make the function that decodes a frame: the fast path, then the slow one if that fails."""
    decode, shapes = reader.decode, reader.shapes
    heads = {made: shape.head for made, shape in shapes.items() if shape.packed_index is None}

    def decode_frame(data: bytes) -> Frame | UnknownFrame:
        """Decode a message, or raise BadFrame."""
        if len(data) > _MAX_HEADER_ITEMS:
            return _decode_packed(reader, data)
        try:
            read: Frame = decode(data)
        except _UNREADABLE:
            return _decode_packed(reader, data)
        if data[0] == heads.get(type(read)):
            return read
        return _to_frame(reader, data, read)

    return decode_frame


def _decode_packed(reader: _Reader, data: bytes) -> Frame | UnknownFrame:
    try:
        read = reader.decode_packed(data)
    except _UNREADABLE:
        read = None
    opaque: bytes = getattr(read, "body", None) or getattr(read, "arguments", None) or b""
    if len(data) - len(opaque) > MAX_HEADER_BYTES:
        try:
            header_bytes = _header_bytes(data)
        except _UNREADABLE as error:
            raise BadFrame(1007, _NOT_ALLOWED) from error
        if header_bytes > MAX_HEADER_BYTES:
            raise BadFrame(1009, "the header is too large")
    if read is None:
        return _unknown(reader, data)
    return _to_frame(reader, data, read)


def _to_frame(reader: _Reader, data: bytes, read: Any) -> Frame:
    shape = reader.shapes[type(read)]
    if data[0] != shape.head:
        # Additional fields of a newer release are ignored, but must not break a rule.
        trailing = _read_fields(data)[shape.head - _FIXARRAY :]
        if trailing:
            _check_header_value(trailing, MAX_DEPTH)
    if shape.packed_index is None:
        return cast(Frame, read)
    fields = [*astuple(read)]
    fields[shape.packed_index] = _read_container(fields[shape.packed_index], shape.kinds)
    return shape.frame(*fields)


def _read_container(packed: msgspec.Raw, kinds: frozenset[type]) -> Any:
    """Read a map or a list among a frame's fields; most contain only plain values."""
    try:
        value = _unpack_header(packed)
    except _UNREADABLE as error:
        raise BadFrame(1007, _NOT_ALLOWED) from error
    if type(value) not in kinds:
        raise BadFrame(1002, _OTHER_FIELD)
    if value and not (type(value) is dict and _is_flat(value, PLAIN_OR_BYTES)):
        _check_header_value(value, MAX_DEPTH - 1)  # the frame's own array is the first level
    return value


def _read_fields(data: bytes) -> Any:
    try:
        msgspec.msgpack.decode(data, type=msgspec.Raw)  # refuses containers with a false length
        return _unpack_header(data)
    except (*_UNREADABLE, TypeError) as error:
        raise BadFrame(1007, _NOT_ALLOWED) from error


def _unknown(reader: _Reader, data: bytes) -> UnknownFrame:
    """Read a frame of an unknown kind; raise BadFrame with the rule that any other one breaks."""
    fields = _read_fields(data)
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise BadFrame(1002, "a frame is an array that begins with its kind")
    _check_header_value(fields, MAX_DEPTH)
    if fields[0] in reader.kinds:
        raise BadFrame(1002, _OTHER_FIELD)
    if len(fields) > 1 and type(fields[1]) is int and 0 <= fields[1] <= _MAX_ID:
        return UnknownFrame(fields[0], fields[1])
    return UnknownFrame(fields[0], None)


decode_from_client: Callable[[bytes], Frame | UnknownFrame] = _decode_function(_CLIENT)
decode_from_server: Callable[[bytes], Frame | UnknownFrame] = _decode_function(_SERVER)


def _header_bytes(data: bytes) -> int:
    """Measure a frame without its opaque parts, without decoding; stop above the limit."""
    opaque = end = 0
    for start, end in _parts_of(data):
        if data[start] in BINARY_TAGS:
            opaque += end - start
        if end - opaque > MAX_HEADER_BYTES:
            break
    return end - opaque


def _parts_of(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each field of a frame, and of the keys and values of its maps."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    if data[0] not in _ARRAY_TAGS:
        unpacker.skip()
        return
    for _ in range(unpacker.read_array_header()):
        start = unpacker.tell()
        count = 1
        if start < len(data) and data[start] in MAP_TAGS:
            count = 2 * unpacker.read_map_header()
        for _ in range(count):
            start = unpacker.tell()
            unpacker.skip()
            yield start, unpacker.tell()


def _check_header_value(value: Any, depth: int) -> None:
    try:
        check_value(value, depth, binary=True)
    except BadBody as error:
        raise BadFrame(1007, error.reason) from error


def unpack_body(data: bytes, *, binary: bool = False, max_depth: int = MAX_DEPTH) -> Any:
    """Read an opaque part, once, at its receiver.

    Args:
        data: The packed bytes.
        binary: Whether byte strings are allowed; JSON has none.
        max_depth: Nesting of arrays and maps.

    Raises:
        BadBody: It is not msgpack, or too deep, or has a key that is not text, NaN, an infinity or
            an ext type.
    """
    if (value := flat_json(data)) is not None:
        return [1, value]
    if data and data[0] in MAP_TAGS:
        return unpack_map(data, binary=binary, max_depth=max_depth)
    return unpack_nested(data, binary=binary, max_depth=max_depth)


def unpack_map(data: bytes, *, binary: bool = False, max_depth: int = MAX_DEPTH) -> Any:
    """Read as `unpack_body` does; fast for a flat map, as most arguments are."""
    try:
        return _unpack_flat(data)
    except _UNREADABLE:  # not a flat map: read and checked step by step
        return unpack_nested(data, binary=binary, max_depth=max_depth)


def flat_map(data: bytes) -> dict[str, Any] | None:
    """Return a flat map of plain values; None for any other body."""
    if data and data[0] in MAP_TAGS:
        try:
            return _unpack_flat(data)
        except _UNREADABLE:
            pass
    return None


def short_list(data: bytes, fields: int = 15) -> list[Any] | None:
    """Return the first values of a list of at most 15, if these are plain or byte strings.

    It decodes nothing else, however large the body is; None for any other body.
    """
    if not data or not _FIXARRAY <= data[0] < _FIXARRAY + 16:
        return None
    try:
        items = _unpack_items(data)[:fields]
        if any(memoryview(item)[0] in _CONTAINER_TAGS for item in items):
            return None
        values = [_unpack_plain(item) for item in items]
    except _UNREADABLE:
        return None
    return values if PLAIN_OR_BYTES.issuperset(map(type, values)) else None


def flat_json(chunk: bytes) -> dict[str, Any] | None:
    """Return the value of a JSON chunk if it is a flat map, as most are; None for other bodies."""
    if chunk[:2] == _JSON_CHUNK:
        try:
            return _unpack_flat(chunk[2:])
        except _UNREADABLE:
            pass
    return None


def unpack_nested(
    data: bytes,
    *,
    binary: bool = False,
    max_depth: int = MAX_DEPTH,
    hook: Callable[[Any], Any] | None = None,
) -> Any:
    """Read as `unpack_body` does, step by step; for values that are not flat maps.

    `hook` gets each map and list, and returns it; it must not raise.
    """
    try:
        if len(data) > _TRUSTED_CLAIM_BYTES:
            msgspec.msgpack.decode(data, type=msgspec.Raw)
        value = _unpack_value(data, object_hook=hook, list_hook=hook)
    except (*_UNREADABLE, TypeError) as error:
        raise msgpack_error(error) from error
    check_value(value, max_depth, binary=binary)
    return value


def msgpack_error(cause: Exception | None = None) -> BadBody:
    """Make the error for an opaque part that cannot be unpacked."""
    if _STRICT_KEY in str(cause):
        return BadBody("", _KEY_NO_TEXT)
    return BadBody("", _NOT_ALLOWED)


def _is_flat(value: dict[Any, Any], plain: frozenset[type]) -> bool:
    """Whether a map has only text keys and values of these types."""
    for key, item in value.items():
        if type(key) is not str or type(item) not in plain:
            return False
    return True


def _is_shallow(value: Any) -> bool:
    """Whether this is a list of plain values and flat maps only, as most chunks are."""
    if type(value) is not list:
        return False
    for item in value:
        kind = type(item)
        if kind not in PLAIN_OR_BYTES and not (kind is dict and _is_flat(item, PLAIN_OR_BYTES)):
            return False
    return True
