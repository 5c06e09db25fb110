"""What an agent keeps from one turn to the next, as JSON.

Each toolkit that runs in the agent's process has a dict of its own here, which its tools find as
`context.state`. Nothing is written to a disk: the program stores `to_json()` where it likes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

from toolbus.agents.granted_rules import (
    MAX_GRANTED_RULES,
    GrantedRule,
    GrantedRules,
    granted_rule,
)
from toolbus.agents.seen_definitions import MAX_DEFINITIONS, SeenDefinitions
from toolbus.chunks.json_values import cut, json_pointer, plain_json, shown
from toolbus.errors import InvalidArguments, InvalidResult
from toolbus.untrusted_text import one_line

__all__ = ["AgentState"]

_VERSION = 3
_NAMES: Mapping[int, tuple[str, ...]] = {
    1: ("version", "state", "groups"),
    2: ("version", "state", "groups", "rules", "conversation"),
    3: ("version", "state", "groups", "rules", "conversation", "definitions"),
}
"""The names of each version that is read."""


class AgentState:
    """State that outlives turns: `Turn(room, state=state)`.

    Turns that share one state see each other's changes at once.

    Args:
        state: A dict of JSON values for each toolkit, by the toolkit's name in the turn.
        groups: Whether a group of tools is active, by its name; others are as the turn says.
        rules: What people have granted to the agent; at most 1,000 are kept.
        conversation: The messages of the agent so far, as JSON. Turns do not use it.
        definitions: The definitions of toolkits that a model was shown: owner, issuer, toolkit and
            digest of each; at most 1,000 are kept.
    """

    def __init__(
        self,
        state: Mapping[str, Mapping[str, Any]] | None = None,
        groups: Mapping[str, bool] | None = None,
        rules: Iterable[GrantedRule] = (),
        conversation: Iterable[Any] = (),
        definitions: Iterable[Iterable[str]] = (),
    ) -> None:
        self.state: dict[str, dict[str, Any]] = _dicts({} if state is None else state)
        """The dict of each toolkit that has one."""
        self.groups: dict[str, bool] = _switches({} if groups is None else groups)
        """Whether a group is active, where that was decided in a turn."""
        self.rules: GrantedRules = GrantedRules(rules)
        """What people have granted; each rule says for whom. See `Turn.permissions`."""
        self.conversation: list[Any] = list(conversation)
        """The messages of the agent so far, as JSON."""
        self.definitions: SeenDefinitions = SeenDefinitions(definitions)
        """The definitions that a model was shown; a turn tells which have changed since."""

    def of(self, toolkit: str) -> dict[str, Any]:
        """Return the dict of a toolkit, by its name in the turn; an empty one is made."""
        return self.state.setdefault(toolkit, {})

    def to_json(self) -> str:
        """Return all of it as JSON text, which `from_json` reads.

        Raises `InvalidArguments` with the path of a value that is not JSON.
        """
        written = {
            "version": _VERSION,
            "state": _plain("/state", self.state),
            "groups": _plain("/groups", self.groups),
            "rules": [rule.to_plain() for rule in self.rules],
            "conversation": _plain("/conversation", self.conversation),
            "definitions": self.definitions.to_plain(),
        }
        return json.dumps(written, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Make a state of the text that `to_json` returned, also in an older version.

        Raises `InvalidArguments`, with a path, for text that is not such JSON.
        """
        try:
            read = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise _invalid("", f"not JSON: {cut(str(error))}") from None
        if not isinstance(read, dict):
            raise _invalid("", "must be an object")
        version = read.get("version")
        # JSON has true and 1.0 too, which are equal to 1.
        known = _NAMES.get(version) if type(version) is int else None
        for name in read:
            if name not in (known or _NAMES[_VERSION]):
                raise _invalid(
                    json_pointer([name]), "is not known: a newer toolbus wrote this state"
                )
        if known is None:
            raise _invalid("/version", f"must be 1 to {_VERSION}, not {shown(version)}")
        state = cls(
            read.get("state", {}),
            read.get("groups", {}),
            _granted(read.get("rules", [])),
            _messages(read.get("conversation", [])),
            _definitions(read.get("definitions", [])),
        )
        state.to_json()  # raises for what JSON text can say and no state can hold, such as NaN
        return state

    def __repr__(self) -> str:
        return f"AgentState({', '.join(self.state) or 'empty'})"


def _dicts(state: object) -> dict[str, dict[str, Any]]:
    if not isinstance(state, Mapping):
        raise _invalid("/state", "must be an object with one object for each toolkit")
    for name, values in state.items():
        if not isinstance(name, str):
            raise _invalid("/state", f"{shown(name)} is not the name of a toolkit")
        if not isinstance(values, Mapping):
            raise _invalid(json_pointer(["state", name]), f"must be an object, not {shown(values)}")
    return {name: dict(values) for name, values in state.items()}


def _switches(groups: object) -> dict[str, bool]:
    if not isinstance(groups, Mapping):
        raise _invalid("/groups", "must be an object with a boolean for each group")
    for name, active in groups.items():
        if not isinstance(name, str) or not isinstance(active, bool):
            path = json_pointer(["groups", shown(name) if not isinstance(name, str) else name])
            raise _invalid(path, f"must be a boolean, not {shown(active)}")
    return dict(groups)


def _granted(values: object) -> list[GrantedRule]:
    if not isinstance(values, list) or len(values) > MAX_GRANTED_RULES:
        raise _invalid("/rules", f"must be a list of at most {MAX_GRANTED_RULES} granted rules")
    rules = []
    for index, value in enumerate(values):
        try:
            rules.append(granted_rule(value))
        except ValueError as error:
            raise _invalid(f"/rules/{index}", cut(str(error))) from None
    return rules


def _messages(values: object) -> list[Any]:
    if not isinstance(values, list):
        raise _invalid("/conversation", f"must be a list, not {shown(values)}")
    return values


def _definitions(values: object) -> list[Any]:
    if not isinstance(values, list) or len(values) > MAX_DEFINITIONS:
        raise _invalid("/definitions", f"must be a list of at most {MAX_DEFINITIONS} definitions")
    for index, value in enumerate(values):
        try:
            SeenDefinitions([value])
        except ValueError as error:
            raise _invalid(f"/definitions/{index}", str(error)) from None
    return values


def _plain(path: str, values: Mapping[str, Any] | list[Any]) -> Any:
    try:
        return plain_json(values)
    except InvalidResult as error:
        path += str(error.details.get("path", ""))
        raise _invalid(path, str(error.details.get("message", error.message))) from None


def _invalid(path: str, message: str) -> InvalidArguments:
    text = f"the state of the agent cannot be used: {one_line(path) or 'it'}: {message}"
    return InvalidArguments(text, details={"path": path, "message": message})
