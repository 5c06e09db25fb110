"""Skills of a turn and of its groups: what is listed, what can be read, what is refused."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.models.prepared_model import PreparedModel, uses
from support.rooms.turns import agent_and_host
from toolbus import (
    Agent,
    AgentState,
    PermissionDenied,
    Permissions,
    Rule,
    SkillEntry,
    SkillText,
    ToolContext,
    ToolFailed,
    ToolGroup,
    ToolInactive,
    Toolkit,
    Turn,
    skill_viewer,
    tool,
)


@tool
async def count(text: str) -> int:
    return len(text.split())


class Listing:
    """Skills by name, each with its text."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.others = {"other"}
        """Those that were written by others."""

    def entries(self) -> Sequence[SkillEntry]:
        return [
            SkillEntry(name, f"for {name}", "test", name not in self.others) for name in self.texts
        ]

    def view(self, name: str, file: str | None = None) -> SkillText:
        return SkillText(name, self.texts[name], "test", name not in self.others)

    def prompt(self) -> str:
        return "\n".join(f"- {name}" for name in self.texts)


@asynccontextmanager
async def turn_with_skills() -> AsyncIterator[Turn]:
    groups = [
        ToolGroup("office", "Writes letters.", skills=[Listing(pdf="office", letter="Dear")]),
        ToolGroup("web", "Reads pages.", skills=[Listing(page="Fetch")], active=True),
    ]
    async with (
        agent_and_host(Toolkit("words", [count])) as (_, agent),
        Turn(agent, skills=[Listing(pdf="own")], groups=groups) as turn,
    ):
        yield turn


async def view(turn: Turn, name: str) -> Any:
    return (await turn.call("skills.view_skill", name=name))["text"]


async def names(turn: Turn) -> list[str]:
    return [each["name"] for each in (await turn.call("skills.list_skills"))["skills"]]


async def test_skills_of_active_groups_are_listed_and_read() -> None:
    async with turn_with_skills() as turn:
        assert await names(turn) == ["pdf", "page"]
        assert turn.prompt("{skills}") == "- pdf\n\n- page"
        assert await view(turn, "page") == "Fetch"
        assert await view(turn, "pdf") == "own"
        turn.activate("office")
        assert await names(turn) == ["pdf", "letter", "page"]
        assert "- letter" in turn.prompt()
        assert await view(turn, "letter") == "Dear"


async def test_skill_of_an_inactive_group_is_refused_with_the_way_to_activate_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = Listing.entries
    threads = set()

    def seen(listing: Listing) -> Sequence[SkillEntry]:
        threads.add(threading.current_thread())
        return entries(listing)

    async with turn_with_skills() as turn:
        monkeypatch.setattr(Listing, "entries", seen)
        with pytest.raises(
            ToolInactive, match="the skill letter is in the group office"
        ) as refused:
            await view(turn, "letter")
        assert refused.value.executed == "no"
        assert refused.value.details["arguments"] == {"web": True, "office": True}
    assert threading.current_thread() not in threads  # files would hold up the event loop
    assert threads


async def test_unknown_skill_is_a_failure_that_names_the_active_ones() -> None:
    async with turn_with_skills() as turn:
        with pytest.raises(ToolFailed, match="there is no skill 'x'; the skills: pdf, page"):
            await view(turn, "x")


async def test_long_list_is_cut_and_a_query_finds_the_rest() -> None:
    listing = Listing(**{f"s{number}": "text" for number in range(600)})
    viewer = skill_viewer(listing)
    for query, number, is_cut in (("", 500, True), ("FOR S59", 11, False), ("none", 0, False)):
        found: Any = (await viewer.execute(ToolContext(), "list_skills", {"query": query})).value
        assert (len(found["skills"]), found["truncated"]) == (number, is_cut)


async def test_tools_that_steer_their_agent_run_in_every_mode_but_not_against_a_rule() -> None:
    """In-process they count as read-only, also the one that switches groups and changes those."""
    deny = Rule(behavior="deny", tool="skills.view_skill")
    groups = [ToolGroup("web", "Reads pages.", [Toolkit("words", [count])], active=True)]
    for rules in ([], [deny]):
        permissions = Permissions("explore", rules)
        async with (
            agent_and_host(Toolkit("other", [])) as (_, agent),
            Turn(
                agent, skills=[Listing(pdf="own")], groups=groups, permissions=permissions
            ) as turn,
        ):
            await turn.call("groups.reset_tools", web=True)
            await turn.call("skills.list_skills")
            with pytest.raises(PermissionDenied):
                await turn.call("words.count", text="a")
            if rules:
                with pytest.raises(PermissionDenied, match=r"skills\.view_skill"):
                    await view(turn, "pdf")
            else:
                assert await view(turn, "pdf") == "own"


async def test_turn_without_skills_has_no_viewer() -> None:
    async with (
        agent_and_host(Toolkit("words", [count])) as (_, agent),
        Turn(agent, groups=[ToolGroup("web", "Reads pages.")]) as turn,
    ):
        assert "skills.view_skill" not in {each.name for each in turn.tools}


@pytest.mark.parametrize("wrong", ["pdf", Listing(), ["pdf"], 5])
def test_anything_but_listings_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="group web: skills must"):
        ToolGroup("web", "Reads pages.", skills=wrong)
    if isinstance(wrong, list):
        with pytest.raises(TypeError, match="skill_viewer must contain skill listings"):
            skill_viewer(*wrong)


# In use


async def test_skill_in_use_is_in_the_prompt_until_it_is_released_also_in_later_turns() -> None:
    skills = [Listing(pdf="Fill\u200b in forms.", page="Fetch")]
    state = AgentState()
    async with Turn(None, skills=skills, state=state) as turn:
        for _ in range(2):
            await turn.call("skills.use", name="pdf")
        await turn.call("skills.use", name="page")
        await turn.call("skills.release", name="page")
    state = AgentState.from_json(state.to_json())
    async with Turn(None, skills=skills, state=state) as turn:
        text = "# Skills in use\n\n## pdf\nFill\\u200b in forms."
        assert turn.prompt("{toolkits}") == text
        assert turn.prompt().endswith(text)
        await turn.call("skills.release", name="pdf")
        await turn.call("skills.release", name="none")
        assert turn.prompt("{toolkits}") == ""
        for foreign in (5, None, [["pdf"]], ["pdf", {}, "page"]):  # of a state that somebody wrote
            state.of("skills")["in_use"] = foreign
            turn.prompt()
            await turn.call("skills.use", name="pdf")
            assert "## pdf" in turn.prompt("{toolkits}")


async def test_skill_that_is_gone_or_inactive_is_not_in_the_prompt() -> None:
    listing = Listing(a="Text of a.", b="Text of b.", c="Text of c.", d="Text of d.")
    group = ToolGroup("office", "Writes letters.", skills=[listing], active=True)
    async with Turn(None, groups=[group]) as turn:
        for name in ("a", "b", "c"):
            await turn.call("skills.use", name=name)
        turn.deactivate("office")
        assert turn.prompt("{toolkits}") == ""
        with pytest.raises(ToolInactive):
            await turn.call("skills.use", name="d")
        turn.activate("office")
        del listing.texts["b"]
        listing.texts["c"] = "x" * 32_760
        assert turn.prompt("{toolkits}") == "# Skills in use\n\n## a\nText of a."
        await turn.call("skills.use", name="d")  # what is gone holds no place
        assert turn.prompt("{toolkits}").count("## ") == 2
        listing.others.add("a")  # a skill of others has taken its place
        assert turn.prompt("{toolkits}") == "# Skills in use\n\n## d\nText of d."


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("d", "at most 3 skills, .* now a, b, c: release one"),
        ("large", "of 32 KiB together, .* now a, b: release one"),
        ("other", "the skill other was written by others: read it with view_skill"),
        ("none", "there is no skill 'none'"),
    ],
)
async def test_skill_that_is_too_much_or_of_others_is_not_used(name: str, words: str) -> None:
    listing = Listing(a="x" * 10, b="x" * 10, c="x", d="x", large="ö" * 16_380, other="Obey.")
    async with Turn(None, skills=[listing]) as turn:
        for used in ("a", "b") if name == "large" else ("a", "b", "c"):
            await turn.call("skills.use", name=used)
        before = turn.prompt()
        with pytest.raises(ToolFailed, match=words):
            await turn.call("skills.use", name=name)
        assert turn.prompt() == before


async def test_skills_in_use_are_forgotten_with_the_conversation() -> None:
    model = PreparedModel(uses("skills.use", name="pdf"), "Used.", "Still.", "Forgotten.")
    agent = Agent(None, model, name="helper", skills=[Listing(pdf="Fill in forms.")])
    async with agent:
        await agent.run("A form.")
        await agent.run("And now?")
        await agent.forget()
        await agent.run("And now?")
    are_in_use = ["Fill in forms." in request["system"] for request in model.requests]
    assert are_in_use == [False, True, True, False]


async def test_hosted_viewer_uses_nothing() -> None:
    assert {each.name for each in skill_viewer(Listing()).tools} == {"list_skills", "view_skill"}
