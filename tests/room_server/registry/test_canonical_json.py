"""The canonical form from which digests are computed: RFC 8785, and integers of 64 bits."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from toolbus.wire import pack_body, unpack_body
from toolbus.wire.body_steps import run_steps
from toolbus_server.registry.packed_manifest import write_canonical
from toolbus_server.registry.toolkit_definition import read_definition

# Names are sorted by units of 16 bits, of which U+1F600 has two, so it comes before U+FFEE.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\x01"\\\n\uffee😀'))
NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
)


def canonical(value: Any) -> bytes:
    written: list[bytes] = []
    run_steps(write_canonical(value, written.append))
    return b"".join(written)


@given(VALUES)
def test_a_value_that_rfc_8785_has_is_written_as_it_says(value: Any) -> None:
    """REG-5."""
    assert canonical(value) == rfc8785.dumps(value)


def test_many_names_are_sorted_in_several_steps_as_all_at_once() -> None:
    random = Random(1)
    names = [chr(random.choice((0x61, 0xFFEE, 0x1F600))) + str(n) for n in range(20_000)]
    random.shuffle(names)
    written: list[bytes] = []
    steps = [*write_canonical(dict.fromkeys(names), written.append)]

    assert b"".join(written) == rfc8785.dumps(dict.fromkeys(names))
    assert len(steps) >= 40  # 10 to sort, and 2 for each 2,048 pieces


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**63 - 1, -(2**63), 2**64 - 1])
def test_integer_beyond_2_53_has_all_its_digits_in_a_digest(value: int) -> None:
    """REG-5, BODY-1: the float next to it is another value, with the digits of RFC 8785."""
    assert canonical([value, {"a": value}]) == b'[%d,{"a":%d}]' % (value, value)
    assert canonical(float(2**60)) == b"1152921504606847000"

    def digest(maximum: Any) -> str:
        schema = {"properties": {"n": {"maximum": maximum}}}
        manifest = {"name": "t", "tools": [{"name": "t", "input_schema": schema}]}
        definition = read_definition(pack_body(manifest))
        assert unpack_body(definition.packed) == manifest
        return definition.digest

    near = value + 1 if value < 0 else value - 1
    assert len({digest(value), digest(near), digest(str(value))}) == 3
