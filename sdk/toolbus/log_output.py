"""Where the log of a command goes, from which level on, as text or as JSON.

Records go to stderr. A line of JSON is one record, whatever its message contains, and names the
trace and the call that it was logged in.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from toolbus.bounded_logging import traceback_text
from toolbus.telemetry.propagation import CALL_ID, current_trace_id
from toolbus.untrusted_text import json_text

__all__ = ["LEVELS", "LOG_FORMAT", "LogOutput", "chosen_output", "level_of", "show_info_of"]

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""The format of log lines."""
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
# Their INFO and DEBUG lines have addresses with queries, headers, or whole messages, and so
# credentials and arguments. A program that wants these lines sets the level of the logger itself.
_REVEALING = (
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "urllib3",
    "hpack",
    "websockets",
    "mcp",
    "sse_starlette",
    "uvicorn",
)
_chosen: LogOutput | None = None


def level_of(name: str) -> int:
    """Return the level of a name, in capitals or not. Raises ValueError, which names all.

    "warn" is one too: `logging` has both.
    """
    level = (LEVELS | {"warn": logging.WARNING}).get(name.strip().lower())
    if level is None:
        *others, last = LEVELS
        raise ValueError(f"{name[:64]!r} is not a level: write {', '.join(others)} or {last}")
    return level


@dataclass(frozen=True, slots=True)
class LogOutput:
    """What is logged, and how."""

    level: int | None = None
    """From which level on; None is WARNING, and INFO for the loggers of hosted toolkits."""
    as_json: bool = False

    def start(self, node: str = "") -> logging.Handler:
        """Log to stderr from now on; return the handler.

        Args:
            node: The name of the server, which each line names.
        """
        handler = _StderrHandler()
        label = f" [{node}]" if node else ""
        text = logging.Formatter(LOG_FORMAT.replace("%(name)s", f"%(name)s{label}"))
        handler.setFormatter(_JsonFormatter(node) if self.as_json else text)
        logging.root.addHandler(handler)
        logging.root.setLevel(self.level or logging.WARNING)
        for logger in _revealing_loggers():
            logger.setLevel(logging.WARNING)
        return handler

    @contextmanager
    def running(self) -> Iterator[None]:
        """Log to stderr for the block; `chosen_output` returns this."""
        global _chosen
        level_before = logging.root.level
        revealing = _revealing_loggers()
        handler = self.start()
        _chosen = self
        try:
            yield
        finally:
            _chosen = None
            logging.root.removeHandler(handler)
            logging.root.setLevel(level_before)
            for logger in revealing:
                logger.setLevel(logging.NOTSET)


def _revealing_loggers() -> list[logging.Logger]:
    """Return the loggers of `_REVEALING` whose level nobody has set."""
    loggers = map(logging.getLogger, _REVEALING)  # noqa: TID251 - not ours
    return [logger for logger in loggers if logger.level == logging.NOTSET]


def chosen_output() -> LogOutput | None:
    """Return what the options of the running command choose; None if they choose nothing."""
    return _chosen


def show_info_of(name: str) -> None:
    """Show the INFO lines of a logger too, unless an option or the toolkit itself chose a level."""
    logger = logging.getLogger(name)  # noqa: TID251 - a toolkit's own
    has_level = _chosen is not None and _chosen.level is not None
    if not has_level and logger.getEffectiveLevel() == logging.WARNING:
        logger.setLevel(logging.INFO)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at that moment: `toolbus watch` replaces it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        raise AttributeError("it is always stderr")


class _JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a record that cannot be formatted says so in its message."""
        try:
            message = record.getMessage()
        except Exception as error:
            place = f"{record.filename}:{record.lineno}"
            message = f"a record of {place} cannot be formatted: {type(error).__name__}"
        facts: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message[:16_000],  # of tools and libraries; ours are shorter
        }
        if self._node:
            facts["node"] = self._node
        if record.exc_text:  # made by a filter, which has removed what may not be shown
            facts["exception"] = record.exc_text
        elif record.exc_info and record.exc_info[1] is not None:
            facts["exception"] = traceback_text(record.exc_info[1])
        ids = {"trace_id": current_trace_id(), "call_id": CALL_ID.get()}
        return json_text(facts | {name: value for name, value in ids.items() if value})
