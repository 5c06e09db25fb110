"""The line of one node to Redis: a connection for commands, and one that its inbox comes by.

Commands go out in the order in which they are given, as many as there are at a time, and none
waits for another one's answer. The line mends itself; while it is down commands fail at once, and
nothing is sent a second time. A Redis that says nothing although it owes an answer is taken to be
away, like one that hangs up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from random import uniform
from typing import Any, Protocol, TypeAlias

from redis.asyncio.connection import Connection, ConnectionPool
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import (
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import TimeoutError as TooSlow

from toolbus_server.nodes.redis_troubles import words_of
from toolbus_server.nodes.redis_wire import RedisWire

__all__ = ["ANSWER_S", "RedisAway", "RedisLine", "Subscriber"]

_logger = logging.getLogger(__name__)
ANSWER_S = 2.0
"""How long Redis may say nothing while it owes an answer; at most a quarter more passes.

The largest answer, which is a room as a whole, has to come within that time.
"""
_LOOKS = 4
_OPEN_S = 5.0
"""How long it may take to find Redis, to connect twice and to subscribe."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
# Of what these answer nothing was done, and nothing will be until something changes there: as after
# a failover that this side was not told of. What is to be told is told anew on the next line.
_USELESS = (
    LostConnection,
    TooSlow,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
)
_Waiting: TypeAlias = "deque[asyncio.Future[Any]]"


class RedisAway(ConnectionError):
    """There is no connection to Redis, or it went before the answer came."""


class Subscriber(Protocol):
    """Who is told what the line brings."""

    async def line_is_up(self) -> None:
        """Learn that commands can be sent and the inbox is heard; may go on as long as it is up.

        What it raises ends the line, which is tried anew.
        """

    def line_is_down(self) -> None:
        """Learn that neither is so any more."""

    def on_inbox(self, data: bytes) -> None:
        """Take what came to the inbox. Raises nothing."""


class RedisLine:
    """Keeps a node connected; `run` is its work.

    Args:
        pool: Makes connections: where Redis is, with TLS, names and passwords.
        inbox: The channel to hear.
        subscriber: Told of everything.
    """

    def __init__(self, pool: ConnectionPool, inbox: str, subscriber: Subscriber) -> None:
        self._pool = pool
        self._inbox = inbox
        self._subscriber = subscriber
        self._answers: _Waiting = deque()
        self._was_up = False
        self._said = ""
        self.is_up = False
        """Whether commands can be sent."""

    def command(self, *words: Any) -> asyncio.Future[Any]:
        """Send a command; its answer comes to the future, or what Redis calls its error.

        Raises:
            RedisAway: The line is down; at the future: it went before the answer came.
        """
        if not self.is_up:
            raise RedisAway("Redis is away")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._commands.send(*words)
        return answer

    async def run(self) -> None:
        """Connect, stay connected, connect anew; until this is cancelled."""
        loop, pause_s = asyncio.get_running_loop(), _FIRST_PAUSE_S
        while True:
            words, began_at = "", loop.time()
            try:
                await self._live()
            except (RedisError, OSError, TimeoutError) as error:
                words = words_of(error) or "it does not answer"
            if self._was_up and loop.time() - began_at > _LONGEST_PAUSE_S:
                pause_s, self._said = _FIRST_PAUSE_S, ""
            self._complain(words)
            await asyncio.sleep(uniform(0.5, 1.0) * pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _complain(self, words: str) -> None:
        """Say why there is no Redis; what is still so an attempt later is not said again."""
        if words != self._said:
            _logger.warning("Redis is away: %s", words)
            self._said = words

    async def _live(self) -> None:
        """Be connected once, until one of the two connections ends."""
        self._was_up = False
        commands: Connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        inbox: Connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(_OPEN_S):
                heard = await self._open(commands, inbox)
            await _first_to_end(self._commands.ended, heard.ended, self._greet(), self._watch())
        finally:
            was_up, self.is_up = self.is_up, False
            self._fail_all()
            if was_up:
                self._subscriber.line_is_down()
            for connection in (commands, inbox):
                with suppress(Exception):
                    await connection.disconnect(nowait=True)

    async def _open(self, commands: Connection, inbox: Connection) -> RedisWire:
        """Connect both, and have the inbox heard, with which the line is up; return what hears."""
        await commands.connect()  # type: ignore[no-untyped-call]
        self._commands = RedisWire(commands, self._on_answer)
        await inbox.connect()  # type: ignore[no-untyped-call]
        if _place_of(inbox) != _place_of(commands):
            raise LostConnection("another one became the primary meanwhile")
        subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heard = RedisWire(inbox, partial(self._on_heard, subscribed))
        heard.send("SUBSCRIBE", self._inbox)
        await asyncio.wait([subscribed, heard.ended], return_when=asyncio.FIRST_COMPLETED)
        if heard.ended.done():
            heard.ended.result()
        return heard

    async def _watch(self) -> None:
        """End the line when Redis owes an answer and none comes, whatever TCP makes of that.

        Looks are counted, not time: a node that itself stood still has not waited.
        """
        owed: asyncio.Future[Any] | None = None
        looks = 0
        while looks < _LOOKS:
            await asyncio.sleep(ANSWER_S / _LOOKS)
            first = self._answers[0] if self._answers else None
            looks = looks + 1 if first is owed and first is not None else 0
            owed = first
        raise TooSlow(f"it owes an answer and has said nothing for {ANSWER_S} s")

    async def _greet(self) -> None:
        await self._subscriber.line_is_up()
        await asyncio.Event().wait()

    def _on_answer(self, answer: Any) -> None:
        if isinstance(answer, _USELESS):
            raise answer
        future = self._answers.popleft()
        if future.done():
            return
        if isinstance(answer, RedisError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _on_heard(self, subscribed: asyncio.Future[None], answer: Any) -> None:
        if isinstance(answer, RedisError):
            raise answer
        if answer[0] == b"message":
            self._subscriber.on_inbox(answer[2])
        elif not subscribed.done():
            self.is_up = self._was_up = True  # what comes behind this may have to be answered
            subscribed.set_result(None)

    def _fail_all(self) -> None:
        answers, self._answers = self._answers, deque()
        for answer in answers:
            if not answer.done():
                answer.set_exception(RedisAway("Redis went away"))


def _place_of(connection: Connection) -> tuple[Any, ...]:
    """Name where a connection leads; all but TCP lead where the URL says."""
    return getattr(connection, "host", None), getattr(connection, "port", None)


async def _first_to_end(*works: Awaitable[None]) -> None:
    """Run all until one ends; raise what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
