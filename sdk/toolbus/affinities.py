"""Which tools keep the calls with one value of an argument at one host, and how a call says so.

The server reads no arguments, so the caller makes a short text of the one that counts. A caller
learns of it from the toolkit's description, or from the server's refusal of its first call, which
ran nothing, and remembers it until it hears of another definition.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from toolbus.errors import InvalidArguments, RoomException
from toolbus.retries import Plan, ToolkitKey
from toolbus.wire import BadBody, unpack_body

__all__ = ["Affinities", "affinity_text"]

_MAX_KNOWN = 1_024
_NO_ARGUMENT = ("none", "caller")


class Affinities:
    """The arguments that count, by toolkit and tool, as far as one participant knows them."""

    def __init__(self) -> None:
        self.known: dict[tuple[ToolkitKey, str], str] = {}
        """By toolkit and tool, the argument that counts."""
        self._digests: dict[ToolkitKey, str] = {}

    def learn(self, plan: Plan, error: RoomException) -> bool:
        """Note what an error says of a tool; return whether the call is worth making again."""
        details = error.details
        if isinstance(details.get("digest"), str):
            self.note_digest(plan.key, details["digest"])
        if not isinstance(error, InvalidArguments) or details.get("path") != "/affinity":
            return False
        argument = details.get("argument")
        if not isinstance(argument, str):
            return False
        self._remember(plan.key, plan.tool, argument)
        return True

    def note(self, key: ToolkitKey, body: Mapping[str, Any]) -> None:
        """Learn of all tools of a toolkit from its description, and forget what was known."""
        self._forget(key)
        self._note_one_more(key, body["toolkit"]["digest"])
        for tool in body["manifest"]["tools"]:
            argument = tool.get("affinity", "none")
            if argument not in _NO_ARGUMENT:
                self._remember(key, tool["name"], argument)

    def note_digest(self, key: ToolkitKey, digest: str) -> None:
        """Forget what was known of a toolkit, unless this is the definition it was known of."""
        if self._digests.get(key) != digest:
            self._forget(key)
        self._note_one_more(key, digest)

    def note_event(self, name: str, owner: str, digest: str) -> None:
        """Take note of a definition that an event tells of; a bare name may mean it too."""
        for key in ((name, None), (name, owner)):
            if key in self._digests:
                self.note_digest(key, digest)

    def _note_one_more(self, key: ToolkitKey, digest: str) -> None:
        if len(self._digests) >= _MAX_KNOWN:
            self._digests.clear()
            self.known.clear()
        self._digests[key] = digest

    def _remember(self, key: ToolkitKey, tool: str, argument: str) -> None:
        if len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        self.known[key, tool] = argument

    def _forget(self, key: ToolkitKey) -> None:
        for each in [each for each in self.known if each[0] == key]:
            del self.known[each]

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
