"""Tools of a turn that run in the process of the agent: they end and fail as remote ones do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE_S
from support.rooms.failures import late_in_its_tool
from support.rooms.turns import Recorded, agent_and_host, greeter
from toolbus import (
    FileChunk,
    LinkChunk,
    RequiredToolkit,
    ToolContext,
    ToolFailed,
    Toolkit,
    Turn,
    tool,
)
from toolbus.errors import (
    Cancelled,
    DeadlineExceeded,
    DefinitionChanged,
    InvalidArguments,
    InvalidResult,
    RoomException,
    TooLarge,
)
from toolbus.wire import (
    MAX_FRAME_BYTES,
    pack_body,
)
from toolbus_server.testing import room_of, running_server


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

    @tool
    async def links() -> AsyncIterator[LinkChunk]:
        yield LinkChunk("https://example.org")

    async with room_of("agent") as (agent,), asyncio.timeout(60):
        async with Turn(agent, always=[Toolkit("near", [endless, files, links])]) as turn:
            with pytest.raises(TooLarge):
                await turn.call("near.endless")
            assert ended == ["endless"]
            for name in ("near.files", "near.links"):
                with pytest.raises(InvalidResult, match="files or links"):
                    await turn.call(name)


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_the_time_of_a_call_ends_a_stream_that_runs_here(sync: bool) -> None:
    began = threading.Event()

    @tool(name="rows")
    async def rows() -> AsyncIterator[int]:
        began.set()
        yield 1
        await asyncio.Event().wait()

    @tool(name="rows")
    def rows_sync(context: ToolContext) -> Iterator[int]:
        began.set()
        yield 1
        while not context.cancelled:
            threading.Event().wait(0.01)

    async with room_of("agent") as (agent,), asyncio.timeout(60):
        kit = Toolkit("near", [rows_sync if sync else rows])
        async with Turn(agent, always=[kit]) as turn:
            error = await late_in_its_tool(
                lambda limit_s: turn.invoke("near.rows", timeout_s=limit_s), began.is_set
            )
            assert error.executed == ("maybe" if sync else "yes")


@pytest.mark.parametrize(("options", "count"), [({"max_concurrency": 64}, 64), ({}, 8)])
async def test_sync_tools_run_as_many_at_a_time_as_they_say_whatever_else_is_on_threads(
    options: Any, count: int
) -> None:
    here, go = threading.Barrier(count + 1), threading.Event()

    @tool(**options)
    def work() -> str:
        here.wait(PATIENCE_S)
        return threading.current_thread().name

    async with room_of("agent") as (agent,), asyncio.timeout(60):
        default = [asyncio.create_task(asyncio.to_thread(go.wait, PATIENCE_S)) for _ in range(64)]
        async with Turn(agent, always=[Toolkit("near", [work])]) as turn:
            calls = [asyncio.create_task(turn.call("near.work")) for _ in range(count)]
            meeting = threading.Thread(target=here.wait, args=(10,))
            meeting.start()
            names_of_threads = set(await asyncio.gather(*calls))
        go.set()
        await asyncio.gather(*default)
    meeting.join()
    assert len(names_of_threads) == count
    left = {each.name for each in threading.enumerate()} & names_of_threads
    for each in threading.enumerate():
        if each.name in left:
            each.join(PATIENCE_S)
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
        go.wait(PATIENCE_S)

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

    @tool(timeout_s=0.05)
    async def stubborn() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "late"

    @tool
    async def endless() -> None:
        await asyncio.Event().wait()

    kit = Toolkit("near", [slow, stubborn, endless])
    own, of_call = "own time limit of 0.05 s", "near.endless did not end within 1 s"
    cases = [("slow", None, own), ("stubborn", None, own), ("endless", 1, of_call)]
    async with room_of("agent") as (agent,), asyncio.timeout(60):
        async with Turn(agent, always=[kit]) as turn:
            for name, seconds, text in cases:
                with pytest.raises(DeadlineExceeded, match=text) as raised:
                    await turn.invoke(f"near.{name}", timeout_s=seconds)
                assert raised.value.executed == "yes"


async def test_the_time_of_a_tool_here_begins_when_its_call_has_a_slot() -> None:
    @tool(timeout_s=0.3, max_concurrency=1)
    async def work(hangs: bool) -> str:
        if hangs:
            await asyncio.Event().wait()
        for _ in range(3):
            await asyncio.sleep(0)  # a call that is out of time ends here
        return "done"

    async with room_of("agent") as (agent,), asyncio.timeout(60):
        async with Turn(agent, always=[Toolkit("near", [work])]) as turn:
            first = asyncio.create_task(turn.call("near.work", hangs=True))
            second = asyncio.create_task(turn.call("near.work", hangs=False))
            with pytest.raises(DeadlineExceeded):
                await first
            assert await second == "done"


async def test_sync_tool_keeps_its_slot_until_its_thread_has_ended() -> None:
    go, began = threading.Event(), threading.Semaphore(0)
    running, most = 0, 0
    lock = threading.Lock()

    @tool(concurrency_safe=False)
    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        began.release()
        go.wait(PATIENCE_S)
        with lock:
            running -= 1

    notes = Toolkit("near", [work])
    async with room_of("agent") as (agent,), asyncio.timeout(60):
        async with Turn(agent, always=[notes]) as first, Turn(agent, always=[notes]) as second:
            given_up = await late_in_its_tool(
                lambda limit_s: first.invoke("near.work", timeout_s=limit_s),
                lambda: began.acquire(blocking=False),
            )
            assert given_up.executed == "maybe"
            with pytest.raises(DeadlineExceeded) as raised:
                await second.invoke("near.work", timeout_s=0.05)
            assert raised.value.executed == "no"
            go.set()
            await second.call("near.work")
    assert most == 1


@pytest.mark.parametrize("limit_s", [None, 0.05])
async def test_sync_tool_sees_that_its_call_was_cancelled(limit_s: float | None) -> None:
    """By its caller, or by its own time limit."""
    got, began = threading.Event(), threading.Event()

    @tool(timeout_s=limit_s)
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
            await asyncio.to_thread(began.wait, PATIENCE_S)
            if limit_s is None:
                calling.cancel()
            with pytest.raises(asyncio.CancelledError if limit_s is None else DeadlineExceeded):
                await calling
            assert await asyncio.to_thread(got.wait, PATIENCE_S)


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
    @tool
    async def letters(text: str) -> AsyncIterator[str]:
        yield text

    def version(number: str) -> Toolkit:
        return Toolkit("words", [letters, *greeter().tools], version=number)

    async with running_server() as server, server.room("agent") as agent:
        async with server.room("host") as old, old.host(version("1")):
            async with Turn(agent, required=["words"]) as turn:
                async with server.room("host") as new, new.host(version("2")):
                    for name, arguments in (("greet", {"name": "bob"}), ("letters", {"text": "a"})):
                        with pytest.raises(DefinitionChanged):
                            await turn.call(f"words.{name}", arguments)
