"""In which order files of tests begin, so that at the end no worker waits for another.

Workers take whole files, one after the other. Knows marks and numbers, and nothing of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["in_running_order"]


def in_running_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sort tests by their files: those with a `long` one first, those with an `alone` one last.

    A long test that began last would be waited for; so would one that runs beside a test that
    waits to be alone. Of two files the one with more tests comes first; within a file those that
    run alone come last, and else nothing is moved.
    """
    many = Counter(item.path for item in items)
    long, alone = _files(items, "long"), _files(items, "alone")

    def place(item: pytest.Item) -> tuple[int, int, Path, bool]:
        stage = 2 if item.path in alone else 0 if item.path in long else 1
        return stage, -many[item.path], item.path, item.get_closest_marker("alone") is not None

    return sorted(items, key=place)


def _files(items: Sequence[pytest.Item], mark: str) -> set[Path]:
    return {item.path for item in items if item.get_closest_marker(mark) is not None}
