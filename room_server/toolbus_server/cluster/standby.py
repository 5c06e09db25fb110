"""The time in which a node stands by, because live nodes have another exchange version.

Two such releases would misread each other in Redis and in the inbox. So a node that comes second
gets no lease. It is not ready, changes nothing in Redis, and tries again until the others have
ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toolbus.bounded_logging import bounded_logger
from toolbus_server.cluster.exchange import EXCHANGE_VERSION
from toolbus_server.cluster.lease import ExchangeDiffers

__all__ = ["RETRY_S", "STANDBY_TEXT", "Standby"]

_logger = bounded_logger(__name__)
RETRY_S = 1.0
"""Seconds between two attempts to join: as long may pass, after the others have ended, unserved."""
STANDBY_TEXT = "not ready: nodes of another release run, and this one joins when they have ended\n"
"""The answer of a node that stands by to a readiness probe."""


class Standby:
    """Whether a node stands by."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._expiry: asyncio.TimerHandle | None = None
        self.is_active = False
        """Whether live nodes have another exchange version."""
        self.on_change: Callable[[bool], None] = lambda _: None
        """Called when `is_active` changes. Must not raise."""

    def begin(self, found: ExchangeDiffers, valid_s: float) -> None:
        """Record what Redis says about the other nodes; the first time is logged.

        After `valid_s` seconds without Redis it is void: nobody knows whether they still live.
        """
        if not self.is_active:
            _logger.warning(
                "node %s is not ready: it has exchange version %d, and the live node %s has %s. It "
                "joins when all nodes of that release have ended: stop them, or give this server "
                "another Redis",
                self._name,
                EXCHANGE_VERSION,
                found.other,
                f"version {found.version}" if found.version else "none, as older releases",
            )
        self._set(True)
        self._expiry = asyncio.get_running_loop().call_later(valid_s, self._set, False)

    def joined(self) -> None:
        """Record that this node has joined; the end of a standby is logged."""
        if self.is_active:
            _logger.warning("node %s joins: the nodes of the other release have ended", self._name)
        self.end()

    def end(self) -> None:
        """Stand by no longer. Idempotent."""
        self._set(False)

    def _set(self, is_active: bool) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if is_active != self.is_active:
            self.is_active = is_active
            self.on_change(is_active)
