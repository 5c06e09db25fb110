"""Parts that a machine may lack: a test that needs one is skipped, and the end of the run lists it.

In CI such a test fails, unless CI is not promised to have the part. `tests/conftest.py` prints the
list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NoReturn

import pytest

__all__ = ["messages_of_missing", "not_verified"]

_PREFIX = "NOT VERIFIED: "


def not_verified(name: str, why: str, *, ci_has_it: bool = True) -> NoReturn:
    """Skip the test because a part is missing; the end of the run lists it.

    Args:
        name: What is not verified now.
        why: What is missing.
        ci_has_it: Whether CI must have it, so that there the test fails.
    """
    text = f"{_PREFIX}{name} ({why})"
    if ci_has_it and os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{text}: CI must have it", pytrace=False)
    pytest.skip(text)


def messages_of_missing(reports: Iterable[object]) -> list[str]:
    """Return the texts of `not_verified` among the reports of skipped tests, each once."""
    output = [longrepr[2] for longrepr in map(_longrepr, reports) if longrepr is not None]
    found = (text[text.index(_PREFIX) :] for text in output if _PREFIX in text)
    return list(dict.fromkeys(found))


def _longrepr(report: object) -> tuple[str, int, str] | None:
    longrepr = getattr(report, "longrepr", None)
    return longrepr if isinstance(longrepr, tuple) else None
