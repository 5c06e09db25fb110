"""`toolbus tools TOOLKIT.TOOL` shows the nested fields of arguments and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.processes.command_line import CommandLine
from toolbus.cli.arguments import read_arguments
from toolbus.schemas.text import SchemaTree, node_lines

SHOP = '''
from typing_extensions import TypedDict
from pydantic import BaseModel, Field
from toolbus import Toolkit, tool

class Item(BaseModel):
    sku: str
    count: int = Field(1, description="How many.")

class Address(BaseModel):
    """Where it goes."""
    city: str = "Oslo"

class Receipt(TypedDict):
    total: float
    lines: list[Item]

@tool
def order(items: list[Item], to: Address | None = None, note: str = "") -> Receipt:
    """Order things.

    Args:
        items: What to buy.
    """
    return {"total": 1.0, "lines": items}

shop = Toolkit("shop", [order])
'''


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("tools")
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("shop:shop", "--name", "bob"):
            yield there


def shown(schema: dict[str, Any]) -> list[str]:
    return list(node_lines(SchemaTree(schema).nodes(), ""))


def of(schema: dict[str, Any], **defs: Any) -> dict[str, Any]:
    return {"properties": {"it": schema}, "required": ["it"], "$defs": defs}


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


# Output


def test_tool_is_shown_with_nested_fields(toolbus: CommandLine) -> None:
    lines = toolbus.run_here("tools", "shop.order").out.splitlines()
    assert lines[lines.index("shop.order -> object") :] == [
        "shop.order -> object",
        "  Order things.",
        "    items  array of object       What to buy.",
        "      sku    string",
        "      count  integer = 1  How many.",
        "    to     object | null = null",
        '      city  string = "Oslo"',
        '    note   string = ""',
        "  returns",
        "    total  number",
        "    lines  array of object",
        "      sku    string",
        "      count  integer = 1  How many.",
    ]


def test_toolkit_is_shown_without_nested_fields(toolbus: CommandLine) -> None:
    lines = toolbus.run_here("tools", "shop").out.splitlines()
    assert "    items  array of object       What to buy." in lines
    assert [line for line in lines if "sku" in line or "returns" in line] == []


def test_json_contains_the_schemas_unchanged(toolbus: CommandLine) -> None:
    (tool,) = toolbus.run_here("tools", "shop.order", "--json").value["tools"]
    assert tool["input_schema"]["properties"]["items"]["items"] == {"$ref": "#/$defs/Item"}
    assert tool["output_schema"]["properties"]["total"] == {"type": "number"}


# Nested schemas


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (POINT, "object"),
        ({"$ref": "#/$defs/Point"}, "object"),
        ({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, "object | null"),
        ({"oneOf": [{"type": "string"}, POINT]}, "string | object"),
        ({"allOf": [{"$ref": "#/$defs/Point"}]}, "object"),
        ({"type": "array", "items": POINT}, "array of object"),
        ({"type": "object", "additionalProperties": POINT}, "map of object"),
        ({"type": "object", "patternProperties": {"^a": POINT}}, "map of object"),
        (
            {
                "type": "object",
                "additionalProperties": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
            },
            "map of array of object",
        ),
    ],
)
def test_nested_object_is_found(schema: dict[str, Any], text: str) -> None:
    assert shown(of(schema, Point=POINT)) == [f"it  {text}", "  x  integer"]


def test_tuple_items_are_shown_by_index() -> None:
    schema = {"type": "array", "prefixItems": [{"type": "string"}, POINT]}
    assert shown(of(schema)) == [
        "it  array (string, object)",
        "  [0]  string",
        "  [1]  object",
        "    x  integer",
    ]


def test_tuple_of_simple_values_is_one_line() -> None:
    schema = {"type": "array", "prefixItems": [{"type": "number"}] * 2, "items": False}
    assert shown(of(schema)) == ["it  array (number, number)"]


def test_each_branch_is_shown_separately() -> None:
    circle = {"title": "Circle", **POINT}
    square = {"type": "object", "properties": {"side": {"type": "number"}}}
    schema = {"anyOf": [{"$ref": "#/$defs/Circle"}, square, {"type": "null"}]}
    assert shown(of(schema, Circle=circle)) == [
        "it  object | null",
        "  either  Circle",
        "    x  integer",
        "  or      object",
        "    side  number, optional",
    ]


def test_object_with_named_and_other_fields_shows_both() -> None:
    schema = {**POINT, "additionalProperties": {"type": "string"}}
    assert shown(of(schema)) == ["it  object", "  x         integer", "  (others)  string"]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 99}, "integer 1..99"),
        ({"type": "number", "exclusiveMinimum": 0.0, "maximum": 1.5}, "number <= 1.5 > 0"),
        ({"type": "integer", "minimum": 0, "multipleOf": 5}, "integer >= 0 multiple of 5"),
        ({"type": ["integer", "null"], "exclusiveMaximum": 9}, "integer < 9 | null"),
        ({"type": "string", "minLength": 1, "maxLength": 80}, "string of 1..80"),
        ({"type": "string", "minLength": 1}, "string of at least 1"),
        ({"type": "string", "maxLength": 8, "format": "date"}, "string (date) of at most 8"),
        ({"type": "string", "pattern": r"^\d{5}$"}, r"string ^\d{5}$"),
        ({"type": "array", "maxItems": 3}, "array of at most 3"),
        ({"type": "array", "minItems": 2, "maxItems": 2, "items": POINT}, "array of 2 object"),
        (
            {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 6}},
            "array of integer 1..6",
        ),
        (
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
            "array of (string | null)",
        ),
        (
            {"type": "object", "additionalProperties": {"type": ["integer", "string"]}},
            "map of (integer | string)",
        ),
    ],
)
def test_bounds_and_patterns_follow_the_type(schema: dict[str, Any], text: str) -> None:
    assert shown(of(schema))[0] == f"it  {text}"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "pattern": "a" * 10_000}, f"string {'a' * 190}..."),
        ({"type": "integer", "minimum": 10**5_000}, "integer >= ..."),
        ({"type": "integer", "minimum": True, "maximum": "9"}, "integer"),
        ({"type": "number", "minimum": float("inf"), "maximum": float("nan")}, "number"),
        ({"type": "string", "pattern": "a\nb", "minLength": []}, "string a b"),
        ({"type": "boolean", "minimum": 1, "pattern": "x"}, "boolean"),
    ],
)
def test_overlong_bounds_are_cut_or_omitted(schema: dict[str, Any], text: str) -> None:
    assert shown(of(schema)) == [f"it  {text}"]


# Untrusted schemas


def test_cyclic_schema_terminates() -> None:
    tree = {
        "type": "object",
        "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
    }
    assert shown(of({"$ref": "#/$defs/Tree"}, Tree=tree)) == [
        "it  object",
        "  below  array of object, optional",
        "    ...",
    ]


def test_reference_to_itself_terminates() -> None:
    assert shown(of({"$ref": "#/properties/it"})) == ["it  ...", "  ..."]


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def test_depth_is_bounded() -> None:
    lines = shown(deep(25))
    assert lines[-1].strip() == "..."
    assert len(lines) == 9


WIDE = {"properties": {f"p{i}": {"type": "string"} for i in range(20_000)}}
BRANCHING = of({"anyOf": [{"$ref": "#/properties/it"}] * 60})
FANNING = of(
    {"$ref": "#/$defs/A0"},
    **{
        f"A{i}": {
            "type": "object",
            "properties": {f"b{j}": {"$ref": f"#/$defs/A{i + 1}"} for j in range(40)},
        }
        for i in range(20)
    },
)
MANY_VALUES = of({"enum": ["x" * 1_000] * 10_000, "default": ["y" * 1_000] * 1_000})
TANGLED = of(
    {"$ref": "#/$defs/Knot"},
    Knot={
        "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Knot"}}] * 30,
        "prefixItems": [{"$ref": "#/$defs/Knot"}] * 30,
        "additionalProperties": {"$ref": "#/$defs/Knot"},
        "description": "z" * 10_000,
    },
)


@pytest.mark.parametrize("schema", [WIDE, BRANCHING, FANNING, MANY_VALUES, TANGLED])
def test_width_is_bounded(schema: dict[str, Any]) -> None:
    lines = shown(schema)
    assert len(lines) <= 1_000
    assert sum(len(line) for line in lines) <= 1_000_000
    assert any("..." in line for line in lines)
    assert list(read_arguments(("it:=[]",), schema)) == ["it"]


def test_overlong_reference_is_not_followed() -> None:
    assert shown(of({"$ref": "#" + "/properties/it" * 20_000})) == ["it  any"]


def test_thousand_tools_with_recursive_schemas_are_listed(toolbus: CommandLine) -> None:
    small = of({"anyOf": [{"$ref": "#/properties/it"}] * 20})
    program = f"""
from toolbus import Tool, Toolkit

class Knot(Tool):
    async def execute(self, context, /):
        return None

tools = [Knot(f"k{{i}}", {small!r}) for i in range(1_000)]
knots = Toolkit("knots", tools)
"""
    (toolbus.folder / "knots.py").write_text(program, encoding="utf-8")
    with toolbus.hosting("knots:knots"):
        lines = toolbus.run_here("tools", "knots").out.splitlines()
    assert len([line for line in lines if line.startswith("knots.k")]) == 1_000


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 7},
        {"properties": {"it": 7}},
        {"properties": {"it": {"type": 7, "items": 7, "anyOf": 7, "enum": 7, "$ref": 7}}},
        {"properties": {"it": {"anyOf": [7, True], "prefixItems": [7], "required": 7}}},
        {"properties": {"it": {"type": [7, None], "patternProperties": 7, "format": 7}}},
        {"properties": {"it": {"$ref": "#/properties/it/title", "title": 7, "description": 7}}},
        {"properties": {"it": {"$ref": "https://example.org/schema"}}, "required": [[]]},
    ],
)
def test_invalid_schema_is_shown_without_an_error(schema: dict[str, Any]) -> None:
    assert len(shown(schema)) <= 3
    assert read_arguments(("it:=1",), schema) == {"it": 1}


def test_untrusted_text_starts_no_new_line() -> None:
    forged = "a\n    forged"
    schema = {"type": "string", "description": forged, "default": forged, "format": forged}
    (line,) = shown({"properties": {forged: schema}})
    assert line == f"a forged  string (a forged) = {json.dumps(forged)}  a forged"


def test_columns_of_siblings_are_aligned() -> None:
    schema = {"properties": {"a": {"enum": ["x" * 99]}, "b": {"description": "B."}}}
    assert shown(schema)[1] == f"b  {'any, optional'.ljust(48)}  B."
