"""A server-side connection with its admission decision, counted against the quotas."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, NoReturn, cast

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.frames import CloseCode
from websockets.protocol import Protocol

from toolbus.transport.client_addresses import TrustedProxies, address_of
from toolbus.transport.websocket import CLOSE_TIMEOUT_S, SLOW_CONSUMER, ServerTransport
from toolbus_server.access.admission import Admitted, Refusal
from toolbus_server.access.connection_limits import ConnectionQuotas, DescriptorReserve
from toolbus_server.access.unread_memory import UnreadMemory, write_limit_of
from toolbus_server.identity_usage import IdentityUsage
from toolbus_server.websocket.request_reader import InvalidRequest, RequestReader, RequestTooLarge

__all__ = ["AcceptedConnection", "Handshakes"]


class Handshakes:
    """The connections of one server that are accepted and have not sent their request yet.

    The TLS handshake begins here, not in the listening socket: that would report a connection only
    after its handshake, so that half-open ones would count for no address and use all descriptors.

    Args:
        tls: The certificate; None for plain TCP.
        timeout_s: Seconds that a TLS handshake may take; the request has its own limit.
    """

    def __init__(self, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._tls = tls
        self._timeout_s = timeout_s
        self._waiting: dict[AcceptedConnection, asyncio.Transport] = {}
        """Those whose request has not arrived."""
        self._tls_handshakes: dict[asyncio.Task[None], socket.socket] = {}

    def begin(self, connection: AcceptedConnection, transport: asyncio.Transport) -> None:
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

    def resume(self, connection: AcceptedConnection, transport: asyncio.Transport) -> None:
        """Record that the TLS handshake of a connection has ended; its request may follow."""
        self._waiting[connection] = transport

    def end(self, connection: AcceptedConnection) -> None:
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
        self, tls: ssl.SSLContext, connection: AcceptedConnection, accepted: socket.socket
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=CLOSE_TIMEOUT_S,
            )
        except OSError as error:  # as are those of TLS, and a handshake that took too long
            connection.connection_lost(error)


class _Dropped(BaseException):
    """Ends `AcceptedConnection.handshake`.

    websockets would answer any other exception, and take a connection that has ended for a bug.
    """


class AcceptedConnection(ServerTransport):
    """A connection that counts against the quotas from the moment it is accepted."""

    # Slots: with these in its dict it would have too many attributes for a key-sharing dict.
    __slots__ = (
        "_counted",
        "_descriptors",
        "_handshakes",
        "_has_started",
        "_is_accepted",
        "_memory",
        "_peer",
        "_proxies",
        "_quotas",
        "_request_reader",
        "address",
        "decision",
        "unread_bytes",
        "usage",
    )

    def __init__(
        self,
        *args: Any,
        quotas: ConnectionQuotas,
        proxies: TrustedProxies,
        descriptors: DescriptorReserve,
        memory: UnreadMemory,
        handshakes: Handshakes,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._proxies = proxies
        self._descriptors = descriptors
        self._memory = memory
        self.unread_bytes: int = 0
        """The bytes that wait for it, as the memory counts them."""
        self.usage: IdentityUsage | None = None
        """What its identity uses; None before it is admitted."""
        self._handshakes = handshakes
        self._has_started = self._is_accepted = False
        self._peer = ""
        self.decision: Admitted | Refusal | None = None
        self._quotas = quotas
        self._counted: list[Hashable] = []
        self.address = ""
        self._request_reader: RequestReader | None = RequestReader()
        # We read the request, so that websockets begins with the frames after it.
        self.protocol.parser = Protocol.parse(self.protocol)
        next(self.protocol.parser)

    def count(self, key: Hashable) -> None:
        """Count the connection under one more key until it closes."""
        self._quotas.add(key)
        self._counted.append(key)

    def join(self, usage: IdentityUsage, connections: int) -> None:
        """Count what waits for it for its identity from now on."""
        self.usage = usage
        self.transport.set_write_buffer_limits(write_limit_of(connections))

    def unread_changed(self, size: int) -> None:
        """Count the bytes that wait for the participant."""
        self._memory.update(self, size)

    def may_wait(self, size: int) -> bool:
        """Whether a call, message or input may wait, so that it closes no connection later."""
        return self._memory.has_room_for(self, size)

    def close_as_slow(self) -> None:
        """Close it, since too many bytes wait for the participants of its identity or of all."""
        self.close_with(SLOW_CONSUMER, "slow consumer")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or drop it without an answer.

        It is dropped if its address floods the server, or if descriptors run out. Over TLS it is
        called again after the handshake.
        """
        connected = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        if self._is_accepted:
            self._handshakes.resume(self, connected)
            self.start(connected)
        elif self._accepts(connected):
            self._is_accepted = True
            self._handshakes.begin(self, connected)
        else:
            connected.abort()

    def _accepts(self, transport: asyncio.BaseTransport) -> bool:
        if self._descriptors.is_reserved(transport.get_extra_info("socket").fileno()):
            return False
        name = transport.get_extra_info("peername")
        self._peer = str(name[0]) if isinstance(name, tuple) and name else ""
        if self._proxies.include(self._peer):
            return True  # the request names the client's address
        self.address = address_of((self._peer,))
        if self.address:
            self.count(self.address)
        if self._quotas.is_flooded(self.address):
            self._quotas.dropped += 1
            return False
        return True

    def start(self, transport: asyncio.BaseTransport) -> None:
        """Read the request, after the TLS handshake if there is one."""
        self._has_started = True
        super().connection_made(transport)

    async def handshake(self, *args: Any, **kwargs: Any) -> None:
        """Answer the request.

        A client that breaks the handshake or leaves meanwhile is not an error of the server; before
        version 17, websockets would log it as one.
        """
        with suppress(ConnectionClosed, InvalidHandshake, _Dropped):
            await super().handshake(*args, **kwargs)

    def take_early(self, data: bytes) -> bytes:
        """Read the request, and return what follows it; answer one that is too large at once."""
        if self._request_reader is None:
            return data
        if self.protocol.eof_sent:  # it was refused
            return b""
        try:
            complete = self._request_reader.read(data)
        except RequestTooLarge as error:
            self.protocol.send_response(self.protocol.reject(error.status, error.text))
            self.send_data()
        except InvalidRequest:
            self.protocol.fail(CloseCode.PROTOCOL_ERROR)  # no frame is sent before the upgrade
            self.send_data()
        else:
            if complete is not None:
                self._request_reader = None
                request, rest = complete
                self.process_event(request)
                return rest
        return b""

    def request_arrived(self, headers: Headers) -> None:
        """End the handshake; count a client of a trusted proxy by the address in its headers."""
        self._handshakes.end(self)
        if not self._counted and self._proxies.include(self._peer):
            forwarded = headers.get_all("X-Forwarded-For")
            self.address = self._proxies.client_of(self._peer, forwarded)
            self.count(self.address)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        counted, self._counted = self._counted, []
        for key in counted:
            self._quotas.remove(key)
        self._handshakes.end(self)
        if self._has_started:
            super().connection_lost(exc)

    def closing(self) -> None:
        """Remove the participant now, as its socket may take another 2 s to close."""
        # Its calls and toolkits end by this, whichever side closes and why. It is called later, as
        # a slow participant may be closed in the middle of a change to its room.
        if self.receiver is not None:
            self.loop.call_soon(self.receiver.on_close)

    async def drop(self) -> NoReturn:
        """End, without an answer, a handshake whose client left or sent invalid data after it."""
        self.transport.abort()
        await self.wait_closed()
        raise _Dropped

    def close_with(self, code: int, reason: str) -> None:
        """Close with a code and a reason; slow consumers are counted."""
        if code == SLOW_CONSUMER and self.is_open:
            self._quotas.slow_consumers += 1
        super().close_with(code, reason)
