"""The names of tools and arguments: deterministic and without collisions. Pure."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

from toolbus_toolkits.openapi.model import Operation

__all__ = ["ArgumentNames", "tool_names", "toolkit_name"]

_MAX_NAME = 64
_DIGEST_CHARS = 8


def tool_names(operations: Iterable[Operation]) -> dict[tuple[str, str], str]:
    """Return the name of the tool of each operation, by its method and path.

    It is the `operationId`, or the method and the path, in `A-Z a-z 0-9 _ -`. One that is too long
    or that several operations share ends with a digest of the method and path. So the name of an
    operation depends neither on the order of the description nor on which operations are chosen.
    """
    plain = {operation.key: _plain(operation) for operation in operations}
    count = Counter(plain.values())
    return {
        key: name if count[name] == 1 and len(name) <= _MAX_NAME else _with_digest(name, key)
        for key, name in plain.items()
    }


def toolkit_name(title: str) -> str:
    """Return a name for the toolkit of an API, from its title."""
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:_MAX_NAME].rstrip("-")
    return name if re.match("[a-z]", name) else "openapi"


class ArgumentNames:
    """Gives the arguments of one tool their names.

    Args:
        reserved: Names that no argument has.
        wire_names: The names of all parameters and fields. An argument with the name of one that it
            is not would send a value to the wrong place, such as that of `filter` to `$filter`.
    """

    def __init__(self, reserved: Iterable[str], wire_names: Iterable[str]) -> None:
        self._taken = set(reserved)
        self._wire_names = frozenset(wire_names)

    def name(self, wire_name: str, location: str) -> str:
        """Return the name for a parameter or field.

        With its place as a suffix if it is taken, or is exactly that of another one.
        """
        base = _sanitised(wire_name, r"[^A-Za-z0-9_.-]+")[:_MAX_NAME] or location
        name, number = base, 1
        while name in self._taken or (name != wire_name and name in self._wire_names):
            suffix = f"_{location}" if number == 1 else f"_{location}_{number}"
            name = f"{base[: _MAX_NAME - len(suffix)]}{suffix}"
            number += 1
        self._taken.add(name)
        return name


def _plain(operation: Operation) -> str:
    name = _sanitised(operation.id, r"[^A-Za-z0-9_-]+")
    return name or _sanitised(f"{operation.method.lower()}{operation.path}", r"[^A-Za-z0-9-]+")


def _sanitised(text: str, pattern: str) -> str:
    return re.sub(pattern, "_", text).strip("_")


def _with_digest(name: str, key: tuple[str, str]) -> str:
    digest = hashlib.sha256(" ".join(key).encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: _MAX_NAME - _DIGEST_CHARS - 1]}_{digest}"
