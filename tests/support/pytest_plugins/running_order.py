"""The order in which tests begin, so that at the end no worker waits for another.

Workers take whole files, one after the other. The order depends on marks, counts and folders, and
on no measured time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["in_running_order"]

_LONG_BEGIN_WITHIN = 0.5
"""So that they do not all run at the same time, and the run waits for none."""


def in_running_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sort the files of tests; within a file the order stays.

    The files of each folder are spread over the run, so that at any time some workers wait for
    something and others compute. Those with a `long` test are spread over the first half, because
    the run would wait for one that begins last. Of two files of a folder the one with more tests
    comes first.
    """
    many = Counter(item.path for item in items)
    long = {item.path for item in items if item.get_closest_marker("long") is not None}
    groups: dict[str | Path, list[Path]] = {}
    for path in sorted(many, key=lambda path: (-many[path], path)):
        groups.setdefault("long" if path in long else path.parent, []).append(path)
    begins = {
        path: (_LONG_BEGIN_WITHIN if group == "long" else 1.0) * rank / len(paths)
        for group, paths in groups.items()
        for rank, path in enumerate(paths)
    }
    return sorted(items, key=lambda item: (begins[item.path], item.path not in long, item.path))
