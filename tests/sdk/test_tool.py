"""Tools: the decorator, function tools, tool classes, and how arguments are checked."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

from toolbus.chunks import FileChunk, JsonChunk
from toolbus.context import ToolContext
from toolbus.errors import InvalidArguments, InvalidResult
from toolbus.tool import FunctionTool, Tool, ToolOptions, tool


class Place(BaseModel):
    name: str
    height: int = 0


@tool
async def forecast(context: ToolContext, city: str, days: int = 3) -> dict[str, Any]:
    """Forecast the weather.

    Args:
        city: Name of the city.
    """
    return {"city": city, "days": days, "caller": context.caller.name}


@tool(
    name="measure",
    title="Measure it",
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


class Echo(Tool):
    name = "echo"
    input_schema = {  # noqa: RUF012 - as people write it
        "properties": {"value": {"$ref": "#/$defs/value"}},
        "required": ["value"],
        "$defs": {"value": {"type": "integer"}},
    }

    async def execute(self, context: ToolContext, /, value: int) -> Any:
        return value


def refusal(of: Tool, arguments: Any) -> tuple[str, str]:
    with pytest.raises(InvalidArguments) as caught:
        of.read_arguments(arguments)
    assert caught.value.executed == "no"
    return caught.value.details["path"], caught.value.details["message"]


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
    }
    assert "Place" in manifest.input_schema["$defs"]


def test_bare_decorator_takes_everything_from_the_function() -> None:
    manifest = FunctionTool(forecast).manifest()
    assert (manifest.name, manifest.title) == ("forecast", "Forecast")
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
    async with asyncio.timeout(5):
        return await of.execute(ToolContext(), **of.read_arguments(arguments))


async def test_methods_are_tools_of_their_instance_and_still_methods() -> None:
    station = Station(10)
    bound = FunctionTool(station.read)
    assert bound.name == "height"
    assert await run(bound, plus=2) == await station.read(2) == 12
    assert await run(FunctionTool(Station.above)) == Station.above() == "sky"
    assert FunctionTool(Station.kind).title == "Outer"
    assert await run(FunctionTool(Station.kind)) == "Station"


def test_decorator_is_refused_where_it_cannot_stay() -> None:
    with pytest.raises(TypeError, match="on a function"):
        tool(Place)
    with pytest.raises(TypeError, match="on a function"):
        tool(3)  # type: ignore[call-overload]  # the point
    with pytest.raises(TypeError, match="FunctionTool"):
        tool(Station(1).read)
    with pytest.raises(TypeError, match="colour"):
        tool(colour="red")  # type: ignore[call-overload]  # the point


def test_options_can_be_given_beside_the_function() -> None:
    named = FunctionTool(Station(1).read, ToolOptions(name="other", read_only=True))
    assert (named.name, named.read_only) == ("other", True)


class Callable_:
    async def __call__(self, city: str) -> str:
        return city


async def test_async_is_told_from_sync_for_every_kind_of_callable() -> None:
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


async def test_partial_keeps_what_it_has_set() -> None:
    async def fetch(url: str, key: str) -> str:
        return f"{url}:{key}"

    made = FunctionTool(functools.partial(fetch, key="secret"))
    assert made.name == "fetch"
    assert await run(made, url="a") == "a:secret"
    assert refusal(made, {"url": "a", "key": "mine"})[0] == "/key"


async def test_streaming_functions_are_refused_when_the_tool_is_made() -> None:
    async def rows() -> AsyncIterator[int]:
        yield 1

    def lines() -> Iterator[int]:
        yield 1

    class Rows(Echo):
        async def execute(self, context: ToolContext, /, value: int) -> Any:
            yield value

    for make in (lambda: FunctionTool(rows), lambda: FunctionTool(lines), Rows().manifest):
        with pytest.raises(ValueError, match="not supported yet"):
            make()
    with pytest.raises(ValueError, match="not supported yet"):
        Echo(streaming=True).manifest()


@pytest.mark.row(48)
@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({}, "/city"),
        ({"city": 1}, "/city"),
        ({"city": "Oslo", "days": "2"}, "/days"),
        ({"city": "Oslo", "days": True}, "/days"),
        ({"city": "Oslo", "days": 2.5}, "/days"),
        ({"city": "Oslo", "days": None}, "/days"),
        ({"city": "Oslo", "days": 1e300}, "/days"),
        ({"city": "Oslo", "unknown": 1}, "/unknown"),
        ({"city": "Oslo", "context": {}}, "/context"),
        ({"city": "Oslo", "self": 1}, "/self"),
        ({"city": b"Oslo"}, ""),
        ({1: 2}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_arguments_that_break_the_schema_are_refused_with_their_path(
    arguments: Any, path: str
) -> None:
    assert refusal(FunctionTool(forecast), arguments)[0] == path


def test_whole_number_fits_an_integer_and_arrives_as_int() -> None:
    values = FunctionTool(forecast).read_arguments({"city": "Oslo", "days": 2.0})
    assert (values["days"], type(values["days"])) == (2, int)


def test_path_leads_into_nested_values_and_is_a_json_pointer() -> None:
    def visit(places: list[Place], by: dict[str, Place] | None = None) -> None: ...

    made = FunctionTool(visit)
    here = {"name": "here"}
    assert refusal(made, {"places": [here, {"name": 3}]})[0] == "/places/1/name"
    assert refusal(made, {"places": [here, {}]})[0] == "/places/1/name"
    assert refusal(made, {"places": [], "by": {"a/b": {"name": 3}}})[0] == "/by/a~1b/name"


def test_optional_argument_is_refused_with_what_it_should_have_been() -> None:
    def visit(place: Place | None = None, height: int | None = None) -> None: ...

    made = FunctionTool(visit)
    assert refusal(made, {"height": "1"}) == ("/height", 'the value is not of type "integer"')
    assert refusal(made, {"place": {}}) == ("/place/name", '"name" is required')


def odd_only(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("even")
    return value


def breaks(value: int) -> int:
    raise KeyError("secret")


def test_arguments_that_fit_the_schema_but_do_not_convert_are_refused() -> None:
    def count(odd: Annotated[int, AfterValidator(odd_only)] | None = None) -> None: ...
    def count_all(odd: list[Annotated[int, AfterValidator(odd_only)]]) -> None: ...
    def broken(value: Annotated[int, AfterValidator(breaks)]) -> None: ...

    assert refusal(FunctionTool(count), {"odd": 2}) == ("/odd", "Value error, even")
    assert refusal(FunctionTool(count_all), {"odd": [1, 2]})[0] == "/odd/1"
    assert refusal(FunctionTool(broken), {"value": 2}) == (
        "",
        "the arguments cannot be converted: KeyError",
    )


def test_refusal_repeats_no_value_and_is_short() -> None:
    made = FunctionTool(forecast)
    for arguments in (
        {"city": ["secret" * 100_000]},
        {"city": "Oslo", "secret" * 100_000: 1},
    ):
        path, message = refusal(made, arguments)
        assert max(len(path), len(message)) <= 210
    assert "secret" not in refusal(made, {"city": ["secret"]})[1]


def test_first_violation_is_the_same_each_time() -> None:
    made = FunctionTool(forecast)
    arguments = {"z": 1, "a": 2, "days": "x", "city": 3}
    assert len({refusal(made, arguments) for _ in range(20)}) == 1


def test_formats_count_and_times_need_no_offset() -> None:
    made = Echo(input_schema={"properties": {"at": {"format": "date-time"}}})
    for fine in ("2026-03-04T10:00:00", "2026-03-04T10:00:00.5Z", "2026-03-04 10:00+01:00"):
        made.read_arguments({"at": fine})
    for wrong in ("5", "2026-03-04", "2026-13-04T10:00:00", "2026-03-04T25:00:00", "now"):
        assert refusal(made, {"at": wrong})[0] == "/at"
    lasting = Echo(input_schema={"properties": {"for": {"format": "duration"}}})
    for fine in ("P1D", "PT0.5S", "-P1DT2H", "P2W"):
        lasting.read_arguments({"for": fine})
    for wrong in ("5", "P", "P1DT", "1D"):
        assert refusal(lasting, {"for": wrong})[0] == "/for"


# Tool classes


async def test_tool_class_gets_the_checked_arguments_as_they_are() -> None:
    assert await run(Echo(), value=2.0) == 2.0
    assert refusal(Echo(), {"value": "2"})[0] == "/value"
    assert refusal(Echo(), [1])[0] == ""


def test_tool_class_takes_its_definition_from_attributes_or_constructor() -> None:
    given = Echo("shout", title="Shout", rules=["Loud."], timeout_s=1, read_only=True).manifest()
    assert (given.name, given.title, given.rules) == ("shout", "Shout", ("Loud.",))
    assert (given.timeout_s, given.read_only) == (1.0, True)
    assert Echo.name == Echo().name == "echo"
    assert Echo().manifest().title == "Echo"


def test_tool_class_whose_constructor_calls_no_other_still_works() -> None:
    class Careless(Echo):
        def __init__(self) -> None:
            self.value = 1

    assert Careless().manifest().name == "echo"


def test_defs_are_merged_into_the_schema() -> None:
    made = Echo(defs={"more": {"type": "string"}, "value": {"type": "integer"}})
    assert made.manifest().input_schema["$defs"] == {
        "value": {"type": "integer"},
        "more": {"type": "string"},
    }
    assert "more" not in Echo.input_schema["$defs"]
    with pytest.raises(ValueError, match="'value'"):
        Echo(defs={"value": {"type": "string"}}).manifest()


def test_changing_a_schema_later_changes_nothing() -> None:
    schema: dict[str, Any] = {"properties": {"value": {"type": "integer"}}}
    made = Echo(input_schema=schema)
    made.manifest()
    schema["properties"]["value"]["type"] = "string"
    assert made.manifest().input_schema["properties"]["value"] == {"type": "integer"}


@pytest.mark.parametrize("schema", ["{}", [], 3, True])
def test_schema_that_is_no_dict_is_a_type_error(schema: Any) -> None:
    with pytest.raises(TypeError, match="input_schema must be a dict"):
        Echo(input_schema=schema)


def test_class_without_a_schema_is_a_type_error() -> None:
    class Bare(Tool):
        name = "bare"

        async def execute(self, context: ToolContext, /, **arguments: Any) -> Any: ...

    with pytest.raises(TypeError, match="'bare': input_schema"):
        Bare().manifest()


def test_execute_that_is_not_async_is_a_type_error() -> None:
    class Sync(Echo):
        def execute(self, context: ToolContext, /, value: int) -> Any:
            return value

    with pytest.raises(TypeError, match="must be async"):
        Sync().manifest()


@pytest.mark.row(38)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"properties": {"a": {"type": "text"}}},
        {"properties": {"a": {"$ref": "https://example.org/schema.json"}}},
        {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"properties": {"a": {"pattern": "(?=a)b"}}},
        {"properties": {"a": {"pattern": "(a)\\1"}}},
        {"$schema": "https://example.org/own-meta-schema"},
    ],
)
def test_schema_that_does_not_compile_alone_is_refused_with_the_tool(schema: Any) -> None:
    with pytest.raises(ValueError, match="'echo'"):
        Echo(input_schema=schema).manifest()
    if schema.get("type") != "array":
        with pytest.raises(ValueError, match="'echo'"):
            Echo(output_schema=schema).manifest()


def test_draft_named_by_the_schema_is_honoured() -> None:
    tuples = {"properties": {"pair": {"items": [{"type": "integer"}]}}}
    draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#", **tuples}
    assert refusal(Echo(input_schema=draft_7), {"pair": ["a"]})[0] == "/pair/0"
    with pytest.raises(ValueError, match="'echo'"):
        Echo(input_schema=tuples).manifest()


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, "naïve", "a\n", "a.b"])
def test_name_out_of_its_grammar_is_a_value_error(name: str) -> None:
    made = Echo()
    made.name = name
    with pytest.raises(ValueError, match="a tool name is"):
        made.manifest()


def test_rules_given_as_one_string_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="not one string"):
        Echo(rules="Use metric units.").manifest()


async def test_start_and_stop_may_be_left_out() -> None:
    await Echo().start(object())
    await Echo().stop()


# Results


@pytest.mark.row(49)
def test_result_that_breaks_the_output_schema_is_an_invalid_result() -> None:
    made = Echo(output_schema={"properties": {"rows": {"items": {"type": "integer"}}}})
    assert made.make_result({"rows": [1]}) == JsonChunk({"rows": [1]})
    with pytest.raises(InvalidResult) as caught:
        made.make_result({"rows": [1, "secret"]})
    assert caught.value.details["path"] == "/rows/1"
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidResult):
        made.make_result(FileChunk(b"a"))


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
    async with asyncio.timeout(5):
        thread, request = await run(FunctionTool(look))
    assert thread != threading.current_thread().name
    assert request == "mine"


async def test_sync_function_runs_where_the_context_says() -> None:
    def look() -> str:
        return threading.current_thread().name

    async def here(function: Callable[[], Any]) -> Any:
        return function()

    result = await FunctionTool(look).execute(ToolContext(run_sync=here))
    assert result == threading.current_thread().name


async def test_sync_function_that_raises_stop_iteration_does_not_hang() -> None:
    def stop() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await run(FunctionTool(stop))


async def test_cancelling_the_task_leaves_the_thread_running_to_its_end() -> None:
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work(context: ToolContext) -> None:
        started.set()
        go_on.wait(5)
        if context.cancelled:
            ended.set()

    context = ToolContext()
    task = asyncio.ensure_future(FunctionTool(work).execute(context))
    async with asyncio.timeout(5):
        await asyncio.to_thread(started.wait, 5)
        context.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert await asyncio.to_thread(ended.wait, 5)
