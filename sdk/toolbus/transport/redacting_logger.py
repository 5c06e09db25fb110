"""The logger for websockets: it logs connection events without their content."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

__all__ = ["RedactingLogger"]


class RedactingLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger for websockets that never logs content.

    At DEBUG websockets logs every header and payload, including tokens and arguments.

    Args:
        name: The name of the logger.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))  # noqa: TID251 - websockets writes to it

    def isEnabledFor(self, level: int) -> bool:  # logging's own name
        """Refuse DEBUG at any level of the logger."""
        return level > logging.DEBUG and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Remove the connection from the record: its request contains the token."""
        kwargs.pop("extra", None)
        return msg, kwargs
