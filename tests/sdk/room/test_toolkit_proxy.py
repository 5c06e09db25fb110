"""Signatures and docstrings of a proxy's methods, also for schemas that nobody means well with."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import pytest

from toolbus import Toolkit, tool
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
    assert text.startswith("a\n\\x1b[2J\n\nArgs:\n    p0: x\\x1b\\nx")
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
