"""The schema of a tool's arguments, read once: what its references lead to, and what takes null.

Used by the way to a model (`toolbus.schemas.forms`) and by the way back
(`toolbus.schemas.from_model`), so that both read a schema alike. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

from toolbus.schemas.foreign import usable_schema
from toolbus.schemas.identity_cache import IdentityCache
from toolbus.schemas.keywords import ANNOTATIONS, DEFINITIONS, IN_PLACE
from toolbus.schemas.validation import JsonCheck
from toolbus.schemas.walker import Schema, held, target_of

__all__ = ["NOT_ASKING", "ArgumentSchema", "argument_schema", "parameter_aliases"]

NOT_ASKING = ANNOTATIONS | DEFINITIONS.keys() | {"$schema", "discriminator"}
"""Keywords that ask nothing of a value."""
# Subschemas that are read as they stand; `usable_schema` cuts a schema beyond these bounds.
_MAX_LEVELS = 60
_MAX_PARTS = 10_000
_READ_BEFORE = frozenset(
    {"$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"}
    | {"dependencies"}
)
"""Keywords by which parts are named, or that have another meaning in each draft."""
_ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MAX_ALIAS_CHARS = 64
"""Anthropic and Gemini refuse longer names of parameters."""
_HASH_CHARS = 8
"""Of 32 bits; names that are still equal get a number."""


class ArgumentSchema:
    """A schema in which each `$ref` is a JSON pointer that leads to a part of it.

    Args:
        root: The schema.
        dropped: What of the tool's own schema it does not check.
    """

    def __init__(self, root: dict[str, Any], dropped: tuple[str, ...] = ()) -> None:
        self.root: dict[str, Any] = root
        self.dropped: tuple[str, ...] = dropped
        self._null_fits: dict[int, tuple[Schema, bool]] = {}
        """By the identity of a part, which is kept so that no other one has it."""
        self.names: tuple[str, ...] = tuple(_root_names(self))
        """All parameters: properties of the root, also of what it applies in place."""
        self.aliases: dict[str, str] = parameter_aliases(self.names)
        """The alias of each parameter that not every provider takes by its name."""

    def target(self, reference: Any) -> Schema:
        """Return where a reference leads; True, which asks nothing, if that is no part of it."""
        found = target_of(self.root, reference)
        return True if found is None else found

    def takes_null(self, schema: Schema) -> bool:
        """Whether null matches a part; True where a part applies itself in place."""
        if not isinstance(schema, dict):
            return schema is not False
        key = id(schema)
        if key not in self._null_fits:
            self._null_fits[key] = (schema, True)
            try:
                fits = self._matches_null(schema)
            except RecursionError:  # a chain of references, which may be as long as the schema
                fits = True
            self._null_fits[key] = (schema, fits)
        return self._null_fits[key][1]

    def _matches_null(self, schema: dict[str, Any]) -> bool:
        """Whether null matches the own keywords of a part, and all that it applies in place."""
        kinds = schema.get("type", "null")
        if kinds != "null" and "null" not in kinds:
            return False
        if None not in schema.get("enum", (None,)) or schema.get("const") is not None:
            return False
        takes = self.takes_null
        if "$ref" in schema and not takes(self.target(schema["$ref"])):
            return False
        if not all(takes(part) for part in schema.get("allOf", ())):
            return False
        if "anyOf" in schema and not any(takes(part) for part in schema["anyOf"]):
            return False
        if "oneOf" in schema and sum(takes(part) for part in schema["oneOf"]) != 1:
            return False
        if "not" in schema and takes(schema["not"]):
            return False
        return "if" not in schema or takes(
            schema.get("then" if takes(schema["if"]) else "else", True)
        )


def _read(schema: dict[str, Any]) -> ArgumentSchema:
    try:
        JsonCheck(schema)
        if _stands_alone(schema):
            return ArgumentSchema(schema)
    except Exception:  # others wrote it: whatever is wrong with it, it is read in the usual way
        pass
    return ArgumentSchema(*usable_schema(schema))


argument_schema: IdentityCache[dict[str, Any], ArgumentSchema] = IdentityCache(_read)
"""Read a schema; cached by its identity."""


def _stands_alone(root: dict[str, Any]) -> bool:
    """Whether a schema can be read as it stands: no other draft, and pointers as references."""
    waiting: list[tuple[Any, int]] = [(root, 1)]
    seen: set[int] = set()
    while waiting:
        part, level = waiting.pop()
        if isinstance(part, bool) or id(part) in seen:
            continue
        if not isinstance(part, dict) or level > _MAX_LEVELS or len(seen) > _MAX_PARTS:
            return False
        seen.add(id(part))
        if not _READ_BEFORE.isdisjoint(part) or "2020-12" not in part.get("$schema", "2020-12"):
            return False
        if "$ref" in part:
            target = target_of(root, part["$ref"])
            if target is None:
                return False
            waiting.append((target, level))
        waiting += [(inner, level + 1) for inner in held(part, part)]
    return True


def _root_names(schema: ArgumentSchema) -> Iterator[str]:
    waiting: list[Any] = [schema.root]
    seen: set[int] = set()
    names: dict[str, None] = {}
    while waiting:
        part = waiting.pop(0)
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        names |= dict.fromkeys(part.get("properties", ()))
        waiting += held(part, IN_PLACE)
        if "$ref" in part:
            waiting.append(schema.target(part["$ref"]))
    return iter(names)


def parameter_aliases(names: Iterable[str]) -> dict[str, str]:
    """Return an alias for each parameter whose name not every provider takes.

    An alias is 1 to 64 of `A-Z a-z 0-9 _`, no digit first: what Gemini takes; Anthropic takes
    `.` and `-` as well. It is the name with `_` for other characters, and ends with a hash
    where that is too long, or the name of another parameter. The same names in the same
    order have the same aliases.
    """
    names = list(names)
    taken = set(names)
    aliases: dict[str, str] = {}
    for name in names:
        if not _ALIAS.fullmatch(name):
            aliases[name] = next(alias for alias in _candidates(name) if alias not in taken)
            taken.add(aliases[name])
    return aliases


def _candidates(name: str) -> Iterator[str]:
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "parameter"
    if plain[0].isdigit():
        plain = f"_{plain}"
    if len(plain) <= _MAX_ALIAS_CHARS:
        yield plain
    number = 0
    while True:
        text = f"{name}{number or ''}".encode(errors="surrogatepass")
        digest = sha256(text).hexdigest()[:_HASH_CHARS]
        yield f"{plain[: _MAX_ALIAS_CHARS - _HASH_CHARS - 1]}_{digest}"
        number += 1
