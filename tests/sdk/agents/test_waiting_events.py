"""`with_waiting`: a stream of events that is never silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from toolbus.agents.agent_events import with_waiting


async def test_silence_is_told_and_nothing_is_lost() -> None:
    may_go_on = asyncio.Event()

    async def events() -> AsyncGenerator[str, None]:
        async with asyncio.timeout(60):  # lasts over several events
            yield "first"
            await may_go_on.wait()
            yield "last"

    seen = []
    async with aclosing(with_waiting(events(), every_s=0.01)) as told:
        async for event in told:
            seen.append(event if isinstance(event, str) else event["type"])
            if seen.count("waiting") == 2:
                may_go_on.set()
    assert [event for event in seen if event != "waiting"] == ["first", "last"]
    assert seen[1:3] == ["waiting", "waiting"]


async def test_events_are_at_most_two_ahead_of_their_reader() -> None:
    made = []

    async def events() -> AsyncGenerator[int, None]:
        for number in range(100):
            made.append(number)
            yield number

    async with aclosing(with_waiting(events())) as told:
        async for event in told:
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(made) - event <= 3
    assert len(made) == 100


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("its own"), ValueError),
        (asyncio.CancelledError("its own"), asyncio.CancelledError),
        (SystemExit("its own"), RuntimeError),
    ],
)
async def test_error_comes_after_the_events_before_it(
    error: BaseException, kind: type[BaseException]
) -> None:
    async def events() -> AsyncGenerator[str, None]:
        yield "first"
        raise error

    told = with_waiting(events())
    assert await anext(told) == "first"
    with pytest.raises(kind, match="its own"):
        await anext(told)


async def test_leaving_ends_the_events_before_it_returns() -> None:
    ended = []

    async def events() -> AsyncGenerator[str, None]:
        try:
            yield "first"
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async with aclosing(with_waiting(events())) as told:
        assert await anext(told) == "first"
    assert ended == [True]
