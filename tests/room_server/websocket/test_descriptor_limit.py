"""A server whose file descriptors run out keeps some for itself, and serves whom it can."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.clients.raw_client import RawClient
from support.processes.command_line import CommandLine, Running
from toolbus import ApiScope, Key, KeyRing, ParticipantToken, RoomClient, Toolkit, tool
from toolbus_server.access.connection_limits import RESERVED_DESCRIPTORS

HARD_LIMIT = 96
START = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (80, {HARD_LIMIT}))
from toolbus.__main__ import main
sys.exit(main())
"""
KEY = Key.generate(kid="k1", iss="acme")


@contextmanager
def limited_server(folder: Path) -> Iterator[tuple[Running, str]]:
    KeyRing([KEY]).save(folder / "keys.toml")
    arguments = ("serve", "--port", "0", "--json", "--keys", "keys.toml")
    with CommandLine(folder).running("-c", START, *arguments) as server:
        yield server, json.loads(server.line())["url"]


def participant(url: str, name: str) -> RoomClient:
    token = ParticipantToken(name=name, room=["lab"], api=ApiScope.full()).to_jwt(KEY)
    return RoomClient(url, room="lab", token=token)


@tool
async def say(text: str) -> str:
    """Return the text."""
    return text


async def test_connections_beyond_the_descriptors_are_dropped_and_others_served(
    tmp_path: Path,
) -> None:
    with limited_server(tmp_path) as (server, url):
        pid = server.process.pid
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (HARD_LIMIT, HARD_LIMIT)
        async with (
            asyncio.timeout(60),
            participant(url, "host") as host,
            host.host(Toolkit("echo", [say])),
            participant(url, "alice") as alice,
        ):
            flood = [await RawClient.connect(url) for _ in range(2 * HARD_LIMIT)]
            assert await until_dropped(flood[-1])
            assert open_descriptors(pid) <= HARD_LIMIT - RESERVED_DESCRIPTORS
            assert await alice.call("echo.say", text="hi") == "hi"
            for client in flood:
                client.abort()
            while open_descriptors(pid) > HARD_LIMIT // 3:
                await alice.call("echo.say", text="hi")
            async with participant(url, "bob") as bob:
                assert await bob.call("echo.say", text="hi") == "hi"
        assert server.end().err.count("file descriptors") == 1


def open_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def until_dropped(client: RawClient) -> bool:
    try:
        return await client.reader.read() == b""
    except ConnectionError:
        return True
