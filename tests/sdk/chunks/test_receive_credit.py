"""The receive buffer at either end of a call: its limits and its credit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from support.parts.virtual_clock import on_virtual_clock
from toolbus.chunks.receive_credit import (
    BUDGET_BYTES,
    MIN_SHARE_BYTES,
    BufferBudget,
    ReceiveBuffer,
)
from toolbus.errors import StreamBroken
from toolbus.wire.flow_control import MAX_CHUNK_BYTES, WINDOW_BYTES, WINDOW_CHUNKS


class Sender:
    """Sends to a buffer and records the credit that it gets."""

    def __init__(self, budget: BufferBudget) -> None:
        self.credits: list[tuple[int, int]] = []
        self.buffer = ReceiveBuffer(
            budget, lambda chunks, size: self.credits.append((chunks, size))
        )
        self.number = 0

    def send(self, *bodies: bytes) -> None:
        for body in bodies:
            self.number += 1
            self.buffer.add(self.number, body)


# Windows of several calls


def test_streams_get_full_windows_until_the_budget_is_used_up() -> None:
    budget = BufferBudget()
    given = [budget.resize(0, 0, WINDOW_BYTES) for _ in range(20)]
    assert given == [WINDOW_BYTES] * 16 + [MIN_SHARE_BYTES] * 4
    assert sum(given) == BUDGET_BYTES - budget.free_bytes
    for share in given:
        budget.release(share)
    assert budget.free_bytes == BUDGET_BYTES
    assert budget.resize(0, 0, WINDOW_BYTES) == WINDOW_BYTES


def test_share_shrinks_to_an_even_part_but_never_below_the_granted_credit() -> None:
    budget = BufferBudget()
    given = [budget.resize(0, 0, WINDOW_BYTES) for _ in range(20)]
    assert budget.resize(given[0], 900_000, WINDOW_BYTES) == 900_000
    assert budget.resize(given[1], 0, WINDOW_BYTES) == BUDGET_BYTES // 20
    assert budget.resize(given[-1], 0, WINDOW_BYTES) > MIN_SHARE_BYTES


def test_stream_without_a_share_releases_none() -> None:
    budget = BufferBudget()
    budget.release(0)
    budget.resize(0, 0, WINDOW_BYTES)
    assert budget.free_bytes == BUDGET_BYTES - WINDOW_BYTES


# Credit


async def test_credit_is_sent_when_half_is_used_and_counts_from_what_was_read() -> None:
    """STREAM-3."""
    sender = Sender(BufferBudget())
    assert sender.buffer.grant_credit() == (WINDOW_CHUNKS, WINDOW_BYTES)
    body = b"x" * (WINDOW_BYTES // 4)
    sender.send(body, body, body)
    assert await sender.buffer.next() == body
    assert sender.credits == []
    assert await sender.buffer.next() == body
    assert sender.credits == [(WINDOW_CHUNKS + 2, WINDOW_BYTES + 2 * len(body))]


async def test_no_credit_is_sent_after_the_end() -> None:
    sender = Sender(BufferBudget())
    sender.buffer.grant_credit()
    sender.send(*[b"x" * MAX_CHUNK_BYTES] * (WINDOW_BYTES // MAX_CHUNK_BYTES))
    sender.buffer.end()
    for _ in range(WINDOW_BYTES // MAX_CHUNK_BYTES):
        assert await sender.buffer.next() is not None
    assert await sender.buffer.next() is None
    assert await sender.buffer.next() is None
    assert sender.credits == []


def test_nothing_may_arrive_before_credit_is_granted() -> None:
    """INPUT-1."""
    with pytest.raises(StreamBroken):
        Sender(BufferBudget()).send(b"x")


# Ends


async def test_waiting_reader_wakes_for_the_next_body_and_the_end() -> None:
    sender = Sender(BufferBudget())
    sender.buffer.grant_credit()
    acts: list[tuple[Callable[[], None], bytes | None]] = [
        (lambda: sender.send(b"a"), b"a"),
        (sender.buffer.end, None),
    ]
    for act, expected in acts:
        reading = asyncio.create_task(sender.buffer.next())
        await asyncio.sleep(0)
        act()
        async with asyncio.timeout(60):
            assert await reading == expected


async def test_discarded_bodies_are_not_read_and_their_share_is_released() -> None:
    budget = BufferBudget()
    sender = Sender(budget)
    sender.buffer.grant_credit()
    sender.send(b"a", b"b")
    assert budget.free_bytes == BUDGET_BYTES - WINDOW_BYTES
    for _ in range(2):
        sender.buffer.discard()
        assert budget.free_bytes == BUDGET_BYTES
    assert await sender.buffer.next() is None


# Slow readers


@pytest.mark.parametrize(("chunk_every_s", "credits"), [(1.0, 25), (20.0, 127), (0.001, 0)])
def test_a_sender_that_waits_learns_in_time_that_its_slow_reader_goes_on(
    chunk_every_s: float, credits: int
) -> None:
    """STREAM-3: 5 s after it had used its credit, and not with every chunk."""

    async def read_half_a_window() -> list[tuple[int, int]]:
        sender = Sender(BufferBudget())
        sender.buffer.grant_credit()
        sender.send(*[b"x"] * WINDOW_CHUNKS)
        for _ in range(WINDOW_CHUNKS // 2 - 1):
            await asyncio.sleep(chunk_every_s)  # of a virtual clock
            before = len(sender.credits)
            await sender.buffer.next()
            if len(sender.credits) > before:
                sender.send(*[b"x"] * (sender.credits[-1][0] - sender.number))
        return sender.credits

    assert len(on_virtual_clock(read_half_a_window())) == credits
