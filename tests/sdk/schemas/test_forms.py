"""Schemas in the forms of the providers: strict, plain and reduced."""

from __future__ import annotations

import re
from typing import Any

import pytest

from toolbus.schemas.forms import (
    ANTHROPIC,
    GEMINI,
    OPENAI,
    Dialect,
    SchemaForm,
    schema_form,
    strict_within_limits,
)

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NULL = {"type": "null"}
OR_NULL = {"anyOf": [TEXT, NULL]}
NONE_REQUIRED: Schema = {"required": []}
CLOSED = {"additionalProperties": False}
SAME = object()
"""The form is the schema."""
ROW = pytest.param
DEFS: Schema = {
    "Word": {"type": "string", "enum": ["a"]},
    "Tree": {"type": "object", "properties": {"tree": {"$ref": "#/$defs/Tree"}}},
    "Rows": {
        "type": "object",
        "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/Rows"}}},
        "required": ["rows"],
    },
    "Json": {"anyOf": [TEXT, {"type": "array", "items": {"$ref": "#/$defs/Json"}}]},
    "A": {"allOf": [{"$ref": "#/$defs/A"}], "minProperties": 1},
}


def parameter(schema: Any, dialect: Dialect) -> tuple[Any, bool]:
    """Return the form of one required parameter, and whether it is strict."""
    whole = {
        "type": "object",
        "properties": {"x": schema},
        "required": ["x"],
        "additionalProperties": False,
        "$defs": DEFS,
    }
    form = schema_form(whole, dialect)
    return form.schema["properties"]["x"], form.strict


def some(*names: str, **fields: Any) -> Schema:
    """Return an object of texts."""
    return {"type": "object", "properties": dict.fromkeys(names, TEXT), **fields}


# The schema of a parameter, then its strict forms for OpenAI and Anthropic, or None, and Gemini's.
TABLE = [
    ROW(
        {"type": "integer", "minimum": 1, "multipleOf": 2},
        SAME,
        {"type": "integer", "description": "(minimum: 1; multipleOf: 2)"},
        {"type": "integer", "minimum": 1, "description": "(multipleOf: 2)"},
        id="bounds of numbers",
    ),
    ROW(
        {**TEXT, "minLength": 1, "pattern": "^a", "format": "date", "description": "Day."},
        {**TEXT, "pattern": "^a", "format": "date", "description": "Day. (minLength: 1)"},
        {**TEXT, "format": "date", "description": 'Day. (minLength: 1; pattern: "^a")'},
        {**TEXT, "description": 'Day. (minLength: 1; pattern: "^a"; format: "date")'},
        id="bounds of texts",
    ),
    ROW(
        {**TEXT, "pattern": r"\p{L}", "format": "x", "default": "a", "title": "T"},
        *[{**TEXT, "description": r'T (pattern: "\\p{L}"; format: "x"; default: "a")'}] * 3,
        id="what not all take",
    ),
    ROW(
        {"const": True},
        *[{"type": "boolean", "const": True}] * 2,
        {"type": "boolean", "description": "(enum: [true])"},
        id="const",
    ),
    ROW(
        {"enum": ["a", 1, None, "a"]},
        *[{"type": ["string", "integer", "null"], "enum": ["a", 1, None]}] * 2,
        {"anyOf": [{**TEXT, "enum": ["a"]}, {"type": "integer", "enum": [1]}, NULL]},
        id="enum of several types",
    ),
    ROW({"enum": [{}]}, None, None, {"description": "(enum: [{}])"}, id="enum of objects"),
    ROW(
        {"enum": ["", "a"]},
        *[{**TEXT, "enum": ["", "a"]}] * 2,
        {**TEXT, "enum": ["a"], "description": '(or: "")'},
        id="enum with an empty text",
    ),
    ROW(
        {"enum": ["", None, 1]},
        *[{"type": ["string", "null", "integer"], "enum": ["", None, 1]}] * 2,
        {
            "anyOf": [
                {**TEXT, "description": '(only: "")'},
                NULL,
                {"type": "integer", "enum": [1]},
            ]
        },
        id="enum of an empty text, null and a number",
    ),
    ROW(
        {"const": "", "description": "Day."},
        *[{**TEXT, "const": "", "description": "Day."}] * 2,
        {**TEXT, "description": 'Day. (only: "")'},
        id="an empty text",
    ),
    ROW(
        {"type": "array", "items": {"type": ["string", "null"], "enum": ["", "a", None]}},
        *[
            {
                "type": "array",
                "items": {"type": ["string", "null"], "enum": ["", "a", None]},
            }
        ]
        * 2,
        {
            "type": "array",
            "items": {"anyOf": [{**TEXT, "enum": ["a"], "description": '(or: "")'}, NULL]},
        },
        id="a list of listed values",
    ),
    ROW({"type": ["string", "null"]}, SAME, SAME, SAME, id="several types"),
    ROW(
        {"type": ["object", "null"], "properties": {}},
        *[{"anyOf": [{**some(), "required": [], **CLOSED}, NULL]}] * 2,
        {"anyOf": [{"type": "object"}, NULL]},
        id="object or null",
    ),
    ROW(
        some("type", "required", "$ref", "enum", required=["type", "required"]),
        {
            "type": "object",
            "properties": {
                **dict.fromkeys(("type", "required"), TEXT),
                **{name: {"type": ["string", "null"]} for name in ("$ref", "enum")},
            },
            "required": ["type", "required", "$ref", "enum"],
            **CLOSED,
        },
        some("type", "required", "$ref", "enum", required=["type", "required"], **CLOSED),
        SAME,
        id="names of keywords, optional",
    ),
    ROW(
        {"type": "object", "additionalProperties": TEXT},
        None,
        None,
        SAME,
        id="map",
    ),
    ROW({"type": "object"}, None, None, SAME, id="free-form object"),
    ROW({**some("a"), "additionalProperties": True}, None, None, SAME, id="open object"),
    ROW(
        {**some("a"), "patternProperties": {"^x": TEXT}},
        None,
        None,
        {**some("a"), "description": '(patternProperties: {"^x": {"type": "string"}})'},
        id="properties by pattern",
    ),
    ROW(
        {**some("a"), "required": ["b"]},
        None,
        None,
        {"type": "object", "properties": {"a": TEXT, "b": {}}, "required": ["b"]},
        id="required, not declared",
    ),
    ROW({}, None, None, SAME, id="any value"),
    ROW(True, None, None, {}, id="true"),
    ROW({"type": "array"}, None, None, {"type": "array", "items": {}}, id="any items"),
    ROW(
        {"type": "array", "prefixItems": [TEXT, {"type": "integer"}], "maxItems": 2},
        {
            "type": "array",
            "description": '(prefixItems: [{"type": "string"}, {"type": "integer"}])',
            "items": {"anyOf": [TEXT, {"type": "integer"}]},
            "maxItems": 2,
        },
        {
            "type": "array",
            "description": '(maxItems: 2; prefixItems: [{"type": "string"}, {"type": "integer"}])',
            "items": {"anyOf": [TEXT, {"type": "integer"}]},
        },
        {"type": "array", "prefixItems": [TEXT, {"type": "integer"}], "items": {}, "maxItems": 2},
        id="tuple",
    ),
    ROW(
        {"type": "array", "items": TEXT, "minItems": 2, "uniqueItems": True},
        {"type": "array", "items": TEXT, "minItems": 2, "description": "(uniqueItems: true)"},
        {"type": "array", "items": TEXT, "description": "(minItems: 2; uniqueItems: true)"},
        {"type": "array", "items": TEXT, "minItems": 2, "description": "(uniqueItems: true)"},
        id="bounds of arrays",
    ),
    ROW(
        {"anyOf": [{"const": "a"}, {"const": "b"}]},
        *[{**TEXT, "enum": ["a", "b"]}] * 3,
        id="union of constants",
    ),
    ROW(
        {"oneOf": [TEXT, NULL], "description": "Day."},
        *[{"anyOf": [TEXT, NULL], "description": "Day. (exactly one of these)"}] * 3,
        id="oneOf",
    ),
    ROW(
        {**some("a"), **CLOSED, "anyOf": [{"required": ["a"]}, {"maxProperties": 0}, False]},
        {
            "anyOf": [
                some("a", required=["a"], **CLOSED),
                {
                    "type": "object",
                    "description": "(maxProperties: 0)",
                    "properties": {"a": {"type": ["string", "null"]}},
                    "required": ["a"],
                    **CLOSED,
                },
            ]
        },
        *[
            {
                "anyOf": [
                    some("a", required=["a"], **CLOSED),
                    some("a", description="(maxProperties: 0)", **rest, **CLOSED),
                ]
            }
            for rest in (NONE_REQUIRED, {})
        ],
        id="union beside properties",
    ),
    ROW(
        {"allOf": [some("a", required=["a"]), {"properties": {"a": {"enum": ["x"]}, "b": False}}]},
        *[some(required=["a"], **CLOSED) | {"properties": {"a": {**TEXT, "enum": ["x"]}}}] * 2,
        some(required=["a"]) | {"properties": {"a": {**TEXT, "enum": ["x"]}}},
        id="allOf",
    ),
    ROW(
        {"allOf": [{"minimum": 1, "maximum": 5}, {"type": ["integer", "null"], "minimum": 2}]}
        | {"maximum": 4, "type": ["string", "number"]},
        {"type": "integer", "minimum": 2, "maximum": 4},
        {"type": "integer", "description": "(minimum: 2; maximum: 4)"},
        {"type": "integer", "minimum": 2, "maximum": 4},
        id="allOf of bounds",
    ),
    ROW(
        {**CLOSED, "type": "object", "properties": {"a": OR_NULL, "b": {"$ref": "#/$defs/Word"}}},
        {
            "type": "object",
            "properties": {"a": OR_NULL, "b": {"anyOf": [{"$ref": "#/$defs/Word"}, NULL]}},
            "required": ["a", "b"],
            **CLOSED,
        },
        {
            "type": "object",
            "properties": {"a": OR_NULL, "b": {"$ref": "#/$defs/Word"}},
            "required": [],
            **CLOSED,
        },
        SAME,
        id="optional, one takes null",
    ),
    ROW(
        {**TEXT, "not": {"const": "x"}, "if": {"minLength": 1}, "then": False},
        *[
            {
                **TEXT,
                "description": '(not: {"const": "x"}; if: {"minLength": 1}; then: false)',
            }
        ]
        * 3,
        id="conditions",
    ),
    ROW(
        {"$ref": "#/$defs/Word", "description": "Day."},
        {"anyOf": [{"$ref": "#/$defs/Word"}], "description": "Day."},
        {**TEXT, "enum": ["a"], "description": "Day."},
        {"anyOf": [{"$ref": "#/$defs/Word"}], "description": "Day."},
        id="described reference",
    ),
    ROW({"$ref": "#/$defs/Tree"}, SAME, None, SAME, id="recursive"),
    ROW({"$ref": "#/$defs/A"}, None, None, {"$ref": "#/$defs/A"}, id="applies itself in place"),
]


@pytest.mark.parametrize(("schema", "openai", "anthropic", "gemini"), TABLE)
def test_form_of_a_parameter(schema: Any, openai: Any, anthropic: Any, gemini: Any) -> None:
    for dialect, strict in ((OPENAI, openai), (ANTHROPIC, anthropic)):
        expected = schema if strict is SAME else strict
        found, is_strict = parameter(schema, dialect)
        assert is_strict == (expected is not None), dialect.name
        if is_strict:
            assert found == expected
    assert parameter(schema, GEMINI) == (schema if gemini is SAME else gemini, False)


def test_plain_form_keeps_all_keywords_and_has_items_for_every_array() -> None:
    row = {"type": "array", "prefixItems": [TEXT], "items": False, "$comment": "ours"}
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "row": row,
            "rest": {"type": ["array", "null"]},
            "no": {"if": TEXT, "then": {"$ref": "#/properties/row"}, "else": False},
            "open": {"type": "object", "unevaluatedProperties": True, "title": "Open"},
        },
        "additionalProperties": TEXT,
        "definitions": {"unused": TEXT},
    }
    for dialect in (OPENAI, ANTHROPIC):
        form = schema_form(whole, dialect)
        assert not form.strict
        assert form.schema == {
            "type": "object",
            "properties": {
                "row": {"type": "array", "prefixItems": [TEXT], "items": {}, "maxItems": 1},
                "rest": {"type": ["array", "null"], "items": {}},
                "no": {"if": TEXT, "then": {"$ref": "#/$defs/row"}, "else": {"not": {}}},
                "open": {"type": "object", "unevaluatedProperties": True, "title": "Open"},
            },
            "additionalProperties": TEXT,
            "$defs": {"row": {"type": "array", "prefixItems": [TEXT], "items": {}, "maxItems": 1}},
        }


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC, GEMINI], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("others", "expected"),
    [({}, {"b": {}}), ({"additionalProperties": TEXT}, {"b": TEXT}), (CLOSED, None)],
)
def test_what_is_required_is_a_property(
    dialect: Dialect, others: Any, expected: dict[str, Any] | None
) -> None:
    part = {"type": "object", "properties": {"a": TEXT}, "required": ["a", "b"], **others}
    whole = {**part, "properties": {"a": TEXT, "in": part}}
    form = schema_form({**whole, "required": ["a", "b", "not a name"]}, dialect)
    for found in (form.schema, form.schema["properties"]["in"]):
        assert {*found["required"]} == {"a", *(expected or {})}
        assert {**found["properties"], "in": 0} == {"a": TEXT, "in": 0, **(expected or {})}


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC, GEMINI], ids=lambda each: each.name)
def test_root_is_one_object(dialect: Dialect) -> None:
    branches = [
        some("path", required=["kind"], **CLOSED),
        {**some("path", "url", required=["kind", "url"], **CLOSED), "minProperties": 2},
        NULL,
    ]
    for kind, branch in zip("ab", branches, strict=False):
        branch["properties"] = {"kind": {"const": kind}, **branch["properties"]}
    unions = {"oneOf": branches, "not": {"required": ["no"]}, "enum": [{}], "description": "Do."}
    for whole in (
        unions,
        {"$ref": "#/$defs/all", "$defs": {"all": unions}},
        {"allOf": [unions, {"type": ["object", "null"]}]},
    ):
        form = schema_form(whole, dialect).schema
        assert form["type"] == "object"
        assert form["description"].endswith(
            'exactly one of: {kind: "a", path?} | {kind: "b", path?, url};'
            ' not: {"required": ["no"]}; enum: [{}])'
        )
        assert form.keys() == {
            *("type", "properties", "required", "description", "additionalProperties")
        }
        assert form["properties"].keys() == {"kind", "path", "url"}
        assert form["required"] == (["kind", "path", "url"] if dialect is OPENAI else ["kind"])


@pytest.mark.parametrize(
    "whole", [{"type": "object"}, {}, {"$ref": "#"}, {"anyOf": [{}, {"$ref": "#"}]}]
)
def test_root_that_says_little_is_an_object(whole: Schema) -> None:
    for dialect in (OPENAI, ANTHROPIC, GEMINI):
        form = schema_form(whole, dialect)
        assert (form.schema["type"], form.schema["properties"]) == ("object", {})
        assert not form.strict


def test_parameters_have_names_that_the_provider_takes() -> None:
    names = {
        "filter[id]": "filter_id",
        "user.name": "user_name",
        "x-y": "x_y",
        "9": "_9",
        "": "parameter",
        "a" * 65: "a" * 55 + "_635361c4",
        "$ref": "ref",
        "ref": "ref",
        "ä": "parameter_",
    }
    whole = some(*names, required=["filter[id]", "user.name"], **CLOSED)
    for dialect in (OPENAI, ANTHROPIC, GEMINI):
        form = schema_form(whole, dialect).schema
        for name, alias in zip(names, form["properties"], strict=True):
            kept = dialect is not GEMINI and name in ("user.name", "x-y", "9")
            expected = name if kept else names[name]
            assert alias == expected or re.fullmatch(f"{expected}_?[0-9a-f]{{8}}", alias)
            described = "description" in form["properties"][alias]
            assert described == (alias != name)
        assert form["required"][:1] == ["filter_id"]
        assert form["properties"]["filter_id"]["description"] == '(name: "filter[id]")'


def test_a_free_form_root_stays_so_where_a_condition_has_a_name_with_an_alias() -> None:
    then = {"properties": {"filter[id]": TEXT}}
    schema = {"type": "object", "if": {"required": ["kind"]}, "then": then}
    for dialect in (OPENAI, ANTHROPIC):
        assert not schema_form(schema, dialect).strict


def nested(levels: int) -> Schema:
    found = TEXT
    for _ in range(levels):
        found = {"type": "object", "properties": {"a": found}, "required": ["a"], **CLOSED}
    return found


@pytest.mark.parametrize(
    ("fits", "too_much"),
    [
        (nested(10), nested(11)),
        (some(*map(str, range(4_999))), some(*map(str, range(5_001)))),
        (
            some() | {"properties": {"a": {"enum": [*range(999)]}}},
            some() | {"properties": {"a": {"enum": [*range(1_001)]}}},
        ),
        (
            some() | {"properties": {"a": {"enum": [f"{each:059}" for each in range(251)]}}},
            some() | {"properties": {"a": {"enum": [f"{each:060}" for each in range(251)]}}},
        ),
        (some("a" * 64, "b"), some(*(f"{each:060}" for each in range(2_001)))),
    ],
    ids=["levels", "properties", "values", "a long enum", "characters"],
)
def test_strict_form_of_openai_is_within_its_limits(fits: Schema, too_much: Schema) -> None:
    assert schema_form({**fits, **CLOSED}, OPENAI).strict
    assert not schema_form({**too_much, **CLOSED}, OPENAI).strict


def test_levels_of_definitions_that_lead_to_a_recursive_one_count() -> None:
    def node(name: str) -> Schema:
        inner = {"$ref": f"#/$defs/{name}"}
        return {"type": "object", "properties": {"a": inner}, "required": ["a"], **CLOSED}

    def chain(length: int) -> Schema:
        definitions = {f"d{number}": node(f"d{number + 1}") for number in range(length)}
        last = {"anyOf": [{"$ref": f"#/$defs/d{length}"}, {"type": "null"}]}
        definitions[f"d{length}"] = {**node(""), "properties": {"a": last}}
        return {**node("d0"), "$defs": definitions}

    assert schema_form(chain(8), OPENAI).strict
    assert not schema_form(chain(9), OPENAI).strict


def test_strict_forms_of_anthropic_are_within_the_limits_of_a_request() -> None:
    def sent(*schemas: Schema) -> list[bool]:
        forms = [schema_form({**each, **CLOSED}, ANTHROPIC) for each in schemas]
        assert all(form.strict for form in forms)
        found = strict_within_limits(forms)
        for form, one in zip(forms, found, strict=True):
            assert one is (form if one.strict else form.plain)
        return [form.strict for form in found]

    assert sent(*[some()] * 22) == [True] * 20 + [False] * 2
    ten, five = some(*"abcdefghij"), some(*"abcde")
    assert sent(ten, ten, ten, five, some("a"), some()) == [True, True, False, False, True, True]
    unions = {"type": "object", "properties": dict.fromkeys("abcdefghi", OR_NULL)}
    unions["required"] = list("abcdefghi")
    assert sent(unions, unions, some()) == [True, False, True]
    pair = {"$ref": "#/$defs/pair"}
    twice = {
        "type": "object",
        "properties": {"x": pair, "y": pair},
        "required": ["x", "y"],
        "$defs": {"pair": some(*"abcdefghijklm")},
    }
    assert sent(twice, some("a")) == [False, True]
    assert not strict_within_limits([SchemaForm({}, False)])[0].strict


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("Tree", {"properties": {"tree": {"$ref": "#/$defs/Tree"}}, "type": "object"}),
        (
            "Rows",
            {
                "type": "object",
                "description": "(rows is required)",
                "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/Rows"}}},
            },
        ),
        ("Json", {"anyOf": [TEXT, {"type": "array", "items": {}}]}),
    ],
)
def test_cycles_pass_an_optional_property_for_gemini(name: str, definition: Schema) -> None:
    whole = some() | {"properties": {"x": {"$ref": f"#/$defs/{name}"}}, "$defs": DEFS}
    assert schema_form(whole, GEMINI).schema["$defs"] == {name: definition}


def test_parts_named_in_other_ways_are_found_and_other_drafts_are_read() -> None:
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.org/tool",
        "type": "object",
        "properties": {
            "a": {"$ref": "https://example.org/tool#/definitions/b", "type": "null"},
            "c": {"type": "array", "items": [TEXT]},
            "d": {"$ref": "https://elsewhere.org/x"},
        },
        "definitions": {"b": {**TEXT, "$id": "#b"}},
    }
    form = schema_form(whole, GEMINI).schema
    assert form["properties"] == {
        "a": {"$ref": "#/$defs/b"},
        "c": {"type": "array", "prefixItems": [TEXT], "items": {}},
        "d": {},
    }
    assert form["$defs"] == {"b": TEXT}
    assert "elsewhere" not in str(form["properties"])
    assert "/properties/d/$ref: it leads to no part" in form["description"]


@pytest.mark.parametrize("whole", [{"not": {}}, {"anyOf": [TEXT]}, {"allOf": [False]}])
def test_schema_without_any_call_is_refused(whole: Schema) -> None:
    for dialect in (OPENAI, ANTHROPIC, GEMINI):
        with pytest.raises(ValueError, match="no object matches"):
            schema_form(whole, dialect)


@pytest.mark.parametrize(
    "whole",
    [
        {"properties": ["a"], "required": {}},
        {"properties": {"a": {"type": "what", "items": 3, "anyOf": {}}}},
        {"properties": {"a": {"$ref": 7, "enum": 3}, "b": None}},
        {"properties": {"a": {"type": "array", "additionalItems": {"$ref": 7}}}},
        {"properties": {"a": {"additionalItems": {"enum": 3, "required": 4, "items": [{}]}}}},
        {"properties": {"a": {"dependentRequired": {}, "dependencies": {"b": {"$ref": []}}}}},
    ],
)
def test_broken_schema_of_somebody_else_has_a_form(whole: Schema) -> None:
    for dialect in (OPENAI, ANTHROPIC, GEMINI):
        assert schema_form(whole, dialect).schema["type"] == "object"


def chain(length: int, **beside: Any) -> Schema:
    """Return definitions that each use the next one."""
    defs = {
        f"d{each}": {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/d{each + 1}", **beside}},
        }
        for each in range(length)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{length}": TEXT}}


@pytest.mark.parametrize(
    "whole",
    [
        chain(2_000),
        chain(2_000, description="Next."),
        chain(2_000, minProperties=1),
        {"$defs": {f"d{each}": {"$ref": f"#/$defs/d{each + 1}"} for each in range(2_000)}}
        | {"properties": {"a": {"$ref": "#/$defs/d0"}}},
        {
            "$defs": {
                f"d{each}": {"allOf": [{"$ref": f"#/$defs/d{each + 1}"}] * 2} for each in range(40)
            }
        }
        | {"properties": {"a": {"$ref": "#/$defs/d0"}}},
        {
            "properties": {
                "a": {
                    **some(*map(str, range(999))),
                    "anyOf": [some(str(each)) for each in range(999)],
                }
            }
        },
        {"allOf": [some(str(each)) for each in range(2_000)]},
        {
            "properties": {
                "a": {"enum": [*range(5_000)], "anyOf": [{"minimum": each} for each in range(999)]}
            }
        },
    ],
    ids=["chain", "described", "beside", "references", "doubled", "branches", "merged", "enum"],
)
def test_large_schemas_have_a_form_within_bounds(whole: Schema) -> None:
    for dialect in (OPENAI, ANTHROPIC, GEMINI):
        form = schema_form(whole, dialect)
        assert form.schema["type"] == "object"
        assert len(str(form.schema)) < 2_000_000


def test_forms_are_kept_by_the_identity_of_the_schema() -> None:
    whole, equal = some("a"), some("a")
    assert schema_form(whole, OPENAI) is schema_form(whole, OPENAI)
    assert schema_form(equal, OPENAI) is not schema_form(whole, OPENAI)
    assert whole == equal, "not changed"


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC, GEMINI], ids=lambda each: each.name)
def test_notes_have_no_hidden_characters(dialect: Dialect) -> None:
    hidden = "a\u200b\u202eb"
    asked = {"type": "string", "default": hidden, "pattern": f"(?:{hidden})"}
    properties = {hidden: asked, "map": {"type": "object", "patternProperties": {hidden: True}}}
    whole = {"type": "object", "properties": properties, "additionalProperties": False}
    form = schema_form(whole, dialect).schema
    words = [part.get("description", "") for part in form["properties"].values()]
    assert "a\\u200b\\u202eb" in words[0]
    assert "\u200b" not in "".join(words)
