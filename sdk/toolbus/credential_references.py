"""References to credentials, `${cred:org/tool/key}`, where they are not allowed: they are refused.

A reference is resolved only in files that an operator names, by `toolbus_toolkits.credentials`. In
a config of a builder, in arguments and in other texts of participants it is an error, so that it
is neither resolved nor taken for a value. `$${cred:` is the text `${cred:` and no reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from toolbus.errors import InvalidArguments

__all__ = ["REFERENCE", "has_reference", "refuse_references"]

REFERENCE: re.Pattern[str] = re.compile(
    r"(?P<escaped>\$\$\{cred:)|\$\{cred:(?P<name>[^}]{0,256}\})?"
)
"""A reference, its beginning, or the escaped form; `name` ends with the closing brace."""


def has_reference(value: Any) -> bool:
    """Whether a JSON value has a reference in a text or a name, malformed ones included."""
    return next(_references(value, ""), None) is not None


def refuse_references(value: Any, path: str = "") -> None:
    """Refuse a JSON value that has a reference.

    Raises:
        InvalidArguments: It has one; `details["path"]` is its JSON pointer.
    """
    place = next(_references(value, path), None)
    if place is not None:
        text = "references to credentials are allowed only in files that the operator names"
        raise InvalidArguments(f"{place or '/'}: {text}", details={"path": place, "message": text})


def _references(value: Any, path: str) -> Iterator[str]:
    """Return the JSON pointers of texts and names with a reference."""
    pending: list[tuple[Any, str]] = [(value, path)]
    while pending:
        item, place = pending.pop()
        if isinstance(item, str):
            # The beginning is looked for first: it is what most texts lack.
            if "${cred:" in item and not all(m["escaped"] for m in REFERENCE.finditer(item)):
                yield place
        elif isinstance(item, dict):
            for name, child in item.items():
                key = str(name).replace("~", "~0").replace("/", "~1")
                pending += [(child, f"{place}/{key}"), (str(name), f"{place}/{key}")]
        elif isinstance(item, list | tuple):
            pending += [(child, f"{place}/{index}") for index, child in enumerate(item)]
