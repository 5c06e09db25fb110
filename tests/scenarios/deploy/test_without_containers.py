"""The commands of docs/guides/deploy.md without Docker print the output that the page shows.

The private key is removed before anything starts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.documents.snippets import Block, Step, blocks_of, steps_of
from support.documents.terminals import Service, Terminals

GUIDE = Path(__file__).parents[3] / "docs/guides/deploy.md"
SECTION = (
    GUIDE.read_text(encoding="utf-8").partition("\n## Without Docker\n")[2].partition("\n## ")[0]
)
BEFORE, *BLOCKS = blocks_of(SECTION)
SERVICES = re.compile(r"(?:\w+=\S+ )*toolbus (?:trace|serve|host)\b")
TRACES = "http://127.0.0.1:4318"
SERVER = re.compile(r"listening on (ws://\S+)")
RECEIVER = re.compile(r"OTEL_EXPORTER_OTLP_ENDPOINT=(\S+)")


class Newcomer:
    """A reader who types the blocks, one after the other, each in its own terminal."""

    def __init__(self, terminals: Terminals) -> None:
        self._terminals = terminals
        self.services: list[Service] = []

    def prepare(self) -> None:
        """Do what every terminal begins with, except the virtual environment, which is active."""
        activate, folder, variables = (step.command for step in steps_of(BEFORE))
        assert activate == ". .venv/bin/activate"
        assert folder.endswith("cd ~/try-toolbus && umask 077")
        received = dict(pair.split("=", 1) for pair in variables.removeprefix("export ").split())
        assert received.pop("OTEL_EXPORTER_OTLP_ENDPOINT") == TRACES
        self._terminals.variables |= received

    def type(self, block: Block) -> None:
        """Type a block; a service at its end keeps running."""
        *first, last = steps_of(block)
        if not SERVICES.match(last.command):
            first.append(last)
        if first:
            self._terminals.type(first)
        if last not in first:
            self._start(last)

    def _start(self, step: Step) -> None:
        variables = self._terminals.variables
        if "toolbus host" in step.command:
            service = self._terminals.start(step.command, step.prints)
            service.shows(step.prints)
        else:
            # On a port that is free here; later blocks are changed accordingly.
            service = self._terminals.start(f"{step.command} --port 0", step.prints)
            if "toolbus trace" in step.command:
                found = service.wait_for(RECEIVER)
                variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = found[1]
            else:
                variables["TOOLBUS_URL"] = service.wait_for(SERVER)[1]
        self.services.append(service)


@contextmanager
def newcomer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Newcomer]:
    monkeypatch.setenv("TOOLBUS_HOME", str(folder / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with Terminals(folder, os.environ) as terminals:
        yield Newcomer(terminals)
        terminals.end_all()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_newcomer_without_docker_gets_three_services_and_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_mask, keys = os.umask(0o077), tmp_path / "keys.toml"
    try:
        with newcomer(tmp_path, monkeypatch) as person:
            person.prepare()
            for block in BLOCKS:
                person.type(block)
                if "key create" in block.text:
                    assert keys.stat().st_mode & 0o077 == 0
                    keys.unlink()  # nothing that runs needs it
            trace, *others = person.services
            assert len(others) == 4
            for name in ("clock.now", "sql.query"):
                trace.wait_for(re.compile(rf"execute_tool {name.partition('.')[2]} "))
                trace.wait_for(re.compile(rf"trace .* 4 spans\n +{name} +CLIENT"))
    finally:
        os.umask(old_mask)
