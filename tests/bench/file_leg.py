"""The bus with a file on its way, up or down, with a stream of small items, and with small calls.

The host reads the file from memory that looks like a disk; callers count what comes, and write
nothing. A second caller, with a connection and a process of its own, does what others do meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from bench.file_orders import FILE_BYTES, take_orders
from bench.role import Where, run_role, serve_until_told
from bench.toolbus_leg import ROOM, add, route, send_spans, set_up_tracing
from toolbus import FileChunk, RemoteToolkit, RoomClient, tool

ITEMS = 20_000
ITEM_BYTES = 100
FLOOD = 64
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where Linux has a file system in memory; elsewhere files lie where temporary ones do."""


@tool(read_only=True)
async def items(count: int) -> AsyncIterator[str]:
    """Give so many small texts."""
    text = "x" * ITEM_BYTES
    for _ in range(count):
        yield text


@tool(read_only=True)
async def take(attachment: FileChunk) -> dict[str, int]:
    """Count the bytes of an upload."""
    return {"bytes": await _size_of(attachment)}


async def host(where: Where) -> None:
    set_up_tracing("host")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        file = _file_in(folder)

        @tool(read_only=True)
        async def give() -> FileChunk:
            """Give a file."""
            return FileChunk.from_path(file)

        demo = RemoteToolkit("demo", [add, give, take, items])
        async with RoomClient(where["url"], room=ROOM, token=where["host_token"]) as room:
            await demo.start(room)
            await serve_until_told(send_spans, ready=True)
            await demo.stop()


async def caller(where: Where) -> None:
    set_up_tracing("caller")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        file = _file_in(folder)
        async with RoomClient(where["url"], room=ROOM, token=where["caller_token"]) as room:
            orders = {
                "download": partial(_download, room),
                "upload": partial(_upload, room, file),
                "items": partial(_items, room),
                "call": partial(_call, room),
                "flood": partial(_flood, room),
            }
            await take_orders(orders)


async def _download(room: RoomClient) -> int:
    chunk = await room.invoke("demo", "give", {})
    assert isinstance(chunk, FileChunk)
    return await _size_of(chunk)


async def _upload(room: RoomClient, file: Path) -> int:
    chunk = await room.invoke("demo", "take", {}, attachment=file)
    size: int = chunk.value["bytes"]
    return size


async def _items(room: RoomClient) -> int:
    count = 0
    async with room.stream("demo", "items", {"count": ITEMS}) as chunks:
        async for _ in chunks:
            count += 1
    return count


async def _call(room: RoomClient) -> int:
    await room.call("demo.add", a=35, b=7)
    return 1


async def _flood(room: RoomClient) -> int:
    """Keep many calls in flight until this is cancelled."""

    async def without_end() -> None:
        while True:
            await _call(room)

    async with asyncio.TaskGroup() as callers:
        for _ in range(FLOOD):
            callers.create_task(without_end())
    return 0


async def _size_of(file: FileChunk) -> int:
    size = 0
    async for piece in file.pieces():
        size += len(piece)
    return size


def _file_in(folder: str) -> Path:
    file = Path(folder) / "file"
    file.write_bytes(os.urandom(FILE_BYTES))
    return file


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller, "other": caller})
