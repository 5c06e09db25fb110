"""Asks Anthropic through the package `anthropic`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anthropic
from anthropic.resources.messages import AsyncMessages
from pydantic import SecretStr

from toolbus.models.adapter import Plain
from toolbus.models.bounded_client import BoundedClient, as_plain, events_of

__all__ = ["MessagesClient"]


class _HttpClient(BoundedClient, anthropic.DefaultAsyncHttpxClient):
    """With the connection limits of the client, and its probes of idle connections."""


class MessagesClient:
    """Asks Anthropic's API of messages; retries and time limits are those of its caller."""

    OPTIONS = frozenset(inspect.signature(AsyncMessages.create).parameters)

    def __init__(
        self, model: str, base_url: str | None, key: SecretStr, options: Mapping[str, Any]
    ) -> None:
        self._client = anthropic.AsyncAnthropic(
            api_key=key.get_secret_value(),
            base_url=base_url,
            timeout=None,
            max_retries=0,
            http_client=_HttpClient(key),
        )
        self._more: dict[str, Any] = {**options, "model": model}

    async def reply(self, request: Mapping[str, Any]) -> Any:
        """Return the reply as plain JSON."""
        reply: Any = await self._client.messages.create(**{**request, **self._more})
        return as_plain(reply)

    async def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Ask for a streamed reply."""
        asked: dict[str, Any] = {**request, **self._more, "stream": True}
        return events_of(await self._client.messages.create(**asked))

    def is_reply(self, reply: Plain) -> bool:
        """Whether there are blocks of content."""
        return isinstance(reply.get("content"), list)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.close()
