"""What a call of a turn does with the chunks that come: keep them, and hand them to a reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable

from toolbus.chunks.chunk_types import Chunk, FileChunk, JsonChunk, LinkChunk, MixedChunk
from toolbus.errors import InvalidResult, TooLarge
from toolbus.tools.tool_run import OnChunk
from toolbus.tools.toolkit import MAX_MIXED_BYTES, MAX_RESULT_BYTES
from toolbus.wire import BadBody, pack_body

__all__ = [
    "CollectedChunks",
    "CollectedValues",
    "PassedOnChunks",
    "in_memory",
    "packed_size",
    "pulled",
]


class CollectedChunks:
    """Keeps the chunks of a streaming tool; all together have to fit one frame.

    Args:
        tool: The tool, as `toolkit.tool`.
    """

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self.chunks: list[Chunk] = []
        """The chunks so far."""
        self.total_bytes: int = 0
        """Their packed size."""
        self.omitted: int = 0
        """How many further chunks came and were dropped."""

    async def put(self, chunk: Chunk) -> None:
        """Keep a chunk; a file that is still being received is read into memory.

        Raises `TooLarge` if they do not fit one frame, and `InvalidResult` if one cannot be sent.
        """
        if isinstance(chunk, FileChunk) and not chunk.is_local:
            chunk = await in_memory(chunk, MAX_RESULT_BYTES - self.total_bytes, self._tool)
        size = packed_size(self._tool, chunk)
        if not self._keep(chunk, size):
            total = self.total_bytes + size
            text = f"the values of {self._tool} do not fit one frame: {total} bytes"
            raise TooLarge(text, executed="maybe")

    def _keep(self, chunk: Chunk, size: int) -> bool:
        """Keep a chunk if no other was omitted and it fits; return whether it was kept."""
        if self.omitted or self.total_bytes + size > MAX_RESULT_BYTES:
            self.omitted += 1
            return False
        self.total_bytes += size
        self.chunks.append(chunk)
        return True


class CollectedValues(CollectedChunks):
    """Keeps the plain values of a streaming tool, which become one list."""

    async def put(self, chunk: Chunk) -> None:
        """Keep a value. Raises `InvalidResult` for files and links."""
        if isinstance(chunk, FileChunk | LinkChunk):
            text = "a turn accepts streams of plain values only, not of files or links"
            raise InvalidResult(f"{text}: use turn.stream", executed="maybe")
        await super().put(chunk)

    @property
    def as_one(self) -> Chunk:
        """All values as one list."""
        mixed = MixedChunk(tuple(self.chunks))
        return JsonChunk(mixed.value, mixed.as_text, mixed.more_as_text)


class PassedOnChunks(CollectedChunks):
    """Hands chunks to a reader one by one, and keeps those that fit one frame.

    The tool waits until a chunk was taken, so that a slow reader slows it down. A file in pieces is
    read after it was taken: the tool waits until the reader asks for the next chunk.
    """

    def __init__(self, tool: str) -> None:
        super().__init__(tool)
        self._waiting: deque[Chunk] = deque()
        self._lent: Chunk | None = None
        """The file in pieces that the reader has."""
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._has_ended = False

    async def put(self, chunk: Chunk) -> None:
        """Pass a chunk on, and wait until it is taken or read; drop it after the end.

        Raises `InvalidResult` or `TooLarge` if it alone cannot be sent.
        """
        if self._has_ended:
            return
        self._keep(chunk, packed_size(self._tool, chunk))
        self._waiting.append(chunk)
        self._changed.set()
        while (self._waiting or self._lent is not None) and not self._has_ended:
            self._taken.clear()
            await self._taken.wait()

    def end(self) -> None:
        """Let the reader end after the chunks that wait for it."""
        self._has_ended = True
        self._changed.set()
        self._taken.set()

    async def next(self) -> Chunk | None:
        """Wait for the next chunk; None after the last one."""
        self._lent = None
        self._taken.set()
        while not self._waiting:
            if self._has_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        chunk = self._waiting.popleft()
        if isinstance(chunk, FileChunk) and not chunk.is_local:
            self._lent = chunk
        self._taken.set()
        return chunk


async def pulled(
    tool: str, run: Callable[[OnChunk], Awaitable[Chunk]]
) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks that a function puts; closing the generator cancels it.

    Args:
        tool: The tool, as `toolkit.tool`.
        run: Runs the call with a function that takes its chunks.
    """
    passed_on = PassedOnChunks(tool)
    task = asyncio.ensure_future(run(passed_on.put))
    task.add_done_callback(lambda _: passed_on.end())
    try:
        while (chunk := await passed_on.next()) is not None:
            yield chunk
        await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved: it was raised above, or the reader has left


async def in_memory(file: FileChunk, limit: int, tool: str) -> FileChunk:
    """Read a file that is being received. Raises `TooLarge` if it has more than `limit` bytes."""
    data = bytearray()
    async for piece in file.pieces():
        data += piece
        if len(data) > limit:
            text = f"a file of {tool} does not fit one frame: use turn.stream, or turn.invoke"
            raise TooLarge(text, executed="maybe")
    return FileChunk(bytes(data), file.name, file.mime_type)


def packed_size(tool: str, chunk: Chunk) -> int:
    """Return the size of a chunk in a frame; 0 for a file that is not in memory.

    Raises `InvalidResult` if it cannot be sent and `TooLarge` if it does not fit one frame.
    """
    if isinstance(chunk, FileChunk):
        # An empty file takes memory too.
        described = len(chunk.name) + len(chunk.mime_type)
        return described + len(chunk.data) if chunk.is_whole else 0
    try:
        size = len(pack_body(chunk.to_wire()))
    except BadBody as error:
        raise InvalidResult(error.reason, executed="maybe") from error
    most = MAX_MIXED_BYTES if isinstance(chunk, MixedChunk) else MAX_RESULT_BYTES
    if size > most:
        text = f"a chunk of {tool} has {size} bytes, at most {most} can be sent"
        raise TooLarge(text, executed="maybe")
    return size
