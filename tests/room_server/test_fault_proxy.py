"""The fault proxy: each fault is shown by what it does to a real connection."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.bare_sockets import KIB, Peer, listener, port_of
from support.lone_host import echo
from toolbus import RoomClient, Toolkit
from toolbus.errors import ConnectionLost, DeadlineExceeded, Unavailable
from toolbus_server.testing import FaultProxy, Faults, TestServer, running_server


@asynccontextmanager
async def line() -> AsyncIterator[tuple[FaultProxy, Peer, Peer]]:
    """A proxy with one connection through it: the participant's side and the server's."""
    async with listener() as there, FaultProxy(there.url, seed=1) as proxy:
        participant = Peer(*await asyncio.open_connection("127.0.0.1", port_of(proxy)))
        try:
            yield proxy, participant, await there.next()
        finally:
            participant.writer.transport.abort()


@asynccontextmanager
async def stage() -> AsyncIterator[tuple[TestServer, FaultProxy, RoomClient]]:
    """A server with the toolkit `t`, and ann, who comes through a proxy."""
    async with (
        running_server() as server,
        FaultProxy(server.url, seed=1) as proxy,
        server.room("host") as host,
        host.host(Toolkit("t", [echo])),
        server.room("ann", via=proxy) as ann,
    ):
        yield server, proxy, ann


async def gone(proxy: FaultProxy) -> None:
    """Wait until no connection is left."""
    async with asyncio.timeout(10):
        while proxy.connections:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def seconds_of(room: RoomClient) -> float:
    began = time.perf_counter()
    assert await room.call("t.echo", text="x") == "x"
    return time.perf_counter() - began


# Without a fault


async def test_bytes_and_the_end_pass_in_both_directions_as_they_are() -> None:
    async with line() as (proxy, participant, server):
        data = bytes(range(256)) * 4 * KIB  # more than is held anywhere
        for near, far in ((participant, server), (server, participant)):
            near.writer.write(data)
            assert await far.read(len(data)) == data
        participant.writer.write_eof()
        assert await server.end() == "end after 0 bytes"
        server.writer.write(b"still")  # one side may end before the other
        server.writer.write_eof()
        assert await participant.end() == "end after 5 bytes"
        await gone(proxy)


async def test_a_reset_of_one_side_is_a_reset_of_the_other() -> None:
    async with line() as (_, participant, server):
        server.writer.write(b"unread")
        participant.writer.write(b"unread")
        await server.read(6)
        sock = participant.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        participant.writer.transport.abort()
        assert await server.end() == "reset"


async def test_a_proxy_that_ends_takes_its_connections_along() -> None:
    async with listener() as there:
        async with FaultProxy(there.url) as proxy:
            participant = Peer(*await asyncio.open_connection("127.0.0.1", port_of(proxy)))
            server = await there.next()
            proxy.to_server = proxy.to_participant = Faults(stalled=True)
        assert await participant.end() in {"reset", "end after 0 bytes"}
        assert await server.end() in {"reset", "end after 0 bytes"}
        with pytest.raises(RuntimeError):
            _ = proxy.url
        participant.writer.transport.abort()


# Late, slowly, in crumbs


async def test_latency_is_added_to_the_direction_that_has_it_and_ends_when_it_is_lifted() -> None:
    async with stage() as (_, proxy, ann):
        proxy.to_server = Faults(latency_s=0.3)
        assert await seconds_of(ann) >= 0.3
        proxy.to_participant = Faults(latency_s=0.3)
        assert await seconds_of(ann) >= 0.6
        waiting = asyncio.ensure_future(ann.call("t.echo", text="x"))
        proxy.to_server = proxy.to_participant = Faults(latency_s=3_600)
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        await proxy.heal()  # also for what is on its way
        async with asyncio.timeout(10):
            assert await waiting == "x"


async def test_much_may_be_late_at_a_time() -> None:
    async with line() as (proxy, participant, server):
        proxy.to_server = Faults(latency_s=0.3)
        began = time.perf_counter()
        for _ in range(20):
            participant.writer.write(b"x")
            await asyncio.sleep(0.01)  # each piece comes by itself
        await server.read(20)
        assert 0.3 <= time.perf_counter() - began < 3  # 6 s where one waits for another


async def test_jitter_changes_when_bytes_come_and_never_their_order() -> None:
    async with line() as (proxy, participant, server):
        proxy.to_server = Faults(jitter_s=0.05)
        for number in range(30):
            participant.writer.write(bytes([number]))
            await asyncio.sleep(0.002)
        assert await server.read(30) == bytes(range(30))


async def test_a_seed_repeats_the_jitter() -> None:
    draws = []
    for seed in (1, 1, 2):
        proxy = FaultProxy("ws://127.0.0.1:1", seed=seed)
        draws.append([proxy._random.random() for _ in range(5)])
    assert draws[0] == draws[1] != draws[2]


async def test_bandwidth_bounds_how_fast_bytes_come() -> None:
    async with line() as (proxy, participant, server):
        proxy.to_participant = Faults(bytes_per_s=100_000)
        server.writer.write(bytes(50_000))
        began = time.perf_counter()
        await participant.read(50_000)
        assert 0.4 <= time.perf_counter() - began < 5
        server.writer.write(bytes(50_000_000))
        proxy.to_participant = Faults()  # 500 s at the rate before
        await participant.read(50_000_000)


class Notes(asyncio.Protocol):
    """Notes how many bytes came at a time."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.all_here = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.sizes.append(len(data))
        if sum(self.sizes) >= 200:
            self.all_here.set()


@pytest.mark.parametrize(("slice_bytes", "least"), [(1, 100), (20, 8), (None, 1)])
async def test_slicing_cuts_what_comes_into_pieces(slice_bytes: int | None, least: int) -> None:
    async with listener() as there, FaultProxy(there.url) as proxy:
        loop = asyncio.get_running_loop()
        transport, notes = await loop.create_connection(Notes, "127.0.0.1", port_of(proxy))
        server = await there.next()
        proxy.to_participant = Faults(slice_bytes=slice_bytes)
        server.writer.write(bytes(200))
        async with asyncio.timeout(10):
            await notes.all_here.wait()
        # The kernel may put two together before they are read.
        assert least <= len(notes.sizes) <= 200 / (slice_bytes or 200)
        transport.abort()


async def test_calls_come_through_byte_by_byte() -> None:
    async with stage() as (_, proxy, ann):
        proxy.to_server = proxy.to_participant = Faults(slice_bytes=1)
        assert await ann.call("t.echo", text="word " * 500) == "word " * 500


# Not at all


async def test_what_is_lost_never_comes_and_both_sides_look_open() -> None:
    async with line() as (proxy, participant, server):
        proxy.to_server = Faults(lost=True)
        participant.writer.write(bytes(4 * KIB * KIB))  # nobody pushes back
        await participant.writer.drain()
        server.writer.write(b"the other direction is well")
        assert await participant.read(27) == b"the other direction is well"
        participant.writer.write_eof()
        assert await server.hears_nothing()
        proxy.to_server = Faults()
        assert await server.end() == "end after 0 bytes"  # of the end it does hear then


async def test_a_call_whose_answer_is_lost_ends_by_its_deadline_as_maybe() -> None:
    async with stage() as (_, proxy, ann):
        proxy.to_participant = Faults(lost=True)
        with pytest.raises(DeadlineExceeded) as late:
            await ann.invoke("t", "echo", {"text": "x"}, timeout_s=0.2)
        assert late.value.executed == "maybe"


async def test_nobody_hears_of_an_end_while_all_is_lost_even_where_both_sides_have_one() -> None:
    async with line() as (proxy, participant, server):
        proxy.to_server = proxy.to_participant = Faults(lost=True)
        participant.writer.transport.abort()
        server.writer.write_eof()  # as a server that has given a participant up
        assert await server.hears_nothing()
        assert proxy.connections == 1
        await proxy.heal()
        assert await server.end() in {"reset", "end after 0 bytes"}
        await gone(proxy)


async def test_a_stall_pushes_back_on_the_sender_and_all_comes_when_it_is_lifted() -> None:
    async with line() as (proxy, participant, server):
        proxy.to_server = Faults(stalled=True)
        taken = participant.push_until_full()
        assert await server.hears_nothing()
        taken += participant.push_until_full()
        assert participant.push_until_full() == 0  # the window is closed
        (way, _) = next(iter(proxy._lines.values())).ways
        assert way._held_bytes == 0  # it all waits at the sender's
        proxy.to_server = Faults()
        assert await server.read(taken) == bytes(taken)


async def test_the_proxy_holds_little_of_what_its_target_does_not_read() -> None:
    async with line() as (proxy, participant, server):
        server.reader._transport.pause_reading()  # type: ignore[attr-defined]  # as a stuck process
        for _ in range(20):
            participant.push_until_full()
            await asyncio.sleep(0.01)
        (way, _) = next(iter(proxy._lines.values())).ways
        assert way._held_bytes <= 320 * KIB
        assert way._target.writer.transport.get_write_buffer_size() <= 128 * KIB


# Ends


async def test_reset_ends_both_sides_with_rst() -> None:
    async with line() as (proxy, participant, server):
        proxy.to_server = Faults(latency_s=3_600)
        participant.writer.write(b"on its way")
        assert await server.hears_nothing()
        proxy.reset()
        assert await participant.end() == "reset"
        assert await server.end() == "reset"
        await gone(proxy)


async def test_a_participant_comes_back_after_a_reset() -> None:
    async with stage() as (_, proxy, ann):
        before = ann.me.id
        waiting = asyncio.ensure_future(ann.invoke("t", "echo", {"text": "x"}, retry=False))
        await asyncio.sleep(0)
        proxy.reset()
        with pytest.raises(ConnectionLost):
            await waiting
        assert await ann.call("t.echo", text="again") == "again"
        assert ann.me.id != before


@pytest.mark.parametrize("closed", ["server", "participant"])
async def test_half_open_tells_one_side_and_never_the_other(closed: Any) -> None:
    async with line() as (proxy, participant, server):
        told, untold = (server, participant) if closed == "server" else (participant, server)
        proxy.to_server = proxy.to_participant = Faults(latency_s=3_600)
        told.writer.write(b"on its way")
        assert await untold.hears_nothing()
        proxy.leave_half_open(closed=closed)
        assert await told.end() == "end after 0 bytes"
        await proxy.heal()
        untold.writer.write(bytes(KIB * KIB))  # swallowed
        await untold.writer.drain()
        assert await untold.hears_nothing()
        assert proxy.connections == 1
        told.writer.transport.abort()
        untold.writer.transport.abort()
        await gone(proxy)


async def test_a_connection_may_be_left_half_open_before_it_has_reached_the_server() -> None:
    async with listener() as there, FaultProxy(there.url) as proxy:
        participant = Peer(*await asyncio.open_connection("127.0.0.1", port_of(proxy)))
        async with asyncio.timeout(10):
            while not proxy.connections:  # noqa: ASYNC110 - before anything else can happen
                await asyncio.sleep(0)
        proxy.leave_half_open(closed="participant")
        assert await participant.end() == "end after 0 bytes"
        server = await there.next()
        assert await server.hears_nothing()
        participant.writer.transport.abort()


async def test_nobody_new_is_let_in_until_that_is_lifted_and_who_is_in_stays() -> None:
    async with stage() as (server, proxy, ann):
        await proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port_of(proxy))
        with pytest.raises(Unavailable):
            async with server.room("bob", via=proxy):
                pass
        assert await ann.call("t.echo", text="still in") == "still in"
        url = proxy.url
        await proxy.heal()
        assert proxy.url == url
        async with server.room("bob", via=proxy) as bob:
            assert await bob.call("t.echo", text="x") == "x"


async def test_without_a_server_connections_are_reset() -> None:
    async with listener() as there:
        url = there.url
    async with FaultProxy(url) as proxy:
        participant = Peer(*await asyncio.open_connection("127.0.0.1", port_of(proxy)))
        assert await participant.end() == "reset"
        participant.writer.transport.abort()
        await gone(proxy)


# What cannot be meant


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
def test_faults_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Faults(**wrong)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ws://", "127.0.0.1:7717"])
def test_what_is_no_server_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no server address"):
        FaultProxy(url)


async def test_a_proxy_is_entered_once_at_a_time_and_may_run_again() -> None:
    async with listener() as there:
        proxy = FaultProxy(there.url)
        for _ in range(2):
            async with proxy:
                with pytest.raises(RuntimeError):
                    await proxy.__aenter__()
                _, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
                await there.next()
                writer.transport.abort()
        with pytest.raises(RuntimeError):
            await proxy.accept()
