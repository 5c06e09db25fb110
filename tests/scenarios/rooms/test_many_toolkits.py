"""Ten thousand toolkits in one room: listed, searched and changed while a client reads on."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psutil
import pytest

from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import ask, offer, toolkit_of
from support.rooms.events import listed
from support.rooms.unharmed_server import no_logged_errors, until_new_tasks_end
from toolbus.auth.keys import KeyRing
from toolbus.wire import ListToolkits, Unregister, pack_body
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

HOSTS, EACH = 10, 1_000
TOOLKITS = HOSTS * EACH
PAGE_BYTES = 256 * 1024
BYTES_PER_TOOLKIT = 8 * 1024
"""Bytes of the server for one registration whose manifest has some 100 bytes."""
NAMES = [f"t{number:05}" for number in range(TOOLKITS)]
_ALL = frozenset(NAMES)
NO_PINGS = ServerSettings(KeyRing([]), port=0, ping_interval_s=None)
"""Raw clients answer no ping, and here they may stay for long."""


@asynccontextmanager
async def large_room(server: TestServer) -> AsyncIterator[list[RawClient]]:
    """Let hosts register ten thousand toolkits, in no order that a list could profit from."""
    async with AsyncExitStack() as stack:
        hosts = [
            await stack.enter_async_context(raw_participant(server, f"host-{number}"))
            for number in range(HOSTS)
        ]
        for place in range(TOOLKITS):
            number = place * 7_919 % TOOLKITS
            host = hosts[number % HOSTS]
            words = {"description": f"Counts to {number}."}
            host.send_frame(offer(toolkit_of(NAMES[number], "run", **words), place))
            if place >= TOOLKITS - HOSTS:
                await host.reply_to(place)
        yield hosts


async def page(client: RawClient, cursor: str | None, **options: Any) -> dict[str, Any]:
    body: dict[str, Any] = await ask(client, ListToolkits(1, {"cursor": cursor, **options}))
    return body


async def pages(client: RawClient, **options: Any) -> AsyncIterator[list[str]]:
    """Go through all pages; yields the names of each."""
    cursor = None
    while True:
        body = await page(client, cursor, **options)
        assert len(body["toolkits"]) <= 100
        assert len(pack_body(body)) < PAGE_BYTES + 64 * 1024
        yield [toolkit["name"] for toolkit in body["toolkits"]]
        cursor = body["cursor"]
        if cursor is None:
            return


def memory_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


async def check_pages_while_toolkits_come_and_go(reader: RawClient, host: RawClient) -> None:
    """Toolkits that exist all along are listed once each and in order."""
    seen: list[str] = []
    mine = NAMES[::HOSTS]
    gone = 0
    async for names in pages(reader):
        seen += names
        if gone < 100:  # one that was read, and one that was not
            for number, name in enumerate((mine[gone], mine[-1 - gone])):
                await ask(host, Unregister(20_000 + number, name, True))
            await ask(host, offer(toolkit_of(f"new-{gone:03}", "run"), 20_002))
            gone += 1
    assert gone == 100
    changed = {*mine[:gone], *mine[-gone:]}
    assert [name for name in seen if name in _ALL - changed] == [
        name for name in NAMES if name not in changed
    ]
    assert seen == sorted(set(seen))


async def check_memory_of_a_page(reader: RawClient) -> None:
    """The memory of a page while it is made does not grow with the room."""
    middle = (await page(reader, None))["cursor"]
    tracemalloc.start()
    try:
        await page(reader, middle)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


async def check_searches(reader: RawClient) -> None:
    """A search finds what exists, and examines only a part of the room for each page."""
    found = [name async for names in pages(reader, search="TO 99") for name in names]
    assert found == [name for name in NAMES if str(int(name[1:])).startswith("99")]
    empty = [names async for names in pages(reader, search="nowhere")]
    assert sum(map(len, empty)) == 0
    assert 1 < len(empty) < 100


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_ten_thousand_toolkits_are_listed_and_searched_in_pages_and_in_order() -> None:
    """REG-13: in bounded memory, and a search without results delays no other request for long."""
    with no_logged_errors():
        async with running_server(settings=NO_PINGS) as server, asyncio.timeout(300):
            alone, before = asyncio.all_tasks(), memory_bytes()
            async with large_room(server) as hosts, raw_participant(server, "reader") as reader:
                grown = memory_bytes() - before
                assert grown < TOOLKITS * BYTES_PER_TOOLKIT, f"{grown} bytes"
                async with server.room("bob") as bob:
                    assert [toolkit.name for toolkit in await listed(bob)] == NAMES
                    assert len(await listed(bob, "to 99")) == 111
                await check_searches(reader)
                await check_memory_of_a_page(reader)
                await check_pages_while_toolkits_come_and_go(reader, hosts[0])
                room = server.server.hub.rooms["lab"]
            await until_new_tasks_end(alone)
            assert server.server.hub.rooms == {}
            assert room.routed.state.is_empty
