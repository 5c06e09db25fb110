"""Builds one tree per trace from its spans: as lines for a terminal or as plain values for JSON.

Pure: no clock, no I/O. Spans are untrusted input: text is escaped and truncated before it is
printed, parents may be missing, and parent links may form cycles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from toolbus.telemetry.attributes import (
    ATTEMPT,
    ERROR_TYPE,
    EXECUTED,
    GEN_AI_USAGE_INPUT_TOKENS,
    GEN_AI_USAGE_OUTPUT_TOKENS,
    HOLD_BY,
    HOLD_OUTCOME,
    REFUSALS,
    RPC_SYSTEM_NAME,
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SYSTEM,
)
from toolbus.untrusted_text import one_line

__all__ = [
    "PartName",
    "SpanLink",
    "SpanNode",
    "SpanRecord",
    "TraceTree",
    "as_json",
    "build_tree",
    "draw_lines",
    "render_lines",
]

SpanKindName: TypeAlias = Literal["?", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
"""In the order of their numbers in OTLP."""
PartName: TypeAlias = Literal["caller", "server", "host", "local", "hold"]
"""Who reports a line of `toolbus call --trace`, which receives no spans."""

_MAX_TEXT_CHARS = 60
"""Of one column: several stand side by side in a terminal."""
_MAX_DEPTH_SHOWN = 24
"""Each level moves a line to the right, and all levels above a span are held for it."""
_NUMBERS = {
    "input": GEN_AI_USAGE_INPUT_TOKENS,
    "output": GEN_AI_USAGE_OUTPUT_TOKENS,
    "attempt": ATTEMPT,
    "refusals": REFUSALS,
}
"""What a line calls the numbers of a span: tokens of a request to a model, attempts of a call."""
_BAR_CHARS = 20
"""The bars of all spans of a trace are equally wide: they show when each one ran."""


class SpanLink(NamedTuple):
    """A span that another span links to without being its child."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One ended span as plain values, as a process reported it."""

    name: str
    kind: SpanKindName | PartName
    trace_id: str
    """32 hex digits."""
    span_id: str
    """16 hex digits."""
    parent_id: str | None
    start_ns: int
    """Nanoseconds since 1970 by the clock of the process that recorded the span."""
    end_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    resource: Mapping[str, Any] = field(default_factory=dict)
    status: Literal["UNSET", "OK", "ERROR"] = "UNSET"
    status_message: str = ""
    links: tuple[SpanLink, ...] = ()
    known: Literal["times", "duration", "nothing"] = "times"
    """What is known of when it ran; start and end are else for the order among its siblings."""
    is_rounded: bool = False
    """Whether its duration is in whole milliseconds, by a clock that counts them."""

    @property
    def duration_ms(self) -> float:
        """How long it took; never negative."""
        return max(0, self.end_ns - self.start_ns) / 1e6

    @property
    def service(self) -> str:
        """`service.name` and the first eight characters of `service.instance.id`."""
        name = str(self.resource.get(SERVICE_NAME, "?"))
        instance = str(self.resource.get(SERVICE_INSTANCE_ID, ""))[:8]
        return f"{name}[{instance}]" if instance else name


class SpanNode(NamedTuple):
    """A span and its position in the tree."""

    span: SpanRecord
    depth: int
    is_last: tuple[bool, ...]
    """For each level from the top: whether it is the last there."""
    orphan: bool
    """Whether it names a parent that is not among the spans, or is its own ancestor."""


@dataclass(frozen=True, slots=True)
class TraceTree:
    """The spans of one trace in the order of the tree, top to bottom."""

    trace_id: str
    nodes: tuple[SpanNode, ...]
    start_ns: int
    """When the first span started."""
    end_ns: int
    """When the last span ended."""

    @property
    def root(self) -> SpanRecord | None:
        """The first span that has no parent; None if it has not been received."""
        tops = [node.span for node in self.nodes[:1]]
        return next((span for span in tops if span.parent_id is None), None)

    @property
    def duration_ms(self) -> float:
        """From the first start to the last end."""
        return max(0, self.end_ns - self.start_ns) / 1e6

    @property
    def whole(self) -> bool:
        """Whether no more spans are expected.

        There is a root and no orphan, and every hop of a call that ran has a child.
        """
        parents = {node.span.parent_id for node in self.nodes}
        return self.root is not None and not any(
            node.orphan or (_expects_child(node.span) and node.span.span_id not in parents)
            for node in self.nodes
        )


def _expects_child(span: SpanRecord) -> bool:
    return (
        span.kind in ("CLIENT", "SERVER")
        and span.attributes.get(RPC_SYSTEM_NAME) == SYSTEM
        and span.attributes.get(EXECUTED) == "yes"
    )


def build_tree(spans: Iterable[SpanRecord]) -> TraceTree:
    """Order the spans of one trace; of two with one id the later one counts.

    Roots come first, then spans whose parent is missing, then cycles, each from its earliest span.
    """
    by_id = {span.span_id: span for span in sorted(spans, key=lambda span: span.start_ns)}
    children: dict[str, list[SpanRecord]] = {}
    tops: list[SpanRecord] = []
    for span in by_id.values():
        if span.parent_id is not None and span.parent_id in by_id:
            children.setdefault(span.parent_id, []).append(span)
        else:
            tops.append(span)
    tops.sort(key=lambda span: span.parent_id is not None)
    seen: set[str] = set()
    nodes: list[SpanNode] = []
    for top in tops:
        nodes.extend(_walk(top, children, seen, orphan=top.parent_id is not None))
    for span in by_id.values():
        if span.span_id not in seen:
            nodes.extend(_walk(span, children, seen, orphan=True))
    timed = [node.span for node in nodes if node.span.known == "times"]
    return TraceTree(
        trace_id=nodes[0].span.trace_id if nodes else "",
        nodes=tuple(nodes),
        start_ns=min((span.start_ns for span in timed), default=0),
        end_ns=max((span.end_ns for span in timed), default=0),
    )


def _walk(
    top: SpanRecord, children: Mapping[str, Sequence[SpanRecord]], seen: set[str], *, orphan: bool
) -> Iterator[SpanNode]:
    """Walk down from one span with an explicit stack: a chain may be deeper than Python's."""
    stack = [SpanNode(top, 0, (), orphan)]
    while stack:
        node = stack.pop()
        if node.span.span_id in seen:
            continue
        seen.add(node.span.span_id)
        yield node
        below = [span for span in children.get(node.span.span_id, ()) if span.span_id not in seen]
        is_last = node.is_last[:_MAX_DEPTH_SHOWN]
        for index, span in reversed(list(enumerate(below))):
            last = index == len(below) - 1
            stack.append(SpanNode(span, node.depth + 1, (*is_last, last), False))


def render_lines(tree: TraceTree) -> list[str]:
    """Return a title with the number of spans, and the lines of the tree."""
    count = len(tree.nodes)
    spans = "1 span" if count == 1 else f"{count} spans"
    return [f"trace {tree.trace_id}  {tree.duration_ms:.2f} ms  {spans}", *draw_lines(tree)]


def draw_lines(tree: TraceTree) -> list[str]:
    """Draw a tree: name, kind, service, duration, position in time, whether it ran, its error."""
    rows = [_row(node, tree) for node in tree.nodes]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines = []
    for node, row in zip(tree.nodes, rows, strict=True):
        if node.orphan and node.depth == 0:
            lines.append("  (parent not received)")
        name, kind, service, duration, bar, outcome = row
        cells = (
            name.ljust(widths[0]),
            kind.ljust(widths[1]),
            service.ljust(widths[2]),
            duration.rjust(widths[3]),
            bar,
            outcome,
        )
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


def _row(node: SpanNode, tree: TraceTree) -> tuple[str, ...]:
    span = node.span
    return (
        _branches(node) + one_line(span.name, _MAX_TEXT_CHARS),
        span.kind,
        one_line(span.service, _MAX_TEXT_CHARS),
        _duration(span),
        f"|{_bar(span, tree)}|" if span.known == "times" else " " * (_BAR_CHARS + 2),
        _outcome(span),
    )


def _duration(span: SpanRecord) -> str:
    if span.known == "nothing":
        return "-"
    return f"~{span.duration_ms:.0f} ms" if span.is_rounded else f"{span.duration_ms:.2f} ms"


def _branches(node: SpanNode) -> str:
    if not node.is_last:
        return ""
    more = "… " if node.depth > len(node.is_last) else ""
    outer = "".join("   " if last else "│  " for last in node.is_last[:-1])
    return outer + ("└─ " if node.is_last[-1] else "├─ ") + more


def _bar(span: SpanRecord, tree: TraceTree) -> str:
    """Draw when a span ran within the trace; with another machine's clock it may be outside."""
    total_ns = max(1, tree.end_ns - tree.start_ns)
    start = _column((span.start_ns - tree.start_ns) / total_ns, _BAR_CHARS - 1)
    end = max(start + 1, _column((span.end_ns - tree.start_ns) / total_ns, _BAR_CHARS))
    return (" " * start + "━" * (end - start)).ljust(_BAR_CHARS)


def _column(share: float, last: int) -> int:
    return min(last, max(0, round(share * _BAR_CHARS)))


def _outcome(span: SpanRecord) -> str:
    parts = []
    if EXECUTED in span.attributes:
        parts.append(f"executed={one_line(str(span.attributes[EXECUTED]), 8)}")
    for name, number in _NUMBERS.items():
        if number in span.attributes:
            parts.append(f"{name}={one_line(str(span.attributes[number]), 12)}")
    for name, text in (("outcome", HOLD_OUTCOME), ("by", HOLD_BY)):
        if text in span.attributes:
            parts.append(f"{name}={one_line(str(span.attributes[text]), 40)}")
    if ERROR_TYPE in span.attributes:
        parts.append(f"error={one_line(str(span.attributes[ERROR_TYPE]), 40)}")
    elif span.status == "ERROR":
        parts.append("error")
    if span.status_message:
        parts.append(f'"{one_line(span.status_message, _MAX_TEXT_CHARS)}"')
    if span.links:
        parts.append(f"link={span.links[0].trace_id}")
    return "  ".join(parts)


def as_json(tree: TraceTree) -> dict[str, Any]:
    """Return a tree as JSON values: its spans in the order of the tree, each with its depth.

    A flat list, because a nested one can be deeper than a JSON reader follows.
    """
    return {
        "trace_id": tree.trace_id,
        "whole": tree.whole,
        "start_ns": tree.start_ns,
        "duration_ms": tree.duration_ms,
        "spans": [_span_as_json(node) for node in tree.nodes],
    }


def _span_as_json(node: SpanNode) -> dict[str, Any]:
    span = node.span
    return {
        "depth": node.depth,
        "parent_seen": not node.orphan,
        "name": span.name,
        "kind": span.kind,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "service": span.service,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "duration_ms": span.duration_ms,
        "status": span.status,
        "status_message": span.status_message,
        "attributes": _json_value(span.attributes),
        "resource": _json_value(span.resource),
        "links": [link._asdict() for link in span.links],
    }


def _json_value(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {str(key): _json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_json_value(item) for item in value]
        case bytes():
            return value.hex()
        case _:
            return value
