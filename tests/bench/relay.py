"""A relay on our transport code with nothing on top: what any call over this bus must cost.

The same frames and the same work per hop as `stock_relay`: the router decodes each frame, gives it
an id of its own, and encodes it again. No rights, no validation, no deadlines, no tasks.
With `BENCH_BATCHES=1` its connections batch their writes as those of the bus do; else, as in
`stock_relay`, each message is written at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgpack
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from bench.role import Where, measure_when_told, run_role, serve_until_told
from toolbus.transport import (
    CLOSE_TIMEOUT_S,
    PING_INTERVAL_S,
    PING_TIMEOUT_S,
    WRITE_LIMIT_BYTES,
    ClientTransport,
    MessageConnection,
    ServerTransport,
)

CALL, RESULT = 1, 2
SETTINGS: dict[str, Any] = {
    "compression": None,
    "write_limit": WRITE_LIMIT_BYTES,
    "ping_interval": PING_INTERVAL_S,
    "ping_timeout": PING_TIMEOUT_S,
    "close_timeout": CLOSE_TIMEOUT_S,
}


class Reader:
    """Decodes each message of a connection and hands it on."""

    def __init__(self, on_frame: Callable[[list[Any]], None]) -> None:
        self._on_frame = on_frame

    def on_message(self, data: bytes) -> None:
        self._on_frame(msgpack.unpackb(data))

    def on_close(self) -> None:
        """A relay has nothing to clear up."""


class Router:
    """The host's connection, and which caller's id hides behind each of ours."""

    def __init__(self) -> None:
        self._host: MessageConnection
        self._pending: dict[int, tuple[MessageConnection, int]] = {}
        self._ids = itertools.count(1)

    async def on_connection(self, connection: ServerConnection) -> None:
        assert isinstance(connection, ServerTransport)
        assert connection.request is not None
        if connection.request.path == "/host":
            self._host = connection
            connection.receiver = Reader(self._to_caller)
        else:
            connection.receiver = Reader(lambda frame: self._to_host(connection, frame))
        connection.batches = batches()
        await connection.wait_closed()

    def _to_host(self, caller: MessageConnection, frame: list[Any]) -> None:
        own_id = next(self._ids)
        self._pending[own_id] = (caller, frame[1])
        self._host.send_message(msgpack.packb([CALL, own_id, frame[2], frame[3]]))

    def _to_caller(self, frame: list[Any]) -> None:
        caller, caller_id = self._pending.pop(frame[1])
        caller.send_message(msgpack.packb([RESULT, caller_id, frame[2]]))


async def route(_where: Where) -> None:
    router = Router()
    async with serve(
        router.on_connection, "127.0.0.1", 0, create_connection=ServerTransport, **SETTINGS
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        await serve_until_told(url=f"ws://127.0.0.1:{port}")


async def host(where: Where) -> None:
    def answer(frame: list[Any]) -> None:
        arguments = frame[3]
        result = {"sum": arguments["a"] + arguments["b"]}
        connection.send_message(msgpack.packb([RESULT, frame[1], result]))

    async with joined(where["url"] + "/host") as connection:
        connection.receiver = Reader(answer)
        await serve_until_told(ready=True)


async def caller(where: Where) -> None:
    ids = itertools.count(1)
    waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
    loop = asyncio.get_running_loop()

    async def call(a: int, b: int) -> dict[str, Any]:
        call_id = next(ids)
        future: asyncio.Future[dict[str, Any]] = loop.create_future()
        waiting[call_id] = future
        frame = [CALL, call_id, "demo.add", {"a": a, "b": b}]
        connection.send_message(msgpack.packb(frame))
        return await future

    async with joined(where["url"] + "/caller") as connection:
        connection.receiver = Reader(lambda frame: waiting.pop(frame[1]).set_result(frame[2]))
        await measure_when_told(call)


@contextlib.asynccontextmanager
async def joined(url: str) -> AsyncIterator[ClientTransport]:
    connecting = connect(url, proxy=None, create_connection=ClientTransport, **SETTINGS)
    async with connecting as connection:
        assert isinstance(connection, ClientTransport)
        connection.batches = batches()
        yield connection


def batches() -> bool:
    return os.environ.get("BENCH_BATCHES") == "1"


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller})
