"""Options that the ready-made middlewares refuse, and the extra that some of them need."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from toolbus.middlewares import Cache, Log, OutputLimit, RateLimit, Retry, TimeLimit


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: RateLimit(0, 1), ValueError, "calls must be at least 1"),
        (lambda: RateLimit(1, 0), ValueError, "per_s must be finite"),
        (lambda: RateLimit(1, 1e12), ValueError, "per_s must be from"),
        (lambda: RateLimit(1, 1, by="room"), ValueError, "by must be"),  # type: ignore[arg-type]
        (lambda: TimeLimit(float("nan")), ValueError, "seconds must be finite"),
        (lambda: TimeLimit("1"), TypeError, "must be seconds"),  # type: ignore[arg-type]
        (lambda: OutputLimit(), ValueError, "max_bytes, max_chunks or both"),
        (lambda: OutputLimit(True), TypeError, "whole number"),
        (lambda: OutputLimit(max_chunks=0), ValueError, "at least 1"),
        (lambda: Retry(0), ValueError, "attempts must be at least 1"),
        (lambda: Retry(backoff_s=-1), ValueError, "backoff_s must be finite"),
        (lambda: Cache(max_entries=0), ValueError, "max_entries must be at least 1"),
        (lambda: Cache(max_bytes=1.5), TypeError, "max_bytes must be a whole number"),  # type: ignore[arg-type]
        (lambda: Cache(tools=["t.a"]), TypeError, "tools must be a dict"),  # type: ignore[arg-type]
        (lambda: Cache(tools={"t.a": 0}), ValueError, "must be finite and > 0"),
        (lambda: Log(logging.getLogger("x")), TypeError, "name of a logger"),  # type: ignore[arg-type]
    ],
)
def test_bad_options_are_refused(make: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    ("module", "make"), [("throttled", lambda: RateLimit(1, 1)), ("cachetools", Cache)]
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: str, make: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{module}.*toolbus\[middlewares\]"):
        make()
