"""Remembers which tools route calls by the value of an argument, and computes that routing key.

The server does not read arguments, so the caller sends a short text made from the argument's value.
The caller gets the argument's name from the toolkit's description, or from the error with which the
server refuses the first call before it runs, and keeps it until the definition changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from toolbus.client.retry import CallPlan, ToolkitKey
from toolbus.errors import InvalidArguments, RoomException
from toolbus.wire import BadBody, unpack_body

__all__ = ["AffinityCache", "affinity_text"]

_MAX_KNOWN = 1_024
_NO_ARGUMENT = ("none", "caller")


class AffinityCache:
    """The arguments that route calls, by toolkit and tool, as known to one participant."""

    def __init__(self) -> None:
        self.known: dict[tuple[ToolkitKey, str], str] = {}
        """By toolkit and tool, the name of the argument."""
        self._digests: dict[ToolkitKey, str] = {}

    def record_error(self, plan: CallPlan, error: RoomException) -> bool:
        """Record what an error says about a tool; return whether the call can be made again."""
        details = error.details
        if isinstance(details.get("digest"), str):
            self.record_digest(plan.key, details["digest"])
        if not isinstance(error, InvalidArguments) or details.get("path") != "/affinity":
            return False
        argument = details.get("argument")
        if not isinstance(argument, str):
            return False
        self._remember(plan.key, plan.tool, argument)
        return True

    def record_description(self, key: ToolkitKey, body: Mapping[str, Any]) -> None:
        """Replace what is known of a toolkit by its description."""
        self._forget(key)
        self._set_digest(key, body["toolkit"]["digest"])
        for tool in body["manifest"]["tools"]:
            argument = tool.get("affinity", "none")
            if argument not in _NO_ARGUMENT:
                self._remember(key, tool["name"], argument)

    def record_digest(self, key: ToolkitKey, digest: str) -> None:
        """Drop what is known of a toolkit unless it is for this definition."""
        if self._digests.get(key) != digest:
            self._forget(key)
        self._set_digest(key, digest)

    def record_event(self, name: str, owner: str, digest: str) -> None:
        """Record a definition from an event; the bare name may mean the same toolkit."""
        for key in ((name, None), (name, owner)):
            if key in self._digests:
                self.record_digest(key, digest)

    def _set_digest(self, key: ToolkitKey, digest: str) -> None:
        if len(self._digests) >= _MAX_KNOWN:
            self._digests.clear()
            self.known.clear()
        self._digests[key] = digest

    def _remember(self, key: ToolkitKey, tool: str, argument: str) -> None:
        if len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        self.known[key, tool] = argument

    def _forget(self, key: ToolkitKey) -> None:
        for entry in [known for known in self.known if known[0] == key]:
            del self.known[entry]

    def with_affinity(
        self, options: dict[str, Any] | None, plan: CallPlan
    ) -> dict[str, Any] | None:
        """Add the affinity option if the tool is known to need it."""
        argument = self.known.get((plan.key, plan.tool))
        if argument is None:
            return options
        return {**(options or {}), "affinity": affinity_text(plan.arguments, argument)}


def affinity_text(arguments: bytes, argument: str) -> str:
    """Hash an argument's value to 32 characters, equal for values with equal JSON.

    The order of an object's keys does not matter; 1 and 1.0 differ.

    Args:
        arguments: All arguments, packed.
        argument: The argument's name; a missing argument counts as null.
    """
    try:
        values = unpack_body(arguments)
    except BadBody:
        values = None  # the host reports what is wrong with them
    value = values.get(argument) if isinstance(values, dict) else None
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()
