"""`toolbus call x.y order.item=pen` sets a part of an argument, by the schema of that part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from support.processes.command_line import CommandLine
from toolbus.cli.arguments import read_arguments
from toolbus.errors import InvalidArguments

ANSI = "\x1b]0;x\n\u202e"
MINE = f"""
from enum import Enum
from pydantic import BaseModel
from toolbus import Tool, Toolkit, tool

class Size(Enum):
    SMALL = "small"
    LARGE = "large"

class Item(BaseModel):
    name: str
    size: Size = Size.SMALL

class Order(BaseModel):
    item: Item | None = None
    count: int = 1
    lines: list[Item] = []
    tags: list[str] = []
    limits: dict[str, int] = {{}}

@tool
def order(order: Order, loud: bool = False) -> dict:
    return order.model_dump(mode="json", exclude_unset=True)

NAME = {ANSI!r}
FIELD = {{"enum": [7, NAME], "description": NAME, "default": NAME}}
INNER = {{"type": "object", "properties": {{NAME: FIELD}}}}

class Odd(Tool):
    async def execute(self, context, /, **arguments):
        return arguments

odd = Odd("odd", {{"properties": {{NAME: INNER}}, "additionalProperties": False}}, description=NAME)
mine = Toolkit("mine", [order, odd])
"""
TEXT = {"type": "string"}
SCHEMA: dict[str, Any] = {
    "additionalProperties": False,
    "properties": {
        "order": {"$ref": "#/$defs/Order"},
        "color": {"anyOf": [{"enum": [7, 8]}, {"type": "null"}]},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Order"}, {"type": "null"}]},
        "shape": {
            "oneOf": [
                {"properties": {"kind": {"const": "disc"}, "radius": {"type": "number"}}},
                {"properties": {"kind": {"const": "box"}, "name": TEXT}},
            ]
        },
        "all": {"allOf": [{"properties": {"one": TEXT}}, {"properties": {"two": TEXT}}]},
        "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
        "labels": {"patternProperties": {"^(a+)+$": TEXT}},
        "free": {"type": "object"},
        "open": {"properties": {"a": {"type": "integer"}}, "additionalProperties": True},
        "pair": {"type": "array", "prefixItems": [TEXT, {"type": "integer"}]},
        "rows": {"type": "array", "items": {"type": "array", "items": TEXT}},
        "tags": {"type": "array", "items": TEXT},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Order"}},
        "count": {"type": "integer"},
        "number": {"anyOf": [{"type": "integer"}, {}]},
        "codes": {
            "patternProperties": {"^no_": {"type": "integer"}},
            "additionalProperties": True,
        },
        "app.name": TEXT,
        "app": {"type": "object", "properties": {"name": {"type": "integer"}, "level": TEXT}},
        "page[size]": {"type": "integer"},
        "odd.object": {"properties": {"x.y": {"type": "integer"}}},
        ANSI: {"type": "object", "properties": {ANSI: {"type": "integer"}}},
        "outer": {"type": "object", "properties": {ANSI: TEXT}},
    },
    "$defs": {
        "Order": {
            "type": "object",
            "properties": {
                "item": TEXT,
                "count": {"type": "integer"},
                "next": {"$ref": "#/$defs/Order"},
                "any": {},
            },
        }
    },
}


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("nested")
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("mine:mine"):
            yield there


def test_call_with_parts_of_a_model_reaches_the_tool_as_a_whole(toolbus: CommandLine) -> None:
    parts = ["order.item.name=7", "order.item.size=large", "order.count:=2", "order.tags[]=x"]
    parts += ["order.lines[0].name=pen", "order.lines[1].name=ink", "order.limits.cpu=3"]
    outcome = toolbus.run_here("call", "mine.order", *parts, "loud=true")
    assert outcome.value == {
        "item": {"name": "7", "size": "large"},
        "count": 2,
        "lines": [{"name": "pen"}, {"name": "ink"}],
        "tags": ["x"],
        "limits": {"cpu": 3},
    }


def test_tools_show_the_names_and_values_that_a_call_takes(toolbus: CommandLine) -> None:
    lines = toolbus.run_here("tools", "mine.order").out.splitlines()
    start = lines.index("    order  object")
    assert lines[start + 1 : start + 4] == [
        "      item    object | null = null",
        "        name  string",
        '        size  "small" | "large" = "small"',
    ]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ([f"order.{ANSI}.x=1"], r"order has no field \x1b]0;x\n\u202e: it has item, count, lines"),
        ([f"{ANSI}.{ANSI}x=1"], r"did you mean \x1b]0;x\n\u202e.\x1b]0;x\n\u202e?"),
        ([f"{ANSI}=1"], r"\u202e: '1' does not match object: write '\x1b]0;x\n\u202e.\x1b]0;x\n"),
        ([f"{ANSI}.x=1"], r"\u202e has no field x: it has \x1b]0;x\n\u202e"),
        ([f"{ANSI}.{ANSI}:=x"], r"the value of \x1b]0;x\n\u202e.\x1b]0;x\n\u202e:= is not JSON"),
        ([f"{ANSI}.{ANSI}.x=1"], r"\u202e has no fields: it is 7 |"),
        ([f"{ANSI}.{ANSI}=7", f"{ANSI}:=1"], r"\u202e: one sets a part of the other"),
        ([f"{ANSI}.{ANSI}=7"] * 2, r"\u202e is given twice"),
    ],
)
def test_error_of_a_part_escapes_the_names_of_others(
    toolbus: CommandLine, typed: list[str], message: str
) -> None:
    outcome = toolbus.run_here("call", "mine.order" if "order" in typed[0] else "mine.odd", *typed)
    assert outcome.code == 2
    first, *others = outcome.err.splitlines()
    assert message in first
    assert all(line.startswith("  next: `toolbus tools mine.o") for line in others)
    assert outcome.err.replace("\n", "").isprintable()


def test_tools_escape_the_names_of_others(toolbus: CommandLine) -> None:
    shown = toolbus.run_here("tools", "mine.odd").out
    assert shown.replace("\n", "").isprintable()
    assert shown.count("mine.odd\n") == 1
    typed = f"{ANSI}.{ANSI}=7"
    assert toolbus.run_here("call", "mine.odd", typed).value == {ANSI: {ANSI: 7}}


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("order.item=2", {"order": {"item": "2"}}),
        ("order.count=2 order.item=pen", {"order": {"count": 2, "item": "pen"}}),
        ("order.next.next.count=2", {"order": {"next": {"next": {"count": 2}}}}),
        ("maybe.count=2", {"maybe": {"count": 2}}),
        ("maybe=null", {"maybe": None}),
        ("shape.kind=disc shape.radius=2", {"shape": {"kind": "disc", "radius": 2}}),
        ("shape.name=2", {"shape": {"name": "2"}}),
        ("all.one=1 all.two=2", {"all": {"one": "1", "two": "2"}}),
        ("limits.cpu=2", {"limits": {"cpu": 2}}),
        ("labels.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!=2", {"labels": {"a" * 40 + "!": "2"}}),
        (
            "number=two codes.no_1=1 codes.name=pen",
            {"number": "two", "codes": {"no_1": 1, "name": "pen"}},
        ),
        ("free.a.b[0]=2", {"free": {"a": {"b": [2]}}}),
        ("open.a=2 open.b.c=x", {"open": {"a": 2, "b": {"c": "x"}}}),
        ("order.any.x[]=true", {"order": {"any": {"x": [True]}}}),
        ("pair[0]=2 pair[1]=2", {"pair": ["2", 2]}),
        ("pair[]=2 pair[]=2", {"pair": ["2", 2]}),
        ("rows[1][0]=b rows[0][]=a", {"rows": [["a"], ["b"]]}),
        ("tags[]=1 tags[]=2", {"tags": ["1", "2"]}),
        ("lines[0].item=1 lines[0].count=1", {"lines": [{"item": "1", "count": 1}]}),
        ("lines[].item=1 lines[].item=2", {"lines": [{"item": "1"}, {"item": "2"}]}),
        ("app.name=2", {"app.name": "2"}),
        ("app.level=2 app.name=3", {"app": {"level": "2"}, "app.name": "3"}),
        ("page[size]=2", {"page[size]": 2}),
        ("odd.object.x.y=2", {"odd.object": {"x.y": 2}}),
        ("order:={} limits.cpu:=2", {"order": {}, "limits": {"cpu": 2}}),
        (f"{ANSI}.{ANSI}=2", {ANSI: {ANSI: 2}}),
        ("unknown=2", {"unknown": 2}),
    ],
)
def test_part_is_read_by_its_schema(typed: str, value: object) -> None:
    read = read_arguments(tuple(typed.split(" ")), SCHEMA)
    assert repr(read) == repr(value)


def test_without_a_schema_dots_and_brackets_lead_to_parts_too() -> None:
    assert read_arguments(("a.b=1", "a.c[]=x"), {}) == {"a": {"b": 1, "c": ["x"]}}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("order.count=1 order=2", "order contradicts order.count: one sets a part of the other"),
        ("order:={} order.count=1", "order.count contradicts order: one sets a part"),
        ("order.any=1 order.any.x=2", "order.any.x contradicts order.any: one sets a part"),
        ("order.any.x=1 order.any[0]=2", "any[0] contradicts order.any.x: one sets a field"),
        ("order.count=1 order.count=1", "order.count is given twice"),
        ("tags[0]=a tags[0]=b", "tags[0] is given twice"),
        ("tags[]=a tags[0]=b", "tags[0] contradicts tags[]: both set the same element"),
        ("tags[1]=a", "tags[1] is of a list whose element [0] is missing"),
        ("tags[999999999]=a", "is of a list whose element [0] is missing"),
        ("tags[0000000000]=a", "write an element of a list as tags[0], one more as tags[]"),
        ("tags[-1]=a", "write an element of a list as tags[0], one more as tags[]"),
        ("tags[0]x=a", "write an element of a list as tags[0], one more as tags[]"),
        ("order[item]=a", "and a field as order.name"),
        ("tags.x=a", "tags has no fields: it is array of string"),
        ("lines.item=a", "lines has no fields: it is array of object, write lines[0].item=..."),
        ("order[0]=a", "order has no elements: it is object"),
        ("order.count.x=1", "order.count has no fields: it is integer"),
        ("order.itme=pen", "order has no field itme: did you mean order.item?"),
        ("order.nxt.item=pen", "order has no field nxt: did you mean order.next.item?"),
        ("order.zzz:=1", "order has no field zzz: it has item, count, next, any"),
        ("odrer.item=1", "the tool has no field odrer: did you mean order.item?"),
        ("order..item=1", "order..item has an empty part: one dot separates two names"),
        (".order=1", ".order has an empty part"),
        ("order.=1", "order. has an empty part"),
        (".=1", ". has an empty part"),
        ("[0]=1", "[0] has an empty part"),
        ("order.[0]=1", "order.[0] has an empty part"),
        ("limits.cpu=x", "limits.cpu: 'x' does not match integer: write a whole number"),
        ("order=pen", """write order.item=..., or the whole object: order:='{"item": ...}'"""),
        ("maybe=pen", """write maybe.item=..., or the whole object: maybe:='{"item": ...}'"""),
        ("limits=pen", """write limits.key=..., or the whole object: limits:='{"key": ...}'"""),
        ("lines=pen", """write 'lines[].item=...', or the whole list: lines:='[{"item": ...}]'"""),
        (
            "tags=pen",
            """write a JSON array, for example tags='["a", "b"]' or 'tags[]=...'; tags:=""",
        ),
        ("rows[0]=a", "for example rows[0]="),
        ("color=blue", "for example color=7"),
        ("order.next=pen", """write order.next.item=..., or the whole object: order.next:='{"it"""),
        ("free" + ".a" * 50 + "=1", "a has more than 32 levels"),
        ("free" + ".a" * 5_000 + "=1", "a has more than 32 levels"),
        ("order" + ".next" * 5_000 + "=1", "next has more than 32 levels"),
        ("rows" + "[0]" * 5_000 + "=1", "rows[0][0] has no elements: it is string"),
    ],
)
def test_wrong_part_is_named(typed: str, message: str) -> None:
    with pytest.raises(InvalidArguments, match=re.escape(message)) as raised:
        read_arguments(tuple(typed.split(" ")), SCHEMA)
    assert len(str(raised.value)) < 1_000


def test_the_last_of_ten_thousand_properties_has_its_type() -> None:
    many = {f"p{number}": TEXT for number in range(10_000)}
    schema = {"properties": {**many, "inner": {"type": "object", "properties": many}}}
    typed = ("p9999=1", "inner.p9999=1")
    assert read_arguments(typed, schema) == {"p9999": "1", "inner": {"p9999": "1"}}
    with pytest.raises(InvalidArguments, match=r"did you mean inner.p9999\?"):
        read_arguments(("inner.p99999=1",), schema)


@pytest.mark.parametrize(
    "loop",
    [
        {"$ref": "#/properties/it"},
        {"anyOf": [{"$ref": "#/properties/it"}] * 60},
        {"properties": {"it": {"$ref": "#"}}, "allOf": [{"$ref": "#"}]},
    ],
)
def test_part_of_a_schema_that_leads_back_is_found(loop: dict[str, Any]) -> None:
    assert read_arguments(("it.it.it:=1",), {"properties": {"it": loop}})["it"]["it"] == {"it": 1}
