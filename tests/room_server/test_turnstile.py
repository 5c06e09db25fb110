"""Those who come in at once are let in a few at a time, in their order."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from support.bystanders import nothing_complains
from support.raw_client import RawClient, bearer, raw_connection, upgrade_request
from support.virtual_clock import on_virtual_clock
from toolbus_server import turnstile
from toolbus_server.testing import TestServer, running_server
from toolbus_server.turnstile import MAX_WAITING, PER_TURN, TURN_S, Turnstile

AT_ONCE = 10 * PER_TURN


def test_a_few_pass_within_each_turn_in_the_order_in_which_they_came() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        gate = Turnstile(loop)
        began = loop.time()
        passed: list[tuple[int, int]] = []

        async def person(number: int) -> None:
            turn = gate.turn()
            if turn is not None:
                await turn
            passed.append((number, round((loop.time() - began) / TURN_S)))

        await asyncio.gather(*(person(number) for number in range(AT_ONCE)))
        assert [number for number, _ in passed] == list(range(AT_ONCE))
        assert Counter(turn for _, turn in passed) == dict.fromkeys(range(10), PER_TURN)

    on_virtual_clock(scenario())


def test_who_gives_up_holds_nobody_up() -> None:
    async def scenario() -> None:
        gate = Turnstile(asyncio.get_running_loop())
        turns = [gate.turn() for _ in range(AT_ONCE)]
        assert turns[:PER_TURN] == [None] * PER_TURN
        waiting = [turn for turn in turns if turn is not None]
        for turn in waiting[:-1]:
            turn.cancel()
        async with asyncio.timeout(1.5 * TURN_S):
            await waiting[-1]

    on_virtual_clock(scenario())


def test_way_is_free_again_when_nobody_comes_for_a_while() -> None:
    async def scenario() -> None:
        gate = Turnstile(asyncio.get_running_loop())
        for _ in range(3):
            assert [gate.turn() for _ in range(PER_TURN)] == [None] * PER_TURN
            assert gate.turn() is not None
            await asyncio.sleep(3 * TURN_S)

    on_virtual_clock(scenario())


def test_place_is_full_when_the_last_would_wait_too_long() -> None:
    async def scenario() -> None:
        gate = Turnstile(asyncio.get_running_loop())
        for _ in range(PER_TURN + MAX_WAITING - 1):
            gate.turn()
        assert not gate.is_full
        gate.turn()
        assert gate.is_full
        await asyncio.sleep(MAX_WAITING / PER_TURN * TURN_S + TURN_S)
        assert not gate.is_full
        assert gate.turn() is None

    on_virtual_clock(scenario())


# At the door of a server


async def knock(stack: AsyncExitStack, server: TestServer, count: int) -> list[RawClient]:
    """Ask for so many websockets at one time, and read no answer."""
    clients = [await stack.enter_async_context(raw_connection(server.url)) for _ in range(count)]
    headers = bearer(server.token("host"))
    for client in clients:
        client.send(upgrade_request("/rooms/lab", headers))
    return clients


@pytest.mark.row(82)
async def test_server_decides_of_a_few_at_a_time_and_serves_others_between() -> None:
    """CONN-16: a probe that came after all of them is answered before most."""
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


@pytest.mark.row(82)
async def test_who_is_gone_when_its_turn_comes_is_not_let_in() -> None:
    """CONN-16: and counts nowhere."""
    with nothing_complains():
        async with running_server() as server, AsyncExitStack() as stack:
            await _gone(stack, server)


async def _gone(stack: AsyncExitStack, server: TestServer) -> None:
    admission = server.server.admission
    clients = await knock(stack, server, AT_ONCE)
    while not server.server._turnstile._waiting:  # noqa: ASYNC110 - a plain queue
        await asyncio.sleep(0)
    for client in clients:
        client.abort()
    (late,) = await knock(stack, server, 1)
    assert (await late.read_head()).status == 101
    late.abort()
    async with asyncio.timeout(10):
        while admission.crowd._counts:  # noqa: ASYNC110 - a plain dict
            await asyncio.sleep(0.01)
    assert admission.refused == {}


@pytest.mark.row(82)
async def test_one_too_many_at_once_is_told_to_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONN-16, CONN-5."""
    monkeypatch.setattr(turnstile, "MAX_WAITING", 3)
    async with running_server() as server, AsyncExitStack() as stack:
        clients = await knock(stack, server, AT_ONCE)
        heads = [await client.read_head() for client in clients]
        answers = Counter(head.status for head in heads)
        assert answers.keys() == {101, 503}
        assert answers[101] >= PER_TURN + 3
        assert {head.headers["retry-after"] for head in heads if head.status == 503} == {"1"}
        assert server.server.admission.refused["too_many_at_once"] == answers[503]
