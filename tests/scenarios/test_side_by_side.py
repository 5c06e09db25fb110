"""Tests run side by side, but for those that measure time, and long ones begin early."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from support.alone import can_lock, door_of, on_the_floor
from support.inner_run import run_tests
from support.running_order import in_running_order

# What another worker could do: in the fixtures of a test, in the test, and when it is over.
LOOKING = """
import pytest

from support.alone import can_lock

@pytest.fixture
def root(request):
    def check():
        beside = request.node.get_closest_marker("alone") is None
        assert can_lock(root, alone=False) == beside
        assert not can_lock(root, alone=True)

    root = request.config.rootpath
    check()
    yield root
    check()
"""
TOGETHER = """
def test_together(root):
    assert can_lock(root, alone=False)
    assert not can_lock(root, alone=True)
"""
ALONE = """
@pytest.mark.alone
def test_alone(root):
    assert not can_lock(root, alone=False)
"""


def test_one_that_is_marked_runs_alone_and_all_others_together(tmp_path: Path) -> None:
    code, said = run_tests(tmp_path, LOOKING + TOGETHER + ALONE, "-n2")
    assert code == 0, said
    assert "2 passed" in said
    assert can_lock(tmp_path, alone=True)


LONG = "import pytest\n@pytest.mark.long\ndef test_long(): pass"
FILES = {
    "test_a.py": ALONE + TOGETHER + "def test_more(): pass",
    "test_b.py": ALONE,
    "test_c.py": TOGETHER,
    "test_d.py": LONG,
    "test_e.py": TOGETHER + "def test_more(): pass",
}


def test_long_ones_begin_early_and_those_that_run_alone_come_last(tmp_path: Path) -> None:
    """As the one worker gets them that there is here: it takes stretches in their order."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(LOOKING + text, encoding="utf-8")
    options = ("-n1", "--dist", "loadfile", "--no-loadscope-reorder", "-vv")
    code, said = run_tests(tmp_path, "", *options)
    assert code == 0, said
    assert re.findall(r"PASSED test_(\w)\.py::test_(\w+)", said) == [
        ("d", "long"),
        ("a", "together"),
        ("a", "more"),
        ("e", "together"),
        ("e", "more"),
        ("c", "together"),
        ("a", "alone"),
        ("b", "alone"),
    ]


@dataclass(frozen=True)
class Marked:
    """What the order knows of a test."""

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
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    assert "--dist loadfile --no-loadscope-reorder" in makefile


async def test_nobody_enters_before_one_who_waits_to_be_alone(tmp_path: Path) -> None:
    door = door_of(tmp_path)
    door.touch()
    came: list[str] = []

    def enter(name: str, alone: bool) -> None:
        with on_the_floor(tmp_path, alone=alone):
            came.append(name)

    with on_the_floor(tmp_path, alone=False):
        assert can_lock(door, alone=True)
        first = asyncio.create_task(asyncio.to_thread(enter, "first", True))
        async with asyncio.timeout(20):
            while can_lock(door, alone=True):  # noqa: ASYNC110 - a lock has no event
                await asyncio.sleep(0.01)
        later = asyncio.create_task(asyncio.to_thread(enter, "later", False))
        assert came == []
    async with asyncio.timeout(20):
        await asyncio.gather(first, later)
    assert came == ["first", "later"]
