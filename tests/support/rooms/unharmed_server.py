"""Participants who behave well, and what must hold for them after another one misbehaved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from support.patience import PATIENCE_S
from toolbus import Key, RoomClient, Toolkit, tool
from toolbus_server import ServerSettings
from toolbus_server.testing import TestServer, running_server


@tool
async def say(text: str) -> str:
    """Return the text."""
    return text


class _ErrorRecords(logging.Handler):
    """Collects what is logged as an error, by us, by websockets or by asyncio."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(f"{record.name}: {record.getMessage()} {record.exc_info}")


@contextmanager
def no_logged_errors() -> Iterator[None]:
    """Fail if anything is logged as an error meanwhile: bad bytes of a client are not a server
    error.
    """
    errors = _ErrorRecords()
    logging.getLogger().addHandler(errors)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(errors)
    assert errors.records == []


@asynccontextmanager
async def unharmed_server(
    *, settings: ServerSettings | None = None, key: Key | None = None
) -> AsyncIterator[TestServer]:
    """Run a server on which alice calls `echo.say` of a host, before the block and after it.

    At the end nothing of others may be left: no task, no connection, no call in flight, no logged
    error.
    """
    with no_logged_errors():
        async with (
            running_server(settings=settings, key=key) as server,
            server.room("host") as host,
            host.host(Toolkit("echo", [say])),
            server.room("alice") as alice,
        ):
            await check_call(alice)
            before = await _quiet_tasks()
            connections = connections_of(server)
            yield server
            await check_call(alice)
            await until_new_tasks_end(before)
            assert connections_of(server) == connections
            assert server.server.hub.router.in_flight == 0
            await check_call(alice)


async def check_call(caller: RoomClient) -> None:
    """Make an ordinary call."""
    async with asyncio.timeout(60):
        assert await caller.call("echo.say", text="hello") == "hello"


async def _quiet_tasks() -> set[asyncio.Task[Any]]:
    """Return the tasks that exist when the host has finished its last call."""
    await asyncio.sleep(0)
    return asyncio.all_tasks()


async def until_new_tasks_end(before: set[asyncio.Task[Any]]) -> None:
    """Wait until every task that did not exist before has ended."""
    while new_tasks := asyncio.all_tasks() - before:
        _, left = await asyncio.wait(new_tasks, timeout=PATIENCE_S)
        assert not left, f"still running: {left}"


def connections_of(server: TestServer) -> dict[str, list[str]]:
    """Return the names of each room's participants."""
    rooms = server.server.hub.rooms
    return {
        name: sorted(
            connection.participant.identity.name
            for connection in open_room.routed.connections.values()
        )
        for name, open_room in rooms.items()
    }
