"""What an `Agent` is made with, and how it starts and ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from support.models.prepared_model import PreparedModel
from support.rooms.turns import Diary, Recorded
from toolbus import Agent, LocalToolkit, Permissions, ToolGroup, Toolkit, Unavailable

MODEL: Any = PreparedModel("hello")
KIT = Toolkit("kit", [])


async def texts(agent: Agent, text: str = "hi") -> list[str]:
    events: Any = agent.run_stream_events(text)
    return [event["text"] async for event in events if event["type"] == "text"]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"name": "My Agent"}, ValueError, "My Agent"),
        ({"name": 3}, ValueError, "name"),
        ({"model": None}, TypeError, "model must be a Model"),
        ({"model": "openai:gpt"}, TypeError, "open_model"),
        ({"instructions": None}, TypeError, "instructions must be text"),
        ({"description": 3}, TypeError, "description must be text"),
        ({"always": "kit"}, TypeError, "always must be a list"),
        ({"always": [print]}, TypeError, "always must contain Toolkit"),
        ({"required": [3]}, TypeError, "required must contain"),
        ({"required": ["No Name"]}, ValueError, "No Name"),
        ({"builders": [print]}, TypeError, "a builder is"),
        ({"builders": [KIT, KIT]}, ValueError, "two builders"),
        ({"groups": ["g"]}, TypeError, "groups must contain"),
        ({"skills": ["s"]}, TypeError, "skills"),
        ({"permissions": "default"}, TypeError, "Permissions"),
        ({"approve": print}, ValueError, "permissions"),
        ({"approve": 3, "permissions": Permissions()}, TypeError, "approve must be"),
        ({"middlewares": [print]}, TypeError, "middleware"),
        ({"model_middlewares": "log"}, TypeError, "str is not a middleware"),
        ({"model_middlewares": [3]}, TypeError, "int is not a middleware"),
        ({"records": "file"}, TypeError, "records"),
        ({"store": "states.db"}, TypeError, "SqliteStateStore"),
        ({"max_steps": 0}, ValueError, "max_steps must be"),
        ({"max_steps": True}, ValueError, "max_steps must be"),
        ({"max_steps": 1.5}, ValueError, "max_steps must be"),
        ({"max_tokens": 0}, ValueError, "max_tokens must be"),
        ({"tool_budget_tokens": -1}, ValueError, "tool_budget_tokens must be"),
        ({"available": "yes"}, TypeError, "available must be"),
        ({"timeout_s": 0}, ValueError, "timeout_s must be"),
    ],
)
def test_wrong_option_is_refused_when_the_agent_is_made(
    options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        Agent(None, **{"model": MODEL, **options})


def test_room_has_to_be_one() -> None:
    with pytest.raises(TypeError, match="RoomClient"):
        Agent("lab", MODEL)  # type: ignore[arg-type]


async def test_agent_that_asks_in_its_room_needs_one_as_soon_as_it_is_asked() -> None:
    agent = Agent(None, MODEL, permissions=Permissions(), approve="room")  # may be hosted later
    with pytest.raises(ValueError, match='no room, so that nobody can be asked there: approve="r'):
        await agent.run("hi")


async def test_agent_without_a_room_is_asked_in_its_process_and_entered_again() -> None:
    agent = Agent(None, MODEL)
    for _ in range(2):
        async with agent:
            assert await texts(agent) == ["hello"]
            with pytest.raises(RuntimeError, match="entered already"):
                await agent.__aenter__()
            assert await texts(agent) == ["hello"]
        with pytest.raises(Unavailable, match="not started"):
            await texts(agent)


async def test_required_toolkit_needs_a_room() -> None:
    with pytest.raises(ValueError, match="nobody else hosts"):
        async with Agent(None, MODEL, required=["sql"]):
            pass


async def test_two_toolkits_of_one_name_are_found_at_the_start() -> None:
    diary: list[str] = []
    kit = Toolkit("kit", [Recorded("one", diary)])
    group = ToolGroup("more", "More.", [LocalToolkit(KIT, "kit")])
    with pytest.raises(ValueError, match="two toolkits of this turn are named 'kit'"):
        async with Agent(None, MODEL, always=[kit], groups=[group]):
            pass
    assert diary == []


async def test_agents_that_are_toolkits_of_each_other_do_not_start() -> None:
    group = ToolGroup("more", "More.")
    one = Agent(None, MODEL, name="one", groups=[group])
    two = Agent(None, MODEL, name="two", always=[one.toolkit])
    object.__setattr__(group, "toolkits", (two.toolkit,))
    for agent in (one, two):
        with pytest.raises(ValueError, match=f"{agent.name} is among its own toolkits"):
            await agent.__aenter__()


def test_log_filters_of_its_toolkits_are_those_of_the_agent() -> None:
    first, second, third = (logging.Filter(name) for name in "abc")
    kits = [Toolkit(name, []) for name in ("one", "two", "three")]
    for kit, each in zip(kits, (first, second, third), strict=True):
        kit.log_filters = [each]
    group = ToolGroup("more", "More.", kits[2:])
    agent = Agent(None, MODEL, always=[kits[0], LocalToolkit(kits[1], "other")], groups=[group])
    assert agent.toolkit.log_filters == [first, second, third]


async def test_toolkits_are_started_once_for_all_questions_and_users(
    caplog: pytest.LogCaptureFixture,
) -> None:
    diary: list[str] = []
    agent = Agent(
        None,
        MODEL,
        always=[Toolkit("kit", [Recorded("own", diary)])],
        groups=[ToolGroup("more", "More.", [Toolkit("other", [Recorded("grouped", diary)])])],
    )
    async with agent:
        await agent.start(None)
        await asyncio.gather(*(texts(agent) for _ in range(3)))
        await agent.stop()
        assert diary == ["+own", "+grouped"]
    assert diary == ["+own", "+grouped", "-grouped", "-own"]
    await agent.stop()


async def test_failed_start_names_the_toolkit_and_stops_what_was_started() -> None:
    diary: list[str] = []
    kits = [
        Toolkit("good", [Recorded("one", diary)]),
        Toolkit("bad", [Recorded("two", diary), Recorded("three", diary, fails=True)]),
    ]
    agent = Agent(None, MODEL, always=kits)
    for _ in range(2):
        with pytest.raises(OSError, match="no disk") as caught:
            await agent.__aenter__()
        assert caught.value.__notes__ == [
            "raised by the start of tool three",
            "raised by the start of toolkit bad",
        ]
        assert diary == ["+one", "+two", "-two", "-one"]
        diary.clear()


async def test_about_tells_what_a_question_would_have() -> None:
    diary: list[str] = []
    kit = Toolkit("kit", [Recorded("own", diary)])
    permissions = Permissions("explore")
    agent = Agent(None, MODEL, name="helper", always=[kit], builders=[Diary("built", diary)])
    async with agent:
        await texts(agent)
        told = await agent.about()
        assert told == {
            "name": "helper",
            "mode": None,
            "tools": [{"name": "kit.own", "description": ""}],
            "builders": ["built"],
            "conversation": {"messages": 2, "bytes": told["conversation"]["bytes"]},
        }
        assert told["conversation"]["bytes"] > 50
        agent.permissions = permissions
        config = agent.builders[0].type(name="built")  # type: ignore[union-attr]
        told = await agent.about([config], "another")
        assert [tool["name"] for tool in told["tools"]] == ["kit.own", "built.built"]
        assert (told["mode"], told["conversation"]["messages"]) == ("explore", 0)
        await agent.forget()
        assert (await agent.about())["conversation"] == {"messages": 0, "bytes": 0}
