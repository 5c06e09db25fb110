"""Values as text in URLs, headers and forms, by style and explode (RFC 6570). Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from toolbus_toolkits.openapi.model import Encoding

__all__ = ["header_text", "path_text", "plain_text", "query_pairs"]

_RESERVED = ":/?@!$'()*,;"
"""What `allowReserved` leaves as it is; the rest would end the value or begin another one."""
_DELIMITERS = {
    "form": ",",
    "spaceDelimited": "%20",
    "pipeDelimited": "%7C",
    "tabDelimited": "%09",
}


def plain_text(value: Any) -> str:
    """Return a value as text: JSON for what is nested, and for true, false and numbers."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def path_text(name: str, value: Any, encoding: Encoding) -> str:
    """Return the text of a path parameter, which never begins another segment."""
    escape = _escape(encoding)
    if encoding.media_type:
        return escape(_json(value))
    prefix, joiner = {"label": (".", "."), "matrix": (";", ";")}.get(encoding.style, ("", ","))
    items = _items(value, escape, explode=encoding.explode)
    if encoding.style == "matrix":
        return _matrix(escape(name), value, items, explode=encoding.explode)
    if not encoding.explode:
        joiner = ","
    return prefix + joiner.join(items)


def header_text(value: Any, encoding: Encoding) -> str:
    """Return the text of a header, in style simple. Raises `ValueError` for a control character."""
    if encoding.media_type:
        text = _json(value)
    else:
        text = ",".join(_items(value, str, explode=encoding.explode))
    if any(ord(each) < 32 or ord(each) == 127 for each in text):
        raise ValueError("a header must not contain line breaks or other control characters")
    return text


def query_pairs(name: str, value: Any, encoding: Encoding) -> list[str]:
    """Return the parts of a query, a cookie or a form, such as `a=1`, escaped."""
    escape = _escape(encoding)
    key = quote(name, safe="")
    if encoding.media_type:
        return [f"{key}={escape(_json(value))}"]
    if encoding.style == "deepObject" and isinstance(value, dict):
        return _deep(name, value, escape)
    if isinstance(value, dict) and encoding.explode:
        return [
            f"{quote(each, safe='')}={escape(plain_text(item))}" for each, item in value.items()
        ]
    if isinstance(value, list) and encoding.explode:
        return [f"{key}={escape(plain_text(item))}" for item in value]
    delimiter = _DELIMITERS.get(encoding.style, ",")
    return [f"{key}={delimiter.join(_items(value, escape, explode=False))}"]


def _escape(encoding: Encoding) -> Callable[[str], str]:
    safe = _RESERVED if encoding.allow_reserved else ""
    return lambda text: quote(text, safe=safe)


def _items(value: Any, escape: Callable[[str], str], *, explode: bool) -> list[str]:
    """Return the parts of a value: one of a scalar, those of a list, and keys with their values."""
    if isinstance(value, list):
        return [escape(plain_text(each)) for each in value]
    if not isinstance(value, dict):
        return [escape(plain_text(value))]
    pairs = [(escape(key), escape(plain_text(each))) for key, each in value.items()]
    if explode:
        return [f"{key}={each}" for key, each in pairs]
    return [part for pair in pairs for part in pair]


def _matrix(name: str, value: Any, items: list[str], *, explode: bool) -> str:
    if explode and isinstance(value, list):
        return "".join(f";{name}={each}" for each in items)
    if explode and isinstance(value, dict):
        return "".join(f";{each}" for each in items)
    return f";{name}={','.join(items)}"


def _deep(name: str, value: Any, escape: Callable[[str], str]) -> list[str]:
    if isinstance(value, dict):
        return [
            part for key, each in value.items() for part in _deep(f"{name}[{key}]", each, escape)
        ]
    if isinstance(value, list):
        return [part for each in value for part in _deep(name, each, escape)]
    return [f"{quote(name, safe='')}={escape(plain_text(value))}"]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
