"""A room takes any JSON as a schema: what reads toolkits of others shows them, and calls them."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import answer, ask, offer
from support.processes.command_line import CommandLine, Outcome
from toolbus import RequiredToolkit, ToolUse, Turn
from toolbus.schemas.text import SchemaTree, node_lines
from toolbus.schemas.validation import JsonCheck
from toolbus.wire import Dispatch
from toolbus_server.testing import TestServer, running_server

WILD: list[dict[str, Any]] = [
    {"type": "any", "properties": {"x": {"required": True, "type": 7}}, "required": None},
    {"properties": 7, "required": {"x": 1}, "$defs": [], "additionalProperties": "no"},
    {"properties": {"x": None, "y": [1], "class": {"$ref": 9}, "z": {"enum": {}}}},
    {"properties": {"x": {"type": [None, {}], "format": {}, "default": [[]], "description": 3}}},
    {"allOf": {"a": 1}, "anyOf": [7, None], "oneOf": "x", "not": 3, "prefixItems": {"a": 1}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}, "patternProperties": []},
    {"properties": {"x": {"pattern": "(?=a)", "minimum": "a", "enum": [[], {}, None]}}},
    {"$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}},
    {"$schema": ["x"], "$id": {}, "const": {"deep": [[[1]]]}, "items": [[], 1], "title": {}},
    {"anyOf": [{}], "properties": {"x": {"$ref": "#/anyOf/" + "1" * 5_000}}},
]
WILD[7] |= {"$ref": "#/$defs/a0"}
MANIFEST = {
    "name": "wild",
    "tools": [
        {"name": f"t{n}", "input_schema": schema, "output_schema": schema}
        for n, schema in enumerate(WILD)
    ],
    "annotations": {
        "left_out": [{"name": "gone\n", "reason": "too \x1b[2J large"}, 7, {"name": 1}],
        "left_out_count": 3,
        "unchecked": [{"name": "t0", "reason": "/type: it is not valid"}],
    },
}


async def answer_all(host: RawClient) -> None:
    """Answer calls."""
    while True:
        frame = await host.read_frame()
        if isinstance(frame, Dispatch):
            answer(host, frame, [1, {"x": 1}])


@asynccontextmanager
async def hosting_wild(server: TestServer) -> AsyncIterator[None]:
    async with raw_participant(server, "bob") as host:
        await ask(host, offer(MANIFEST))
        answers = asyncio.create_task(answer_all(host))
        try:
            yield
        finally:
            answers.cancel()
            with suppress(asyncio.CancelledError):
                await answers


async def test_the_command_line_lists_describes_calls_and_locks_them(tmp_path: Path) -> None:
    async with running_server() as server, hosting_wild(server):
        variables = {
            "TOOLBUS_URL": server.url,
            "TOOLBUS_ROOM": "lab",
            "TOOLBUS_TOKEN": server.token("ann"),
        }
        toolbus = CommandLine(tmp_path, variables)

        async def run(*arguments: str) -> Outcome:
            with toolbus.start(*arguments) as running:
                outcome = await asyncio.to_thread(running.ended)
            assert "Traceback" not in outcome.err
            return outcome

        described = await run("tools", "wild")
        assert [f"wild.t{n} -> " in described.out for n in range(len(WILD))] == [True] * len(WILD)
        last = described.out.splitlines()[-1]
        assert last == "3 tools are left out: toolbus tools wild --left-out"
        assert (await run("tools", "wild.t3")).code == 0
        assert json.loads((await run("call", "--json", "wild.t0", "x=1")).out) == {"x": 1}
        assert (await run("call", "wild.t1", "x=1")).code == 0
        ast.parse((await run("stubs", "wild")).out)
        assert (await run("lock")).code == 0
        assert (await run("lock", "--check")).code == 0
        assert (await run("tools", "wild", "--left-out")).out.splitlines() == [
            "state      tool    reason",
            "left out   gone\\n  too \\x1b[2J large",
            "unchecked  t0      /type: it is not valid",
        ]
        listed = (await run("tools", "wild", "--left-out", "--json")).value
        assert listed["left_out"] == [{"name": "gone\\n", "reason": "too \\x1b[2J large"}]
        assert (listed["left_out_count"], listed["unchecked_count"]) == (3, 1)
        assert (await run("tools", "--left-out")).code == 2


async def test_proxies_and_turns_have_them_with_schemas_that_compile() -> None:
    async with running_server() as server, hosting_wild(server):
        async with server.room("ann") as room:
            proxy = await room.toolkit("wild")
            assert await proxy.t0(x=1) == {"x": 1}
            with pytest.raises(TypeError, match=r"did you mean t1\(name="):
                await proxy.t1(1)
            async with Turn(room, required=[RequiredToolkit("wild")]) as turn:
                assert len(turn.tools) == len(WILD)
                for tool, wild in zip(turn.tools, WILD, strict=True):
                    JsonCheck(tool.input_schema)
                    assert all(node_lines(SchemaTree(wild).nodes(), "-"))
                uses = [ToolUse(str(n), tool.name, {}) for n, tool in enumerate(turn.tools)]
                assert [result.value for result in await turn.run(uses)] == [{"x": 1}] * len(WILD)
