"""The names that the guide "Coming from ..." gives for those of other systems exist."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from toolbus.tools.options import ToolFields

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "coming-from.md"
PLACES = (
    "",
    ".middlewares",
    *(
        f"_toolkits.{each}"
        for each in ("files", "mcp", "notes", "openapi", "python", "shell", "skills")
    ),
)
MODULES = [import_module(f"toolbus{each}") for each in (*PLACES, "_toolkits.guards")]
MODULES += map(import_module, ("toolbus_toolkits.credentials", "toolbus_toolkits.sandbox"))
ROW = re.compile(r"^\| .+ \| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"`([A-Z]\w+)(?:\.(\w+))?(?:\((.*?)\))?(?:\[T\])?`")


def names() -> list[tuple[str, str, str]]:
    """Return the classes of the right columns, each with a member and its parameters."""
    cells = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return sorted({each for cell in cells for each in NAME.findall(cell)})


@pytest.mark.parametrize(("name", "member", "given"), names())
def test_name_of_the_guide_exists(name: str, member: str, given: str) -> None:
    found: Any = [getattr(each, name) for each in MODULES if name in each.__all__]
    assert found, name
    assert not member or hasattr(found[0], member)
    taken = {*inspect.signature(found[0]).parameters} if given else set[str]()
    if name == "FunctionTool":
        taken |= ToolFields.__annotations__.keys()
    assert {*re.findall(r"(\w+)=", given)} <= taken
