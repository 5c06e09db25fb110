"""Limits of HTTP that uvicorn has not: of headers, of time, and of what waits on a connection.

httptools refuses what is not HTTP, and the shapes by which a request is smuggled past a proxy: two
lengths, a length beside chunks, folded headers, bare line ends. Here is what it lets through.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import Counter
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NoReturn

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from toolbus.transport.client_addresses import TrustedProxies, address_of
from toolbus_gateway.limits import (
    MAX_BODY_S,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_S,
    MAX_PIPELINED,
)

__all__ = ["BoundedHttpProtocol", "Connections"]

_REFUSED_CONNECTIONS = 256
"""Connections of an address beyond its requests that get a response; further ones are dropped."""


class Connections:
    """Counts the connections of each address; those of trusted proxies are for many clients.

    Args:
        max_per_address: The requests of one address at a time; 0 for any number.
        trusted_proxies: Networks.
        tls: The certificate; None for plain TCP. The listening socket has none: it would report a
            connection only after its handshake, so that half-open ones would count for no address,
            each with 300 KiB for a minute.
    """

    def __init__(
        self,
        max_per_address: int,
        trusted_proxies: tuple[str, ...],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls = tls
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._limit = max_per_address and max_per_address + _REFUSED_CONNECTIONS
        self._proxies = TrustedProxies(trusted_proxies)
        self._counts: Counter[str] = Counter()

    def add(self, peer: str) -> str | None:
        """Count a connection, and return as what; None if there are too many."""
        if self._proxies.include(peer):
            return ""
        address = address_of((peer,))
        if 0 < self._limit <= self._counts[address]:
            return None
        self._counts[address] += 1
        return address

    def remove(self, address: str) -> None:
        """Uncount what `add` counted."""
        if address:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def begin_tls(self, protocol: BoundedHttpProtocol, transport: asyncio.Transport) -> None:
        """Begin the handshake of an accepted connection, which then gets another transport."""
        assert self.tls is not None
        # The socket goes to a new transport: this one may read the first bytes.
        transport.set_protocol(asyncio.Protocol())
        try:
            accepted = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError as error:  # no descriptor is left
            protocol.connection_lost(error)
            return
        finally:
            transport.abort()
        task = asyncio.create_task(self._shake_hands(self.tls, protocol, accepted))
        self._handshakes[task] = accepted
        task.add_done_callback(self._handshakes.pop)

    async def _shake_hands(
        self, tls: ssl.SSLContext, protocol: BoundedHttpProtocol, accepted: socket.socket
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, accepted, ssl=tls, ssl_handshake_timeout=MAX_HEADERS_S
            )
        except OSError as error:  # as are those of TLS, and a handshake that took too long
            protocol.connection_lost(error)

    async def abort_handshakes(self) -> None:
        """Close the connections whose handshake has not ended."""
        for accepted in self._handshakes.values():
            with suppress(OSError):  # the client has closed it
                accepted.shutdown(socket.SHUT_RDWR)
        if self._handshakes:
            await asyncio.wait(self._handshakes)


class _Refused(Exception):
    """Ends the parsing of a request; `send_400_response` then says why."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits.

    Args:
        connections: Those of this server.
        config: See uvicorn, as the others.
    """

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._counts = connections
        self._counted_as: str | None = None
        self._has_begun = False
        self._refusal = HTTPStatus.BAD_REQUEST, "This is not a request of HTTP/1.1."
        self._header_bytes = 0
        self._silent_bytes = 0
        """What arrived since the parser named something: it collects a long header or trailer."""
        self._reads_headers = True
        self._reads_body = False
        self._timer: asyncio.TimerHandle | None = None
        self._cycles: list[RequestResponseCycle] = []
        """The requests that may not have their response yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; a connection without a request has a time too. Called again after a handshake."""
        if self._counted_as is None:
            peer = get_remote_addr(transport)
            self._counted_as = self._counts.add(peer[0] if peer else "")
            if self._counted_as is None:
                transport.abort()
                return
            if self._counts.tls is not None:
                self._counts.begin_tls(self, transport)
                return
        self._has_begun = True
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._counted_as is not None:
            self._counts.remove(self._counted_as)
        if not self._has_begun:
            return
        self._reads_headers = self._reads_body = False
        self._watch()
        for cycle in self._cycles:  # uvicorn does so for the last one alone
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request, or of several."""
        was_reading = self._reads_headers, self._reads_body
        self._silent_bytes += len(data)
        super().data_received(data)
        if self._silent_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refusal = _TOO_LARGE
            self.send_400_response("")
        if not self._reads_body and (self.cycle is None or self.cycle.response_complete):
            # uvicorn's time for an idle connection has ended, and may not begin again.
            self._reads_headers = True
        is_reading = self._reads_headers, self._reads_body
        if was_reading != is_reading or not any(is_reading):
            self._watch()

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._silent_bytes = 0
        self._header_bytes = 0
        self._reads_headers = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Read a piece of the target."""
        self._silent_bytes = 0
        self._header_bytes += len(url)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(*_TOO_LARGE)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read a header. One after the body is dropped: what it says was checked before it."""
        self._silent_bytes = 0
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(*_TOO_LARGE)
        if self._reads_headers:
            if len(self.headers) >= MAX_HEADERS:
                self._refuse(*_TOO_LARGE)
            # The parser leaves the white space behind a value (RFC 9110, 5.5: no part of it).
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._silent_bytes = 0
        if self.parser.should_upgrade():  # httptools would drop the body
            self._refuse(HTTPStatus.BAD_REQUEST, "No Upgrade here: send HTTP/1.1 without it.")
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests wait for one response.")
        if not self.url.startswith((b"/", b"*")):
            self._take_host()
        self._reads_headers = False
        self._reads_body = True
        super().on_headers_complete()
        unanswered = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles = [*unanswered, self.cycle]

    def _take_host(self) -> None:
        """Let the authority of an absolute target be the host, as RFC 9112 (3.2.2) says."""
        try:
            target = httptools.parse_url(self.url)
        except httptools.HttpParserInvalidURLError:
            self._refuse(HTTPStatus.BAD_REQUEST, "The target of the request is not a path.")
        host = target.host or b""
        if b":" in host:
            host = b"[%b]" % host
        if target.port:
            host += b":%d" % target.port
        self.headers[:] = [header for header in self.headers if header[0] != b"host"]
        self.headers.append((b"host", host))

    def on_chunk_header(self) -> None:
        """Begin a chunk; the last one is empty."""
        self._silent_bytes = 0

    def on_body(self, body: bytes) -> None:
        """Read a piece of the body."""
        self._silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request, whose response may have ended before."""
        self._silent_bytes = 0
        self._reads_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what arrives, and close; a response that has begun is cut."""
        status, text = self._refusal
        cycle = self.cycle
        is_between = cycle is None or cycle.response_complete or not cycle.response_started
        if is_between and not self.pipeline:
            body = f"{text}\n".encode()
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(body)}\r\n"
                "Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _refuse(self, status: HTTPStatus, text: str) -> NoReturn:
        self._refusal = status, text
        raise _Refused

    def _watch(self) -> None:
        """Set the time for what is being read now, or none."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reads_body:
            self._timer = self.loop.call_later(MAX_BODY_S, self._too_slow)
        elif self._reads_headers:
            self._timer = self.loop.call_later(MAX_HEADERS_S, self._too_slow)

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._reads_body and self.flow.read_paused:  # it is we who do not read
            self._watch()
            return
        self._refusal = HTTPStatus.REQUEST_TIMEOUT, "The request arrived too slowly."
        self.send_400_response("")


_TOO_LARGE = (
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    f"The headers are over {MAX_HEADERS} or {MAX_HEADER_BYTES // 1024} KiB.",
)
