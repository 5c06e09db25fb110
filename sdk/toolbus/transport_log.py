"""The log that websockets writes to: what happened to a connection, and nothing of what travels."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

__all__ = ["TransportLog"]


class TransportLog(logging.LoggerAdapter[logging.Logger]):
    """A log for websockets that learns nothing of what travels.

    At DEBUG websockets writes every header and payload, tokens and arguments among them.
    """

    def isEnabledFor(self, level: int) -> bool:  # logging's own name
        """Say no to DEBUG, whatever the log is set to."""
        return level > logging.DEBUG and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Leave the connection out of the record: its request has the token."""
        kwargs.pop("extra", None)
        return msg, kwargs
