"""What an agent keeps from one turn to the next, as JSON.

Each toolkit that runs in the agent's process has a dict of its own here, which its tools find as
`context.state`. It also says which definitions a model was shown, so that a changed one is noticed.
Nothing is written to a disk: the program stores `to_json()` where it likes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple, Self, TypeVar

from toolbus.chunks.json_values import cut, is_encodable, json_pointer, plain_json, shown
from toolbus.errors import InvalidArguments, InvalidResult
from toolbus.permissions.granted_rules import (
    MAX_GRANTED_RULES,
    GrantedRule,
    GrantedRules,
    granted_rule,
)
from toolbus.tools.tool_info import ToolInfo
from toolbus.turns.parking import ParkedStep
from toolbus.untrusted_text import one_line

__all__ = ["MAX_DEFINITIONS", "AgentState", "DefinitionKey", "SeenDefinitions", "definition_key"]

MAX_DEFINITIONS = 1_000
"""Of a state, which is saved as a whole: tools come and go for as long as an agent lives."""
_MAX_NAME_CHARS = 1_024
"""Of a name in a state that somebody else wrote: issuers may be addresses."""


T = TypeVar("T")
_VERSION = 6
_NAMES: Mapping[int, str] = {
    1: "version state groups",
    2: "version state groups rules conversation",
    3: "version state groups rules conversation definitions",
    4: "version state groups rules definitions adapter questions conversation",
    5: "version state groups rules definitions adapter model questions conversation",
    6: "version state groups rules definitions adapter model questions parked conversation",
}
"""The names of each version that is read."""
_WITHOUT_PARKED = 5
"""What is written of a state without parked uses, so that an older toolbus reads it."""
_BEFORE_MESSAGES = ', "conversation": ['


class DefinitionKey(NamedTuple):
    """A toolkit by whose it is; a definition is one state of it."""

    owner: str
    """The name of the identity that registered it; empty for one of the agent's process."""
    issuer: str
    toolkit: str
    """Its own name."""


def definition_key(tool: ToolInfo) -> DefinitionKey:
    """Return the key of a tool's toolkit."""
    return DefinitionKey(tool.owner, tool.issuer, tool.own_name.partition(".")[0])


class SeenDefinitions:
    """The digest of each toolkit as it was last shown, the one shown longest ago first.

    Beyond 1,000 toolkits, that one is forgotten, and its next definition is taken as a new one.

    Raises `ValueError` for anything else.
    """

    def __init__(self, entries: Iterable[Iterable[str]] = ()) -> None:
        self._digests: dict[DefinitionKey, str] = {}
        for *key, digest in map(_definition, entries):
            self.add(DefinitionKey(*key), digest)

    def get(self, key: DefinitionKey) -> str | None:
        """Return the digest of a toolkit as it was last shown; None if it was not."""
        return self._digests.get(key)

    def add(
        self, key: DefinitionKey, digest: str, shown_with: Collection[DefinitionKey] = ()
    ) -> None:
        """Note that a definition is shown.

        Args:
            key: Its toolkit.
            digest: The definition.
            shown_with: The toolkits of the same turn. None of them is forgotten for this one: else
                others who add toolkits to a room could make an agent forget them.
        """
        self._digests.pop(key, None)
        if len(self._digests) >= MAX_DEFINITIONS:
            oldest = next(iter(self._digests))
            if oldest in shown_with:
                return
            del self._digests[oldest]
        self._digests[key] = digest

    def to_plain(self) -> list[list[str]]:
        """Return the entries as lists of text."""
        return [[*key, digest] for key, digest in self._digests.items()]


def _definition(entry: object) -> Sequence[str]:
    if (
        not isinstance(entry, list | tuple)
        or len(entry) != 4
        or not all(isinstance(text, str) and len(text) <= _MAX_NAME_CHARS for text in entry)
    ):
        raise ValueError("must be a list of owner, issuer, toolkit and digest")
    return entry


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
        adapter: In which adapter's words the conversation is, such as "anthropic"; empty if that is
            not known.
        model: Which model wrote the thoughts in the conversation; empty if that is not known.
        questions: The indices in the conversation at which questions of the user begin, ascending.
        parked: A step of which uses wait for their results.
    """

    def __init__(  # noqa: PLR0913 - a part of the state each
        self,
        state: Mapping[str, Mapping[str, Any]] | None = None,
        groups: Mapping[str, bool] | None = None,
        rules: Iterable[GrantedRule] = (),
        conversation: Iterable[Any] = (),
        definitions: Iterable[Iterable[str]] = (),
        adapter: str = "",
        questions: Sequence[int] = (),
        model: str = "",
        parked: ParkedStep | None = None,
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
        self.adapter: str = _name("adapter", adapter)
        """In which adapter's words the conversation is. No other one can send it."""
        self.model: str = _name("model", model)
        """Which model wrote the thoughts in the conversation. Another one cannot read them."""
        self.questions: list[int] = _indices(questions)
        """Where in the conversation questions of the user begin. Results are messages of the user
        too, in the words of most providers: so messages do not tell where one can cut."""
        self.parked: ParkedStep | None = parked
        """A step of which uses wait, or waited, for their results from outside; usually None."""

    def of(self, toolkit: str) -> dict[str, Any]:
        """Return the dict of a toolkit, by its name in the turn; an empty one is made."""
        return self.state.setdefault(toolkit, {})

    def to_json(self) -> str:
        """Return all of it as JSON text, which `from_json` reads.

        Raises `InvalidArguments` with the path of a value that is not JSON.
        """
        messages = _plain("/conversation", self.conversation)
        return self.json_with([json.dumps(message, ensure_ascii=False) for message in messages])

    def json_with(self, messages: Iterable[str]) -> str:
        """Return what `to_json` does, for messages that are JSON text already.

        A large conversation costs one copy of its texts then. Raises as `to_json`, for all else.
        """
        count = len(self.conversation)
        written = {
            "version": _WITHOUT_PARKED if self.parked is None else _VERSION,
            "state": _plain("/state", self.state),
            "groups": _plain("/groups", self.groups),
            "rules": [rule.to_plain() for rule in self.rules],
            "definitions": self.definitions.to_plain(),
            "adapter": self.adapter,
            "model": self.model,
            # A program may have emptied the conversation and nothing else.
            "questions": [index for index in self.questions if index < count],
        }
        if self.parked is not None:
            written["parked"] = _plain("/parked", self.parked.to_plain())
        begin = json.dumps(written, ensure_ascii=False)[:-1] + _BEFORE_MESSAGES
        texts = list(messages)
        if not texts:
            return begin + "]}"
        # One `join` makes the text: further copies of some MiB would take most of the time.
        texts[0] = begin + texts[0]
        texts[-1] += "]}"
        return ", ".join(texts)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Make a state of the text that `to_json` returned, also in an older version.

        Raises `InvalidArguments`, with a path, for text that is not such JSON.
        """
        try:
            read = _parsed(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise _invalid("", f"not JSON: {cut(str(error))}") from None
        if not isinstance(read, dict):
            raise _invalid("", "must be an object")
        known = _known_names(read.get("version"))
        for name in read:
            if name not in known:
                raise _invalid(
                    json_pointer([name]), "is not known: a newer toolbus wrote this state"
                )
        messages = read.get("conversation", [])
        if not isinstance(messages, list):
            raise _invalid("/conversation", f"must be a list, not {shown(messages)}")
        # What JSON text can say and no state can hold, such as NaN, is refused.
        return cls(
            _plain("/state", _dicts(read.get("state", {}))),
            _plain("/groups", _switches(read.get("groups", {}))),
            _listed("rules", read, MAX_GRANTED_RULES, "granted rules", granted_rule),
            _plain("/conversation", messages),
            _listed("definitions", read, MAX_DEFINITIONS, "definitions", _definition),
            read.get("adapter", ""),
            _indices(read.get("questions", []), len(messages)),
            read.get("model", ""),
            _parked(read.get("parked")),
        )

    def __repr__(self) -> str:
        return f"AgentState({', '.join(self.state) or 'empty'})"


def _parsed(text: str | bytes) -> Any:
    """Read JSON. Raises `ValueError`, `TypeError` and `RecursionError`.

    Of a state that `to_json` wrote, the messages are read one by one: while the parser runs, no
    other thread does, and 10 MiB would stop an event loop for a tenth of a second.
    """
    if isinstance(text, str) and (at := text.find(_BEFORE_MESSAGES)) >= 0:
        with suppress(ValueError):  # it is not such a text: the words stand inside something else
            read = json.loads(text[:at] + "}")
            read["conversation"] = _parsed_messages(text, at + len(_BEFORE_MESSAGES))
            return read
    return json.loads(text)


def _parsed_messages(text: str, at: int) -> list[Any]:
    messages: list[Any] = []
    decoder = json.JSONDecoder()
    while not (text.startswith("]}", at) and len(text) == at + 2):
        if messages:
            if not text.startswith(", ", at):
                raise ValueError("not as to_json writes it")
            at += 2
        message, at = decoder.raw_decode(text, at)
        messages.append(message)
    return messages


def _known_names(version: object) -> list[str]:
    # JSON has true and 1.0 too, which are equal to 1.
    if type(version) is int:
        if version in _NAMES:
            return _NAMES[version].split()
        if version > _VERSION:
            raise _invalid(
                "/version",
                f"a newer toolbus wrote this state, of version {shown(version)}: this one reads 1"
                f" to {_VERSION}",
            )
    raise _invalid("/version", f"must be 1 to {_VERSION}, not {shown(version)}")


def _name(field: str, name: object) -> str:
    if not isinstance(name, str) or len(name) > _MAX_NAME_CHARS or not is_encodable(name):
        raise _invalid(f"/{field}", f"must be text of at most {_MAX_NAME_CHARS} characters")
    return name


def _indices(values: object, count: float = inf) -> list[int]:
    wrong = "must be a list of indices, each larger than the one before"
    if not isinstance(values, list | tuple):
        raise _invalid("/questions", wrong)
    last = -1
    for index in values:
        if type(index) is not int or index <= last:
            raise _invalid("/questions", wrong)
        last = index
    if last >= count:
        raise _invalid("/questions", f"has {shown(last)}, and there are {count} messages")
    return list(values)


def _parked(step: object) -> ParkedStep | None:
    if step is None:
        return None
    try:
        return ParkedStep.from_plain(_plain("/parked", [step])[0])
    except ValueError as error:
        raise _invalid("/parked", cut(str(error))) from None


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


def _listed(
    name: str, state: dict[str, Any], most: int, what: str, read: Callable[[object], T]
) -> list[T]:
    """Read each value of a list of the state."""
    values = state.get(name, [])
    if not isinstance(values, list) or len(values) > most:
        raise _invalid(f"/{name}", f"must be a list of at most {most} {what}")
    found = []
    for index, value in enumerate(values):
        try:
            found.append(read(value))
        except ValueError as error:
            raise _invalid(f"/{name}/{index}", cut(str(error))) from None
    return found


def _plain(path: str, values: Mapping[str, Any] | list[Any]) -> Any:
    try:
        return plain_json(values)
    except InvalidResult as error:
        path += str(error.details.get("path", ""))
        raise _invalid(path, str(error.details.get("message", error.message))) from None


def _invalid(path: str, message: str) -> InvalidArguments:
    text = f"the state of the agent cannot be used: {one_line(path) or 'it'}: {message}"
    return InvalidArguments(text, details={"path": path, "message": message})
