"""A host of streams and files, in its own process: `python flow_host.py WITNESS`.

Its toolkit is `flow`. A tool without an end writes two lines to the witness file: that it began,
and that it was closed. Each line is one write, so that lines written before a SIGKILL persist.
"""

import asyncio
import hashlib
import itertools
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from toolbus import FileChunk, InputStream, RemoteToolkit, ToolContext, tool

PIECE_BYTES = 1024 * 1024


class Flow:
    """The tools, and the number of items that each has handled."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.yielded = 0
        self.taken = 0
        self.go = asyncio.Event()

    def note(self, words: str) -> None:
        os.write(self._file, f"{words}\n".encode())

    @asynccontextmanager
    async def run(self, name: str) -> AsyncIterator[None]:
        self.note(f"began {name}")
        try:
            yield
        finally:
            self.note(f"left {name}")

    def toolkit(self) -> RemoteToolkit:
        makers = (self._streams, self._inputs, self._files, self._others)
        return RemoteToolkit("flow", [made for maker in makers for made in maker()])

    def _streams(self) -> list[Any]:
        @tool
        async def numbers(to: int, size: int = 0) -> AsyncIterator[dict[str, Any]]:
            for number in range(to):
                yield {"n": number, "x": "x" * size}

        @tool
        async def for_ever(size: int = 0) -> AsyncIterator[dict[str, Any]]:
            async with self.run("for_ever"):
                for number in itertools.count():
                    self.yielded = number
                    yield {"n": number, "x": "x" * size}

        @tool
        async def pause(context: ToolContext, progress_reports: int) -> AsyncIterator[int]:
            async with self.run("pause"):
                yield 1
                for each in range(progress_reports):
                    await asyncio.sleep(0.2)
                    context.emit(each)
                yield 2
                await asyncio.Event().wait()

        return [numbers, for_ever, pause]

    def _inputs(self) -> list[Any]:
        @tool
        async def hoard(rows: InputStream[dict[str, Any]], first: int) -> int:
            """Take some items, and the rest once told to go on."""
            async with self.run("hoard"):
                async for _ in rows:
                    self.taken += 1
                    if self.taken == first:
                        await self.go.wait()
                return self.taken

        @tool
        async def echo(rows: InputStream[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
            async for row in rows:
                yield row

        return [hoard, echo]

    def _files(self) -> list[Any]:
        @tool
        async def fetch(size: int) -> FileChunk:
            return FileChunk.from_pieces(self._zeros(size), "zeros.bin")

        @tool
        async def keep(attachment: FileChunk) -> dict[str, Any]:
            seen, size = hashlib.sha256(), 0
            async with self.run("keep"):
                async for piece in attachment.pieces():
                    seen.update(piece)
                    size += len(piece)
                return {"sha256": seen.hexdigest(), "size": size}

        @tool
        async def give(path: str) -> FileChunk:
            self.note("began give")
            return FileChunk.from_path(path)

        return [fetch, keep, give]

    def _others(self) -> list[Any]:
        @tool
        async def ping() -> str:
            return "pong"

        @tool
        async def release() -> None:
            self.go.set()

        @tool
        async def counts() -> dict[str, int]:
            return {"yielded": self.yielded, "taken": self.taken, "tasks": len(asyncio.all_tasks())}

        return [ping, release, counts]

    async def _zeros(self, size: int) -> AsyncIterator[bytes]:
        async with self.run("fetch"):
            for begin in range(0, size, PIECE_BYTES):
                yield bytes(min(PIECE_BYTES, size - begin))


if __name__ == "__main__":
    Flow(sys.argv[1]).toolkit().run()
