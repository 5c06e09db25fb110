"""The permissions of a turn for tools that others host, and for those of its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.processes.command_line import CommandLine
from support.rooms.turns import agent_and_host
from toolbus import (
    AgentState,
    ApprovalDecision,
    ApprovalRequest,
    Assessment,
    LocalToolkit,
    PermissionDenied,
    Permissions,
    Records,
    RequiredToolkit,
    RoomClient,
    Rule,
    ToolContext,
    ToolGroup,
    Toolkit,
    ToolUse,
    Turn,
    tool,
)

RAN: list[str] = []


async def assess_run(context: ToolContext, command: str) -> Assessment:
    if command == "halt":
        return Assessment("deny", message="never")
    return Assessment("pass", read_only=command == "ls")


@tool(assess=assess_run, match_rule=lambda pattern, command: command.startswith(pattern))
async def run(context: ToolContext, command: str) -> list[str]:
    RAN.append(command)
    return list(context.workdirs)


def shell(**options: Any) -> Toolkit:
    RAN.clear()
    return Toolkit("shell", [run], **options)


class Person:
    """Allows, unless told otherwise."""

    def __init__(self, *answers: ApprovalDecision) -> None:
        self.answers = list(answers)
        self.asked: list[ApprovalRequest] = []

    async def __call__(self, question: ApprovalRequest) -> ApprovalDecision:
        self.asked.append(question)
        return self.answers.pop(0) if self.answers else ApprovalDecision.allow()

    @property
    def commands(self) -> list[str]:
        return [question.arguments["command"] for question in self.asked]


def uses(*commands: str) -> list[ToolUse]:
    return [ToolUse(command, "shell.run", {"command": command}) for command in commands]


def states(results: list[Any]) -> list[str]:
    return [result.state for result in results]


GIT = Rule(behavior="allow", tool="shell.run", match="git")


async def test_what_a_tool_elsewhere_says_loosens_only_from_trusted_owners() -> None:
    commands = ("ls", "git log", "make", "halt")
    for trusted, asked in ((["host"], ["make"]), ([], ["ls", "git log", "make"])):
        person, records = Person(), Records.memory()
        async with (
            agent_and_host(shell()) as (_, agent),
            Turn(
                agent,
                required=["shell"],
                permissions=Permissions(rules=[GIT], trusted_owners=trusted),
                approve=person,
                records=records,
            ) as turn,
        ):
            results = await turn.run(uses(*commands))
            assert states(results) == ["ok", "ok", "ok", "denied"]
            assert results[-1].error is not None
            assert "never" in results[-1].error.message
            assert person.commands == asked
            assert RAN == ["ls", "git log", "make"]
            person.asked.clear()
            with pytest.raises(PermissionDenied):
                await turn.call("shell.run", command="halt")
            await turn.call("shell.run", command="make x")
            (question,) = person.asked
            assert question.use.name == "shell.run"
            assert question.tool.owner == "host"
        decided = {each.call_id: each.decided_by for each in records.calls()}
        assert decided["ls"] == ("tool" if trusted else "person")
        assert decided["halt"] == "tool"


KITS = """
from toolbus import Assessment, Toolkit, tool

@tool(assess=lambda command: Assessment("pass", read_only=command == "ls"))
async def run(command: str) -> str:
    return command

shell = Toolkit("shell", [run])
"""


async def test_tool_of_another_process_says_what_this_input_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kits.py").write_text(KITS, encoding="utf-8")
    here = CommandLine(tmp_path)
    with here.serving() as (_, url), here.at(url).hosting("kits:shell", "--name", "ops"):
        monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path / "home"))
        async with RoomClient(url=url, name="agent") as agent:
            for trusted, asked in ((["ops"], ["make"]), ([], ["ls", "make"])):
                person = Person()
                permissions = Permissions(trusted_owners=trusted)
                async with Turn(
                    agent, required=["shell"], permissions=permissions, approve=person
                ) as turn:
                    assert states(await turn.run(uses("ls", "make"))) == ["ok", "ok"]
                assert person.commands == asked


async def test_grant_is_for_the_tool_of_its_owner_under_its_name() -> None:
    state = AgentState()
    always = ApprovalDecision.allow("state", Rule(behavior="allow", tool="shell.run"))

    async def asks(agent: RoomClient, always: list[Any], required: list[Any]) -> bool:
        person = Person()
        async with Turn(
            agent,
            always=always,
            required=required,
            permissions=Permissions(),
            approve=person,
            state=state,
        ) as turn:
            await turn.run(uses("make"))
        return bool(person.asked)

    async with agent_and_host(shell(), Toolkit("other", [run])) as (_, agent):
        async with Turn(
            agent,
            required=["shell"],
            permissions=Permissions(),
            approve=Person(always),
            state=state,
        ) as turn:
            await turn.run(uses("make"))
            assert turn.permissions is not None
            (granted,) = turn.permissions.granted
            assert (granted.owner, granted.principal) == ("host", "agent")
        assert not await asks(agent, [], ["shell"])
        assert await asks(agent, [shell()], [])
        assert await asks(agent, [], [RequiredToolkit("other", alias="shell")])
        assert await asks(agent, [LocalToolkit(Toolkit("mine", [run]), "shell")], [])


async def test_tool_that_cannot_be_asked_is_asked_about_whatever_allows_it() -> None:
    class Broken(Toolkit):
        async def assess(self, *_: Any) -> Any:
            raise ValueError("broken")

    person = Person(ApprovalDecision.deny())
    rules = [GIT, Rule(behavior="allow", tool="shell")]
    async with agent_and_host(Broken("shell", [run])) as (_, agent):
        permissions = Permissions(rules=rules, trusted_owners=["host"])
        async with Turn(agent, required=["shell"], permissions=permissions, approve=person) as turn:
            assert states(await turn.run(uses("make"))) == ["denied"]
            (question,) = person.asked
            assert question.assessment.source == "manifest"
            assert question.assessment.immune


async def test_own_tools_get_the_working_directories_and_groups_need_no_answer() -> None:
    async with (
        agent_and_host() as (_, agent),
        Turn(
            agent,
            always=[shell()],
            groups=[ToolGroup("more", "Has more.", [Toolkit("late", [run])])],
            permissions=Permissions("dont_ask", workdirs=["/work"]),
        ) as turn,
    ):
        (group, late) = await turn.run(
            [
                ToolUse("1", "groups.reset_tools", {"more": True}),
                ToolUse("2", "late.run", {"command": "ls"}),
            ]
        )
        assert (group.state, late.state, late.value) == ("ok", "ok", ["/work"])


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"permissions": "bypass"}, TypeError, "permissions must be toolbus.Permissions"),
    ({"approve": Person()}, ValueError, "pass them too"),
    ({"permissions": Permissions(), "approve": "me"}, TypeError, "approve must be"),
    ({"approval_timeout_s": -1}, ValueError, "approval_timeout_s"),
    ({"approval_timeout_s": float("inf")}, ValueError, "approval_timeout_s"),
    ({"approval_timeout_s": True}, ValueError, "approval_timeout_s"),
]


async def test_options_that_cannot_be_are_refused() -> None:
    async with agent_and_host() as (_, agent):
        for options, kind, words in WRONG:
            with pytest.raises(kind, match=words):
                Turn(agent, **options)
