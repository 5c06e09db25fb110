"""Nodes live with a Redis that asks who they are: a user with few rights, TLS, a certificate."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from scenarios import test_nodes as life
from support.command_line import CommandLine
from support.missing_parts import not_verified
from support.own_authority import Pki, make_pki
from support.redis_server import RedisServer
from toolbus.exit_codes import ExitCode
from toolbus.findings import Finding
from toolbus_server.nodes import node
from toolbus_server.nodes.redis_check import examine_redis
from toolbus_server.nodes.redis_rights import acl_rule

TIME_S = 30
PASSWORD = "one/two@three"
QUOTED = "one%2Ftwo%40three"


class Reached(RedisServer):
    """A Redis that is there already, by an address of its own.

    Args:
        url: The address.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def url(self) -> str:
        return self._url


async def look(url: str) -> dict[str, Finding]:
    async with asyncio.timeout(TIME_S):
        return {each.check: each for each in await examine_redis(url)}


# A user who may do what nodes do, and nothing else

LIVES: tuple[Callable[[RedisServer], Awaitable[None]], ...] = (
    life.test_a_tool_is_called_from_another_node,
    life.test_streams_inputs_and_files_pass_between_nodes,
    life.test_a_public_name_has_one_owner_on_all_nodes,
    life.test_people_and_messages_are_seen_at_all_nodes,
    life.test_a_newer_connection_elsewhere_takes_the_place,
    life.test_who_is_sent_away_goes_from_every_node,
)


async def run(admin: Redis, *words: Any) -> Any:
    """Run a command as an administrator."""
    return await admin.execute_command(*words)  # type: ignore[no-untyped-call]


@pytest.fixture
async def admin(redis: RedisServer) -> AsyncIterator[Redis]:
    """Make the user that the rule describes, with the password that it asks for."""
    async with Redis.from_url(redis.url) as client:
        rule = acl_rule("nodes").replace(">PASSWORD", f">{PASSWORD}")
        await run(client, *rule.split())
        await run(client, "ACL", "LOG", "RESET")
        yield client


async def denied(admin: Redis) -> list[Any]:
    """List what Redis refused."""
    log: list[Any] = await run(admin, "ACL", "LOG")
    return log


def as_user(redis: RedisServer) -> Reached:
    return Reached(f"redis://nodes:{QUOTED}@127.0.0.1:{redis.port}/0")


async def test_the_whole_life_of_nodes_goes_under_the_rule_that_the_doctor_prints(
    redis: RedisServer, admin: Redis
) -> None:
    for live in LIVES:
        await live(as_user(redis))
        assert await denied(admin) == [], live.__name__


async def test_what_an_ended_node_left_is_tidied_under_the_rule_too(
    redis: RedisServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "BEAT_S", 0.2)
    async with asyncio.timeout(TIME_S), life.nodes(as_user(redis)) as (here, there):
        async with life.hosted(there, life.add), here.room("me") as me:
            await life.until_listed(me, "kit")
            assert there.server.node is not None
            ended = there.server.node.me
            await admin.zadd("toolbus:nodes", {ended: 1})
            while await admin.exists(f"toolbus:rooms:{ended}") or there.server.node.me == ended:
                pass
            await life.until_listed(me, "kit")
    assert await denied(admin) == []


# TLS


def tls_program() -> str:
    """Find a Redis that speaks TLS; the one in the wheel does not."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None and _knows_tls(found):
            return found
    not_verified("nodes with Redis over TLS", "no redis-server here has TLS", ci_has_it=False)


def _knows_tls(program: str) -> bool:
    """Start it without a certificate: it ends at once, and says what it is that is missing."""
    asked = (program, "--port", "0", "--tls-port", "1")
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=TIME_S, check=False)
    return "tls-cert-file" in ended.stdout


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return make_pki(tmp_path / "pki")


@pytest.fixture
async def secured(tmp_path: Path, pki: Pki) -> AsyncIterator[str]:
    """Run a Redis with TLS, and give its host and its port for TLS; it wants no certificate."""
    server = RedisServer(tls_program(), tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    files = ("--tls-cert-file", str(pki.cert), "--tls-key-file", str(pki.key))
    wishes = ("--tls-ca-cert-file", str(pki.authority), "--tls-auth-clients", "no")
    await server.start("--tls-port", str(port), *files, *wishes)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.kill()


async def test_nodes_meet_over_tls(secured: str, pki: Pki) -> None:
    redis = Reached(f"rediss://{secured}/0?ssl_ca_certs={pki.authority}")
    assert {each.status for each in (await look(redis.url)).values()} == {"ok"}
    await life.test_a_tool_is_called_from_another_node(redis)


async def test_certificate_that_nobody_vouches_for_is_refused(secured: str, tmp_path: Path) -> None:
    reach = (await look(f"rediss://{secured}"))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert "is not trusted" in reach.found
    assert "ssl_ca_certs" in reach.repair
    flags = ("serve", "--dev", "--redis", f"rediss://{secured}")
    refused = await asyncio.to_thread(CommandLine(tmp_path).run_here, *flags)
    assert refused.code == 2
    assert "is not trusted" in refused.err


async def test_redis_that_speaks_tls_alone_is_told_from_one_that_is_away(secured: str) -> None:
    reach = (await look(f"redis://{secured}"))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert reach.found.endswith("speaks TLS")
    assert "rediss://" in reach.repair


async def test_redis_that_wants_a_certificate_says_so_and_takes_one(secured: str, pki: Pki) -> None:
    url = f"rediss://{secured}/0?ssl_ca_certs={pki.authority}"
    async with Redis.from_url(url) as client:
        await client.config_set("tls-auth-clients", "yes")
    reach = (await look(url))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert "ssl_certfile" in reach.repair
    known = f"{url}&ssl_certfile={pki.cert}&ssl_keyfile={pki.key}"
    assert {each.status for each in (await look(known)).values()} == {"ok"}


async def test_files_of_tls_that_are_not_there_are_told(secured: str, tmp_path: Path) -> None:
    reach = (await look(f"rediss://{secured}?ssl_ca_certs={tmp_path / 'no.pem'}"))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert "a file of TLS" in reach.found
