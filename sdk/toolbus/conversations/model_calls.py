"""One request to a model, and what stands around it: middlewares, as around the calls of tools.

    async def timed(call, next):
        began = time.monotonic()
        async for event in next(call):
            yield event
        print(call.step, time.monotonic() - began)

A middleware may change the request, drop or add events, answer without asking the model, or ask
again: then it yields `RESTART` first if events were passed on, so that the loop forgets them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, Self, TypeAlias

from toolbus.agents.turn import Turn
from toolbus.models.adapter import Model, Plain

__all__ = ["RESTART", "ModelCall", "ModelMiddleware", "NextModel", "model_events"]

RESTART: Final[Mapping[str, Any]] = {"type": "toolbus.restart"}
"""What a middleware yields, this very object, before it asks again: what came before is void."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request to a model. It does not change; `replace` makes another one."""

    model: Model
    """The model; its `adapter` reads request and events."""
    request: Mapping[str, Any]
    """What `adapter.request` returned. Not to be changed in place."""
    turn: Turn
    """The turn whose tools are in the request."""
    step: int
    """The number of the request within the question, from 1."""

    def replace(self, *, request: Mapping[str, Any]) -> Self:
        """Return this call with another request."""
        return replace(self, request=request)


NextModel: TypeAlias = Callable[[ModelCall], AsyncGenerator[Mapping[str, Any], None]]
"""Asks what is inside of a middleware, at last the model, and yields the events of the reply."""


class ModelMiddleware(Protocol):
    """An async generator function, or an object with such a `__call__`."""

    def __call__(self, call: ModelCall, next: NextModel, /) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the events of the reply."""


def model_events(
    call: ModelCall, middlewares: Sequence[ModelMiddleware]
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Ask the model within its middlewares, the first outermost; yield the events of the reply."""
    ask: NextModel = _ask
    for middleware in reversed(middlewares):
        ask = partial(_within, middleware, ask)
    return ask(call)


async def _within(
    middleware: ModelMiddleware, inner: NextModel, call: ModelCall
) -> AsyncGenerator[Mapping[str, Any], None]:
    async for event in middleware(call, inner):
        yield event


async def _ask(call: ModelCall) -> AsyncGenerator[Plain, None]:
    async with aclosing(call.model.stream(call.request)) as events:
        async for event in events:
            yield event
