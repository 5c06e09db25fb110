"""What fits into a room: tools that it would refuse, and toolkits that are too large as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from toolbus import Tool
from toolbus.schemas.text import with_short_texts
from toolbus.tools.omission import Omission, fit_tools
from toolbus.wire import pack_body
from toolbus.wire.manifest import MAX_MANIFEST_BYTES, MAX_TOOL_BYTES
from toolbus_toolkits.openapi.model import Operation

__all__ = ["Draft", "Fitted", "TextLimits", "choice_of_tags", "fit"]

_OVERHEAD = 48 * 1024
"""Bytes of a manifest beside its tools: texts of the toolkit, and what is left out."""
_MAX_TAGS = 20


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
    counts: dict[str, int] = {}
    totals: dict[str, int] = {}
    operations = list(operations)
    for operation, size in zip(operations, sizes or [0] * len(operations), strict=True):
        for tag in dict.fromkeys(operation.tags) or ("",):
            counts[tag] = counts.get(tag, 0) + 1
            totals[tag] = totals.get(tag, 0) + size
    ordered = sorted(counts, key=lambda tag: (-totals[tag], -counts[tag], tag))
    shown = [
        f"{tag[:100] or 'no tag'} {counts[tag]}"
        + (f" ({totals[tag] // 1000:,} kB)" if sizes else "")
        for tag in ordered[:_MAX_TAGS]
    ]
    if len(ordered) > _MAX_TAGS:
        shown.append(f"and {len(ordered) - _MAX_TAGS} tags more")
    cut = ", with their bytes when descriptions are cut" if sizes else ""
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
            cut = {
                name: self._definition(definition, level)
                for name, definition in definitions.items()
            }
            size = sum(len(name) + 2 + part[1] for name, part in cut.items())
            self._sets[key] = ({name: part[0] for name, part in cut.items()}, size + 16)
            if not level:
                self._sets[key] = definitions, size + 16
        return self._sets[key]

    def _definition(self, definition: Any, level: int) -> tuple[dict[str, Any], int]:
        key = id(definition), level
        if key not in self._definitions:
            cut = with_short_texts(definition, _LEVELS[level].schema) if level else definition
            self._definitions[key] = cut, len(pack_body(cut))
        return self._definitions[key]
