"""What waits for a reader at either end of a call: how much that may be, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from toolbus.errors import StreamBroken
from toolbus.inflow import LEAST_SHARE_BYTES, SHARED_BYTES, Inflow, Shares
from toolbus.reach import LEAST_BYTES
from toolbus.wire.windows import WINDOW_BYTES, WINDOW_CHUNKS


class Sender:
    """Sends to an inflow, and keeps the credit that it was told."""

    def __init__(self, shares: Shares) -> None:
        self.told: list[tuple[int, int]] = []
        self.inflow = Inflow(shares, lambda chunks, size: self.told.append((chunks, size)))
        self.number = 0

    def send(self, *bodies: bytes) -> None:
        for body in bodies:
            self.number += 1
            self.inflow.arrive(self.number, body)


# Shares


def test_streams_have_what_they_want_until_all_is_given_and_then_the_least() -> None:
    shares = Shares()
    given = [shares.renew(0, 0, WINDOW_BYTES) for _ in range(20)]
    assert given == [WINDOW_BYTES] * 16 + [LEAST_SHARE_BYTES] * 4
    assert sum(given) == SHARED_BYTES - shares.left
    for each in given:
        shares.give_back(each)
    assert shares.left == SHARED_BYTES
    assert shares.renew(0, 0, WINDOW_BYTES) == WINDOW_BYTES


def test_a_share_shrinks_to_an_even_part_as_it_is_used_up_and_never_by_what_was_promised() -> None:
    shares = Shares()
    given = [shares.renew(0, 0, WINDOW_BYTES) for _ in range(20)]
    assert shares.renew(given[0], 900_000, WINDOW_BYTES) == 900_000
    assert shares.renew(given[1], 0, WINDOW_BYTES) == SHARED_BYTES // 20
    assert shares.renew(given[-1], 0, WINDOW_BYTES) > LEAST_SHARE_BYTES


def test_a_stream_that_had_no_share_gives_none_back() -> None:
    shares = Shares()
    shares.give_back(0)
    shares.renew(0, 0, WINDOW_BYTES)
    assert shares.left == SHARED_BYTES - WINDOW_BYTES


# Credit


async def test_credit_is_told_when_half_is_used_up_and_counts_from_what_was_read() -> None:
    """STREAM-3."""
    sender = Sender(Shares())
    assert sender.inflow.widen() == (WINDOW_CHUNKS, LEAST_BYTES)
    body = b"x" * (LEAST_BYTES // 4)
    sender.send(body, body, body)
    assert await sender.inflow.next() == body
    assert sender.told == []
    assert await sender.inflow.next() == body
    assert sender.told == [(WINDOW_CHUNKS + 2, LEAST_BYTES + 2 * len(body))]


async def test_no_credit_is_told_behind_the_end() -> None:
    sender = Sender(Shares())
    sender.inflow.widen()
    sender.send(b"x" * LEAST_BYTES)
    sender.inflow.end()
    assert await sender.inflow.next() is not None
    assert await sender.inflow.next() is None
    assert await sender.inflow.next() is None
    assert sender.told == []


def test_nothing_may_come_before_credit_is_given() -> None:
    """INPUT-1."""
    with pytest.raises(StreamBroken):
        Sender(Shares()).send(b"x")


# Ends


async def test_a_reader_that_waits_is_told_of_the_next_body_and_of_the_end() -> None:
    sender = Sender(Shares())
    sender.inflow.widen()
    acts: list[tuple[Callable[[], None], bytes | None]] = [
        (lambda: sender.send(b"a"), b"a"),
        (sender.inflow.end, None),
    ]
    for act, expected in acts:
        reading = asyncio.create_task(sender.inflow.next())
        await asyncio.sleep(0)
        act()
        async with asyncio.timeout(5):
            assert await reading == expected


async def test_what_is_dropped_is_not_read_and_its_share_is_there_for_others() -> None:
    shares = Shares()
    sender = Sender(shares)
    sender.inflow.widen()
    sender.send(b"a", b"b")
    assert shares.left == SHARED_BYTES - LEAST_BYTES
    for _ in range(2):
        sender.inflow.drop()
        assert shares.left == SHARED_BYTES
    assert await sender.inflow.next() is None
