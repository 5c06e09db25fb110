"""Host names of Redis: lookups that hang, and several addresses, in bounded time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from support.nodes.relayed import joined_nodes, node_of
from support.parts.name_server import NAME, NameServer, full_listener, name_server
from support.redis.relay import redis_relay
from support.redis.server import RedisServer
from support.rooms.events import until
from toolbus_server.cluster.redis import client as client_module
from toolbus_server.cluster.redis import url as module
from toolbus_server.cluster.redis.health_check import examine_redis

TIME_S = 60


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """Answer for `NAME` in place of the system's resolver."""
    monkeypatch.setattr(module, "LOOKUP_S", 0.2)
    with name_server(monkeypatch) as server:
        yield server


@contextmanager
def silent_listener(address: str, port: int) -> Iterator[None]:
    """Accept connections and never answer."""
    with socket.create_server((address, port)):
        yield


@pytest.mark.parametrize("first", [full_listener, silent_listener, None])
async def test_a_node_joins_by_the_address_that_answers(
    names: NameServer, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, first: Any
) -> None:
    monkeypatch.setattr(client_module, "_OPEN_S", 1.0)
    names.addresses = ["127.0.0.2", "127.0.0.1"]
    url = redis.url.replace("127.0.0.1", NAME)
    with first("127.0.0.2", redis.port) if first else nullcontext():
        async with asyncio.timeout(TIME_S), joined_nodes(url) as (server,):
            assert node_of(server).is_joined.is_set()


async def test_doctor_has_each_address_of_a_redis_with_its_reason(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._OPTIONS, "socket_connect_timeout", 0.5)
    names.addresses = ["127.0.0.2", "127.0.0.3"]
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
        with full_listener("127.0.0.2", port):
            async with asyncio.timeout(TIME_S):
                reach = (await examine_redis(f"redis://{NAME}:{port}"))[0]
    reasons = "127.0.0.2: no answer within 0.5 s, 127.0.0.3: connection refused"
    assert reach.found == f"no server answers at {NAME}:{port} ({reasons})"


@pytest.mark.redis
async def test_node_reconnects_to_the_last_address_while_lookups_hang(
    names: NameServer, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(TIME_S), redis_relay(redis.port) as way:
        async with joined_nodes(way.url.replace("127.0.0.1", NAME)) as (server,):
            node = node_of(server)
            names.may_answer.clear()
            for _ in range(3):
                way.cut()
                await until(lambda: not node.is_joined.is_set())
                way.mend()
                await node.is_joined.wait()
            lines = [each.getMessage() for each in caplog.records]
            assert sum("its last address" in line for line in lines) == 1
            assert not any("never retrieved" in line for line in lines)


@pytest.mark.parametrize("scheme", ["redis", "redis+sentinel"])
async def test_doctor_reports_a_name_server_that_does_not_answer(
    names: NameServer, scheme: str
) -> None:
    names.may_answer.clear()
    path = "/main" if "sentinel" in scheme else "/0"
    async with asyncio.timeout(TIME_S):
        reach = (await examine_redis(f"{scheme}://{NAME}:6379{path}"))[0]
    expected = "name no primary" if "sentinel" in scheme else "the name server does not answer"
    assert reach.status == "fail"
    assert expected in reach.found
