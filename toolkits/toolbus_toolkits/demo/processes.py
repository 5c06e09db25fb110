"""The processes of the demo: a room server and hosts; and here the visitor and a span receiver.

Server and hosts are separate processes, started through the `toolbus` command line; the visitor is
this process. They use one temporary folder and none of the user's `TOOLBUS_*` and `OTEL_*`
settings. Leaving the context stops all of them.
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
from typing import Self

from toolbus import AgentsGrant, ApiScope, Key, KeyRing, ParticipantToken, RoomClient
from toolbus.concurrency.thread_iterator import on_own_thread
from toolbus.telemetry import configure
from toolbus.telemetry.viewer.receiver import SpanReceiver
from toolbus.telemetry.viewer.trace_tree import SpanRecord
from toolbus_toolkits.demo.child_process import COMMAND_MODULE
from toolbus_toolkits.demo.scene_runner import SceneFailed
from toolbus_toolkits.sql import DATABASE_VARIABLE

__all__ = ["ROOM", "VISITOR_SCOPE", "DemoProcess", "DemoProcesses", "cancel_task"]

ROOM = "demo"
"""The room of the demo."""
VISITOR_SCOPE = ApiScope(
    agents=AgentsGrant(
        use_tools=True,
        call=True,
        allow=("sql", "clock.now", "agent", "files"),
        builders=("clock",),
    ),
    trace=True,
)
"""The visitor may call all tools of `sql` and `files`, and one of `clock`, and ask the agent, also
with a clock of its own."""

_TOKEN_S = 12 * 3600.0
_START_S = 120.0
_END_S = 4.0
_SPANS_S = 120.0
_COMMAND = (sys.executable, "-m", COMMAND_MODULE)
_LOG_TAIL_LINES = 12


@dataclass(frozen=True, slots=True, eq=False)
class DemoProcess:
    """A process that the demo started."""

    label: str
    """Its name in the output, and `service.instance.id` of its spans."""
    process: asyncio.subprocess.Process
    log: Path
    """What it wrote to stderr."""

    @property
    def pid(self) -> int:
        """The process id, also after its end."""
        return self.process.pid

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end. Idempotent."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def end(self) -> None:
        """Terminate it, and kill it after a few seconds."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(_END_S):
                await self.process.wait()
        except TimeoutError:
            await self.kill()

    def log_tail(self) -> list[str]:
        """Return the last lines of its stderr."""
        log = self.log.read_text(encoding="utf-8", errors="replace")
        return log.splitlines()[-_LOG_TAIL_LINES:]

    def exit_report(self) -> str:
        """Describe how it ended, with the last line of its log."""
        last = "".join(self.log_tail()[-1:])
        return f"{self.label} ended with exit code {self.process.returncode}: {last}"


class DemoProcesses:
    """All processes of the demo; an async context manager.

    Entering makes the temporary folder and the span receiver; `start_server` and `host` start the
    processes.

    Args:
        room: The name of the room.
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
        self._host_processes: list[DemoProcess] = []
        self.receiver = SpanReceiver(port=0)
        self.by_label: dict[str, DemoProcess] = {}
        """Every process that was started, by its label."""
        self.url = ""
        """Where the server listens."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            folder = TemporaryDirectory(prefix="toolbus-demo-", ignore_cleanup_errors=True)
            self.folder = Path(stack.enter_context(folder))
            await stack.enter_async_context(self.receiver)
            self._environment = _isolated_environment(self.folder, self.receiver.endpoint)
            if not self._traced:
                self._environment["OTEL_SDK_DISABLED"] = "true"
            self._keys.parent.mkdir(exist_ok=True)
            KeyRing([self._key]).save(self._keys)
            stack.enter_context(_environment(self._environment | _otel_names("demo", "caller")))
            send_spans = configure("toolbus-demo")
            if send_spans is not None:
                stack.push_async_callback(on_own_thread, send_spans, "toolbus-spans")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def database(self) -> Path:
        """The SQLite file that `sql` reads."""
        return self.folder / "packages.sqlite"

    @property
    def _keys(self) -> Path:
        return self.folder / "keys.toml"

    # Processes

    async def start_server(self) -> RoomClient:
        """Start the server and join as the visitor, before any toolkit is hosted."""
        self.url = await self._serve("room")
        self.room = RoomClient(self.url, room=self._room_name, token=self.visitor_token())
        async with asyncio.timeout(_START_S):
            await self._stack.enter_async_context(self.room)
        self._watching = asyncio.create_task(self._hosts.watch(self.room))
        self._stack.push_async_callback(cancel_task, self._watching)
        self._stack.push_async_callback(self._end_hosts)
        return self.room

    async def host(self, label: str, toolkit: str, *flags: str, url: str = "") -> DemoProcess:
        """Start a process that hosts one toolkit; it mints its own token from the key."""
        variables = {
            "TOOLBUS_URL": url or self.url,
            "TOOLBUS_ROOM": self._room_name,
            "TOOLBUS_KEYS": str(self._keys),
            "TOOLBUS_NAME": f"{toolkit}-service",
            "TOOLBUS_INSTANCE": label,
            DATABASE_VARIABLE: str(self.database),
        }
        return await self._start(toolkit, label, ("host", toolkit, *flags), variables)

    async def _serve(self, label: str, *flags: str) -> str:
        """Start a server, and return its address once it listens."""
        arguments = ("serve", "--keys", str(self._keys), "--port", "0", "--json", "--drain", "1")
        server = await self._start("server", label, (*arguments, *flags))
        self._stack.push_async_callback(server.end)
        assert server.process.stdout is not None
        async with asyncio.timeout(_START_S):
            line = await server.process.stdout.readline()
            if not line:
                await server.process.wait()
                raise SceneFailed(server.exit_report())
        return str(json.loads(line)["url"])

    async def _start(
        self,
        service: str,
        label: str,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
    ) -> DemoProcess:
        log = self.folder / f"{label}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                *arguments,
                env={**self._environment, **_otel_names(service, label), **(variables or {})},
                cwd=self.folder,
                stdin=asyncio.subprocess.PIPE,  # its end stops the process, see `child_process`
                stdout=asyncio.subprocess.PIPE if service == "server" else stderr,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for this process, which ends the others
            )
        self.by_label[label] = started = DemoProcess(label, process, log)
        if service != "server":
            self._host_processes.append(started)
        return started

    async def _end_hosts(self) -> None:
        await asyncio.gather(*(host.end() for host in self._host_processes))

    # Events and spans

    async def wait_for_hosts(self, **hosts: int) -> None:
        """Wait until the room's events report so many hosts for each toolkit.

        Raises:
            SceneFailed: A process ended instead.
        """
        ready = asyncio.create_task(self._hosts.until(hosts))
        living = [
            started for started in self.by_label.values() if started.process.returncode is None
        ]
        ends = {asyncio.create_task(started.process.wait()): started for started in living}
        try:
            await asyncio.wait({ready, *ends}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ready, *ends):
                task.cancel()
        if not ready.done():
            raise SceneFailed(next(ends[task] for task in ends if task.done()).exit_report())

    async def trace(self, wanted: Callable[[Sequence[SpanRecord]], bool]) -> list[SpanRecord]:
        """Wait for a trace that matches, and return its spans.

        Raises:
            TimeoutError: There was none in time.
        """

        def found() -> list[SpanRecord] | None:
            return next((spans for spans in self.receiver.traces().values() if wanted(spans)), None)

        await self.receiver.wait_for(lambda _: found() is not None, timeout_s=_SPANS_S)
        return found() or []

    def visitor_token(self) -> str:
        """Return a JWT for the participant `visitor`, with `VISITOR_SCOPE`."""
        return self.token("visitor", VISITOR_SCOPE)

    def token(self, name: str, api: ApiScope) -> str:
        """Return a JWT for a participant of the demo's room."""
        token = ParticipantToken(name=name, room=[self._room_name], api=api)
        return token.to_jwt(self._key, ttl_s=_TOKEN_S)


class _Hosts:
    """How many hosts each toolkit has, according to the room's events."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._changed = asyncio.Event()

    async def watch(self, room: RoomClient) -> None:
        """Follow the events; started before the hosts, it misses none."""
        async with room.events() as events:
            async for event in events:
                if event.toolkit is not None:
                    is_removed = event.name == "toolkit_removed"
                    self._counts[event.toolkit.name] = 0 if is_removed else event.toolkit.hosts
                    self._changed.set()

    async def until(self, wanted: Mapping[str, int]) -> None:
        """Wait until each toolkit has as many hosts as wanted."""
        while any(self._counts.get(name, 0) != count for name, count in wanted.items()):
            self._changed.clear()
            await self._changed.wait()


async def cancel_task(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.wait({task})


def _isolated_environment(folder: Path, collector: str) -> dict[str, str]:
    """Copy the environment without the variables that would change the demo."""
    copied = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TOOLBUS_", "OTEL_"))
    }
    return {
        **copied,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "TOOLBUS_HOME": str(folder / "home"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


def _otel_names(service: str, instance: str) -> dict[str, str]:
    return {
        "OTEL_SERVICE_NAME": service,
        "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={instance}",
    }


@contextmanager
def _environment(chosen: Mapping[str, str]) -> Iterator[None]:
    """Replace the environment of this process within the block."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(chosen)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
