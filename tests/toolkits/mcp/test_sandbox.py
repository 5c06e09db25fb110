"""MCP servers in a sandbox: what confines them, and whose word about it counts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.mcp import reaching_server
from support.processes.command_line import CommandLine
from support.pytest_plugins.missing_parts import not_verified
from support.rooms.events import until_hosts
from support.sandbox.reach import system_path
from toolbus import InvalidArguments, ToolContext, Unavailable
from toolbus_server.testing import running_server
from toolbus_toolkits.mcp import (
    McpConfig,
    McpHub,
    McpServer,
    McpToolkit,
    ServerAccess,
    ServerEntry,
    mcp,
)
from toolbus_toolkits.mcp.config import FileContext, read_servers
from toolbus_toolkits.sandbox import (
    SandboxConfig,
    SandboxPolicy,
    SandboxUnavailable,
    ToolRiskProfile,
    backend_for,
)

__all__ = ["system_path"]
SCRIPT = Path(reaching_server.__file__)
NEEDED = [str(SCRIPT.parent)]
"""What the server itself is made of, outside of the system."""
CODE: dict[str, Any] = {"command": sys.executable, "args": [str(SCRIPT)]}
STDIO = {"command": "x"}


def file_of(tmp_path: Path, **servers: Any) -> Path:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


async def called(server: McpServer, tool: str, **arguments: Any) -> Any:
    return (await server.toolkit().execute(ToolContext(), tool, arguments)).value


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> str:
    try:
        backend_for(SandboxConfig(backend=request.param))
    except SandboxUnavailable as error:
        not_verified(f"MCP servers in {request.param}", str(error))
    return str(request.param)


async def test_a_server_reaches_what_its_entry_names_and_nothing_else(
    tmp_path: Path, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.write_text("secret")
    config = file_of(
        tmp_path,
        reaching={
            **CODE,
            "cwd": "work",
            "sandbox": {"Backend": backend, "write": ["work"], "read": NEEDED},
        },
    )
    hub = McpHub.from_config(config)
    async with hub, running_server() as running:
        (server,) = hub.servers
        await server.tried()
        assert server.confined_by == backend, server.reason
        assert await called(server, "folder") == str(work)
        assert await called(server, "write", path="a.txt", text="one") == "written"
        assert (work / "a.txt").read_text() == "one"
        assert await called(server, "read", path=str(outside)) != "secret"
        # Of bubblewrap it may write there: into a folder of its own, which covers the real one.
        await called(server, "write", path=str(outside), text="changed")
        assert outside.read_text() == "secret"
        port = int(running.url.rpartition(":")[2].partition("/")[0])
        assert await called(server, "connect", port=port) != "connected"
    assert server.confined_by is None
    assert f"MCP server reaching: confined by {backend}" in caplog.text


async def test_the_sandbox_of_a_host_confines_all_whose_entries_have_none(
    tmp_path: Path, backend: str
) -> None:
    own = {"backend": "subprocess"}
    config = file_of(tmp_path, one=CODE, own={**CODE, "sandbox": own}, off={**CODE})
    sandbox = json.dumps({"backend": backend, "read": NEEDED})
    toolkit = mcp(McpConfig(config=config, sandbox=sandbox, network=True))
    async with (
        running_server() as running,
        running.room("host") as room,
        room.host(toolkit),
        running.room("ann") as ann,
    ):
        for name in ("one", "own", "off"):
            await until_hosts(ann, name, 1)
        listed = {server["name"]: server for server in (await ann.call("mcp.list"))["servers"]}
        assert {name: server.get("sandbox") for name, server in listed.items()} == {
            "one": backend,
            "off": backend,
            "own": "subprocess",
        }
        port = int(running.url.rpartition(":")[2].partition("/")[0])
        assert await ann.call("one.connect", port=port) == "connected"
        assert await ann.call("one.read", path=str(config)) != config.read_text()
        assert await ann.call("own.read", path=str(config)) == config.read_text()


async def test_a_file_of_others_cannot_widen_the_sandbox_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {"wide": {**CODE, "sandbox": "subprocess"}, "plain": CODE, "far": {"url": "http://x"}}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path))
    access = ServerAccess(sandbox=SandboxConfig(read=tuple(NEEDED)))
    hub = McpHub.from_config(access=access)
    assert [(server.name, server.entry.sandbox) for server in hub.servers] == [
        ("far", None),
        ("plain", access.sandbox),
    ]
    ((name, reason, *_),) = hub.skipped
    assert name == "wide"
    assert reason.startswith("its sandbox cannot replace the one of this host: take it out")
    assert [server.name for server in McpHub.from_config().servers] == ["far", "plain", "wide"]


async def test_an_imported_server_cannot_widen_the_sandbox_of_the_host(tmp_path: Path) -> None:
    access = ServerAccess(sandbox=SandboxConfig(read=tuple(NEEDED)))
    toolkit = McpToolkit(McpHub(access=access), ["ann"])
    async with running_server() as running, running.room("host") as room, room.host(toolkit):
        async with running.room("ann") as ann:
            with pytest.raises(InvalidArguments, match="cannot replace the one of this host"):
                await ann.call("mcp.import", servers={"a": {**CODE, "sandbox": True}})


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"url": "http://x", "sandbox": "auto"}, "sandbox is for a command: nothing here confines"),
        ({"url": "http://x/sse", "sandbox": {}}, "sandbox is for a command"),
        ({**STDIO, "sandbox": []}, "sandbox must be an object, or the name of a backend"),
        ({**STDIO, "sandbox": 1}, "sandbox must be an object, or the name of a backend"),
        ({**STDIO, "sandbox": {}, "Sandbox": False}, 'has both "sandbox" and "Sandbox"'),
        ({**STDIO, "sandbox": {"network": False, "Network": True}}, "sandbox has a key twice"),
        ({**STDIO, "sandbox": "chroot"}, "sandbox.backend"),
        ({**STDIO, "sandbox": "microsandbox"}, "microsandbox is not supported"),
        ({**STDIO, "sandbox": {"write": ["/"]}}, "sandbox.write: / cannot be given"),
        ({**STDIO, "sandbox": {"write": ["gone"]}}, "there is no file or folder"),
        ({**STDIO, "sandbox": {"write": "/tmp"}}, "sandbox.write: Input should be a list"),
        ({**STDIO, "sandbox": {"write": [1]}}, "sandbox.write.0: Input should be a valid string"),
        ({**STDIO, "sandbox": {"read": ["${NOT_SET_HERE}"]}}, "NOT_SET_HERE"),
        ({**STDIO, "sandbox": {"filesystem": {}}}, "sandbox.filesystem: Extra inputs"),
    ],
)
def test_a_sandbox_that_cannot_be_held_is_an_error_of_its_entry(
    entry: dict[str, Any], words: str, tmp_path: Path
) -> None:
    read = read_servers({"a": entry}, "test", FileContext(tmp_path, {}))
    assert words in read.skipped[0].reason
    assert not read.servers


@pytest.mark.parametrize(
    ("written", "config"),
    [
        ("auto", SandboxConfig()),
        (True, SandboxConfig()),
        ({}, SandboxConfig()),
        (False, None),
        (None, None),
        ("landlock", SandboxConfig(backend="landlock")),
        (
            {"unixSockets": True, "max-processes": 9},
            SandboxConfig(unix_sockets=True, max_processes=9),
        ),
        ({"read": ["${HERE}/share"]}, SandboxConfig(read=("/usr/share",))),
    ],
)
def test_a_sandbox_may_be_written_in_short(
    written: object, config: SandboxConfig | None, tmp_path: Path
) -> None:
    read = read_servers(
        {"a": {**STDIO, "sandbox": written}}, "t", FileContext(tmp_path, {"HERE": "/usr"})
    )
    assert read.servers["a"].sandbox == config
    assert not read.warnings


async def test_a_server_whose_program_its_sandbox_does_not_show_says_what_to_write(
    tmp_path: Path,
) -> None:
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    server = McpServer("it", command=str(program), sandbox="auto")
    with pytest.raises(Unavailable, match=r"does not show .*: add it to `read`") as refused:
        async with server:
            pass
    assert refused.value.executed == "no"


def test_a_policy_confines_each_server_as_one_program() -> None:
    policy = SandboxPolicy(
        [ToolRiskProfile("known.*", "low", max_timeout_s=5), ToolRiskProfile("part.add", "low")]
    )
    access = ServerAccess(sandbox=policy)
    entry = ServerEntry.model_validate(STDIO)
    known = access.confined("known", entry)
    assert (known.sandbox, known.timeout_s) == (None, 5)
    assert access.confined("other", entry).sandbox == SandboxConfig()
    hub_file = read_servers({"part": STDIO, "other": STDIO}, "test")
    hub = McpHub.from_files([hub_file], access=access)
    assert [server.name for server in hub.servers] == ["other"]
    assert "one program has all tools of part: write part.*" in hub.skipped[0].reason


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sandbox", "microsandbox"], "--sandbox: backend: microsandbox is not supported"),
        (["--sandbox", '{"writ": []}'], "--sandbox: writ: Extra inputs"),
        (["--sandbox", '{"write": '], "--sandbox"),
        (["--network"], "--network: without a sandbox they may use it"),
        (["--sandbox", '{"write": ["/", "/tmp"]}'], "/ cannot be given"),
    ],
)
def test_a_host_does_not_start_with_a_sandbox_that_cannot_be_held(
    tmp_path: Path, flags: list[str], words: str
) -> None:
    here = CommandLine(tmp_path)
    ended = here.run("host", "mcp", "--config", str(file_of(tmp_path, a=CODE)), *flags)
    assert ended.code == 2
    assert words in ended.err


def test_a_host_does_not_start_where_nothing_confines(tmp_path: Path) -> None:
    here = CommandLine(tmp_path)
    sandbox = json.dumps({"backend": "docker", "image": "none"})
    ended = here.run(
        "host", "mcp", "--config", str(file_of(tmp_path, a=CODE)), "--sandbox", sandbox
    )
    assert ended.code == 2
    assert "mcp: nothing confines programs here: docker: " in ended.err
    assert ".py" not in ended.err
