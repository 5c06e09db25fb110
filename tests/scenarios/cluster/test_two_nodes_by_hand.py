"""The commands of docs/guides/many-nodes.md for two nodes print the output that the page shows."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.documents.snippets import Step, blocks_of, steps_of
from support.documents.terminals import Service, Terminals
from support.pytest_plugins.missing_parts import not_verified
from support.redis.server import free_port, redis_program

GUIDE = Path(__file__).parents[3] / "docs/guides/many-nodes.md"
SECTION = (
    GUIDE.read_text(encoding="utf-8").partition("\n## Two nodes by hand\n")[2].partition("\n## ")[0]
)
REDIS, EAST, WEST, HOST, LOOKS = (steps_of(block) for block in blocks_of(SECTION))
READY = re.compile(r"[Rr]eady to accept connections")


class Person:
    """A reader who types the blocks, with free ports instead of the document's."""

    def __init__(self, terminals: Terminals) -> None:
        self._terminals = terminals
        self._ports = {port: str(free_port()) for port in ("6380", "7717", "7718")}

    def start(self, steps: Sequence[Step], program: str = "") -> Service:
        """Type the one command of a block, which keeps running."""
        [step] = map(self._elsewhere, steps)
        command = step.command
        if program:
            command = f"{program} {command.partition(' ')[2]}"
        return self._terminals.start(command, step.prints)

    def type(self, steps: Sequence[Step]) -> None:
        """Type a block."""
        self._terminals.type([self._elsewhere(step) for step in steps])

    def _elsewhere(self, step: Step) -> Step:
        text = "\n".join((step.command, *step.prints))
        shown = re.compile(rf"\b({'|'.join(self._ports)})\b")
        command, *prints = shown.sub(lambda port: self._ports[port[1]], text).split("\n")
        return Step(command, tuple(prints))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_nodes_are_one_bus_as_the_document_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = redis_program()
    if program is None:
        not_verified("two nodes by hand", "there is no redis-server")
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert REDIS[0].command.startswith("redis-server ")
    with Terminals(tmp_path, os.environ) as terminals:
        person = Person(terminals)
        person.start(REDIS, program).wait_for(READY)
        for node in (EAST, WEST):
            person.start(node).wait_for(re.compile(r"listening on ws://"))
        person.start(HOST).wait_for(re.compile(r"hosting clock"))
        person.type(LOOKS)
        terminals.end_all()
