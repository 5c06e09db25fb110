"""Connections to Redis and to Sentinels that try all addresses of their host side by side.

Names are looked up in bounded time: after `LOOKUP_S` a connection uses the addresses of the last
answer.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.sentinel import SentinelManagedConnection

from toolbus.transport.addresses import connect_to_host
from toolbus.transport.name_lookup import HostResolver

__all__ = [
    "LOOKUP_S",
    "ResolvingConnection",
    "ResolvingSSLConnection",
    "ResolvingSentinelConnection",
    "ResolvingSentinelSSLConnection",
]

LOOKUP_S = 1.0
"""Seconds that a connection waits for the lookup of its host."""
_CONNECT_S = 5.0


class ResolvingConnection(Connection):
    """A connection to Redis whose host is looked up by a `HostResolver`.

    Args:
        resolver: Looks up the host.
        options: Those of redis-py.
    """

    def __init__(self, *, resolver: HostResolver, **options: Any) -> None:
        self._resolver = resolver
        self._connected: socket.socket | None = None
        self._address = ""
        super().__init__(**options)

    def avoid_address(self) -> None:
        """Let later connections try the address of this one last: what it accepts, it ignores."""
        if self._address:
            self._resolver.put_last(self.host, self._address)

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = dict(super()._connection_arguments())
        for name in ("host", "port"):
            del arguments[name]
        arguments["sock"] = self._connected
        if "ssl" in arguments:  # the certificate is that of the name
            arguments["server_hostname"] = self.host
        return arguments

    async def _connect(self) -> None:
        """Connect to the first address that accepts."""
        connect = super()._connect
        # Raises now if a TLS file is missing: later there is a socket, which would stay open.
        self._connection_arguments()

        async def use(sock: socket.socket) -> None:
            self._connected = sock
            self._address = sock.getpeername()[0]
            await connect()  # type: ignore[no-untyped-call]

        await connect_to_host(
            self.host,
            self.port,
            use,
            timeout_s=self.socket_connect_timeout or _CONNECT_S,
            resolver=self._resolver,
        )


class ResolvingSSLConnection(ResolvingConnection, SSLConnection):
    """A `ResolvingConnection` with TLS."""


class ResolvingSentinelConnection(ResolvingConnection, SentinelManagedConnection):
    """A `ResolvingConnection` to the primary that Sentinels name."""


class ResolvingSentinelSSLConnection(ResolvingSSLConnection, SentinelManagedConnection):
    """A `ResolvingSentinelConnection` with TLS."""
