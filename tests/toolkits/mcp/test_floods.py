"""MCP servers that send much: what is logged, and what it takes from others."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from support.mcp import raw_server
from support.mcp.hostile_server import hostile_server
from support.web.scripted_server import Answer
from toolbus import ToolContext, ToolFailed
from toolbus_toolkits.mcp import McpServer, ServerAccess
from toolbus_toolkits.mcp.log_budget import LogBudget
from toolbus_toolkits.mcp.messages import LoopShare, read_messages
from toolbus_toolkits.network import AddressPolicy

MANY = 2_000
ANSWER = '{"jsonrpc": "2.0", "id": ID, "result": {"content": [{"type": "text", "text": "done"}]}}'


def raw(**options: Any) -> McpServer:
    return McpServer("raw", command=sys.executable, args=[raw_server.__file__], **options)


async def act(server: McpServer, **arguments: Any) -> Any:
    return (await server.toolkit().execute(ToolContext(), "act", arguments)).value


def notification(method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})


def question(method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": "q", "method": method, "params": params})


FORM = {"message": "Really?", "requestedSchema": {"type": "object", "properties": {}}}
FLOODS: dict[str, str] = {
    "progress without a token": notification("notifications/progress", progressToken=None),
    "progress of nobody": notification("notifications/progress", progressToken=7, progress=1),
    "progress that is a text": notification("notifications/progress", progressToken="ID"),
    "a cancel of nobody": notification("notifications/cancelled", requestId=None),
    "a changed list that is not valid": notification("notifications/tools/list_changed", _meta=5),
    "records": notification("notifications/message", level="x", data=1),
    "unknown notifications": notification("notifications/x"),
    "questions": question("elicitation/create", **FORM),
    "questions that are not valid": question("elicitation/create", message=5),
    "unknown questions": question("x/y"),
    "errors of nobody": '{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "x"}}',
    "answers of nobody": '{"jsonrpc": "2.0", "id": 10000, "result": {}}',
    "unreadable answers of nobody": '{"jsonrpc": "2.0", "id": 10000, "result": 5}',
    "an array of many": json.dumps([{}] * 50),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_server_cannot_fill_the_log(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    flood = "\n".join([FLOODS[kind], *[ANSWER.replace("ID", "-1")] * 3]) + "\n"
    with caplog.at_level("INFO"):
        async with asyncio.timeout(60), raw() as server:
            assert await act(server, raw=flood * MANY + ANSWER) == "done"
    assert len(caplog.records) < 80
    assert sum(map(len, caplog.messages)) < 60_000


async def test_lines_of_stderr_are_counted_beyond_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        async with asyncio.timeout(60), raw() as server:
            for _ in range(30):
                await act(server, stderr="words\n" * 20)
    assert 0 < sum("words" in text for text in caplog.messages) < 80


async def test_a_program_that_writes_no_messages_is_named_once_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # It is started again and again: what one start may log is not multiplied by their number.
    code = "print(*range(500), sep='\\n', flush=True); input()"
    server = McpServer("words", command=sys.executable, args=["-c", code])
    async with asyncio.timeout(60):
        await server.start()
        try:
            for _ in range(3):
                await server.retry()
                assert "it wrote more than 100 lines before any message" in server.reason
        finally:
            await server.stop()
    (failed,) = [text for text in caplog.messages if "MCP server words is not connected" in text]
    assert "lines before any message" in failed
    assert len(caplog.records) < 15


def test_a_budget_says_how_many_it_left_out() -> None:
    now = 0.0
    budget = LogBudget(2, 10.0, clock=lambda: now)
    assert [budget.passed("x") for _ in range(4)] == ["x", "x", None, None]
    now = 10.0
    assert budget.passed("x") == "x (2 more before this were left out)"
    assert budget.passed("x") is None


async def test_messages_of_many_values_leave_time_to_others() -> None:
    values = ANSWER.replace("[{", "[" + "{}," * 5_000_000 + "{")
    calls = 0

    async def call_the_other(other: McpServer) -> None:
        nonlocal calls
        while True:
            await act(other)
            calls += 1

    def call(request: dict[str, Any]) -> Answer:
        body = values.replace("ID", str(request["id"])).encode()
        return Answer(200, body, {"content-type": "application/json"})

    access = ServerAccess(AddressPolicy(("127.0.0.1",), allow_private=True))
    async with asyncio.timeout(120), hostile_server(call=call) as web, raw() as other:
        async with McpServer("web", url=f"{web.url}/mcp", access=access) as server:
            calling = asyncio.create_task(call_the_other(other))
            for _ in range(5):
                with pytest.raises(ToolFailed, match="more than 200,000 values") as failed:
                    await act(server)
                assert failed.value.executed == "maybe"
            calling.cancel()
    assert calls >= 10


async def test_a_long_turn_is_followed_by_as_long_a_rest() -> None:
    now, rests = 0.0, []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    share = LoopShare(lambda: now, sleep)
    for now in (0.001, 0.004, 0.5, 0.502):  # noqa: B007 - what the clock shows
        await share.give_back()
    assert rests == [0.5]


DATA = {
    "backslashes": b'"' + b"\\" * (1 << 24),
    "quotes": b'"' * (1 << 24),
    "commas in a text": b'{"jsonrpc": "2.0", "id": 1, "result": {"a": "'
    + b",[{" * (5 << 20)
    + b'"}}',
    "halves": b'{"jsonrpc": "2.0", "id": 1, "result": {"a": "' + rb"\ud800" * (1 << 21) + b'"}}',
    "brackets": b"[" * (1 << 24),
}


@pytest.mark.parametrize("kind", DATA)
def test_a_text_is_read_in_time_in_proportion_to_it(kind: str) -> None:
    assert len(read_messages(DATA[kind])) == 1


def test_half_a_pair_in_bytes_is_replaced() -> None:
    (message,) = read_messages(b'{"jsonrpc": "2.0", "method": "\xed\xa0\x80"}')
    assert getattr(message, "method", "") == "\ufffd" * 3
