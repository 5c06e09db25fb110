"""The transport of `http_client`: it checks URLs and resolved addresses, and bounds responses.

A name is resolved once for each connection. The address that was checked is the one that is
connected to, so that a second answer of the name server cannot lead elsewhere; the `Host` header
and the name in TLS stay those of the URL. Proxies are not used: they resolve names themselves.

A server may send some 100 KB of headers. The parser of mail headers, which the standard library has
for `Content-Type` and `Content-Disposition`, takes 14 s for 90,000 semicolons: headers are bounded
before anything reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from math import inf

import httpcore2
import httpx2

from toolbus import ToolFailed
from toolbus.transport.name_lookup import HostResolver
from toolbus_toolkits.network.addresses import AddressPolicy, host_text

__all__ = [
    "MAX_ADDRESS_CHARS",
    "BoundedStream",
    "CheckedTransport",
    "ResponseTooLarge",
    "bounded_headers",
]

MAX_ADDRESS_CHARS = 16 * 1024
"""The most characters of a `Location` or a `Link`. A longer one is refused where it is read: a part
of an address would be another address, and no address would be the end of the pages."""
# A name of a file has at most 255 characters, each up to 9 bytes where it is escaped.
_MAX_BYTES = 4 * 1024
_MAX_PARAMETERS = 32
_WITH_PARAMETERS = frozenset({b"content-disposition", b"content-type"})
_COOKIES = frozenset({b"set-cookie", b"set-cookie2"})
"""No client keeps any, but each would parse them: 40 ms for 90 KB."""


def bounded_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response without cookies, and those with parameters once and cut."""
    bounded: list[tuple[bytes, bytes]] = []
    seen: set[bytes] = set()
    for name, value in headers:
        lower = name.lower()
        if lower in _COOKIES or lower in seen:
            continue  # a second one would be joined to the first
        if lower in _WITH_PARAMETERS:
            seen.add(lower)
            parts = value[:_MAX_BYTES].split(b";", _MAX_PARAMETERS + 1)
            value = b";".join(parts[: _MAX_PARAMETERS + 1])
        bounded.append((name, value))
    return bounded


_RESOLVER = HostResolver()
_KEEP_ALIVE_S = 5.0
_CONNECTIONS = 100
_MAX_IDLE_CONNECTIONS = 20
"""Each holds a descriptor here and a place at its server, for `_KEEP_ALIVE_S`."""


class ResponseTooLarge(ToolFailed):
    """A response with more bytes than the client reads."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"the response has more than {max_bytes:,} bytes: request less, or raise the limit",
            retryable=False,
        )


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Makes connections to the addresses that a policy allows."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Resolve a host, check every address, and connect to the first that answers.

        Raises `AddressRefused` if one of them is not allowed.
        """
        failure: Exception = httpcore2.ConnectError("the host has no address")
        for address in await self._resolve(host, port, timeout):
            try:
                return await self._backend.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _resolve(self, host: str, port: int, timeout: float | None) -> list[str]:
        try:
            found = await _RESOLVER.addresses(host, port, inf if timeout is None else timeout)
        except OSError as error:
            text = f"the name {host_text(host)} cannot be resolved"
            raise httpcore2.ConnectError(text) from error
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        for address in addresses:
            self._policy.check_address(host, address)
        return addresses

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        await asyncio.sleep(seconds)


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to hosts that a policy allows.

    Args:
        policy: It is asked for each URL and for each address.
        max_response_bytes: The most bytes of one body; more of them raise `ResponseTooLarge` while
            the body is read.
    """

    def __init__(self, policy: AddressPolicy, max_response_bytes: int) -> None:
        self._policy = policy
        self._max_bytes = max_response_bytes
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(),
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_MAX_IDLE_CONNECTIONS,
            keepalive_expiry=_KEEP_ALIVE_S,
            network_backend=CheckedBackend(policy),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Raises `AddressRefused`, and the errors of httpx2."""
        self._policy.check_url(str(request.url))
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        url = request.url
        inner = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _errors_of_httpx2():
            response = await self._pool.handle_async_request(inner)
        assert isinstance(response.stream, AsyncIterable)
        return httpx2.Response(
            status_code=response.status,
            headers=bounded_headers(response.headers),
            stream=BoundedStream(response.stream, self._max_bytes),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


class BoundedStream(httpx2.AsyncByteStream):
    """The bytes of a body, up to a limit."""

    def __init__(self, stream: AsyncIterable[bytes], max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        with _errors_of_httpx2():
            async for piece in self._stream:
                count += len(piece)
                if count > self._max_bytes:
                    raise ResponseTooLarge(self._max_bytes)
                yield piece

    async def aclose(self) -> None:
        """End the response; its connection is closed if the body was not read to its end."""
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


@contextmanager
def _errors_of_httpx2() -> Iterator[None]:
    """Turn the errors of httpcore2 into those of httpx2, which have the same names."""
    try:
        yield
    except (
        httpcore2.TimeoutException,
        httpcore2.NetworkError,
        httpcore2.ProtocolError,
        httpcore2.UnsupportedProtocol,
    ) as error:
        kind = getattr(httpx2, type(error).__name__, httpx2.TransportError)
        raise kind(str(error)) from error
