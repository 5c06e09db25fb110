"""Many MCP servers in a room: toolkits of their own, audiences, and the toolkit `mcp`."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.mcp import scripted_server
from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine
from support.rooms.approvals import approved
from support.rooms.events import until, until_hosts
from toolbus import (
    DefinitionChanged,
    FileChunk,
    InvalidArguments,
    JsonChunk,
    NotFound,
    PermissionDenied,
    RoomClient,
    RoomException,
    TextChunk,
    ToolContext,
    ToolFailed,
    Toolkit,
    Turn,
    Unavailable,
    make_toolkits,
)
from toolbus_server.testing import TestServer, running_server
from toolbus_toolkits.mcp import McpBuilder, McpConfig, McpHub, McpToolkit, mcp
from toolbus_toolkits.mcp.config import read_servers
from toolbus_toolkits.mcp.names import toolkit_name

GOOD = {"command": sys.executable, "args": [scripted_server.__file__]}
DEAD = {"command": sys.executable, "args": [scripted_server.__file__, "--crash"]}
STUBBORN = f"""
import runpy, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"])
try:
    runpy.run_path({scripted_server.__file__!r}, run_name="__main__")
finally:
    time.sleep(600)
"""


def behind(gate: Path) -> dict[str, Any]:
    """Return the entry of a server that says nothing until a file exists."""
    code = (
        "import pathlib, runpy, time\n"
        f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.02)\n"
        f"runpy.run_path({scripted_server.__file__!r}, run_name='__main__')"
    )
    return {"command": sys.executable, "args": ["-c", code]}


def file_of(tmp_path: Path, **servers: Any) -> Path:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


@pytest.fixture
async def bus() -> AsyncIterator[TestServer]:
    async with asyncio.timeout(90), running_server() as server:
        yield server


@asynccontextmanager
async def hosted(bus: TestServer, config: Path, *allow_import: str) -> AsyncIterator[McpHub]:
    hub = McpHub.from_config(config)
    async with bus.room("host") as room, room.host(McpToolkit(hub, allow_import)):
        await hub.tried()
        yield hub


async def names(room: RoomClient) -> list[str]:
    return [each.name async for each in room.toolkits()]


async def test_each_server_is_a_toolkit_and_a_dead_one_hurts_none(
    bus: TestServer, tmp_path: Path
) -> None:
    config = file_of(tmp_path, one=GOOD, two=GOOD, dead=DEAD, bad={"url": "ftp://x"})
    async with hosted(bus, config), bus.room("ann") as ann:
        assert await names(ann) == ["mcp", "one", "two"]
        for toolkit in ("one", "two"):
            assert await ann.call(f"{toolkit}.add", a=1, b=2) == {"result": 3}
        found = await ann.call("mcp.list")
        assert found["skipped"] == [
            {"name": "bad", "reason": "url must be an http or https address"}
        ]
        listed = {each["name"]: each for each in found["servers"]}
        assert (listed["one"]["state"], listed["two"]["state"]) == ("connected", "connected")
        assert listed["dead"]["state"] in ("failed", "connecting")  # it is tried again and again
        assert "cannot read its settings" in listed["dead"]["reason"]
        assert {"name": "one.add", "description": "Add two numbers."} in listed["one"]["tools"]
        assert await ann.call("mcp.call", tool="two.add", arguments={"a": 1, "b": 2}) == {
            "result": 3
        }
    async with bus.room("ann") as ann:
        assert await names(ann) == []


async def test_nobody_waits_for_another_server(bus: TestServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    hub = McpHub.from_config(file_of(tmp_path, good=GOOD, slow=behind(gate), mcp=GOOD))
    async with bus.room("host") as room, room.host(McpToolkit(hub)), bus.room("ann") as ann:
        await until_hosts(ann, "good", 1)
        assert await ann.call("good.add", a=1, b=2) == {"result": 3}
        listed = {each["name"]: each for each in (await ann.call("mcp.list"))["servers"]}
        assert (listed["good"]["state"], listed["slow"]["state"]) == ("connected", "connecting")
        assert listed["slow"]["reason"] == ""
        builder = McpBuilder(hub)
        (made,) = await make_toolkits(ann, None, [builder], [{"name": "mcp", "server": "good"}])
        assert made.name == "good"
        asked = [{"name": "mcp", "server": "slow"}]
        making = asyncio.create_task(make_toolkits(ann, None, [builder], asked))
        gate.touch()
        await until_hosts(ann, "slow", 1)
        assert [each.name for each in await making] == ["slow"]
        await until_hosts(ann, toolkit_name("mcp"), 1)  # beside the toolkit of the hub itself


async def test_what_the_room_refuses_is_said_and_the_next_definition_is_hosted(
    bus: TestServer, tmp_path: Path
) -> None:
    hub = McpHub.from_config(file_of(tmp_path, one=GOOD))
    async with bus.room("host") as room, bus.room("ann") as ann:
        async with AsyncExitStack() as taken:
            await taken.enter_async_context(ann.host(Toolkit("one", [])))
            async with room.host(McpToolkit(hub)):
                await hub.tried()
                (listed,) = (await ann.call("mcp.list"))["servers"]
                assert (listed["state"], "one" in listed["reason"]) == ("connected", True)
                await taken.aclose()
                (server,) = hub.servers
                await server.toolkit().execute(ToolContext(), "learn", {"name": "newest"})
                await until_hosts(ann, "one", 1)
                assert hub.refused == {}


@pytest.mark.parametrize("entries", [{}, {"bad": {"url": "ftp://x"}}])
def test_a_file_without_a_usable_server_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, entries: dict[str, Any]
) -> None:
    config = file_of(tmp_path, **entries)
    assert McpHub.from_config(config).servers == ()
    assert f"no MCP server is configured: {config}" in caplog.text


def test_files_of_editors_that_cannot_be_read_are_skipped_unless_all_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path / "ours"))
    bad = tmp_path / ".mcp.json"
    bad.write_text("// a comment")
    with pytest.raises(ValueError, match=re.escape(f"{bad}: is not JSON")):
        McpHub.from_config()
    (tmp_path / "ours").mkdir()
    file_of(tmp_path / "ours", one=GOOD)
    assert [each.name for each in McpHub.from_config().servers] == ["one"]
    assert f"is not used: {bad}: is not JSON" in caplog.text


def test_a_file_may_say_that_a_server_of_another_file_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path / "ours"))
    file_of(tmp_path, one=GOOD, two=GOOD).rename(tmp_path / ".mcp.json")
    project = {"disabledMcpjsonServers": ["two"], "mcpServers": {"three": GOOD}}
    claude = {"projects": {str(tmp_path): project}}
    (tmp_path / ".claude.json").write_text(json.dumps(claude))
    hub = McpHub.from_config()
    assert [server.name for server in hub.servers] == ["one", "three"]
    assert [entry.name for entry in hub.skipped] == ["two"]
    assert ".claude.json says that it is not used" in caplog.text


def test_a_host_ends_at_once_while_a_server_is_connecting(tmp_path: Path) -> None:
    config = file_of(tmp_path, slow=behind(tmp_path / "gate"))
    here = CommandLine(tmp_path)
    with (
        here.serving() as (_, url),
        here.at(url).hosting("mcp", "--config", str(config)) as running,
    ):
        assert running.end(signal.SIGTERM).code == 0


FAILURES: list[tuple[str, dict[str, Any], type[RoomException], str]] = [
    ("absent.add", {}, NotFound, "no"),
    ("one.absent", {}, NotFound, "no"),
    ("one", {}, NotFound, "no"),
    ("one.add", {"a": "x"}, InvalidArguments, "no"),
    ("one.fail", {}, ToolFailed, "yes"),
]


async def test_a_call_by_name_fails_as_the_tool_itself(bus: TestServer, tmp_path: Path) -> None:
    async with hosted(bus, file_of(tmp_path, one=GOOD)), bus.room("ann") as ann:
        for tool, arguments, error, executed in FAILURES:
            with pytest.raises(error) as failed:
                await ann.call("mcp.call", tool=tool, arguments=arguments)
            assert failed.value.executed == executed


async def test_a_picture_beside_structured_content_arrives_whole(
    bus: TestServer, tmp_path: Path
) -> None:
    async with hosted(bus, file_of(tmp_path, one=GOOD)), bus.room("ann") as room:
        expected = [
            JsonChunk({"zoom": 3, "wei": "1" + "0" * 23}, ("/wei",)),
            TextChunk("xxxxx"),
            FileChunk(bytes(3_000_000), "", "image/png"),
        ]
        found = await room.invoke("one.large", {"zoom": 3})
        assert [*found.chunks] == expected
        values = await room.call("mcp.call", tool="one.large", arguments={"words": 2_000_000})
        words = values[1]
        assert (words.name, words.data) == ("result.txt", b"x" * 2_000_000)
        async with room.stream("one.large", {"zoom": 3}) as chunks:
            assert [type(chunk) async for chunk in chunks] == [JsonChunk, TextChunk, FileChunk]


async def test_a_call_by_a_wrong_name_or_to_a_dead_server_ends_at_once_with_what_to_do(
    bus: TestServer, tmp_path: Path
) -> None:
    dead = {"command": "no-such-program"}
    async with hosted(bus, file_of(tmp_path, one=GOOD, dead=dead)), bus.room("ann") as ann:
        for tool, error, words in (
            ("one.ad", NotFound, r"tool one\.ad not found"),
            ("add", NotFound, r"write server\.tool"),
            ("dead.add", Unavailable, "never been connected: cannot start"),
        ):
            with pytest.raises(error, match=words) as failed:
                await ann.call("mcp.call", tool=tool)
            assert (failed.value.executed, failed.value.retryable) == ("no", False)


async def test_a_server_of_an_audience_is_hidden_from_all_others(
    bus: TestServer, tmp_path: Path
) -> None:
    hers = {"shared_with": ["name:ann"]}
    bad = {"bad": {"timeout": 0, **hers}, "worse": {"shared_with": 5}, "off": {"disabled": True}}
    config = file_of(tmp_path, open=GOOD, hers={**GOOD, **hers}, **bad)
    async with hosted(bus, config), bus.room("ann") as ann, bus.room("bob") as bob:
        assert await names(ann) == ["hers", "mcp", "open"]
        assert await names(bob) == ["mcp", "open"]
        assert await ann.call("mcp.call", tool="hers.add", arguments={"a": 1, "b": 1})
        with pytest.raises(NotFound) as refused:
            await bob.call("mcp.call", tool="hers.add", arguments={"a": 1, "b": 1})
        assert refused.value.message == "toolkit hers not found"
        for room, servers, skipped in (
            (ann, ["hers", "open"], ["bad", "off"]),
            (bob, ["open"], ["off"]),
        ):
            found = await room.call("mcp.list")
            assert [each["name"] for each in found["servers"]] == servers
            assert [each["name"] for each in found["skipped"]] == skipped


async def test_a_changed_list_is_registered_and_pinned_callers_see_it(
    bus: TestServer, tmp_path: Path
) -> None:
    async with hosted(bus, file_of(tmp_path, one=GOOD)), bus.room("ann") as ann:
        before = await ann.toolkit("one")
        pinned = await ann.toolkit("one", pin=before.info.digest)
        async with ann.events(["toolkits"]) as events:
            await ann.call("one.learn", name="newest")
            async for event in events:
                if event.toolkit is not None and event.toolkit.digest != before.info.digest:
                    break
        assert await ann.call("one.newest", name="ann") == {"result": "hello ann"}
        with pytest.raises(DefinitionChanged):
            await pinned.add(a=1, b=2)


async def test_a_server_that_comes_later_is_hosted_then(bus: TestServer, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    late = {"command": sys.executable, "args": [str(script)]}
    async with hosted(bus, file_of(tmp_path, late=late), "ann") as hub, bus.room("ann") as ann:
        assert await names(ann) == ["mcp"]
        script.symlink_to(scripted_server.__file__)
        assert (await ann.call("mcp.connect", name="late"))["state"] == "connected"
        server = hub.server("late")
        assert server is not None
        await until(server.hosted.is_set)
        assert await ann.call("late.add", a=1, b=2) == {"result": 3}


async def test_only_named_callers_add_servers(bus: TestServer, tmp_path: Path) -> None:
    config = file_of(tmp_path, one=GOOD)
    async with hosted(bus, config, "ann"), bus.room("ann") as ann, bus.room("bob") as bob:
        for tool, arguments in (("connect", {"name": "one"}), ("import", {"servers": {"x": GOOD}})):
            with pytest.raises(PermissionDenied, match="bob may not"):
                await bob.invoke(f"mcp.{tool}", arguments)
        servers = {"Two": GOOD, "bad": {"command": 1}}
        added = await approved(ann, ann.invoke("mcp.import", {"servers": servers}))
        assert [each["name"] for each in added.value["servers"]] == ["two"]
        assert [each["name"] for each in added.value["skipped"]] == ["bad"]
        assert await ann.call("two.add", a=1, b=2) == {"result": 3}
        for refused, words in (
            ({"one": GOOD}, "an MCP server one already"),
            (
                {"x": {**GOOD, "env": {"A": "${cred:a/b/c}"}}},
                "/servers/x/env/A: references",
            ),
        ):
            with pytest.raises(InvalidArguments, match=words):
                await ann.invoke("mcp.import", {"servers": refused})
    async with hosted(bus, config), bus.room("ann") as ann:
        assert [each.name for each in (await ann.toolkit("mcp")).manifest.tools] == ["list", "call"]


async def test_only_added_and_named_servers_are_removed_and_their_programs_end(
    bus: TestServer, tmp_path: Path
) -> None:
    config = file_of(tmp_path, one=GOOD, Two=GOOD, three=GOOD)
    hub = McpHub.from_config(config)
    programs = psutil.Process()
    async with bus.room("host") as room, bus.room("ann") as ann, bus.room("bob") as bob:
        async with room.host(McpToolkit(hub, ["ann"], ["Two"])):
            await hub.tried()
            await approved(ann, ann.invoke("mcp.import", {"servers": {"four": GOOD}}))
            for caller, name, error, words in (
                (bob, "four", PermissionDenied, "bob may not change MCP servers here"),
                (ann, "one", PermissionDenied, r"one is of this host's operator \(--allow-remove"),
                (ann, "none", NotFound, "there is no MCP server 'none'"),
            ):
                with pytest.raises(error, match=words) as refused:
                    await caller.invoke("mcp.remove", {"name": name})
                assert refused.value.executed == "no"
                flag = refused.value.details.get("host_flag", "")
                assert flag in str(refused.value)
                assert bool(flag) == (error is PermissionDenied)
            running = len(programs.children(recursive=True))
            for name in ("four", "two"):
                await approved(ann, ann.invoke("mcp.remove", {"name": name}))
                assert hub.server(name) is None
            assert await names(ann) == ["mcp", "one", "three"]
            assert len(programs.children(recursive=True)) < running
            # Its name is free, and a new server of it may be removed too.
            for _ in range(2):
                await approved(ann, ann.invoke("mcp.import", {"servers": {"four": GOOD}}))
                assert await ann.call("four.add", a=1, b=2) == {"result": 3}
                await approved(ann, ann.invoke("mcp.remove", {"name": "four"}))
            await hub.remove("three")  # a program that has the hub removes any of them
            with pytest.raises(NotFound, match="no MCP server 'three'"):
                await hub.remove("three")
    with pytest.raises(ValueError, match="callers that --allow-import names remove servers"):
        McpConfig(config=config, allow_remove=("one",))


async def test_a_server_is_removed_while_it_connects_and_when_its_remover_leaves(
    bus: TestServer, tmp_path: Path
) -> None:
    entry = read_servers({"late": behind(tmp_path / "gate")}, "servers").servers["late"]
    async with hosted(bus, file_of(tmp_path, one=GOOD)) as hub, bus.room("ann") as ann:
        adding = asyncio.create_task(hub.add("late", entry))
        await until(lambda: hub.server("late") is not None)
        removing = [asyncio.create_task(hub.remove("late")) for _ in range(2)]
        await asyncio.sleep(0)
        removing[0].cancel()
        await removing[1]
        assert (await adding).name == "late"
        assert (hub.server("late"), await names(ann)) == (None, ["mcp", "one"])


async def test_a_server_whose_importer_leaves_is_hosted_when_it_is_connected(
    bus: TestServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    config = file_of(tmp_path, one=GOOD)
    async with hosted(bus, config, "ann") as hub, bus.room("ann") as ann:
        called = ann.invoke("mcp.import", {"servers": {"late": behind(gate)}})
        asked = asyncio.create_task(approved(ann, called))
        await until(lambda: hub.server("late") is not None)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        gate.touch()
        await until_hosts(ann, "late", 1)
        assert await ann.call("late.add", a=1, b=2) == {"result": 3}


def test_a_host_that_is_killed_leaves_no_process_of_its_servers(tmp_path: Path) -> None:
    config = file_of(tmp_path, one={"command": sys.executable, "args": ["-c", STUBBORN]})
    here = CommandLine(tmp_path)
    with (
        here.serving() as (_, url),
        here.at(url).hosting("mcp", "--config", str(config)) as running,
    ):
        host = psutil.Process(running.process.pid)
        asyncio.run(until(lambda: "sleep" in map(_name, host.children(recursive=True))))
        left = host.children(recursive=True)
        running.end(signal.SIGKILL)
        for each in left:
            each.wait(PATIENCE_S)


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):  # it has ended meanwhile
        return process.name()
    return ""


async def test_a_turn_uses_servers_without_hosting_them(bus: TestServer, tmp_path: Path) -> None:
    async with McpHub.from_config(file_of(tmp_path, one=GOOD)) as hub, bus.room("ann") as ann:
        await hub.tried()
        async with Turn(ann, always=hub.toolkits()) as turn:
            assert await turn.call("one.add", a=1, b=2) == {"result": 3}
        assert await names(ann) == []


REFUSED_REQUESTS = [
    ({}, "either server or url"),
    ({"server": "absent"}, "no such MCP server"),
    ({"server": "hers"}, "no such MCP server"),
    ({"server": "dead"}, "not connected"),
    ({"url": "http://127.0.0.1:9/mcp"}, "not on the list"),
    ({"command": "rm"}, "command"),
]


async def test_a_request_names_what_the_operator_configured(
    bus: TestServer, tmp_path: Path
) -> None:
    config = file_of(tmp_path, one=GOOD, dead=DEAD, hers={**GOOD, "shared_with": ["name:x"]})
    async with McpHub.from_config(config) as hub, bus.room("ann") as ann:
        builder = McpBuilder(hub)
        (made,) = await make_toolkits(ann, None, [builder], [{"name": "mcp", "server": "one"}])
        assert made.name == "one"
        for asked, words in REFUSED_REQUESTS:
            with pytest.raises(InvalidArguments, match=words):
                await make_toolkits(ann, None, [builder], [{"name": "mcp", **asked}])


def test_the_factory_reads_the_file_of_the_operator(tmp_path: Path) -> None:
    toolkit = mcp(McpConfig(config=file_of(tmp_path, one=GOOD)))
    assert toolkit.name == "mcp"
    with pytest.raises(ValueError, match="no such file"):
        McpConfig(config=tmp_path / "missing.json")


def test_a_hub_without_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        McpHub.from_config("/no/such/file.json")
