"""The names of tools for clients of MCP."""

from __future__ import annotations

import re

import pytest

from toolbus_gateway.names import SEARCH_NAMES, listed_name, own_name

_HASHED = re.compile(r"(?P<begin>.*)-[0-9a-f]{10}")


@pytest.mark.parametrize(
    ("toolkit", "tool", "begin"),
    [
        ("words", "add", None),
        ("a" * 30, "b" * 32, None),
        ("a-b", "C_d-1", None),
        ("a" * 30, "b" * 33, "a" * 30 + "__" + "b" * 21),
        ("a" * 64, "b" * 64, "a" * 53),
        ("a__b", "c", "a__b__c"),
        ("a", "b__c", "a__b__c"),
        ("a_", "b", "a___b"),
        ("a", "_b", "a___b"),
        ("tools", "search", "tools__search"),
        ("tools", "call", "tools__call"),
        ("tools", "other", None),
    ],
)
def test_name_has_a_hash_where_it_alone_is_not_enough(
    toolkit: str, tool: str, begin: str | None
) -> None:
    name = listed_name(toolkit, tool)
    assert len(name) <= 64
    if begin is None:
        assert name == f"{toolkit}__{tool}"
    else:
        found = _HASHED.fullmatch(name)
        assert found is not None
        assert found["begin"] == begin


def test_tools_whose_names_would_be_equal_differ() -> None:
    tools = [
        ("a__b", "c"),
        ("a", "b__c"),
        ("a_", "b"),
        ("a", "_b"),
        ("a" * 64, "b"),
        ("a" * 64, "c"),
    ]
    assert len({listed_name(*tool) for tool in tools}) == len(tools)


def test_tools_have_their_own_names_under_the_path_of_their_toolkit() -> None:
    assert own_name("tools", "search") == "search"
    assert own_name("a", "b__c") == "b__c"
    assert all(_HASHED.fullmatch(own_name("a", name)) for name in SEARCH_NAMES)
