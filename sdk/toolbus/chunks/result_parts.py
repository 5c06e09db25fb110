"""Cuts the large result of a call into parts under credit, and puts them together at the caller.

A packed chunk is cut, whatever its kind, so that a caller which reads slowly holds back its own
results and no others. Files have their own pieces, which the caller reads as they arrive: see
`chunk_sequences`. `OutputStream` sends the parts.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolbus.chunks.chunk_sequences import ReceivedChunkSource
from toolbus.chunks.receive_credit import ReceivedChunk
from toolbus.errors import RoomException, StreamBroken
from toolbus.wire import MAX_FRAME_BYTES, pack_body
from toolbus.wire.codec import short_list

__all__ = [
    "LARGE_RESULT_BYTES",
    "MAX_JOINED_BYTES",
    "PARTS_VERSION",
    "PART_BYTES",
    "JoinedParts",
    "part_bodies",
    "part_data",
]

LARGE_RESULT_BYTES = 64 * 1024
"""A result whose packed chunk has more bytes is sent in parts."""
PART_BYTES = 64 * 1024
"""The most data of one part."""
MAX_JOINED_BYTES = 16 * 1024 * 1024
"""The most bytes of all parts of a mixed result; others have at most a frame together."""
PARTS_VERSION = 3
"""Servers of an earlier version of the protocol do not tell which callers read parts."""


def part_bodies(body: bytes) -> Iterator[bytes]:
    """Cut a packed chunk; the last body is that of the result, the others are of chunk frames.

    The first part is empty: it asks for credit and needs hardly any memory of the server, so that
    any number of results may wait for it.
    """
    yield pack_body([5, b""])
    for start in range(0, len(body), PART_BYTES):
        yield pack_body([5, body[start : start + PART_BYTES]])


def part_data(body: bytes) -> bytes | None:
    """Return the data of a part; None for any other body."""
    match short_list(body, 2):
        case [5, bytes(data)]:
            return data
    return None


class JoinedParts:
    """The packed chunks of a call that is not a stream; a result in parts is one of them.

    Args:
        source: Provides the packed chunks as they arrive.
    """

    __slots__ = ("_source",)

    def __init__(self, source: ReceivedChunkSource) -> None:
        self._source = source

    async def next(self) -> ReceivedChunk | None:
        """Wait for the next chunk, or for all parts of the result; None after the last one.

        Raises:
            RoomException: What `fail` returns for `StreamBroken`: the parts of the result do not
                continue, or are too large together.
            Exception: The error that ended the source.
        """
        received = await self._source.next()
        if received is None or received.last or (first := part_data(received.body)) is None:
            return received
        return await self._join(first)

    async def _join(self, first: bytes) -> ReceivedChunk:
        parts, size = [first], len(first)
        while True:
            received = await self._source.next()
            data = None if received is None else part_data(received.body)
            if received is None or data is None:
                raise self.fail(StreamBroken("a result did not continue with its next part"))
            size += len(data)
            most = MAX_FRAME_BYTES
            if next((part[1:2] == b"\x06" for part in parts if part), False):  # of a mixed chunk
                most = MAX_JOINED_BYTES
            if size > most:
                message = f"the parts of a result exceed {most} bytes"
                raise self.fail(StreamBroken(message))
            parts.append(data)
            if received.last:
                return ReceivedChunk(b"".join(parts), last=True)

    def fail(self, error: RoomException) -> RoomException:
        """End the call because of an invalid chunk; return the error that its reader gets."""
        return self._source.fail(error)
