"""Those who talk as slowly as they can: cut at the handshake, and no trouble to others.

Server, attacker and bystanders are processes of their own, so that what is measured is what the
server does to its people, and not what a test does to itself.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import pytest

from support.bystanders import say, unharmed_server
from support.command_line import CommandLine
from support.raw_client import bearer, raw_connection, upgrade_request
from toolbus import ApiScope, Key, KeyRing, ParticipantToken, RoomClient, Toolkit
from toolbus_server import ServerSettings

KEY = Key.generate(kid="k1", iss="acme")
TALKER = Path(__file__).parent.parent / "support" / "slow_talker.py"
CALLS = 150
"""In one measurement."""
LEAST_ROUNDS, ROUNDS = 5, 40
LEAST_SHARE = 0.01
"""Of a core; who dribbles 200 handshakes takes some 2 %."""


def token_of(name: str) -> str:
    return ParticipantToken(name=name, room=["lab"], api=ApiScope.full()).to_jwt(KEY)


class Talking:
    """A process that talks to the server.

    Args:
        process: It, which has begun.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ran_s = self._processor_s()
        self._began_s = time.perf_counter()

    def _processor_s(self) -> float:
        assert self._process.returncode is None, "it was shaken off, so nothing was measured"
        times = Path(f"/proc/{self._process.pid}/schedstat").read_text(encoding="ascii").split()
        return int(times[0]) / 1e9

    @property
    def was_at_it(self) -> bool:
        """Whether it got to do something: it has the time that nobody else wants."""
        lasted_s = time.perf_counter() - self._began_s
        return self._processor_s() - self._ran_s > LEAST_SHARE * lasted_s


@asynccontextmanager
async def talking(kind: str, url: str) -> AsyncIterator[Talking]:
    """Let a process talk to the server for as long as the block runs."""
    place = urlsplit(url)
    command = [str(TALKER), kind, str(place.hostname), str(place.port), token_of("mallory")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            assert await process.stdout.readline() == b"talking\n"
        yield Talking(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def p99_s(caller: RoomClient) -> float:
    """Measure what nearly all of some calls take at most."""
    took = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await caller.call("echo.say", text="hi")
        took.append(time.perf_counter() - began)
    return sorted(took)[CALLS * 99 // 100 - 1]


@pytest.mark.alone
@pytest.mark.row(30)
@pytest.mark.parametrize("kind", ["handshakes", "slicer"])
async def test_whoever_dribbles_makes_nobody_else_wait(kind: str, tmp_path: Path) -> None:
    """In turns with and without, the median of neighbours: a busy machine spoils either alike."""
    KeyRing([KEY]).save(tmp_path / "keys.toml")
    with CommandLine(tmp_path).serving("--keys", "keys.toml") as (_, url):
        async with (
            RoomClient(url, room="lab", token=token_of("host")) as host,
            host.host(Toolkit("echo", [say])),
            RoomClient(url, room="lab", token=token_of("bob")) as bob,
        ):
            await p99_s(bob)
            ratios = list[float]()
            for _ in range(ROUNDS):
                quiet_s = await p99_s(bob)
                async with talking(kind, url) as talker:
                    await p99_s(bob)  # it has just opened all its connections at once
                    beside_s = await p99_s(bob)
                    if talker.was_at_it:
                        ratios.append(beside_s / quiet_s)
                if len(ratios) >= LEAST_ROUNDS and median(ratios) < 2:
                    break
    assert ratios, "it was never at it"
    assert median(ratios) < 2, ratios


@pytest.mark.row(30)
async def test_request_that_trickles_is_cut_however_steadily_it_comes() -> None:
    """CONN-10: what counts is how long a handshake takes, not how long its last byte is ago."""
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, handshake_timeout_s=0.3)
    async with unharmed_server(settings=settings) as server, raw_connection(server.url) as client:
        rest = asyncio.ensure_future(client.reader.read())
        request = upgrade_request("/rooms/lab", bearer(server.token("mallory")))
        sent = 0
        async with asyncio.timeout(10):
            for byte in request:
                if rest.done():
                    break
                client.send(bytes([byte]))
                sent += 1
                await asyncio.wait([rest], timeout=0.01)
            with suppress(ConnectionResetError):  # a byte may come when all is over
                assert await rest == b""
        assert 1 < sent < len(request)
