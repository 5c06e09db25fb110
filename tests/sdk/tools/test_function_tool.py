"""Functions as tools: `args_schema`, `preset`, `extended`, `postprocess`, and what they refuse."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, SerializeAsAny

from toolbus.chunks.chunk_types import Chunk
from toolbus.concurrency.slices import run_in_slices
from toolbus.concurrency.thread_iterator import on_own_thread
from toolbus.errors import RoomException
from toolbus.tools.context import ToolContext
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.tools.options import tool
from toolbus.tools.tool import Tool
from toolbus.tools.toolkit import Toolkit


class Weather(BaseModel):
    city: str
    day: date = date(2026, 1, 1)
    near: list[Weather] = []


class Thinking(BaseModel):
    thinking: str = Field(description="What you know, and what you do next.")


class WithDefs(BaseModel):
    where: Weather
    why: str


class StrictDay(BaseModel):
    model_config = ConfigDict(strict=True)
    at: date = Field(alias="from")


class AnyNames(BaseModel):
    model_config = ConfigDict(extra="allow")
    city: str


CITY = {"properties": {"city": {"type": "string"}}, "required": ["city"]}
OPEN = {**CITY, "additionalProperties": True}


def forecast(city: Any, day: Any = None, near: Any = ()) -> list[Any]:
    """Look up the weather."""
    return [city, type(day).__name__, [type(place).__name__ for place in near]]


def plain(city: str) -> str:
    return city


def free(context: ToolContext, city: str, **rest: Any) -> dict[str, str]:
    return {"city": city, **{name: repr(value) for name, value in rest.items()}}


async def outcome(made: Tool, **arguments: Any) -> Any:
    """Return the value of a call, its items, or code, `executed` and path of its error."""
    items: list[Any] = []

    async def take(chunk: Chunk) -> None:
        items.append(chunk.value)

    try:
        chunk = await Toolkit("t", [made]).execute(ToolContext(on_chunk=take), made.name, arguments)
    except RoomException as failure:
        return failure.code, failure.executed, failure.details.get("path")
    return items if made.streaming else chunk.value


def invalid(path: str) -> tuple[str, str, str]:
    return "invalid_arguments", "no", path


async def test_weather_written_three_ways_is_one_tool() -> None:
    @tool(read_only=True)
    def weather(city: str, days: int = 1) -> str:
        """Look up the weather."""
        return f"{city} {days}"

    def untyped(city, days=1):  # type: ignore[no-untyped-def]
        """Look up the weather."""
        return f"{city} {days}"

    class Arguments(BaseModel):
        city: str
        days: int = 1

    options: Any = {"name": "weather", "read_only": True, "output_schema": None}
    ways = [
        FunctionTool(weather),
        FunctionTool(untyped, args_schema=Arguments, **options),
        FunctionTool(untyped, args_schema=Arguments.model_json_schema(), **options),
    ]
    for made in ways:
        assert made.description == "Look up the weather."
        assert await outcome(made, city="Oslo") == "Oslo 1"
        assert await outcome(made, city="Oslo", days="2") == invalid("/days")
        assert await outcome(made, days=2) == invalid("/city")
    assert ways[0].manifest() == ways[1].manifest()


async def test_model_describes_validates_and_converts_the_arguments() -> None:
    made = FunctionTool(forecast, args_schema=Weather)
    schema = made.manifest().input_schema
    assert (made.description, list(schema["properties"])) == (
        "Look up the weather.",
        ["city", "day", "near"],
    )
    given = {"city": "Oslo", "day": "2026-02-03", "near": [{"city": "Ski"}]}
    assert await outcome(made, **given) == ["Oslo", "date", ["Weather"]]
    assert await outcome(made, city="Oslo", day="3 May") == invalid("/day")
    assert await outcome(made, city="Oslo", hour=3) == invalid("/hour")


async def test_json_schema_validates_arguments_and_passes_them_on() -> None:
    days = {"city": {"type": "string"}, "day": {"type": "string", "format": "date"}}
    made = FunctionTool(forecast, args_schema={**CITY, "properties": days})
    assert await outcome(made, city="Oslo", day="2026-02-03") == ["Oslo", "str", []]
    assert await outcome(made, city="Oslo", day="3 May") == invalid("/day")
    assert await outcome(made, city="Oslo", hour=3) == invalid("/hour")
    closed = FunctionTool(free, args_schema=CITY)
    assert await outcome(closed, city="Oslo", hour=3) == invalid("/hour")
    assert "additionalProperties" not in CITY


@pytest.mark.parametrize("schema", [OPEN, AnyNames, {**CITY, "patternProperties": {"": {}}}])
async def test_open_schema_fills_keywords_but_nothing_that_is_not_the_callers(schema: Any) -> None:
    made = FunctionTool(free, args_schema=schema, preset={"key": "secret"})
    assert await outcome(made, city="Oslo", hour=3) == {
        "city": "Oslo",
        "hour": "3",
        "key": "'secret'",
    }
    for name in ("key", "context"):
        assert await outcome(made, **{"city": "Oslo", name: "mine"}) == invalid(f"/{name}")


async def test_argument_named_self_or_outside_of_all_branches_is_refused() -> None:
    class Station:
        def read(self, **rest: Any) -> int:
            return len(rest)

    made = FunctionTool(Station().read, args_schema={"additionalProperties": True})
    assert await outcome(made, a=1, b=2) == 2
    assert await outcome(made, self=1) == invalid("/self")
    branches = FunctionTool(forecast, args_schema={**CITY, "anyOf": [{"required": ["day"]}, {}]})
    assert await outcome(branches, city="Oslo", day="x") == ["Oslo", "str", []]
    assert await outcome(branches, city="Oslo", hour=3) == invalid("/hour")


async def test_preset_argument_is_hidden_passed_by_reference_and_cannot_be_named() -> None:
    shared = object()

    def same(key: Any, city: str = "") -> bool:
        return key is shared

    both = {"properties": {"city": {}, "key": {}}, "required": ["key"]}
    cases = [
        FunctionTool(same, preset={"key": shared}),
        FunctionTool(same, preset={"key": shared}, args_schema=both),
        FunctionTool(functools.partial(tool(functools.partial(same, key=shared)), city="Oslo")),
    ]
    for made in cases:
        schema = made.manifest().input_schema
        assert "key" not in schema["properties"]
        assert "required" not in schema
        assert await outcome(made) is True
        assert await outcome(made, key="mine") == invalid("/key")


async def test_extended_field_reaches_middlewares_and_the_function_if_it_takes_it() -> None:
    seen: list[Any] = []

    async def watch(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
        seen.append(call.arguments["thinking"])
        async for chunk in next(call):
            yield chunk

    made = FunctionTool(plain, extended=Thinking, middlewares=[watch])
    schema = made.manifest().input_schema
    assert schema["required"] == ["city", "thinking"]
    assert schema["properties"]["thinking"]["description"].startswith("What you know")
    assert await outcome(made, city="Oslo", thinking="hm") == "Oslo"
    assert await outcome(made, city="Oslo") == invalid("/thinking")
    assert await outcome(made, city="Oslo", thinking=3) == invalid("/thinking")
    assert seen == ["hm"]
    taking = FunctionTool(free, extended=Thinking)
    assert await outcome(taking, city="Oslo", thinking="hm") == {"city": "Oslo", "thinking": "'hm'"}
    named = FunctionTool(forecast, args_schema=CITY, extended=StrictDay)
    assert await outcome(named, city="Oslo", **{"from": "2026-02-03"}) == ["Oslo", "NoneType", []]


async def test_extended_model_can_be_replaced_and_taken_away() -> None:
    made = FunctionTool(free, extended=Thinking, read_only=True)
    other = made.with_extended(StrictDay)
    assert await outcome(other, city="Oslo", **{"from": "2026-02-03"}) == {
        "city": "Oslo",
        "at": "datetime.date(2026, 2, 3)",
    }
    without = other.with_extended(None)
    assert await outcome(without, city="Oslo") == {"city": "Oslo"}
    assert await outcome(without, city="Oslo", thinking="hm") == invalid("/thinking")
    assert without.read_only
    assert "thinking" in made.manifest().input_schema["properties"]
    with pytest.raises(ValueError, match="another definition of 'Weather'"):
        FunctionTool(rows).with_extended(OtherDefs)
    for function in (plain, rows):
        assert FunctionTool(function, extended=WithDefs).with_extended(None).manifest() == (
            FunctionTool(function).manifest()
        )


def test_input_schema_is_that_of_the_manifest_before_and_after_it_is_made() -> None:
    class Careful(FunctionTool):
        def __init__(self) -> None:
            super().__init__(plain, extended=WithDefs)
            self.input_schema["properties"]["city"]["maxLength"] = 7

    class Own(Tool):
        name = "own"
        input_schema = {"properties": {"a": {}}}  # noqa: RUF012 - as people write it

        async def execute(self, context: ToolContext, /, **arguments: Any) -> Any: ...

    class Made(Own):
        @property
        def input_schema(self) -> dict[str, Any]:  # type: ignore[override]
            return {"type": "object", "properties": {"b": {}}}

    made = FunctionTool(rows, extended=Thinking)
    for own in (made, made.with_extended(WithDefs), made.with_extended(None), Careful(), Made()):
        assert own.input_schema == own.manifest().input_schema == own.input_schema
    kit = Toolkit("kit", [Own(defs={"c": {}})])
    assert kit.tools[0].input_schema == kit.manifest().tools[0].input_schema
    assert Careful().with_extended(None).input_schema["properties"]["city"]["maxLength"] == 7
    assert "type" not in Own.input_schema


async def test_large_arguments_of_an_extended_tool_are_read_in_steps() -> None:
    def add(rows: list[Weather]) -> None: ...

    made = FunctionTool(add, extended=Thinking)
    rows = [{"city": "Oslo"}] * 40_000  # more than can be converted at once
    steps = made.read_steps({"rows": rows, "thinking": "hm"})
    read = await run_in_slices(steps, 1_000_000, continues=True)
    assert read["rows"][-1] == Weather(city="Oslo")


class Report(BaseModel):
    text: str


def report(value: str) -> Report:
    return Report(text=f"<{value}>")


async def report_later(value: str) -> Report:
    return report(value)


@dataclass
class Opaque:
    handle: threading.Thread


def opaque() -> Opaque:
    raise NotImplementedError


def fail(value: str) -> None:
    raise ValueError(value)


def once(word: str) -> str:
    return word


async def once_async(word: str) -> str:
    return word


def twice(word: str) -> Iterator[str]:
    yield from (word, word)


async def twice_async(word: str) -> AsyncIterator[str]:
    for item in (word, word):
        yield item


@pytest.mark.parametrize("function", [once, once_async, twice, twice_async])
async def test_postprocessor_returns_the_result_of_every_shape_of_function(
    function: Callable[..., Any],
) -> None:
    cases: list[tuple[Any, Any]] = [
        (report, {"text": "<a>"}),
        (report_later, {"text": "<a>"}),
        (lambda value: report_later(value), {"text": "<a>"}),
        (lambda value: None, None),
    ]
    for postprocess, expected in cases:
        made = FunctionTool(function, postprocess=postprocess)
        found = await outcome(made, word="a")
        assert found == ([expected, expected] if made.streaming else expected)
    failed = FunctionTool(function, postprocess=fail)
    assert await outcome(failed, word="a") == ("tool_failed", "yes", None)


def test_output_schema_is_that_of_the_postprocessor() -> None:
    assert FunctionTool(report, postprocess=str).output_schema is None
    for postprocess in (report, report_later):
        made = FunctionTool(plain, postprocess=postprocess)
        assert made.output_schema is not None
        assert "text" in made.output_schema["properties"]
    odd = FunctionTool(opaque, postprocess=str)  # its own type has no schema, and needs none
    assert odd.output_schema is None
    given = {"type": "string"}
    assert FunctionTool(plain, postprocess=report, output_schema=given).output_schema == given


async def test_sync_postprocessor_runs_on_the_thread_of_its_function() -> None:
    threads: list[int] = []

    def note(value: str) -> None:
        threads.append(threading.get_ident())

    for function in (once, twice):
        await outcome(FunctionTool(function, postprocess=note), word="a")
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_generator_behind_a_postprocessor_is_closed_when_its_stream_is_left() -> None:
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            loop.call_soon_threadsafe(closed.set)

    for postprocess in (report, report_later):
        closed.clear()
        items = FunctionTool(endless, postprocess=postprocess).execute(
            ToolContext(run_sync=on_own_thread)
        )
        await anext(items)
        await items.aclose()
        await asyncio.wait_for(closed.wait(), 30)


async def test_override_of_execute_gets_presets_and_postprocessing_from_super() -> None:
    class Loud(FunctionTool):
        async def execute(self, context: ToolContext, /, **arguments: Any) -> Any:
            return (await super().execute(context, **arguments)).upper()

    def join(city: str, end: str) -> str:
        return city + end

    made = Loud(join, preset={"end": "b"}, postprocess=lambda value: f"{value}c")
    assert await outcome(made, city="a") == "ABC"


class City(BaseModel):
    city: str


class OtherDefs(BaseModel):
    class Weather(BaseModel):
        key: str

    other: list[Weather]


def rows(rows: list[Weather]) -> None: ...


def bounded(city: str, days: int = Field(3, ge=1)) -> None: ...


def needs(city: str, unit: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "error", "text"),
    [
        (free, {}, TypeError, "free: parameter 'rest' .* extended=Model.* args_schema="),
        (lambda *all: 0, {"name": "x", "args_schema": CITY}, TypeError, "'all' .* take a list"),
        (forecast, {"args_schema": [1]}, TypeError, "pydantic model or a JSON Schema"),
        (forecast, {"args_schema": RootModel[int]}, TypeError, "model with fields"),
        (forecast, {"extended": BaseModel}, TypeError, "model with fields"),
        (forecast, {"args_schema": {"type": "array"}}, ValueError, "must be 'object'"),
        (forecast, {"args_schema": {"properties": {"a": {"type": "x"}}}}, ValueError, "/a/type"),
        (forecast, {"args_schema": OPEN}, TypeError, r"any name, .* no \*\*kwargs"),
        (forecast, {"args_schema": AnyNames}, TypeError, r"any name, .* no \*\*kwargs"),
        (plain, {"args_schema": Weather}, TypeError, "plain: args_schema has 'day'"),
        (free, {"args_schema": {"properties": {"context": {}}}}, TypeError, "'context', which the"),
        (needs, {"args_schema": CITY}, TypeError, "needs requires 'unit', and args_schema does"),
        (plain, {"args_schema": {"properties": {"city": {}}}}, TypeError, "requires 'city'"),
        (plain, {"preset": [1]}, TypeError, "preset must be a dict"),
        (plain, {"preset": {"cty": 1}}, TypeError, "'cty' is not a parameter.* mean 'city'"),
        (free, {"extended": Thinking, "preset": {1: 1}}, TypeError, "preset 1 is not a param"),
        (bounded, {"args_schema": CITY}, TypeError, "bounded requires 'days'"),
        (forecast, {"args_schema": Weather, "preset": {"city": 1}}, TypeError, "a default"),
        (free, {"extended": Thinking, "preset": {"thinking": 1}}, ValueError, "'thinking' is pre"),
        (free, {"extended": dict}, TypeError, "extended must be a pydantic model"),
        (plain, {"extended": City}, ValueError, "extended City: .* argument 'city' already"),
        (rows, {"extended": OtherDefs}, ValueError, "defs has another definition of 'Weather'"),
        (plain, {"postprocess": 3}, TypeError, "postprocess must be a function"),
        (plain, {"postprocess": twice}, TypeError, "postprocess must be a function"),
        (plain, {"postprocess": needs}, TypeError, "postprocess must take one value"),
        (FunctionTool(plain), {}, TypeError, "wraps a function, not the tool 'plain'"),
        (plain, {"output_schema": City}, TypeError, r"the class City: .* model_json_schema\(\)"),
        (plain, {"timeout_s": -1}, ValueError, "'plain': timeout_s: .* greater than 0$"),
        (plain, {"affinity": "town"}, ValueError, r"name of an argument \(city\), not 'town'"),
        (plain, {"preset": {"city": "Oslo"}, "affinity": "city"}, ValueError, "there are none"),
        (plain, {"cache_ttl_s": 3}, ValueError, "'plain': cache_ttl_s needs read_only=True"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    function: Any, options: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        FunctionTool(function, **options).manifest()


def test_required_parameter_that_only_the_extended_model_fills_keeps_it() -> None:
    made = FunctionTool(lambda thinking: thinking, name="t", args_schema={}, extended=Thinking)
    with pytest.raises(TypeError, match="requires 'thinking'"):
        made.with_extended(None)


def test_cache_over_a_tool_class_that_is_not_read_only_is_refused() -> None:
    class Cached(Tool):
        name = "cached"
        input_schema = CITY
        cache_ttl_s = 5

        async def execute(self, context: ToolContext, /, city: str) -> None: ...

    with pytest.raises(ValueError, match="read_only"):
        Cached()
    assert Cached(read_only=True).manifest().cache_ttl_s == 5


class User(BaseModel):
    name: str
    picture: bytes = b""


class Account(User):
    password_hash: str = "secret"


@dataclass
class Member:
    name: str


@dataclass
class Staff(Member):
    password_hash: str = "secret"


class Team(BaseModel):
    lead: User
    members: list[User] = []


ACCOUNT, STAFF = Account(name="ann"), Staff("ann")
ANN, MEMBER = {"name": "ann", "picture": ""}, {"name": "ann"}


@pytest.mark.parametrize("shape", ["sync", "async", "stream", "postprocess"])
@pytest.mark.parametrize(
    ("declared", "value", "expected"),
    [
        (User, ACCOUNT, ANN),
        (User | None, ACCOUNT, ANN),
        (list[User], [ACCOUNT], [ANN]),
        (dict[str, list[User]], {"a": [ACCOUNT]}, {"a": [ANN]}),
        (tuple[User, int], (ACCOUNT, 1), [ANN, 1]),
        (Annotated[User, "one"], ACCOUNT, ANN),
        (Team, Team(lead=ACCOUNT, members=[ACCOUNT]), {"lead": ANN, "members": [ANN]}),
        (User, Account(name="ann", picture=b"\xff"), {"name": "ann", "picture": "/w=="}),
        (User, Account(name="ann", picture=b"ABCD"), {"name": "ann", "picture": "QUJDRA=="}),
        (Member, STAFF, MEMBER),
        (list[Member], [STAFF], [MEMBER]),
        (SerializeAsAny[User], ACCOUNT, {**ANN, "password_hash": "secret"}),
        (Any, ACCOUNT, {**ANN, "password_hash": "secret"}),
        (User | str, "ann", "ann"),
    ],
)
async def test_result_has_the_fields_of_the_declared_type_at_the_top_and_within(
    declared: Any, value: Any, expected: Any, shape: str
) -> None:
    def returning(made: Any = None) -> Any:
        return value

    async def returning_later() -> Any:
        return value

    def yielding() -> Any:
        yield value

    functions: dict[str, Any] = {"async": returning_later, "stream": yielding}
    function = functions.get(shape, returning)
    function.__annotations__["return"] = Iterator[declared] if shape == "stream" else declared
    if shape == "postprocess":
        made = FunctionTool(lambda: 0, name="made", postprocess=function)
    else:
        made = FunctionTool(function, name="made")
    assert await outcome(made) == ([expected] if shape == "stream" else expected)
