"""Tools in the process of a turn: what asks there asks its approver, once a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.rooms.approvals import person_in
from toolbus import (
    ApprovalDecision,
    ApprovalRequest,
    PermissionDenied,
    Permissions,
    Rule,
    ToolContext,
    Toolkit,
    ToolUse,
    Turn,
    tool,
)
from toolbus.errors import ApprovalDenied
from toolbus_server.testing import TestServer

ASKS = Permissions("bypass", [Rule(behavior="ask", tool="files.write")])
ARGUMENTS = {"text": "b"}


class Stage:
    """A toolkit in this process, and what was asked about its calls."""

    def __init__(self, *, flag: bool, policy: Permissions | None) -> None:
        self.wrote: list[str] = []
        self.asked: list[ApprovalRequest] = []

        @tool(approval=flag)
        async def write(text: str) -> str:
            self.wrote.append(text)
            return text

        self.toolkit = Toolkit("files", [write], policy=policy)

    def answering(self, answer: ApprovalDecision) -> Callable[..., Any]:
        async def approve(request: ApprovalRequest) -> ApprovalDecision:
            self.asked.append(request)
            return answer

        return approve

    def turn(self, permissions: Permissions, answer: ApprovalDecision) -> Turn:
        return Turn(
            None,
            always=[self.toolkit],
            permissions=permissions,
            approve=self.answering(answer),
            purpose="to try it",
        )


BYPASS = Permissions("bypass")


@pytest.mark.parametrize(
    ("flag", "policy", "permissions"),
    [
        (True, None, Permissions("default")),
        (False, ASKS, BYPASS),
        (False, ASKS, Permissions("default")),
        (True, ASKS, Permissions("default")),
    ],
)
@pytest.mark.parametrize("changed", [None, {"text": "c"}])
async def test_flag_policy_and_permissions_are_one_question(
    flag: bool, policy: Permissions | None, permissions: Permissions, changed: Any
) -> None:
    stage = Stage(flag=flag, policy=policy)
    async with stage.turn(permissions, ApprovalDecision.allow(arguments=changed)) as turn:
        (result,) = await turn.run([ToolUse("1", "files.write", ARGUMENTS)])
    assert result.text == stage.wrote[0] == (changed or ARGUMENTS)["text"]
    (request,) = stage.asked
    assert (dict(request.arguments), request.purpose) == (ARGUMENTS, "to try it")


async def test_call_that_a_person_denies_for_the_policy_does_not_run() -> None:
    stage = Stage(flag=False, policy=ASKS)
    async with stage.turn(BYPASS, ApprovalDecision.deny("no")) as turn:
        with pytest.raises(ApprovalDenied) as denied:
            await turn.invoke("files.write", ARGUMENTS)
    assert denied.value.executed == "no"
    assert stage.wrote == []


async def test_tool_that_wants_approval_is_refused_in_a_turn_without_permissions() -> None:
    stage = Stage(flag=True, policy=None)
    async with Turn(None, always=[stage.toolkit]) as turn:
        with pytest.raises(PermissionDenied, match="needs permissions= and approve=") as denied:
            await turn.invoke("files.write", ARGUMENTS)
    assert denied.value.executed == "no"
    assert stage.wrote == []


async def test_unit_test_of_a_tool_that_wants_approval_runs_it() -> None:
    stage = Stage(flag=True, policy=None)
    await stage.toolkit.execute(ToolContext(), "write", ARGUMENTS)
    assert stage.wrote == ["b"]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("purpose", "a" * 501, "at most 500 characters"),
        ("approval_timeout_s", -1, "approval_timeout_s must be a number"),
    ],
)
def test_options_of_a_turn_that_concern_persons_are_checked(
    option: str, value: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Turn(None, **{option: value})


# Tools elsewhere


async def test_hosts_are_told_what_a_turn_is_for_and_how_long_it_waits(server: TestServer) -> None:
    stage = Stage(flag=True, policy=None)
    async with (
        server.room("host") as host,
        server.room("ann") as ann,
        host.host(stage.toolkit),
        person_in(ann) as person,
        Turn(ann, required=["files"], purpose="to try it", approval_timeout_s=20) as turn,
    ):
        call = asyncio.create_task(turn.invoke("files.write", ARGUMENTS))
        hold = await person.asked()
        assert hold.left_s is not None
        assert (hold.purpose, hold.left_s <= 20) == ("to try it", True)
        await ann.approve(hold)
        await call
        proxy = (await ann.toolkit("files")).with_options(purpose="by a proxy")
        call = asyncio.create_task(proxy.write(text="b"))
        await person.settled()
        hold = await person.asked()
        assert hold.purpose == "by a proxy"
        await ann.approve(hold)
        await call


async def test_call_that_a_tool_of_a_turn_left_behind_may_wait(server: TestServer) -> None:
    """The tool has ended: no time of it stands still any more."""
    stage = Stage(flag=True, policy=None)
    left: list[asyncio.Task[Any]] = []

    @tool
    async def begin(context: ToolContext) -> str:
        left.append(asyncio.create_task(context.room.call("files.write", ARGUMENTS)))
        return "began"

    async with (
        server.room("host") as host,
        server.room("ann") as ann,
        host.host(stage.toolkit),
        person_in(ann) as person,
        Turn(ann, always=[Toolkit("work", [begin])]) as turn,
    ):
        await turn.invoke("work.begin")
        await ann.approve(await person.asked())
        assert await left[0] == "b"
