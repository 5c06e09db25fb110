"""A node's claim on its name while another node holds it."""

from __future__ import annotations

import asyncio

import pytest

from toolbus_server.cluster.lease import NameClaim, NameHeld, NameTaken

TIMEOUT_S = 0.05
TIME_S = 60


def after(delay_s: float, claim: NameClaim, *holders: NameHeld) -> None:
    """Refuse the claim for each holder in turn, the first after a delay."""
    for number, held in enumerate(holders):
        asyncio.get_running_loop().call_later(delay_s + number * 0.01, claim.refused, held)


async def test_free_name_is_granted_at_once() -> None:
    claim = NameClaim("one")
    claim.granted()
    await claim.wait_until_decided(TIMEOUT_S)


async def test_silent_redis_is_awaited_until_the_timeout() -> None:
    with pytest.raises(TimeoutError):
        await NameClaim("one").wait_until_decided(TIMEOUT_S)


async def test_expiring_lease_is_awaited_beyond_the_timeout() -> None:
    claim = NameClaim("one")
    after(0, claim, NameHeld("one a", 400), NameHeld("one a", 390), NameHeld("one a", 380))
    asyncio.get_running_loop().call_later(4 * TIMEOUT_S, claim.granted)
    async with asyncio.timeout(TIME_S):
        await claim.wait_until_decided(TIMEOUT_S)


async def test_redis_that_becomes_unavailable_meanwhile_is_not_awaited_forever() -> None:
    claim = NameClaim("one")
    after(0, claim, NameHeld("one a", 100))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(TIME_S):
            await claim.wait_until_decided(TIMEOUT_S)


@pytest.mark.parametrize("second", [NameHeld("one a", 401), NameHeld("one b", 100)])
async def test_renewed_or_new_lease_belongs_to_a_live_node(second: NameHeld) -> None:
    claim = NameClaim("one")
    after(0, claim, NameHeld("one a", 400), second)
    with pytest.raises(NameTaken, match="another live server has the node name one") as raised:
        async with asyncio.timeout(TIME_S):
            await claim.wait_until_decided(60)
    assert "--node" in raised.value.next_step


async def test_next_attempt_is_made_at_expiry_at_the_latest() -> None:
    claim = NameClaim("one")
    delays_s = [claim.refused(NameHeld("one a", left_ms)) for left_ms in (9_000, 400, 0, -5)]
    assert delays_s == pytest.approx([1.0, 0.41, 0.01, 0.01])


async def test_refusal_after_the_start_is_logged_once_and_raises_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    claim = NameClaim("one")
    claim.granted()
    await claim.wait_until_decided(TIMEOUT_S)
    for held in (NameHeld("one a", 100), NameHeld("one a", 9_000), NameHeld("one a", 9_500)):
        claim.refused(held)
    claim.granted()
    claim.refused(NameHeld("one b", 100))
    logged = [each.getMessage() for each in caplog.records]
    assert len(logged) == 2
    assert all("works without the cluster" in each for each in logged)
