"""Nothing that a run writes, returns or shows holds a credential: logs, spans, records, files."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.mcp import leaky_server
from support.processes.command_line import CommandLine
from support.telemetry.otlp_collector import collecting
from support.web.echoing_service import PATHS, EchoingService, echoing_service
from toolbus import FileChunk, RoomClient, RoomException
from toolbus_toolkits.credentials import CredentialName, CredentialStore
from toolbus_toolkits.credentials.encrypted_file import create_key_file
from toolbus_toolkits.credentials.redaction import forms_of

SECRETS = {
    "a/mcp/env": "envi-s3cret-7f1c",
    "a/mcp/lines": "-----BEGIN KEY-----\nbGluZS1vZi1hLWtleQ/1\nbGluZS1vZi1hLWtleQ/2\n",
    "a/mcp/header": "head-s3cret/a+b=",
    "a/api/bearer": "bear-s3cret/c+d=",
    "a/api/query": "quer-s3cret e&f",
    "a/api/basic": "basi-s3cret:g%h",
    "a/api/cookie": "cook-s3cret/i j",
}
SENT = [name for name in SECRETS if name not in ("a/mcp/env", "a/mcp/lines")]
"""Those that go to a service, and not to a program."""
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "query": {"type": "apiKey", "in": "query", "name": "key"},
    "basic": {"type": "http", "scheme": "basic"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "k"},
}
PARTS = {part for value in SECRETS.values() for part in (value[:10], value[-10:])}
"""What is left of a value that was cut before it was recognised."""
NEEDLES = PARTS | {form for value in SECRETS.values() for form in forms_of(value)}
MCP_CALLS: list[tuple[str, dict[str, Any]]] = [
    *(("leaky.content", {"kind": kind}) for kind in ("text", "image", "several")),
    *((f"leaky.{name}", {}) for name in ("environment", "steps", "fail", "hang")),
    ("mcp.call", {"tool": "leaky.environment"}),
    ("mcp.call", {"tool": "leaky.hello", "arguments": {"name": "${cred:a/mcp/env}"}}),
    ("mcp.list", {}),
    ("leaky.crash", {}),
    ("mcp.list", {}),
]
API_CALLS: list[tuple[str, dict[str, Any]]] = [
    *((f"echo.{path}_{scheme}", {}) for path in (*PATHS, "hang") for scheme in SCHEMES),
    ("echo.echo_bearer", {"q": "${cred:a/api/bearer}"}),
]


def _store(folder: Path) -> Mapping[str, str]:
    """Store the credentials in a folder; return the variables that open them."""
    create_key_file(folder / "key")
    variables = {
        "TOOLBUS_HOME": str(folder / "home"),
        "TOOLBUS_CREDENTIALS_KEY_FILE": str(folder / "key"),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
    }
    (folder / "home").mkdir(mode=0o700)
    store = CredentialStore.open(variables)
    for name, value in SECRETS.items():
        store.set(CredentialName.parse(name), value, hosts=["127.0.0.1"], commands=[sys.executable])
    return variables


def _servers(folder: Path, url: str) -> str:
    """Write the file of MCP servers: one that works, and each kind of failure."""
    env = {"TOKEN": "${cred:a/mcp/env}", "KEY": "${cred:a/mcp/lines}"}

    def started(*arguments: str, **more: Any) -> dict[str, Any]:
        args = [leaky_server.__file__, *arguments]
        return {"command": sys.executable, "args": args, "env": env, **more}

    headers = {"Authorization": "Bearer ${cred:a/mcp/header}"}
    entries = {
        "leaky": started(),
        "crashing": started("--crash"),
        "mute": started("--mute", connect_timeout_s=2),
        "denied": {"url": f"{url}/denied", "headers": headers},
        "odd": {"url": f"{url}/echo", "headers": headers},
        "cut": {"url": f"{url}/cut/sse", "headers": headers},
    }
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    return str(folder / "mcp.json")


def _api_flags(folder: Path, url: str) -> list[str]:
    """Describe an API with each path for each scheme, and return the flags that host it."""

    def operation(path: str, scheme: str) -> dict[str, Any]:
        parameters = [{"name": "q", "in": "query", "schema": {}}]
        found = {"operationId": f"{path}_{scheme}", "security": [{scheme: []}]}
        return {"get": {**found, "parameters": parameters}}

    document = {
        "openapi": "3.1.0",
        "info": {"title": "Echo", "version": "1"},
        "servers": [{"url": url}],
        "components": {"securitySchemes": SCHEMES},
        "paths": {
            f"/{path}/{scheme}": operation(path, scheme)
            for path in (*PATHS, "hang")
            for scheme in SCHEMES
        },
    }
    (folder / "api.json").write_text(json.dumps(document), encoding="utf-8")
    texts = {scheme: f"${{cred:a/api/{scheme}}}" for scheme in SCHEMES}
    texts["basic"] = "me:${cred:a/api/basic}"
    pages: dict[str, Any] = {f"page_{scheme}": {} for scheme in SCHEMES}
    options = ("--credentials", json.dumps(texts), "--pages", json.dumps(pages))
    return ["--spec", str(folder / "api.json"), "--allow-private", *options]


async def _results(calls: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Make calls one after the other; return what the caller got, as text."""
    async with RoomClient() as room:
        return [await _result(room, *each) for each in calls]


async def _result(room: RoomClient, tool: str, arguments: dict[str, Any]) -> str:
    seen: list[Any] = []
    try:
        timeout_s = 1.0 if "hang" in tool else None
        options: Any = {
            "timeout_s": timeout_s,
            "approval_timeout_s": 0,
        }  # nobody is there to be asked
        async with room.stream(tool, arguments, **options) as chunks:
            async for chunk in chunks:
                seen.append(await chunk.read() if isinstance(chunk, FileChunk) else chunk)
                seen.append(repr(chunk))
    except RoomException as error:
        seen.append((error.code, error.message, error.details))
    return f"{tool}: {seen}"


def _held(data: bytes) -> list[str]:
    """Return the secrets that some bytes hold, in any form."""
    return [each for each in NEEDLES if each.encode() in data]


def _check_processes() -> int:
    """Check the command lines and variables of all processes; return how many hold a secret."""
    holders = 0
    for process in psutil.process_iter():
        try:
            words, variables = process.cmdline(), process.environ()
        except psutil.Error:  # it has ended, or is another user's
            continue
        assert not _held("\0".join(words).encode())
        if _held("\0".join(variables.values()).encode()):
            assert leaky_server.__file__ in words
            holders += 1
    return holders


@contextmanager
def _running(folder: Path, variables: Mapping[str, str], service: EchoingService) -> Iterator[str]:
    """Run a server and both hosts, with every log on; yield the address of the server."""
    (folder / "sitecustomize.py").write_text(
        "import logging\nlogging.root.setLevel(logging.DEBUG)\n", encoding="utf-8"
    )
    line = CommandLine(folder, {**variables, "PYTHONPATH": str(folder)}, folder / "errors.txt")
    records = ("--records", "--records-arguments")
    with line.serving() as (server, url):
        there = line.at(url)
        mcp = ("mcp", "--config", _servers(folder, service.url), "--allow-private")
        api = ("openapi", *_api_flags(folder, service.url))
        with (
            there.hosting(*mcp, "--name", "servers", *records) as servers,
            there.hosting(*api, "--name", "apis", *records) as apis,
        ):
            yield url
            ends = [each.end() for each in (servers, apis, server)]
    (folder / "output.txt").write_text("".join(each.out for each in ends), encoding="utf-8")
    assert [each.code for each in ends] == [0, 0, 0]


def test_no_secret_is_left_by_a_run_with_every_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = _store(tmp_path)
    with collecting() as collector, echoing_service() as service:
        spans = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with _running(tmp_path, {**variables, **spans}, service) as url:
            for name, value in {**variables, "TOOLBUS_URL": url, "TOOLBUS_NAME": "ann"}.items():
                monkeypatch.setenv(name, value)
            assert _check_processes() > 0
            results = asyncio.run(_results([*API_CALLS, *MCP_CALLS]))
            _check_processes()
    assert [each for each in results if _held(each.encode())] == []
    assert _held(collector.raw) == []
    files = {each.name: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    assert {name: _held(data) for name, data in files.items() if _held(data)} == {}
    assert {"records.db", "errors.txt", "output.txt"} <= files.keys()
    # They were used, and recognised where they came back.
    sent = "\n".join(service.seen)
    assert all(each.count("key=") <= 1 for each in service.seen)  # also after a link to a page
    assert all(any(form in sent for form in forms_of(SECRETS[each])) for each in SENT)
    came_back = "\n".join(results) + files["errors.txt"].decode()
    assert [each for each in SECRETS if f"[credential {each}]" not in came_back] == []
