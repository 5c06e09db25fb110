"""Which regular expressions of somebody else's schema are checked here, and what they cost.

ECMA 262, which JSON Schema names, has look-around and back-references; the engine here, which takes
linear time for any text, has not.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import jsonschema_rs

__all__ = ["PatternCost", "compiles", "least_cost", "pattern_cost"]

# The size of a compiled pattern is counted here, by what jsonschema-rs 0.60 makes of each token:
# which patterns are checked must not depend on how much smaller a later release makes some of them.
_TOKEN_BYTES = 160
_CHAR_BYTES = 12
_NOT_ASCII_BYTES = 400
_WIDE_BYTES = {
    **{".": 1_344, "[^": 1_100, r"\s": 1_100, r"\S": 2_200, r"\D": 1_100, r"\W": 1_200},
    **{r"\p": 52_000, r"\P": 52_000, r"\u": _NOT_ASCII_BYTES, r"\x": _NOT_ASCII_BYTES},
}
_ANY_CHAR = re.compile(r"\[\\([sdw])\\(?!\1)(?i:\1)\]")
"""A class of characters and its opposite, such as `[\\s\\S]`; it takes what `.` takes."""
_CASELESS_FACTOR = 4
# A subschema takes 28 us; compiling takes 4 to 6 ms for each MiB, and 2 us for each character.
_BYTES_PER_UNIT = 2 * 1024
_CHARS_PER_UNIT = 3
# Matching takes microseconds, except where much may be empty: each character then leads to every
# repeat. A text of 1,000 characters takes up to 0.2 ms for each KiB where a group is repeated or
# eight long repeats follow each other, and 0.02 ms for each of fewer long repeats. With these
# factors all patterns of a schema together take up to 0.1 s for it.
_REPEATED_GROUP = re.compile(r"\)[*+{]|\(\?[a-zA-Z-]*i")
_LONG_REPEAT = re.compile(r"\{[0-9]*,?[0-9]{3}")
_MAX_FACTOR = 8
"""What a repeated group takes, and eight long repeats."""
_MAX_CHARS = 1_024
"""Compiling a longer one takes more than 2 ms of the event loop."""
_TOKENS = re.compile(
    r"""\\(?P<back>[1-9]|k<)
    | (?P<look>\(\?<?[=!])
    | (?P<open>\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?)
    | (?P<close>\))
    | (?P<repeat>\{(?P<least>[0-9]+)(?:,(?P<most>[0-9]*))?\} | [*+?])
    | (?P<one>\[\^?(?:\\.|[^\]\\])*\]? | \\(?:[pP]\{[^}]*\}?|u\{[^}]*\}?|u.{4}|x..|.)? | .)""",
    re.VERBOSE | re.DOTALL,
)
_PIECES = re.compile(r"^\[\^|^\.|\\.|[^\x00-\x7f]", re.DOTALL)
# It reads a pattern by the grammar of ECMA 262, without compiling it, in microseconds.
_SYNTAX = jsonschema_rs.validator_for({"format": "regex"}, validate_formats=True)
_REASONS = {"back": "a back-reference", "look": "look-around"}
# Reading letters without their case takes up to 20 us for each character, unless all are ASCII.
_FLAGS = re.compile(r"\(\?[a-zA-Z-]*i")
_WIDE = re.compile(r"[^\x00-\x7f]|\\[xuUpP]")


class PatternCost(NamedTuple):
    """What compiling and matching a pattern takes, and whether that is too much."""

    units: int
    """In subschemas: so many take as long as the pattern."""
    refusal: str
    """Why it is not checked; empty if it is."""


def least_cost(pattern: str) -> int:
    """Return what judging a pattern costs at least, in units."""
    return 1 + min(len(pattern), _MAX_CHARS) // _CHARS_PER_UNIT


def pattern_cost(pattern: str) -> PatternCost:
    """Return what a pattern costs, without compiling it."""
    least = least_cost(pattern)
    if len(pattern) > _MAX_CHARS:
        return PatternCost(1, f"a pattern of more than {_MAX_CHARS:,} characters is not checked")
    is_caseless = _FLAGS.search(pattern) is not None
    if is_caseless and _WIDE.search(pattern):
        return PatternCost(least, "a pattern without case is checked only if it is ASCII")
    sizes = [0]
    """Bytes of each group that is open, the innermost last."""
    repeated = 0
    """Bytes of what a repeat that follows now repeats."""
    for token in _TOKENS.finditer(pattern):
        match token.lastgroup:
            case "back" | "look" as kind:
                lacking = _REASONS[kind]
                return PatternCost(least, f"a pattern with {lacking} cannot be checked here")
            case "open":
                sizes.append(_TOKEN_BYTES)
                repeated = 0
            case "close" if len(sizes) > 1:
                repeated = sizes.pop()
                sizes[-1] += repeated
            case "repeat":
                times = max(1, int(token["most"] or token["least"] or 1))
                sizes[-1] += repeated * (times - 1)
                repeated *= times
            case _:
                repeated = _token_size(token.group())
                sizes[-1] += repeated
    size = sum(sizes) * (_CASELESS_FACTOR if is_caseless else 1)
    return PatternCost(least + _matching_factor(pattern) * size // _BYTES_PER_UNIT, "")


def _token_size(token: str) -> int:
    """Return how many bytes a character, an escape or a class takes."""
    if _ANY_CHAR.fullmatch(token):
        token = "."
    pieces = _PIECES.findall(token)
    not_ascii = sum(not piece.isascii() for piece in pieces) * _NOT_ASCII_BYTES
    widest = max((_WIDE_BYTES.get(piece, 0) for piece in pieces), default=0)
    negated = _WIDE_BYTES["[^"] if token.startswith("[^") else 0
    return _TOKEN_BYTES + _CHAR_BYTES * len(token) + not_ascii + widest + negated


def _matching_factor(pattern: str) -> int:
    """Return how many times slower than compiling, for its size, matching may be."""
    if _REPEATED_GROUP.search(pattern):
        return _MAX_FACTOR
    return min(max(1, len(_LONG_REPEAT.findall(pattern))), _MAX_FACTOR)


def compiles(pattern: str, units: int) -> bool:
    """Whether a pattern is valid here.

    Args:
        pattern: The pattern.
        units: What it costs. The limit of size is twice as much: it ends the compiling of a pattern
            that the engine reads in another way than `pattern_cost`.
    """
    if not _FLAGS.search(pattern) and not _SYNTAX.is_valid(pattern):
        return False
    try:
        jsonschema_rs.validator_for(
            {"pattern": pattern},
            pattern_options=jsonschema_rs.RegexOptions(size_limit=2 * units * _BYTES_PER_UNIT),
            offline=True,
        )
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True
