"""Conversations through the real clients of the providers, with a server that judges requests.

A turn has tools of a room, of an MCP server and of an HTTP API. The server takes a second request
only if the results of the first are there as its API wants them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.mcp import scripted_server
from support.models.model_server import KEY, ModelServer, model_server
from support.models.wire_replies import APIS, Says
from support.models.wire_rules import wrongs
from support.rooms.events import until_hosts
from support.rooms.turns import agent_and_host
from support.web.described_api import echo, kit_of
from support.web.scripted_server import web_server
from toolbus import FileChunk, FunctionTool, ToolFailed, Toolkit, ToolResult, Turn, tool
from toolbus.models import open_model
from toolbus.models.adapter import Model, Plain
from toolbus_toolkits.mcp import McpHub, McpToolkit

pytestmark = pytest.mark.asyncio(loop_scope="module")

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def desk() -> Toolkit:
    @tool
    async def greet(name: str, loud: bool = False, tags: list[str] | None = None) -> str:
        """Greet somebody."""
        return f"hello {name}{'!' if loud else ''} {tags}"

    @tool
    async def picture() -> FileChunk:
        """Return a picture."""
        return FileChunk(PNG, "dot.png", "image/png")

    @tool
    async def document(page: int = 1) -> FileChunk:
        """Return a document."""
        return FileChunk(PDF, "paper.pdf", "application/pdf")

    @tool
    async def fail(reason: str) -> str:
        """Fail."""
        raise ToolFailed(reason)

    @tool
    async def nothing() -> None:
        """Return nothing."""

    @tool
    async def any_of(type: str, required: dict[str, Any], value: int | str = 3) -> str:
        """Take parameters whose names are words of schemas, and any object."""
        return f"{type} {required} {value}"

    return Toolkit("desk", [greet, picture, document, fail, nothing, any_of], rules=["Be kind."])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def turn(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Turn]:
    """A turn over tools of a room, of an MCP server in it, and of an HTTP API."""
    folder: Path = tmp_path_factory.mktemp("models")
    servers = {"calc": {"command": sys.executable, "args": [scripted_server.__file__]}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    query = {"name": "dry-run", "in": "query", "schema": {"type": "boolean"}}
    async with contextlib.AsyncExitStack() as stack:
        bus, agent = await stack.enter_async_context(agent_and_host(desk()))
        host = await stack.enter_async_context(bus.room("mcp-host"))
        hub = McpHub.from_config(folder / "mcp.json")
        await stack.enter_async_context(host.host(McpToolkit(hub)))
        await until_hosts(agent, "calc", 1)
        web = await stack.enter_async_context(web_server(echo))
        kit = kit_of(folder, web.url, {"parameters": [query], "description": "Look at things."})
        yield await stack.enter_async_context(Turn(agent, always=[kit], available=True))


def ask_for(turn: Turn, *asked: tuple[str, Any]) -> Says:
    names = {each.tool.name: each.name for each in turn.model_tools}
    return Says("I look.", tuple((names[name], arguments) for name, arguments in asked))


async def one_turn(
    model: Model, turn: Turn, conversation: list[Plain], is_streamed: bool
) -> list[ToolResult]:
    """Ask until no tool is asked for; return all results."""
    told: list[ToolResult] = []
    while True:
        request = model.adapter.request(turn, conversation, "You are tested.")
        if is_streamed:
            async with contextlib.aclosing(model.stream(request)) as events:
                seen = [event async for event in events]
            reply = model.adapter.collect(seen)
            assert "".join(map(model.adapter.text_of, seen)) == model.adapter.text(reply)
        else:
            reply = await model.reply(request)
        results = await turn.run(model.adapter.uses(reply))
        conversation += model.adapter.messages(reply, results)
        told += results
        if not results:
            return told


def body_of(server: ModelServer) -> str:
    return json.dumps(server.requests[-1], ensure_ascii=False)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
async def test_a_conversation_with_tools_of_all_kinds(
    api: str, is_streamed: bool, turn: Turn
) -> None:
    first = ask_for(
        turn,
        ("desk.greet", {"name": "Ada", "loud": None, "tags": None}),
        ("calc.add", {"a": 2, "b": 40}),
        ("things.op", {"dry-run": True}),
        ("desk.picture", {}),
        ("desk.document", {"page": None}),
        ("desk.fail", {"reason": "out of paper"}),
        ("desk.nothing", {}),
        ("desk.any_of", {"type": "t", "required": {"x": 1}, "value": None}),
        ("desk.greet", {"nam": "Bo"}),
    )
    second = ask_for(turn, ("calc.hello", {"name": "Cy"}), ("desk.greet", {"name": "Cy"}))
    async with model_server(first, Says("Done."), second, Says("Bye.")) as server:
        model = open_model(f"{api}:stub", server.url(api), api_key=KEY, max_retries=0)
        async with contextlib.aclosing(model):
            conversation = [
                model.adapter.user("Look around.", [FileChunk(PNG, "a.png", "image/png")])
            ]
            results = await one_turn(model, turn, conversation, is_streamed)
            sent = body_of(server).replace("_", "/").replace("-", "+")  # Gemini: for URLs
            conversation.append(model.adapter.user("And again."))
            results += await one_turn(model, turn, conversation, is_streamed)
    assert server.wrongs == []
    assert [each.state for each in results] == [
        *("ok", "ok", "ok", "ok", "ok", "failed", "ok", "ok", "failed", "ok", "ok")
    ]
    assert "hello Ada None" in sent
    assert "out of paper" in sent
    assert sent.count(base64.b64encode(PNG).decode()) == 2
    assert base64.b64encode(PDF).decode() in sent
    assert "Be kind." in sent
    assert "hello Cy" in body_of(server)


@pytest.mark.parametrize("api", APIS[:2])  # the others send an object, not text
@pytest.mark.parametrize("arguments", ['{"name": "Ad', "[1]", "", '{"name": NaN}', "[" * 2_000])
async def test_arguments_that_are_no_object_are_an_error_that_the_model_can_mend(
    api: str, arguments: str, turn: Turn
) -> None:
    async with model_server(ask_for(turn, ("desk.greet", arguments)), Says("Oh.")) as server:
        model = open_model(f"{api}:stub", server.url(api), api_key=KEY, max_retries=0)
        async with contextlib.aclosing(model):
            [result] = await one_turn(model, turn, [model.adapter.user("Greet.")], False)
    assert (result.state, result.executed, server.wrongs) == ("failed", "no", [])
    assert "invalid_arguments" in body_of(server)


@pytest.mark.parametrize("api", APIS)
async def test_a_use_of_a_tool_that_is_not_there_has_its_result(api: str, turn: Turn) -> None:
    uses: tuple[tuple[str, dict[str, Any]], ...] = (
        ("nobody", {}),
        ("desk__greet", {"name": "Ada"}),
        ("desk__greet", {"name": "Bo"}),
    )
    async with model_server(Says("", uses), Says("Oh.")) as server:
        model = open_model(f"{api}:stub", server.url(api), api_key=KEY, max_retries=0)
        async with contextlib.aclosing(model):
            conversation = [model.adapter.user("Greet.")]
            results = await one_turn(model, turn, conversation, False)
    assert server.wrongs == []
    assert [each.error and each.error.code for each in results] == ["not_found", None, None]


@pytest.mark.parametrize("api", APIS)
async def test_uses_without_results_are_told_to_be_interrupted(api: str, turn: Turn) -> None:
    asked = ask_for(turn, ("desk.greet", {"name": "Ada"}), ("desk.picture", {}))
    async with model_server(asked, Says("Oh.")) as server:
        model = open_model(f"{api}:stub", server.url(api), api_key=KEY, max_retries=0)
        async with contextlib.aclosing(model):
            conversation = [model.adapter.user("Greet.")]
            reply = await model.reply(model.adapter.request(turn, conversation))
            conversation += model.adapter.messages(reply, [])
            await one_turn(model, turn, conversation, False)
    assert server.wrongs == []
    assert body_of(server).count("interrupted") == 2


@pytest.mark.parametrize("api", APIS)
async def test_hundreds_of_tools_are_shown_and_a_result_of_10_mib_is_cut(api: str) -> None:
    async def large(kind: str | None = None) -> FileChunk:
        """Return 10 MiB."""
        return FileChunk(b"word " * (2 * 1024 * 1024), "words.txt", "text/plain")

    # Some APIs take 128 tools; that is theirs to say, and whoever makes the turn can choose.
    kit = Toolkit("many", [FunctionTool(large, name=f"large{number}") for number in range(300)])
    async with Turn(None, always=[kit]) as turn:
        asked = ask_for(turn, ("many.large299", {"kind": None}))
        async with model_server(asked, Says("Oh.")) as server:
            model = open_model(f"{api}:stub", server.url(api), api_key=KEY, max_retries=0)
            async with contextlib.aclosing(model):
                [result] = await one_turn(model, turn, [model.adapter.user("Look.")], False)
    assert (result.state, server.wrongs) == ("ok", [])
    assert body_of(server).count("Return 10 MiB.") >= 300
    assert 100_000 < len(body_of(server)) < 1_000_000


def results_in(api: str, body: Any) -> list[Any]:
    """Return the list of a request that ends with two results."""
    if api == "openai-responses":
        found = body["input"]
    elif api == "gemini":
        found = body["contents"][-1]["parts"]
    else:
        found = body["messages"] if api == "openai-chat" else body["messages"][-1]["content"]
    assert isinstance(found, list)
    return found


def rename_tool(body: Any) -> None:
    tool_ = body["tools"][0]
    tool_ = tool_.get("functionDeclarations", [tool_])[0]
    tool_.get("function", tool_)["name"] = "a b"


def remove_replies(body: Any) -> None:
    for key in {"messages", "input", "contents"} & body.keys():
        body[key] = [
            each
            for each in body[key]
            if each.get("role") in ("system", "user", "tool")
            or each.get("type") == "function_call_output"
        ]


WRONGS: dict[str, Any] = {
    "a result is missing": lambda _, found: found.pop(),
    "a result is there twice": lambda _, found: found.append(found[-1]),
    "another key": lambda _, found: found[-1].update(surprise=1),
    "results in another order": lambda _, found: found.insert(-1, found.pop()),
    "an empty text": lambda _, found: found.append({"role": "user", "content": "", "text": ""}),
    "a name": lambda body, _: rename_tool(body),
    "a key of the request": lambda body, _: body.update(surprise=1),
    "no reply": lambda body, _: remove_replies(body),
}


@pytest.mark.parametrize("api", APIS)
async def test_the_server_of_these_tests_refuses_what_is_wrong(api: str, turn: Turn) -> None:
    asked = ask_for(turn, ("desk.greet", {"name": "Ada"}), ("desk.any_of", {"type": "t"}))
    async with model_server(asked, Says("Oh.")) as server:
        model = open_model(f"{api}:stub", server.url(api), api_key=KEY, max_retries=0)
        async with contextlib.aclosing(model):
            await one_turn(model, turn, [model.adapter.user("Greet.")], False)
    right = json.dumps(server.requests[-1])
    assert wrongs(api, json.loads(right), [asked]) == []
    for name, spoil in WRONGS.items():
        body = json.loads(right)
        spoil(body, results_in(api, body))
        assert wrongs(api, body, [asked]), name
