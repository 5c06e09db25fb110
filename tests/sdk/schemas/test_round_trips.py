"""Every call of our own tools survives the way to a model and back, whatever its parameters are."""

from __future__ import annotations

import json
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model

from toolbus import FunctionTool
from toolbus.schemas.argument_schema import argument_schema
from toolbus.schemas.forms import ANTHROPIC, GEMINI, OPENAI, Dialect, schema_form
from toolbus.schemas.from_model import tool_arguments
from toolbus.schemas.validation import JsonCheck

LIST: Any = list
DICT: Any = dict
TUPLE: Any = tuple
Typed = tuple[Any, Any]
"""A type, and a JSON value of it."""


class Size(Enum):
    SMALL = 1
    LARGE = "large"


class Tree(BaseModel):
    """A model that holds itself, with a field of each kind."""

    name: str
    left: Tree | None = None
    nodes: list[Tree] = []
    size: Size = Size.SMALL
    note: str = "none"


def tree(draw: Any, levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"name": draw(st.sampled_from(["", "a"]))}
    if levels and draw(st.booleans()):
        found["left"] = draw(st.sampled_from([None, tree(draw, levels - 1)]))
    if levels and draw(st.booleans()):
        found["nodes"] = [tree(draw, levels - 1)]
    if draw(st.booleans()):
        found |= {"size": "large", "note": "a"}
    return found


@st.composite
def trees(draw: Any) -> Typed:
    return Tree, tree(draw, 2)


LEAVES = st.one_of(
    st.sampled_from(
        [
            (int, 3),
            (float, 0.5),
            (str, "null"),
            (bool, False),
            (Literal["a", 1, None], None),
            (Literal["only"], "only"),
            (Annotated[int, Field(ge=0, le=9, multiple_of=3)], 6),
            (Annotated[str, Field(min_length=1, max_length=3, pattern="^a")], "ab"),
            (date, "2024-02-29"),
            (Size, "large"),
            (Any, {"a": [None]}),
            (str | None, None),
        ]
    ),
    trees(),
)
NAMES = ("type", "required", "properties", "items", "enum", "default", "x_y")


@st.composite
def composed(draw: Any, inner: st.SearchStrategy[Typed]) -> Typed:
    (kind, value), (other, other_value) = draw(inner), draw(inner)
    shape = draw(st.sampled_from(["list", "dict", "tuple", "optional", "union", "model", "model"]))
    if shape == "list":
        return LIST[kind], draw(st.sampled_from([[], [value], [value, value]]))
    if shape == "dict":
        return DICT[str, kind], draw(st.sampled_from([{}, {"type": value}]))
    if shape == "tuple":
        return TUPLE[kind, other], [value, other_value]
    if shape == "optional":
        return kind | None, draw(st.sampled_from([None, value]))
    if shape == "union":
        return kind | other, draw(st.sampled_from([value, other_value]))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=2, unique=True))
    default = draw(st.sampled_from([..., value, None]))
    fields: dict[str, Any] = {f"{name}_": (kind, Field(..., alias=name)) for name in names[:1]}
    fields[f"{names[1]}_"] = (other, Field(default, alias=names[1]))
    model = create_model("Model", __base__=BaseModel, **fields)
    found = {names[0]: value}
    if default is ... or draw(st.booleans()):
        found[names[1]] = other_value
    return model, found


TYPES = st.recursive(LEAVES, composed, max_leaves=4)


def filled(part: Any, value: Any, form: dict[str, Any]) -> Any:
    """Return what a model writes that obeys a form: null for each property that is left out."""
    if "$ref" in part:
        return filled(form["$defs"][part["$ref"].removeprefix("#/$defs/")], value, form)
    if "anyOf" in part:
        for branch in part["anyOf"]:
            written = filled(branch, value, form)
            if JsonCheck({"$defs": form.get("$defs", {}), **branch}).fits(written):
                return written
    if isinstance(value, list) and "items" in part:
        return [filled(part["items"], each, form) for each in value]
    if isinstance(value, dict) and "properties" in part:
        return {
            name: filled(part["properties"].get(name, {}), value.get(name), form)
            for name in {**value, **dict.fromkeys(part.get("required", ()))}
        }
    return value


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC, GEMINI], ids=lambda each: each.name)
@given(TYPES, TYPES, st.booleans())
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_a_call_is_the_same_on_the_way_back(
    dialect: Dialect, required: Typed, optional: Typed, leaves_out: bool
) -> None:
    def work(first: Any, second: Any = None) -> int:
        return 1

    work.__annotations__ = {"first": required[0], "second": optional[0], "return": int}
    schema = FunctionTool(work, description="Work.").manifest().input_schema
    call = {"first": required[1]}
    if not leaves_out:
        call["second"] = optional[1]
    check = JsonCheck(schema)
    assert check.fits(call)
    form = schema_form(schema, dialect)
    names = argument_schema(schema).aliases
    written = {names.get(name, name): value for name, value in call.items()}
    for one in filter(None, (form, form.plain)):
        asked = filled(one.schema, written, one.schema) if one.strict else written
        assert JsonCheck(one.schema).fits(asked), "the form has every call"
        back = tool_arguments(schema, json.loads(json.dumps(asked)))
        assert check.fits(back)
        assert without_nulls(back) == without_nulls(call)
