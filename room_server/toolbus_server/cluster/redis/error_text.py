"""Why a connection to Redis fails: one sentence with a repair, for each common cause.

redis-py reports most causes with the same class of errors, so the chain of causes is searched. A
wrong choice between TLS and plain TCP leaves no trace in it: further connections find it out.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Iterator
from typing import NamedTuple

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, RedisError

from toolbus.diagnostics.checks import CheckFailed
from toolbus.diagnostics.exit_codes import ExitCode
from toolbus.transport.addresses import UnreachableHost, open_streams
from toolbus_server.cluster.redis.acl import acl_rule

__all__ = ["connect_error", "safe_message"]

_PROBE_S = 1.0
_ARGUMENTS = ", with args beginning with:"
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
    for cause in _chain(error):
        for known in _CAUSES:
            if isinstance(cause, known.errors) and re.search(known.pattern, str(cause)):
                return _report(known, cause, connection)
    return _report(await _silent_cause(connection), error, connection)


def safe_message(error: BaseException) -> str:
    """Return an error's message without the arguments that Redis repeats: they may be secret."""
    return str(error).partition(_ARGUMENTS)[0]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


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
        return _UNKNOWN if await _first_bytes(connection, tls) is None else _TLS_ONLY
    if (await _first_bytes(connection, None) or b"").startswith((b"+", b"-")):
        return _NO_TLS
    first = await _first_bytes(connection, connection.ssl_context.get())
    return _CERTIFICATE if first and b"CERTIFICATE_REQUIRED" in first else _UNKNOWN


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
