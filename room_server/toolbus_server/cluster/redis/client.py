"""One node's connection to Redis: one socket for commands, and one for its inbox.

Commands are sent in the order in which they are given, without waiting for earlier answers. The
client reconnects by itself; while it is disconnected commands fail at once, and nothing is sent a
second time. A Redis that does not answer a command counts as unavailable, like one that
closes the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import uniform
from typing import Any, Protocol

from hiredis import Reader, pack_command
from redis.asyncio.connection import Connection, ConnectionPool
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import (
    InvalidResponse,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import TimeoutError as AnswerTimeout

from toolbus_server.cluster.redis.url import ResolvingConnection

__all__ = [
    "INBOX_WINDOW_BYTES",
    "RedisClient",
    "RedisUnavailable",
    "RespConnection",
    "safe_message",
]

ANSWER_S = 2.0
"""Seconds that Redis may send nothing while a command has no answer; at most a quarter more passes.

The largest answer, a whole room, has to arrive within that time.
"""
INBOX_WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes in flight to one node from all others; Redis disconnects a slow subscriber at 8 MiB."""
_CHECKS = 4
_OPEN_S = 5.0
"""Seconds to find Redis, to connect twice and to subscribe."""
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 2.0
# These errors mean that nothing was done and nothing will be until Redis changes, as after a
# failover that this side missed. State is published again on the next connection.
_FATAL_ERRORS = (
    ConnectionLost,
    AnswerTimeout,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
)
_CLOSED = "Connection closed by server."
_INCOMPLETE = object()


def safe_message(error: BaseException) -> str:
    """Return an error's message without the arguments that Redis repeats: they may be secret."""
    return str(error).partition(", with args beginning with:")[0]


class RedisUnavailable(ConnectionError):
    """There is no connection to Redis, or it was lost before the answer arrived."""


class Subscriber(Protocol):
    """Receives the events of a `RedisClient`."""

    async def on_connected(self) -> None:
        """Handle a new connection: commands can be sent, and the inbox is subscribed.

        May run as long as the connection lasts.

        An exception closes the connection, and the client reconnects.
        """

    def on_disconnected(self) -> None:
        """Handle the loss of the connection."""

    def on_inbox(self, data: bytes) -> None:
        """Handle a message of the inbox. Raises nothing."""

    def on_unavailable(self, reason: str) -> None:
        """Handle a connection that was lost, or an attempt to connect that failed."""


class RedisClient:
    """Keeps a node connected to Redis; `run` does the work.

    Args:
        pool: Makes connections: the address of Redis, TLS, names and passwords.
        inbox: The channel to subscribe to.
        subscriber: Receives all events.
    """

    def __init__(self, pool: ConnectionPool, inbox: str, subscriber: Subscriber) -> None:
        self._pool = pool
        self._inbox = inbox
        self._subscriber = subscriber
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._was_connected = False
        self.is_connected = False
        """Whether commands can be sent."""

    def command(self, *words: Any) -> asyncio.Future[Any]:
        """Send a command; the future gets its answer, or the error that Redis answers.

        Raises:
            RedisUnavailable: There is no connection; from the future: it was lost before the
                answer arrived.
        """
        if not self.is_connected:
            raise RedisUnavailable("Redis is unavailable")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending.append(answer)
        self._commands.send(*words)
        return answer

    async def run(self) -> None:
        """Connect, stay connected and reconnect, until cancelled."""
        loop, backoff_s = asyncio.get_running_loop(), _FIRST_BACKOFF_S
        while True:
            message, began_at = "", loop.time()
            try:
                await self._connect_once()
            except (RedisError, OSError, TimeoutError) as error:
                message = safe_message(error) or "it does not answer"
            if self._was_connected and loop.time() - began_at > _MAX_BACKOFF_S:
                backoff_s = _FIRST_BACKOFF_S
            self._subscriber.on_unavailable(message)
            await asyncio.sleep(uniform(0.5, 1.0) * backoff_s)
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    @property
    def local_host(self) -> str:
        """The local address of the connection, once there was one; "" if it is not TCP."""
        name = self._commands.transport.get_extra_info("sockname")
        return str(name[0]) if isinstance(name, tuple) else ""

    async def _connect_once(self) -> None:
        """Connect once, and stay until one of the two connections ends."""
        self._was_connected = False
        commands: ResolvingConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        inbox: ResolvingConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            try:
                async with asyncio.timeout(_OPEN_S):
                    subscribed = await self._open(commands, inbox)
            except TimeoutError:
                commands.avoid_address()
                raise
            await _first_to_end(
                self._commands.ended, subscribed.ended, self._run_subscriber(), self._watch()
            )
        finally:
            was_connected, self.is_connected = self.is_connected, False
            pending, self._pending = self._pending, deque()
            for answer in pending:
                if not answer.done():
                    answer.set_exception(RedisUnavailable("the connection to Redis was lost"))
            if was_connected:
                self._subscriber.on_disconnected()
            for connection in (commands, inbox):
                with suppress(Exception):
                    await connection.disconnect(nowait=True)

    async def _open(self, commands: Connection, inbox: Connection) -> RespConnection:
        """Open both connections and subscribe to the inbox; return the subscribed connection."""
        await commands.connect()  # type: ignore[no-untyped-call]
        self._commands = RespConnection(commands, self._on_answer)
        await inbox.connect()  # type: ignore[no-untyped-call]
        if _address_of(inbox) != _address_of(commands):
            raise ConnectionLost("the primary changed while connecting")
        is_subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        subscribed = RespConnection(inbox, partial(self._on_message, is_subscribed))
        subscribed.send("SUBSCRIBE", self._inbox)
        await asyncio.wait([is_subscribed, subscribed.ended], return_when=asyncio.FIRST_COMPLETED)
        if subscribed.ended.done():
            subscribed.ended.result()
        return subscribed

    async def _watch(self) -> None:
        """Close the connection when a command gets no answer, whatever TCP reports.

        Checks are counted, not time: a process that was suspended has not waited.
        """
        oldest: asyncio.Future[Any] | None = None
        checks = 0
        while checks < _CHECKS:
            await asyncio.sleep(ANSWER_S / _CHECKS)
            if self._pending and self._pending[0] is oldest:
                checks += 1
            else:
                checks = 0
                oldest = next(iter(self._pending), None)
        raise AnswerTimeout(f"no answer within {ANSWER_S:g} s")

    async def _run_subscriber(self) -> None:
        await self._subscriber.on_connected()
        await asyncio.Event().wait()

    def _on_answer(self, answer: Any) -> None:
        if isinstance(answer, _FATAL_ERRORS):
            raise answer
        future = self._pending.popleft()
        if future.done():
            return
        if isinstance(answer, RedisError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _on_message(self, is_subscribed: asyncio.Future[None], answer: Any) -> None:
        if isinstance(answer, RedisError):
            raise answer
        if answer[0] == b"message":
            self._subscriber.on_inbox(answer[2])
        elif not is_subscribed.done():
            # Set here, as the messages behind this one may need an answer.
            self.is_connected = self._was_connected = True
            is_subscribed.set_result(None)


def _address_of(connection: Connection) -> tuple[Any, ...]:
    """Return host and port; a connection without TCP has one address, that of the URL."""
    return getattr(connection, "host", None), getattr(connection, "port", None)


async def _first_to_end(*works: Awaitable[None]) -> None:
    """Run all until one ends; raise its exception."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


class RespConnection(asyncio.Protocol):
    """Takes over a connection on which no command was sent since its handshake.

    Args:
        connection: An open connection; it still closes its socket, and is not used otherwise.
        on_answer: Called with each answer; an error that Redis answers is passed, not raised. An
            exception that this raises ends the connection.

    Raises:
        redis.exceptions.ConnectionError: The connection has ended meanwhile.
    """

    def __init__(self, connection: Connection, on_answer: Callable[[Any], None]) -> None:
        reader, writer = connection._reader, connection._writer
        if reader is None or writer is None or reader.at_eof() or writer.transport.is_closing():
            raise ConnectionLost(_CLOSED)
        self._loop = asyncio.get_running_loop()
        self._on_answer = on_answer
        self._reader = Reader(
            protocolError=InvalidResponse,
            replyError=connection._parser.parse_error,
            notEnoughData=_INCOMPLETE,
        )
        self._out: list[bytes] = []
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection has ended, with the error that ended it."""
        self.transport = writer.transport
        self.transport.set_protocol(self)

    def send(self, *words: str | bytes | float) -> None:
        """Write a command, together with all others of this event-loop iteration."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(pack_command(words))  # type: ignore[arg-type]  # any number of words

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not self.ended.done() and not self.transport.is_closing():
            self.transport.write(b"".join(out))

    def data_received(self, data: bytes) -> None:
        """Pass on each complete answer."""
        try:
            self._reader.feed(data)
            while not self.ended.done():
                answer = self._reader.gets()
                if answer is _INCOMPLETE:
                    return
                self._on_answer(answer)
        except Exception as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the socket is closed."""
        self._end(exc or ConnectionLost(_CLOSED))

    def _end(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # retrieved: a waiter is optional
