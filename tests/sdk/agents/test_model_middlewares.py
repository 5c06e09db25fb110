"""ModelLog, ModelRetries and ModelBudget: what they do and tell, and what they never tell."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from support.models.event_model import Counting, Model, says
from toolbus import CallNextModel, ModelBudget, ModelError, ModelLog, ModelRetries, RequestToModel
from toolbus.agents import model_middlewares
from toolbus.agents.model_requests import RESTART, model_events
from toolbus.models import scripted
from toolbus.tools.tool_run import LOCAL, Participant
from toolbus.turns.turn import Turn


@dataclass
class Asked:
    """What middlewares see of a turn."""

    asker: Participant = LOCAL
    deadline: float | None = None
    span: None = None


def call_for(model: Model, name: str = "ann", deadline: float | None = None) -> RequestToModel:
    turn = cast("Turn", Asked(Participant("id", name), deadline))
    return RequestToModel(model, {"messages": [scripted.user("my secret " * 8)]}, turn, 1)


async def ask(call: RequestToModel, *middlewares: Any) -> list[Any]:
    return [each async for each in model_events(call, middlewares)]


def counting(*replies: Any) -> Model:
    model = Model(*replies)
    model.adapter = Counting()
    return model


def costs(sent: int, received: int) -> list[dict[str, Any]]:
    return [{"text": "its answer", "tokens": (sent, received)}, {"uses": []}]


# ModelLog


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "toolbus.requests")
    return caplog


async def left_early(call: RequestToModel, next: CallNextModel) -> AsyncIterator[Any]:
    async for event in next(call):
        yield event
        raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("reply", "inner", "outcome", "tokens"),
    [
        (costs(12, 3), [], "ok", (12, 3)),
        ([ModelError("no, sk-key", status=429)], [], "429", (0, 0)),
        ([*costs(12, 3)[:1], ModelError("lost")], [], "model_error", (12, 3)),
        (costs(12, 3)[:1], [], "model_error", (12, 3)),  # the stream ended before the reply did
        ([ZeroDivisionError("x")], [], "ZeroDivisionError", (0, 0)),
        (costs(12, 3), [left_early], "cancelled", (12, 3)),
    ],
)
async def test_log_has_a_line_for_the_start_and_one_for_the_end(
    logged: pytest.LogCaptureFixture, reply: Any, inner: Any, outcome: str, tokens: Any
) -> None:
    try:
        await ask(call_for(counting(reply)), ModelLog(), *inner)
    except (ModelError, ZeroDivisionError, asyncio.CancelledError):
        assert outcome != "ok"
    label = 'model="Model" asker="ann" step=1'
    first, last = logged.messages
    assert first == f"request began: {label}"
    wanted = f"request ended: {label} outcome={outcome} input_tokens=%d output_tokens=%d "
    assert re.fullmatch(re.escape(wanted % tokens) + r"duration_ms=\d+\.\d", last)


async def test_log_has_contents_only_on_request_and_shortens_and_escapes_all(
    logged: pytest.LogCaptureFixture,
) -> None:
    eve = 'eve" outcome=ok\n\x1b[2J' + "x" * 5_000
    for log in (ModelLog(), ModelLog(contents=True)):
        await ask(call_for(counting([{"text": "an\nswer " * 9_000}, {"uses": []}]), eve), log)
    assert [("secret" in line, "swer" in line) for line in logged.messages] == [
        *[(False, False)] * 2,
        *[(True, False), (False, True)],
    ]
    for line in logged.messages:
        assert line.isprintable()
        assert len(line) < 1_000
        assert 'asker="eve\\" outcome=ok\\n' in line


async def test_log_counts_each_attempt_alone(logged: pytest.LogCaptureFixture) -> None:
    broken = [*costs(12, 1)[:1], ModelError("cut", retryable=True)]
    await ask(call_for(counting(broken, costs(12, 3))), ModelRetries(backoff_s=0), ModelLog())
    ended = [line for line in logged.messages if "ended" in line]
    assert [re.findall(r"tokens=(\d+)", line) for line in ended] == [["12", "1"], ["12", "3"]]


async def test_a_logger_that_is_off_gets_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "toolbus.requests")
    assert await ask(call_for(Model(says("a"))), ModelLog()) == says("a")
    assert caplog.messages == []


# ModelRetries

BUSY = ModelError("busy", status=503, retryable=True)
FULL = ModelError("full", status=429, retryable=True, retry_after_s=3.0)
REFUSED = ModelError("no", status=401)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses, which end at once."""
    found: list[float] = []

    async def sleep(delay: float) -> None:
        found.append(delay)

    monkeypatch.setattr("toolbus.agents.model_middlewares.asyncio.sleep", sleep)
    return found


@pytest.mark.parametrize(
    ("replies", "deadline", "events", "requests"),
    [
        ([[BUSY], [BUSY], says("a")], None, says("a"), 3),
        ([[FULL], says("a")], 60.0, says("a"), 2),
        ([[{"text": "hel"}, BUSY], says("a")], None, [{"text": "hel"}, RESTART, *says("a")], 2),
        ([[{"text": "hel"}], says("a")], None, [{"text": "hel"}, RESTART, *says("a")], 2),
        ([[BUSY]] * 3, None, BUSY, 3),
        ([[REFUSED]], None, REFUSED, 1),
        ([[FULL]], 2.0, FULL, 1),  # the question has to end before
        ([[ModelError("later", retryable=True, retry_after_s=61.0)]], None, None, 1),
        ([[ZeroDivisionError()]], None, None, 1),
    ],
)
async def test_only_what_may_pass_is_asked_again(
    replies: Any, deadline: float | None, events: Any, requests: int, pauses: list[float]
) -> None:
    model = Model(*replies)
    call = call_for(model, deadline=deadline)
    if isinstance(events, list):
        assert await ask(call, ModelRetries()) == events
    else:
        with pytest.raises((ModelError, ZeroDivisionError)) as caught:
            await ask(call, ModelRetries())
        assert events in (None, caught.value)
        assert caught.value.__context__ is None
    assert (len(model.requests), len(pauses), model.open) == (requests, requests - 1, 0)


async def test_a_reply_that_says_it_failed_is_asked_for_again(pauses: list[float]) -> None:
    model = counting(costs(1, 1), costs(1, 1))
    failures = [BUSY]

    def uses(reply: Any) -> Any:
        if failures:
            raise failures.pop()
        return scripted.uses(reply)

    model.adapter.uses = uses
    assert await ask(call_for(model), ModelRetries()) == [*costs(1, 1), RESTART, *costs(1, 1)]


async def test_pauses_are_no_shorter_than_the_provider_asks_and_double_otherwise(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    model = Model([FULL], [BUSY], [BUSY], [BUSY], [BUSY], says("a"))
    await ask(call_for(model), ModelRetries(attempts=6, backoff_s=1.0, max_backoff_s=5.0))
    shortest = [3.0, 2.0, 4.0, 5.0, 5.0]
    assert all(least <= each <= 2 * 5.0 for least, each in zip(shortest, pauses, strict=True))
    assert "Model failed (attempt 1 of 6), and is asked again in" in caplog.messages[0]


# ModelBudget


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def refusal(call: RequestToModel, budget: ModelBudget) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(call, budget)
    assert cast("Model", call.model).requests == []
    return caught.value


async def test_the_request_that_reaches_a_budget_is_answered_and_the_next_one_waits() -> None:
    clock = Clock()
    budget = ModelBudget(100, window_s=60, clock=clock)
    for sent in (39, 58, 500):
        await ask(call_for(counting(costs(sent, 1))), budget)
    clock.now = 20
    error = await refusal(call_for(Model(), "bo"), budget)
    assert str(error) == (
        "the budget of this agent, 100 tokens in 60 s, is used up: try again in 40 s"
    )
    assert (error.retryable, error.retry_after_s) == (True, 40.0)
    clock.now = 60
    await ask(call_for(counting(costs(1, 1))), budget)


async def test_a_budget_per_asker_is_one_for_each_and_keeps_a_bounded_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_middlewares, "_MAX_ASKERS", 3)
    budget = ModelBudget(10, per="asker", window_s=60, clock=Clock())
    for name in ("ann", "bo", "cy"):
        await ask(call_for(counting(costs(9, 1)), name), budget)
        assert "of this asker" in str(await refusal(call_for(Model(), name), budget))
    await ask(call_for(counting(costs(9, 1)), "dee"), budget)
    await refusal(call_for(Model(), "cy"), budget)
    assert len(budget._windows) == 3


async def test_what_nobody_counts_is_estimated_also_of_requests_that_were_left() -> None:
    budget = ModelBudget(50)
    await ask(call_for(Model(says("a"))), budget)  # about 40 tokens by its bytes
    model = Model([None])
    left = asyncio.create_task(ask(call_for(model), budget))
    await model.waiting.wait()
    left.cancel()
    await asyncio.wait([left])
    assert "is used up" in str(await refusal(call_for(Model()), budget))


async def test_refused_requests_cost_nothing() -> None:
    budget = ModelBudget(10)
    for _ in range(3):
        with pytest.raises(ModelError, match="no"):
            await ask(call_for(Model([REFUSED])), budget)


async def test_requests_that_run_count_before_their_end() -> None:
    budget = ModelBudget(30)
    model = Model([{"text": "a"}, None])
    running = asyncio.create_task(ask(call_for(model), budget))
    await model.waiting.wait()
    error = await refusal(call_for(Model()), budget)
    assert "requests that run now" in str(error)
    assert (error.retryable, error.retry_after_s) == (True, None)
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: ModelLog(7), TypeError),  # type: ignore[arg-type]
        (lambda: ModelLog(level="INFO"), TypeError),  # type: ignore[arg-type]
        (lambda: ModelRetries(0), ValueError),
        (lambda: ModelRetries(2.5), TypeError),  # type: ignore[arg-type]
        (lambda: ModelRetries(max_wait_s=float("inf")), ValueError),
        (lambda: ModelRetries(backoff_s=-1), ValueError),
        (lambda: ModelBudget(0), ValueError),
        (lambda: ModelBudget(10, per="day"), ValueError),  # type: ignore[arg-type]
        (lambda: ModelBudget(10, window_s=0), ValueError),
    ],
)
def test_options_are_checked(make: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        make()
