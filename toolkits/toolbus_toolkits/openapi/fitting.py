"""What of an API can be checked here and fits into a room.

Tools repeat each other's definitions: a thousand tools may each reach hundreds. So definitions are
checked together, in large sets, and what holds for a set holds for each part of it that refers to
nothing outside. The own schema of a tool is checked apart from them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from toolbus import Tool
from toolbus.schemas.foreign import UsableSchema, usable_schema
from toolbus.schemas.keywords import IN_PLACE
from toolbus.schemas.text import with_short_texts
from toolbus.tools.omission import Omission, fit_tools
from toolbus.wire import pack_body
from toolbus.wire.manifest import MAX_MANIFEST_BYTES, MAX_TOOL_BYTES
from toolbus_toolkits.openapi.arguments import Arguments
from toolbus_toolkits.openapi.model import Operation
from toolbus_toolkits.openapi.schemas import MAPS, Definitions

__all__ = ["Draft", "Fitted", "TextLimits", "choice_of_tags", "fit", "usable_schemas"]

_DEFINITION = re.compile(r"/\$defs/([A-Za-z0-9_.-]+)")
_LOST = {"pattern": "(?=.)"}
"""Stands for a definition that has lost a check: this one is lost, too, so that keywords which
would accept less for it, such as `oneOf`, are loosened."""
_MAX_PARTS = 2_500
"""Objects in definitions that are read together; `usable_schema` takes as many subschemas, and does
not count the objects that hold them."""
_MAX_ADDED = 500
"""Objects that are added to a set which is large alone: `usable_schema` keeps the outer ones."""
_MAX_ANEW = 50
"""Sets and schemas that are read alone; 100 ms for each of the largest."""
_MAX_REFERENCES = 100
"""References that are applied to one value, for a schema that is read apart from its definitions:
each of those may take 0.1 ms."""


class _CheckedSet(NamedTuple):
    names: frozenset[str]
    definitions: dict[str, dict[str, Any]]
    dropped: tuple[str, ...]
    lost: frozenset[str]
    """Definitions that accept more than the description says, or refer to one that does."""

    def of(self, names: frozenset[str]) -> _CheckedSet:
        """Return what is known about a part of the set."""
        dropped = tuple(line for line in self.dropped if _name_in(line) in names | {""})
        definitions = {name: self.definitions[name] for name in sorted(names)}
        return _CheckedSet(names, definitions, dropped, self.lost & names)


def usable_schemas(plans: Iterable[Arguments], definitions: Definitions) -> list[UsableSchema]:
    """Return the schema of the arguments of each tool, with its `$defs`.

    Equal sets of definitions are one object for all tools. Not to be changed.
    """
    plans = list(plans)
    closures = [definitions.closure(plan.definitions) for plan in plans]
    known = _known_sets(closures, definitions)
    usable: list[UsableSchema] = []
    wide = 0
    for plan, names in zip(plans, closures, strict=True):
        if _references(plan.schema) > _MAX_REFERENCES:
            wide += 1
            usable.append(_read_together(plan, names, definitions, wide))
        else:
            usable.append(_read_apart(plan, known[names]))
    return usable


def _read_apart(plan: Arguments, checked: _CheckedSet) -> UsableSchema:
    """Return the schema of a tool: its own part is read with a stub for each definition."""
    if not checked.names:
        return usable_schema(plan.schema)
    stubs = {name: _LOST if name in checked.lost else {} for name in sorted(plan.definitions)}
    own = usable_schema({**plan.schema, "$defs": stubs})
    lines = (line for line in own.dropped if not _name_in(line))
    schema = {**own.schema, "$defs": checked.definitions}
    return UsableSchema(schema, (*lines, *checked.dropped))


def _read_together(
    plan: Arguments, names: frozenset[str], definitions: Definitions, number: int
) -> UsableSchema:
    """Return the schema of a tool whose own part could apply costly definitions too often."""
    if number > _MAX_ANEW:
        text = f"/: more than {_MAX_ANEW} schemas of the description apply many others at one place"
        return UsableSchema({"type": "object"}, (text,))
    written = {name: definitions.definition(name) for name in sorted(names)}
    return usable_schema({**plan.schema, "$defs": written})


def _known_sets(
    closures: Iterable[frozenset[str]], definitions: Definitions
) -> dict[frozenset[str], _CheckedSet]:
    """Check the definitions of each tool: those of many tools together.

    What a set loses together with others it may keep alone, so it is read once more, while that
    does not take too long. The order is that of the description: replicas have equal schemas.
    """
    ordered = sorted(dict.fromkeys(closures), key=len, reverse=True)
    sizes: dict[str, int] = {}
    groups: list[set[str]] = []
    left = 0
    for names in ordered:
        for name in names - sizes.keys():
            sizes[name] = _parts(definitions.definition(name))
        if any(names <= group for group in groups):
            continue
        size = sum(sizes[name] for name in names)
        added = sum(sizes[name] for name in names.difference(*groups[-1:]))
        if groups and added <= left:
            groups[-1] |= names
            left -= added
        else:
            groups.append(set(names))
            left = max(_MAX_PARTS - size, _MAX_ADDED)
    checked = [_checked(frozenset(group), definitions) for group in groups]
    known: dict[frozenset[str], _CheckedSet] = {}
    anew = 0
    for names in ordered:
        found = next(group for group in checked if names <= group.names)
        known[names] = found.of(names)
        is_small = sum(sizes[name] for name in names) <= _MAX_PARTS
        is_part = names != found.names and is_small
        if known[names].dropped and is_part and anew < _MAX_ANEW:
            anew += 1
            known[names] = _checked(names, definitions)
    return known


def _checked(names: frozenset[str], definitions: Definitions) -> _CheckedSet:
    """Check definitions together."""
    written = {name: definitions.definition(name) for name in sorted(names)}
    if not written:
        return _CheckedSet(names, {}, (), frozenset())
    # As properties, each applies to a value of its own: together they cost no more than apart.
    referred = {name: {"$ref": f"#/$defs/{name}"} for name in written}
    usable = usable_schema({"properties": referred, "$defs": written})
    if not usable.dropped:
        return _CheckedSet(names, written, (), frozenset())
    usable_definitions = usable.schema.get("$defs", {})
    lines = tuple(line for line in usable.dropped if not line.startswith("/properties"))
    lost = {_name_in(line) for line in lines}
    if "" in lost:  # a line about no definition: it may be about any
        lost = set(names)
    users: dict[str, list[str]] = {}
    for name in names:
        for used in definitions.references(name):
            users.setdefault(used, []).append(name)
    waiting = list(lost)
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user not in lost:
                lost.add(user)
                waiting.append(user)
    checked = {name: usable_definitions.get(name, {}) for name in written}
    return _CheckedSet(names, checked, lines, frozenset(lost))


def _references(schema: Any) -> int:
    """Return how many references are applied to one value, at the place with most of them."""
    most = 0
    places = [schema]
    while places:
        count = 0
        waiting = [places.pop()]
        while waiting:
            value = waiting.pop()
            if isinstance(value, list):
                waiting.extend(value)
            elif isinstance(value, dict):
                count += "$ref" in value
                for key, part in value.items():
                    if key in IN_PLACE and not (key in MAPS and isinstance(part, dict)):
                        waiting.append(part)
                    elif key in IN_PLACE:
                        waiting.extend(part.values())
                    elif key in MAPS and isinstance(part, dict):
                        places.extend(part.values())
                    else:
                        places.append(part)
        most = max(most, count)
    return most


def _parts(schema: Any) -> int:
    """Return the number of objects in a schema, of which most are subschemas."""
    count = 0
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            count += 1
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return count


def _name_in(line: str) -> str:
    """Return the name of the definition that a line is about; empty if it is about none."""
    found = _DEFINITION.match(line)
    return found.group(1) if found is not None else ""


_OVERHEAD = 48 * 1024
"""Bytes of a manifest beside its tools: texts of the toolkit, and what is left out."""
_MAX_TAGS = 20
"""They are in one message, and an API may have hundreds."""


class TextLimits(NamedTuple):
    """The most characters of the description of a tool, and of one in its schema."""

    tool: int
    schema: int


# A room takes 1 MiB for a toolkit. Half of what published descriptions have is text; the last level
# keeps about one sentence, because a model chooses by it.
_LEVELS = (
    TextLimits(8_000, 4_000),
    TextLimits(2_000, 500),
    TextLimits(600, 200),
    TextLimits(200, 80),
)


class Draft(NamedTuple):
    """An operation whose tool can be made."""

    operation: Operation
    schema: dict[str, Any]
    make: Callable[[dict[str, Any], TextLimits], Tool]
    """Makes the tool with a schema. Raises `ValueError`."""


class Fitted(NamedTuple):
    """The tools of a toolkit."""

    tools: list[Tool]
    left_out: list[Omission]
    """Operations whose tool no room would take."""
    hint: str
    """What to do about a toolkit that no room takes as a whole; empty if one does."""
    is_cut: bool
    """Whether descriptions were cut, so that a room takes it."""


def fit(drafts: Sequence[Draft]) -> Fitted:
    """Make the tools, and cut long descriptions if they would not fit into a room otherwise.

    If they do not fit then, they keep their descriptions: they can be used in this process.
    """
    measure = _Measure()
    left_out: list[Omission] = []
    levels: list[tuple[Draft, int]] = []
    for draft in drafts:
        try:
            levels.append((draft, _level(draft, measure)))
        except ValueError as error:
            left_out.append(Omission(draft.operation.label, str(error)))
    least = _least_level(levels, measure)
    if least is None:
        sizes = [measure.tool(draft, len(_LEVELS) - 1)[1] for draft, _ in levels]
        hint = choice_of_tags([draft.operation for draft, _ in levels], sizes)
        tools = [measure.tool(draft, level)[0] for draft, level in levels]
        return Fitted(tools, left_out, hint, is_cut=False)
    made = [measure.tool(draft, max(level, least))[0] for draft, level in levels]
    labels = {
        tool.name: draft.operation.label for tool, (draft, _) in zip(made, levels, strict=True)
    }
    tools, refused = fit_tools(made)  # 1 MiB at most: some milliseconds
    left_out.extend(Omission(labels[entry.name], entry.reason) for entry in refused)
    is_cut = any(max(level, least) for _, level in levels)
    return Fitted(tools, left_out, "", is_cut)


def _level(draft: Draft, measure: _Measure) -> int:
    """Return the first level at which a room takes a tool. Raises `ValueError` if none is."""
    for level in range(len(_LEVELS)):
        size = measure.tool(draft, level)[1]
        if size <= MAX_TOOL_BYTES:
            return level
    raise ValueError(f"its definition has {size:,} bytes, and a room takes {MAX_TOOL_BYTES:,}")


def _least_level(levels: Sequence[tuple[Draft, int]], measure: _Measure) -> int | None:
    """Return the first level at which a room takes all tools together; None if none is."""

    def fits(least: int) -> bool:
        size = sum(measure.tool(draft, max(level, least))[1] for draft, level in levels)
        return size <= MAX_MANIFEST_BYTES - _OVERHEAD

    last = len(_LEVELS) - 1
    if fits(0):
        return 0
    if not fits(last):  # asked first: a toolkit that is far too large is not cut in vain
        return None
    return next(level for level in range(1, last + 1) if fits(level))


def choice_of_tags(operations: Iterable[Operation], sizes: Iterable[int] | None = None) -> str:
    """Return how to choose operations, with the number of them by tag, and their bytes."""
    counts = Counter[str]()
    totals = Counter[str]()
    operations = list(operations)
    for operation, size in zip(operations, sizes or [0] * len(operations), strict=True):
        for tag in dict.fromkeys(operation.tags) or ("",):
            counts[tag] += 1
            totals[tag] += size
    ordered = sorted(counts, key=lambda tag: (-totals[tag], -counts[tag], tag))
    shown = [f"{tag[:100] or 'no tag'} {counts[tag]}" for tag in ordered[:_MAX_TAGS]]
    cut = ""
    if sizes:
        cut = ", with their bytes when descriptions are cut"
        kilobytes = [totals[tag] // 1000 for tag in ordered[:_MAX_TAGS]]
        shown = [f"{text} ({kb:,} kB)" for text, kb in zip(shown, kilobytes, strict=True)]
    if len(ordered) > _MAX_TAGS:
        shown.append(f"and {len(ordered) - _MAX_TAGS} tags more")
    return (
        "choose with operations or tags (--operations, --tags); the number of operations by tag"
        f"{cut}: {', '.join(shown)}"
    )


class _Measure:
    """Makes tools with cut descriptions, and measures them; equal definitions once for all."""

    def __init__(self) -> None:
        # By the identity of what is cut, and the level.
        self._tools: dict[tuple[int, int], tuple[Tool, int]] = {}
        self._definitions: dict[tuple[int, int], tuple[dict[str, Any], int]] = {}
        self._sets: dict[tuple[int, int], tuple[dict[str, Any], int]] = {}

    def tool(self, draft: Draft, level: int) -> tuple[Tool, int]:
        """Return the tool of a draft with the descriptions of a level, and its packed bytes.

        Raises `ValueError` if it cannot be made or packed.
        """
        key = id(draft), level
        if key not in self._tools:
            own = {name: part for name, part in draft.schema.items() if name != "$defs"}
            if level:
                own = with_short_texts(own, _LEVELS[level].schema)
            schema = own
            size = 0
            if "$defs" in draft.schema:
                definitions, size = self._set(draft.schema["$defs"], level)
                schema = {**own, "$defs": definitions}
            tool = draft.make(schema, _LEVELS[level])
            # With their defaults, as readers get them, and the names once more beside them.
            fields = tool.manifest().model_dump(mode="json", exclude={"input_schema"})
            size += len(pack_body({**fields, "input_schema": own})) + len(pack_body(tool.name))
            self._tools[key] = tool, size
        return self._tools[key]

    def _set(self, definitions: dict[str, Any], level: int) -> tuple[dict[str, Any], int]:
        """Return definitions with the descriptions of a level, and their bytes."""
        key = id(definitions), level
        if key not in self._sets:
            cut: dict[str, tuple[dict[str, Any], int]] = {}
            for name, definition in definitions.items():
                own_key = id(definition), level
                if own_key not in self._definitions:
                    if level:
                        definition = with_short_texts(definition, _LEVELS[level].schema)
                    self._definitions[own_key] = definition, len(pack_body(definition))
                cut[name] = self._definitions[own_key]
            size = sum(len(name) + 2 + part[1] for name, part in cut.items())
            self._sets[key] = ({name: part[0] for name, part in cut.items()}, size + 16)
            if not level:
                self._sets[key] = definitions, size + 16
        return self._sets[key]
