"""One MCP server as a toolkit: results, failures, its end, and its changes."""

from __future__ import annotations

import asyncio
import inspect
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from support.mcp import scripted_server
from support.patience import PATIENCE_S
from support.rooms.events import until
from toolbus import (
    Chunk,
    EmptyChunk,
    FileChunk,
    InvalidArguments,
    JsonChunk,
    LinkChunk,
    NotFound,
    TextChunk,
    ToolContext,
    ToolFailed,
    Toolkit,
    Turn,
    Unavailable,
)
from toolbus.chunks.chunk_types import chunks_of
from toolbus_toolkits.mcp import McpServer, ServerAccess
from toolbus_toolkits.mcp.content import to_chunk, without_values

SCRIPT = scripted_server.__file__


def scripted(*args: str, **options: Any) -> McpServer:
    return McpServer("scripted", command=sys.executable, args=[SCRIPT, *args], **options)


@pytest.fixture
async def server() -> AsyncIterator[McpServer]:
    async with asyncio.timeout(60), scripted("--noise") as entered:
        yield entered


async def run(server: McpServer, tool: str, **arguments: Any) -> Any:
    return await server.toolkit().execute(ToolContext(), tool, arguments)


async def test_every_kind_of_content_is_a_result(server: McpServer) -> None:
    expected = {
        "nothing": EmptyChunk(),
        "text": TextChunk("words"),
        "image": FileChunk(b"image", "", "image/png"),
        "audio": FileChunk(b"audio", "", "audio/wav"),
        "link": LinkChunk("https://example.org/a", "a"),
        "text resource": TextChunk("a memo"),
        "binary resource": FileChunk(b"zip", "b.zip", "a/zip"),
    }
    for kind, chunk in expected.items():
        assert await run(server, "content", kind=kind) == chunk
    assert await run(server, "weather") == JsonChunk({"celsius": 21.5})


PICTURE = ImageContent(data="aW1hZ2U=", mime_type="image/png")
AS_FILE = FileChunk(b"image", "", "image/png")
BROKEN = ImageContent(data="%%%", mime_type="image/png")
AS_JSON = JsonChunk({"type": "image", "data": "%%%", "mimeType": "image/png"})


def words(text: str) -> TextContent:
    return TextContent(text=text)


@pytest.mark.parametrize(
    ("structured", "content", "expected"),
    [
        (None, [words("a"), PICTURE], [TextChunk("a"), AS_FILE]),
        (None, [words("a"), words("a")], [TextChunk("a"), TextChunk("a")]),
        (None, [BROKEN], [AS_JSON]),
        (None, [BROKEN, PICTURE], [AS_JSON, AS_FILE]),
        ({"n": 1}, [], [JsonChunk({"n": 1})]),
        ({"n": 1}, [words('{"n": 1}')], [JsonChunk({"n": 1})]),
        ({"n": 1}, [words('{\n  "n": 1.0\n}'), PICTURE], [JsonChunk({"n": 1}), AS_FILE]),
        ({"n": 1}, [words("n is 1"), PICTURE], [JsonChunk({"n": 1}), TextChunk("n is 1"), AS_FILE]),
        ({"n": 1}, [words("1")], [JsonChunk({"n": 1})]),
        ({"n": 1}, [words("2")], [JsonChunk({"n": 1}), TextChunk("2")]),
        ({"n": [1, 2]}, [words("[\n 1, 2]")], [JsonChunk({"n": [1, 2]})]),
        ({"n": [1, 2]}, [words("2")], [JsonChunk({"n": [1, 2]}), TextChunk("2")]),
        ({"n": 1, "m": 2}, [words("1")], [JsonChunk({"n": 1, "m": 2}), TextChunk("1")]),
        ({"n": 1}, [words("[" * 100_000)], [JsonChunk({"n": 1}), TextChunk("[" * 100_000)]),
        ({"result": "yes"}, [words("yes")], [JsonChunk({"result": "yes"})]),
        ({"result": [1, "b"]}, [words("1"), words("b")], [JsonChunk({"result": [1, "b"]})]),
        ({"result": [1]}, [words("2")], [JsonChunk({"result": [1]}), TextChunk("2")]),
    ],
)
def test_what_is_no_copy_of_structured_content_stays(
    structured: dict[str, Any] | None, content: list[Any], expected: list[Chunk]
) -> None:
    chunk = to_chunk(CallToolResult(content=content, structured_content=structured))
    assert [*chunks_of(chunk)] == expected


@pytest.mark.parametrize(
    ("trusted", "name", "expected"),
    [
        (True, "add", (True, True, False, False, True)),
        (True, "hello", (False, False, False, True, False)),
        (False, "add", (False, False, True, True, True)),
        (False, "hello", (False, False, True, True, False)),
    ],
)
async def test_the_hints_of_a_server_count_only_if_it_is_trusted(
    trusted: bool, name: str, expected: tuple[bool, ...]
) -> None:
    async with asyncio.timeout(60), scripted(trusted=trusted) as server:
        (tool,) = [each for each in server.toolkit().manifest().tools if each.name == name]
    assert expected == (
        *(tool.read_only, tool.idempotent, tool.destructive, tool.open_world),
        tool.is_concurrency_safe,
    )


@pytest.mark.parametrize("trusted", [True, False])
async def test_tools_say_which_server_they_are_of_and_its_words_are_data_unless_it_is_trusted(
    trusted: bool,
) -> None:
    async with asyncio.timeout(60), scripted(trusted=trusted) as server:
        toolkit = server.toolkit()
        mixed = Toolkit("mixed", [toolkit.get_tool("add")], rules=["Add twice."])
        one = Toolkit("one", [server.tool("add")])
        async with Turn(None, always=[toolkit, mixed, one]) as turn:
            prompt = turn.prompt()
            for name in ("scripted.add", "mixed.add", "one.add"):
                (shown,) = [each for each in turn.model_tools if each.tool.name == name]
                assert shown.tool.annotations["mcp"] == "scripted"
                is_quoted = shown.description.startswith('Words of the MCP server "scripted" about')
                assert is_quoted != trusted
                assert "Add two numbers." in shown.description
    assert ("- Add before you subtract." in prompt) == trusted
    assert "- Add twice." in prompt


async def test_definitions_become_those_of_tools(server: McpServer) -> None:
    toolkit = server.toolkit()
    add = toolkit.get_tool("add")
    assert add.description == "Add two numbers."
    assert toolkit.manifest().rules == ("Add before you subtract.",)
    odd = [each.name for each in toolkit.tools if each.name.startswith(("dots", "xxx"))]
    assert len(odd) == 3
    for name in odd:
        assert await run(server, name) == JsonChunk({"result": "hello you"})


@pytest.mark.parametrize(
    ("tool", "arguments", "error", "words", "executed"),
    [
        ("fail", {}, ToolFailed, "Error executing tool fail", "yes"),
        ("add", {"a": "x", "b": 1}, InvalidArguments, "/a", "no"),
        ("absent", {}, NotFound, "scripted.absent", "no"),
        ("crash", {}, Unavailable, "status 3; its last line was: out of luck", "maybe"),
    ],
)
async def test_a_failure_says_whether_the_tool_ran(
    server: McpServer,
    tool: str,
    arguments: dict[str, Any],
    error: type[Exception],
    words: str,
    executed: str,
) -> None:
    with pytest.raises(error, match=words) as failed:
        await run(server, tool, **arguments)
    assert failed.value.executed == executed  # type: ignore[attr-defined]


async def test_a_server_that_crashed_is_started_again_and_calls_meanwhile_ran_nothing(
    server: McpServer,
) -> None:
    toolkit = server.toolkit()
    with pytest.raises(Unavailable):
        await run(server, "crash")
    with pytest.raises(Unavailable, match=r"not connected: .*out of luck") as refused:
        await run(server, "add", a=1, b=2)
    assert (refused.value.executed, refused.value.retryable) == ("no", True)
    await server.retry()
    assert await run(server, "add", a=1, b=2) == JsonChunk({"result": 3})
    assert server.toolkit() is toolkit


async def test_progress_reaches_a_caller_that_asked_for_it(server: McpServer) -> None:
    received: list[Any] = []
    context = ToolContext(on_progress=received.append)
    assert await run(server, "asked") == JsonChunk({"result": False})
    assert await server.toolkit().execute(context, "asked", {}) == JsonChunk({"result": True})
    await server.toolkit().execute(context, "steps", {"count": 2})
    assert received == [
        {"progress": 0, "total": 2, "message": "step 0"},
        {"progress": 1, "total": 2, "message": "step 1"},
    ]


async def test_a_cancelled_call_is_cancelled_at_the_server(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    witness.touch()
    async with asyncio.timeout(60), scripted(env={"WITNESS": str(witness)}) as server:
        call = asyncio.create_task(run(server, "hang"))
        await until(lambda: "began" in witness.read_text())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: "cancelled" in witness.read_text())
        assert await run(server, "add", a=1, b=2) == JsonChunk({"result": 3})


async def test_calls_run_side_by_side(server: McpServer) -> None:
    results = await asyncio.gather(*(run(server, "add", a=each, b=1) for each in range(64)))
    assert [each.value["result"] for each in results] == list(range(1, 65))


async def test_a_changed_list_is_another_toolkit_and_unchanged_tools_stay(
    server: McpServer,
) -> None:
    before = server.toolkit()
    server.changed.clear()
    await run(server, "learn", name="newest")
    async with asyncio.timeout(PATIENCE_S):
        await server.changed.wait()
    after = server.toolkit()
    assert {each.name for each in after.tools} - {each.name for each in before.tools} == {"newest"}
    assert after.get_tool("add") is before.get_tool("add")


async def test_the_trace_of_a_call_goes_on_at_the_server(server: McpServer) -> None:
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=TraceFlags(1)))
    with trace.use_span(span):
        traceparent = (await run(server, "trace")).value["result"]
    assert traceparent.split("-")[1] == f"{0xABC:032x}"


def test_a_server_can_be_used_in_one_event_loop_after_another() -> None:
    server = scripted()

    async def use() -> None:
        async with asyncio.timeout(60), server:
            server.changed.clear()
            changed = asyncio.create_task(server.changed.wait())
            await run(server, "learn", name="newest")
            await changed
            assert await run(server, "newest", name="ann") == JsonChunk({"result": "hello ann"})

    asyncio.run(use())
    asyncio.run(use())


async def test_only_enabled_tools_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted(enabled_tools=["add", "hello"], disabled_tools=["crash"]) as server:
        assert [each.name for each in server.toolkit().tools] == ["add", "hello"]
    async with scripted(disabled_tools=["add"]) as server:
        assert "add" not in {each.name for each in server.toolkit().tools}
    assert not caplog.records
    async with scripted(enabled_tools=["ad"]):
        assert "it has no tool ad; did you mean add?" in caplog.text


async def test_a_tool_is_a_function(server: McpServer) -> None:
    add = server.tool("add")
    assert await add(a=1, b=2) == {"result": 3}
    assert (add.__name__, add.__doc__) == ("add", "Add two numbers.")
    assert list(inspect.signature(add).parameters) == ["a", "b"]
    assert await server.tool("dots.are.not.names")() == {"result": "hello you"}
    raw = await server.tool("fail", raw=True)()
    assert raw.is_error
    with pytest.raises(InvalidArguments):
        await add(a=1)
    with pytest.raises(NotFound):
        server.tool("absent")


class _Vault:
    """Credentials that go to Python alone."""

    def for_host(self, text: str, host: str) -> str:
        raise ToolFailed("not for a host", executed="no")

    def for_command(self, text: str, command: str) -> str:
        assert command == sys.executable
        return text.replace("${cred:a/b/c}", "hunter2")

    def redact(self, text: str) -> str:
        return text.replace("hunter2", "[credential a/b/c]")


async def test_a_credential_reaches_the_program_and_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    access = ServerAccess(credentials=_Vault())
    env = {"TOKEN": "${cred:a/b/c}", "SAYS": "${cred:a/b/c}"}
    with caplog.at_level("INFO"):
        async with scripted("--says", env=env, access=access) as server:
            named = (await run(server, "variable", name="TOKEN")).value
            with pytest.raises(InvalidArguments) as refused:
                await run(server, "hello", name="${cred:a/b/c}")
            with pytest.raises(Unavailable) as lost:
                await run(server, "crash")
    assert named == {"result": "[credential a/b/c]"}
    assert (refused.value.executed, refused.value.details["path"]) == ("no", "/name")
    assert "[credential a/b/c]" in caplog.text
    assert "hunter2" not in caplog.text + lost.value.message + repr(server.entry)


@pytest.mark.parametrize(
    "block",
    [
        TextContent(text="token=hunter2"),
        ImageContent(data=b64encode(b"\xff hunter2").decode(), mime_type="image/png"),
        ResourceLink(uri="https://example.org/?k=hunter2", name="hunter2"),
        EmbeddedResource(resource=TextResourceContents(uri="memo://a", text="hunter2")),
        EmbeddedResource(
            resource=BlobResourceContents(
                uri="memo://a", blob=b64encode(b"hunter2").decode(), mime_type="a/b"
            )
        ),
    ],
)
def test_a_result_of_every_kind_holds_no_credential(block: Any) -> None:
    result = CallToolResult(content=[block], structured_content={"hunter2": ["hunter2", 1]})
    clean = without_values(result, _Vault().redact)
    assert clean.structured_content == {"[credential a/b/c]": ["[credential a/b/c]", 1]}
    chunk = to_chunk(clean.model_copy(update={"structured_content": None}))
    shown = repr(chunk.data if isinstance(chunk, FileChunk) else chunk)
    assert "hunter2" not in shown
    assert "[credential a/b/c]" in shown


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: scripted("--crash"), "ended with status 3; .*cannot read its settings"),
        (lambda: scripted("--mute", connect_timeout_s=1.0), "did not answer within 1 s"),
        (lambda: McpServer("x", command="no-such-program"), "no such program in PATH"),
        (lambda: McpServer("x", url="http://127.0.0.1:9/mcp"), "127.0.0.1"),
        (
            lambda: scripted(env={"A": "${cred:a/b/c}"}),
            "is not resolved here: write it into a file",
        ),
    ],
)
async def test_a_server_that_cannot_be_reached_says_why_and_leaves_nothing(
    made: Callable[[], McpServer], words: str
) -> None:
    server = made()
    with pytest.raises(Unavailable, match=words):
        async with asyncio.timeout(60), server:
            pass
    assert server.state == "closed"
    assert [
        each for each in psutil.Process().children(recursive=True) if SCRIPT in _line(each)
    ] == []


@pytest.mark.parametrize("behaviour", ["--mute", "--crash"])
@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.9])
async def test_entering_that_is_cancelled_stops_the_server(
    behaviour: str, after_s: float, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    line = f'echo >> {started}; exec "$@"'
    program = ["-c", line, "sh", sys.executable, SCRIPT, behaviour]
    server = McpServer("scripted", command="sh", args=program)
    with suppress(TimeoutError, Unavailable):
        async with asyncio.timeout(after_s), server:
            pass
    assert server.state == "closed"
    count = len(started.read_text()) if started.exists() else 0
    await asyncio.sleep(0.7)  # longer than the pause before it is started again
    assert count <= 1
    assert (len(started.read_text()) if started.exists() else 0) == count


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
