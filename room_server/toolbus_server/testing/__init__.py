"""For tests: a real server in this process, tokens, participants, and fault injection.

Everything runs over real sockets on loopback, so tests show what happens in production. It may use
the whole SDK; the server does not import it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random

from toolbus.auth.grants import ApiScope
from toolbus.auth.keys import Key, KeyRing
from toolbus.auth.tokens import ParticipantToken
from toolbus.room.room_client import RoomClient
from toolbus.telemetry.tracing import Tracing
from toolbus_server.calls.telemetry import ServerTelemetry
from toolbus_server.settings import ServerSettings
from toolbus_server.testing.fault_proxy import FaultProxy, Faults, Side
from toolbus_server.websocket.server import RoomServer

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
    """A running server, and a key that it trusts.

    Args:
        server: The server.
        key: Signs tokens.
    """

    __test__ = False

    def __init__(self, server: RoomServer, key: Key) -> None:
        self.server = server
        self.key = key

    @property
    def url(self) -> str:
        """The URL that participants connect to."""
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
        """Create a token, by default with all grants."""
        token = ParticipantToken(name=name, room=[room], role=role, api=api or ApiScope.full())
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
        """Create a participant; `async with` connects it, directly or through a proxy."""
        token = self.token(name, room=room, api=api, role=role)
        return RoomClient((via or self).url, room=room, token=token, instance=instance)


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
        key: Signs tokens; a new one by default.
        settings: Settings, to whose keys the key is added; by default a free port on loopback.
        tracing: Records the server's spans.
        seed: Makes the choice of hosts repeatable.
    """
    signing = key or Key.generate(kid="test", iss="toolbus-test", alias="test")
    chosen = settings or ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0)
    chosen = replace(chosen, keys=KeyRing([signing, *chosen.keys]))
    telemetry = ServerTelemetry(tracing)
    async with RoomServer(chosen, telemetry=telemetry, random=Random(seed)) as server:
        yield TestServer(server, signing)


@asynccontextmanager
async def running_nodes(
    redis: str, count: int = 2, *, settings: ServerSettings | None = None
) -> AsyncIterator[tuple[TestServer, ...]]:
    """Run servers that share a Redis, for as long as the block runs; tokens are good for all.

    `async with running_nodes("redis://127.0.0.1:6379/9") as (here, there):` yields two servers that
    have joined each other. You provide the Redis; nothing but revocations stays in it.

    Args:
        redis: Its URL, as for `toolbus serve --redis`.
        count: The number of servers.
        settings: Settings of all servers, as for `running_server`, with port 0.

    Raises:
        ValueError: The URL is not a Redis's.
        TimeoutError: The servers do not join within 10 s.
    """
    key = Key.generate(kid="test", iss="toolbus-test", alias="test")
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
    """Run a server with connected participants.

    `async with room_of("alice", "bob") as (alice, bob):` yields a `RoomClient` for each.
    """
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server())
        participants = [
            await stack.enter_async_context(server.room(name, room=room)) for name in names
        ]
        yield tuple(participants)
