"""A budget for what a server makes its host log, and for what the MCP SDK logs of all servers.

A server can cause a record with each message and each line that it writes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import mcp

__all__ = ["LogBudget", "limit_sdk_logs"]

_AT_ONCE = 50
"""Enough for the traceback of a program that ends."""
_EVERY_S = 1.0
"""Then one in this time: 8 MB of full lines a day at the worst."""
_SDK = str(Path(mcp.__file__).parent)


class LogBudget:
    """How many records of one origin are written.

    Args:
        at_once: How many pass at once.
        every_s: After how many seconds one more may pass.
        clock: Returns seconds.
    """

    def __init__(
        self,
        at_once: int = _AT_ONCE,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at_once = at_once
        self._every_s = every_s
        self._clock = clock
        self._left = float(at_once)
        self._left_at = clock()
        self._skipped = 0

    def passed(self, text: str) -> str | None:
        """Return the text, with the number of those before that were left out.

        None if it is to be left out itself.
        """
        now = self._clock()
        self._left = min(self._at_once, self._left + (now - self._left_at) / self._every_s)
        self._left_at = now
        if self._left < 1:
            self._skipped += 1
            return None
        self._left -= 1
        if self._skipped:
            text += f" ({self._skipped:,} more before this were left out)"
        self._skipped = 0
        return text

    def log(self, write: Callable[..., object], text: str, *args: object) -> None:
        """Log a record with a logger's method, if it is not to be left out."""
        skipped = self.passed("")
        if skipped is not None:
            write(f"{text}%s", *args, skipped)


class _SdkFilter(logging.Filter):
    """The budget of the SDK's records; what is logged to debug is not limited."""

    def __init__(self) -> None:
        super().__init__()
        self._budget = LogBudget()

    def filter(self, record: logging.LogRecord) -> bool:
        # By its file: one of the SDK's loggers is named "client", which others may use too.
        if record.levelno <= logging.DEBUG or not record.pathname.startswith(_SDK):
            return True
        text = self._budget.passed(record.getMessage())
        if text is None:
            return False
        record.msg = text
        record.args = ()
        return True


_FILTER = _SdkFilter()


def limit_sdk_logs() -> None:
    """Give all loggers of the SDK one budget."""
    for name in ("client", *logging.root.manager.loggerDict):
        if name == "client" or name.partition(".")[0] == "mcp":
            logging.getLogger(name).addFilter(_FILTER)  # noqa: TID251 - the SDK's own
