"""What one turn of an agent can see and call: its own, required and dynamic toolkits together."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.rooms.turns import Diary, Recorded, agent_and_host, greeter, names
from toolbus import (
    AgentsGrant,
    ApiScope,
    RequiredToolkit,
    RoomClient,
    Toolkit,
    ToolkitConfig,
    Turn,
    tool,
)
from toolbus.errors import (
    InvalidArguments,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from toolbus_server.testing import room_of

# What is in a turn


async def test_turn_has_its_own_required_and_dynamic_tools_with_their_schemas() -> None:
    diary: list[str] = []
    async with agent_and_host(greeter()) as (_, agent):
        async with Turn(
            agent,
            always=[Toolkit("notes", [Recorded("write", diary)])],
            required=[RequiredToolkit("greeter", ["greet"])],
            builders=[Diary("extra", diary), Diary("unasked", diary)],
            tools=[ToolkitConfig(name="extra")],
        ) as turn:
            assert names(turn) == ["notes.write", "greeter.greet", "extra.extra"]
            greet = turn.tools[1]
            assert (greet.toolkit, greet.tool) == ("greeter", "greet")
            assert greet.description == "Greet somebody."
            assert greet.input_schema["required"] == ["name"]
            assert await turn.call("notes.write") == "write for agent"
            assert await turn.call("greeter.greet", {"name": "bob"}) == (
                "hello bob, from agent for agent"
            )
            assert await turn.call("extra.extra", {}) == "extra for agent"
            with pytest.raises(NotFound, match=r"its tools: notes\.write, greeter\.greet, ex"):
                await turn.call("greeter.insult", {"name": "bob"})
    assert diary == ["+write", "+extra", "-extra", "-write"]


async def test_rules_for_models_reach_the_turn_from_local_and_remote_toolkits() -> None:
    @tool(title="Look up", rules=["Ask for one city at a time."], read_only=True)
    async def look(city: str) -> str:
        """Look a city up."""
        return city

    @tool
    async def change(city: str) -> None: ...

    def toolkit(name: str) -> Toolkit:
        return Toolkit(name, [look, change], rules=["Use metric units.", "Be brief."])

    async with agent_and_host(toolkit("far")) as (_, agent):
        parts = {"always": [toolkit("near")], "required": [RequiredToolkit("far")]}
        async with Turn(agent, **parts) as turn:  # type: ignore[arg-type]  # each by its own name
            assert [(each.name, each.title) for each in turn.tools] == [
                ("near.look", "Look up"),
                ("near.change", "change"),
                ("far.look", "Look up"),
                ("far.change", "change"),
            ]
            got = [(each.rules, each.read_only) for each in turn.tools]
            assert got == [(("Ask for one city at a time.",), True), ((), False)] * 2
            together = {each.toolkit_rules for each in turn.tools}
            assert together == {("Use metric units.", "Be brief.")}


async def test_each_turn_sees_what_its_own_message_asked_for() -> None:
    diary: list[str] = []
    builders = [Diary("one", diary), Diary("two", diary)]
    async with room_of("agent") as (agent,):
        async with Turn(agent, builders=builders, tools=[ToolkitConfig(name="one")]) as first:
            async with Turn(agent, builders=builders, tools=[ToolkitConfig(name="two")]) as second:
                assert (names(first), names(second)) == (["one.one"], ["two.two"])
        async with Turn(agent, builders=builders) as third:
            assert names(third) == []


async def test_grants_of_the_rooms_token_limit_remote_tools_and_no_local_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "toolbus.turns.turn")
    grant = AgentsGrant(use_tools=True, call=True, allow=("greeter",), deny=("*.insult",))
    diary: list[str] = []
    async with agent_and_host(greeter(), api=ApiScope(agents=grant)) as (_, agent):
        async with Turn(
            agent,
            always=[Toolkit("notes", [Recorded("write", diary), Recorded("insult", diary)])],
            required=[RequiredToolkit("greeter")],
            builders=[Diary("extra", diary)],
            tools=[ToolkitConfig(name="extra")],
        ) as turn:
            local = ["notes.write", "notes.insult", "extra.extra"]
            assert names(turn) == [*local[:2], "greeter.greet", *local[2:]]
            for name in local:
                assert await turn.call(name) == f"{name.partition('.')[2]} for agent"
            with pytest.raises(NotFound):
                await turn.call("greeter.insult")
    text = "may hide tools of greeter (agents.allow: greeter; agents.deny: *.insult)"
    assert [text in each for each in caplog.messages].count(True) == 1


async def test_hidden_tools_of_a_required_toolkit_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for grant, tools, text in (
        (AgentsGrant(use_tools=True), None, "may list but not call: greet, insult (agents.call)"),
        (AgentsGrant(use_tools=True), ["greet"], "may list but not call: greet (agents.call)"),
    ):
        caplog.clear()
        async with agent_and_host(greeter(), api=ApiScope(agents=grant)) as (_, agent):
            async with Turn(agent, required=[RequiredToolkit("greeter", tools)]) as turn:
                assert names(turn) == []
        assert [text in each for each in caplog.messages].count(True) == 1
    denied = AgentsGrant(use_tools=True, call=True, deny=("*.insult",))
    async with agent_and_host(greeter(), api=ApiScope(agents=denied)) as (_, agent):
        turn = Turn(agent, required=[RequiredToolkit("greeter", ["greet", "insult"])])
        with pytest.raises(PermissionDenied, match=r"not cover greeter\.insult: .*--allow greeter"):
            await turn.__aenter__()


# Names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"always": [greeter]}, r"not function; write Toolkit\('name', "),
        ({"always": ["kit"]}, r"always must contain Toolkit\('kit'\), not str"),
        ({"always": Toolkit("kit")}, "always must be a list of Toolkit, not Toolkit"),
        ({"required": RequiredToolkit("kit")}, "required must be a list of RequiredToolkit, not"),
        ({"required": "kit"}, "required must be a list of RequiredToolkit, not str"),
        ({"required": [7]}, "required must contain RequiredToolkit, not int"),
    ],
)
def test_option_that_is_no_list_of_toolkits_is_a_type_error(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        Turn(RoomClient("ws://127.0.0.1:1"), **options)


async def test_wrong_form_of_a_call_is_answered_with_a_form_that_a_turn_has() -> None:
    async with room_of("agent") as (agent,), Turn(agent, always=[greeter()]) as turn:
        tool: Any = ["greeter", "greet"]
        with pytest.raises(InvalidArguments, match="is not a tool name: write"):
            await turn.call(tool)
        for option, form in (("participant", "call("), ("timeout_s", "invoke(")):
            with pytest.raises(TypeError, match=f"did you mean {re.escape(form)}"):
                await turn.call("greeter.greet", {"name": "bob"}, **{option: "x"})


async def test_dynamic_toolkit_with_a_name_that_is_taken_is_named_with_its_path() -> None:
    diary: list[str] = []
    builders = [Diary("extra", diary), Diary("notes", diary)]
    asked = [ToolkitConfig(name=each) for each in ("extra", "notes")]
    async with room_of("agent") as (agent,):
        turn = Turn(agent, always=[Toolkit("notes")], builders=builders, tools=asked)
        with pytest.raises(
            InvalidArguments, match="/tools/1/name: this turn already has a toolkit notes"
        ):
            await turn.__aenter__()
    assert diary == []


# Beginning and ending


async def test_tools_that_were_started_are_stopped_when_another_cannot_start() -> None:
    diary: list[str] = []
    builders = [Diary("one", diary), Diary("two", diary), Diary("bad", diary, fails=True)]
    asked = [ToolkitConfig(name=each) for each in ("one", "two", "bad")]
    async with room_of("agent") as (agent,):
        turn = Turn(agent, builders=builders, tools=asked)
        with pytest.raises(OSError, match="no disk"):
            await turn.__aenter__()
        with pytest.raises(Unavailable):
            await turn.call("one.one")
    assert diary == ["+one", "+two", "-two", "-one"]


async def test_toolkit_that_two_turns_use_is_started_once_and_stopped_after_the_last() -> None:
    diary: list[str] = []
    notes = Toolkit("notes", [Recorded("write", diary)])
    async with room_of("agent") as (agent,):
        async with Turn(agent, always=[notes]):
            async with Turn(agent, builders=[notes], tools=[ToolkitConfig(name="notes")]) as inner:
                assert await inner.call("notes.write") == "write for agent"
            assert diary == ["+write"]
        assert diary == ["+write", "-write"]
        async with Turn(agent, always=[notes]):
            assert diary == ["+write", "-write", "+write"]


async def test_turn_that_has_ended_or_not_begun_refuses_calls() -> None:
    async with room_of("agent") as (agent,):
        turn = Turn(agent, always=[Toolkit("notes", [Recorded("write", [])])])
        with pytest.raises(Unavailable, match="not entered"):
            await turn.call("notes.write")
        async with turn:
            pass
        with pytest.raises(Unavailable, match="has ended") as raised:
            await turn.call("notes.write")
        assert (raised.value.executed, raised.value.retryable) == ("no", False)
        with pytest.raises(RuntimeError, match="entered once"):
            await turn.__aenter__()
