"""Key sets at addresses: an https server of the test publishes them, well and badly."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from support.clients.certificates import Pki, make_pki
from support.clients.plain_http import numbers_at
from support.clients.raw_client import bearer, raw_connection
from support.processes.command_line import CommandLine, Outcome
from support.web.scripted_server import Answer, Seen, WebServer, web_server
from toolbus import Key, KeyRing, RoomClient, Unavailable
from toolbus_server import RoomServer, ServerSettings
from toolbus_server.process.key_files import KeyReloader, add_key
from toolbus_server.process.key_sets import KeySets, fetch_key_sets

OLD, NEW = (Key.generate(kid=kid, iss="https://idp.test", alg="ES256") for kid in ("old", "new"))
OWN = Key.generate(kid="own", iss="acme", alias="acme")
RULES = """
[[rule]]
iss = "https://idp.test"
match = { team = "tools" }
name = "bot-{number}"
rooms = ["lab"]
preset = "user"
"""


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


def set_of(*keys: Key) -> Answer:
    return Answer(body=json.dumps({"keys": [key.public_jwk() for key in keys]}).encode())


def token_of(key: Key, number: int = 1, **changes: object) -> str:
    now = time.time()
    claims = {
        "iss": key.iss,
        "sub": f"team/{number}",
        "aud": "toolbus",
        "iat": now,
        "exp": now + 60,
    }
    return key.sign(json.dumps({**claims, "team": "tools", "number": number, **changes}).encode())


class Publisher:
    """An https server with a key set, and the key file of a server that uses it."""

    def __init__(self, web: WebServer, pki: Pki, folder: Path) -> None:
        self.web = web
        self.path = folder / "keys.toml"
        (folder / "bearer.txt").write_text("s3cret\n")
        issuer = {
            "iss": OLD.iss,
            "alias": "idp",
            "jwks": f"https://127.0.0.1:{web.port}/jwks?v=1",
            "ca": str(pki.authority),
            "token_file": "bearer.txt",
        }
        self.tables = f"[[issuer]]\n{_toml(issuer)}{RULES}\n{KeyRing([OWN]).to_toml()}"
        self.path.write_text(self.tables)
        self.path.chmod(0o600)
        self.ring = KeyRing.load(self.path)

    def answers(self, answer: Answer | Callable[[Seen], Awaitable[Answer]]) -> None:
        """From now on give this answer."""
        self.web.answer = answer if callable(answer) else lambda _: answer


def _toml(fields: dict[str, str]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())


@asynccontextmanager
async def publisher(pki: Pki, folder: Path) -> AsyncIterator[Publisher]:
    async with web_server(lambda _: set_of(OLD), tls_of(pki)) as web:
        yield Publisher(web, pki, folder)


def tls_of(pki: Pki) -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pki.cert, pki.key)
    return tls


def kids_of(ring: KeyRing) -> list[str] | None:
    keys = ring.issuers[OLD.iss].keys
    return None if keys is None else list(keys)


async def hang(_: Seen) -> Answer:
    await asyncio.sleep(60)  # the client has left long before
    return Answer()


BAD: dict[str, tuple[Answer | Callable[[Seen], Awaitable[Answer]], str]] = {
    "away": (Answer(503), "/jwks?v=1: the answer is HTTP 503, not 200"),
    "redirect": (
        Answer(302, headers={"location": "https://127.0.0.1/x"}),
        "HTTP 302, and redirects are not followed",
    ),
    "no rights": (Answer(403), "HTTP 403: it may need another `token_file`"),
    "discovery": (Answer(body=b'{"jwks_uri": "x"}'), "its jwks_uri is the address of the key set"),
    "slow": (hang, "no answer in time"),
    "10 MB": (Answer(body=b" " * 10_000_000), "over 64 KiB"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_the_last_good_set_counts_and_a_failure_is_logged_once(
    kind: str, pki: Pki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TOKEN-9."""
    bad, fault = BAD[kind]
    async with publisher(pki, tmp_path) as published:
        ring = published.ring
        sets = KeySets(interval_s=0, retry_s=0, timeout_s=0.5 if kind == "slow" else 10)
        await sets.fetch(ring, lambda: None)
        assert kids_of(sets.filled(ring)) == ["old"]
        published.answers(bad)
        for _ in range(2):
            await sets.fetch(ring, lambda: None)
        assert kids_of(sets.filled(ring)) == ["old"]
        (line,) = caplog.messages
        assert line.startswith("the key set of https://idp.test was not fetched: ")
        assert fault in line
        published.answers(set_of(NEW))
        await sets.fetch(ring, lambda: None)
        assert caplog.messages[1:] == ["the key set of https://idp.test was fetched again"]
        assert kids_of(sets.filled(ring)) == ["new"]
        assert {seen.target for seen in published.web.seen} == {"/jwks?v=1"}
        assert {seen.headers["authorization"] for seen in published.web.seen} == {"Bearer s3cret"}


async def test_a_set_counts_while_another_address_hangs(pki: Pki, tmp_path: Path) -> None:
    """TOKEN-9."""
    sets, is_there, goes_on = KeySets(), asyncio.Event(), asyncio.Event()

    async def answer(_: Seen) -> Answer:
        await goes_on.wait()
        return Answer(503)

    async with publisher(pki, tmp_path) as published, web_server(answer, tls_of(pki)) as slow:
        here = published.ring.issuers[OLD.iss]
        jwks = f"https://127.0.0.1:{slow.port}/"
        ring = KeyRing([], [replace(here, iss="away", alias="away", jwks=jwks), here])
        fetching = asyncio.create_task(sets.fetch(ring, is_there.set))
        await is_there.wait()
        assert kids_of(sets.filled(ring)) == ["old"]
        assert not fetching.done()
        goes_on.set()
        await fetching


async def test_a_peer_that_sends_a_byte_now_and_then_is_given_up(pki: Pki, tmp_path: Path) -> None:
    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"H")
                await writer.drain()
                await asyncio.sleep(0.05)  # shorter than the limit, which each read would have

    async with publisher(pki, tmp_path) as published:
        server = await asyncio.start_server(drip, "127.0.0.1", 0, ssl=tls_of(pki))
        port = server.sockets[0].getsockname()[1]
        ring = with_issuer(published, jwks=f"https://127.0.0.1:{port}/")
        with pytest.raises(ValueError, match="no answer in time"):
            await asyncio.to_thread(fetch_key_sets, ring, 0.5)
        server.close()


def with_issuer(published: Publisher, **changes: Any) -> KeyRing:
    return KeyRing([], [replace(published.ring.issuers[OLD.iss], **changes)])


async def test_what_is_wrong_with_an_address_is_named(pki: Pki, tmp_path: Path) -> None:
    other = make_pki(tmp_path / "other")
    (tmp_path / "two lines").write_text("s3cret\nx: y")
    async with publisher(pki, tmp_path) as published, web_server(hang) as plain:
        port = published.web.port
        for changes, fault in (
            ({"ca": str(other.authority)}, "; `ca` names the authority to trust"),
            (
                {"jwks": f"https://localhost:{port}/jwks"},
                f"localhost:{port}/jwks: its certificate is not trusted",
            ),
            ({"ca": str(tmp_path / "no.pem")}, "/jwks?v=1: ca " + f"{tmp_path}/no.pem: No such"),
            ({"token_file": str(tmp_path / "no.txt")}, "no.txt: No such file"),
            ({"token_file": str(tmp_path / "two lines")}, "has no token for a header"),
            ({"jwks": f"https://127.0.0.1:{plain.port}/"}, ""),
            ({"jwks": "https://127.0.0.1:1/"}, "refused"),
        ):
            with pytest.raises(ValueError, match=r"key set of .* was not") as error:
                await asyncio.to_thread(fetch_key_sets, with_issuer(published, **changes))
            assert fault in str(error.value)
            assert ("`ca` names" in str(error.value)) == ("`ca` names" in fault)
            assert "s3cret" not in str(error.value)


async def test_a_key_rotates_while_participants_stay(pki: Pki, tmp_path: Path) -> None:
    """TOKEN-6, TOKEN-9: each new set reaches the server, and so does the age of the same one."""
    passed_on = asyncio.Queue[KeyRing]()
    async with publisher(pki, tmp_path) as published:
        # The provider publishes a key with the id of a development key.
        development = frozenset({"own", "old"})
        settings = ServerSettings(
            keys=published.ring, development_keys=development, port=0, drain_s=1.0
        )
        async with RoomServer(settings) as server:
            with pytest.raises(Unavailable, match="503"):
                await join(server, token_of(OLD))
            numbers = await numbers_at(server.url)
            assert numbers["toolbus_key_set_age_seconds https://idp.test"] == inf
            assert numbers["toolbus_connections_refused_total no_key_set"] >= 1

            def trust(keys: KeyRing) -> None:
                server.trust(keys)
                passed_on.put_nowait(keys)

            sets = KeySets(interval_s=0.02, retry_s=0.02)
            reloader = KeyReloader([published.path], published.ring, trust, sets)
            following = asyncio.create_task(reloader.follow())
            assert kids_of(await passed_on.get()) == ["old"]
            async with RoomClient(server.url, room="lab", token=token_of(OLD)) as bot:
                assert bot.me.full_name == "idp/bot-1"
                (session,) = server.hub.rooms["lab"].sessions.values()
                assert not session.connection.participant.is_developer
                assert 0 <= await age_at(server) < 60
                published.answers(set_of(NEW))
                while kids_of(await passed_on.get()) != ["new"]:
                    pass
                assert await status_of(server, token_of(OLD)) == 401
                async with RoomClient(server.url, room="lab", token=token_of(NEW, 2)) as late:
                    assert {person.name for person in await bot.participants()} == {
                        "bot-1",
                        "bot-2",
                    }
                    assert late.grants.messaging
                published.answers(Answer(503))
                assert await status_of(server, token_of(NEW, 3)) == 101
                assert await status_of(server, token_of(NEW, team="other")) == 401
            assert (await numbers_at(server.url))["toolbus_connections_refused_total no_rule"] == 1
            following.cancel()
            await asyncio.wait([following])


async def age_at(server: RoomServer) -> float:
    return (await numbers_at(server.url))["toolbus_key_set_age_seconds https://idp.test"]


async def join(server: RoomServer, token: str) -> None:
    async with asyncio.timeout(5), RoomClient(server.url, room="lab", token=token):
        pass


async def status_of(server: RoomServer, token: str) -> int:
    async with raw_connection(server.url) as client:
        return (await client.upgrade("/rooms/lab", bearer(token))).status


async def run(line: CommandLine, *arguments: str) -> Outcome:
    """Run a command while the loop goes on, which publishes."""
    with line.start(*arguments) as running:
        return await asyncio.to_thread(running.ended)


async def test_serve_follows_addresses_and_files_and_the_commands_show_the_rule(
    pki: Pki, tmp_path: Path
) -> None:
    """TOKEN-6, TOKEN-9: with real processes."""
    line = CommandLine(tmp_path)
    async with publisher(pki, tmp_path) as published:
        token = token_of(OLD)
        shown = await run(line, "token", "inspect", token, "--keys", str(published.path))
        assert shown.code == 0, shown.err
        assert 'rule 1: {"team": "tools"}' in shown.err
        assert "identity: idp/bot-1 (issuer https://idp.test), role user" in shown.err
        assert 'room lab; grants: {"agents": ' in shown.err
        with line.start("serve", "--port", "0", "--json", "--keys", str(published.path)) as server:
            url = json.loads(await asyncio.to_thread(server.line))["url"]
            stderr = server.process.stderr
            assert stderr is not None
            assert "trusted keys: 'own', 'old'" in await asyncio.to_thread(stderr.readline)
            doctor = ("doctor", "--url", url, "--room", "lab", "--token", token)
            found = await run(line, *doctor)
            assert found.code == 0, found.out
            assert "for 'team/1', which needs a rule of the server" in found.out
            assert "accepts participants; the key set of https://idp.test is " in found.out, (
                found.out
            )
            assert "joined lab as idp/bot-1" in found.out
            assert "may list *; call *; host private toolkits" in found.out

            published.answers(set_of(NEW, OLD))
            server.process.send_signal(signal.SIGHUP)  # or it would be fetched in 5 minutes
            while "trusted keys: 'own', 'new', 'old'" not in await asyncio.to_thread(
                stderr.readline
            ):
                pass
            other = Key.generate(kid="more", iss="acme", alias="acme")
            assert [key.kid for key in add_key(published.path, other)] == ["own", "more"]
            assert "'own', 'more', 'new', 'old'" in await asyncio.to_thread(stderr.readline)

            (tmp_path / "set.json").write_bytes(set_of(NEW).body)
            remote = next(row for row in published.tables.splitlines() if row.startswith("jwks"))
            text = published.tables.replace(remote, 'jwks = "set.json"')
            rows = [row for row in text.splitlines() if not row.startswith(("ca =", "token_file"))]
            published.path.write_text("\n".join(rows))
            assert "trusted keys: 'own', 'new'" in await asyncio.to_thread(stderr.readline)
            async with RoomClient(url, room="lab", token=token_of(NEW, 2)) as bot:
                assert bot.me.name == "bot-2"
            (tmp_path / "set.json").write_bytes(set_of(OLD, NEW).body)
            assert "trusted keys: 'own', 'old', 'new'" in await asyncio.to_thread(stderr.readline)
