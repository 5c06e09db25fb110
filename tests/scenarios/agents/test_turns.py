"""What one turn of an agent can see and call: its own, required and dynamic toolkits together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.clients.raw_client import raw_participant
from support.parts.scripted_server import scripted_server
from toolbus import (
    AgentsGrant,
    ApiScope,
    EventStream,
    FileChunk,
    Message,
    Participant,
    RequiredToolkit,
    RoomClient,
    RoomEvent,
    Tool,
    ToolContext,
    ToolFailed,
    Toolkit,
    ToolkitBuilder,
    ToolkitConfig,
    Turn,
    builder_infos,
    tool,
)
from toolbus.errors import (
    Cancelled,
    DeadlineExceeded,
    DefinitionChanged,
    InvalidArguments,
    InvalidResult,
    NotFound,
    PermissionDenied,
    RoomException,
    TooLarge,
    Unavailable,
)
from toolbus.room.room import Room
from toolbus.wire import (
    MAX_FRAME_BYTES,
    Describe,
    Failed,
    Register,
    RequestId,
    Result,
    Subscribe,
    pack_body,
)
from toolbus_server.testing import TestServer, room_of, running_server


class Recorded(Tool):
    """A tool that records when it is started and stopped."""

    input_schema = {"properties": {}}  # noqa: RUF012 - as a tool's author writes it

    def __init__(self, name: str, diary: list[str], *, fails: bool = False) -> None:
        super().__init__(name)
        self.diary, self.fails = diary, fails
        self.room: Any = None

    async def start(self, room: Any) -> None:
        if self.fails:
            raise OSError("no disk")
        self.room = room
        self.diary.append(f"+{self.name}")

    async def stop(self) -> None:
        self.diary.append(f"-{self.name}")
        raise RuntimeError("stops badly")

    async def execute(self, context: ToolContext, /, **_: Any) -> Any:
        return f"{self.name} for {context.caller.name}"


class Diary(ToolkitBuilder[ToolkitConfig]):
    """Builds a toolkit of its own name with one recorded tool."""

    def __init__(self, name: str, diary: list[str], *, fails: bool = False) -> None:
        super().__init__(name, ToolkitConfig)
        self.diary, self.fails = diary, fails

    async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
        return Toolkit(self.name, [Recorded(self.name, self.diary, fails=self.fails)])


def greeter(version: str = "1") -> Toolkit:
    @tool(idempotent=True)
    async def greet(context: ToolContext, name: str) -> str:
        """Greet somebody."""
        principal = context.on_behalf_of
        asker = context.caller.name if principal is None else principal.name
        return f"hello {name}, from {context.caller.name} for {asker}"

    @tool
    async def insult(name: str) -> str:
        return f"{name}!"

    return Toolkit("greeter", [greet, insult], version=version)


def names(turn: Turn) -> list[str]:
    return [each.name for each in turn.tools]


def message_of(
    name: str, *asked: Any, builders: Sequence[str] = (), issuer: str = "toolbus-test"
) -> Message:
    sender = Participant(id="", name=name, issuer=issuer)
    return Message(sender, "question", {"tools": list(asked)}, True, tuple(builders))


@asynccontextmanager
async def agent_and_host(
    *toolkits: Toolkit, api: ApiScope | None = None
) -> AsyncIterator[tuple[TestServer, RoomClient]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server())
        host = await stack.enter_async_context(server.room("host"))
        for each in toolkits:
            await stack.enter_async_context(host.host(each))
        yield server, await stack.enter_async_context(server.room("agent", api=api))


# What is in a turn


async def test_turn_has_its_own_required_and_dynamic_tools_with_their_schemas() -> None:
    diary: list[str] = []
    async with agent_and_host(greeter()) as (_, agent):
        async with Turn(
            agent,
            always=[Toolkit("notes", [Recorded("write", diary)])],
            required=[RequiredToolkit("greeter", ["greet"])],
            builders=[Diary("extra", diary), Diary("unasked", diary)],
            tools=[ToolkitConfig(name="extra")],
        ) as turn:
            assert names(turn) == ["notes.write", "greeter.greet", "extra.extra"]
            greet = turn.tools[1]
            assert (greet.toolkit, greet.tool) == ("greeter", "greet")
            assert greet.description == "Greet somebody."
            assert greet.input_schema["required"] == ["name"]
            assert await turn.call("notes.write") == "write for agent"
            assert await turn.call("greeter.greet", {"name": "bob"}) == (
                "hello bob, from agent for agent"
            )
            assert await turn.call("extra.extra", {}) == "extra for agent"
            with pytest.raises(NotFound, match=r"its tools: notes\.write, greeter\.greet, ex"):
                await turn.call("greeter.insult", {"name": "bob"})
    assert diary == ["+write", "+extra", "-extra", "-write"]


async def test_rules_for_models_reach_the_turn_from_local_and_remote_toolkits() -> None:
    @tool(title="Look up", rules=["Ask for one city at a time."], read_only=True)
    async def look(city: str) -> str:
        """Look a city up."""
        return city

    @tool
    async def change(city: str) -> None: ...

    def toolkit(name: str) -> Toolkit:
        return Toolkit(name, [look, change], rules=["Use metric units.", "Be brief."])

    async with agent_and_host(toolkit("far")) as (_, agent):
        parts = {"always": [toolkit("near")], "required": [RequiredToolkit("far")]}
        async with Turn(agent, **parts) as turn:  # type: ignore[arg-type]  # each by its own name
            assert [(each.name, each.title) for each in turn.tools] == [
                ("near.look", "Look up"),
                ("near.change", "Change"),
                ("far.look", "Look up"),
                ("far.change", "Change"),
            ]
            got = [(each.rules, each.read_only) for each in turn.tools]
            assert got == [(("Ask for one city at a time.",), True), ((), False)] * 2
            together = {each.toolkit_rules for each in turn.tools}
            assert together == {("Use metric units.", "Be brief.")}


async def test_each_turn_sees_what_its_own_message_asked_for() -> None:
    diary: list[str] = []
    builders = [Diary("one", diary), Diary("two", diary)]
    async with room_of("agent") as (agent,):
        async with Turn(agent, builders=builders, tools=[ToolkitConfig(name="one")]) as first:
            async with Turn(agent, builders=builders, tools=[ToolkitConfig(name="two")]) as second:
                assert (names(first), names(second)) == (["one.one"], ["two.two"])
        async with Turn(agent, builders=builders) as third:
            assert names(third) == []


async def test_tools_that_the_rooms_own_grants_do_not_allow_are_hidden() -> None:
    grant = AgentsGrant(use_tools=True, call=True, allow=("greeter", "notes"), deny=("*.insult",))
    diary: list[str] = []
    notes = Toolkit("notes", [Recorded("write", diary), Recorded("insult", diary)])
    async with agent_and_host(greeter(), api=ApiScope(agents=grant)) as (_, agent):
        async with Turn(
            agent,
            always=[notes, Toolkit("secret", [Recorded("read", diary)])],
            required=[RequiredToolkit("greeter")],
        ) as turn:
            assert names(turn) == ["notes.write", "greeter.greet"]
            for hidden in ("notes.insult", "secret.read", "greeter.insult"):
                with pytest.raises(NotFound):
                    await turn.call(hidden)


# Names


def test_two_toolkits_of_one_name_are_refused() -> None:
    room = RoomClient("ws://127.0.0.1:1")
    with pytest.raises(ValueError, match="two toolkits of this turn are named 'notes'"):
        Turn(room, always=[Toolkit("notes")], required=[RequiredToolkit("notes")])


async def test_dynamic_toolkit_with_a_name_that_is_taken_is_named_with_its_path() -> None:
    diary: list[str] = []
    builders = [Diary("extra", diary), Diary("notes", diary)]
    asked = [ToolkitConfig(name=each) for each in ("extra", "notes")]
    async with room_of("agent") as (agent,):
        turn = Turn(agent, always=[Toolkit("notes")], builders=builders, tools=asked)
        with pytest.raises(
            InvalidArguments, match="/tools/1/name: this turn already has a toolkit notes"
        ):
            await turn.__aenter__()
    assert diary == []


# Beginning and ending


async def test_tools_that_were_started_are_stopped_when_another_cannot_start() -> None:
    diary: list[str] = []
    builders = [Diary("one", diary), Diary("two", diary), Diary("bad", diary, fails=True)]
    asked = [ToolkitConfig(name=each) for each in ("one", "two", "bad")]
    async with room_of("agent") as (agent,):
        turn = Turn(agent, builders=builders, tools=asked)
        with pytest.raises(OSError, match="no disk"):
            await turn.__aenter__()
        with pytest.raises(Unavailable):
            await turn.call("one.one")
    assert diary == ["+one", "+two", "-two", "-one"]


async def test_toolkit_that_two_turns_use_is_started_once_and_stopped_after_the_last() -> None:
    diary: list[str] = []
    notes = Toolkit("notes", [Recorded("write", diary)])
    async with room_of("agent") as (agent,):
        async with Turn(agent, always=[notes]):
            async with Turn(agent, builders=[notes], tools=[ToolkitConfig(name="notes")]) as inner:
                assert await inner.call("notes.write") == "write for agent"
            assert diary == ["+write"]
        assert diary == ["+write", "-write"]
        async with Turn(agent, always=[notes]):
            assert diary == ["+write", "-write", "+write"]


async def test_turn_that_has_ended_or_not_begun_refuses_calls() -> None:
    async with room_of("agent") as (agent,):
        turn = Turn(agent, always=[Toolkit("notes", [Recorded("write", [])])])
        with pytest.raises(Unavailable, match="not entered"):
            await turn.call("notes.write")
        async with turn:
            pass
        with pytest.raises(Unavailable, match="has ended") as raised:
            await turn.call("notes.write")
        assert (raised.value.executed, raised.value.retryable) == ("no", False)
        with pytest.raises(RuntimeError, match="entered once"):
            await turn.__aenter__()


def waiting() -> tuple[asyncio.Event, asyncio.Event, Any]:
    """Make a tool that waits forever, and the events of its start and of its end."""
    began, gone = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    return began, gone, wait


async def test_running_calls_end_with_the_turn() -> None:
    began, gone, wait = waiting()
    async with agent_and_host(Toolkit("far", [wait])) as (_, agent), asyncio.timeout(60):
        for parts in (
            {"always": [Toolkit("near", [wait])]},
            {"required": [RequiredToolkit("far")]},
        ):
            began.clear()
            gone.clear()
            async with Turn(agent, **parts) as turn:
                calling = asyncio.create_task(turn.call(turn.tools[0].name))
                await began.wait()
            with pytest.raises(Cancelled):
                await calling
            await gone.wait()


async def test_caller_that_gives_up_cancels_the_local_tool() -> None:
    began, gone, wait = waiting()
    async with room_of("agent") as (agent,), asyncio.timeout(60):
        async with Turn(agent, always=[Toolkit("near", [wait])]) as turn:
            calling = asyncio.create_task(turn.call("near.wait"))
            await began.wait()
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            assert gone.is_set()


# Calls that fail


async def test_local_tools_fail_as_those_elsewhere_do() -> None:
    causes = {"key": KeyError, "itself": asyncio.CancelledError, "exit": SystemExit}

    @tool
    async def fail(message: str | None = None, cause: str = "key") -> None:
        raise ToolFailed(message) if message else causes[cause]("secret")

    ends = []
    asked: list[dict[str, Any]] = [{"message": "my message"}, {}, {"cause": "itself"}]
    asked += [{"cause": "exit"}, {"message": 7}, {"more": 1}]
    async with agent_and_host(Toolkit("far", [fail])) as (_, agent), asyncio.timeout(60):
        async with Turn(
            agent, always=[Toolkit("near", [fail])], required=[RequiredToolkit("far")]
        ) as turn:
            for name in ("near.fail", "far.fail"):
                for arguments in asked:
                    with pytest.raises(RoomException) as raised:
                        await turn.call(name, arguments)
                    error = raised.value
                    ends.append((error.code, error.executed, error.message, error.details))
    assert ends[:6] == ends[6:]
    assert [end[:2] for end in ends[:6]] == [
        ("tool_failed", "yes"),
        ("tool_failed", "yes"),
        ("tool_failed", "yes"),
        ("tool_failed", "yes"),
        ("invalid_arguments", "no"),
        ("invalid_arguments", "no"),
    ]
    assert "secret" not in str(ends)


@pytest.mark.parametrize("arguments", [[], b"x", 7])
async def test_arguments_that_are_no_object_are_invalid(arguments: Any) -> None:
    async with room_of("agent") as (agent,):
        async with Turn(agent, always=[Toolkit("notes", [Recorded("write", [])])]) as turn:
            with pytest.raises(InvalidArguments):
                await turn.call("notes.write", arguments)
            for seconds in (float("nan"), float("inf"), "1", True):
                with pytest.raises(InvalidArguments):
                    await turn.invoke("notes.write", timeout_s=seconds)  # type: ignore[arg-type]


async def test_result_that_fits_no_frame_fails_here_as_it_does_elsewhere() -> None:
    limit = MAX_FRAME_BYTES - 32
    header = len(pack_body(["x" * limit])) - limit + 1  # the kind, before the text

    @tool
    async def give(count: int) -> str:
        return "x" * count

    ends = []
    async with agent_and_host(Toolkit("far", [give])) as (_, agent), asyncio.timeout(60):
        async with Turn(
            agent,
            always=[Toolkit("near", [give])],
            required=[RequiredToolkit("far")],
        ) as turn:
            for kit in ("near", "far"):
                assert len(await turn.call(f"{kit}.give", {"count": limit - header})) > 2**19
                with pytest.raises(TooLarge) as raised:
                    await turn.call(f"{kit}.give", {"count": limit - header + 1})
                error = raised.value
                ends.append((error.executed, error.retryable, error.message, error.details))
    assert ends[:1] == ends[1:]
    assert {end[:2] for end in ends} == {("yes", False)}


async def test_a_file_of_a_tool_that_runs_here_may_be_larger_than_a_frame(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * 3 * MAX_FRAME_BYTES)

    @tool
    async def whole() -> bytes:
        return b"x" * 3 * MAX_FRAME_BYTES

    @tool
    async def on_disk() -> FileChunk:
        return FileChunk.from_path(path)

    async with room_of("agent") as (agent,), asyncio.timeout(60):
        async with Turn(agent, always=[Toolkit("near", [whole, on_disk])]) as turn:
            for name in ("whole", "on_disk"):
                file = await turn.call(f"near.{name}")
                assert await file.read() == b"x" * 3 * MAX_FRAME_BYTES


async def test_a_stream_of_a_tool_that_runs_here_is_one_list() -> None:
    @tool
    async def rows(upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    @tool
    def rows_sync(upto: int) -> Iterator[dict[str, int]]:
        yield from ({"n": number} for number in range(upto))

    async with room_of("agent") as (agent,), asyncio.timeout(60):
        async with Turn(agent, always=[Toolkit("near", [rows, rows_sync])]) as turn:
            assert await turn.call("near.rows", {"upto": 3}) == [0, 1, 2]
            assert await turn.call("near.rows", {"upto": 0}) == []
            assert await turn.call("near.rows_sync", {"upto": 2}) == [{"n": 0}, {"n": 1}]


async def test_a_stream_that_is_no_list_of_one_frame_is_ended_here() -> None:
    ended: list[str] = []

    @tool
    async def endless() -> AsyncIterator[str]:
        try:
            while True:
                yield "x" * 100_000
        finally:
            ended.append("endless")

    @tool
    async def files() -> AsyncIterator[bytes]:
        yield b"x"

    async with room_of("agent") as (agent,), asyncio.timeout(60):
        async with Turn(agent, always=[Toolkit("near", [endless, files])]) as turn:
            with pytest.raises(TooLarge):
                await turn.call("near.endless")
            assert ended == ["endless"]
            with pytest.raises(InvalidResult, match="files or links"):
                await turn.call("near.files")


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_the_time_of_a_call_ends_a_stream_that_runs_here(sync: bool) -> None:
    @tool(name="rows")
    async def rows() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    @tool(name="rows")
    def rows_sync(context: ToolContext) -> Iterator[int]:
        yield 1
        while not context.cancelled:
            threading.Event().wait(0.01)

    async with room_of("agent") as (agent,), asyncio.timeout(60):
        kit = Toolkit("near", [rows_sync if sync else rows])
        async with Turn(agent, always=[kit]) as turn:
            with pytest.raises(DeadlineExceeded) as raised:
                await turn.invoke("near.rows", timeout_s=0.1)
            assert raised.value.executed == ("maybe" if sync else "yes")


async def test_sync_tools_run_as_many_at_a_time_as_they_say_whatever_else_is_on_threads() -> None:
    here, go = threading.Barrier(65), threading.Event()

    @tool(max_concurrency=64)
    def work() -> str:
        here.wait(10)
        return threading.current_thread().name

    async with room_of("agent") as (agent,), asyncio.timeout(60):
        default = [asyncio.create_task(asyncio.to_thread(go.wait, 10)) for _ in range(64)]
        async with Turn(agent, always=[Toolkit("near", [work])]) as turn:
            calls = [asyncio.create_task(turn.call("near.work")) for _ in range(64)]
            meeting = threading.Thread(target=here.wait, args=(10,))
            meeting.start()
            names_of_threads = set(await asyncio.gather(*calls))
        go.set()
        await asyncio.gather(*default)
    meeting.join()
    assert len(names_of_threads) == 64
    left = {each.name for each in threading.enumerate()} & names_of_threads
    for each in threading.enumerate():
        if each.name in left:
            each.join(5)
            assert not each.is_alive()


async def test_exception_of_a_local_tool_is_logged_in_its_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    async def fail() -> None:
        raise KeyError("its own words")

    async with room_of("agent") as (agent,):
        async with Turn(agent, always=[Toolkit("near", [fail])]) as turn:
            with pytest.raises(ToolFailed):
                await turn.call("near.fail")
    assert "tool near.fail raised" in caplog.text
    assert "its own words" in caplog.text


async def test_call_without_time_runs_nothing_here_and_elsewhere() -> None:
    ran: list[int] = []

    @tool
    async def run() -> None:
        ran.append(1)

    async with agent_and_host(Toolkit("far", [run])) as (_, agent):
        async with Turn(
            agent, always=[Toolkit("near", [run])], required=[RequiredToolkit("far")]
        ) as turn:
            for name in ("near.run", "far.run"):
                for seconds in (0, -1):
                    with pytest.raises(DeadlineExceeded) as raised:
                        await turn.invoke(name, timeout_s=seconds)
                    assert raised.value.executed == "no"
                with pytest.raises(InvalidArguments):
                    await turn.invoke(name, timeout_s=1e12)
    assert ran == []


def test_toolkit_serves_turns_of_one_event_loop_after_another() -> None:
    go = threading.Event()

    @tool
    def work() -> None:
        go.wait(10)

    notes = Toolkit("near", [work])  # its one slot is waited for, in both event loops

    async def answer() -> None:
        go.clear()
        async with room_of("agent") as (agent,), asyncio.timeout(60):
            async with Turn(agent, always=[notes]) as turn:
                first = asyncio.create_task(turn.call("near.work"))
                with pytest.raises(DeadlineExceeded):
                    await turn.invoke("near.work", timeout_s=0.05)
                go.set()
                await first

    for _ in range(2):
        asyncio.run(answer())


async def test_local_tool_keeps_its_time_and_the_callers() -> None:
    @tool(timeout_s=0.05)
    async def slow() -> None:
        await asyncio.Event().wait()

    @tool
    async def endless() -> None:
        await asyncio.Event().wait()

    async with room_of("agent") as (agent,), asyncio.timeout(60):
        async with Turn(agent, always=[Toolkit("near", [slow, endless])]) as turn:
            for name, seconds in (("near.slow", None), ("near.endless", 0.05)):
                with pytest.raises(DeadlineExceeded) as raised:
                    await turn.invoke(name, timeout_s=seconds)
                assert raised.value.executed == "yes"


async def test_sync_tool_keeps_its_slot_until_its_thread_has_ended() -> None:
    go, began = threading.Event(), threading.Semaphore(0)
    running, most = 0, 0
    lock = threading.Lock()

    @tool
    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        began.release()
        go.wait(10)
        with lock:
            running -= 1

    notes = Toolkit("near", [work])
    async with room_of("agent") as (agent,), asyncio.timeout(60):
        async with Turn(agent, always=[notes]) as first, Turn(agent, always=[notes]) as second:
            given_up = asyncio.create_task(first.invoke("near.work", timeout_s=0.05))
            await asyncio.to_thread(began.acquire)
            with pytest.raises(DeadlineExceeded) as raised:
                await given_up
            assert raised.value.executed == "maybe"
            with pytest.raises(DeadlineExceeded) as raised:
                await second.invoke("near.work", timeout_s=0.05)
            assert raised.value.executed == "no"
            go.set()
            await second.call("near.work")
    assert most == 1


async def test_sync_tool_sees_that_its_call_was_cancelled() -> None:
    got, began = threading.Event(), threading.Event()

    @tool
    def work(context: ToolContext) -> None:
        began.set()
        pause, patience = threading.Event(), 1_000
        while not context.cancelled and patience:
            pause.wait(0.01)
            patience -= 1
        if context.cancelled:
            got.set()

    async with room_of("agent") as (agent,), asyncio.timeout(60):
        async with Turn(agent, always=[Toolkit("near", [work])]) as turn:
            calling = asyncio.create_task(turn.call("near.work"))
            await asyncio.to_thread(began.wait, 5)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            assert await asyncio.to_thread(got.wait, 5)


async def test_call_within_a_local_call_has_no_more_time_than_that() -> None:
    @tool
    async def time_left(context: ToolContext) -> float | None:
        if context.caller.name == "agent":
            return context.deadline
        return None

    @tool
    async def ask(context: ToolContext) -> float:
        left: float = await context.room.call("far.time_left")
        return left

    async with agent_and_host(Toolkit("far", [time_left])) as (_, agent):
        async with Turn(agent, always=[Toolkit("near", [ask])]) as turn:
            assert 0 < (await turn.invoke("near.ask", timeout_s=7)).into(float) <= 7


async def test_changed_definition_is_refused_by_the_turn_that_read_another() -> None:
    async with running_server() as server, server.room("agent") as agent:
        async with server.room("host") as old, old.host(greeter("1")):
            async with Turn(agent, required=[RequiredToolkit("greeter")]) as turn:
                async with server.room("host") as new, new.host(greeter("2")):
                    with pytest.raises(DefinitionChanged):
                        await turn.call("greeter.greet", {"name": "bob"})


# On behalf of a sender


class Asking(ToolkitBuilder[ToolkitConfig]):
    """Builds a tool that calls the greeter through its context's room, and while it is built."""

    def __init__(self) -> None:
        super().__init__("asking", ToolkitConfig)
        self.received: list[str] = []

    async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
        self.received.append(await room.call("greeter.greet", name=model))
        plan = await room.explain("greeter.greet", {"name": "x"})
        self.received.append(f"would run: {plan.would_run}")

        @tool
        async def ask(context: ToolContext) -> str:
            proxy = await context.room.toolkit("greeter")
            principal = context.on_behalf_of or context.caller
            greeting: str = await proxy.greet(name=principal.name)
            return greeting

        return Toolkit("asking", [ask])


async def test_tools_requested_by_a_message_run_on_the_senders_behalf() -> None:
    asking = Asking()
    async with agent_and_host(greeter()) as (server, agent), server.room("bob"):
        async with Turn(
            agent,
            required=[RequiredToolkit("greeter")],
            builders=[asking],
            message=message_of("bob", {"name": "asking"}, builders=["ask*"]),
            model="m",
        ) as turn:
            assert asking.received == ["hello m, from agent for bob", "would run: True"]
            direct = await turn.call("greeter.greet", {"name": "x"})
            assert direct == "hello x, from agent for bob"
            assert await turn.call("asking.ask") == "hello bob, from agent for bob"


async def test_tools_that_were_built_are_started_for_the_sender_and_shared_ones_for_the_agent() -> (
    None
):
    diary: list[str] = []
    own, lent = Recorded("own", diary), Recorded("lent", diary)
    built: list[Recorded] = []

    class Building(Diary):
        async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
            built.append(Recorded("built", diary))
            return Toolkit("extra", built[:])

    async with agent_and_host(greeter()) as (server, agent), server.room("bob"):
        async with Turn(
            agent,
            always=[Toolkit("own", [own])],
            builders=[Toolkit("lent", [lent]), Building("extra", diary)],
            message=message_of("bob", {"name": "lent"}, {"name": "extra"}, builders=["*"]),
        ):
            assert own.room is agent
            assert lent.room is agent
            output = await built[0].room.call("greeter.greet", name="x")
            assert output == "hello x, from agent for bob"


async def test_tool_that_runs_in_process_gets_the_same_context_as_a_remote_one() -> None:
    @tool
    async def describe_context(context: ToolContext) -> list[str]:
        principal = context.on_behalf_of
        assert principal is None or principal.issuer == context.caller.issuer
        return [context.caller.id, context.caller.name, principal.name if principal else ""]

    async with (
        agent_and_host(Toolkit("far", [describe_context])) as (server, agent),
        server.room("bob"),
    ):
        own = Message(agent.me, "note", None, True)
        for message in (None, own, message_of("bob")):
            async with Turn(
                agent,
                always=[Toolkit("near", [describe_context])],
                required=[RequiredToolkit("far")],
                message=message,
            ) as turn:
                got = await turn.call("near.describe_context")
                assert got == await turn.call("far.describe_context")
                assert got == [agent.me.id, "agent", "bob" if message not in (None, own) else ""]


async def test_turn_is_not_made_with_the_room_of_a_running_tool() -> None:
    @tool
    async def ask(context: ToolContext) -> str:
        with pytest.raises(TypeError, match="an agent's RoomClient, not Room"):
            Turn(context.room)  # type: ignore[arg-type]  # what is tested
        return "refused"

    async with agent_and_host(Toolkit("far", [ask])) as (_, agent):
        assert await agent.call("far.ask") == "refused"


async def test_agent_that_is_the_sender_acts_for_itself() -> None:
    async with agent_and_host(greeter()) as (_, agent):
        async with Turn(
            agent, required=[RequiredToolkit("greeter")], message=message_of("agent")
        ) as turn:
            output = await turn.call("greeter.greet", {"name": "x"})
            assert output == "hello x, from agent for agent"


async def test_sender_of_another_issuer_with_the_agents_name_is_refused() -> None:
    async with room_of("agent") as (agent,):
        with pytest.raises(PermissionDenied):
            await Turn(agent, message=message_of("agent", issuer="elsewhere")).__aenter__()


async def test_agent_without_the_grant_to_act_for_its_sender_reaches_nothing_for_it() -> None:
    api = ApiScope(agents=AgentsGrant(use_tools=True, call=True))
    async with agent_and_host(greeter(), api=api) as (server, agent), server.room("bob"):
        async with Turn(
            agent, required=[RequiredToolkit("greeter")], message=message_of("bob")
        ) as turn:
            with pytest.raises(PermissionDenied):
                await turn.call("greeter.greet", {"name": "x"})
            asking = Asking()
            with pytest.raises(PermissionDenied):
                await asking.make(turn._view(), "m", ToolkitConfig(name="asking"))
            assert not (await turn._view().explain("greeter.greet", {"name": "x"})).would_run


async def test_sender_without_the_grant_for_a_builder_is_denied_and_nothing_is_built() -> None:
    asking, diary = Asking(), list[str]()
    async with agent_and_host(greeter()) as (_, agent):
        turn = Turn(
            agent,
            builders=[asking, Diary("extra", diary)],
            message=message_of("bob", {"name": "extra"}, {"name": "asking"}, builders=["extra"]),
        )
        with pytest.raises(PermissionDenied, match="/tools/1: no grant for builder asking"):
            await turn.__aenter__()
    assert (asking.received, diary) == ([], [])


async def test_requests_outside_of_the_bodys_tools_need_the_senders_grant_too() -> None:
    diary: list[str] = []
    builders = [Diary("extra", diary), Diary("hidden", diary)]
    async with room_of("agent", "bob") as (agent, _):
        for name, granted in (("extra", True), ("hidden", False)):
            message = message_of("bob", {"name": "nothing"}, builders=["extra"])
            turn = Turn(agent, builders=builders, message=message, tools=[{"name": name}])
            if granted:
                async with turn:
                    assert names(turn) == ["extra.extra"]
                continue
            with pytest.raises(PermissionDenied, match="/tools/0: no grant for builder hidden"):
                await turn.__aenter__()
    assert diary == ["+extra", "-extra"]


@pytest.mark.parametrize("tools", [[{"name": "extra"}], "extra", {"name": "extra"}, [None]])
def test_json_without_its_message_is_refused(tools: Any) -> None:
    """Otherwise configs of another participant would be built with the agent's own grants."""
    room = RoomClient("ws://127.0.0.1:1")
    with pytest.raises(TypeError, match="pass message= to build"):
        Turn(room, builders=[Diary("extra", [])], tools=tools)
    with pytest.raises(TypeError, match="message must be a Message, not Participant"):
        Turn(room, message=Participant(id="", name="bob"))  # type: ignore[arg-type]  # tested


@pytest.mark.parametrize("body", [None, "tools", ["tools"], {}, {"tools": None}, {"tools": []}])
async def test_message_without_requests_gets_a_turn_without_dynamic_toolkits(
    body: Any,
) -> None:
    async with room_of("agent", "bob") as (agent, bob):
        message = Message(bob.me, "question", body, True)
        async with Turn(agent, message=message, builders=[Diary("extra", [])]) as turn:
            assert names(turn) == []


@pytest.mark.parametrize("tools", ["extra", 7, {"name": "extra"}, [7]])
async def test_message_whose_tools_are_no_configs_is_refused_with_its_path(tools: Any) -> None:
    async with room_of("agent", "bob") as (agent, bob):
        message = Message(bob.me, "question", {"tools": tools}, True, ("*",))
        with pytest.raises(InvalidArguments, match=r"^/tools"):
            await Turn(agent, message=message, builders=[Diary("extra", [])]).__aenter__()


# By message


async def test_message_requests_toolkits_with_the_senders_grant() -> None:
    """SEND-3, BUILD-1, BUILD-2."""
    asking, diary = Asking(), list[str]()
    builders = [asking, Diary("extra", diary), Diary("hidden", diary)]
    grant = AgentsGrant(call=True, builders=("asking", "extra"))
    api = ApiScope(agents=grant, messaging=True)
    async with agent_and_host(greeter()) as (server, agent), asyncio.timeout(60):
        await agent.offer_builders(builder_infos(builders))
        async with agent.events(["messages"]) as events, server.room("bob", api=api) as bob:
            offered = await bob.list_builders("agent")
            assert [each.name for each in offered] == ["asking", "extra"]
            assert offered[0].schema["properties"]["name"] == {"type": "string", "const": "asking"}
            wanted = [{"name": each.name} for each in offered]
            await bob.send("agent", "question", {"text": "hello", "tools": wanted})
            message = await next_message(events)
            async with Turn(
                agent,
                builders=builders,
                message=message,
                model="m",
            ) as turn:
                assert names(turn) == ["asking.ask", "extra.extra"]
                assert await turn.call("asking.ask") == "hello bob, from agent for bob"
            await bob.send("agent", "question", {"tools": [{"name": "hidden"}]})
            message = await next_message(events)
            refused = Turn(
                agent,
                builders=builders,
                message=message,
            )
            with pytest.raises(PermissionDenied, match="/tools/0: no grant for builder hidden"):
                await refused.__aenter__()
    assert diary == ["+extra", "-extra"]


async def next_message(events: EventStream[RoomEvent]) -> Message:
    while (message := (await anext(events)).message) is None:
        pass
    return message


# Required toolkits


async def test_turn_waits_for_a_required_toolkit_that_is_registered_later() -> None:
    async with room_of("agent", "host") as (agent, host), asyncio.timeout(60):
        finding = asyncio.create_task(RequiredToolkit("greeter", ["greet"]).find(agent))
        async with host.host(Toolkit("other")), host.host(greeter()):
            proxy = await finding
            assert await proxy.greet(name="x") == "hello x, from agent for agent"


async def test_turn_waits_for_a_required_tool_of_a_newer_definition() -> None:
    async with room_of("agent", "host") as (agent, host), asyncio.timeout(60):
        async with host.host(Toolkit("greeter", [Recorded("wave", [])])):
            wanted = RequiredToolkit("greeter", ["greet"])
            with pytest.raises(NotFound, match="greeter has no greet; it has: wave"):
                await RequiredToolkit("greeter", ["greet", "wave"], timeout_s=0).find(agent)
            finding = asyncio.create_task(wanted.find(agent))
            async with room_of_same(agent, host) as again, again.host(greeter()):
                assert (await finding).tool("greet").name == "greet"


@asynccontextmanager
async def room_of_same(agent: RoomClient, host: RoomClient) -> AsyncIterator[RoomClient]:
    """Admit another instance of the host's identity."""
    settings = host._settings
    assert settings is not None
    async with RoomClient(settings.url, room=settings.room, token=settings.token) as another:
        yield another


async def test_turn_waits_for_many_required_toolkits_concurrently() -> None:
    wanted = [RequiredToolkit(f"t{n}") for n in range(20)]
    async with room_of("agent", "host") as (agent, host), asyncio.timeout(60):
        async with AsyncExitStack() as stack:
            finding = [asyncio.create_task(each.find(agent)) for each in wanted]
            for each in reversed(wanted):
                await stack.enter_async_context(
                    host.host(Toolkit(each.name, [Recorded("write", [])]))
                )
            found = await asyncio.gather(*finding)
    assert [proxy.info.name for proxy in found] == [each.name for each in wanted]


@pytest.mark.parametrize("timeout_s", [0, 0.1])
async def test_missing_toolkit_is_not_found_and_the_error_lists_the_available_ones(
    timeout_s: float,
) -> None:
    async with agent_and_host(greeter()) as (_, agent), asyncio.timeout(60):
        with pytest.raises(NotFound) as raised:
            await RequiredToolkit("gretter", timeout_s=timeout_s).find(agent)
        expected_message = str(raised.value)
        assert expected_message.startswith(
            "toolkit gretter does not exist; available toolkits: greeter"
        )
        assert ("waited 0.1 s" in expected_message) == (timeout_s > 0)
        assert raised.value.details == {"toolkit": "gretter", "tools": []}
        with pytest.raises(
            NotFound, match="greeter of bob does not exist; available toolkits of bob: no"
        ):
            await RequiredToolkit("greeter", participant="bob", timeout_s=timeout_s).find(agent)


async def test_turn_whose_required_toolkit_is_missing_builds_nothing() -> None:
    diary: list[str] = []
    async with room_of("agent") as (agent,):
        turn = Turn(
            agent,
            always=[Toolkit("notes", [Recorded("write", diary)])],
            required=[RequiredToolkit("greeter", timeout_s=0)],
            builders=[Diary("extra", diary)],
            tools=[ToolkitConfig(name="extra")],
        )
        with pytest.raises(NotFound, match="greeter does not exist"):
            await turn.__aenter__()
    assert diary == []


async def test_turn_waits_until_a_toolkit_has_a_host_again() -> None:
    """REG-18."""
    manifest = greeter().manifest().model_dump(mode="json", exclude_defaults=True)
    needed = RequiredToolkit("greeter")
    async with running_server() as server, server.room("agent") as agent, asyncio.timeout(60):
        async with raw_participant(server, "host") as lost:
            lost.send_frame(Register(RequestId(1), pack_body(manifest), {}))
            assert isinstance(await lost.reply_to(1), Result)
            assert (await needed.find(agent)).info.hosts == 1
            async with agent.events(["toolkits"]) as events:
                lost.abort()
                assert (event := await anext(events)).toolkit is not None
                assert (event.toolkit.name, event.toolkit.hosts) == ("greeter", 0)
        with pytest.raises(NotFound, match="toolkit greeter has no host at the moment"):
            await RequiredToolkit("greeter", timeout_s=0).find(agent)
        finding = asyncio.create_task(needed.find(agent))
        async with server.room("host") as back, back.host(greeter()):
            assert (await finding).info.hosts == 1


async def test_private_toolkit_of_an_owner_is_required_and_called_by_its_owner() -> None:
    async with room_of("agent", "host") as (agent, host):
        async with host.host(greeter(), public=False, shared_with=["name:agent"]):
            needed = RequiredToolkit("greeter", participant="host", timeout_s=0)
            async with Turn(agent, required=[needed]) as turn:
                output = await turn.call("greeter.greet", {"name": "x"})
                assert output == "hello x, from agent for agent"


async def test_waiting_needs_the_grant_for_events_of_toolkits() -> None:
    api = ApiScope(agents=AgentsGrant(call=True), presence=True, messaging=True)
    async with agent_and_host(greeter(), api=api) as (_, agent), asyncio.timeout(60):
        assert await RequiredToolkit("greeter").find(agent)
        with pytest.raises(
            PermissionDenied, match="other does not exist, and waiting for it needs the grant"
        ):
            await RequiredToolkit("other").find(agent)
        with pytest.raises(NotFound, match=r"other does not exist$"):
            await RequiredToolkit("other", timeout_s=0).find(agent)


async def test_waiting_continues_after_a_connection_is_lost_during_a_request() -> None:
    manifest = greeter().manifest().model_dump(mode="json")
    owner = {"name": "host", "issuer": "test"}
    summary = {key: manifest[key] for key in ("name", "title", "description", "version")}
    summary |= {"digest": "d", "public": True, "owner": owner, "hosts": 1, "tools": ["greet"]}
    grants = ApiScope(agents=AgentsGrant(use_tools=True, call=True))
    async with scripted_server(grants) as server, asyncio.timeout(60):
        async with RoomClient(server.url, room="lab", token="t") as agent:
            connection = await server.next_connection()
            finding = asyncio.ensure_future(RequiredToolkit("greeter").find(agent))
            asked = await connection.next_of(Describe)
            await connection.send(Failed(asked.id, "not_found", "no", False, "nothing", None, None))
            await connection.answer(Subscribe, {"topics": ["toolkits"]})
            await connection.next_of(Describe)
            await connection.websocket.close()
            connection = await server.next_connection()
            await connection.answer(Subscribe, {"topics": ["toolkits"]})
            await connection.answer(Describe, {"toolkit": summary, "manifest": manifest})
            await connection.answer(Subscribe, {"topics": []})
            assert (await finding).info.hosts == 1
            await connection.websocket.close()


async def test_requirement_keeps_its_timeout_if_no_server_is_reachable() -> None:
    async with AsyncExitStack() as exit_stack, asyncio.timeout(60):
        async with running_server() as server:
            agent = await exit_stack.enter_async_context(server.room("agent"))
        with pytest.raises(Unavailable, match="no reply from a server about toolkit greeter"):
            await RequiredToolkit("greeter", timeout_s=0.1).find(agent)


async def test_waiting_ends_with_the_room() -> None:
    async with running_server() as server, asyncio.timeout(60):
        async with server.room("agent") as agent:
            finding = asyncio.create_task(RequiredToolkit("missing").find(agent))
            async with server.room("host") as host, host.host(greeter()) as other:
                assert (await agent.toolkit(other.name)).info.name == "greeter"
        with pytest.raises(RoomException):
            await finding


@pytest.mark.parametrize(
    ("arguments", "expected_message"),
    [
        ({"name": "A"}, "not a toolkit name"),
        ({"name": 7}, "not a toolkit name"),
        ({"name": "a", "tools": "greet"}, "a list of names"),
        ({"name": "a", "tools": []}, "a list of names"),
        ({"name": "a", "tools": ["x.y"]}, "not a tool name"),
        ({"name": "a", "participant": ""}, "not a participant name"),
        ({"name": "a", "timeout_s": -1}, "seconds, 0 or more"),
        ({"name": "a", "timeout_s": float("inf")}, "seconds, 0 or more"),
        ({"name": "a", "timeout_s": "5"}, "seconds, 0 or more"),
    ],
)
def test_invalid_requirement_is_refused(arguments: dict[str, Any], expected_message: str) -> None:
    with pytest.raises(ValueError, match=expected_message):
        RequiredToolkit(**arguments)
