"""One connection to Redis, behind its handshake: commands out, and each answer as it is read.

redis-py finds Redis, connects and says who this is. From then on its streams would wake a task for
whatever comes, and two of them are on the way of every call between nodes: here an answer is
handed on from where it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hiredis import Reader, pack_command
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import InvalidResponse

__all__ = ["RedisWire"]

_CLOSED = "Connection closed by server."
_NOT_WHOLE = object()


class RedisWire(asyncio.Protocol):
    """Takes over a connection that nothing was asked of since its handshake.

    Args:
        connection: Is connected; closes what it opened, and is asked nothing else.
        take: Is handed each answer; an error that Redis answers is handed over, not raised. What it
            raises ends the connection.

    Raises:
        redis.exceptions.ConnectionError: It has ended meanwhile.
    """

    def __init__(self, connection: Connection, take: Callable[[Any], None]) -> None:
        reader, writer = connection._reader, connection._writer
        if reader is None or writer is None or reader.at_eof() or writer.transport.is_closing():
            raise LostConnection(_CLOSED)
        self._loop = asyncio.get_running_loop()
        self._take = take
        self._reader = Reader(
            protocolError=InvalidResponse,
            replyError=connection._parser.parse_error,
            notEnoughData=_NOT_WHOLE,
        )
        self._out: list[bytes] = []
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when nothing comes any more, with the error that ended it."""
        self._transport = writer.transport
        self._transport.set_protocol(self)

    def send(self, *words: str | bytes | float) -> None:
        """Write a command, together with all others of this turn of the loop."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(pack_command(words))  # type: ignore[arg-type]  # as many as there are

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not self.ended.done() and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def data_received(self, data: bytes) -> None:
        """Hand on what is whole of what came."""
        try:
            self._reader.feed(data)
            while not self.ended.done():
                answer = self._reader.gets()
                if answer is _NOT_WHOLE:
                    return
                self._take(answer)
        except Exception as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Learn that nothing comes any more."""
        self._end(exc or LostConnection(_CLOSED))

    def _end(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # whoever waits is told; nobody need wait
