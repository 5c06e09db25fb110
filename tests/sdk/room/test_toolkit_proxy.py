"""Signatures and docstrings of a proxy's methods, also for schemas that nobody means well with."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any, Literal, get_type_hints

import pytest
from pydantic import BaseModel

from toolbus import Toolkit, tool
from toolbus.cli.stub_text import Annotations, Names
from toolbus.room.toolkit_proxy import documentation_of, signature_of
from toolbus.wire import ToolManifest
from toolbus_server.testing import room_of

TEXT = {"type": "string"}
CLOSED = {"additionalProperties": False}
DEEP: dict[str, Any] = {}
for _ in range(500):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"properties": {"a": TEXT, "b": TEXT}, "required": ["b"]}, "*, a: str = Ellipsis, b: str"),
        ({"properties": {"a": {"type": "integer", "default": 3}}}, "*, a: int = 3"),
        (
            {"properties": {"a": {"anyOf": [{"type": "number"}, {"type": "null"}]}}},
            "*, a: float | None = Ellipsis",
        ),
        ({"properties": {"a": {"type": ["string", "null"]}}}, "*, a: str | None = Ellipsis"),
        (
            {"properties": {"a": {"type": "object", "additionalProperties": TEXT}}},
            "*, a: dict[str, str] = Ellipsis",
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/Size"}}, "$defs": {"Size": {"enum": ["s", 1]}}},
            "*, a: Literal['s', 1] = Ellipsis",
        ),
        (
            {
                "properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Item"}]}},
                "$defs": {"Item": {"properties": {"b": TEXT}}},
            },
            "*, a: t.Item | None = Ellipsis",
        ),
        (
            {"properties": {"a": {"type": "array", "items": {"properties": {"b": TEXT}}}}},
            "*, a: list[t.AItem] = Ellipsis",
        ),
        ({"properties": {"a": {"type": "object", "properties": {"\x1b": {}}}}}, None),
        ({"properties": {"a": {"enum": ["x" * 199] * 100}, "b": {"const": "\n\x1b"}}}, None),
        ({"properties": {"a": {"$ref": "#"}}}, "*, a: t.Fields = Ellipsis"),
        ({"properties": {"a": {"type": "null"}, "b": {"oneOf": []}}}, None),
        ({"properties": {"a-b": TEXT, "class": TEXT}}, "**arguments: Any"),
        (
            {"properties": {"arguments": TEXT}, "additionalProperties": True},
            "*, arguments: str = Ellipsis, **arguments_: Any",
        ),
        ({"properties": {"a": {"default": "x" * 999}, "b": True, "c": {"type": [{}]}}}, None),
        ({"properties": {"a": DEEP}}, None),
        ({"properties": {f"p{number}": {} for number in range(9_000)}}, None),
        ({"properties": [], "required": 7}, ""),
    ],
)
def test_signature_has_what_the_schema_says_and_python_can_write(
    schema: Any, shown: str | None
) -> None:
    made = ToolManifest(name="t", title="t", input_schema={**CLOSED, **schema})
    signature = signature_of(made, None)
    assert len(str(signature)) < 6_000
    if shown is not None:
        assert str(signature) == f"({shown}) -> Any"


def test_docstring_is_escaped_and_bounded() -> None:
    fields = {f"p{number}": {"description": "x\x1b\n" * 999} for number in range(999)}
    made = ToolManifest(
        name="t", title="t", description="a\n\x1b[2J", input_schema={"properties": fields}
    )
    text = documentation_of(made)
    assert text.startswith("a\n\\x1b[2J\n\nArgs:\n    p0: x\\x1b x")
    assert len(text) <= 8_000


async def test_methods_of_a_proxy_are_shown_as_functions_with_their_arguments() -> None:
    @tool
    async def count(text: str, top: int = 3) -> dict[str, int]:
        """Count words.

        Args:
            text: What is counted.
        """
        return {text: top}

    async with room_of("host", "caller") as (host, caller), host.host(Toolkit("words", [count])):
        words = await caller.toolkit("words")
        assert str(inspect.signature(words.count)) == "(*, text: str, top: int = 3) -> Any"
        assert inspect.iscoroutinefunction(words.count)
        shown = pydoc.render_doc(words.count, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
        assert "count(*, text: str, top: int = 3)" in shown
        assert "text: What is counted." in shown
        assert await words.count(text="a") == await words.count({"text": "a"}) == {"a": 3}


class Item(BaseModel):
    """What is sold."""

    name: str
    size: Literal["small", "large"] = "small"
    parts: list[Item] = []
    limits: dict[str, int] | None = None


async def test_models_are_shown_with_their_fields() -> None:
    @tool
    async def order(item: Item, count: int = 1) -> Item:
        """Order things."""
        assert count
        return item

    async with room_of("host", "caller") as (host, caller), host.host(Toolkit("mine", [order])):
        proxy = await caller.toolkit("mine")
        signature = inspect.signature(proxy.order)
        assert str(signature) == "(*, item: order.Item, count: int = 1) -> order.Item"
        hints = get_type_hints(signature.parameters["item"].annotation)
        assert hints == {
            "name": str,
            "size": Literal["small", "large"],
            "parts": list[dict[str, Any]],
            "limits": dict[str, int] | None,
        }
        shown = pydoc.render_doc(proxy.order, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
        assert "item: What is sold." in shown
        assert 'size    "small" | "large" = "small"' in shown
        again = await caller.toolkit("mine")
        assert inspect.signature(again.order) is signature


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["integer", "string"]},
        {"anyOf": [{"type": "null"}, {"enum": [True, "a", 7]}]},
        {"type": "array", "prefixItems": [TEXT, {"type": "number"}], "items": False},
        {"type": "object", "additionalProperties": {"type": "array", "items": TEXT}},
        {"allOf": [{"$ref": "#/$defs/Text"}]},
        {"allOf": [TEXT, {}]},
        {"enum": [{}]},
    ],
)
def test_proxy_and_stub_have_the_same_types(schema: dict[str, Any]) -> None:
    root = {"properties": {"a": schema}, "required": ["a"], "$defs": {"Text": TEXT}}
    made = ToolManifest(name="t", title="t", input_schema=root)
    stub = Annotations(root, Names(()), "T").of(schema)
    names = {"Any": Any, "Literal": Literal}
    assert signature_of(made, None).parameters["a"].annotation == eval(stub, names)


BRANCHING = {"anyOf": [{"$ref": "#/properties/a"}] * 60}
DOUBLED: dict[str, Any] = {}
for _ in range(30):
    DOUBLED = {"type": "object", "properties": {"a": DOUBLED, "b": DOUBLED}}


@pytest.mark.parametrize("schema", [BRANCHING, DOUBLED, DEEP, {"$ref": "#/properties/a"}])
def test_what_is_shown_of_an_endless_schema_is_bounded(schema: dict[str, Any]) -> None:
    made = ToolManifest(name="t", title="t", input_schema={"properties": {"a": schema}})
    assert len(str(signature_of(made, None))) < 1_000
    assert len(documentation_of(made)) <= 8_000
