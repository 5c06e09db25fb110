"""Recognises the version of a description and reads what all versions share. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from toolbus.tools.omission import Omission
from toolbus_toolkits.openapi import swagger2, version3
from toolbus_toolkits.openapi.model import Api, Operation
from toolbus_toolkits.openapi.parsing import SpecError
from toolbus_toolkits.openapi.references import Place

__all__ = ["MAX_OPERATIONS", "read_api"]

MAX_OPERATIONS = 20_000
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


class _OperationPlace(NamedTuple):
    path: str
    method: str
    item: Place
    operation: Place


def read_api(root: Place) -> Api:
    """Read a description.

    An operation that cannot be read is left out, with its reason in `left_out`. Raises `SpecError`
    if the document is no description of a known version, or has over 20,000 operations.
    """
    dialect = _dialect(root)
    module = swagger2 if dialect == "2.0" else version3
    found: list[Operation] = []
    left_out: list[Omission] = []
    read: Callable[[Place, str, str, Place, Place], Operation] = module.read_operation
    for path, method, item, operation in _operations(root, left_out):
        try:
            found.append(read(root, method, path, item, operation))
        except SpecError as error:
            left_out.append(Omission(f"{method.upper()} {path}", str(error)))
        if len(found) > MAX_OPERATIONS:
            raise SpecError(f"the description has more than {MAX_OPERATIONS:,} operations")
    info = root.get("info")
    return Api(
        title=info.text("title"),
        description=info.text("description"),
        version=info.text("version"),
        dialect=dialect,
        operations=tuple(found),
        schemes=module.read_schemes(root),
        left_out=tuple(left_out),
    )


def _dialect(root: Place) -> Literal["2.0", "3.0", "3.1"]:
    for key, pattern in (("swagger", r"2\.0"), ("openapi", r"3\.[01](\.\d+)?(-\w+)?")):
        text = str(root.value.get(key, ""))
        if re.fullmatch(pattern, text):
            if key == "swagger":
                return "2.0"
            return "3.0" if text.startswith("3.0") else "3.1"
        if text:
            raise SpecError(
                f"{key} {text[:20]!r} is not supported: write the description as OpenAPI 3.1, 3.0 "
                "or Swagger 2.0"
            )
    raise SpecError("the document has neither `openapi` nor `swagger`: is it an API description?")


def _operations(root: Place, left_out: list[Omission]) -> Iterator[_OperationPlace]:
    paths = root.value.get("paths")
    for path, value in paths.items() if isinstance(paths, dict) else ():
        if not path.startswith("/"):
            continue  # an extension
        try:
            # `Place.get` of a wrapper follows the `$ref` of a path item.
            item = Place({"item": value}, root.resolver).get("item")
            found = [
                _OperationPlace(path, method, item, item.get(method))
                for method in _METHODS
                if isinstance(item.value, dict) and isinstance(item.value.get(method), dict)
            ]
        except SpecError as error:
            left_out.append(Omission(path, str(error)))
            continue
        yield from found
