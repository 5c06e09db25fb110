"""Validates JSON values against a JSON Schema; reports the path and reason of a violation.

A schema is compiled once, without network or files, and its patterns run in linear time, so an
untrusted schema can neither access the network nor block its reader. Messages never contain the
values, so arguments are not written to logs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, time
from functools import partial
from itertools import islice, product
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jsonschema_rs
from pydantic import ValidationError

from toolbus.chunks.json_values import cut, json_pointer, plain_json
from toolbus.errors import InvalidArguments, InvalidResult
from toolbus.schemas.keywords import IN_PLACE, UNEVALUATED
from toolbus.schemas.walker import held, part_in, rewritten, target_of
from toolbus.wire import BadBody, pack_body

__all__ = [
    "JsonCheck",
    "Place",
    "UnknownArgument",
    "Violation",
    "converted",
    "invalid_arguments",
    "violations_in",
]

T = TypeVar("T")

Place: TypeAlias = Callable[[Sequence[str | int]], str]
"""Makes a JSON pointer from the keys that lead to a value."""
_Kind: TypeAlias = jsonschema_rs.ValidationErrorKind


class Violation(NamedTuple):
    """One part of a value that breaks the schema."""

    path: str
    """JSON pointer to it; of a missing or unknown field the pointer it would have."""
    message: str

    @property
    def details(self) -> dict[str, Any]:
        """Path and message as keys of an error's `details`."""
        return {"path": self.path, "message": self.message}


class UnknownArgument(Exception):
    """An argument whose name the schema accepts and the function does not; its text is the name."""


MAX_VIOLATIONS = 32
"""Of one error: each item of a long list may be invalid, and a model reads all that is named."""
_MAX_VIOLATIONS_BYTES = 16 * 1024
"""Of their paths and messages: with more than 32 KiB an error would lose its details (ERR-7)."""


def invalid_arguments(violations: Iterable[Violation]) -> InvalidArguments:
    """Make the error for arguments that break their schema.

    Args:
        violations: The first is that of the message; those beyond `MAX_VIOLATIONS` are left out.
            None at all is a value that is not JSON.
    """
    # The first one comes again among all, and pydantic has one for each branch of a union.
    different = [*dict.fromkeys(islice(violations, 4 * MAX_VIOLATIONS))][:MAX_VIOLATIONS]
    different = different or [Violation("", "the value is not JSON")]
    first = different[0]
    left = _MAX_VIOLATIONS_BYTES
    named: list[dict[str, Any]] = []
    for violation in different:
        left -= len(f"{violation.path}{violation.message}".encode(errors="replace"))
        if left < 0:
            break
        named.append(violation.details)
    message = ": ".join(filter(None, first))
    details = first.details
    if len(named) > 1:
        details["all"] = named
    return InvalidArguments(message, details=details)


def violations_in(error: InvalidArguments) -> list[Violation]:
    """Return what `invalid_arguments` made an error of."""
    details = error.details
    return [Violation(entry["path"], entry["message"]) for entry in details.get("all", [details])]


def converted(convert: Callable[[Any], T], arguments: Any, place: Place = json_pointer) -> T:
    """Convert arguments that match their schema.

    Args:
        convert: The conversion, by pydantic.
        arguments: What it gets.
        place: Makes the JSON pointer of a violation from the keys that lead to it.

    Raises `InvalidArguments`.
    """
    try:
        return convert(arguments)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid_arguments(
            Violation(place(_existing(problem["loc"], arguments)), cut(problem["msg"]))
            for problem in problems
        ) from None
    except UnknownArgument as error:
        unknown = Violation(place([str(error)]), cut(f'"{error}" is not known'))
        raise invalid_arguments([unknown]) from None
    except Exception as error:
        text = f"the arguments cannot be converted: {type(error).__name__}"
        raise invalid_arguments([Violation(place([]), cut(text))]) from error


def _existing(path: tuple[int | str, ...], value: Any) -> list[int | str]:
    """Remove the parts of pydantic's path that name union members instead of keys."""
    steps: list[int | str] = []
    for part in path:
        try:
            value = value[part]
        except (LookupError, TypeError):
            continue
        steps.append(part)
    return steps


class JsonCheck:
    """A compiled JSON Schema.

    Draft 2020-12 unless `$schema` names another. Formats are checked: a `date` must be a date;
    times may lack an offset. Raises `ValueError` with the path in the schema for one that does not
    compile, that refers to another document, or whose pattern needs look-around or
    back-references.

    Args:
        schema: The schema.
        deferred: Compile it for the first value, because it is known to compile.
    """

    __slots__ = ("_of_one", "_ready", "_schema", "_single", "fits")

    def __init__(self, schema: dict[str, Any], *, deferred: bool = False) -> None:
        self._schema = schema
        self._ready: jsonschema_rs.Validator | None = None
        self._single: jsonschema_rs.Validator | None = None
        """Finds the first violation, and no others; see `_without_branches`."""
        self._of_one: jsonschema_rs.Validator | None = None
        """Finds the first violation of one property alone."""
        self.fits: Callable[[Any], bool] = lambda value: self._validator().is_valid(value)
        """Whether a value matches. Raises `ValueError` for what is not JSON."""
        if not deferred:
            self._validator()

    def violation(self, value: Any, place: Place = json_pointer) -> Violation | None:
        """Return the first violation; the same one each time.

        Args:
            value: The value.
            place: Makes the JSON pointer of a violation from the keys that lead to it.
        """
        try:
            if self.fits(value):
                return None
            self._finder().validate(value)
        except jsonschema_rs.ValidationError as error:
            return _violation(error, place)
        except ValueError as error:
            return _not_json(value) or Violation(place([]), cut(str(error)))
        return Violation(place([]), "the value does not match the schema")

    def violations(self, value: Any, place: Place = json_pointer) -> Iterator[Violation]:
        """Yield violations, the first as `violation` returns it; the same one may come again.

        All are found where that is cheap. Else it is the first one of each property, of 256
        properties at most; what concerns several properties together is then found only if it is
        the first.

        Args:
            value: The value.
            place: Makes the JSON pointer of a violation from the keys that lead to it.
        """
        first = self.violation(value, place)
        if first is None:
            return
        yield first
        try:
            finder = self._finder()
            if _left_after(self._schema, value, _MAX_APPLIED):
                for error in finder.iter_errors(value):
                    yield from _violations(error, place)
            elif isinstance(value, dict):
                yield from self._of_each_property(value, place)
        except ValueError:  # it is not JSON
            return

    def _of_each_property(self, value: dict[str, Any], place: Place) -> Iterator[Violation]:
        """Yield violations of properties, each looked at alone, and the names that are missing."""
        if self._of_one is None:
            schema = {key: held for key, held in self._schema.items() if key in _OF_ONE_PROPERTY}
            self._of_one = _finder_of(schema)
        left = _MAX_APPLIED
        required = self._schema.get("required")
        for name in required if isinstance(required, list) else ():
            if name not in value:
                yield _missing([name], place)
        for name, item in islice(value.items(), _MAX_PROPERTIES):
            one = {name: item}
            if self._of_one.is_valid(one):
                continue
            left = _left_after(self._schema, one, left)
            found = self._of_one.iter_errors(one) if left else _first_error(self._of_one, one)
            for error in found:
                yield from _violations(error, place)

    def violation_except(self, value: Any, places: frozenset[str]) -> Violation | None:
        """Return the first violation that is not due to the values at some places.

        Where finding all is not cheap, only the very first one is found.

        Args:
            value: The value.
            places: JSON pointers of values that are text in place of what JSON cannot carry.
        """
        if self.fits(value):
            return None
        if _left_after(self._schema, value, _MAX_APPLIED):
            errors = self._validator().iter_errors(value)
        else:
            errors = _first_error(self._finder(), value)
        for error in errors:
            if not _is_due_to(error, places):
                return _violation(error, json_pointer)
        return None

    def _finder(self) -> jsonschema_rs.Validator:
        if self._single is None:
            self._single = _finder_of(self._schema)
        return self._single

    def _validator(self) -> jsonschema_rs.Validator:
        if self._ready is None:
            self._ready = _compiled(self._schema)
            self.fits = self._ready.is_valid
        return self._ready


def _not_json(value: Any) -> Violation | None:
    """Return what of a value cannot be sent, as for a call elsewhere."""
    try:
        plain_json(value)
    except InvalidResult as error:
        details = error.details
        return Violation(str(details.get("path", "")), str(details.get("message", error.message)))
    return None


def _compiled(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(
            schema,
            formats=dict(_FORMATS),
            validate_formats=True,
            mask="the value",
            pattern_options=jsonschema_rs.RegexOptions(),
            offline=True,
        )
    except jsonschema_rs.ValidationError as error:
        where = json_pointer(error.instance_path) or "/"
        raise ValueError(f"at {where}: {cut(error.message)}") from None


def _finder_of(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    """Return what finds the first violation; see `_without_branches`."""
    try:
        return _compiled(_without_branches(schema))
    except ValueError:  # a reference leads to what was left out, or into a branch
        return jsonschema_rs.validator_for({})


_OF_CONTENT = (
    _Kind.Constant,
    _Kind.Contains,
    _Kind.Enum,
    _Kind.Not,
    _Kind.OneOfMultipleValid,
    _Kind.UnevaluatedItems,
    _Kind.UnevaluatedProperties,
    _Kind.UniqueItems,
)
"""Errors about an object or a list because of the values in it."""


def _is_due_to(error: jsonschema_rs.ValidationError, places: frozenset[str]) -> bool:
    """Whether an error is one of a value at these places, or may be due to it."""
    steps = error.instance_path
    if any(json_pointer(steps[:count]) in places for count in range(len(steps) + 1)):
        return True
    match error.kind:
        case _Kind.AnyOf(branches) | _Kind.OneOfNotValid(branches):
            return any(all(_is_due_to(inner, places) for inner in branch) for branch in branches)
    around = f"{json_pointer(steps)}/"
    return isinstance(error.kind, _OF_CONTENT) and any(place.startswith(around) for place in places)


def _first_error(
    validator: jsonschema_rs.Validator, value: Any
) -> Iterator[jsonschema_rs.ValidationError]:
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        yield error


def _missing(path: Sequence[str | int], place: Place) -> Violation:
    return Violation(place(path), cut(f'"{path[-1]}" is required'))


def _violations(error: jsonschema_rs.ValidationError, place: Place) -> Iterator[Violation]:
    """Yield what an error is about: each of the names that are not known."""
    match error.kind:
        case _Kind.AdditionalProperties(names):
            for name in names[:MAX_VIOLATIONS]:
                path = place([*error.instance_path, name])
                yield Violation(path, cut(f'"{name}" is not known'))
        case _:
            yield _violation(error, place)


def _violation(error: jsonschema_rs.ValidationError, place: Place) -> Violation:
    path = error.instance_path
    match error.kind:
        case _Kind.Required(name):
            return _missing([*path, name], place)
        case _Kind.AdditionalProperties([name, *_]):
            return Violation(place([*path, name]), cut(f'"{name}" is not known'))
        case _Kind.Not({"not": {"anyOf": [*branches]}}):
            text = f"the value {_FITS_NONE} 'anyOf' keyword{_allowed_by(branches)}"
            return Violation(place(path), text)
        case _Kind.Not({"not": {"oneOf": _}}):
            return Violation(place(path), f"the value {_FITS_NOT_ONE} 'oneOf' keyword")
        case _Kind.Format(name) if name in _MOMENTS:
            return Violation(place(path), f"{cut(error.message)}, for example {_MOMENTS[name]}")
    return Violation(place(path), cut(error.message))


def _allowed_by(branches: list[Any]) -> str:
    """Name the values or types of branches that have them, so that a model finds one that fits."""
    allowed: list[str] = []
    for part in map(part_in, branches):
        values = [part["const"]] if "const" in part else part.get("enum")
        if isinstance(values, list):
            allowed += [json.dumps(value, ensure_ascii=False) for value in values]
        elif isinstance(kind := part.get("type"), str):
            allowed.append(kind)
        else:
            return ""
    return cut(f" (they allow: {', '.join(dict.fromkeys(allowed))})")


_MAX_PROPERTIES = 256
"""Properties that are looked at each alone; a check of one takes some microseconds."""
_OF_ONE_PROPERTY = frozenset(
    {
        *("$schema", "$defs", "definitions", "type", "properties", "patternProperties"),
        *("additionalProperties", "propertyNames"),
    }
)
"""What a schema says of one property, whatever others there are, and where references lead."""
_FITS_NONE = "is not valid under any of the schemas listed in the"
_FITS_NOT_ONE = "is not valid under exactly one of the schemas listed in the"


# How many errors a value may have


_MAX_APPLIED = 2_000
"""How often subschemas may be applied. Each takes about 1 us, and may make one error with a copy
of the part: branches and references can multiply them."""
_MAX_VALUE_BYTES = 16 * 1024
"""Of the value, packed: as many are copied for one error at most, so 32 MiB for all."""
_NOT_COUNTED = frozenset({"$dynamicRef", "$recursiveRef", "dependencies"})
"""Rare keywords; the first two lead elsewhere than `$ref`."""


def _left_after(schema: dict[str, Any], value: Any, left: int) -> int:
    """Return how many of so many applications of subschemas are left after those to a value.

    It is 0 if there are more of them, if they cannot be counted, or if the value is large.
    """
    try:
        if len(pack_body(value)) > _MAX_VALUE_BYTES:
            return 0
    except BadBody:
        return 0
    waiting: list[tuple[Any, Any]] = [(schema, value)]
    while waiting:
        part, item = waiting.pop()
        if not isinstance(part, dict):
            continue
        # An "$id" within the schema changes what its references mean.
        if not _NOT_COUNTED.isdisjoint(part) or ("$id" in part and part is not schema):
            return 0
        required = part.get("required")
        left -= 1 + (len(required) if isinstance(required, list) else 0)
        if left <= 0:
            return 0
        if "$ref" in part:
            target = target_of(schema, part["$ref"])
            if target is None:
                return 0
            waiting.append((target, item))
        applied = (pair for pair in _applied(part, item) if isinstance(pair[0], dict))
        waiting += islice(applied, left + 1)
    return left


def _applied(part: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the subschemas that a part applies, and to what."""
    yield from ((branch, value) for branch in held(part, IN_PLACE))
    if isinstance(value, dict):
        properties = part.get("properties")
        if isinstance(properties, dict):
            yield from (
                (properties[name], value[name]) for name in properties.keys() & value.keys()
            )
        yield from product(
            held(part, ("patternProperties", "additionalProperties", "propertyNames")),
            value.values(),
        )
    elif isinstance(value, list):
        for keyword in ("prefixItems", "items", "additionalItems", "contains"):
            items = part.get(keyword)
            if isinstance(items, list):  # `items` too, in older drafts
                yield from zip(items, value, strict=False)
            elif isinstance(items, dict):
                yield from ((items, item) for item in value)


# The first error alone


def _without_branches(schema: Any) -> Any:
    """Return a schema that finds the same first violation, and makes no other errors on the way.

    The error of `anyOf` and `oneOf` has all errors of all branches, each with a copy of the value:
    minutes and gigabytes for a value of a kilobyte. Where one branch is for null, the other one is
    meant, and its own first violation is found. The others only tell whether they match, so nothing
    is evaluated for `unevaluatedProperties` and `unevaluatedItems`.
    """
    if not isinstance(schema, dict):
        return schema
    written: dict[str, Any] = {}
    needed: list[Any] = []
    for keyword, value in schema.items():
        if keyword in ("anyOf", "oneOf") and isinstance(value, list):
            meant = [
                branch for branch in value if part_in(branch).get("type") not in ("null", ["null"])
            ]
            if len(meant) == 1:
                inner = _without_branches(meant[0])
                needed.append(inner if value == meant else {"if": {"type": "null"}, "else": inner})
            else:
                needed.append({"not": {"not": {keyword: value}}})
        elif keyword not in UNEVALUATED:
            written[keyword] = value
            if keyword != "not":
                written[keyword] = rewritten(keyword, value, _without_branches)
    if needed:
        written["allOf"] = [*written.get("allOf", ()), *needed]
    return written


# RFC 3339 requires an offset; Python programs send times without one, and pydantic accepts them.
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:?\d\d)?")
_TIME = re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:?\d\d)?")
# ISO 8601 with fractions and signs, as pydantic writes a timedelta.
_DURATION = re.compile(
    r"[+-]?P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)", re.ASCII
)


def _is_moment(form: re.Pattern[str], parse: Callable[[str], object], text: str) -> bool:
    if form.fullmatch(text) is None:
        return False
    try:
        parse(text.upper())
    except ValueError:
        return False
    return True


_MOMENTS = MappingProxyType(
    {"date": "2026-01-31", "time": "09:30:00Z", "date-time": "2026-01-31T09:30:00Z"}
)
_FORMATS: MappingProxyType[str, Callable[[str], bool]] = MappingProxyType(
    {
        "date-time": partial(_is_moment, _DATE_TIME, datetime.fromisoformat),
        "time": partial(_is_moment, _TIME, time.fromisoformat),
        "duration": lambda text: _DURATION.fullmatch(text) is not None,
    }
)
