"""The cells that a page shows for a notebook run one after another, in one event loop."""

from __future__ import annotations

import ast
import inspect
from types import CodeType
from typing import Any

import pytest

from support.documents.pages import DOCS, Page
from support.documents.snippets import Block
from toolbus import Toolkit, tool
from toolbus_server.testing import TestServer

PAGE = Page(DOCS / "guides/web-apps-and-notebooks.md")
CELLS = [block for block in PAGE.of("python") if block.note.startswith("checked by ")]


@tool
async def count(text: str) -> dict[str, int]:
    """Count the words of a text."""
    return {word: text.split().count(word) for word in text.split()}


async def run_cell(block: Block, variables: dict[str, Any]) -> Any:
    """Run a cell as IPython does: its last expression is its output."""
    module = ast.parse(block.text)
    if isinstance(module.body[-1], ast.Expr):
        module.body[-1] = ast.Assign([ast.Name("_", ast.Store())], module.body[-1].value)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code: CodeType = compile(ast.fix_missing_locations(module), "cell", "exec", flags=flags)
    variables["_"] = None
    done = eval(code, variables)
    if inspect.isawaitable(done):
        await done
    return variables["_"]


async def test_cells_of_a_notebook_connect_call_and_leave(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLBUS_URL", server.url)
    monkeypatch.setenv("TOOLBUS_ROOM", "lab")
    monkeypatch.setenv("TOOLBUS_TOKEN", server.token("ann"))
    assert len(CELLS) == 3
    variables: dict[str, Any] = {}
    async with server.room("host") as host, host.host(Toolkit("words", [count])):
        for _ in range(2):
            found = [await run_cell(cell, variables) for cell in CELLS]
            assert found == [None, {"a": 2, "b": 1}, None]
