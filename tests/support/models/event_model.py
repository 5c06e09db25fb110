"""A model in this process whose replies are given as events, in the words of scripted models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from toolbus import RequestToModel, TokenUsage, Turn
from toolbus.models import scripted

__all__ = ["Counting", "Model", "call_of", "says"]


class Counting:
    """The words of scripted models, with tokens."""

    def __getattr__(self, name: str) -> Any:
        return getattr(scripted, name)

    def usage(self, told: Mapping[str, Any]) -> TokenUsage:
        return TokenUsage(*told.get("tokens", (0, 0)))


Event = dict[str, Any]


class Model:
    """Gives replies as events; an exception among them is raised, and None never comes."""

    adapter: Any = scripted

    def __init__(self, *replies: Sequence[Event | Exception | None]) -> None:
        self.replies = list(replies)
        self.requests: list[Any] = []
        self.open = 0
        self.waiting = asyncio.Event()

    async def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        self.open += 1
        try:
            for event in self.replies.pop(0):
                if isinstance(event, Exception):
                    raise event
                if event is None:
                    self.waiting.set()
                    await asyncio.Event().wait()
                else:
                    yield event
        finally:
            self.open -= 1

    async def reply(self, request: Any) -> Event:
        raise NotImplementedError

    async def aclose(self) -> None: ...


def says(text: str, *uses: Event) -> list[Event]:
    return [{"text": text}, {"uses": list(uses)}]


def call_of(model: Any, turn: Turn) -> RequestToModel:
    return RequestToModel(model, model.adapter.request(turn, [scripted.user("q")]), turn, 1)
