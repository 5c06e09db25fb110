"""Between bytes and frames, and between bytes and the values that travel inside frames.

`decode` reads a frame's header and leaves its opaque parts alone; `unpack_body` reads such a part,
once, where it is meant to be read. Both refuse what PROTOCOL.md refuses before it can cost memory
or time, and raise nothing but `BadFrame` and `BadBody`. Pure: no sockets, no clock.
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
from toolbus.wire.value_check import PLAIN_OR_BYTES, BadBody, check_value

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
# Below this size, containers that claim more than they hold cost less than a millisecond to refuse.
_TRUSTED_CLAIM_BYTES = 2_048
# What most values need; a packer makes more room by itself.
_PACKED_BYTES = 512
_FIXARRAY = 0x90
_JSON_CHUNK = b"\x92\x01"
_NOT_ALLOWED = "not a msgpack value that this protocol allows"
_OTHER_FIELD = "a field is missing, of another type or out of range"
_UNREADABLE = (ValueError, RecursionError, msgspec.DecodeError, msgpack.UnpackException)
_ARRAY_TAGS = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
_MAP_TAGS = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
_BINARY_TAGS = frozenset({0xC4, 0xC5, 0xC6})


class BadFrame(ValueError):
    """A frame that ends the connection with `close_code`."""

    def __init__(self, close_code: int, reason: str) -> None:
        super().__init__(reason)
        self.close_code = close_code
        self.reason = reason


class Unknown(NamedTuple):
    """A frame of a kind that this side does not read; `id` is its first field if that is one."""

    kind_number: int
    id: int | None


_pack_plain = msgspec.msgpack.Encoder().encode
encode: Callable[[Frame], bytes] = _pack_plain
"""Packs a frame into one message. Raises TypeError, ValueError or OverflowError where it cannot."""


def pack_body(value: Any) -> bytes:
    """Pack a value that only its receiver reads: of dict, list, str, bytes, numbers, bool and None.

    Raises:
        BadBody: The value holds anything else, or an integer beyond 64 bits.
    """
    try:
        # Plain values only, where msgspec would write dates and models too. It takes a tenth of the
        # time over a piece of a file; else one of its own, which mixes no two values.
        if _is_flat(value, PLAIN_OR_BYTES) if type(value) is dict else _is_shallow(value):
            return _pack_plain(value)
        return cast(bytes, msgpack.Packer(strict_types=True, buf_size=_PACKED_BYTES).pack(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _unpackable(error) from error


def _unpackable(error: Exception) -> BadBody:
    return BadBody("", f"cannot be sent: {type(error).__name__}")


def pack_json_chunk(value: Any, *, is_plain: bool = False) -> bytes:
    """Pack the chunk of a JSON value, which most results are, as `pack_body` packs `[1, value]`.

    With `is_plain`, of one that was found to be what `pack_body` packs, in a fraction of the time.
    """
    if not is_plain and (type(value) is not dict or not _is_flat(value, PLAIN_OR_BYTES)):
        return pack_body([1, value])
    try:
        return _JSON_CHUNK + _pack_plain(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _unpackable(error) from error


def _refuse_ext(_code: int, _data: bytes) -> NoReturn:
    raise ValueError("ext types are not part of the protocol")


# msgpack refuses a key that is neither text nor bytes before it makes a map of it. That matters:
# the hashes of all others can be foreseen, so that a few thousand of them could cost minutes.
_unpack_value = partial(msgpack.unpackb, ext_hook=_refuse_ext)
_unpack_header = partial(
    _unpack_value, max_array_len=_MAX_HEADER_ITEMS, max_map_len=_MAX_HEADER_ITEMS
)

# A map of text to what needs no look inside, in one step and with nothing else made on the way.
_unpack_flat = msgspec.msgpack.Decoder(dict[str, str | int | bool | None]).decode


class _Shape(NamedTuple):
    """How what msgspec has read becomes a frame."""

    frame: type[Frame]
    head: int
    """The first byte of an array with just its kind and its fields."""
    place: int | None = None
    """Where its map or list stands, if that is still packed."""
    kinds: frozenset[type] = frozenset()
    """What may stand there."""


class _Reader(NamedTuple):
    """What one side of a connection reads."""

    decode: Callable[[bytes], Any]
    """Reads what nearly all frames are like: maps of the frames of calls have plain values."""
    decode_packed: Callable[[bytes], Any]
    """Leaves every map and list packed."""
    shapes: dict[type[Any], _Shape]
    """By what these make: the frame itself, or its twin with a packed field."""
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
    any_of_them: Any = reduce(or_, kinds)
    return msgspec.msgpack.Decoder(any_of_them).decode


def _head(frame: type[Frame]) -> int:
    return _FIXARRAY + 1 + len(frame.__struct_fields__)


def _twin(frame: type[Frame]) -> tuple[type[Any], _Shape]:
    """Make the twin of a frame, whose map or list is left packed; give the frame if it has none."""
    fields = msgspec.structs.fields(frame)
    for place, field in enumerate(fields):
        is_union = get_origin(field.type) in (Union, UnionType)
        members = get_args(field.type) if is_union else (field.type,)
        kinds = frozenset(get_origin(member) or member for member in members)
        if kinds & {dict, list}:
            typed = [
                (each.name, msgspec.Raw if each is field else each.type)
                if each.required
                else (each.name, each.type, each.default)
                for each in fields
            ]
            name, tag = f"_{frame.__name__}", KINDS[frame]
            twin = msgspec.defstruct(name, typed, tag=tag, array_like=True, gc=False)
            return twin, _Shape(frame, _head(frame), place, kinds)
    return frame, _Shape(frame, _head(frame))


_CLIENT = _reader(FROM_CLIENT)
_SERVER = _reader(FROM_SERVER)


def _decoding(reader: _Reader) -> Callable[[bytes], Frame | Unknown]:
    """Make what reads a frame; what is not as nearly all frames are goes the longer way."""
    decode, shapes = reader.decode, reader.shapes
    heads = {made: shape.head for made, shape in shapes.items() if shape.place is None}

    def decode_frame(data: bytes) -> Frame | Unknown:
        """Read a message, or raise BadFrame."""
        if len(data) > _MAX_HEADER_ITEMS:
            return _decode_packed(reader, data)
        try:
            read: Frame = decode(data)
        except _UNREADABLE:
            return _decode_packed(reader, data)
        if data[0] == heads.get(type(read)):
            return read
        return _finished(reader, data, read)

    return decode_frame


def _decode_packed(reader: _Reader, data: bytes) -> Frame | Unknown:
    try:
        read = reader.decode_packed(data)
    except _UNREADABLE:
        read = None
    opaque: bytes = getattr(read, "body", None) or getattr(read, "arguments", None) or b""
    if len(data) - len(opaque) > MAX_HEADER_BYTES:
        _check_header_bytes(data)
    return _explain(reader, data) if read is None else _finished(reader, data, read)


def _finished(reader: _Reader, data: bytes, read: Any) -> Frame:
    shape = reader.shapes[type(read)]
    if data[0] != shape.head:
        _check_trailing(data, shape.head - _FIXARRAY)
    if shape.place is None:
        return cast(Frame, read)
    fields = [*astuple(read)]
    fields[shape.place] = _read_container(fields[shape.place], shape.kinds)
    return shape.frame(*fields)


def _check_header_bytes(data: bytes) -> None:
    try:
        header_bytes = _header_bytes(data)
    except _UNREADABLE as error:
        raise BadFrame(1007, _NOT_ALLOWED) from error
    if header_bytes > MAX_HEADER_BYTES:
        raise BadFrame(1009, "the header is too large")


def _read_container(packed: msgspec.Raw, kinds: frozenset[type]) -> Any:
    """Read a map or a list among a frame's fields; most have nothing in them but plain values."""
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
        msgspec.msgpack.decode(data, type=msgspec.Raw)  # no container claims more than there is
        return _unpack_header(data)
    except (*_UNREADABLE, TypeError) as error:
        raise BadFrame(1007, _NOT_ALLOWED) from error


def _explain(reader: _Reader, data: bytes) -> Unknown:
    """Read what is no frame of a kind that this side reads, or say which rule it breaks."""
    fields = _read_fields(data)
    if type(fields) is not list or not fields or type(fields[0]) is not int:
        raise BadFrame(1002, "a frame is an array that begins with its kind")
    _check_header_value(fields, MAX_DEPTH)
    if fields[0] in reader.kinds:
        raise BadFrame(1002, _OTHER_FIELD)
    first = fields[1] if len(fields) > 1 else None
    return Unknown(fields[0], first if type(first) is int and 0 <= first <= _MAX_ID else None)


def _check_trailing(data: bytes, known: int) -> None:
    """Look at fields that a newer release knows: they are ignored, but may not break a rule."""
    trailing = _read_fields(data)[known:]
    if trailing:
        _check_header_value(trailing, MAX_DEPTH)


decode_from_client: Callable[[bytes], Frame | Unknown] = _decoding(_CLIENT)
decode_from_server: Callable[[bytes], Frame | Unknown] = _decoding(_SERVER)


def _header_bytes(data: bytes) -> int:
    """Measure what a frame holds beside its opaque parts, without a value; stop at too much."""
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


def _check_header_value(value: Any, depth: int) -> None:
    try:
        check_value(value, depth, binary=True)
    except BadBody as error:
        raise BadFrame(1007, error.reason) from error


def unpack_body(data: bytes, *, binary: bool = False, max_depth: int = MAX_DEPTH) -> Any:
    """Read an opaque part, once, at its receiver.

    Args:
        data: The packed bytes.
        binary: Whether byte strings may stand among the values; JSON has none.
        max_depth: Arrays and maps within each other.

    Raises:
        BadBody: It is not msgpack, too deep, has a key that is not text, NaN, an infinity or an ext
            type.
    """
    if (value := flat_json(data)) is not None:
        return [1, value]
    if data and data[0] in _MAP_TAGS:
        return unpack_map(data, binary=binary, max_depth=max_depth)
    return unpack_nested(data, binary=binary, max_depth=max_depth)


def unpack_map(data: bytes, *, binary: bool = False, max_depth: int = MAX_DEPTH) -> Any:
    """Read as `unpack_body` does what should be a map, as arguments are: mostly a flat one."""
    try:
        return _unpack_flat(data)
    except _UNREADABLE:  # something else, which is read and checked step by step
        return unpack_nested(data, binary=binary, max_depth=max_depth)


def flat_json(chunk: bytes) -> dict[str, Any] | None:
    """Read the value of a JSON chunk if it is a flat map, as most are; None of any other body."""
    if chunk[:2] == _JSON_CHUNK:
        try:
            return _unpack_flat(chunk[2:])
        except _UNREADABLE:
            pass
    return None


def unpack_nested(data: bytes, *, binary: bool = False, max_depth: int = MAX_DEPTH) -> Any:
    """Read as `unpack_body` does, step by step: for what is no map of plain values."""
    try:
        if len(data) > _TRUSTED_CLAIM_BYTES:
            msgspec.msgpack.decode(data, type=msgspec.Raw)
        value = _unpack_value(data)
    except (*_UNREADABLE, TypeError) as error:
        raise BadBody("", _NOT_ALLOWED) from error
    check_value(value, max_depth, binary=binary)
    return value


def _is_flat(value: dict[Any, Any], plain: frozenset[type]) -> bool:
    """Whether a map has nothing in it but text as keys and values of these types."""
    for key, item in value.items():
        if type(key) is not str or type(item) not in plain:
            return False
    return True


def _is_shallow(value: Any) -> bool:
    """Whether this is a list with nothing in it but plain values and flat maps, as most chunks."""
    if type(value) is not list:
        return False
    for item in value:
        kind = type(item)
        if kind not in PLAIN_OR_BYTES and not (kind is dict and _is_flat(item, PLAIN_OR_BYTES)):
            return False
    return True
