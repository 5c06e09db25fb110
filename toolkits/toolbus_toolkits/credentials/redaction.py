"""Removes the values of credentials from JSON values and bytes, and knows their forms. Pure."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from urllib.parse import quote, quote_plus

__all__ = ["Redact", "forms_of", "redacted_bytes", "redacted_json"]

Redact: TypeAlias = Callable[[str], str]
"""Returns a text without values, such as `CredentialResolver.redact`."""
_MIN_FORM_CHARS = 5  # shorter ones would occur by chance
_MIN_LINE_CHARS = 8
"""Shorter lines of a value, such as `{` or `true,`, are in many texts that hold no secret."""


def redacted_json(value: Any, redact: Redact) -> Any:
    """Return a JSON value without values of credentials in its texts, names and numbers.

    A value without any is returned as it is. Raises `RecursionError` for one that is too deep.
    """
    text = json.dumps(value, ensure_ascii=False)
    return value if redact(text) == text else _walked(value, redact)


def redacted_bytes(data: bytes, redact: Redact) -> bytes:
    """Return bytes without values of credentials; what is compressed in them is not seen."""
    text = data.decode("utf-8", "surrogateescape")
    clean = redact(text)
    return data if clean == text else clean.encode("utf-8", "surrogateescape")


def _walked(value: Any, redact: Redact) -> Any:
    if isinstance(value, str):
        clean = redact(value)
        return value if clean == value else type(value)(clean)  # a `SourceText` stays one
    if isinstance(value, dict):
        return {redact(name): _walked(member, redact) for name, member in value.items()}
    if isinstance(value, list):
        return [_walked(item, redact) for item in value]
    if isinstance(value, int | float):
        text = json.dumps(value)
        return value if redact(text) == text else redact(text)
    return value


def forms_of(value: str) -> Iterator[str]:
    """Give the forms in which a value is found: plain, as JSON, as Python, in URLs, in base64.

    Each longer line of it counts as well, because programs write line by line.
    """
    escaped = json.dumps(value)[1:-1]
    yield from (value, escaped, json.dumps(value, ensure_ascii=False)[1:-1])
    yield escaped.replace("/", "\\/")  # as PHP writes JSON
    yield from (repr(value)[1:-1], repr(value.encode())[2:-1])
    yield from (quote(value, safe=""), quote(value), quote_plus(value))
    yield from _base64_forms(value)
    lines = value.splitlines()
    if len(lines) > 1:
        yield from (line for line in map(str.strip, lines) if len(line) >= _MIN_LINE_CHARS)


def _base64_forms(value: str) -> Iterator[str]:
    """Give a value as it is within base64, as in `user:value`: at each of three offsets.

    The characters at its ends also depend on its neighbours and are left out.
    """
    data = value.encode()
    for offset in range(3):
        first, end = -(-8 * offset // 6), 8 * (offset + len(data)) // 6
        for encode in (b64encode, urlsafe_b64encode):
            form = encode(bytes(offset) + data).decode()[first:end]
            if len(form) >= _MIN_FORM_CHARS:
                yield form
