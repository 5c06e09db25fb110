"""Validates and converts large arguments in steps.

A parameter that is a list or a dict is read some items at a time, if neither its schema nor its
type says anything about all items together. All other arguments are read at once, within a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from toolbus.chunks.json_values import json_pointer
from toolbus.errors import InvalidArguments
from toolbus.schemas.validation import (
    JsonCheck,
    Place,
    Violation,
    converted,
    invalid_arguments,
    violations_in,
)
from toolbus.tools.signature import ARGUMENTS_CONFIG, FunctionSignature
from toolbus.wire.body_steps import Steps, count_containers

__all__ = ["MAX_CONTAINERS", "MAX_CONTAINERS_AT_ONCE", "SlicedParameters"]

MAX_CONTAINERS = 65_536
"""Objects and lists in large arguments of one call; more are `invalid_arguments`.

Python's garbage collector looks at all of them in one go, about 10 ms for so many."""
MAX_CONTAINERS_AT_ONCE = 32_768
"""Objects and lists that pydantic converts at once: in one item of a list or dict that is a
parameter, or in all other parameters together."""

_ITEMS_PER_STEP = 1_024
_DENSE_CONTAINERS = 4_096  # about 10 ms of pydantic's models
_DENSE_ITEMS = 16
# What says nothing about all items together.
_ITEMWISE = frozenset(
    {
        *("type", "title", "description", "default", "items"),
        *("additionalProperties", "patternProperties", "propertyNames"),
    }
)


class _Sliced(NamedTuple):
    """How the items of one parameter are validated and converted."""

    check: JsonCheck
    convert: Callable[[Any], Any]


class SlicedParameters:
    """The parameters of a function that are read some items at a time.

    Args:
        schema: The input schema.
        signature: The function that the schema was made of; None if it was made otherwise, and all
            arguments are read at once.
    """

    __slots__ = ("_sliced", "_unconverted")

    def __init__(self, schema: dict[str, Any], signature: FunctionSignature | None) -> None:
        self._unconverted: frozenset[str] = frozenset()
        self._sliced: dict[str, _Sliced] = {}
        if signature is None:
            return
        self._unconverted = signature.unconverted
        properties = schema.get("properties", {})
        for name, annotation in signature.collections.items():
            if not properties[name].keys() - _ITEMWISE:
                adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=ARGUMENTS_CONFIG)
                self._sliced[name] = _Sliced(
                    JsonCheck({"$defs": schema.get("$defs", {}), **properties[name]}),
                    adapter.validator.validate_python,
                )

    def read_steps(
        self, read_rest: Callable[[dict[str, Any]], dict[str, Any]], arguments: dict[str, Any]
    ) -> Steps[dict[str, Any]]:
        """Validate and convert arguments; `read_rest` does so at once with those not read here.

        Raises:
            InvalidArguments: An argument breaks the schema, or has too many objects and lists.
        """
        sliced = {
            name: value
            for name, value in arguments.items()
            if name in self._sliced and type(value) in (list, dict)
        }
        rest = {name: value for name, value in arguments.items() if name not in sliced}
        converted_at_once = [rest[name] for name in rest.keys() - self._unconverted]
        yield from _limit(converted_at_once, "")
        read: dict[str, Any] = {}
        found: list[Violation] = []
        try:
            read = read_rest({**rest, **{name: type(value)() for name, value in sliced.items()}})
        except InvalidArguments as error:
            found += violations_in(error)
        for name, value in sliced.items():
            yield
            try:
                read[name] = yield from _read_items(self._sliced[name], name, value)
            except InvalidArguments as error:
                found += violations_in(error)
        if found:
            raise invalid_arguments(found)
        return read


def _read_items(sliced: _Sliced, name: str, value: Any) -> Steps[Any]:
    """Validate and convert a list or a dict."""
    whole = type(value)()
    start = 0
    for items in _cut(value, _ITEMS_PER_STEP):
        count = yield from count_containers(_values_of(items), _DENSE_CONTAINERS)
        is_dense = count > _DENSE_CONTAINERS
        for few in _cut(items, _DENSE_ITEMS) if is_dense else [items]:
            place = _place(name, start if type(value) is list else None)
            if is_dense:
                yield from _limit(_values_of(few), place([]))
            made = _read_at_once(sliced, few, place)
            if type(whole) is list:
                whole += made
            else:
                whole |= made
            start += len(few)
            yield
    return whole


def _read_at_once(sliced: _Sliced, items: Any, place: Place) -> Any:
    try:
        fits = sliced.check.fits(items)
    except ValueError:  # not JSON
        fits = False
    if not fits:
        raise invalid_arguments(sliced.check.violations(items, place))
    return converted(sliced.convert, items, place)


def _values_of(items: Any) -> Any:
    return items.values() if type(items) is dict else items


def _cut(value: Any, size: int) -> Iterator[Any]:
    """Cut a list or a dict into lists or dicts of so many items."""
    make = type(value)
    remaining = iter(value.items() if make is dict else value)
    while items := make(islice(remaining, size)):
        yield items


def _place(name: str, start: int | None) -> Place:
    """Make pointers from the keys within some items of a parameter."""

    def place(keys: Any) -> str:
        if start is not None and keys:
            keys = [start + keys[0], *keys[1:]]
        return json_pointer([name, *keys])

    return place


def _limit(values: Any, path: str) -> Steps[None]:
    """Refuse values that would be converted at once and have too many objects and lists."""
    count = yield from count_containers(values, MAX_CONTAINERS_AT_ONCE)
    if count > MAX_CONTAINERS_AT_ONCE:
        most = MAX_CONTAINERS_AT_ONCE
        message = f"more than {most} objects and lists to convert at once: send fewer"
        raise invalid_arguments([Violation(path, message)])
