"""Whether nodes can live with a Redis: what `toolbus doctor --redis` and the start of `serve` see.

It reads, and sends messages to a channel of its own; it changes nothing. Whether Redis has replicas
or a disk does not matter to nodes, and clocks do not either.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import msgpack
from redis.asyncio.connection import Connection, ConnectionPool
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from toolbus.exit_codes import ExitCode, UsageMistake
from toolbus.findings import Ailment, Check, Finding, examine
from toolbus_server.nodes.node import WINDOW_BYTES
from toolbus_server.nodes.peer import inbox_of
from toolbus_server.nodes.redis_rights import Lack, Question, acl_rule, lack_of, questions
from toolbus_server.nodes.redis_troubles import trouble_of
from toolbus_server.nodes.redis_url import pool_of
from toolbus_server.nodes.sentinel_check import look_at_sentinels

__all__ = ["examine_redis", "look_before_start"]

_PATIENCE_S = 5.0
_START_S = 2.0
_ROUNDS = 50
_SLOW_S = 0.02
_MANY = 20
_OLDEST = {"redis": 7, "valkey": 8}
_NAMES = {"redis": "Redis", "valkey": "Valkey"}
_RELEASES = "nodes need Redis 7 or Valkey 8, or newer"
_ADVICE = "pubsub 33554432 8388608 60"


@dataclass(slots=True)
class _Patient:
    """A Redis, and what the checks have learned of it so far."""

    url: str
    pool: ConnectionPool | None = None
    connection: Connection | None = None
    about: dict[str, str] = field(default_factory=dict)

    async def connect(self) -> Connection:
        """Make a connection. Raises Ailment."""
        assert self.pool is not None
        connection: Connection = self.pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await connection.connect()  # type: ignore[no-untyped-call]
        except (RedisError, OSError, TimeoutError) as error:
            raise await trouble_of(error, connection) from None
        return connection

    async def ask(self, *words: Any) -> Any:
        """Run a command. Raises Ailment where no answer comes, else what Redis says."""
        assert self.connection is not None
        try:
            return await _run(self.connection, *words)
        except ResponseError:
            raise
        except (RedisError, OSError, TimeoutError) as error:
            raise await trouble_of(error, self.connection) from None

    async def setting(self, name: str) -> str:
        """Read a setting of the server. Raises Ailment where this user may not."""
        try:
            answer = await self.ask("CONFIG", "GET", name)
        except ResponseError as error:
            words = f"Redis does not tell {name}: {error}"
            raise Ailment(words, "look at it as an administrator", status="skip") from None
        return answer[1].decode() if answer else ""

    async def close(self) -> None:
        """Let it go."""
        if self.connection is not None:
            await _close(self.connection)
        if isinstance(self.pool, SentinelConnectionPool):
            await self.pool.sentinel_manager.aclose()


async def examine_redis(url: str) -> list[Finding]:
    """Look at all that matters to nodes, the near before the far; `toolbus doctor` shows it."""
    has_sentinels = url.partition("://")[0].endswith("+sentinel")
    sentinels = (Check("sentinel", _look_at_sentinels, ExitCode.AWAY, ("address",)),)
    return await _examine((_ADDRESS, *(sentinels if has_sentinels else ()), *_LIFE, *_SIGHTS), url)


async def look_before_start(url: str) -> list[str]:
    """Refuse a Redis with which no node can live, and return words about what may hurt.

    One that is away is no reason: the node serves by itself and joins when it is back.

    Raises:
        UsageMistake: It is none that waiting helps.
    """
    findings: list[Finding] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_S):
            findings = await _examine((_ADDRESS, *_LIFE), url)
    for finding in findings:
        if finding.exit_code is ExitCode.USAGE:
            mistake = UsageMistake(f"--redis: {finding.found}")
            mistake.next_step = finding.repair
            raise mistake
    return [f"Redis: {f.found}; {f.repair}" for f in findings if f.status == "warn"]


async def _examine(checks: Sequence[Check[_Patient]], url: str) -> list[Finding]:
    patient = _Patient(url)
    try:
        return await examine(checks, patient)
    finally:
        await patient.close()


async def _run(connection: Connection, *words: Any) -> Any:
    async with asyncio.timeout(_PATIENCE_S):
        await connection.send_command(*words)
        return await connection.read_response()


async def _close(connection: Connection) -> None:
    with suppress(Exception):
        await connection.disconnect(nowait=True)


async def _look_at_address(patient: _Patient) -> str:
    try:
        patient.pool = pool_of(patient.url)
        patient.pool.make_connection()  # type: ignore[no-untyped-call]  # connects nobody yet
    except (ValueError, TypeError, RedisError) as error:  # of an option that redis-py has not
        raise Ailment(str(error), "look at --redis (TOOLBUS_REDIS_URL)") from None
    return _masked(patient.url)


def _masked(url: str) -> str:
    """Show a URL that `pool_of` takes without its password, and without options, often secrets."""
    parts = urlsplit(url)
    credentials, at, places = parts.netloc.rpartition("@")
    user, colon, _ = credentials.partition(":")
    known = f"{user}:***" if colon else "***"
    return f"{parts.scheme}://{at and known + at}{places}{parts.path}"


async def _look_at_sentinels(patient: _Patient) -> str:
    assert isinstance(patient.pool, SentinelConnectionPool)
    return await look_at_sentinels(patient.pool, _PATIENCE_S)


async def _look_whether_it_answers(patient: _Patient) -> str:
    patient.connection = connection = await patient.connect()
    try:
        answer = await patient.ask("HELLO", 2)
    except ResponseError as error:
        if "unknown command" in str(error).lower():
            raise Ailment("it is older than Redis 6", _RELEASES) from None
        raise await trouble_of(error, connection) from None
    if not isinstance(answer, list):
        raise Ailment(f"what listens at {connection.host}:{connection.port} is no Redis", _RELEASES)
    words = [each.decode() if isinstance(each, bytes) else str(each) for each in answer]
    patient.about = dict(_pairs(words))
    who = f" to {connection.username}" if connection.username else ""
    return f"{connection.host}:{connection.port} answers{who}"


async def _look_at_server(patient: _Patient) -> str:
    about = patient.about
    kind, version = about.get("server", ""), about.get("version", "")
    named = f"{_NAMES.get(kind, kind)} {version}"
    if about.get("mode") == "sentinel":
        raise Ailment(
            "this is a Sentinel", "write redis+sentinel://HOST:PORT/NAME to find the Redis by it"
        )
    if about.get("mode") == "cluster":
        raise Ailment(
            f"{named} runs in Cluster mode, which nodes cannot use yet",
            "name a Redis with `cluster-enabled no`: one serves many nodes",
        )
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) < _OLDEST.get(kind, 0):
        raise Ailment(f"{named} is too old", _RELEASES)
    if about.get("role", "master") != "master":
        raise Ailment(
            f"{named} is a replica, to which nobody can write",
            "name its primary, or let Sentinels name it: redis+sentinel://",
            exit_code=ExitCode.AWAY,
        )
    if kind not in _OLDEST:
        raise Ailment(f"{named}: nobody has tried nodes with it", _RELEASES, status="warn")
    return f"{named}, a primary"


async def _look_at_rights(patient: _Patient) -> str:
    assert patient.connection is not None
    connection = patient.connection
    lack = await _asked_rights(patient)
    with_inbox = Question(("SUBSCRIBE",), inbox_of("*"))
    inbox = await patient.connect()
    try:
        await _run(inbox, "SUBSCRIBE", inbox_of("doctor"))
    except NoPermissionError as error:
        lack.add(str(error), with_inbox)
    except (RedisError, OSError, TimeoutError) as error:
        raise await trouble_of(error, inbox) from None
    finally:
        await _close(inbox)
    user = connection.username or "default"
    if lack:
        rule = acl_rule(connection.username or "toolbus", has_database=bool(connection.db))
        raise Ailment(f"{user} {lack}", f"this rule would do: {rule}")
    return f"{user} may do all that nodes do"


async def _asked_rights(patient: _Patient) -> Lack:
    """Ask by a script, as nodes run theirs, for no other way is open to everybody."""
    source = (files(__package__) / "scripts" / "may.lua").read_bytes()
    asked = [msgpack.packb(each.words, use_bin_type=False) for each in questions()]
    lack = Lack()
    try:
        script = await patient.ask("SCRIPT", "LOAD", source)
        return lack_of(await patient.ask("EVALSHA", script, 0, *asked))
    except NoPermissionError as error:
        is_loading = "script" in str(error)
        lack.add(str(error), Question(("SCRIPT|LOAD" if is_loading else "EVALSHA",)))
    except ResponseError as error:
        raise Ailment(f"no script runs here: {error}", _RELEASES) from None
    return lack


async def _look_at_memory(patient: _Patient) -> str:
    limit = int(await patient.setting("maxmemory") or 0)
    if not limit:
        return "as much as there is"
    policy = await patient.setting("maxmemory-policy")
    if policy == "noeviction":
        return f"{_in_mib(limit)}, and nothing is thrown away"
    what = "revocations" if policy.startswith("volatile") else "what nodes know of each other"
    raise Ailment(
        f"with {_in_mib(limit)} full it throws away {what} ({policy})",
        "CONFIG SET maxmemory-policy noeviction",
        status="warn",
    )


async def _look_at_buffers(patient: _Patient) -> str:
    words = (await patient.setting("client-output-buffer-limit")).partition("pubsub")[2].split()
    hard, soft, seconds = map(int, words[:3] or (0, 0, 0))
    if 0 < hard < WINDOW_BYTES or 0 < soft < WINDOW_BYTES:
        raise Ailment(
            f"a subscriber with {_in_mib(min(filter(None, (hard, soft))))} waiting is dropped, and "
            f"a node may have {_in_mib(WINDOW_BYTES)}",
            f"CONFIG SET client-output-buffer-limit '{_ADVICE}'",
            status="warn",
        )
    limits = [_in_mib(hard)] if hard else []
    limits += [f"{_in_mib(soft)} for {seconds} s"] if soft else []
    return f"a subscriber may have {' or '.join(limits) or 'any number of bytes'} waiting"


def _in_mib(count: int) -> str:
    return f"{count / 1024 / 1024:.3g} MiB"


async def _look_at_speed(patient: _Patient) -> str:
    async with _own_inbox(patient) as (inbox, name):
        times = sorted([await _round(patient, inbox, name) for _ in range(_ROUNDS)])
    median_s = statistics.median(times)
    words = (
        f"{median_s * 1000:.3g} ms to an inbox, the worst of {_ROUNDS} {times[-1] * 1000:.3g} ms"
    )
    if median_s >= _SLOW_S:
        raise Ailment(
            words, "let nodes and Redis be near each other: a call takes two", status="warn"
        )
    return words


@asynccontextmanager
async def _own_inbox(patient: _Patient) -> AsyncIterator[tuple[Connection, str]]:
    """Hear a channel like those of nodes, which nobody else writes to."""
    inbox = await patient.connect()
    name = inbox_of(f"doctor {secrets.token_hex(8)}")
    try:
        await _run(inbox, "SUBSCRIBE", name)
        yield inbox, name
    except (RedisError, OSError, TimeoutError) as error:
        raise await trouble_of(error, inbox) from None
    finally:
        await _close(inbox)


async def _round(patient: _Patient, inbox: Connection, name: str) -> float:
    began_s = perf_counter()
    await patient.ask("PUBLISH", name, b"")
    async with asyncio.timeout(_PATIENCE_S):
        await inbox.read_response()
    return perf_counter() - began_s


async def _look_at_nodes(patient: _Patient) -> str:
    seconds, micros = map(int, await patient.ask("TIME"))
    now_ms = seconds * 1000 + micros // 1000
    try:
        leases = await patient.ask("ZRANGE", "toolbus:nodes", 0, -1, "WITHSCORES")
    except ResponseError as error:
        found = f"toolbus:nodes is not what nodes make of it: {error}"
        raise Ailment(
            found, "give toolbus a database of its own", exit_code=ExitCode.USAGE
        ) from None
    there = ((node.decode(errors="replace"), float(ends)) for node, ends in _pairs(leases))
    names = [node.rpartition(" ")[0] for node, ends in there if ends > now_ms]
    if not names:
        return "none is there"
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return f"{len(names)}: {', '.join(sorted(names)[:_MANY])}{more}"


def _pairs(items: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(items[::2], items[1::2], strict=False)


_ADDRESS = Check("address", _look_at_address, ExitCode.USAGE)
_LIFE = (
    Check("reach", _look_whether_it_answers, ExitCode.USAGE, ("address",)),
    Check("server", _look_at_server, ExitCode.USAGE, ("reach",)),
    Check("rights", _look_at_rights, ExitCode.USAGE, ("server",)),
    Check("memory", _look_at_memory, ExitCode.USAGE, ("server",)),
    Check("buffers", _look_at_buffers, ExitCode.USAGE, ("server",)),
)
_SIGHTS = (
    Check("speed", _look_at_speed, ExitCode.AWAY, ("rights",)),
    Check("nodes", _look_at_nodes, ExitCode.AWAY, ("rights",)),
)
