"""A loop that is blocked for long: the stacks of its process are printed while it is blocked."""

from __future__ import annotations

import faulthandler
import time
from pathlib import Path
from typing import Any

import pytest

from support.rooms.events import until
from toolbus.service.remote_toolkit import stack_dump


async def test_stack_of_what_blocks_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    with path.open("w") as stacks, stack_dump(limit_s=0.1, stacks=stacks):
        for _ in range(10_000):
            if "in test_stack_of" in path.read_text(encoding="utf-8"):
                break
            time.sleep(0.001)  # noqa: ASYNC251 - what is tested
    assert "Timeout (0:00:00.1" in path.read_text(encoding="utf-8")


async def test_loop_that_runs_postpones_the_printing(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []

    def begin(limit_s: float, **_: Any) -> None:
        begun.append(limit_s)

    monkeypatch.setattr(faulthandler, "dump_traceback_later", begin)
    with stack_dump(limit_s=0.01):
        await until(lambda: len(begun) > 2)
    assert set(begun) == {0.01}
