"""A file that is sent: its bytes from one open descriptor, whatever its path names meanwhile."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager

from toolbus.chunks.file_io import FILE_BLOCK_BYTES, FILE_THREADS, cut_in_pieces
from toolbus_toolkits.files.reached import failure
from toolbus_toolkits.files.reading import MAX_UNKNOWN_BYTES
from toolbus_toolkits.files.text import token_hash

__all__ = ["OpenedFile"]


class OpenedFile:
    """The source of a `FileChunk`: an open file, which is read once and closed then.

    It sends as many bytes as the file had when it was opened: one that is appended to meanwhile
    does not grow under its reader. It is closed too where it is never read.

    Args:
        descriptor: Of the file; owned from here on.
        failing: Turns what the block raises into `ToolFailed`.
        on_sent: Receives the version of the file when all of it was read.
    """

    def __init__(
        self,
        descriptor: int,
        failing: Callable[[], AbstractContextManager[None]],
        on_sent: Callable[[str], None],
    ) -> None:
        # Its lock keeps `close` from a descriptor that a thread still reads.
        self._file = os.fdopen(descriptor, "rb")
        self._size = os.fstat(descriptor).st_size
        self._failing = failing
        self._on_sent = on_sent
        self._hash = token_hash()
        self._is_read = False

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Give the bytes.

        Raises `ToolFailed` if the file became shorter or cannot be read, and `RuntimeError` if it
        was read before.
        """
        if self._is_read:
            raise RuntimeError("the pieces of this file can be read only once and were read before")
        self._is_read = True
        left = self._size or MAX_UNKNOWN_BYTES
        try:
            while block := await FILE_THREADS.run(self._read, min(left, FILE_BLOCK_BYTES)):
                left -= len(block)
                for piece in cut_in_pieces(block):
                    yield piece
            self._on_sent(self._hash.hexdigest())
        finally:
            await FILE_THREADS.finish(self.close)

    def _read(self, size: int) -> bytes:
        with self._failing():
            block = self._file.read(size)
        if size and not block and os.fstat(self._file.fileno()).st_size < self._size:
            # What was sent is neither the old file nor the new one.
            raise failure("changed", "the file became shorter while it was sent")
        self._hash.update(block)
        return block

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        self.close()
