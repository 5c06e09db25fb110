"""Asks Gemini through the package `google-genai`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx2
from google.genai import Client, types  # `google` alone may be there: other packages share it
from pydantic import SecretStr

from toolbus.models.adapter import Plain
from toolbus.models.bounded_client import BoundedClient, responses_of_streams

__all__ = ["GeminiClient"]

_NOT_OF_THE_REPLY = {"automatic_function_calling_history", "parsed", "sdk_http_response"}
"""What the client adds to a response."""


class GeminiClient:
    """Generated content of the Gemini Developer API. Options are fields of its `config`."""

    OPTIONS = frozenset(types.GenerateContentConfig.model_fields)

    def __init__(
        self, model: str, base_url: str | None, key: SecretStr, options: Mapping[str, Any]
    ) -> None:
        self._http_client = BoundedClient(key)
        self._client = Client(
            api_key=key.get_secret_value(),
            vertexai=False,  # else a variable for another program could make it Vertex AI
            http_options=types.HttpOptions(base_url=base_url, httpx_async_client=self._http_client),
        )
        self._model = model
        self._options = options

    async def reply(self, request: Mapping[str, Any]) -> Any:
        """Return the reply as plain JSON."""
        return _plain(await self._client.aio.models.generate_content(**self._asked(request)))

    async def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Ask for a streamed reply."""
        events = await self._client.aio.models.generate_content_stream(**self._asked(request))
        # Sent with the first event, not before, and closing the events does not end it.
        with responses_of_streams() as responses:
            first = await anext(events, None)
        return _events(first, events, responses)

    def is_reply(self, reply: Plain) -> bool:
        """Whether there is a candidate, or why there is none."""
        return bool(reply.get("candidates") or reply.get("prompt_feedback"))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aio.aclose()
        self._client.close()
        await self._http_client.aclose()

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        config = {**request.get("config", {}), **self._options}
        return {**request, "model": self._model, "config": config}


async def _events(
    first: Any, further: Any, responses: list[httpx2.Response]
) -> AsyncGenerator[Any, None]:
    try:
        if first is not None:
            yield _plain(first)
            async for event in further:
                yield _plain(event)
    finally:
        for response in responses:
            await response.aclose()
        await further.aclose()


def _plain(response: types.GenerateContentResponse) -> Plain:
    return response.model_dump(
        mode="json", exclude_none=True, exclude=_NOT_OF_THE_REPLY, warnings=False
    )
