"""What a node makes of another one that has its name, as Redis tells it."""

from __future__ import annotations

import asyncio

import pytest

from toolbus_server.nodes.node_name import NameClaim, NameHeld, NameTaken

PATIENCE_S = 0.05
TIME_S = 10


def after(delay_s: float, claim: NameClaim, *holders: NameHeld) -> None:
    """Let the claim meet these one after the other, the first of them in so long."""
    for number, held in enumerate(holders):
        asyncio.get_running_loop().call_later(delay_s + number * 0.01, claim.contest, held)


async def test_name_that_nobody_has_is_had_at_once() -> None:
    claim = NameClaim("one")
    claim.won()
    await claim.decided(PATIENCE_S)


async def test_redis_that_says_nothing_is_waited_for_no_longer_than_said() -> None:
    with pytest.raises(TimeoutError):
        await NameClaim("one").decided(PATIENCE_S)


async def test_lease_that_runs_out_is_waited_for_beyond_that() -> None:
    claim = NameClaim("one")
    after(0, claim, NameHeld("one a", 400), NameHeld("one a", 390), NameHeld("one a", 380))
    asyncio.get_running_loop().call_later(4 * PATIENCE_S, claim.won)
    async with asyncio.timeout(TIME_S):
        await claim.decided(PATIENCE_S)


async def test_redis_that_goes_away_while_a_lease_runs_out_is_not_waited_for_forever() -> None:
    claim = NameClaim("one")
    after(0, claim, NameHeld("one a", 100))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(TIME_S):
            await claim.decided(PATIENCE_S)


@pytest.mark.parametrize("second", [NameHeld("one a", 401), NameHeld("one b", 100)])
async def test_lease_that_is_renewed_or_new_is_that_of_a_living_node(second: NameHeld) -> None:
    claim = NameClaim("one")
    after(0, claim, NameHeld("one a", 400), second)
    with pytest.raises(NameTaken, match="another server is called one") as raised:
        async with asyncio.timeout(TIME_S):
            await claim.decided(60)
    assert "--node" in raised.value.next_step


async def test_who_looks_again_does_so_when_the_lease_has_ended_at_the_latest() -> None:
    claim = NameClaim("one")
    looks_s = [claim.contest(NameHeld("one a", left_ms)) for left_ms in (9_000, 400, 0, -5)]
    assert looks_s == pytest.approx([1.0, 0.41, 0.01, 0.01])


async def test_who_meets_the_other_later_is_not_refused_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    claim = NameClaim("one")
    claim.won()
    await claim.decided(PATIENCE_S)
    for held in (NameHeld("one a", 100), NameHeld("one a", 9_000), NameHeld("one a", 9_500)):
        claim.contest(held)
    claim.won()
    claim.contest(NameHeld("one b", 100))
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 2
    assert all("this one serves by itself" in each for each in said)
