"""For tests: a real server in this process, tokens, participants, and fault injection.

Everything runs over real sockets on loopback, so tests show what happens in production. It may use
the whole SDK; the server does not import it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from random import Random

from toolbus.auth.grants import ApiScope
from toolbus.auth.keys import Key, KeyRing
from toolbus.auth.tokens import ParticipantToken
from toolbus.concurrency.event_loop import running_loop
from toolbus.concurrency.loop_thread import LoopThread
from toolbus.room.room_client import RoomClient
from toolbus.sync import RoomClient as SyncRoomClient
from toolbus.telemetry.tracing import Tracing
from toolbus.tools.toolkit import Toolkit
from toolbus_server.calls.telemetry import ServerTelemetry
from toolbus_server.clock import Clock
from toolbus_server.settings import ServerSettings
from toolbus_server.testing.fault_proxy import FaultProxy, Faults, Side
from toolbus_server.websocket.server import RoomServer

__all__ = [
    "FaultProxy",
    "Faults",
    "Side",
    "TestRoom",
    "TestServer",
    "ThreadedServer",
    "room_of",
    "running_nodes",
    "running_server",
    "server_on_thread",
]

_JOIN_S = 10.0
_STOP_S = 10.0


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
    clock: Clock | None = None,
) -> AsyncIterator[TestServer]:
    """Run a server on loopback for as long as the block runs.

    Args:
        key: Signs tokens; a new one by default.
        settings: Settings, to whose keys the key is added; by default a free port on loopback.
        tracing: Records the server's spans.
        seed: Makes the choice of hosts repeatable.
        clock: Tells the time of day; that of this machine by default.
    """
    signing = key or Key.generate(kid="test", iss="toolbus-test", alias="test")
    chosen = settings or ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0)
    chosen = replace(chosen, keys=KeyRing([signing, *chosen.keys], chosen.keys.issuers.values()))
    telemetry = ServerTelemetry(tracing)
    random = Random(seed)
    async with RoomServer(chosen, telemetry=telemetry, random=random, clock=clock) as server:
        yield TestServer(server, signing)


@asynccontextmanager
async def running_nodes(
    redis: str,
    count: int = 2,
    *,
    settings: ServerSettings | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[tuple[TestServer, ...]]:
    """Run servers that share a Redis, for as long as the block runs; tokens are good for all.

    `async with running_nodes("redis://127.0.0.1:6379/9") as (here, there):` yields two servers that
    have joined each other. You provide the Redis; only the state of tokens stays in it.

    Args:
        redis: Its URL, as for `toolbus serve --redis`.
        count: The number of servers.
        settings: Settings of all servers, as for `running_server`, with port 0.
        clock: As for `running_server`.

    Raises:
        ValueError: The URL is not a Redis's.
        TimeoutError: The servers do not join within 10 s.
    """
    key = Key.generate(kid="test", iss="toolbus-test", alias="test")
    common = settings or ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0)
    common = replace(common, redis=redis, node="")
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running_server(key=key, settings=common, clock=clock))
            for _ in range(count)
        ]
        async with asyncio.timeout(_JOIN_S):
            for server in servers:
                assert server.server.node is not None
                await server.server.node.is_joined.wait()
        yield tuple(servers)


class TestRoom:
    """A server with connected participants, each by its name, and all in the order of the names.

    Args:
        server: The server.
        participants: The participants. Of several with one name, the first has it.
    """

    __test__ = False

    def __init__(self, server: TestServer, participants: Sequence[RoomClient]) -> None:
        self.server = server
        self._participants = participants

    def __iter__(self) -> Iterator[RoomClient]:
        return iter(self._participants)

    def __getitem__(self, name: str) -> RoomClient:
        for participant in self:
            if participant.name == name:
                return participant
        raise KeyError(name)


@asynccontextmanager
async def room_of(*names: str, room: str = "lab") -> AsyncIterator[TestRoom]:
    """Run a server with connected participants, on the event loop of the test.

    `async with room_of("host", "ann") as lab:` yields `lab.server`, and a `RoomClient` for each
    name: `lab["ann"]`. Written `as (host, ann)`, it yields the participants alone.
    """
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server())
        participants = [
            await stack.enter_async_context(server.room(name, room=room)) for name in names
        ]
        yield TestRoom(server, participants)


class ThreadedServer(TestServer):
    """A server with an event loop on a thread of its own: the fixture `toolbus_room` of pytest.

    A test without an event loop uses `host` and `connect`. One with a loop has participants on it
    by `async with server.room("ann") as ann:`, and may use `host` too.

    Args:
        running: The server.
        thread: The thread that it runs on.
        on_thread: What is closed there at the end of the test.
        here: What is closed at the end of the test on the thread of the test.
    """

    def __init__(
        self, running: TestServer, thread: LoopThread, on_thread: AsyncExitStack, here: ExitStack
    ) -> None:
        super().__init__(running.server, running.key)
        self._thread = thread
        self._on_thread = on_thread
        self._here = here

    def host(self, toolkit: Toolkit, *, name: str = "host", room: str = "lab") -> None:
        """Host a toolkit until the end of the test, on the thread of the server.

        A tool that uses objects of the test's event loop is hosted there:
        `async with server.room("host") as host, host.host(toolkit):`.

        Args:
            toolkit: The toolkit.
            name: The participant that hosts it.
            room: The room.

        Raises what `RoomClient.host` raises.
        """

        async def start() -> None:
            host = await self._on_thread.enter_async_context(self.room(name, room=room))
            await self._on_thread.enter_async_context(host.host(toolkit))

        self._thread.run(start)

    def connect(
        self, name: str, *, room: str = "lab", api: ApiScope | None = None, role: str = "user"
    ) -> SyncRoomClient:
        """Return a participant whose methods wait, connected until the end of the test.

        Raises:
            RuntimeError: This thread runs an event loop: use `room`.
        """
        if running_loop() is not None:
            raise RuntimeError(
                "connect is for tests without an event loop; here write"
                f" `async with toolbus_room.room({name!r}) as {name}:`"
            )
        token = self.token(name, room=room, api=api, role=role)
        return self._here.enter_context(SyncRoomClient(self.url, room=room, token=token))


@contextmanager
def server_on_thread() -> Iterator[ThreadedServer]:
    """Run a server on a thread of its own for as long as the block runs.

    The fixture `toolbus_room` is this, for programs without pytest:
    `with server_on_thread() as server: server.host(toolkit)`.
    """
    on_thread = AsyncExitStack()
    thread = LoopThread("toolbus-test-server", on_thread.aclose)
    with ExitStack() as here:
        here.callback(thread.stop, _STOP_S)
        running = thread.run(lambda: on_thread.enter_async_context(running_server()))
        here.callback(thread.run, on_thread.aclose)  # so that its errors are raised here
        yield ThreadedServer(running, thread, on_thread, here)
