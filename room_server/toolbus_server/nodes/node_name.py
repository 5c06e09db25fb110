"""A node's claim on its name, where another node has it: a living one, or what is left of one.

A lease that is renewed is that of a living node; one that runs out is what a killed node left, and
is waited for. What is asked of Redis, and when, is `node`'s work.
"""

from __future__ import annotations

import asyncio
import logging
import re

from toolbus.errors import AlreadyExists

__all__ = ["NameClaim", "NameHeld", "NameTaken", "check_node_name"]

_logger = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_LOOK_S, _LATER_LOOK_S = 1.0, 3.0


class NameHeld(Exception):
    """Another node has this one's name, so there is no lease for this one yet.

    Args:
        other: Its name with its incarnation.
        left_ms: How long its lease lives if it is not renewed.
    """

    def __init__(self, other: str, left_ms: int) -> None:
        super().__init__(other)
        self.other = other
        self.left_ms = left_ms


class NameTaken(AlreadyExists):
    """Another node that is alive has this one's name."""

    next_step = "choose another name with --node (TOOLBUS_NODE), or stop the other server first"


def check_node_name(name: str) -> None:
    """Raise ValueError unless a node can be called this; "" leaves it to the node."""
    if name and not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} names no node: letters, digits, . _ and - do, at most 128 of them, "
            "and at both ends a letter or digit"
        )


class NameClaim:
    """What this node knows of another one that has its name.

    Args:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: NameHeld | None = None
        self._is_starting = True
        self._other_lives = False
        self._is_decided = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        self._patience_s = 0.0

    async def decided(self, patience_s: float) -> None:
        """Wait, once, until the name is this node's.

        Where another one has it, that takes as long as that one's lease.

        Raises:
            NameTaken: The other one lives.
            TimeoutError: Nothing was heard in time.
        """
        self._patience_s = patience_s
        try:
            async with asyncio.timeout(patience_s) as self._patience:
                await self._is_decided.wait()
        finally:
            self._is_starting = False
        if self._other_lives:
            raise NameTaken(f"another server is called {self._name}, and it is alive")

    def won(self) -> None:
        """Take note that the name is this node's."""
        self._held = None
        self._is_decided.set()

    def contest(self, held: NameHeld) -> float:
        """Take note that another node has the name, and return when to ask again, in seconds."""
        before, self._held = self._held, held
        left_ms = held.left_ms
        if not self._is_starting:
            if before is None or before.other != held.other:
                _logger.warning(
                    "another server is called %s: this one serves by itself until that one's lease "
                    "has ended",
                    self._name,
                )
            return min(_LATER_LOOK_S, _until_end(left_ms))
        if before is None:
            self._wait_for_end(left_ms)
        elif before.other != held.other or before.left_ms < left_ms:
            self._other_lives = True
            self._is_decided.set()
        return min(_LOOK_S, _until_end(left_ms))

    def _wait_for_end(self, left_ms: int) -> None:
        if self._patience is not None and not self._patience.expired():
            until_s = asyncio.get_running_loop().time() + _until_end(left_ms) + self._patience_s
            self._patience.reschedule(until_s)
        _logger.warning(
            "a server called %s was there a moment ago: this one starts when the other one's lease "
            "has ended, in at most %.1f s",
            self._name,
            _until_end(left_ms),
        )


def _until_end(left_ms: int) -> float:
    return max(left_ms, 0) / 1000 + 0.01
