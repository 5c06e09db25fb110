"""Credit windows: how much the sender of a stream may send, and what its receiver accepts.

Both ends of a stream count chunks and bytes from its beginning, and credit is given as totals, so
that two credits that cross on the way lose nothing (PROTOCOL.md, STREAM-3). The size of a chunk is
the length of its packed body. Pure: nothing here sends or waits.
"""

from __future__ import annotations

from msgspec import Struct

from toolbus.errors import StreamBroken

__all__ = [
    "FIRST_BYTES",
    "FIRST_CHUNKS",
    "MAX_CHUNK_BYTES",
    "MAX_PROGRESS_BYTES",
    "WINDOW_BYTES",
    "WINDOW_CHUNKS",
    "ReceiveWindow",
    "SendWindow",
]

# Small beside a window of 1 MiB and a frame of 1 MiB: chunks of other streams and other calls get
# between those of one stream on the same connection.
MAX_CHUNK_BYTES = 256 * 1024
"""The body of one chunk of a stream (PROTOCOL.md, STREAM-2)."""
MAX_PROGRESS_BYTES = 16 * 1024
"""The body of a progress frame (PROTOCOL.md, PROGRESS-1)."""
# One chunk, so that a host can ask for credit without a round trip before it, and 32 KiB, as a
# caller has not agreed to buffer more: it may have thousands of calls in flight.
FIRST_CHUNKS, FIRST_BYTES = 1, 32 * 1024
"""The initial credit of the host of a call that is not a stream (PROTOCOL.md, STREAM-8)."""
# Both, as either alone has no bound: empty chunks have no bytes, and 256 chunks may have 64 MiB.
# The bytes are four of the largest chunks, so half a window (when credit is given) has room for
# two.
WINDOW_CHUNKS, WINDOW_BYTES = 256, 1024 * 1024
"""The most that may wait for the reader of one stream; no sender gets more credit."""


class SendWindow(Struct, eq=False):
    """The sender's side of one stream: its credit, and what it has sent."""

    chunks: int = 0
    """The credit in chunks, as a total."""
    bytes: int = 0
    """The credit in bytes, as a total."""
    number: int = 0
    """The number of the last chunk sent."""
    sent: int = 0
    """The bytes sent."""

    @property
    def is_open(self) -> bool:
        """Whether a chunk may be sent; the last one may exceed the bytes."""
        # If the last chunk had to fit, one larger than the whole credit could never be sent, and a
        # stream whose reader grants 1 byte at a time would stop for ever (STREAM-3).
        return self.number < self.chunks and self.sent < self.bytes

    def give(self, chunks: int, total_bytes: int) -> None:
        """Apply a credit; earlier credit is never withdrawn."""
        self.chunks = max(self.chunks, chunks)
        self.bytes = max(self.bytes, total_bytes)

    def take(self, size: int) -> int:
        """Count a chunk of `size` bytes as sent; return its number."""
        self.number += 1
        self.sent += size
        return self.number


class ReceiveWindow(Struct, eq=False):
    """The receiver's side of one stream: the credit it gave, and what it has received."""

    chunks: int
    """The credit given in chunks, as a total."""
    bytes: int
    """The credit given in bytes, as a total."""
    number: int = 0
    """The number of the last chunk received."""
    arrived: int = 0
    """The bytes received."""

    @property
    def is_open(self) -> bool:
        """Whether the sender may send a chunk."""
        return self.number < self.chunks and self.arrived < self.bytes

    def arrive(self, number: int, size: int) -> None:
        """Count a received chunk.

        Raises:
            StreamBroken: It is not the next one, is too large, or exceeds the credit.
        """
        if number != self.number + 1:
            raise StreamBroken(f"chunk {number} arrived after chunk {self.number}")
        if not self.is_open:
            raise StreamBroken(f"chunk {number} exceeds its credit")
        if size > MAX_CHUNK_BYTES:
            raise StreamBroken(f"chunk {number} has {size} bytes")
        self.number = number
        self.arrived += size
