"""One request to a model, and what stands around it: middlewares, as around the calls of tools.

    async def timed(call, next):
        began = time.monotonic()
        async for event in next(call):
            yield event
        print(call.step, time.monotonic() - began)

A middleware may change the request, drop or add events, answer without asking the model, or ask
again: then it yields `RESTART` first if events were passed on, so that the loop forgets them. The
first of a list is the outermost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Protocol, Self, TypeAlias

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.json_values import shown
from toolbus.errors import RoomException
from toolbus.models.adapter import Adapter, Model, Plain
from toolbus.models.endings import check_ending
from toolbus.models.model_error import ModelError
from toolbus.models.token_usage import TokenUsage, estimated_tokens
from toolbus.telemetry.turn_spans import ModelSpan
from toolbus.tools.middleware import checked_generators, middleware_name
from toolbus.turns.tool_use import ToolResult
from toolbus.turns.turn import Turn

__all__ = [
    "RESTART",
    "CallNextModel",
    "ModelMiddleware",
    "RequestToModel",
    "StepUsage",
    "checked_model_middlewares",
    "model_events",
    "model_identity",
    "outcome_of",
]

_logger = bounded_logger(__name__)
RESTART: Final[Mapping[str, Any]] = MappingProxyType({"type": "toolbus.restart"})
"""What a middleware yields before it asks again: what came before is void."""
_CONVERSATIONS = ("messages", "input", "contents")
"""The fields of a request with the conversation, one for each API."""
_MAX_EVENTS = 1_000_000
"""Of one reply out of middlewares: they are held until it is whole. A reply of 128,000 tokens, more
than most models write, has about as many events."""
_EVENTS_A_SLICE = 1_000
"""After so many events others run: a middleware may yield without ever waiting."""


class StepUsage:
    """The tokens of all requests of one step, also of those that broke off."""

    __slots__ = ("_estimated", "_unreported", "model", "reported")

    def __init__(self) -> None:
        self.reported: TokenUsage = TokenUsage(0, 0)
        """As the provider counts them; 0 where it counts none."""
        self.model: Model | None = None
        """The model that was asked last: a middleware may take another one."""
        self._estimated = TokenUsage(0, 0)
        # Not the call: it has this object, and each step would wait for the cyclic collector.
        self._unreported: list[
            tuple[Adapter, Mapping[str, Any], TokenUsage, Plain | list[Plain]]
        ] = []

    @property
    def counted(self) -> TokenUsage:
        """As the provider counts them; where it counts none, estimated as bytes / 4."""
        # Only here: to write a long conversation once more takes milliseconds.
        for adapter, request, reported, reply in self._unreported:
            if isinstance(reply, list):  # only the text: most of such an event is around it
                reply = {"text": "".join(map(adapter.text_of, reply))}
            sent = 0 if reported.input else estimated_tokens(request)
            received = 0 if reported.output else estimated_tokens(reply)
            self._estimated = _sum(self._estimated, TokenUsage(sent, received))
        self._unreported.clear()
        return _sum(self.reported, self._estimated)

    def add(self, call: RequestToModel, reported: TokenUsage, reply: Plain | list[Plain]) -> None:
        """Add a request, with its reply, or the events that came of one that broke off."""
        self.reported = _sum(self.reported, reported)
        if not (reported.input and reported.output):
            self._unreported.append((call.model.adapter, call.request, reported, reply))


def _sum(one: TokenUsage, other: TokenUsage) -> TokenUsage:
    return TokenUsage(one.input + other.input, one.output + other.output)


@dataclass(frozen=True, slots=True)
class RequestToModel:
    """One request to a model. It does not change; `replace` makes another one."""

    model: Model
    """The model; its `adapter` reads request and events."""
    request: Mapping[str, Any]
    """What `adapter.request` returned. Not to be changed in place."""
    turn: Turn
    """The turn whose tools are in the request; its `asker` is for whom the model is asked."""
    step: int
    """The number of the reply within the question, from 1; attempts of a retry have the same."""
    usage: StepUsage = field(default_factory=StepUsage, compare=False, repr=False)
    """The tokens of this step so far; counted for all that `replace` returns together."""
    retries: bool = True
    """Whether the model sends the request again by itself; not inside of `ModelRetries`."""
    needs_answer: bool = True
    """Whether a reply without text and uses is a `ModelError`. It is not after another reply of the
    question said something: that is the answer then."""

    def messages(self, reply: Mapping[str, Any], results: Sequence[ToolResult]) -> list[Plain]:
        """Return what a reply to this request adds to the conversation; see `Adapter.messages`."""
        adapter = self.model.adapter
        made = adapter.messages(reply, results)
        return adapter.portable(made) if self.is_of_another_model else made

    @property
    def is_of_another_model(self) -> bool:
        """Whether a middleware asked another model, whose thoughts `model` cannot read."""
        return self.usage.model not in (None, self.model)

    def replace(
        self, *, request: Mapping[str, Any] | None = None, model: Model | None = None
    ) -> Self:
        """Return this call with another request, or for another model of the same API.

        For another model, the thoughts of this one are left out of the request.

        Raises `TypeError` for a request that is not a mapping, and `ValueError` for a model with
        another adapter: the conversation is in the words of this one.
        """
        if not isinstance(request, Mapping | None):
            raise TypeError(f"request must be a mapping, not {shown(request)}")
        if model is None:
            model = self.model
        elif model.adapter is not self.model.adapter:  # a property may make a new one each time
            raise ValueError(f"{shown(model)} has another API than {shown(self.model)}")
        if request is None:
            request = self.request
            if model_identity(model) != model_identity(self.model):
                made = {name: request[name] for name in _CONVERSATIONS if name in request}
                portable = model.adapter.portable
                request = {**request, **{name: portable(value) for name, value in made.items()}}
        return replace(self, request=request, model=model)

    @property
    def model_name(self) -> str:
        """The name that `open_model` was given; of another model its `name`, or its class."""
        return _text_in(self.model, "name")


def model_identity(model: Model) -> str:
    """Return what tells a model from others that cannot read its thoughts: its name and address."""
    return _text_in(model, "identity", "name")


def _text_in(model: Model, *attributes: str) -> str:
    """Return the first of these attributes that is a text, else the name of the model's class."""
    values = (getattr(model, attribute, None) for attribute in attributes)
    return next((text for text in values if isinstance(text, str) and text), type(model).__name__)


CallNextModel: TypeAlias = Callable[[RequestToModel], AsyncGenerator[Mapping[str, Any], None]]
"""Asks what is inside of a middleware, at last the model, and yields the events of the reply."""


class ModelMiddleware(Protocol):
    """An async generator function, or an object with such a `__call__`."""

    def __call__(
        self, call: RequestToModel, next: CallNextModel, /
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the events of the reply."""


def checked_model_middlewares(
    values: Iterable[ModelMiddleware], label: str
) -> tuple[ModelMiddleware, ...]:
    """Return middlewares as a tuple. Raises `TypeError` for anything but async generators."""
    form = "`async def m(call, next)` with `async for event in next(call): yield event`"
    return checked_generators(values, label, form)


def model_events(
    call: RequestToModel, middlewares: Sequence[ModelMiddleware]
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Ask the model within its middlewares, the first outermost; yield the events of the reply.

    Close it if you leave it early: that closes the request and all middlewares, the outermost
    first.

    Raises `ModelError` if the model gives no reply, what a middleware raises, `TypeError` if one
    yields anything but mappings, and `RuntimeError` if one asks again without `RESTART` or after
    the end.
    """
    if not middlewares:
        return _ask(call)
    return _bounded(_enter(middlewares, call))


async def _bounded(
    events: AsyncGenerator[Mapping[str, Any], None],
) -> AsyncGenerator[Mapping[str, Any], None]:
    number = 0
    async with aclosing(events):
        async for event in events:
            yield event
            number += 1
            if number > _MAX_EVENTS:
                raise ModelError(f"the reply has more than {_MAX_EVENTS:,} events")
            if number % _EVENTS_A_SLICE == 0:
                await asyncio.sleep(0)


def _enter(
    middlewares: Sequence[ModelMiddleware], call: RequestToModel
) -> AsyncGenerator[Mapping[str, Any], None]:
    return _within(middlewares[0], middlewares[1:], call) if middlewares else _ask(call)


async def _within(
    middleware: ModelMiddleware, inner: Sequence[ModelMiddleware], call: RequestToModel
) -> AsyncGenerator[Mapping[str, Any], None]:
    following = _Next(middleware_name(middleware), inner)
    running = middleware(call, following)
    try:
        async for event in running:
            yield following.checked(event)
    finally:
        # What it has left open ends before what is outside of it goes on, and counts there.
        async with AsyncExitStack() as stack:  # goes on if this task is cancelled meanwhile
            stack.push_async_callback(following.close)
            await _close(running)


class _Next:
    """The function `next` of one middleware in one request; `inner` are those inside of it."""

    def __init__(self, name: str, inner: Sequence[ModelMiddleware]) -> None:
        self._name = name
        self._inner = inner
        self._opened: list[AsyncGenerator[Mapping[str, Any], None]] = []
        self._count = 0
        self._has_ended = False
        self._given: tuple[Any, int] = (None, 0)
        """The event that the middleware got last, and from which call of `next`."""
        self._passed_on_of = 0
        """The call of `next` whose events were passed on; 0 for none since `RESTART`."""

    def __call__(self, call: RequestToModel) -> AsyncGenerator[Mapping[str, Any], None]:
        if not isinstance(call, RequestToModel):
            raise TypeError(f"middleware {self._name}: next takes the call, not {shown(call)}")
        self._count += 1
        events = self._events(self._count, call)
        self._opened.append(events)
        return events

    async def _events(
        self, number: int, call: RequestToModel
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        if self._has_ended:
            raise RuntimeError(f"middleware {self._name} asked after the end of the request")
        async with aclosing(_enter(self._inner, call)) as running:
            async for event in running:
                self._given = (event, number)
                yield event

    async def close(self) -> None:
        """Close what the middleware has left open."""
        self._has_ended = True
        async with AsyncExitStack() as stack:
            for opened in reversed(self._opened):
                stack.push_async_callback(_close, opened)

    def checked(self, event: Any) -> Mapping[str, Any]:
        """Return what the middleware yields. Raises as `model_events`."""
        if not isinstance(event, Mapping):
            raise TypeError(
                f"middleware {self._name} yields {shown(event)}: yield the events of next(call),"
                " others of the same form, or RESTART"
            )
        if event == RESTART:
            self._passed_on_of = 0
            return RESTART
        given, number = self._given
        if event is given:
            # Two replies would be joined to one, of which the asker has seen both.
            if self._passed_on_of not in (0, number):
                raise RuntimeError(
                    f"middleware {self._name} asked again after events were passed on: it has to"
                    " yield RESTART before events of the second reply"
                )
            self._passed_on_of = number
        checked: Mapping[str, Any] = event
        return checked


async def _close(opened: AsyncIterator[Any]) -> None:
    """Close a generator; an error is logged."""
    close = getattr(opened, "aclose", None)
    if close is not None:
        try:
            await close()
        except Exception:
            _logger.exception("a middleware raised while a request to the model was closed")


async def _ask(call: RequestToModel) -> AsyncGenerator[Plain, None]:
    """Ask the model. Raises `ModelError`, also for events that are not a reply together."""
    adapter = call.model.adapter
    turn_span = call.turn.span
    span = None if turn_span is None else ModelSpan.begin(turn_span, call.model_name)
    events: list[Plain] = []
    received: Plain | list[Plain] = events
    reported = TokenUsage(0, 0)
    failure: BaseException | None = None
    call.usage.model = call.model
    ask = call.model.stream
    if not call.retries:
        ask = getattr(call.model, "stream_once", ask)
    try:
        async with aclosing(ask(call.request)) as replied:
            async for event in replied:
                if not isinstance(event, Mapping):
                    raise TypeError(f"the model {call.model_name} yields {shown(event)}: no event")
                events.append(event)
                found = adapter.usage(event)
                if found.input or found.output:
                    reported = TokenUsage(*map(max, reported, found))
                yield event
        # Read here too, so that middlewares and traces see a reply that broke off.
        reply = received = adapter.collect(events)
        adapter.uses(reply)
        check_ending(adapter.ending(reply), needs_answer=call.needs_answer)
    except BaseException as error:
        failure = error
        raise
    finally:
        # Who leaves before the first event has made the provider read the request all the same.
        if events or not isinstance(failure, Exception):
            call.usage.add(call, reported, received)
        if span is not None:
            span.end(
                *reported,
                None if failure is None else outcome_of(failure),
                failed=isinstance(failure, Exception),
            )


def outcome_of(error: BaseException | None) -> str:
    """Return how a request ended, in one word.

    Args:
        error: What passed through; None at the end of the events.

    It is "ok", "cancelled", "closed" if it was left early, the HTTP status of a `ModelError`, or
    else "model_error", the code of a `RoomException`, or the class of another exception.
    """
    match error:
        case None:
            return "ok"
        case asyncio.CancelledError():
            return "cancelled"
        case GeneratorExit():
            return "closed"
        case ModelError(status=int(status)):
            return str(status)
        case ModelError():
            return "model_error"
        case RoomException(code=code):
            return code
    return type(error).__name__
