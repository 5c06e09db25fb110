"""The processes of a crossing: two nodes that share a Redis, and one that has none.

The router process runs two servers, one of the two nodes and one without Redis, so that both have
one interpreter, one loop and one moment in common; only one of them is ever called. The host hosts
at all three, and the caller calls wherever it is told to. `BENCH_REDIS` says where the Redis is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import time
import tomllib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from bench.crossing import FAR, NEAR, SINGLE
from bench.guest import Guest, Invitation
from bench.measure import Load, call_for, measure
from bench.neighbours_leg import REGISTER_TIMEOUT_S, manifest
from bench.role import Where, next_line, run_role, say, serve_until_told
from bench.toolbus_leg import add, set_up_tracing
from toolbus import ApiScope, RemoteToolkit, RoomClient
from toolbus.keys import Key, KeyRing
from toolbus.tokens import ParticipantToken
from toolbus_server.limits import Limits
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

PLACES = {
    SINGLE: ("single_url", "single_url", "bench"),
    NEAR: ("url", "far_url", "near"),
    FAR: ("far_url", "far_url", "across"),
}
"""Where each host is, where one sits who does nothing, and in which room: three are in each."""
HELD = ("full", "bare")
"""Rooms in which joins are timed while the caller's node holds them: with toolkits and without."""
PATIENCE_S = 30.0
_numbers = itertools.count()


async def route(_where: Where) -> None:
    """Run the caller's node, and the server that is all there is."""
    set_up_tracing("server")
    key = Key.generate(kid="bench", iss="toolbus-bench")
    ring = KeyRing([key]).to_toml()
    async with _server(key, redis=None) as single, _server(key, redis=_redis()) as near:
        say(url=near.url, single_url=single.url, key=ring)
        while line := await next_line():
            await _until_closed(near, json.loads(line)["closed"])
            say(closed=True)


async def far(where: Where) -> None:
    """Run the other node."""
    set_up_tracing("server")
    async with _server(_key_of(where), redis=_redis()) as server:
        await serve_until_told(far_url=server.url)


async def host(where: Where) -> None:
    """Host at all three servers; fill rooms when a line says so."""
    set_up_tracing("host")
    async with contextlib.AsyncExitStack() as stack:
        for url, witness_url, room in PLACES.values():
            joining = RoomClient(where[url], room=room, token=_token(where, "host", room))
            demo = RemoteToolkit("demo", [add])
            await demo.start(await stack.enter_async_context(joining))
            stack.push_async_callback(demo.stop)
            await _stay(where, witness_url, room, "witness")
        say(ready=True)
        while line := await next_line():
            order = json.loads(line)
            if "rooms" in order:
                await _hold(where, (f"idle{number}" for number in range(order["rooms"])))
            else:
                await _fill(where, order["toolkits"])
            say(done=True)


async def caller(where: Where) -> None:
    """Call, or join, as each line says."""
    set_up_tracing("caller")
    async with contextlib.AsyncExitStack() as stack:
        rooms = {}
        for place, (*_, room) in PLACES.items():
            url = where["single_url" if place == SINGLE else "url"]
            joining = RoomClient(url, room=room, token=_token(where, "caller", room))
            rooms[place] = await stack.enter_async_context(joining)
        say(ready=True)
        while line := await next_line():
            order = json.loads(line)
            if "to" in order:
                say(**await _call(rooms[order["to"]], order))
            elif "first" in order:
                say(took_ms=await _join_once(where, order["first"]))
            else:
                say(**await _join_in_turn(where, order["joins"]))


# Calls


async def _call(room: RoomClient, order: dict[str, Any]) -> dict[str, Any]:
    async def call(a: int, b: int) -> dict[str, Any]:
        result: dict[str, Any] = await room.call("demo.add", a=a, b=b)
        return result

    if "seconds" in order:
        return {"calls": await call_for(call, order["seconds"], order["in_flight"]), "p50_us": 0.0}
    # `measure` looks at the answer of one call before it begins.
    sample = await measure(call, Load(order["calls"] - 1, warm_up_calls=0))
    return {"calls": order["calls"], "p50_us": sample.p50_us}


# Joins


async def _join_in_turn(where: Where, joins: int) -> dict[str, list[float]]:
    """Join rooms that this node holds, one with many toolkits and one without, in turn."""
    for room in HELD:
        await _stay(where, "url", room, "keeper")
    took_ms: dict[str, list[float]] = {room: [] for room in HELD}
    for _ in range(joins):
        for room, times in took_ms.items():
            times.append(await _join_once(where, room))
    return took_ms


async def _join_once(where: Where, room: str) -> float:
    """Join and leave; give how long it took until the welcome was there, in ms."""
    invitation = _invitation(where, "url", room, "joiner")
    began_s = time.perf_counter()
    guest = await Guest.join(invitation)
    took_s = time.perf_counter() - began_s
    guest.leave()
    return took_s * 1e3


async def _hold(where: Where, rooms: Iterable[str]) -> None:
    """Let both nodes hold rooms."""
    for room in rooms:
        for url in ("url", "far_url"):
            await _stay(where, url, room, "sitter")


async def _fill(where: Where, toolkits: int) -> None:
    """Register toolkits at the other node, and seat somebody there in the room without any."""
    most, alike = Limits().max_toolkits, manifest()
    names = [f"idle{number}" for number in range(toolkits)]
    for start in range(0, toolkits, most):
        guest = await _stay(where, "far_url", "full", f"neighbour{start}")
        manifests = [{**alike, "name": name} for name in names[start : start + most]]
        await guest.register(manifests, REGISTER_TIMEOUT_S)
    await _stay(where, "far_url", "bare", "neighbour")


async def _stay(where: Where, url: str, room: str, name: str) -> Guest:
    """Let somebody in who does nothing and answers pings, for as long as this process lives."""
    return await Guest.join(_invitation(where, url, room, name))


def _invitation(where: Where, url: str, room: str, name: str) -> Invitation:
    instance = f"{name}{next(_numbers)}"  # another one each time: nobody takes another's place
    return Invitation.to(where[url], room, _token(where, name, room), instance)


# Servers


@contextlib.asynccontextmanager
async def _server(key: Key, redis: str | None) -> AsyncIterator[TestServer]:
    settings = ServerSettings(
        keys=KeyRing([]), port=0, drain_s=1.0, max_per_address=0, redis=redis, ping_timeout_s=60.0
    )
    async with running_server(key=key, settings=settings) as server:
        if server.server.node is not None:
            await server.server.node.is_joined.wait()
        yield server


async def _until_closed(server: TestServer, room: str) -> None:
    """Wait until nobody of this node is in a room; TimeoutError if that never comes."""
    until = time.monotonic() + PATIENCE_S
    while room in server.server.hub.rooms:
        if time.monotonic() > until:
            raise TimeoutError(f"somebody stays in {room}")
        await asyncio.sleep(0.01)


def _redis() -> str:
    return os.environ["BENCH_REDIS"]


def _key_of(where: Where) -> Key:
    return Key(**tomllib.loads(where["key"])["key"][0])


def _token(where: Where, name: str, room: str) -> str:
    scope = ApiScope.full()
    return ParticipantToken(name, [room], "user", scope).to_jwt(_key_of(where), ttl_s=3600)


if __name__ == "__main__":
    run_role({"router": route, "far": far, "host": host, "caller": caller})
