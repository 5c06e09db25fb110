"""Judges JSON by the types that a client declares for its parameters, without further keys."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import is_typeddict

__all__ = ["faults"]

_WRAPPERS = (Annotated, Required, NotRequired)
_PLAIN: dict[Any, Any] = {
    str: str,
    bool: bool,
    int: int,
    float: (int, float),
    type(None): type(None),
}


def faults(value: Any, hint: Any, place: str = "") -> list[str]:
    """Return what is wrong with a JSON value, each with its place; empty if it fits."""
    while get_origin(hint) in _WRAPPERS:
        hint = get_args(hint)[0]
    if hint is Any or hint is object:
        return []
    if hint in _PLAIN:
        fits = isinstance(value, _PLAIN[hint]) and (hint is bool or not isinstance(value, bool))
        return [] if fits else [f"{place}: {value!r:.60} is no {hint.__name__}"]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return [] if value in arguments else [f"{place}: {value!r:.60} is none of {arguments}"]
    if origin in (Union, types.UnionType):
        return _of_union(value, arguments, place)
    if is_typeddict(hint):
        return list(_of_typed_dict(value, hint, place))
    return _of_container(value, hint, place)


def _of_container(value: Any, hint: Any, place: str) -> list[str]:
    arguments = get_args(hint)
    if get_origin(hint) in (dict, Mapping) and isinstance(value, dict):
        parts = [(part, arguments[1], f"{place}.{key}") for key, part in value.items()]
    elif len(arguments) == 1 and isinstance(value, list):
        parts = [(part, arguments[0], f"{place}[{n}]") for n, part in enumerate(value)]
    else:  # also what is no JSON: files, models, dates
        return [f"{place}: {value!r:.60} is no {hint}"]
    return [told for part in parts for told in faults(*part)]


def _of_union(value: Any, members: tuple[Any, ...], place: str) -> list[str]:
    """Return the faults by the member that is meant: of this type or role, else the closest."""
    ranked = []
    for member in members:
        told = faults(value, member, place)
        if not told:
            return []
        is_shallow = told[0].startswith(f"{place}:") and not is_typeddict(member)
        ranked.append((not _is_meant(value, member), is_shallow, len(told), told))
    return min(ranked, key=lambda each: each[:3])[3]


def _is_meant(value: Any, member: Any) -> bool:
    if not isinstance(value, dict) or not is_typeddict(member):
        return False
    hints = _hints(member)
    told = [key for key in ("type", "role") if key in value and key in hints]
    return bool(told) and not any(faults(value[key], hints[key]) for key in told)


def _of_typed_dict(value: Any, hint: Any, place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place}: no {hint.__name__}"
        return
    hints = _hints(hint)
    # Not `__required_keys__`: with postponed annotations it does not see `Required`.
    required = {key for key, each in hints.items() if get_origin(each) is Required}
    for key in sorted(required - value.keys()):
        yield f"{place}: {hint.__name__} needs {key}"
    for key, part in value.items():
        if key in hints:
            yield from faults(part, hints[key], f"{place}.{key}")
        else:
            yield f"{place}: {hint.__name__} has no {key}"


@cache
def _hints(hint: Any) -> dict[str, Any]:
    return get_type_hints(hint, include_extras=True)
