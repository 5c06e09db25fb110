"""`toolbus builders`, against a separate server and agent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from subprocess import PIPE, Popen

import pytest

from support.processes.command_line import CommandLine

AGENT = '''
import asyncio
from pydantic import Field
from toolbus.turns.builders import builder_infos
from toolbus import RoomClient, Toolkit, ToolkitBuilder, ToolkitConfig

class ShopConfig(ToolkitConfig):
    """A shop of one region,
    \x1b[31mred\x1b[0m."""
    region: str = Field(description="Where it is.")
    limit: int = 3

class Shop(ToolkitBuilder[ShopConfig]):
    async def make(self, room, model, config):
        return Toolkit(config.name)

async def main():
    async with RoomClient(name="agent") as room:
        notes = Toolkit("notes", description="What was said.")
        await room.offer_builders(builder_infos([Shop("shop", ShopConfig), notes]))
        print("ready", flush=True)
        await room.closed()

asyncio.run(main())
'''


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    here = CommandLine(tmp_path_factory.mktemp("builders"))
    with here.serving() as (_, url):
        there = here.at(url)
        command = [sys.executable, "-c", AGENT]
        with Popen(command, env=there.environment(), stdout=PIPE, text=True) as agent:
            try:
                assert agent.stdout is not None
                assert agent.stdout.readline() == "ready\n"
                yield there
            finally:
                agent.terminate()


def token(toolbus: CommandLine, *grants: str) -> str:
    keys = str(toolbus.folder / "home" / "dev-keys.toml")
    made = toolbus.run_here("token", "create", "--keys", keys, "--name", "bob", *grants)
    assert made.code == 0, made.err
    return made.out.strip()


def test_builders_are_listed_with_their_configuration_fields(toolbus: CommandLine) -> None:
    shown = toolbus.run("builders", "agent", "--token", token(toolbus, "--preset", "full"))
    assert shown.code == 0, shown.err
    assert "\x1b" not in shown.out
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert lines[:2] == ["shop", "A shop of one region,"]
    assert lines[2].endswith("red\\x1b[0m.")
    assert lines[3].startswith("region string")
    assert lines[3].endswith("Where it is.")
    assert lines[4].startswith("limit integer")
    assert lines[5:] == ["notes", "What was said."]


def test_builders_are_printed_as_json(toolbus: CommandLine) -> None:
    everything = token(toolbus, "--preset", "full")
    found = toolbus.value_here("builders", "agent", "--json", "--token", everything)
    assert [each["name"] for each in found] == ["shop", "notes"]
    assert found[0]["schema"]["required"] == ["name", "region"]


@pytest.mark.parametrize(
    ("participant", "grants", "code", "text"),
    [
        ("agent", ["--preset", "agent"], 0, "agent has no builders that your grant"),
        ("nobody", ["--preset", "agent"], 4, "'nobody' is not in the room, or has no builders"),
        ("agent", ["--allow", "x"], 4, "'agent' is not in the room, or has no builders"),
        ("nobody", ["--allow", "x"], 4, "'nobody' is not in the room, or has no builders"),
    ],
)
def test_absent_participant_is_not_found_and_looks_like_one_that_is_not_visible(
    toolbus: CommandLine, participant: str, grants: list[str], code: int, text: str
) -> None:
    outcome = toolbus.run_here("builders", participant, "--token", token(toolbus, *grants))
    assert (outcome.code, outcome.out) == (code, "")
    assert text in outcome.err
