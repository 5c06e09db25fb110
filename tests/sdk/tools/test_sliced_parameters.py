"""Large arguments validated in steps: the same values and errors as at once, and the limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field

from toolbus import InvalidArguments
from toolbus.tools import sliced_parameters
from toolbus.tools.function_tool import FunctionTool


class Row(BaseModel):
    day: date
    inner: list[int] = []


@dataclass
class Point:
    x: int


class Batch(BaseModel):
    rows: list[Row]


def _distinct(rows: list[int]) -> list[int]:
    if len({*rows}) != len(rows):
        raise ValueError("not distinct")
    return rows


def models(rows: list[Row], name: str = "n") -> None: ...
def maps(rows: dict[str, Row]) -> None: ...
def numbered(rows: dict[int, list[int]]) -> None: ...
def points(rows: list[Point], more: list[dict[str, int]]) -> None: ...
def bare(rows: list, more: dict | None = None) -> None: ...  # type: ignore[type-arg]
def distinct(rows: Annotated[list[int], AfterValidator(_distinct)]) -> None: ...
def few(rows: list[int] = Field(max_length=3_000)) -> None: ...  # noqa: B008 - as users write it
def batch(batch: Batch, free: Any = None) -> None: ...


ROWS = [{"day": f"2026-01-{1 + number % 28:02}", "inner": [number]} for number in range(3_000)]
DENSE = {"day": "2026-01-01"}


def read(
    function: Callable[..., Any], arguments: dict[str, Any], kind: type[FunctionTool] = FunctionTool
) -> tuple[Any, int]:
    """Return the converted arguments and the number of steps."""
    tool, count = kind(function), 0
    tool.manifest()
    steps = tool.read_steps(arguments)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (models, {"rows": ROWS, "name": "x"}),
        (models, {"rows": []}),
        (maps, {"rows": {str(number): row for number, row in enumerate(ROWS)}}),
        (numbered, {"rows": {str(number): [number] for number in range(3_000)}}),
        (points, {"rows": [{"x": 1}] * 3_000, "more": [{"a": 1}] * 3_000}),
        (bare, {"rows": [[1], {"a": None}] * 3_000}),
        (distinct, {"rows": [*range(3_000)]}),
        (few, {"rows": [1] * 3_000}),
        (batch, {"batch": {"rows": ROWS}, "free": [[]] * 50_000}),
    ],
)
def test_arguments_are_the_same_as_at_once(
    function: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    assert read(function, arguments)[0] == FunctionTool(function).read_arguments(arguments)


@pytest.mark.parametrize(
    ("function", "arguments", "path"),
    [
        (models, {"rows": [*ROWS, {"day": "2026-02-31"}]}, "/rows/3000/day"),
        (models, {"rows": [*ROWS, {}]}, "/rows/3000/day"),
        (models, {"rows": [*ROWS, 7]}, "/rows/3000"),
        (models, {"rows": ROWS, "name": 7}, "/name"),
        (models, {"rows": ROWS, "other": 7}, "/other"),
        (models, {"rows": "text"}, "/rows"),
        (models, {}, "/rows"),
        (
            maps,
            {"rows": {**{str(number): ROWS[0] for number in range(3_000)}, "a/b": 1}},
            "/rows/a~1b",
        ),
        (numbered, {"rows": {**{str(number): [] for number in range(3_000)}, "x": []}}, "/rows/x"),
        (points, {"rows": [{"x": 1}] * 3_000 + [{"x": 1, "y": 2}], "more": []}, "/rows/3000/y"),
        (distinct, {"rows": [*range(3_000), 0]}, "/rows"),
        (few, {"rows": [1] * 3_001}, "/rows"),
    ],
)
def test_invalid_arguments_have_the_same_error_as_at_once(
    function: Callable[..., Any], arguments: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidArguments) as at_once:
        FunctionTool(function).read_arguments(arguments)
    with pytest.raises(InvalidArguments) as in_steps:
        read(function, arguments)
    assert in_steps.value.details == at_once.value.details
    assert in_steps.value.details["path"] == path


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (models, {"rows": ROWS * 10}),
        (maps, {"rows": {str(number): ROWS[0] for number in range(30_000)}}),
        (bare, {"rows": [1] * 30_000}),
    ],
)
def test_a_list_or_dict_is_read_some_items_at_a_time(
    function: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    assert read(function, arguments)[1] >= 30_000 / 1_024


@pytest.mark.parametrize(
    ("function", "arguments", "path"),
    [
        (batch, {"batch": {"rows": [DENSE, ROWS[0]] * 20_000}}, ""),
        (models, {"rows": [DENSE | {"inner": [[]] * 40_000}]}, "/rows"),
    ],
)
def test_more_objects_than_are_converted_at_once_are_refused(
    function: Callable[..., Any], arguments: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidArguments, match="more than 32768 objects and lists") as refused:
        read(function, arguments)
    assert refused.value.details["path"] == path


def test_items_with_much_in_them_are_read_few_at_a_time() -> None:
    rows: list[Any] = [[[]] * 1_000] * 100
    steps = read(bare, {"rows": rows})[1]
    assert steps >= 100 / sliced_parameters._DENSE_ITEMS


def test_an_override_of_read_arguments_is_used() -> None:
    class Upper(FunctionTool):
        def read_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
            return {"rows": ["mine"]}

    assert read(bare, {"rows": []}, Upper)[0] == {"rows": ["mine"]}
