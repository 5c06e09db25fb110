"""The next step after an error: with the real names and with suggestions."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.processes.command_line import CommandLine, Outcome
from toolbus.auth.grants import ApiScope
from toolbus.auth.keys import Key, KeyRing
from toolbus.auth.tokens import ParticipantToken
from toolbus.cli.room_options import CommandRoom, FirstToolkits
from toolbus.cli.suggestions import suggest_name, suggest_tool
from toolbus.diagnostics.exit_codes import CallTarget
from toolbus.diagnostics.join_errors import REFUSED_STEP
from toolbus.errors import (
    NotFound,
    PermissionDenied,
    RoomException,
)
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.settings import DEV_KEYS_FILE
from toolbus.tools.tool_run import Participant

KITS = """
from toolbus import NotFound, RemoteToolkit, ToolContext, ToolFailed, tool

@tool
def count(text: str, top: int = 3) -> dict:
    return {text: top}

@tool
def speak(retryable: bool = False) -> None:
    raise ToolFailed("no words today", retryable=retryable)

@tool
def crash() -> None:
    raise KeyError("a secret")

@tool
async def nest(context: ToolContext) -> None:
    await context.room.call("nowhere.x")

words = RemoteToolkit("words", [count, speak, crash, nest])
diary = RemoteToolkit("diary", [count], public=False, shared_with=["name:ann"])
"""


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("hints")
    (folder / "kits.py").write_text(KITS, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("kits:words", "kits:diary", "--name", "bob") as host:
            assert host.line()  # the second of them
            yield there


def call(toolbus: CommandLine, *arguments: str, name: str = "ann") -> Outcome:
    who = () if "--token" in arguments else ("--name", name)
    return toolbus.run_here("call", *arguments, *who)


# Real names


def test_invalid_argument_points_to_the_called_tool(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.count", "txt=hat")
    assert "  next: `toolbus tools words.count` shows its parameters\n" in outcome.err


def test_given_owner_is_repeated(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "diary.count", "txt=hat", "--participant", "bob")
    assert "`toolbus tools diary.count --participant bob` shows" in outcome.err


def test_missing_grant_points_to_a_token_with_it(toolbus: CommandLine) -> None:
    made = toolbus.run_here("token", "create", "--name", "eve", "--allow", "other.*")
    outcome = call(toolbus, "words.count", "text=a", "--token", made.out.strip())
    step = (
        "`toolbus token create --name NAME --allow words.count` creates one that may call this "
        "tool: give it all grants that the token had, and sign it with --keys FILE where the server"
    )
    assert step in outcome.err
    better = toolbus.run_here("token", "create", "--name", "eve", "--allow", "words.count")
    assert call(toolbus, "words.count", "text=a", "--token", better.out.strip()).code == 0


def test_changed_definition_points_to_its_toolkit(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.count", "text=a", "--pin", "0" * 64)
    assert "`toolbus tools words` shows the current digest" in outcome.err


# Similar names


@pytest.mark.parametrize("arguments", [[], ["text=hat"]])
def test_similar_tool_is_suggested(toolbus: CommandLine, arguments: list[str]) -> None:
    outcome = call(toolbus, "words.cuont", *arguments)
    assert outcome.code == 4
    assert "tool words.cuont not found: did you mean words.count? (executed: no)" in outcome.err


def test_tools_are_listed_if_none_is_similar(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.zzz")
    assert "words has count, speak, crash, nest, see `toolbus tools words`" in outcome.err


def test_similar_toolkit_is_suggested_with_the_tool(toolbus: CommandLine) -> None:
    words = "toolkit wrods not found in room main: did you mean words.count?"
    assert words in call(toolbus, "wrods.count").err


def test_suggestions_are_in_json_too(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.cuont", "--json")
    assert (outcome.error["code"], outcome.error["executed"]) == ("not_found", "no")
    assert outcome.error["message"].endswith("did you mean words.count?")


def test_tools_of_an_unknown_name_suggests_others(toolbus: CommandLine) -> None:
    assert "did you mean words.count?" in toolbus.run_here("tools", "words.cuont").err
    assert "did you mean words?" in toolbus.run_here("tools", "wrods").err


def test_shared_toolkit_is_suggested_with_its_owner(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "diary.count")
    assert "there is a private one of bob: add --participant bob" in outcome.err


def test_toolkit_of_another_owner_is_suggested_with_its_flag(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.count", "--participant", "zoe")
    assert "there is a public one of bob: omit --participant" in outcome.err


def test_private_toolkit_is_not_suggested_to_others(toolbus: CommandLine) -> None:
    for name in ("diary.count", "dairy.count"):
        outcome = call(toolbus, name, name="zoe")
        assert outcome.code == 4
        assert "bob" not in outcome.err
        assert "did you mean" not in outcome.err


def test_tool_without_a_grant_is_not_suggested(toolbus: CommandLine) -> None:
    made = toolbus.run_here("token", "create", "--name", "eve", "--allow", "words.speak")
    outcome = call(toolbus, "words.cuont", "--token", made.out.strip())
    assert "count" not in outcome.err.replace("cuont", "")


def test_list_is_requested_once_and_only_for_a_missing_name(
    toolbus: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    ask = CommandRoom.first_toolkits

    async def counting(room: CommandRoom) -> FirstToolkits:
        asked.append(room.name)
        return await ask(room)

    monkeypatch.setattr(CommandRoom, "first_toolkits", counting)
    call(toolbus, "words.crash")
    call(toolbus, "words.count", "txt=hat")
    call(toolbus, "words.cuont", "text=hat")  # its description was read for the argument
    call(toolbus, "words.cuont")  # and here to see whether it streams
    assert asked == []
    call(toolbus, "wrods.count", "text=hat")
    call(toolbus, "words.cuont", "--stream")
    assert asked == ["ann", "ann"]


ANN = Participant("1", "ann")


@dataclass(slots=True)
class Lister:
    """A room that returns a toolkit list and counts the requests."""

    answer: FirstToolkits | RoomException
    me: Participant = ANN
    room: str = "lab"
    asked: list[str] = field(default_factory=list)

    async def first_toolkits(self) -> FirstToolkits:
        self.asked.append("list")
        if isinstance(self.answer, RoomException):
            raise self.answer
        return self.answer


def info(name: str, *tools: str, owner: str = "bob", public: bool = True) -> ToolkitInfo:
    return ToolkitInfo(name, "", "", "", "", public, owner, 1, tools)


async def test_list_is_requested_once_and_a_failure_keeps_the_error() -> None:
    error = NotFound("toolkit wrods not found")
    room: Any = Lister(PermissionDenied("no"))
    assert await suggest_name(error, room, CallTarget("wrods", "count")) is error
    assert room.asked == ["list"]


async def test_toolkit_without_a_similar_name_is_reported_with_the_room() -> None:
    room: Any = Lister(FirstToolkits([], is_complete=True))
    found = await suggest_name(
        NotFound("toolkit wrods not found"), room, CallTarget("wrods", "count")
    )
    assert found.message == "toolkit wrods not found in room lab"
    assert room.asked == ["list"]


async def test_nothing_is_suggested_if_the_name_is_beyond_the_first_page() -> None:
    page = FirstToolkits([info("clock", "now"), info("words", "count")], is_complete=False)
    error = NotFound("not found")
    as_room: Any = Lister(page)
    assert await suggest_name(error, as_room, CallTarget("wordz", "count")) is error
    found = await suggest_name(error, as_room, CallTarget("clocj", "now"))
    assert found.message == "not found: did you mean clock.now?"


async def test_own_private_toolkit_needs_no_owner() -> None:
    mine = FirstToolkits([info("diary", "read", owner="ann", public=False)], is_complete=True)
    as_room: Any = Lister(mine)
    found = await suggest_name(NotFound("no"), as_room, CallTarget("dairy", "read"))
    assert found.message == "no: did you mean diary.read?"


def test_existing_tool_is_not_suggested() -> None:
    error = NotFound("gone meanwhile")
    assert suggest_tool(error, CallTarget("words", "count"), ["count", "counts"]) is error


def test_many_tools_are_counted_and_not_all_listed() -> None:
    found = suggest_tool(NotFound("no"), CallTarget("words", "zzz"), [f"a{i}" for i in range(500)])
    assert found.message == (
        "no: words has a0, a1, a2, a3, a4, a5, a6, a7 and 492 more, see `toolbus tools words`"
    )


def test_overlong_names_are_not_compared() -> None:
    found = suggest_tool(NotFound("no"), CallTarget("a", "x" * 100_000), ["x" * 100_000] * 100_000)
    assert len(found.message) < 1_000


# Tools that failed


def test_crash_points_to_the_log_of_the_host(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.crash")
    assert outcome.code == 1
    assert "next: the host has logged this KeyError: ask its operator" in outcome.err
    assert "the tool raised KeyError: 'a secret'" in outcome.err  # of a development server


def test_nested_call_points_to_the_trace(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.nest")
    assert "a nested call of the tool failed with not_found" in outcome.err


def test_message_of_the_tool_points_to_no_log(toolbus: CommandLine) -> None:
    assert "next: this message comes from the tool" in call(toolbus, "words.speak").err
    again = call(toolbus, "words.speak", "retryable=true")
    assert "next: the tool reports that a later retry may succeed" in again.err


# Rooms


def test_token_for_another_room_names_both(toolbus: CommandLine, tmp_path: Path) -> None:
    made = toolbus.run_here(
        *("token", "create", "--name", "eve", "--preset", "full"),
        *("--room", "lab", "--room", "test-*"),
    )
    (tmp_path / "token").write_text(made.out)
    for command in (["call", "words.count"], ["tools"], ["host", "clock"]):
        outcome = toolbus.run_here(*command, "--token", f"@{tmp_path / 'token'}")
        assert outcome.code == 3
        assert "the token is for rooms lab, test-*, not for room main" in outcome.err
        assert "`toolbus token create --room main`" in outcome.err
        assert "--room (TOOLBUS_ROOM)" in outcome.err


@pytest.mark.parametrize("command", [["call", "words.count"], ["tools"], ["host", "clock"]])
def test_expired_token_differs_from_an_unknown_one(
    toolbus: CommandLine, tmp_path: Path, command: list[str]
) -> None:
    ours = KeyRing.load(toolbus.folder / "home" / DEV_KEYS_FILE).signing_key
    assert ours is not None
    token = ParticipantToken(name="eve", room=["main"], api=ApiScope.full())
    place = tmp_path / "token"
    place.write_text(token.to_jwt(ours, ttl_s=60, now=time.time() - 600))
    old = toolbus.run_here(*command, "--token", f"@{place}")
    received = re.search(
        r"refuses the token: it expired 9 min( \d+ s)? ago \(executed: no\)", old.err
    )
    assert old.code == 3
    assert received is not None, old.err
    assert "next: create a new token with `toolbus token create`" in old.err
    place.write_text(token.to_jwt(Key.generate(kid="k1", iss="us")))
    strange = toolbus.run_here(*command, "--token", f"@{place}")
    assert f"refuses the token (executed: no)\n  next: {REFUSED_STEP}" in strange.err
    place.write_text(token.to_jwt(Key.generate(kid="k1", iss=ours.iss)))
    strange = toolbus.run_here(*command, "--token", f"@{place}")
    assert strange.code == 3
    assert (
        f"refuses the token: its key is 'k1', and the development key of this machine is "
        f"'{ours.kid}' (executed: no)\n  next: the token was revoked, or its key is not on this "
        "server: create one with a key of the server by `toolbus token create --keys FILE`, or"
        in strange.err
    )


def test_refused_development_key_says_that_no_token_is_set(
    toolbus: CommandLine, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    assert toolbus.run_here("key", "create", "--out", str(keys)).code == 0
    with toolbus.serving("--keys", str(keys)) as (_, url):
        outcome = toolbus.at(url).run_here("tools")
    assert outcome.code == 3
    assert (
        "refuses the token: no token is set, so it was made with the development key of this "
        "machine (executed: no)\n  next: set TOOLBUS_TOKEN_FILE or --token" in outcome.err
    )


def test_unreachable_server_points_to_its_url(
    toolbus: CommandLine,
) -> None:
    outcome = toolbus.run_here("tools", "--url", "ws://127.0.0.1:1")
    assert outcome.code == 6
    assert "next: is --url (TOOLBUS_URL) correct?" in outcome.err
