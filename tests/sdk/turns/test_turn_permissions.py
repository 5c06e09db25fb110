"""The permissions of a turn: what is asked, what an answer allows, and what stands still meanwhile.

Without a room, on a clock that only timers move: a person may take an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from support.parts.virtual_clock import on_virtual_clock
from toolbus import (
    AgentState,
    ApprovalDecision,
    ApprovalRequest,
    Assessment,
    CallNext,
    Chunk,
    Permissions,
    Records,
    Rule,
    ToolCall,
    ToolContext,
    ToolFailed,
    Toolkit,
    ToolResult,
    ToolUse,
    Turn,
    Unavailable,
    tool,
)
from toolbus.client.call_options import CallOptions
from toolbus.hosting.in_process import InProcessToolkit
from toolbus.middlewares import TimeLimit
from toolbus.tools.tool_run import Participant
from toolbus.turns.agent_state import SeenDefinitions
from toolbus.turns.approvals import ApprovalQueue
from toolbus.turns.model_tools import Trust
from toolbus.turns.turn_assembly import tool_infos
from toolbus.turns.turn_calls import CollectedChunks, LocalDispatch, TurnCall, TurnEntry, TurnFacts
from toolbus.turns.turn_permissions import CallJudge, TurnPermissions
from toolbus.turns.turn_runs import PreparedUse, TurnRuns
from toolbus.turns.turn_tools import ShownDefinitions
from toolbus_server.testing import running_server

AGENT = Participant("1", "agent")
ALICE, BOB = Participant("2", "alice"), Participant("3", "bob")
RAN: list[str] = []


async def assess_run(context: ToolContext, command: str) -> Assessment:
    if command.startswith("hidden:"):
        return Assessment("pass", reaches=command.removeprefix("hidden:"))
    if command.startswith("rm "):
        return Assessment("ask", immune=True, message=f"removes {command[3:]}")
    commands = command.split(" && ")
    parts = [tuple(each for each in context.patterns if match_run(each, part)) for part in commands]
    return Assessment(
        "pass", read_only=command == "ls", parts=tuple(parts) if len(parts) > 1 else ()
    )


def match_run(pattern: str, command: str) -> bool:
    return command.startswith(pattern)


@tool(assess=assess_run, match_rule=match_run, concurrency_safe=True)
async def run(context: ToolContext, command: str) -> str:
    RAN.append(command)
    if command == "fail":
        raise ToolFailed("failed")
    return f"{command} in {','.join(context.workdirs)}"


class Person:
    """Answers questions; what it was asked is kept."""

    def __init__(self, *answers: Any, takes_s: float = 0.0) -> None:
        self.answers = list(answers)
        self.takes_s = takes_s
        self.denied: dict[str, str] = {}
        """The reason why a command is denied, for what is asked in any order."""
        self.asked: list[ApprovalRequest] = []
        self.open = self.most_open = 0

    async def __call__(self, question: ApprovalRequest) -> ApprovalDecision:
        self.asked.append(question)
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.open -= 1
        if (reason := self.denied.get(question.arguments["command"])) is not None:
            return ApprovalDecision.deny(reason)
        answer = self.answers.pop(0) if self.answers else ApprovalDecision.allow()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def commands(self) -> list[str]:
        return [question.arguments["command"] for question in self.asked]


@dataclass(kw_only=True)
class Desk:
    """The calls of one turn of tools in this process."""

    approve: Any = None
    rules: Sequence[Rule] = ()
    mode: Any = "default"
    middlewares: Sequence[Any] = ()
    sender: Participant | None = ALICE
    state: AgentState = field(default_factory=AgentState)
    approval_timeout_s: float = 300
    timeout_s: float = 60
    records: Records | None = None

    def __post_init__(self) -> None:
        RAN.clear()
        kit = Toolkit("shell", [run])
        view: Any = lambda _: None  # noqa: E731
        shown = ShownDefinitions(Trust(), SeenDefinitions())
        facts = TurnFacts(AGENT, self.sender, view, lambda *_: None, lambda: False, shown)
        (info,) = tool_infos(kit.manifest(), kit.manifest().tools, "shell")
        dispatch = LocalDispatch(InProcessToolkit.of(kit), "run", facts, dict)
        self.entry = TurnEntry(info, dispatch, "")
        given = Permissions(self.mode, self.rules, workdirs=["/work"])
        self.permissions = TurnPermissions(given, self.state.rules)
        approvals = ApprovalQueue(self.approve, self.approval_timeout_s)
        self.judge = CallJudge(self.permissions, approvals, facts)
        self.runs = TurnRuns(facts, self.middlewares, None, self.records, None, self.state)

    def use(self, command: Any, use_id: str) -> PreparedUse:
        use = ToolUse(use_id, "shell.run", {"command": command})
        options, collected = CallOptions(timeout_s=self.timeout_s), CollectedChunks("shell.run")
        call = TurnCall(use_id, self.entry, {"command": command}, options, collected)
        call.use, call.judge = use, self.judge
        return PreparedUse(use, call)

    async def run(self, *commands: Any) -> list[ToolResult]:
        return await self.runs.run([self.use(each, str(at)) for at, each in enumerate(commands)])


def codes(results: Sequence[ToolResult]) -> list[tuple[str, str, str]]:
    """Return state, code and executed of results."""
    return [(each.state, each.error.code if each.error else "", each.executed) for each in results]


OK = ("ok", "", "yes")
REFUSED = ("denied", "permission_denied", "no")
DENY_RM = Rule(behavior="deny", tool="shell.run", match="rm")


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on the virtual clock."""

    def on_clock() -> None:
        on_virtual_clock(test())

    on_clock.__doc__ = test.__doc__
    return on_clock


# What is asked


async def test_what_nothing_decides_is_asked_and_what_only_reads_is_not() -> None:
    person = Person()
    person.denied["deploy"] = "not today"
    records = Records.memory()
    desk = Desk(approve=person, rules=[DENY_RM], records=records)
    results = await desk.run("ls", "make", "deploy", "rm -r /")
    assert codes(results) == [OK, OK, ("denied", "approval_denied", "no"), REFUSED]
    # Safe uses are matched on threads, so that either may be asked, and run, first.
    assert sorted(person.commands) == ["deploy", "make"]
    assert sorted(RAN) == ["ls", "make"]
    assert results[1].value == "make in /work"
    assert "not today" in results[2].for_model()
    assert "a person refused it" in results[2].for_model()
    error = results[3].error
    assert error is not None
    assert 'shell.run "rm"' in error.message
    assert error.details == {
        "source": "rule",
        "rule": {"behavior": "deny", "tool": "shell.run", "match": "rm"},
    }
    decided = {each.call_id: (each.decision, each.decided_by) for each in records.calls()}
    assert decided == {
        "0": ("allowed", "tool"),
        "1": ("allowed", "person"),
        "2": ("denied", "person"),
        "3": ("denied", 'rule deny shell.run "rm"'),
    }
    settled = {each.call_id: (each.settled, each.settled_reason) for each in records.calls()}
    assert settled == {
        "0": ("", ""),
        "1": ("approved", ""),
        "2": ("denied", "not today"),
        "3": ("", ""),
    }
    question = next(each for each in person.asked if each.arguments["command"] == "make")
    assert (question.use.id, question.tool.name) == ("1", "shell.run")
    assert question.decision.behavior == "ask"
    assert not question.assessment.read_only


async def test_bypass_leaves_its_line_in_the_records() -> None:
    records = Records.memory()
    desk = Desk(mode="bypass", records=records)
    assert codes(await desk.run("make")) == [OK]
    assert [each.decided_by for each in records.calls()] == ["mode bypass"]
    desk.permissions.mode = "explore"
    assert codes(await desk.run("make", "ls")) == [REFUSED, OK]


async def hang(_: ApprovalRequest) -> ApprovalDecision:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.Event().wait()  # it does not end when it is cancelled
    raise AssertionError


async def cancelled(_: ApprovalRequest) -> ApprovalDecision:
    raise asyncio.CancelledError


GIT, NPM = (Rule(behavior="allow", tool="shell.run", match=match) for match in ("git ", "npm "))
OTHER = Rule(behavior="allow", tool="files.write")
BROAD = Rule(behavior="allow", tool="shell.*")
NO_ASK: list[tuple[str, Any, float, str, str]] = [
    ("nobody to ask", None, 300, "permission_denied", "--permissions FILE or --mode"),
    ("it raises", Person(KeyError("secret")), 300, "permission_denied", "raised KeyError"),
    ("no terminal", Person(Unavailable("no terminal")), 300, "permission_denied", "no terminal."),
    ("it exits", Person(SystemExit(3)), 300, "permission_denied", "raised RuntimeError"),
    ("it is cancelled", cancelled, 300, "permission_denied", "cancelled was cancelled|cancelled"),
    ("no answer", Person("yes"), 300, "permission_denied", "returned str"),
    ("no yes or no", Person(ApprovalDecision("no")), 300, "permission_denied", "neither"),  # type: ignore[arg-type]
    ("it returns None", lambda _: None, 300, "permission_denied", "raised TypeError"),
    ("another scope", Person(ApprovalDecision(True, "ever")), 300, "permission_denied", "scope"),  # type: ignore[arg-type]
    (
        "no mapping",
        Person(ApprovalDecision.allow(arguments=[1])),  # type: ignore[arg-type]
        300,
        "permission_denied",
        "mapping",
    ),
    (
        "another tool",
        Person(ApprovalDecision.allow("state", OTHER)),
        300,
        "permission_denied",
        "files",
    ),
    (
        "one of two",
        Person(ApprovalDecision.allow("state", (GIT, OTHER))),
        300,
        "permission_denied",
        "files",
    ),
    ("no rules", Person(ApprovalDecision(True, "state", ())), 300, "permission_denied", "empty"),
    (
        "no rule",
        Person(ApprovalDecision.allow("state", (GIT, 1))),  # type: ignore[arg-type]
        300,
        "permission_denied",
        "rule of its",
    ),
    (
        "a broad rule",
        Person(ApprovalDecision.allow("state", BROAD)),
        300,
        "permission_denied",
        "alone",
    ),
    (
        "an ask rule",
        Person(ApprovalDecision.allow("state", Rule(behavior="ask", tool="shell.run"))),
        300,
        "permission_denied",
        "not an allow rule",
    ),
    (
        "for others",
        Person(
            ApprovalDecision.allow(
                "state", Rule(behavior="allow", tool="shell.run", principal="bob")
            )
        ),
        300,
        "permission_denied",
        "does not cover",
    ),
    ("too slow", Person(takes_s=301), 300, "approval_expired", "within 300 s"),
    ("it hangs", hang, 300, "approval_expired", "within 300 s"),
    ("nobody is waited for", Person(), 0, "approval_expired", "waited for"),
]


@pytest.mark.parametrize(("ask", "timeout_s", "code", "words"), [row[1:] for row in NO_ASK])
def test_use_without_an_answer_is_denied_and_nothing_is_granted(
    ask: Any, timeout_s: float, code: str, words: str
) -> None:
    async def main() -> None:
        desk = Desk(approve=ask, approval_timeout_s=timeout_s)
        (result,) = await desk.run("make")
        assert codes([result]) == [("denied", code, "no")]
        assert result.error is not None
        assert "secret" not in result.error.message
        assert any(each in result.error.message for each in words.split("|")), result.error.message
        assert not RAN
        assert not desk.permissions.granted

    on_virtual_clock(main())


# Time


@virtual
async def test_clocks_stand_still_while_a_person_decides() -> None:
    """Time-outs of one second, a limit of one second, and a person who takes two minutes."""
    left: list[float | None] = []

    async def watch(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        async for chunk in next(call):
            left.append(call.context.deadline)
            yield chunk

    person = Person(takes_s=120)
    desk = Desk(approve=person, middlewares=[TimeLimit(1), watch], timeout_s=1)
    assert codes(await desk.run("a", "b")) == [OK, OK]  # the second waits for four minutes
    assert left == [1.0, 1.0]
    assert person.most_open == 1
    bare = Desk(approve=person, timeout_s=1)
    assert codes(await bare.run("a", "b")) == [OK, OK]


@virtual
async def test_time_of_a_call_goes_on_after_a_question() -> None:
    async def slow(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        await asyncio.sleep(0.7)
        async for chunk in next(call):
            await asyncio.sleep(0.7)
            yield chunk

    for limits in ([], [TimeLimit(1)]):
        desk = Desk(
            approve=Person(takes_s=120), middlewares=[*limits, slow], timeout_s=1 + len(limits)
        )
        began = asyncio.get_running_loop().time()
        assert codes(await desk.run("a")) == [("failed", "deadline_exceeded", "yes")]
        assert asyncio.get_running_loop().time() - began == pytest.approx(121)


# Several uses


async def test_question_that_an_answer_covers_is_not_asked_again() -> None:
    person = Person(ApprovalDecision.allow("state"))
    desk = Desk(approve=person)
    assert codes(await desk.run("make", "make", "make all")) == [OK] * 3
    assert person.commands == ["make", "make all"]
    person = Person(ApprovalDecision.allow("state", GIT))
    desk = Desk(approve=person)
    assert codes(await desk.run("git a", "git b", "git c")) == [OK] * 3
    assert person.commands == ["git a"]
    # Each of several parts needs a rule. This very call is allowed, whatever the person grants.
    for granted, asked in (
        (GIT, ["git a && npm b", "git c && npm d"]),
        ((GIT, NPM), ["git a && npm b"]),
    ):
        person = Person(ApprovalDecision.allow("state", granted))
        desk = Desk(approve=person)
        assert codes(await desk.run("git a && npm b", "git a", "git c && npm d")) == [OK] * 3
        assert person.commands == asked
        assert [rule.match for rule in desk.permissions.granted] == ["git ", "npm "][
            : 3 - len(asked)
        ]


@virtual
async def test_interrupted_use_ends_its_question_and_the_next_one_is_asked() -> None:
    person = Person(takes_s=60)
    desk = Desk(approve=person)
    running = asyncio.ensure_future(desk.run("a", "b"))
    await asyncio.sleep(1)
    await desk.runs.interrupt("0")
    assert person.open == 0
    assert codes(await running) == [("interrupted", "cancelled", "no"), OK]
    running = asyncio.ensure_future(desk.run("c", "d"))
    await asyncio.sleep(1)
    await desk.runs.end()
    assert codes(await running) == [("interrupted", "cancelled", "no")] * 2
    assert person.open == 0
    assert person.commands == ["a", "b", "c"]


async def test_denied_use_is_not_asked_again_whatever_a_middleware_tries() -> None:
    async def insist(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        for command in ("make", "make it", "ls"):
            try:
                async for chunk in next(call.replace(arguments={"command": command})):
                    yield chunk
                return
            except Exception as error:
                last = error
        raise last

    person = Person(ApprovalDecision.deny())
    desk = Desk(approve=person, middlewares=[insist])
    assert codes(await desk.run("make")) == [("denied", "approval_denied", "no")]
    assert len(person.asked) == 1
    assert not RAN


async def test_approved_use_is_not_asked_about_again_for_another_attempt() -> None:
    async def again(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        with suppress(ToolFailed):
            async for chunk in next(call):
                yield chunk
        async for chunk in next(call):
            yield chunk

    person = Person(ApprovalDecision.allow(arguments={"command": "fail"}))
    (result,) = await Desk(approve=person, middlewares=[again]).run("make")
    assert person.commands == ["make"]
    assert RAN == ["fail", "fail"]
    assert result.changed_arguments == {"command": "fail"}


# Changed arguments


CHANGES: list[tuple[list[ApprovalDecision], list[str], Any, Any]] = [
    # answers, asked commands, end, changed command
    ([ApprovalDecision.allow(arguments={"command": "make b"})], ["make a"], OK, "make b"),
    ([ApprovalDecision.allow(arguments={"command": "ls"})], ["make a"], OK, "ls"),
    ([ApprovalDecision.allow(arguments={"command": "make a"})], ["make a"], OK, None),
    ([ApprovalDecision.allow(arguments={"command": "sudo x"})], ["make a"], REFUSED, "sudo x"),
    ([ApprovalDecision.allow(arguments={"command": "rm b"})], ["make a", "rm b"], OK, "rm b"),
    (
        [ApprovalDecision.allow("state", arguments={"command": "rm b"}), ApprovalDecision.deny()],
        ["make a", "rm b"],
        ("denied", "approval_denied", "no"),
        "rm b",
    ),
    (
        [ApprovalDecision.allow(arguments={"command": word}) for word in ("rm b", "rm c")],
        ["make a", "rm b"],
        REFUSED,
        "rm c",
    ),
    (
        [ApprovalDecision.allow(arguments={"command": 5})],
        ["make a"],
        ("failed", "invalid_arguments", "no"),
        5,
    ),
    (
        [ApprovalDecision.allow(arguments={"command": float("nan")})],
        ["make a"],
        ("failed", "invalid_arguments", "no"),
        None,
    ),
]


@pytest.mark.parametrize(("answers", "asked", "end", "changed"), CHANGES)
async def test_changed_arguments_are_validated_and_judged(
    answers: list[ApprovalDecision], asked: list[str], end: Any, changed: Any
) -> None:
    person = Person(*answers)
    desk = Desk(approve=person, rules=[Rule(behavior="deny", tool="shell.run", match="sudo")])
    (result,) = await desk.run("make a")
    assert (person.commands, codes([result])) == (asked, [end])
    expected = None if changed is None else {"command": changed}
    assert result.changed_arguments == expected
    assert RAN == ([changed or "make a"] if end == OK else [])
    assert not desk.permissions.granted


async def test_true_in_place_of_1_is_a_change_that_the_result_shows() -> None:
    @tool
    async def go(force: int | bool) -> str:
        return repr(force)

    async def ask(_: ApprovalRequest) -> ApprovalDecision:
        return ApprovalDecision.allow(arguments={"force": True})

    car = Toolkit("car", [go])
    async with (
        running_server() as server,
        server.room("agent") as room,
        Turn(room, always=[car], permissions=Permissions(), approve=ask) as turn,
    ):
        (result,) = await turn.run([ToolUse("1", "car.go", {"force": 1})])
    assert result.changed_arguments is not None
    assert result.changed_arguments["force"] is True


async def test_what_middlewares_and_approvers_hold_is_not_what_runs() -> None:
    async def rewrite(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        async for chunk in next(call.replace(arguments={"command": "rm -r /"})):
            yield chunk

    desk = Desk(approve=Person(), rules=[DENY_RM], middlewares=[rewrite])
    assert codes(await desk.run("ls")) == [REFUSED]

    async def spoil(question: ApprovalRequest) -> ApprovalDecision:
        question.arguments["command"] = "rm -r /"  # type: ignore[index]
        return ApprovalDecision.allow()

    assert codes(await Desk(approve=spoil, rules=[DENY_RM]).run("make")) == [OK]
    assert RAN == ["make"]


# Granted rules


async def test_granted_rules_are_bound_listed_saved_and_taken_back() -> None:
    person = Person(
        ApprovalDecision.allow("state"),
        ApprovalDecision.allow("state", Rule(behavior="allow", tool="shell.run", match="git ")),
    )
    desk = Desk(approve=person)
    await desk.run("make", "git a")
    exact, pattern = desk.permissions.granted
    assert exact.principal == pattern.principal == "alice"
    assert (pattern.match, exact.match) == ("git ", None)
    assert len(exact.arguments) == 64
    state = AgentState.from_json(desk.state.to_json())
    assert tuple(state.rules) == (exact, pattern)
    commands = ("make", "git b", "make x")
    for sender, asked in ((ALICE, ["make x"]), (BOB, list(commands)), (None, list(commands))):
        person = Person(ApprovalDecision.deny(), ApprovalDecision.deny(), ApprovalDecision.deny())
        other = Desk(approve=person, sender=sender, state=state)
        await other.run(*commands)
        assert sorted(person.commands) == sorted(asked)
    one, two = (Desk(approve=Person(), sender=ALICE, state=state) for _ in range(2))
    one.permissions.take_back(exact)
    assert two.permissions.granted == (pattern,)
    # A granted rule is an allow rule: denials, asks, and modes that skip it count before.
    person = Person(ApprovalDecision.deny())
    await Desk(approve=person, rules=[Rule(behavior="ask", tool="shell")], state=state).run("git b")
    assert person.commands == ["git b"]
    assert codes(await Desk(mode="explore", state=state).run("git b")) == [REFUSED]
    assert codes(await Desk(mode="dont_ask", state=state).run("git b")) == [OK]


async def test_newer_patterns_make_room_where_a_tool_is_asked_about_too_many() -> None:
    person = Person(
        *(
            ApprovalDecision.allow(
                "state", Rule(behavior="allow", tool="shell.run", match=f"x{at:02} ")
            )
            for at in range(70)
        )
    )
    desk = Desk(approve=person)
    for at in range(70):
        await desk.run(f"x{at:02} a")
    assert len(desk.permissions.granted) == 64
    await desk.run("x69 b")
    assert len(person.asked) == 70
    await desk.run("x00 b")
    assert len(person.asked) == 71


async def test_rules_count_for_what_a_call_reaches() -> None:
    person = Person(ApprovalDecision.allow("state"), ApprovalDecision.deny())
    records = Records.memory(arguments=True)
    rules = [
        Rule(behavior="deny", tool="github.*"),
        Rule(behavior="deny", tool="files.write", match="hidden:files.write"),
    ]
    desk = Desk(approve=person, rules=rules, records=records)
    commands = ["hidden:github.drop", "hidden:files.write", "hidden:a.b", "hidden:a.b"]
    assert codes(await desk.run(*commands)) == [REFUSED, REFUSED, OK, OK]
    assert person.commands == ["hidden:a.b"]
    assert person.asked[0].assessment.reaches == "a.b"
    assert {each.tool for each in records.calls()} == {"github.drop", "files.write", "a.b"}
