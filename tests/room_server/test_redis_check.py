"""`toolbus doctor --redis` finds what is wrong with a Redis; `serve` refuses what cannot work."""

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

from scenarios.test_nodes import nodes
from support.command_line import CommandLine, Outcome
from support.missing_parts import not_verified
from support.redis_server import RedisServer, free_port, redis_program
from toolbus.exit_codes import ExitCode
from toolbus.findings import Finding
from toolbus.keys import KeyRing
from toolbus_server.nodes import redis_check, redis_rights, redis_troubles
from toolbus_server.nodes.redis_check import examine_redis, look_before_start
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import running_server

TIME_S = 30
NAMES = ("address", "reach", "server", "rights", "memory", "buffers", "speed", "nodes")


@pytest.fixture
async def admin(redis: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis.url) as client:
        yield client


async def run(admin: Redis, *words: Any) -> Any:
    """Run a command as an administrator."""
    return await admin.execute_command(*words)  # type: ignore[no-untyped-call]


async def look(url: str) -> dict[str, Finding]:
    """Look at a Redis as the doctor does."""
    async with asyncio.timeout(TIME_S):
        return {each.check: each for each in await examine_redis(url)}


def statuses(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: each.status for name, each in findings.items()}


def all_words(findings: dict[str, Finding]) -> str:
    return "\n".join(f"{each.found}\n{each.repair}" for each in findings.values())


async def doctor(folder: Path, url: str, *flags: str) -> Outcome:
    """Run the command in this process."""
    return await asyncio.to_thread(CommandLine(folder).run_here, "doctor", "--redis", url, *flags)


async def serve(folder: Path, url: str, *flags: str) -> Outcome:
    """Start a server that does not get far."""
    flags = ("--dev", "--port", "0", "--redis", url, *flags)
    return await asyncio.to_thread(CommandLine(folder).run_here, "serve", *flags)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """Listen as something that says the same to everything."""

    writers: list[asyncio.StreamWriter] = []

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError):
            while await reader.read(4_096):
                writer.write(answer)

    async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for writer in writers:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_where_all_is_well_every_line_says_ok(redis: RedisServer, tmp_path: Path) -> None:
    outcome = CommandLine(tmp_path).run("doctor", "--redis", redis.url)
    assert outcome.code == 0, outcome.out
    lines = [line.split()[:2] for line in outcome.out.splitlines()]
    assert lines == [["ok", name] for name in NAMES]


async def test_nodes_that_live_are_named_and_those_that_ended_are_not(
    redis: RedisServer, admin: Redis
) -> None:
    assert (await look(redis.url))["nodes"].found == "none is there"
    await admin.zadd("toolbus:nodes", {"late 0": 1})
    assert (await look(redis.url))["nodes"].found == "none is there"
    async with nodes(redis) as servers:
        names = sorted(each.server.node.name for each in servers if each.server.node)
        assert (await look(redis.url))["nodes"].found == f"2: {', '.join(names)}"


# Where it is


async def test_redis_where_nobody_listens_is_away() -> None:
    findings = await look(f"redis://127.0.0.1:{free_port()}")
    assert findings["reach"].status == "fail"
    assert findings["reach"].exit_code is ExitCode.AWAY
    assert "nobody listens at 127.0.0.1:" in findings["reach"].found
    assert set(statuses(findings).values()) == {"ok", "fail", "skip"}


async def test_redis_that_says_nothing_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_check, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(redis_troubles, "_KNOCK_S", 0.2)
    async with answering(b"") as url:
        reach = (await look(url))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.AWAY)
    assert reach.found.endswith("no answer in time")


async def test_what_is_no_redis_is_named_so() -> None:
    async with answering(b"SSH-2.0-x\r\n") as url:
        reach = (await look(url))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert reach.found.endswith("is no Redis")


async def test_tls_asked_of_a_plain_redis_is_told(redis: RedisServer) -> None:
    url = f"rediss://127.0.0.1:{redis.port}?socket_connect_timeout=0.5"
    reach = (await look(url))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert reach.found.endswith("does not speak TLS")
    assert "redis://" in reach.repair


async def test_database_that_is_not_there_is_told(redis: RedisServer) -> None:
    reach = (await look(f"redis://127.0.0.1:{redis.port}/99"))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert "DB index is out of range" in reach.found


async def test_address_that_is_none_ends_with_2(tmp_path: Path) -> None:
    outcome = await doctor(tmp_path, "http://x", "--json")
    assert outcome.code == 2
    found = {each["check"]: each["status"] for each in outcome.value}
    assert found == {"address": "fail", **dict.fromkeys(NAMES[1:], "skip")}


@pytest.mark.parametrize("options", ["x=1", "ssl_cert_reqs=perhaps", "socket_timeout=soon"])
async def test_option_that_is_none_is_refused(options: str, tmp_path: Path) -> None:
    url = f"rediss://127.0.0.1:1?{options}"
    address = (await look(url))["address"]
    assert (address.status, address.exit_code) == ("fail", ExitCode.USAGE)
    assert (await serve(tmp_path, url)).code == 2


async def test_redis_that_is_full_of_clients_is_away(redis: RedisServer, admin: Redis) -> None:
    await admin.config_set("maxclients", 1)
    reach = (await look(redis.url))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.AWAY)
    assert "as many clients as it may" in reach.found


async def test_keys_of_others_under_our_names_are_told(redis: RedisServer, admin: Redis) -> None:
    await admin.set("toolbus:nodes", "mine")
    there = (await look(redis.url))["nodes"]
    assert (there.status, there.exit_code) == ("fail", ExitCode.USAGE)
    assert "a database of its own" in there.repair


async def test_address_comes_from_a_file_too_and_goes_with_no_room(
    redis: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "redis.url").write_text(f"{redis.url}\n")
    assert (await doctor(tmp_path, "@redis.url")).code == 0
    missing = await doctor(tmp_path, "@no.url")
    assert (missing.code, "cannot read no.url" in missing.err) == (2, True)
    mixed = await doctor(tmp_path, redis.url, "--room", "lab")
    assert (mixed.code, "leave the flags of a room out" in mixed.err) == (2, True)


# Who may come in


async def test_password_is_missed_refused_taken_and_never_shown(
    redis: RedisServer, admin: Redis, tmp_path: Path
) -> None:
    await admin.config_set("requirepass", "one/two")
    place = f"127.0.0.1:{redis.port}/0"
    without = await look(f"redis://{place}")
    assert without["reach"].found.endswith("wants a password")
    wrong = await look(f"redis://:three@{place}")
    assert "refuses user and password" in wrong["reach"].found
    right = await look(f"redis://default:one%2Ftwo@{place}")
    assert set(statuses(right).values()) == {"ok"}
    assert right["address"].found == f"redis://default:***@{place}"
    assert "three" not in all_words(wrong)
    assert "two" not in all_words(right)
    assert {each["reach"].exit_code for each in (without, wrong)} == {ExitCode.USAGE}
    refused = await serve(tmp_path, f"redis://:three@{place}")
    assert refused.code == 2
    assert "refuses user and password" in refused.err
    assert "three" not in refused.err


async def test_password_that_nobody_set_is_refused(redis: RedisServer) -> None:
    reach = (await look(f"redis://:one@127.0.0.1:{redis.port}"))["reach"]
    assert (reach.status, reach.exit_code) == ("fail", ExitCode.USAGE)
    assert "without any password configured" in reach.found


async def test_password_that_redis_repeats_is_not_repeated_by_us(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.kill()
    await redis.start("--rename-command", "AUTH", "")
    url = f"redis://eve:hunter@127.0.0.1:{redis.port}"
    findings = await look(url)
    assert "unknown command 'AUTH'" in findings["reach"].found
    assert "hunter" not in all_words(findings)
    async with running_server(settings=ServerSettings(keys=KeyRing([]), port=0, redis=url)):
        assert "Redis is away: unknown command 'AUTH'" in caplog.text
    assert "hunter" not in caplog.text


LACKS = (
    ("~toolbus:* &toolbus:* +@all -zadd -hset", "may not run HSET, ZADD"),
    ("~toolbus:* &toolbus:* +@all -subscribe", "may not run SUBSCRIBE"),
    ("~toolbus:* &toolbus:* +@all -evalsha", "may not run EVALSHA"),
    ("~toolbus:* &toolbus:* +@all -script", "may not run SCRIPT LOAD"),
    ("~toolbus:* &other:* +@all", "may not use the channels toolbus:inbox:*"),
    ("~toolbus:{r:* &* +@all", "toolbus:nodes, toolbus:nodes:version, toolbus:revoked"),
    ("~toolbus:* %R~toolbus:rev* &* +@all", None),
    (
        "~toolbus:[^r]* %R~toolbus:r* &toolbus:* +@all",
        "may not touch the keys toolbus:revoked, toolbus:rooms, toolbus:rooms:*",
    ),
    (
        "&toolbus:* -@all +script|load +evalsha +subscribe",
        "may not run DEL, EXISTS, EXPIRE, GET, HDEL",
    ),
)


async def test_right_that_lacks_is_named_and_the_printed_rule_gives_it(
    redis: RedisServer, admin: Redis
) -> None:
    url = f"redis://eve:pw@127.0.0.1:{redis.port}/3"
    for rights, words in LACKS:
        await run(admin, "ACL", "DELUSER", "eve")
        await run(admin, "ACL", "SETUSER", "eve", "on", ">pw", *rights.split())
        unknown = (await look(url))["reach"]
        if unknown.status == "fail":
            assert "'select' command" in unknown.found
            assert "+select" in unknown.repair
        await run(admin, "ACL", "SETUSER", "eve", "+select")
        finding = (await look(url))["rights"]
        if words is None:
            assert finding.status == "ok", rights
            continue
        assert (finding.status, finding.exit_code) == ("fail", ExitCode.USAGE), rights
        assert words in finding.found, rights
        rule = finding.repair.removeprefix("this rule would do: ").replace(">PASSWORD", ">pw")
        await run(admin, *rule.split())
        findings = await look(url)
        assert findings["rights"].found == "eve may do all that nodes do"
        skipped = {name for name, each in findings.items() if each.status == "skip"}
        assert skipped == {"memory", "buffers"}, "only an administrator may read settings"


async def test_command_that_a_script_runs_is_asked_for_by_itself(
    redis: RedisServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_rights, "_ON_KEYS", {"toolbus:nodes": ("ZADD 0 m",)})
    await run(admin, "ACL", "SETUSER", "eve", "on", ">pw", "~toolbus:*", "&*", "+@all", "-hgetall")
    rights = (await look(f"redis://eve:pw@127.0.0.1:{redis.port}"))["rights"]
    assert rights.found == "eve may not run HGETALL"
    assert "+hgetall" in rights.repair


async def test_asking_for_rights_changes_nothing(redis: RedisServer, admin: Redis) -> None:
    before = {b"toolbus:nodes:version": b"7", b"toolbus:{r:-}:version": b"3"}
    await admin.mset(before)
    await run(
        admin, *("ACL", "SETUSER", "eve", "on", ">pw", "~toolbus:*", "&*", "+@all", "-incr", "-del")
    )
    for url in (redis.url, f"redis://eve:pw@127.0.0.1:{redis.port}/0"):
        await look(url)
    assert {key: await admin.get(key) for key in await admin.keys("*")} == before


async def test_user_without_rights_is_refused_by_serve(
    redis: RedisServer, admin: Redis, tmp_path: Path
) -> None:
    await run(admin, "ACL", "SETUSER", "eve", "on", ">pw", "+@all", "~x:*")
    refused = await serve(tmp_path, f"redis://eve:pw@127.0.0.1:{redis.port}")
    assert refused.code == 2
    assert "may not touch the keys toolbus:gone" in refused.err
    assert "ACL SETUSER eve on >PASSWORD" in refused.err


# What it is


async def test_cluster_is_refused(redis: RedisServer, tmp_path: Path) -> None:
    await redis.kill()
    await redis.start("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    server = (await look(redis.url))["server"]
    assert (server.status, server.exit_code) == ("fail", ExitCode.USAGE)
    assert "Cluster mode" in server.found
    refused = await serve(tmp_path, redis.url)
    assert refused.code == 2
    assert "Cluster mode" in refused.err
    assert "cluster-enabled no" in refused.err


def hello(kind: str, version: str) -> bytes:
    """Answer HELLO as a server of this kind."""
    words = ("server", kind, "version", version, "mode", "standalone", "role", "master")
    parts = "".join(f"${len(each)}\r\n{each}\r\n" for each in words)
    return f"*{len(words)}\r\n{parts}".encode()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (hello("redis", "6.2.14"), "Redis 6.2.14 is too old"),
        (hello("valkey", "7.2.11"), "Valkey 7.2.11 is too old"),
        (b"-ERR unknown command `HELLO`, with args beginning with: `2`, \r\n", "older than"),
    ],
)
async def test_server_that_is_too_old_is_refused(answer: bytes, words: str, tmp_path: Path) -> None:
    async with answering(answer) as url:
        findings = await look(url)
        refused = await serve(tmp_path, url)
    (old,) = (each for each in findings.values() if each.status == "fail")
    assert old.exit_code is ExitCode.USAGE
    assert words in old.found
    assert old.repair == "nodes need Redis 7 or Valkey 8, or newer"
    assert refused.code == 2
    assert words in refused.err


async def test_replica_is_no_place_for_nodes(redis: RedisServer, admin: Redis) -> None:
    await run(admin, "REPLICAOF", "127.0.0.1", "1")
    server = (await look(redis.url))["server"]
    assert (server.status, server.exit_code) == ("fail", ExitCode.AWAY)
    assert "is a replica" in server.found


async def test_memory_that_throws_away_is_a_warning(redis: RedisServer, admin: Redis) -> None:
    await admin.config_set("maxmemory", 100 * 1024 * 1024)
    for policy, words in (("allkeys-lru", "what nodes know"), ("volatile-ttl", "revocations")):
        await admin.config_set("maxmemory-policy", policy)
        findings = await look(redis.url)
        assert findings["memory"].status == "warn"
        assert findings["memory"].exit_code is ExitCode.OK
        assert words in findings["memory"].found
        assert findings["nodes"].status == "ok"
    await run(admin, *findings["memory"].repair.split())
    assert (await look(redis.url))["memory"].found == "100 MiB, and nothing is thrown away"


async def test_small_buffers_are_a_warning_of_serve_too(redis: RedisServer, admin: Redis) -> None:
    await admin.config_set("client-output-buffer-limit", "pubsub 33554432 4194304 60")
    buffers = (await look(redis.url))["buffers"]
    assert buffers.status == "warn"
    assert "4 MiB waiting is dropped, and a node may have 8 MiB" in buffers.found
    assert await look_before_start(redis.url) == [f"Redis: {buffers.found}; {buffers.repair}"]
    await run(admin, *shlex.split(buffers.repair))
    assert (await look(redis.url))["buffers"].status == "ok"


async def test_slow_way_to_redis_is_a_warning(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await look(redis.url))["speed"].status == "ok"
    monkeypatch.setattr(redis_check, "_SLOW_S", 0.0)
    assert (await look(redis.url))["speed"].status == "warn"


# What serve does besides


async def test_redis_that_is_away_silent_or_a_replica_is_no_reason_to_refuse(
    redis: RedisServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await look_before_start(f"redis://127.0.0.1:{free_port()}") == []
    monkeypatch.setattr(redis_check, "_START_S", 0.2)
    async with answering(b"") as url:
        assert await look_before_start(url) == []
    await run(admin, "REPLICAOF", "127.0.0.1", "1")
    assert await look_before_start(redis.url) == []


@pytest.mark.parametrize("name", ["two words", "-a", "a" * 129, "é"])
async def test_name_that_no_node_can_have_is_refused(name: str, tmp_path: Path) -> None:
    refused = await serve(tmp_path, "redis://127.0.0.1:1", f"--node={name}")
    assert refused.code == 2
    assert "names no node" in refused.err


async def test_server_that_cannot_listen_warns_and_leaves_no_node_behind(
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
    assert "it throws away what nodes know" in refused.err
    assert await admin.zrange("toolbus:nodes", 0, -1) == []


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
        while not await self._is_there():
            assert self._process.returncode is None

    async def _is_there(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    async def ask(self, *words: Any) -> None:
        async with Redis(port=self.port) as client:
            await run(client, *words)

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


async def test_sentinels_agree_differ_and_are_silent(
    redis: RedisServer, sentinels: list[Sentinel]
) -> None:
    first, second = sentinels
    place = f"redis+sentinel://127.0.0.1:{first.port},127.0.0.1:{second.port}"
    well = await look(f"{place}/main/0")
    assert set(statuses(well).values()) == {"ok"}
    assert well["sentinel"].found == f"2 of 2 name 127.0.0.1:{redis.port} for 'main'"

    unknown = (await look(f"{place}/other"))["sentinel"]
    assert (unknown.status, unknown.exit_code) == ("fail", ExitCode.USAGE)
    assert "knows 'other'" in unknown.found

    await second.ask("SENTINEL REMOVE", "main")
    await second.ask("SENTINEL MONITOR", "main", "127.0.0.1", 1, 1)
    differ = await look(f"{place}/main")
    assert differ["sentinel"].status == "warn"
    assert f"127.0.0.1:{second.port}: 127.0.0.1:1" in differ["sentinel"].found
    assert differ["server"].status == "ok"

    await second.kill()
    alone = (await look(f"{place}/main"))["sentinel"]
    assert alone.status == "warn"
    assert alone.found.startswith(f"1 of 2 name 127.0.0.1:{redis.port}; silent: 127.0.0.1:")

    await first.kill()
    none = await look(f"{place}/main")
    assert (none["sentinel"].status, none["sentinel"].exit_code) == ("fail", ExitCode.AWAY)
    assert none["reach"].status == "fail"


async def test_sentinel_that_is_named_as_a_redis_is_told_apart(sentinels: list[Sentinel]) -> None:
    server = (await look(f"redis://127.0.0.1:{sentinels[0].port}"))["server"]
    assert (server.status, server.exit_code) == ("fail", ExitCode.USAGE)
    assert "redis+sentinel://" in server.repair
