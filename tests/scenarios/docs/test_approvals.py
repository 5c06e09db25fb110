"""What the guide to approvals shows in three terminals is what happens."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

from support.documents.pages import examples, pages
from support.documents.reader import Reader
from support.documents.snippets import Step, steps_of
from support.documents.terminals import Service, Terminals
from support.patience import PATIENCE_S

GUIDE = next(page for page in pages() if page.name == "docs/guides/approvals.md")
NOTE = f"checked by tests/scenarios/docs/{Path(__file__).name}"
SHORT_ID = re.compile(r"\b[0-9a-f]{8}\b")


def test_steps_of_the_guide_work(tmp_path: Path, variables: dict[str, str]) -> None:
    for name, program in examples().items():
        (tmp_path / name).write_text(program, encoding="utf-8")
    with Terminals(tmp_path, variables) as terminals:
        reader = Reader(terminals)
        reader.start(Step("toolbus serve --dev", ()))
        ids: dict[str, str] = {}
        waiting: list[Service] = []
        for block in GUIDE.blocks:
            if block.note != NOTE:
                continue
            if block.language == "text":
                waiting[-1].shows(block.lines)
                continue
            for step in steps_of(block):
                if "--granted" in step.command or "take-back" in step.command:
                    ids |= granted(step, terminals)
                if step.command.startswith(("toolbus host", "python")):
                    reader.start(step)
                elif step.prints and step.prints[0].startswith("waiting"):
                    waiting.append(terminals.start(step.command, step.prints))
                    waiting[-1].shows(step.prints[:1])
                else:
                    ids |= {short: first(terminals) for short in new_ids(step, ids)}
                    terminals.type([typed(step, ids)])
        for call in waiting:
            call.shows(call.prints)
            call.printed_until_end(PATIENCE_S)


def new_ids(step: Step, ids: dict[str, str]) -> set[str]:
    return set(SHORT_ID.findall(step.command)) - ids.keys()


def typed(step: Step, ids: dict[str, str]) -> Step:
    """Return a step with the ids of this run in place of those that the guide shows."""
    return replace(step, command=SHORT_ID.sub(lambda shown: ids[shown[0]], step.command))


def first(terminals: Terminals, listing: str = "--once") -> str:
    listed = subprocess.run(
        ["toolbus", "approvals", listing, "--json"],
        cwd=terminals.folder,
        env=terminals.variables,
        capture_output=True,
        check=True,
    )
    return str(json.loads(listed.stdout)[0]["id"])


def granted(step: Step, terminals: Terminals) -> dict[str, str]:
    return {short: first(terminals, "--granted") for short in SHORT_ID.findall(step.command)}
