"""MCP servers that flood, lie, or never answer, and what their clients do."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
from typing import Any

import mcp_types as types
import pytest

from support.mcp.hostile_server import answer_of, hostile_server, result_of
from support.patience import PATIENCE_S
from support.web.scripted_server import Answer, WebServer
from toolbus import FileChunk, InvalidResult, JsonChunk, ToolContext, ToolFailed, Unavailable
from toolbus_toolkits.mcp import McpHub, McpServer, ServerAccess
from toolbus_toolkits.mcp.content import to_chunk
from toolbus_toolkits.network import AddressPolicy

LOOPBACK = ServerAccess(AddressPolicy(("127.0.0.1",), allow_private=True))


def client_of(server: WebServer, **options: Any) -> McpServer:
    return McpServer("web", url=f"{server.url}/mcp", access=LOOPBACK, **options)


async def act(client: McpServer) -> Any:
    return (await client.toolkit().execute(ToolContext(), "act", {})).value


def packed(request: dict[str, Any]) -> Answer:
    answer = result_of(request)
    headers = {**answer.headers, "content-encoding": "gzip"}
    return Answer(200, gzip.compress(answer.body), headers)


BAD_ANSWERS = {
    "packed": packed,
    "too large": lambda request: result_of(request, "x" * (17 * 1024 * 1024)),
    "a session of the tool": lambda request: answer_of(
        request, "error", {"code": -32600, "message": "Browser session not found"}
    ),
}


@pytest.mark.parametrize("kind", BAD_ANSWERS)
async def test_an_answer_that_is_refused_does_not_say_that_nothing_ran(kind: str) -> None:
    async with asyncio.timeout(60), hostile_server(call=BAD_ANSWERS[kind]) as server:
        async with client_of(server) as client:
            with pytest.raises((Unavailable, ToolFailed)) as failed:
                await act(client)
    assert failed.value.executed == "maybe"


ODD_RESULTS: dict[str, tuple[dict[str, Any], str]] = {
    "an error in a block of no known kind": (
        {"content": [{"type": "x", "why": "full"}], "isError": True},
        "full",
    ),
    "a schema that takes for ever": (
        {"content": [], "structuredContent": {"a": "a" * 64 + "!"}},
        "the result breaks its schema at /a",
    ),
}


@pytest.mark.parametrize("kind", ODD_RESULTS)
async def test_a_result_that_breaks_the_rules_is_an_error_of_its_server(kind: str) -> None:
    result, words = ODD_RESULTS[kind]
    slow = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    tool = {"name": "act", "inputSchema": {"type": "object"}, "outputSchema": slow}
    async with (
        asyncio.timeout(60),
        hostile_server(
            list=lambda request: answer_of(request, "result", {"tools": [tool]}),
            call=lambda request: answer_of(request, "result", result),
        ) as server,
        client_of(server) as client,
    ):
        with pytest.raises((ToolFailed, InvalidResult), match=words) as failed:
            await act(client)
    assert failed.value.executed == "yes"


_TEXT = {"type": "text", "text": "a"}
INVALID_RESULTS: list[tuple[dict[str, Any], Any]] = [
    ({}, None),
    ({"toolResult": {"a": 1}}, '{"toolResult": {"a": 1}}'),
    ({"content": None, "structuredContent": {"a": 1}}, {"a": 1}),
    ({"content": "words"}, "words"),
    ({"content": [{"type": "x", "a": 1}]}, '{"type": "x", "a": 1}'),
    ({"content": [_TEXT, {"type": "text", "text": 5}]}, ["a", '{"type": "text", "text": 5}']),
    ({"content": [_TEXT], "structuredContent": [1]}, [{"result": [1]}, "a"]),
    ({"content": [_TEXT], "isError": None, "_meta": 1}, "a"),
    ({"content": [5] * 1_001}, f"[{', '.join(['5'] * 1_001)}]"),
]


@pytest.mark.parametrize(("result", "value"), INVALID_RESULTS)
async def test_nothing_of_a_result_that_is_not_valid_is_lost(
    result: dict[str, Any], value: Any
) -> None:
    call = functools.partial(answer_of, member="result", value=result)
    async with asyncio.timeout(60), hostile_server(call=call) as server:
        async with client_of(server) as client:
            assert await act(client) == value


def test_structured_content_of_the_newest_version_is_any_value() -> None:
    for value in ([1, 2], "a", 5):
        block = types.TextContent(text=json.dumps(value))
        result = types.CallToolResult(content=[block], structured_content=value)
        assert to_chunk(result) == JsonChunk(value)


def test_a_resource_with_an_invalid_address_has_no_name() -> None:
    blob = types.BlobResourceContents(uri="http://[::1/x", blob="emlw")
    content = [types.EmbeddedResource(resource=blob)]
    assert to_chunk(types.CallToolResult(content=content)) == FileChunk(
        b"zip", "", "application/octet-stream"
    )


async def test_a_token_in_an_address_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with asyncio.timeout(60), hostile_server() as server:
        url = f"{server.url}/mcp?token=s3cret"
        async with McpServer("web", url=url, access=LOOPBACK) as client:
            assert await act(client) == "done"
    assert {seen.target for seen in server.seen} == {"/mcp?token=s3cret"}
    assert "s3cret" not in caplog.text


async def test_bad_messages_of_a_server_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    def words(_: dict[str, Any]) -> Answer:
        return Answer(body=b"words", headers={"content-type": "application/json"})

    async with asyncio.timeout(60), hostile_server(call=words) as server:
        async with client_of(server) as client:
            for _ in range(30):
                with pytest.raises(ToolFailed):
                    await act(client)
    assert len(caplog.records) < 60


async def test_a_server_that_never_confirms_the_end_of_its_session_delays_no_stop() -> None:
    never = asyncio.Event()

    async def wait(_: dict[str, Any]) -> Answer:
        await never.wait()
        return Answer()

    async with hostile_server(delete=wait) as server:
        client = client_of(server, timeout_s=3600.0)
        async with asyncio.timeout(60):
            async with client:
                assert await act(client) == "done"
        assert client.state == "closed"


async def test_a_server_that_never_takes_the_end_of_a_call_delays_no_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    never = asyncio.Event()

    async def wait(_: dict[str, Any]) -> Answer:
        await never.wait()
        return Answer()

    async with hostile_server(call=wait, cancel=wait) as server:
        async with asyncio.timeout(60), client_of(server, timeout_s=0.1) as client:
            with pytest.raises(ToolFailed, match="did not answer in time"):
                await act(client)
    assert not caplog.records  # else the SDK says that it waited, and gave up


async def test_pages_of_tools_end_at_the_most_tools_of_a_toolkit() -> None:
    asked: list[str] = []

    def page(request: dict[str, Any]) -> Answer:
        asked.append(str((request.get("params") or {}).get("cursor")))
        tools = [
            {"name": f"t{len(asked)}-{each}", "inputSchema": {"type": "object"}}
            for each in range(300)
        ]
        listed = {"tools": tools, "nextCursor": str(len(asked))}
        return answer_of(request, "result", listed)

    async with asyncio.timeout(60), hostile_server(list=page) as server:
        async with client_of(server) as client:
            assert len(client.toolkit().tools) == 1_000
    assert asked == ["None", "1", "2", "3"]


INVALID_TOOLS: dict[str, tuple[Any, str]] = {
    "no schema": ({"name": "bad"}, "bad: inputSchema: Field required"),
    "a schema of no object": (
        {"name": "bad", "inputSchema": {"type": "string"}},
        "bad: inputSchema.type: Input should be 'object'",
    ),
    "a name that is a number": ({"name": 5, "inputSchema": {"type": "object"}}, "without a name"),
    "no object": ("bad", "without a name"),
}


@pytest.mark.parametrize("kind", INVALID_TOOLS)
async def test_an_invalid_tool_is_left_out_and_the_others_work(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, words = INVALID_TOOLS[kind]
    good = {"name": "act", "inputSchema": {"type": "object"}}

    def listed(request: dict[str, Any]) -> Answer:
        return answer_of(request, "result", {"tools": [bad, good, bad]})

    async with asyncio.timeout(60), hostile_server(list=listed) as server:
        async with client_of(server) as client:
            assert [each.name for each in client.toolkit().tools] == ["act"]
            assert await act(client) == "done"
    (logged,) = [each for each in caplog.messages if "left out" in each]
    assert logged.count(words) == 2


class _Slow(McpServer):
    """A server that ends when all have begun to end."""

    barrier: asyncio.Barrier

    async def start(self) -> None:
        """Start nothing."""

    async def tried(self) -> None:
        """Do not wait."""

    async def stop(self) -> None:
        """Wait for the others."""
        await self.barrier.wait()


async def test_servers_of_a_hub_end_side_by_side() -> None:
    servers = [_Slow(f"s{each}", command="x") for each in range(3)]
    _Slow.barrier = asyncio.Barrier(len(servers))
    async with asyncio.timeout(PATIENCE_S), McpHub(servers):
        pass


@pytest.mark.parametrize("name", ["from", "class"])
async def test_a_tool_with_any_parameter_is_a_function(name: str) -> None:
    schema = {"type": "object", "properties": {name: {}}, "required": [name]}
    listed = {"tools": [{"name": "act", "inputSchema": schema}]}

    def echo(request: dict[str, Any]) -> Answer:
        return result_of(request, json.dumps(request["params"]["arguments"]))

    async with (
        asyncio.timeout(60),
        hostile_server(
            list=lambda request: answer_of(request, "result", listed), call=echo
        ) as server,
        client_of(server) as client,
    ):
        assert await client.tool("act")(**{name: 1}) == json.dumps({name: 1})
