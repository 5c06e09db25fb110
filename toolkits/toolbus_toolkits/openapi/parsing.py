"""The text of a document, as JSON or YAML, to plain JSON values within limits. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

__all__ = ["MAX_DOCUMENT_BYTES", "SpecError", "parse_document"]

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
_MAX_DEPTH = 100
_MAX_VALUES = 4_000_000
"""Values of one document, where each use of a YAML alias counts anew."""


class SpecError(ValueError):
    """A document that cannot be read, or is not a usable API description."""


class _JsonSchemaLoader(yaml.CSafeLoader):
    """YAML with the scalar types of JSON: a date, `on` and `no` are texts, as is 1:30."""


_OTHER_TYPES = (":timestamp", ":bool", ":int", ":float")
_JsonSchemaLoader.yaml_implicit_resolvers = {
    first: usable
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    if (usable := [resolver for resolver in resolvers if not resolver[0].endswith(_OTHER_TYPES)])
}
# Of YAML 1.2: numbers to the base of 60 take time in proportion to the square of their length.
_JsonSchemaLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9]*)\Z"), list("-+0123456789")
)
_JsonSchemaLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?=[0-9]*[.eE])(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z"),
    list("-+.0123456789"),
)
_JsonSchemaLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)


def parse_document(data: bytes, source: str) -> dict[str, Any]:
    """Parse a document.

    Args:
        data: Its bytes, in UTF-8.
        source: Its address, for messages.

    Raises `SpecError` if it is larger than 32 MiB, is neither JSON nor YAML, nests deeper than 100
    levels, has over 4 million values, or is not an object.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise SpecError(f"{source}: the document has more than {MAX_DOCUMENT_BYTES:,} bytes")
    try:
        text = data.decode("utf-8-sig")
        value = json.loads(text) if text.lstrip()[:1] == "{" else _from_yaml(text, source)
    except json.JSONDecodeError:
        value = _from_yaml(text, source)  # a YAML flow mapping begins with a brace, too
    except UnicodeDecodeError as error:
        raise SpecError(f"{source}: the document is not UTF-8") from error
    except SpecError:
        raise
    except ValueError as error:  # a number with more digits than Python reads
        raise SpecError(f"{source}: the document has a value that cannot be read") from error
    except RecursionError:
        raise _too_deep(source) from None
    if not isinstance(value, dict):
        raise SpecError(f"{source}: the document is not an object: is it an OpenAPI document?")
    plain: dict[str, Any] = _plain(value, 0, iter(range(_MAX_VALUES)), source)
    return plain


def _from_yaml(text: str, source: str) -> Any:
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_JsonSchemaLoader):  # iterative, unlike `load`
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _MAX_DEPTH:
                raise _too_deep(source)
        return yaml.load(text, Loader=_JsonSchemaLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}"
        raise SpecError(f"{source}: the document is neither JSON nor YAML{where}") from error
    except (ValueError, OverflowError, TypeError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{source}: the document has a value that cannot be read") from error


def _plain(value: Any, depth: int, budget: Iterator[int], source: str) -> Any:
    """Copy a value as JSON: keys are texts, and no part is shared. Raises `SpecError`."""
    if next(budget, None) is None:
        raise SpecError(f"{source}: the document has more than {_MAX_VALUES:,} values")
    if depth > _MAX_DEPTH:
        raise _too_deep(source)
    if isinstance(value, dict):
        return {
            _key(name): _plain(member, depth + 1, budget, source) for name, member in value.items()
        }
    if isinstance(value, list):
        return [_plain(item, depth + 1, budget, source) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _key(name: Any) -> str:
    if isinstance(name, bool):
        return str(name).lower()
    return name if isinstance(name, str) else str(name)


def _too_deep(source: str) -> SpecError:
    return SpecError(f"{source}: the document nests deeper than {_MAX_DEPTH} levels")
