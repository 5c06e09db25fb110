"""Bounds on what an MCP server with an address may do to its client, below the MCP SDK.

The SDK reads messages whole, asks again as soon as a server ends a stream of events, and waits for
the answer to the end of a session. Here a message is bounded, streams are opened at a pace, and the
end of a session is sent without waiting for its answer for long. The query of the address, which
may hold a token, is added here, because the SDK and its client log addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import httpx2

from toolbus_toolkits.network import SECRET_QUERY, BoundedStream

__all__ = ["BoundedHttp", "without_query"]

_EVENTS = "text/event-stream"
_FREE_STREAMS = 3
_STREAM_PAUSE_S = 1.0
_END_S = 2.0


def without_query(address: str) -> str:
    """Return an address without its query and fragment."""
    return urlsplit(address)._replace(query="", fragment="").geturl()


class BoundedHttp(httpx2.AsyncBaseTransport):
    """A transport for the requests of one MCP client.

    Args:
        transport: It sends each request.
        max_message_bytes: The most bytes of a body that is not read event by event. It must not be
            packed, because the SDK unpacks it whole.
        post_streams: Whether the answer to a POST may be a stream of events.
        address: The address of the server; requests to it get its query.
        sleep: Waits some seconds.
    """

    def __init__(
        self,
        transport: httpx2.AsyncBaseTransport,
        *,
        max_message_bytes: int,
        post_streams: bool,
        address: str = "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transport = transport
        self._max_bytes = max_message_bytes
        self._streaming = {"GET", "POST"} if post_streams else {"GET"}
        self._sleep = sleep
        self._plain = str(httpx2.URL(without_query(address)))
        self._query = urlsplit(address).query
        self._streams = 0
        self._next_at = 0.0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Raises errors of httpx2; reading a body, `ResponseTooLarge`."""
        if self._query and str(request.url) == self._plain:
            request.extensions[SECRET_QUERY] = self._query
        if request.method == "DELETE":
            return await self._end_session(request)
        if request.method == "GET":
            await self._wait_for_turn()
        response = await self._transport.handle_async_request(request)
        if self._is_stream(request, response):
            return response
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.DecodingError("the server packed a message, which was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=BoundedStream(response.stream, self._max_bytes),
            extensions=response.extensions,
        )

    def _is_stream(self, request: httpx2.Request, response: httpx2.Response) -> bool:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return response.status_code == 200 and kind == _EVENTS and request.method in self._streaming

    async def _wait_for_turn(self) -> None:
        """Wait before a stream is opened, beyond the first ones: a server may end each at once."""
        self._streams += 1
        if self._streams <= _FREE_STREAMS:
            return
        now = asyncio.get_running_loop().time()
        self._next_at = max(now, self._next_at + _STREAM_PAUSE_S)
        await self._sleep(self._next_at - now)

    async def _end_session(self, request: httpx2.Request) -> httpx2.Response:
        """Send the end of a session; the body of the answer is not read."""
        try:
            async with asyncio.timeout(_END_S):
                response = await self._transport.handle_async_request(request)
                await response.aclose()
        except TimeoutError as error:
            raise httpx2.ReadTimeout("the server did not confirm the end of the session") from error
        return httpx2.Response(response.status_code)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()
