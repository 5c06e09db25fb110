"""`toolbus context`: named settings, as commands and programs use them."""

from __future__ import annotations

import json
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from support.processes.command_line import CommandLine, Outcome

PROGRAM = """
import asyncio
from toolbus import RoomClient

async def main():
    async with RoomClient() as room:
        print(room.room, room.name)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    here = CommandLine(tmp_path_factory.mktemp("server"))
    assert here.run_here("key", "create", "--out", "keys.toml").code == 0
    with here.serving("--keys", "keys.toml") as (_, url):
        yield url, here.folder / "keys.toml"


@pytest.fixture
def toolbus(tmp_path: Path, server: tuple[str, Path]) -> CommandLine:
    """Commands with the contexts `lab`, of a token for room attic, and `own`, of the keys."""
    url, keys = server
    here = CommandLine(tmp_path)
    made = here.run_here(
        *("token", "create", "--keys", str(keys), "--name", "ann", "--room", "attic"),
        *("--grant", "presence"),
    )
    (tmp_path / "ann.jwt").write_text(made.out, encoding="ascii")
    add(here, "lab", "--url", url, "--room", "attic", "--token-file", "ann.jwt")
    add(here, "own", "--url", url, "--keys", str(keys), "--name", "bob")
    return here


def add(toolbus: CommandLine, *options: str) -> Outcome:
    added = toolbus.run_here("context", "add", *options)
    assert added.code == 0, added.err
    return added


def settings_of(toolbus: CommandLine, *options: str, **variables: str) -> str:
    findings = toolbus.run_here("doctor", "--json", *options, **variables).value
    return str(findings[0]["found"])


def test_context_in_use_applies_to_commands_and_programs_in_any_folder(
    toolbus: CommandLine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert toolbus.run("context", "use", "lab").out == "using context lab\n"
    elsewhere = CommandLine(
        tmp_path_factory.mktemp("elsewhere"),
        {"TOOLBUS_HOME": toolbus.environment()["TOOLBUS_HOME"]},
    )
    assert [each["name"] for each in elsewhere.value_here("room", "participants", "--json")] == [
        "ann"
    ]
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=elsewhere.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert program.stdout == "attic ann\n"
    assert settings_of(elsewhere).endswith(", room attic, context lab")


def test_chosen_context_overrides_variables_and_the_one_in_use_does_not(
    toolbus: CommandLine,
) -> None:
    wrong = {
        "TOOLBUS_URL": "ws://127.0.0.1:1",
        "TOOLBUS_ROOM": "hall",
        "TOOLBUS_TOKEN": "e30.e30.t",
    }
    used = toolbus.run_here("context", "use", "lab", **wrong)
    assert "TOOLBUS_URL, TOOLBUS_ROOM, TOOLBUS_TOKEN are set and override it" in used.err
    assert settings_of(toolbus, **wrong) == "ws://127.0.0.1:1, room hall"
    assert settings_of(toolbus, TOOLBUS_CONTEXT="lab", **wrong).endswith("room attic, context lab")
    listed = toolbus.run_here("room", "participants", "--json", "--context", "lab", **wrong)
    assert [each["name"] for each in listed.value] == ["ann"]
    own = toolbus.run_here("context", "use", "own", TOOLBUS_NAME="eve")
    assert "TOOLBUS_NAME is set and overrides it" in own.err
    mine = toolbus.run_here("tools", "--context", "own", TOOLBUS_CONTEXT="lab", **wrong)
    assert mine.code == 0, mine.err


def test_contexts_are_listed_replaced_and_removed(toolbus: CommandLine) -> None:
    toolbus.run_here("context", "use", "lab")
    rows = [line.split() for line in toolbus.run_here("context", "list").out.splitlines()]
    assert [row[:2] for row in rows[1:2]] == [["*", "lab"]]
    assert rows[2][0] == "own"
    file = toolbus.folder / "home" / "contexts.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (toolbus.folder / "ann.jwt").read_text().strip() not in file.read_text()
    assert toolbus.run_here("context", "add", "lab", "--room", "b").code == 2
    add(toolbus, "lab", "--room", "b", "--replace")
    removed = toolbus.run_here("context", "remove", "lab")
    assert "which was in use: no context is in use now" in removed.out
    toolbus.run_here("context", "use", "own")
    assert toolbus.run_here("context", "use", "--none").out == "using no context\n"
    facts = toolbus.value_here("context", "list", "--json")
    assert [(each["context"], each["in_use"], each["name"]) for each in facts] == [
        ("own", False, "bob")
    ]


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("add a.b --room x", "'a.b' is not a name"),
        ("add new", "a context needs settings"),
        ("add new --url http://x", "'http://x' is not a server address"),
        ("add new --room X!", "'X!' is not a room name"),
        ("add new --token-file eyJ.a.b", "--token-file names no file"),
        ("add new --token-file ann.jwt --name bob", "a token contains a name"),
        ("add new --keys ann.jwt", "needs a participant name: add --name"),
        ("use", "name one context, or use none with --none"),
        ("use lap", "there is no context 'lap'"),
        ("remove zzz", "`toolbus context list` lists them"),
    ],
)
def test_wrong_use_is_a_usage_error(toolbus: CommandLine, typed: str, text: str) -> None:
    outcome = toolbus.run_here("context", *typed.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert text in outcome.err
    assert "eyJ" not in outcome.err


def test_errors_of_joining_name_the_context(toolbus: CommandLine) -> None:
    add(toolbus, "gone", "--url", "ws://127.0.0.1:1", "--token-file", "ann.jwt")
    cases = {"gone": (6, "unavailable: context gone: cannot connect to ws://127.0.0.1:1")}
    add(toolbus, "lab", "--token-file", "ann.jwt", "--url", url_of(toolbus), "--replace")
    cases["lab"] = (3, "permission_denied: context lab: the server refuses the room: the token is")
    for name, (code, text) in cases.items():
        outcome = toolbus.run_here("tools", "--context", name)
        assert (outcome.code, text in outcome.err) == (code, True), outcome.err
    (toolbus.folder / "ann.jwt").unlink()
    outcome = toolbus.run_here("host", "clock", "--context", "lab")
    text = "context lab: cannot read the token (token_file of context lab): "
    assert (outcome.code, text in outcome.err) == (2, True), outcome.err
    (toolbus.folder / "home" / "contexts.toml").write_text("[", encoding="ascii")
    for command in ("tools", "context list", "context use --none"):
        outcome = toolbus.run_here(*command.split())
        assert (outcome.code, "correct the file, or delete it" in outcome.err) == (2, True)


def url_of(toolbus: CommandLine) -> str:
    listed = toolbus.run_here("context", "list", "--json").out
    return str(next(each["url"] for each in json.loads(listed) if each["context"] == "own"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("doctor", 2, "set TOOLBUS_TOKEN"),
        ("context list", 0, "there are no contexts"),
        ("credential list", 2, "`toolbus credential key PATH` creates one"),
        ("registry list", 0, "there are no registries"),
        ("bundle list", 0, "there are no bundles"),
        ("records", 4, "there are no records of calls at /.toolbus/records.db"),
        ("tools", 2, "set TOOLBUS_TOKEN or TOOLBUS_TOKEN_FILE"),
        ("host skills", 2, "set TOOLBUS_TOKEN or TOOLBUS_TOKEN_FILE"),
        ("permissions check ~/rules.toml", 2, "rules.toml"),
    ],
)
def test_commands_of_a_user_without_a_name_and_a_folder(
    arguments: str, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(uid: int) -> NoReturn:
        raise KeyError(f"uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    variables = {"TOOLBUS_HOME": "", "TOOLBUS_URL": "ws://127.0.0.1:1"}
    outcome = CommandLine(tmp_path, variables).run_here(*arguments.split())
    assert outcome.code == code, outcome
    assert words in outcome.out + outcome.err
