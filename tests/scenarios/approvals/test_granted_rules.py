"""What a person allows always at a host: for which calls, until when, and who takes it back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE_S
from toolbus import (
    AgentState,
    AlreadyExists,
    ApiScope,
    ApprovalDecision,
    ApprovalExpired,
    ApprovalRequest,
    Assessment,
    GrantedHold,
    NotFound,
    PermissionDenied,
    Permissions,
    QuotaExceeded,
    Records,
    RoomClient,
    Rule,
    TooLarge,
    Toolkit,
    ToolUse,
    Turn,
    tool,
)
from toolbus.room.room import connection_of
from toolbus_server.testing import FaultProxy, TestServer

PUSH = {"command": "git push"}
ALL_OF_RUN = Rule(behavior="allow", tool="shell.run")
GIT = Rule(behavior="allow", tool="shell.run", match="git")


@tool(approval=True, match_rule=lambda pattern, command: command.startswith(pattern))
async def run(command: str) -> str:
    return f"ran {command}"


@tool(approval=True)
async def stop(command: str) -> str:
    return f"stopped {command}"


@tool(match_rule=lambda pattern, command: command.startswith(pattern))
async def unflagged(command: str) -> str:
    return f"ran {command}"


@tool(
    approval=True,
    assess=lambda command: Assessment("ask", immune=True) if command == "rm" else "pass",
)
async def careful(command: str) -> str:
    return f"ran {command}"


class Shell(Toolkit):
    """A toolkit whose definition is another one with another description."""

    def __init__(self, description: str = "", **options: Any) -> None:
        super().__init__(
            "shell", [run, stop, unflagged, careful], description=description, **options
        )


async def grant(
    caller: RoomClient,
    rule: Rule | bool,
    arguments: dict[str, Any] = PUSH,
    tool: str = "shell.run",
) -> None:
    """Make a call, and let its caller approve it always."""
    async with caller.events(["holds"]) as events:
        running = asyncio.create_task(caller.invoke(tool, arguments))
        hold = (await anext(events)).hold
        assert hold is not None
        await caller.approve(hold, rule=rule)
        await running


async def is_asked(
    caller: RoomClient, arguments: dict[str, Any] = PUSH, tool: str = "shell.run"
) -> bool:
    """Whether a person would be asked about a call, which else runs."""
    try:
        await caller.invoke(tool, arguments, approval_timeout_s=0)
    except ApprovalExpired:
        return True
    return False


async def listed(
    room: RoomClient, count: int = 1, other_than: Sequence[GrantedHold] = ()
) -> list[GrantedHold]:
    """Return the granted rules, as soon as so many are listed, none of them as before."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await room.granted_rules()
            ids = {granted.id for granted in found}
            if len(found) == count and ids.isdisjoint(granted.id for granted in other_than):
                return found


@asynccontextmanager
async def hosted(server: TestServer, toolkit: Toolkit) -> AsyncIterator[tuple[RoomClient, ...]]:
    """Give the host of a toolkit, and two callers."""
    async with server.room("host") as host, server.room("ann") as ann, server.room("bob") as bob:
        async with host.host(toolkit):
            yield host, ann, bob


@pytest.mark.parametrize("policy", [None, Permissions("bypass"), Permissions()])
@pytest.mark.parametrize(
    ("rule", "others_pass"),
    [
        (True, {"git pull": False, "rm": False}),
        (GIT, {"git pull": True, "rm": False}),
        (ALL_OF_RUN, {"git pull": True, "rm": True}),
    ],
)
async def test_granted_calls_run_unasked_and_all_others_are_asked(
    server: TestServer, rule: Rule | bool, others_pass: dict[str, bool], policy: Permissions | None
) -> None:
    async with hosted(server, Shell(policy=policy)) as (_, ann, bob):
        await grant(ann, rule)
        assert not await is_asked(ann)
        for command, passes in others_pass.items():
            assert await is_asked(ann, {"command": command}) is not passes
        assert not (await ann.assess("shell.run", PUSH)).asks
        assert await is_asked(bob)
        assert (await bob.assess("shell.run", PUSH)).asks
        assert await is_asked(ann, tool="shell.stop")


ASKS = Rule(behavior="ask", tool="shell.unflagged")


@pytest.mark.parametrize(
    ("policy", "rule", "is_asked_again"),
    [
        (Permissions(), True, False),
        (Permissions(), Rule(behavior="allow", tool="shell.unflagged", match="git"), False),
        (Permissions("bypass", [ASKS]), True, False),
        # It could cover what another rule asks about.
        (
            Permissions("bypass", [ASKS]),
            Rule(behavior="allow", tool="shell.unflagged", match="git"),
            True,
        ),
    ],
)
async def test_grant_counts_for_the_policy_until_a_rule_denies(
    server: TestServer,
    tmp_path: Path,
    policy: Permissions,
    rule: Rule | bool,
    is_asked_again: bool,
) -> None:
    tool = "shell.unflagged"
    with Records.sqlite(tmp_path / "records") as records:
        toolkit = Shell(policy=policy, records=records)
        async with hosted(server, toolkit) as (_, ann, bob):
            await grant(ann, rule, tool=tool)
            assert await is_asked(ann, tool=tool) is is_asked_again
            assert await is_asked(bob, tool=tool)
            toolkit.policy = Permissions("default", [Rule(behavior="deny", tool=tool)])
            with pytest.raises(PermissionDenied):
                await ann.invoke(tool, PUSH)
    if not is_asked_again:
        by = [record.decided_by for record in records.calls() if record.decision == "allowed"]
        assert by[0].startswith("policy: rule allow shell.unflagged")
        assert by[1] == "person"


async def test_what_a_tool_asks_about_an_input_it_asks_each_time(server: TestServer) -> None:
    tool = "shell.careful"
    async with hosted(server, Shell()) as (_, ann, _bob):
        await grant(ann, Rule(behavior="allow", tool=tool), tool=tool)
        assert not await is_asked(ann, tool=tool)
        assert await is_asked(ann, {"command": "rm"}, tool=tool)


async def test_rule_that_is_broader_than_the_call_is_refused_and_nothing_runs(
    server: TestServer,
) -> None:
    async with hosted(server, Shell()) as (host, ann, _):
        for rule in (Rule(behavior="allow", tool="*"), Rule(behavior="deny", tool="shell.run")):
            with pytest.raises(PermissionDenied, match="is not an allow rule") as of:
                await grant(ann, rule)
            assert of.value.executed == "no"
        assert await host.granted_rules() == []
        assert await is_asked(ann)


async def test_other_definition_is_asked_about_and_the_same_one_again_is_not(
    server: TestServer,
) -> None:
    async with hosted(server, Shell()) as (host, ann, _):
        await grant(ann, True)
        before = await listed(ann)
        await host.replace(Shell())
        assert not await is_asked(ann)
        assert [rule.id for rule in await ann.granted_rules()] == [rule.id for rule in before]
        await host.replace(Shell("another one"), supersede=True)
        assert await is_asked(ann)
        await listed(ann, 0)


async def test_rules_end_with_their_hosting(server: TestServer) -> None:
    async with server.room("host") as host, server.room("ann") as ann:
        async with host.host(Shell()):
            await grant(ann, True)
            await listed(ann)
        await listed(ann, 0)
        async with host.host(Shell()):
            assert await is_asked(ann)


async def test_rule_is_shown_to_those_who_may_take_it_back(server: TestServer) -> None:
    keeper_scope = ApiScope(approve_all=("shell.*",))
    async with (
        hosted(server, Shell()) as (host, ann, bob),
        server.room("keeper", api=keeper_scope) as keeper,
    ):
        await grant(ann, GIT)
        (shown,) = await listed(ann)
        assert (shown.tool, shown.owner, shown.asked_for) == ("shell.run", "host", "ann")
        assert str(shown.rule) == 'allow shell.run "git" for "ann"'
        for room in (host, keeper):
            assert [rule.id for rule in await room.granted_rules()] == [shown.id]
        assert await bob.granted_rules() == []
        with pytest.raises(NotFound):
            await bob.take_back(shown)
        assert not await is_asked(ann)


async def test_rule_is_taken_back_by_the_approvers_that_the_host_names(server: TestServer) -> None:
    async with hosted(server, Shell(approvers=["name:bob"])) as (_, ann, bob):
        async with bob.events(["holds"]) as events:
            running = asyncio.create_task(ann.invoke("shell.run", PUSH))
            hold = (await anext(events)).hold
            assert hold is not None
            await bob.approve(hold, rule=True)
            await running
        (granted,) = await listed(bob)
        assert await ann.granted_rules() == []
        await bob.take_back(granted)
        assert await is_asked(ann)


@pytest.mark.parametrize("who", ["ann", "host"])
async def test_rule_that_is_taken_back_is_asked_about_at_once(server: TestServer, who: str) -> None:
    async with hosted(server, Shell()) as (host, ann, _):
        await grant(ann, True)
        (granted,) = await listed(ann)
        taker, other = (ann, host) if who == "ann" else (host, ann)
        await taker.take_back(granted.id)
        assert await is_asked(ann)
        assert await ann.granted_rules() == []
        await taker.take_back(granted)  # as after a lost connection
        with pytest.raises(AlreadyExists):
            await other.take_back(granted)
        await grant(ann, True)
        assert not await is_asked(ann)


async def test_host_that_reconnects_has_its_rules_and_lists_them_again(server: TestServer) -> None:
    async with FaultProxy(server.url) as proxy, server.room("ann") as ann:
        async with server.room("host", via=proxy) as host, host.host(Shell()):
            await grant(ann, True)
            before = await listed(ann)
            proxy.reset()
            (granted,) = await listed(ann, other_than=before)
            assert not await is_asked(ann)
            await ann.take_back(granted)
            assert await is_asked(ann)


async def test_answer_to_the_policy_of_a_toolkit_in_a_turn_holds_for_its_state() -> None:
    asked: list[str] = []

    async def approve(request: ApprovalRequest) -> ApprovalDecision:
        asked.append(str(request.arguments["command"]))
        return ApprovalDecision.allow("state")

    state = AgentState()
    toolkit = Shell(policy=Permissions())
    for folder in ("/a", "/a", "/b"):
        toolkit.workdirs = (folder,)
        permissions = Permissions("bypass")
        async with Turn(
            None, always=[toolkit], permissions=permissions, approve=approve, state=state
        ) as turn:
            for command in ("git push", "git push"):
                use = ToolUse("1", "shell.unflagged", {"command": command})
                (result,) = await turn.run([use])
                assert result.error is None
        state = AgentState.from_json(state.to_json())
    assert asked == ["git push", "git push"]  # once a folder


def listing(host: RoomClient, body: bytes = b"\x80", tool: str = "shell.run") -> Any:
    """List a rule as a host does, which may say anything."""
    options = {"tool": tool, "public": True, "name": "ann", "issuer": "test"}
    return connection_of(host).caller.ask_person(None, "granted", bytes(32), body, options)


async def test_server_refuses_what_is_no_rule_of_the_host(server: TestServer) -> None:
    async with hosted(server, Shell()) as (host, ann, _):
        with pytest.raises(TooLarge):
            await listing(host, bytes(16 * 1024 + 1))
        for room, name in ((host, "other.run"), (ann, "shell.run")):
            with pytest.raises(NotFound):
                await listing(room, tool=name)
        unreadable = asyncio.create_task(listing(host, b"\xff"))
        assert [granted.rule for granted in await listed(host)] == [None]
        unreadable.cancel()


async def test_listed_rules_take_no_place_of_calls(server: TestServer) -> None:
    async with hosted(server, Shell()) as (host, ann, _):
        listings = [asyncio.create_task(listing(host)) for _ in range(1_025)]
        async with asyncio.timeout(PATIENCE_S):
            ended, _ = await asyncio.wait(listings, return_when=asyncio.FIRST_COMPLETED)
        assert [type(task.exception()) for task in ended] == [QuotaExceeded]
        await grant(ann, GIT)
        assert len(await host.granted_rules()) == 1_024
