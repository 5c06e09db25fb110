"""Tools: the decorator, function tools, tool classes, and how arguments are checked."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any

import pytest

from support.parts.plain_tools import Echo, Place, forecast, refusal
from support.patience import PATIENCE_S
from toolbus.chunks.chunk_types import FileChunk, JsonChunk, LinkChunk
from toolbus.errors import InvalidArguments, InvalidResult
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.input_stream import InputStream
from toolbus.tools.options import ToolOptions, tool
from toolbus.tools.tool import Tool
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.toolkit import Toolkit
from toolbus.wire import ToolkitManifest, ToolManifest


@tool(
    name="measure",
    title="Measure it",
    concurrency_safe=False,
    destructive=True,
    open_world=True,
    external=True,
    approval=True,
    cache_ttl_s=30,
    annotations={"mcp": "lab"},
    description="Measures.",
    rules=["Be gentle."],
    thumbnail_url="https://example.org/a.png",
    read_only=True,
    idempotent=True,
    timeout_s=2.5,
    max_concurrency=4,
    affinity="caller",
    output_schema={"type": "integer"},
    supports_context=True,
)
def measured(place: Place, on: date = date(2026, 1, 1)) -> int:
    """Unused words."""
    return place.height


async def test_decorated_function_stays_the_function_it_was() -> None:
    assert inspect.isfunction(forecast)
    assert inspect.isfunction(measured)
    assert (await forecast(ToolContext(), "Oslo"))["days"] == 3
    assert measured(Place(name="here", height=7)) == 7


def test_options_of_the_decorator_reach_the_manifest() -> None:
    manifest = FunctionTool(measured).manifest()
    assert manifest.model_dump(exclude={"input_schema"}) == {
        "name": "measure",
        "title": "Measure it",
        "description": "Measures.",
        "output_schema": {"type": "integer"},
        "rules": ("Be gentle.",),
        "thumbnail_url": "https://example.org/a.png",
        "supports_context": True,
        "read_only": True,
        "idempotent": True,
        "streaming": False,
        "timeout_s": 2.5,
        "max_concurrency": 4,
        "affinity": "caller",
        "takes": "",
        "takes_required": False,
        "concurrency_safe": False,
        "destructive": True,
        "open_world": True,
        "external": True,
        "approval": True,
        "cache_ttl_s": 30.0,
        "annotations": {"mcp": "lab"},
    }
    assert "Place" in manifest.input_schema["$defs"]


@tool(concurrency_safe=True)
async def relayed(rows: InputStream[int]) -> AsyncIterator[int]:
    async for row in rows:
        yield row


@pytest.mark.parametrize("function", [measured, relayed])
def test_tool_info_has_every_field_that_does_not_concern_its_host_alone(function: Any) -> None:
    manifest = FunctionTool(function).manifest()
    info = ToolInfo.of(ToolkitManifest(name="lab"), manifest)
    shown = set(ToolManifest.model_fields) - {"name", "max_concurrency", "affinity"}
    assert {name: getattr(info, name) for name in shown} == manifest.model_dump(include=shown)
    assert (info.name, info.tool) == (f"lab.{manifest.name}", manifest.name)


def test_bare_decorator_takes_everything_from_the_function() -> None:
    manifest = FunctionTool(forecast).manifest()
    assert (manifest.name, manifest.title) == ("forecast", "forecast")
    assert manifest.description == "Forecast the weather."
    assert manifest.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name of the city."},
            "days": {"type": "integer", "default": 3},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert manifest.output_schema is None


class Station:
    def __init__(self, height: int) -> None:
        self.height = height

    @tool(name="height")
    async def read(self, plus: int = 0) -> int:
        """Read the height."""
        return self.height + plus

    @tool
    @staticmethod
    def above() -> str:
        return "sky"

    @tool(title="Outer")
    @classmethod
    def kind(cls) -> str:
        return cls.__name__


async def run(of: Tool, **arguments: Any) -> Any:
    async with asyncio.timeout(60):
        return await of.execute(ToolContext(), **of.read_arguments(arguments))


async def test_methods_are_tools_of_their_instance_and_still_methods() -> None:
    station = Station(10)
    bound = FunctionTool(station.read)
    assert bound.name == "height"
    assert await run(bound, plus=2) == await station.read(2) == 12
    assert await run(FunctionTool(Station.above)) == Station.above() == "sky"
    assert FunctionTool(Station.kind).title == "Outer"
    assert await run(FunctionTool(Station.kind)) == "Station"


def test_decorator_is_refused_on_other_objects() -> None:
    with pytest.raises(TypeError, match="decorates a function"):
        tool(Place)
    with pytest.raises(TypeError, match="decorates a function"):
        tool(3)  # type: ignore[call-overload]  # the point
    with pytest.raises(TypeError, match=r"did you mean @tool\(name='read'\)"):
        tool("read")  # type: ignore[call-overload]  # the point
    with pytest.raises(TypeError, match="FunctionTool"):
        tool(Station(1).read)
    with pytest.raises(TypeError, match="colour"):
        tool(colour="red")  # type: ignore[call-overload]  # the point


def test_options_can_be_given_with_the_function() -> None:
    named = FunctionTool(Station(1).read, ToolOptions(name="other", read_only=True))
    assert (named.name, named.read_only) == ("other", True)


class Callable_:
    async def __call__(self, city: str) -> str:
        return city


async def test_async_and_sync_are_distinguished_for_every_kind_of_callable() -> None:
    async def plain(city: str) -> str:
        return city

    def sync(city: str) -> str:
        return city

    @functools.wraps(plain)
    def wrapped(*args: Any, **named: Any) -> Any:
        return plain(*args, **named)

    cases: list[tuple[Callable[..., Any], bool]] = [
        (plain, True),
        (functools.partial(plain), True),
        (functools.partial(functools.partial(plain)), True),
        (Callable_(), True),
        (sync, False),
        (functools.partial(sync), False),
        (wrapped, False),
    ]
    for function, is_async in cases:
        made = FunctionTool(function, ToolOptions(name="it"))
        assert made.is_async is is_async
        assert await run(made, city="Oslo") == "Oslo"


async def test_partial_keeps_its_arguments() -> None:
    async def fetch(url: str, key: str) -> str:
        return f"{url}:{key}"

    made = FunctionTool(functools.partial(fetch, key="secret"))
    assert (made.name, made.description) == ("fetch", "")
    assert await run(made, url="a") == "a:secret"
    assert refusal(made, {"url": "a", "key": "mine"})[0] == "/key"


class Fetch:
    """Fetch a page."""

    def __call__(self, url: str) -> str:
        return url


def test_object_without_a_docstring_of_its_call_is_described_by_its_class() -> None:
    for function in (Fetch(), functools.partial(Fetch())):
        assert FunctionTool(function).description == "Fetch a page."


def test_result_that_breaks_the_output_schema_is_an_invalid_result() -> None:
    made = Echo(output_schema={"properties": {"rows": {"items": {"type": "integer"}}}})
    assert made.make_result({"rows": [1]}) == JsonChunk({"rows": [1]})
    with pytest.raises(InvalidResult) as caught:
        made.make_result({"rows": [1, "secret"]})
    assert caught.value.details["path"] == "/rows/1"
    assert "secret" not in str(caught.value)
    for other in (FileChunk(b"a"), LinkChunk("https://example.org")):
        with pytest.raises(InvalidResult, match="must return a JSON value"):
            made.make_result(other)


def test_model_that_is_returned_fits_the_schema_made_from_it() -> None:
    async def find() -> Place:
        return Place(name="here")

    made = FunctionTool(find)
    assert made.make_result(Place(name="here")).value == {"name": "here", "height": 0}
    with pytest.raises(InvalidResult):
        made.make_result({"height": 1})


# Threads

_REQUEST = contextvars.ContextVar("_REQUEST", default="none")


async def test_sync_function_runs_on_a_thread_with_the_caller_s_context_variables() -> None:
    def look() -> list[str]:
        return [threading.current_thread().name, _REQUEST.get()]

    _REQUEST.set("mine")
    async with asyncio.timeout(60):
        thread, request = await run(FunctionTool(look))
    assert thread != threading.current_thread().name
    assert request == "mine"


async def test_sync_function_runs_by_run_sync_of_the_context() -> None:
    def look() -> list[str]:
        return [threading.current_thread().name, _REQUEST.get()]

    async def in_pool(function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, function)

    _REQUEST.set("mine")
    with ThreadPoolExecutor(1, "chosen") as pool:
        async with asyncio.timeout(60):
            result = await FunctionTool(look).execute(ToolContext(run_sync=in_pool))
    assert result == ["chosen_0", "mine"]


async def test_sync_function_that_raises_stop_iteration_does_not_hang() -> None:
    def stop() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await run(FunctionTool(stop))


async def test_cancelling_the_task_leaves_the_thread_running_to_its_end() -> None:
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work(context: ToolContext) -> None:
        started.set()
        go_on.wait(PATIENCE_S)
        if context.cancelled:
            ended.set()

    context = ToolContext()
    task = asyncio.ensure_future(FunctionTool(work).execute(context))
    async with asyncio.timeout(60):
        await asyncio.to_thread(started.wait, 5)
        run_of(context).cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert await asyncio.to_thread(ended.wait, 5)


# Plain arguments: their types agree with the schema


def plain(count: int, word: str = "x", loud: bool = False) -> str:
    return f"{count} {word} {loud}"


class Text(str):
    pass


@pytest.mark.parametrize(
    "arguments",
    [
        {"count": 1},
        {"count": 1, "word": "y", "loud": True},
        {"count": 2**63},
        {"count": 7.0},
        {"count": 7.5},
        {"count": True},
        {"count": "1"},
        {"count": None},
        {"count": 1, "word": None},
        {"count": 1, "word": 1},
        {"count": 1, "loud": 1},
        {"count": 1, "word": Text("y")},
        {},
        {"word": "y"},
        {"count": 1, "more": 1},
        ["count"],
        None,
        "count",
    ],
)
def test_plain_arguments_have_the_same_outcome_as_the_schema(arguments: Any) -> None:
    def outcome(of: FunctionTool) -> Any:
        try:
            return of.read_arguments(arguments)
        except InvalidArguments as error:
            return error.details

    quick, slow = FunctionTool(plain), FunctionTool(plain)
    for made in (quick, slow):
        made.manifest()
    assert quick._plain is not None
    slow._plain = None
    assert outcome(quick) == outcome(slow)


def test_a_schema_that_a_subclass_tightened_counts() -> None:
    class Bounded(FunctionTool):
        def __init__(self) -> None:
            super().__init__(plain)
            self.input_schema["properties"]["count"]["maximum"] = 10

    with pytest.raises(InvalidArguments):
        Bounded().read_arguments({"count": 11})
    assert Bounded().read_arguments({"count": 10})["count"] == 10


async def doubled(number: int) -> int:
    return 2 * number


class Lending(Toolkit):
    """Runs a tool other than the one that it lists."""

    def get_tool(self, name: str) -> Tool:
        found = super().get_tool(name)
        found.execute = refused  # type: ignore[method-assign]
        return found


async def refused(context: ToolContext, /, **arguments: Any) -> str:
    return f"no {arguments['number']}"


async def answer_of(kit: Toolkit) -> Any:
    return (await kit.execute(ToolContext(), "doubled", {"number": 2})).value


async def test_replaced_execute_is_what_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await answer_of(Toolkit("t", [doubled])) == 4
    assert await answer_of(Lending("t", [doubled])) == "no 2"

    made = FunctionTool(doubled)
    kit = Toolkit("t", [made])
    assert await answer_of(kit) == 4
    made.execute = refused  # type: ignore[method-assign]
    assert await answer_of(kit) == "no 2"

    async def patched(self: FunctionTool, context: ToolContext, /, number: int) -> str:
        return f"patched {number}"

    kit = Toolkit("t", [doubled])
    assert await answer_of(kit) == 4
    monkeypatch.setattr(FunctionTool, "execute", patched)
    assert await answer_of(kit) == "patched 2"


async def test_execute_of_another_tool_runs_the_function_of_that_tool() -> None:
    async def tripled(number: int) -> int:
        return 3 * number

    made, other = FunctionTool(doubled), FunctionTool(tripled)
    made.execute = other.execute  # type: ignore[method-assign]
    assert await answer_of(Toolkit("t", [made])) == 6


async def test_replaced_function_is_what_runs() -> None:
    async def tripled(number: int) -> int:
        return 3 * number

    made = FunctionTool(doubled)
    kit = Toolkit("t", [made])
    assert await answer_of(kit) == 4
    made.function = tripled
    assert await answer_of(kit) == 6


def test_arguments_that_were_read_are_the_tools_own() -> None:
    given = {"count": 1, "word": "x", "loud": True}
    tool_of_mine = FunctionTool(plain)
    for _ in range(2):
        tool_of_mine.read_arguments(given)["count"] = 2
    assert given["count"] == 1
