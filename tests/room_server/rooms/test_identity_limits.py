"""Limits on what all connections of one identity use together: other identities are served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import ask, failure_of, offer, refusal, toolkit_of
from support.rooms.server_state import connection_of
from support.rooms.unharmed_server import unharmed_server
from toolbus.auth.keys import KeyRing
from toolbus.errors import QuotaExceeded
from toolbus.wire import Attributes, Failed, ListToolkits, RequestId, Subscribe
from toolbus_server import identity_usage
from toolbus_server.identity_usage import IdentityUsages
from toolbus_server.limits import Limits, RateLimiter
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

CONNECTIONS, MOST = 20, 200
LIMITS = Limits(max_identity_toolkits=MOST, max_room_toolkits=1_000)


@asynccontextmanager
async def connections(server: TestServer, name: str, count: int) -> AsyncIterator[list[RawClient]]:
    async with AsyncExitStack() as stack:
        joining = (raw_participant(server, name, instance=str(n)) for n in range(count))
        yield [await stack.enter_async_context(each) for each in joining]


async def register_many(client: RawClient, prefix: str, count: int) -> int:
    """Register toolkits; return how many were accepted."""
    for number in range(count):
        client.send_frame(offer(toolkit_of(f"{prefix}-{number}", "run"), number))
    replies = [await client.reply_to(number) for number in range(count)]
    refused = [each for each in replies if isinstance(each, Failed)]
    assert {each.code for each in refused} <= {"quota_exceeded"}
    return count - len(refused)


async def test_twenty_connections_of_one_identity_do_not_fill_a_room() -> None:
    """REG-21: reserved names count; a toolkit that exists may have further hosts."""
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, limits=LIMITS)
    async with (
        running_server(settings=settings) as server,
        connections(server, "mallory", CONNECTIONS) as clients,
    ):
        each = MOST // CONNECTIONS + 6
        accepted = [await register_many(client, f"k{n}", each) for n, client in enumerate(clients)]
        assert sum(accepted) == MOST
        last = clients[-1]
        assert (await refusal(last, offer(request_id=9_000))).code == "quota_exceeded"
        clients[1].abort()
        assert (await refusal(last, offer(request_id=9_001))).code == "quota_exceeded"
        await ask(last, offer(toolkit_of("k0-0", "run"), 9_002))
        async with raw_participant(server, "ann") as ann:
            assert await register_many(ann, "ann", 100) == 100


def attributes(number: int) -> Attributes:
    return Attributes(RequestId(number), {"n": number})


def subscription(number: int) -> Subscribe:
    return Subscribe(RequestId(number), ["toolkits"])


@pytest.mark.parametrize(
    ("limit", "value", "request_of", "is_temporary"),
    [
        ("MAX_CHANGES", 3, attributes, True),
        ("MAX_WORK_S", 0.0, attributes, True),
        ("MAX_SUBSCRIBED_TOOLKITS", 3 * identity_usage.MIN_SUBSCRIPTION, subscription, True),
    ],
)
async def test_further_connection_of_an_identity_does_not_raise_its_limit(
    limit: str, value: float, request_of: Any, is_temporary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REG-19, REG-20, EVENT-5."""
    async with unharmed_server() as server:
        monkeypatch.setattr(identity_usage, limit, value)
        async with connections(server, "mallory", 4) as clients:
            for client in clients[:3]:
                if limit != "MAX_WORK_S":
                    await ask(client, request_of(1))
            if limit == "MAX_WORK_S":
                clients[0].send_frame(request_of(1))
                await clients[0].reply_to(1)
            failed = await refusal(clients[3], request_of(1))
            assert (failed.code, failed.retryable) == ("quota_exceeded", is_temporary)
            assert failed.retry_after_ms
            async with raw_participant(server, "ann") as ann:
                if limit != "MAX_WORK_S":
                    await ask(ann, request_of(1))


async def test_subscription_that_replaces_another_or_has_ended_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """EVENT-5."""
    monkeypatch.setattr(identity_usage, "MAX_SUBSCRIBED_TOOLKITS", identity_usage.MIN_SUBSCRIPTION)
    async with running_server() as server, connections(server, "ann", 2) as (one, two):
        for number in range(3):
            await ask(one, subscription(number))
        assert (await refusal(two, subscription(1))).code == "quota_exceeded"
        await ask(one, Subscribe(RequestId(5), []))
        await ask(two, subscription(2))
        assert connection_of(server, "ann").usage.subscribed == identity_usage.MIN_SUBSCRIPTION


async def test_requests_that_wait_are_limited_for_an_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REG-20: and one that waits is refused when it would begin beyond the limit of work."""
    monkeypatch.setattr(identity_usage, "MAX_WAITING_REQUESTS", 6)
    monkeypatch.setattr("toolbus_server.rooms.scheduling.SLICE_S", 0.0)
    async with unharmed_server() as server, connections(server, "mallory", 2) as clients:
        await register_many(clients[0], "k", 60)
        usage = connection_of(server, "mallory").usage
        for number in range(1, 5):
            for client in clients:
                client.send_frame(ListToolkits(RequestId(number), {"limit": 50}))
        replies = [await client.read_frame() for client in clients for _ in range(4)]
        refused = [each for each in replies if isinstance(each, Failed)]
        assert [each.code for each in refused] == ["quota_exceeded"] * 2
        assert (usage.waiting_requests, usage.waiting_bytes) == (0, 0)
        for number in (11, 12):
            clients[0].send_frame(ListToolkits(RequestId(number), {"limit": 50}))
        while usage.waiting_requests < 2:
            await ask(clients[1], attributes(13))
        usage.work = RateLimiter(0.0, 60.0)
        usage.charge(1.0)
        assert (await failure_of(clients[0], 12)).code == "quota_exceeded"


def test_identity_that_reconnects_in_a_loop_keeps_its_usage_and_others_are_forgotten() -> None:
    now = 0.0
    usages = IdentityUsages(lambda: now)
    for _ in range(1_000):
        connected = usages.of("mallory")
        connected.charge(100.0)
        usages.left("mallory")
        del connected
        usages.left("mallory")  # another connection, of which nothing refers to the usage any more
        for number in range(10):
            usages.left(f"{now}-{number}")
        now += identity_usage.WINDOW_S / 2
        with pytest.raises(QuotaExceeded):
            usages.of("mallory").check_work()
        now += identity_usage.WINDOW_S / 2
        assert len(usages) <= 11
    now += identity_usage.WINDOW_S + 1
    kept = usages.of("ann")
    assert len(usages) == 1
    assert usages.of("ann") is kept
