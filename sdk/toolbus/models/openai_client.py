"""Asks OpenAI, or a server with the same API, through the package `openai`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import openai
from openai.resources.chat.completions import AsyncCompletions
from openai.resources.responses import AsyncResponses
from pydantic import SecretStr

from toolbus.models.adapter import Plain
from toolbus.models.bounded_client import BoundedClient, as_plain, events_of
from toolbus.models.reply_values import as_list, as_object

__all__ = ["ChatClient", "ResponsesClient"]


_NOT_OF_THE_BODY = frozenset({"extra_headers", "extra_query"})
_REFUSED = (400, 422)
"""The statuses of a request with a field that the server does not know."""


class _HttpClient(BoundedClient, openai.DefaultAsyncHttpxClient):
    """With the connection limits of the client."""


class _OpenAIClient:
    """What both APIs have in common."""

    _asks_with: str
    """The argument that the client requires beside the model."""

    def __init__(
        self, model: str, base_url: str | None, key: SecretStr, options: Mapping[str, Any]
    ) -> None:
        self._client = openai.AsyncOpenAI(
            api_key=key.get_secret_value(),
            base_url=base_url,
            timeout=None,
            max_retries=0,
            http_client=_HttpClient(key),
        )
        self._more: dict[str, Any] = {**options, "model": model}

    @property
    def _create(self) -> Callable[..., Any]:
        raise NotImplementedError

    async def reply(self, request: Mapping[str, Any]) -> Any:
        """Return the reply as plain JSON."""
        reply = await self._create(**self._asked(request))
        return as_plain(reply)

    async def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Ask for a streamed reply."""
        return events_of(await self._create(**self._asked(request), stream=True))

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        # As `extra_body` it is sent as it is. The client walks through other arguments with its
        # types, which changes nothing, and holds the event loop for 0.2 ms for each tool.
        body = {**request, **self._more}
        needed: dict[str, Any] = {"model": body["model"], self._asks_with: []}
        for name in _NOT_OF_THE_BODY & body.keys():
            needed[name] = body.pop(name)
        body |= body.pop("extra_body", None) or {}
        return needed | {"extra_body": body}

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.close()


class ChatClient(_OpenAIClient):
    """Chat completions, which compatible servers have too."""

    _asks_with = "messages"
    _asks_for_counts = True
    OPTIONS = frozenset(inspect.signature(AsyncCompletions.create).parameters)

    @property
    def _create(self) -> Callable[..., Any]:
        return self._client.chat.completions.create

    async def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Ask for a streamed reply, and its counts of tokens, which come only on request.

        Mistral, and older versions of Azure's, refuse the question and name it
        (openai/openai-agents-python#442, songquanpeng/one-api#1423): they are asked without it,
        from then on. Mistral tells the counts in any case.
        """
        if not self._asks_for_counts or "stream_options" in self._more:
            return await super().stream(request)
        try:
            return await super().stream({"stream_options": {"include_usage": True}, **request})
        except openai.APIStatusError as error:
            if error.status_code not in _REFUSED or "stream_options" not in f"{error} {error.body}":
                raise
        self._asks_for_counts = False
        return await super().stream(request)

    def is_reply(self, reply: Plain) -> bool:
        """Whether there is a choice with a message."""
        first = as_object(next(iter(as_list(reply.get("choices"))), None))
        return isinstance(first.get("message"), dict)


class ResponsesClient(_OpenAIClient):
    """The API of responses."""

    _asks_with = "input"
    OPTIONS = frozenset(inspect.signature(AsyncResponses.create).parameters)

    @property
    def _create(self) -> Callable[..., Any]:
        return self._client.responses.create

    def is_reply(self, reply: Plain) -> bool:
        """Whether there are items of output."""
        return isinstance(reply.get("output"), list)
