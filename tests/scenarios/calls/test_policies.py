"""The policy of a toolkit binds every caller: in this process, in a turn, and over a room."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from toolbus import (
    Assessment,
    CallNext,
    Chunk,
    InputStream,
    InvalidArguments,
    PermissionDenied,
    Permissions,
    Records,
    RemoteToolkit,
    Rule,
    Tool,
    ToolCall,
    ToolContext,
    Toolkit,
    Turn,
    tool,
)
from toolbus.middlewares import Retry
from toolbus.permissions.rule_file import RuleFileError
from toolbus.service import policy_file
from toolbus.service.policy_file import PolicyFile
from toolbus_server.testing import running_server

NO_RM = Permissions("bypass", [Rule(behavior="deny", tool="shell.run", match="rm")])
Invoke: TypeAlias = Callable[..., Awaitable[Any]]


class Shell:
    """A toolkit that keeps what ran."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[str] = []
        self.toolkit = RemoteToolkit("shell", [self.run, self.lines, self.take], **options)

    @tool(
        assess=lambda command: Assessment("pass", read_only=command == "ls"),
        match_rule=lambda pattern, command: command.split()[:1] == [pattern],
    )
    async def run(self, command: str) -> str:
        self.ran.append(command)
        return command

    @tool
    async def lines(self, number: int) -> AsyncIterator[int]:
        self.ran.append("lines")
        for line in range(number):
            yield line

    @tool
    async def take(self, values: InputStream[int]) -> int:
        self.ran.append("take")
        return len([value async for value in values])


async def directly(toolkit: Toolkit, stack: AsyncExitStack) -> Invoke:
    async def invoke(name: str, arguments: Any, **_: Any) -> Any:
        return await toolkit.execute(ToolContext(), name.partition(".")[2], arguments)

    return invoke


async def in_turn(toolkit: Toolkit, stack: AsyncExitStack) -> Invoke:
    server = await stack.enter_async_context(running_server())
    room = await stack.enter_async_context(server.room("agent"))
    turn = await stack.enter_async_context(Turn(room, always=[toolkit]))
    return turn.invoke


async def over_a_room(toolkit: Toolkit, stack: AsyncExitStack) -> Invoke:
    server = await stack.enter_async_context(running_server())
    host = await stack.enter_async_context(server.room("host"))
    await stack.enter_async_context(host.host(toolkit))
    return (await stack.enter_async_context(server.room("agent"))).invoke


WAYS = pytest.mark.parametrize("way", [directly, in_turn, over_a_room])


async def refusal(call: Awaitable[Any]) -> PermissionDenied:
    with pytest.raises(PermissionDenied) as caught:
        await call
    assert caught.value.executed == "no"
    return caught.value


@WAYS
async def test_policy_binds_every_caller_and_its_rule_is_named(way: Any) -> None:
    shell = Shell(policy=NO_RM)
    async with AsyncExitStack() as stack:
        invoke = await way(shell.toolkit, stack)
        error = await refusal(invoke("shell.run", {"command": "rm -r x"}))
        assert error.details["rule"] == {"behavior": "deny", "tool": "shell.run", "match": "rm"}
        await invoke("shell.run", {"command": "ls"})
        shell.toolkit.policy = Permissions("dont_ask")  # replaced for later calls
        await invoke("shell.run", {"command": "ls"})
        await refusal(invoke("shell.run", {"command": "pwd"}))
        shell.toolkit.policy = None
        await invoke("shell.run", {"command": "rm"})
    assert shell.ran == ["ls", "ls", "rm"]


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (directly, "Nobody can be asked here: a host asks in its room, a turn its approve=."),
        (in_turn, "Nobody can be asked here: the turn needs permissions= and approve=."),
    ],
)
async def test_policy_refuses_what_it_asks_where_nobody_can_be_asked(way: Any, words: str) -> None:
    shell = Shell(policy=Permissions("default"))
    async with AsyncExitStack() as stack:
        invoke = await way(shell.toolkit, stack)
        error = await refusal(invoke("shell.run", {"command": "pwd"}))
        assert error.message.endswith(words)
        await invoke("shell.run", {"command": "ls"})
    assert shell.ran == ["ls"]


@pytest.mark.parametrize(
    ("tool", "match", "warning"),
    [
        (
            "shell.lines",
            "rm",
            'the rule deny shell.lines "rm" covers no call: shell.lines compares',
        ),
        ("shell.rum", None, "has the name in the rule deny shell.rum: did you mean shell.run?"),
        ("shell.x*", None, "no tool of toolkit shell has the name in the rule deny shell.x*\n"),
        ("shell.run", "rm", ""),
        ("shell", "rm", ""),
        ("shell.lines", None, ""),
        ("*", "rm", ""),
        ("files.read", "rm", ""),
    ],
)
async def test_rule_that_covers_no_call_is_logged_when_its_toolkit_is_hosted(
    tool: str, match: str | None, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    rule = Rule(behavior="deny", tool=tool, match=match)
    policy = Permissions("bypass", [rule])
    shell = Shell(policy=policy)
    shell.toolkit.operator_policy = policy
    async with AsyncExitStack() as stack:
        await over_a_room(shell.toolkit, stack)
    assert warning in caplog.text
    assert caplog.text.count("the rule deny ") == bool(warning)


async def test_streams_and_inputs_are_refused_before_they_begin() -> None:
    shell = Shell(policy=Permissions("dont_ask"))
    async with running_server() as server, server.room("host") as host:
        async with host.host(shell.toolkit), server.room("agent") as room:
            with pytest.raises(PermissionDenied):
                async with room.stream("shell.lines", {"number": 3}) as lines:
                    _ = [line async for line in lines]
            await refusal(room.invoke("shell.take", {}, attachment=b"x"))
    assert not shell.ran


@pytest.mark.parametrize("way", [directly, over_a_room])
async def test_stream_for_a_caller_that_accepts_none_is_not_judged(way: Any) -> None:
    records = Records.memory()
    shell = Shell(policy=Permissions("bypass"), records=records)
    async with AsyncExitStack() as stack:
        invoke = await way(shell.toolkit, stack)
        with pytest.raises(InvalidArguments, match=r"call it with room\.stream"):
            await invoke("shell.lines", {"number": 3})
    (record,) = records.calls()
    assert (record.decision, record.decided_by) == ("denied", "schema")


async def to_rm(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    async for chunk in next(call.replace(arguments={"command": "rm"})):
        yield chunk


async def attempts(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    for _ in range(3):
        try:
            async for chunk in next(call):
                yield chunk
            return
        except PermissionDenied as error:
            last = error
    raise last


@pytest.mark.parametrize("middlewares", [[to_rm], [attempts, to_rm], [Retry(), to_rm]])
async def test_what_a_middleware_makes_of_a_call_is_judged(middlewares: list[Any]) -> None:
    shell = Shell(policy=NO_RM, middlewares=middlewares)
    await refusal(shell.toolkit.execute(ToolContext(), "run", {"command": "ls"}))
    assert not shell.ran


async def test_arguments_that_are_changed_in_place_while_they_are_judged_do_not_run() -> None:
    given: list[Any] = []
    ran: list[Any] = []

    async def keep(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        given.append(call.arguments["words"])
        async for chunk in next(call):
            yield chunk

    def spoil(words: list[Any]) -> str:
        for each in (*given, words):
            each[0] = "rm"
        return "pass"

    @tool(assess=spoil)
    async def run(words: list) -> None:  # type: ignore[type-arg]
        ran.append(words)

    kit = Toolkit("shell", [run], middlewares=[keep], policy=Permissions("bypass"))
    await kit.execute(ToolContext(), "run", {"words": ["ls"]})
    assert ran == [["ls"]]


class Walk(Tool):
    """Only forwards: what it reaches is in its arguments."""

    name = "call"
    input_schema = {"properties": {"tool": {"type": "string"}}}  # noqa: RUF012

    def reached(self, arguments: Any) -> str:
        return str(arguments["tool"])

    async def execute(self, context: ToolContext, /, *_: Any, **arguments: Any) -> str:
        return f"called {arguments['tool']}"


async def test_policy_about_a_tool_covers_what_forwards_to_it() -> None:
    policy = Permissions("bypass", [Rule(behavior="deny", tool="github")])
    hub = Toolkit("mcp", [Walk()], policy=policy)
    assert await hub.execute(ToolContext(), "call", {"tool": "time.now"})
    error = await refusal(hub.execute(ToolContext(), "call", {"tool": "github.delete"}))
    assert "github.delete" in error.message


@pytest.mark.parametrize("later", [ValueError("it fails"), Assessment("pass", reaches="a.b")])
async def test_later_answer_hides_nothing_that_the_call_reaches(later: Any) -> None:
    answers = [Assessment("pass", reaches="files.write"), later]

    def assess() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @tool(assess=assess)
    async def run() -> str:
        raise AssertionError("it is denied")

    policy = Permissions("bypass", [Rule(behavior="deny", tool="files", match="x")])
    await refusal(Toolkit("shell", [run], policy=policy).execute(ToolContext(), "run", {}))


async def test_tool_is_asked_once_for_all_who_decide_about_a_call() -> None:
    asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def assess(command: str, context: ToolContext) -> Assessment:
        asked.append((context.patterns, context.workdirs))
        return Assessment("pass", reaches="files.write")

    @tool(assess=assess, match_rule=lambda pattern, command: command == pattern)
    async def run(command: str, context: ToolContext) -> list[str]:
        return [*context.workdirs]

    rules = [Rule(behavior="deny", tool="files", match=word) for word in ("mv", "x" * 3_000)]
    toolkit = Toolkit("shell", [run], policy=Permissions("bypass", rules, workdirs=["/author"]))
    toolkit.operator_policy = Permissions("bypass", [Rule(behavior="deny", match="rm")])
    said = await toolkit.assess(ToolContext(), "run", {"command": "rm"}, ["ls", "rm"])
    assert (said.matches, 'deny * "rm"' in said.refusal) == (("rm",), True)
    # The rules about what it reaches are known only by its answer.
    of_files = ("mv", "x" * 3_000)
    assert asked == [(("ls", "rm"), ("/author",)), ((*of_files, "rm"), ("/author",))]
    await refusal(toolkit.execute(ToolContext(), "run", {"command": "mv"}))
    assert len(asked) == 4
    done = await toolkit.execute(ToolContext(), "run", {"command": "ls"})
    assert done.value == ["/author"]


async def test_assessment_and_explanation_say_that_the_policy_would_refuse() -> None:
    shell = Shell(policy=NO_RM)
    async with running_server() as server, server.room("host") as host:
        async with host.host(shell.toolkit), server.room("agent") as room:
            assert "deny shell.run" in (await room.assess("shell.run", {"command": "rm"})).refusal
            assert not (await room.assess("shell.run", {"command": "ls"})).refusal
            explained = await room.explain("shell.run", {"command": "rm"})
            assert (explained.would_run, explained.code) == (False, "permission_denied")
            assert (await room.explain("shell.run", {"command": "ls"})).would_run
    assert not shell.ran


@WAYS
async def test_records_say_what_the_policy_decided(way: Any) -> None:
    records = Records.memory()
    shell = Shell(policy=NO_RM, records=records)
    async with AsyncExitStack() as stack:
        invoke = await way(shell.toolkit, stack)
        await invoke("shell.run", {"command": "pwd"})
        await refusal(invoke("shell.run", {"command": "rm"}))
    found = [(record.decision, record.decided_by) for record in records.calls()]
    assert sorted(found) == [
        ("allowed", "policy: mode bypass"),
        ("denied", 'policy: rule deny shell.run "rm"'),
    ]


@WAYS
async def test_call_that_its_assess_refuses_did_not_run(way: Any) -> None:
    def refuse(context: ToolContext) -> Assessment:
        raise context.refuse(PermissionDenied("not you", executed="yes"))

    @tool(assess=refuse)
    async def run() -> None:
        raise AssertionError

    records = Records.memory()
    kit = Toolkit("shell", [run], policy=Permissions("bypass"), records=records)
    async with AsyncExitStack() as stack:
        await refusal((await way(kit, stack))("shell.run", {}))
    (record,) = records.calls()
    assert (record.decision, record.decided_by, record.executed) == ("denied", "tool", "no")


async def test_both_policies_have_to_allow_and_others_follow_their_toolkit() -> None:
    shell = Shell(policy=NO_RM)
    kept = shell.toolkit.without("lines")
    kept.operator_policy = Permissions("bypass", [Rule(behavior="deny", match="mv")])
    for command in ("rm", "mv"):
        await refusal(kept.execute(ToolContext(), "run", {"command": command}))
    await kept.execute(ToolContext(), "run", {"command": "ls"})
    await shell.toolkit.execute(ToolContext(), "run", {"command": "mv"})
    with pytest.raises(TypeError, match="policy must be Permissions"):
        shell.toolkit.policy = "bypass"  # type: ignore[assignment]


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


DENY_RUN = 'mode = "bypass"\n[[rule]]\nbehavior = "deny"\ntool = "shell.run"\n'


async def test_policy_file_is_read_again_and_a_mistake_keeps_the_rules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rules.toml"
    write(path, "moed = 1\n")
    with pytest.raises(RuleFileError, match=r"rules.toml:1"):
        PolicyFile(path)
    write(path, DENY_RUN)
    file, shell = PolicyFile(path), Shell()
    file.bind(shell.toolkit)

    async def run() -> Any:
        return await shell.toolkit.execute(ToolContext(), "run", {"command": "ls"})

    async def reload(times: int) -> None:
        for _ in range(times):
            await file.reload()

    await refusal(run())
    for text in ("moed = 1\n", None):
        write(path, text) if text else path.unlink()
        caplog.clear()
        await reload(3)
        assert len(caplog.records) == 1  # once for each version of the file
        await refusal(run())
    for number in range(1, len(DENY_RUN)):  # written in parts, of which some allow it
        write(path, DENY_RUN[:number])
        await reload(1)
        await refusal(run())
    write(path, 'mode = "bypass"\n')
    await reload(2)
    await run()


async def test_policy_file_that_becomes_a_link_to_nowhere_keeps_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    write(path, DENY_RUN)
    file, shell = PolicyFile(path), Shell()
    file.bind(shell.toolkit)
    path.unlink()
    path.symlink_to("x" * 300)  # a name that is too long
    await file.reload()
    await refusal(shell.toolkit.execute(ToolContext(), "run", {"command": "ls"}))
    with pytest.raises(RuleFileError, match="cannot be read"):
        PolicyFile(path)


async def test_policy_file_that_is_being_written_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_file, "_POLL_INTERVAL_S", 0.05)
    path = tmp_path / "rules.toml"
    write(path, DENY_RUN)
    file, shell = PolicyFile(path), Shell()
    file.bind(shell.toolkit)
    watching = asyncio.create_task(file.watch())
    head, _, rule = DENY_RUN.partition("[[rule]]")
    path.write_text(head, encoding="utf-8")
    for _ in range(30):  # whoever writes it takes some time
        await asyncio.sleep(0.01)
        with path.open("a", encoding="utf-8") as written:
            written.write("# a comment\n")
        await refusal(shell.toolkit.execute(ToolContext(), "run", {"command": "ls"}))
    with path.open("a", encoding="utf-8") as written:
        written.write("[[rule]]" + rule)
    await asyncio.sleep(0.2)
    await refusal(shell.toolkit.execute(ToolContext(), "run", {"command": "ls"}))
    watching.cancel()
