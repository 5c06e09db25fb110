"""Loggers whose records are safe to write: escaped, in one line, cut.

Names, messages and exceptions in a record may come from other participants. It is the record that
is changed, so that it is safe with every handler and formatter of `logging`. Records of other
libraries and of tools are left alone.
"""

from __future__ import annotations

import logging
import traceback

from toolbus.errors import ToolFailed
from toolbus.untrusted_text import one_line, printable

__all__ = ["bounded_logger", "silence", "traceback_text"]

_MAX_TRACEBACK_CHARS = 8_000
"""Texts in it may be of others, and formatting it takes time that grows with them."""
_MAX_RELATED = 16
"""Exceptions that are formatted with their frames: causes, contexts, members of a group."""


def bounded_logger(name: str) -> logging.Logger:
    """Return the logger of this name, and make what it logs safe.

    A message is one line of at most 2,000 characters. A traceback has at most 50 frames for each
    exception and 8,000 characters; its lines are indented, so that none can be taken for a record.
    """
    logger = logging.getLogger(name)  # noqa: TID251 - here it is made safe
    logger.addFilter(_make_safe)
    return logger


def silence(name: str) -> None:
    """Turn a library's logger off, unless the program has set its level itself."""
    logger = logging.getLogger(name)  # noqa: TID251 - not ours
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL + 1)


def _make_safe(record: logging.LogRecord) -> bool:
    try:
        text = record.getMessage()
    except Exception as error:  # an argument cannot be formatted
        text = f"{record.msg} (not formatted: {type(error).__name__})"
    record.msg, record.args = one_line(text, 2_000), ()
    if record.exc_info and record.exc_info[1] is not None:
        try:
            record.exc_text = traceback_text(record.exc_info[1])  # formatters use it as it is
        except Exception as error:  # its class is made so that it cannot be read
            record.exc_text = f"  (no traceback: {type(error).__name__})"
    return True


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an exception, escaped, indented and cut.

    With more than 16 causes, contexts and members of groups, or with long messages, only the
    frames of the exception itself are shown, and one line for each of the first 16.
    """
    related = _related(error)
    size = sum(
        len(part) for exception in related for part in (_message(exception), *_notes(exception))
    )
    if len(related) > _MAX_RELATED or size > _MAX_TRACEBACK_CHARS:
        text = _short_form(error, related)
    else:
        text = _full_form(error, related)
    half = _MAX_TRACEBACK_CHARS // 2
    if len(text) > _MAX_TRACEBACK_CHARS:
        text = f"{text[:half]}\n... cut ...\n{text[-half:]}"
    text = printable(text.rstrip("\n"), _MAX_TRACEBACK_CHARS)
    return "  " + text.replace("\n", "\n  ")


def _full_form(error: BaseException, related: list[BaseException]) -> str:
    try:
        shown = traceback.TracebackException.from_exception(error, limit=-50)
        _cut_logged(shown, error, _MAX_RELATED)
        return "".join(shown.format())
    except Exception:  # an attribute of the exception is not what Python expects there
        return _short_form(error, related)


def _cut_logged(shown: traceback.TracebackException, error: BaseException, left: int) -> None:
    """Leave out what a failed call in a chain was caused by: that was logged as it happened."""
    for link in ("__cause__", "__context__"):
        inner, shown_inner = getattr(error, link), getattr(shown, link)
        if inner is None or shown_inner is None or left == 0:
            continue
        if isinstance(inner, ToolFailed) and "cause" in inner.details:
            shown_inner.__cause__ = shown_inner.__context__ = None
        else:
            _cut_logged(shown_inner, inner, left - 1)


def _short_form(error: BaseException, related: list[BaseException]) -> str:
    frames = traceback.extract_tb(error.__traceback__, limit=-50).format()
    lines = [
        one_line(f"{type(exception).__qualname__}: {_message(exception)[:500]}", 500)
        for exception in related[:_MAX_RELATED]
    ]
    if len(related) > _MAX_RELATED:
        lines.append("further exceptions are not shown")
    return "".join(["Traceback (most recent call last):\n", *frames, "\n".join(lines)])


def _related(error: BaseException) -> list[BaseException]:
    """Return an exception, its causes and contexts and members; at most one more than are shown."""
    found: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending and len(found) <= _MAX_RELATED:
        exception = pending.pop(0)
        if exception is None or any(exception is known for known in found):
            continue
        found.append(exception)
        pending += [exception.__cause__, exception.__context__]
        if isinstance(exception, BaseExceptionGroup):
            pending += exception.exceptions[: _MAX_RELATED + 1]
    return found


def _message(error: BaseException) -> str:
    try:
        return str.__str__(str(error))  # the text may be of a subclass with methods of its own
    except KeyboardInterrupt:
        raise
    except BaseException:  # of its `__str__`, such as SystemExit
        return "<no message>"


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, list):
        return []
    return [note for note in notes if isinstance(note, str)]
