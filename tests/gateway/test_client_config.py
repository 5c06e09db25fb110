"""`toolbus mcp config`: what each client pastes, and that it works."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from gateway.test_tool_calls import words
from support.processes.command_line import CommandLine, Outcome
from toolbus import Key, KeyRing, ParticipantToken
from toolbus_server.testing import running_server

TOKEN = ParticipantToken(name="ann", room=["*"]).to_jwt(Key.generate(kid="k", iss="i"), ttl_s=3600)
URL = "ws://127.0.0.1:7717"
ROOM = "http://127.0.0.1:7718/rooms/lab/mcp"
QUESTION = {
    "type": "promptString",
    "id": "toolbus-token",
    "description": "Token of the room",
    "password": True,
}


def started(*more: str, url: str = URL, room: str = "lab", **variables: str) -> dict[str, Any]:
    """An entry that starts the program; HERE is the folder of the command."""
    args = ["mcp", "--url", url, "--room", room, *more]
    env = {"TOOLBUS_HOME": "HERE/home", **variables}
    return {"command": sys.executable, "args": ["-m", "toolbus", *args], "env": env}


def reached(token: str, url: str = ROOM, **more: str) -> dict[str, Any]:
    return {**more, "url": url, "headers": {"Authorization": f"Bearer {token}"}}


def of_claude(entry: dict[str, Any], name: str = "toolbus-lab") -> dict[str, Any]:
    return {"mcpServers": {name: entry}}


def printed(folder: Path, typed: str, **variables: str) -> Outcome:
    (folder / "ann.jwt").write_text(TOKEN, encoding="utf-8")
    (folder / "toolbus.lock").touch()
    KeyRing([Key.generate(kid="k", iss="i")]).save(folder / "keys.toml")
    typed = typed.replace("TOKEN", TOKEN)
    # No `toolbus` is found, so that it is started as a module.
    return CommandLine(folder).run_here("mcp", "config", *typed.split(), PATH="", **variables)


FILE = {"TOOLBUS_TOKEN_FILE": "ann.jwt"}
HERE_FILE = {"TOOLBUS_TOKEN_FILE": "HERE/ann.jwt"}
GIVEN = {"TOOLBUS_TOKEN": TOKEN}
HTTP = "--http --room lab"
LOCKED = started("--locked", "HERE/toolbus.lock", **HERE_FILE)


@pytest.mark.parametrize(
    ("typed", "variables", "config"),
    [
        ("--room lab", FILE, of_claude(started(**HERE_FILE))),
        (
            "",
            {**FILE, "TOOLBUS_ROOM": "den"},
            of_claude(started(room="den", **HERE_FILE), "toolbus-den"),
        ),
        ("--room lab --for cursor", FILE, of_claude(started(**HERE_FILE))),
        (
            "--room lab --for vscode",
            FILE,
            {"servers": {"toolbus-lab": {"type": "stdio", **started(**HERE_FILE)}}},
        ),
        ("--room lab --entry bus", FILE, of_claude(started(**HERE_FILE), "bus")),
        ("--room lab --token ann.jwt", {}, of_claude(started("--token", "@HERE/ann.jwt"))),
        ("--room lab --token TOKEN", {}, of_claude(started())),
        ("--room lab", GIVEN, of_claude(started())),
        ("--room lab --with-token", GIVEN, of_claude(started(**GIVEN))),
        ("--room lab --with-token", FILE, of_claude(started(**HERE_FILE, **GIVEN))),
        (
            "--room lab --url wss://bus.example:1 --toolkit words --participant bob",
            FILE,
            of_claude(
                started(
                    *("--toolkit", "words", "--participant", "bob"),
                    url="wss://bus.example:1",
                    **HERE_FILE,
                ),
                "toolbus-lab-words",
            ),
        ),
        ("--room lab --locked toolbus.lock", FILE, of_claude(LOCKED)),
        ("--room lab", {**FILE, "TOOLBUS_LOCK": "toolbus.lock"}, of_claude(LOCKED)),
        (
            "--room lab --name ann",
            {"TOOLBUS_KEYS": "keys.toml"},
            of_claude(started("--name", "ann", TOOLBUS_KEYS="HERE/keys.toml")),
        ),
        (HTTP, {}, of_claude(reached("${TOOLBUS_TOKEN}", type="http"))),
        (HTTP, GIVEN, of_claude(reached("${TOOLBUS_TOKEN}", type="http"))),
        (f"{HTTP} --for cursor", {}, of_claude(reached("${env:TOOLBUS_TOKEN}", type="http"))),
        (
            f"{HTTP} --for vscode",
            {},
            {
                "inputs": [QUESTION],
                "servers": {"toolbus-lab": reached("${input:toolbus-token}", type="http")},
            },
        ),
        (f"{HTTP} --with-token", FILE, of_claude(reached(TOKEN, type="http"))),
        (
            f"{HTTP} --for vscode --with-token",
            GIVEN,
            {"servers": {"toolbus-lab": reached(TOKEN, type="http")}},
        ),
        (
            f"{HTTP} --url https://bus.example/ --toolkit words --participant corp/bob",
            {},
            of_claude(
                reached(
                    "${TOOLBUS_TOKEN}",
                    "https://bus.example/rooms/lab/mcp/words?participant=corp/bob",
                    type="http",
                ),
                "toolbus-lab-words",
            ),
        ),
    ],
)
def test_configuration_is_that_of_the_client_and_has_a_token_only_on_request(
    typed: str, variables: dict[str, str], config: dict[str, Any], tmp_path: Path
) -> None:
    outcome = printed(tmp_path, typed, **variables)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out.replace(str(tmp_path), "HERE")) == config
    if "--with-token" in typed:
        assert "has the rights of the token (" in outcome.err
    else:
        assert TOKEN not in outcome.out + outcome.err
        is_missing = "--http" not in typed and (variables == GIVEN or "TOKEN" in typed)
        assert ("add --with-token" in outcome.err) is is_missing


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("--room lab", "no token"),
        ("--http --url ws://127.0.0.1:7717", "is that of the gateway"),
        ("--http --url http://user:word@host", "is that of the gateway"),
        ("--http --participant bob", "add --toolkit"),
        ("--http --toolkit Not/one", "not the name of a toolkit"),
        ("--http --room Not/one", "room"),
        ("--http --with-token", "no token"),
    ],
)
def test_what_cannot_work_is_refused(typed: str, text: str, tmp_path: Path) -> None:
    outcome = printed(tmp_path, typed)
    assert (outcome.code, outcome.out) == (2, "")
    assert text in outcome.err


def test_options_before_the_command_are_refused(tmp_path: Path) -> None:
    outcome = CommandLine(tmp_path).run_here("mcp", "--room", "lab", "config")
    assert outcome.code == 2
    assert "toolbus mcp config ..." in outcome.err


async def test_what_is_printed_starts_the_program_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    async with asyncio.timeout(60), running_server() as server, server.room("host") as host:
        (tmp_path / "ann.jwt").write_text(server.token("ann"), encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("toolbus")), "mcp", "config"),
            *("--url", server.url, "--room", "lab", "--token", "ann.jwt"),
            cwd=tmp_path,
            env={**os.environ, "TOOLBUS_HOME": str(tmp_path / "home")},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        (entry,) = json.loads(out)["mcpServers"].values()
        assert Path(entry["command"]).is_absolute()
        program = StdioServerParameters(**entry, cwd=tmp_path / "elsewhere")
        async with Client(program, mode="2026-07-28") as client, host.host(words()):
            async with client.listen(tools_list_changed=True) as changes:
                while not (await client.list_tools(cache_mode="refresh")).tools:
                    await anext(aiter(changes))
            added = await client.call_tool("words__add", {"a": 1, "b": 2})
            assert added.structured_content == {"result": 3}
