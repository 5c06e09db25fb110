"""The connections that are accepted and have not sent their request yet.

The TLS handshake begins here, not in the listening socket: that would report a connection only
after its handshake, so that half-open ones would count for no address and use all descriptors.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from typing import Protocol, cast

from toolbus.transport.websocket import CLOSE_TIMEOUT_S

__all__ = ["Handshakes", "OpeningConnection"]


class OpeningConnection(Protocol):
    """A connection that was accepted: an asyncio protocol."""

    def start(self, transport: asyncio.Transport) -> None:
        """Read the request, over plain TCP."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting it."""


class Handshakes:
    """The handshakes that one server has not finished.

    Args:
        tls: The certificate; None for plain TCP.
        timeout_s: Seconds that a TLS handshake may take; the request has its own limit.
    """

    def __init__(self, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._tls = tls
        self._timeout_s = timeout_s
        self._waiting: dict[OpeningConnection, asyncio.Transport] = {}
        """Those whose request has not arrived."""
        self._tls_handshakes: dict[asyncio.Task[None], socket.socket] = {}

    def begin(self, connection: OpeningConnection, transport: asyncio.Transport) -> None:
        """Begin the handshake of a connection that was accepted.

        Over TLS the connection gets another transport, by `connection_made`, once it has ended.
        """
        if self._tls is None:
            self._waiting[connection] = transport
            connection.start(transport)
            return
        # The socket goes to a new transport: uvloop would read the first bytes with this one, even
        # if it is paused at once.
        transport.set_protocol(asyncio.Protocol())
        try:
            accepted = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError as error:  # no descriptor is left
            connection.connection_lost(error)
            return
        finally:
            transport.abort()
        task = asyncio.get_running_loop().create_task(
            self._start_tls(self._tls, connection, accepted)
        )
        self._tls_handshakes[task] = accepted
        task.add_done_callback(self._tls_handshakes.pop)

    def resume(self, connection: OpeningConnection, transport: asyncio.Transport) -> None:
        """Record that the TLS handshake of a connection has ended; its request may follow."""
        self._waiting[connection] = transport

    def end(self, connection: OpeningConnection) -> None:
        """Record that the request of a connection has arrived, or that it is closed."""
        self._waiting.pop(connection, None)

    async def abort(self) -> None:
        """Close all connections whose request has not arrived."""
        for transport in list(self._waiting.values()):
            transport.abort()
        for accepted in self._tls_handshakes.values():
            with suppress(OSError):  # the client has closed it
                accepted.shutdown(socket.SHUT_RDWR)
        if self._tls_handshakes:
            await asyncio.wait(self._tls_handshakes)

    async def _start_tls(
        self, tls: ssl.SSLContext, connection: OpeningConnection, accepted: socket.socket
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: cast(asyncio.Protocol, connection),
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=CLOSE_TIMEOUT_S,
            )
        except OSError as error:  # as are those of TLS, and a handshake that took too long
            connection.connection_lost(error)
