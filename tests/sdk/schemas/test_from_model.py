"""The way of arguments from a model to a tool: aliases, and nulls that mean "left out"."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolbus.schemas.argument_schema import argument_schema, parameter_aliases
from toolbus.schemas.from_model import tool_arguments
from toolbus.schemas.identity_cache import IdentityCache

Schema = dict[str, Any]
TEXT = {"type": "string"}
OR_NULL = {"type": ["string", "null"]}
ITEM: Schema = {
    "type": "object",
    "properties": {"a": TEXT, "b": OR_NULL, "c": TEXT, "more": {"$ref": "#/$defs/item"}},
    "required": ["c"],
}
WRITTEN = {"a": None, "b": None, "c": None}
TAKEN = {"b": None, "c": None}
"""What of it the tool gets: `b` takes null, and `c` is required."""


def kind(name: str, *names: str, **fields: Any) -> Schema:
    """Return a branch with a discriminator."""
    properties = {"kind": {"const": name}, **dict.fromkeys(names, TEXT)}
    return {"type": "object", "properties": properties, "required": ["kind"], **fields}


AB = [kind("a", "x", additionalProperties=False), kind("b", "y", additionalProperties=False)]

# The schema of a parameter, what the model writes, and what the tool gets.
TABLE: dict[str, tuple[Any, Any, Any]] = {
    "property": (ITEM, WRITTEN, TAKEN),
    "reference": ({"$ref": "#/$defs/item"}, WRITTEN, TAKEN),
    "deeper": (ITEM, {"more": {"more": WRITTEN, "a": None}}, {"more": {"more": TAKEN}}),
    "itself": (ITEM, {"c": "x", "more": None}, {"c": "x"}),
    "items": ({"items": ITEM}, [WRITTEN, None, 1, [WRITTEN]], [TAKEN, None, 1, [WRITTEN]]),
    "first items": (
        {"prefixItems": [True, ITEM], "items": ITEM},
        [WRITTEN, WRITTEN, WRITTEN],
        [WRITTEN, TAKEN, TAKEN],
    ),
    "values of a map": ({"additionalProperties": ITEM}, {"a": WRITTEN}, {"a": TAKEN}),
    "null in a map": ({"additionalProperties": TEXT}, {"a": None}, {"a": None}),
    "a map beside": (
        {"properties": {"m": {"items": TEXT}, "a": TEXT}, "additionalProperties": ITEM},
        {"m": [WRITTEN], "a": None, "z": WRITTEN},
        {"m": [WRITTEN], "z": TAKEN},
    ),
    "allOf": ({"allOf": [ITEM, {"required": ["a"]}]}, WRITTEN, WRITTEN),
    "allOf of two": (
        {"allOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]},
        {"a": None, "b": None},
        {},
    ),
    "one takes it, one does not": (
        {"allOf": [{"properties": {"a": OR_NULL}}, {"properties": {"a": TEXT}}]},
        {"a": None},
        {},
    ),
    "branch": ({"anyOf": [TEXT, ITEM, {"type": "null"}]}, WRITTEN, TAKEN),
    "one branch takes it": (
        {"anyOf": [ITEM, {"properties": {"a": OR_NULL}, "required": ["c"]}]},
        WRITTEN,
        WRITTEN,
    ),
    "discriminator": ({"oneOf": AB}, {"kind": "a", "x": None, "y": None}, {"kind": "a"}),
    "no branch": ({"oneOf": AB}, {"kind": "z", "x": None}, {"kind": "z", "x": None}),
    "required in another branch": (
        {**kind("a", "x", "y"), "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
        {"kind": "a", "x": "1", "y": None},
        {"kind": "a", "x": "1"},
    ),
    "required in all branches": (
        {**kind("a", "x"), "anyOf": [{"required": ["x"]}, {"required": ["x", "y"]}]},
        {"kind": "a", "x": None},
        {"kind": "a", "x": None},
    ),
    "below a union": (
        {
            "anyOf": [
                {"properties": {"kind": {"const": "a"}, "in": ITEM}},
                {"properties": {"kind": {"const": "b"}, "in": {"additionalProperties": OR_NULL}}},
            ]
        },
        {"kind": "a", "in": WRITTEN},
        {"kind": "a", "in": TAKEN},
    ),
    "below a union, either": (
        {"anyOf": [{"properties": {"in": ITEM}}, {"properties": {"in": {"required": ["c"]}}}]},
        {"in": WRITTEN},
        {"in": WRITTEN},
    ),
    "unevaluated": (
        {"anyOf": [kind("a", "x"), kind("b", "y")], "unevaluatedProperties": False},
        {"kind": "a", "x": None, "y": None},
        {"kind": "a"},
    ),
    "condition": (
        {"if": {"required": ["a"]}, "then": {"properties": {"a": TEXT}}, "else": False},
        {"a": None},
        {"a": None},
    ),
    "dependent": ({"dependentSchemas": {"c": ITEM}}, {"c": "x", "a": None}, {"c": "x"}),
    "null by not": (
        {"properties": {"a": {"not": {"type": "null"}}, "b": {"not": {"type": "string"}}}},
        {"a": None, "b": None},
        {"b": None},
    ),
    "null by values": (
        {"properties": {"a": {"enum": ["x"]}, "b": {"enum": ["x", None]}, "c": {"const": None}}},
        {"a": None, "b": None, "c": None},
        {"b": None, "c": None},
    ),
    "null by branches": (
        {"properties": {"a": {"oneOf": [OR_NULL, {"type": "null"}]}, "b": {"anyOf": [OR_NULL]}}},
        {"a": None, "b": None},
        {"b": None},
    ),
    "forbidden": ({"properties": {"a": False}}, {"a": None}, {}),
    "patterns": (
        {"patternProperties": {"^a": OR_NULL}, "additionalProperties": False},
        {"a": None},
        {"a": None},
    ),
    "unknown": (ITEM, {"c": "x", "z": None}, {"c": "x", "z": None}),
    "wrong kinds": (ITEM, {"c": [None], "more": "x"}, {"c": [None], "more": "x"}),
    "applies itself": ({"$ref": "#/$defs/loop"}, {"a": None}, {"a": None}),
}


@pytest.mark.parametrize("name", TABLE)
def test_nulls_that_mean_left_out_are_removed(name: str) -> None:
    schema, written, expected = TABLE[name]
    loop = {"allOf": [{"$ref": "#/$defs/loop"}], "properties": {"a": TEXT}}
    whole = {"properties": {"x": schema}, "$defs": {"item": ITEM, "loop": loop}}
    arguments = {"x": written}
    before = json.dumps(arguments)
    found = tool_arguments(whole, arguments)
    assert found == {"x": expected}
    assert json.dumps(arguments) == before, "what the model wrote is not changed"
    assert found is arguments or written != expected


def test_nulls_of_other_branches_of_the_root_are_removed() -> None:
    whole = {"type": "object", "oneOf": AB}
    assert tool_arguments(whole, {"kind": "a", "x": "1", "y": None}) == {"kind": "a", "x": "1"}
    assert tool_arguments(whole, {"kind": "b", "x": None, "y": None}) == {"kind": "b"}
    required = {
        "oneOf": [
            {**branch, "required": ["kind", name]} for branch, name in zip(AB, "xy", strict=True)
        ]
    }
    assert tool_arguments(required, {"kind": "a", "x": "1", "y": None}) == {"kind": "a", "x": "1"}


def test_schema_without_such_nulls_costs_nothing() -> None:
    whole = {"properties": {"a": TEXT, "b": OR_NULL}, "required": ["a"], "$defs": {"item": ITEM}}
    arguments = {"a": None, "b": None, "z": {"a": None}}
    assert tool_arguments(whole, arguments) is arguments


@pytest.mark.parametrize(
    "branches",
    [
        [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}],
        [{"anyOf": [{"$ref": "#"}, {"properties": {"a": TEXT}}]}] * 2,
        [{"items": {"$ref": "#"}}, {"items": {"allOf": [{"$ref": "#"}]}}],
    ],
)
def test_work_is_bounded(branches: list[Schema]) -> None:
    """Branches double at each level, and values are wide or deep."""
    whole = {
        "anyOf": [{"properties": {"c": each, "a": TEXT}} for each in branches],
        "properties": {"rows": {"items": ITEM}},
        "$defs": {"item": ITEM},
    }
    deep: Any = {"a": None}
    for _ in range(30):
        deep = {"c": deep, "a": None}
    assert tool_arguments(whole, deep)["c"].keys() >= {"c"}
    rows = [dict(WRITTEN) for _ in range(20_000)]
    tool_arguments(whole, {"c": rows, "rows": rows})


def test_many_rows_are_read() -> None:
    whole = {"properties": {"rows": {"items": ITEM}}, "$defs": {"item": ITEM}}
    rows = [dict(WRITTEN) for _ in range(30_000)]
    assert tool_arguments(whole, {"rows": rows}) == {"rows": [TAKEN] * 30_000}


def test_aliases_are_renamed_at_the_top() -> None:
    whole = {
        "properties": {"a b": TEXT, "a_b": TEXT, "x[y]": {"properties": {"x[y]": TEXT}}},
        "anyOf": [{"$ref": "#/$defs/more"}],
        "$defs": {"more": {"properties": {"m m": TEXT}}},
    }
    aliases = argument_schema(whole).aliases
    assert aliases.keys() == {"a b", "x[y]", "m m"}
    assert aliases["x[y]"] == "x_y"
    assert aliases["a b"].startswith("a_b_"), "not that of another parameter"
    written = {aliases[name]: {"x_y": 1} for name in aliases}
    assert tool_arguments(whole, written) == {name: {"x_y": 1} for name in aliases}
    both = {"x_y": 1, "x[y]": 2}
    assert tool_arguments(whole, both) is not None
    assert tool_arguments(whole, both) == both, "no value is lost"
    assert tool_arguments(whole, {"m_m": None}) == {}


@given(st.lists(st.text(max_size=70), unique=True, max_size=6))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_every_parameter_has_an_alias_of_its_own_that_leads_back(names: list[str]) -> None:
    aliases = parameter_aliases(names)
    assert len({aliases.get(name, name) for name in names}) == len(names)
    for name in names:
        assert re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,63}", aliases.get(name, name))
    whole = {"properties": dict.fromkeys(names, TEXT), "required": names}
    written = {aliases.get(name, name): index for index, name in enumerate(names)}
    assert tool_arguments(whole, written) == {name: index for index, name in enumerate(names)}


def test_only_the_last_schemas_are_cached() -> None:
    made: list[Schema] = []

    def make(schema: Schema) -> int:
        made.append(schema)
        return len(made)

    cached = IdentityCache(make, size=2)
    first, second, third = ({"a": each} for each in "abc")
    assert [cached(schema) for schema in (first, second, first, third, first, second)] == [
        *(1, 2, 1, 3, 1, 4)
    ]
