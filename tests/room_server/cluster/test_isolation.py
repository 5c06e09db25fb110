"""When a node without Redis counts as isolated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.clients.certificates import make_pki
from support.clients.server_tls import tls_settings
from support.parts.virtual_clock import on_virtual_clock
from support.rooms.events import until
from toolbus_server.cluster import isolation as isolation_module
from toolbus_server.cluster.isolation import (
    ALONE_TEXT,
    ISOLATED_AFTER_S,
    ISOLATED_TEXT,
    READY_TEXT,
    Isolation,
)

URL = "http://127.0.0.1:1"
JUST_BEFORE_S = ISOLATED_AFTER_S - 0.3
JUST_AFTER_S = ISOLATED_AFTER_S + 0.6


def answer(body: str, *, status: str = "200 OK", name: str = "other") -> bytes:
    header = f"toolbus-node: {name}\r\n" if name else ""
    return f"HTTP/1.1 {status}\r\nDate: now\r\n{header}\r\n{body}".encode()


READY = answer(READY_TEXT)
HANGS = TimeoutError()
Answers = dict[str, bytes | OSError]
Scenario = Callable[[Isolation], Awaitable[None]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What is at the addresses of other nodes, in place of sockets."""
    table: Answers = {}

    async def request(url: str) -> bytes:
        found = table[url]
        if found is HANGS:
            await asyncio.sleep(3_600)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(isolation_module, "_request", request)
    return table


def changes_in(answers: Answers, scenario: Scenario) -> list[bool]:
    """Lose Redis, run a scenario on the virtual clock; return the changes of isolation."""
    changes: list[bool] = []

    async def run() -> None:
        isolation = Isolation("mine")
        isolation.addresses = {f"node at {url}": url for url in answers}
        isolation.on_change = changes.append
        isolation.begin()
        await scenario(isolation)
        isolation.end()

    on_virtual_clock(run())
    return changes


def test_node_is_isolated_once_others_had_redis_all_the_time(
    answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    """And not any more when it has Redis, or when no other node has; in each outage anew."""
    answers[URL] = READY

    async def scenario(isolation: Isolation) -> None:
        await asyncio.sleep(JUST_BEFORE_S)
        isolation.begin()  # another failed attempt to connect changes nothing
        assert not isolation.is_isolated
        await asyncio.sleep(JUST_AFTER_S - JUST_BEFORE_S)
        assert isolation.is_isolated
        answers[URL] = answer(ALONE_TEXT)
        await asyncio.sleep(1)
        assert not isolation.is_isolated
        answers[URL] = READY
        await asyncio.sleep(JUST_AFTER_S)
        assert isolation.is_isolated
        isolation.end()
        assert not isolation.is_isolated
        await asyncio.sleep(JUST_AFTER_S)
        assert not isolation.is_isolated
        isolation.begin()
        await asyncio.sleep(JUST_AFTER_S)

    assert changes_in(answers, scenario) == [True, False] * 3
    assert ["other nodes have" in each.getMessage() for each in caplog.records] == [True] * 3


def test_one_round_without_an_answer_starts_the_proof_again(answers: Answers) -> None:
    answers[URL] = READY

    async def scenario(_isolation: Isolation) -> None:
        for _ in range(5):
            await asyncio.sleep(JUST_BEFORE_S)
            answers[URL] = ConnectionRefusedError()
            await asyncio.sleep(0.6)
            answers[URL] = READY

    assert changes_in(answers, scenario) == []


def test_each_outage_needs_a_proof_of_its_own(answers: Answers) -> None:
    answers[URL] = READY

    async def scenario(isolation: Isolation) -> None:
        for _ in range(3):
            await asyncio.sleep(JUST_BEFORE_S)
            isolation.end()
            isolation.begin()

    assert changes_in(answers, scenario) == []


@pytest.mark.parametrize(
    "found",
    [
        answer(ALONE_TEXT),
        answer(ISOLATED_TEXT, status="404 Not Found"),
        answer(READY_TEXT, status="503 Service Unavailable"),
        answer(READY_TEXT, name="mine"),  # another process of this node's port, or this node
        answer(READY_TEXT, name=""),  # another service has the address now
        b"",
        b"HTTP/1.1 200 OK",
        HANGS,
        OSError("no route"),
    ],
    ids=str,
)
def test_other_answers_prove_nothing(answers: Answers, found: bytes | OSError) -> None:
    answers[URL] = found
    assert changes_in(answers, lambda _: asyncio.sleep(2 * JUST_AFTER_S)) == []


def test_one_node_with_redis_is_enough_among_those_asked(answers: Answers) -> None:
    answers |= {URL: ConnectionRefusedError(), f"{URL}2": READY, f"{URL}3": answer(ALONE_TEXT)}
    assert changes_in(answers, lambda _: asyncio.sleep(JUST_AFTER_S)) == [True, False]
    answers[URL] = HANGS  # each round takes longer
    assert changes_in(answers, lambda _: asyncio.sleep(2 * JUST_AFTER_S)) == [True, False]


async def test_node_with_tls_is_asked_whatever_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate has a name, and nodes know addresses."""
    monkeypatch.setattr(isolation_module, "ISOLATED_AFTER_S", 0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(READY)
        writer.close()

    tls = tls_settings(make_pki(tmp_path / "pki")).tls
    async with (
        asyncio.timeout(60),
        await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as at,
    ):
        isolation = Isolation("mine")
        isolation.addresses = {"other 1": f"https://127.0.0.1:{at.sockets[0].getsockname()[1]}"}
        isolation.begin()
        await until(lambda: isolation.is_isolated)
        isolation.end()
