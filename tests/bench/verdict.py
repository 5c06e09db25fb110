"""The promises: which figures of a run must hold, and whether they do."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.legs import (
    ALONE,
    APIS,
    DOWN,
    IN_FLIGHT,
    LOOP,
    MADE,
    RECORDED,
    REVISIONS,
    ROUNDS,
    SEARCHES,
    SPANS_PER_CALL,
    STARTS,
    TASK_TOOLS,
    UP,
    Load,
)
from bench.rounds import IDLE, Part, Results, Round, whole

CLOSE = 0.1
"""By what share of its must a row may be missed to be measured again."""
P50, RATE, ABOVE, MS, CPU = "p50", "rate", "above", "ms", "cpu"
"""Ratios of medians or of rates; by how much one median is above the other, in medians of `LOOP`;
a median, which depends on the machine and is only reported; or a ratio of processor time."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure that is promised or reported.

    Without a must it is only reported. A judged row that was not measured is missed.
    """

    group: str
    must: float | None
    aim: float | None
    load: Load | None = None
    """None: the memory of an idle participant."""
    contender: str = ""
    against: str = ""
    """Empty for a median, which is compared with nothing."""
    figure: str = RATE

    @property
    def title(self) -> str:
        if self.load is None:
            return "server memory for each idle participant, KiB"
        if self.figure == ABOVE:
            text = f"({self.contender} - {self.against}) / {LOOP.name}"
            return f"{text}: {self.load.name}, p50"
        if self.figure == MS:
            return f"{self.contender}: {self.load.name}, p50"
        figure = {P50: "p50", CPU: "processor time"}.get(self.figure, self.load.unit)
        return f"{self.contender} / {self.against}: {self.load.name}, {figure}"

    @property
    def unit(self) -> str:
        if self.load is None:
            return " KiB"
        return " ms" if self.figure == MS else "x"

    @property
    def is_less_better(self) -> bool:
        return self.load is None or self.figure != RATE

    def values(self, results: Results, *, by_cpu: bool = False) -> list[float]:
        """Return one value for each round in which it was measured."""
        if self.load is None:
            return [] if by_cpu else [idle.memory_kib for idle in results.idle]
        needed = {self.contender, self.against} - {""}
        if self.figure == ABOVE:
            needed.add(LOOP.name)
        rounds = results.rounds.get((self.group, self.load.name), ())
        ratio = self._cpu_ratio if by_cpu else self._ratio
        return [ratio(each) for each in rounds if needed <= each.keys()]

    def value(self, results: Results, *, by_cpu: bool = False) -> float | None:
        """Return the median over the rounds; None if it was not measured."""
        values = self.values(results, by_cpu=by_cpu)
        return statistics.median(values) if values else None

    def _ratio(self, round_: Round) -> float:
        """Return the median over pairs of parts measured next to each other."""
        if self.figure == MS:
            return statistics.median(part.p50_us for part in round_[self.contender]) / 1e3
        if self.figure == CPU:
            return self._cpu_ratio(round_)
        pairs = zip(round_[self.contender], round_[self.against], strict=True)
        if self.figure == ABOVE:
            above = statistics.median(one.p50_us - other.p50_us for one, other in pairs)
            return above / whole(round_[LOOP.name]).p50_us
        return statistics.median(self._number(one) / self._number(other) for one, other in pairs)

    def _number(self, part: Part) -> float:
        return part.p50_us if self.figure == P50 else part.per_s

    def _cpu_ratio(self, round_: Round) -> float:
        # Of all parts together: the system counts processor time in steps of 10 ms.
        if self.figure == MS:
            return whole(round_[self.contender]).total_cpu_us / 1e3
        one, other = whole(round_[self.contender]), whole(round_[self.against])
        if self.figure == ABOVE:
            return (one.total_cpu_us - other.total_cpu_us) / whole(round_[LOOP.name]).total_cpu_us
        if self.figure in (P50, CPU):
            return one.total_cpu_us / other.total_cpu_us
        return one.per_s_by_cpu / other.per_s_by_cpu

    def meets(self, value: float, bound: float) -> bool:
        return value <= bound if self.is_less_better else value >= bound

    def is_missed(self, results: Results) -> bool:
        """Whether its must does not hold, or nobody knows because it was not measured."""
        if self.must is None:
            return False
        value = self.value(results)
        return value is None or not self.meets(value, self.must)

    def is_close(self, results: Results) -> bool:
        """Whether it is missed, but by so little that more rounds may decide otherwise."""
        value = self.value(results)
        if self.must is None or value is None or not self.is_missed(results):
            return False
        return abs(value / self.must - 1) <= CLOSE

    def verdict(self, results: Results) -> str:
        value = self.value(results)
        if value is None:
            return "reported: not measured" if self.must is None else "MISSED: not measured"
        if self.must is None:
            return "reported"
        if self.is_missed(results):
            return "MISSED"
        return "met" if self.aim is None or not self.meets(value, self.aim) else "aim met"


def _toolbus(
    group: str, against: str, load: Load, figure: str, must: float | None, aim: float | None
) -> Row:
    return Row(group, must, aim, load, "toolbus", against, figure)


def _in_loops(group: str, must: float, aim: float, load: Load, contender: str) -> Row:
    """Return a row of what nothing else does: its unit is the fixed loop, of 1 ms or so."""
    return Row(group, must, aim, load, contender, LOOP.name, P50)


def _doors(revision: str, load: Load, cpu: float, rate: float) -> tuple[Row, Row]:
    """Return the rows of one revision: the processor time of the doors alone, and the rates."""
    doors = f"gateway, {revision}", f"FastMCP, {revision}"
    return Row("gateway", cpu, None, load, *doors, CPU), Row("gateway", rate, None, load, *doors)


ROWS = (
    _toolbus("calls", "relay", ALONE, P50, 1.15, 1.0),
    _toolbus("calls", "relay", IN_FLIGHT, RATE, 1.3, 1.7),
    _toolbus("calls", "nats", ALONE, RATE, 1.5, 2.0),
    _toolbus("calls", "nats", IN_FLIGHT, RATE, 1.2, 1.7),
    Row("traced", 0.85, 0.95, RECORDED, "1% recorded", "none recorded"),
    _toolbus("file", "relay", DOWN, RATE, 0.9, 1.2),
    _toolbus("file", "relay", UP, RATE, 0.9, 1.2),
    Row("local", 0.06, 0.04, ALONE, "three middlewares and records", "function", ABOVE),
    Row("local", None, None, ALONE, "tool", "function", ABOVE),
    Row("permissions", 0.02, 0.01, ALONE, "a decision with 100 rules", "no decision", ABOVE),
    Row("permissions", 1.0, 0.02, ALONE, "with 10,000 rules", "no decision", ABOVE),
    _in_loops("turns", 20.0, 10.0, ALONE, "turn over 10 toolkits of 20 tools"),
    Row("turns", None, None, ALONE, "turn over 200 toolkits of 1 tool", figure=MS),
    *(_in_loops("models", 5.0, 2.0, ROUNDS, f"200 definitions of {api}") for api in APIS),
    *(Row("models", 1.0, 0.5, ROUNDS, f"a reply of {api}", "its uses", ABOVE) for api in APIS),
    _in_loops("tool_search", 5.0, 2.5, ROUNDS, "a search over 1,000 tools"),
    _in_loops("tool_search", 20.0, 10.0, ROUNDS, "a search over 10,000 tools"),
    Row("agents", 1.0, 0.5, ROUNDS, "a step of an agent", "its call", ABOVE),
    Row("imports", 1.7, 1.5, STARTS, "four names", "their libraries", P50),
    Row("imports", None, None, STARTS, "four names", figure=MS),
    Row("imports", 35.0, 25.0, STARTS, "`toolbus call`", "`python -c pass`", P50),
    Row("imports", None, None, STARTS, "`toolbus call`", figure=MS),
    Row("mcp", 1.3, 1.15, ALONE, "MCP through a room", "MCP client alone", P50),
    Row("mcp", None, None, IN_FLIGHT, "MCP through a room", "MCP client alone"),
    *(
        row
        for revision, cpu, rate in zip(REVISIONS, (0.6, 0.8), (1.5, 1.2), strict=True)
        for load in (ALONE, IN_FLIGHT)
        for row in _doors(revision, load, cpu, rate)
    ),
    _in_loops("openapi", 2_000.0, 1_000.0, MADE, "1,000 operations in JSON"),
    _in_loops("openapi", 2_000.0, 1_000.0, MADE, "1,000 operations in YAML"),
    _in_loops("openapi", 2_000.0, 1_000.0, MADE, "1,000 operations with recursive schemas"),
    _in_loops("shell", 0.5, 0.25, ALONE, "a decision about a line"),
    Row("shell", 5.0, 2.5, ALONE, "`true` by a shell", "by bash alone", ABOVE),
    _in_loops("shell", 200.0, 100.0, ALONE, "the end of a tree"),
    *(
        Row("files", 1.3, 1.1, SEARCHES, f"grep of a {text}", f"rg of a {text}", P50)
        for text in ("rare text", "common text", "text that is nowhere")
    ),
    Row("files", 3.0, 1.5, SEARCHES, "a read of 100 KiB", "a plain read", ABOVE),
    Row("files", 3.0, 1.5, SEARCHES, "an edit of 100 KiB", "a plain read and write", ABOVE),
    Row(
        "files", 1.7, 1.2, SEARCHES, "a glob over 10,000 files", "rg of a text that is nowhere", P50
    ),
    *(_in_loops("workspace", 0.3, 0.15, ROUNDS, f"tasks.{name}") for name in TASK_TOOLS),
    *(_in_loops("workspace", 3.0, 1.5, ROUNDS, f"hosted tasks.{name}") for name in TASK_TOOLS),
    _in_loops("workspace", 20.0, 10.0, ROUNDS, "a search for words of 1,000 notes"),
    _in_loops("workspace", 100.0, 20.0, ROUNDS, "a search for a word of 100,000 notes"),
    _in_loops("workspace", 10.0, 5.0, ROUNDS, "code in an interpreter that stays"),
    Row("workspace", 80.0, 40.0, ROUNDS, "code in a fresh interpreter", "`python -c pass`", ABOVE),
    _in_loops("workspace", 20.0, 2.0, ROUNDS, "a hover"),
    Row("workspace", None, None, ROUNDS, "a hover by pyright", figure=MS),
    Row("toolkits", 1.1, 1.0, ALONE, "toolbus-10000", "toolbus-10", P50),
    Row("holds", 1.1, 1.0, ALONE, "calls beside 1,000 that wait", "calls beside none", P50),
    _in_loops("holds", 5.0, 2.5, ALONE, "an approval until the result"),
    Row(IDLE, 24.0, 18.0),
    Row("nodes", 4.0, 3.0, ALONE, "between", "within", P50),
    Row("nodes", 0.35, 0.5, IN_FLIGHT, "between", "within"),
    _toolbus("calls", "own-relay", ALONE, P50, None, None),
    _toolbus("calls", "own-relay", IN_FLIGHT, RATE, None, None),
    _toolbus("rivals", "crossbar", ALONE, RATE, None, None),
    _toolbus("rivals", "crossbar", IN_FLIGHT, RATE, None, None),
    _toolbus("rivals", "fastmcp", ALONE, RATE, None, None),
    _toolbus("rivals", "fastmcp", IN_FLIGHT, RATE, None, None),
)
"""The musts and aims are those of docs/internals/bench.md."""


def rows_of(groups: Sequence[str], *, is_judged_only: bool) -> list[Row]:
    """Return the rows of these groups."""
    return [
        row for row in ROWS if row.group in groups and not (is_judged_only and row.must is None)
    ]


def missed(rows: Sequence[Row], results: Results) -> list[Row]:
    """Return the judged rows whose must does not hold."""
    return [row for row in rows if row.is_missed(results)]


def span_cpu_us(results: Results) -> float | None:
    """Return the processor time of one recorded and exported span; None if not measured."""
    costs = []
    for round_ in results.rounds.get(("spans", ALONE.name), ()):
        recorded, plain = whole(round_["100% recorded"]), whole(round_["none recorded"])
        costs.append((recorded.total_cpu_us - plain.total_cpu_us) / SPANS_PER_CALL)
    return statistics.median(costs) if costs else None
