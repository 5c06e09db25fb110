"""Calls of a turn with all their options: tools in this process and elsewhere behave alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from support.rooms.turns import agent_and_host, message_of
from toolbus import (
    AgentState,
    CallNext,
    Chunk,
    FileChunk,
    InputStream,
    InvalidArguments,
    InvalidResult,
    Middleware,
    Overloaded,
    PermissionDenied,
    RequiredToolkit,
    RoomException,
    TextChunk,
    ToolCall,
    ToolContext,
    ToolFailed,
    Toolkit,
    ToolUse,
    Turn,
    tool,
)
from toolbus.wire import MAX_FRAME_BYTES

KITS = ("near", "far")


@tool
async def size(attachment: FileChunk) -> int:
    return len(await attachment.read())


@tool
async def total(numbers: InputStream[int]) -> int:
    return sum([number async for number in numbers])


@tool
def lines(attachment: InputStream[bytes]) -> int:
    return b"".join(attachment).count(b"\n")


@tool
async def doubled(numbers: InputStream[int]) -> AsyncIterator[int]:
    async for number in numbers:
        yield 2 * number


@tool
async def echo(text: str) -> str:
    return text


@tool(supports_context=True)
async def facts(context: ToolContext) -> dict[str, Any]:
    for step in ("half", {"done": True}):
        context.emit(step)
    context.emit("x" * 20_000)  # too large, dropped
    if not context.wants_progress:
        return {"progress": "not wanted"}
    principal = context.on_behalf_of
    return {"given": context.caller_context, "for": principal and principal.name}


TOOLS: list[Any] = [size, total, lines, doubled, echo, facts]


@asynccontextmanager
async def both(*more: Any, **options: Any) -> AsyncIterator[Turn]:
    """Enter a turn that has the tools twice: `near` in this process, `far` elsewhere."""
    tools = [*TOOLS, *more]
    async with asyncio.timeout(100), agent_and_host(Toolkit("far", tools)) as (_, agent):
        required = [RequiredToolkit("far")]
        async with Turn(agent, always=[Toolkit("near", tools)], required=required, **options) as it:
            yield it


# Uploads and inputs


async def test_uploads_reach_a_tool_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x\n" * MAX_FRAME_BYTES)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"\nc"

    async with both() as turn:
        for kit in KITS:
            for attachment, length in ((b"abc", 3), (path, 2 * MAX_FRAME_BYTES), (pieces(), 4)):
                chunk = await turn.invoke(f"{kit}.size", attachment=attachment)
                assert chunk.value == length
            (result,) = await turn.run([ToolUse("1", f"{kit}.lines", attachment=path)])
            assert result.value == MAX_FRAME_BYTES


async def test_inputs_reach_a_tool_and_its_stream_answers() -> None:
    def numbers() -> Iterator[int]:
        yield from range(4)

    async def later() -> AsyncIterator[int]:
        for number in range(4):
            yield number

    ended: list[str] = []

    async def endless(kit: str) -> AsyncIterator[int]:
        try:
            while True:
                yield 0
        finally:
            ended.append(kit)

    @tool
    async def first(numbers: InputStream[int]) -> int:
        return await anext(aiter(numbers))

    async with both(first) as turn:
        for kit in KITS:
            for values in (range(4), numbers(), later()):
                assert (await turn.invoke(f"{kit}.total", input=values)).value == 6
            assert (await turn.invoke(f"{kit}.doubled", input=[1, 2])).value == [2, 4]
            left = endless(kit)  # kept, so that only a close ends it
            assert (await turn.invoke(f"{kit}.first", input=left)).value == 0
            assert ended[-1:] == [kit]
            got = [each async for each in turn.stream(ToolUse("1", f"{kit}.doubled", input=[3]))]
            assert got[0] == got[1].chunks[0]  # type: ignore[union-attr]  # the result


async def test_file_that_answers_an_input_can_be_read_after_the_call() -> None:
    @tool
    async def repeated(parts: InputStream[str], count: int) -> bytes:
        return "".join([part async for part in parts]).encode() * count

    async with both(repeated) as turn:
        for kit in KITS:
            chunk = await turn.invoke(f"{kit}.repeated", {"count": 400_000}, input=["a", "b"])
            assert isinstance(chunk, FileChunk)
            assert await chunk.read() == b"ab" * 400_000
            use = ToolUse("1", f"{kit}.repeated", {"count": 3}, input=["a"])
            (result,) = await turn.run([use])
            assert result.data == b"aaa"


async def test_what_cannot_be_sent_with_a_call_is_refused_alike(tmp_path: Path) -> None:
    wrong: Any = (
        ({"attachment": b"x", "input": [1]}, "total", "not both"),
        ({"attachment": 7}, "size", "an attachment must be bytes"),
        ({"input": "text"}, "total", "input must be an iterable"),
        ({"input": [1]}, "echo", "takes no attachment and no input"),
        ({}, "size", "needs an attachment"),
        ({"input": ["x"]}, "total", "/input/0"),
        ({"input": [object()]}, "total", "cannot be written as JSON"),
        ({"input": [iter([])]}, "total", "list_iterator cannot be .*: make it a list, or yield"),
        ({"caller_context": [1]}, "facts", "caller_context must be one object"),
        ({"caller_context": {"a": object()}}, "facts", "cannot be written as JSON"),
        ({"on_progress": 7}, "facts", "on_progress must be a plain function"),
        ({"timeout_s": "1"}, "facts", "timeout_s must be a finite number"),
    )
    ended = []
    async with both() as turn:
        for kit in KITS:
            for options, name, text in wrong:
                arguments = {"text": "x"} if name == "echo" else {}
                with pytest.raises(InvalidArguments, match=text) as raised:
                    await turn.invoke(f"{kit}.{name}", arguments, **options)
                ended.append((raised.value.code, raised.value.details.get("path")))
            with pytest.raises(OSError, match="absent"):
                await turn.invoke(f"{kit}.size", attachment=tmp_path / "absent")
            use = ToolUse("1", f"{kit}.size", attachment=tmp_path / "absent")
            (result,) = await turn.run([use])
            assert (result.state, result.executed) == ("failed", "no")
            assert "FileNotFoundError" in result.for_model()
            (result,) = await turn.run([ToolUse("1", f"{kit}.facts")], on_progress=cast(Any, 7))
            assert "on_progress must be a plain function" in result.for_model()
    assert ended[: len(wrong)] == ended[len(wrong) :]
    assert all(path is not None for _, path in ended)


async def test_argument_that_is_no_json_has_its_path_alike() -> None:
    async with both() as turn:
        for value in (b"x", float("nan"), 2**70, [object()]):
            paths = set()
            for kit in KITS:
                with pytest.raises(InvalidArguments) as raised:
                    await turn.invoke(f"{kit}.echo", {"text": value})
                paths.add(raised.value.details["path"].split("/")[1])
            assert paths == {"text"}


async def test_error_of_an_input_is_raised_to_its_caller_and_not_of_the_tool() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        raise LookupError("of the caller")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"
        raise LookupError("of the caller")

    async def count(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        async for chunk in next(call):
            yield chunk

    around: tuple[list[Middleware], ...] = ([], [count])
    for middlewares in around:
        async with both(middlewares=middlewares) as turn:
            for kit in KITS:
                with pytest.raises(LookupError, match="of the caller"):
                    await turn.invoke(f"{kit}.total", input=numbers())
                with pytest.raises(LookupError, match="of the caller"):
                    await turn.invoke(f"{kit}.size", attachment=pieces())
                (result,) = await turn.run([ToolUse("1", f"{kit}.total", input=numbers())])
                assert result.error is not None
                assert (result.error.code, result.executed != "no") == ("invalid_arguments", True)


# Context, progress, state


async def test_caller_context_and_progress_pass_in_both_directions() -> None:
    async with both() as turn:
        for kit in KITS:
            got: list[Any] = []
            given = {"locale": "de", "depth": [1]}
            chunk = await turn.invoke(f"{kit}.facts", caller_context=given, on_progress=got.append)
            assert chunk.value == {"given": given, "for": None}
            assert got[-1] == {"done": True}
            assert await turn.call(f"{kit}.facts") == {"progress": "not wanted"}
            uses = [ToolUse("a", f"{kit}.facts"), ToolUse("b", f"{kit}.facts")]
            steps: list[Any] = []
            await turn.run(
                uses,
                caller_context={"x": 1},
                on_progress=lambda use, value, to=steps: to.append((use.id, value)),  # type: ignore[misc]
            )
            assert {use for use, value in steps if value == {"done": True}} == {"a", "b"}


async def test_progress_callback_that_raises_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(_: Any) -> None:
        raise KeyError

    async with both() as turn:
        for kit in KITS:
            await turn.invoke(f"{kit}.facts", on_progress=failing)
    assert caplog.text.count("on_progress raised") >= 2


async def test_state_of_a_toolkit_outlives_the_turn_and_is_none_elsewhere() -> None:
    @tool
    async def visit(context: ToolContext) -> int | None:
        if context.state is None:
            return None
        context.state["visits"] = context.state.get("visits", 0) + 1
        return int(context.state["visits"])

    state = AgentState()
    async with agent_and_host(Toolkit("far", [visit])) as (_, agent), asyncio.timeout(100):
        for expected in (1, 2, 3):
            parts = {"always": [Toolkit("near", [visit])], "required": [RequiredToolkit("far")]}
            async with Turn(agent, state=state, **parts) as turn:  # type: ignore[arg-type]  # each by its own name
                assert await turn.call("near.visit") == expected
                assert await turn.call("far.visit") is None
            state = AgentState.from_json(state.to_json())
        async with Turn(agent, always=[Toolkit("near", [visit])]) as turn:
            assert await turn.call("near.visit") == 1


# Middlewares


async def test_middleware_of_a_turn_sees_who_calls_and_may_change_arguments_and_chunks() -> None:
    seen: list[Any] = []
    progress: list[tuple[str, Any]] = []

    def told(use: ToolUse, value: Any) -> None:
        progress.append((use.name, value))

    ids: list[str] = []

    async def note(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        ids.append(call.id)
        async for chunk in next(call):
            yield chunk

    async def louder(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
        context = call.context
        assert context.on_behalf_of is not None
        assert (context.state is None) is (call.tool.toolkit == "far")
        seen.append((call.tool.name, call.id, context.caller.name, context.on_behalf_of.name))
        context.emit(call.id)
        if call.arguments.get("text") == "skip":
            yield "skipped"
            return
        async for chunk in next(call.replace(arguments={"text": "changed"})):
            yield str(chunk.value).upper()

    tools = [echo]
    async with agent_and_host(Toolkit("far", tools)) as (server, agent), server.room("bob"):
        async with Turn(
            agent,
            always=[Toolkit("near", tools, middlewares=[note])],
            required=[RequiredToolkit("far")],
            message=message_of("bob"),
            middlewares=[louder],
        ) as turn:
            for kit in KITS:
                uses = [ToolUse(text, f"{kit}.echo", {"text": text}) for text in ("x", "skip")]
                changed, skipped = await turn.run(uses, on_progress=told)
                assert (changed.value, skipped.value) == ("CHANGED", "skipped")
                assert changed.changed_arguments == {"text": "changed"}
                assert skipped.changed_arguments is None
                assert seen[-2] == (f"{kit}.echo", "x", "agent", "bob")
                assert progress[-2:] == [(f"{kit}.echo", "x"), (f"{kit}.echo", "skip")]
                (same,) = await turn.run([ToolUse("2", f"{kit}.echo", {"text": "changed"})])
                assert (same.value, same.changed_arguments) == ("CHANGED", None)
    assert ids == ["x", "2"]


async def end_early(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    async for _ in next(call):
        pass
    return
    yield TextChunk("")


async def answer_twice(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    yield TextChunk("one")
    yield TextChunk("two")


async def raise_before(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    raise PermissionDenied("not this one")
    yield TextChunk("")


async def raise_after(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    async for _ in next(call):
        raise KeyError("secret")
    yield TextChunk("")


async def call_again(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    async for chunk in next(call):
        yield chunk
    async for chunk in next(call):
        yield chunk


async def cancel_itself(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    yield TextChunk("")


async def change_badly(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    async for chunk in next(call.replace(arguments={"text": 5})):
        yield chunk


async def exit_program(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    raise SystemExit("secret")
    yield TextChunk("")


async def give_what_is_no_json(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    async for _ in next(call):
        yield object()


async def give_too_much(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    async for _ in next(call):
        yield "x" * MAX_FRAME_BYTES


async def never_end(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    await asyncio.Event().wait()
    yield TextChunk("")


@pytest.mark.parametrize(
    ("middleware", "code", "executed"),
    [
        (end_early, "invalid_result", "yes"),
        (answer_twice, "invalid_result", "no"),
        (raise_before, "permission_denied", "no"),
        (raise_after, "tool_failed", "yes"),
        (call_again, "tool_failed", "yes"),
        (cancel_itself, "tool_failed", "maybe"),
        (change_badly, "invalid_arguments", "no"),
        (exit_program, "tool_failed", "maybe"),
        (give_what_is_no_json, "invalid_result", "yes"),
        (give_too_much, "too_large", "yes"),
        (never_end, "deadline_exceeded", "no"),
    ],
)
async def test_middleware_that_breaks_a_rule_is_a_clear_error(
    middleware: Any, code: str, executed: str
) -> None:
    async with both(middlewares=[middleware]) as turn:
        for kit in KITS:
            with pytest.raises(RoomException) as raised:
                await turn.invoke(f"{kit}.echo", {"text": "x"}, timeout_s=2)
            assert (raised.value.code, raised.value.executed) == (code, executed)
            assert "secret" not in raised.value.message


@pytest.mark.parametrize("kit", KITS)
async def test_chunk_that_is_refused_while_the_tool_runs_does_not_deny_that_it_ran(
    kit: str,
) -> None:
    async with both(middlewares=[give_too_much]) as turn:
        use = ToolUse("1", f"{kit}.doubled", input=[1])
        (result,) = await turn.run([use])
    assert result.error is not None
    assert (result.error.code, result.executed) == ("too_large", {"near": "yes"}.get(kit, "maybe"))


async def test_result_that_a_middleware_of_the_turn_changed_has_to_match_the_schema() -> None:
    numbers = {"properties": {"number": {"type": "integer"}}}

    @tool(output_schema={"type": "string"})
    async def text() -> str:
        return "x"

    @tool(output_schema=numbers)
    async def row() -> dict[str, int]:
        return {"number": 1}

    @tool(output_schema=numbers)
    async def rows() -> AsyncIterator[dict[str, int]]:
        yield {"number": 1}

    async def change(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
        if call.tool.tool == "text":
            yield 7
            return
        async for chunk in next(call):
            chunk.value["number"] = "one"  # type: ignore[index]  # in place
            yield chunk

    async with both(text, row, rows, middlewares=[change]) as turn:
        for kit in KITS:
            uses = [ToolUse("1", f"{kit}.{name}") for name in ("text", "row", "rows")]
            found = await turn.run(uses)
            assert [(type(each.error), each.chunks) for each in found] == 3 * [(InvalidResult, ())]
            assert [each.executed for each in found][:2] == ["no", "yes"]


async def test_middleware_that_gives_a_running_tool_up_does_not_hide_that_it_ran() -> None:
    began = asyncio.Event()

    @tool
    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    async def give_up(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        running = asyncio.ensure_future(anext(next(call)))
        await began.wait()
        running.cancel()
        await asyncio.wait([running])
        raise LookupError("given up")
        yield TextChunk("")

    async with both(hang, middlewares=[give_up]) as turn:
        results = await turn.run([ToolUse("1", f"{kit}.hang") for kit in KITS])
    assert [each.executed for each in results] == ["yes", "maybe"]


async def test_arguments_that_a_middleware_changed_in_place_are_in_the_result() -> None:
    async def change(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        call.arguments["text"] = "changed"  # type: ignore[index]
        async for chunk in next(call):
            yield chunk

    async with both(middlewares=[change]) as turn:
        results = await turn.run([ToolUse("1", f"{kit}.echo", {"text": "x"}) for kit in KITS])
    assert [each.changed_arguments for each in results] == 2 * [{"text": "changed"}]


async def test_task_of_a_tool_that_is_cancelled_from_within_is_a_failure() -> None:
    @tool
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with both(cancels_itself) as turn:
        for kit in KITS:
            with pytest.raises(ToolFailed, match="task was cancelled") as raised:
                await turn.invoke(f"{kit}.cancels_itself")
            (result,) = await turn.run([ToolUse("1", f"{kit}.cancels_itself")])
            assert (raised.value.executed, result.executed, result.state) == (
                "yes",
                "yes",
                "failed",
            )


async def refuse_again(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    if call.arguments:
        raise Overloaded("busy")
    async for chunk in next(call):
        yield chunk


async def retry(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    more = {} if call.tool.takes else {"more": 1}
    try:
        async for chunk in next(call):
            yield chunk
    except ToolFailed:
        async for chunk in next(call.replace(arguments=more)):
            yield chunk


async def test_retry_by_a_middleware_states_what_any_attempt_did() -> None:
    attempts: list[int] = []

    @tool
    async def once() -> str:
        attempts.append(1)
        raise ToolFailed("the first")

    @tool
    async def never(numbers: InputStream[int]) -> str:
        return await once() if [number async for number in numbers] else "no input"

    @tool(middlewares=[refuse_again])
    async def busy(more: int = 0) -> str:
        return await once()

    async with both(once, never, busy, middlewares=[retry]) as turn:
        for kit in KITS:
            with pytest.raises(InvalidArguments) as raised:
                await turn.invoke(f"{kit}.once")
            assert (raised.value.executed, raised.value.retryable) == ("yes", False)
            with pytest.raises(ToolFailed, match="input of this call was read: it cannot run"):
                await turn.invoke(f"{kit}.never", input=[1])
        with pytest.raises(Overloaded) as refused:
            await turn.invoke("near.busy")
        assert (refused.value.executed, refused.value.retryable) == ("yes", False)
    assert len(attempts) == 5


def test_options_of_a_turn_are_checked_when_it_is_made() -> None:
    async def run() -> None:
        async with agent_and_host() as (_, agent):
            wrong: Any = (
                ({"middlewares": [echo]}, TypeError, "turn: .*echo is not a middleware"),
                ({"state": {}}, TypeError, "state must be an AgentState, not dict"),
                ({"timeout_s": 0}, ValueError, "timeout_s must be a number of seconds above 0"),
                ({"timeout_s": "1"}, ValueError, "timeout_s must be a number of seconds above 0"),
            )
            for options, error, text in wrong:
                with pytest.raises(error, match=text):
                    Turn(agent, **options)

    asyncio.run(run())


async def test_stream_of_files_elsewhere_is_no_list_of_values() -> None:
    @tool
    async def files() -> AsyncIterator[bytes]:
        yield b"x"

    async with both(files) as turn:
        for kit in KITS:
            with pytest.raises(InvalidResult, match=r"use turn\.stream"):
                await turn.call(f"{kit}.files")


async def test_a_file_in_pieces_out_of_a_stream_can_be_read_before_the_next_chunk() -> None:
    data = bytes(range(256)) * 3_000  # more than a chunk holds

    @tool
    async def files() -> AsyncIterator[Any]:
        yield FileChunk(data, "first")
        yield FileChunk(data, "skipped")
        yield "end"

    async def passed_on(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        async for chunk in next(call):
            yield chunk

    for middlewares in ([], [passed_on]):
        async with both(files, middlewares=middlewares) as turn:
            for kit in KITS:
                read: list[Any] = []
                async for chunk in turn.stream(ToolUse(kit, f"{kit}.files")):
                    if isinstance(chunk, FileChunk) and chunk.name == "first":
                        read.append(await chunk.read())
                    else:
                        read.append(chunk.value)
                assert (read[0], read[2], turn.results[-1].error) == (data, "end", None)

    @tool
    async def file() -> AsyncIterator[FileChunk]:
        yield FileChunk(data, "kept")

    async with both(file, middlewares=[passed_on]) as turn:
        for result in await turn.run([ToolUse(kit, f"{kit}.file") for kit in KITS]):
            assert result.data == data
