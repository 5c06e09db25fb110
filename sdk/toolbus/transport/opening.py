"""Opening a websocket to a server: any address of its name, a proxy, redirects."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from urllib.parse import urljoin

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidMessage,
    InvalidProxy,
    InvalidStatus,
    SecurityError,
)
from websockets.uri import WebSocketURI, parse_uri

from toolbus.transport.addresses import connect_to_host

try:
    from websockets.proxy import get_proxy
except ImportError:  # websockets 15
    from websockets.uri import get_proxy  # type: ignore[attr-defined,no-redef]

__all__ = ["UnusableProxy", "open_websocket"]

_MAX_REDIRECTS = 10
"""Servers that redirect to each other would get requests until the time is over; as in
websockets."""


class UnusableProxy(ValueError):
    """The proxy that the environment names cannot be used here, at any attempt."""


async def open_websocket(
    url: str, *, timeout_s: float, may_use_proxy: bool, **options: Any
) -> ClientConnection:
    """Open a websocket as `websockets.connect` does, but to any address of the server's name.

    Redirects are followed to the same scheme, host and port: elsewhere the token is not sent, and
    without one no server accepts a participant.

    Args:
        url: The full address.
        timeout_s: Seconds for all of it.
        may_use_proxy: Whether the proxy that the environment names is used.
        options: Those of `websockets.connect`.

    Raises:
        OSError: There is no connection: `UnreachableHost`, `socket.gaierror`, `TimeoutError`, an
            error of TLS.
        WebSocketException: What answers refuses the websocket, or speaks another protocol.
        ValueError: It redirects elsewhere, or to a malformed address.
        LookupError: It redirects to several addresses.
        UnusableProxy: The proxy that the environment names cannot be used.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_s
    for _ in range(_MAX_REDIRECTS):
        uri = parse_uri(url)
        left_s = ends_at - loop.time()
        proxy = get_proxy(uri) if may_use_proxy else None
        if proxy is not None:
            # Without the proxy's address, which may have a password.
            try:
                return await _SameOriginConnect(url, proxy=proxy, open_timeout=left_s, **options)
            except ImportError:  # websockets imports what a SOCKS proxy needs only here
                reason = "a SOCKS proxy needs a package: pip install 'python-socks[asyncio]'"
            except InvalidProxy as error:
                reason = f"its address is invalid: {error.msg}"
            raise UnusableProxy(f"the proxy of the environment cannot be used: {reason}")

        async def use(sock: socket.socket, url: str = url) -> ClientConnection:
            # `connect_to_host` limits the time, in which another address may be tried.
            return await connect(url, sock=sock, open_timeout=None, **options)

        # A proxy that finds no server behind it closes the connection, or sends what is not HTTP.
        failures = OSError, InvalidMessage, ConnectionClosed
        try:
            return await connect_to_host(
                uri.host, uri.port, use, timeout_s=left_s, next_after=failures
            )
        except ValueError as error:  # websockets follows no redirect with a socket of ours
            url = _redirected(url, uri, error)
    raise SecurityError(f"more than {_MAX_REDIRECTS} redirects")


class _SameOriginConnect(connect):
    """Follows no redirect to another origin; before version 16.1, websockets sends the token."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        before = parse_uri(self.uri)
        target = super().process_redirect(exc)
        if isinstance(target, str) and not _is_same_origin(before, parse_uri(target)):
            return ValueError(f"{target!r} is of another origin")
        return target


def _is_same_origin(one: WebSocketURI, other: WebSocketURI) -> bool:
    return (one.secure, one.host, one.port) == (other.secure, other.host, other.port)


def _redirected(url: str, uri: WebSocketURI, error: ValueError) -> str:
    """Return where to go on; raise the error if it is not a redirect to the same origin."""
    refused = error.__cause__
    if not isinstance(refused, InvalidStatus) or "Location" not in refused.response.headers:
        raise error
    target = urljoin(url, refused.response.headers["Location"])
    if not _is_same_origin(parse_uri(target), uri):
        raise error
    return target
