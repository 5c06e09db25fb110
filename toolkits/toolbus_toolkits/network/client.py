"""The HTTP client of all toolkits, made for one policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http.cookiejar import DefaultCookiePolicy

import httpx2

from toolbus.untrusted_text import one_line
from toolbus_toolkits.network.addresses import AddressPolicy
from toolbus_toolkits.network.redirects import RedirectTransport
from toolbus_toolkits.network.transport import CheckedTransport, ResponseTooLarge

__all__ = ["MAX_RESPONSE_BYTES", "failure_reason", "http_client", "read_body"]

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


def failure_reason(error: Exception) -> str:
    """Return why a request failed, without its URL, which may hold a credential."""
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "the time is over"
    if isinstance(error, httpx2.ConnectError):  # it names the host at most
        return one_line(str(error), 300) or "the connection failed"
    return type(error).__name__
