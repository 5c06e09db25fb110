"""Estimates what compiling a regular expression costs, from its text alone. Pure.

The estimate is high rather than low: a pattern that is not read exactly, such as one with inline
flags, counts as if all of it were within all of its repeats. An invalid pattern has a cost too.
"""

from __future__ import annotations

import re

__all__ = ["BASE_COST", "pattern_cost"]

BASE_COST = 8.0
"""The cost of the shortest pattern. A unit is about a microsecond on the machine that it was
measured on: one core of a server of 2024."""

# What a token costs once, when it is read, and each time that a repeat copies it.
_UNICODE_CLASS = (300.0, 100.0)
_ESCAPED_CLASS = (28.0, 8.0)
_ESCAPE = (2.0, 4.0)
_ANY = (8.0, 8.0)
_OPENED_CLASS = (3.0, 1.0)
_NEGATED_CLASS = (20.0, 12.0)
_IN_CLASS = (1.0, 0.1)
_LITERAL = (1.0, 0.5)
_WIDE_LITERAL = (2.0, 5.0)
_OPERATOR = (2.0, 7.0)
_ALTERNATIVE = (2.0, 5.0)
_GROUP = (3.0, 2.0)
_FOLDED_CASE = 8.0
# A range of many letters that is read without case: each letter is looked up.
_FOLDED_RANGE = 1_000.0
_WIDE = re.compile(r"[^\x00-\x7f]|\\[xuU]")
_TOKEN = re.compile(
    r"""(?P<property>\\[pP])
    | (?P<classes>\\[dDsSwWbB])
    | (?P<escape>\\.)
    | (?P<repeat>\{\s*(?P<least>\d*)\s*(?:,\s*(?P<most>\d*)\s*)?\})
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
# A class that may begin with a bracket, or a group that may change how the rest is read.
_INEXACT = re.compile(r"\[\^?\]|\(\?(?![:=!<]|P<)")
_MAX_FACTOR = 10_000_000


def pattern_cost(pattern: str) -> float:
    """Estimate the cost of compiling a pattern, in units of about a microsecond.

    It is at least the number of characters. The estimate takes half a microsecond for each.
    """
    reader = _Reader()
    for match in _TOKEN.finditer(pattern):
        reader.read(match)
    if _INEXACT.search(pattern) is None:
        return BASE_COST + reader.parsed + reader.finish()
    copied = reader.written * min(reader.factors, _MAX_FACTOR) * _FOLDED_CASE
    return BASE_COST + reader.parsed + copied + len(_WIDE.findall(pattern)) * _FOLDED_RANGE


class _Reader:
    """Adds up the tokens of one pattern; groups and classes are kept on a stack."""

    def __init__(self) -> None:
        self.parsed = 0.0
        self.written = 0.0
        """What all tokens cost that are written once."""
        self.factors = 1
        """The product of all repeats."""
        self._stack: list[float] = [0.0]
        """What is written so far in each open group or class, the innermost last."""
        self._last = 0.0
        """What the last item has written, which a repeat copies."""
        self._class_depth = 0

    def finish(self) -> float:
        """Return what the whole pattern writes."""
        return sum(self._stack)

    def read(self, match: re.Match[str]) -> None:
        """Add one token."""
        kind, text = match.lastgroup, match[0]
        self.parsed += len(text) - 1
        if kind == "property":
            self._add(_UNICODE_CLASS)
        elif kind == "classes":
            self._add(_ESCAPED_CLASS)
        elif kind == "escape":
            self._add(_ESCAPE)
        elif kind == "other":
            self._read_character(text)
        elif self._class_depth:
            for _ in text:
                self._add(_IN_CLASS)
        else:
            self._repeat(match["least"], match["most"])

    def _read_character(self, text: str) -> None:
        if text == "[":
            self._open(_OPENED_CLASS)
            self._class_depth += 1
        elif text == "]" and self._class_depth:
            self._class_depth -= 1
            self._close()
        elif self._class_depth:
            self._add(_NEGATED_CLASS if text == "^" else _IN_CLASS if text < "\x80" else _ESCAPE)
        elif text == "(":
            self._open(_GROUP)
        elif text == ")":
            self._close()
        elif text in "?*+":
            self._extend(_OPERATOR)
        else:
            self._add(_COSTS.get(text, _LITERAL if text < "\x80" else _WIDE_LITERAL))

    def _add(self, cost: tuple[float, float]) -> None:
        self.parsed += cost[0]
        self.written += cost[1]
        self._stack[-1] += cost[1]
        self._last = cost[1]

    def _extend(self, cost: tuple[float, float]) -> None:
        """Add an operator to the last item, so that a further repeat copies both."""
        last = self._last
        self._add(cost)
        self._last = last + cost[1]

    def _open(self, cost: tuple[float, float]) -> None:
        self.parsed += cost[0]
        self.written += cost[1]
        self._stack.append(cost[1])

    def _close(self) -> None:
        if len(self._stack) > 1:
            self._last = self._stack.pop()
            self._stack[-1] += self._last

    def _repeat(self, least: str, most: str | None) -> None:
        factor = max(1, 1, *(_number(text) for text in (least, most) if text))
        self.factors = min(self.factors * (factor + 1), _MAX_FACTOR)
        copied = self._last * factor
        self._stack[-1] += copied
        self._last += copied
        self._extend(_OPERATOR)


def _number(digits: str) -> int:
    """Read a count; a long one counts as the largest."""
    return min(int(digits[:9]), _MAX_FACTOR) if len(digits) < 9 else _MAX_FACTOR


_COSTS = {".": _ANY, "|": _ALTERNATIVE}
