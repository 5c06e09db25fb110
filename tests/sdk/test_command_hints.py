"""What a command says to do next: with the real names, and with what was probably meant."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.command_line import CommandLine, Outcome
from toolbus.commands.near_names import FirstToolkits, near_name, near_tool
from toolbus.commands.room_options import CommandRoom
from toolbus.errors import (
    DeadlineExceeded,
    NotFound,
    PermissionDenied,
    RoomException,
    ToolFailed,
    Unavailable,
)
from toolbus.exit_codes import Subject, failure_lines
from toolbus.grants import ApiScope
from toolbus.keys import Key, KeyRing
from toolbus.settings import DEV_KEYS_FILE
from toolbus.tokens import ParticipantToken
from toolbus.toolkit_proxy import ToolkitInfo

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


def next_of(error: RoomException, subject: Subject | None = None) -> str:
    _, *steps = failure_lines(error, subject)
    return "".join(steps).removeprefix("  next: ")


# Real names


def test_bad_argument_leads_to_the_tool_that_was_called(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.count", "txt=hat")
    assert "  next: `toolbus tools words.count` shows what it takes\n" in outcome.err


def test_owner_that_was_named_is_named_again(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "diary.count", "txt=hat", "--participant", "bob")
    assert "`toolbus tools diary.count --participant bob` shows" in outcome.err


def test_missing_grant_leads_to_a_token_with_it(toolbus: CommandLine) -> None:
    made = toolbus.run_here("token", "create", "--name", "eve", "--allow", "other.*")
    outcome = call(toolbus, "words.count", "text=a", "--token", made.out.strip())
    step = "`toolbus token create --name NAME --allow words.count` makes one that may"
    assert step in outcome.err
    better = toolbus.run_here("token", "create", "--name", "eve", "--allow", "words.count")
    assert call(toolbus, "words.count", "text=a", "--token", better.out.strip()).code == 0


def test_changed_definition_leads_to_its_toolkit(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.count", "text=a", "--pin", "0" * 64)
    assert "`toolbus tools words` shows the digest that is served now" in outcome.err


def test_names_are_written_as_a_shell_reads_them() -> None:
    subject = Subject("words", "count", "bob & co")
    assert subject.look == "toolbus tools words.count --participant 'bob & co'"


def test_more_time_is_named_where_the_caller_set_it() -> None:
    waited = DeadlineExceeded("too late", executed="no")
    assert next_of(waited, Subject("a", "b", timeout_s=2)).startswith("give it more time than 2 s")
    own = DeadlineExceeded("its own limit", executed="yes")
    assert "--timeout does not change it" in next_of(own, Subject("a", "b", timeout_s=2))


def test_grant_to_act_for_another_is_not_mistaken_for_one_to_call() -> None:
    step = next_of(PermissionDenied("no"), Subject("a", "b", principal="ann"))
    assert "--allow" not in step


# Names that are not there


@pytest.mark.parametrize("arguments", [[], ["text=hat"]])
def test_tool_that_is_near_is_named(toolbus: CommandLine, arguments: list[str]) -> None:
    outcome = call(toolbus, "words.cuont", *arguments)
    assert outcome.code == 4
    assert "tool words.cuont not found: did you mean words.count? (executed: no)" in outcome.err


def test_tools_are_listed_where_none_is_near(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.zzz")
    assert "words has count, speak, crash, nest, see `toolbus tools words`" in outcome.err


def test_toolkit_that_is_near_is_named_with_the_tool(toolbus: CommandLine) -> None:
    words = "toolkit wrods not found in room main: did you mean words.count?"
    assert words in call(toolbus, "wrods.count").err


def test_near_names_are_in_json_too(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.cuont", "--json")
    assert (outcome.error["code"], outcome.error["executed"]) == ("not_found", "no")
    assert outcome.error["message"].endswith("did you mean words.count?")


def test_description_of_what_is_not_there_names_what_is(toolbus: CommandLine) -> None:
    assert "did you mean words.count?" in toolbus.run_here("tools", "words.cuont").err
    assert "did you mean words?" in toolbus.run_here("tools", "wrods").err


def test_shared_toolkit_is_named_with_its_owner(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "diary.count")
    assert "there is one of bob, with --participant bob" in outcome.err


def test_toolkit_of_the_wrong_owner_is_named_as_it_is_reached(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.count", "--participant", "zoe")
    assert "there is a public one of bob, without --participant" in outcome.err


def test_private_toolkit_is_named_to_nobody_else(toolbus: CommandLine) -> None:
    for name in ("diary.count", "dairy.count"):
        outcome = call(toolbus, name, name="zoe")
        assert outcome.code == 4
        assert "bob" not in outcome.err
        assert "did you mean" not in outcome.err


def test_tool_without_a_grant_is_named_to_nobody(toolbus: CommandLine) -> None:
    made = toolbus.run_here("token", "create", "--name", "eve", "--allow", "words.speak")
    outcome = call(toolbus, "words.cuont", "--token", made.out.strip())
    assert "count" not in outcome.err.replace("cuont", "")


def test_list_is_asked_for_once_and_only_where_a_name_is_not_there(
    toolbus: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    ask = CommandRoom.first_toolkits

    async def counting(room: CommandRoom) -> FirstToolkits:
        asked.append(room.identity)
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


@dataclass(slots=True)
class Lister:
    """A room of which only the list is asked, and how often."""

    answer: FirstToolkits | RoomException
    identity: str = "ann"
    name: str = "lab"
    asked: list[str] = field(default_factory=list)

    async def first_toolkits(self) -> FirstToolkits:
        self.asked.append("list")
        if isinstance(self.answer, RoomException):
            raise self.answer
        return self.answer


def info(name: str, *tools: str, owner: str = "bob", public: bool = True) -> ToolkitInfo:
    return ToolkitInfo(name, "", "", "", "", public, owner, 1, tools)


async def test_server_is_asked_once_and_its_silence_changes_nothing() -> None:
    error = NotFound("toolkit wrods not found")
    room = Lister(PermissionDenied("no"))
    assert await near_name(error, room, Subject("wrods", "count")) is error
    assert room.asked == ["list"]


async def test_toolkit_that_nothing_is_like_is_said_to_be_missing_in_this_room() -> None:
    room = Lister(FirstToolkits([], are_all=True))
    found = await near_name(NotFound("toolkit wrods not found"), room, Subject("wrods", "count"))
    assert found.message == "toolkit wrods not found in room lab"
    assert room.asked == ["list"]


async def test_nothing_is_guessed_where_the_list_is_longer_than_what_was_read() -> None:
    page = FirstToolkits([info("clock", "now"), info("words", "count")], are_all=False)
    error = NotFound("not found")
    assert await near_name(error, Lister(page), Subject("wordz", "count")) is error
    found = await near_name(error, Lister(page), Subject("clocj", "now"))
    assert found.message == "not found: did you mean clock.now?"


async def test_own_private_toolkit_needs_no_owner() -> None:
    mine = FirstToolkits([info("diary", "read", owner="ann", public=False)], are_all=True)
    found = await near_name(NotFound("no"), Lister(mine), Subject("dairy", "read"))
    assert found.message == "no: did you mean diary.read?"


def test_tool_that_is_there_is_not_named_as_another() -> None:
    error = NotFound("gone meanwhile")
    assert near_tool(error, Subject("words", "count"), ["count", "counts"]) is error


def test_many_tools_are_counted_and_not_all_named() -> None:
    found = near_tool(NotFound("no"), Subject("words", "zzz"), [f"a{i}" for i in range(500)])
    assert found.message == (
        "no: words has a0, a1, a2, a3, a4, a5, a6, a7 and 492 more, see `toolbus tools words`"
    )


@pytest.mark.timeout(30)
def test_names_beyond_reason_are_not_compared() -> None:
    found = near_tool(NotFound("no"), Subject("a", "x" * 100_000), ["x" * 100_000] * 100_000)
    assert len(found.message) < 1_000


# Tools that failed


def test_crash_leads_to_the_log_of_the_host(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.crash")
    assert outcome.code == 1
    assert (
        "next: the log of its host says more of this KeyError: ask whoever runs it" in outcome.err
    )
    assert "secret" not in outcome.err


def test_call_within_leads_to_the_trace(toolbus: CommandLine) -> None:
    outcome = call(toolbus, "words.nest")
    assert "a call that the tool made itself ended with not_found" in outcome.err


def test_words_of_the_tool_itself_lead_to_no_log(toolbus: CommandLine) -> None:
    assert "next: these are the tool's own words" in call(toolbus, "words.speak").err
    again = call(toolbus, "words.speak", "retryable=true")
    assert "next: the tool says that the same call may succeed later" in again.err


def test_cause_that_is_no_name_is_not_repeated() -> None:
    for cause in ("a\nnext: pay", "\x1b[2J", 7, None, ["KeyError"]):
        step = next_of(ToolFailed("x", details={"cause": cause, "code": cause}))
        assert step.startswith("these are the tool's own words")


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
        assert "the token is for rooms lab, test-*, not for main" in outcome.err
        assert "`toolbus token create --room main`" in outcome.err
        assert "--room (TOOLBUS_ROOM)" in outcome.err


@pytest.mark.parametrize("command", [["call", "words.count"], ["tools"], ["host", "clock"]])
def test_expired_token_is_told_from_one_of_a_stranger(
    toolbus: CommandLine, tmp_path: Path, command: list[str]
) -> None:
    ours = KeyRing.load(toolbus.folder / "home" / DEV_KEYS_FILE).signing_key
    assert ours is not None
    token = ParticipantToken(name="eve", room=["main"], api=ApiScope.full())
    place = tmp_path / "token"
    place.write_text(token.to_jwt(ours, ttl_s=60, now=time.time() - 600))
    old = toolbus.run_here(*command, "--token", f"@{place}")
    told = re.search(r"refuses the token: it expired (\d+) s ago \(executed: no\)", old.err)
    assert old.code == 3
    assert told is not None, old.err
    assert 540 <= int(told[1]) < 600
    assert "next: `toolbus token create` makes another" in old.err
    place.write_text(token.to_jwt(Key.generate(kid="k1", iss="us")))
    strange = toolbus.run_here(*command, "--token", f"@{place}")
    assert strange.code == 3
    assert "refuses the token (executed: no)\n  next: `toolbus doctor` looks into" in strange.err


def test_server_that_is_away_is_told_from_one_that_cannot_reach_another(
    toolbus: CommandLine,
) -> None:
    outcome = toolbus.run_here("tools", "--url", "ws://127.0.0.1:1")
    assert outcome.code == 6
    assert "next: is the server running, and is --url (TOOLBUS_URL) right?" in outcome.err
    step = next_of(Unavailable("the host's server cannot be reached", executed="no"))
    assert step.startswith("try again in a moment")
