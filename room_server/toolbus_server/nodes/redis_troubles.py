"""Why a Redis cannot be reached, in plain words with a repair: refused, TLS, password, or no Redis.

`redis-py` says most of it with one class of errors, so the reasons are looked for in what caused
them, and where even that is silent, by knocking once more, with TLS or without.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
)

from toolbus.exit_codes import ExitCode
from toolbus.findings import Ailment
from toolbus_server.nodes.redis_rights import acl_rule

__all__ = ["trouble_of", "words_of"]

_KNOCK_S = 1.0
_REPEATED = ", with args beginning with:"
_IS_IT_THERE = "is Redis running, is the address right, and may this machine connect to it?"
_TLS_FILES = "ssl_ca_certs, and where it asks for them ssl_certfile and ssl_keyfile, behind ?"
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})


async def trouble_of(error: BaseException, connection: Connection) -> Ailment:
    """Say why connecting, or the first command, failed.

    Its exit code is `USAGE` where waiting does not help, and `AWAY` where it may.
    """
    place = f"{connection.host}:{connection.port}"
    for cause in _causes(error):
        ailment = _network_trouble(cause, place) or _redis_trouble(cause, place, connection)
        if ailment is not None:
            return ailment
    if isinstance(connection, SSLConnection):
        if await _speaks_plainly(connection):
            return _no_tls(place)
        if await _wants_certificate(connection):
            return _unfit(
                f"{place} wants to see a certificate",
                "name yours: ?ssl_certfile=FILE&ssl_keyfile=FILE",
            )
    elif await _speaks_tls(connection):
        return _unfit(f"{place} speaks TLS", "write rediss:// in place of redis://")
    found = f"{place}: {words_of(error) or 'no answer in time'}"
    return Ailment(found, _IS_IT_THERE, exit_code=ExitCode.AWAY)


def words_of(error: BaseException) -> str:
    """Say what went wrong without what Redis repeats of a command it does not know: a password."""
    return str(error).partition(_REPEATED)[0]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _unfit(found: str, repair: str) -> Ailment:
    return Ailment(found, repair, exit_code=ExitCode.USAGE)


def _no_tls(place: str) -> Ailment:
    return _unfit(
        f"{place} does not speak TLS", "write redis:// in place of rediss://, or its `tls-port`"
    )


def _network_trouble(cause: BaseException, place: str) -> Ailment | None:
    match cause:
        case ssl.SSLCertVerificationError():
            return _unfit(
                f"the certificate of {place} is not trusted: {cause.verify_message}",
                "name the file of its authority: ?ssl_ca_certs=FILE",
            )
        case ssl.SSLError() if cause.reason in _NO_TLS:
            return _no_tls(place)
        case ssl.SSLError():
            return _unfit(f"no TLS with {place}: {cause.reason}", f"look at {_TLS_FILES}")
        case FileNotFoundError() | PermissionError():
            return _unfit(f"a file of TLS: {cause.strerror}", f"look at {_TLS_FILES}")
        case ConnectionRefusedError():
            found = f"nobody listens at {place}"
            return Ailment(found, _IS_IT_THERE, exit_code=ExitCode.AWAY)
        case socket.gaierror():
            found = f"{place} has no address: {cause.strerror}"
            return Ailment(found, "is its name right?", exit_code=ExitCode.AWAY)
    return None


def _redis_trouble(cause: BaseException, place: str, connection: Connection) -> Ailment | None:
    words = words_of(cause)
    match cause:
        case MasterNotFoundError():
            found = "the Sentinels name no primary"
            return Ailment(found, _IS_IT_THERE, exit_code=ExitCode.AWAY)
        case BusyLoadingError():
            found = f"{place}: {words}"
            return Ailment(found, "wait until it has loaded", exit_code=ExitCode.AWAY)
        case RedisError() if "max number of clients" in words:
            found = f"{place} has as many clients as it may"
            return Ailment(found, "raise its `maxclients`", exit_code=ExitCode.AWAY)
        case AuthenticationError() if "required" in words or "already authenticated" in words:
            return _unfit(
                f"{place} wants a password", "write it into the URL: redis://USER:PASSWORD@HOST"
            )
        case AuthenticationError():
            return _unfit(
                f"{place} refuses user and password: {words}",
                "look at both in the URL; without a user it is `default`",
            )
        case NoPermissionError():
            rule = acl_rule(connection.username or "default", has_database=bool(connection.db))
            return _unfit(words, rule)
        case InvalidResponse():
            return _unfit(f"what listens at {place} is no Redis", "look at the address")
        case RedisError() if "protected mode" in words:
            return _unfit(
                f"{place} is in protected mode: it answers its own machine alone",
                "give it a password, or a user with one, and write it into the URL",
            )
        case RedisError() if "DB index" in words:
            return _unfit(f"{place}: {words}", "leave the number out, or raise its `databases`")
    return None


async def _speaks_tls(connection: Connection) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return await _knock(connection, context) is not None


async def _speaks_plainly(connection: Connection) -> bool:
    return (await _knock(connection, None) or b"").startswith((b"+", b"-"))


async def _wants_certificate(connection: SSLConnection) -> bool:
    """Say nothing and hear: to who has begun to speak the reason would be lost."""
    try:
        async with asyncio.timeout(_KNOCK_S):
            place, context = (connection.host, connection.port), connection.ssl_context.get()
            reader, writer = await asyncio.open_connection(*place, ssl=context)
            try:
                await reader.read(1)
            finally:
                writer.close()
    except ssl.SSLError as error:
        return "CERTIFICATE_REQUIRED" in (error.reason or "")
    except (OSError, TimeoutError):
        pass
    return False


async def _knock(connection: Connection, context: ssl.SSLContext | None) -> bytes | None:
    """Say PING once, and return the answer: b"" for none, None where not even TLS came about."""
    try:
        async with asyncio.timeout(_KNOCK_S):
            place = connection.host, connection.port
            reader, writer = await asyncio.open_connection(*place, ssl=context)
    except (OSError, TimeoutError):
        return None
    try:
        async with asyncio.timeout(_KNOCK_S):
            writer.write(b"PING\r\n")
            return await reader.read(64)
    except (OSError, TimeoutError):
        return b""
    finally:
        writer.close()
