"""Tests run side by side in two processes, but for those that measure time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.alone import can_lock, door_of, on_the_floor
from support.inner_run import run_tests

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
