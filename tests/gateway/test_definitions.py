"""Tools in the form of MCP: what the SDK lists, and what clients check results with."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any, cast

import pytest
from jsonschema import validators  # type: ignore[import-untyped]  # it has no types
from mcp_types import methods
from referencing import Registry

from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.wire import ToolkitManifest, ToolManifest
from toolbus_gateway.definitions import Definitions
from toolbus_gateway.listing import Target
from toolbus_gateway.output_schemas import output_schema
from toolbus_gateway.tool_definitions import ToolDefinition

VERSIONS = ("2025-11-25", "2026-07-28")
HIDDEN, SEEN = "a\u200bb", "a\\u200bb"
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}


def made(**fields: Any) -> ToolDefinition:
    """Return the definition of a tool of a toolkit with a rule."""
    tool = ToolManifest(name="tool", **{"input_schema": {}, **fields})
    return ToolDefinition.of(ToolkitManifest(name="kit", rules=("of all",), tools=(tool,)), tool)


def listed(definition: ToolDefinition, version: str) -> dict[str, Any]:
    """Return the tool as the SDK sends it."""
    result = {"tools": [{"name": "tool", **definition.body}], "ttlMs": 0, "cacheScope": "private"}
    result["resultType"] = "complete"
    (tool,) = methods.serialize_server_result("tools/list", version, result)["tools"]
    found: dict[str, Any] = tool
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, {}),
        ({"$ref": "#/$defs/A", "$defs": {"A": {}}}, {"$ref": "#/$defs/A", "$defs": {"A": {}}}),
        ({"anyOf": [{"required": ["a"]}]}, {"anyOf": [{"required": ["a"]}]}),
        ({"type": ["object", "null"]}, {}),
        ({"type": "array"}, {}),
        ({"properties": {"a": True}}, {"properties": {"a": True}}),
        ({"properties": {"a": 5, "b": {}}}, {"properties": {"b": {}}}),
        ({"properties": [], "required": "a", "$schema": 5}, {}),
        ({"required": ["a", 5]}, {}),
        (
            {"properties": {HIDDEN: {"enum": [HIDDEN], "title": HIDDEN, "default": HIDDEN}}},
            {"properties": {HIDDEN: {"enum": [HIDDEN], "title": SEEN, "default": HIDDEN}}},
        ),
        ({"description": "x" * 5_000}, {"description": "x" * 5_000}),
    ],
)
def test_input_schema_is_of_an_object(
    given: dict[str, Any], shown: dict[str, Any], version: str
) -> None:
    assert listed(made(input_schema=given), version)["inputSchema"] == {**shown, "type": "object"}


def test_words_can_be_seen_and_flags_are_annotations() -> None:
    tool = made(title=HIDDEN, description=HIDDEN, rules=("first",), read_only=True, open_world=True)
    assert listed(tool, VERSIONS[0]) == {
        "name": "tool",
        "title": SEEN,
        "description": f"{SEEN}\n\nfirst\n\nof all",
        "inputSchema": {"type": "object"},
        "annotations": {
            "title": SEEN,
            "readOnlyHint": True,
            "destructiveHint": False,
            "idempotentHint": False,
            "openWorldHint": True,
        },
    }


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [3], ["3"]),
        ({"type": "object", "required": ["a"]}, [{"a": 1}], [{}]),
        ({"$ref": "#/$defs/Node", "$defs": {"Node": NODE}}, [], [{"next": {}}, {}]),
        (
            {"type": "array", "items": {"$ref": "#/$defs/A"}, "$defs": {"A": {"type": "string"}}},
            [["a"]],
            [[1]],
        ),
        ({"type": "array", "items": {"$ref": "#"}}, [[[], [[]]]], [[3], [[3]]]),
        ({"type": ["object", "null"]}, [None, {}], [3]),
        (
            {
                "type": "array",
                "items": {"$ref": "#a"},
                "$defs": {"A": {"$anchor": "a", "enum": [1]}},
            },
            [[1]],
            [[2]],
        ),
        (
            {
                "$id": "http://example.com/all",
                "type": "array",
                "items": {"$ref": "http://example.com/part"},
                "$defs": {"P": {"$id": "http://example.com/part", "type": "string"}},
            },
            [["a"]],
            [[1]],
        ),
        # What cannot be moved, or read, checks nothing.
        ({"type": "string", "pattern": r"(?P<name>a)\Z"}, ["b"], [3]),
        ({"$dynamicAnchor": "n", "type": "array", "items": {"$dynamicRef": "#n"}}, [[[]]], [3]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}, ["a"], [1]),
        ({"type": "array", "items": {"$ref": "http://example.com/gone"}}, [[1]], [1]),
        ({"type": "string", "pattern": "^[a-z]{2}$"}, ["ab"], ["a1"]),
    ],
)
def test_clients_check_results_with_the_output_schema(
    schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    tool = made(output_schema=schema)
    for version in VERSIONS:
        shown = listed(tool, version)["outputSchema"]
        assert shown["type"] == "object"
        kind = validators.validator_for(shown)
        kind.check_schema(shown)
        check = kind(shown, registry=Registry())

        def accepts(value: Any, check: Any = check) -> bool:
            return bool(check.is_valid({"result": value} if tool.is_wrapped else value))

        assert all(map(accepts, good))
        assert not any(map(accepts, bad))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "string", "pattern": r"\p{L}"},
        {"type": "string", "pattern": "(?<n>a)"},
        {"type": "object", "patternProperties": {r"\@": {}}},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
    ],
)
def test_schema_that_not_all_clients_compile_is_left_out(schema: dict[str, Any]) -> None:
    assert output_schema(schema).schema is None


class Described:
    """Gives a toolkit as a room describes it, and counts how often it is asked."""

    def __init__(self, *tools: ToolManifest, digest: str = "d") -> None:
        self.manifest = ToolkitManifest(name="kit", tools=tools)
        names = tuple(tool.name for tool in tools)
        self.info = ToolkitInfo("kit", "", "", "", digest, True, "host", 1, names)
        self.count = 0

    async def __call__(self) -> ToolkitProxy:
        self.count += 1
        return ToolkitProxy(cast(Any, None), self.info, self.manifest, {})


def tool(name: str, words: str = "", **fields: Any) -> ToolManifest:
    """Return a tool."""
    return ToolManifest(name=name, description=words, input_schema={}, **fields)


async def test_definition_is_made_once_for_all_members() -> None:
    definitions = Definitions()
    one, other = Described(tool("a")), Described(tool("a"), tool("b"))
    at_once = [definitions.tools_of(one.info, one) for _ in range(3)]
    first, second, third = await asyncio.gather(*at_once)
    assert first[0] is second[0] is third[0]
    found = await definitions.tools_of(other.info, other)
    assert found[0] is first[0]
    assert await definitions.tools_of(one.info, one) == first
    assert (one.count, other.count) == (3, 1)
    assert definitions.listing(found, Target()) is definitions.listing([*found], Target())
    assert definitions.listing(found, Target("kit")).tools.keys() == {"a", "b"}


async def test_definitions_of_toolkits_that_nobody_reads_are_dropped() -> None:
    kits = [Described(tool("a", f"{n}" * 10_000), digest=f"{n}") for n in range(10)]
    definitions = Definitions(max_bytes=40_000)
    for kit in kits:
        await definitions.tools_of(kits[0].info, kits[0])
        await definitions.tools_of(kit.info, kit)
        assert 10_000 <= definitions.bytes <= 40_000
    assert [kit.count for kit in kits] == [1] * 10
    await definitions.tools_of(kits[1].info, kits[1])
    assert kits[1].count == 2


async def test_many_small_values_count_by_their_memory() -> None:
    kit = Described(replace_schema(tool("a"), {"allOf": [{} for _ in range(1_000)]}))
    definitions = Definitions()
    await definitions.tools_of(kit.info, kit)
    assert definitions.bytes >= 64 * 1_000


def replace_schema(tool: ToolManifest, schema: dict[str, Any]) -> ToolManifest:
    """Return a tool with another input schema."""
    return tool.model_copy(update={"input_schema": schema})


async def test_tools_that_need_more_than_arguments_are_left_out_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "toolbus_gateway")
    needing = [tool(f"t{n}", takes="attachment", takes_required=True) for n in range(5)]
    part = Described(tool("a"), *needing[:1], digest="one")
    kit = Described(tool("a"), tool("b", takes="input"), *needing)
    definitions = Definitions()
    await definitions.tools_of(part.info, part)
    for digest in ("one", "one", "two"):
        kit.info = replace(kit.info, digest=digest)
        listing = definitions.listing(await definitions.tools_of(kit.info, kit), Target())
        assert [*listing.tools] == ["kit__a", "kit__b"]
    said = [record.getMessage() for record in caplog.records]
    assert [text[: text.index(" of")] for text in said] == ["1 tools", "4 tools", "5 tools"]
    assert said[1].endswith("t1 (attachment), t2 (attachment), t3 (attachment), ...")
