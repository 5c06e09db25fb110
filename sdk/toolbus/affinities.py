"""Which tools keep the calls with one value of an argument at one host, and how a call says so.

The server reads no arguments, so the caller makes a short text of the one that counts. A caller
learns of it from the server's refusal of its first call, which ran nothing, and remembers it.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from toolbus.errors import InvalidArguments, RoomException
from toolbus.retries import Plan, ToolkitKey
from toolbus.wire import BadBody, unpack_body

__all__ = ["Affinities", "affinity_text"]

_MAX_KNOWN = 1_024


class Affinities:
    """The arguments that count, by toolkit and tool, as far as one participant knows them."""

    def __init__(self) -> None:
        self.known: dict[tuple[ToolkitKey, str], str] = {}
        """By toolkit and tool, the argument that counts."""

    def learn(self, plan: Plan, error: RoomException) -> bool:
        """Note what a refusal says of a tool; return whether the call is worth making again."""
        details = error.details
        if not isinstance(error, InvalidArguments) or details.get("path") != "/affinity":
            return False
        argument = details.get("argument")
        if not isinstance(argument, str):
            return False
        if len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        self.known[plan.key, plan.tool] = argument
        return True

    def added_to(self, options: dict[str, Any] | None, plan: Plan) -> dict[str, Any] | None:
        """Add what a call says of its argument, if its tool is known to ask for it."""
        argument = self.known.get((plan.key, plan.tool))
        if argument is None:
            return options
        return {**(options or {}), "affinity": affinity_text(plan.arguments, argument)}


def affinity_text(arguments: bytes, argument: str) -> str:
    """Make 32 characters of an argument's value, the same for a value that JSON writes the same.

    The order of an object's keys does not matter; 1 and 1.0 are two values.

    Args:
        arguments: All arguments, packed.
        argument: The name of the one that counts; one that is missing counts as null.
    """
    try:
        values = unpack_body(arguments)
    except BadBody:
        values = None  # the host says what is wrong with them
    value = values.get(argument) if isinstance(values, dict) else None
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()
