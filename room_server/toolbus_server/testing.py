"""What tests need: a real server here, tokens for it, people in its rooms, and a bad line to it.

Everything here runs over real sockets on loopback, so that what holds in a test holds outside. It
may use the whole SDK; nothing of the server imports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random

from toolbus.grants import ApiScope
from toolbus.keys import Key, KeyRing
from toolbus.room_client import RoomClient
from toolbus.telemetry import Tracing
from toolbus.tokens import ParticipantToken
from toolbus_server.fault_proxy import FaultProxy, Faults, Side
from toolbus_server.server import RoomServer
from toolbus_server.settings import ServerSettings
from toolbus_server.telemetry import ServerTelemetry

__all__ = [
    "FaultProxy",
    "Faults",
    "Side",
    "TestServer",
    "room_of",
    "running_nodes",
    "running_server",
]

_JOIN_S = 10.0


class TestServer:
    """A server that runs, and the key whose tokens it takes.

    Args:
        server: The server itself.
        key: Signs tokens.
    """

    __test__ = False

    def __init__(self, server: RoomServer, key: Key) -> None:
        self.server = server
        self.key = key

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.server.url

    def token(
        self,
        name: str,
        *,
        room: str = "lab",
        api: ApiScope | None = None,
        role: str = "user",
        ttl_s: float = 3600,
    ) -> str:
        """Mint a token; with all grants unless others are given."""
        scope = ApiScope.full() if api is None else api
        token = ParticipantToken(name=name, room=[room], role=role, api=scope)
        return token.to_jwt(self.key, ttl_s=ttl_s)

    def room(
        self,
        name: str,
        *,
        room: str = "lab",
        api: ApiScope | None = None,
        role: str = "user",
        instance: str | None = None,
        via: FaultProxy | None = None,
    ) -> RoomClient:
        """Make a participant; `async with` lets it join, directly or via a proxy."""
        token = self.token(name, room=room, api=api, role=role)
        url = self.url if via is None else via.url
        return RoomClient(url, room=room, token=token, instance=instance)


@asynccontextmanager
async def running_server(
    *,
    key: Key | None = None,
    settings: ServerSettings | None = None,
    tracing: Tracing | None = None,
    seed: int | None = None,
) -> AsyncIterator[TestServer]:
    """Run a server on loopback for as long as the block runs.

    Args:
        key: Whose tokens are taken; a new one unless given.
        settings: Other settings, to whose keys the key is added; else a free port on loopback.
        tracing: Where the server's spans go.
        seed: Makes the choice of hosts repeat itself.
    """
    signing = key or Key.generate(kid="test", iss="toolbus-test")
    chosen = settings or ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0)
    chosen = replace(chosen, keys=KeyRing([signing, *chosen.keys]))
    random = None if seed is None else Random(seed)
    telemetry = None if tracing is None else ServerTelemetry(tracing)
    async with RoomServer(chosen, telemetry=telemetry, random=random) as server:
        yield TestServer(server, signing)


@asynccontextmanager
async def running_nodes(
    redis: str, count: int = 2, *, settings: ServerSettings | None = None
) -> AsyncIterator[tuple[TestServer, ...]]:
    """Run servers that share a Redis, for as long as the block runs; each takes the others' tokens.

    `async with running_nodes("redis://127.0.0.1:6379/9") as (here, there):` gives two that have
    joined each other. The Redis is yours; of all this nothing but revocations stays in it.

    Args:
        redis: Its URL, as `toolbus serve --redis` takes it.
        count: How many servers.
        settings: Other settings for all of them, as `running_server` takes them, with port 0.

    Raises:
        ValueError: The URL is none of a Redis.
        TimeoutError: Redis does not let them join within 10 s.
    """
    key = Key.generate(kid="test", iss="toolbus-test")
    common = settings or ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0)
    common = replace(common, redis=redis, node="")
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running_server(key=key, settings=common))
            for _ in range(count)
        ]
        async with asyncio.timeout(_JOIN_S):
            for server in servers:
                assert server.server.node is not None
                await server.server.node.is_joined.wait()
        yield tuple(servers)


@asynccontextmanager
async def room_of(*names: str, room: str = "lab") -> AsyncIterator[tuple[RoomClient, ...]]:
    """Run a server and let people in.

    `async with room_of("alice", "bob") as (alice, bob):` gives each its `RoomClient`.
    """
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server())
        people = [await stack.enter_async_context(server.room(name, room=room)) for name in names]
        yield tuple(people)
