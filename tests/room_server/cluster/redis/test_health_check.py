"""`toolbus doctor --redis` names a defect of a Redis; `serve` refuses one that no node can use."""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.processes.command_line import CommandLine, Outcome
from support.pytest_plugins.missing_parts import not_verified
from support.redis.server import RedisServer, free_port, redis_program
from toolbus.auth.keys import KeyRing
from toolbus.diagnostics.checks import Finding
from toolbus.diagnostics.exit_codes import ExitCode
from toolbus_server.cluster.exchange import EXCHANGE_KEY, EXCHANGE_VERSION, LEASES_KEY
from toolbus_server.cluster.redis import health_check
from toolbus_server.cluster.redis.health_check import check_before_start, examine_redis
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import running_server

TIME_S = 60
CHECKS = ("reach", "version", "rights", "nodes", "memory")


@pytest.fixture
async def admin(redis: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis.url) as client:
        yield client


async def run(admin: Redis, *words: Any) -> Any:
    """Run a command as an administrator."""
    return await admin.execute_command(*words)  # type: ignore[no-untyped-call]


async def check(url: str) -> dict[str, Finding]:
    """Run all checks of the doctor."""
    async with asyncio.timeout(TIME_S):
        return {each.check: each for each in await examine_redis(url)}


def statuses(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: each.status for name, each in findings.items()}


def all_text(findings: dict[str, Finding]) -> str:
    return "\n".join(f"{each.found}\n{each.repair}" for each in findings.values())


async def doctor(folder: Path, url: str, *flags: str) -> Outcome:
    """Run the command in this process."""
    return await asyncio.to_thread(CommandLine(folder).run_here, "doctor", "--redis", url, *flags)


async def serve(folder: Path, url: str, *flags: str) -> Outcome:
    """Start a server that is expected to fail."""
    flags = ("--dev", "--port", "0", "--redis", url, *flags)
    return await asyncio.to_thread(CommandLine(folder).run_here, "serve", *flags)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """Run a server that sends the same answer to every request."""
    writers: list[asyncio.StreamWriter] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError):
            while await reader.read(4_096):
                writer.write(answer)

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        try:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:  # from Python 3.12 on the end of the block waits for the connections
            for writer in writers:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()


async def test_doctor_prints_ok_for_every_check(redis: RedisServer, tmp_path: Path) -> None:
    outcome = CommandLine(tmp_path).run("doctor", "--redis", redis.url)
    assert outcome.code == 0, outcome.out
    lines = [line.split()[:2] for line in outcome.out.splitlines()]
    assert lines == [["ok", name] for name in CHECKS]


# Reach


async def test_refused_connection_is_reported_as_away() -> None:
    findings = await check(f"redis://127.0.0.1:{free_port()}")
    assert findings["reach"].status == "fail"
    assert findings["reach"].exit_code is ExitCode.UNAVAILABLE
    assert "no server listens at 127.0.0.1:" in findings["reach"].found
    assert [findings[name].status for name in CHECKS[1:]] == ["skip"] * 4


async def test_silent_server_is_reported_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check, "_ANSWER_S", 0.2)
    monkeypatch.setattr(health_check, "_PROBE_S", 0.2)
    async with answering(b"") as url:
        reach = (await check(url))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.UNAVAILABLE)
    assert reach.found.endswith("no answer in time")


async def test_server_that_is_not_redis_is_named() -> None:
    async with answering(b"SSH-2.0-x\r\n") as url:
        reach = (await check(url))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert reach.found.endswith("is not Redis")


async def test_tls_url_of_a_plain_redis_is_reported(redis: RedisServer) -> None:
    url = f"rediss://127.0.0.1:{redis.port}?socket_connect_timeout=0.5"
    reach = (await check(url))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert reach.found.endswith("does not speak TLS")
    assert "redis://" in reach.repair


async def test_unknown_database_is_reported(redis: RedisServer) -> None:
    reach = (await check(f"redis://127.0.0.1:{redis.port}/99"))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert "DB index is out of range" in reach.found


async def test_invalid_url_ends_with_2(tmp_path: Path) -> None:
    outcome = await doctor(tmp_path, "http://x", "--json")
    assert outcome.code == 2
    found = {each["check"]: each["status"] for each in outcome.value}
    assert found == {"reach": "fail", **dict.fromkeys(CHECKS[1:], "skip")}


@pytest.mark.parametrize("options", ["x=1", "ssl_cert_reqs=perhaps", "socket_timeout=soon"])
async def test_invalid_option_is_refused(options: str, tmp_path: Path) -> None:
    url = f"rediss://127.0.0.1:1?{options}"
    reach = (await check(url))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert (await serve(tmp_path, url)).code == 2


async def test_redis_with_too_many_clients_is_reported_as_away(
    redis: RedisServer, admin: Redis
) -> None:
    await admin.config_set("maxclients", 1)
    reach = (await check(redis.url))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.UNAVAILABLE)
    assert "max number of clients" in reach.found


async def test_url_is_read_from_a_file_and_excludes_flags_of_a_room(
    redis: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "redis.url").write_text(f"{redis.url}\n")
    assert (await doctor(tmp_path, "@redis.url")).code == 0
    missing = await doctor(tmp_path, "@no.url")
    assert (missing.code, "cannot read no.url" in missing.err) == (2, True)
    mixed = await doctor(tmp_path, redis.url, "--room", "lab")
    assert (mixed.code, "omit the room flags" in mixed.err) == (2, True)


# Password and rights


async def test_missing_wrong_and_right_password_are_distinguished_and_never_shown(
    redis: RedisServer, admin: Redis, tmp_path: Path
) -> None:
    await admin.config_set("requirepass", "one/two")
    address = f"127.0.0.1:{redis.port}/0"
    without = await check(f"redis://{address}")
    assert without["reach"].found.endswith("requires a password")
    wrong = await check(f"redis://:three@{address}")
    assert "refuses user and password" in wrong["reach"].found
    right = await check(f"redis://default:one%2Ftwo@{address}")
    assert set(statuses(right).values()) == {"ok"}
    assert right["reach"].found == f"127.0.0.1:{redis.port} answers to default"
    assert "three" not in all_text(wrong)
    assert "two" not in all_text(right)
    assert {each["reach"].exit_code for each in (without, wrong)} == {ExitCode.USAGE}
    refused = await serve(tmp_path, f"redis://:three@{address}")
    assert refused.code == 2
    assert "refuses user and password" in refused.err
    assert "three" not in refused.err


async def test_password_for_a_redis_without_one_is_refused(redis: RedisServer) -> None:
    reach = (await check(f"redis://:one@127.0.0.1:{redis.port}"))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert "without any password configured" in reach.found


async def test_password_in_an_error_of_redis_is_not_shown_or_logged(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.kill()
    await redis.start("--rename-command", "AUTH", "")
    url = f"redis://eve:hunter@127.0.0.1:{redis.port}"
    findings = await check(url)
    assert "unknown command 'AUTH'" in findings["reach"].found
    assert "hunter" not in all_text(findings)
    async with running_server(settings=ServerSettings(keys=KeyRing([]), port=0, redis=url)):
        assert "Redis is unavailable: unknown command 'AUTH'" in caplog.text
    assert "hunter" not in caplog.text


MISSING = (
    ("~toolbus:* &toolbus:* +@all -zadd -hset", "lacks rights: HSET, ZADD"),
    ("~toolbus:* &toolbus:* +@all -subscribe", "lacks rights: SUBSCRIBE toolbus:inbox:*"),
    ("~toolbus:* &toolbus:* +@all -evalsha", "'evalsha' command"),
    ("~toolbus:* &toolbus:* +@all -script", "'script|load' command"),
    (
        "~toolbus:* &other:* +@all",
        "lacks rights: PUBLISH toolbus:inbox:*, SUBSCRIBE toolbus:inbox:*",
    ),
    ("~toolbus:{r:* &* +@all", "lacks rights: key toolbus:nodes, key toolbus:nodes:leases, "),
    ("~toolbus:* %R~toolbus:rev* &* +@all", None),
    (
        "~toolbus:[^r]* %R~toolbus:r* &toolbus:* +@all",
        "lacks rights: key toolbus:revocations, key toolbus:rooms, key toolbus:rooms:*",
    ),
    (
        "~toolbus:* &toolbus:* -@all +script|load +evalsha +subscribe",
        "lacks rights: PUBLISH toolbus:inbox:*, DEL, EXISTS, GET, HDEL",
    ),
)


async def test_missing_rights_are_named_and_granted_by_the_printed_rule(
    redis: RedisServer, admin: Redis
) -> None:
    url = f"redis://eve:pw@127.0.0.1:{redis.port}/3"
    for rights, text in MISSING:
        await run(admin, "ACL", "DELUSER", "eve")
        await run(admin, "ACL", "SETUSER", "eve", "on", ">pw", *rights.split())
        unknown = (await check(url))["reach"]
        if unknown.status == "fail":
            assert "'select' command" in unknown.found
            assert "+select" in unknown.repair
        await run(admin, "ACL", "SETUSER", "eve", "+select")
        finding = (await check(url))["rights"]
        if text is None:
            assert finding.status == "ok", rights
            continue
        assert (finding.status, finding.exit_code) == ("fail", ExitCode.USAGE), rights
        assert text in finding.found, rights
        rule = finding.repair.removeprefix("set this rule: ").replace(">PASSWORD", ">pw")
        await run(admin, *rule.split())
        findings = await check(url)
        assert findings["rights"].found == "eve has all rights that nodes need"
        skipped = {name for name, each in findings.items() if each.status == "skip"}
        assert skipped == {"memory"}, "only an administrator may read settings"


async def test_check_of_rights_changes_nothing(redis: RedisServer, admin: Redis) -> None:
    before = {b"toolbus:nodes:version": b"7", b"toolbus:{r:-}:version": b"3"}
    await admin.mset(before)
    await run(
        admin, *("ACL", "SETUSER", "eve", "on", ">pw", "~toolbus:*", "&*", "+@all", "-incr", "-del")
    )
    for url in (redis.url, f"redis://eve:pw@127.0.0.1:{redis.port}/0"):
        await check(url)
    assert {key: await admin.get(key) for key in await admin.keys("*")} == before


async def test_serve_refuses_a_user_without_rights(
    redis: RedisServer, admin: Redis, tmp_path: Path
) -> None:
    await run(admin, "ACL", "SETUSER", "eve", "on", ">pw", "+@all", "~x:*")
    refused = await serve(tmp_path, f"redis://eve:pw@127.0.0.1:{redis.port}")
    assert refused.code == 2
    assert "key toolbus:nodes:ended" in refused.err
    assert "ACL SETUSER eve on >PASSWORD" in refused.err


# Version and mode


async def test_cluster_mode_is_refused(redis: RedisServer, tmp_path: Path) -> None:
    await redis.kill()
    await redis.start("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    version = (await check(redis.url))["version"]
    assert (version.status, version.exit_code) == ("fail", ExitCode.USAGE)
    assert "Cluster mode" in version.found
    refused = await serve(tmp_path, redis.url)
    assert refused.code == 2
    assert "Cluster mode" in refused.err
    assert "cluster-enabled no" in refused.err


def hello(kind: str, version: str) -> bytes:
    """Encode the reply to HELLO of a server of this kind."""
    fields = ("server", kind, "version", version, "mode", "standalone", "role", "master")
    parts = "".join(f"${len(each)}\r\n{each}\r\n" for each in fields)
    return f"*{len(fields)}\r\n{parts}".encode()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (hello("redis", "6.2.14"), "Redis 6.2.14 is too old"),
        (hello("valkey", "7.2.11"), "Valkey 7.2.11 is too old"),
        (b"-ERR unknown command `HELLO`, with args beginning with: `2`, \r\n", "older than"),
    ],
)
async def test_old_server_is_refused(answer: bytes, text: str, tmp_path: Path) -> None:
    async with answering(answer) as url:
        findings = await check(url)
        refused = await serve(tmp_path, url)
    (old,) = (each for each in findings.values() if each.status == "fail")
    assert old.exit_code is ExitCode.USAGE
    assert text in old.found
    assert old.repair == "nodes need Redis 7 or Valkey 8, or newer"
    assert refused.code == 2
    assert text in refused.err


async def test_replica_is_reported_as_away(redis: RedisServer, admin: Redis) -> None:
    await run(admin, "REPLICAOF", "127.0.0.1", "1")
    version = (await check(redis.url))["version"]
    assert (version.status, version.exit_code) == ("fail", ExitCode.UNAVAILABLE)
    assert "is a replica" in version.found


async def test_eviction_policy_is_a_warning(redis: RedisServer, admin: Redis) -> None:
    await admin.config_set("maxmemory", 100 * 1024 * 1024)
    for policy, lost in (("allkeys-lru", "what nodes store"), ("volatile-ttl", "what expires")):
        await admin.config_set("maxmemory-policy", policy)
        findings = await check(redis.url)
        assert findings["memory"].status == "warn"
        assert findings["memory"].exit_code is ExitCode.OK
        assert f"Redis deletes {lost}" in findings["memory"].found
    await run(admin, *findings["memory"].repair.split())
    assert (await check(redis.url))["memory"].found == "100 MiB, and nothing is evicted"


async def test_small_subscriber_buffer_is_a_warning_of_serve_too(
    redis: RedisServer, admin: Redis
) -> None:
    await admin.config_set("client-output-buffer-limit", "pubsub 33554432 4194304 60")
    memory = (await check(redis.url))["memory"]
    assert memory.status == "warn"
    assert "4 MiB in its output buffer, and a node may need 8 MiB" in memory.found
    assert await check_before_start(redis.url) == [f"Redis: {memory.found}; {memory.repair}"]
    await run(admin, *shlex.split(memory.repair))
    assert (await check(redis.url))["memory"].found == "no limit"


# Nodes of another release

_OWN = EXCHANGE_VERSION


@pytest.mark.parametrize(
    ("key", "version", "status", "found"),
    [
        (
            LEASES_KEY,
            str(EXCHANGE_VERSION),
            "ok",
            f"1 live, which exchange version {_OWN}, as this",
        ),
        (
            LEASES_KEY,
            "99",
            "warn",
            f"1 live, which exchange version 99, and this release version {_OWN}",
        ),
        (EXCHANGE_KEY, None, "warn", "1 live, which exchange no version, and this release"),
        ("toolbus:others", "99", "ok", "none is live"),  # the nodes of a moment ago
    ],
)
async def test_doctor_says_whether_nodes_of_this_release_can_join_those_that_live(
    redis: RedisServer, admin: Redis, key: str, version: str | None, status: str, found: str
) -> None:
    now_s, _ = await admin.time()
    await admin.zadd(key, {"other 1": now_s * 1000 + 60_000, "ended 1": now_s * 1000 - 60_000})
    if version is not None:
        await admin.set(EXCHANGE_KEY, version)
    nodes = (await check(redis.url))["nodes"]
    assert nodes.status == status
    assert nodes.found.startswith(found)
    assert await check_before_start(redis.url) == []  # the node logs it itself


async def test_keys_of_nodes_that_another_program_wrote_are_no_failure_of_the_doctor(
    redis: RedisServer, admin: Redis
) -> None:
    await admin.set(LEASES_KEY, "a person's")
    nodes = (await check(redis.url))["nodes"]
    assert (nodes.status, "cannot be read" in nodes.found) == ("skip", True)


# Start of serve


async def test_serve_accepts_a_redis_that_is_away_silent_or_a_replica(
    redis: RedisServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await check_before_start(f"redis://127.0.0.1:{free_port()}") == []
    monkeypatch.setattr(health_check, "_START_S", 0.2)
    async with answering(b"") as url:
        assert await check_before_start(url) == []
    await run(admin, "REPLICAOF", "127.0.0.1", "1")
    assert await check_before_start(redis.url) == []


@pytest.mark.parametrize("name", ["two words", "-a", "a" * 129, "é"])
async def test_invalid_node_name_is_refused(name: str, tmp_path: Path) -> None:
    refused = await serve(tmp_path, "redis://127.0.0.1:1", f"--node={name}")
    assert refused.code == 2
    assert "is not a valid node name" in refused.err


async def test_server_that_cannot_listen_warns_and_leaves_no_lease(
    redis: RedisServer, admin: Redis, tmp_path: Path
) -> None:
    await admin.config_set("maxmemory", 100 * 1024 * 1024)
    await admin.config_set("maxmemory-policy", "allkeys-lru")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = CommandLine(tmp_path).run(
            *("serve", "--dev", "--redis", redis.url, "--node", "one", "--port", port)
        )
    assert refused.code == 2
    assert "is in use" in refused.err
    assert "Redis deletes what nodes store" in refused.err
    assert await admin.zrange("toolbus:nodes:leases", 0, -1) == []


# Sentinels


class Sentinel:
    """A Sentinel that watches one Redis as `main`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, watched: int) -> None:
        program = redis_program()
        if program is None:
            not_verified("Sentinels of many nodes", "there is no redis-server, no valkey-server")
        settings = self._folder / f"{self.port}.conf"
        settings.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._folder}\n"
            f"sentinel monitor main 127.0.0.1 {watched} 1\n"
        )
        self._process = await asyncio.create_subprocess_exec(
            *(program, str(settings), "--sentinel"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        while not await self._is_listening():
            assert self._process.returncode is None

    async def _is_listening(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@pytest.fixture
async def sentinels(redis: RedisServer, tmp_path: Path) -> AsyncIterator[list[Sentinel]]:
    both = [Sentinel(tmp_path), Sentinel(tmp_path)]
    try:
        async with asyncio.timeout(TIME_S):
            for each in both:
                await each.start(redis.port)
        yield both
    finally:
        for each in both:
            await each.kill()


async def test_sentinels_name_the_redis_or_none(
    redis: RedisServer, sentinels: list[Sentinel]
) -> None:
    first, second = sentinels
    url = f"redis+sentinel://127.0.0.1:{first.port},127.0.0.1:{second.port}"
    await first.kill()
    findings = await check(f"{url}/main/0")
    assert set(statuses(findings).values()) == {"ok"}
    assert findings["reach"].found == f"127.0.0.1:{redis.port} answers"
    unknown = (await check(f"{url}/other"))["reach"]
    await second.kill()
    none = (await check(f"{url}/main"))["reach"]
    for reach in (unknown, none):
        assert (reach.status, reach.exit_code) == ("fail", ExitCode.UNAVAILABLE)
        assert reach.found == "the Sentinels name no primary"


async def test_url_of_a_sentinel_without_the_scheme_is_refused(sentinels: list[Sentinel]) -> None:
    version = (await check(f"redis://127.0.0.1:{sentinels[0].port}"))["version"]
    assert (version.status, version.exit_code) == ("fail", ExitCode.USAGE)
    assert "redis+sentinel://" in version.repair
