"""The tutorial works although each of its services is killed, and started again, at each step."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.documents.pages import examples, pages
from support.documents.reader import Reader, is_service
from support.documents.snippets import Step, steps_of
from support.documents.terminals import Terminals

TUTORIAL = next(page for page in pages() if page.name == "docs/tutorial.md")
MAX_TRIES = 100
"""Each of them takes about half a second."""


def is_call(step: Step) -> bool:
    return step.command.startswith("toolbus call")


def wait_until_all_is_hosted(terminals: Terminals, steps: list[Step]) -> None:
    """Type what lists the toolkits until it prints the same as before."""
    for step in steps:
        if step.command.startswith("toolbus tools"):
            assert any(terminals.prints(step) for _ in range(MAX_TRIES)), step.command


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_each_step_of_the_tutorial_works_after_the_loss_of_each_service(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """A call does not wait for the service to be back: it is typed at once."""
    blocks = [block for block in TUTORIAL.of("console") if "pip install" not in block.text]
    call: list[Step] = []
    steps: list[Step] = []
    for name, program in examples().items():
        (tmp_path / name).write_text(program, encoding="utf-8")
    with Terminals(tmp_path, variables) as terminals:
        reader = Reader(terminals)
        for block in blocks:
            wait_until_all_is_hosted(terminals, steps_of(block))
            reader.type(block)
            steps = [step for step in steps_of(block) if not is_service(step.command)] or steps
            call = call or [step for step in steps if is_call(step)]
            for service in list(terminals.services):
                reader.restart(service)
                terminals.type(call)
            wait_until_all_is_hosted(terminals, steps)
            terminals.type(steps)
        terminals.end_all()
