"""Turns taken by real processes, short ones: who records, and who sends when."""

import dataclasses

import pytest

from bench import turns
from bench.legs import LEGS, Leg
from bench.rounds import Process, spans_per_call_of
from bench.turns import run_turns

ALL = {"OTEL_TRACES_SAMPLER_ARG": "1", "OTEL_BSP_MAX_QUEUE_SIZE": "100000"}


def turning_leg(**variables: str) -> Leg:
    """The leg that takes turns, with every call of its recorded turns recorded."""
    leg = next(leg for leg in LEGS if leg.takes_turns)
    environment = {**leg.environment, **ALL, **variables}
    return dataclasses.replace(leg, environment=environment, traced_share=1.0)


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.05)
    monkeypatch.setattr(turns, "RECORDED_TURNS", 2)


@pytest.mark.long
async def test_recorded_turns_alone_are_recorded_and_end_when_their_spans_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[float] = []

    async def count(leg: Leg, receiver: Process, calls: int) -> float:
        counted.append(await spans_per_call_of(leg, receiver, calls))
        return counted[-1]

    monkeypatch.setattr(turns, "spans_per_call_of", count)
    # Left to themselves, the processes would send in an hour.
    taken = await run_turns(turning_leg(OTEL_BSP_SCHEDULE_DELAY="3600000"), "asyncio")
    assert counted == [4.0]
    assert (len(taken.plain), len(taken.recorded)) == (3, 2)
    every = [*taken.plain, *taken.recorded]
    assert all(turn.calls >= 64 and turn.took_s >= 0.05 for turn in every)
    assert {len(turn.cpu_us) for turn in every} == {3}


async def test_turns_in_which_too_little_is_recorded_are_refused() -> None:
    with pytest.raises(RuntimeError, match="spans per call"):
        await run_turns(turning_leg(OTEL_TRACES_SAMPLER_ARG="0.2"), "asyncio")
