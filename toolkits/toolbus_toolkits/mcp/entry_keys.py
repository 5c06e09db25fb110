"""An entry as editors and other hubs write it, read as the fields of a `ServerEntry`.

A key is known whatever its spelling: `enabledTools`, `enabled_tools` and `enabled-tools` are one. A
key that is not known is a warning, unless it seems to restrict what the server may do: then the
entry is an error, because a server that is less restricted than its owner wrote is worse than none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import translate
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from toolbus.untrusted_text import one_line

__all__ = [
    "EntryFields",
    "denied_in",
    "denies_tools",
    "matches_any",
    "names_in",
    "plain_key",
    "read_entry",
    "restricts",
]

_KEYS: Mapping[str, str] = {
    "command": "command cmd",
    "args": "args arguments",
    "env": "env environment envs",
    "env_file": "envfile",
    "cwd": "cwd workingdirectory workingdir workdir",
    # The first one counts. Beside Gemini's `httpUrl`, `url` is the older SSE address of the server.
    "url": "httpurl url serverurl uri endpoint",
    "headers": "headers httpheaders",
    "transport": "transport type transporttype",
    "enabled": "enabled isenabled enable active isactive autostart startup autoconnect",
    "disabled": "disabled isdisabled disable",
    "tools": "tools",
    "shared_with": "sharedwith",
    "agents": "assigntoagents",
    "stateful": "stateful",
    "memory_mb": "memorymb",
    "trusted": "trusted",
}
"""The keys of each field, as `plain_key` writes them."""
_FIELD_OF = {plain: field for field, keys in _KEYS.items() for plain in keys.split()}
_ALLOW = r"(?:enabled?|included?|allow(?:ed)?|only|allowlist|whitelist)"
_DENY = (
    r"(?:disabled?|excluded?|deny|denied|block(?:ed)?|disallow(?:ed)?|hide|hidden|denylist|"
    r"blocklist|blacklist)"
)
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "enabled_tools": re.compile(
        rf"(?:{_ALLOW}|available|permitted)tool(?:s|names)|tools?(?:allowlist|whitelist|include)"
    ),
    "disabled_tools": re.compile(
        rf"(?:{_DENY}|forbidden)tool(?:s|names)|tools?(?:denylist|blocklist|blacklist|exclude)|"
        "(?:kiro)?autoblock"
    ),
    "timeout_s": re.compile(
        r"(?:request|call|tool|toolcall|execution)?timeout(?:(?P<ms>ms|millis(?:econds)?)|"
        r"(?P<s>s|secs?|seconds))?"
    ),
    "connect_timeout_s": re.compile(
        r"(?:connect|connection|init|initialization|startup|start|network)timeout"
        r"(?:(?P<ms>ms|millis(?:econds)?)|(?P<s>s|secs?|seconds))?"
    ),
}
"""The keys of fields that each hub names in its own way."""
_TRANSPORTS: Mapping[str, str] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "streamable_http",
    "streamable": "streamable_http",
    "streamablehttp": "streamable_http",
    "sse": "sse",
}
"""How a transport is written, and which one it is."""
_SAYS_NOTHING = frozenset({"remote", "custom", "auto", "url", "mcp"})
"""What some write as `type`: then the rest of the entry says it."""

_MOST_S = {"timeout_s": 3_600.0, "connect_timeout_s": 600.0}
"""A time above this is milliseconds: no editor that counts seconds takes more."""
_MAX_LIMIT_S = 24 * 3_600.0

_IGNORED = frozenset(
    # They loosen what an editor asks its user before a call; here the grants of callers decide.
    "autoapprove alwaysallow autoallow trust istrusted kiroautoapprove autoapproval "
    # They describe the entry, or concern the editor alone.
    "name key id title displayname description shortdescription longdescription icon iconurl "
    "iconpath logo logourl version tags category categories author publisher provider providerurl "
    "homepage repository documentation docs note notes comment schema source gallery registryurl "
    "installsource installedfrom watch watchpaths dev debug order required isdefault bundled "
    "chatmenu serverinstructions custominstructions customuservars alwaysload disabledreason "
    "createdat updatedat lastupdated group groups cachetoolslist".split()
)
_LOOSENING_PART = re.compile("(?:auto|always)(?:approv|allow|accept|confirm)|trust")
"""Keys that restrict nothing, though their names have a word of the others."""
_NAMING_PART = re.compile(
    "exclu|disallow|den(?:y|ied)|disabl|block|filter|restrict|forbid|sandbox|blacklist|readonly|"
    "approv|confirm|consent|toolset"
)
_NAMING_WORDS = frozenset(
    "only hide hidden skip skipped omit omitted ignore ignored limit limits ban banned except "
    "reject rejected refuse no not without off paused suspended inactive".split()
)
"""Keys that restrict by what they name: an empty value restricts nothing."""
_ALLOWING_PART = re.compile("includ|allow|permi[ts]|enabl|whitelist")
"""Keys that restrict by what they leave out."""
_OFF_STATES = frozenset("disabled off stopped inactive paused blocked denied hidden".split())
_NO_NAME = re.compile(r"[\\^$|(){}+!]|^/.*/$")
"""What is in the patterns of others. As a name it would deny nothing, and nobody would notice."""
_NO_APPROVAL = frozenset({"never", "auto", "approve", "none", "off"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_MAX_NESTED = 10_000
_MAX_NAMES = 1_000
_MAX_GLOBS = 100
"""Of one list: a tool is compared with all of them."""
_MAX_SHOWN = 5

_Pairs: TypeAlias = list[tuple[str, Any]]
"""Keys as they are written, with their values."""


class EntryFields(NamedTuple):
    """The fields of an entry, and what of it is not understood."""

    fields: dict[str, Any]
    """By the names of the fields of `ServerEntry`, and `env_file`."""
    warnings: list[str]
    """What of it is not understood, and does not matter."""


def read_entry(data: object) -> EntryFields:
    """Read an entry in any form that editors write.

    Raises `ValueError`, without a value of the entry, for one that cannot be used as it is meant.
    """
    if not isinstance(data, Mapping):
        raise ValueError("must be an object")
    found, unknown = _by_field(_flattened(data))
    warnings: list[str] = []
    fields: dict[str, Any] = {}
    if _is_off(found):
        fields["disabled"] = True
    _read_target(found, fields)
    _read_transport(found, unknown, fields, warnings)
    for field in _MOST_S:
        for key, value in found.get(field, ()):
            fields[field] = _seconds(field, key, value, warnings)
    _read_tool_lists(found, fields, warnings)
    for key, names in found.get("agents", ()):
        if not isinstance(names, list | tuple):
            raise ValueError(f"{key} must be a list of names")
        fields["shared_with"] = [f"name:{name}" for name in names]
    for field in ("shared_with", "stateful", "memory_mb"):
        if field in found:  # as it is, also where it is empty: shared with nobody
            fields[field] = found[field][0][1]
    if "trusted" in found:
        # All spellings have to say it: one that denies it was written by somebody too.
        fields["trusted"] = all(_boolean(key, value) for key, value in found["trusted"])
    _judge(unknown, "", warnings)
    return EntryFields(fields, warnings)


def matches_any(name: str, patterns: frozenset[str]) -> bool:
    """Whether a name is one of the patterns, in which `*` and `?` stand for characters."""
    if name in patterns:
        return True
    globs = _globs(patterns)
    return globs is not None and globs.match(name) is not None


@lru_cache(maxsize=2 * 256)
def _globs(patterns: frozenset[str]) -> re.Pattern[str] | None:
    """Return one pattern for all with wildcards, so that a list costs one match for each tool."""
    # A bracket is a character of a name, where `fnmatch` would see a set.
    globs = [translate(glob.replace("[", "[[]")) for glob in sorted(filter(_is_glob, patterns))]
    return re.compile("|".join(globs)) if globs else None


def _is_glob(name: str) -> bool:
    return "*" in name or "?" in name


def names_in(key: str, value: object) -> list[str]:
    """Return a list of names. Raises `ValueError` if it is none."""
    if value == "*" or value is True:
        return ["*"]
    if value is False:
        return []
    if not isinstance(value, list | tuple | set | frozenset) or not all(
        isinstance(name, str) for name in value
    ):
        raise ValueError(f"{one_line(key, 64)} must be a list of names")
    if len(value) > _MAX_NAMES:
        raise ValueError(f"{one_line(key, 64)} has more than {_MAX_NAMES:,} names")
    if sum(map(_is_glob, value)) > _MAX_GLOBS:
        raise ValueError(f"{one_line(key, 64)} has more than {_MAX_GLOBS} names with * or ?")
    return list(value)


def denies_tools(key: str) -> bool:
    """Whether a key holds tools that are not shown."""
    return _PATTERNS["disabled_tools"].fullmatch(plain_key(key)) is not None


def denied_in(key: str, value: object) -> list[str]:
    """Return a list of tools that are not shown. Raises `ValueError` if it is none."""
    names = names_in(key, value)
    if odd := [name for name in names if _NO_NAME.search(name)]:
        raise ValueError(
            f"{one_line(key, 64)} has {one_line(odd[0], 64)!r}, which is no name of a tool: "
            "only * and ? stand for characters"
        )
    return names


def restricts(key: str, value: object) -> bool:
    """Whether a key that is not known restricts something, by its name and value."""
    plain = plain_key(key)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if value is None or _LOOSENING_PART.search(plain):
        return False
    if _NAMING_PART.search(plain) or {word.lower() for word in _WORD.findall(key)} & _NAMING_WORDS:
        return bool(value) and not (isinstance(value, str) and value.lower() in _NO_APPROVAL)
    if _ALLOWING_PART.search(plain):
        return value is not True and value not in ("*", ["*"], {})
    if _FIELD_OF.get(plain) == "enabled" or plain == "on":
        return value is False
    if plain in ("state", "status", "mode"):
        return isinstance(value, str) and value.lower() in _OFF_STATES
    return "tool" in plain and _chooses(value)


def _chooses(value: object) -> bool:
    """Whether a value about tools may leave some of them out, in whatever words."""
    if isinstance(value, Mapping):
        return any(_chooses(rule) for rule in value.values() if not isinstance(rule, Mapping))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is False or is_number or isinstance(value, list)


def _judge(unknown: _Pairs, path: str, warnings: list[str]) -> None:
    """Warn of keys that are not known. Raises `ValueError` if one of them restricts."""
    shown: list[str] = []
    for key, value in unknown:
        plain = plain_key(key)
        concerns_tools = "tool" in plain or not ("prompt" in plain or "resource" in plain)
        if plain in _IGNORED or key.startswith(("//", "$")) or not concerns_tools:
            continue  # of prompts and resources nothing is shown here
        if found := _restricting(key, value):
            raise ValueError(
                f'"{one_line(path + found, 128)}" seems to restrict the server, and is '
                "not understood here: take it out, or use enabledTools and disabledTools"
            )
        if not key.startswith("_"):  # else a comment
            shown.append(one_line(path + key, 64))
    if shown:
        more = f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else ""
        warnings.append(f"keys that are not understood: {', '.join(shown[:_MAX_SHOWN])}{more}")


def _restricting(key: str, value: object) -> str:
    """Return the path of a key that restricts, in a value and all that it holds; empty if none."""
    if restricts(key, value):
        return key
    left: _Pairs = [(key, value)]
    for _ in range(_MAX_NESTED):
        if not left:
            return ""
        path, inner = left.pop()
        if isinstance(inner, Mapping):
            for name, member in inner.items():
                if restricts(str(name), member):
                    return f"{path}.{name}"
                left.append((f"{path}.{name}"[:128], member))
        elif isinstance(inner, list):
            left += ((path, item) for item in inner)
    return key  # more than anybody writes


def _flattened(data: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Return the keys of an entry, without the objects that some editors put around them."""
    for key, value in data.items():
        match plain_key(str(key)), value:
            case "transport", Mapping():  # Continue's
                yield from ((str(name), inner) for name, inner in value.items())
            case "command", Mapping():  # Zed's
                for name, inner in value.items():
                    yield "command" if name == "path" else str(name), inner
            case "timeout", Mapping():  # opencode's `startup` and `request`, in milliseconds
                for name, inner in value.items():
                    yield f"{name}TimeoutMs", inner
            case _:
                yield str(key), value


def _by_field(pairs: Iterable[tuple[str, Any]]) -> tuple[dict[str, _Pairs], _Pairs]:
    """Return the keys of each field, and those that are not known. What is null is left out."""
    found: dict[str, _Pairs] = {}
    unknown: _Pairs = []
    for key, value in pairs:
        if value is None:
            continue
        plain = plain_key(key)
        field = _FIELD_OF.get(plain) or next(
            (name for name, pattern in _PATTERNS.items() if pattern.fullmatch(plain)), None
        )
        (unknown if field is None else found.setdefault(field, [])).append((key, value))
    return found, unknown


def _value(found: Mapping[str, _Pairs], field: str) -> Any:
    """Return the value of a field; None if it is empty. Raises `ValueError` for two values."""
    given = [pair for pair in found.get(field, ()) if pair[1] not in ("", [], {})]
    for key, value in given[1:]:
        if value != given[0][1]:
            raise ValueError(f'has both "{one_line(given[0][0], 64)}" and "{one_line(key, 64)}"')
    return given[0][1] if given else None


def _is_off(found: Mapping[str, _Pairs]) -> bool:
    states = [_boolean(key, value) for key, value in found.get("enabled", ())]
    states += [not _boolean(key, value) for key, value in found.get("disabled", ())]
    return not all(states)


def _read_target(found: Mapping[str, _Pairs], fields: dict[str, Any]) -> None:
    """Set what is started, and what is called."""
    command = _value(found, "command")
    args = _value(found, "args")
    if args is not None and not isinstance(args, list | tuple):
        raise ValueError("args must be a list")
    if isinstance(command, list | tuple):  # as opencode writes it
        args = [*command[1:], *(args or ())]
        command = command[0] if command else None
    keys = _KEYS["url"].split()
    urls = sorted(found.get("url", ()), key=lambda pair: keys.index(plain_key(pair[0])))
    given = {
        "command": command,
        "args": [*map(_text, args or ())],
        "env": _texts("env", _value(found, "env")),
        "env_file": _value(found, "env_file"),
        "cwd": _value(found, "cwd"),
        "url": next((value for _, value in urls if value != ""), None),
        "headers": _texts("headers", _value(found, "headers")),
    }
    fields |= {name: value for name, value in given.items() if value not in (None, "", [], {})}


def _read_transport(
    found: Mapping[str, _Pairs], unknown: _Pairs, fields: dict[str, Any], warnings: list[str]
) -> None:
    """Set the transport: as it is written, else by what the entry has."""
    written = [value for _, value in found.get("transport", ()) if value != ""]
    known = [plain_key(value) for value in written if isinstance(value, str)]
    transport = next((_TRANSPORTS[name] for name in known if name in _TRANSPORTS), None)
    if transport is None and written and not (known and set(known) <= _SAYS_NOTHING):
        raise ValueError("transport must be one of stdio, http, streamable-http, sse")
    url = fields.get("url")
    command = fields.get("command")
    if transport is None and command and url:
        raise ValueError('has both "command" and "url": an entry has one of them')
    if transport is None and url:
        # The path alone counts: an address may have a query.
        path = re.split("[?#]", url)[0] if isinstance(url, str) else ""
        transport = "sse" if path.rstrip("/").endswith("/sse") else "streamable_http"
    has_address = transport in ("sse", "streamable_http")
    needed = "url" if has_address else "command"
    other = "command" if has_address else "url"
    if not fields.get(needed):
        plain = [plain_key(key) for key, _ in unknown]
        near = [key for name in ("command", "url") for key in get_close_matches(name, plain, 1)]
        hint = f", not {one_line(near[0], 64)!r}" if near and not (url or command) else ""
        if transport is None:
            raise ValueError(f'must have either "command" or "url"{hint}')
        raise ValueError(f'a server with transport {transport} must have "{needed}"{hint}')
    if fields.pop(other, None):
        warnings.append(f"{other} is not used, because the transport is {transport}")
    if transport is not None:
        fields["transport"] = transport


def _seconds(field: str, key: str, value: object, warnings: list[str]) -> float:
    """Return a time in seconds, which a key without a unit may have in milliseconds."""
    unit = _PATTERNS[field].fullmatch(plain_key(key))
    assert unit is not None
    number = _number(key, value)
    if unit["ms"]:
        number /= 1_000
    elif not unit["s"] and number > _MOST_S[field]:
        if number <= _MAX_LIMIT_S and number % 1_000:  # it may have been meant as seconds
            warnings.append(f"{key} {number:g} is read as milliseconds: {field} has seconds")
        number /= 1_000
    if key == field:  # ours: the entry is checked against its bounds
        return number
    return min(number, _MAX_LIMIT_S if field == "timeout_s" else _MOST_S[field])


def _read_tool_lists(
    found: Mapping[str, _Pairs], fields: dict[str, Any], warnings: list[str]
) -> None:
    """Set which tools are shown, from all lists of an entry together."""
    allowed = [names_in(key, value) for key, value in found.get("enabled_tools", ())]
    denied = [
        name for key, value in found.get("disabled_tools", ()) for name in denied_in(key, value)
    ]
    for key, value in found.get("tools", ()):
        if isinstance(value, Mapping):
            _read_tools(f"{key}.", value, allowed, denied, warnings)
        else:
            allowed.append(names_in(key, value))
    allowed = [names for names in allowed if "*" not in names]
    if allowed:
        shown, *others = allowed
        for names in others:
            # A tool has to be on both. Two patterns that overlap leave what one of them names.
            both = [name for name in names if matches_any(name, frozenset(shown))]
            shown = both + [name for name in shown if matches_any(name, frozenset(names))]
        fields["enabled_tools"] = shown
    if denied:
        fields["disabled_tools"] = denied


def _read_tools(
    path: str,
    rules: Mapping[Any, Any],
    allowed: list[list[str]],
    denied: list[str],
    warnings: list[str],
) -> None:
    """Read `{"include": [...], "exclude": [...]}`, or `{tool: {"enabled": false}}`."""
    for word, rule in rules.items():
        name = str(word)
        plain = plain_key(name)
        match rule:
            case list() if re.fullmatch(_ALLOW, plain):
                allowed.append(names_in(path + name, rule))
            case list() if re.fullmatch(_DENY, plain):
                denied += denied_in(path + name, rule)
            case bool():
                switch = _FIELD_OF.get(plain)
                if switch in ("enabled", "disabled"):  # no tool: all of them
                    denied += ["*"] if rule == (switch == "disabled") else []
                elif not rule:
                    denied.append("*" if plain == "default" else name)
            case Mapping():
                found, unknown = _by_field((str(key), value) for key, value in rule.items())
                switches = {key: found.pop(key, []) for key in ("enabled", "disabled")}
                if _is_off(switches):
                    denied.append(name)
                unknown += (pair for pairs in found.values() for pair in pairs)
                _judge(unknown, f"{path}{name}.", warnings)
            case None:
                pass
            case _:
                raise ValueError(f"{one_line(path + name, 128)} is not understood here")


def _boolean(key: str, value: object) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ValueError(f"{one_line(key, 64)} must be true or false")


def _number(key: str, value: object) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (OverflowError, ValueError):
            pass
    raise ValueError(f"{one_line(key, 64)} must be a number")


def _text(value: object) -> object:
    """Return a number, true or false as the text that a program reads."""
    return json.dumps(value) if isinstance(value, bool | int | float) else value


def _texts(key: str, value: object) -> dict[str, Any]:
    """Return an object of texts, without what is null."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{one_line(key, 64)} must be an object")
    return {str(name): _text(text) for name, text in value.items() if text is not None}


def plain_key(key: str) -> str:
    """Return a key in the one spelling that all of its spellings have."""
    return re.sub(r"[^a-z0-9]", "", key.lower())
