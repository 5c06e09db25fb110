"""Makes a JSON Schema that somebody else wrote usable: it compiles here, and checks quickly.

Such a schema comes from an MCP server, the description of an API, a manifest or an offer of another
participant. Compiling it and checking a value hold the event loop, so everything that may take long
is found before, in time linear in the schema. What cannot be checked here is dropped keyword by
keyword, so that one keyword costs its own check and no more; the rest keeps its meaning, and the
schema that is left accepts every value that the original accepts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import jsonschema_rs

from toolbus.chunks.json_values import is_plain, json_pointer, pointer_keys
from toolbus.schemas.costs import Part, bound_costs
from toolbus.schemas.keywords import ANNOTATIONS, DEFINITIONS, SUBSCHEMAS, UNEVALUATED, Holds
from toolbus.schemas.patterns import compiles, least_cost, pattern_cost
from toolbus.schemas.validation import JsonCheck
from toolbus.schemas.walker import rewritten
from toolbus.untrusted_text import one_line
from toolbus.wire import pack_body
from toolbus.wire.manifest import MAX_MANIFEST_DEPTH, MAX_TOOL_BYTES

__all__ = ["UsableSchema", "usable_schema"]

# Reading takes 8 us for each, finding what they cost up to 10, compiling 2 to 13: 80 ms at most.
_MAX_PARTS = 2_500
"""Subschemas, and objects and lists in an `enum`, with patterns by what they cost. The first in the
order of depth are kept."""
# A manifest has three levels around a schema.
_LEVELS_AROUND = 3
_MAX_LEVELS = MAX_MANIFEST_DEPTH - _LEVELS_AROUND
"""Of a deeper schema the server would refuse the whole toolkit (PROTOCOL.md, REG-2)."""
_MAX_VALUE_BYTES = MAX_TOOL_BYTES
"""Bytes of all lists and objects that are values of keywords without subschemas."""
# Thousands of keywords may be dropped, each with a path of any length: the lines are in memory, in
# a manifest and in a log.
_MAX_DROPPED = 100
_MAX_LINE_CHARS = 500

_STRICTER_WITHOUT = {
    "properties": ["additionalProperties"],
    "patternProperties": ["additionalProperties"],
    "prefixItems": ["items"],
}
"""Keywords that refuse more once another one is gone, because they are for all that it does not
name."""
_STRICTER_AFTER = {"not": ["not"], "if": ["if", "then", "else"], "contains": ["maxContains"]}
"""Keywords that refuse more once the subschema of another one accepts more."""
_DOCUMENT = frozenset({"$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"})
"""What names parts for references. References are rewritten, so these go."""
_CHECKS_NOTHING = ANNOTATIONS | DEFINITIONS.keys() | {"$schema"}
_SINCE = {
    "draft-04": (),
    "draft-06": ("const", "contains", "propertyNames"),
    "draft-07": ("if", "then", "else"),
    "2019-09": (
        "dependentRequired",
        "dependentSchemas",
        "minContains",
        "maxContains",
        *UNEVALUATED,
    ),
    "2020-12": ("prefixItems",),
}
"""What names each draft in a `$schema`, and the keywords that it has added."""
_DRAFTS = tuple(_SINCE)
_REF_STANDS_ALONE = _DRAFTS.index("draft-07")
"""Up to this draft, what stands beside a `$ref` has no effect."""
_NOT_CHECKED = frozenset(
    {
        # Which schema they lead to depends on the way to them.
        "$dynamicRef",
        "$recursiveRef",
        # They go through all that is applied in place once more, 50 us for each subschema when the
        # schema is compiled; and they refuse more as soon as anything there is dropped.
        *UNEVALUATED,
        # Written as `dependentRequired` and `dependentSchemas`, unless there are these too.
        "dependencies",
    }
)
_BOOLEANS: dict[bool, dict[str, Any]] = {True: {}, False: {"not": {}}}
_IS_INVALID = "it is not as JSON Schema 2020-12 has it"
_IS_LOOSER = "what it applies is not checked in full"


class UsableSchema(NamedTuple):
    """A schema that compiles here."""

    schema: dict[str, Any]
    """JSON Schema 2020-12, without `$schema`, `$id` and anchors; each `$ref` is a JSON pointer."""
    dropped: tuple[str, ...]
    """What is not checked: a line for each keyword, with its path and the reason; at most 101."""


def usable_schema(schema: object) -> UsableSchema:
    """Return a schema that compiles here, quickly, and that accepts all that `schema` accepts.

    It raises nothing. The result is a copy, but values of keywords without subschemas are the same
    objects. It takes 100 ms at most, with compiling.

    Args:
        schema: Any JSON value. A schema of an older draft is read as its `$schema` says, and
            written as one of 2020-12.
    """
    if isinstance(schema, bool):
        return UsableSchema(_BOOLEANS[schema], ())
    if not isinstance(schema, dict):
        return UsableSchema({}, ("/: a schema is an object",))
    reader = _Reader()
    reader.read(schema)
    reader.resolve()
    bound_costs(reader.parts, reader.drop)
    reader.loosen()
    written: dict[str, Any] = _written(reader.parts[0])
    try:
        JsonCheck(written)
    except Exception as error:  # the compiler knows a rule that is missing here
        written = {}
        reader.report([], f"it does not compile: {error}")
    return UsableSchema(written, reader.lines())


class _Reader:
    """Reads one schema into parts, and drops what cannot be checked."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        """All subschemas, in the order of their depth."""
        self._lines: list[str] = []
        self._unlisted = 0
        self._patterns: dict[str, str] = {}
        """Why each pattern is refused. Equal ones cost once: they are compiled once."""
        self._parts_left = _MAX_PARTS
        self._bytes_left = _MAX_VALUE_BYTES
        self._draft = len(_DRAFTS) - 1
        """The index of the draft that the schema is written in."""
        self._references: list[Part] = []
        self._bases: dict[Part, Part] = {}
        """The subschema with an `$id` that each is in: pointers start there."""
        self._named: dict[str | tuple[Part, str], Part | None] = {}
        """By their `$id`, or by an anchor in one with an `$id`; None for one that is not unique."""
        self._changes: deque[tuple[Part, str, bool]] = deque()
        """Keywords that are dropped, by True, or whose subschemas accept more; what follows from
        that is still to be done."""

    def read(self, schema: dict[str, Any]) -> None:
        """Read a schema and its subschemas into `parts`, as the draft of its `$schema` says."""
        named = schema.get("$schema")
        for index, draft in enumerate(_DRAFTS):
            if isinstance(named, str) and draft in named[:200]:
                self._draft = index
                break
        else:
            if named is not None:
                self.report(["$schema"], "it is not known, so the schema is read as 2020-12")
        root = Part(None, (), 1)
        self._bases[root] = root
        self.parts.append(root)
        waiting = deque([(schema, root)])
        while waiting:
            fields, part = waiting.popleft()
            self._read_names(fields, part)
            for keyword, value in _in_2020_12(fields, self._draft).items():
                if keyword in SUBSCHEMAS:
                    waiting += self._read_subschemas(part, keyword, value)
                else:
                    self._read_value(part, keyword, value)

    def _read_names(self, fields: dict[str, Any], part: Part) -> None:
        name = fields.get("$id" if self._draft else "id")
        if isinstance(name, str) and not name.startswith("#"):
            self._bases[part] = part
            self._name(name.rstrip("#"), part)
        elif isinstance(name, str):  # until draft 7, an anchor
            self._name((self._bases[part], name[1:]), part)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(fields.get(keyword), str):
                self._name((self._bases[part], fields[keyword]), part)

    def _name(self, key: str | tuple[Part, str], part: Part) -> None:
        self._named[key] = None if key in self._named else part

    def _read_subschemas(
        self, part: Part, keyword: str, value: Any
    ) -> Iterator[tuple[dict[str, Any], Part]]:
        """Read a keyword with subschemas; yield those that are objects, still to be read."""
        items = _items(keyword, value)
        if items is None:
            self.drop(part, keyword, _IS_INVALID)
            return
        level = part.level + 1 + (SUBSCHEMAS[keyword] is not Holds.ONE)
        if level > _MAX_LEVELS:
            self.drop(part, keyword, f"it is deeper than {_MAX_LEVELS} levels")
            return
        if len(items) > self._parts_left:
            self.drop(part, keyword, f"the schema has more than {_MAX_PARTS:,} subschemas")
            return
        self._parts_left -= len(items)
        held: dict[tuple[str, ...], Part | bool] = {}
        for steps, item in items:
            if SUBSCHEMAS[keyword] is Holds.NAMED and not self._is_usable(part, *steps):
                continue
            if not isinstance(item, dict | bool):
                self.report([*part.path, *steps], "a schema is an object")
                self._changes.append((part, keyword, False))
                item = True
            if keyword in DEFINITIONS and not isinstance(item, dict):
                item = _BOOLEANS[item]  # a reference may lead to it
            held[steps] = item
            if isinstance(item, dict):
                child = Part(part, steps, level)
                self.parts.append(child)
                self._bases[child] = self._bases[part]
                part.children[steps] = held[steps] = child
                yield item, child
        part.fields[keyword] = _value_of(SUBSCHEMAS[keyword], held)

    def _is_usable(self, part: Part, keyword: str, name: Any) -> bool:
        """Whether a name, or a pattern of names, can be used."""
        refusal = ""
        if not is_plain({name: None}):
            refusal = "a name that is not text"
        elif keyword == "patternProperties":
            refusal = self._pattern_refusal(name)
        if refusal:
            self.report([*part.path, keyword, str(name)], refusal)
            self._changes.append((part, keyword, True))
        return not refusal

    def _read_value(self, part: Part, keyword: str, value: Any) -> None:
        """Read a keyword without subschemas."""
        if keyword in _DOCUMENT or keyword == "$schema":
            return
        is_texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
        if keyword in ("type", "required") and is_texts:
            value = list(dict.fromkeys(value))
        refusal = self._value_refusal(keyword, value, part.level + _LEVELS_AROUND)
        if refusal:
            self.drop(part, keyword, refusal)
            return
        part.fields[keyword] = value
        if keyword == "$ref":
            self._references.append(part)

    def _value_refusal(self, keyword: str, value: Any, level: int) -> str:
        if not is_plain({keyword: value}, level):
            return "it has values that cannot be sent, or too many levels"
        if keyword in _NOT_CHECKED:
            return "this keyword is not checked here"
        if not _VALUES.is_valid({keyword: value}):
            return _IS_INVALID
        if keyword == "pattern":
            return self._pattern_refusal(value)
        if keyword == "enum":
            containers = sum(isinstance(item, dict | list) for item in value)
            if containers > self._parts_left:
                return f"with its values, the schema has more than {_MAX_PARTS:,} parts"
            self._parts_left -= containers
        size = len(pack_body(value)) if isinstance(value, dict | list) else 0
        if size > self._bytes_left:
            return f"the schema has more than {_MAX_VALUE_BYTES:,} bytes of values"
        self._bytes_left -= size
        return ""

    def _pattern_refusal(self, pattern: str) -> str:
        """Return why a pattern is not checked; empty if it is."""
        if pattern in self._patterns:
            return self._patterns[pattern]
        units = least_cost(pattern)
        refusal = "the schema has more patterns than are checked here"
        if units <= self._parts_left:
            cost = pattern_cost(pattern)
            if cost.refusal:
                refusal = cost.refusal
            elif cost.units > _MAX_PARTS:
                refusal = "the repeats of the pattern are larger than is checked here"
            elif cost.units <= self._parts_left:
                units = cost.units
                refusal = "" if compiles(pattern, units) else "the pattern is not valid here"
        self._parts_left = max(0, self._parts_left - units)
        self._patterns[pattern] = refusal
        return refusal

    def resolve(self) -> None:
        """Find where all references lead."""
        for part in self._references:
            target = self._find(part, part.fields["$ref"])
            if target is None:
                self.drop(part, "$ref", "it leads to no part of this schema")
            else:
                part.target = target
                target.referrers.append(part)

    def _find(self, part: Part, reference: str) -> Part | None:
        document, _, fragment = reference.partition("#")
        found: Part | None = self._bases[part]
        if document:
            found = self._named.get(document)
        fragment = unquote(fragment)
        if found is None or not fragment:
            return found
        if not fragment.startswith("/"):
            return self._named.get((found, fragment))
        steps = pointer_keys(fragment)[::-1]
        while steps and found is not None:
            keyword = steps.pop()
            one = found.children.get((keyword,))
            if one is None and steps:
                one = found.children.get((keyword, steps.pop()))
            found = one
        return found

    def drop(self, part: Part, keyword: str, reason: str) -> None:
        """Drop a keyword, and all references into it."""
        self.report([*part.path, keyword], reason)
        waiting = list(part.under(keyword))
        part.fields.pop(keyword, None)
        if keyword == "$ref":
            part.target = None
        while waiting:
            gone = waiting.pop()
            gone.is_gone = True
            waiting += gone.children.values()
            for referrer in gone.referrers:
                if referrer.target is gone and not referrer.is_gone:
                    self.drop(referrer, "$ref", "it leads into a part that is not kept")
        self._changes.append((part, keyword, True))

    def loosen(self) -> None:
        """Drop what would refuse more than before, because something else is not checked."""
        while self._changes:
            part, keyword, is_dropped = self._changes.popleft()
            if part.is_gone or keyword in _CHECKS_NOTHING:
                continue
            if keyword == "oneOf" and not is_dropped:
                self._accept_any(part)
            stricter = _STRICTER_WITHOUT if is_dropped else _STRICTER_AFTER
            for other in stricter.get(keyword, ()):
                if other in part.fields:
                    self.drop(part, other, _IS_LOOSER)
            if part.accepts_more:
                continue  # all that use it know it already
            part.accepts_more = True
            if part.parent is not None:
                self._changes.append((part.parent, part.steps[0], False))
            self._changes += [
                (referrer, "$ref", False) for referrer in part.referrers if referrer.target is part
            ]

    def _accept_any(self, part: Part) -> None:
        """Write `oneOf` as `anyOf`: a value may match a branch that it did not match before."""
        if "anyOf" in part.fields and "oneOf" in part.fields:
            self.drop(part, "oneOf", _IS_LOOSER)
        elif "oneOf" in part.fields:
            self.report([*part.path, "oneOf"], f"it is read as anyOf: {_IS_LOOSER}")
            for branch in part.under("oneOf"):
                branch.steps = ("anyOf", *branch.steps[1:])
            part.fields["anyOf"] = part.fields.pop("oneOf")

    def report(self, path: Iterable[str], reason: str) -> None:
        """Add a line to what is dropped."""
        if len(self._lines) == _MAX_DROPPED:
            self._unlisted += 1
            return
        line = f"{json_pointer(tuple(path)) or '/'}: {reason}"
        self._lines.append(one_line(line, _MAX_LINE_CHARS))

    def lines(self) -> tuple[str, ...]:
        """Return what is dropped, `path: reason`; the last line counts what is not listed."""
        if self._unlisted:
            return (*self._lines, f"/: {self._unlisted:,} more keywords")
        return tuple(self._lines)


def _items(keyword: str, value: Any) -> list[tuple[tuple[Any, ...], Any]] | None:
    """Return the subschemas of a keyword, with their steps; None if it has another type."""
    holds = SUBSCHEMAS[keyword]
    if holds is Holds.ONE:
        return [((keyword,), value)]
    if holds is Holds.LIST and isinstance(value, list) and value:
        return [((keyword, str(index)), item) for index, item in enumerate(value)]
    if holds is Holds.NAMED and isinstance(value, dict):
        return [((keyword, name), item) for name, item in value.items()]
    return None


def _value_of(holds: Holds, held: dict[tuple[str, ...], Part | bool]) -> Any:
    """Return the value of a keyword with these subschemas, which are there by their steps."""
    if holds is Holds.NAMED:
        return {steps[-1]: item for steps, item in held.items()}
    items = [*held.values()]
    return items[0] if holds is Holds.ONE else items


def _in_2020_12(fields: dict[str, Any], draft: int) -> dict[str, Any]:
    """Return a subschema of a draft with the keywords of 2020-12.

    Boolean `exclusiveMinimum`, a list as `items`, and `dependencies` are read in any draft: they
    have no other meaning in a newer one. A reference into `items` or `dependencies`, which is
    rare, does not find its part under the new name, and is dropped.
    """
    unknown = {keyword for later in _DRAFTS[draft + 1 :] for keyword in _SINCE[later]}
    if draft <= _REF_STANDS_ALONE and "$ref" in fields:
        unknown |= {*SUBSCHEMAS, *_VALUE_SCHEMAS, *_NOT_CHECKED} - _CHECKS_NOTHING - {"$ref"}
    fields = {keyword: value for keyword, value in fields.items() if keyword not in unknown}
    for strict, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(fields.get(strict), bool) and fields.pop(strict) and limit in fields:
            fields[strict] = fields.pop(limit)
    if isinstance(fields.get("items"), list):
        first = fields.pop("items")
        if first:
            fields["prefixItems"] = first
        if "additionalItems" in fields:
            fields["items"] = fields.pop("additionalItems")
    needed = fields.get("dependencies")
    if isinstance(needed, dict) and fields.keys().isdisjoint(_SINCE["2019-09"][:2]):
        del fields["dependencies"]
        lists = {name: value for name, value in needed.items() if isinstance(value, list)}
        if lists:
            fields["dependentRequired"] = lists
        if len(lists) < len(needed):
            schemas = {name: value for name, value in needed.items() if name not in lists}
            fields["dependentSchemas"] = schemas
    return fields


def _written(part: Part | bool) -> Any:
    """Return a subschema as JSON."""
    if isinstance(part, bool):
        return part
    written: dict[str, Any] = {}
    for keyword, value in part.fields.items():
        if keyword == "$ref" and part.target is not None:
            steps = [step.replace("~", "~0").replace("/", "~1") for step in part.target.path]
            written[keyword] = "#" + "".join(f"/{quote(step, _UNQUOTED)}" for step in steps)
        elif keyword in SUBSCHEMAS:
            written[keyword] = rewritten(keyword, value, _written)
        else:
            written[keyword] = value
    return written


_UNQUOTED = "!$&'()*+,;=:@~"
"""Characters besides letters and digits that the fragment of a URI may have."""


_TYPE = {"enum": ["array", "boolean", "integer", "null", "number", "object", "string"]}
_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_NUMBER = {"type": "number"}
_COUNT = {"type": "integer", "minimum": 0}
_BOOLEAN = {"type": "boolean"}
_LIST = {"type": "array"}
_VALUE_SCHEMAS: dict[str, dict[str, Any]] = {
    "$ref": _TEXT,
    "type": {"anyOf": [_TYPE, {"type": "array", "items": _TYPE, "minItems": 1}]},
    "enum": _LIST,
    "multipleOf": {"type": "number", "exclusiveMinimum": 0},
    **dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"), _NUMBER),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems"), _COUNT),
    **dict.fromkeys(("maxContains", "minContains", "maxProperties", "minProperties"), _COUNT),
    "uniqueItems": _BOOLEAN,
    "required": _TEXTS,
    "dependentRequired": {
        "type": "object",
        "additionalProperties": {**_TEXTS, "uniqueItems": True},
    },
    **dict.fromkeys(("format", "pattern", "$comment", "title", "description"), _TEXT),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _TEXT),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), _BOOLEAN),
    "examples": _LIST,
}
"""What the value of a keyword without subschemas has to be. Others may be anything."""
_VALUES = jsonschema_rs.validator_for({"properties": _VALUE_SCHEMAS})
