"""Host names of Redis: lookups that hang, fail or answer late, in bounded time."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.nodes.relayed import joined_nodes, node_of
from support.redis.relay import redis_relay
from support.redis.server import RedisServer
from support.rooms.events import until
from toolbus_server.cluster.redis import resolver as module
from toolbus_server.cluster.redis.health_check import examine_redis
from toolbus_server.cluster.redis.resolver import HostResolver
from toolbus_server.cluster.redis.url import pool_of

TIME_S = 60
NAME = "redis.test"
_real = socket.getaddrinfo


class NameServer:
    """Answers for one name: at once, with an error, or when it is released."""

    def __init__(self) -> None:
        self.addresses = ["127.0.0.1"]
        self.error: OSError | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.lookups = 0

    def getaddrinfo(self, host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        if host != NAME:
            return _real(host, port, *rest, **options)
        self.lookups += 1
        self.may_answer.wait(TIME_S)
        if self.error is not None:
            raise self.error
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in self.addresses]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """Answer for `NAME` in place of the system's resolver."""
    server = NameServer()
    monkeypatch.setattr(module, "LOOKUP_S", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    yield server
    server.may_answer.set()


async def test_hung_lookup_is_awaited_once_and_takes_no_worker_thread(names: NameServer) -> None:
    names.may_answer.clear()
    resolver = HostResolver()
    async with asyncio.timeout(TIME_S):
        asked = (resolver.addresses(NAME) for _ in range(100))
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(end) for end in ends} == {socket.gaierror}
        assert names.lookups == 1
        assert await resolver.addresses("127.0.0.1") == ("127.0.0.1",)
        for _ in range(100):
            await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        names.may_answer.set()
        await until(lambda: not resolver._running)
        assert await resolver.addresses(NAME) == ("127.0.0.1",)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, ("127.0.0.1",)),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), ("127.0.0.1",)),
        (socket.gaierror(socket.EAI_NONAME, "no such name"), None),
    ],
)
async def test_last_addresses_are_used_unless_the_name_is_gone(
    names: NameServer,
    caplog: pytest.LogCaptureFixture,
    error: OSError | None,
    expected: tuple[str, ...] | None,
) -> None:
    resolver = HostResolver()
    async with asyncio.timeout(TIME_S):
        assert await resolver.addresses(NAME) == ("127.0.0.1",)
        names.error = error
        if error is None:
            names.may_answer.clear()
        for _ in range(3):
            if expected is None:
                with pytest.raises(socket.gaierror):
                    await resolver.addresses(NAME)
            else:
                assert await resolver.addresses(NAME) == expected
    assert caplog.text.count("its last address 127.0.0.1 is used") == (expected is not None)


async def test_lookup_without_a_thread_fails_and_the_next_one_succeeds(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    resolver = HostResolver()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(socket.gaierror, match="can't start new thread"):
            await resolver.addresses(NAME)
    assert await resolver.addresses(NAME) == ("127.0.0.1",)


async def test_each_address_of_a_name_is_tried(names: NameServer, redis: RedisServer) -> None:
    names.addresses = ["127.0.0.2", "127.0.0.1"]
    connection: Any = pool_of(redis.url.replace("127.0.0.1", NAME)).make_connection()  # type: ignore[no-untyped-call]
    async with asyncio.timeout(TIME_S):
        await connection.connect()
        await connection.disconnect()


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
