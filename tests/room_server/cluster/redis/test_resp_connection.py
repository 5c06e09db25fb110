"""A connection to Redis after its handshake: to a real Redis, and to a scripted server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse, NoScriptError, ReadOnlyError, ResponseError

from support.clients.certificates import make_pki
from support.redis.server import RedisServer
from toolbus_server.cluster.redis.client import RedisClient, RespConnection
from toolbus_server.cluster.redis.url import pool_of

TIME_S = 60


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """A connection of redis-py's, after its handshake."""
    connection: Connection = pool_of(url).make_connection()  # type: ignore[no-untyped-call]
    await connection.connect()  # type: ignore[no-untyped-call]
    try:
        yield connection
    finally:
        await connection.disconnect(nowait=True)


class ScriptedServer:
    """Accepts everything, and sends what a test writes."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        """The bytes of each read."""
        self.writers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        """One for each connection."""
        self.url = ""

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.writers.put_nowait(writer)
        while data := await reader.read(65_536):
            self.received.append(data)
            if b"SUBSCRIBE" in data:
                # What is published at once comes with the confirmation, in one piece.
                writer.write(b"*3\r\n$9\r\nsubscribe\r\n$5\r\ninbox\r\n:1\r\n")
                writer.write(b"*3\r\n$7\r\nmessage\r\n$5\r\ninbox\r\n$5\r\nfirst\r\n")
        writer.close()


@pytest.fixture
async def odd() -> AsyncIterator[ScriptedServer]:
    server_ = ScriptedServer()
    async with asyncio.timeout(TIME_S):
        server = await asyncio.start_server(server_.take, "127.0.0.1", 0)
        server_.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        yield server_
        server.close()


class Answers:
    """Collects answers; a test can wait for them."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self._came = asyncio.Event()

    def take(self, answer: Any) -> None:
        self.taken.append(answer)
        self._came.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, checked after each answer."""
        async with asyncio.timeout(TIME_S):
            while not holds():
                self._came.clear()
                await self._came.wait()


async def test_answers_and_errors_arrive_in_the_order_of_the_commands(
    redis: RedisServer,
) -> None:
    answers = Answers()
    async with connected(redis.url) as connection:
        wire = RespConnection(connection, answers.take)
        wire.send("SET", "toolbus:wire", b"\xff\x00\r\n")
        wire.send("EVALSHA", "0" * 40, 0)
        wire.send("NONSENSE", 1.5)
        wire.send("GET", "toolbus:wire")
        wire.send("DEL", "toolbus:wire")
        await answers.until(lambda: len(answers.taken) == 5)
    ok, no_script, nonsense, kept, deleted = answers.taken
    assert (ok, kept, deleted) == (b"OK", b"\xff\x00\r\n", 1)
    assert isinstance(no_script, NoScriptError)
    assert isinstance(nonsense, ResponseError)


async def test_answer_is_passed_on_once_it_is_complete(
    odd: ScriptedServer,
) -> None:
    answers = Answers()
    async with connected(odd.url) as connection:
        RespConnection(connection, answers.take)
        writer = await odd.writers.get()
        for byte in b"*2\r\n$5\r\nhello\r\n:42\r\n+OK\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
        await answers.until(lambda: len(answers.taken) == 2)
    assert answers.taken == [[b"hello", 42], b"OK"]


async def test_connection_that_has_ended_is_refused(odd: ScriptedServer) -> None:
    async with connected(odd.url) as connection:
        (await odd.writers.get()).close()
        assert connection._reader is not None
        assert await connection._reader.read() == b""  # the end has been seen here
        with pytest.raises(ConnectionLost):
            RespConnection(connection, print)


async def test_waiting_ends_when_redis_closes_the_connection(odd: ScriptedServer) -> None:
    async with connected(odd.url) as connection:
        wire = RespConnection(connection, print)
        (await odd.writers.get()).close()
        with pytest.raises(ConnectionLost, match="closed by server"):
            await wire.ended
        wire.send("PING")  # goes nowhere, and raises nothing
        await asyncio.sleep(0)
    assert odd.received == []


async def test_invalid_answer_ends_the_connection(odd: ScriptedServer) -> None:
    async with connected(odd.url) as connection:
        wire = RespConnection(connection, print)
        (await odd.writers.get()).write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(InvalidResponse):
            await wire.ended


async def test_exception_of_the_callback_ends_the_connection(
    odd: ScriptedServer,
) -> None:
    taken: list[Any] = []

    def take(answer: Any) -> None:
        taken.append(answer)
        if isinstance(answer, ResponseError):
            raise answer

    async with connected(odd.url) as connection:
        wire = RespConnection(connection, take)
        (await odd.writers.get()).write(b"+OK\r\n-READONLY no\r\n+OK\r\n")
        with pytest.raises(ReadOnlyError):
            await wire.ended
        wire.data_received(b"+OK\r\n")  # it is still open
    assert [type(each) for each in taken] == [bytes, ReadOnlyError]


@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_connection_is_taken_over_on_every_loop_with_and_without_tls(
    make_loop: Callable[[], asyncio.AbstractEventLoop], scheme: str, tmp_path: Path
) -> None:
    pki = make_pki(tmp_path / "pki")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pki.cert, pki.key)
    is_tls = scheme == "rediss"

    async def take_over() -> None:
        odd, answers = ScriptedServer(), Answers()
        server = await asyncio.start_server(
            odd.take, "127.0.0.1", 0, ssl=context if is_tls else None
        )
        port = server.sockets[0].getsockname()[1]
        authority = f"?ssl_ca_certs={pki.authority}" if is_tls else ""
        async with connected(f"{scheme}://127.0.0.1:{port}/0{authority}") as connection:
            wire = RespConnection(connection, answers.take)
            wire.send("SUBSCRIBE", "inbox")
            await answers.until(lambda: len(answers.taken) == 2)
            (await odd.writers.get()).close()
            await asyncio.wait([wire.ended])
            wire.send("PING")  # goes nowhere, and raises nothing
            await asyncio.sleep(0)
        server.close()
        assert answers.taken == [[b"subscribe", b"inbox", 1], [b"message", b"inbox", b"first"]]
        assert len(odd.received) == 1

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(asyncio.wait_for(take_over(), TIME_S))


async def test_message_after_the_confirmation_of_subscribe_finds_the_client_connected(
    odd: ScriptedServer,
) -> None:
    class Listener:
        """Records messages, and whether the client was connected."""

        def __init__(self) -> None:
            self.client = RedisClient(pool_of(odd.url), "inbox", self)
            self.messages: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()

        async def on_connected(self) -> None:
            """Do nothing."""

        def on_disconnected(self) -> None:
            """Do nothing."""

        def on_unavailable(self, reason: str) -> None:
            pass

        def on_inbox(self, data: bytes) -> None:
            self.messages.put_nowait((data, self.client.is_connected))

    listener = Listener()
    running = asyncio.ensure_future(listener.client.run())
    assert await listener.messages.get() == (b"first", True)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
