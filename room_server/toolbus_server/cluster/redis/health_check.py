"""Checks of a Redis for `toolbus doctor --redis` and for the start of `serve`.

Can it be reached, is its version supported, has the user the rights of a node, and does its memory
policy keep what nodes store? The checks only read.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio.connection import Connection, ConnectionPool
from redis.exceptions import RedisError, ResponseError

from toolbus.diagnostics.checks import Check, CheckFailed, Finding, run_checks
from toolbus.diagnostics.exit_codes import ExitCode, UsageError
from toolbus_server.cluster.redis.acl import acl_rule, missing_rights
from toolbus_server.cluster.redis.client import INBOX_WINDOW_BYTES
from toolbus_server.cluster.redis.error_text import connect_error
from toolbus_server.cluster.redis.url import pool_of

__all__ = ["check_before_start", "examine_redis"]

_ANSWER_S = 5.0
_START_S = 2.0
_OLDEST = {"redis": 7, "valkey": 8}
_NAMES = {"redis": "Redis", "valkey": "Valkey"}
_SUPPORTED = "nodes need Redis 7 or Valkey 8, or newer"


@dataclass(slots=True)
class _Context:
    """A Redis, and what earlier checks found out about it."""

    url: str
    pool: ConnectionPool = field(init=False)
    connection: Connection = field(init=False)
    """Opened by the first check, as all others need it."""
    info: dict[str, str] = field(default_factory=dict)
    """The reply to HELLO."""

    async def connect(self) -> None:
        """Open the connection. Raises CheckFailed."""
        try:
            self.pool = pool_of(self.url)
        except ValueError as error:
            raise CheckFailed(str(error), "correct --redis (TOOLBUS_REDIS_URL)") from None
        self.connection = self.pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self.connection.connect()  # type: ignore[no-untyped-call]
        except (RedisError, OSError, TimeoutError) as error:
            raise await connect_error(error, self.connection) from None

    async def run(self, *words: Any) -> Any:
        """Run a command. Raises CheckFailed without a reply, and ResponseError as Redis replies."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self.connection.send_command(*words)
                return await self.connection.read_response()
        except ResponseError:
            raise
        except (RedisError, OSError, TimeoutError) as error:
            raise await connect_error(error, self.connection) from None

    async def setting(self, name: str) -> str:
        """Read a setting of the server. Raises CheckFailed where this user may not."""
        try:
            reply = await self.run("CONFIG", "GET", name)
        except ResponseError as error:
            found = f"this user cannot read {name}: {error}"
            raise CheckFailed(found, "run the check as an administrator", status="skip") from None
        return reply[1].decode() if reply else ""

    async def close(self) -> None:
        """Close the connection, if it was opened."""
        with suppress(Exception):
            await self.connection.disconnect(nowait=True)


async def examine_redis(url: str) -> list[Finding]:
    """Run all checks, and return what each found."""
    context = _Context(url)
    try:
        return await run_checks(_CHECKS, context)
    finally:
        await context.close()


async def check_before_start(url: str) -> list[str]:
    """Refuse a Redis that no node can use, and return warnings about one that may cause trouble.

    An unavailable Redis is not an error: the node serves by itself and joins when Redis is back.

    Raises:
        UsageError: The Redis cannot be used, and waiting does not help.
    """
    findings: list[Finding] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_S):
            findings = await examine_redis(url)
    for finding in findings:
        if finding.exit_code is ExitCode.USAGE:
            usage_error = UsageError(f"--redis: {finding.found}")
            usage_error.next_step = finding.repair
            raise usage_error
    return [f"Redis: {f.found}; {f.repair}" for f in findings if f.status == "warn"]


async def _check_reach(context: _Context) -> str:
    await context.connect()
    connection = context.connection
    address = f"{connection.host}:{connection.port}"
    try:
        reply = await context.run("HELLO", 2)
    except ResponseError as error:
        if "unknown command" in str(error).lower():
            raise CheckFailed("it is older than Redis 6", _SUPPORTED) from None
        raise await connect_error(error, connection) from None
    if not isinstance(reply, list):
        raise CheckFailed(f"the server at {address} is not Redis", "correct the address")
    words = [word.decode() if isinstance(word, bytes) else str(word) for word in reply]
    context.info = dict(zip(words[::2], words[1::2], strict=False))
    user = f" to {connection.username}" if connection.username else ""
    return f"{address} answers{user}"


async def _check_version(context: _Context) -> str:
    info = context.info
    kind, version = info.get("server", ""), info.get("version", "")
    name = f"{_NAMES.get(kind, kind)} {version}"
    if info.get("mode") == "sentinel":
        raise CheckFailed(
            "this is a Sentinel", "write redis+sentinel://HOST:PORT/NAME to find its Redis"
        )
    if info.get("mode") == "cluster":
        raise CheckFailed(
            f"{name} runs in Cluster mode, which nodes cannot use yet",
            "use a Redis with `cluster-enabled no`: one serves many nodes",
        )
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) < _OLDEST.get(kind, 0):
        raise CheckFailed(f"{name} is too old", _SUPPORTED)
    if info.get("role", "master") != "master":
        raise CheckFailed(
            f"{name} is a replica, which accepts no writes",
            "use the address of its primary, or of Sentinels: redis+sentinel://",
            exit_code=ExitCode.UNAVAILABLE,
        )
    if kind not in _OLDEST:
        raise CheckFailed(f"{name} was never tested with nodes", _SUPPORTED, status="warn")
    return f"{name}, a primary"


async def _check_rights(context: _Context) -> str:
    connection = context.connection
    user = connection.username or "default"
    try:
        missing = await missing_rights(context.run)
    except ResponseError as error:
        raise CheckFailed(f"Redis runs no scripts: {error}", _SUPPORTED) from None
    if missing:
        rule = acl_rule(connection.username or "toolbus", has_database=bool(connection.db))
        raise CheckFailed(f"{user} lacks rights: {', '.join(missing)}", f"set this rule: {rule}")
    return f"{user} has all rights that nodes need"


async def _check_memory(context: _Context) -> str:
    limit = int(await context.setting("maxmemory") or 0)
    policy = await context.setting("maxmemory-policy")
    if limit and policy != "noeviction":
        lost = "revocations" if policy.startswith("volatile") else "what nodes store"
        raise CheckFailed(
            f"with {_in_mib(limit)} in use Redis deletes {lost} ({policy})",
            "CONFIG SET maxmemory-policy noeviction",
            status="warn",
        )
    await _check_subscriber_limit(context)
    return f"{_in_mib(limit)}, and nothing is evicted" if limit else "no limit"


async def _check_subscriber_limit(context: _Context) -> None:
    setting = await context.setting("client-output-buffer-limit")
    limits = [int(limit) for limit in setting.partition("pubsub")[2].split()[:2]]
    lowest = min(filter(None, limits), default=INBOX_WINDOW_BYTES)
    if lowest < INBOX_WINDOW_BYTES:
        raise CheckFailed(
            f"Redis disconnects a subscriber with {_in_mib(lowest)} in its output buffer, and a "
            f"node may need {_in_mib(INBOX_WINDOW_BYTES)}",
            "CONFIG SET client-output-buffer-limit 'pubsub 33554432 8388608 60'",
            status="warn",
        )


def _in_mib(count: int) -> str:
    return f"{count / 1024 / 1024:.3g} MiB"


_CHECKS = (
    Check("reach", _check_reach, ExitCode.USAGE),
    Check("version", _check_version, ExitCode.USAGE, ("reach",)),
    Check("rights", _check_rights, ExitCode.USAGE, ("version",)),
    Check("memory", _check_memory, ExitCode.USAGE, ("version",)),
)
