"""A model that is asked through the client of its provider."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from toolbus.models.adapter import Adapter, Plain
from toolbus.models.client_errors import model_error, unusable_reply
from toolbus.models.key_redaction import KeyRedaction
from toolbus.models.model_error import ModelError
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
    """Asks a provider: time limit, retries and errors are the same for all.

    Args:
        name: The name that `open_model` was given.
        adapter: The words of the API.
        make_client: Makes a client. There is one for each event loop, because connections belong
            to the loop that opened them.
        redact: Removes the key.
        timeout_s: How long a reply may take, retries included; of a stream, the first event and
            then each further one.
        max_retries: How often a failed request is sent again.
        host: Where it is asked.
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
        self._name = name
        self._host = host
        self._adapter = adapter
        self._make_client = make_client
        self._redact = redact
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._clients: dict[asyncio.AbstractEventLoop, ProviderClient] = {}

    def __repr__(self) -> str:
        return f"<model {self._name}>"

    @property
    def name(self) -> str:
        """The name that `open_model` was given."""
        return self._name

    @property
    def identity(self) -> str:
        """Name and host: thoughts are read by no other model, and by no other server."""
        return f"{self._name} at {self._host}"

    @property
    def adapter(self) -> Adapter:
        """The words of the API."""
        return self._adapter

    async def reply(self, request: Mapping[str, Any]) -> Plain:
        """Ask the model and return the whole response. Raises `ModelError`."""
        client = self._client()
        reply = await self._retried(lambda: client.reply(request), self._max_retries)
        if not isinstance(reply, dict) or not client.is_reply(reply):
            raise unusable_reply(reply, self._name, self._redact)
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
            raise ModelError(f"{self._name} sent an empty reply", retryable=True)
        raise unusable_reply(first, self._name, self._redact)

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
                raise ModelError(f"the client for {self._name} cannot be made: {reason}")
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
            failure = unusable_reply(event, self._name, self._redact)
        raise failure

    def _failure(self, error: Exception, limit: asyncio.Timeout) -> ModelError:
        if limit.expired():
            return ModelError(
                f"{self._name} did not answer within {self._timeout_s:g} s", retryable=True
            )
        if isinstance(error, ModelError):
            return error
        return model_error(error, self._name, self._redact)


def _without_frames(error: asyncio.CancelledError) -> asyncio.CancelledError:
    """Return a cancellation without the frames of the client: their variables have the key."""
    error.__context__ = None
    return error.with_traceback(None)
