"""A relay on stock websockets, written as its documentation teaches: `async for` and `await send`.

The yardstick for our transport code, so it uses none of it. Frames are msgpack arrays
`[kind, id, tool, arguments]` and `[kind, id, result]`; the router decodes each, gives it an id of
its own and encodes it again, as any router must. No rights, no validation, no deadlines.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgpack
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

from bench.role import Where, measure_when_told, run_role, serve_until_told

CALL, RESULT = 1, 2


class Router:
    """The host's connection, and which caller's id hides behind each of ours."""

    def __init__(self) -> None:
        self._host: ServerConnection
        self._pending: dict[int, tuple[ServerConnection, int]] = {}
        self._ids = itertools.count(1)

    async def on_connection(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        if connection.request.path == "/host":
            self._host = connection
            await self._from_host(connection)
        else:
            await self._from_caller(connection)

    async def _from_caller(self, caller: ServerConnection) -> None:
        async for data in caller:
            frame = msgpack.unpackb(data)
            own_id = next(self._ids)
            self._pending[own_id] = (caller, frame[1])
            await self._host.send(msgpack.packb([CALL, own_id, frame[2], frame[3]]))

    async def _from_host(self, host: ServerConnection) -> None:
        async for data in host:
            frame = msgpack.unpackb(data)
            caller, caller_id = self._pending.pop(frame[1])
            await caller.send(msgpack.packb([RESULT, caller_id, frame[2]]))


async def route(_where: Where) -> None:
    router = Router()
    async with serve(router.on_connection, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        await serve_until_told(url=f"ws://127.0.0.1:{port}")


async def host(where: Where) -> None:
    async with connect(where["url"] + "/host", compression=None, proxy=None) as connection:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(_answer(connection))
            await serve_until_told(ready=True)
            reading.cancel()


async def _answer(connection: ClientConnection) -> None:
    async for data in connection:
        frame = msgpack.unpackb(data)
        arguments = frame[3]
        result = {"sum": arguments["a"] + arguments["b"]}
        await connection.send(msgpack.packb([RESULT, frame[1], result]))


async def caller(where: Where) -> None:
    ids = itertools.count(1)
    waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
    loop = asyncio.get_running_loop()

    async def call(a: int, b: int) -> dict[str, Any]:
        call_id = next(ids)
        future: asyncio.Future[dict[str, Any]] = loop.create_future()
        waiting[call_id] = future
        frame = [CALL, call_id, "demo.add", {"a": a, "b": b}]
        await connection.send(msgpack.packb(frame))
        return await future

    async def settle() -> None:
        async for data in connection:
            frame = msgpack.unpackb(data)
            waiting.pop(frame[1]).set_result(frame[2])

    async with connect(where["url"] + "/caller", compression=None, proxy=None) as connection:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(settle())
            await measure_when_told(call)
            reading.cancel()


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller})
