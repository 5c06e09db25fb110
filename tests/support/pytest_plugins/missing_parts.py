"""Parts that a machine may lack: a test that needs one is skipped, and the end of the run lists it.

In CI such a test fails, unless CI is not promised to have the part. `tests/conftest.py` prints the
list, and writes the tests into a file that pytest reads as arguments.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NoReturn

import pytest

__all__ = ["not_verified", "tests_not_verified"]

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


def tests_not_verified(reports: Iterable[pytest.TestReport]) -> dict[str, str]:
    """Return the ids of tests that `not_verified` skipped, each with its text."""
    texts = {
        report.nodeid: report.longrepr[2]
        for report in reports
        if isinstance(report.longrepr, tuple)
    }
    return {test: text[text.index(_PREFIX) :] for test, text in texts.items() if _PREFIX in text}
