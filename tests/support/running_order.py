"""In which order tests begin, so that at the end no worker waits for another.

Workers take whole files, one after the other, and in the end those tests of them that run alone.
Knows marks, numbers and folders, and nothing of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["in_running_order"]

_LONG = "long"
_LONG_BEGIN_WITHIN = 0.5
"""Of all: that they do not all run at once, and none is waited for."""


def in_running_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sort tests: first those that run beside others, file by file, then those that run alone.

    Files of each folder are spread over the whole, so that at any time some workers wait for
    something and others compute; those with a `long` test over the first half, since one that began
    last would be waited for. Of two files of a folder the one with more tests comes first. Within
    what a file has on either side nothing is moved.
    """
    many = Counter(item.path for item in items)
    long = {item.path for item in items if _is_marked(item, _LONG)}
    crowds: dict[str | Path, list[Path]] = {}
    for path in sorted(many, key=lambda path: (-many[path], path)):
        crowds.setdefault(_LONG if path in long else path.parent, []).append(path)
    begins = {
        path: (_LONG_BEGIN_WITHIN if crowd == _LONG else 1.0) * rank / len(paths)
        for crowd, paths in crowds.items()
        for rank, path in enumerate(paths)
    }

    def place(item: pytest.Item) -> tuple[bool, float, bool, Path]:
        return _is_marked(item, "alone"), begins[item.path], item.path not in long, item.path

    return sorted(items, key=place)


def _is_marked(item: pytest.Item, mark: str) -> bool:
    return item.get_closest_marker(mark) is not None
