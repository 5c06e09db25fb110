"""How many tokens a request and its reply had, as the provider counts them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from toolbus.models.reply_values import as_object

__all__ = ["BYTES_PER_TOKEN", "TokenUsage", "count_of", "counts_in", "estimated_tokens"]

BYTES_PER_TOKEN = 4
"""Of English text and JSON, roughly. Pictures in Base64 have far fewer tokens than this says."""


class TokenUsage(NamedTuple):
    """Tokens of one request and its reply; 0 where a provider says nothing."""

    input: int
    """Of the request, those from the provider's cache too."""
    output: int
    """Of the reply, thoughts included."""


def count_of(counts: Mapping[str, Any], *names: str) -> int:
    """Return the sum of some counts of a reply; what is no count is 0."""
    if not counts:
        return 0
    found = (counts.get(name) for name in names)
    return sum(count for count in found if type(count) is int and count > 0)


def counts_in(reported: Mapping[str, Any], field: str, within: str = "") -> Mapping[str, Any]:
    """Return the counts of a reply or an event; empty if it tells none, as most events do.

    In some events the field with the counts is in another field, `within`.
    """
    counts = reported.get(field)
    if counts is None:
        counts = as_object(reported.get(within)).get(field)
    return as_object(counts)


def estimated_tokens(value: Any) -> int:
    """Return about how many tokens a value has that goes over the network as JSON: bytes / 4."""
    try:
        size = len(msgspec.json.encode(value, enc_hook=str))
    except ValueError:  # lone surrogates
        size = len(json.dumps(value, default=str))
    except RecursionError:  # nested so deeply that nobody can send it
        size = 0
    return -(-size // BYTES_PER_TOKEN)
