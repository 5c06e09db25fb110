"""Toolkits: the entry point of a tool, and the errors of failed calls."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import make_dataclass
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, model_validator

from toolbus.chunks.chunk_types import Chunk, EmptyChunk, JsonChunk, TextChunk
from toolbus.errors import (
    InvalidArguments,
    InvalidResult,
    NotFound,
    PermissionDenied,
    RoomException,
    TooLarge,
    ToolFailed,
)
from toolbus.hosting.in_process import InProcessToolkit
from toolbus.permissions.permissions import Permissions
from toolbus.permissions.rule import Rule
from toolbus.service.remote_toolkit import RemoteToolkit
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.input_stream import InputStream
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.tools.options import tool
from toolbus.tools.tool import Tool
from toolbus.tools.tool_run import LocalRun
from toolbus.tools.toolkit import Toolkit, failure_of


@tool
async def double(context: ToolContext, number: int, times: int = 1) -> int:
    """Double a number."""
    return number << times


def plain(text: str) -> str:
    return text


class Empty(Tool):
    name = "empty"
    input_schema = {"type": "object"}  # noqa: RUF012 - as people write it

    async def execute(self, context: ToolContext, /, **arguments: Any) -> Any:
        return None


class Shelf:
    @tool
    def books(self) -> list[str]:
        return ["a", "b"]


def raising(error: BaseException, *, sync: bool = False) -> Toolkit:
    async def fails() -> None:
        raise error

    def fails_on_a_thread() -> None:
        raise error

    return Toolkit("t", [FunctionTool(fails_on_a_thread if sync else fails)])


async def failure(toolkit: Toolkit, name: str, arguments: Any = None) -> RoomException:
    """Call a tool and return the error that its caller gets."""
    with pytest.raises(RoomException) as raised:
        await toolkit.execute(ToolContext(), name, {} if arguments is None else arguments)
    return raised.value


async def test_every_kind_of_tool_is_accepted_and_runs() -> None:
    tools: list[Tool | Callable[..., Any]] = [double, plain, Empty(), Shelf().books]
    toolkit = Toolkit("mixed", tools)
    context = ToolContext()
    assert await toolkit.execute(context, "double", {"number": 3}) == JsonChunk(6)
    assert await toolkit.execute(context, "plain", {"text": "a"}) == TextChunk("a")
    assert await toolkit.execute(context, "empty", {"any": 1}) == EmptyChunk()
    assert await toolkit.execute(context, "books", {}) == JsonChunk(["a", "b"])
    assert [made.name for made in toolkit.tools] == ["double", "plain", "empty", "books"]


def test_manifest_has_the_arguments_of_the_toolkit() -> None:
    manifest = Toolkit(
        "my_tools",
        [double],
        rules=["Count well."],
        description="Numbers.",
        thumbnail_url="https://example.org/a.png",
        annotations={"team": {"name": "math"}},
        version="1.2",
    ).manifest()
    assert (manifest.name, manifest.title, manifest.version) == ("my_tools", "my_tools", "1.2")
    assert (manifest.rules, manifest.description) == (("Count well.",), "Numbers.")
    assert manifest.annotations == {"team": {"name": "math"}}
    assert [listed.name for listed in manifest.tools] == ["double"]
    assert Toolkit("a", title="Given").manifest().title == "Given"


def test_arguments_of_a_toolkit_are_copied() -> None:
    rules, annotations = ["one"], {"list": [1]}
    toolkit = Toolkit("a", rules=rules, annotations=annotations)
    rules.append("two")
    annotations["list"].append(2)
    assert toolkit.rules == toolkit.manifest().rules == ("one",)
    assert toolkit.annotations == toolkit.manifest().annotations == {"list": [1]}
    assert Toolkit("b").rules == ()


def test_title_that_is_too_long_is_named_without_the_words_of_a_library() -> None:
    with pytest.raises(
        ValueError, match=r"^toolkit 'a': title: String should have at most 1000 \w+$"
    ):
        Toolkit("a", title="x" * 1_001)


MANY = [FunctionTool(double, name=f"double{number}") for number in range(1_001)]


@pytest.mark.parametrize(
    ("name", "tools", "error", "expected_message"),
    [
        ("a", [double, double], ValueError, "'a' has two tools named 'double'"),
        ("a", MANY, ValueError, "'a' has 1,001 tools, at most 1,000 are allowed"),
        ("a", [Empty], TypeError, r"Empty is a class: pass an instance of it, Empty\(...\)"),
        ("a", [Shelf], TypeError, r"the class Shelf is not a tool.* then tools=\[shelf.books\]"),
        ("a", [Shelf()], TypeError, r"an object of Shelf is not a tool.*tools=\[shelf.books\]"),
        ("a", Shelf(), TypeError, r"must be a list of tools; an object of Shelf.*\[shelf.books\]"),
        ("a", [object()], TypeError, "object.* is not a function or a Tool"),
        ("a", [Toolkit("b")], TypeError, r"the toolkit 'b' is not a tool: .*\*toolkit.tools"),
        ("a", ["double"], TypeError, "'double' is not a function or a Tool"),
        ("My Kit", [], ValueError, "'My Kit' is not a toolkit name.*did you mean 'my-kit'?"),
        ("", [], ValueError, "'' is not a toolkit name: a lower-case letter"),
        (double, [], TypeError, r'did you mean Toolkit\("double", \[double\]\)?'),
        ([double], [], TypeError, r'did you mean Toolkit\("double", \[double\]\)?'),
        ("a", double, TypeError, r'did you mean Toolkit\("a", \[double\]\)?'),
        ("a", [lambda: 1], TypeError, "a lambda has no name"),
    ],
)
def test_invalid_definition_is_refused(
    name: Any, tools: Any, error: type[Exception], expected_message: str
) -> None:
    with pytest.raises(error, match=expected_message):
        Toolkit(name, tools)


def test_rules_given_as_one_string_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="not one string"):
        Toolkit("a", rules="Count well.")


async def test_call_to_unknown_tool_raises_not_found_that_names_it() -> None:
    toolkit = Toolkit("numbers", [double])
    with pytest.raises(NotFound, match=r"numbers\.halve"):
        toolkit.get_tool("halve")
    error = await failure(toolkit, "halve")
    assert (type(error), error.executed, error.retryable) == (NotFound, "no", False)
    assert toolkit.get_tool("double").name == "double"


async def test_bad_arguments_are_refused_before_the_function_is_entered() -> None:
    ran = []

    async def note(number: int) -> None:
        ran.append(number)

    error = await failure(Toolkit("t", [note]), "note", {"number": "2"})
    assert (type(error), error.executed) == (InvalidArguments, "no")
    assert error.details["path"] == "/number"
    assert ran == []


async def test_attachment_is_refused_and_not_ignored() -> None:
    context = ToolContext()
    with pytest.raises(InvalidArguments, match="takes no attachment") as raised:
        await Toolkit("t", [plain]).execute(context, "plain", {"text": "a"}, InputStream([b"a"]))
    assert raised.value.executed == "no"


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_exception_of_a_tool_is_sent_without_its_text(sync: bool) -> None:
    error = await failure(raising(ValueError("secret"), sync=sync), _only(sync))
    assert (type(error), error.executed, error.retryable) == (ToolFailed, "yes", False)
    assert error.message == "the tool raised ValueError"
    assert error.details == {"cause": "ValueError"}


def _only(sync: bool) -> str:
    return "fails_on_a_thread" if sync else "fails"


async def test_text_of_a_tool_is_sent_if_it_raised_tool_failed() -> None:
    raised = ToolFailed("no such account", retryable=True, details={"account": 7}, executed="no")
    error = await failure(raising(raised), "fails")
    assert (type(error), error.message, error.retryable) == (ToolFailed, "no such account", True)
    assert (error.executed, error.details) == ("yes", {"account": 7})


@pytest.mark.parametrize("kind", [InvalidArguments, InvalidResult, NotFound, TooLarge])
async def test_error_of_a_nested_call_is_a_failure_of_the_tool(
    kind: type[RoomException],
) -> None:
    error = await failure(raising(kind("secret")), "fails")
    assert (type(error), error.executed) == (ToolFailed, "yes")
    assert error.details == {"cause": kind.__name__, "code": kind.code}
    assert "secret" not in error.message


async def test_refusal_of_a_nested_local_call_is_the_failure_of_the_outer_tool() -> None:
    inner = Toolkit("inner", [double])

    async def outer(context: ToolContext) -> Any:
        return (await inner.execute(context, "double", {"number": "x"})).value

    error = await failure(Toolkit("outer", [outer]), "outer")
    assert (type(error), error.executed) == (ToolFailed, "yes")
    assert error.details["code"] == "invalid_arguments"


async def test_result_that_cannot_be_sent_is_an_invalid_result_after_the_run() -> None:
    async def unknown() -> Any:
        return object()

    error = await failure(Toolkit("t", [unknown]), "unknown")
    assert (type(error), error.executed) == (InvalidResult, "yes")


async def test_cancelled_error_passes_through() -> None:
    with pytest.raises(asyncio.CancelledError):
        failure_of(asyncio.CancelledError(), run_of(ToolContext()))
    started = asyncio.Event()

    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    waiting = asyncio.create_task(Toolkit("t", [waits]).execute(ToolContext(), "waits", {}))
    await started.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_sync_function_counts_as_entered_only_once_its_thread_calls_it() -> None:
    seen = []

    async def later(function: Callable[[], Any]) -> Any:
        seen.append(run_of(context).entered)
        result = function()
        seen.append(run_of(context).entered)
        return result

    context = ToolContext(run=LocalRun(in_thread=later))
    await Toolkit("t", [plain]).execute(context, "plain", {"text": "a"})
    assert seen == [False, True]


async def test_sync_function_whose_thread_never_began_did_not_run() -> None:
    async def gone(function: Callable[[], Any]) -> Any:
        raise asyncio.CancelledError

    context = ToolContext(run=LocalRun(in_thread=gone))
    with pytest.raises(asyncio.CancelledError):
        await Toolkit("t", [plain]).execute(context, "plain", {"text": "a"})
    assert run_of(context).executed == "maybe"
    assert not run_of(context).entered


class Audited(Toolkit):
    def __init__(self) -> None:
        super().__init__("audited", [double])
        self.log: list[str] = []

    async def execute(
        self, context: ToolContext, name: str, arguments: dict[str, Any], attachment: Any = None
    ) -> Chunk:
        self.log.append(name)
        if arguments.get("number") == 13:
            raise context.refuse(PermissionDenied("not this number"))
        if arguments.get("number") == 14:
            raise ValueError("secret")
        return await super().execute(context, name, arguments, attachment)


async def test_override_of_execute_sees_every_call_and_may_refuse_it() -> None:
    toolkit = Audited()
    assert await toolkit.execute(ToolContext(), "double", {"number": 1}) == JsonChunk(2)
    refused = await failure(toolkit, "double", {"number": 13})
    assert (type(refused), refused.executed) == (PermissionDenied, "no")
    invalid = await failure(toolkit, "double", {"number": "x"})
    assert (type(invalid), invalid.executed) == (InvalidArguments, "no")
    assert len(toolkit.log) == 3


async def test_error_of_an_override_has_executed_maybe() -> None:
    error = await failure(Audited(), "double", {"number": 14})
    assert (type(error), error.executed) == (ToolFailed, "maybe")


async def test_arguments_of_the_caller_are_not_changed_by_a_call() -> None:
    class Changing(BaseModel):
        number: int

        @model_validator(mode="before")
        @classmethod
        def add(cls, values: dict[str, Any]) -> dict[str, Any]:
            values["number"] += 1
            return values

    arguments = {"number": 2.0}
    for made, result in ((double, 4), (FunctionTool(double, args_schema=Changing), 6)):
        chunk = await Toolkit("t", [made]).execute(ToolContext(), "double", arguments)
        assert (chunk.value, arguments) == (result, {"number": 2.0})


async def test_exit_of_a_tool_is_a_failure_of_the_tool() -> None:
    context = ToolContext()
    run_of(context).entered = True
    error = failure_of(SystemExit(3), run_of(context))
    assert (type(error), error.message) == (ToolFailed, "the tool raised SystemExit")


@pytest.mark.parametrize("sync", [False, True])
async def test_a_tool_that_raises_keyboardinterrupt_fails(sync: bool) -> None:
    error = await failure(
        raising(KeyboardInterrupt(), sync=sync), ["fails", "fails_on_a_thread"][sync]
    )
    assert (type(error), error.message) == (ToolFailed, "the tool raised KeyboardInterrupt")
    assert error.executed == "yes"


async def test_an_override_of_get_tool_decides_which_tool_runs() -> None:
    class Guarded(Toolkit):
        def get_tool(self, name: str) -> Tool:
            raise PermissionDenied(f"{name} is closed")

    async def numbers() -> AsyncIterator[int]:
        yield 1

    async def put(chunk: Chunk) -> None:
        raise AssertionError

    with pytest.raises(PermissionDenied):
        await Guarded("t", [double]).execute(ToolContext(), "double", {"number": 1})
    with pytest.raises(PermissionDenied):
        await Guarded("t", [numbers]).execute(ToolContext(on_chunk=put), "numbers", {})


async def test_rules_and_middlewares_are_about_the_called_name_whatever_tool_runs() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    others = {"double": FunctionTool(double, name="other"), "more": FunctionTool(numbers)}
    got: list[Any] = []
    seen: list[str] = []

    class Choosing(Toolkit):
        def get_tool(self, name: str) -> Tool:
            return others[name]

    async def put(chunk: Chunk) -> None:
        got.append(chunk.value)

    async def watch(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        seen.append(call.tool.name)
        async for chunk in next(call):
            yield chunk

    kit = Choosing("t", [double], middlewares=[watch])
    assert (await kit.execute(ToolContext(), "double", {"number": 1})).value == 2
    await kit.execute(ToolContext(on_chunk=put), "more", {})
    kit.policy = Permissions("bypass", [Rule(behavior="deny", tool="t.double")])
    with pytest.raises(PermissionDenied):
        await kit.execute(ToolContext(), "double", {"number": 1})
    assert (seen, got) == (["t.double", "t.double"], [1])


# Another definition made of a toolkit


async def test_changed_toolkits_keep_everything_but_their_tools() -> None:
    seen: list[str] = []

    async def quiet(call: Any, next: Any) -> Any:
        seen.append(call.tool.name)
        async for chunk in next(call):
            yield chunk

    first = RemoteToolkit(
        "t",
        [plain, Shelf().books],
        rules=["Ask."],
        annotations={"a": [1]},
        middlewares=[quiet],
        public=False,
        shared_with=["*"],
        supersede=True,
    )
    local = InProcessToolkit.of(first)
    second = first.with_tools(double, Empty()).without("plain")

    assert [tool.name for tool in second.tools] == ["books", "double", "empty"]
    assert type(second) is RemoteToolkit
    assert (second.public, second.shared_with, second.supersede) == (False, ("*",), True)
    assert (second.rules, second.middlewares) == (("Ask.",), (quiet,))
    assert [tool.name for tool in first.tools] == ["plain", "books"]
    before, after = first.manifest(), second.manifest()
    assert after.model_copy(update={"tools": before.tools}) == before
    assert second.get_tool("books") is first.get_tool("books")
    chunk = await second.execute(ToolContext(), "double", {"number": 2})
    assert chunk == JsonChunk(4)
    assert seen == ["t.double"]
    with pytest.raises(NotFound):
        await second.execute(ToolContext(), "plain", {})
    assert InProcessToolkit.of(second) is not local
    second.annotations["a"].append(2)
    assert first.annotations == {"a": [1]}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            lambda kit: kit.with_tools(Shelf().books),
            ValueError,
            r"two tools named 'books': .*Shelf\.books and .*Shelf\.books",
        ),
        (
            lambda kit: kit.with_tools(double, FunctionTool(partial(plain), name="double")),
            ValueError,
            r"two tools named 'double': .*\.double and .*\.plain",
        ),
        (lambda kit: kit.with_tools(*MANY), ValueError, "'t' has 1,002 tools, at most 1,000"),
        (lambda kit: kit.with_tools(7), TypeError, "7 is not a function or a Tool"),
        (lambda kit: kit.without("book"), ValueError, r"no tool 'book': did you mean books\?"),
        (lambda kit: kit.without("x"), ValueError, "no tool 'x': there are books"),
        (lambda kit: kit.without(double), TypeError, "without takes names of tools"),
    ],
)
def test_impossible_changes_of_a_toolkit_name_the_tools(
    change: Callable[[Toolkit], Toolkit], kind: type[Exception], message: str
) -> None:
    toolkit = Toolkit("t", [Shelf().books])
    with pytest.raises(kind, match=message):
        change(toolkit)


def test_the_decorator_of_a_toolkit_adds_tools_and_returns_the_functions() -> None:
    kit = RemoteToolkit("kit", [double])

    @kit.tool
    def first(city: str) -> str:
        """Look up a city."""
        return city

    @kit.tool(name="other", read_only=True)
    @tool(idempotent=True)
    def second() -> int:
        return 2

    assert (first("Oslo"), second()) == ("Oslo", 2)
    kit.tool(Empty())
    kit.tool(name="third", idempotent=False)(second)
    assert [made.name for made in kit.tools] == ["double", "first", "other", "empty", "third"]
    assert [made.name for made in kit.manifest().tools] == [made.name for made in kit.tools]
    other, third = (kit.get_tool(name).manifest() for name in ("other", "third"))
    assert (other.read_only, other.idempotent) == (True, True)
    assert (third.read_only, third.idempotent) == (False, False)


async def test_a_tool_that_was_added_runs_like_those_of_the_list() -> None:
    seen: list[str] = []

    async def note(call: ToolCall, call_next: CallNext) -> AsyncIterator[Chunk]:
        seen.append(call.tool.name)
        async for chunk in call_next(call):
            yield chunk

    kit = Toolkit("kit", middlewares=[note])

    @kit.tool
    def echo(text: str) -> str:
        return text

    assert await kit.execute(ToolContext(), "echo", {"text": "a"}) == TextChunk("a")
    assert seen == ["kit.echo"]


def test_a_tool_that_cannot_be_added_changes_nothing_and_says_what_to_do() -> None:
    kit = Toolkit("kit", [double])
    with pytest.raises(
        ValueError, match=r"'double' already, .*\.double: give this one another name"
    ):
        kit.tool(double)
    with pytest.raises(TypeError, match=r"did you mean @kit\.tool\(name='x'\)\?"):
        kit.tool("x")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="has no option 'readonly'; did you mean 'read_only'"):
        kit.tool(readonly=True)(plain)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="Empty is a class: pass an instance"):
        kit.tool(Empty)
    assert [made.name for made in kit.tools] == ["double"]


async def test_no_tool_is_added_to_a_toolkit_that_is_in_use() -> None:
    kit = Toolkit("kit", [double])
    await kit.execute(ToolContext(), "double", {"number": 1})  # a test of the author's
    kit.tool(plain)
    InProcessToolkit.of(kit)
    with pytest.raises(RuntimeError, match=r"add 'late' before it is hosted, or serve .*replace"):
        kit.tool(name="late")(plain)
    other = kit.with_tools()
    other.tool(name="late")(plain)
    assert [made.name for made in other.tools] == ["double", "plain", "late"]
    assert [made.name for made in kit.tools] == ["double", "plain"]


async def test_a_traceback_of_execute_names_the_call_and_begins_at_the_author() -> None:
    frozen = make_dataclass("Frozen", [], bases=(Exception,), frozen=True)
    error = await failure(raising(frozen()), "fails")
    assert error.__notes__ == ["the call of t.fails failed (executed: yes)"]
    assert error.__cause__ is not None
    frames = traceback.extract_tb(error.__cause__.__traceback__)
    assert [(frame.filename, frame.name) for frame in frames] == [(__file__, "fails")]
    error = await failure(Toolkit("t", [plain]), "plain", {"text": 1})
    assert error.__notes__ == ["the call of t.plain failed (executed: no)"]
