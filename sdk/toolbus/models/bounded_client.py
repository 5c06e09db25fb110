"""The HTTP client that the providers' clients use: bounded, and without redirects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import httpx2
from pydantic import SecretStr

from toolbus.models.key_redaction import KeyRedaction
from toolbus.models.stream_reading import MAX_ERROR_BYTES, check_whole, checked_events

__all__ = ["BoundedClient", "TooLongReplyError", "as_plain", "events_of", "responses_of_streams"]

_CONNECT_TIMEOUT_S = 10.0
_MAX_REPLY_BYTES = 256 * 2**20
"""What is read of a reply, streamed or not, after decompression: the largest have some pictures in
Base64, and the event of one token has about 300 bytes."""
_RETAINED_HEADERS = ("content-type", "location", "retry-after", "retry-after-ms", "x-should-retry")
_responses: ContextVar[list[httpx2.Response] | None] = ContextVar("responses", default=None)


class TooLongReplyError(httpx2.HTTPError):
    """A reply has more bytes than are read."""


@contextmanager
def responses_of_streams() -> Iterator[list[httpx2.Response]]:
    """Collect the responses of streams that begin within the block, so that they can be closed."""
    responses: list[httpx2.Response] = []
    token = _responses.set(responses)
    try:
        yield responses
    finally:
        _responses.reset(token)


class BoundedClient(httpx2.AsyncClient):
    """Reads replies and refusals to a limit, the latter without the key; follows no redirect.

    What a client raises, logs and keeps in spans has parts of the refusal. A redirect to another
    host would take the key there: only the header `Authorization` is removed then, and two of three
    providers have the key in a header of their own.
    """

    def __init__(self, key: SecretStr) -> None:
        super().__init__(follow_redirects=False)
        self._redact = KeyRedaction(key)

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **options: Any
    ) -> httpx2.Response:
        """Send a request, as the base class does."""
        # How long a reply may take is counted by the model: for the whole, retries included.
        request.extensions["timeout"] = httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S).as_dict()
        response = await super().send(request, stream=True, **options)
        if response.is_success:
            # Each event that came stays in memory until the reply is whole. The bytes are counted
            # while they are unpacked, which httpx2 does in pieces of at most 1 MiB.
            read = partial(_to_the_limit, response.aiter_bytes)
            if not stream:
                setattr(response, "aiter_bytes", read)  # noqa: B010
                await _read_whole(response)
                return response
            # The clients read a stream by this function too.
            setattr(response, "aiter_bytes", lambda _=None: checked_events(read()))  # noqa: B010
            if (responses := _responses.get()) is not None:
                responses.append(response)
            return response
        body = bytearray()
        try:
            async for piece in response.aiter_bytes():
                body += piece[: MAX_ERROR_BYTES - len(body)]
                if len(body) == MAX_ERROR_BYTES:
                    break
        except httpx2.HTTPError:
            pass  # the status says more than that its body was cut
        finally:
            await response.aclose()
        text = self._redact(body.decode("utf-8", "replace"))
        headers = {
            name: self._redact(response.headers[name])
            for name in _RETAINED_HEADERS
            if name in response.headers
        }
        return httpx2.Response(
            response.status_code, headers=headers, content=text.encode(), request=request
        )


async def _read_whole(response: httpx2.Response) -> None:
    try:
        await response.aread()
    except BaseException:
        await response.aclose()
        raise
    check_whole(response.content)


async def _to_the_limit(
    read: Callable[..., AsyncGenerator[bytes, None]], chunk_size: int | None = None
) -> AsyncGenerator[bytes, None]:
    left = _MAX_REPLY_BYTES
    async with aclosing(read(chunk_size)) as pieces:
        async for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise TooLongReplyError(f"a reply of more than {_MAX_REPLY_BYTES:,} bytes")
            yield piece


def as_plain(reply: Any) -> Any:
    """Return what a client gave as plain JSON, as far as it is a model of its API."""
    to_dict = getattr(reply, "to_dict", None)
    return reply if to_dict is None else to_dict(warnings=False)


async def events_of(stream: Any) -> AsyncGenerator[Any, None]:
    """Yield the events of a client's stream as plain JSON."""
    try:
        async for event in stream:
            yield as_plain(event)
    finally:
        await stream.close()
