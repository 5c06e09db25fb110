"""A budget for what the MCP SDK logs: a server can make it log with each message that it sends."""

from __future__ import annotations

import logging
from collections import Counter

__all__ = ["LogBudget", "limit_sdk_logs"]

_LOGGERS = ("mcp.client.streamable_http", "mcp.client.sse")
_FREE = 5


class LogBudget(logging.Filter):
    """Of the records of one place in the code five pass, then the 10th, the 100th and so on."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[int, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record passes; one below a warning always does."""
        key = (record.lineno, record.name)  # a place in the code: the SDK's texts hold values
        self._counts[key] += 1
        count = self._counts[key]
        if count <= _FREE or str(count).strip("0") == "1":
            return True
        return record.levelno < logging.WARNING


def limit_sdk_logs() -> None:
    """Give the loggers of the SDK's transports a budget, once."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)  # noqa: TID251 - the SDK's own
        if not any(isinstance(each, LogBudget) for each in logger.filters):
            logger.addFilter(LogBudget())
