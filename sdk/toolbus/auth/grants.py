"""The grants of a participant, and the patterns in which they are written.

Independent of tokens, sockets and live rooms; the server checks calls against them in
`toolbus_server.registry.call_checks`. Grants are frozen values; `ToolPatterns` and
`ToolRights` are their compiled form, built once per participant and queried once per tool.

A tool pattern is `toolkit.tool`, or `toolkit` for `toolkit.*`. `*` is the only wildcard: it stands
for any run of characters within one part, the empty run too. Matching is case-sensitive and takes
linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, fields, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeGuard

from pydantic import AfterValidator, BeforeValidator, ConfigDict, StrictBool, StrictStr, TypeAdapter
from pydantic.dataclasses import dataclass

from toolbus.auth.participant_names import reference_fault

__all__ = [
    "GRANTS",
    "ROOM_NAME",
    "TOOLKIT_NAME",
    "TOOL_NAME",
    "TOPIC_GRANTS",
    "AgentsGrant",
    "ApiScope",
    "SeenTools",
    "ToolNames",
    "ToolPatterns",
    "ToolRights",
    "check_room_pattern",
    "covers_topic",
    "is_room_name",
    "is_tool_name",
    "is_toolkit_name",
    "matches_room",
]

# \A and \Z, not ^ and $: `$` also matches before a newline at the end.
ROOM_NAME = re.compile(r"\A[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
"""The name of a room."""
TOOLKIT_NAME = re.compile(r"\A[a-z][a-z0-9_-]{0,63}\Z")
"""The name of a toolkit."""
TOOL_NAME = re.compile(r"\A[A-Za-z0-9_-]{1,64}\Z")
"""The name of a tool."""

_ROOM_PATTERN = re.compile(r"\A[a-z0-9*](?:[-a-z0-9*]{0,61}[a-z0-9*])?\Z")
_TOOLKIT_PART = re.compile(r"\A[a-z*][a-z0-9_*-]{0,63}\Z")
_TOOL_PART = re.compile(r"\A[A-Za-z0-9_*-]{1,64}\Z")


def is_room_name(value: object) -> TypeGuard[str]:
    """Whether this is the name of a room."""
    return isinstance(value, str) and ROOM_NAME.fullmatch(value) is not None


def is_toolkit_name(value: object) -> TypeGuard[str]:
    """Whether this is the name of a toolkit."""
    return isinstance(value, str) and TOOLKIT_NAME.fullmatch(value) is not None


def is_tool_name(value: object) -> TypeGuard[str]:
    """Whether this is the name of a tool."""
    return isinstance(value, str) and TOOL_NAME.fullmatch(value) is not None


def _is_part(grammar: re.Pattern[str], part: object) -> TypeGuard[str]:
    return isinstance(part, str) and "**" not in part and grammar.fullmatch(part) is not None


def _refuse(pattern: object, kind: str, grammar: str) -> ValueError:
    return ValueError(f"{repr(pattern)[:200]} is not a {kind} pattern: {grammar}")


def check_room_pattern(pattern: str) -> str:
    """Return the pattern if it is a room's name, with or without `*`; else raise ValueError."""
    if not _is_part(_ROOM_PATTERN, pattern):
        raise _refuse(pattern, "room", "write a room name of a-z, 0-9 and '-', optionally with '*'")
    return pattern


def _check_toolkit_pattern(pattern: str) -> None:
    if not _is_part(_TOOLKIT_PART, pattern):
        grammar = "write a toolkit name of a-z, 0-9, '_' and '-', optionally with '*'"
        raise _refuse(pattern, "toolkit", grammar)


def _check_principal(name: str) -> None:
    if reference_fault(name) is not None:
        raise _refuse(name, "principal", "write a participant's name, alias/name, or '*' for all")


def _parts(pattern: str) -> tuple[str, str]:
    if isinstance(pattern, str):
        toolkit, dot, tool = pattern.partition(".")
        if not dot:
            tool = "*"
        if _is_part(_TOOLKIT_PART, toolkit) and _is_part(_TOOL_PART, tool):
            return toolkit, tool
    grammar = "write 'toolkit.tool', 'toolkit' or '*', with '*' as the only wildcard"
    raise _refuse(pattern, "tool", grammar)


class _Glob(NamedTuple):
    """A pattern of one part with a wildcard, split at its wildcards."""

    head: str
    inner: tuple[str, ...]
    tail: str

    @classmethod
    def of(cls, part: str) -> _Glob:
        head, *inner, tail = part.split("*")
        return cls(head, tuple(inner), tail)

    def covers(self, name: str) -> bool:
        """Whether a name matches, in linear time: the first match of each piece is right."""
        start, end = len(self.head), len(name) - len(self.tail)
        if start > end or not name.startswith(self.head) or not name.endswith(self.tail):
            return False
        for piece in self.inner:
            found = name.find(piece, start, end)
            if found < 0:
                return False
            start = found + len(piece)
        return True


class _Names:
    """A compiled set of patterns of one part.

    Plain names take one lookup in a set, `head*` and `*tail` one comparison in C for all of them;
    only other patterns are tried one by one.
    """

    __slots__ = ("_ends", "_exact", "_heads", "_starts", "_tails", "everything", "globs")

    def __init__(self, parts: Iterable[str]) -> None:
        given = set(parts)
        self.everything = "*" in given
        wild = {part for part in given if "*" in part}
        self._exact = frozenset(given - wild)
        globs = [_Glob.of(part) for part in sorted(wild)]
        self._heads = tuple(glob.head for glob in globs if not glob.inner and not glob.tail)
        self._tails = tuple(glob.tail for glob in globs if not glob.inner and not glob.head)
        self.globs = tuple(glob for glob in globs if glob.inner or (glob.head and glob.tail))
        """The patterns that are tried one by one."""
        self._starts = tuple({glob.head for glob in self.globs})
        self._ends = tuple({glob.tail for glob in self.globs})

    def covers(self, name: str) -> bool:
        """Whether a pattern covers this name."""
        return (
            self.everything
            or name in self._exact
            or name.startswith(self._heads)
            or name.endswith(self._tails)
            or (
                name.startswith(self._starts)
                and name.endswith(self._ends)
                and any(glob.covers(name) for glob in self.globs)
            )
        )


def matches_room(patterns: Iterable[str], room: str) -> bool:
    """Whether one of a token's room patterns covers the room. False for an invalid room name."""
    return is_room_name(room) and _Names(patterns).covers(room)


class ToolNames:
    """The part of a set of tool patterns that concerns one toolkit."""

    __slots__ = ("_parts", "everything")

    def __init__(self, everything: bool, parts: Sequence[_Names]) -> None:
        self.everything: bool = everything
        """Whether every tool is covered, including future ones."""
        self._parts = parts

    def covers(self, tool: str) -> bool:
        """Whether a pattern covers this tool of the toolkit."""
        return self.everything or any(names.covers(tool) for names in self._parts)

    @property
    def is_empty(self) -> bool:
        """Whether no tool can be covered."""
        return not self.everything and not self._parts

    @property
    def effort(self) -> int:
        """How many patterns `covers` tries one by one at most."""
        return sum(len(names.globs) for names in self._parts)


class ToolPatterns:
    """A compiled set of tool patterns; ValueError names a pattern that is invalid.

    Patterns are grouped by toolkit, so that those of other toolkits cost a tool nothing.
    """

    __slots__ = ("_by_toolkit", "_whole", "_wild")

    def __init__(self, patterns: Iterable[str]) -> None:
        groups: dict[str, set[str]] = {}
        for toolkit, tool in map(_parts, patterns):
            groups.setdefault(toolkit, set()).add(tool)
        self._whole = _Names(toolkit for toolkit, tools in groups.items() if "*" in tools)
        partial = {name: _Names(tools) for name, tools in groups.items() if "*" not in tools}
        self._by_toolkit = {name: names for name, names in partial.items() if "*" not in name}
        self._wild = [(_Names([name]), names) for name, names in partial.items() if "*" in name]

    def of_toolkit(self, toolkit: str) -> ToolNames:
        """Return the patterns that concern the tools of one toolkit. Its name must be valid."""
        if self.covers_toolkit(toolkit):
            return ToolNames(True, ())
        parts = [names for wild, names in self._wild if wild.covers(toolkit)]
        if toolkit in self._by_toolkit:
            parts.insert(0, self._by_toolkit[toolkit])
        return ToolNames(False, parts)

    def covers(self, toolkit: str, tool: str) -> bool:
        """Whether a pattern covers this tool. The names must be valid."""
        if self.covers_toolkit(toolkit):
            return True
        own = self._by_toolkit.get(toolkit)
        if own is not None and own.covers(tool):
            return True
        return any(wild.covers(toolkit) and names.covers(tool) for wild, names in self._wild)

    def covers_toolkit(self, toolkit: str) -> bool:
        """Whether a pattern covers every tool of this toolkit, including future ones."""
        return self._whole.covers(toolkit)

    def concerns(self, toolkit: str) -> bool:
        """Whether a pattern may cover a tool of this toolkit."""
        return not self.of_toolkit(toolkit).is_empty


_NO_TOOLS = ToolNames(False, ())


def _refuse_text(items: Any) -> Any:
    if isinstance(items, str):
        raise ValueError(f"expected a list of patterns, not text: did you mean [{items[:200]!r}]?")
    return items


def _each(check: Callable[[str], object]) -> AfterValidator:
    def checked(items: Sequence[str]) -> tuple[str, ...]:
        for item in items:
            check(item)  # raises
        return tuple(items)

    return AfterValidator(checked)


_Texts = Annotated[Sequence[StrictStr], BeforeValidator(_refuse_text)]


# Any sequence is accepted; the value holds a tuple, so that it is hashable and immutable.
_ToolPatternList = Annotated[_Texts, _each(_parts)]
_ToolkitPatternList = Annotated[_Texts, _each(_check_toolkit_pattern)]
_PrincipalList = Annotated[_Texts, _each(_check_principal)]

# Error messages name the invalid field; the rest of the input stays out of logs. Most programs make
# no grants, so that the validators are built at the first one, which saves 10 ms of each start.
_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True, defer_build=True)


# Dataclasses, because a pydantic `BaseModel` cannot have a field called `register`.
@dataclass(frozen=True, kw_only=True, config=_STRICT)
class AgentsGrant:
    """Rights over toolkits and tools; ValueError names an invalid field or pattern."""

    register_public_toolkit: StrictBool = False
    """May register toolkits that the whole room sees, with names that `register` covers."""
    register_private_toolkit: StrictBool = False
    """May register toolkits visible to itself and to those it shares with; names as above."""
    register: _ToolkitPatternList = ("*",)
    """Patterns of toolkit names that it may register, if one of the two fields above is set."""
    use_tools: StrictBool = False
    """May list and inspect the tools that `allow` covers and `deny` does not."""
    call: StrictBool = False
    """May invoke the tools that `allow` covers and `deny` does not; needs no `use_tools`."""
    allow: _ToolPatternList = ("*",)
    """Patterns of tools that it may see and call."""
    deny: _ToolPatternList = ()
    """Patterns of tools that it may neither see nor call; wins over `allow`."""
    act_for: _PrincipalList = ()
    """Names that it may call on behalf of without a parent call; `*` stands for all names.

    A bare name and `*` mean the token's own issuer; `alias/name` and `alias/*` another one.
    """
    builders: _ToolkitPatternList = ()
    """Patterns of dynamic builders that it may request from an agent."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ApiScope:
    """All grants of one participant. Without arguments it may join a room and nothing else."""

    agents: AgentsGrant = field(default_factory=AgentsGrant)
    """Rights over toolkits and tools."""
    presence: StrictBool = False
    """May see participants and their attributes."""
    messaging: StrictBool = False
    """May send and broadcast messages."""
    trace: StrictBool = False
    """Its trace context and sampling are used; without it its calls begin traces of their own."""
    observe: StrictBool = False
    """May see the metadata of every call in its rooms."""
    admin: StrictBool = False
    """May list rooms, remove participants and revoke tokens."""
    approve: _ToolPatternList = ()
    """Patterns of tools: it may approve calls of these that are made for its own identity."""
    approve_all: _ToolPatternList = ()
    """Patterns of tools of which it may approve the calls of everybody; in no preset."""
    approve_own: StrictBool = False
    """May approve a call that it makes for somebody else itself; in no preset."""
    answer: _ToolPatternList = ()
    """Patterns of tools: it may answer what they ask in calls that are made for its own identity,
    and such calls themselves if the tool has no code."""

    @classmethod
    def host_default(cls) -> ApiScope:
        """Grant what a service needs: register both kinds, list, and call (for nested calls)."""
        agents = AgentsGrant(
            register_public_toolkit=True, register_private_toolkit=True, use_tools=True, call=True
        )
        return cls(agents=agents, trace=True)

    @classmethod
    def agent_default(cls) -> ApiScope:
        """Grant what an agent needs: list, call, send messages, register private toolkits."""
        agents = AgentsGrant(register_private_toolkit=True, use_tools=True, call=True)
        return cls(agents=agents, presence=True, messaging=True, trace=True)

    @classmethod
    def user_default(cls) -> ApiScope:
        """Grant the rights of an agent, and to decide approvals and answer parked calls."""
        return replace(cls.agent_default(), approve=("*",), answer=("*",))

    @classmethod
    def full(cls) -> ApiScope:
        """Grant everything but `approve_all` and `approve_own`, which older servers do not know."""
        agents = AgentsGrant(
            register_public_toolkit=True,
            register_private_toolkit=True,
            use_tools=True,
            call=True,
            act_for=("*",),
            builders=("*",),
        )
        return replace(cls.user_default(), agents=agents, observe=True, admin=True)

    def to_claims(self) -> dict[str, Any]:
        """Return the nested `api` claim of a token: JSON values, without defaults."""
        claims: dict[str, Any] = _SCOPES.dump_python(self, mode="json", exclude_defaults=True)
        return claims

    @classmethod
    def from_claims(cls, claims: dict[str, Any]) -> ApiScope:
        """Read the `api` claim of a token; ValueError for anything but a valid scope."""
        return _SCOPES.validate_python(claims)

    @classmethod
    def known_of(cls, claims: dict[str, Any]) -> ApiScope:
        """Read the grants that a server sent; ignore the unknown fields of a newer server."""
        agents = _known_fields(AgentsGrant, claims.get("agents", {}))
        return cls.from_claims({**_known_fields(cls, claims), "agents": agents})


_SCOPES: TypeAdapter[ApiScope] = TypeAdapter(ApiScope)


def _has_values(kind: type) -> dict[str, bool]:
    return {grant.name: isinstance(grant.default, tuple) for grant in fields(kind)}


GRANTS: MappingProxyType[str, bool] = MappingProxyType(
    {
        **{f"agents.{name}": values for name, values in _has_values(AgentsGrant).items()},
        **{name: values for name, values in _has_values(ApiScope).items() if name != "agents"},
    }
)
"""Every grant by its name, such as `agents.call`, and whether it has values: patterns or names."""
TOPIC_GRANTS: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {
        "toolkits": ("agents.use_tools",),
        "participants": ("presence",),
        "messages": ("messaging",),
        "calls": ("observe",),
        "holds": ("approve", "approve_all", "answer"),
    }
)
"""The topics of subscriptions, each with the grants of which one covers it."""


def covers_topic(scope: ApiScope, topic: str) -> bool:
    """Whether a scope covers a topic of `TOPIC_GRANTS`."""
    return any(attrgetter(grant)(scope) for grant in TOPIC_GRANTS[topic])


def _known_fields(kind: type, claims: dict[str, Any]) -> dict[str, Any]:
    return {grant.name: claims[grant.name] for grant in fields(kind) if grant.name in claims}


class SeenTools(NamedTuple):
    """Which tools of one toolkit a participant may list and inspect."""

    allow: ToolNames
    deny: ToolNames

    def covers(self, tool: str) -> bool:
        """Whether it may list and inspect this tool."""
        return self.allow.covers(tool) and not self.deny.covers(tool)

    @property
    def everything(self) -> bool:
        """Whether it may see every tool, whatever tools there are."""
        return self.allow.everything and self.deny.is_empty

    @property
    def is_empty(self) -> bool:
        """Whether it may see no tool, whatever tools there are."""
        return self.allow.is_empty or self.deny.everything

    @property
    def effort(self) -> int:
        """How many patterns are tried one by one for a tool at most."""
        return self.allow.effort + self.deny.effort


class ToolRights:
    """The compiled `AgentsGrant` of one participant; `deny` wins.

    It caches no answers, so nothing that a client sends makes it grow.
    """

    __slots__ = ("__weakref__", "_allow", "_deny", "_register", "grant")

    def __init__(self, scope: AgentsGrant) -> None:
        self.grant: AgentsGrant = scope
        """The grant that was compiled."""
        self._allow = ToolPatterns(scope.allow)
        self._deny = ToolPatterns(scope.deny)
        self._register = ToolPatterns(scope.register)

    def _covers(self, toolkit: str, tool: str) -> bool:
        return self._allow.covers(toolkit, tool) and not self._deny.covers(toolkit, tool)

    def may_call(self, toolkit: str, tool: str) -> bool:
        """Whether it may invoke this tool."""
        return self.grant.call and self._covers(toolkit, tool)

    def may_see(self, toolkit: str, tool: str) -> bool:
        """Whether it may list and inspect this tool."""
        return self.grant.use_tools and self._covers(toolkit, tool)

    def may_read(self, toolkit: str, tool: str) -> bool:
        """Whether it may read a tool's description: it may invoke the tool, or may list it."""
        return self.may_see(toolkit, tool) or self.may_call(toolkit, tool)

    def may_hide(self, toolkit: str) -> bool:
        """Whether `allow` and `deny` do not let it see and call every tool of this toolkit."""
        return not self._allow.covers_toolkit(toolkit) or self._deny.concerns(toolkit)

    def seen_in(self, toolkit: str) -> SeenTools:
        """Return which tools of one toolkit it may list and inspect."""
        allow = self._allow.of_toolkit(toolkit) if self.grant.use_tools else _NO_TOOLS
        return SeenTools(allow, self._deny.of_toolkit(toolkit))

    def may_register(self, toolkit: str, public: bool) -> bool:
        """Whether it may register a toolkit of this name, public or private."""
        grant = self.grant
        allowed = grant.register_public_toolkit if public else grant.register_private_toolkit
        return allowed and self._register.covers_toolkit(toolkit)

    def has_act_for(self, entry: str) -> bool:
        """Whether `act_for` has this very entry: a name, `alias/name`, `*` or `alias/*`.

        The server alone knows which identities an entry covers.
        """
        return entry in self.grant.act_for
