"""Large registrations: read between the calls of others, in order, and within their quotas."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest

from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import ask, offer, refusal, toolkit_of
from support.rooms.server_state import connection_of
from support.rooms.unharmed_server import check_call, unharmed_server, until_new_tasks_end
from toolbus.wire import Drain, Failed, ListToolkits, RequestId, Result, Unregister, pack_body
from toolbus.wire.body_steps import Steps
from toolbus_server import identity_usage
from toolbus_server.limits import RateLimiter
from toolbus_server.registry.toolkit_definition import Definition, definition_steps
from toolbus_server.rooms import scheduling, toolkit_requests
from toolbus_server.testing import TestServer
from toolbus_server.websocket import session


def large(name: str = "t", tools: int = 300) -> dict[str, Any]:
    """A toolkit that takes many steps."""
    schema = {"properties": {f"p{n}": {"type": "string"} for n in range(20)}}
    return {
        "name": name,
        "tools": [{"name": f"t{n}", "input_schema": schema} for n in range(tools)],
    }


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Get an entry for each step in which a large manifest is read."""
    taken: list[None] = []

    def counted(packed: bytes) -> Steps[Definition]:
        reading = definition_steps(packed)
        while True:
            taken.append(None)
            try:
                yield next(reading)
            except StopIteration as end:
                definition: Definition = end.value
                return definition

    monkeypatch.setattr(toolkit_requests, "definition_steps", counted)
    return taken


async def replies(client: RawClient, *ids: int) -> dict[int, str]:
    """Return the outcomes of these requests, in the order in which they came."""
    outcomes: dict[int, str] = {}
    while len(outcomes) < len(ids):
        match await client.read_frame():
            case Result(id=request_id):
                outcomes[request_id] = "result"
            case Failed(id=request_id, code=code):
                outcomes[request_id] = code
    return outcomes


def names_in(server: TestServer) -> set[str]:
    room = server.server.hub.rooms["lab"].routed
    return {each.name for one in room.connections.values() for each in one.participant.toolkits}


async def test_calls_are_answered_while_a_large_manifest_is_read(
    steps: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """REG-25, REG-26."""
    monkeypatch.setattr(scheduling, "SLICE_S", 0.0)  # one step in each iteration
    async with unharmed_server() as server, raw_participant(server) as mallory:
        async with server.room("bob") as bob:
            mallory.send_frame(offer(large()))
            reply = asyncio.ensure_future(mallory.reply_to(1))
            answered = 0
            while not reply.done():
                await check_call(bob)
                answered += 1

        assert isinstance(await reply, Result)
        assert len(steps) > 500
        assert answered > 5


async def test_requests_of_one_participant_take_effect_in_the_order_in_which_they_were_sent() -> (
    None
):
    """REG-26."""
    async with unharmed_server() as server, raw_participant(server) as host:
        host.send_frame(offer(large("a"), 1))
        host.send_frame(Unregister(2, "a", True))
        host.send_frame(offer(toolkit_of("b", "run"), 3))
        host.send_frame(offer(large("c"), 4))
        host.send_frame(Drain(RequestId(5), {}))
        host.send_frame(offer(toolkit_of("d", "run"), 6))
        host.send_frame(ListToolkits(RequestId(7), {}))
        outcomes = await replies(host, 1, 2, 3, 4, 5, 6, 7)

        assert outcomes == {**dict.fromkeys((1, 2, 3, 4, 5, 7), "result"), 6: "unavailable"}
        assert list(outcomes) == [7, 1, 2, 3, 4, 5, 6]
        assert names_in(server) == {"echo", "b", "c"}


async def test_nothing_more_is_read_for_a_participant_that_has_left(steps: list[None]) -> None:
    """REG-26."""
    async with unharmed_server() as server, raw_participant(server, "other") as other:
        await ask(other, offer(large("first")))
        steps_of_one = len(steps)
        tasks = asyncio.all_tasks()
        async with raw_participant(server) as mallory:
            for number in range(1, 9):
                mallory.send_frame(offer(large(f"t{number}"), number))
            await ask(mallory, ListToolkits(RequestId(9), {}))
        await until_new_tasks_end(tasks)

        assert names_in(server) == {"echo", "first"}
        assert len(steps) < 6 * steps_of_one


async def test_flood_of_registrations_is_refused_when_it_has_taken_too_much_time() -> None:
    """REG-20, REG-25: those that wait too, and a second connection; others are served."""
    async with (
        unharmed_server() as server,
        raw_participant(server, "ann", instance="1") as first,
        raw_participant(server, "ann", instance="2") as second,
        raw_participant(server, "ben") as ben,
    ):
        usage = connection_of(server, "ann").usage
        for number in range(1, 4):
            first.send_frame(offer(large(f"t{number}"), number))
        while usage.waiting_bytes < 2 * len(pack_body(large("t1"))):
            await ask(ben, ListToolkits(RequestId(1), {}))
        usage.work = RateLimiter(0.0, 60.0)
        usage.charge(1.0)
        outcomes = await replies(first, 1, 2, 3)
        assert outcomes == {1: "result", 2: "quota_exceeded", 3: "quota_exceeded"}
        failed = await refusal(second, offer(request_id=1))
        assert (failed.code, failed.executed) == ("quota_exceeded", "no")
        assert failed.retry_after_ms
        await ask(ben, offer(large("b"), 2))


@pytest.mark.parametrize(
    ("module", "limit"),
    [(toolkit_requests, "MAX_PARTICIPANT_BYTES"), (identity_usage, "MAX_MANIFEST_BYTES")],
)
async def test_manifests_of_participant_and_identity_have_a_byte_limit(
    module: ModuleType, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REG-27: equal definitions of an identity count once, and what has ended does not count."""
    monkeypatch.setattr(module, limit, 20_000)
    by_identity = module is identity_usage
    async with unharmed_server() as server, raw_participant(server, "ann", instance="1") as first:
        async with raw_participant(server, "ann", instance="2") as second:
            for name in ("a", "b"):
                await ask(first, offer(toolkit_of(name, "run", description=name * 9_000)))
            if by_identity:
                await ask(second, offer(toolkit_of("a", "run", description="a" * 9_000)))
            other = second if by_identity else first
            late = offer(toolkit_of("c", "run", description="c" * 9_000), 2)
            failed = await refusal(other, late)
            assert (failed.code, failed.executed) == ("quota_exceeded", "no")
            await ask(first, offer(toolkit_of("b", "run", description="d" * 9_000)))
            await ask(first, Unregister(3, "b", True))
            await ask(other, late)


@pytest.mark.parametrize(
    ("module", "limit", "most"),
    [
        (session, "MAX_PARTICIPANT_BYTES", 300_000),
        (identity_usage, "MAX_WAITING_BYTES", 300_000),
        (scheduling, "MAX_WAITING_WALKS", 2),
        (identity_usage, "MAX_WAITING_REQUESTS", 2),
    ],
)
async def test_registrations_that_wait_are_limited(
    module: ModuleType, limit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REG-20, REG-27."""
    monkeypatch.setattr(module, limit, most)
    async with unharmed_server() as server, raw_participant(server) as mallory:
        for number in range(1, 4):
            mallory.send_frame(offer(large(f"t{number}"), number))
        outcomes = await replies(mallory, 1, 2, 3)

        assert outcomes == {1: "result", 2: "result", 3: "quota_exceeded"}
