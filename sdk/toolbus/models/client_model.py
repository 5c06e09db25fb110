"""A model that is asked through the client of its provider."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from email.utils import mktime_tz, parsedate_tz
from typing import Any, Protocol, TypeVar

import httpx2

from toolbus.models.adapter import Adapter, Plain
from toolbus.models.api_errors import api_error, error_text
from toolbus.models.bounded_client import TooLongReplyError
from toolbus.models.key_redaction import KeyRedaction
from toolbus.models.model_error import ModelError
from toolbus.models.reply_values import as_object
from toolbus.models.stream_reading import ErrorReply
from toolbus.untrusted_text import one_line

__all__ = ["ClientModel", "ProviderClient"]

_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 8.0
"""Pauses before retries grow from the first to the second by doubling, as those of the clients."""
_Answer = TypeVar("_Answer")


class ProviderClient(Protocol):
    """A client of a provider, made for one event loop. It retries nothing."""

    async def reply(self, request: Mapping[str, Any]) -> Any:
        """Return the reply as plain JSON, or whatever came in place of it."""

    async def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Ask for a streamed reply; return once the response began."""

    def is_reply(self, reply: Plain) -> bool:
        """Whether an object is a reply of this API."""

    async def aclose(self) -> None:
        """Close all connections."""


class ClientModel:
    """Asks a provider: time limit, retries and errors are the same for all; see `open_model`.

    There is a client for each event loop, because connections belong to the loop that opened them.
    """

    def __init__(  # noqa: PLR0913 - what `open_model` has decided
        self,
        name: str,
        adapter: Adapter,
        *,
        make_client: Callable[[], ProviderClient],
        redact: KeyRedaction,
        timeout_s: float,
        max_retries: int,
        host: str,
    ) -> None:
        self.name: str = name
        """The name that `open_model` was given."""
        self.adapter: Adapter = adapter
        """The words of the API."""
        self._host = host
        self._make_client = make_client
        self._redact = redact
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._clients: dict[asyncio.AbstractEventLoop, ProviderClient] = {}

    def __repr__(self) -> str:
        return f"<model {self.name}>"

    @property
    def identity(self) -> str:
        """Name and host: thoughts are read by no other model, and by no other server."""
        return f"{self.name} at {self._host}"

    async def reply(self, request: Mapping[str, Any]) -> Plain:
        """Ask the model and return the whole response. Raises `ModelError`."""
        client = self._client()
        reply = await self._retried(lambda: client.reply(request), self._max_retries)
        if not isinstance(reply, dict) or not client.is_reply(reply):
            raise _unusable_reply(reply, self.name, self._redact)
        return reply

    def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Plain, None]:
        """Ask the model and yield the events of its reply. Raises `ModelError`.

        A request is sent again only before the first event.
        """
        return self._stream(request, self._max_retries)

    def stream_once(self, request: Mapping[str, Any]) -> AsyncGenerator[Plain, None]:
        """Do as `stream`, without retries: for those who ask again themselves."""
        return self._stream(request, 0)

    async def _stream(
        self, request: Mapping[str, Any], max_retries: int
    ) -> AsyncGenerator[Plain, None]:
        client = self._client()
        first, events = await self._retried(lambda: self._begun(client, request), max_retries)
        try:
            yield first
            while (event := await self._next_event(events)) is not None:
                yield event
        finally:
            await events.aclose()

    async def _begun(
        self, client: ProviderClient, request: Mapping[str, Any]
    ) -> tuple[Plain, AsyncGenerator[Any, None]]:
        """Ask for a streamed reply; return its first event, and what gives the further ones."""
        events = await client.stream(request)
        try:
            first = await anext(events, None)
        except BaseException:
            await events.aclose()
            raise
        if isinstance(first, dict):
            return first, events
        await events.aclose()
        if first is None:
            raise ModelError(f"{self.name} sent an empty reply", retryable=True)
        raise _unusable_reply(first, self.name, self._redact)

    async def aclose(self) -> None:
        """Close the connections of this event loop. The model can be used again after that."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _client(self) -> ProviderClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            # Connections of a loop that was closed cannot be used or closed any more.
            for old in [other for other in self._clients if other.is_closed()]:
                del self._clients[old]
            try:
                self._clients[loop] = self._make_client()
            except Exception as error:  # such as a proxy in a variable that cannot be used
                reason = one_line(self._redact(f"{type(error).__name__}: {error}"), 1_000)
            # Outside of `except`, as in `_retried`.
            if loop not in self._clients:
                raise ModelError(f"the client for {self.name} cannot be made: {reason}")
        return self._clients[loop]

    async def _retried(self, ask: Callable[[], Awaitable[_Answer]], max_retries: int) -> _Answer:
        """Send a request, and again after a failure that may pass, within the time limit.

        The clients would retry as well, but each by other rules: one waits for hours if a server
        says so, one does not read `retry-after`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        retries = 0
        while True:
            limit = asyncio.timeout_at(deadline)
            try:
                async with limit:
                    return await ask()
            except asyncio.CancelledError as error:
                raise _without_frames(error) from None
            except Exception as error:
                failure = self._failure(error, limit)
            # Here, outside of `except`: what a client raised must not become the context.
            pause_s = failure.retry_after_s
            if pause_s is None:
                pause_s = min(_FIRST_PAUSE_S * 2**retries, _MAX_PAUSE_S) * random.uniform(0.75, 1)
            is_last = retries >= max_retries or loop.time() + pause_s >= deadline
            if is_last or not failure.retryable:
                raise failure
            await asyncio.sleep(pause_s)
            retries += 1

    async def _next_event(self, events: AsyncGenerator[Any, None]) -> Plain | None:
        """Return the next event; None at the end."""
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                event = await anext(events)
        except StopAsyncIteration:
            return None
        except asyncio.CancelledError as error:
            raise _without_frames(error) from None
        except Exception as error:
            failure = self._failure(error, limit)
        else:
            if isinstance(event, dict):
                return event
            failure = _unusable_reply(event, self.name, self._redact)
        raise failure

    def _failure(self, error: Exception, limit: asyncio.Timeout) -> ModelError:
        if limit.expired():
            return ModelError(
                f"{self.name} did not answer within {self._timeout_s:g} s", retryable=True
            )
        if isinstance(error, ModelError):
            return error
        return _model_error(error, self.name, self._redact)


def _without_frames(error: asyncio.CancelledError) -> asyncio.CancelledError:
    """Return a cancellation without the frames of the client: their variables have the key."""
    error.__context__ = None
    return error.with_traceback(None)


# What the clients of providers raise, as a `ModelError` without the key


def _model_error(error: Exception, provider: str, redact: Callable[[str], str]) -> ModelError:
    """Return what to raise in place of what a client raised.

    The exception of the client holds the request with the key in a header: it must become neither
    the cause nor the context of what is raised.
    """
    codes = [getattr(error, name, None) for name in ("status_code", "code")]  # the latter of Gemini
    # 200 is the status of an error inside of a stream.
    status = next((code for code in codes if isinstance(code, int) and code >= 300), None)
    headers = as_object(getattr(getattr(error, "response", None), "headers", None))
    body = getattr(error, "body", None) or getattr(error, "details", None)
    if status is None:
        for found in (error, error.__cause__):  # openai and anthropic chain the error of HTTP
            if isinstance(found, httpx2.HTTPError | httpx2.StreamError):
                return _transport_failure(found, provider, redact)
    if status is None and body is None:
        what = "sent what is no reply"
        if isinstance(error, TypeError):
            hint = "model.adapter.request makes requests that it takes"
            what = f"does not take this request, or {what} ({hint})"
        return ModelError(error_text(f"{provider} {what}: ", str(error), redact))
    if status is not None and 300 <= status < 400:
        words = "a redirect, which is not followed; if you trust the new place, give it as base_url"
        place = headers.get("location", "elsewhere")
        text = error_text(f"{provider} answered {status}, {words}: ", place, redact)
        return ModelError(text, status=status)
    before = f"{provider} answered {status or 'with an error'}: "
    failure = api_error(body, before, str(error), redact=redact, status=status, headers=headers)
    failure.retry_after_s = next(_asked_pauses(headers), failure.retry_after_s)
    return failure


def _unusable_reply(reply: Any, provider: str, redact: Callable[[str], str]) -> ModelError:
    """Return the error for a reply with the status 200 that is none of this API."""
    return ModelError(error_text(f"{provider} sent what is no reply: ", str(reply), redact))


def _transport_failure(
    transport: BaseException, provider: str, redact: Callable[[str], str]
) -> ModelError:
    if isinstance(transport, ErrorReply):
        what = "answered with an error" if transport.is_report else "sent what is no reply"
        return api_error(transport.body, f"{provider} {what}: ", redact=redact)
    failure = str(transport) or type(transport).__name__
    if isinstance(transport, TooLongReplyError):
        return _unusable_reply(failure, provider, redact)
    what = "broke off"
    if isinstance(transport, httpx2.ConnectError | httpx2.ConnectTimeout):
        what = "cannot be reached"
    return ModelError(error_text(f"{provider} {what}: ", failure, redact), retryable=True)


def _asked_pauses(headers: Mapping[str, str]) -> Iterator[float]:
    """Yield the pauses in seconds that a provider asks for, the most exact one first."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        written = str(headers.get(name, ""))
        with suppress(OverflowError, ValueError):
            if date := parsedate_tz(written):
                pause_s = max(0.0, mktime_tz(date) - time.time())
            else:
                pause_s = float(written) * unit_s
            if 0 <= pause_s < math.inf:
                yield pause_s
