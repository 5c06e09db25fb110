"""Limits what one call returns: bytes and chunks in sum."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from toolbus.chunks.chunk_types import Chunk, EmptyChunk, FileChunk, JsonChunk, LinkChunk, TextChunk
from toolbus.chunks.file_io import FILE_THREADS, PathSource
from toolbus.errors import TooLarge
from toolbus.middlewares.outcomes import checked_count, closing, own_error
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.wire import BadBody, pack_body

__all__ = ["OutputLimit"]


class OutputLimit:
    """A middleware that limits what one call returns, as `TooLarge`.

    Bytes are those of a text in UTF-8, of a JSON value as it is sent, and of a file's data. A file
    that is not in memory is counted while it is read, and its reader gets the error. With `cut` a
    text beyond the limit is cut and ends the call, with a note on top of the limit that tells so;
    other values cannot be cut and are `TooLarge`.

    Args:
        max_bytes: How many bytes, all chunks together.
        max_chunks: How many chunks.
        cut: Whether text is cut.

    Raises `TypeError` or `ValueError` for other values, and if there is no limit.
    """

    def __init__(
        self, max_bytes: int | None = None, *, max_chunks: int | None = None, cut: bool = False
    ) -> None:
        if max_bytes is None and max_chunks is None:
            raise ValueError("OutputLimit needs max_bytes, max_chunks or both")
        self._max_bytes = None if max_bytes is None else checked_count("max_bytes", max_bytes)
        self._max_chunks = None if max_chunks is None else checked_count("max_chunks", max_chunks)
        self._cut = cut

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Pass chunks on up to the limit."""
        used, count = _Used(), 0
        async with closing(next(call)) as chunks:
            async for chunk in chunks:
                count += 1
                size = await _size_of(chunk)
                left = None if self._max_bytes is None else self._max_bytes - used.bytes
                if self._is_full(count) or (left is not None and (size or 0) > left):
                    if not (self._cut and isinstance(chunk, TextChunk)):
                        break
                    if self._is_full(count):
                        left = 0
                    # The start of the text, in whole characters, and the note.
                    start = chunk.text.encode()[:left].decode(errors="ignore")
                    yield TextChunk(f"{start}\n[cut here: a result has at most {self._limits}]")
                    return
                used.bytes += size or 0
                yield chunk if size is not None else self._counted(call, chunk, used)
            else:
                return
        raise self._error(call)

    def _is_full(self, count: int) -> bool:
        return self._max_chunks is not None and count > self._max_chunks

    @property
    def _limits(self) -> str:
        limits = ((self._max_bytes, "bytes"), (self._max_chunks, "chunks"))
        return " and ".join(f"{limit} {unit}" for limit, unit in limits if limit is not None)

    def _error(self, call: ToolCall) -> TooLarge:
        text = f"the result of {call.tool.name} has more than {self._limits}"
        return own_error(call, TooLarge(text), began=True)

    def _counted(self, call: ToolCall, chunk: Chunk, used: _Used) -> Chunk:
        """Return a file that is not in memory, with its bytes counted as they are read."""
        if self._max_bytes is None or not isinstance(chunk, FileChunk):
            return chunk
        most = self._max_bytes

        async def pieces() -> AsyncGenerator[bytes, None]:
            async with aclosing(chunk.pieces()) as found:
                async for piece in found:
                    used.bytes += len(piece)
                    if used.bytes > most:
                        raise self._error(call)
                    yield piece

        return FileChunk.from_pieces(pieces(), chunk.name, chunk.mime_type)


@dataclass(slots=True)
class _Used:
    """What one call has returned so far."""

    bytes: int = 0


async def _size_of(chunk: Chunk) -> int | None:
    """Return the bytes of a chunk; None for a file whose size is unknown."""
    match chunk:
        case TextChunk(text):
            return len(text) if text.isascii() else len(text.encode(errors="replace"))
        case EmptyChunk():
            return 0
        case LinkChunk(url):
            return len(url.encode(errors="replace"))
        case FileChunk():
            if isinstance(source := chunk.source, PathSource):
                return await FILE_THREADS.run(_file_size, source)
            return len(chunk.data) if chunk.is_whole else None
    try:
        return len(pack_body(chunk.json if isinstance(chunk, JsonChunk) else chunk.to_wire()))
    except BadBody:  # it cannot be sent: the runner refuses it
        return 0


def _file_size(source: PathSource) -> int:
    try:
        return source.path.stat().st_size
    except OSError:  # its reader gets the error
        return 0
