"""Checks of a Redis for `toolbus doctor --redis` and for the start of `serve`.

Can it be reached, is its version supported, has the user the rights of a node, and does its memory
policy keep what nodes store? The checks only read. Redis itself answers whether the user may run a
command: those of scripts are read from the scripts, the others are listed here.

redis-py reports most causes of a failed connection with the same class of errors, so the chain of
causes is searched. A wrong choice between TLS and plain TCP leaves no trace in it: further
connections find it out.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

import msgpack
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import (
    AuthenticationError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from toolbus.diagnostics.checks import Check, CheckFailed, Finding, run_checks
from toolbus.diagnostics.exit_codes import ExitCode, UsageError
from toolbus.transport.addresses import UnreachableHost, open_streams
from toolbus_server.cluster.exchange import EXCHANGE_KEY, EXCHANGE_VERSION, LEASES_KEY
from toolbus_server.cluster.redis.client import INBOX_WINDOW_BYTES, safe_message
from toolbus_server.cluster.redis.url import pool_of

__all__ = ["acl_rule", "check_before_start", "examine_redis"]

_KEYS = (
    EXCHANGE_KEY,
    LEASES_KEY,
    "toolbus:nodes:version",
    "toolbus:nodes:addresses",
    "toolbus:nodes:ended",
    "toolbus:nodes:cleanup:*",
    "toolbus:revocations",
    "toolbus:rooms",
    "toolbus:rooms:*",
    "toolbus:tokens:extended",
    "toolbus:tokens:since",
    *(f"toolbus:{{r:*}}:{part}" for part in ("version", "nodes", "facts", "names", "kept")),
)
"""Patterns of keys; a * stands for the name of a node or a room."""
_INBOX = "toolbus:inbox:*"
_ON_CHANNELS = {"publish", "subscribe"}
_SENT = {
    *("del", "evalsha", "script|load", "smembers", "srem"),
    *("zadd", "zrange", "zremrangebyrank", "zremrangebyscore", "zscore"),
}
"""Commands on keys that a node sends itself, with `|` before a subcommand."""
_CALL = re.compile(r"redis\.call\('(\w+)'")
_PROBE_S = 1.0
_ANSWER_S = 5.0
_START_S = 2.0
_OLDEST = {"redis": 7, "valkey": 8}
_NAMES = {"redis": "Redis", "valkey": "Valkey"}
_SUPPORTED = "nodes need Redis 7 or Valkey 8, or newer"


def acl_rule(user: str = "toolbus", *, has_database: bool = False) -> str:
    """Build the command that creates a user with exactly the rights that a node needs.

    With `has_database` the nodes use another database than 0.
    """
    commands = _script_commands() | _ON_CHANNELS | _SENT
    if has_database:
        commands.add("select")
    return (
        f"ACL SETUSER {user} on >PASSWORD resetkeys ~toolbus:* resetchannels &toolbus:* -@all "
        + " ".join(f"+{command}" for command in sorted(commands))
    )


async def missing_rights(run: Callable[..., Awaitable[Any]]) -> list[str]:
    """List the rights that the connected user lacks; `run` runs a command and returns the reply.

    Where keys are missing, only keys are listed: Redis refuses each command on such a key too.

    Raises:
        redis.exceptions.ResponseError: Redis runs no script of this user for another reason.
    """
    rights = _rights()
    questions = [msgpack.packb(command, use_bin_type=False) for command in rights.values()]
    source = (files("toolbus_server.cluster") / "scripts" / "check_rights.lua").read_bytes()
    try:
        script = await run("SCRIPT", "LOAD", source)
        answers = await run("EVALSHA", script, 0, *questions)
    except NoPermissionError as error:
        return [str(error)]
    missing = [right for right, answer in zip(rights, answers, strict=True) if not answer]
    return [right for right in missing if right.startswith("key ")] or missing


def _rights() -> dict[str, tuple[str, ...]]:
    """Describe each right, with a command that needs it."""
    rights: dict[str, tuple[str, ...]] = {
        f"key {key}": ("EVALSHA", "0" * 40, "1", key.replace("*", "-")) for key in _KEYS
    }
    for command in sorted(_ON_CHANNELS):
        rights[f"{command.upper()} {_INBOX}"] = (command, _INBOX.replace("*", "-"))
    for command in sorted(_script_commands() | _SENT):
        # Redis ignores arguments beyond the command's own, and each argument may be its key.
        rights[command.upper()] = (*command.split("|"), *[_KEYS[0]] * 4)
    return rights


def _script_commands() -> set[str]:
    scripts = (files("toolbus_server.cluster") / "scripts").iterdir()
    return {
        command.lower()
        for script in scripts
        for command in _CALL.findall(script.read_text(encoding="utf-8"))
    }


_CHECK_ADDRESS = "is Redis running, is the address right, and may this machine connect to it?"
_TLS_FILES = "check ssl_ca_certs, ssl_certfile and ssl_keyfile behind the ? of the URL"
_CHECK_SENTINELS = "do the Sentinels run, and does `SENTINEL MASTERS` list this name?"
_DOWN = ExitCode.UNAVAILABLE


class _Cause(NamedTuple):
    """A known cause: its exceptions, a pattern in the message, and what to report."""

    errors: type[BaseException] | tuple[type[BaseException], ...]
    pattern: str
    found: str
    repair: str
    exit_code: ExitCode = ExitCode.USAGE


_UNKNOWN = _Cause((), "", "{address}: {message}", _CHECK_ADDRESS, _DOWN)
_TLS_ONLY = _Cause((), "", "{address} speaks TLS", "write rediss:// instead of redis://")
_CERTIFICATE = _Cause(
    ssl.SSLError, "CERTIFICATE_REQUIRED", "{address} requires a client certificate", _TLS_FILES
)
_NO_TLS = _Cause(
    ssl.SSLError,
    "WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|HTTP_REQUEST",
    "{address} does not speak TLS",
    "write redis:// instead of rediss://",
)
_CAUSES = (
    _NO_TLS,
    _CERTIFICATE,
    _Cause(
        ssl.SSLCertVerificationError,
        "",
        "the certificate of {address} is not trusted: {error.verify_message}",
        "name the file of its authority: ?ssl_ca_certs=FILE",
    ),
    _Cause(ssl.SSLError, "", "the TLS handshake with {address} failed: {error.reason}", _TLS_FILES),
    _Cause(
        (FileNotFoundError, PermissionError),
        "",
        "cannot read a TLS file: {error.strerror}",
        _TLS_FILES,
    ),
    _Cause(ConnectionRefusedError, "", "no server listens at {address}", _CHECK_ADDRESS, _DOWN),
    _Cause(UnreachableHost, "", "no server answers at {address} ({error})", _CHECK_ADDRESS, _DOWN),
    _Cause(
        socket.gaierror,
        "takes longer",
        "the name server does not answer for {address}",
        "does `getent hosts NAME` answer on this machine?",
        _DOWN,
    ),
    _Cause(socket.gaierror, "", "{address} has no IP address", "is its name right?", _DOWN),
    _Cause(MasterNotFoundError, "", "the Sentinels name no primary", _CHECK_SENTINELS, _DOWN),
    _Cause(
        AuthenticationError,
        "required|already authenticated",
        "{address} requires a password",
        "write it into the URL: redis://USER:PASSWORD@HOST",
    ),
    _Cause(
        AuthenticationError,
        "",
        "{address} refuses user and password: {message}",
        "correct both in the URL; without a user it is `default`",
    ),
    _Cause(NoPermissionError, "", "{message}", "set this rule: {rule}"),
    _Cause(InvalidResponse, "", "the server at {address} is not Redis", "correct the address"),
    _Cause(RedisError, "protected mode", "{address} is in protected mode", "set a password there"),
    _Cause(RedisError, "DB index", "{address}: {message}", "use a lower number, or none"),
)
"""The first that matches is reported."""


async def connect_error(error: BaseException, connection: Connection) -> CheckFailed:
    """Explain why connecting, or the first command, failed.

    The exit code is `USAGE` where waiting does not help, and `UNAVAILABLE` where it may.
    """
    cause: BaseException | None = error
    while cause is not None:
        for known in _CAUSES:
            if isinstance(cause, known.errors) and re.search(known.pattern, str(cause)):
                return _report(known, cause, connection)
        cause = cause.__cause__ or cause.__context__
    return _report(await _silent_cause(connection), error, connection)


def _report(known: _Cause, error: BaseException, connection: Connection) -> CheckFailed:
    values = {
        "address": f"{connection.host}:{connection.port}",
        "error": error,
        "message": safe_message(error) or "no answer in time",
        "rule": acl_rule(connection.username or "default", has_database=bool(connection.db)),
    }
    found, repair = (text.format_map(values) for text in (known.found, known.repair))
    return CheckFailed(found, repair, exit_code=known.exit_code)


async def _silent_cause(connection: Connection) -> _Cause:
    """Find a cause that the error does not show, with further connections."""
    if not isinstance(connection, SSLConnection):
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if await _first_bytes(connection, tls) is not None:
            return _TLS_ONLY
        return _UNKNOWN
    if (await _first_bytes(connection, None) or b"").startswith((b"+", b"-")):
        return _NO_TLS
    first = await _first_bytes(connection, connection.ssl_context.get())
    if first and b"CERTIFICATE_REQUIRED" in first:
        return _CERTIFICATE
    return _UNKNOWN


async def _first_bytes(connection: Connection, tls: ssl.SSLContext | None) -> bytes | None:
    """Return what a server sends first, or its TLS error; b"" for nothing, None if unreachable."""
    address = connection.host, connection.port
    try:
        reader, writer = await open_streams(*address, timeout_s=_PROBE_S, tls=tls)
    except OSError:
        return None
    try:
        if tls is None:  # over TLS a request could hide why the server closes the connection
            writer.write(b"PING\r\n")
        async with asyncio.timeout(_PROBE_S):
            return await reader.read(64)
    except ssl.SSLError as error:
        return str(error).encode()
    except (OSError, TimeoutError):
        return b""
    finally:
        writer.close()


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
    # What it finds about other nodes, the node logs itself, also later.
    warnings = (f for f in findings if f.status == "warn" and f.check != "nodes")
    return [f"Redis: {f.found}; {f.repair}" for f in warnings]


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


async def _check_nodes(context: _Context) -> str:
    """Say whether nodes of this release can join those that are live."""
    seconds, micros = await context.run("TIME")
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    try:
        is_older = await context.run("TYPE", EXCHANGE_KEY) == b"zset"
        live = await context.run("ZCOUNT", EXCHANGE_KEY if is_older else LEASES_KEY, now_ms, "+inf")
        if not live:
            return "none is live"
        version = b"" if is_older else await context.run("GET", EXCHANGE_KEY) or b""
    except ResponseError as error:  # another program has written there
        raise CheckFailed(f"keys of nodes cannot be read: {error}", "", status="skip") from None
    theirs = f"version {version.decode(errors='replace')}" if version else "no version"
    if version != str(EXCHANGE_VERSION).encode():
        raise CheckFailed(
            f"{live} live, which exchange {theirs}, and this release version {EXCHANGE_VERSION}",
            "nodes of this release join when those have ended, or use another database",
            status="warn",
        )
    return f"{live} live, which exchange {theirs}, as this release"


async def _check_memory(context: _Context) -> str:
    limit = int(await context.setting("maxmemory") or 0)
    policy = await context.setting("maxmemory-policy")
    if limit and policy != "noeviction":
        lost = "what expires" if policy.startswith("volatile") else "what nodes store"
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
    Check("nodes", _check_nodes, ExitCode.USAGE, ("rights",)),
    Check("memory", _check_memory, ExitCode.USAGE, ("version",)),
)
