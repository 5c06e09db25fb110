"""Who plays in the demo: a room server, hosts, a visitor, and an ear for their spans.

Server and hosts are processes of their own, started through the `toolbus` command line as anybody
would; the visitor is this process. They live in one temporary folder and know nothing of the
settings of whoever started the demo. Leaving the context ends all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from toolbus import AgentsGrant, ApiScope, Key, KeyRing, ParticipantToken, RoomClient
from toolbus.otlp_receiver import SpanReceiver
from toolbus.telemetry import configure
from toolbus.trace_tree import SpanRecord
from toolbus_toolkits.demo_stage import SceneFailed
from toolbus_toolkits.sql import DATABASE_VARIABLE

__all__ = ["ROOM", "VISITOR_SCOPE", "Actor", "Cast"]

ROOM = "demo"
"""The room in which everything happens."""
VISITOR_SCOPE = ApiScope(
    agents=AgentsGrant(
        use_tools=True,
        call=True,
        allow=("sql", "clock.now"),
        builders=("largest", "greeting"),
    ),
    messaging=True,
    trace=True,
)
"""What the visitor may do: everything of `sql`, of `clock` one tool, and ask for two toolkits."""

_TOKEN_S = 12 * 3600.0
_START_S = 20.0
_END_S = 4.0
_SPANS_S = 10.0
_COMMAND = (sys.executable, "-m", "toolbus")
_LOG_TAIL_LINES = 12


@dataclass(frozen=True, slots=True, eq=False)
class Actor:
    """A process of the demo."""

    label: str
    """Names it to people; its spans carry it as `service.instance.id`."""
    process: asyncio.subprocess.Process
    log: Path
    """What it wrote to stderr."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    async def kill(self) -> None:
        """End it at once, without its being told: SIGKILL."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def end(self) -> None:
        """Ask it to end, and after a few seconds no longer ask."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(_END_S):
                await self.process.wait()
        except TimeoutError:
            await self.kill()

    def complaints(self) -> list[str]:
        """Give the end of what it wrote to stderr."""
        log = self.log.read_text(encoding="utf-8", errors="replace")
        return log.splitlines()[-_LOG_TAIL_LINES:]

    def last_words(self) -> str:
        """Tell how it ended, with the last line of its log."""
        last = "".join(self.complaints()[-1:])
        return f"{self.label} ended by itself with {self.process.returncode}: {last}"


class Cast:
    """Everybody in the demo; an async context manager.

    Entered, there is a temporary folder and the receiver of spans. `open_room` and `host` bring the
    others.

    Args:
        room: The name of the room in which everything happens.
        traced: Whether spans are recorded.
    """

    def __init__(self, room: str = ROOM, *, traced: bool = True) -> None:
        self._room_name = room
        self._traced = traced
        self._stack = AsyncExitStack()
        self._key = Key.generate(kid="demo", iss="toolbus-demo")
        self._environment: dict[str, str] = {}
        self._watching: asyncio.Task[None] | None = None
        self._hosts = _Hosts()
        self._host_processes: list[Actor] = []
        self.receiver = SpanReceiver(port=0)
        self.actors: dict[str, Actor] = {}
        """Every process that was started, by its label."""
        self.url = ""
        """Where the server listens."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.folder = Path(
                stack.enter_context(
                    TemporaryDirectory(prefix="toolbus-demo-", ignore_cleanup_errors=True)
                )
            )
            await stack.enter_async_context(self.receiver)
            self._environment = _quiet_environment(self.folder, self.receiver.endpoint)
            if not self._traced:
                self._environment["OTEL_SDK_DISABLED"] = "true"
            self._keys.parent.mkdir(exist_ok=True)
            KeyRing([self._key]).save(self._keys)
            stack.enter_context(_variables({**self._environment, **_labels("demo", "caller")}))
            send_spans = configure("toolbus-demo")
            if send_spans is not None:
                stack.push_async_callback(asyncio.to_thread, send_spans)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def database(self) -> Path:
        """The SQLite file that `sql` reads."""
        return self.folder / "packages.sqlite"

    @property
    def _keys(self) -> Path:
        return self.folder / "keys.toml"

    # Processes

    async def open_room(self) -> RoomClient:
        """Start the server and let the visitor in, before anybody hosts anything."""
        self.url = await self._serve("room")
        self.room = RoomClient(self.url, room=self._room_name, token=self.visitor_token())
        async with asyncio.timeout(_START_S):
            await self._stack.enter_async_context(self.room)
        self._watching = asyncio.create_task(self._hosts.watch(self.room))
        self._stack.push_async_callback(_ended, self._watching)
        self._stack.push_async_callback(self._end_hosts)
        return self.room

    async def host(self, label: str, toolkit: str, url: str = "") -> Actor:
        """Start a process that hosts one toolkit; it mints its own token from the key.

        Args:
            label: Names it.
            toolkit: What it hosts.
            url: Where it connects to; `self.url` unless given.
        """
        variables = {
            "TOOLBUS_URL": url or self.url,
            "TOOLBUS_ROOM": self._room_name,
            "TOOLBUS_KEYS": str(self._keys),
            "TOOLBUS_NAME": f"{toolkit}-service",
            "TOOLBUS_INSTANCE": label,
            DATABASE_VARIABLE: str(self.database),
        }
        return await self._start(toolkit, label, ("host", toolkit), variables)

    async def _serve(self, label: str, *flags: str) -> str:
        """Start a server, and return its address once it listens."""
        arguments = ("serve", "--keys", str(self._keys), "--port", "0", "--json", "--drain", "1")
        server = await self._start("server", label, (*arguments, *flags))
        self._stack.push_async_callback(server.end)
        return await _ready_line(server)

    async def _start(
        self,
        service: str,
        label: str,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
    ) -> Actor:
        log = self.folder / f"{label}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                *arguments,
                env={**self._environment, **_labels(service, label), **(variables or {})},
                cwd=self.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if service == "server" else stderr,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for this process, which ends the others
            )
        self.actors[label] = actor = Actor(label, process, log)
        if service != "server":
            self._host_processes.append(actor)
        return actor

    async def _end_hosts(self) -> None:
        await asyncio.gather(*(host.end() for host in self._host_processes))

    # What happens

    async def until_hosted(self, **hosts: int) -> None:
        """Wait until the room's events say that each toolkit has so many hosts.

        Raises:
            SceneFailed: A process that is needed ended instead.
        """
        ready = asyncio.create_task(self._hosts.until(hosts))
        living = [actor for actor in self.actors.values() if actor.process.returncode is None]
        ends = {asyncio.create_task(actor.process.wait()): actor for actor in living}
        try:
            await asyncio.wait({ready, *ends}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ready, *ends):
                task.cancel()
        if not ready.done():
            raise SceneFailed(next(ends[task] for task in ends if task.done()).last_words())

    async def trace(self, wanted: Callable[[Sequence[SpanRecord]], bool]) -> list[SpanRecord]:
        """Wait for the spans of the first trace that is wanted.

        Raises:
            TimeoutError: They did not come in time.
        """

        def found() -> list[SpanRecord] | None:
            return next((each for each in self.receiver.traces().values() if wanted(each)), None)

        await self.receiver.wait_for(lambda _: found() is not None, timeout_s=_SPANS_S)
        return found() or []

    def visitor_token(self) -> str:
        """Mint the visitor's token."""
        return self.token("visitor", VISITOR_SCOPE)

    def token(self, name: str, api: ApiScope) -> str:
        """Mint a token for somebody else in the room."""
        token = ParticipantToken(name=name, room=[self._room_name], api=api)
        return token.to_jwt(self._key, ttl_s=_TOKEN_S)


class _Hosts:
    """How many hosts each toolkit has, as the room's events tell it."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._changed = asyncio.Event()

    async def watch(self, room: RoomClient) -> None:
        """Follow the events; begun before there is a host, it misses none."""
        async with room.events() as events:
            async for event in events:
                if event.toolkit is not None:
                    gone = event.name == "toolkit_removed"
                    self._counts[event.toolkit.name] = 0 if gone else event.toolkit.hosts
                    self._changed.set()

    async def until(self, wanted: Mapping[str, int]) -> None:
        """Wait until each toolkit has as many hosts as wanted."""
        while any(self._counts.get(name, 0) != count for name, count in wanted.items()):
            self._changed.clear()
            await self._changed.wait()


async def _ready_line(server: Actor) -> str:
    assert server.process.stdout is not None
    async with asyncio.timeout(_START_S):
        line = await server.process.stdout.readline()
        if not line:
            await server.process.wait()
            raise SceneFailed(server.last_words())
    return str(json.loads(line)["url"])


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _quiet_environment(folder: Path, collector: str) -> dict[str, str]:
    """Take over the environment, but for what would make the demo another on each machine."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TOOLBUS_", "OTEL_"))
    }
    return {
        **kept,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "TOOLBUS_HOME": str(folder / "home"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


def _labels(service: str, instance: str) -> dict[str, str]:
    return {
        "OTEL_SERVICE_NAME": service,
        "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={instance}",
    }


@contextmanager
def _variables(chosen: Mapping[str, str]) -> Iterator[None]:
    """Make these the variables of this process for as long as the block runs."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(chosen)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
