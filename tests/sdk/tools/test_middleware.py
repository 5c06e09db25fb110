"""Middlewares of tools and toolkits: their order, what they may do, and what they may not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import wraps
from typing import Any, NamedTuple

import pytest

from toolbus.chunks.chunk_types import Chunk, TextChunk
from toolbus.errors import InvalidArguments, PermissionDenied, RoomException, ToolFailed
from toolbus.middlewares import Retry
from toolbus.tools.context import ToolContext
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.input_stream import InputStream
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.tools.toolkit import Toolkit


class Log:
    """A function, a generator, and middlewares that write down what runs."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def around(self, name: str) -> Any:
        async def middleware(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
            self.lines.append(f"{name} {call.tool.name} {dict(call.arguments)}")
            try:
                async for chunk in next(call):
                    yield f"{name}({chunk.value})"
            finally:
                self.lines.append(f"/{name}")

        return middleware

    async def echo(self, text: str) -> str:
        self.lines.append(f"run {text}")
        if text == "bad":
            raise RuntimeError("bad")
        return text

    async def items(self, text: str) -> AsyncIterator[str]:
        try:
            for letter in text:
                yield letter
        finally:
            self.lines.append("closed")


class Outcome(NamedTuple):
    values: list[Any]
    code: str = ""
    executed: str = ""


async def outcome(kit: Toolkit, tool: str, text: Any) -> Outcome:
    """Return the values of a call, and its error as its caller gets it."""
    values: list[Any] = []

    async def take(chunk: Chunk) -> None:
        values.append(chunk.value)

    try:
        chunk = await kit.execute(ToolContext(on_chunk=take), tool, {"text": text})
    except RoomException as failure:
        return Outcome(values, failure.code, failure.executed)
    return Outcome(values if tool == "items" else [chunk.value])


async def test_first_is_outermost_and_those_of_the_toolkit_are_around_those_of_the_tool() -> None:
    log = Log()
    echo = FunctionTool(log.echo, middlewares=[log.around("c")])
    kit = Toolkit("t", [echo, log.items], middlewares=[log.around("a"), log.around("b")])
    assert (await outcome(kit, "echo", "a")).values == ["a(b(c(a)))"]
    seen = "t.echo {'text': 'a'}"
    assert log.lines == [f"a {seen}", f"b {seen}", f"c {seen}", "run a", "/c", "/b", "/a"]
    assert (await outcome(kit, "items", "xy")).values == ["a(b(x))", "a(b(y))"]


async def rewrite(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    async for chunk in next(call.replace(arguments={"text": "new"})):
        yield chunk


async def rewrite_badly(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    async for chunk in next(call.replace(arguments={"text": 5})):
        yield chunk


async def answer(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    yield TextChunk("mine")


async def drop_and_add(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    async for chunk in next(call):
        if chunk.value != "b":
            yield chunk
    yield "more"


async def refuse(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    raise PermissionDenied("not today", executed="yes")
    yield


async def fail(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    raise RuntimeError("secret")
    yield


async def give_what_is_no_json(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    async for _ in next(call):
        yield object()


async def answer_a_refusal_badly(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    try:
        async for chunk in next(call.replace(arguments={"text": 5})):
            yield chunk
    except InvalidArguments:
        yield object()


async def fail_half_way(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    async for chunk in next(call):
        yield chunk
        raise RuntimeError("secret")


async def swallow(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    async for _ in next(call):
        break
    for _ in ():
        yield


async def again(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    async for chunk in next(call):
        yield chunk
    async for chunk in next(call):
        yield chunk


async def again_after_a_chunk(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    async for _ in next(call):
        break
    async for chunk in next(call):
        yield chunk


async def retry(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    try:
        async for chunk in next(call.replace(arguments={"text": "bad"})):
            yield chunk
    except RuntimeError:
        async for chunk in next(call):
            yield chunk


async def two(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    yield 1
    yield 2


OK = Outcome
BAD_ARGUMENTS = Outcome([], "invalid_arguments", "no")
REFUSED = Outcome([], "permission_denied", "no")
NO_RESULT = Outcome([], "invalid_result", "yes")
FAILED = Outcome([], "tool_failed", "yes")


@pytest.mark.parametrize(
    ("middleware", "unary", "stream"),
    [
        (rewrite, OK(["new"]), OK(["n", "e", "w"])),
        (rewrite_badly, BAD_ARGUMENTS, BAD_ARGUMENTS),
        (answer, OK(["mine"]), OK(["mine"])),
        (drop_and_add, NO_RESULT, OK(["a", "c", "more"])),
        (retry, OK(["abc"]), OK(["b", "a", "d"])),
        (refuse, REFUSED, REFUSED),
        (fail, FAILED._replace(executed="maybe"), FAILED._replace(executed="maybe")),
        (fail_half_way, FAILED, FAILED._replace(values=["a"])),
        (give_what_is_no_json, NO_RESULT, NO_RESULT),
        (answer_a_refusal_badly, *2 * [NO_RESULT._replace(executed="no")]),
        (swallow, NO_RESULT, OK([])),
        (again, FAILED, FAILED._replace(values=["a", "b", "c"])),
        (again_after_a_chunk, FAILED, FAILED),
        (two, NO_RESULT._replace(executed="no"), OK([1, 2])),
    ],
)
async def test_what_a_middleware_may_do(middleware: Any, unary: Any, stream: Any) -> None:
    log = Log()
    kit = Toolkit("t", [log.echo, log.items], middlewares=[middleware])
    assert await outcome(kit, "echo", "abc") == unary
    log.lines.clear()
    assert await outcome(kit, "items", "abc") == stream
    assert log.lines in ([], ["closed"], ["closed", "closed"])
    runs_nothing = (rewrite_badly, answer, refuse, fail, answer_a_refusal_badly, two)
    assert bool(log.lines) == (middleware not in runs_nothing)


async def test_call_that_is_left_is_closed_from_the_inside() -> None:
    log = Log()
    kit = Toolkit("t", [log.items], middlewares=[swallow, log.around("a"), log.around("b")])
    assert await outcome(kit, "items", "xy") == OK([])
    assert log.lines[2:] == ["closed", "/b", "/a"]


async def test_next_runs_nothing_after_the_end_of_the_call() -> None:
    log, calls = Log(), []

    async def keep(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
        calls.append((call, next))
        yield "mine"

    kit = Toolkit("t", [log.echo], middlewares=[keep])
    assert await outcome(kit, "echo", "abc") == OK(["mine"])
    ((call, next),) = calls
    with pytest.raises(ToolFailed, match="keep called next after the end of the call"):
        await anext(next(call))
    assert log.lines == []


async def twice(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    try:
        async for chunk in next(call):
            yield chunk
    except RuntimeError:
        async for chunk in next(call):
            yield chunk


async def test_next_may_be_called_again_after_a_wrapper_that_raised_at_once() -> None:
    log = Log()
    inner, raised = log.around("inner"), [False]

    @wraps(rewrite)
    def wrapper(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
        if not raised[0]:
            raised[0] = True
            raise RuntimeError("at once")
        running: AsyncIterator[Any] = inner(call, next)
        return running

    kit = Toolkit("t", [log.echo], middlewares=[twice, wrapper])
    assert await outcome(kit, "echo", "abc") == OK(["inner(abc)"])


async def test_input_that_was_read_is_not_sent_again() -> None:
    taken: list[list[int]] = []

    async def take(rows: InputStream[int]) -> None:
        taken.append([row async for row in rows])
        raise RuntimeError("bad")

    kit = Toolkit("t", [take], middlewares=[twice])
    with pytest.raises(ToolFailed, match="input of this call was read: it cannot run again"):
        await kit.execute(ToolContext(), "take", {}, InputStream([1]))
    assert taken == [[1]]


@pytest.mark.parametrize(
    ("middleware", "words"),
    [
        (lambda call, next: next("call"), "next takes the call, not 'call'"),
        (lambda call, next: next(call.replace(arguments=[])), "arguments must be a mapping"),
    ],
)
async def test_what_is_no_call_and_no_arguments_is_a_type_error(
    middleware: Any, words: str
) -> None:
    async def wrong(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
        async for chunk in middleware(call, next):
            yield chunk

    kit = Toolkit("t", [Log().echo], middlewares=[wrong])
    with pytest.raises(ToolFailed) as raised:
        await kit.execute(ToolContext(), "echo", {"text": "a"})
    assert isinstance(raised.value.__cause__, TypeError)
    assert words in str(raised.value.__cause__)


async def one_parameter(call: ToolCall) -> AsyncIterator[str]:
    yield call.id


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, "must be a list"),
        (rewrite, "must be a list"),
        ([5], "is not a middleware"),
        ([Log().echo], "is not a middleware"),
        ([lambda call, next: next(call)], "is not a middleware"),
        ([one_parameter], "is not a middleware"),
        ([Retry], "Retry is a class: pass an instance of it"),
    ],
)
def test_what_is_no_middleware_is_refused_when_the_toolkit_is_made(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Toolkit("t", [], middlewares=value)


async def test_answer_that_breaks_the_output_schema_is_invalid_and_its_tool_did_not_run() -> None:
    log, schema = Log(), {"type": "integer"}
    numbers = [FunctionTool(function, output_schema=schema) for function in (log.echo, log.items)]
    kit = Toolkit("t", numbers, middlewares=[answer])
    for name in ("echo", "items"):
        assert await outcome(kit, name, "abc") == NO_RESULT._replace(executed="no")
    assert log.lines == []
