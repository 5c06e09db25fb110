"""Large opaque parts in steps: the same values and errors as at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from toolbus.wire import BadBody, pack_body, unpack_body
from toolbus.wire.body_steps import (
    PIECE_BYTES,
    VALUES_PER_STEP,
    ContainerCount,
    count_containers,
    unpack_steps,
)

LONG = "x" * 50_000


def run(steps: Generator[None, None, Any]) -> tuple[Any, int]:
    """Return the result of steps, and how many there were."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1},
        {"rows": [{"a": number, "b": [1.5, None, True]} for number in range(20_000)]},
        {"keys": {f"k{number}": number for number in range(20_000)}, "text": LONG},
        [1, [[]] * 20_000],
        [3, "name", "type", b"bytes" * 10_000],
        LONG,
        {"deep": [LONG, *[[[[[[[[[[[{"a": []}]]]]]]]]]]]]},
    ],
)
def test_value_is_the_same_as_at_once(value: Any) -> None:
    packed = pack_body(value)
    assert run(unpack_steps(packed, binary=True))[0] == value
    assert unpack_body(packed, binary=True) == value


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\xdd\x00\x0f\xff\xff" + bytes(30_000),  # longer than its bytes
        pack_body([LONG]) + b"\x01",
        pack_body([LONG])[:-1],
        b"\x91" * 40 + b"\xc0",
        b"\x91" * 32 + b"\x90",
        b"\x91" * 100_000,
        pack_body({"a": [LONG, *[{"b": 1}] * 9_000, {"c/d": [float("nan")]}]}),
        pack_body({"a": [float("inf")], "text": LONG}),
        pack_body({"a": [{"b": b"bytes"}], "text": LONG}),
        pack_body({"a": b"", "text": LONG}),
        pack_body({"text": LONG, "a": [{b"key": 1}]}),
        b"\x92" + pack_body(LONG) + b"\x81\x01\x02",
        pack_body({"a": {1: 2}}),
        b"\x92" + pack_body(LONG) + b"\xd4\x05\x00",  # an ext type
        b"\x92" + pack_body(LONG) + b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
    ],
)
def test_invalid_part_has_the_same_error_as_at_once(packed: bytes) -> None:
    with pytest.raises(BadBody) as at_once:
        unpack_body(packed)
    with pytest.raises(BadBody) as in_steps:
        run(unpack_steps(packed))
    error, expected = in_steps.value, at_once.value
    assert (error.path, error.reason) == (expected.path, expected.reason)


@pytest.mark.parametrize(
    "value",
    [
        {"rows": [{"a": 1}] * 250_000},
        {"rows": [1] * 1_000_000},
        {"rows": [{}] * 1_000_000},
        {"rows": {f"k{number}": 1 for number in range(100_000)}},
    ],
)
def test_no_step_reads_more_than_its_share(value: Any) -> None:
    packed = pack_body(value)
    _, steps = run(unpack_steps(packed))
    values = len(value["rows"])
    assert steps >= len(packed) / PIECE_BYTES + values / VALUES_PER_STEP


def test_more_containers_than_the_limit_are_refused() -> None:
    packed = pack_body({"rows": [{}] * 30_000})  # and the two around them
    assert run(unpack_steps(packed, count=ContainerCount(30_002)))[0]["rows"][-1] == {}
    with pytest.raises(BadBody, match="more than 30001 objects and lists"):
        run(unpack_steps(packed, count=ContainerCount(30_001)))


@pytest.mark.parametrize(
    ("values", "limit", "count"),
    [([1, "a"], 9, 0), ([[], {}], 9, 2), ([{"a": [[], 1]}], 9, 3), ([[[[[]]]]], 2, 3)],
)
def test_containers_are_counted_up_to_the_limit(values: list[Any], limit: int, count: int) -> None:
    assert run(count_containers(values, limit))[0] == count
