"""A file that comes piece by piece in the chunks of one call, read as they come.

The rest of a call whose result it is goes with it: read to its end the call has ended, dropped
before that it is given up. Among the chunks of a stream it is one of them, and what was not read is
skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Protocol

from toolbus.chunks import Chunk, FileChunk, chunk_from_wire, file_piece_from_wire
from toolbus.errors import Executed, InvalidResult, RoomException, StreamBroken
from toolbus.inflow import Arrival, TwoReaders
from toolbus.wire import BadBody, unpack_body

__all__ = ["Arrivals", "ReceivedFile", "file_result", "read_arrival"]


class Arrivals(Protocol):
    """The chunks of one call, packed."""

    async def next(self) -> Arrival | None:
        """Wait for the next one; None behind the last. Raises how the call ended."""

    def break_off(self, error: BaseException) -> None:
        """End the call with an error of this side's, unless it has ended."""

    def leave(self) -> None:
        """Give the call up, unless it has ended."""


class ReceivedFile:
    """The source of a `FileChunk` whose pieces are still coming; they are read once.

    Args:
        arrivals: Where they come from.
        first: The first piece.
        is_alone: Whether it is the call's whole result, so that the call is given up with it.
    """

    __slots__ = ("_arrivals", "_first", "_is_alone", "_loop", "_more", "_refusal")

    def __init__(self, arrivals: Arrivals, first: bytes, *, is_alone: bool) -> None:
        self._arrivals = arrivals
        self._first = first
        self._is_alone = is_alone
        self._loop = asyncio.get_running_loop()
        self._more = True
        self._refusal = ""

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Go through the pieces as they come.

        Raises:
            RoomException: Why the rest does not come; `executed` says whether the tool ran.
            RuntimeError: They were read already, or skipped.
        """
        if self._refusal:
            raise RuntimeError(self._refusal)
        self._refusal = "this file was read already: it comes once"
        first, self._first = self._first, b""
        try:
            if first:
                yield first
            while self._more:
                piece = await self._next()
                if piece:
                    yield piece
        finally:
            if self._more and self._is_alone:
                self._leave()

    async def skip(self) -> None:
        """Let what was not read go by."""
        self._refusal = "this file was skipped: the stream went on to the next chunk"
        self._first = b""
        while self._more:
            await self._next()

    async def _next(self) -> bytes:
        try:
            arrival = await self._arrivals.next()
        except (asyncio.CancelledError, TwoReaders):
            raise
        except BaseException:
            self._more = False
            raise
        piece = None if arrival is None else _piece_of(arrival.body)
        if arrival is None or piece is None or not self._fits(arrival, more=piece[1]):
            self._more = False
            broken = StreamBroken("a file did not go on, or end, as it has to")
            _break_off(self._arrivals, broken)
            raise broken
        file, self._more = piece
        return file.data

    def _fits(self, arrival: Arrival, *, more: bool) -> bool:
        """Whether a piece stands where it may: the last one of a result is the result itself."""
        return not more if arrival.last else more or not self._is_alone

    def _leave(self) -> None:
        self._more = False
        self._arrivals.leave()

    def __del__(self) -> None:
        if self._more and self._is_alone:
            # Garbage is collected on whatever thread runs, and after the loop's end too.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._arrivals.leave)


def _break_off(arrivals: Arrivals, error: RoomException) -> None:
    """End a call with an error that its reader is told at once, so that nobody reads the rest."""
    arrivals.break_off(error)
    arrivals.leave()


def _piece_of(body: bytes) -> tuple[FileChunk, bool] | None:
    try:
        return file_piece_from_wire(unpack_body(body, binary=True))
    except (BadBody, TypeError):
        return None


def read_arrival(arrivals: Arrivals, arrival: Arrival) -> tuple[Chunk, ReceivedFile | None]:
    """Read a chunk of a stream; with the source of its pieces where it is a file that goes on.

    Raises:
        InvalidResult: It is no chunk; the call has ended with that.
        StreamBroken: A file begins where nothing follows; likewise.
    """
    try:
        fields = unpack_body(arrival.body, binary=True)
        found = None if arrival.last else file_piece_from_wire(fields)
        if found is None or not found[1]:
            return chunk_from_wire(fields), None
    except RoomException as error:
        _break_off(arrivals, error)
        raise
    except (BadBody, ValueError, TypeError) as error:
        executed: Executed = "yes" if arrival.last else "maybe"
        broken = InvalidResult("what the host sent is no chunk", executed=executed)
        _break_off(arrivals, broken)
        raise broken from error
    file = found[0]
    source = ReceivedFile(arrivals, file.data, is_alone=False)
    return FileChunk.from_source(source, file.name, file.mime_type), source


def file_result(arrivals: Arrivals, first: Arrival) -> FileChunk:
    """Make a result of the first chunk of a call that is no stream: it can only be a file.

    Raises:
        StreamBroken: It is none; the call has ended with that.
    """
    piece = _piece_of(first.body)
    if piece is None or not piece[1]:
        broken = StreamBroken("a chunk came of a call that is no stream")
        _break_off(arrivals, broken)
        raise broken
    source = ReceivedFile(arrivals, piece[0].data, is_alone=True)
    return FileChunk.from_source(source, piece[0].name, piece[0].mime_type)
