"""What stands around a request to a model: the order of closing, and middlewares with mistakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from support.models.event_model import Counting, Model, call_of, says
from toolbus import Agent, ModelError, Turn
from toolbus.agents.loop import agent_loop
from toolbus.agents.model_requests import RESTART, model_events
from toolbus.models import scripted
from toolbus.models.token_usage import TokenUsage, estimated_tokens


async def events_of(model: Any, *middlewares: Any) -> list[Any]:
    async with Turn(None) as turn:
        return [each async for each in model_events(call_of(model, turn), middlewares)]


def test_tokens_of_any_value_are_estimated_by_its_bytes() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    values = ["", "a" * 14, "é", "\ud800", 10**40, float("nan"), {None: b"x"}, object, deep]
    wanted = [1, 4, 1, 2, 11, 1, 4, 5, 0]
    assert [estimated_tokens(value) for value in values] == wanted


class Noted:
    """Notes when it begins and ends, around `next` as most people write it."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def __call__(self, call: Any, next: Any) -> AsyncIterator[Any]:
        self.notes.append(f"{self.name} begins")
        try:
            async for event in next(call):
                yield event
        finally:
            self.notes.append(f"{self.name} ends")


ORDER = ["a begins", "b begins", "a ends", "b ends"]


async def test_middlewares_of_a_request_that_is_left_early_are_closed_outermost_first() -> None:
    notes: list[str] = []
    model = Model(says("hello"))
    async with Turn(None) as turn:
        around = [Noted("a", notes), Noted("b", notes)]
        async with aclosing(model_events(call_of(model, turn), around)) as events:
            assert await anext(events) == {"text": "hello"}
        assert (notes, model.open) == (ORDER, 0)


async def test_a_cancelled_request_has_ended_with_its_task() -> None:
    notes: list[str] = []
    model = Model([{"text": "hel"}, None])
    task = asyncio.create_task(events_of(model, Noted("a", notes), Noted("b", notes)))
    await model.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (sorted(notes), model.open) == (sorted(ORDER), 0)


async def asks_twice(call: Any, next: Any) -> AsyncIterator[Any]:
    first = next(call)
    yield await anext(first)  # and leaves it open
    yield RESTART
    async for event in next(call):
        yield event


async def reads_to_nothing(call: Any, next: Any) -> AsyncIterator[Any]:
    async for event in next(call):
        if "uses" in event:
            yield event


async def answers_itself(call: Any, next: Any) -> AsyncIterator[Any]:
    for event in says("from memory"):
        yield event


async def asks_another_thing(call: Any, next: Any) -> AsyncIterator[Any]:
    async for event in next(call.replace(request={**call.request, "system": "be brief"})):
        yield event


async def copies(call: Any, next: Any) -> AsyncIterator[Any]:
    async for event in next(call):
        yield dict(event)


@pytest.mark.parametrize(
    ("middlewares", "replies", "wanted", "tokens_are_estimated"),
    [
        ([asks_twice], [says("a"), says("b")], [{"text": "a"}, RESTART, *says("b")], True),
        ([copies, asks_twice], [says("a"), says("b")], [{"text": "a"}, RESTART, *says("b")], True),
        ([reads_to_nothing], [says("a")], says("a")[1:], True),
        ([answers_itself], [], says("from memory"), False),
        ([asks_another_thing], [says("a")], says("a"), True),
    ],
)
async def test_what_a_middleware_may_do(
    middlewares: Any, replies: Any, wanted: Any, tokens_are_estimated: bool
) -> None:
    model = Model(*replies)
    async with Turn(None) as turn:
        call = call_of(model, turn)
        events = [each async for each in model_events(call, middlewares)]
    assert events == wanted
    assert [each is RESTART for each in events] == [each is RESTART for each in wanted]
    assert (model.replies, model.open) == ([], 0)
    assert any(call.usage.counted) is tokens_are_estimated
    assert [each["system"] for each in model.requests].count("be brief") == (
        middlewares == [asks_another_thing]
    )


async def yields_text(call: Any, next: Any) -> AsyncIterator[Any]:
    yield "words"


async def raises(call: Any, next: Any) -> AsyncIterator[Any]:
    async for event in next(call):
        raise LookupError("its own")
        yield event


async def calls_with_a_request(call: Any, next: Any) -> AsyncIterator[Any]:
    async for event in next(call.request):
        yield event


async def joins_two_replies(call: Any, next: Any) -> AsyncIterator[Any]:
    for _ in range(2):
        async for event in next(call):
            yield event


async def never_ends(call: Any, next: Any) -> AsyncIterator[Any]:
    while True:
        yield {"text": ""}


async def replaces_by_text(call: Any, next: Any) -> AsyncIterator[Any]:
    async for event in next(call.replace(request="q")):
        yield event


@pytest.mark.parametrize(
    ("middleware", "kind", "words"),
    [
        (yields_text, TypeError, "yields_text yields 'words': yield the events of next"),
        (raises, LookupError, "its own"),
        (calls_with_a_request, TypeError, "calls_with_a_request: next takes the call"),
        (replaces_by_text, TypeError, "request must be a mapping, not 'q'"),
        (joins_two_replies, RuntimeError, "joins_two_replies asked again"),
        (never_ends, ModelError, "more than 2,000 events"),
    ],
)
async def test_a_middleware_with_a_mistake_is_told_and_leaves_nothing_open(
    middleware: Any, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolbus.agents.model_requests._MAX_EVENTS", 2_000)
    model = Model(says("a"), says("b"))
    with pytest.raises(kind, match=words):
        await events_of(model, copies, middleware)
    assert model.open == 0


async def test_a_middleware_that_never_waits_lets_its_task_be_cancelled() -> None:
    task = asyncio.create_task(events_of(Model(), never_ends))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_middleware_that_goes_on_when_it_is_closed_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    left: list[Any] = []

    async def stubborn(call: Any, next: Any) -> AsyncIterator[Any]:
        try:
            async for event in next(call):
                yield event
        finally:
            left.append(next(call))

    async def ignores(call: Any, next: Any) -> AsyncIterator[Any]:
        try:
            async for event in next(call):
                yield event
        except GeneratorExit:
            yield {"text": "more"}

    model = Model(says("a"), says("b"))
    async with Turn(None) as turn:
        async with aclosing(model_events(call_of(model, turn), [ignores, stubborn])) as events:
            await anext(events)
        assert model.open == 0
        [late] = left
        assert [each async for each in late] == []  # it was closed with the request
    assert "raised while a request to the model was closed" in caplog.text


async def test_asking_after_the_end_of_a_request_is_an_error() -> None:
    kept: list[Any] = []

    async def keeps(call: Any, next: Any) -> AsyncIterator[Any]:
        kept.extend((call, next))
        async for event in next(call):
            yield event

    model = Model(says("a"))
    await events_of(model, keeps)
    call, late = kept
    with pytest.raises(RuntimeError, match="keeps asked after the end of the request"):
        await anext(late(call))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("text", "is not a middleware"),
        (copies, "must be a list"),
        ([Noted], "Noted is a class: pass an instance"),
        ([lambda call, next: next(call)], "is not a middleware: write"),
        ([answers_itself, None], "is not a middleware"),
        ([TokenUsage(1, 2)], "is not a middleware"),
        (7, "must be a list"),
    ],
)
def test_an_agent_takes_async_generators_alone(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Agent(None, Model(), model_middlewares=value)


USE = {"id": "u", "name": "t.gone", "arguments": {}}


@pytest.mark.parametrize(
    ("told", "max_tokens", "reason", "steps", "tokens"),
    [
        ((7, 3), None, "max_steps", 3, 30),
        ((7, 3), 31, "max_steps", 3, 30),
        ((7, 3), 20, "max_tokens", 2, 20),
        ((0, 0), 100_000, "max_steps", 3, 0),
        ((0, 0), 60, "max_tokens", 1, 0),  # the request alone has more, by its bytes
        ((0, 1), 60, "max_tokens", 1, 1),
    ],
)
async def test_a_question_ends_after_its_tokens_also_where_nobody_counts_them(
    told: Any, max_tokens: int | None, reason: str, steps: int, tokens: int
) -> None:
    model = Model(*[[{"text": "a", "tokens": told}, {"uses": [USE]}]] * 3)
    model.adapter = Counting()
    conversation = [scripted.user("long " * 60)]
    async with Turn(None) as turn:
        events = agent_loop(turn, model, conversation, max_steps=3, max_tokens=max_tokens)
        end = [each async for each in events][-1]
    assert isinstance(end, dict)
    assert (end["reason"], end["steps"], sum(end["tokens"].values())) == (reason, steps, tokens)


async def test_a_request_that_broke_off_counts_and_one_that_was_refused_does_not() -> None:
    async def again(call: Any, next: Any) -> AsyncIterator[Any]:
        for number in range(3):
            try:
                async for event in next(call):
                    yield event
            except ModelError:
                yield RESTART
            else:
                assert number == 2

    broken: list[Any] = [{"text": "", "tokens": (5, 1)}, ModelError("cut")]
    model = Model([ModelError("full", status=429)], broken, [*says("a"), {"tokens": (5, 2)}])
    model.adapter = Counting()
    async with Turn(None) as turn:
        call = call_of(model, turn)
        _ = [each async for each in model_events(call, [again])]
    assert (call.usage.reported, call.usage.counted) == ((10, 3), (10, 3))


async def test_another_model_of_the_same_api_is_asked_in_place_of_the_first_and_counts() -> None:
    other = Model(says("b"))
    other.adapter = Counting()

    async def fallback(call: Any, next: Any) -> AsyncIterator[Any]:
        with pytest.raises(ModelError):
            await anext(next(call))
        with pytest.raises(ValueError, match="has another API than"):
            call.replace(model=other)
        other.adapter = call.model.adapter
        async for event in next(call.replace(model=other)):
            yield event

    model = Model([ModelError("down")])
    async with Turn(None) as turn:
        call = call_of(model, turn)
        assert [each async for each in model_events(call, [fallback])] == says("b")
    assert other.requests == model.requests == [call.request]
    assert call.usage.counted.input > 0


async def test_another_request_is_for_a_model_that_makes_its_adapter_when_asked_too() -> None:
    class Making(Model):
        @property
        def adapter(self) -> Any:
            return Counting()

        @adapter.setter
        def adapter(self, adapter: Any) -> None: ...

    async with Turn(None) as turn:
        call = call_of(Making(), turn)
        assert call.replace(request={"text": "b"}).request == {"text": "b"}


async def test_who_leaves_before_the_first_event_has_asked_all_the_same() -> None:
    model = Model([None])
    async with Turn(None) as turn:
        call = call_of(model, turn)

        async def ask() -> list[Any]:
            return [each async for each in model_events(call, ())]

        task = asyncio.create_task(ask())
        await model.waiting.wait()
        task.cancel()
        await asyncio.wait([task])
        assert call.usage.counted.input > 0


async def test_a_model_that_yields_no_events_is_named() -> None:
    model = Model()
    async with Turn(None) as turn:
        for middlewares in ([], [copies]):
            model.replies.append(["words"])  # type: ignore[list-item]
            with pytest.raises(TypeError, match=r"the model .* yields 'words': no event"):
                async for _ in model_events(call_of(model, turn), middlewares):
                    pass
