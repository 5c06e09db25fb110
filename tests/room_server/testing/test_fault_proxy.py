"""The fault proxy: each fault is tested on a real connection."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.clients.bare_sockets import KIB, Peer, listener, port_of
from support.parts.isolated_host import echo
from toolbus import RoomClient, Toolkit
from toolbus.errors import ConnectionLost, DeadlineExceeded, Unavailable
from toolbus_server.testing import FaultProxy, Faults, TestServer, running_server


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[FaultProxy, Peer, Peer]]:
    """A proxy with one connection through it: the participant's side and the server's."""
    async with listener() as upstream, FaultProxy(upstream.url, seed=1) as proxy:
        participant = Peer(*await asyncio.open_connection("127.0.0.1", port_of(proxy)))
        try:
            yield proxy, participant, await upstream.next()
        finally:
            participant.writer.transport.abort()


@asynccontextmanager
async def server_and_caller() -> AsyncIterator[tuple[TestServer, FaultProxy, RoomClient]]:
    """A server with the toolkit `t`, and ann, who is connected through a proxy."""
    async with (
        running_server() as server,
        FaultProxy(server.url, seed=1) as proxy,
        server.room("host") as host,
        host.host(Toolkit("t", [echo])),
        server.room("ann", via=proxy) as ann,
    ):
        yield server, proxy, ann


async def until_no_connections(proxy: FaultProxy) -> None:
    """Wait until no connection is left."""
    async with asyncio.timeout(60):
        while proxy.connections:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)


async def call_duration_s(room: RoomClient) -> float:
    began = time.perf_counter()
    assert await room.call("t.echo", text="x") == "x"
    return time.perf_counter() - began


# Without a fault


async def test_bytes_and_ends_are_forwarded_unchanged_in_both_directions() -> None:
    async with proxied() as (proxy, participant, server):
        data = bytes(range(256)) * 4 * KIB  # more than any buffer holds
        for source, target in ((participant, server), (server, participant)):
            source.writer.write(data)
            assert await target.read(len(data)) == data
        participant.writer.write_eof()
        assert await server.end() == "end after 0 bytes"
        server.writer.write(b"still")  # one side may end before the other
        server.writer.write_eof()
        assert await participant.end() == "end after 5 bytes"
        await until_no_connections(proxy)


async def test_a_reset_by_one_side_resets_the_other() -> None:
    async with proxied() as (_, participant, server):
        server.writer.write(b"unread")
        participant.writer.write(b"unread")
        await server.read(6)
        sock = participant.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        participant.writer.transport.abort()
        assert await server.end() == "reset"


async def test_a_proxy_that_ends_closes_its_connections() -> None:
    async with listener() as upstream:
        async with FaultProxy(upstream.url) as proxy:
            participant = Peer(*await asyncio.open_connection("127.0.0.1", port_of(proxy)))
            server = await upstream.next()
            proxy.to_server = proxy.to_participant = Faults(stalled=True)
        assert await participant.end() in {"reset", "end after 0 bytes"}
        assert await server.end() in {"reset", "end after 0 bytes"}
        with pytest.raises(RuntimeError):
            _ = proxy.url
        participant.writer.transport.abort()


# Latency, bandwidth, small pieces


async def test_latency_applies_to_its_direction_until_it_is_lifted() -> None:
    async with server_and_caller() as (_, proxy, ann):
        proxy.to_server = Faults(latency_s=0.3)
        assert await call_duration_s(ann) >= 0.3
        proxy.to_participant = Faults(latency_s=0.3)
        assert await call_duration_s(ann) >= 0.6
        waiting = asyncio.ensure_future(ann.call("t.echo", text="x"))
        proxy.to_server = proxy.to_participant = Faults(latency_s=3_600)
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        await proxy.heal()  # also for bytes that are delayed already
        async with asyncio.timeout(60):
            assert await waiting == "x"


async def test_many_pieces_are_delayed_at_a_time() -> None:
    async with proxied() as (proxy, participant, server):
        proxy.to_server = Faults(latency_s=0.3)
        began = time.perf_counter()
        for _ in range(200):
            participant.writer.write(b"x")
            await asyncio.sleep(0.01)  # so that each piece is read separately
        async with asyncio.timeout(60):  # it would be 60 s if each waited for the one before
            await server.read(200)
        assert time.perf_counter() - began >= 0.3


async def test_jitter_delays_bytes_and_keeps_their_order() -> None:
    async with proxied() as (proxy, participant, server):
        proxy.to_server = Faults(jitter_s=0.05)
        for number in range(30):
            participant.writer.write(bytes([number]))
            await asyncio.sleep(0.002)
        assert await server.read(30) == bytes(range(30))


async def test_a_seed_makes_jitter_repeatable() -> None:
    draws = []
    for seed in (1, 1, 2):
        proxy = FaultProxy("ws://127.0.0.1:1", seed=seed)
        draws.append([proxy._random.random() for _ in range(5)])
    assert draws[0] == draws[1] != draws[2]


async def test_bandwidth_is_limited() -> None:
    async with proxied() as (proxy, participant, server):
        proxy.to_participant = Faults(bytes_per_s=100_000)
        server.writer.write(bytes(50_000))
        began = time.perf_counter()
        await participant.read(50_000)
        assert time.perf_counter() - began >= 0.4
        server.writer.write(bytes(50_000_000))
        proxy.to_participant = Faults()  # 500 s at the rate before
        await participant.read(50_000_000)


class PieceSizes(asyncio.Protocol):
    """Records the sizes of the pieces that it receives."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.is_complete = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.sizes.append(len(data))
        if sum(self.sizes) >= 200:
            self.is_complete.set()


@pytest.mark.parametrize(("slice_bytes", "least"), [(1, 100), (20, 8), (None, 1)])
async def test_bytes_are_sliced_into_pieces(slice_bytes: int | None, least: int) -> None:
    async with listener() as upstream, FaultProxy(upstream.url) as proxy:
        loop = asyncio.get_running_loop()
        transport, pieces = await loop.create_connection(PieceSizes, "127.0.0.1", port_of(proxy))
        server = await upstream.next()
        proxy.to_participant = Faults(slice_bytes=slice_bytes)
        server.writer.write(bytes(200))
        async with asyncio.timeout(60):
            await pieces.is_complete.wait()
        # The kernel may join pieces before they are read.
        assert least <= len(pieces.sizes) <= 200 / (slice_bytes or 200)
        transport.abort()


async def test_calls_succeed_byte_by_byte() -> None:
    async with server_and_caller() as (_, proxy, ann):
        proxy.to_server = proxy.to_participant = Faults(slice_bytes=1)
        assert await ann.call("t.echo", text="word " * 500) == "word " * 500


# Loss and stalls


async def test_lost_bytes_never_arrive_and_both_sides_look_open() -> None:
    async with proxied() as (proxy, participant, server):
        proxy.to_server = Faults(lost=True)
        participant.writer.write(bytes(4 * KIB * KIB))  # without backpressure
        await participant.writer.drain()
        server.writer.write(b"the other direction works.")
        assert await participant.read(26) == b"the other direction works."
        participant.writer.write_eof()
        assert await server.receives_nothing()
        proxy.to_server = Faults()
        assert await server.end() == "end after 0 bytes"  # the end is delivered now


async def test_a_call_whose_answer_is_lost_ends_at_its_deadline_with_executed_maybe() -> None:
    async with server_and_caller() as (_, proxy, ann):
        proxy.to_participant = Faults(lost=True)
        with pytest.raises(DeadlineExceeded) as late:
            await ann.invoke("t.echo", {"text": "x"}, timeout_s=0.2)
        assert late.value.executed == "maybe"


async def test_ends_are_not_delivered_while_all_is_lost_even_from_both_sides() -> None:
    async with proxied() as (proxy, participant, server):
        proxy.to_server = proxy.to_participant = Faults(lost=True)
        participant.writer.transport.abort()
        server.writer.write_eof()  # as a server does that gives a participant up
        assert await server.receives_nothing()
        assert proxy.connections == 1
        await proxy.heal()
        assert await server.end() in {"reset", "end after 0 bytes"}
        await until_no_connections(proxy)


async def test_a_stall_blocks_the_sender_and_all_bytes_arrive_when_it_is_lifted() -> None:
    async with proxied() as (proxy, participant, server):
        proxy.to_server = Faults(stalled=True)
        taken = participant.push_until_full()
        assert await server.receives_nothing()
        taken += participant.push_until_full()
        assert participant.push_until_full() == 0  # the window is closed
        (forwarder, _) = next(iter(proxy._connections.values())).forwarders
        assert forwarder._buffered_bytes == 0  # all bytes wait at the sender
        proxy.to_server = Faults()
        assert await server.read(taken) == bytes(taken)


async def test_the_proxy_buffers_little_when_its_target_does_not_read() -> None:
    async with proxied() as (proxy, participant, server):
        server.reader._transport.pause_reading()  # type: ignore[attr-defined]  # like a stuck process
        for _ in range(20):
            participant.push_until_full()
            await asyncio.sleep(0.01)
        (forwarder, _) = next(iter(proxy._connections.values())).forwarders
        assert forwarder._buffered_bytes <= 320 * KIB
        assert forwarder._target.writer.transport.get_write_buffer_size() <= 128 * KIB


# Ends


async def test_reset_closes_both_sides_with_rst() -> None:
    async with proxied() as (proxy, participant, server):
        proxy.to_server = Faults(latency_s=3_600)
        participant.writer.write(b"on its way")
        assert await server.receives_nothing()
        proxy.reset()
        assert await participant.end() == "reset"
        assert await server.end() == "reset"
        await until_no_connections(proxy)


async def test_a_participant_reconnects_after_a_reset() -> None:
    async with server_and_caller() as (_, proxy, ann):
        before = ann.me.id
        waiting = asyncio.ensure_future(ann.invoke("t.echo", {"text": "x"}, retry=False))
        await asyncio.sleep(0)
        proxy.reset()
        with pytest.raises(ConnectionLost):
            await waiting
        assert await ann.call("t.echo", text="again") == "again"
        assert ann.me.id != before


@pytest.mark.parametrize("closed", ["server", "participant"])
async def test_half_open_closes_one_side_and_never_the_other(closed: Any) -> None:
    async with proxied() as (proxy, participant, server):
        closed_side, open_side = (
            (server, participant) if closed == "server" else (participant, server)
        )
        proxy.to_server = proxy.to_participant = Faults(latency_s=3_600)
        closed_side.writer.write(b"on its way")
        assert await open_side.receives_nothing()
        proxy.leave_half_open(closed=closed)
        assert await closed_side.end() == "end after 0 bytes"
        await proxy.heal()
        open_side.writer.write(bytes(KIB * KIB))  # dropped
        await open_side.writer.drain()
        assert await open_side.receives_nothing()
        assert proxy.connections == 1
        closed_side.writer.transport.abort()
        open_side.writer.transport.abort()
        await until_no_connections(proxy)


async def test_a_connection_can_be_half_open_before_the_server_is_connected() -> None:
    async with listener() as upstream, FaultProxy(upstream.url) as proxy:
        participant = Peer(*await asyncio.open_connection("127.0.0.1", port_of(proxy)))
        async with asyncio.timeout(60):
            while not proxy.connections:  # noqa: ASYNC110 - before anything else can happen
                await asyncio.sleep(0)
        proxy.leave_half_open(closed="participant")
        assert await participant.end() == "end after 0 bytes"
        server = await upstream.next()
        assert await server.receives_nothing()
        participant.writer.transport.abort()


async def test_new_connections_are_refused_until_heal_and_open_ones_stay() -> None:
    async with server_and_caller() as (server, proxy, ann):
        await proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port_of(proxy))
        with pytest.raises(Unavailable):
            async with server.room("bob", via=proxy):
                pass
        assert await ann.call("t.echo", text="still open") == "still open"
        url = proxy.url
        await proxy.heal()
        assert proxy.url == url
        async with server.room("bob", via=proxy) as bob:
            assert await bob.call("t.echo", text="x") == "x"


async def test_without_a_server_connections_are_reset() -> None:
    async with listener() as upstream:
        url = upstream.url
    async with FaultProxy(url) as proxy:
        participant = Peer(*await asyncio.open_connection("127.0.0.1", port_of(proxy)))
        assert await participant.end() == "reset"
        participant.writer.transport.abort()
        await until_no_connections(proxy)


# Invalid values


@pytest.mark.parametrize(
    "wrong",
    [
        {"latency_s": -1},
        {"latency_s": float("nan")},
        {"jitter_s": float("inf")},
        {"bytes_per_s": 0},
        {"bytes_per_s": float("nan")},
        {"slice_bytes": 0},
    ],
)
def test_invalid_faults_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Faults(**wrong)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ws://", "127.0.0.1:7717"])
def test_url_without_a_server_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not a server address"):
        FaultProxy(url)


async def test_a_proxy_runs_once_at_a_time_and_can_run_again() -> None:
    async with listener() as upstream:
        proxy = FaultProxy(upstream.url)
        for _ in range(2):
            async with proxy:
                with pytest.raises(RuntimeError):
                    await proxy.__aenter__()
                _, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
                await upstream.next()
                writer.transport.abort()
        with pytest.raises(RuntimeError):
            await proxy.accept()
