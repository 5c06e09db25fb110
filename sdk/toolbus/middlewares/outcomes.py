"""What the ready-made middlewares share: how a call ended, their own errors, and their checks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from math import isfinite
from reprlib import Repr
from typing import Any, TypeVar, cast

from toolbus.chunks.chunk_types import Chunk
from toolbus.chunks.json_values import shown
from toolbus.errors import Executed, RoomException
from toolbus.tools.context import run_of
from toolbus.tools.middleware import ToolCall
from toolbus.tools.toolkit import failure_of
from toolbus.untrusted_text import SHOWN_CHARS, json_text

__all__ = [
    "checked_count",
    "checked_seconds",
    "closing",
    "extra_named",
    "failure_seen",
    "outcome_of",
    "own_error",
    "quoted",
    "shortened",
]

E = TypeVar("E", bound=RoomException)


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxdict = _SHORT.maxlist = 10


def outcome_of(call: ToolCall, error: BaseException | None) -> tuple[str, Executed]:
    """Return how a call ended, and `executed`, by the exception that passed through, if any.

    It is "ok", the code of an error, "cancelled", or "closed" if an outer middleware left early.
    """
    executed = run_of(call.context).executed
    if error is None:
        return "ok", executed
    if isinstance(error, Exception):
        failure = failure_seen(call, error)
        return failure.code, failure.executed
    if isinstance(error, GeneratorExit):
        return "closed", executed
    return "cancelled", executed


def failure_seen(call: ToolCall, error: Exception) -> RoomException:
    """Return the error that the caller of a call gets for an exception of `next`."""
    run = run_of(call.context)
    # Only a function that was entered can have raised it; other errors are those of the call.
    if isinstance(error, RoomException) and not run.entered:
        return error
    return failure_of(error, run)


def own_error(call: ToolCall, error: E, *, began: bool) -> E:
    """Give a middleware's own error its `executed`, and return it to be raised."""
    run = run_of(call.context)
    error.executed = run.executed if began or run.entered else "no"
    if error.executed != "no":
        error.retryable = False
    return run.record(error)


def quoted(text: str) -> str:
    """Quote a text as JSON, so that nothing in it can look like another field of a log's line."""
    return json_text(text[:SHOWN_CHARS])


def shortened(values: Mapping[str, Any]) -> str:
    """Quote values for a line of a log, without most of what is long or nested in them."""
    return json_text(_SHORT.repr(dict(values)))


def closing(chunks: AsyncIterator[Chunk]) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
    """Close what `next` returned at the end of the block."""
    return cast("AbstractAsyncContextManager[AsyncIterator[Chunk]]", aclosing(cast(Any, chunks)))


def checked_count(label: str, value: Any, *, least: int = 1) -> int:
    """Return a whole number; raise `TypeError` or `ValueError` for any other value."""
    if type(value) is not int:
        raise TypeError(f"{label} must be a whole number, not {shown(value)}")
    if value < least:
        raise ValueError(f"{label} must be at least {least}, not {value}")
    return value


def checked_seconds(label: str, value: Any, *, zero: bool = False) -> float:
    """Return seconds above 0, or 0 if `zero`; raise `TypeError` or `ValueError` for others."""
    if type(value) not in (int, float):
        raise TypeError(f"{label} must be seconds, not {shown(value)}")
    if not isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{label} must be finite and {'>=' if zero else '>'} 0, not {value}")
    return float(value)


@contextmanager
def extra_named(middleware: str) -> Iterator[None]:
    """Name the extra in the error about a package that the block cannot import.

    Raises:
        ModuleNotFoundError: A package is missing; `name` is that of its module.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        text = f"{middleware} needs {error.name}, which is not installed"
        raise ModuleNotFoundError(
            f"{text}: pip install 'toolbus[middlewares]'", name=error.name
        ) from None
