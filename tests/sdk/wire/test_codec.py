"""Bytes to frames and back, and the bytes that are refused: fault matrix, part B."""

from __future__ import annotations

import math
import struct
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_args, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolbus.wire import (
    MAX_HEADER_BYTES,
    BadBody,
    BadFrame,
    Call,
    Event,
    Failed,
    ListToolkits,
    Register,
    Result,
    Subscribe,
    Unknown,
    decode_from_client,
    decode_from_server,
    encode,
    pack_body,
    unpack_body,
)
from toolbus.wire.frames import FROM_CLIENT, FROM_SERVER, KINDS, RESERVED

MIB = 1024 * 1024
CALL = Call(7, "c" * 32, "weather", "forecast", 1_000, b"\x80", {"attempt": 1})
# One limit for all refusals: ten times what a slow machine needs, a thousandth of what would hurt.
unhurried = settings(deadline=None)
REFUSED_WITHIN_S = 0.1
REFUSED_WITHIN_BYTES = 4 * MIB

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**53),
    str: st.text(),
    bytes: st.binary(),
    bool: st.booleans(),
    type(None): st.none(),
    dict: st.dictionaries(st.text(), JSON | st.binary(), max_size=5),
    list: st.lists(JSON, max_size=5),
}


def _values(hint: Any) -> st.SearchStrategy[Any]:
    members = [hint] if get_origin(hint) in (dict, list) else get_args(hint) or [hint]
    return st.one_of(*[OF_TYPE[get_origin(member) or member] for member in members])


def frames_of(kind: Any) -> st.SearchStrategy[Any]:
    return st.builds(kind, *[_values(hint) for hint in get_type_hints(kind).values()])


ANY_CLIENT_FRAME = st.one_of(*[frames_of(kind) for kind in FROM_CLIENT])
ANY_SERVER_FRAME = st.one_of(*[frames_of(kind) for kind in FROM_SERVER])


@unhurried
@given(ANY_CLIENT_FRAME)
def test_server_reads_what_a_client_packs(frame: Any) -> None:
    read = decode_from_client(encode(frame))

    assert (type(read), read) == (type(frame), frame)


@unhurried
@given(ANY_SERVER_FRAME)
def test_client_reads_what_the_server_packs(frame: Any) -> None:
    read = decode_from_server(encode(frame))

    assert (type(read), read) == (type(frame), frame)


@unhurried
@given(ANY_CLIENT_FRAME, st.lists(JSON, min_size=1, max_size=3))
def test_unknown_trailing_fields_are_ignored(frame: Any, extra: list[Any]) -> None:
    """FRAME-8."""
    fields = msgpack.unpackb(encode(frame))

    assert decode_from_client(msgpack.packb([*fields, *extra])) == frame


@pytest.mark.row(31)
@pytest.mark.parametrize("kind", [0, 6, 99, -1, 2**63, 2**64 - 1, *RESERVED])
def test_unknown_kind_is_told_with_its_id(kind: int) -> None:
    """FRAME-9."""
    assert decode_from_client(msgpack.packb([kind, 5, "x"])) == Unknown(kind, 5)
    assert decode_from_server(msgpack.packb([kind, 5, b"x"])) == Unknown(kind, 5)
    for first in ([], [-1], [2**53 + 1], [True], ["5"], [None], [5.0]):
        assert decode_from_client(msgpack.packb([kind, *first])) == Unknown(kind, None)


@pytest.mark.row(31)
def test_frame_of_the_other_direction_is_unknown() -> None:
    from_server_only = set(FROM_SERVER) - set(FROM_CLIENT)
    for kind in from_server_only:
        assert decode_from_client(msgpack.packb([KINDS[kind], 5])) == Unknown(KINDS[kind], 5)
    for kind in set(FROM_CLIENT) - set(FROM_SERVER):
        assert decode_from_server(msgpack.packb([KINDS[kind], 5])) == Unknown(KINDS[kind], 5)


# Refusals


def code_of(data: bytes, decode: Callable[[bytes], Any] = decode_from_client) -> int:
    """Return the close code of a refusal, after a look at what it cost."""
    with pytest.raises(BadFrame) as refusal:
        decode(data)
    assert len(refusal.value.reason.encode()) <= 123  # what a close frame can carry
    started = time.process_time()
    with pytest.raises(BadFrame):
        decode(data)
    assert time.process_time() - started < REFUSED_WITHIN_S
    tracemalloc.start()
    with pytest.raises(BadFrame):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < REFUSED_WITHIN_BYTES + 2 * len(data)
    return refusal.value.close_code


def in_options(value: bytes) -> bytes:
    """A call with raw bytes as the value of an option."""
    whole = msgpack.packb([16, 7, "c", "t", "t", None, b"", {"x": "HERE"}])
    return bytes(whole).replace(msgpack.packb("HERE"), value)


@pytest.mark.row(22)
def test_frame_cut_anywhere_is_refused() -> None:
    data = encode(CALL)

    assert {code_of(data[:end]) for end in range(len(data))} == {1007}


@pytest.mark.row(22)
@pytest.mark.parametrize("size", [1, 5_000])
def test_trailing_bytes_and_reserved_bytes_are_refused(size: int) -> None:
    """FRAME-2."""
    data = encode(CALL)

    assert code_of(data + b"\x00" * size) == 1007
    assert code_of(data + data) == 1007
    assert code_of(b"\xc1" * size) == 1007
    assert code_of(in_options(b"\xc1")) == 1007


def deep_array(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"


def deep_map(levels: int) -> bytes:
    return b"\x81\xa1a" * levels + b"\xc0"


@pytest.mark.row(23)
@pytest.mark.parametrize("deep", [deep_array, deep_map])
def test_value_at_the_depth_limit_is_read_and_one_deeper_is_refused(
    deep: Callable[[int], bytes],
) -> None:
    """FRAME-6, and BODY-1."""
    decode_from_client(in_options(deep(30)))  # the frame and its options are the other two
    assert code_of(in_options(deep(31))) == 1007

    decode_from_client(b"\x93\x63\x07" + deep(31))
    assert code_of(b"\x93\x63\x07" + deep(32)) == 1007

    unpack_body(deep(32))
    with pytest.raises(BadBody, match="deeper"):
        unpack_body(deep(33))


@pytest.mark.row(23)
@pytest.mark.parametrize("deep", [deep_array, deep_map])
@pytest.mark.parametrize("levels", [33, 1_024, 300_000])
def test_any_depth_is_refused_at_the_limit(deep: Callable[[int], bytes], levels: int) -> None:
    assert code_of(in_options(deep(levels))) == 1007
    assert code_of(b"\x93\x63\x07" + deep(levels)) == 1007
    assert code_of(deep(levels)) in {1002, 1007}
    with pytest.raises(BadBody):
        unpack_body(deep(levels))


CLAIMS = {
    "array32": b"\xdd\xff\xff\xff\xff",
    "map32": b"\xdf\xff\xff\xff\xff",
    "str32": b"\xdb\xff\xff\xff\xff",
    "bin32": b"\xc6\xff\xff\xff\xff",
    "ext32": b"\xc9\xff\xff\xff\xff\x01",
    "str8": b"\xd9\xff",
    "bin16": b"\xc5\xff\xff",
}


@pytest.mark.row(24, 25)
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_container_that_claims_more_than_it_holds_is_refused(claim: bytes) -> None:
    assert code_of(claim + b"\x00" * 5) == 1007
    assert code_of(b"\x93\x63\x07" + claim) == 1007
    assert code_of(in_options(claim)) == 1007
    with pytest.raises(BadBody):
        unpack_body(claim + b"\x00" * 5)


@pytest.mark.row(24)
@pytest.mark.parametrize("claim", [b"\xdc\x08\x00", b"\xdc\x10\x00", b"\xdd\x00\x0f\xff\xff"])
@pytest.mark.parametrize("levels", [700, 1_000, 200_000])
def test_claims_within_claims_are_refused_without_allocation(claim: bytes, levels: int) -> None:
    """Each level alone is modest; together they would be hundreds of megabytes."""
    data = claim * levels
    assert code_of(data) == 1007
    assert code_of(b"\x93\x63\x07" + data) == 1007
    tracemalloc.start()
    with pytest.raises(BadBody):
        unpack_body(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < REFUSED_WITHIN_BYTES + 2 * len(data)


CROWDS = {
    "empty arrays": b"\xdd\x00\x0f\x00\x00" + b"\x90" * 0x0F0000,
    "lists of empty maps": b"\xdc\x00\xf0" + (b"\xdc\x0f\xff" + b"\x80" * 4_095) * 240,
    "small ints": b"\xdd\x00\x0f\x00\x00" + b"\x00" * 0x0F0000,
    "a map": b"\xdf\x00\x07\x00\x00" + b"\xa0\xc0" * 0x070000,
    "one text": b"\xdb\x00\x0f\x00\x00" + b"x" * 0x0F0000,
}


@pytest.mark.row(24, 28)
@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS)
def test_header_of_a_million_values_is_refused_before_they_are_made(crowd: bytes) -> None:
    """FRAME-5 holds for unknown kinds and unknown fields too: nobody pays for what nobody reads."""
    assert code_of(b"\x93\x63\x07" + crowd) == 1009
    assert code_of(in_options(crowd)) == 1009
    assert code_of(b"\x94\x12\x07\xa0" + crowd) == 1009
    assert code_of(b"\x94\x12\x07\xa0" + crowd, decode_from_server) == 1009


def test_opaque_parts_do_not_count_as_header() -> None:
    """FRAME-5."""
    opaque = bytes(MIB - 5_000)
    context = {"caller_context": opaque}
    for frame in (Result(7, opaque), Register(7, opaque, {}), CALL._replace(arguments=opaque)):
        assert decode_from_client(encode(frame)) == frame
    assert decode_from_client(encode(CALL._replace(options=context))).options == context  # type: ignore[union-attr]
    assert decode_from_client(msgpack.packb([99, 7, opaque])) == Unknown(99, 7)
    assert decode_from_client(msgpack.packb([18, 7, "why", opaque]))[1] == "why"


def test_header_at_its_limit_is_read_and_a_byte_more_is_refused() -> None:
    """FRAME-5."""
    empty = len(encode(ListToolkits(7, {"search": "x" * 65_000}))) - 65_000
    fits = encode(ListToolkits(7, {"search": "x" * (MAX_HEADER_BYTES - empty)}))

    assert len(fits) == MAX_HEADER_BYTES
    assert isinstance(decode_from_client(fits), ListToolkits)
    assert (
        code_of(encode(ListToolkits(7, {"search": "x" * (MAX_HEADER_BYTES - empty + 1)}))) == 1009
    )


def test_more_than_4096_items_are_refused() -> None:
    """FRAME-7."""
    assert isinstance(decode_from_client(encode(Subscribe(7, [0] * 4_096))), Subscribe)
    assert code_of(encode(Subscribe(7, [0] * 4_097))) == 1007
    many = dict.fromkeys(map(str, range(4_097)))
    assert code_of(encode(Event(7, "x", many)), decode_from_server) == 1007


NOT_ALLOWED = {
    "integer key": b"\x81\x01\x01",
    "bytes key": b"\x81\xc4\x01a\x01",
    "nil key": b"\x81\xc0\x01",
    "array key": b"\x81\x91\x01\x01",
    "NaN": b"\xcb" + struct.pack("!d", math.nan),
    "NaN in 32 bits": b"\xca" + struct.pack("!f", math.nan),
    "infinity": b"\xcb" + struct.pack("!d", -math.inf),
    "ext": b"\xc7\x01\x05a",
    "fixext": b"\xd4\x05a",
    "timestamp": b"\xd6\xff\x00\x00\x00\x01",
    "timestamp of 5 bytes": b"\xc7\x05\xff\x00\x00\x00\x01\x01",
    "timestamp with too many nanoseconds": b"\xd7\xff" + b"\xff" * 8,
    "latin-1": b"\xa1\xe9",
    "cut utf-8": b"\xa2\xf0\x9f",
    "overlong utf-8": b"\xa2\xc0\xaf",
    "surrogate": b"\xa3\xed\xa0\x80",
    "beyond unicode": b"\xa4\xf4\x90\x80\x80",
}


@pytest.mark.row(26, 27)
@pytest.mark.parametrize("value", NOT_ALLOWED.values(), ids=NOT_ALLOWED)
def test_what_is_not_json_is_refused_wherever_it_stands(value: bytes) -> None:
    """FRAME-7, and BODY-1."""
    for data in (in_options(value), in_options(b"\x91" + value), b"\x93\x63\x07" + value):
        assert code_of(data) == 1007
    for body in (value, b"\x91" + value, b"\x81\xa1a" + value):
        with pytest.raises(BadBody):
            unpack_body(body)


@pytest.mark.row(26)
def test_of_equal_keys_the_last_counts() -> None:
    assert unpack_body(b"\x82\xa1a\x01\xa1a\x02") == {"a": 2}
    call = decode_from_client(in_options(b"\x82\xa1a\x01\xa1a\x02"))
    assert isinstance(call, Call)
    assert call.options == {"x": {"a": 2}}


@pytest.mark.row(26)
def test_integers_of_more_than_64_bits_are_not_sent() -> None:
    assert unpack_body(pack_body([2**64 - 1, -(2**63)])) == [2**64 - 1, -(2**63)]
    for value in (2**64, -(2**63) - 1, {"a": [10**100]}):
        with pytest.raises(BadBody):
            pack_body(value)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [None],
        ["16"],
        [True, 7],
        [16.0, 7],
        [16],
        [18, True, "x"],
        [18, 7.0, "x"],
        [18, "7", "x"],
        [18, -1, "x"],
        [18, 2**53 + 1, "x"],
        [18, 2**64 - 1, "x"],
        [18, 7, None],
        [18, 7, b"x"],
        [33, 7, "t", 1],
        [34, 7, []],
        [34, 7, None],
        [36, 7, {}],
        [16, 7, "c", "t", "t", True, b"", None],
        [16, 7, "c", "t", "t", -5, b"", None],
        [16, 7, "c", "t", "t", None, "", None],
        [3, 7, "code", "no", 1, "", None, None],
    ],
)
def test_field_that_is_missing_or_of_another_type_is_refused(fields: list[Any]) -> None:
    """FRAME-2 and FRAME-3."""
    assert code_of(msgpack.packb(fields)) == 1002


@pytest.mark.parametrize("value", [None, 7, "frame", b"frame", {"kind": 16}, {}, 1.5, True])
@pytest.mark.parametrize("size", [1, 3_000])
def test_what_is_no_array_is_refused(value: Any, size: int) -> None:
    """FRAME-2."""
    padded = value * size if isinstance(value, str | bytes) else value

    assert code_of(msgpack.packb(padded)) == 1002


def code_or_frame(decode: Callable[[bytes], Any], data: bytes) -> int:
    """Return the close code of a refusal, 0 for a frame; let any other exception through."""
    try:
        decode(data)
    except BadFrame as refusal:
        return refusal.close_code
    return 0


@unhurried
@given(st.binary(max_size=4_000))
@example(b"")
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_from_client, decode_from_server):
        assert code_or_frame(decode, data) in {0, 1002, 1007, 1009}
    with suppress(BadBody):
        unpack_body(data)


@unhurried
@given(ANY_CLIENT_FRAME, st.data())
def test_any_change_of_a_frame_is_read_or_refused(frame: Any, data: st.DataObject) -> None:
    packed = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    assert code_or_frame(decode_from_client, bytes(packed)) in {0, 1002, 1007, 1009}


# Bodies


@unhurried
@given(JSON)
def test_body_comes_back_as_it_was(value: Any) -> None:
    read = unpack_body(pack_body(value))

    assert (read, str(read)) == (value, str(value))


def test_bytes_are_read_only_where_they_are_expected() -> None:
    packed = pack_body({"data": b"x"})

    assert unpack_body(packed, binary=True) == {"data": b"x"}
    with pytest.raises(BadBody, match="bytes") as refusal:
        unpack_body(packed)
    assert refusal.value.path == "/data"


def test_refusal_of_a_body_names_the_place() -> None:
    with pytest.raises(BadBody) as refusal:
        unpack_body(msgpack.packb({"a": [1, {"b": math.nan}]}))

    assert refusal.value.path == "/a/1/b"


@pytest.mark.parametrize("value", [object(), {1, 2}, "\ud800", 1j, Failed])
def test_what_msgpack_cannot_carry_is_a_bad_body(value: Any) -> None:
    with pytest.raises(BadBody):
        pack_body(value)


def test_value_that_holds_itself_is_a_bad_body() -> None:
    circle: list[Any] = []
    circle.append(circle)

    with pytest.raises(BadBody):
        pack_body(circle)
