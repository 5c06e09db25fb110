"""Arguments: violations of a schema, failed conversions, and the text of a refusal."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel

from support.parts.plain_tools import Echo, Place, forecast, refusal
from toolbus import InvalidArguments
from toolbus.schemas.validation import JsonCheck
from toolbus.tools.function_tool import FunctionTool
from toolbus.wire.body_steps import run_steps


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
        ({"city": b"Oslo"}, "/city"),
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


def test_refused_optional_argument_names_the_expected_type() -> None:
    def visit(place: Place | None = None, height: int | None = None) -> None: ...

    made = FunctionTool(visit)
    assert refusal(made, {"height": "1"}) == ("/height", 'the value is not of type "integer"')
    assert refusal(made, {"place": {}}) == ("/place/name", '"name" is required')


def test_refused_value_of_several_types_names_them() -> None:
    def visit(
        height: int | str = 1,
        place: Place | int = 1,
        state: Literal["new", "old"] | Literal["gone"] | None = None,
    ) -> None: ...

    made = FunctionTool(visit)
    assert refusal(made, {"height": []})[1].endswith(" keyword (they allow: integer, string)")
    assert refusal(made, {"state": "x"})[1].endswith('(they allow: "new", "old", "gone", null)')
    assert refusal(made, {"place": []})[1].endswith(" keyword")


def odd_only(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("even")
    return value


def breaks(value: int) -> int:
    raise KeyError("secret")


def test_arguments_that_fit_the_schema_but_do_not_convert_are_refused() -> None:
    def count(odd: Annotated[int, AfterValidator(odd_only)] | None = None) -> None: ...
    def count_all(odd: list[Annotated[int, AfterValidator(odd_only)]]) -> None: ...
    def count_either(odd: Annotated[int, AfterValidator(odd_only)] | list[int]) -> None: ...
    def broken(value: Annotated[int, AfterValidator(breaks)]) -> None: ...

    assert refusal(FunctionTool(count), {"odd": 2}) == ("/odd", "Value error, even")
    assert refusal(FunctionTool(count_all), {"odd": [1, 2]})[0] == "/odd/1"
    assert refusal(FunctionTool(count_either), {"odd": 2})[0] == "/odd"
    assert refusal(FunctionTool(broken), {"value": 2}) == (
        "",
        "the arguments cannot be converted: KeyError",
    )


def test_refusal_contains_no_value_and_is_short() -> None:
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


def test_formats_are_checked_and_times_need_no_offset() -> None:
    made = Echo(input_schema={"properties": {"at": {"format": "date-time"}}})
    for fine in ("2026-03-04T10:00:00", "2026-03-04T10:00:00.5Z", "2026-03-04 10:00+01:00"):
        made.read_arguments({"at": fine})
    for wrong in ("5", "2026-03-04", "2026-13-04T10:00:00", "2026-03-04T25:00:00", "now"):
        assert refusal(made, {"at": wrong})[0] == "/at"
    assert "for example 2026-01-31T09:30:00" in refusal(made, {"at": "now"})[1]
    lasting = Echo(input_schema={"properties": {"for": {"format": "duration"}}})
    for fine in ("P1D", "PT0.5S", "-P1DT2H", "P2W"):
        lasting.read_arguments({"for": fine})
    for wrong in ("5", "P", "P1DT", "1D"):
        assert refusal(lasting, {"for": wrong})[0] == "/for"


class Order(BaseModel):
    name: str
    count: Annotated[int, AfterValidator(odd_only)] = 1
    parts: list[Order] = []


def book(city: str, days: int = 1, orders: list[Order] | None = None) -> None: ...


MIB = 2**20
ORDER: dict[str, Any] = {"name": "a"}


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        ({"city": "Oslo", "days": "2"}, []),
        ({"days": "2"}, ["/city", "/days"]),
        ({"city": 1, "days": "2", "a": 1, "b": 2}, ["/city", "/days", "/a", "/b"]),
        ({"city": "x" * MIB, "days": "x" * MIB, "unknown": 1}, ["/days", "/unknown"]),
        ({"city": 1, "days": ["x"] * MIB}, ["/city", "/days"]),
        ({"city": 1, "orders": [{"name": 2, "count": ""}] * 2_000}, ["/city", "/orders/0/name"]),
        (
            {"city": "x", "orders": [{"name": 1}, ORDER, {"parts": [ORDER, {"name": 2, "z": 1}]}]},
            ["/orders/0/name", "/orders/2/name", "/orders/2/parts/1/name"],
        ),
        (  # what fits the schema and does not convert
            {"city": "x", "orders": [{**ORDER, "count": 2}, ORDER, {**ORDER, "count": 4}]},
            ["/orders/0/count", "/orders/2/count"],
        ),
        (dict.fromkeys(map(str, range(9_000)), 1), ["/city", *(f"/{n}" for n in range(31))]),
    ],
)
def test_all_invalid_arguments_are_named(arguments: dict[str, Any], paths: list[str]) -> None:
    """ERR-6."""
    assert sorted(all_paths(FunctionTool(book), arguments)) == sorted(paths)


def all_paths(made: FunctionTool, arguments: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidArguments) as refused:
        run_steps(made.read_steps(arguments))
    found: list[dict[str, str]] = refused.value.details.pop("all", [])
    assert not found or found[0] == refused.value.details
    return [violation["path"] for violation in found]


def test_invalid_arguments_are_named_in_16_kib() -> None:
    found = all_paths(FunctionTool(book), {f"é€{number}" * 70: 1 for number in range(99)})
    assert 8 < len(found) < 32


def test_large_list_that_is_read_in_slices_is_named_beside_other_arguments() -> None:
    def add(numbers: list[int], times: int) -> None: ...

    arguments = {"numbers": [*[1] * 5_000, "x"], "times": "y"}
    assert all_paths(FunctionTool(add), arguments) == ["/times", "/numbers/5000"]


TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
NULL: dict[str, Any] = {"type": "null"}
NODE: dict[str, Any] = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
TREE = {"anyOf": [NULL, {**NODE, "type": "object"}, {**NODE, "required": ["k"], "maximum": 0}]}
TWICE = {"properties": {"left": {"allOf": [{"$ref": "#"}] * 9}}, "required": ["gone"]}
NAMES = [str(number) for number in range(500)]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"k": 1, "left": value, "right": value}
    return value


@pytest.mark.parametrize(
    ("schema", "value", "path"),
    [
        ({"anyOf": [TEXTS, NULL]}, [1] * 300_000, "/0"),
        ({"anyOf": [TEXTS]}, ["a", *[1] * 300_000], "/1"),
        ({"properties": {"a": {"oneOf": [NULL, TEXTS]}}}, {"a": [1]}, "/a/0"),
        ({"properties": {"a": {"anyOf": [TEXTS, {"type": "string"}]}}}, {"a": [1] * 300_000}, "/a"),
        ({"properties": {"a": {"oneOf": [{}, {"type": "string"}]}}}, {"a": "x"}, "/a"),
        ({"anyOf": [{"required": NAMES}] * 400}, {}, ""),
        ({"anyOf": [{"enum": NAMES}] * 400}, 1, ""),
        ({"propertyNames": {"maxLength": 1}}, dict.fromkeys(NAMES, 1), ""),
        (TREE, nested(9), ""),
        ({"anyOf": [{"$ref": "#/anyOf/1"}, TEXTS]}, [1], ""),
        ({"anyOf": [{"required": ["a"]}, {}], "unevaluatedProperties": False}, {"b": 1}, ""),
    ],
)
def test_one_violation_is_found_and_no_others(
    schema: dict[str, Any], value: Any, path: str
) -> None:
    """Else one of these takes gigabytes."""
    found = JsonCheck(schema).violation(value)
    assert found is not None
    assert found.path == path
    for places in (frozenset({"/x"}), frozenset({path})):
        JsonCheck(schema).violation_except(value, places)


@pytest.mark.parametrize(
    "schema",
    [
        TWICE,
        {**TWICE, "$id": "x:y"},
        {"properties": {"left": {"required": [str(number) for number in range(5_000)]}}},
        {"properties": {"left": {"$id": "x:z", "$ref": "#/$defs/a", "$defs": {"a": TWICE}}}},
    ],
)
def test_all_violations_are_not_searched_where_a_schema_multiplies_them(schema: Any) -> None:
    """Else these take minutes."""
    value = {**nested(1), "left": nested(9), "right": nested(9)}
    schema = {**schema, "additionalProperties": {"maximum": 0}}
    found = {violation.path for violation in JsonCheck(schema).violations(value)}
    assert len(found) in (2, 3)
