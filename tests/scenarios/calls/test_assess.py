"""`room.assess`: what a tool elsewhere says about one input, without running it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from support.clients.raw_client import raw_participant
from support.clients.raw_requests import ask, failure_of, next_of, offer
from support.nodes.cluster import nodes, until_listed
from support.parts.scripted_server import ScriptedConnection, scripted_server
from support.redis.server import any_redis
from toolbus import (
    AgentsGrant,
    ApiScope,
    DeadlineExceeded,
    ExternalTool,
    InvalidArguments,
    InvalidResult,
    PermissionDenied,
    Permissions,
    RoomClient,
    RoomException,
    Rule,
    ToolContext,
    Toolkit,
    tool,
)
from toolbus.permissions.assessment import Assessment, assessment_of_flags
from toolbus.wire import (
    ASSESS_VERSION,
    Assess,
    AssessDispatch,
    Describe,
    Explain,
    Result,
    ToolManifest,
    pack_body,
)
from toolbus_server.testing import TestServer, room_of

RAN: list[str] = []
"""The commands that were run, not only asked about."""


@tool(destructive=True)
async def run(command: str) -> str:
    RAN.append(command)
    return command


RAISED: dict[str, BaseException] = {
    "exit": SystemExit(3),
    "cancel itself": asyncio.CancelledError(),
    "break": KeyError("x"),
}


class Shell(Toolkit):
    """Assesses the input of each call; `answers` has what it says about some of them."""

    def __init__(self, name: str = "shell", **options: Any) -> None:
        super().__init__(name, [run], **options)
        self.asked: list[tuple[Any, ...]] = []
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    async def assess(
        self,
        context: ToolContext,
        name: str,
        arguments: dict[str, Any],
        patterns: Sequence[str] = (),
    ) -> Assessment:
        principal = context.on_behalf_of
        self.asked.append((name, context.caller.name, principal and principal.name, arguments))
        command = arguments["command"]
        if command == "wait":
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()
        if command == "call":
            await context.room.call("shell.run", command="from within")
        if command == "ask":
            return await context.room.assess("shell.run", {"command": "ls"}, patterns=patterns)
        if command in RAISED:
            raise RAISED[command]
        if command == "large":
            return Assessment("pass", preview="x" * 2**20)
        parts = [
            tuple(each for each in patterns if part.startswith(each.removesuffix(":*")))
            for part in command.split(" && ")
        ]
        return Assessment(
            "pass",
            read_only=command == "ls",
            matches=tuple(chain(*parts)),
            parts=tuple(parts) if len(parts) > 1 else (),
            refusal="rule deny shell.run" if command == "rm" else "",
        )


@asynccontextmanager
async def shell(
    server: TestServer, **options: Any
) -> AsyncIterator[tuple[RoomClient, RoomClient, Shell]]:
    """Host `shell`; yield the room of its host, that of ann, and the toolkit."""
    RAN.clear()
    toolkit = Shell()
    async with server.room("ops") as ops, server.room("ann", **options) as ann:
        async with ops.host(toolkit):
            yield ops, ann, toolkit
        assert RAN == []


def relay_of(name: str) -> Toolkit:
    """A toolkit that passes calls on to `shell`, and questions about them too."""

    class Relay(Toolkit):
        async def assess(
            self,
            context: ToolContext,
            name: str,
            arguments: dict[str, Any],
            patterns: Sequence[str] = (),
        ) -> Assessment:
            room = context.room.forwarding()
            found = await room.assess(arguments["tool"], arguments["arguments"], patterns=patterns)
            return replace(found, reaches=arguments["tool"])

    @tool
    async def call(context: ToolContext, tool: str, arguments: dict[str, Any]) -> Any:
        return await context.forward(tool, arguments)

    return Relay(name, [call])


async def test_a_remote_tool_says_what_one_input_would_do_and_nothing_runs(
    server: TestServer,
) -> None:
    async with shell(server) as (_, ann, toolkit):
        patterns = ["ls:*", "rm:*"]
        reads = await ann.assess("shell.run", {"command": "ls"}, patterns=patterns)
        assert (reads.read_only, reads.matches, reads.source) == (True, ("ls:*",), "tool")
        removes = await ann.assess("shell.run", {"command": "rm"}, patterns=patterns)
        assert (removes.read_only, removes.matches) == (False, ("rm:*",))
        assert toolkit.asked[0] == ("run", "ann", None, {"command": "ls"})
        assert [info.assesses async for info in ann.toolkits()] == [True]
        many = await ann.assess("shell.run", {"command": "x" * 2**17})  # read in slices
        assert many.source == "tool"
        for wrong in (["x"] * 65, "ls:*"):
            with pytest.raises(InvalidArguments, match="patterns"):
                await ann.assess("shell.run", {"command": "ls"}, patterns=wrong)


async def test_explain_asks_the_tool_about_arguments(server: TestServer) -> None:
    """EXPLAIN-1: a call that the policy of its host refuses would not run."""
    async with shell(server) as (_, ann, toolkit):
        assert (await ann.explain("shell.run")).assessment is None
        assert toolkit.asked == []
        reads = await ann.explain("shell.run", {"command": "ls"})
        assert reads.would_run
        assert reads.assessment == Assessment("pass", read_only=True)
        removes = await ann.explain("shell.run", {"command": "rm"})
        assert (removes.would_run, removes.code) == (False, "permission_denied")
        assert removes.message.endswith("refuses shell.run: rule deny shell.run")
        # An `assess` that fails leaves what the server said.
        large = await ann.explain("shell.run", {"command": "large"})
        assert (large.would_run, large.assessment) == (True, None)


async def test_a_tool_is_cancelled_with_the_question(server: TestServer) -> None:
    async with shell(server) as (_, ann, toolkit):
        asking = asyncio.create_task(ann.assess("shell.run", {"command": "wait"}))
        async with asyncio.timeout(60):
            await toolkit.began.wait()
            asking.cancel()
            await toolkit.ended.wait()
        with pytest.raises(DeadlineExceeded) as late:
            await ann.assess("shell.run", {"command": "wait"}, timeout_s=0.05)
        assert late.value.executed == "no"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("large", "invalid_result"),
        ("call", "permission_denied"),
        ("break", "internal"),
        ("exit", "internal"),
        ("cancel itself", "cancelled"),
    ],
)
async def test_what_a_tool_must_not_do_when_it_is_asked_fails(
    server: TestServer, command: str, code: str
) -> None:
    """ASSESS-5, ASSESS-6: the host goes on."""
    async with shell(server) as (_, ann, _):
        with pytest.raises(RoomException) as failed:
            await ann.assess("shell.run", {"command": command})
        assert (failed.value.code, failed.value.executed) == (code, "no")
        assert (await ann.assess("shell.run", {"command": "ls"})).read_only


NONSENSE = [
    b"\xc1",
    pack_body(None),
    pack_body([2, "text"]),
    pack_body({}),
    pack_body({"behavior": "run"}),
    pack_body({"behavior": "pass", "read_only": "yes"}),
    pack_body({"behavior": "pass", "later": "x" * (2**20 - 100)}),
]


async def test_an_answer_that_is_no_assessment_is_an_error(server: TestServer) -> None:
    """ASSESS-6, BODY-2."""
    async with (
        raw_participant(server, "ops", query="&assess=1") as ops,
        server.room("ann") as ann,
    ):
        await ask(ops, offer())
        for body in NONSENSE:
            asking = asyncio.create_task(ann.assess("echo.say", {}))
            asked = await next_of(ops, AssessDispatch)
            ops.send_frame(Result(asked.id, body))
            with pytest.raises(InvalidResult, match="no assessment") as failed:
                await asking
            assert failed.value.executed == "no"


async def test_a_tool_that_passes_calls_on_passes_the_question_on(server: TestServer) -> None:
    """CALL-29, ASSESS-5, ASSESS-8: it is asked for the caller, in whose name it is refused too."""
    denied = ApiScope(agents=AgentsGrant(call=True, deny=["shell"]))
    async with shell(server) as (_, ann, toolkit), server.room("hub") as hub:
        async with hub.host(relay_of("relay")), server.room("bob", api=denied) as bob:
            asked: dict[str, Any] = {"tool": "shell.run", "arguments": {"command": "ls"}}
            found = await ann.assess("relay.call", asked, patterns=["ls:*"])
            assert (found.reaches, found.matches) == ("shell.run", ("ls:*",))
            assert toolkit.asked == [("run", "hub", "ann", {"command": "ls"})]
            line = asked | {"arguments": {"command": "make && rm && ls"}}
            found = await ann.assess("relay.call", line, patterns=["rm:*", "ls:*"])
            assert found.parts == ((), ("rm:*",), ("ls:*",))
            with pytest.raises(PermissionDenied, match=r"no grant to call shell\.run"):
                await bob.assess("relay.call", asked)


async def test_an_older_server_is_only_asked_what_it_knows() -> None:
    """ASSESS-7: it never receives the frame; flags answer, or the error of the call."""
    tool: dict[str, Any] = {
        "name": "run",
        "input_schema": {},
        "idempotent": False,
        "approval": True,
    }
    manifest: dict[str, Any] = {"name": "shell", "tools": [tool]}
    summary: dict[str, Any] = {
        "name": "shell",
        "title": "",
        "description": "",
        "version": "",
        "digest": "d" * 64,
    }
    summary |= {"public": True, "owner": {"name": "ops", "issuer": "test"}, "hosts": 1}
    summary |= {"tools": ["run"]}
    explained: dict[str, Any] = {"would_run": True, "hosts": 1, "generation": 1, "digest": "d" * 64}
    explained |= {"affinity": False}
    explained |= {"host": {"id": "p2", "name": "ops", "role": "user", "issuer": "test"}}
    refused = {"would_run": False, "code": "permission_denied", "message": "no", "details": {}}

    async def serve(connection: ScriptedConnection) -> None:
        asked = await connection.answer(Explain, explained)
        assert (asked.toolkit, asked.options) == ("shell", {"pin": "d" * 64})
        await connection.answer(Describe, {"toolkit": summary, "manifest": manifest})
        await connection.answer(Explain, refused)

    async with scripted_server(ApiScope.full()) as server:
        server.version = ASSESS_VERSION - 1
        async with RoomClient(server.url, room="main", token="e30.e30.t") as ann:
            serving = asyncio.create_task(serve(await server.next_connection()))
            found = await ann.assess("shell.run", {"command": "ls"}, pin="d" * 64)
            assert found == assessment_of_flags(
                ToolManifest(**manifest["tools"][0]), source="manifest"
            )
            assert (found.behavior, found.immune) == ("ask", True)
            with pytest.raises(PermissionDenied, match=r"^no$"):
                await ann.assess("shell.run", {"command": "ls"})
            await serving


ASKS = Permissions("bypass", [Rule(behavior="ask", tool="shell.wipe")])
DENIES = Permissions("bypass", [Rule(behavior="deny", tool="shell.wipe")])


@pytest.mark.parametrize(
    ("policy", "approval", "asks", "refusal"),
    [
        (None, False, "", ""),
        (None, True, "shell.wipe asks that a person approves each call", ""),
        (Permissions("bypass"), True, "shell.wipe asks that a person approves each call", ""),
        (ASKS, False, "The rule ask shell.wipe", ""),
        (ASKS, True, "The rule ask shell.wipe", ""),
        (DENIES, True, "", "The rule deny shell.wipe"),
    ],
)
async def test_host_says_whether_it_would_ask_a_person(
    policy: Permissions | None, approval: bool, asks: str, refusal: str
) -> None:
    @tool(approval=approval)
    async def wipe() -> None: ...

    async with room_of("ops", "ann") as (ops, ann):
        async with ops.host(Toolkit("shell", [wipe], policy=policy)):
            found = await ann.assess("shell.wipe", {})
            explained = await ann.explain("shell.wipe", {})
            without_arguments = await ann.explain("shell.wipe")
    assert explained.asks == found.asks
    by_flag = "the tool asks that a person approves each call" if approval else ""
    assert without_arguments.asks == by_flag
    for words, said in ((asks, found.asks), (refusal, found.refusal)):
        assert said.startswith(words)
        assert bool(said) is bool(words)
    assert explained.would_run is not bool(refusal)
    assert explained.assessment == found


async def test_explain_says_that_somebody_outside_gives_the_result() -> None:
    async with room_of("ops", "ann") as (ops, ann):
        async with ops.host(Toolkit("desk", [ExternalTool("review", {})])):
            flagged, asked = await ann.explain("desk.review"), await ann.explain("desk.review", {})
    assert flagged.asks == asked.asks == "somebody outside its host gives the result of each call"


@pytest.mark.redis
async def test_a_tool_at_another_node_is_asked_and_ends_with_its_node() -> None:
    """ASSESS-4, CALL-13: over two nodes, also for a principal; a lost host ends the question."""
    toolkit = Shell()
    async with any_redis() as redis, nodes(redis) as (here, there), asyncio.timeout(60):
        async with here.room("ann") as ann, here.room("agent") as agent:
            async with there.room("ops") as ops, ops.host(toolkit):
                await until_listed(ann, "shell")
                for room in (ann, agent):
                    behalf = None if room is ann else "ann"
                    found = await room.assess(
                        "shell.run", {"command": "ls"}, patterns=["ls"], on_behalf_of=behalf
                    )
                    assert (found.read_only, found.matches) == (True, ("ls",))
                assert [each[1:3] for each in toolkit.asked] == [("ann", None), ("agent", "ann")]
                asking = asyncio.create_task(ann.assess("shell.run", {"command": "wait"}))
                await toolkit.began.wait()
                asking.cancel()
                await toolkit.ended.wait()
            async with (
                raw_participant(here, "caller") as caller,
                raw_participant(there, "raw", query="&assess=1") as raw,
            ):
                await ask(raw, offer())
                await until_listed(ann, "echo")
                packed = pack_body({})
                caller.send_frame(Assess(8, "c" * 32, "echo", "say", None, packed, None, ["x"]))
                assert (await next_of(raw, AssessDispatch)).patterns == ["x"]
                raw.abort()
                lost = await failure_of(caller, 8)
                assert (lost.code, lost.executed) == ("host_lost", "no")
        for node in (here, there):
            router = node.server.hub.router
            assert (router.in_flight, router.succeeded, router.failures.total()) == (0, 0, 0)
    assert RAN == []
