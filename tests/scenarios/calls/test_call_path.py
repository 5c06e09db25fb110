"""How many of our functions and files one call uses, in each of its three processes.

Caller, server and host run on a thread and an event loop each, because a profile function belongs
to one thread. Functions are counted, not calls of them; constructors of values are left out.
Several calls are measured, and only what all of them use counts: a timer that expires during one of
them does not.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import toolbus
import toolbus_server
from support.patience import PATIENCE_S
from toolbus import Key, KeyRing, Toolkit, tool
from toolbus_server import RoomServer, ServerSettings
from toolbus_server.testing import TestServer

OURS = [Path(package.__file__ or "").parent for package in (toolbus, toolbus_server)]
T = TypeVar("T")
MAX_FUNCTIONS = 25
WATCHED_CALLS = 5
# Each end of a connection is three of them: codec, framing, websocket.
MAX_FILES = {"caller": 9, "server": 9, "host": 11}
CONSTRUCTORS = {"__init__", "__post_init__", "__new__", "run_of", "to_wire"}
"""Of frames, values and contexts: they only store or return their parts."""


@tool
async def add(a: int, b: int) -> dict[str, int]:
    return {"sum": a + b}


class Place:
    """A thread with an event loop, and which of our functions run there while it is watched."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop = asyncio.new_event_loop()
        self._seen: set[CodeType] = set()
        self.walks: list[set[CodeType]] = []
        """What ran, watch by watch."""
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return await asyncio.wrap_future(future)

    async def watch(self, watcher: Callable[[FrameType, str, Any], None] | None) -> None:
        async def set_it() -> None:
            sys.setprofile(watcher)
            if watcher is not None:
                self._seen = set()
                self.walks.append(self._seen)

        await self.run(set_it())

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and any(root in Path(code.co_filename).parents for root in OURS):
            self._seen.add(code)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


async def test_one_call_walks_few_functions_in_few_files() -> None:
    places = {name: Place(name) for name in MAX_FILES}
    key = Key.generate(kid="test", iss="test")
    server = RoomServer(ServerSettings(keys=KeyRing([key]), port=0))
    await places["server"].run(server.start())
    participants = TestServer(server, key)
    host_room, caller_room = participants.room("host"), participants.room("caller")
    await places["host"].run(host_room.__aenter__())
    hosting = host_room.host(Toolkit("demo", [add]))
    await places["host"].run(hosting.__aenter__())
    await places["caller"].run(caller_room.__aenter__())
    for _ in range(3):
        await places["caller"].run(caller_room.call("demo.add", a=1, b=2))

    for _ in range(WATCHED_CALLS):
        for place in places.values():
            await place.watch(place.note)
        await places["caller"].run(caller_room.call("demo.add", a=1, b=2))
        for place in places.values():
            await place.watch(None)

    await places["caller"].run(caller_room.__aexit__(None, None, None))
    await places["host"].run(hosting.__aexit__(None, None, None))
    await places["host"].run(host_room.__aexit__(None, None, None))
    await places["server"].run(server.stop())
    for place in places.values():
        place.end()
        functions = {
            code for code in set.intersection(*place.walks) if code.co_name not in CONSTRUCTORS
        }
        files = {Path(code.co_filename).name for code in functions}
        names = sorted(f"{Path(code.co_filename).stem}.{code.co_qualname}" for code in functions)
        assert functions, f"{place.name} was not watched"
        assert len(functions) <= MAX_FUNCTIONS, f"{place.name} {len(functions)} {names}"
        assert len(files) <= MAX_FILES[place.name], f"{place.name} {sorted(files)} {names}"
