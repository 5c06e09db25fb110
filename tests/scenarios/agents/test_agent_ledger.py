"""`executed` of an agent's calls against a file of what ran, while all parts are killed in turn.

Who asks, the agents, the model server and the host of the tool are processes. They are killed at
points of a question that are drawn: before the model replies, within its reply, while the tool
runs, while the result is on its way, before and within the answer. `TOOLBUS_LEDGER_SEED` repeats
the decisions of a run.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from support.processes.agent_drill import drill_of
from support.processes.agent_parts import NAMES

SEED = os.environ.get("TOOLBUS_LEDGER_SEED")


async def all_end_well(folder: Path, questions: int) -> None:
    """Ask while parts are killed, then once in each conversation while none is."""
    seed = SEED or secrets.token_hex(4)
    print(f"ledger seed: {seed}")  # noqa: T201 - shown when the test fails, to repeat it
    async with drill_of(folder, seed) as drill:
        await drill.ask_all(questions)
        print(drill.summary())  # noqa: T201 - shown when the test fails
        await drill.ask_in_each_conversation()
        drill.check()
    assert all(drill.kills[name] for name in NAMES), drill.kills


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_each_question_ends_and_executed_is_true_while_all_parts_are_killed(
    tmp_path: Path,
) -> None:
    """ERR-4."""
    await all_end_well(tmp_path, 200)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
async def test_each_of_2000_questions_ends_and_executed_is_true(tmp_path: Path) -> None:
    await all_end_well(tmp_path, 2_000)
