"""A process of clients that join, do something, and leave or drop the connection, many times.

Run as `python short_lived_clients.py URL TOKEN FIRST CYCLES TASKS`. It exits with 0 when each cycle
went as expected.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator

from support.clients.raw_client import CLOSE, RawClient, bearer, websocket_frame
from support.clients.raw_requests import (
    answer,
    ask,
    call_of,
    call_through,
    failure_of,
    offer,
    toolkit_of,
)
from toolbus.wire import (
    Attributes,
    Participants,
    Result,
    Subscribe,
    Unregister,
    Welcome,
)

OWN_CALL, OTHERS_CALL = 7, 8


async def join(url: str, token: str) -> RawClient:
    client = await RawClient.connect(url)
    head = await client.upgrade("/rooms/lab", bearer(token))
    assert head.status == 101, head
    assert isinstance(await client.read_frame(), Welcome)
    return client


async def leave(client: RawClient, kit: str) -> None:
    """Host, be called, call, unregister, and leave."""
    answer(client, await call_through(client, client, call_of(f"{kit}.run", OWN_CALL)))
    assert isinstance(await client.reply_to(OWN_CALL), Result)
    await ask(client, Unregister(2, kit, True))
    client.send(websocket_frame(b"\x03\xe8", opcode=CLOSE))
    assert await client.close_code() == 1000


async def drop_connection(client: RawClient, kit: str) -> None:
    """Host, be called, call, and drop the connection."""
    answer(client, await call_through(client, client, call_of(f"{kit}.run", OWN_CALL)))
    assert isinstance(await client.reply_to(OWN_CALL), Result)


async def drop_connection_as_caller(client: RawClient, kit: str) -> None:
    """Drop the connection while a call runs at another's host; a reply shows that the call was
    read.
    """
    client.send_frame(call_of("slow.wait", OTHERS_CALL))
    await ask(client, Participants(3, {"limit": 1}))


async def drop_connection_as_host(client: RawClient, kit: str) -> None:
    """Drop the connection while this host runs a call, and after it has cancelled another."""
    await call_through(client, client, call_of(f"{kit}.run", OWN_CALL))
    client.send_frame(call_of(f"{kit}.missing", 9))
    assert (await failure_of(client, 9)).code == "not_found"


async def drop_connection_as_subscriber(client: RawClient, kit: str) -> None:
    """Drop the connection while others receive its events, and it receives theirs."""
    await ask(client, Subscribe(2, ["toolkits", "participants", "messages"]))
    await ask(client, Attributes(3, {"status": "busy"}))


WAYS: tuple[Callable[[RawClient, str], Awaitable[None]], ...] = (
    leave,
    drop_connection,
    drop_connection_as_caller,
    drop_connection_as_host,
    drop_connection_as_subscriber,
)
"""What a client does; each is as frequent as the others."""


async def run_clients(url: str, token: str, numbers: Iterator[int], kit: str) -> None:
    """Run clients one after the other."""
    for number in numbers:
        client = await join(url, token)
        try:
            await ask(client, offer(toolkit_of(kit, "run"), 1))
            await WAYS[number % len(WAYS)](client, kit)
        finally:
            client.abort()


async def main(url: str, token: str, first: int, cycles: int, tasks: int) -> None:
    """Run clients in concurrent tasks."""
    numbers = iter(range(first, first + cycles))
    async with asyncio.TaskGroup() as group:
        for number in range(tasks):
            kit = f"kit-{first % 2}-{number}"
            group.create_task(run_clients(url, token, numbers, kit))


if __name__ == "__main__":
    url, token, *counts = sys.argv[1:]
    asyncio.run(main(url, token, *map(int, counts)))
