"""What the loggers of the SDK and of the server write about text and exceptions of others."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable

import pytest

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import ToolFailed

FORGED = "2026-01-01 00:00:00,000 INFO toolbus: forged \x1b[2J\x9b\u202e"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Odd(SyntaxError):
    lineno = "seven"  # type: ignore[assignment]


def with_notes(*notes: object) -> Exception:
    error = ValueError("a")
    error.__notes__ = list(notes)  # type: ignore[arg-type]
    return error


def chain(length: int) -> Exception:
    error: Exception = ValueError("first")
    for number in range(length):
        outer = ValueError(f"outer {number}")
        outer.__cause__ = error
        error = outer
    return error


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    else:
        raise ValueError("deep")


def raised(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def logged(work: Callable[[], None]) -> str:
    """Return what a handler writes when this fails."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = bounded_logger("toolbus.test_bounded_logging")
    logger.addHandler(handler)
    try:
        work()
    except Exception as error:
        logger.exception("tool %s raised %s", FORGED, error)
    finally:
        logger.removeHandler(handler)
    return written.getvalue()


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (raised(ValueError("plain")), "  ValueError: plain\n"),
        (raised(ValueError(f"a\n{FORGED}")), "  ValueError: a\n"),
        (raised(ValueError(f"\n{FORGED}" * 100_000)), "ValueError: \\n2026"),
        (raised(ExceptionGroup("many", [ValueError(FORGED)] * 10_000)), "many (10000 sub-"),
        (raised(ExceptionGroup("few", [ValueError("x"), KeyError("y")])), "  | KeyError: 'y'\n"),
        (raised(ExceptionGroup("long", [ValueError(FORGED * 10_000)])), "ExceptionGroup: long"),
        (raised(chain(10_000)), "further exceptions are not shown"),
        (raised(chain(2)), "direct cause of the following exception"),
        (raised(with_notes("\n" * 1_000_000)), "ValueError: a"),
        (raised(with_notes(FORGED, 7)), "forged \\x1b[2J\\x9b\\u202e\n"),
        (lambda: deep(sys.getrecursionlimit() // 2), "  ValueError: deep\n"),
        (raised(Unprintable()), "Unprintable"),
        (raised(Odd("x")), "Odd: x"),
    ],
)
def test_an_exception_is_logged_escaped_indented_and_cut(
    work: Callable[[], None], expected: str
) -> None:
    text = logged(work)
    first, *lines = text.splitlines()
    assert first.startswith("ERROR tool ")
    assert "work" in text or "deep" in text
    assert expected in text
    assert all(line.startswith("  ") and line.isprintable() for line in lines)
    assert first.isprintable()
    assert len(text) < 12_000


def test_what_a_failed_call_was_caused_by_is_not_logged_again() -> None:
    def work() -> None:
        failed = ToolFailed("the tool raised ValueError", details={"cause": "ValueError"})
        failed.__cause__ = ValueError("logged before")
        try:
            raise failed
        finally:
            raise LookupError("outer")

    text = logged(work)
    assert "LookupError: outer" in text
    assert "ToolFailed: the tool raised ValueError" in text
    assert "logged before" not in text


@pytest.mark.parametrize("message", ["%s", "%d"])
def test_a_message_is_one_line_and_cut(message: str) -> None:
    def work() -> None:
        bounded_logger("toolbus.test_bounded_logging").warning(message, FORGED * 100_000)

    line = logged(work)
    assert line.removesuffix("\n").isprintable()
    assert len(line) < 2_100


def test_an_exception_that_cannot_be_read_stops_no_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(ExceptionGroup[Exception]):
        exceptions = None  # type: ignore[assignment]

    bounded_logger("odd").error("it failed", exc_info=Odd("a", [ValueError("b")]))
    assert "it failed" in caplog.text
    assert "(no traceback: TypeError)" in caplog.text
