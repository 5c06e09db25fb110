"""What a server says to a call, and what is made of it: never more than the transport saw."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.mcp import raw_server
from support.mcp.hostile_server import answer_of, hostile_server, result_of
from support.web.scripted_server import Answer
from toolbus import ToolContext, ToolFailed, Unavailable
from toolbus_toolkits.mcp import McpServer, ServerAccess
from toolbus_toolkits.network import AddressPolicy

LOOPBACK = ServerAccess(AddressPolicy(("127.0.0.1",), allow_private=True))


def raw(*args: str, witness: Path | None = None, **options: Any) -> McpServer:
    env = {**options.pop("env", {}), **({} if witness is None else {"WITNESS": str(witness)})}
    command = [raw_server.__file__, *args]
    return McpServer("raw", command=sys.executable, args=command, env=env, **options)


async def act(server: McpServer, **arguments: Any) -> Any:
    return (await server.toolkit().execute(ToolContext(), "act", arguments)).value


@asynccontextmanager
async def over(kind: str, witness: Path | None = None) -> AsyncIterator[McpServer]:
    """A server that answers as the arguments say: over pipes, in bodies or in events of HTTP."""
    if kind == "pipes":
        async with raw(witness=witness) as server:
            yield server
        return

    def call(request: dict[str, Any]) -> Answer:
        arguments = request["params"]["arguments"]
        if witness is not None:
            with witness.open("a") as file:
                file.write("\n")
        if "error" in arguments:
            return answer_of(request, "error", arguments["error"])
        if "raw" not in arguments:
            return result_of(request)
        text = arguments["raw"].replace("ID", str(request["id"]))
        if kind == "bodies":
            return Answer(200, text.encode(), {"content-type": "application/json"})
        lines = "".join(f"data: {line}\n\n" for line in text.split("\n"))
        return Answer(200, lines.encode(), {"content-type": "text/event-stream"})

    async with hostile_server(call=call) as web:
        async with McpServer("web", url=f"{web.url}/mcp", access=LOOPBACK) as server:
            yield server


WAYS = ["pipes", "bodies", "events"]
ERRORS: list[tuple[int, str]] = [
    (-32000, "rate limit reached"),
    (-32000, "Connection closed"),
    (-32001, "Request timed out"),
    (-32600, "Session terminated"),
    (-32600, "Session not found"),
    (-32601, "Method not found"),
    (-32602, "Invalid params"),
    (-32603, "Server returned an error response"),
    (-32700, "Parse error"),
    (-32020, "header mismatch"),
    (-32022, "unsupported protocol version"),
    (-32042, "needs an address"),
    (-32099, "SSE stream ended without a response"),
    (0, ""),
    (2**31, "x" * 5_000),
]


@pytest.mark.parametrize("way", WAYS[:2])
async def test_an_error_of_a_server_is_its_answer_whatever_it_says(
    way: str, tmp_path: Path
) -> None:
    witness = tmp_path / "witness"
    witness.touch()
    async with asyncio.timeout(60), over(way, witness) as server:
        for number, (code, message) in enumerate(ERRORS, 1):
            with pytest.raises(ToolFailed, match="refused the call") as failed:
                await act(server, error={"code": code, "message": message})
            assert (failed.value.executed, failed.value.retryable) == ("maybe", False)
            assert failed.value.details["mcp_code"] == code
            assert witness.read_text().count("\n") == number
        assert server.state == "connected"


async def test_an_error_to_one_caller_ends_no_call_of_another() -> None:
    async with asyncio.timeout(60), raw() as server:
        other = asyncio.create_task(act(server, hold=1))
        await asyncio.wait([other], timeout=0)
        with pytest.raises(ToolFailed):
            await act(server, error={"code": -32000, "message": "Connection closed"})
        assert await other == "done"


RESULT = '{"content": [{"type": "text", "text": "TEXT"}]}'
ANSWER = f'{{"jsonrpc": "2.0", "id": ID, "result": {RESULT}}}'
READ: dict[str, tuple[str, str]] = {
    "half a pair": (ANSWER.replace("TEXT", r"a\ud83d"), "a\ufffd"),
    "the other half": (ANSWER.replace("TEXT", r"\ude00 \ud83d\ude00"), "\ufffd \U0001f600"),
    "an escaped half": (ANSWER.replace("TEXT", r"\\ud83d"), r"\ud83d"),
    "a byte order mark": ("\ufeff" + ANSWER, "TEXT"),
    "an id with a fraction": (ANSWER.replace("ID", "ID.0"), "TEXT"),
    "an id as text": (ANSWER.replace("ID", '"ID"'), "TEXT"),
    "a batch": (f'[{ANSWER}, {{"jsonrpc": "2.0", "method": "notifications/x"}}]', "TEXT"),
}


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_whose_meaning_is_clear_is_read(way: str) -> None:
    async with asyncio.timeout(60), over(way) as server:
        for kind, (text, expected) in READ.items():
            assert await act(server, raw=text) == expected, kind


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_an_answer_to_another_request_is_not_the_answer(kind: str) -> None:
    """It goes to the caller of the other one, whichever response it comes in."""
    waiting: dict[str, Any] = {}
    is_answered = asyncio.Event()

    async def call(request: dict[str, Any]) -> Answer:
        waiting[request["params"]["arguments"]["key"]] = request["id"]
        if len(waiting) < 2:
            await is_answered.wait()
            return Answer(200, headers={"content-type": kind})
        answers = [
            ANSWER.replace("ID", str(request_id)).replace("TEXT", key)
            for key, request_id in waiting.items()
        ]
        text = f"[{', '.join(answers)}]"
        if kind == "text/event-stream":
            text = "\ufeff" + "".join(f"data: {answer}\n\n" for answer in answers)
        return Answer(200, text.encode(), {"content-type": kind})

    async with asyncio.timeout(60), hostile_server(call=call) as web:
        async with McpServer("web", url=f"{web.url}/mcp", access=LOOPBACK) as server:

            async def key_of(key: str) -> Any:
                answer = await act(server, key=key)
                is_answered.set()
                return answer

            keys = await asyncio.gather(key_of("one"), key_of("two"))
            assert [*keys] == ["one", "two"]


@pytest.mark.parametrize("way", WAYS[1:])
async def test_an_answer_to_no_request_is_the_answer_of_none(way: str) -> None:
    async with asyncio.timeout(60), over(way) as server:
        with pytest.raises((ToolFailed, Unavailable), match=r"(no|without an) answer") as failed:
            await act(server, raw=ANSWER.replace("ID", "99999"))
        assert failed.value.executed == "maybe"


UNREADABLE: dict[str, str] = {
    "300,000 values": ANSWER.replace("TEXT", '"}, ' + "{}, " * 300_000 + '{"a": "'),
    "300 nested lists": ANSWER.replace(RESULT, f'{{"a": {"[" * 300 + "]" * 300}}}'),
    "3,000 nested lists": ANSWER.replace(RESULT, "[" * 3_000 + "]" * 3_000),
    "its id at the end": f'{{"result": {"[" * 70_000}, "jsonrpc": "2.0", "id": ID}}',
    "cut": ANSWER[:-20],
    "two in one line": ANSWER + ANSWER,
    "no result": '{"jsonrpc": "2.0", "id": ID}',
    "null": '{"jsonrpc": "2.0", "id": ID, "result": null}',
    "a list": '{"jsonrpc": "2.0", "id": ID, "result": []}',
    "an error without a code": '{"jsonrpc": "2.0", "id": ID, "error": {"message": "x"}}',
    "no version": f'{{"id": ID, "result": {RESULT}}}',
    "a number of 5,000 digits": ANSWER.replace(RESULT, "1" * 5_000),
}


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_that_cannot_be_read_ends_its_call(way: str) -> None:
    async with asyncio.timeout(60), over(way) as server:
        for kind, text in UNREADABLE.items():
            with pytest.raises(ToolFailed, match="the server sent what") as failed:
                await act(server, raw=text)
            assert failed.value.executed == "maybe", kind
            assert await act(server) == "done"


@pytest.mark.parametrize("line", ["words", '{"a": 1}', '"id"', "[]"])
async def test_a_line_that_answers_nothing_is_said_and_ends_nothing(
    line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(60), raw() as server:
        for _ in range(300):  # more than may come in a row
            assert await act(server, raw=f"{line}\n{ANSWER}") == "TEXT"
    assert 0 < len(caplog.records) + (line == "[]") < 60


@pytest.mark.parametrize("flag", ["--ends", "--silent", "--newest"])
async def test_a_server_that_wants_another_first_request_is_connected(flag: str) -> None:
    async with asyncio.timeout(60), raw(flag, connect_timeout_s=10) as server:
        assert await act(server) == "done"
        with pytest.raises(Unavailable, match="status 3") as lost:
            await act(server, end=1)
        assert lost.value.executed == "maybe"
        await server.retry()
        assert await act(server) == "done"


async def test_a_server_without_tools_is_connected() -> None:
    async with asyncio.timeout(60), raw(env={"TOOLS": "null"}) as server:
        assert (server.state, server.toolkit().tools) == ("connected", ())


@asynccontextmanager
async def listing(count: int) -> AsyncIterator[McpServer]:
    """A server with one valid tool, and then so many that are not."""
    good = {"name": "act", "inputSchema": {"type": "object"}}
    tools = [good, *({"name": f"t{each}", "inputSchema": {}} for each in range(count))]

    async with hostile_server(
        list=lambda asked: answer_of(asked, "result", {"tools": tools})
    ) as web:
        yield McpServer("web", url=f"{web.url}/mcp", access=LOOPBACK)


async def test_a_list_with_too_many_tools_is_not_read_to_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asyncio.timeout(60), listing(40_000) as server, server:
        assert [each.name for each in server.toolkit().tools] == ["act"]
        assert 2_000 < len(server.toolkit().left_out) < 3_000
    assert "a list of 40,001 tools is not read to its end" in caplog.text


async def test_a_list_with_too_many_values_is_refused() -> None:
    async with asyncio.timeout(60), listing(100_000) as server:
        with pytest.raises(Unavailable, match="200,000 values"):
            await server.__aenter__()
