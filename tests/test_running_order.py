"""The order in which `make test` runs files: long ones begin early."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from support.pytest_plugins.running_order import in_running_order


@dataclass(frozen=True)
class Marked:
    """A test, as far as the order looks at it."""

    path: Path
    mark: str = ""

    def get_closest_marker(self, name: str) -> str | None:
        return self.mark if name == self.mark else None


def test_files_of_each_folder_and_long_ones_are_spread_over_the_run() -> None:
    counts = {"first/a": 2, "first/b": 1, "other/c": 2, "other/d": 1}
    tests = [Marked(Path(name)) for name, count in counts.items() for _ in range(count)]
    tests += [Marked(Path(f"other/{name}"), "long") for name in "efgh"]
    ordered = in_running_order(cast(list[pytest.Item], tests))
    assert [item.path.name for item in ordered] == [*"eaaccfghbd"]


def test_make_test_takes_files_in_the_order_that_is_chosen_here() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    assert "--dist loadfile --no-loadscope-reorder" in makefile
