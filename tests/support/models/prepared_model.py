"""A model in this process that speaks the words of scripted models: replies, errors, or streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeAlias

from toolbus.models import scripted
from toolbus.models.adapter import Adapter, Plain

__all__ = ["PreparedModel", "Reply", "uses"]

Reply: TypeAlias = str | list[Plain] | Exception | Callable[[], AsyncGenerator[Any, None]]
"""A text, uses, an error, or what yields the events of a reply."""


def uses(*names: str, **arguments: Any) -> list[Plain]:
    """Return uses of tools, with the same arguments."""
    return [
        {"id": f"use-{n}", "name": name, "arguments": arguments} for n, name in enumerate(names, 1)
    ]


class PreparedModel:
    """Gives its replies one after the other; the last one again and again.

    Args:
        replies: The replies.
    """

    def __init__(self, *replies: Reply) -> None:
        self._replies = replies
        self.requests: list[Mapping[str, Any]] = []
        """The requests so far."""
        self.left_early: int = 0
        """How many streams were closed before their end."""
        self.adapter: Adapter = scripted

    async def reply(self, request: Mapping[str, Any]) -> Plain:
        return scripted.collect([event async for event in self.stream(request)])

    async def stream(self, request: Mapping[str, Any]) -> AsyncGenerator[Plain, None]:
        reply = self._replies[min(len(self.requests), len(self._replies) - 1)]
        self.requests.append(request)
        if isinstance(reply, Exception):
            raise reply
        try:
            if callable(reply):
                async for event in reply():
                    yield event
            elif isinstance(reply, str):
                yield {"text": reply}
                yield {"uses": []}
            else:
                yield {"uses": reply}
        except BaseException:
            self.left_early += 1
            raise

    async def aclose(self) -> None:
        """Do nothing."""
