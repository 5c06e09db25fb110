"""Nodes with a Redis that requires authentication: a user with few rights, TLS, a certificate."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.clients.certificates import Pki, make_pki
from support.nodes import scenarios as node_scenarios
from support.nodes.cluster import hosted, nodes, until_listed, until_present
from support.nodes.relayed import node_of
from support.nodes.tools import add
from support.processes.command_line import CommandLine
from support.pytest_plugins.missing_parts import not_verified
from support.redis.server import RedisServer, free_port
from toolbus import ApiScope, ParticipantToken, RoomClient
from toolbus.diagnostics.checks import Finding
from toolbus.diagnostics.exit_codes import ExitCode
from toolbus.errors import PermissionDenied
from toolbus_server.cluster import node
from toolbus_server.cluster.redis.health_check import acl_rule, examine_redis

TIME_S = 60
PASSWORD = "one/two@three"
QUOTED = "one%2Ftwo%40three"


class Reached(RedisServer):
    """A Redis that runs already, at its own address.

    Args:
        url: The address.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def url(self) -> str:
        return self._url


async def check(url: str) -> dict[str, Finding]:
    async with asyncio.timeout(TIME_S):
        return {each.check: each for each in await examine_redis(url)}


# A user who may do what nodes do, and nothing else

LIVES: tuple[Callable[[RedisServer], Awaitable[None]], ...] = (
    node_scenarios.call_a_tool_at_another_node,
    node_scenarios.pass_streams_inputs_and_files,
    node_scenarios.keep_one_owner_of_a_public_name,
    node_scenarios.see_participants_and_messages,
    node_scenarios.replace_a_connection,
    node_scenarios.take_up_a_reserved_name,
    node_scenarios.count_calls_once,
    node_scenarios.kick_and_revoke,  # and is refused for a moment
)


async def run(admin: Redis, *words: Any) -> Any:
    """Run a command as an administrator."""
    return await admin.execute_command(*words)  # type: ignore[no-untyped-call]


@pytest.fixture
async def admin(redis: RedisServer) -> AsyncIterator[Redis]:
    """Create the user of the rule, with the password that it contains."""
    async with Redis.from_url(redis.url) as client:
        rule = acl_rule("nodes").replace(">PASSWORD", f">{PASSWORD}")
        await run(client, *rule.split())
        await run(client, "ACL", "LOG", "RESET")
        yield client


async def denied(admin: Redis) -> list[Any]:
    """List the commands that Redis refused to nodes."""
    log: list[Any] = await run(admin, "ACL", "LOG")
    return log


def as_user(redis: RedisServer) -> Reached:
    return Reached(f"redis://nodes:{QUOTED}@127.0.0.1:{redis.port}/0")


@pytest.mark.redis
async def test_nodes_need_only_the_acl_rule_that_the_doctor_prints(
    redis: RedisServer, admin: Redis
) -> None:
    for live in LIVES:
        await live(as_user(redis))
        assert await denied(admin) == [], live.__name__
        await run(admin, "FLUSHDB")  # names of this one would be reserved in the next one


@pytest.mark.redis
async def test_the_rule_allows_to_clean_up_after_an_ended_node(
    redis: RedisServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "HEARTBEAT_S", 0.2)
    async with asyncio.timeout(TIME_S), nodes(as_user(redis)) as (here, there):
        async with hosted(there, add), here.room("me") as me:
            await until_listed(me, "kit")
            ended = node_of(there).node_id
            await admin.zadd("toolbus:nodes:leases", {ended: 1})
            while await admin.exists(f"toolbus:rooms:{ended}") or node_of(there).node_id == ended:
                pass
            await until_listed(me, "kit")
    assert await denied(admin) == []


@pytest.mark.redis
async def test_changes_that_redis_refuses_are_visible_locally_and_published_later(
    redis: RedisServer, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(TIME_S), nodes(as_user(redis)) as (here, there):
        token = ParticipantToken(name="chief", room=["*"], api=ApiScope.full()).to_jwt(here.key)
        admins = RoomClient(here.url, room="lab", token=token)
        async with admins as administrator, there.room("bob") as bob:
            await until_present(administrator, "bob")
            await run(admin, "ACL", "SETUSER", "nodes", "-zadd")
            done = await administrator.admin("revoke", name="bob", issuer=bob.me.issuer)
            assert done == {"closed": 1, "stored": False}
            assert "the state of tokens is not written to Redis" in caplog.text
            await run(admin, "ACL", "SETUSER", "nodes", "+zadd")
            await admin.client_kill_filter(_type="normal", skipme=True)
            with pytest.raises(PermissionDenied):
                await bob.closed()


# TLS


def tls_program() -> str:
    """Find a Redis with TLS; the one in the wheel has none."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None and _knows_tls(found):
            return found
    not_verified("nodes with Redis over TLS", "no redis-server here has TLS", ci_has_it=False)


def _knows_tls(program: str) -> bool:
    """Return whether it knows TLS: without a certificate it ends and names what is missing."""
    asked = (program, "--port", "0", "--tls-port", "1")
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=TIME_S, check=False)
    return "tls-cert-file" in ended.stdout


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return make_pki(tmp_path / "pki")


@pytest.fixture
async def secured(tmp_path: Path, pki: Pki) -> AsyncIterator[str]:
    """Run a Redis with TLS and no client certificates; yield its host and TLS port."""
    server, port = RedisServer(tls_program(), tmp_path), free_port()
    await server.start("--tls-port", str(port), *tls_settings(pki))
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.kill()


def tls_settings(pki: Pki) -> tuple[str, ...]:
    files = ("--tls-cert-file", str(pki.cert), "--tls-key-file", str(pki.key))
    return *files, "--tls-ca-cert-file", str(pki.authority), "--tls-auth-clients", "no"


class SecuredSentinel(RedisServer):
    """A Sentinel that accepts only TLS, and connects to its primary the same way.

    Args:
        folder: Where it keeps its state.
        pki: Its certificate.
        watched: The port of the primary.
    """

    def __init__(self, folder: Path, pki: Pki, watched: str) -> None:
        super().__init__(tls_program(), folder)
        self._pki = pki
        self._file = folder / "sentinel.conf"
        self._file.write_text(f"sentinel monitor main {watched.replace(':', ' ')} 1\n", "utf-8")

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self.port}?ssl_ca_certs={self._pki.authority}"

    async def _launch(self, *_settings: str) -> None:
        words = ("--port", "0", "--tls-port", str(self.port), "--tls-replication", "yes")
        self._process = await asyncio.create_subprocess_exec(
            *(self._program, str(self._file), "--sentinel", *words, *tls_settings(self._pki)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )


async def test_nodes_meet_over_tls(secured: str, pki: Pki) -> None:
    redis = Reached(f"rediss://{secured}/0?ssl_ca_certs={pki.authority}")
    assert {each.status for each in (await check(redis.url)).values()} == {"ok"}
    await node_scenarios.call_a_tool_at_another_node(redis)


async def test_nodes_meet_where_sentinels_too_speak_tls_alone(
    secured: str, pki: Pki, tmp_path: Path
) -> None:
    sentinel = SecuredSentinel(tmp_path, pki, secured)
    place = f"127.0.0.1:{sentinel.port}/main/0"
    try:
        await sentinel.start()
        redis = Reached(f"rediss+sentinel://{place}?ssl_ca_certs={pki.authority}")
        findings = await check(redis.url)
        assert {each.status for each in findings.values()} == {"ok"}
        await node_scenarios.call_a_tool_at_another_node(redis)
        in_clear = await check(f"redis+sentinel://{place}")
    finally:
        await sentinel.kill()
    assert in_clear["reach"].status == "fail"


async def test_certificate_of_an_unknown_authority_is_refused(secured: str, tmp_path: Path) -> None:
    reach = (await check(f"rediss://{secured}"))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert "is not trusted" in reach.found
    assert "ssl_ca_certs" in reach.repair
    flags = ("serve", "--dev", "--redis", f"rediss://{secured}")
    refused = await asyncio.to_thread(CommandLine(tmp_path).run_here, *flags)
    assert refused.code == 2
    assert "is not trusted" in refused.err


async def test_redis_that_requires_tls_is_distinguished_from_an_unreachable_one(
    secured: str,
) -> None:
    reach = (await check(f"redis://{secured}"))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert reach.found.endswith("speaks TLS")
    assert "rediss://" in reach.repair


async def test_redis_that_requires_a_client_certificate_is_named_and_accepts_one(
    secured: str, pki: Pki
) -> None:
    url = f"rediss://{secured}/0?ssl_ca_certs={pki.authority}"
    async with Redis.from_url(url) as client:
        await client.config_set("tls-auth-clients", "yes")
    reach = (await check(url))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert "ssl_certfile" in reach.repair
    known = f"{url}&ssl_certfile={pki.cert}&ssl_keyfile={pki.key}"
    assert {each.status for each in (await check(known)).values()} == {"ok"}


async def test_missing_tls_files_are_named(secured: str, tmp_path: Path) -> None:
    reach = (await check(f"rediss://{secured}?ssl_ca_certs={tmp_path / 'no.pem'}"))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert "cannot read a TLS file" in reach.found
