"""`toolbus mcp` as editors start it: the official client, and lines as they stand on its pipes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from gateway.conftest import REVISIONS
from gateway.test_tool_calls import words
from support.processes.server_process import ServerProcess, server_process
from support.rooms.events import next_toolkit_event
from toolbus import Key, ParticipantToken, ToolContext, Toolkit, tool
from toolbus_server.testing import TestServer, running_server

MODERN, LEGACY = REVISIONS
NO_HOME = {"TOOLBUS_HOME": str(Path(__file__).with_name("no-home"))}
"""Without the keys and the contexts of the person who runs the tests."""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}


@asynccontextmanager
async def editor(
    url: str, token: str, mode: str, *options: str, program: tuple[str, str] = ("-m", "toolbus")
) -> AsyncIterator[tuple[Client, Callable[[], Awaitable[object]]]]:
    """Start it as the official client does; yield the client, and what waits for a change."""
    changes: asyncio.Queue[object] = asyncio.Queue()

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changes.put_nowait(message)

    parameters = StdioServerParameters(
        command=sys.executable,
        args=[*program, "mcp", "--room", "lab", "--url", url, *options],
        env={**NO_HOME, "TOOLBUS_TOKEN": token},
    )
    async with (
        asyncio.timeout(60),
        Client(parameters, mode=mode, message_handler=on_message) as client,
        AsyncExitStack() as stack,
    ):
        wait: Callable[[], Awaitable[object]] = changes.get
        if mode == MODERN:
            listening = await stack.enter_async_context(client.listen(tools_list_changed=True))
            wait = lambda: anext(aiter(listening))  # noqa: E731 - one of two
        yield client, wait


async def names(client: Client) -> list[str]:
    return [found.name for found in (await client.list_tools(cache_mode="refresh")).tools]


async def until_listed(
    client: Client, changed: Callable[[], Awaitable[object]], *expected: str
) -> None:
    """Wait for changes until these tools are listed, and no others."""
    while await names(client) != [*expected]:
        await changed()


@dataclass(slots=True)
class Pipes:
    """The process, and the lines that it reads and writes."""

    process: Process

    def send(self, *messages: dict[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.process.stdin.write(line + b"\n")

    async def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return found

    async def initialize(self, *tools: str) -> None:
        """Open a session; wait until it is told of these tools."""
        self.send(INITIALIZE)
        assert (await self.read())["result"]["capabilities"]["tools"] == {"listChanged": True}
        self.send(INITIALIZED)
        listed: list[str] | None = None
        while listed != [*tools]:
            self.send(LIST)
            while (message := await self.read()).get("id") != LIST["id"]:
                assert message["method"] == "notifications/tools/list_changed"
            listed = [found["name"] for found in message["result"]["tools"]]
            if listed != [*tools]:
                assert (await self.read())["method"] == "notifications/tools/list_changed"

    async def ended(self) -> tuple[int, str]:
        """Wait for the end; return the exit code, and what is on stderr."""
        _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


@asynccontextmanager
async def started(
    url: str, token: str, *options: str, program: tuple[str, str] = ("-m", "toolbus")
) -> AsyncIterator[Pipes]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program, "mcp", "--room", "lab", "--url", url, *options),
        env={**NO_HOME, "TOOLBUS_TOKEN": token},
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with asyncio.timeout(60):
            yield Pipes(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Waiting:
    """A toolkit whose tool says when it has begun and when it has ended."""

    def __init__(self) -> None:
        self.has_begun, self.has_ended = asyncio.Event(), asyncio.Event()

        @tool
        async def wait(context: ToolContext) -> None:
            context.emit({"progress": 1, "total": 2, "message": "half"})
            self.has_begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.has_ended.set()

        self.toolkit = Toolkit("slow", [wait])


@pytest.mark.parametrize("mode", REVISIONS)
async def test_editor_calls_tools_of_other_processes_and_cancels_one(mode: str) -> None:
    slow = Waiting()
    seen: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.put_nowait((progress, total, message))

    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(words()),
        host.host(slow.toolkit),
        editor(server.url, server.token("ann"), mode) as (client, changed),
    ):
        listed = [f"words__{name}" for name in ("add", "fail", "lines", "picture")]
        await until_listed(client, changed, "slow__wait", *listed)
        added = await client.call_tool("words__add", {"a": 1, "b": 2})
        assert added.structured_content == {"result": 3}
        drawn = await client.call_tool("words__picture", {})
        assert isinstance(drawn.content[0], types.ImageContent)
        failed = await client.call_tool("words__fail", {})
        assert failed.is_error
        assert (failed.meta or {})["toolbus/error"]["executed"] == "yes"
        running = client.call_tool("slow__wait", {}, progress_callback=on_progress)
        cancelled = asyncio.create_task(running)
        assert await seen.get() == (1, 2, "half")
        cancelled.cancel()
        await slow.has_ended.wait()


@asynccontextmanager
async def hosted(server: TestServer | ServerProcess) -> AsyncIterator[None]:
    """Host a toolkit; others have been told of it when the block begins.

    The server tells nobody of a toolkit that comes and goes within the time of one batch of events.
    """
    async with (
        server.room("watcher") as watcher,
        watcher.events(["toolkits"]) as events,
        server.room("host") as host,
        host.host(Waiting().toolkit),
    ):
        await next_toolkit_event(events)
        yield


@pytest.mark.parametrize("mode", REVISIONS)
async def test_editor_is_told_of_a_toolkit_that_comes_and_goes(mode: str) -> None:
    async with (
        running_server() as server,
        editor(server.url, server.token("ann"), mode) as (client, changed),
    ):
        async with hosted(server):
            await until_listed(client, changed, "slow__wait")
        await until_listed(client, changed)


def waiting(seconds: float) -> tuple[str, str]:
    """Return the program, whose requests wait so long for the room."""
    waits = f"{{'tools/list': {seconds}, 'tools/call': {seconds}}}"
    imports = "from toolbus.__main__ import main; from toolbus_gateway import stdio"
    return "-c", f"{imports}; stdio._WAITS_S = {waits}; main()"


@pytest.mark.parametrize("mode", REVISIONS)
@pytest.mark.parametrize("is_call", [False, True])
async def test_first_request_waits_for_the_room(mode: str, is_call: bool) -> None:
    async with running_server() as server, server.room("host") as host, host.host(words()):
        url, token = server.url, server.token("ann")
        async with editor(url, token, mode, program=waiting(60)) as (client, _):
            if is_call:
                added = await client.call_tool("words__add", {"a": 1, "b": 2})
                assert added.structured_content == {"result": 3}
            else:
                assert len(await names(client)) == 4


async def test_empty_list_before_the_room_is_joined_is_not_used_again() -> None:
    async with running_server() as server:
        url, token = server.url, server.token("ann")
    async with editor(url, token, MODERN, program=waiting(0.01)) as (client, _):
        listed = await client.list_tools()
        assert (listed.tools, listed.ttl_ms) == ([], 0)


@pytest.mark.parametrize("mode", REVISIONS)
async def test_editor_may_start_before_the_server_which_may_restart(
    mode: str, tmp_path: Path
) -> None:
    async with server_process(tmp_path) as server:
        await server.end(signal.SIGKILL)
        async with editor(server.url, server.token("ann"), mode) as (client, changed):
            assert await names(client) == []
            for _ in range(2):
                await server.start()
                async with hosted(server):
                    await until_listed(client, changed, "slow__wait")
                await until_listed(client, changed)
                await server.end(signal.SIGKILL)


async def test_editor_may_see_one_toolkit_by_own_names_and_what_a_lock_file_has(
    tmp_path: Path,
) -> None:
    lock = tmp_path / "toolbus.lock"
    async with running_server() as server, server.room("host") as host, host.host(words()):
        token = server.token("ann")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "toolbus", "lock", "words", "--file", str(lock)),
            *("--url", server.url, "--room", "lab"),
            env={**NO_HOME, "TOOLBUS_TOKEN": token},
        )
        assert await process.wait() == 0
        async with host.host(Waiting().toolkit):
            one = editor(server.url, token, LEGACY, "--toolkit", "slow")
            async with one as (client, changed):
                await until_listed(client, changed, "wait")
            locked = editor(server.url, token, LEGACY, "--locked", str(lock))
            async with locked as (client, changed):
                listed = [f"words__{name}" for name in ("add", "fail", "lines", "picture")]
                await until_listed(client, changed, *listed)


def end_of_input(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize(
    "end",
    [
        end_of_input,
        lambda process: process.send_signal(signal.SIGTERM),
        lambda process: process.send_signal(signal.SIGINT),
    ],
    ids=["end of input", "SIGTERM", "SIGINT"],
)
async def test_it_ends_quietly_and_cancels_what_runs(end: Callable[[Process], None]) -> None:
    slow = Waiting()
    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(slow.toolkit),
        started(server.url, server.token("ann")) as pipes,
    ):
        await pipes.initialize("slow__wait")
        pipes.send(call("slow__wait"))
        await slow.has_begun.wait()
        end(pipes.process)
        assert await pipes.ended() == (0, "")
        await slow.has_ended.wait()


async def test_it_ends_quietly_when_nobody_reads_standard_output() -> None:
    async with running_server() as server, started(server.url, server.token("ann")) as pipes:
        pipes.send(INITIALIZE)
        await pipes.read()
        transport: Any = pipes.process._transport  # type: ignore[attr-defined]
        transport.get_pipe_transport(1).close()
        pipes.send(LIST)
        assert await pipes.ended() == (0, "")


NOISY = """
import os
from toolbus.__main__ import main
from toolbus_gateway.stdio import StdioMember

listing = StdioMember.listing

def noisy(*arguments):
    print("a tool prints")
    os.write(1, b"and so does a library\\n")
    return listing(*arguments)

StdioMember.listing = noisy
main()
"""


async def test_standard_output_carries_the_protocol_alone_also_after_bad_lines() -> None:
    async with (
        running_server() as server,
        started(server.url, server.token("ann"), program=("-c", NOISY)) as pipes,
    ):
        pipes.send(b"no JSON", b"\xff\xfe", b"[]", b'{"jsonrpc": "2.0"}', b"[" * 10_000)
        pipes.send(INITIALIZE)
        assert (await pipes.read())["id"] == 1
        pipes.send(b"", b"no JSON", LIST)
        assert (await pipes.read())["id"] == 2
        end_of_input(pipes.process)
        out, errors = await pipes.process.communicate()
        assert out == b""
        assert errors.count(b"a tool prints\n") == errors.count(b"so does a library\n") == 1


async def test_call_before_the_server_runs_is_answered_and_the_log_says_why() -> None:
    async with running_server() as server:
        url, token = server.url, server.token("ann")
    async with started(url, token, "--log-json", program=waiting(0.01)) as pipes:
        await pipes.initialize()
        pipes.send(call("words__add"))
        error = (await pipes.read())["error"]
        end_of_input(pipes.process)
        _, errors = await pipes.ended()
    assert {json.loads(line)["level"] for line in errors.splitlines()} == {"warning"}
    assert "has not been reached" in error["message"]
    assert (error["data"]["code"], error["data"]["executed"]) == ("unavailable", "no")


def of_another_key(_: TestServer) -> str:
    key = Key.generate(kid="other", iss="other")
    return ParticipantToken(name="ann", room=["lab"]).to_jwt(key, ttl_s=60)


@pytest.mark.parametrize(
    ("token", "code", "text"),
    [
        pytest.param(of_another_key, 3, "refuses the token", id="token of another key"),
        pytest.param(
            lambda server: server.token("ann", room="den"), 3, "not for room lab", id="other room"
        ),
        pytest.param(lambda _: "no-token", 2, "neither a signed token", id="malformed token"),
        pytest.param(lambda _: "", 2, "no token", id="no token"),
    ],
)
async def test_token_that_is_refused_ends_it_with_the_reason(
    token: Callable[[TestServer], str], code: int, text: str
) -> None:
    async with running_server() as server, started(server.url, token(server)) as pipes:
        await pipes.process.wait()  # the end of its input would end it, too
        ended, errors = await pipes.ended()
    assert ended == code
    assert text in errors
    assert "Traceback" not in errors


async def test_member_who_is_removed_ends_it_with_the_reason() -> None:
    async with (
        running_server() as server,
        server.room("admin") as admin,
        admin.host(Waiting().toolkit),
        started(server.url, server.token("ann")) as pipes,
    ):
        await pipes.initialize("slow__wait")
        await admin.admin("kick", room="lab", participant="ann")
        code, errors = await pipes.ended()
    assert code == 3
    assert "removed this participant" in errors
