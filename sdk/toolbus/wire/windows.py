"""Credit: how far the sender of a stream may go, and what its receiver makes of that.

Both ends of a stream count chunks and bytes from its beginning, and credit is given in such totals,
so that nothing is lost where two of them cross (PROTOCOL.md, STREAM-3). A chunk counts as the
length of its packed body. Pure: nothing here sends or waits.
"""

from __future__ import annotations

from msgspec import Struct

from toolbus.errors import StreamBroken

__all__ = [
    "FIRST_BYTES",
    "FIRST_CHUNKS",
    "MAX_CHUNK_BYTES",
    "WINDOW_BYTES",
    "WINDOW_CHUNKS",
    "ReceiveWindow",
    "SendWindow",
]

MAX_CHUNK_BYTES = 256 * 1024
"""The body of one chunk of a stream (PROTOCOL.md, STREAM-2)."""
FIRST_CHUNKS, FIRST_BYTES = 1, 32 * 1024
"""What the host of a call that is no stream may send unasked (PROTOCOL.md, STREAM-8)."""
WINDOW_CHUNKS, WINDOW_BYTES = 256, 1024 * 1024
"""So much of one stream may wait for its reader; no sender is let further ahead."""


class SendWindow(Struct, eq=False):
    """What one side has sent of one stream, and how far it may go."""

    chunks: int = 0
    """Of these totals the credit speaks."""
    bytes: int = 0
    number: int = 0
    """The last chunk's."""
    sent: int = 0
    """Bytes."""

    @property
    def is_open(self) -> bool:
        """Whether a chunk may be sent; the last one may go beyond the bytes."""
        return self.number < self.chunks and self.sent < self.bytes

    def give(self, chunks: int, total_bytes: int) -> None:
        """Take a credit; what was given once is never taken back."""
        self.chunks = max(self.chunks, chunks)
        self.bytes = max(self.bytes, total_bytes)

    def take(self, size: int) -> int:
        """Count a chunk of `size` bytes as sent; return its number."""
        self.number += 1
        self.sent += size
        return self.number


class ReceiveWindow(Struct, eq=False):
    """What one side has taken of one stream, and how far it lets the other go."""

    chunks: int
    """Given so far, as totals."""
    bytes: int
    number: int = 0
    """The last chunk's."""
    arrived: int = 0
    """Bytes."""

    @property
    def is_open(self) -> bool:
        """Whether the other side may send a chunk."""
        return self.number < self.chunks and self.arrived < self.bytes

    def arrive(self, number: int, size: int) -> None:
        """Count a chunk that came.

        Raises:
            StreamBroken: It is not the next one, too large, or beyond what was given.
        """
        if number != self.number + 1:
            raise StreamBroken(f"chunk {number} came behind chunk {self.number}")
        if not self.is_open:
            raise StreamBroken(f"chunk {number} is beyond its credit")
        if size > MAX_CHUNK_BYTES:
            raise StreamBroken(f"chunk {number} has {size} bytes")
        self.number = number
        self.arrived += size
