"""Whose turn it is to be told the news of a room, and what of it is packed already.

When much happens at once, all subscribers have much to be told at the same moment. They are told in
turns, for a millisecond of each turn of the loop, so that no call waits for all of that. Knows
nothing of what is told, and to whom.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from time import perf_counter
from typing import Any

from msgspec import Raw
from msgspec.msgpack import Encoder

__all__ = ["TURN_S", "Rounds"]

TURN_S = 0.001
"""For how long all subscribers of a server are told things within one turn of its loop."""
_MAX_KEPT_BYTES = 4 * 1024 * 1024
_AROUND_BYTES = 256  # what keeps a small packing is larger than it
_pack = Encoder().encode


class Rounds:
    """Lets all subscribers of one server be told things in turns.

    Args:
        loop: Gives the turns.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[Iterator[None]] = deque()
        self._packed: dict[Hashable, dict[Hashable, Raw]] = {}
        self._kept_bytes = 0

    def add(self, telling: Iterator[None]) -> None:
        """Let a subscriber be told what is due, one thing with each step of `telling`.

        It must not raise: the others would wait for ever.
        """
        self._due.append(telling)
        if len(self._due) == 1:
            self._loop.call_soon(self._turn)

    def packed(self, of: Hashable, kind: Hashable, tell: Callable[[], dict[str, Any]]) -> Raw:
        """Give what is told of something, packed once for all who are told the same.

        Args:
            of: What it is told of; when that changes, `forget` it.
            kind: Tells apart what different subscribers are told of it.
            tell: Makes what is told, where it is not packed yet.
        """
        found = self._packed.get(of, {}).get(kind)
        return self._keep(of, kind, _pack(tell())) if found is None else found

    def forget(self, of: Hashable) -> None:
        """Learn that something is not what it was."""
        self._packed.pop(of, None)

    def _keep(self, of: Hashable, kind: Hashable, packed: bytes) -> Raw:
        self._kept_bytes += len(packed) + _AROUND_BYTES
        if self._kept_bytes > _MAX_KEPT_BYTES:
            self._packed.clear()
            self._kept_bytes = 0
        found = self._packed.setdefault(of, {})[kind] = Raw(packed)
        return found

    def _turn(self) -> None:
        """Let them be told for a while; who is not through goes on behind the others."""
        ends_at = perf_counter() + TURN_S  # the loop's clock may stand still within a turn
        while self._due:
            for _ in self._due[0]:
                if perf_counter() >= ends_at:
                    self._due.rotate(-1)
                    self._loop.call_soon(self._turn)
                    return
            self._due.popleft()
        self._packed.clear()
        self._kept_bytes = 0
