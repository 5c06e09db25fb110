"""`toolbus stubs` writes a typed class for type checkers, whatever a toolkit contains."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes.command_line import CommandLine
from toolbus.cli.stub_text import Names, stub_module
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.wire import ToolkitManifest, ToolManifest

SHOP = '''
from collections.abc import AsyncIterator
from typing import Any, Literal
from pydantic import BaseModel, Field
from toolbus import Toolkit, ToolContext, tool

class Item(BaseModel):
    sku: str
    count: int = Field(1, description="How many.")
    parts: "list[Item]" = []

@tool
def order(
    items: list[Item], kind: Literal["new", "old"], to: str | None = None, rate: float = 1.5
) -> Item:
    """Order "things".

    Args:
        items: What to buy.
    """
    return items[0]

@tool(name="list")
def list_all(str: int) -> dict[str, list[int]]:
    """List."""
    return {}

@tool
async def tail(path: str = "a") -> AsyncIterator[str]:
    """Tail."""
    yield path

@tool
def call(text: str) -> str:
    """Call."""
    return text

shop = Toolkit("shop", [order, list_all, tail, call], description="A shop.")
'''
CLASS = '''
class Shop(TypedToolkitProxy):
    """A shop."""
    # call is a name of every proxy: await shop.call("call", {...})

    async def list(self, *, str: int) -> Any:
        """List."""

    async def order(
        self,
        *,
        items: _list[ShopOrderItem],
        kind: Literal["new", "old"],
        rate: float = 1.5,
        to: str | None = None,
    ) -> ShopOrderItem2:
        """Order "things".

        Args:
            items: What to buy.
        """

    def tail(self, *, path: str = "a") -> ChunkStream:
        """Tail."""

class ShopOrderItem(TypedDict):
    sku: str
    count: NotRequired[int]
    parts: NotRequired[_list[ShopOrderItem]]
'''
PROGRAM = """
from typing import TYPE_CHECKING
from toolbus import RoomClient
if TYPE_CHECKING:
    from shop_types import Shop

async def main(room: RoomClient) -> None:
    shop: Shop = await room.toolkit("shop")
    found: dict[str, list[int]] = await shop.list(str=1)
    made = await shop.with_options(timeout_s=1).order(items=[{"sku": "a"}], kind="new")
    number: int = made.get("count", 0)
    async with shop.tail() as chunks:
        print([each.value async for each in chunks], found, number)
    untyped = await room.toolkit("shop")
    print(await untyped.list(str="x"))
"""
WRONG = [
    'shop.order(items=[{"sku": 1}], kind="new")',
    'shop.order(items=[], kind="third")',
    "shop.list()",
    "shop.orders()",
    'shop.list(str="x")',
]


@pytest.mark.long
@pytest.mark.timeout(900)  # mypy reads all that toolbus imports, without a cache
def test_stub_of_a_hosted_toolkit_is_checked_by_mypy(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    here = CommandLine(tmp_path)
    with here.serving() as (_, url), here.at(url).hosting("shop:shop", "--name", "bob"):
        toolbus = here.at(url)
        assert toolbus.run("stubs", "shop", "--out", "shop_types.pyi").code == 0
        printed = toolbus.run_here("stubs", "shop").out
        assert toolbus.run_here("stubs", "shop", "--out", "shop.py").code == 2
        digest = toolbus.run_here("tools", "shop", "--json").value["digest"]
    assert printed == (tmp_path / "shop_types.pyi").read_text(encoding="utf-8")
    assert printed.splitlines()[1:4] == [
        "# Owner: bob (issuer toolbus-dev)",
        "# Version: -",
        f"# Digest: {digest}",
    ]
    assert CLASS in printed
    assert mypy(tmp_path, PROGRAM) == []
    wrong = [f"    await {each}" for each in WRONG]
    lines = mypy(tmp_path, "\n".join([PROGRAM, *wrong]))
    assert len({line.split(":")[1] for line in lines}) == len(WRONG), lines


def mypy(folder: Path, program: str) -> list[str]:
    """Return the errors that mypy finds in a program, in strict mode."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ".mypy", "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if ": error:" in line]


# Annotations


def stub_of(*tools: dict[str, Any], **fields: Any) -> str:
    info = ToolkitInfo("kit", "", "", fields.get("version", ""), "d", True, "ann", 1, (), "acme")
    listed = tuple(ToolManifest.model_validate({"input_schema": {}, **each}) for each in tools)
    return stub_module(info, ToolkitManifest(name="kit", tools=listed, **fields))


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
ALIAS = {"$ref": "#/$defs/Alias"}


@pytest.mark.parametrize(
    ("schema", "annotation"),
    [
        ({"type": "string"}, "str"),
        ({"type": ["number", "null"]}, "float | None"),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, "bool | None"),
        ({"anyOf": [{"type": "string"}, {}]}, "Any"),
        ({"enum": ["a", 1, True, None]}, 'Literal["a", 1, True] | None'),
        ({"enum": [1.5]}, "Any"),
        ({"const": "it's"}, 'Literal["it\'s"]'),
        ({"type": "array"}, "list[Any]"),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, "list[str]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"$ref": "#/$defs/Point"}, "KitGoPoint"),
        ({"allOf": [{"$ref": "#/$defs/Point"}]}, "KitGoPoint"),
        (POINT, "KitGoIt"),
        ({"$ref": "https://example.org/x"}, "Any"),
        (ALIAS, "Any"),
        ({"$ref": "#/$defs/Tree"}, "list[Any]"),
        ({"type": "array", "items": True}, "list[Any]"),
        ({"type": 7, "enum": 7, "anyOf": 7}, "Any"),
    ],
)
def test_schema_becomes_an_annotation(schema: dict[str, Any], annotation: str) -> None:
    tree = {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
    defs = {"Point": POINT, "Alias": ALIAS, "Tree": tree}
    root = {"properties": {"it": schema}, "required": ["it"], "$defs": defs}
    text = stub_of({"name": "go", "input_schema": root})
    assert f"    async def go(self, *, it: {annotation}) -> Any: ..." in text.splitlines()


@pytest.mark.parametrize(
    ("default", "schema", "shown"),
    [
        (1, {"type": "integer"}, "int = 1"),
        ('"', {"type": "string"}, "str = '\"'"),
        (None, {"type": ["string", "null"]}, "str | None = None"),
        ("1", {"type": "integer"}, "int = ..."),
        (True, {"type": "integer"}, "int = ..."),
        ("x" * 100, {"type": "string"}, "str = ..."),
        ([], {"type": "array"}, "list[Any] = ..."),
        (
            "s",
            {"type": "array", "items": {"type": ["integer", "string", "null"]}},
            "list[int | str | None] = ...",
        ),
    ],
)
def test_default_is_shown_if_it_has_the_type(
    default: Any, schema: dict[str, Any], shown: str
) -> None:
    root = {"properties": {"it": {"type": "array", **schema, "default": default}}}
    text = stub_of({"name": "go", "input_schema": root})
    assert f"*, it: {shown})" in text


@pytest.mark.parametrize(
    "name", ["class", "a-b", "self", "__x", "", "\ufb01", "x: int = 1", "a\nb"]
)
def test_parameter_that_is_no_name_is_passed_in_a_mapping(name: str) -> None:
    root = {"properties": {name: {"type": "integer"}, "ok": {}}, "required": ["ok"]}
    text = stub_of({"name": "go", "input_schema": root})
    compile(text, "kit.pyi", "exec")
    assert "async def go(self, arguments: KitGoArguments, /) -> Any:" in text
    dicts = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Dict | ast.ClassDef)
    ]
    assert any(repr(name) in shown or f"{name}:" in shown for shown in map(ast.unparse, dicts))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("class", "is not a name of Python"),
        ("a-b", "is not a name of Python"),
        ("None", "is not a name of Python"),
        ("call", "is a name of every proxy"),
        ("_info", "is a private name of Python"),
        ("__init__", "is not a name of Python"),
    ],
)
def test_tool_that_cannot_be_a_method_is_a_comment(name: str, reason: str) -> None:
    text = stub_of({"name": name})
    assert f'    # {name} {reason}: await kit.call("{name}", {{...}})' in text.splitlines()
    compile(text, "kit.pyi", "exec")
    assert "def " not in text


HOSTILE = [
    '"""\nimport os\n"""',
    '"""',
    'ends with "',
    'ends with \\"',
    'ends with ""',
    "ends with \\",
    '\\"""\nx = 1',
    "\\N{BULLET} \\x41 \\u0041",
    "\r\nx = 1\r# \x00\x1b[2J\x0c\x85\u2028\u2029\u202e\U000e0001",
    "'''; x = 1; '''",
    "x" * 70_000,
    "#\\\nx = 1",
    "{__import__('os')}",
]


@pytest.mark.parametrize(
    ("public", "opened"),
    [(True, '"kit")'), (False, '"kit", participant="corp/carl")')],
)
def test_stub_opens_a_private_toolkit_with_its_owner(public: bool, opened: str) -> None:
    info = ToolkitInfo("kit", "", "", "", "d", public, "carl", 1, (), issuer="acme", alias="corp")
    text = stub_module(info, ToolkitManifest(name="kit"))
    assert f"# kit: Kit = await room.toolkit({opened}" in text.splitlines()


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_does_not_become_code(text: str) -> None:
    short = text[:100]
    nested = {"type": "object", "properties": {text: {"default": text}}, "description": text}
    properties = {"it": {"description": text, "enum": [short], "default": short}, "o": nested}
    root = {"properties": properties, "$defs": {short: nested}, "required": [text]}
    reference = {"$ref": f"#/$defs/{short}"}
    tool = {
        "name": "go",
        "input_schema": root,
        "output_schema": {**reference, "$defs": {short: nested}},
    }
    source = stub_of(
        {**tool, "description": text[:65_536]}, description=text[:65_536], version=short
    )
    tree = ast.parse(source)
    kinds = [type(node).__name__ for node in tree.body]
    assert set(kinds) <= {"ImportFrom", "ClassDef", "Assign"}
    assert not [each for each in ast.walk(tree) if isinstance(each, ast.Import | ast.Attribute)]
    calls = [ast.unparse(each.func) for each in ast.walk(tree) if isinstance(each, ast.Call)]
    assert set(calls) == {"TypedDict"}
    assert all(line.isprintable() for line in source.splitlines())
    (method,) = (node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef))
    if len(text) < 100:
        shown = (ast.get_docstring(method, clean=False) or "").replace("\\", "")
        assert text.strip().split("\n")[0].replace("\\", "").rstrip() in shown or "\x1b" in text


def test_wide_and_deep_schemas_have_bounded_stubs() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        deep = {"properties": {"x": deep}}
    wide = {"properties": {f"p{n}": {"type": "array", "items": deep} for n in range(2_000)}}
    doubling: dict[str, Any] = {"23": {"type": "string"}}
    for n in range(23):
        once = {"$ref": f"#/$defs/{n + 1}"}
        two = [once, {"type": "array", "items": once}]
        doubling[str(n)] = {"type": "array", "prefixItems": two, "items": False}
    output = {"$ref": "#/$defs/0", "$defs": doubling}
    tools = ({"input_schema": wide, "output_schema": deep}, {"output_schema": output})
    for tool, limit in zip(tools, (2_000_000, 20_000), strict=True):
        source = stub_of({"name": "go", **tool})
        compile(source, "kit.pyi", "exec")
        assert len(source) < limit


def test_equal_names_of_classes_take_few_steps() -> None:
    class CountingNames(Names):
        asked = 0

        def is_type(self, name: str) -> bool:
            self.asked += 1
            return super().is_type(name)

    names = CountingNames(())
    made = {names.add_class("order") for _ in range(1_000)}
    assert (len(made), names.asked < 3_000) == (1_000, True)


def test_order_of_schema_and_tools_does_not_change_the_stub() -> None:
    fields = {"b": {"type": "string"}, "a": {"type": "integer"}, "c": POINT}
    turned = dict(reversed(fields.items()))
    first: list[dict[str, Any]] = [
        {"name": "x", "input_schema": {"properties": fields}},
        {"name": "y"},
    ]
    second: list[dict[str, Any]] = [
        {"name": "y"},
        {"name": "x", "input_schema": {"properties": turned}},
    ]
    assert stub_of(*first) == stub_of(*second)
