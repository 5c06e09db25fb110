"""Results: what JSON or msgpack cannot carry is text, and the chunk names the places."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, RootModel, field_serializer

from toolbus.chunks.carried_values import SourceText
from toolbus.chunks.chunk_types import (
    Chunk,
    EmptyChunk,
    FileChunk,
    JsonChunk,
    LinkChunk,
    MixedChunk,
    TextChunk,
    chunk_from_wire,
    chunk_steps,
    fitting,
    result_chunk,
)
from toolbus.chunks.json_values import MAX_JSON_DEPTH, MAX_POINTERS
from toolbus.errors import InvalidResult, StreamBroken
from toolbus.schemas.validation import JsonCheck
from toolbus.tools.result_checks import check_result
from toolbus.wire import MAX_FRAME_BYTES
from toolbus.wire.body_steps import run_steps
from toolbus.wire.codec import pack_body, unpack_body


class Row(BaseModel):
    rest: Any


@dataclass
class Point:
    rest: Any


def nested(levels: int, value: Any = "leaf") -> Any:
    for _ in range(levels):
        value = [value]
    return value


def as_received(chunk: Chunk) -> Chunk:
    body = pack_body(chunk.to_wire())
    received = chunk_from_wire(unpack_body(body, binary=True))
    assert run_steps(chunk_steps(body)) == received
    return received


class Picture(BaseModel):
    data: bytes = Field(alias="Data")
    ready: Base64Bytes = b"QUJDRA=="
    hidden: bytes = Field(b"x", exclude=True)

    @field_serializer("data", when_used="unless-none")
    def as_it_is(self, data: bytes) -> Any:
        return data


class Hex(BaseModel):
    model_config = ConfigDict(ser_json_bytes="hex")
    data: bytes


@dataclass(slots=True)
class Small:
    rest: Any


class Code(Enum):
    A = b"ABCD"


def within(data: bytes) -> list[Any]:
    holders = [{"a": data}, (data,), {data}, {data: 1}, deque([data]), RootModel[bytes](data)]
    rows = [Row(rest=value) for value in (*holders, data, bytearray(data), Point(data))]
    return [*holders, *rows, Point(data), Small(data), Point({"a": [data, Row(rest=data)]})]


@pytest.mark.parametrize("data", [b"ABCD", b"", b"\xfa\xfb"])
def test_bytes_are_base64_wherever_they_stand(data: bytes) -> None:
    text = b64encode(data).decode()
    for value in within(data):
        chunk = result_chunk(value)
        written = json.dumps(chunk.value)
        assert written.count(f'"{text}"') == len(chunk.as_text) > 0, value
        assert "ABCD" not in written


@pytest.mark.parametrize("data", [b"ABCD", b"\xfa\xfb"])
def test_what_a_type_makes_of_its_bytes_itself_stays(data: bytes) -> None:
    assert result_chunk(Row(rest=Hex(data=data))).value == {"rest": {"data": data.hex()}}
    picture: Any = result_chunk(Picture(Data=data)).value
    assert picture.pop("Data") == b64encode(data).decode()
    assert picture.keys() == {"ready"}
    assert result_chunk([Code.A, Row(rest=Code.A)]).value == ["QUJDRA==", {"rest": "QUJDRA=="}]


DEEPEST = "/0" * MAX_JSON_DEPTH
CARRIED: list[tuple[Any, Any, tuple[str, ...]]] = [
    (2**64 - 1, 2**64 - 1, ()),
    (2**64, str(2**64), ("",)),
    (-(2**63) - 1, str(-(2**63) - 1), ("",)),
    ({"wei": 10**23}, {"wei": "1" + "0" * 23}, ("/wei",)),
    ([10**5_000], ["1" + "0" * 5_000], ("/0",)),
    ([1 << 200_000], [hex(1 << 200_000)], ("/0",)),
    (math.nan, "NaN", ("",)),
    ([memoryview(b"abcd")[::2]], ["YWM="], ("/0",)),
    ({b"\xff": 1, b"a": 2}, {"/w==": 1, "YQ==": 2}, ("/~1w==", "/YQ==")),
    ([math.inf, -math.inf, True], ["Infinity", "-Infinity", True], ("/0", "/1")),
    ({"a/b~": math.nan}, {"a/b~": "NaN"}, ("/a~1b~0",)),
    ([*range(9_999), math.nan], [*range(9_999), "NaN"], ("/9999",)),
    ({"a": "x\ud800y"}, {"a": "x\ufffdy"}, ("/a",)),
    ({"a": "\ud83d\ude00"}, {"a": "\U0001f600"}, ("/a",)),
    ({"\udc00k": 1}, {"\ufffdk": 1}, ("/\ufffdk",)),
    ({"a": b"\xff"}, {"a": "/w=="}, ("/a",)),
    (Row(rest=[b"\xff", 10**23]), {"rest": ["/w==", "1" + "0" * 23]}, ("/rest/0", "/rest/1")),
    (Point({1: math.inf}), {"rest": {"1": "Infinity"}}, ("/rest/1",)),
    ({True: "b"}, {"true": "b"}, ()),
    ({None: 1, False: 2, 1.5: 3, date(2026, 1, 2): 4, (1, 2): 5, 10**5_000: 6}, None, ()),
    ({1: "a", "1": "b"}, '{"1": "a", "1": "b"}', ("",)),
    (
        [dict(zip(["\ud800", "\ud801"], [10**23, 2], strict=True))],
        ['{"\ufffd": 1' + "0" * 23 + ', "\ufffd": 2}'],
        ("/0",),
    ),
    ([SourceText("1e400")], ["1e400"], ("/0",)),
    (JsonChunk([math.nan], ("/7",), 2), ["NaN"], ("/7", "/0")),
]


@pytest.mark.parametrize(("value", "expected", "places"), CARRIED, ids=range(len(CARRIED)))
def test_what_json_cannot_carry_is_text_and_is_named(
    value: Any, expected: Any, places: tuple[str, ...]
) -> None:
    """BODY-7."""
    chunk = result_chunk(value)
    assert expected is None or chunk.value == expected
    assert chunk.as_text == places
    assert as_received(chunk) == chunk


@pytest.mark.parametrize("levels", [31, 32, 100, 1_000, 100_000])
def test_what_is_too_deep_is_its_json_text(levels: int) -> None:
    chunk = result_chunk(nested(levels))
    assert as_received(chunk) == chunk
    value: Any = chunk.value
    for _ in range(MAX_JSON_DEPTH):
        (value,) = value
    rest = levels - MAX_JSON_DEPTH
    assert value == ("leaf" if rest == 0 else "[" * rest + '"leaf"' + "]" * rest)
    assert chunk.as_text == (() if rest == 0 else (DEEPEST,))


def test_a_text_of_depth_holds_every_kind_of_value_exactly() -> None:
    inner = {"a": [10**30, math.nan, None, "\ud800ü", b"\xff"], 2: Row(rest=Decimal("1.50"))}
    text: Any = result_chunk(nested(MAX_JSON_DEPTH, inner)).value
    for _ in range(MAX_JSON_DEPTH):
        (text,) = text
    assert text == (
        '{"a": [1' + "0" * 30 + ', NaN, null, "\ufffdü", "/w=="], "2": {"rest": "1.50"}}'
    )


def _itself(*keys: str) -> Any:
    value: Any = {}
    value.update(dict.fromkeys(keys, value))
    return value


def _shared(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        object(),
        [ValueError("secret")],
        {"a": (n for n in [1])},
        {object(): 1},
        {frozenset([1]): 1},
        [TextChunk("a")],
        _itself("a"),
        _itself("a", "b"),
        [nested(40), _itself("a", "b")],
        nested(MAX_JSON_DEPTH, _shared(30)),
        nested(MAX_JSON_DEPTH + 1, "x" * MAX_FRAME_BYTES),
        Row(rest=[object()]),
        MixedChunk((MixedChunk(()),)),
        MixedChunk(("text",)),  # type: ignore[arg-type]  # what an untyped tool may return
        MixedChunk((FileChunk.from_path("x"),)),
        MixedChunk((EmptyChunk(),) * 4_097),
    ],
)
def test_what_has_no_text_is_refused(value: Any) -> None:
    with pytest.raises(InvalidResult) as caught:
        result_chunk(value)
    assert "secret" not in str(caught.value)


def test_only_the_first_places_are_named_and_all_are_counted() -> None:
    chunk = result_chunk([math.nan] * 10_000)
    assert chunk.as_text == tuple(f"/{number}" for number in range(MAX_POINTERS))
    assert chunk.more_as_text == 10_000 - MAX_POINTERS
    assert as_received(chunk) == chunk
    further = result_chunk(MixedChunk((chunk, JsonChunk(math.inf), TextChunk("\ud800"))))
    assert (len(further.as_text), further.more_as_text) == (MAX_POINTERS, 10_002 - MAX_POINTERS)


@pytest.mark.parametrize(
    ("chunk", "sent"),
    [
        (TextChunk("a\ud800"), TextChunk("a\ufffd", ("",))),
        ("a\ud800", TextChunk("a\ufffd", ("",))),
        (LinkChunk("u\ud800", "n\ud800"), LinkChunk("u\ufffd", "n\ufffd")),
        (FileChunk(b"d", "n\ud800"), FileChunk(b"d", "n\ufffd")),
        (
            MixedChunk((TextChunk("a"), JsonChunk({"a": 2**70}), FileChunk(b"d"), EmptyChunk())),
            MixedChunk(
                (
                    TextChunk("a"),
                    JsonChunk({"a": str(2**70)}, ("/a",)),
                    FileChunk(b"d"),
                    EmptyChunk(),
                )
            ),
        ),
    ],
)
def test_chunks_of_tools_are_converted_as_values_are(chunk: Any, sent: Chunk) -> None:
    assert result_chunk(chunk) == sent == as_received(sent)
    assert result_chunk(sent) is sent


def test_json_among_other_chunks_is_as_deep_as_alone() -> None:
    chunk = result_chunk(MixedChunk((JsonChunk(nested(MAX_JSON_DEPTH)), TextChunk("a"))))
    assert as_received(chunk) == chunk
    assert chunk.as_text == ()


@pytest.mark.parametrize(
    "fields",
    [
        [6],
        [6, "a"],
        [6, ["a"]],
        [6, [[0]]],
        [6, [b""]],
        [6, [pack_body([6, []])]],
        [6, [pack_body([3, "n", "m", b"", True])]],
        [6, [pack_body([9])]],
        [6, [pack_body([0])] * 4_097],
        [6, [pack_body([2, "x" * 600_000])] * 2],
        [6, [b"\xdc\x00\x02\x06\x90"]],  # a mixed chunk, however its kind is packed
        [6, [b"\x92\xcc\x06\x90"]],
        [6, [b"\x92" + pack_body(6.0) + b"\x90"]],
        [6, [pack_body([3, "n", "m", b"", False, [[]] * 1_100_000])]],  # only data may be large
        [6, [pack_body([3, "n" * 1_100_000, "m", b""])]],
    ],
)
def test_malformed_mixed_fields_are_no_chunk(fields: list[Any]) -> None:
    with pytest.raises((ValueError, StreamBroken)):
        chunk_from_wire(fields)
    with pytest.raises((ValueError, StreamBroken)):
        run_steps(chunk_steps(pack_body(fields)))


@pytest.mark.parametrize(
    ("fields", "chunk"),
    [
        ([1, 2, "?"], JsonChunk(2)),
        ([1, 2, [3]], JsonChunk(2)),
        ([1, 2, ["/a"], -1], JsonChunk(2, ("/a",))),
        ([1, 2, ["/a"] * 17, 3, "?"], JsonChunk(2, ("/a",) * 16, 4)),
        ([2, "a", [""]], TextChunk("a", ("",))),
    ],
)
def test_places_of_a_newer_release_are_ignored_and_bounded(fields: Any, chunk: Chunk) -> None:
    assert chunk_from_wire(fields) == chunk


def test_into_takes_the_one_json_value_of_several_chunks() -> None:
    assert MixedChunk((JsonChunk({"rest": 1}), FileChunk(b""))).into(Row) == Row(rest=1)
    assert MixedChunk((TextChunk("a"), TextChunk("b"))).into(list[str]) == ["a", "b"]


@pytest.mark.parametrize(
    ("chunk", "name"),
    [(TextChunk("é" * 9), "result.txt"), (JsonChunk(["é" * 9]), "result.json")],
)
def test_a_text_or_json_that_does_not_fit_is_a_file(chunk: Chunk, name: str) -> None:
    size = len(pack_body(chunk.to_wire()))
    assert fitting(chunk, size) is chunk
    file = fitting(chunk, size - 1)
    assert isinstance(file, FileChunk)
    assert file.name == name
    assert file.data.decode() in ("é" * 9, '["' + "é" * 9 + '"]')


AMOUNT = {"type": "object", "properties": {"wei": {"type": "integer"}, "n": {"type": "integer"}}}
OPTIONAL = {"properties": {"wei": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}
EITHER = {"oneOf": [AMOUNT, {"type": "string"}]}
MANY = {"type": "array", "items": {"type": "number"}}


@pytest.mark.parametrize(
    ("schema", "value", "is_valid"),
    [
        (AMOUNT, {"wei": 10**23}, True),
        (AMOUNT, {"wei": 10**23, "n": "x"}, False),
        ({**AMOUNT, "required": ["n"]}, {"wei": 10**23}, False),
        (OPTIONAL, {"wei": 10**23}, True),
        (EITHER, {"wei": 10**23}, True),
        (EITHER, {"wei": 10**23, "n": "x"}, False),
        ({"enum": [{"wei": 10**23}]}, {"wei": 10**23}, True),
        (MANY, [math.nan] * 16, True),
        (MANY, ["x", *[math.nan] * 15], False),
        (MANY, [math.nan] * 17, True),
    ],
)
def test_a_place_that_is_text_does_not_break_its_schema(
    schema: dict[str, Any], value: Any, is_valid: bool
) -> None:
    for chunk in (result_chunk(value), MixedChunk((FileChunk(b""), result_chunk(value)))):
        if is_valid:
            check_result(JsonCheck(schema), chunk)
        else:
            with pytest.raises(InvalidResult, match="breaks its schema"):
                check_result(JsonCheck(schema), chunk)


numbers = st.integers() | st.floats() | st.integers(2**63, 2**70)
texts = st.text(st.characters(exclude_categories=()), max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        assert before.keys() == after.keys()
        for key, item in before.items():
            step = key.replace("~", "~0").replace("/", "~1")
            yield from differences(item, after[key], f"{path}/{step}")
    elif isinstance(before, list) and isinstance(after, list):
        for index, (item, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(item, other, f"{path}/{index}")
    elif before != after:
        assert isinstance(after, str)
        yield path


@given(json_values, st.integers(0, 40))
def test_every_place_that_differs_is_text_and_named(value: Any, levels: int) -> None:
    value = nested(levels, value)
    chunk = result_chunk(value if isinstance(value, list | dict) else [value])
    assert as_received(chunk) == chunk
    found = [*differences(value if isinstance(value, list | dict) else [value], chunk.value)]
    assert len(found) == len(chunk.as_text) + chunk.more_as_text
    assert chunk.as_text == tuple(found[:MAX_POINTERS])
    json.dumps(chunk.value, allow_nan=False).encode()
