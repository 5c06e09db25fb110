"""`context.forward`: a tool that calls what its caller names, as that caller could itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.clients.ending_tokens import calling
from support.rooms.events import until
from toolbus import (
    Chunk,
    FileChunk,
    HostLost,
    NotFound,
    PermissionDenied,
    RoomClient,
    RoomException,
    Tool,
    ToolContext,
    ToolFailed,
    Toolkit,
    Turn,
    Unavailable,
    tool,
)
from toolbus.permissions.assessment import Assessment
from toolbus.room.room import connection_of
from toolbus_server.testing import FaultProxy, TestServer

RELAYED: dict[str, Any] = {
    "properties": {"tool": {"type": "string"}, "arguments": {"type": "object"}}
}


class Relay(Tool):
    """Forwards what its caller names."""

    name = "call"
    marks_entry = True

    async def execute(
        self,
        context: ToolContext,
        /,
        *_: Any,
        tool: str,
        arguments: dict[str, Any] | None = None,
        attachment: FileChunk | None = None,
    ) -> Chunk:
        return await context.forward(tool, arguments, attachment=attachment)

    def reached(self, arguments: Mapping[str, Any]) -> str:
        return str(arguments.get("tool", ""))

    async def assess(self, context: ToolContext, arguments: dict[str, Any]) -> Assessment:
        return await context.forward_assess(arguments["tool"], arguments.get("arguments"))


@tool
async def after_work(context: ToolContext, tool: str) -> Any:
    """Forward in a function, which has begun by then."""
    return await context.forward(tool)


@tool
async def facts(context: ToolContext) -> dict[str, Any]:
    """Say what the call is like."""
    principal = context.on_behalf_of
    assert context.is_hosted
    return {
        "caller": context.caller.name,
        "principal": None if principal is None else principal.name,
        "for": [each.name for each in context.forwarded_for],
        "own": dict(context.caller_context or {}),
        "has_long": context.deadline is not None and context.deadline > 100,
    }


@tool
async def fail() -> None:
    raise ToolFailed("no luck", retryable=True)


@tool
async def broken() -> None:
    raise KeyError("x")


@tool
async def report(context: ToolContext) -> str:
    context.emit({"half": True})
    return "reported"


@tool
async def large(size: int) -> str:
    return "x" * size


@tool
async def piece(size: int) -> bytes:
    return b"x" * size


@tool
async def size_of(attachment: FileChunk) -> int:
    return len(await attachment.read())


class Remove(Tool):
    """A tool with patterns of its own."""

    name = "remove"
    input_schema = {"properties": {"path": {"type": "string"}}}  # noqa: RUF012

    async def execute(self, context: ToolContext, /, *_: Any, path: str) -> None:
        raise AssertionError("it is only asked about")

    async def assess(self, context: ToolContext, arguments: dict[str, Any]) -> Assessment:
        asker = context.forwarded_for[-1].name if context.forwarded_for else ""
        return Assessment("ask", immune=True, message=f"removes it for {asker}")

    def match_rule(self, pattern: str, arguments: dict[str, Any]) -> bool:
        return str(arguments["path"]).startswith(pattern)


@tool
async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


@tool(idempotent=True)
async def hold(context: ToolContext) -> None:
    """Say that it runs, and never end."""
    await context.room.broadcast("holding")
    await asyncio.Event().wait()


WORK: list[Any] = [facts, fail, broken, report, large, piece, size_of, numbers, Remove()]


@asynccontextmanager
async def relayed(server: TestServer) -> AsyncIterator[tuple[RoomClient, RoomClient]]:
    """Host `relay` and `work`, each by its own participant; yield the latter's and ann's room."""
    async with AsyncExitStack() as stack:
        relay, work, ann = [
            await stack.enter_async_context(server.room(each)) for each in ("relay", "work", "ann")
        ]
        tools: list[Any] = [Relay(input_schema=RELAYED), after_work]
        await stack.enter_async_context(relay.host(Toolkit("relay", tools)))
        await stack.enter_async_context(work.host(Toolkit("work", WORK)))
        yield work, ann


async def error_of(room: RoomClient, tool: str, arguments: Any = None) -> tuple[Any, ...]:
    with pytest.raises(RoomException) as failed:
        await room.invoke(tool, arguments, retry=False)
    error = failed.value
    return error.code, error.executed, error.retryable, error.message, error.details


FAILURES: list[tuple[str, dict[str, Any], str]] = [
    ("work.fail", {}, "yes"),
    ("work.broken", {}, "yes"),
    ("work.large", {"size": "many"}, "no"),
    ("work.numbers", {"count": 1}, "no"),
    ("work.size_of", {}, "no"),
    ("work.nothing", {}, "no"),
    ("nobody.nothing", {}, "no"),
]


async def test_a_forwarded_call_fails_as_the_direct_one(server: TestServer) -> None:
    """CALL-32."""
    async with relayed(server) as (_, ann):
        for name, arguments, executed in FAILURES:
            direct = await error_of(ann, name, arguments)
            through = {"tool": name, "arguments": arguments}
            assert await error_of(ann, "relay.call", through) == direct
            assert direct[1] == executed
            code, ran, retryable, *rest = await error_of(ann, "relay.after_work", {"tool": name})
            if not arguments:
                assert [code, *rest] == [direct[0], *direct[3:]]
            assert ran == "yes"  # ERR-4: the function that forwards has run
            assert not retryable or executed == "yes"


async def test_all_of_a_call_goes_through(server: TestServer, tmp_path: Path) -> None:
    """The caller's own data, its deadline, progress, files, large results, streams."""
    (tmp_path / "file").write_bytes(b"x" * 600_000)
    async with relayed(server) as (_, ann):
        told = await ann.invoke(
            "relay.call", {"tool": "work.facts"}, caller_context={"a": 1}, timeout_s=200
        )
        assert told.value == {
            "caller": "relay",
            "principal": "ann",
            "for": ["ann"],
            "own": {"a": 1},
            "has_long": True,
        }
        seen: list[Any] = []
        reported = await ann.invoke("relay.call", {"tool": "work.report"}, on_progress=seen.append)
        assert (reported.value, seen) == ("reported", [{"half": True}])
        for name, size in (("large", 700_000), ("piece", 5_000_000)):
            asked = {"tool": f"work.{name}", "arguments": {"size": size}}
            chunk = await ann.invoke("relay.call", asked)
            got = await chunk.read() if isinstance(chunk, FileChunk) else chunk.value
            assert len(got) == size
        sent = {"tool": "work.size_of"}
        measured = await ann.invoke("relay.call", sent, attachment=tmp_path / "file")
        assert measured.value == 600_000
        asked = {"tool": "work.numbers", "arguments": {"count": 300}}
        async with ann.stream("relay.call", asked) as chunks:
            assert [chunk.value async for chunk in chunks] == list(range(300))
        async with ann.stream("relay.call", {"tool": "work.report"}) as chunks:
            assert [chunk.value async for chunk in chunks] == ["reported"]


async def test_a_loss_says_maybe_and_is_repeated_by_nobody(server: TestServer) -> None:
    """CALL-32: the tool is idempotent; what its caller called is not."""
    async with relayed(server) as (_, ann), AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy(server.url))
        weak = await stack.enter_async_context(server.room("weak", via=proxy))
        await stack.enter_async_context(weak.host(Toolkit("weak", [hold])))
        async with ann.events(["messages"]) as events:
            call = asyncio.create_task(ann.invoke("relay.call", {"tool": "weak.hold"}))
            await anext(aiter(events))
            proxy.reset()
            with pytest.raises(HostLost) as lost:
                await call
        assert (lost.value.executed, lost.value.retryable) == ("maybe", False)
        assert "digest" not in lost.value.details


async def test_the_room_of_the_caller_explains_and_describes(server: TestServer) -> None:
    """CALL-29: with `forwarding`, as its caller would see it."""
    found: dict[str, Any] = {}

    @tool
    async def look(context: ToolContext) -> None:
        room = context.room.forwarding()
        for name in ("fail", "facts"):
            found[name] = (await room.explain(f"work.{name}")).code  # type: ignore[attr-defined]
        proxy = await room.toolkit("work")
        found["tools"] = [each.name for each in proxy.manifest.tools]
        with pytest.raises(RuntimeError, match="a list cannot be forwarded"):
            await anext(room.toolkits())
        with pytest.raises(PermissionDenied):
            await proxy.call("fail")
        found["value"] = (await proxy.facts())["for"]
        found["all"] = len((await context.room.toolkit("work")).manifest.tools)

    api = calling(use_tools=True, deny=["work.fail"])
    async with (
        relayed(server),
        server.room("looker") as looker,
        looker.host(Toolkit("looker", [look])),
        server.room("eve", api=api) as eve,
    ):
        for _ in range(2):  # the second time the manifest is known
            await eve.call("looker.look")
            assert found["tools"] == [each.name for each in WORK_TOOLS if each.name != "fail"]
            assert (found["fail"], found["facts"]) == ("permission_denied", "")
            assert (found["value"], found["all"]) == (["eve"], len(WORK))
        with pytest.raises(RuntimeError, match="only a running tool forwards"):
            looker.forwarding()


REMOVES = {"tool": "work.remove", "arguments": {"path": "/tmp/x"}}


@pytest.mark.parametrize(
    ("asked", "behavior", "message"),
    [
        (REMOVES, "ask", "removes it for ann"),
        ({"tool": "relay.call", "arguments": REMOVES}, "ask", "removes it for ann"),
        ({"tool": "other.call", "arguments": REMOVES}, "deny", "other.call forwards too"),
    ],
)
async def test_a_tool_that_forwards_is_assessed_as_what_it_reaches(
    server: TestServer, asked: dict[str, Any], behavior: str, message: str
) -> None:
    """Two tools that forward are not one of them: rules about the second would be passed by."""
    async with (
        relayed(server) as (_, ann),
        server.room("other") as other,
        other.host(Toolkit("other", [Relay(input_schema=RELAYED)])),
    ):
        said = await ann.assess("relay.call", asked, patterns=["/tmp", "/home"])
        assert (said.behavior, said.reaches) == (behavior, "work.remove")
        assert said.message.startswith(message)
        assert said.matches == (("/tmp",) if behavior == "ask" else ())


async def test_a_question_that_is_refused_ends_as_the_call(server: TestServer) -> None:
    """Words and code are those of the call; what is only unreachable now is an immune ask."""
    api = calling(use_tools=True, deny=["work.fail"])
    async with relayed(server), server.room("eve", api=api) as eve:
        for asked in ({"tool": "work.fail"}, {"tool": "work.absent"}, {"tool": "no.such"}):
            with pytest.raises(RoomException) as refused:
                await eve.invoke("relay.call", asked, retry=False)
            with pytest.raises(type(refused.value)) as unanswered:
                await eve.assess("relay.call", asked)
            assert unanswered.value.message == refused.value.message


async def test_calls_of_one_caller_go_to_one_host_also_if_they_are_forwarded(
    server: TestServer,
) -> None:
    """CALL-29: an affinity to the caller is one to the asker."""

    def sticky(number: int) -> Toolkit:
        @tool(affinity="caller")
        async def host() -> int:
            return number

        return Toolkit("sticky", [host])

    async with relayed(server), AsyncExitStack() as stack:
        for number in range(2):
            room = server.room("keeper", instance=str(number))
            await stack.enter_async_context(room)
            await stack.enter_async_context(room.host(sticky(number)))
        found = set()
        for number in range(16):
            async with server.room(f"ann-{number}") as ann:
                direct = await ann.call("sticky.host")
                assert await ann.call("relay.call", tool="sticky.host") == direct
                found.add(direct)
        assert found == {0, 1}


async def test_what_a_host_forwards_to_itself_counts_for_those_who_asked(
    server: TestServer,
) -> None:
    """CALL-19: one of them cannot use up the turns of another."""
    order: list[str] = []
    may_end = asyncio.Semaphore(0)

    @tool(max_concurrency=1)
    async def one_by_one(context: ToolContext) -> None:
        order.append(context.forwarded_for[-1].name)
        await may_end.acquire()

    tools: list[Any] = [Relay(input_schema=RELAYED), one_by_one]
    asked = {"tool": "both.one_by_one"}
    async with (
        server.room("host") as host,
        host.host(Toolkit("both", tools)),
        server.room("ann") as ann,
        server.room("bob") as bob,
    ):
        calls_of_host = connection_of(host).runner.running_calls
        calls = [asyncio.create_task(ann.invoke("both.call", asked)) for _ in range(4)]
        await until(lambda: len(calls_of_host) == 8)
        calls.append(asyncio.create_task(bob.invoke("both.call", asked)))
        await until(lambda: len(calls_of_host) == 10)
        for _ in calls:
            may_end.release()
        await asyncio.gather(*calls)
        assert order == ["ann", "bob", "ann", "ann", "ann"]


WORK_TOOLS = Toolkit("work", WORK).tools


async def test_without_a_room_around_it_a_call_is_its_own(server: TestServer) -> None:
    with pytest.raises(Unavailable, match="this call has no room"):
        await ToolContext().forward("work.facts")
    async with relayed(server) as (_, ann):
        async with Turn(ann, always=[Toolkit("here", [after_work])]) as turn:
            told = await turn.call("here.after_work", tool="work.facts")
            assert (told["caller"], told["principal"], told["for"]) == ("ann", None, [])
            with pytest.raises(NotFound):
                await turn.call("here.after_work", tool="work.nothing")
