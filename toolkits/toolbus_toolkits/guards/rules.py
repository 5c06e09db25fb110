"""The rules of `InputGuard`: what a text of one kind must not be. Pure."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from toolbus_toolkits.guards.parameter_kinds import ParameterKind, check_kinds

__all__ = ["DEFAULT_RULES", "InputRule"]

_MAX_CHARS = 64 * 1024
"""How much of a text the patterns look at."""


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
        if _destroys(words, names) or (piped and _first_program(names) in _SHELLS):
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


def _first_program(names: list[str]) -> str:
    return next((name for name in names if name != "sudo"), "")


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


def _has_another_scheme(text: str) -> bool:
    scheme = text.partition(":")[0].lower() if ":" in text else ""
    return scheme in {"file", "gopher", "dict", "ftp", "ldap", "jar", "data", "javascript"}


def _has_a_null(text: str) -> bool:
    return "\0" in text


_EACH: frozenset[ParameterKind] = frozenset({"path", "address", "command"})

DEFAULT_RULES: tuple[InputRule, ...] = (
    InputRule("null_byte", _EACH, _has_a_null, message="it has a null byte"),
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
    InputRule(
        "other_scheme",
        frozenset({"address"}),
        _has_another_scheme,
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
