"""The conformance suite of MCP, in the server scenarios of both revisions.

`expected_failures_*.yaml` names what the gateway does not have. Scenarios that a revision does not
require run as well, and fail nothing.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from gateway.clients.authorizing_relay import authorizing_relay
from gateway.clients.installed_clients import NpmClients
from gateway.clients.suite_toolkit import suite_toolkit
from gateway.conftest import Door

_FOLDER = Path(__file__).parent


_PASSED_BEYOND = {
    "2026-07-28": {
        "http-custom-header-server-validation",
        "http-header-validation",
        "json-schema-2020-12",
    },
    "2025-11-25": {"json-schema-2020-12", "server-sse-polling"},
}
"""Of the scenarios that a revision does not require, those that pass."""


@pytest.mark.timeout(400)  # the first run installs
@pytest.mark.parametrize(("revision", "wanted"), [("2026-07-28", 20), ("2025-11-25", 12)])
async def test_the_suite_fails_only_where_it_is_expected(
    door: Door, npm: NpmClients, revision: str, wanted: int, tmp_path: Path
) -> None:
    token = door.server.token("alice")
    async with (
        door.server.room("host") as host,
        AsyncExitStack() as added,
        host.host(suite_toolkit(host, added)),
        authorizing_relay(door.address("suite"), token) as url,
    ):
        expected = _FOLDER / f"expected_failures_{revision}.yaml"
        process = await asyncio.create_subprocess_exec(
            *npm.program("conformance"),
            *("server", "--url", url, "--requirements", revision),
            *("--expected-failures", str(expected), "--output-dir", str(tmp_path)),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    summary = output.decode().partition("=== SUMMARY ===")[2]
    assert process.returncode == 0, summary
    passed = set(re.findall(r"^✓ (\S+):", summary, re.MULTILINE))
    package = npm.folder / "node_modules" / "@modelcontextprotocol" / "conformance"
    required = yaml.safe_load((package / "requirements" / f"{revision}.yaml").read_text())
    assert len(passed & {*required["server"]}) == wanted
    assert passed >= _PASSED_BEYOND[revision]
