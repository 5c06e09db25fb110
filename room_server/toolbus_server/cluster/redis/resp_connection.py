"""One connection to Redis after its handshake: sends commands, and passes on answers when read.

redis-py finds Redis, connects and authenticates. After that its streams would wake a task for each
answer, and each call between nodes would wait for two of them: here an answer is passed on directly
from where it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hiredis import Reader, pack_command
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse

__all__ = ["RespConnection"]

_CLOSED = "Connection closed by server."
_INCOMPLETE = object()


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
        self._transport = writer.transport
        self._transport.set_protocol(self)

    @property
    def local_host(self) -> str:
        """The address of this end; "" if it is not TCP."""
        name = self._transport.get_extra_info("sockname")
        return str(name[0]) if isinstance(name, tuple) else ""

    def send(self, *words: str | bytes | float) -> None:
        """Write a command, together with all others of this event-loop iteration."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(pack_command(words))  # type: ignore[arg-type]  # any number of words

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not self.ended.done() and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

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
