"""A loop that is blocked for long: the stacks of its process are printed while it is blocked."""

from __future__ import annotations

import time
from pathlib import Path

from toolbus.service.stack_dump import StackDump


async def test_stack_of_what_blocks_is_printed_and_none_of_a_loop_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    with path.open("w") as stacks:
        with StackDump(limit_s=1000, stacks=stacks) as dump:
            dump._postpone()
        assert path.read_text(encoding="utf-8") == ""
        with StackDump(limit_s=0.1, stacks=stacks):
            for _ in range(10_000):
                if "in test_stack_of" in path.read_text(encoding="utf-8"):
                    break
                time.sleep(0.001)  # noqa: ASYNC251 - what is tested
    assert "Timeout (0:00:00.1" in path.read_text(encoding="utf-8")
