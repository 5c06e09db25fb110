"""A middleware that checks the arguments of calls before the tool runs.

What a text is, a path, an address, a command, or free text, decides which rules are asked, so that
Markdown with backticks and "version 10.2" pass as the free text that they are.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args
from urllib.parse import unquote, urlsplit

from toolbus import CallNext, Chunk, InvalidArguments, ToolCall
from toolbus.bounded_logging import bounded_logger

__all__ = [
    "DEFAULT_RULES",
    "GuardedText",
    "InputGuard",
    "InputRule",
    "ParameterKind",
    "check_kinds",
    "texts_of",
]

ParameterKind: TypeAlias = Literal["path", "address", "command", "text"]

_FORMATS: Mapping[str, ParameterKind] = {
    "uri": "address",
    "url": "address",
    "uri-reference": "address",
    "path": "path",
    "file-path": "path",
    "directory-path": "path",
    "command": "command",
}
"""Formats of JSON Schema; pydantic writes some of them."""
_NAMES: Mapping[ParameterKind, frozenset[str]] = {
    "path": frozenset(
        {"path", "paths", "file", "files", "filename", "filepath", "folder", "directory", "dir"}
        | {"cwd", "source", "destination", "src", "dst", "root"}
    ),
    "address": frozenset("url urls uri uris address endpoint host link".split()),
    "command": frozenset("command commands cmd shell script argv".split()),
}
"""The last word of a parameter's name, in lower case."""
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")
_MAX_DEPTH = 32
"""What is deeper in arguments is not looked at: the walk is recursive, which Python ends early."""


class GuardedText(NamedTuple):
    """One text in the arguments of a call."""

    path: str
    """Its JSON pointer."""
    kind: ParameterKind
    text: str


def check_kinds(kinds: Iterable[str]) -> None:
    """Raise `ValueError` for a kind that there is not."""
    known = get_args(ParameterKind)
    for kind in kinds:
        if kind not in known:
            raise ValueError(f"{kind!r} is no kind of a parameter: write {', '.join(known)}")


def texts_of(
    arguments: Mapping[str, Any],
    schema: Mapping[str, Any],
    kinds: Mapping[str, ParameterKind],
) -> Iterator[GuardedText]:
    """Yield each text of a call's arguments, with what it is.

    Args:
        arguments: The arguments.
        schema: The schema of the tool's arguments: a property's `format` says its kind.
        kinds: The kinds that are known, by the names of parameters; they win. Without either, the
            last word of a name decides: `source_path` is a path.
    """
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    for name, value in arguments.items():
        described = properties.get(name)
        kind = kinds.get(name) or _kind_of(name, described)
        yield from _texts(value, f"/{_escaped(name)}", kind, kinds, 0)


def _texts(
    value: Any, path: str, kind: ParameterKind, kinds: Mapping[str, ParameterKind], depth: int
) -> Iterator[GuardedText]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, str):
        yield GuardedText(path, kind, value)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}/{index}", kind, kinds, depth + 1)
    elif isinstance(value, Mapping):
        for name, member in value.items():
            inner = kinds.get(str(name)) or _kind_of(str(name), None)
            if inner == "text":
                inner = kind
            yield from _texts(member, f"{path}/{_escaped(str(name))}", inner, kinds, depth + 1)


def _kind_of(name: str, described: object) -> ParameterKind:
    if isinstance(described, Mapping):
        for schema in (described, described.get("items")):
            if isinstance(schema, Mapping) and (kind := _FORMATS.get(str(schema.get("format")))):
                return kind
    last = (_WORD.findall(name) or [""])[-1].lower()
    return next((kind for kind, names in _NAMES.items() if last in names), "text")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


_MAX_CHARS = 64 * 1024
"""How much of a text the patterns look at: their time grows with it."""


@dataclass(frozen=True, slots=True)
class InputRule:
    """What texts of some kinds must not be. Raises `ValueError` for a kind that there is not."""

    name: str
    """Named in the error and in the log, such as `path_traversal`."""
    kinds: frozenset[ParameterKind]
    matches: Callable[[str], bool]
    """Whether a text is what the rule is about."""
    action: Literal["block", "warn"] = "block"
    message: str = ""
    """What is wrong, as words for a model."""

    def __post_init__(self) -> None:
        check_kinds(self.kinds)

    @classmethod
    def of_pattern(
        cls,
        name: str,
        kinds: Sequence[ParameterKind],
        pattern: str,
        *,
        action: Literal["block", "warn"] = "block",
        message: str = "",
    ) -> InputRule:
        """Make a rule of a regular expression. Raises `re.error` for one that is not valid."""
        compiled = re.compile(pattern)

        def matches(text: str) -> bool:
            return compiled.search(text[:_MAX_CHARS]) is not None

        return cls(name, frozenset(kinds), matches, action, message)


_SECRET_PLACES = re.compile(
    r"(^|[\s'\"=:/])(etc/(passwd|shadow|sudoers)|proc/(self|\d+)/(environ|mem))\b"
    r"|(^|[\s'\"=:/~])\.(ssh|aws|gnupg|kube|docker)(/|$)"
    r"|\.(netrc|pgpass|git-credentials)\b"
)
_SEPARATORS = re.compile(r"(\|\|?|;|&&?|\n)")
_ROOTS = re.compile(r"(/|~/?|\$HOME/?)\*?")
_RECURSIVE = re.compile(r"-\w*[rR]\w*|--recursive")
_DEVICE = re.compile(r">\s*/dev/(sd|nvme|vd)\w")
_FORK_BOMB = re.compile(r":\(\)\s*\{\s*:\s*\|\s*:")
_FETCHERS, _SHELLS = {"curl", "wget"}, {"sh", "bash", "zsh", "dash", "ksh"}


def _is_dangerous(text: str) -> bool:
    """Whether a command destroys what cannot be restored, or runs what it fetches.

    It looks at each simple command once: the time is in proportion to the text.
    """
    text = text[:_MAX_CHARS]
    if _DEVICE.search(text) or _FORK_BOMB.search(text):
        return True
    fetched = False
    separator = ""
    for index, part in enumerate(_SEPARATORS.split(text)):
        if index % 2:
            separator = part
            continue
        words = [word.strip("'\"()") for word in part.split()]
        names = [word.rpartition("/")[2] for word in words]
        piped = separator == "|" and fetched
        program = next((name for name in names if name != "sudo"), "")
        if _destroys(words, names) or (piped and program in _SHELLS):
            return True
        fetched = piped or not _FETCHERS.isdisjoint(names)
    return False


def _destroys(words: list[str], names: list[str]) -> bool:
    if any(name == "mkfs" or name.startswith("mkfs.") for name in names):
        return True
    if "dd" in names and any(word.startswith("of=/dev/") for word in words):
        return True
    if "chmod" in names and any(word.lstrip("0") == "777" for word in words):
        return any(word.startswith("/") for word in words[names.index("chmod") + 1 :])
    after = words[names.index("rm") + 1 :] if "rm" in names else []
    return any(map(_RECURSIVE.fullmatch, after)) and any(map(_ROOTS.fullmatch, after))


def _leaves_its_folder(text: str) -> bool:
    """Whether a path has `..` as a part, also if it is quoted for an address once or twice."""
    plain = unquote(unquote(text)).replace("\\", "/")
    return ".." in plain.split("/")


def _is_in_a_secret_place(text: str) -> bool:
    plain = unquote(text).replace("\\", "/")
    return _SECRET_PLACES.search(plain[:_MAX_CHARS]) is not None


def _is_private_address(text: str) -> bool:
    """Whether an address has a private, loopback or link-local IP address as its host."""
    try:
        host = urlsplit(text if "//" in text else f"//{text}").hostname or ""
    except ValueError:
        return False
    host = host.rstrip(".")
    if host == "localhost" or host.endswith((".localhost", ".internal", ".local")):
        return True
    address = _ip_of(host)
    return address is not None and not address.is_global


def _ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address of a host, in each form that the system takes: 127.1, 0x7f000001."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        if not host or host.split() != [host]:  # inet_aton reads the first word of several
            return None
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except (OSError, ValueError):
            return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


_EACH: frozenset[ParameterKind] = frozenset({"path", "address", "command"})

DEFAULT_RULES: tuple[InputRule, ...] = (
    InputRule("null_byte", _EACH, lambda text: "\0" in text, message="it has a null byte"),
    InputRule(
        "path_traversal",
        frozenset({"path"}),
        _leaves_its_folder,
        message="the path leaves its folder with '..': name it from the folder's root",
    ),
    InputRule(
        "secret_place",
        frozenset({"path", "command"}),
        _is_in_a_secret_place,
        message="it names a place of passwords or keys",
    ),
    InputRule(
        "private_address",
        frozenset({"address"}),
        _is_private_address,
        message="the address is one of a private network or of this machine",
    ),
    InputRule.of_pattern(
        "other_scheme",
        ("address",),
        r"(?ai)\A(?:file|gopher|dict|ftp|ldap|jar|data|javascript):",
        message="only http and https addresses are allowed",
    ),
    InputRule(
        "dangerous_command",
        frozenset({"command"}),
        _is_dangerous,
        message="the command destroys what cannot be restored, or runs what it fetches",
    ),
    InputRule.of_pattern(
        "command_substitution",
        ("command",),
        r"\$\(|`",
        action="warn",
        message="the command runs another one within it",
    ),
)
"""What `InputGuard` checks if it is given no rules."""


_logger = bounded_logger(__name__)


class InputGuard:
    """A middleware that refuses arguments which are dangerous for what they are.

    A rule that blocks ends the call with `InvalidArguments`, `executed: no`; `details` has the
    path, the message and the rule. A rule that warns writes a line to the log, without the value.

    Args:
        rules: What is checked, in this order.
        kinds: What parameters are: `{"target": "path"}` for every tool, or
            `{"files.move.target": "path"}` for one. Without an entry the schema's `format` decides,
            then the parameter's name.
        allow: Rules that a tool is exempt from: `{"shell.run": ["command_substitution"]}`; `*` is
            every tool.

    Raises `ValueError` for two rules of one name, and for a kind in `kinds` and a rule in `allow`
    that there is not.
    """

    def __init__(
        self,
        rules: Sequence[InputRule] = DEFAULT_RULES,
        *,
        kinds: Mapping[str, ParameterKind] | None = None,
        allow: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._rules = tuple(rules)
        self._kinds = dict(kinds or {})
        check_kinds(self._kinds.values())
        self._allow = dict[str, frozenset[str]]()
        for tool, exempt in (allow or {}).items():
            if isinstance(exempt, str):
                raise TypeError(f"allow has a list of rules for each tool: write [{exempt!r}]")
            self._allow[tool] = frozenset(exempt)
        names = [rule.name for rule in self._rules]
        if len(set(names)) < len(names):
            raise ValueError("two rules of this guard have one name")
        unknown = sorted(set().union(*self._allow.values()) - set(names))
        if unknown:
            text = f"allow names {unknown[0]!r}, which is no rule of this guard"
            raise ValueError(f"{text}: it has {', '.join(names)}")

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Check the arguments, then run the call."""
        for found in texts_of(call.arguments, call.tool.input_schema, self._kinds_of(call)):
            self._check(call, found)
        async with aclosing(cast(Any, next(call))) as chunks:
            async for chunk in chunks:
                yield chunk

    def _kinds_of(self, call: ToolCall) -> Mapping[str, ParameterKind]:
        prefix = f"{call.tool.name}."
        own = {
            name.removeprefix(prefix): kind
            for name, kind in self._kinds.items()
            if name.startswith(prefix)
        }
        return {**self._kinds, **own}

    def _check(self, call: ToolCall, found: GuardedText) -> None:
        exempt = self._allow.get("*", frozenset()) | self._allow.get(call.tool.name, frozenset())
        for rule in self._rules:
            if found.kind not in rule.kinds or rule.name in exempt or not rule.matches(found.text):
                continue
            message = rule.message or f"it is refused by the rule {rule.name}"
            if rule.action == "warn":
                _logger.warning("%s at %s: %s (%s)", call.tool.name, found.path, message, rule.name)
                continue
            details = {"path": found.path, "message": message, "rule": rule.name}
            raise InvalidArguments(f"{found.path}: {message} ({rule.name})", details=details)
