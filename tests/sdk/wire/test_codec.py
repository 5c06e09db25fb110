"""Bytes to frames and back, field by field. Hostile bytes are in test_hostile_frames."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Any, get_args, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.clients.refusals import code_of
from toolbus.wire import (
    MAX_HEADER_BYTES,
    BadBody,
    BadFrame,
    Call,
    Cancel,
    Event,
    Failed,
    ListToolkits,
    Register,
    Result,
    Subscribe,
    UnknownFrame,
    decode_from_client,
    decode_from_server,
    encode,
    pack_body,
    unpack_body,
)
from toolbus.wire.frames import FROM_CLIENT, FROM_SERVER, KINDS

MIB = 1024 * 1024
CALL = Call(7, "c" * 32, "weather", "forecast", 1_000, b"\x80", {"attempt": 1})

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
    hints = get_type_hints(kind)
    return st.builds(kind, *[_values(hints[field]) for field in kind.__struct_fields__])


ANY_CLIENT_FRAME = st.one_of(*[frames_of(kind) for kind in FROM_CLIENT])
ANY_SERVER_FRAME = st.one_of(*[frames_of(kind) for kind in FROM_SERVER])


@given(ANY_CLIENT_FRAME)
def test_server_decodes_frames_of_a_client(frame: Any) -> None:
    read = decode_from_client(encode(frame))

    assert (type(read), read) == (type(frame), frame)


@given(ANY_SERVER_FRAME)
def test_client_decodes_frames_of_the_server(frame: Any) -> None:
    read = decode_from_server(encode(frame))

    assert (type(read), read) == (type(frame), frame)


@given(ANY_CLIENT_FRAME, st.lists(JSON, min_size=1, max_size=3))
def test_unknown_trailing_fields_are_ignored(frame: Any, extra: list[Any]) -> None:
    """FRAME-8."""
    fields = msgpack.unpackb(encode(frame))

    assert decode_from_client(msgpack.packb([*fields, *extra])) == frame


@pytest.mark.parametrize("kind", [0, 6, 99, -1, 2**63, 2**64 - 1])
def test_unknown_kind_is_returned_with_its_id(kind: int) -> None:
    """FRAME-9."""
    assert decode_from_client(msgpack.packb([kind, 5, "x"])) == UnknownFrame(kind, 5)
    assert decode_from_server(msgpack.packb([kind, 5, b"x"])) == UnknownFrame(kind, 5)
    for first in ([], [-1], [2**53 + 1], [True], ["5"], [None], [5.0]):
        assert decode_from_client(msgpack.packb([kind, *first])) == UnknownFrame(kind, None)


def test_frame_of_the_other_direction_is_unknown() -> None:
    from_server_only = set(FROM_SERVER) - set(FROM_CLIENT)
    for kind in from_server_only:
        assert decode_from_client(msgpack.packb([KINDS[kind], 5])) == UnknownFrame(KINDS[kind], 5)
    for kind in set(FROM_CLIENT) - set(FROM_SERVER):
        assert decode_from_server(msgpack.packb([KINDS[kind], 5])) == UnknownFrame(KINDS[kind], 5)


def test_opaque_parts_do_not_count_as_header() -> None:
    """FRAME-5."""
    opaque = bytes(MIB - 5_000)
    context = {"caller_context": opaque}
    for frame in (Result(7, opaque), Register(7, opaque, {}), replace(CALL, arguments=opaque)):
        assert decode_from_client(encode(frame)) == frame
    assert decode_from_client(encode(replace(CALL, options=context))).options == context  # type: ignore[union-attr]
    assert decode_from_client(msgpack.packb([99, 7, opaque])) == UnknownFrame(99, 7)
    assert decode_from_client(msgpack.packb([18, 7, "why", opaque])) == Cancel(7, "why")


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


@pytest.mark.parametrize("value", [date(2026, 11, 22), Decimal(1), {1}, Cancel(7, "x"), "\ud800"])
def test_values_that_are_not_plain_are_not_encoded_at_any_depth(value: Any) -> None:
    for whole in (value, [1, value], [1, [value]], {"a": value}):
        with pytest.raises(BadBody):
            pack_body(whole)


@given(st.lists(JSON | st.binary(max_size=300)), st.dictionaries(st.text(max_size=5), JSON))
def test_lists_and_maps_are_packed_as_msgpack_packs_them(
    fields: list[Any], arguments: dict[str, Any]
) -> None:
    for value in (fields, arguments, [1, arguments], [4, arguments, *fields]):
        assert pack_body(value) == msgpack.packb(value)


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
        [16, 7, "c", "t", "t", None, b"", None, 7],
        [16, 7, "c", "t", "t", None, b"", None, b"00"],
        [3, 7, "code", "no", 1, "", None, None],
    ],
)
def test_field_that_is_missing_or_of_another_type_is_refused(fields: list[Any]) -> None:
    """FRAME-2 and FRAME-3."""
    assert code_of(msgpack.packb(fields)) == 1002


@pytest.mark.parametrize("value", [None, 7, "frame", b"frame", {"kind": 16}, {}, 1.5, True])
@pytest.mark.parametrize("size", [1, 3_000])
def test_frame_that_is_not_an_array_is_refused(value: Any, size: int) -> None:
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


@given(st.binary(max_size=4_000))
@example(b"")
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_from_client, decode_from_server):
        assert code_or_frame(decode, data) in {0, 1002, 1007, 1009}
    with suppress(BadBody):
        unpack_body(data)


@given(ANY_CLIENT_FRAME, st.data())
def test_any_change_of_a_frame_is_read_or_refused(frame: Any, data: st.DataObject) -> None:
    packed = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    assert code_or_frame(decode_from_client, bytes(packed)) in {0, 1002, 1007, 1009}


# Bodies


@given(JSON)
def test_body_survives_a_round_trip(value: Any) -> None:
    read = unpack_body(pack_body(value))

    assert (read, str(read)) == (value, str(value))


def test_bytes_are_read_only_where_they_are_expected() -> None:
    packed = pack_body({"data": b"x"})

    assert unpack_body(packed, binary=True) == {"data": b"x"}
    with pytest.raises(BadBody, match="bytes") as refusal:
        unpack_body(packed)
    assert refusal.value.path == "/data"


def test_refusal_of_a_body_has_the_path() -> None:
    with pytest.raises(BadBody) as refusal:
        unpack_body(msgpack.packb({"a": [1, {"b": math.nan}]}))

    assert refusal.value.path == "/a/1/b"


@pytest.mark.parametrize("value", [{1: 2}, {"a": {None: 1}}, {b"a": 1}])
def test_refusal_of_a_key_that_is_not_text_says_so(value: Any) -> None:
    with pytest.raises(BadBody, match="keys are text"):
        unpack_body(msgpack.packb(value))


@pytest.mark.parametrize("value", [object(), {1, 2}, "\ud800", 1j, Failed])
def test_value_that_msgpack_cannot_encode_is_a_bad_body(value: Any) -> None:
    with pytest.raises(BadBody):
        pack_body(value)


class Lazy(dict[str, Any]):
    """A map that creates its items on request, by code that packs as well."""

    def items(self) -> Any:
        pack_body({"other": "value"})
        return super().items()


@pytest.mark.parametrize(
    "value", [Lazy(a=1), {"x": Lazy(a=1)}, [1, Lazy(a=1)], (1, 2), [1, (2,)], {"x": (1,)}]
)
def test_value_that_is_not_plain_is_a_bad_body_and_runs_no_code(value: Any) -> None:
    with pytest.raises(BadBody):
        pack_body(value)
    assert unpack_body(pack_body({"a": 1})) == {"a": 1}


def test_value_that_holds_itself_is_a_bad_body() -> None:
    circle: list[Any] = []
    circle.append(circle)

    with pytest.raises(BadBody):
        pack_body(circle)
