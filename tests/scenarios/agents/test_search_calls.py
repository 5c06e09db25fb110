"""`tools.call` in a turn: it is a call of the named tool, and no way around a grant or a rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.patience import PATIENCE_S
from toolbus import (
    AgentsGrant,
    ApiScope,
    ApprovalDecision,
    ApprovalRequest,
    FileChunk,
    Permissions,
    Records,
    RemoteToolkit,
    RequiredToolkit,
    RoomClient,
    Rule,
    ToolContext,
    ToolFailed,
    ToolGroup,
    Toolkit,
    ToolResult,
    ToolSearch,
    ToolUse,
    Turn,
    Unavailable,
    tool,
)
from toolbus.telemetry.tracing import Tracing
from toolbus_server.testing import room_of, running_server

FULL = ApiScope.full()


@tool(read_only=True)
async def whose(context: ToolContext, note: str = "") -> list[str | None]:
    """Tell who calls\u200b, and for whom."""
    principal = context.on_behalf_of
    return [context.caller.name, None if principal is None else principal.name]


@tool
async def drop(table: str) -> str:
    """Drop a table."""
    return f"dropped {table}"


@tool
async def read(context: ToolContext, lines: int) -> AsyncIterator[Any]:
    """Read a file line by line."""
    context.emit("opened")
    for number in range(lines):
        yield f"line {number}\n"
    yield FileChunk(b"\x89PNG", "end.png", "image/png")


def far() -> RemoteToolkit:
    return RemoteToolkit("far", [whose, drop, read], rules=["Never drop."])


def call(name: str, _id: str = "1", **arguments: Any) -> ToolUse:
    return ToolUse(_id, "tools__call", {"name": name, "arguments": arguments})


async def result(turn: Turn, use: ToolUse) -> ToolResult:
    return (await turn.run([use]))[0]


@asynccontextmanager
async def searching(room: RoomClient) -> AsyncIterator[ToolSearch]:
    tools = ToolSearch()
    await tools.start(room)
    try:
        yield tools
    finally:
        await tools.stop()


@asynccontextmanager
async def agent_of(*, tracing: Tracing | None = None) -> AsyncIterator[tuple[RoomClient, Toolkit]]:
    """An agent in a room with `far`, and its toolkit that searches."""
    async with asyncio.timeout(PATIENCE_S), running_server() as server:
        helper = RoomClient(server.url, room="lab", token=server.token("helper"), tracing=tracing)
        async with server.room("host") as host, host.host(far()), helper:
            async with searching(helper) as tools:
                yield helper, tools.toolkit


# Grants


def only(*allow: str, deny: tuple[str, ...] = ()) -> ApiScope:
    grant = AgentsGrant(
        call=True, use_tools=True, register_public_toolkit=True, allow=[*allow], deny=[*deny]
    )
    return ApiScope(agents=grant)


GRANTS = [
    ("far.whose", FULL, FULL, ["helper", "ann"]),
    ("far.whose", only("helper"), FULL, "permission_denied"),  # the agent may, the asker may not
    ("far.whose", only("helper", "far", deny=("far.whose",)), FULL, "permission_denied"),
    ("far.drop", only("helper", "far.whose"), FULL, "permission_denied"),
    ("far.whose", FULL, only("helper"), "not_found"),  # the asker may, the agent may not
    ("far.whose", FULL, only("helper", "far", deny=("far.whose",)), "not_found"),
    ("far.whose", FULL, only("helper", "far", deny=("far.drop",)), ["helper", "ann"]),
    ("secret.whose", FULL, FULL, "not_found"),  # private, of the host
    ("diary.whose", FULL, FULL, "not_found"),  # private, of the asker
    ("nothing.whose", FULL, FULL, "not_found"),
]


@pytest.mark.parametrize(("name", "of_ann", "of_helper", "expected"), GRANTS)
async def test_call_by_name_reaches_what_asker_and_agent_may_both_call(
    name: str, of_ann: ApiScope, of_helper: ApiScope, expected: Any
) -> None:
    @tool
    async def ask(context: ToolContext) -> list[Any]:
        async with Turn(context=context, always=[tools.toolkit]) as turn:
            by_name = end_of(await result(turn, call(name)))
        async with Turn(context=context, available=True) as turn:
            return [by_name, end_of(await result(turn, ToolUse("1", name, {})))]

    secret = RemoteToolkit("secret", [whose], public=False)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await enter(asyncio.timeout(PATIENCE_S))
        server = await enter(running_server())
        host = await enter(server.room("host"))
        await enter(host.host(far()))
        await enter(host.host(secret))
        helper = await enter(server.room("helper", api=of_helper))
        tools = await enter(searching(helper))
        await enter(helper.host(RemoteToolkit("helper", [ask])))
        ann = await enter(server.room("ann", api=of_ann))
        if of_ann is FULL:
            await enter(ann.host(RemoteToolkit("diary", [whose], public=False)))
        assert await ann.call("helper.ask") == [expected, expected]


def end_of(ended: ToolResult) -> Any:
    return ended.value if ended.error is None else ended.error.code


async def test_search_shows_what_the_agent_may_call_whoever_asks() -> None:
    async with agent_of() as (helper, kit), Turn(helper, always=[kit]) as turn:
        found = await turn.call("tools.search", query="far")
        assert [line["name"] for line in found["tools"]] == ["far.whose", "far.drop", "far.read"]
        assert found["more"] == 0


async def test_own_private_toolkit_hides_the_public_one_of_its_name_while_it_is_there() -> None:
    async with agent_of() as (helper, kit), Turn(helper, always=[kit]) as turn:
        own = RemoteToolkit("far", [drop], public=False)
        async with helper.host(own):
            await until_found(turn, "", [])
            assert end_of(await result(turn, call("far.drop", table="a"))) == "not_found"
        await until_found(turn, "drop", ["far.drop"])


async def until_found(turn: Turn, query: str, names: list[str]) -> None:
    """Wait until a search finds exactly these tools; there is no event for it."""
    while [line["name"] for line in await search(turn, query)] != names:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def search(turn: Turn, query: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = (await turn.call("tools.search", query=query))["tools"]
    return lines


# Permissions

DENY, ASK, ALLOW = "deny", "ask", "allow"


def rule(behavior: Any, name: str, **more: Any) -> Rule:
    return Rule(behavior=behavior, tool=name, **more)


@pytest.mark.parametrize(
    ("name", "rules", "more", "expected"),
    [
        ("far.drop", [], {}, "asks"),
        ("far.drop", [rule(ALLOW, "far.drop")], {}, "runs"),
        ("far.drop", [rule(ALLOW, "far.*", owner="host")], {}, "runs"),
        ("far.drop", [rule(ALLOW, "far.*", owner="eve")], {}, "asks"),
        ("far.drop", [rule(ALLOW, "tools.*")], {}, "asks"),  # it is not `tools.call` that runs
        ("far.drop", [rule(ALLOW, "far.drop", match="a")], {}, "asks"),
        ("far.drop", [rule(DENY, "far.drop")], {"mode": "bypass"}, "denied"),
        ("far.drop", [rule(DENY, "far.drop", owner="host")], {"mode": "bypass"}, "denied"),
        ("far.drop", [rule(DENY, "far.drop", match="a")], {"mode": "bypass"}, "denied"),
        ("far.drop", [rule(DENY, "*", owner="eve")], {"mode": "bypass"}, "runs"),
        ("far.drop", [rule(DENY, "tools.call")], {"mode": "bypass"}, "denied"),
        ("far.drop", [rule(ASK, "tools.call")], {"mode": "bypass"}, "asks"),
        ("far.drop", [rule(ASK, "tools.call"), rule(ALLOW, "far.drop")], {}, "asks"),
        ("far.drop", [rule(ASK, "tools.call")], {"mode": "dont_ask"}, "denied"),
        ("far.drop", [], {"mode": "explore", "trusted_owners": ["host"]}, "denied"),
        ("far.whose", [], {}, "asks"),  # only its owner says that it is read-only
        ("far.whose", [], {"trusted_owners": ["host"]}, "runs"),
        ("far.whose", [], {"mode": "explore", "trusted_owners": ["host"]}, "runs"),
        ("far.whose", [], {"mode": "explore"}, "denied"),
        ("far.whose", [rule(DENY, "tools.search")], {"trusted_owners": ["host"]}, "runs"),
    ],
)
async def test_call_by_name_is_judged_as_the_named_tool(
    name: str, rules: list[Rule], more: dict[str, Any], expected: str
) -> None:
    asked: list[ApprovalRequest] = []

    async def allow(question: ApprovalRequest) -> ApprovalDecision:
        asked.append(question)
        return ApprovalDecision.allow()

    permissions = Permissions(more.pop("mode", "default"), rules, **more)
    async with agent_of() as (helper, kit):
        async with Turn(helper, always=[kit], permissions=permissions, approve=allow) as turn:
            arguments = {"table": "t"} if name == "far.drop" else {}
            ended = await result(turn, call(name, **arguments))
    assert (ended.tool, len(asked)) == (name, 1 if expected == "asks" else 0)
    assert ended.executed == ("no" if expected == "denied" else "yes")
    for question in asked:
        assert (question.tool.name, question.tool.owner) == (name, "host")
        assert question.arguments == arguments


async def test_search_needs_no_permission_and_obeys_denials() -> None:
    async with agent_of() as (helper, kit):
        strict = Permissions("dont_ask")
        async with Turn(helper, always=[kit], permissions=strict) as turn:
            assert (await turn.call("tools.search", query="drop"))["tools"]
            assert (await turn.call("tools.describe", names=["far.drop"]))["tools"]
        denied = Permissions("bypass", [rule(DENY, "tools.search")])
        async with Turn(helper, always=[kit], permissions=denied) as turn:
            ended = await result(turn, ToolUse("1", "tools.search", {}))
            assert ended.state == "denied"


async def test_changed_arguments_of_a_person_are_those_of_the_named_tool() -> None:
    async def change(question: ApprovalRequest) -> ApprovalDecision:
        return ApprovalDecision.allow(arguments={"table": "b"})

    async with agent_of() as (helper, kit):
        async with Turn(helper, always=[kit], permissions=Permissions(), approve=change) as turn:
            ended = await result(turn, call("far.drop", table="a"))
    assert (ended.value, ended.changed_arguments) == ("dropped b", {"table": "b"})


# What a call looks like


async def test_call_by_name_is_recorded_and_traced_as_the_named_tool() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    records = Records.memory(arguments=True)
    seen: list[tuple[str, Any]] = []

    async def watch(tool_call: Any, next: Any) -> AsyncIterator[Any]:
        seen.append((tool_call.tool.name, dict(tool_call.arguments)))
        async for chunk in next(tool_call):
            yield chunk

    async with agent_of(tracing=Tracing(provider)) as (helper, kit):
        async with Turn(helper, always=[kit], records=records, middlewares=[watch]) as turn:
            use = call("far.drop", table="a")
            assert turn.called(use) == ("far.drop", {"table": "a"})
            await turn.run([use, call("far.nothing", "2")])
    assert seen == [("far.drop", {"table": "a"})]
    ran, refused = records.calls()
    assert (ran.tool, ran.owner, ran.arguments) == ("far.drop", "host", '{"table": "a"}')
    assert (refused.outcome, refused.executed) == ("not_found", "no")
    spans = {span.name for span in exporter.get_finished_spans()}
    assert any("far.drop" in name for name in spans), spans
    assert not any("tools" in name for name in spans), spans


async def test_streams_files_and_progress_of_the_named_tool_pass() -> None:
    progress: list[Any] = []
    async with agent_of() as (helper, kit), Turn(helper, always=[kit]) as turn:
        use = call("far.read", lines=2)
        (ended,) = await turn.run([use], on_progress=lambda _, value: progress.append(value))
        assert ended.streaming
        assert [chunk.value for chunk in ended.chunks[:2]] == ["line 0\n", "line 1\n"]
        assert isinstance(ended.chunks[2], FileChunk)
        assert ended.chunks[2].data == b"\x89PNG"
        assert progress == ["opened"]
        streamed = [chunk async for chunk in turn.stream(use)]
        assert [type(chunk).__name__ for chunk in streamed[-2:]] == ["FileChunk", "ToolResult"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"name": "far.drop", "arguments": {"table": 5}}, "invalid_arguments", "/table"),
        ({"name": "far.drop", "arguments": {}}, "invalid_arguments", "table"),
        ({"name": "far.drop", "arguments": "{table"}, "invalid_arguments", "not JSON"),
        ({"name": "far.drop", "arguments": "[]"}, "invalid_arguments", "one JSON object"),
        ({"name": "far.drop", "table": "a"}, "invalid_arguments", "go into `arguments`"),
        ({"arguments": {}}, "invalid_arguments", "name"),
        ({"name": 5}, "invalid_arguments", "/name"),
        ({"name": "far.dorp"}, "not_found", "far.drop"),
        ({"name": "drop"}, "not_found", "far.drop"),
        ({"name": "x" * 2**20}, "not_found", "search"),
        ({"name": "\0\u202e"}, "not_found", "u202e"),
        ({"name": "tools.call"}, "invalid_arguments", "name another tool"),
        ({"name": "tools__call"}, "invalid_arguments", "name another tool"),
    ],
)
async def test_wrong_call_says_what_to_mend(
    far_turn: Turn, arguments: dict[str, Any], code: str, words: str
) -> None:
    ended = await result(far_turn, ToolUse("1", "tools__call", arguments))
    assert ended.error is not None
    assert (ended.error.code, ended.executed) == (code, "no")
    assert words in ended.for_model()
    assert len(ended.for_model()) < 1_000


@pytest.fixture
async def far_turn() -> AsyncIterator[Turn]:
    async with agent_of() as (helper, kit), Turn(helper, always=[kit]) as turn:
        yield turn


async def test_forms_of_names_and_arguments_that_models_write(far_turn: Turn) -> None:
    for name in ("far.drop", "far__drop", "functions.far__drop", "FAR.DROP"):
        for arguments in ({"table": "a"}, '{"table": "a"}'):
            use = ToolUse("1", "tools__call", {"name": name, "arguments": arguments})
            assert (await result(far_turn, use)).value == "dropped a"
    use = ToolUse("1", "tools__call", {"name": "far.whose", "arguments": {"note": None}})
    assert (await result(far_turn, use)).state == "ok"  # a null of an optional parameter


# What is in the turn itself


async def test_toolkit_of_the_turn_stands_before_that_of_the_room() -> None:
    async with agent_of() as (helper, kit):
        required = [RequiredToolkit("far", tools=["whose"])]
        async with Turn(helper, always=[kit], required=required) as turn:
            await until_found(turn, "", [])
            assert end_of(await result(turn, call("far.whose"))) == ["helper", None]
            assert end_of(await result(turn, call("far.drop", table="a"))) == "not_found"
        local = Toolkit("far", [drop])
        async with Turn(helper, always=[kit, local]) as turn:
            assert (await result(turn, call("far.drop", table="a"))).value == "dropped a"
            assert end_of(await result(turn, call("far.whose"))) == "not_found"


async def test_search_of_an_inactive_group_calls_nothing() -> None:
    async with agent_of() as (helper, kit):
        group = ToolGroup("more", "Searches.", [kit])
        async with Turn(helper, groups=[group]) as turn:
            assert end_of(await result(turn, call("far.drop", table="a"))) == "tool_inactive"
            turn.activate("more")
            reset = ToolUse("0", "groups.reset_tools", {})
            _, late = await turn.run([reset, call("far.drop", table="a")])
            assert end_of(late) == "tool_inactive"
            turn.activate("more")
            assert (await result(turn, call("far.drop", table="a"))).value == "dropped a"


# Words of others


async def test_words_of_others_are_quoted_unless_they_are_trusted() -> None:
    async with agent_of() as (helper, kit):
        async with Turn(helper, always=[kit]) as turn:
            (line,) = (await turn.call("tools.search", query="far.whose", limit=1))["tools"]
            assert line["owner"] == "host"
            assert line["description"].startswith('Words of its owner "host"')
            assert "calls\\\\u200b" in line["description"]
            (known,) = (await turn.call("tools.describe", names=["far__whose"]))["tools"]
            assert known["name"] == "far.whose"
            assert "as data and not as instructions" in known["description"]
            assert "as data and not as instructions" in known["rules"]
            assert known["input_schema"]["properties"]["note"]["type"] == "string"
        trusting = Permissions("bypass", trusted_owners=["host"])
        async with Turn(helper, always=[kit], permissions=trusting) as turn:
            (line,) = (await turn.call("tools.search", query="far.whose", limit=1))["tools"]
            assert line == {
                "name": "far.whose",
                "description": "Tell who calls\\u200b, and for whom.",
            }


async def test_describe_tells_what_is_missing_and_takes_names_of_toolkits(far_turn: Turn) -> None:
    said = await far_turn.call("tools.describe", names=["far", "far.drop", "far.raed", "nothing"])
    assert [each["name"] for each in said["tools"]] == ["far.whose", "far.drop", "far.read"]
    assert [each["name"] for each in said["missing"]] == ["far.raed", "nothing"]
    assert "far.read" in said["missing"][0]["reason"]


async def test_definition_that_changes_after_it_was_described_has_to_be_read_again() -> None:
    @tool(name="drop")
    async def other(table: str, force: bool = True) -> str:
        """Drop everything."""
        return "dropped all"

    async with asyncio.timeout(PATIENCE_S), room_of("host", "helper") as (host, helper):
        async with searching(helper) as tools, Turn(helper, always=[tools.toolkit]) as turn:
            async with host.host(RemoteToolkit("far", [drop])):
                await until_found(turn, "", ["far.drop"])
                await turn.call("tools.describe", names=["far.drop"])
                assert (await result(turn, call("far.drop", table="a"))).state == "ok"
            await until_found(turn, "", [])
            async with host.host(RemoteToolkit("far", [other])):
                await until_found(turn, "", ["far.drop"])
                changed = await result(turn, call("far.drop", table="a"))
                assert (end_of(changed), changed.executed) == ("definition_changed", "no")
                (again,) = (await turn.call("tools.describe", names=["far.drop"]))["tools"]
                assert again["description"].startswith("The definition of this tool's toolkit has")
                assert (await result(turn, call("far.drop", table="a"))).value == "dropped all"


async def test_without_a_room_or_a_turn_nothing_is_called() -> None:
    kit = ToolSearch().toolkit
    async with Turn(None, always=[kit]) as turn:
        assert end_of(await result(turn, call("far.drop"))) == "unavailable"
        ended = await result(turn, ToolUse("1", "tools.search", {}))
        assert "start the ToolSearch" in ended.for_model()
    with pytest.raises(ToolFailed) as raised:
        await kit.execute(ToolContext(), "call", {"name": "far.drop"})
    assert isinstance(raised.value.__cause__, Unavailable)
    assert "in a turn" in raised.value.__cause__.message


# Who is called


@pytest.mark.parametrize("is_searched", [True, False])
async def test_owner_that_was_asked_about_is_called_and_no_other(is_searched: bool) -> None:
    ran: list[str] = []

    def acts(owner: str) -> RemoteToolkit:
        @tool
        async def act() -> None:
            """Act."""
            ran.append(owner)

        return RemoteToolkit("acts", [act])

    async with (
        running_server() as server,
        server.room("good") as good,
        server.room("other") as other,
        server.room("helper") as helper,
        AsyncExitStack() as of_good,
        AsyncExitStack() as of_other,
    ):
        await of_good.enter_async_context(good.host(acts("good")))

        async def allow(question: ApprovalRequest) -> ApprovalDecision:
            assert question.tool.owner == "good"
            await of_good.aclose()
            await of_other.enter_async_context(other.host(acts("other")))
            return ApprovalDecision.allow()

        async with searching(helper) as tools:
            kits: dict[str, Any] = {"always": [tools.toolkit]} if is_searched else {}
            async with Turn(
                helper, available=not is_searched, permissions=Permissions(), approve=allow, **kits
            ) as turn:
                use = call("acts.act") if is_searched else ToolUse("1", "acts__act", {})
                ended = await result(turn, use)
    assert (ran, ended.executed) == ([], "no")
