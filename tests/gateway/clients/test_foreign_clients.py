"""Clients of others use tools of another process through the gateway, each by its own script."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.clients.installed_clients import NpmClients
from gateway.conftest import Door
from support.processes.launch import clean_environment

_TESTS = Path(__file__).parents[2]
_GOT: dict[str, Any] = {
    "tools": [
        "kit__add",
        "kit__bring",
        "kit__fail",
        "kit__leave",
        "kit__pay",
        "kit__picture",
        "kit__step",
        "kit__until_cancelled",
        "kit__until_waiting",
        "kit__wait",
    ],
    "sum": {"result": 3},
    "picture": ["image", "image/png", 70],
    "progress": [[1, 2, "half"]],
    "error": [True, "yes"],
    "ended": "cancelled",
    "cancelled": True,
}
"""What a client gets; `cancelled` is what the tool in the other process has seen."""
_CHANGES = {"came": True, "went": True}
_ASKED = {"approved": "paid 5"}
_NO_PROGRESS: dict[str, Any] = {"progress": []}


@asynccontextmanager
async def running(
    command: list[str], variables: dict[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of which the output is read, and which is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**clean_environment(), "PYTHONPATH": str(_TESTS), **variables},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@dataclass(frozen=True, slots=True)
class Installed:
    """What runs the scripts."""

    npm: NpmClients
    fastmcp: str

    def command(self, script: str, folder: Path) -> list[str]:
        """Return the command of a script; that of a client from npm runs in a folder."""
        name, _, kind = script.partition(".")
        if kind == "mjs":
            return self.npm.script(script, folder)
        python = self.fastmcp if script == "fastmcp_client.py" else sys.executable
        return [python, "-m", f"gateway.clients.{name}"]


@pytest.fixture
def installed(npm: NpmClients, fastmcp: str) -> Installed:
    """The clients of this table."""
    return Installed(npm, fastmcp)


@pytest.mark.long
@pytest.mark.timeout(400)  # the first run installs
@pytest.mark.parametrize(
    ("script", "mode", "differs"),
    [
        ("official_client.py", "legacy", {}),
        ("official_client.py", "auto", _CHANGES),
        ("fastmcp_client.py", "legacy", {}),
        ("fastmcp_client.py", "auto", _ASKED),
        ("inspector_client.py", "legacy", _NO_PROGRESS),
        ("inspector_client.py", "modern", _NO_PROGRESS),
        ("sdk_client.mjs", "", {}),
        ("v2_client.mjs", "legacy", {}),
        ("v2_client.mjs", "auto", _CHANGES | _ASKED),
    ],
)
async def test_a_client_of_others_uses_tools_of_another_process(
    door: Door,
    installed: Installed,
    script: str,
    mode: str,
    differs: dict[str, Any],
    tmp_path: Path,
) -> None:
    variables = {
        "HOME": str(tmp_path),  # the inspector writes a folder there
        "MCP_URL": door.address(),
        "MCP_TOKEN": door.server.token("alice"),
        "MCP_INSPECTOR": json.dumps(installed.npm.program("mcp-inspector")),
    }
    of_host = {"TOOLBUS_URL": door.server.url, "TOOLBUS_TOKEN": door.server.token("host")}
    command = installed.command(script, tmp_path)
    hosting = [sys.executable, "-m", "gateway.clients.kit_host"]
    async with asyncio.timeout(60), running(hosting, of_host) as host:
        assert host.stdout is not None
        assert await host.stdout.readline() == b"hosting\n"
        async with running([*command, mode], variables) as client:
            output, _ = await client.communicate()
            assert client.returncode == 0
    assert json.loads(output) == {**_GOT, **differs}
