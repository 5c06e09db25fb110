"""How many tokens a request and its reply had, as the provider counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["TokenUsage", "count_of"]


class TokenUsage(NamedTuple):
    """Tokens of one request and its reply; 0 where a provider says nothing."""

    input: int
    """Of the request, those from the provider's cache too."""
    output: int
    """Of the reply, thoughts included."""


def count_of(counts: Any, *names: str) -> int:
    """Return the sum of some counts of a reply; what is no count is 0."""
    if not isinstance(counts, Mapping):
        return 0
    found = (counts.get(name) for name in names)
    return sum(each for each in found if type(each) is int and each > 0)
