"""Schemas that somebody else wrote: what is left compiles here, quickly, and accepts as much."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolbus.schemas.foreign import usable_schema
from toolbus.schemas.validation import JsonCheck

TEXT = {"type": "string"}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def chain(length: int, link: Any, last: Any) -> dict[str, Any]:
    """Definitions that each lead to the next one."""
    defs = {f"a{n}": link(ref(f"a{n + 1}")) for n in range(length)}
    return {"$defs": {**defs, f"a{length}": last}, **ref("a0")}


def deep(levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = {"x": value}
    return value


MANY_NAMES = [str(number) for number in range(20_000)]


def branches(branch: dict[str, Any], link: Any = dict) -> dict[str, Any]:
    """Properties that each refer to one schema in three branches."""
    choice = {"anyOf": [link(ref("e"))] * 3}
    return {"$defs": {"e": branch}, "properties": {f"p{n}": choice for n in range(600)}}


# What is dropped


@pytest.mark.parametrize(
    ("schema", "left", "dropped"),
    [
        ({"type": "any"}, {}, ["/type"]),
        ({"type": ["string", "any"]}, {}, ["/type"]),
        ({"required": None}, {}, ["/required"]),
        ({"properties": {"a": {"required": True}}}, {"properties": {"a": {}}}, ["/a/required"]),
        ({"properties": {"a": None}}, {"properties": {"a": True}}, ["/properties/a"]),
        ({"properties": [], "minProperties": 1}, {"minProperties": 1}, ["/properties"]),
        ({"$schema": "http://example.com/x", **TEXT}, TEXT, ["/$schema"]),
        ({"maximum": 2**64, "minimum": -(2**63)}, {"minimum": -(2**63)}, ["/maximum"]),
        ({"maximum": float("inf")}, {}, ["/maximum"]),
        ({"minLength": -1, "maxLength": 1.5, "minItems": True}, {}, ["/minL", "/maxL", "/minI"]),
        ({"multipleOf": 0}, {}, ["/multipleOf"]),
        ({"title": 3, "default": "\ud800", "examples": {}}, {}, ["/title", "/default", "/exa"]),
        ({"pattern": r"^(?!\.)(?!.*\.\.)[a-z]+$", **TEXT}, TEXT, ["/pattern: a pattern with look"]),
        ({"pattern": r"(a)\1"}, {}, ["/pattern: a pattern with a back-reference"]),
        ({"pattern": r"^[\w-.]+$"}, {}, ["/pattern: the pattern is not valid"]),
        ({"allOf": [{"pattern": f"[\\w-.]{n}"} for n in range(9)]}, {"allOf": [{}] * 9}, ["/"] * 9),
        ({"pattern": "a" * 1_025}, {}, ["/pattern"]),
        ({"$ref": "https://example.com/x.json"}, {}, ["/$ref"]),
        ({"$ref": "#/$defs/none", "$defs": {}}, {"$defs": {}}, ["/$ref"]),
        ({"$ref": "#"}, {}, ["/$ref"]),
        ({"$dynamicRef": "#x", "$recursiveRef": "#"}, {}, ["/$dynamicRef", "/$recursiveRef"]),
        ("no schema", {}, ["/"]),
        (False, {"not": {}}, []),
    ],
)
def test_what_cannot_be_checked_is_dropped_keyword_by_keyword(
    schema: Any, left: dict[str, Any], dropped: list[str]
) -> None:
    usable = usable_schema(schema)
    assert usable.schema == left
    assert len(usable.dropped) == len(dropped)
    for line, part in zip(usable.dropped, dropped, strict=True):
        assert part in line


TOO_LARGE = "the repeats of the pattern are larger than is checked here"


@pytest.mark.parametrize(
    "pattern",
    [
        *("^.{1,100000}$", ".{0,5000}", "^.{5000}", "^.{100000,}$", r"^[\s\S]{0,100000}$"),
        *(r"^\w{1,100000}$", r"^[^\s]{1,100000}$", r"\S{1,9999}x", r"[^/]{5,9999}", "[a-z]{99999}"),
        *(
            r"^\p{L}{1,200}$",
            r"[\p{L}\p{N}]{99}?",
            r"\P{Lu}{400}",
            "[à-ü]{1,9999}",
            r"\u00e9{9999}",
        ),
        *("(?:(?:a?){90}){90}[bc]", "((a{10}){10}){100}", "(?:a{1,1000}){1,50}", "(?<n>.{9}){99}"),
        *("^(a|b){1,100000}$", "(x|.{1,100000})", "(?:ab|(c|d){50}){0,50}", "(?i)[a-z]{2000}"),
        *("a{0,1000}" * 13 + "[yz]", "(" * 50 + "a" + "){1,9}" * 50),
    ],
)
def test_a_pattern_with_repeats_that_are_too_large_is_dropped_alone(pattern: str) -> None:
    usable = usable_schema({"allOf": [{"pattern": pattern, **TEXT}, {"pattern": "^[a-z]{1,63}$"}]})
    assert usable.schema == {"allOf": [TEXT, {"pattern": "^[a-z]{1,63}$"}]}
    assert usable.dropped == (f"/allOf/0/pattern: {TOO_LARGE}",)


NOT_CHECKED = {"pattern": "(?=a)"}


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"not": NOT_CHECKED}, {}),
        ({"oneOf": [NOT_CHECKED, TEXT]}, {"anyOf": [{}, TEXT]}),
        ({"if": NOT_CHECKED, "then": False, "else": False}, {}),
        ({"contains": NOT_CHECKED, "maxContains": 1}, {"contains": {}}),
        (
            {"patternProperties": {"(?=a)": TEXT, "^b": TEXT}, "additionalProperties": False},
            {"patternProperties": {"^b": TEXT}},
        ),
        (
            {"allOf": [{"properties": 1}], "unevaluatedProperties": False},
            {"allOf": [{}]},
        ),
        (
            {"not": ref("a"), "$defs": {"a": {"items": NOT_CHECKED}}},
            {"$defs": {"a": {"items": {}}}},
        ),
    ],
)
def test_what_would_refuse_more_because_of_it_is_dropped_too(
    schema: dict[str, Any], left: dict[str, Any]
) -> None:
    assert usable_schema(schema).schema == left


DEPENDENT = {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": TEXT}}
ALONE = {"$ref": "#/definitions/a", "title": "A", "definitions": {"a": TEXT}}
SPACED = {"$defs": {"a b": TEXT}}
INNER = {"$id": "b", "$defs": {"c": TEXT}, "$ref": "#/$defs/c"}


@pytest.mark.parametrize(
    ("draft", "schema", "left"),
    [
        ("draft-04", {"minimum": 3, "exclusiveMinimum": True}, {"exclusiveMinimum": 3}),
        ("draft-04", {"const": 1, "contains": {}}, {}),
        ("draft-07", {"items": [TEXT]}, {"prefixItems": [TEXT]}),
        (
            "draft-07",
            {"items": [{}], "additionalItems": False},
            {"prefixItems": [{}], "items": False},
        ),
        ("draft-07", {"dependencies": {"a": ["b"], "c": TEXT}}, DEPENDENT),
        ("draft-07", {**ALONE, "type": "null"}, ALONE),
        ("2019-09", {"$anchor": "me", "items": {"$ref": "#me"}}, {"items": {"$ref": "#"}}),
        (
            "2020-12",
            {"$id": "u:x", "$ref": "u:x#/$defs/a b", **SPACED},
            {"$ref": "#/$defs/a%20b", **SPACED},
        ),
        (
            "2020-12",
            {"$defs": {"a": INNER}},
            {"$defs": {"a": {"$defs": {"c": TEXT}, "$ref": "#/$defs/a/$defs/c"}}},
        ),
    ],
)
def test_an_older_draft_is_written_as_2020_12_and_references_as_pointers(
    draft: str, schema: dict[str, Any], left: dict[str, Any]
) -> None:
    usable = usable_schema({"$schema": f"http://json-schema.org/{draft}/schema#", **schema})
    assert usable == (left, ())


NODE = {"$defs": {"n": {"properties": {"c": {"items": ref("n")}}}}, "properties": {"top": ref("n")}}
ANY_JSON = {"anyOf": [TEXT, {"items": ref("j")}, {"additionalProperties": ref("j")}]}
FILTER = {"anyOf": [{"properties": {name: {"items": ref("f")}}} for name in ("and", "or")]}


@pytest.mark.parametrize(
    "schema",
    [
        NODE,
        {"$defs": {"j": ANY_JSON}, **ref("j")},
        {"$defs": {"f": FILTER}, **ref("f")},
        {"allOf": [{"pattern": r"^[\s\S]{0,1024}$"}, {"pattern": r"^[^\s]{1,256}$"}]},
        {"allOf": [{"pattern": "^.{1,1000}$"}, {"pattern": r"^\p{L}[\w.-]*$"}]},
        {"properties": {f"p{n}": {"pattern": r"^[\S\s]{1,255}$"} for n in range(40)}},
        {"properties": {f"p{n}": {"pattern": f"^[a-z0-9-]{{{n},63}}$"} for n in range(63)}},
        {"properties": {f"p{n}": {**TEXT, "description": "About it."} for n in range(2_400)}},
        {"enum": [f"v{n}" for n in range(10_000)], "x-own": {"any": [1]}, "const": None},
    ],
)
def test_an_ordinary_schema_stays_as_it_is(schema: dict[str, Any]) -> None:
    before = deepcopy(schema)
    assert usable_schema(schema) == (schema, ())
    assert schema == before


# What it costs


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (chain(30, lambda to: {"allOf": [to, to]}, TEXT), 1),
        (chain(30, lambda to: {"anyOf": [{"properties": {"x": to}}] * 2}, TEXT), deep(30)),
        ({"$defs": {"e": {"oneOf": [{"properties": {"x": ref("e")}}] * 2}}, **ref("e")}, deep(30)),
        ({"$defs": {"e": {"properties": {"x": {"allOf": [ref("e")] * 2}}}}, **ref("e")}, deep(30)),
        (
            {"$defs": {"e": {"patternProperties": {"x": ref("e"), "^x": ref("e")}}}, **ref("e")},
            deep(30),
        ),
        (
            {"$defs": {"e": {"items": ref("e"), "contains": ref("e")}}, **ref("e")},
            json.loads("[" * 30 + "]" * 30),
        ),
        (
            chain(15, lambda to: {"allOf": [to, to], "unevaluatedProperties": False}, {}),
            {"x": 1},
        ),
        (chain(14, lambda to: {"allOf": [to], "unevaluatedItems": False}, {}), [1]),
        ({"$defs": {f"a{n}": {"$id": f"http://x/{n}"} for n in range(2_400)}}, 1),
        ({"properties": {f"p{n}": {"pattern": f"^.{{1,{n + 900}}}$"} for n in range(500)}}, {}),
        ({"properties": {f"p{n}": {"pattern": f"(?i)[a-\uffff]{n}" * 50} for n in range(500)}}, {}),
        ({"allOf": [{}] * 50_000}, 1),
        ({"enum": [{"a": n} for n in range(50_000)]}, 1),
        (chain(2_400, lambda to: to, TEXT), "a"),
        (branches({"required": MANY_NAMES}), {"p0": {}}),
        (
            branches({"properties": {"a": {"enum": MANY_NAMES}}, "required": ["a"]}),
            {"p0": {"a": 1}},
        ),
        (branches({"allOf": [{"required": MANY_NAMES}]}), {"p0": {}}),
        (branches({"required": MANY_NAMES}, lambda to: {"allOf": [to]}), {"p0": {}}),
        (branches({"enum": MANY_NAMES}, lambda to: {"properties": {"a": to}}), {"p0": {"a": 1}}),
    ],
)
def test_no_schema_takes_long_to_compile_or_to_check_a_small_value(
    schema: dict[str, Any], value: Any
) -> None:
    # Each of them would take from seconds to years; the test's own time limit finds it.
    check = JsonCheck(usable_schema(schema).schema)
    check.fits(value)
    check.violation(value)


def test_what_is_dropped_is_listed_up_to_a_limit_in_lines_without_control_characters() -> None:
    names = [f"p{n}\n\x1b[2J" for n in range(300)]
    dropped = usable_schema({"properties": {name: {"type": "any"} for name in names}}).dropped
    assert len(dropped) == 101
    assert dropped[-1] == "/: 200 more keywords"
    assert all(line.isprintable() and len(line) <= 500 for line in dropped)


# Any schema

WORDS = st.sampled_from(["a", "b", "x"])
WILD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 3, -1, 2**70, 0.5, "", "any", "#", [], ["a", "a"], [1], {}, {"a": 1}, "\ud800"]
)
REFERENCES = ["#", "#/$defs/a", "#/$defs/b", "#/properties/x", "#/allOf/0", "#/oneOf/0", "#/not"]
ONE = (
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames"),
    *("not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems"),
)
VALUES: dict[str, Any] = {
    "type": st.sampled_from(["string", "integer", "object", "array", ["null", "number"]]),
    "required": st.lists(WORDS, unique=True, max_size=2),
    "pattern": st.sampled_from(["a", "^x", "(?=b)", r"[\w-.]"]),
    "enum": st.lists(st.sampled_from([1, "a", None, {}]), min_size=1, max_size=3),
    "$ref": st.sampled_from(REFERENCES),
    **dict.fromkeys(("minLength", "maxContains", "minimum", "maxItems"), st.integers(0, 3)),
}


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(WORDS, inner, max_size=2)
    listed = st.lists(inner, min_size=1, max_size=2)
    known = {
        **VALUES,
        **dict.fromkeys(ONE, inner),
        **dict.fromkeys(("properties", "$defs", "dependentSchemas", "dependencies"), named),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), listed),
        "patternProperties": st.dictionaries(VALUES["pattern"], inner, max_size=2),
    }

    def of_names(names: list[str]) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries({name: st.one_of(*[known[name]] * 5, WILD) for name in names})

    names = st.lists(st.sampled_from(sorted(known)), unique=True, max_size=4)
    return st.booleans() | names.flatmap(of_names)


SCHEMAS: st.SearchStrategy[Any] = st.recursive(st.booleans() | st.just({}), keywords, max_leaves=12)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([0, 1, 2.5, "a", "xb", "", None, True]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=500, derandomize=True)
@given(SCHEMAS, st.lists(JSON, min_size=5, max_size=5))
def test_any_schema_compiles_stays_and_accepts_what_the_original_accepts(
    schema: Any, values: list[Any]
) -> None:
    usable = usable_schema(schema)
    check = JsonCheck(usable.schema)
    assert usable_schema(usable.schema) == (usable.schema, ())
    assert not any("does not compile" in line for line in usable.dropped)
    # A reference that leads back to itself has no meaning.
    if isinstance(schema, dict) and not any("back to itself" in line for line in usable.dropped):
        try:
            original = JsonCheck(schema)
        except ValueError:
            return
        for value in values:
            if usable.dropped:
                assert check.fits(value) or not original.fits(value)
            else:
                assert check.fits(value) == original.fits(value)
