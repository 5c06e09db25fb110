"""Published MCP servers, hosted by `toolbus host mcp` and called from another process.

They are installed by npm, and FastMCP into an environment of its own, once for this module.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from support.processes.launch import ChildProcess, clean_environment
from support.pytest_plugins.missing_parts import not_verified
from support.redis.server import free_port
from support.rooms.events import until_hosts
from toolbus import RoomClient, ToolContext, ToolFailed, Unavailable
from toolbus_server.testing import TestServer, running_server
from toolbus_toolkits.mcp import McpServer, ServerAccess
from toolbus_toolkits.network import AddressPolicy
from toolbus_toolkits.sandbox import Backend, SandboxConfig, SandboxUnavailable, backend_for

PACKAGES = ("everything", "filesystem", "memory")
FASTMCP = """
import sys

from fastmcp import FastMCP
server = FastMCP("fast")

@server.tool
def shout(text: str) -> str:
    return text.upper()

if len(sys.argv) > 1:
    server.run("http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
else:
    server.run(show_banner=False)
"""


@pytest.fixture(scope="module")
def npm_servers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of three packages of npm."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        not_verified("MCP servers of npm", "no npm is here", ci_has_it=False)
    folder = tmp_path_factory.mktemp("npm")
    names = [f"@modelcontextprotocol/server-{each}" for each in PACKAGES]
    command: list[str | Path] = [
        npm,
        "install",
        "--silent",
        "--no-fund",
        "--no-audit",
        "--prefix",
        folder,
        *names,
    ]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if installed.returncode:
        not_verified("MCP servers of npm", "npm cannot install them", ci_has_it=False)
    return folder / "node_modules" / ".bin"


@pytest.fixture(scope="module")
def fastmcp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with FastMCP."""
    folder = tmp_path_factory.mktemp("fastmcp")
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    command: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "fastmcp>=4,<5"]
    installed = subprocess.run(command, capture_output=True, timeout=300, check=False)
    if installed.returncode:
        not_verified("a FastMCP server", "pip cannot install it", ci_has_it=False)
    return python


@asynccontextmanager
async def hosted(
    folder: Path, servers: Mapping[str, Any], server: TestServer
) -> AsyncIterator[RoomClient]:
    """Host servers with the command line; the room of a caller."""
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    command = ["-m", "toolbus", "host", "mcp", "--config", str(config), "--url", server.url]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "--room",
        "lab",
        env={"TOOLBUS_TOKEN": server.token("host"), "PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        while b"hosting mcp " not in (line := await process.stdout.readline()):
            assert line, "the host has ended"
        async with server.room("ann") as ann:
            for name in servers:
                await until_hosts(ann, name, 1)
            yield ann
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "echo": {"message": "hello"},
    "get-annotated-message": {"messageType": "success"},
    "get-resource-reference": {"resourceType": "Text", "resourceId": 1},
    "get-structured-content": {"location": "New York"},
    "get-sum": {"a": 1, "b": 2},
    "gzip-file-as-resource": {
        "name": "a.gz",
        "data": "data:text/plain;base64,aGVsbG8=",
        "outputType": "resource",
    },
    "trigger-long-running-operation": {"duration": 0.2, "steps": 2},
    "trigger-url-elicitation": {"url": "https://example.org"},
    "create_directory": {"path": "FOLDER/new"},
    "write_file": {"path": "FOLDER/new/a.txt", "content": "one\ntwo\n"},
    "edit_file": {"path": "FOLDER/new/a.txt", "edits": [{"oldText": "two", "newText": "three"}]},
    "read_file": {"path": "FOLDER/new/a.txt"},
    "read_text_file": {"path": "FOLDER/new/a.txt"},
    "read_media_file": {"path": "FOLDER/pixel.png"},
    "read_multiple_files": {"paths": ["FOLDER/new/a.txt"]},
    "get_file_info": {"path": "FOLDER/new/a.txt"},
    "list_directory": {"path": "FOLDER"},
    "list_directory_with_sizes": {"path": "FOLDER"},
    "directory_tree": {"path": "FOLDER"},
    "search_files": {"path": "FOLDER", "pattern": "**/*.txt"},
    "move_file": {"source": "FOLDER/new/a.txt", "destination": "FOLDER/new/b.txt"},
    "create_entities": {"entities": [{"name": "a", "entityType": "t", "observations": ["o"]}]},
    "create_relations": {"relations": [{"from": "a", "to": "a", "relationType": "is"}]},
    "add_observations": {"observations": [{"entityName": "a", "contents": ["c"]}]},
    "open_nodes": {"names": ["a"]},
    "search_nodes": {"query": "a"},
    "delete_observations": {"deletions": [{"entityName": "a", "observations": ["c"]}]},
    "delete_relations": {"relations": [{"from": "a", "to": "a", "relationType": "is"}]},
    "delete_entities": {"entityNames": ["a"]},
}
"""What each tool that needs arguments gets; files are made before they are read."""
REFUSED = {"trigger-url-elicitation"}
"""Tools that ask a person, whom nobody waits for here: they end as a failure."""


def confine(servers: dict[str, dict[str, Any]], backend: Backend, npm: Path, work: Path) -> None:
    """Let servers read what npm installed, and all but one of them change a folder."""
    try:
        backend_for(SandboxConfig(backend=backend))
    except SandboxUnavailable as error:
        not_verified(f"published MCP servers in {backend}", str(error))
    node = os.path.dirname(os.path.realpath(shutil.which("node") or "/"))
    for name, entry in servers.items():
        write = [] if name == "everything" else [str(work)]
        entry["sandbox"] = {"backend": backend, "read": [str(npm), node], "write": write}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["", "bubblewrap", "landlock"])
async def test_every_tool_of_three_published_servers_is_called_through_a_room(
    backend: Backend | Literal[""], npm_servers: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "pixel.png").write_bytes(b"\x89PNG\r\n")
    servers: dict[str, dict[str, Any]] = {
        "everything": {"command": str(npm_servers / "mcp-server-everything")},
        "files": {"command": str(npm_servers / "mcp-server-filesystem"), "args": [str(work)]},
        "memory": {
            "command": str(npm_servers / "mcp-server-memory"),
            "env": {"MEMORY_FILE_PATH": str(work / "memory.json")},
        },
    }
    if backend:
        confine(servers, backend, npm_servers.parent, work)
    async with (
        asyncio.timeout(240),
        running_server() as server,
        hosted(tmp_path, servers, server) as ann,
    ):
        called = 0
        for name in servers:
            manifest = (await ann.toolkit(name)).manifest
            order = list(ARGUMENTS)
            tools = sorted(
                (each.name for each in manifest.tools),
                key=lambda each: order.index(each) if each in order else -1,
            )
            for tool in tools:
                text = json.dumps(ARGUMENTS.get(tool, {})).replace("FOLDER", str(work))
                try:
                    arguments = json.loads(text)
                    await ann.invoke(f"{name}.{tool}", arguments, approval_timeout_s=0)
                except ToolFailed:
                    assert tool in REFUSED
                called += 1
        assert called == sum([len((await ann.toolkit(name)).manifest.tools) for name in servers])
        assert (work / "new" / "b.txt").read_text() == "one\nthree\n"
        assert await ann.call("everything.get-sum", a=1, b=2) == "The sum of 1 and 2 is 3."
        listed = (await ann.call("mcp.list"))["servers"]
        assert {each.get("sandbox", "") for each in listed} == {backend}


@pytest.mark.timeout(300)
async def test_a_fastmcp_server_in_an_environment_of_its_own_serves_64_calls_at_once(
    fastmcp: Path, tmp_path: Path
) -> None:
    script = tmp_path / "server.py"
    script.write_text(FASTMCP)
    servers = {"fast": {"command": str(fastmcp), "args": [str(script)]}}
    async with (
        asyncio.timeout(240),
        running_server() as server,
        hosted(tmp_path, servers, server) as ann,
    ):
        shouted = await asyncio.gather(
            *(ann.call("fast.shout", text=f"word {each}") for each in range(64))
        )
    assert [each["result"] for each in shouted] == [f"WORD {each}" for each in range(64)]


@asynccontextmanager
async def listening(command: list[str], port: int) -> AsyncIterator[None]:
    """A server with an address, which ends by SIGKILL."""
    environment = {**clean_environment(), "PORT": str(port)}
    process = await ChildProcess.start(command, environment)
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert process.process.returncode is None
                await asyncio.sleep(0.05)
            else:
                writer.close()
                break
        yield
    finally:
        await process.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sse", "streamableHttp", "fastmcp"])
async def test_a_published_server_with_an_address_is_found_again_after_a_restart(
    kind: str, npm_servers: Path, fastmcp: Path, tmp_path: Path
) -> None:
    port = free_port()
    path, tool, arguments = "mcp", "echo", {"message": "hello"}
    command = [str(npm_servers / "mcp-server-everything"), kind]
    if kind == "sse":
        path = "sse"
    elif kind == "fastmcp":
        script = tmp_path / "server.py"
        script.write_text(FASTMCP)
        tool, arguments = "shout", {"text": "hello"}
        command = [str(fastmcp), str(script), str(port)]
    access = ServerAccess(AddressPolicy(("127.0.0.1",), allow_private=True))
    server = McpServer("it", url=f"http://127.0.0.1:{port}/{path}", access=access, timeout_s=20.0)

    async def call() -> str:
        return str((await server.toolkit().execute(ToolContext(), tool, arguments)).value).lower()

    async with asyncio.timeout(200):
        async with listening(command, port):
            await server.start()
            await server.tried()
            assert "hello" in await call()
        for is_called_meanwhile in (False, True):
            if is_called_meanwhile:
                with pytest.raises(Unavailable) as refused:
                    await call()
                if refused.value.executed == "maybe":
                    # It was written to a connection whose end had not arrived yet.
                    with pytest.raises(Unavailable) as refused:
                        await call()
                assert (refused.value.executed, refused.value.retryable) == ("no", True)
            async with listening(command, port):
                failed: list[Unavailable] = []
                while True:
                    try:
                        assert "hello" in await call()
                        break
                    except Unavailable as error:
                        failed.append(error)
                        await server.retry()
                # Where nothing told of the end, one call may be written to a connection that the
                # former server has left behind.
                lost = [error for error in failed if error.executed != "no"]
                assert len(lost) <= (not is_called_meanwhile)
                assert {error.executed for error in lost} <= {"maybe"}
        await server.stop()
