"""Concurrent joins pass a few at a time, in their order."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from support.clients.raw_client import RawClient, bearer, raw_connection, upgrade_request
from support.parts.virtual_clock import on_virtual_clock
from support.rooms.unharmed_server import no_logged_errors
from toolbus_server.access import connection_limits as turnstile
from toolbus_server.access.connection_limits import (
    INTERVAL_S,
    MAX_WAITING,
    PER_INTERVAL,
    JoinRateLimiter,
)
from toolbus_server.testing import TestServer, running_server

AT_ONCE = 10 * PER_INTERVAL


def test_a_few_joins_pass_in_each_interval_in_their_order() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        gate = JoinRateLimiter(loop)
        began = loop.time()
        passed: list[tuple[int, int]] = []

        async def person(number: int) -> None:
            turn = gate.acquire()
            if turn is not None:
                await turn
            passed.append((number, round((loop.time() - began) / INTERVAL_S)))

        await asyncio.gather(*(person(number) for number in range(AT_ONCE)))
        assert [number for number, _ in passed] == list(range(AT_ONCE))
        assert Counter(turn for _, turn in passed) == dict.fromkeys(range(10), PER_INTERVAL)

    on_virtual_clock(scenario())


def test_a_cancelled_join_does_not_delay_the_others() -> None:
    async def scenario() -> None:
        gate = JoinRateLimiter(asyncio.get_running_loop())
        turns = [gate.acquire() for _ in range(AT_ONCE)]
        assert turns[:PER_INTERVAL] == [None] * PER_INTERVAL
        waiting = [turn for turn in turns if turn is not None]
        for turn in waiting[:-1]:
            turn.cancel()
        async with asyncio.timeout(1.5 * INTERVAL_S):
            await waiting[-1]

    on_virtual_clock(scenario())


def test_joins_pass_at_once_after_a_pause() -> None:
    async def scenario() -> None:
        gate = JoinRateLimiter(asyncio.get_running_loop())
        for _ in range(3):
            assert [gate.acquire() for _ in range(PER_INTERVAL)] == [None] * PER_INTERVAL
            assert gate.acquire() is not None
            await asyncio.sleep(3 * INTERVAL_S)

    on_virtual_clock(scenario())


def test_limiter_is_full_when_a_join_would_wait_too_long() -> None:
    async def scenario() -> None:
        gate = JoinRateLimiter(asyncio.get_running_loop())
        for _ in range(PER_INTERVAL + MAX_WAITING - 1):
            gate.acquire()
        assert not gate.is_full
        gate.acquire()
        assert gate.is_full
        await asyncio.sleep(MAX_WAITING / PER_INTERVAL * INTERVAL_S + INTERVAL_S)
        assert not gate.is_full
        assert gate.acquire() is None

    on_virtual_clock(scenario())


# In a server


async def knock(stack: AsyncExitStack, server: TestServer, count: int) -> list[RawClient]:
    """Request so many websockets at one time, and read no response."""
    clients = [await stack.enter_async_context(raw_connection(server.url)) for _ in range(count)]
    headers = bearer(server.token("host"))
    for client in clients:
        client.send(upgrade_request("/rooms/lab", headers))
    return clients


async def test_server_admits_a_few_at_a_time_and_serves_others_between() -> None:
    """CONN-16: a probe sent after all of them gets a response before most of them."""
    async with running_server() as server, AsyncExitStack() as stack:
        admission = server.server.admission
        decide = admission.decide
        decided = 0

        def counted(*arguments: Any) -> Any:
            nonlocal decided
            decided += 1
            return decide(*arguments)

        admission.decide = counted  # type: ignore[assignment,method-assign]  # stands between
        clients = await knock(stack, server, AT_ONCE)
        probe = await stack.enter_async_context(raw_connection(server.url))
        probe.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await probe.read_head()).status == 200
        assert decided <= AT_ONCE // 2
        for client in clients:
            assert (await client.read_head()).status == 101
        assert decided == AT_ONCE


async def test_client_that_disconnected_while_waiting_is_not_admitted() -> None:
    """CONN-16: and is not counted."""
    with no_logged_errors():
        async with running_server() as server, AsyncExitStack() as stack:
            await _gone(stack, server)


async def _gone(stack: AsyncExitStack, server: TestServer) -> None:
    admission = server.server.admission
    clients = await knock(stack, server, AT_ONCE)
    while not server.server._join_rate_limiter._waiting:  # noqa: ASYNC110 - a plain queue
        await asyncio.sleep(0)
    for client in clients:
        client.abort()
    (late,) = await knock(stack, server, 1)
    assert (await late.read_head()).status == 101
    late.abort()
    async with asyncio.timeout(60):
        while admission.quotas._counts:  # noqa: ASYNC110 - a plain dict
            await asyncio.sleep(0.01)
    assert admission.refused == {}


async def test_join_beyond_the_queue_limit_is_refused_until_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CONN-16, CONN-5."""
    monkeypatch.setattr(turnstile, "MAX_WAITING", 3)
    async with running_server() as server, AsyncExitStack() as stack:
        clients = await knock(stack, server, AT_ONCE)
        heads = [await client.read_head() for client in clients]
        answers = Counter(head.status for head in heads)
        assert answers.keys() == {101, 503}
        assert answers[101] >= PER_INTERVAL + 3
        assert {head.headers["retry-after"] for head in heads if head.status == 503} == {"1"}
        assert server.server.admission.refused["too_many_at_once"] == answers[503]
