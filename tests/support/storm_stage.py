"""Who takes part in a storm: a server, hosts, lines that can be hurt, and what happens to them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.processes import clean_environment
from support.storm_plan import Trouble
from toolbus import ApiScope, Key, KeyRing, ParticipantToken, RoomClient
from toolbus_server.testing import FaultProxy, Faults

__all__ = ["ROOM", "Actor", "Stage", "stage"]

ROOM = "lab"
HOSTS = 3
_HERE = Path(__file__).parent


class Actor:
    """A process of a storm, which says what it holds when it is asked.

    Args:
        process: The process; its stdin and stdout are pipes.
        first: The line that it began with.
    """

    def __init__(self, process: asyncio.subprocess.Process, first: bytes) -> None:
        self.process = process
        self.first = first

    @classmethod
    async def start(
        cls, program: str, arguments: list[str], variables: dict[str, str], log: Path
    ) -> Actor:
        """Start one and wait for its first line."""
        path = os.pathsep.join(sys.path)
        with log.open("ab") as complaints:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(_HERE / program), *arguments),
                env={**clean_environment(), "PYTHONPATH": path, **variables},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=complaints,
            )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                first = await process.stdout.readline()
        except BaseException:
            process.kill()
            raise
        assert first, f"{program} ended before it began, see {log}"
        return cls(process, first)

    async def look(self) -> dict[str, Any]:
        """Ask what it holds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"look\n")
        async with asyncio.timeout(20):
            looked: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return looked

    async def end(self, number: signal.Signals) -> int:
        """End it with a signal, and return its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(30):
            return await self.process.wait()


class Stage:
    """All that a storm can hurt.

    Args:
        folder: Where keys, witness and complaints lie.
    """

    def __init__(self, folder: Path) -> None:
        self.witness = folder / "witness"
        self.log = folder / "complaints"
        self._keys = folder / "keys.toml"
        self._key = Key.generate(kid="test", iss="acme")
        KeyRing([self._key]).save(self._keys)
        self._port = 0
        self.server: Actor | None = None
        self.hosts: list[Actor] = []
        self.lines: list[FaultProxy] = []
        self.happened: list[str] = []

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"ws://127.0.0.1:{self._port}"

    def token(self, name: str) -> str:
        """Mint a token with all grants."""
        token = ParticipantToken(name=name, room=[ROOM], api=ApiScope.full())
        return token.to_jwt(self._key, ttl_s=3600)

    def caller(self, number: int) -> RoomClient:
        """Make a caller; every other one comes by a line that is hurt."""
        url = self.lines[0].url if number % 2 else self.url
        return RoomClient(url, room=ROOM, token=self.token(f"caller-{number}"))

    async def start_server(self) -> None:
        """Start the server, always at the same place."""
        arguments = [str(self._keys), str(self._port)]
        self.server = await Actor.start("storm_server.py", arguments, {}, self.log)
        self._port = urlsplit(json.loads(self.server.first)["url"]).port or 0

    async def start_host(self, number: int) -> Actor:
        """Start a host; the last one comes by a line that is hurt."""
        url = self.lines[1].url if number == HOSTS - 1 else self.url
        variables = {
            "TOOLBUS_URL": url,
            "TOOLBUS_ROOM": ROOM,
            "TOOLBUS_TOKEN": self.token("host"),
            "TOOLBUS_DRAIN": "2",
        }
        return await Actor.start("storm_host.py", [str(self.witness)], variables, self.log)

    async def end(self) -> None:
        """End all processes."""
        for actor in [*self.hosts, *([] if self.server is None else [self.server])]:
            if actor.process.returncode is None:
                actor.process.send_signal(signal.SIGCONT)
            await actor.end(signal.SIGKILL)

    # Troubles

    async def make_trouble(self, troubles: Iterator[Trouble], is_over: asyncio.Event) -> None:
        """Let one trouble after the other happen, and heal each, until it is over."""
        for trouble in troubles:
            if is_over.is_set():
                return
            await _TROUBLES[trouble.kind](self, trouble)
            self.happened.append(trouble.kind)
            await _pause(is_over, trouble.calm_s)

    async def _kill_host(self, trouble: Trouble) -> None:
        await self._replace_host(trouble, signal.SIGKILL, (-signal.SIGKILL,))

    async def _drain_host(self, trouble: Trouble) -> None:
        await self._replace_host(trouble, signal.SIGTERM, (0,))

    async def _replace_host(
        self, trouble: Trouble, number: signal.Signals, codes: tuple[int, ...]
    ) -> None:
        place = trouble.target % HOSTS
        code = await self.hosts[place].end(number)
        assert code in codes, f"a host ended with {code}: {self.log.read_text()}"
        self.hosts[place] = await self.start_host(place)

    async def _stop_host(self, trouble: Trouble) -> None:
        process = self.hosts[trouble.target % HOSTS].process
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(trouble.lasts_s)
        finally:
            process.send_signal(signal.SIGCONT)

    async def _drain_server(self, trouble: Trouble) -> None:
        await self._restart(signal.SIGTERM, 0)

    async def _kill_server(self, trouble: Trouble) -> None:
        await self._restart(signal.SIGKILL, -signal.SIGKILL)

    async def _restart(self, number: signal.Signals, expected: int) -> None:
        assert self.server is not None
        code = await self.server.end(number)
        assert code == expected, f"the server ended with {code}: {self.log.read_text()}"
        await self.start_server()

    async def _hurt(self, trouble: Trouble) -> None:
        line = self.lines[trouble.target % len(self.lines)]
        faults = _FAULTS[trouble.kind]
        ways = ("to_server", "to_participant", "both")
        way = ways[trouble.target // len(self.lines) % len(ways)]
        if way != "to_participant":
            line.to_server = faults
        if way != "to_server":
            line.to_participant = faults
        await asyncio.sleep(trouble.lasts_s)
        if faults.lost:
            line.reset()  # what was lost within a connection no TCP would go on without
        await line.heal()

    async def _reset(self, trouble: Trouble) -> None:
        self.lines[trouble.target % len(self.lines)].reset()

    async def _half_open(self, trouble: Trouble) -> None:
        line = self.lines[trouble.target % len(self.lines)]
        is_far = trouble.target // len(self.lines) % 2
        line.leave_half_open(closed="server" if is_far else "participant")

    async def _refuse(self, trouble: Trouble) -> None:
        line = self.lines[trouble.target % len(self.lines)]
        await line.refuse()
        line.reset()
        await asyncio.sleep(trouble.lasts_s)
        await line.heal()


_FAULTS = {
    "late": Faults(latency_s=0.05, jitter_s=0.05),
    "crumbs": Faults(slice_bytes=1),
    "slow": Faults(bytes_per_s=50_000),
    "stall": Faults(stalled=True),
    "lose": Faults(lost=True),
}
_TROUBLES: dict[str, Callable[[Stage, Trouble], Awaitable[None]]] = {
    "kill host": Stage._kill_host,
    "stop host": Stage._stop_host,
    "drain host": Stage._drain_host,
    "drain server": Stage._drain_server,
    "kill server": Stage._kill_server,
    "reset": Stage._reset,
    "half open": Stage._half_open,
    "refuse": Stage._refuse,
    **dict.fromkeys(_FAULTS, Stage._hurt),
}


async def _pause(is_over: asyncio.Event, seconds: float) -> None:
    await asyncio.wait([over := asyncio.ensure_future(is_over.wait())], timeout=seconds)
    over.cancel()


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Start everybody, for as long as the block runs."""
    made = Stage(folder)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(made.end)
        await made.start_server()
        for number in range(2):
            line = FaultProxy(made.url, seed=number)
            made.lines.append(await stack.enter_async_context(line))
        for number in range(HOSTS):
            made.hosts.append(await made.start_host(number))
        yield made
