"""From signatures to schemas: parameters, docstrings, annotations, and refused signatures."""

from __future__ import annotations

import dataclasses
import enum
import functools
import logging
import traceback
from collections import deque
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Optional

import griffe
import pytest
from pydantic import (
    Base64Bytes,
    BaseModel,
    Field,
    PlainSerializer,
    SecretStr,
    WrapSerializer,
    field_serializer,
    model_serializer,
)
from typing_extensions import TypedDict

from toolbus.chunks.chunk_types import FileChunk
from toolbus.tools.context import ToolContext
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.input_stream import InputStream
from toolbus.tools.signature import FunctionSignature, read_docstring, read_signature

if TYPE_CHECKING:
    from collections import OrderedDict


class Unit(enum.Enum):
    METRIC = "metric"
    IMPERIAL = "imperial"


class Place(BaseModel):
    """A place."""

    name: str
    near: list[Place] = []


@dataclasses.dataclass
class Span:
    start: date
    days: int = 1


class Wishes(TypedDict):
    wind: bool
    rain: NotRequired[bool]


def arguments_of(function: Callable[..., Any]) -> dict[str, Any]:
    properties = read_signature(function).input_schema["properties"]
    assert isinstance(properties, dict)
    return properties


def convert(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    return read_signature(function).convert(arguments)


def everything(  # type: ignore[no-untyped-def]  # one parameter has no annotation # noqa: PLR0913
    city: str,
    day: date,
    unit: Unit = Unit.METRIC,
    kind: Literal["short", "long"] = "short",
    days: Annotated[int, Field(ge=1, le=14, description="How far.")] = 3,
    place: Place | None = None,
    span: Optional[Span] = None,  # noqa: UP045 - people write it
    wishes: Wishes | None = None,
    either: int | str = 0,
    names: list[str] | None = None,
    scores: dict[str, float] | None = None,
    pause: timedelta = timedelta(seconds=90),
    *,
    at: datetime | None = None,
    anything: Any = None,
    untyped=None,
) -> None:
    """Take everything."""


def test_schema_names_every_parameter_and_allows_no_other() -> None:
    schema = read_signature(everything).input_schema
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["city", "day"]
    assert "title" not in schema
    assert list(schema["properties"]) == [
        "city", "day", "unit", "kind", "days", "place", "span", "wishes", "either", "names",
        "scores", "pause", "at", "anything", "untyped",
    ]  # fmt: skip
    assert set(schema["$defs"]) == {"Unit", "Place", "Span", "Wishes"}


def test_schema_keeps_defaults_constraints_and_definitions() -> None:
    properties = arguments_of(everything)
    assert properties["city"] == {"type": "string"}
    assert properties["day"] == {"type": "string", "format": "date"}
    assert properties["unit"] == {"$ref": "#/$defs/Unit", "default": "metric"}
    assert properties["kind"]["enum"] == ["short", "long"]
    assert properties["days"] == {
        "type": "integer", "minimum": 1, "maximum": 14, "default": 3, "description": "How far.",
    }  # fmt: skip
    assert properties["place"]["anyOf"] == [{"$ref": "#/$defs/Place"}, {"type": "null"}]
    assert properties["pause"]["default"] == "PT1M30S"
    assert properties["untyped"] == properties["anything"] == {"default": None}


def test_arguments_are_converted_to_the_types_of_the_parameters() -> None:
    values = convert(
        everything,
        city="Oslo",
        day="2026-03-04",
        unit="imperial",
        days=2.0,
        place={"name": "here", "near": [{"name": "there"}]},
        span={"start": "2026-03-04"},
        at="2026-03-04T10:00:00",
        scores={"a": 1},
    )
    assert values["day"] == date(2026, 3, 4)
    assert values["unit"] is Unit.IMPERIAL
    assert (values["days"], type(values["days"])) == (2, int)
    assert values["place"] == Place(name="here", near=[Place(name="there")])
    assert values["span"] == Span(date(2026, 3, 4))
    assert values["at"] == datetime(2026, 3, 4, 10)
    assert type(values["scores"]["a"]) is float
    assert (values["kind"], values["pause"]) == ("short", timedelta(seconds=90))


def test_mutable_default_is_not_shared_between_calls() -> None:
    def collect(into: list[int] = []) -> None:  # noqa: B006 - people write it
        pass

    signature = read_signature(collect)
    signature.convert({})["into"].append(1)
    assert signature.convert({}) == {"into": []}


@pytest.mark.parametrize("name", ["_hidden", "json", "copy", "schema", "model_config", "self_"])
def test_parameter_may_have_any_name(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def function({name}: int = 1): pass", scope)
    assert convert(scope["function"], **{name: 5}) == {name: 5}


def test_field_as_default_and_alias_are_supported() -> None:
    def function(
        days: int = Field(3, ge=1), origin: Annotated[str, Field(alias="from")] = ""
    ) -> None:
        pass

    properties = arguments_of(function)
    assert properties["days"] == {"type": "integer", "minimum": 1, "default": 3}
    assert "from" in properties
    assert convert(function, **{"from": "here"}) == {"days": 3, "origin": "here"}


def test_default_that_is_not_json_is_omitted_without_a_warning() -> None:
    def function(value: Any = object) -> None:
        pass

    assert arguments_of(function) == {"value": {}}
    assert convert(function) == {"value": object}


@pytest.mark.parametrize(
    ("annotation", "default", "written"),
    [
        (int, 2**64, {"type": "integer"}),
        (int, 2**64 - 1, {"type": "integer", "default": 2**64 - 1}),
        (int, -(2**63) - 1, {"type": "integer"}),
        (list[int], [2**64], {"type": "array", "items": {"type": "integer"}}),
        (float, float("nan"), {"type": "number"}),
        (str, "\ud800", {"type": "string"}),
        (Annotated[int, Field(ge=-(2**64), lt=2**70)], 1, {"type": "integer", "default": 1}),
        (
            Annotated[float, Field(ge=0, le=2**80)],
            1,
            {"type": "number", "minimum": 0, "default": 1},
        ),
    ],
)
def test_default_and_bound_that_no_frame_carries_are_the_functions_alone(
    annotation: Any, default: Any, written: Any
) -> None:
    def function(value: Any = default) -> None:
        pass

    function.__annotations__["value"] = annotation
    assert arguments_of(function) == {"value": written}


@pytest.mark.parametrize(
    ("annotation", "default", "is_refused"),
    [
        (int, "x", True),
        (int, "3", True),
        (int, True, True),
        (list[int], ["x"], True),
        (Annotated[int, Field(ge=1)], 0, True),
        (int, Field("x"), True),
        (int, None, False),
        (int, object(), False),
        (int, Field(3), False),
        (float, 3, False),
        (Annotated[float, Field(le=9)], float("inf"), False),
        (date, "2026-02-03", False),
        (date, date(2026, 2, 3), False),
        (list[date], [date(2026, 2, 3)], False),
        (dict[str, int], {"a": 1}, False),
    ],
)
def test_default_that_no_caller_could_send_is_refused(
    annotation: Any, default: Any, is_refused: bool
) -> None:
    def function(count: Any = default) -> None:
        pass

    function.__annotations__["count"] = annotation
    if not is_refused:
        assert "count" in arguments_of(function)
        return
    text = r"^function: parameter 'count': the default .* does not fit its type: the value .*"
    with pytest.raises(TypeError, match=text):
        arguments_of(function)


GOOGLE = """Forecast the weather.

    Uses a model: a good one.

    Args:
        city: Name of the city,
            in English.
        days (int): How many.

    Returns:
        A forecast.

    Raises:
        ValueError: Never.
    """
NUMPY = """Forecast the weather.

    Uses a model: a good one.

    Parameters
    ----------
    city
        Name of the city,
        in English.
    days : int, optional
        How many.

    Returns
    -------
    dict
        A forecast.
    """
SPHINX = """Forecast the weather.

    Uses a model: a good one.

    :param city: Name of the city,
        in English.
    :param int days: How many.
    :returns: A forecast.
    :raises ValueError: Never.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstring_gives_the_descriptions_of_function_and_parameters(
    docstring: str, caplog: pytest.LogCaptureFixture
) -> None:
    def forecast(city: str, days: Annotated[int, Field(description="Its own words.")] = 3) -> None:
        pass

    forecast.__doc__ = docstring
    with caplog.at_level(logging.DEBUG):
        signature = read_signature(forecast)
    assert signature.description == "Forecast the weather.\n\nUses a model: a good one."
    described = signature.input_schema["properties"]
    assert described["city"]["description"].split() == "Name of the city, in English.".split()
    assert described["days"]["description"] == "Its own words."
    assert caplog.records == []


def test_text_in_an_annotation_describes_its_parameter() -> None:
    def forecast(
        city: Annotated[str, "A city."], days: Annotated[int, "No.", Field(description="Days.")]
    ) -> None:
        """Forecast the weather.

        :param city: Not this one.
        """

    described = read_signature(forecast).input_schema["properties"]
    assert [described[name]["description"] for name in ("city", "days")] == ["A city.", "Days."]


@pytest.mark.parametrize(
    "text",
    [
        "One line.",
        "Two\nlines.",
        "A\n\n    code\n\n>>> 1\n1\n",
        "Args\n  x",
        "Returns\n-\nx",
        "A\n\n\nB",
    ],
)
def test_docstring_without_sections_is_the_description_as_griffe_reads_it(text: str) -> None:
    [section] = griffe.parse_auto(griffe.Docstring(text), default="google")
    assert read_docstring(text) == (section.value.strip(), {})


@pytest.mark.parametrize("docstring", [None, "", "One line.", "Odd\n\nArgs:\n    nothing\n"])
def test_docstring_without_parameters_is_accepted(docstring: str | None) -> None:
    def function(city: str) -> None:
        pass

    function.__doc__ = docstring
    assert read_signature(function).description == (docstring or "").split("\n")[0]


def positions(signature: FunctionSignature) -> tuple[str | None, list[str]]:
    name = signature.context.name if signature.context else None
    return name, list(signature.input_schema["properties"])


def test_context_parameter_is_found_by_type_and_left_out_of_the_schema() -> None:
    def first(context: ToolContext, city: str) -> None: ...
    def last(city: str, *, where: ToolContext) -> None: ...
    def optional(city: str, c: ToolContext | None = None) -> None: ...
    def annotated(city: str, c: Annotated[ToolContext, "x"]) -> None: ...
    def quoted(c: "ToolContext", city: str) -> None: ...  # noqa: UP037 - people write it
    def positional(c: ToolContext, /, city: str) -> None: ...
    def none(context: str) -> None: ...

    assert positions(read_signature(first)) == ("context", ["city"])
    assert positions(read_signature(last)) == ("where", ["city"])
    assert positions(read_signature(optional)) == ("c", ["city"])
    assert positions(read_signature(annotated)) == ("c", ["city"])
    assert positions(read_signature(quoted)) == ("c", ["city"])
    assert positions(read_signature(positional)) == ("c", ["city"])
    assert positions(read_signature(none)) == (None, ["context"])


def test_context_imported_for_type_checkers_only_is_still_found() -> None:
    scope: dict[str, Any] = {}
    exec("def function(c: 'ToolContext', city: str): pass", scope)
    assert positions(read_signature(scope["function"])) == ("c", ["city"])


class Station:
    def __init__(self) -> None:
        self.readings = [1, 2]

    def read(self, index: int) -> int:
        """Read one."""
        return self.readings[index]

    @classmethod
    def build(cls, name: str) -> None:
        """Build one."""

    def __call__(self, city: str) -> None:
        """Call it."""


def test_bound_methods_partials_and_callable_objects_have_schemas() -> None:
    assert arguments_of(Station().read) == {"index": {"type": "integer"}}
    assert arguments_of(Station.build) == {"name": {"type": "string"}}
    assert read_signature(Station()).description == "Call it."
    assert arguments_of(Station()) == {"city": {"type": "string"}}
    assert arguments_of(functools.partial(everything, "Oslo", date(2026, 1, 1), days=2)) == {
        name: shape
        for name, shape in arguments_of(everything).items()
        if name not in ("city", "day", "days")
    }


def test_arguments_set_by_a_partial_are_hidden_from_the_caller() -> None:
    def fetch(url: str, api_key: str = "") -> None:
        pass

    signature = read_signature(functools.partial(fetch, api_key="secret"))
    assert list(signature.input_schema["properties"]) == ["url"]
    assert "secret" not in str(signature.input_schema)


def returning(annotation: Any) -> Callable[..., Any]:
    def function() -> None: ...

    function.__annotations__["return"] = annotation
    return function


@pytest.mark.parametrize("annotation", [Place, Span, Wishes, Annotated[Place, "x"]])
def test_output_schema_comes_from_models_dataclasses_and_typed_dicts(annotation: Any) -> None:
    schema = read_signature(returning(annotation)).output_schema
    assert schema is not None
    assert "$ref" in schema or schema["type"] == "object"


@pytest.mark.parametrize(
    "annotation", [dict, dict[str, int], Any, None, str, FileChunk, list[Place], Place | None]
)
def test_other_return_annotations_make_no_output_schema(annotation: Any) -> None:
    assert read_signature(returning(annotation)).output_schema is None


def test_function_without_return_annotation_has_no_output_schema() -> None:
    assert read_signature(lambda: 1).output_schema is None


class NotJson:
    pass


def test_parameter_without_a_schema_is_refused_with_the_names_of_function_and_parameter() -> None:
    def anyhow(*values: int) -> None: ...
    def anything(**named: int) -> None: ...
    def positional(city: str, /) -> None: ...
    def unknown(city: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the point
    def hidden(items: OrderedDict[str, int]) -> None: ...
    def odd(thing: NotJson) -> None: ...
    def code(thing: Callable[[], int]) -> None: ...
    def two(a: ToolContext, b: ToolContext) -> None: ...

    cases: list[tuple[Callable[..., Any], str]] = [
        (anyhow, "values"),
        (anything, "named"),
        (positional, "city"),
        (unknown, "city"),
        (hidden, "items"),
        (odd, "thing"),
        (code, "thing"),
        (two, "b"),
        (Station.read, "self"),
    ]
    for function, parameter in cases:
        with pytest.raises(TypeError, match=rf"{function.__name__}.*{parameter!r}"):
            read_signature(function)


class ByField(BaseModel):
    a: int

    @field_serializer("a")
    def odd(self, value):  # type: ignore[no-untyped-def]
        return str(value)


class ByModel(BaseModel):
    a: int

    @model_serializer
    def odd(self):  # type: ignore[no-untyped-def]
        return {"b": self.a}


class ByType(BaseModel):
    a: Annotated[int, PlainSerializer(lambda value: {"x": value})]


@dataclasses.dataclass
class ByWrap:
    a: Annotated[int, WrapSerializer(lambda value, handler: str(value))]


class Within(BaseModel):
    rows: list[ByField | None]


class Described(BaseModel):
    a: Annotated[int, PlainSerializer(str, return_type=str)]
    b: SecretStr
    c: Base64Bytes
    d: Unit
    e: deque[int]

    @field_serializer("d", mode="wrap")
    def as_text(self, value: Any, handler: Any) -> str:
        return str(value)


@pytest.mark.parametrize("annotation", [ByField, ByModel, ByType, ByWrap, Within])
def test_serializer_that_does_not_say_what_it_returns_is_refused_when_the_tool_is_made(
    annotation: Any,
) -> None:
    function = returning(annotation)
    with pytest.raises(TypeError, match=r"serializer '(odd|<lambda>)' does not say .* annotate it"):
        FunctionTool(function)
    FunctionTool(function, output_schema={"type": "object"})
    assert read_signature(returning(Described)).output_schema is not None


@functools.singledispatch
def described(value: int) -> str:
    return f"int {value}"


class Describer:
    @functools.singledispatchmethod
    def described(self, value: int) -> str:
        return f"int {value}"


@functools.wraps(described)
def around(value: int) -> str:
    return described(value)


def test_function_that_chooses_by_position_is_refused_when_the_tool_is_made() -> None:
    refused: list[Any] = [described, Describer().described, functools.partial(described)]
    for function in refused:
        with pytest.raises(TypeError, match=r"singledispatch .* a function that calls described"):
            read_signature(function)
    for function in (around, functools.partial(described, 3)):
        read_signature(function)


def test_context_without_an_annotation_is_refused_with_the_right_form() -> None:
    def forecast(context, city: str) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(TypeError, match=r"forecast.*did you mean context: ToolContext\?"):
        read_signature(forecast)


def test_return_annotation_that_cannot_be_resolved_is_refused() -> None:
    def unknown() -> Missing: ...  # type: ignore[name-defined]  # noqa: F821 - the point

    with pytest.raises(TypeError, match="unknown: the return annotation"):
        read_signature(unknown)


def test_refusal_has_no_traceback_of_pydantic() -> None:
    def odd(thing: NotJson) -> None: ...
    def row(rows: InputStream[NotJson]) -> None: ...

    for function in (odd, row):
        with pytest.raises(TypeError) as refused:
            read_signature(function)
        received = "".join(traceback.format_exception(refused.value))
        assert "pydantic/" not in received
        assert "errors.pydantic.dev" not in received
        assert "\n" not in str(refused.value)
