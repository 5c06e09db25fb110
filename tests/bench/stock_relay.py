"""A relay on stock websockets, written as its documentation teaches: `async for` and `await send`.

The yardstick for our transport code, so it uses none of it. Frames are msgpack arrays
`[kind, id, tool, arguments]` and `[kind, id, result]`; the router decodes each, gives it an id of its own
and encodes it again, as any router must. No rights, no validation, no deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

from bench.role import Where, measure_when_told, run_role, serve_until_told

CALL, RESULT = 1, 2


class Router:
    """Two connections by path, and which caller's id hides behind each of ours."""

    def __init__(self) -> None:
        self._connections: dict[str, ServerConnection] = {}
        self._pending: dict[int, tuple[ServerConnection, int]] = {}
        self._ids = itertools.count(1)

    async def on_connection(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        name = connection.request.path.strip("/")
        self._connections[name] = connection
        forward = self._to_host if name == "caller" else self._to_caller
        async for data in connection:
            await forward(connection, msgpack.unpackb(data))

    async def _to_host(self, caller: ServerConnection, frame: list[Any]) -> None:
        own_id = next(self._ids)
        self._pending[own_id] = (caller, frame[1])
        await self._connections["host"].send(msgpack.packb([CALL, own_id, frame[2], frame[3]]))

    async def _to_caller(self, host: ServerConnection, frame: list[Any]) -> None:
        caller, caller_id = self._pending.pop(frame[1])
        await caller.send(msgpack.packb([RESULT, caller_id, frame[2]]))


async def route(where: Where) -> None:
    router = Router()
    async with serve(router.on_connection, "127.0.0.1", 0, compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        await serve_until_told(url=f"ws://127.0.0.1:{port}")


async def host(where: Where) -> None:
    async with _connected(where["url"] + "/host", _answer):
        await serve_until_told(ready=True)


async def _answer(connection: ClientConnection, frame: list[Any]) -> None:
    arguments = frame[3]
    result = {"sum": arguments["a"] + arguments["b"]}
    await connection.send(msgpack.packb([RESULT, frame[1], result]))


async def caller(where: Where) -> None:
    ids = itertools.count(1)
    waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def settle(connection: ClientConnection, frame: list[Any]) -> None:
        waiting.pop(frame[1]).set_result(frame[2])

    async with _connected(where["url"] + "/caller", settle) as connection:

        async def call(a: int, b: int) -> dict[str, Any]:
            call_id = next(ids)
            future = waiting[call_id] = asyncio.get_running_loop().create_future()
            frame = [CALL, call_id, "demo.add", {"a": a, "b": b}]
            await connection.send(msgpack.packb(frame))
            return await future

        await measure_when_told(call)


@contextlib.asynccontextmanager
async def _connected(
    url: str, on_frame: Callable[[ClientConnection, list[Any]], Awaitable[None]]
) -> Any:
    async def read() -> None:
        async for data in connection:
            await on_frame(connection, msgpack.unpackb(data))

    async with connect(url, compression=None, proxy=None) as connection:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            yield connection
            reading.cancel()


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller})
