"""What the schema of a tool may be for each provider, as its documentation says.

OpenAI: "Structured outputs", "Supported schemas" (July 2025): strict schemas are closed, require
all properties, have at most 5,000 properties, 10 levels, 120,000 characters of names and values,
and 1,000 values in enums; no `allOf`, `not`, `if`, dependencies. `prefixItems` and `oneOf` are
refused too, and siblings of `$ref`. Any schema is an object without a union at its root, and an
array in it has `items`: errors of the API that the issues of many tools cite.

Anthropic: "Structured outputs", "JSON Schema limitations" (2026), and what
`anthropic.lib._parse._transform` sends: closed objects, no recursion, no bounds of numbers and
texts; in a request 20 strict tools with 24 optional parameters and 16 unions. Names of
parameters, at the root alone, are `^[a-zA-Z0-9_.-]{1,64}$`; no union at the root.

Gemini: `GenerateContentConfig.response_json_schema` of `google.genai.types` lists the keywords;
cyclic references stand in optional properties alone, and nothing beside a `$ref`.
`FunctionDeclaration` says how parameters are named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["ANTHROPIC", "GEMINI", "OPENAI", "Dialect", "Rules", "Totals"]

_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"}
)
_BOUNDS = frozenset({"minimum", "maximum"})


class Totals(NamedTuple):
    """What a schema has in all."""

    properties: int
    levels: int
    chars: int
    """Characters of all names, and of all texts in `enum` and `const`."""
    values: int
    """Values in enums."""
    long_enum_chars: int
    """Characters of an enum with more than 250 values, the longest one."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a reduced schema may have."""

    keywords: frozenset[str]
    """Those that are kept, besides types, enums, unions, references, properties and items."""
    formats: frozenset[str]
    is_strict: bool = True
    """Whether objects are closed and each part has a type; else they are as the tool has them."""
    requires_all: bool = False
    """Whether an optional property is written as a required one that takes null."""
    has_recursion: bool = True
    has_optional_cycles: bool = False
    """Whether recursion has to pass an optional property."""
    wraps_references: bool = True
    """Whether a described `$ref` stands in an `anyOf`; else its target is written in its place."""
    has_const: bool = True
    has_prefix_items: bool = False
    most: Totals | None = None
    """None means unlimited."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one provider takes."""

    name: str
    parameter: re.Pattern[str]
    """The names of parameters."""
    strict: Rules | None
    """Of a strict schema; None if it has none."""
    plain: Rules | None
    """Of any other schema; None if it takes all keywords below the root."""


OPENAI = Dialect(
    "OpenAI",
    re.compile(r"[a-zA-Z0-9_.-]{1,64}"),
    strict=Rules(
        keywords=frozenset({"pattern", "format", "minItems", "maxItems", "multipleOf"})
        | frozenset({"exclusiveMinimum", "exclusiveMaximum"})
        | _BOUNDS,
        formats=_FORMATS,
        requires_all=True,
        most=Totals(
            properties=5_000, levels=10, chars=120_000, values=1_000, long_enum_chars=15_000
        ),
    ),
    plain=None,
)
ANTHROPIC = Dialect(
    "Anthropic",
    re.compile(r"[a-zA-Z0-9_.-]{1,64}"),
    strict=Rules(
        keywords=frozenset({"format", "minItems"}),
        formats=_FORMATS | {"uri"},
        has_recursion=False,
        wraps_references=False,
    ),
    plain=None,
)
GEMINI = Dialect(
    "Gemini",
    re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}"),
    strict=None,
    plain=Rules(
        keywords=_BOUNDS | {"minItems", "maxItems"},
        formats=frozenset(),
        is_strict=False,
        has_optional_cycles=True,
        has_const=False,
        has_prefix_items=True,
    ),
)
