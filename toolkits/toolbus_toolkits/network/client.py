"""The HTTP client of all toolkits, made for one policy.

Every redirect is a request of its own: its URL and its addresses are checked like those of the
first one. A request to another origin keeps none of the headers that may hold a credential. Where a
server asks for it with `Retry-After`, the client waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.cookiejar import DefaultCookiePolicy

import httpx2

from toolbus.untrusted_text import one_line
from toolbus_toolkits.network.addresses import AddressPolicy, AddressRefused, host_text
from toolbus_toolkits.network.transport import MAX_ADDRESS_CHARS, CheckedTransport, ResponseTooLarge

__all__ = [
    "FINAL_URL",
    "MAX_RESPONSE_BYTES",
    "NOT_SENT",
    "SECRET_QUERY",
    "WAIT_UNTIL",
    "RedirectTransport",
    "failure_reason",
    "http_client",
    "read_body",
]

WAIT_UNTIL = "toolbus.wait_until"
"""The extension of a request: until when, by the loop's clock, `Retry-After` may be awaited."""
FINAL_URL = "toolbus.final_url"
"""The extension of a response: the URL that answered, after redirects."""
SECRET_QUERY = "toolbus.secret_query"
"""The extension of a request: an escaped part of its query that holds a credential.

The transport adds it, because the client logs the URLs of its requests.
"""
MAX_REDIRECTS = 10
"""Two servers may redirect to each other without end."""
MAX_TRIES = 5
"""How often one request is sent, with the answers 429 and 503."""
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.InvalidURL)
"""Errors of a request that no server got."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD = frozenset({307, 308})
_SAFE = frozenset({"GET", "HEAD"})
_IDEMPOTENT = _SAFE | {"PUT", "DELETE", "OPTIONS", "TRACE"}
_WAITS = frozenset({429, 503})
_PLAIN_HEADERS = frozenset({"accept", "accept-encoding", "accept-language", "user-agent"})
_BODY_HEADERS = frozenset(
    {"content-encoding", "content-length", "content-type", "transfer-encoding"}
)


class RedirectTransport(httpx2.AsyncBaseTransport):
    """Follows the redirects of another transport, and repeats what a server postpones.

    An idempotent request that has the extension `WAIT_UNTIL` is sent again after the time that a
    429 or 503 names in `Retry-After`, if that time ends before; at most five times in all. A
    request whose body is a stream is neither redirected with its body nor repeated.

    Args:
        transport: It sends each request, and checks its address.
        follow: Whether redirects are followed. Without it they are the response.
        sleep: Waits some seconds.
    """

    def __init__(
        self,
        transport: httpx2.AsyncBaseTransport,
        *,
        follow: bool = True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transport = transport
        self._follow = follow
        self._sleep = sleep

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the last response. Raises what the transport raises."""
        for count in range(MAX_REDIRECTS + 1):
            with _of_a_redirect(count > 0):
                response = await self._send(_with_secret(request))
            following = _redirected(request, response) if self._follow else None
            if following is None:
                response.extensions[FINAL_URL] = str(request.url)
                return response
            await response.aclose()
            request = following
        raise httpx2.TooManyRedirects(f"more than {MAX_REDIRECTS} redirects")

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        for tries in range(1, MAX_TRIES + 1):
            with _of_a_redirect(tries > 1):
                response = await self._transport.handle_async_request(request)
            wait_s = _wait_s(request, response)
            if wait_s is None or tries == MAX_TRIES:
                break
            await response.aclose()
            await self._sleep(wait_s)
        return response

    async def aclose(self) -> None:
        """Close the transport."""
        await self._transport.aclose()


@contextmanager
def _of_a_redirect(is_later: bool) -> Iterator[None]:
    """Let the error of a later request not say that none was sent: one has been answered."""
    try:
        yield
    except AddressRefused as error:
        if is_later:
            raise AddressRefused(error.message, executed="yes") from error
        raise
    except NOT_SENT as error:
        if is_later:
            text = f"a request after the first one was not sent: {type(error).__name__}"
            raise httpx2.RemoteProtocolError(text) from error
        raise


def _with_secret(request: httpx2.Request) -> httpx2.Request:
    """Return the request with the secret part of its query, which no redirect keeps."""
    secret = request.extensions.pop(SECRET_QUERY, "")
    if not secret:
        return request
    query = b"&".join(part for part in (request.url.query, secret.encode()) if part)
    return httpx2.Request(
        request.method,
        request.url.copy_with(query=query),
        headers=request.headers,
        stream=request.stream,
        extensions=request.extensions,
    )


def _wait_s(request: httpx2.Request, response: httpx2.Response) -> float | None:
    """Return how long to wait before the request is sent again; None if it must not be."""
    until = request.extensions.get(WAIT_UNTIL)
    if until is None or response.status_code not in _WAITS:
        return None
    if request.method not in _IDEMPOTENT or not _is_replayable(request):
        return None
    wait_s = retry_after_s(response.headers.get("retry-after", ""))
    if wait_s is None or asyncio.get_running_loop().time() + wait_s >= until:
        return None
    return wait_s


def retry_after_s(text: str) -> float | None:
    """Read the value of `Retry-After`: seconds or a date. None for any other text."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _is_replayable(request: httpx2.Request) -> bool:
    return isinstance(request.stream, httpx2.ByteStream)


def _redirected(request: httpx2.Request, response: httpx2.Response) -> httpx2.Request | None:
    """Return the request to which a response redirects; None if it is the last response.

    Raises `AddressRefused` for a redirect from https to http, and for no usable URL.
    """
    location = response.headers.get("location")
    if response.status_code not in _REDIRECTS or not location:
        return None
    if len(location) > MAX_ADDRESS_CHARS:
        raise AddressRefused("a redirect has a URL that is too long", executed="yes")
    try:
        url = request.url.join(location)
    except (httpx2.InvalidURL, ValueError) as error:
        raise AddressRefused("a redirect has an invalid URL", executed="yes") from error
    if request.url.scheme == "https" and url.scheme == "http":
        raise AddressRefused(
            f"{host_text(request.url.host)} redirects to {host_text(url.host)} without encryption",
            executed="yes",
        )
    keeps = request.method in _SAFE or response.status_code in _KEEPS_METHOD
    same_origin = _origin(url) == _origin(request.url)
    method = request.method if keeps else "GET"
    if method not in _SAFE and not (same_origin and _is_replayable(request)):
        return None  # a body is not sent to another origin
    dropped = _BODY_HEADERS
    body = None
    if method == request.method:
        dropped = frozenset()
        if same_origin and _is_replayable(request):
            body = request.stream
    headers = [
        (name, value)
        for name, value in request.headers.multi_items()
        if name not in dropped and (same_origin or name in _PLAIN_HEADERS)
    ]
    return httpx2.Request(method, url, headers=headers, stream=body, extensions=request.extensions)


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


MAX_RESPONSE_BYTES = 16 * 1024 * 1024
"""The most bytes of one response, where the caller of `http_client` names no other limit."""


def http_client(
    policy: AddressPolicy,
    *,
    timeout_s: float = 30.0,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
    headers: Mapping[str, str] | None = None,
    follow_redirects: bool = True,
    around: Callable[[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport] | None = None,
) -> httpx2.AsyncClient:
    """Return a client that reaches only what a policy allows; close it after use.

    Redirects are followed by the transport, which checks each of them. The client keeps no cookies,
    and reads neither proxies nor credentials from the environment.

    Args:
        policy: It is asked for each URL, each redirect and each resolved address.
        timeout_s: Seconds for a connection, and without any byte of a response.
        max_response_bytes: The most bytes of a body, as sent; `read_body` bounds it unpacked.
        headers: Headers of every request. They do not follow a redirect to another origin.
        follow_redirects: Without it a redirect is the response.
        around: Makes a transport around that of the client.
    """
    transport: httpx2.AsyncBaseTransport = RedirectTransport(
        CheckedTransport(policy, max_response_bytes), follow=follow_redirects
    )
    if around is not None:
        transport = around(transport)
    client = httpx2.AsyncClient(
        transport=transport,
        timeout=timeout_s,
        headers={"user-agent": "toolbus", "accept-encoding": "gzip", **(headers or {})},
        follow_redirects=False,
        trust_env=False,
    )
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return client


async def read_body(response: httpx2.Response, max_bytes: int = MAX_RESPONSE_BYTES) -> bytes:
    """Read the body of a streamed response, unpacked. Raises `ResponseTooLarge`."""
    pieces: list[bytes] = []
    count = 0
    async for piece in response.aiter_bytes():
        count += len(piece)
        if count > max_bytes:
            raise ResponseTooLarge(max_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def status_text(status: int) -> str:
    """Return a status of HTTP with its phrase: `404 Not Found`."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def failure_reason(error: Exception) -> str:
    """Return why a request failed, without its URL, which may hold a credential."""
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "the time is over"
    if isinstance(error, httpx2.ConnectError):  # it names the host at most
        return one_line(str(error), 300) or "the connection failed"
    return type(error).__name__
