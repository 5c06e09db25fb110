"""Tools that a room would refuse are left out and named, where all readers of a toolkit see it."""

from __future__ import annotations

from typing import Any

from support.parts.plain_tools import Echo
from toolbus import Omission, Toolkit
from toolbus.tools.omission import entries_in, fit_tools
from toolbus.tools.tool import Tool
from toolbus.wire import pack_body


def echo(name: str, **options: Any) -> Tool:
    return Echo(name, options.pop("input_schema", {"type": "object"}), **options)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


def test_each_tool_that_a_room_would_refuse_by_itself_is_left_out_with_its_reason() -> None:
    tools = [
        echo("fits", input_schema={"enum": ["x"] * 60_000}),
        echo("values", input_schema={"enum": [1] * 70_000}),
        echo("bytes", description="x" * 65_000, input_schema={"const": "x" * 200_000}),
        echo("deep", input_schema=nested(30)),
        echo("not a name"),
        echo("surrogate", input_schema={"const": "\ud800"}),
        echo("invalid", input_schema={"type": "object", "required": True}),
        echo("largest", input_schema={"maximum": 2**63 - 1}),
    ]
    fitting, left_out = fit_tools(tools)
    assert [tool.name for tool in fitting] == ["fits", "largest"]
    assert [entry.name for entry in left_out] == [tool.name for tool in tools[1:7]]
    assert "65536 values" in left_out[0].reason
    assert "262144 bytes" in left_out[1].reason
    assert "levels" in left_out[2].reason


def test_what_is_left_out_is_in_the_manifest_in_one_order_and_stays_in_changed_toolkits() -> None:
    entries = [Omission(name, "too deep") for name in ("b", "a", "b")]
    made = [
        Toolkit("t", [echo("c")], annotations={"own": 1}, left_out=omissions, unchecked=entries[:1])
        for omissions in (entries, reversed(entries))
    ]
    listed = [{"name": name, "reason": "too deep"} for name in ("a", "b")]
    for toolkit in (*made, made[0].without("c"), made[0].with_tools(echo("d"))):
        assert toolkit.manifest().annotations == {
            "own": 1,
            "left_out": listed,
            "unchecked": [{"name": "b", "reason": "too deep"}],
        }
    assert made[0].left_out == tuple(entries)
    assert Toolkit("t").manifest().annotations == {}


def test_a_long_list_is_cut_and_says_how_many_there_are() -> None:
    short = Toolkit("t", left_out=[Omission(f"t{n}", "too deep") for n in range(150)])
    listed, count = entries_in(short.manifest().annotations, "left_out")
    assert (len(listed), count) == (100, 150)
    hostile = [Omission(f"{n}" + "\\" * 900, '"\n' * 900) for n in range(150)]
    annotations = Toolkit("t", left_out=hostile, unchecked=hostile).manifest().annotations
    packed = pack_body(annotations)
    assert len(packed) < 40_000
    assert sum(map(packed.count, b'"\\')) <= 16_384


def test_entries_are_one_line_and_anything_may_be_read() -> None:
    entry = Omission("a\nb\u202e" + "x" * 300, "\x1b[2J" + "y" * 900)
    assert entry.name.startswith("a\\nb\\u202e")
    assert entry.reason.startswith("\\x1b[2J")
    assert (len(entry.name), len(entry.reason)) == (200, 500)
    values: list[Any] = [None, 1, "x", {}, [1, {"name": 1, "reason": ""}, {"name": "a"}]]
    for value in values:
        assert entries_in({"left_out": value, "left_out_count": value}, "left_out")[0] == ()
    listed = [{"name": "a", "reason": "b", "more": 1}]
    read = entries_in({"left_out": listed, "left_out_count": True}, "left_out")
    assert read == ((Omission("a", "b"),), 1)
