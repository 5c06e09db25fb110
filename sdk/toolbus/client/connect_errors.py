"""Why no connection could be made, as an error with the address, the reason and the remedy.

It interprets what the socket, the TLS layer or an HTTP response said; whether a token or a room is
accepted is for the server to decide.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import (
    InvalidHeader,
    InvalidMessage,
    InvalidStatus,
    InvalidURI,
    NegotiationError,
    SecurityError,
)
from websockets.http11 import Response

from toolbus.auth.token_limits import MAX_JWT_BYTES
from toolbus.diagnostics.exit_codes import UNAUTHORIZED
from toolbus.diagnostics.join_errors import TokenExpired, unchecked_claims
from toolbus.errors import PermissionDenied, RoomException, Unavailable
from toolbus.settings import DEFAULT_URL, is_loopback
from toolbus.transport.addresses import UnreachableHost, open_streams
from toolbus.transport.opening import UnusableProxy
from toolbus.wire import LIMIT_HEADER, PROTOCOL_HEADER

__all__ = [
    "certificate_text",
    "check_token",
    "connect_error",
    "foreign_server_error",
    "serve_command",
    "url_with_other_scheme",
    "wrong_scheme_error",
]

# Another attempt fails in the same way, unless it uses another token.
_FINAL_STATUSES = {401: "token", 403: "room", 426: "protocol"}
# What `LIMIT_HEADER` names, and what to do.
_FULL = {
    "identity": "the identity of the token has too many connections: close one, use a token with "
    "another name, or ask the operator to raise --max-per-identity",
    "room": "the room has too many participants: use another room, or ask the operator to raise "
    "--max-per-room",
    "address": "this address has too many connections: close one, or ask the operator to raise "
    "--max-per-address, or to set --trusted-proxies if a proxy is in between",
}
# A proxy sends them while its server is not running, and websockets sends them without our header.
_SHARED_STATUSES = frozenset({408, 414, 429, 431})
_SERVER_ERRORS = 500
_BAD_REQUEST = 400
_OTHER_SCHEME = {"ws": "wss", "wss": "ws"}
_PROBE_TIMEOUT_S = 2.0
_PORTS = {"ws": 80, "wss": 443}
_PROBE = "GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n"
_UNSENDABLE = re.compile(r"[^!-~]")
_ERRNO = re.compile(r"\[Errno (-?\d+)\]")
_SECONDS = re.compile(r"[0-9]{1,4}")
_REFUSED = {errno.ECONNREFUSED, errno.EADDRNOTAVAIL}


def check_token(token: str) -> None:
    """Check that a token can be sent as a header: the error of a header would contain it.

    Raises:
        PermissionDenied: It is too long, or has a character that no token has.
    """
    if len(token) > MAX_JWT_BYTES or _UNSENDABLE.search(token):
        raise PermissionDenied(
            f"the token is malformed: it has {len(token)} characters; a token has at most "
            f"{MAX_JWT_BYTES}, and neither spaces nor line ends"
        )


async def connect_error(url: str, error: Exception, token: str, *, is_first: bool) -> RoomException:
    """Make the error for a failed connection attempt.

    Args:
        url: The URL of the server.
        error: What websockets or the socket raised.
        token: The token that was sent.
        is_first: Whether no earlier attempt has succeeded, so that the URL may be wrong. Then one
            more connection finds out whether the server expects the other of ws and wss.
    """
    if isinstance(error, UnusableProxy):
        message = f"cannot connect to {url}: {error}"
        details = {"url": url, "proxy": str(error)}
        return Unavailable(message, executed="no", retryable=False, details=details)
    response = _response_of(error)
    if response is not None and _is_toolbus_response(response):
        return _refused_error(response, token)
    if is_first and _may_be_other_scheme(url, error, response):
        right = await url_with_other_scheme(url)
        if right is not None:
            return wrong_scheme_error(url, right)
    if response is not None:
        return foreign_server_error(url, f"HTTP {response.status_code}", response.status_code)
    if isinstance(error, InvalidMessage):
        # Bytes arrived that are not a response to a websocket handshake.
        if not isinstance(error.__cause__, EOFError | ConnectionError):
            return foreign_server_error(url, "it does not speak HTTP/1.1")
    # A URI that is invalid is one that the response redirects to.
    elif isinstance(error, InvalidHeader | InvalidURI | NegotiationError | SecurityError):
        return foreign_server_error(url, str(error))
    details = {"url": url}
    if isinstance(error, ssl.SSLCertVerificationError):
        details["certificate"] = error.verify_message
    message = f"cannot connect to {url}: {_reason(url, error)}"
    return Unavailable(message, executed="no", details=details)


def _is_toolbus_response(response: Response) -> bool:
    """Whether a response that refuses a connection may come from a toolbus server.

    Statuses that a proxy sends for a server that is busy or not running count as such.
    """
    status = response.status_code
    is_shared = status in _SHARED_STATUSES or status >= _SERVER_ERRORS
    return is_shared or PROTOCOL_HEADER in response.headers


def foreign_server_error(url: str, found: str, status: int | None = None) -> Unavailable:
    """Make the error for a URL where something else than a toolbus server answers."""
    details: dict[str, Any] = {"url": url}
    if status is not None:
        details["http_status"] = status
    message = f"not a toolbus server at {url}: another service answers there ({found})"
    return Unavailable(message, executed="no", retryable=False, details=details)


def _response_of(error: BaseException) -> Response | None:
    for cause in (error, error.__context__):  # that of a redirect that cannot be followed
        if isinstance(cause, InvalidStatus):
            return cause.response
    return None


def _refused_error(response: Response, token: str) -> RoomException:
    status = response.status_code
    details: dict[str, Any] = {"status": status}
    if status == 404:
        return PermissionDenied("the server has no such path (HTTP 404)", details=details)
    what = _FINAL_STATUSES.get(status)
    if what == "token" and token.count(".") != 2:
        what = "token: it is not a signed token of three parts"
    if what is not None:
        # The server gives no reason before it knows the participant.
        claims = unchecked_claims(token) if status == UNAUTHORIZED else {}
        if (expired := TokenExpired.of(claims, details)) is not None:
            return expired
        return PermissionDenied(f"the server refuses the {what}", details=details)
    message = f"the server accepts no connections now (HTTP {status})"
    if status == 409:
        message = "a newer connection of this instance exists"
    limit = response.headers.get(LIMIT_HEADER, "")
    if limit in _FULL:
        details["limit"] = limit
        message += f": {_FULL[limit]}"
    retry_after_s = None
    values = response.headers.get_all("Retry-After")
    if len(values) == 1 and _SECONDS.fullmatch(values[0]):  # a date is what proxies send
        retry_after_s = float(values[0])
    return Unavailable(message, executed="no", details=details, retry_after_s=retry_after_s)


# TLS


def _may_be_other_scheme(url: str, error: Exception, response: Response | None) -> bool:
    if response is not None:  # a TLS port that answers plain HTTP with an error
        return urlsplit(url).scheme == "ws" and response.status_code == _BAD_REQUEST
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    if urlsplit(url).scheme == "wss":
        return isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError)
    return isinstance(error, InvalidMessage | ConnectionResetError)


async def url_with_other_scheme(url: str) -> str | None:
    """Return the URL with ws for wss, or wss for ws, if the server expects that; else None.

    It makes one connection for that, which sends no token.
    """
    parts = urlsplit(url)
    expects = _answers_plain_http if parts.scheme == "wss" else _answers_tls
    with suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            if await expects(parts.hostname or "", parts.port or _PORTS[parts.scheme]):
                return parts._replace(scheme=_OTHER_SCHEME[parts.scheme]).geturl()
    return None


async def _answers_plain_http(host: str, port: int) -> bool:
    reader, writer = await open_streams(host, port, timeout_s=_PROBE_TIMEOUT_S)
    try:
        writer.write(_PROBE.format(host).encode())
        status_line = await reader.readline()
    finally:
        writer.close()
    # A server with TLS may answer 400 to plain HTTP.
    return status_line.startswith(b"HTTP/") and b" 400 " not in status_line


async def _answers_tls(host: str, port: int) -> bool:
    try:
        _, writer = await open_streams(host, port, timeout_s=_PROBE_TIMEOUT_S, tls=True)
    except ssl.SSLCertVerificationError:  # it has sent a certificate
        return True
    writer.close()
    return True


def certificate_text(error: ssl.SSLCertVerificationError) -> str:
    """Return why a certificate is not trusted, and whether `SSL_CERT_FILE` names no file."""
    text = f"its certificate is not trusted: {error.verify_message}"
    file = os.environ.get("SSL_CERT_FILE")
    if file is not None and not os.path.exists(file):
        text += f"; SSL_CERT_FILE: {file} does not exist"
    return text


def wrong_scheme_error(url: str, right: str) -> Unavailable:
    """Make the error for a URL with ws instead of wss, or wss instead of ws."""
    uses = "does not use TLS" if right.startswith("ws:") else "uses TLS"
    message = f"cannot connect to {url}: the server there {uses}: its URL is {right}"
    details = {"url": url, "right_url": right}
    return Unavailable(message, executed="no", retryable=False, details=details)


# Sockets


def serve_command(url: str) -> str:
    """Return the command that starts a server at a URL."""
    command = "toolbus serve"
    if is_loopback(url):
        command += " --dev"
    port = urlsplit(url).port
    if port not in (None, urlsplit(DEFAULT_URL).port):
        command += f" --port {port}"
    return command


def _reason(url: str, error: BaseException) -> str:
    numbers = {int(number) for number in _ERRNO.findall(str(error))}
    is_refused = isinstance(error, ConnectionRefusedError) or (numbers and numbers <= _REFUSED)
    where = ""
    if isinstance(error, UnreachableHost):
        is_refused = error.is_refused
        where = f" ({error})" if len(error.reasons) > 1 else ""
    if is_refused:
        start = "start it, or set another URL (TOOLBUS_URL)"
        if is_loopback(url):
            start = f"`{serve_command(url)}` starts one"
        return f"connection refused, so no server runs there{where}; {start}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return certificate_text(error)
    if isinstance(error, socket.gaierror):
        return f"the name of its host is not known ({error.strerror})"
    if isinstance(error, ConnectionError) and not str(error):
        return "the connection was closed during the handshake"
    if isinstance(error, UnicodeError):
        return "its host, or the one that it redirects to, is not a host name"
    named = {os.strerror(number) for number in numbers if number > 0}
    return ", ".join(sorted(named)) or str(error) or type(error).__name__
