"""A node's claim on its name, while another node holds it: a live node, or one that ended.

A lease that is renewed belongs to a live node. A lease that only runs down belongs to a node that
was killed, and its expiry is awaited. The requests to Redis are made by `node`.
"""

from __future__ import annotations

import asyncio
import re

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import AlreadyExists

__all__ = ["NameClaim", "NameHeld", "NameTaken", "check_node_name"]

_logger = bounded_logger(__name__)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_RETRY_AT_START_S, _RETRY_S = 1.0, 3.0


class NameHeld(Exception):
    """Another node holds this one's name, so this one gets no lease yet.

    Args:
        other: Its name with its incarnation.
        left_ms: Milliseconds until its lease expires, if it is not renewed.
    """

    def __init__(self, other: str, left_ms: int) -> None:
        super().__init__(other)
        self.other = other
        self.left_ms = left_ms


class NameTaken(AlreadyExists):
    """Another node that is alive has this one's name."""

    next_step = "choose another name with --node (TOOLBUS_NODE), or stop the other server first"


def check_node_name(name: str) -> None:
    """Raise ValueError for an invalid name; "" is valid and lets the node choose one."""
    if name and not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid node name: use at most 128 letters, digits, . _ and -, with "
            "a letter or digit at both ends"
        )


class NameClaim:
    """What this node knows about another node that holds its name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: NameHeld | None = None
        self._is_starting = True
        self._other_is_alive = False
        self._is_decided = asyncio.Event()
        self._timeout: asyncio.Timeout | None = None
        self._timeout_s = 0.0

    async def wait_until_decided(self, timeout_s: float) -> None:
        """Wait, once, until the name belongs to this node.

        If another node holds it, that takes until the other lease has expired.

        Raises:
            NameTaken: The other node is alive.
            TimeoutError: Redis did not answer in time.
        """
        self._timeout_s = timeout_s
        try:
            async with asyncio.timeout(timeout_s) as self._timeout:
                await self._is_decided.wait()
        finally:
            self._is_starting = False
        if self._other_is_alive:
            raise NameTaken(f"another live server has the node name {self._name}")

    def granted(self) -> None:
        """Record that the name belongs to this node."""
        self._held = None
        self._is_decided.set()

    def refused(self, held: NameHeld) -> float:
        """Record that another node holds the name; return the seconds until the next attempt."""
        before, self._held = self._held, held
        left_ms = held.left_ms
        if not self._is_starting:
            if before is None or before.other != held.other:
                _logger.warning(
                    "another server has the node name %s: this server works without the cluster "
                    "until the other lease has expired",
                    self._name,
                )
            return min(_RETRY_S, _seconds_until_expiry(left_ms))
        if before is None:
            self._wait_for_expiry(left_ms)
        elif before.other != held.other or before.left_ms < left_ms:
            self._other_is_alive = True
            self._is_decided.set()
        return min(_RETRY_AT_START_S, _seconds_until_expiry(left_ms))

    def _wait_for_expiry(self, left_ms: int) -> None:
        if self._timeout is not None and not self._timeout.expired():
            expiry = asyncio.get_running_loop().time() + _seconds_until_expiry(left_ms)
            self._timeout.reschedule(expiry + self._timeout_s)
        _logger.warning(
            "the lease of a node %s has not expired: this node starts after it has, in at most "
            "%.1f s, unless that node is alive",
            self._name,
            _seconds_until_expiry(left_ms),
        )


def _seconds_until_expiry(left_ms: int) -> float:
    return max(left_ms, 0) / 1000 + 0.01
