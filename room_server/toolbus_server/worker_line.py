"""What a worker and its parent tell each other: lines of JSON over a pair of sockets.

To a worker: `{"drain": true}`, `{"keys": TOML}`. To the parent: `{"ready": true}`,
`{"leaving": true}`, `{"refused": WORDS}` where another node has its name,
`{"said": [LOGGER, LEVEL, TEXT, TEXT OF ALL]}`. A worker that is asked for the numbers of all says
`{"ask": ID}`, and is told `{"expect": [ID, COUNT]}`; each other one hears `{"asked": [WORKER, ID]}`
and says `{"tell": [WORKER, ID, NUMBERS]}`, which comes as `{"told": [ID, NAME, NUMBERS]}`. The end
of the line means that the other one has ended. This is the parent's end, which never waits; a
worker reads its own as a stream.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["LONGEST_LINE_BYTES", "ParentEnd", "packed"]

LONGEST_LINE_BYTES = 16 * 1024 * 1024
"""More than any message takes; keys are the longest ones."""
_AT_ONCE_BYTES = 64 * 1024


def packed(message: Mapping[str, Any]) -> bytes:
    """Write a message."""
    return json.dumps(message).encode() + b"\n"


class ParentEnd:
    """The parent's end of the line to one worker.

    Args:
        line: One of a pair of sockets; the worker has the other.
    """

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._line = line
        self._heard = bytearray()
        self._unsent = bytearray()
        self._took_s = 0.0
        self.has_ended = False
        """Whether the worker has closed its end; what it said before has been heard then."""

    def fileno(self) -> int:
        """Name the socket, for a selector."""
        return self._line.fileno()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message, at once as far as there is room; the rest goes with `send`."""
        if not self._unsent:
            self._took_s = time.monotonic()
        self._unsent += packed(message)
        self.send()

    def send(self) -> None:
        """Send of what waits as much as there is room for."""
        try:
            while self._unsent:
                del self._unsent[: self._line.send(self._unsent[:_AT_ONCE_BYTES])]
                self._took_s = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:  # it has ended, which its parent learns in another way
            self.drop()

    def drop(self) -> None:
        """Send no more of what waits."""
        self._unsent.clear()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits."""
        return bool(self._unsent)

    def waits_s(self) -> float:
        """Tell for how long the worker has taken nothing of what waits for it."""
        return time.monotonic() - self._took_s if self._unsent else 0.0

    def hear(self) -> list[dict[str, Any]]:
        """Return the messages that have come."""
        try:
            while data := self._line.recv(_AT_ONCE_BYTES):
                self._heard += data
            self.has_ended = True
        except BlockingIOError:
            pass
        except OSError:
            self.has_ended = True
        *lines, rest = self._heard.split(b"\n")
        self._heard = bytearray(rest)
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Hear no more."""
        self._line.close()
