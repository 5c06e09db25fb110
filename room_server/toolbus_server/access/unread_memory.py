"""Limits how many bytes wait at a server until participants read them: per identity, and in all.

A connection reports what waits for it when that changes while it is behind; messages that are
written at once are not counted, so a call to a participant that reads costs nothing here. Beyond a
limit the connections with the most bytes are closed, and the others go on. Calls, messages and
input of other participants never use up a limit, so that they close no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable
from typing import Protocol

from toolbus.transport.websocket import WRITE_LIMIT_BYTES
from toolbus_server import identity_usage
from toolbus_server.identity_usage import IdentityUsage

__all__ = ["Reader", "UnreadMemory", "write_limit_of"]

_SHARE = 7 / 8
"""Beyond a limit connections are closed until so much of it is in use."""
_OFFERED_SHARE = 1 / 2
"""How much of a limit calls, messages and input may use; replies and events get the rest."""
_FREE_BYTES = 16 * 1024 * 1024
"""Shared by the write buffers of one identity, which are not counted before they are full."""
_MIN_WRITE_LIMIT = 16 * 1024
"""What each of them has at least; 4,096 that join one after another have 112 MiB in all."""


def write_limit_of(connections: int) -> int:
    """Return beyond how many bytes messages wait in the send queue, where they are counted.

    It depends on how many connections the identity has.
    """
    return min(WRITE_LIMIT_BYTES, max(_MIN_WRITE_LIMIT, _FREE_BYTES // max(connections, 1)))


class Reader(Hashable, Protocol):
    """A connection of a participant."""

    usage: IdentityUsage | None
    """What its identity uses; None before it is admitted."""
    unread_bytes: int
    """The bytes that wait for it; only `UnreadMemory` changes it."""

    def close_as_slow(self) -> None:
        """Close it, since it reads too slowly; what waits for it is dropped at once."""


class UnreadMemory:
    """Counts the bytes that wait for the participants of one server.

    Args:
        loop: Connections are closed in its next iteration, never while one is written to.
        max_bytes: Bytes that may wait for all participants together; 0 for any number.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self._loop = loop
        self._max_bytes = max_bytes
        self._readers: dict[Reader, None] = {}
        """Those for which bytes wait."""
        self._exceeding: dict[IdentityUsage | None, None] = {}
        """Whose limit is exceeded; None for that of the server."""
        self.total_bytes: int = 0
        """Bytes that wait now."""

    def update(self, reader: Reader, size: int) -> None:
        """Set how many bytes wait for a reader now."""
        change, reader.unread_bytes = size - reader.unread_bytes, size
        if size:
            self._readers[reader] = None
        else:
            self._readers.pop(reader, None)
        self.total_bytes += change
        if self._max_bytes and self.total_bytes > self._max_bytes:
            self._close_soon(None)
        usage = reader.usage
        if usage is not None:
            usage.unread_bytes += change
            if usage.unread_bytes > identity_usage.MAX_UNREAD_BYTES:
                self._close_soon(usage)

    def has_room_for(self, reader: Reader, size: int) -> bool:
        """Whether what another participant sends is queued for a reader that is behind.

        Of half of each limit a reader gets at most as much as it leaves free for others, as callers
        do of a host's places: so many readers that are behind together do not reach the limit.
        """
        wanted, usage = reader.unread_bytes + size, reader.usage
        if self._max_bytes and wanted > self._max_bytes * _OFFERED_SHARE - self.total_bytes:
            return False
        limit = identity_usage.MAX_UNREAD_BYTES * _OFFERED_SHARE
        return usage is None or wanted <= limit - usage.unread_bytes

    def _close_soon(self, exceeding: IdentityUsage | None) -> None:
        if not self._exceeding:
            self._loop.call_soon(self._close_slow_readers)
        self._exceeding[exceeding] = None

    def _close_slow_readers(self) -> None:
        exceeding, self._exceeding = self._exceeding, {}
        for usage in exceeding:
            if usage is None:
                self._free(list(self._readers), self.total_bytes - self._max_bytes * _SHARE)
            else:
                of_usage = [reader for reader in self._readers if reader.usage is usage]
                allowed = identity_usage.MAX_UNREAD_BYTES * _SHARE
                self._free(of_usage, usage.unread_bytes - allowed)

    def _free(self, readers: Collection[Reader], size: float) -> None:
        """Close the readers with the most bytes until so many are free."""
        for reader in sorted(readers, key=lambda candidate: candidate.unread_bytes, reverse=True):
            if size <= 0:
                return
            size -= reader.unread_bytes
            reader.close_as_slow()
