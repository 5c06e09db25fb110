"""The processes of a gathering: the server that is joined, and those who join it by the thousand.

A joiner obeys lines: `join` so many guests at once, say when all have answered so many `pings`,
let all `leave`. Tokens are made before anything is timed.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
import tomllib
from typing import Any

from bench.gathering import SPARE_FILES
from bench.guest import Guest, Invitation
from bench.role import Where, next_line, run_role, say
from toolbus import ApiScope
from toolbus.keys import Key, KeyRing
from toolbus.tokens import ParticipantToken
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

ROOM = "gathering"
AT_ONCE = 16
"""How many connections one joiner opens at a time."""
PATIENCE_S = 60.0


async def serve(where: Where) -> None:
    """Run the server; a line with a number is answered once so many are there."""
    need_files(where["participants"])
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, max_per_address=0)
    key = Key.generate(kid="bench", iss="toolbus-bench", alg="EdDSA")
    async with running_server(key=key, settings=settings) as server:
        say(url=server.url, key=KeyRing([key]).to_toml())
        while line := await next_line():
            await until_there(server, json.loads(line)["there"])
            say(there=True)


async def until_there(server: TestServer, count: int) -> None:
    """Wait until exactly so many sit in the server's rooms; TimeoutError if that never comes."""
    until = time.monotonic() + PATIENCE_S
    while (there := people_in(server)) != count:
        if time.monotonic() > until:
            raise TimeoutError(f"{there} are there, not {count}")
        await asyncio.sleep(0.02)


def people_in(server: TestServer) -> int:
    return sum(len(room.occupants) for room in server.server.hub.rooms.values())


async def join(where: Where) -> None:
    """Make tokens, then do what each line says."""
    need_files(where["guests"])
    joiner = Joiner(invitations(where))
    say(ready=True)
    while line := await next_line():
        for what, value in json.loads(line).items():
            say(**await joiner.obey(what, value))


def invitations(where: Where) -> list[Invitation]:
    """One for each guest, each with a name of its own."""
    key = Key(**tomllib.loads(where["key"])["key"][0])
    numbers = range(where["first"], where["first"] + where["guests"])
    tokens = (
        ParticipantToken(f"guest{number}", [ROOM], "user", ApiScope.agent_default())
        for number in numbers
    )
    return [Invitation.to(where["url"], ROOM, token.to_jwt(key, ttl_s=3600)) for token in tokens]


class Joiner:
    """Some of the guests."""

    def __init__(self, invitations: list[Invitation]) -> None:
        self._invitations = invitations
        self._guests: list[Guest] = []

    async def obey(self, what: str, value: int) -> dict[str, Any]:
        match what:
            case "join":
                await self._join(value)
            case "pings":
                await self._await_pings(value)
            case "leave":
                for guest in self._guests:
                    guest.leave()
                self._guests.clear()
        return {"guests": len(self._guests), "lost": sum(each.is_lost for each in self._guests)}

    async def _join(self, count: int) -> None:
        waiting = iter(self._invitations[:count])

        async def one_after_the_other() -> None:
            for invitation in waiting:
                self._guests.append(await Guest.join(invitation))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(one_after_the_other())

    async def _await_pings(self, count: int) -> None:
        began = {guest: guest.pings for guest in self._guests}
        until = time.monotonic() + PATIENCE_S
        while any(guest.pings - pings < count for guest, pings in began.items()):
            if time.monotonic() > until or any(guest.is_lost for guest in began):
                raise RuntimeError("a guest was lost, or the server does not ping")
            await asyncio.sleep(0.1)


def need_files(count: int) -> None:
    """Allow this process so many connections. Raises OSError where the system does not."""
    needed = count + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise OSError(f"{needed} open files are needed, the limit is {hard} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


if __name__ == "__main__":
    run_role({"server": serve, "joiner": join})
