"""Memory for participants that read nothing: limited for an identity and for the server."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import ask, call_of, next_of, offer, toolkit_of
from support.processes.server_process import resident_bytes, server_process
from support.rooms.unharmed_server import unharmed_server
from toolbus.auth.keys import KeyRing
from toolbus.transport.websocket import WRITE_LIMIT_BYTES
from toolbus.wire import (
    Credit,
    Describe,
    Dispatch,
    Event,
    Failed,
    Input,
    RequestId,
    Result,
    Send,
    Subscribe,
    pack_body,
)
from toolbus_server import identity_usage
from toolbus_server.access.unread_memory import UnreadMemory, write_limit_of
from toolbus_server.identity_usage import IdentityUsage
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer

MIB = 1024 * 1024
READERS, LIMIT, MESSAGES, BODY_BYTES = 12, 4 * MIB, 150, 64 * 1024
STREAMS = 384
SLACK_BYTES = READERS * BODY_BYTES
"""What one message adds before connections are closed, in the next iteration of the loop."""


def unread_at(port: Any) -> int:
    """Measure what waits for a connection, apart from what the system keeps."""
    queue = port._send_queue
    queued = 0 if queue is None else sum(len(data) for data, _, _ in queue._waiting)
    return port.transport.get_write_buffer_size() + queued  # type: ignore[no-any-return]


@pytest.mark.parametrize("of", ["identity", "server"])
async def test_idle_readers_have_a_limit_together_and_another_gets_every_message(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CONN-14: of one identity, or of many; the reader that reads is of the idle ones' identity."""
    if of == "identity":
        monkeypatch.setattr(identity_usage, "MAX_UNREAD_BYTES", LIMIT)
    most = LIMIT if of == "server" else 0
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, max_waiting_bytes=most)
    async with unharmed_server(settings=settings) as server, AsyncExitStack() as stack:

        async def subscriber(name: str, instance: int) -> tuple[RawClient, Any]:
            joining = raw_participant(server, name, instance=str(instance))
            client = await stack.enter_async_context(joining)
            await ask(client, Subscribe(RequestId(1), ["messages"]))
            connections = server.server.hub.rooms["lab"].routed.connections.values()
            return client, list(connections)[-1].port

        names = ["mallory" if of == "identity" else f"m{n}" for n in range(READERS)]
        idle = [await subscriber(name, number) for number, name in enumerate(names)]
        for client, _ in idle:
            client.stop_reading()
        reading = [await subscriber("mallory", READERS), await subscriber("carl", 0)]
        ann = await stack.enter_async_context(raw_participant(server, "ann"))
        big = {"name": "run", "input_schema": {"title": "x" * BODY_BYTES}}
        await ask(ann, offer({"name": "big", "tools": [big]}))
        for number in range(MESSAGES):
            for client, _ in idle:
                client.send_frame(Describe(RequestId(2), "big", {}))
                await client.flush()
            await ask(ann, Send(RequestId(number), None, "news", b""))
            for client, _ in reading:
                assert (await next_of(client, Event)).number == number + 1
            open_ports = [port for _, port in idle if port.is_open]
            assert sum(map(unread_at, open_ports)) <= LIMIT + SLACK_BYTES
        closed = [port for _, port in idle if not port.is_open]
        assert closed
        assert all(port.is_open for _, port in reading)
        assert reading[0][1]._quotas.slow_consumers == len(closed)


@pytest.mark.parametrize("of", ["identity", "server"])
async def test_calls_of_another_identity_close_no_host_that_reads_nothing_for_a_while(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CONN-14, CALL-18: calls beyond the limit are `overloaded`; all others arrive."""
    if of == "identity":
        monkeypatch.setattr(identity_usage, "MAX_UNREAD_BYTES", 2 * LIMIT)
    most = 2 * LIMIT if of == "server" else 0
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, max_waiting_bytes=most)
    async with unharmed_server(settings=settings) as server, AsyncExitStack() as stack:

        async def join(name: str, instance: int) -> RawClient:
            joining = raw_participant(server, name, instance=str(instance))
            return await stack.enter_async_context(joining)

        hosts = [await join("workers", number) for number in range(READERS)]
        for host in hosts:
            await ask(host, offer(toolkit_of("work", "run")))
            host.stop_reading()
        eve, refused = await join("eve", 0), 0
        body = pack_body({"text": "x" * BODY_BYTES})
        for first in range(10, 10 + READERS * MESSAGES, READERS):
            for number in range(first, first + READERS):
                eve.send_frame(call_of("work.run", number, arguments=body))
            eve.send_frame(Send(RequestId(1), None, "done", b""))
            while isinstance(reply := await eve.read_frame(), Failed):
                assert reply.code == "overloaded"
                refused += 1
            assert isinstance(reply, Result)
        assert refused
        connections = list(server.server.hub.rooms["lab"].routed.connections.values())
        names = [each.participant.identity.name for each in connections]
        assert names.count("workers") == READERS
        for host in hosts:
            host.read_again()
            await ask(host, Send(RequestId(2), None, "read", b""))
        eve.abort()
        while server.server.hub.router.in_flight:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)


async def test_input_of_another_identity_closes_no_host_that_reads_nothing_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CONN-14: calls whose input would exceed the limit end; the host goes on."""
    monkeypatch.setattr(identity_usage, "MAX_UNREAD_BYTES", LIMIT)
    async with (
        unharmed_server() as server,
        raw_participant(server, "worker") as host,
        raw_participant(server, "eve") as eve,
    ):
        await ask(host, offer(toolkit_of("work", "run")))
        for number in range(STREAMS):
            eve.send_frame(call_of("work.run", 10 + number, input=True))
            dispatch = await next_of(host, Dispatch)
            host.send_frame(Credit(dispatch.id, True, 100, MIB))
        host.stop_reading()
        sent = dict.fromkeys(range(10, 10 + STREAMS), (0, 0))
        while not isinstance(reply := await eve.read_frame(), Failed):
            assert isinstance(reply, Credit)
            number, size = sent[reply.id]
            while number < reply.chunks and size < reply.bytes:
                number, length = number + 1, min(BODY_BYTES // 2, reply.bytes - size)
                eve.send_frame(Input(reply.id, number, bytes(length), False))
                size += length
            sent[reply.id] = number, size
        assert reply.code == "stream_stalled"
        host.read_again()
        await ask(host, Send(RequestId(2), None, "read", b""))
        eve.abort()
        while server.server.hub.router.in_flight:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)


class FakeReader:
    def __init__(self, memory: UnreadMemory, usage: IdentityUsage) -> None:
        self.memory = memory
        self.usage: IdentityUsage | None = usage
        self.unread_bytes = 0
        self.is_closed = False

    def close_as_slow(self) -> None:
        self.is_closed = True
        self.memory.update(self, 0)


async def test_readers_with_the_most_bytes_are_closed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CONN-14."""
    monkeypatch.setattr(identity_usage, "MAX_UNREAD_BYTES", 100)
    memory, one, two = UnreadMemory(asyncio.get_running_loop(), 1_000), IdentityUsage(), 0
    readers = [FakeReader(memory, one) for _ in range(4)]
    for reader, size in zip(readers, (40, 10, 30, 25), strict=True):
        memory.update(reader, size)
    await asyncio.sleep(0)
    assert [each.is_closed for each in readers] == [True, False, False, False]
    others = [FakeReader(memory, IdentityUsage()) for _ in range(20)]
    for two, reader in enumerate(others):
        memory.update(reader, 40 + two)
    await asyncio.sleep(0)
    assert [each.is_closed for each in others] == [False] * 16 + [True] * 4
    assert not any(each.is_closed for each in readers[1:])
    for reader in (*readers, *others):
        memory.update(reader, 0)
    assert (memory.total_bytes, one.unread_bytes) == (0, 0)


def test_write_buffers_of_one_identity_are_small_if_it_has_many_connections() -> None:
    limits = [write_limit_of(number) for number in range(1, 4_097)]
    assert limits[:64] == [WRITE_LIMIT_BYTES] * 64
    assert sum(limits) <= 112 * MIB


@pytest.mark.soak
async def test_server_with_400_idle_readers_of_one_identity_keeps_its_memory(
    tmp_path: Path,
) -> None:
    """The default limit: 64 MiB; without it 400 readers hold 1.8 GB."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(server_process(tmp_path))
        there = cast(TestServer, server)
        for number in range(400):
            joining = raw_participant(there, token=server.token("mallory"), instance=str(number))
            client = await stack.enter_async_context(joining)
            await ask(client, Subscribe(RequestId(1), ["messages"]))
            client.stop_reading()
        joined = [raw_participant(there, token=server.token(each)) for each in ("ann", "carl")]
        ann, carl = [await stack.enter_async_context(each) for each in joined]
        await ask(carl, Subscribe(RequestId(1), ["messages"]))
        before, most = resident_bytes(server.pid), 0
        for number in range(60):
            await ask(ann, Send(RequestId(number), None, "news", bytes(200_000)))
            assert (await next_of(carl, Event)).number == number + 1
            most = max(most, resident_bytes(server.pid) - before)
        sys.stdout.write(f"grew by {most / MIB:.0f} MiB\n")
        assert most <= 256 * MIB
